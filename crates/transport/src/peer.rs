//! One other member: the streams it reads from us, those we read from it, and the pipeline for what no stream takes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use dolmen_proto::raftpb::{Message, MessageType};
use dolmen_types::{MemberId, error_chain, hex_id};
use http::{HeaderMap, Method, StatusCode};
use hyper::body::Incoming;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use crate::codec::{DecodeError, Decoder, is_link_heartbeat};
use crate::http1::{Call, Outgoing, RequestError, request};
use crate::metrics::PeerStats;
use crate::net::{BodyReader, IO_TIMEOUT};
use crate::presence::Presence;
use crate::shared::Shared;
use crate::stream::{Push, StreamKind, StreamSlot};
use crate::url::{PeerUrl, UrlPicker};
use crate::version::{self, CLUSTER_ID, RAFT_TO, SERVER_VERSION};
use crate::{probe, snapshot};

/// Messages posted at the same time to one peer.
const PIPELINE_IN_FLIGHT: usize = 4;
/// Messages waiting for that at most; what comes then is dropped.
const PIPELINE_BUFFER: usize = 64;
/// Between the starts of two attempts to open a stream.
const REDIAL_INTERVAL: Duration = Duration::from_millis(100);
/// The name of the pipeline in logs.
const PIPELINE: &str = "pipeline";

pub(crate) struct Peer {
    pub(crate) id: MemberId,
    pub(crate) shared: Arc<Shared>,
    pub(crate) stats: Arc<PeerStats>,
    pub(crate) picker: UrlPicker,
    pub(crate) presence: Presence,
    /// The newest term that a message to it carried.
    term: AtomicU64,
    message: StreamSlot,
    msgapp: StreamSlot,
    pipeline: mpsc::Sender<Message>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Peer {
    /// A configured member: opens its streams and answers its requests for ours.
    pub(crate) fn start(shared: &Arc<Shared>, id: MemberId, urls: Vec<PeerUrl>) -> Arc<Self> {
        let peer = Self::start_remote(shared, id, urls);
        let tasks = [
            tokio::spawn(run_reader(Arc::clone(&peer), StreamKind::Message)).abort_handle(),
            tokio::spawn(run_reader(Arc::clone(&peer), StreamKind::MsgApp)).abort_handle(),
            tokio::spawn(run_heartbeats(Arc::clone(&peer))).abort_handle(),
            tokio::spawn(probe::run(Arc::clone(&peer))).abort_handle(),
        ];
        peer.tasks.lock().extend(tasks);
        peer
    }

    /// A member that wrote to us before our log told of it: reached through the pipeline alone.
    pub(crate) fn start_remote(shared: &Arc<Shared>, id: MemberId, urls: Vec<PeerUrl>) -> Arc<Self> {
        let (pipeline, receiver) = mpsc::channel(PIPELINE_BUFFER);
        let peer = Arc::new(Self {
            id,
            shared: Arc::clone(shared),
            stats: shared.stats.of(id),
            picker: UrlPicker::new(urls),
            presence: Presence::default(),
            term: AtomicU64::new(0),
            message: StreamSlot::default(),
            msgapp: StreamSlot::default(),
            pipeline,
            tasks: Mutex::default(),
        });
        let task = tokio::spawn(run_pipeline(Arc::clone(&peer), receiver)).abort_handle();
        peer.tasks.lock().push(task);
        peer
    }

    /// Ends every connection and task.
    pub(crate) fn stop(&self) {
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
        self.message.close();
        self.msgapp.close();
        self.stats.forget_active();
        tracing::info!(remote_peer_id = hex_id(self.id), "stopped remote peer");
    }

    pub(crate) fn slot(&self, kind: StreamKind) -> &StreamSlot {
        match kind {
            StreamKind::Message => &self.message,
            StreamKind::MsgApp => &self.msgapp,
        }
    }

    pub(crate) fn activate(&self) {
        self.stats.activate((self.shared.config.clock)());
    }

    /// The headers with which its process introduced itself.
    pub(crate) fn greeted(&self, headers: &HeaderMap) {
        let dolmen = headers.contains_key(version::DOLMEN);
        if self.presence.is_dolmen(dolmen) {
            self.shared.sink.peer_is_dolmen(self.id, dolmen);
        }
    }

    /// Whether a queued message is a proposal passed on in a term that is over. Its receiver would drop it, if a Dolmen.
    pub(crate) fn is_outdated(&self, message: &Message) -> bool {
        message.sent_term != 0 && message.sent_term < self.term.load(Relaxed)
    }

    pub(crate) fn report_unreachable(&self) {
        self.stats.sent_failures.fetch_add(1, Relaxed);
        self.shared.sink.unreachable(self.id);
    }

    /// Queues a message on the best way open: its own stream, the message stream, the pipeline. False when it was
    /// dropped because that is full.
    pub(crate) fn send(&self, message: Message) -> bool {
        // A pre-vote names a term that has not begun.
        if !matches!(MessageType::try_from(message.r#type), Ok(MessageType::MsgPreVote | MessageType::MsgPreVoteResp)) {
            self.term.fetch_max(message.term, Relaxed);
        }
        let slots: &[&StreamSlot] = match MessageType::try_from(message.r#type) {
            Ok(MessageType::MsgSnap) => &[],
            Ok(MessageType::MsgApp) => &[&self.msgapp, &self.message],
            _ => &[&self.message],
        };
        let mut message = Some(message);
        for slot in slots {
            match slot.push(&mut message) {
                Push::Queued => return true,
                Push::Full => return false,
                Push::Detached => {}
            }
        }
        message.is_some_and(|message| self.pipeline.try_send(message).is_ok())
    }

    /// Sends a snapshot in a task of its own, which reports the end.
    pub(crate) fn send_snapshot(self: &Arc<Self>, message: Message, source: Box<dyn dolmen_bolt::Source + Send>) {
        let task = tokio::spawn(snapshot::send(Arc::clone(self), message, source)).abort_handle();
        let mut tasks = self.tasks.lock();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }
}

async fn run_heartbeats(peer: Arc<Peer>) {
    let mut ticks = tokio::time::interval(IO_TIMEOUT / 3);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        peer.message.heartbeat();
        peer.msgapp.heartbeat();
    }
}

/// Why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("no answer within {IO_TIMEOUT:?}")]
    TimedOut,
    /// The peer is of a version without this stream, or of none that can be read.
    #[error("unsupported stream type")]
    Unsupported,
    #[error("the member has been permanently removed from the cluster")]
    Removed,
    #[error("peer failed to find local node")]
    NotFound,
    #[error("{0}")]
    Refused(String),
    #[error("unhandled http status {0}")]
    Status(StatusCode),
}

/// Opens a stream, reads it to its end, and again.
async fn run_reader(peer: Arc<Peer>, kind: StreamKind) {
    let remote_peer_id = hex_id(peer.id);
    let stream_reader_type = kind.name();
    tracing::info!(remote_peer_id, stream_reader_type, "started stream reader with remote peer");
    loop {
        let began = Instant::now();
        let url = peer.picker.pick();
        match open(&peer, kind, &url).await {
            Ok(body) => {
                peer.activate();
                tracing::info!(
                    remote_peer_id,
                    stream_reader_type,
                    "established TCP streaming connection with remote peer"
                );
                let stream = peer.presence.opened();
                let error = read(&peer, kind, body).await;
                drop(stream);
                tracing::warn!(
                    remote_peer_id,
                    stream_reader_type,
                    error = %error_chain(&error),
                    "lost TCP streaming connection with remote peer"
                );
                // An end is no failure: the peer closes a stream when it gets a newer one.
                if !matches!(error, DecodeError::Ended) {
                    peer.stats.deactivate(stream_reader_type, "read", &error);
                }
            }
            Err(error) => {
                peer.picker.unreachable(&url);
                if matches!(&error, DialError::Request(error) if error.is_refused())
                    && peer.presence.refused(url.as_str(), peer.picker.len(), began)
                {
                    tracing::warn!(remote_peer_id, "remote peer is gone: its streams are closed and it refuses dials");
                    peer.shared.sink.peer_gone(peer.id);
                }
                if matches!(error, DialError::Removed) {
                    peer.shared.sink.removed_from_cluster();
                }
                if !matches!(error, DialError::Unsupported) {
                    peer.stats.deactivate(stream_reader_type, "dial", &error_chain(&error));
                }
            }
        }
        tokio::select! {
            () = sleep_until(began + REDIAL_INTERVAL) => {}
            // If its process has died, the next dial tells.
            () = peer.presence.closed() => {}
        }
    }
}

async fn open(peer: &Peer, kind: StreamKind, url: &PeerUrl) -> Result<Incoming, DialError> {
    let shared = &peer.shared;
    let mut headers = shared.headers.clone();
    headers.insert(RAFT_TO, version::value(&hex_id(peer.id)));
    let path = format!("/raft/stream/{}/{}", kind.endpoint(), shared.member_hex);
    let opening = shared.http.open(url, request(url, Method::GET, &path, headers, Outgoing::empty()));
    // The dial has its own limit; this one also covers the wait for the answer.
    let limit = shared.config.dial_timeout + IO_TIMEOUT;
    let response = timeout(limit, opening).await.map_err(|_| DialError::TimedOut)??;

    let remote = version::version_of(response.headers(), &SERVER_VERSION).ok_or(DialError::Unsupported)?;
    if remote < shared.version && !version::serves_streams(remote) {
        return Err(DialError::Unsupported);
    }
    peer.greeted(response.headers());
    let status = response.status();
    let cluster = version::text(response.headers(), &CLUSTER_ID).to_owned();
    match status {
        StatusCode::OK => Ok(response.into_body()),
        StatusCode::GONE => Err(DialError::Removed),
        StatusCode::NOT_FOUND => Err(DialError::NotFound),
        StatusCode::PRECONDITION_FAILED => {
            let body = BodyReader::new(response.into_body()).read_to_end(4096).await.unwrap_or_default();
            Err(DialError::Refused(explain_precondition(peer, &body, &cluster)))
        }
        _ => Err(DialError::Status(status)),
    }
}

/// Says in the log why a peer does not want us, in etcd's words.
fn explain_precondition(peer: &Peer, body: &Bytes, remote_cluster: &str) -> String {
    let text = String::from_utf8_lossy(body);
    let text = text.trim_end_matches('\n');
    let remote_peer_id = hex_id(peer.id);
    match text {
        version::INCOMPATIBLE_VERSION => tracing::warn!(
            remote_peer_id,
            "request sent was ignored by remote peer due to server version incompatibility"
        ),
        version::CLUSTER_ID_MISMATCH => tracing::warn!(
            remote_peer_id,
            remote_peer_cluster_id = remote_cluster,
            local_member_cluster_id = peer.shared.cluster_hex,
            remedy = version::TWO_CLUSTERS,
            "request sent was ignored by remote peer due to cluster ID mismatch"
        ),
        _ => return format!("unhandled error {text:?} when precondition failed"),
    }
    text.to_owned()
}

/// Reads messages until the stream ends, and says why it did.
async fn read(peer: &Peer, kind: StreamKind, body: Incoming) -> DecodeError {
    let mut source = BodyReader::new(body);
    let mut decoder = match kind {
        StreamKind::Message => Decoder::Message,
        StreamKind::MsgApp => Decoder::msgapp(peer.shared.config.member_id, peer.id),
    };
    let mut counted = 0;
    let mut complained = BTreeSet::new();
    loop {
        let message = match decoder.decode(&mut source).await {
            Ok(message) => message,
            Err(error) => return error,
        };
        let heartbeat = is_link_heartbeat(&message);
        let counter = if heartbeat { &peer.shared.stats.heartbeat_bytes } else { &peer.stats.received_bytes };
        counter.fetch_add(source.received - counted, Relaxed);
        counted = source.received;
        if heartbeat {
            continue;
        }
        if let Err(refusal) = peer.shared.deliver(message) {
            peer.stats.received_failures.fetch_add(1, Relaxed);
            // Once a stream and reason: whatever sends such things sends many.
            if complained.insert(refusal as u8) {
                tracing::warn!(remote_peer_id = hex_id(peer.id), error = %refusal, "failed to process Raft message");
            }
        }
    }
}

async fn run_pipeline(peer: Arc<Peer>, mut receiver: mpsc::Receiver<Message>) {
    let mut posting = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = posting.join_next(), if !posting.is_empty() => {}
            message = receiver.recv(), if posting.len() < PIPELINE_IN_FLIGHT => {
                let Some(message) = message else { return };
                posting.spawn(post(Arc::clone(&peer), message));
            }
        }
    }
}

async fn post(peer: Arc<Peer>, message: Message) {
    if peer.is_outdated(&message) {
        return;
    }
    let url = peer.picker.pick();
    let body = Bytes::from(message.encode_to_vec());
    let len = body.len() as u64;
    let mut headers = peer.shared.headers.clone();
    headers.insert(http::header::CONTENT_TYPE, version::value("application/protobuf"));
    let call = Call {
        method: Method::POST,
        path: "/raft",
        headers,
        body,
        limit: 64 << 10,
        // As long as anything may stand still, and a second a MiB.
        timeout: peer.shared.config.dial_timeout + IO_TIMEOUT + Duration::from_secs(len >> 20),
    };
    let result = match peer.shared.http.call(&url, call).await {
        Ok(response) => check_post(response.status, &response.body),
        Err(error) => Err(PostError::Request(error)),
    };
    match result {
        Ok(()) => {
            peer.activate();
            peer.stats.sent_bytes.fetch_add(len, Relaxed);
        }
        Err(error) => {
            peer.picker.unreachable(&url);
            if matches!(error, PostError::Removed) {
                peer.shared.sink.removed_from_cluster();
            }
            peer.stats.deactivate(PIPELINE, "write", &error_chain(&error));
            peer.report_unreachable();
            if message.r#type == MessageType::MsgSnap as i32 {
                peer.shared.sink.snapshot_status(peer.id, false);
            }
        }
    }
}

/// Why a posted message was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PostError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the member has been permanently removed from the cluster")]
    Removed,
    #[error("{0}")]
    Refused(String),
    #[error("unexpected http status {0}")]
    Status(StatusCode),
    #[error("cannot read the store")]
    Source(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("no answer")]
    TimedOut,
}

/// Reads the answer to a posted message.
pub(crate) fn check_post(status: StatusCode, body: &[u8]) -> Result<(), PostError> {
    let text = String::from_utf8_lossy(body);
    match status {
        StatusCode::NO_CONTENT => Ok(()),
        StatusCode::PRECONDITION_FAILED => Err(PostError::Refused(text.trim_end_matches('\n').to_owned())),
        // etcd takes every 403 for its own removal. One of them only says that the other member has a new id, which is
        // no reason to stop this one.
        StatusCode::FORBIDDEN if text.contains("mismatch member") => Err(PostError::Refused(text.into_owned())),
        StatusCode::FORBIDDEN => Err(PostError::Removed),
        _ => Err(PostError::Status(status)),
    }
}
