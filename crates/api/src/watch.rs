//! Watch: requests go to the node, responses come through the stream's outbox.
//!
//! The hub makes whole responses and rings the stream's bell; here they get their gRPC prefix and are put together into
//! pieces of one write each. Nothing is decoded, and nothing is drained that the connection does not take: what a slow
//! client leaves in the outbox bounds what the hub does for it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use dolmen_node::{Completion, Request};
use dolmen_proto::etcdserverpb::watch_create_request::FilterType;
use dolmen_proto::etcdserverpb::watch_request::RequestUnion;
use dolmen_proto::etcdserverpb::{WatchCreateRequest, WatchRequest};
use dolmen_types::KeyRange;
use dolmen_watch::{CloseReason, CreateRequest, Drained, Frame, Limits, Outbox, StreamId};

use crate::answer::Answers;
use crate::call::Call;
use crate::completion::Bell;
use crate::frame::{MessageReader, PREFIX, decode, put_prefix};
use crate::server::Local;
use crate::status::{self, Code, Status};

/// Responses taken from the outbox at a time.
const DRAIN: usize = 256;
/// Bytes gathered into one piece before a further response starts another.
const PIECE: usize = 64 * 1024;
/// Requests that may wait for the node, and answers for the connection, before requests are no longer read: a client that
/// creates thousands of watchers at once is taken up in portions.
const MAX_WAITING: usize = 128;

/// Names streams for the life of the process.
static NEXT_STREAM: AtomicU64 = AtomicU64::new(1);

/// A stream at the node, closed when this is dropped, however the call ends.
struct Stream<'a> {
    local: &'a Local,
    id: StreamId,
    outbox: Arc<Outbox>,
    bell: Bell,
}

impl<'a> Stream<'a> {
    fn open(local: &'a Local) -> Self {
        let bell = local.mailbox.bell();
        let Completion { runtime, slot } = bell.completion();
        let outbox = Arc::new(Outbox::new(runtime, slot, Limits::default()));
        let id = StreamId(NEXT_STREAM.fetch_add(1, Ordering::Relaxed));
        let stream = Self { local, id, outbox, bell };
        stream.submit(Request::WatchOpen { stream: id, outbox: stream.outbox.clone() });
        stream
    }

    fn submit(&self, request: Request) {
        self.local.node().submit(request, self.bell.completion());
    }

    async fn request(&self, call: &Call, message: Bytes) -> Result<(), Status> {
        let stream = self.id;
        let request: WatchRequest = decode(message)?;
        let request = match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => {
                let create = create(request);
                // A revision below 0 is refused before anybody is asked, as in etcd.
                let permitted = if create.start_revision < 0 { Ok(()) } else { may_watch(call, &create.range).await };
                match permitted {
                    Ok(()) => Request::WatchCreate { stream, create },
                    Err(status) => {
                        let reason = format!("rpc error: code = {:?} desc = {status}", status.code);
                        Request::WatchRefuse { stream, reason }
                    }
                }
            }
            Some(RequestUnion::CancelRequest(request)) => Request::WatchCancel { stream, watch_id: request.watch_id },
            Some(RequestUnion::ProgressRequest(_)) => Request::WatchProgress { stream },
            // A request of a kind yet to be invented is ignored, as by etcd.
            None => return Ok(()),
        };
        self.outbox.ask();
        self.submit(request);
        Ok(())
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        self.outbox.abandon();
        self.submit(Request::WatchClose { stream: self.id });
    }
}

fn create(request: WatchCreateRequest) -> CreateRequest {
    // No key means the smallest one.
    let key = if request.key.is_empty() { Bytes::from_static(&[0]) } else { request.key };
    let filter = |kind: FilterType| request.filters.contains(&(kind as i32));
    CreateRequest {
        start_revision: request.start_revision,
        watch_id: request.watch_id,
        no_put: filter(FilterType::Noput),
        no_delete: filter(FilterType::Nodelete),
        prev_kv: request.prev_kv,
        progress_notify: request.progress_notify,
        fragment: request.fragment,
        range: KeyRange::parse(key, request.range_end),
    }
}

/// Looked at when the watcher is made, as in etcd; what changes later does not end it.
async fn may_watch(call: &Call, range: &KeyRange) -> Result<(), Status> {
    let range_end = match range {
        KeyRange::Single(_) => Bytes::new(),
        KeyRange::Range(_, end) => end.clone(),
        KeyRange::From(_) => Bytes::from_static(&[0]),
    };
    call.may_read(range.start(), &range_end).await.map(drop)
}

/// What a stream woke up for.
enum Event {
    Request(Result<Option<Bytes>, Status>),
    Responses,
}

/// Serves one `Watch` call until the client has had enough.
///
/// # Errors
/// A broken stream; the member stops or, by the hub's judgement, has no leader.
pub async fn watch(call: &Call, mut requests: MessageReader, answers: &Answers) -> Result<(), Status> {
    let stream = Stream::open(&call.local);
    loop {
        let event = {
            let mut next = pin!(requests.next());
            std::future::poll_fn(|cx| {
                // Responses first: requests are read only while their answers find room.
                if stream.bell.poll_rung(cx).is_ready() {
                    return Poll::Ready(Event::Responses);
                }
                if stream.outbox.waiting() >= MAX_WAITING {
                    return Poll::Pending;
                }
                next.as_mut().poll(cx).map(Event::Request)
            })
            .await
        };
        match event {
            Event::Request(Ok(Some(message))) => {
                answers.received((PREFIX + message.len()) as u64);
                stream.request(call, message).await?;
            }
            Event::Request(Ok(None)) => return Ok(()),
            Event::Request(Err(status)) => return Err(status),
            Event::Responses => {
                if let Some(reason) = forward(&stream, answers).await {
                    return match reason {
                        CloseReason::Finished => Ok(()),
                        CloseReason::NoLeader => Err(status::NO_LEADER),
                        CloseReason::Stopping => Err(status::STOPPED),
                        CloseReason::TooLarge { bytes } => Err(too_large(bytes)),
                    };
                }
            }
        }
    }
}

/// Sends everything that waits. Why no more will come, if so.
async fn forward(stream: &Stream<'_>, answers: &Answers) -> Option<CloseReason> {
    loop {
        // Before the drain, so that nothing queued ahead of the closing is missed.
        let closed = stream.outbox.closed();
        let Drained { frames, more, room } = stream.outbox.drain(DRAIN);
        if room {
            stream.submit(Request::WatchRoom { stream: stream.id });
        }
        let (messages, mut bytes) = (frames.len() as u64, 0);
        for piece in gather(frames) {
            bytes += piece.len() as u64;
            answers.send_framed(piece).await;
        }
        answers.sent(messages, bytes);
        if !more {
            return closed;
        }
    }
}

/// As gRPC for Go says it.
fn too_large(bytes: usize) -> Status {
    Status::owned(
        Code::ResourceExhausted,
        format!("grpc: trying to send message larger than max ({bytes} vs. {})", i32::MAX),
    )
}

/// Prefixes responses and puts small ones together; the events of large ones are not copied.
fn gather(frames: Vec<Frame>) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    let mut buf = BytesMut::new();
    for frame in frames {
        if buf.len() + frame.len() > PIECE && !buf.is_empty() {
            pieces.push(buf.split().freeze());
        }
        let large = frame.tail.len() > PIECE;
        buf.reserve(PREFIX + if large { frame.head.len() } else { frame.len() });
        put_prefix(&mut buf, frame.len());
        buf.extend_from_slice(&frame.head);
        if large {
            pieces.push(buf.split().freeze());
            pieces.push(frame.tail);
        } else {
            buf.extend_from_slice(&frame.tail);
        }
    }
    if !buf.is_empty() {
        pieces.push(buf.freeze());
    }
    pieces
}

#[cfg(test)]
mod tests {
    use dolmen_watch::Config;
    use dolmen_watch::Hub;

    use super::*;

    /// Real responses of a hub: created replies of `n` watchers.
    fn created(n: usize) -> Vec<Frame> {
        let mut hub = Hub::new(Config { cluster_id: 1, member_id: 2, ..Config::default() }, 5);
        let outbox = Arc::new(Outbox::new(0, 0, Limits::default()));
        hub.open(StreamId(1), outbox.clone());
        for _ in 0..n {
            hub.create(StreamId(1), CreateRequest::new(KeyRange::Single("a".into())), 5, -1);
        }
        outbox.drain(usize::MAX).frames
    }

    #[test]
    fn small_responses_share_a_piece_and_keep_their_bounds() {
        use dolmen_proto::etcdserverpb::WatchResponse;
        use prost::Message;
        let pieces = gather(created(100));
        assert_eq!(pieces.len(), 1);
        let mut rest = pieces[0].clone();
        for id in 0..100 {
            let len = u32::from_be_bytes(rest[1..PREFIX].try_into().unwrap()) as usize;
            let message = rest.split_to(PREFIX + len).slice(PREFIX..);
            let response = WatchResponse::decode(message).unwrap();
            assert_eq!((response.watch_id, response.created), (id, true));
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn large_events_are_shared() {
        let mut frames = created(2);
        let tail = Bytes::from(vec![0u8; PIECE + 1]);
        frames[0].tail = tail.clone();
        let pieces = gather(frames);
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces[1].as_ptr(), tail.as_ptr());
    }

    #[test]
    fn a_create_request_without_a_key_starts_at_the_smallest() {
        let request = WatchCreateRequest {
            range_end: Bytes::from_static(&[0]),
            filters: vec![FilterType::Nodelete as i32, 17],
            ..Default::default()
        };
        let created = create(request);
        assert_eq!(created.range, KeyRange::From(Bytes::from_static(&[0])));
        assert!(created.no_delete && !created.no_put);
    }
}
