//! The sending half of a stream: a queue that the connection the peer opened drains.
//!
//! The peer asks for `GET /raft/stream/...` and keeps reading the answer. Its body is a [`StreamBody`], which hyper polls
//! whenever the socket takes more: each poll takes everything queued and encodes it as one run of bytes, so a thousand
//! messages cost one write. One connection at a time is attached to a [`StreamSlot`]; a newer one ends the older, and
//! while none is, messages are refused and take another way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use dolmen_proto::raftpb::Message;
use dolmen_types::hex_id;
use parking_lot::Mutex;

use crate::codec::{Encoder, Segments, link_heartbeat};
use crate::peer::Peer;

/// Messages waiting for a stream at most; what comes then is dropped and the receiver reported unreachable.
pub(crate) const STREAM_BUFFER: usize = 4096;
/// Bytes encoded in one go: what is over waits for the next poll, un-encoded.
const ENCODE_AT_ONCE: u64 = 1 << 20;

/// Which of the two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    Message,
    MsgApp,
}

impl StreamKind {
    /// As etcd's logs name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Message => "stream Message",
            Self::MsgApp => "stream MsgApp v2",
        }
    }

    /// The last but one part of the path.
    pub(crate) fn endpoint(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::MsgApp => "msgapp",
        }
    }

    fn encoder(self) -> Encoder {
        match self {
            Self::Message => Encoder::Message,
            Self::MsgApp => Encoder::MsgApp { term: 0, index: 0 },
        }
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Push {
    Queued,
    /// No connection is attached; the message is still the caller's.
    Detached,
    /// The queue was full, and the message is left.
    Full,
}

#[derive(Default)]
struct SlotState {
    /// Counts connections; the attached one knows its number.
    generation: u64,
    attached: bool,
    queue: VecDeque<Message>,
    heartbeat_due: bool,
    waker: Option<Waker>,
}

/// One stream to one peer.
#[derive(Default)]
pub(crate) struct StreamSlot {
    state: Mutex<SlotState>,
}

impl StreamSlot {
    /// Takes a message and queues it for the connection, if there is one.
    pub(crate) fn push(&self, message: &mut Option<Message>) -> Push {
        let mut state = self.state.lock();
        if !state.attached {
            return Push::Detached;
        }
        if state.queue.len() >= STREAM_BUFFER {
            return Push::Full;
        }
        state.queue.extend(message.take());
        if let Some(waker) = state.waker.take() {
            drop(state);
            waker.wake();
        }
        Push::Queued
    }

    /// Has a link heartbeat sent. To be called every third of the read timeout.
    pub(crate) fn heartbeat(&self) {
        let mut state = self.state.lock();
        state.heartbeat_due = state.attached;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// Ends the connection attached, if any. True when messages were lost with it.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.state.lock();
        let lost = state.attached && !state.queue.is_empty();
        state.generation += 1;
        state.attached = false;
        state.queue.clear();
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        lost
    }

    fn attach(&self) -> u64 {
        let mut state = self.state.lock();
        state.attached = true;
        state.generation
    }
}

/// The body of the answer to a stream request.
pub(crate) struct StreamBody {
    peer: Arc<Peer>,
    kind: StreamKind,
    generation: u64,
    encoder: Encoder,
    backlog: VecDeque<Message>,
    encoded: Segments,
}

impl StreamBody {
    /// Attaches a new connection to a peer's slot in place of the one before.
    pub(crate) fn attach(peer: Arc<Peer>, kind: StreamKind) -> Self {
        let slot = peer.slot(kind);
        if slot.close() {
            peer.report_unreachable();
        }
        let generation = slot.attach();
        peer.presence.count_opened();
        peer.activate();
        tracing::info!(
            remote_peer_id = hex_id(peer.id),
            stream_writer_type = kind.name(),
            "established TCP streaming connection with remote peer"
        );
        Self { peer, kind, generation, encoder: kind.encoder(), backlog: VecDeque::new(), encoded: Segments::default() }
    }

    /// The next bytes to write; `None` when another connection has taken over or the peer is gone.
    pub(crate) fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.encoded.is_empty() && !self.encode_more(cx) {
            return Poll::Ready(None);
        }
        match self.encoded.pop() {
            Some(part) => {
                self.peer.stats.sent_bytes.fetch_add(part.len() as u64, Relaxed);
                Poll::Ready(Some(part))
            }
            None => Poll::Pending,
        }
    }

    /// Encodes what is queued, and arranges to be woken when that is nothing. False when the body has ended.
    fn encode_more(&mut self, cx: &mut Context<'_>) -> bool {
        let mut heartbeat = false;
        {
            let mut state = self.peer.slot(self.kind).state.lock();
            if state.generation != self.generation {
                return false;
            }
            if self.backlog.is_empty() {
                std::mem::swap(&mut self.backlog, &mut state.queue);
                heartbeat = std::mem::take(&mut state.heartbeat_due);
            }
            if self.backlog.is_empty() && !heartbeat {
                state.waker = Some(cx.waker().clone());
                return true;
            }
        }
        while self.encoded.len() < ENCODE_AT_ONCE {
            let Some(message) = self.backlog.pop_front() else { break };
            if !self.peer.is_outdated(&message) {
                self.encoder.encode(message, &mut self.encoded);
            }
        }
        if heartbeat {
            self.encoder.encode(link_heartbeat(), &mut self.encoded);
        }
        true
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        self.peer.presence.count_closed();
        let mut state = self.peer.slot(self.kind).state.lock();
        if state.generation != self.generation {
            return;
        }
        state.generation += 1;
        state.attached = false;
        let lost = !state.queue.is_empty() || !self.backlog.is_empty() || !self.encoded.is_empty();
        state.queue.clear();
        drop(state);
        self.peer.stats.deactivate(self.kind.name(), "write", &"the connection was closed");
        tracing::warn!(
            remote_peer_id = hex_id(self.peer.id),
            stream_writer_type = self.kind.name(),
            "lost TCP streaming connection with remote peer"
        );
        if lost {
            self.peer.report_unreachable();
        }
    }
}
