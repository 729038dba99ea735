//! Snapshots on the wire: a length, a `MsgSnap`, and the bbolt file to the end of the body.
//!
//! Reading the store and writing the file happen on blocking threads, tied to the connection by channels of a few parts:
//! the slower side sets the pace, and neither holds more than [`IN_FLIGHT`] parts of it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use dolmen_bolt::{BoltWriter, Plan, Source, WriteError};
use dolmen_proto::raftpb::{Message, MessageType};
use dolmen_types::{error_chain, hex_id};
use http::{HeaderMap, Method};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::codec::{DecodeError, Refusal, Segments, encode_framed};
use crate::http1::{Outgoing, request};
use crate::metrics::SnapshotCounts;
use crate::net::BodyReader;
use crate::peer::{Peer, PostError, check_post};
use crate::shared::Shared;
use crate::version;

/// Bytes gathered before they go to the connection.
const PART: usize = 128 << 10;
/// Parts between the disk and the connection.
const IN_FLIGHT: usize = 8;
/// How long the receiver may take from the last byte to its answer: it syncs the file in between.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
/// Files that are not whole yet start with this.
const UNFINISHED: &str = "receiving-";

/// Sends a snapshot and reports how it ended.
pub(crate) async fn send(peer: Arc<Peer>, message: Message, source: Box<dyn Source + Send>) {
    let index = snapshot_index(&message);
    let remote_peer_id = hex_id(peer.id);
    let counts = &peer.stats.snapshot_send;
    let began = Instant::now();
    counts.inflight.fetch_add(1, Relaxed);
    // A task that is aborted counts too, and raft must hear of an end in every case.
    let mut ending = Ending { peer: &peer, arrived: false };
    let result = post(&peer, message, source).await;
    match result {
        Ok(bytes) => {
            ending.arrived = true;
            peer.activate();
            peer.stats.sent_bytes.fetch_add(bytes, Relaxed);
            counts.success.fetch_add(1, Relaxed);
            counts.seconds.observe(began.elapsed());
            tracing::info!(snapshot_index = index, remote_peer_id, bytes, "sent database snapshot");
        }
        Err(error) => {
            counts.failures.fetch_add(1, Relaxed);
            let error_text = error_chain(&error);
            tracing::warn!(
                snapshot_index = index,
                remote_peer_id,
                error = error_text,
                "failed to send database snapshot"
            );
            if matches!(error, PostError::Removed) {
                peer.shared.sink.removed_from_cluster();
            }
            peer.stats.deactivate("sendMsgSnap", "post", &error_text);
            peer.report_unreachable();
        }
    }
}

struct Ending<'a> {
    peer: &'a Peer,
    arrived: bool,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.peer.stats.snapshot_send.inflight.fetch_sub(1, Relaxed);
        self.peer.shared.sink.snapshot_status(self.peer.id, self.arrived);
    }
}

async fn post(peer: &Peer, message: Message, source: Box<dyn Source + Send>) -> Result<u64, PostError> {
    let index = snapshot_index(&message);
    let mut head = Segments::default();
    encode_framed(message, &mut head);
    let (sender, receiver) = mpsc::channel(IN_FLIGHT);
    let (planned, plan) = oneshot::channel();
    let sink = Arc::clone(&peer.shared.sink);
    let writing = spawn_blocking(move || {
        write_source(source, sender, planned, &|error| {
            sink.store_damaged(match error {
                WriteError::Io(error) => error_chain(error),
                error => error.to_string(),
            });
        })
    });
    let Ok(file_len) = plan.await else {
        return Err(PostError::Source(writing.await.map_or_else(Into::into, |ended| match ended {
            Err(error) => error.into(),
            Ok(()) => "the store ended without a plan".into(),
        })));
    };

    let url = peer.picker.pick();
    let left = head.len() + file_len;
    tracing::info!(snapshot_index = index, remote_peer_id = hex_id(peer.id), bytes = left, "sending database snapshot");
    let mut headers: HeaderMap = peer.shared.headers.clone();
    headers.insert(http::header::CONTENT_TYPE, version::value("application/octet-stream"));
    let body = Outgoing::Channel { head, receiver, left };
    let posting = peer.shared.http.open(&url, request(&url, Method::POST, "/raft/snapshot", headers, body));
    let answered = tokio::select! {
        answered = posting => answered.map_err(PostError::from),
        // Until the whole file is handed over, the connection's own write timeout watches.
        () = async { let _ = writing.await; sleep(ANSWER_TIMEOUT).await } => Err(PostError::TimedOut),
    };
    let result = match answered {
        Ok(response) => {
            let status = response.status();
            let body = BodyReader::new(response.into_body()).read_to_end(64 << 10).await.unwrap_or_default();
            check_post(status, &body)
        }
        Err(error) => Err(error),
    };
    if result.is_err() {
        peer.picker.unreachable(&url);
    }
    result.map(|()| left)
}

fn snapshot_index(message: &Message) -> u64 {
    message.snapshot.as_ref().and_then(|snapshot| snapshot.metadata.as_ref()).map_or(0, |metadata| metadata.index)
}

/// Runs on a blocking thread: tells the length of the file, then writes it into the channel. `damaged` is told when the
/// source cannot be read.
fn write_source(
    source: Box<dyn Source + Send>,
    sender: mpsc::Sender<io::Result<Bytes>>,
    planned: oneshot::Sender<u64>,
    damaged: &dyn Fn(&WriteError),
) -> Result<(), WriteError> {
    let plan = Plan::new(&*source).inspect_err(|error| damaged(error))?;
    if planned.send(plan.file_len()).is_err() {
        return Ok(());
    }
    let sink = ChannelWriter { sender: sender.clone(), part: BytesMut::with_capacity(PART) };
    let written = BoltWriter::new(sink).write(&plan, &*source).and_then(|mut sink| Ok(sink.flush()?));
    if let Err(error) = &written {
        // What fails while somebody still takes it is the source, not the way.
        if !sender.is_closed() {
            damaged(error);
        }
        // Without it the body would end as if complete; with it the connection breaks.
        let _ = sender.blocking_send(Err(io::Error::other(error.to_string())));
    }
    written
}

struct ChannelWriter {
    sender: mpsc::Sender<io::Result<Bytes>>,
    part: BytesMut,
}

impl Write for ChannelWriter {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.part.extend_from_slice(buf);
        if self.part.len() >= PART {
            self.flush()?;
        }
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.part.is_empty() {
            return Ok(());
        }
        let part = self.part.split().freeze();
        self.part.reserve(PART);
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the connection is gone");
        self.sender.blocking_send(Ok(part)).map_err(gone)
    }
}

/// Why a snapshot was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error("wrong raft message type")]
    Type,
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// With the reason as text.
    #[error("failed to save KV snapshot ({0})")]
    Save(String),
}

/// Stores the database that follows `message` in the body, and hands both to raft.
pub(crate) async fn receive(shared: &Arc<Shared>, message: Message, mut body: BodyReader) -> Result<(), ReceiveError> {
    if message.r#type != MessageType::MsgSnap as i32 || message.snapshot.is_none() {
        return Err(ReceiveError::Type);
    }
    // Before a store's worth of bytes, not after.
    shared.check(&message)?;
    let index = snapshot_index(&message);
    let remote_snapshot_sender_id = hex_id(message.from);
    let stats = shared.stats.of(message.from);
    let began = Instant::now();
    tracing::info!(
        local_member_id = shared.member_hex,
        remote_snapshot_sender_id,
        incoming_snapshot_index = index,
        "receiving database snapshot"
    );
    let saved = {
        let _counted = Inflight::new(&stats.snapshot_receive);
        save(shared, index, &mut body).await
    };
    stats.received_bytes.fetch_add(body.received, Relaxed);
    let mut saved = saved.map_err(|error| {
        stats.snapshot_receive.failures.fetch_add(1, Relaxed);
        let error = error_chain(&*error);
        tracing::warn!(
            remote_snapshot_sender_id,
            incoming_snapshot_index = index,
            error,
            "failed to save incoming database snapshot"
        );
        ReceiveError::Save(error)
    })?;
    tracing::info!(
        local_member_id = shared.member_hex,
        remote_snapshot_sender_id,
        incoming_snapshot_index = index,
        incoming_snapshot_size_bytes = saved.bytes,
        "received and saved database snapshot"
    );
    shared.sink.receive_snapshot(message, std::mem::take(&mut saved.path));
    stats.snapshot_receive.success.fetch_add(1, Relaxed);
    stats.snapshot_receive.seconds.observe(began.elapsed());
    Ok(())
}

/// Why an upload was cut off.
#[derive(Debug, thiserror::Error)]
enum PumpError {
    #[error(transparent)]
    Read(#[from] DecodeError),
    #[error(
        "the database is larger than {most} bytes, which is more than --quota-backend-bytes allows a member to hold"
    )]
    TooLarge { most: u64 },
    #[error("the database comes at less than {SLOWEST} bytes a second")]
    TooSlow,
}

enum Part {
    Bytes(Bytes),
    /// The body has ended as it should. A channel that closes without it means the opposite.
    End,
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// An upload under way, in the metrics; also when it is cut off.
struct Inflight<'a>(&'a SnapshotCounts);

impl<'a> Inflight<'a> {
    fn new(counts: &'a SnapshotCounts) -> Self {
        counts.inflight.fetch_add(1, Relaxed);
        Self(counts)
    }
}

impl Drop for Inflight<'_> {
    fn drop(&mut self) {
        self.0.inflight.fetch_sub(1, Relaxed);
    }
}

/// How long an upload may be slower than [`SLOWEST`].
const GRACE: Duration = Duration::from_secs(30);
/// Bytes that have to come each second after that. One that brings nothing at all ends sooner, by the timeout of each read.
const SLOWEST: u64 = 16 << 10;

/// A file that is removed unless somebody takes its path: an upload may be cut off at its very end.
struct Saved {
    path: PathBuf,
    bytes: u64,
}

impl Drop for Saved {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            // Left behind, it is removed at the next start.
            let _left = fs::remove_file(&self.path);
        }
    }
}

async fn save(shared: &Shared, index: u64, body: &mut BodyReader) -> Result<Saved, AnyError> {
    let (sender, receiver) = mpsc::channel(IN_FLIGHT);
    let dir = shared.config.snap_dir.clone();
    let writing = spawn_blocking(move || write_file(&dir, index, receiver));
    let pumped = pump(body, sender, shared.config.max_snapshot_bytes).await;
    let written = writing.await?;
    pumped?;
    Ok(written?)
}

/// Moves the body into the channel. A writer that is gone ends it; the writer's own error tells why.
async fn pump(body: &mut BodyReader, sender: mpsc::Sender<Part>, most: u64) -> Result<(), PumpError> {
    let began = Instant::now();
    while let Some(bytes) = body.chunk().await? {
        if body.received > most {
            return Err(PumpError::TooLarge { most });
        }
        if body.received < began.elapsed().saturating_sub(GRACE).as_secs() * SLOWEST {
            return Err(PumpError::TooSlow);
        }
        if sender.send(Part::Bytes(bytes)).await.is_err() {
            return Ok(());
        }
    }
    let _ = sender.send(Part::End).await;
    Ok(())
}

/// Runs on a blocking thread. The file appears under its name once all of it is on disk.
fn write_file(dir: &Path, index: u64, receiver: mpsc::Receiver<Part>) -> io::Result<Saved> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    // Of two with the same index one may be being installed while the other is ignored and removed.
    let number = COUNTER.fetch_add(1, Relaxed);
    let unfinished = dir.join(format!("{UNFINISHED}{index:016x}-{number}"));
    let result = fill(&unfinished, receiver).and_then(|bytes| {
        let path = dir.join(format!("{index:016x}-{number}.snap.db"));
        fs::rename(&unfinished, &path)?;
        let saved = Saved { path, bytes };
        File::open(dir)?.sync_all()?;
        Ok(saved)
    });
    if result.is_err() {
        // What went wrong first is the error to report.
        let _ = fs::remove_file(&unfinished);
    }
    result
}

fn fill(path: &Path, mut receiver: mpsc::Receiver<Part>) -> io::Result<u64> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let mut written = 0;
    loop {
        match receiver.blocking_recv() {
            Some(Part::Bytes(bytes)) => {
                file.write_all(&bytes)?;
                written += bytes.len() as u64;
            }
            Some(Part::End) if written == 0 => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the database is empty"));
            }
            Some(Part::End) => {
                file.sync_all()?;
                return Ok(written);
            }
            None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the transfer broke off")),
        }
    }
}

/// Removes files of transfers that a crash cut off.
pub(crate) fn remove_leftovers(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
