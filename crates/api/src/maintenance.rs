//! Maintenance: status, alarms, hashes, snapshots, and moving the leader.

use std::error::Error;
use std::io::{self, Write};

use bytes::{Bytes, BytesMut};
use dolmen_bolt::{BoltWriter, Plan, Source};
use dolmen_mvcc::RangeError;
use dolmen_node::{Reply, Request};
use dolmen_proto::etcdserverpb::alarm_request::AlarmAction;
use dolmen_proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse, DowngradeInfo,
    HashKvRequest, HashKvResponse, HashRequest, HashResponse, MoveLeaderRequest, MoveLeaderResponse, SnapshotRequest,
    SnapshotResponse, StatusRequest, StatusResponse,
};
use dolmen_types::error_chain;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::answer::{Answer, Answers};
use crate::call::Call;
use crate::frame::decode;
use crate::pipe::{Maker, pipe};
use crate::propose::agree;
use crate::server::{Local, refusal, within};
use crate::status::{self, Code, Status};

/// What a quota of 0 means.
pub const DEFAULT_QUOTA_BYTES: i64 = 2 * 1024 * 1024 * 1024;
/// Bytes in one message of a snapshot.
const SNAPSHOT_CHUNK: usize = 32 * 1024;
/// Messages of a snapshot made ahead of the connection.
const SNAPSHOT_AHEAD: usize = 8;
/// Snapshots sent at a time: each has a thread, and pins what it reads.
pub const MAX_SNAPSHOTS: usize = 32;

/// Bytes that the store occupies, history left out: what etcd calls the size of the database.
pub fn db_size(sizes: &dolmen_revlog::Sizes) -> u64 {
    sizes.total_bytes.saturating_sub(sizes.history_bytes).max(sizes.live_bytes)
}

/// Served by every member, learners and members without a leader too.
///
/// # Errors
/// A request that cannot be decoded.
pub async fn status(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let _: StatusRequest = decode(message)?;
    let local = &*call.local;
    let node = local.node();
    let now = node.status();
    let sizes = node.reader().sizes();
    let quota = local.config().quota_bytes;
    let mut errors = Vec::new();
    if now.leader == 0 {
        errors.push(status::NO_LEADER.message.into_owned());
    }
    errors.extend(node.alarms().iter().map(alarm_text));
    let response = StatusResponse {
        header: Some(local.header(0)),
        version: local.config().server_version.clone(),
        db_size: db_size(&sizes) as i64,
        leader: now.leader,
        raft_index: now.committed,
        raft_term: now.term,
        raft_applied_index: now.applied,
        errors,
        db_size_in_use: sizes.live_bytes as i64,
        is_learner: now.is_learner,
        storage_version: node.members().storage_version.clone().unwrap_or_default(),
        db_size_quota: if quota == 0 { DEFAULT_QUOTA_BYTES } else { quota },
        downgrade_info: Some(DowngradeInfo::default()),
    };
    Ok(Answer::new(&response))
}

/// The text form of an alarm, as Go prints the message.
fn alarm_text(alarm: &AlarmMember) -> String {
    let mut text = String::new();
    if alarm.member_id != 0 {
        text = format!("memberID:{}", alarm.member_id);
    }
    let name = match AlarmType::try_from(alarm.alarm) {
        Ok(AlarmType::None) => return text,
        Ok(kind) => kind.as_str_name().to_owned(),
        Err(_) => alarm.alarm.to_string(),
    };
    if !text.is_empty() {
        text.push(' ');
    }
    text + "alarm:" + &name
}

/// # Errors
/// The outcome of the log, when something is to be raised or lifted.
pub async fn alarm(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let request: AlarmRequest = decode(message.clone())?;
    if request.action != AlarmAction::Get as i32 {
        let who = call.identify().await?;
        call.local.node().auth().check_admin(who.as_ref())?;
        return agree::<AlarmRequest>(call, &message).await;
    }
    let local = &*call.local;
    let answer = local.mailbox.call(local.node(), Request::Alarms);
    let mut alarms = match within(call.deadline, status::DEADLINE_EXCEEDED, answer).await? {
        Reply::Alarms(alarms) => alarms,
        other => return Err(refusal(other)),
    };
    if request.alarm != AlarmType::None as i32 {
        alarms.retain(|alarm| alarm.alarm == request.alarm);
    }
    Ok(Answer::new(&AlarmResponse { header: Some(local.header(0)), alarms }))
}

/// Asks for a pass of space reclaim and returns at once: nothing waits for it here.
///
/// # Errors
/// When the server stops.
pub async fn defragment(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let _: DefragmentRequest = decode(message)?;
    call.local.done(Request::Defragment, call.deadline, status::DEADLINE_EXCEEDED).await?;
    Ok(Answer::new(&DefragmentResponse { header: None }))
}

/// # Errors
/// Not the leader; a target that cannot lead; the caller's deadline.
pub async fn move_leader(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let local = &*call.local;
    let request: MoveLeaderRequest = decode(message)?;
    if !local.node().status().is_leader() {
        return Err(status::NOT_LEADER);
    }
    let ask = Request::MoveLeader { target: request.target_id };
    local.done(ask, call.deadline, status::TIMEOUT_LEADER_TRANSFER).await?;
    Ok(Answer::new(&MoveLeaderResponse { header: None }))
}

/// # Errors
/// A store that cannot be read.
pub async fn hash(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let _: HashRequest = decode(message)?;
    let local = &*call.local;
    let revision = local.node().reader().revision();
    let source = snapshot_source(local).await?;
    let hash = local.server.helpers.whole(move || dolmen_mvcc::hash_all(&*source)).await?;
    let hash = hash.map_err(|error| source_failed(local, &error))?;
    Ok(Answer::new(&HashResponse { header: Some(local.header(revision)), hash }))
}

/// What a client is told when the store could not be read through to its end.
fn source_failed(local: &Local, error: &(dyn Error + 'static)) -> Status {
    let damage = local.server.damage.status_below(&local.node().reader(), error);
    damage.unwrap_or_else(|| Status::owned(Code::Unknown, error_chain(error)))
}

/// A pinned view of everything.
async fn snapshot_source(local: &Local) -> Result<Box<dyn Source + Send>, Status> {
    match local.mailbox.call(local.node(), Request::Snapshot).await {
        Reply::Snapshot(source) => Ok(source),
        other => Err(refusal(other)),
    }
}

/// # Errors
/// A revision that is compacted or yet to come.
pub async fn hash_kv(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let request: HashKvRequest = decode(message)?;
    let result = hash_at(&call.local, request.revision).await?;
    let mut response = result.map_err(|error| call.local.read_failed(error))?;
    call.local.fill(&mut response.header);
    Ok(Answer::new(&response))
}

/// The hash of all revisions up to `revision` (0: the current one). The header holds the current revision only.
///
/// # Errors
/// When the server stops; inside: a revision that is compacted or yet to come.
pub async fn hash_at(local: &Local, revision: i64) -> Result<Result<HashKvResponse, RangeError>, Status> {
    let reader = local.node().reader();
    let result = local.server.helpers.whole(move || reader.hash_kv(revision)).await?;
    Ok(result.map(|hash| HashKvResponse {
        header: Some(dolmen_proto::etcdserverpb::ResponseHeader { revision: hash.revision, ..Default::default() }),
        hash: hash.hash,
        compact_revision: hash.compact_revision,
        hash_revision: hash.hash_revision,
    }))
}

/// Streams the store as a bbolt file, and its SHA-256 last. The file is laid out and written on a thread of its own, a
/// few messages ahead of the connection. Such threads wait for their clients, so they are for snapshots alone; when there
/// are [`MAX_SNAPSHOTS`], a further call waits until one ends, and one whose client takes nothing ends by itself.
///
/// # Errors
/// A store that cannot be read; a client that takes nothing.
pub async fn snapshot(call: &Call, message: Bytes, answers: &Answers) -> Result<(), Status> {
    let _: SnapshotRequest = decode(message)?;
    let local = &*call.local;
    let permit = local.server.snapshots.clone().acquire_owned().await.map_err(|_| status::STOPPED)?;
    let source = snapshot_source(local).await?;
    let version = local.node().members().storage_version.clone().unwrap_or_default();
    let (maker, mut pieces) = pipe(SNAPSHOT_AHEAD);
    let (sender, result) = oneshot::channel();
    let transport = call.transport.clone();
    let writing = std::thread::Builder::new().name("snapshot".into()).spawn(move || {
        let result = write_snapshot(&*source, &maker, version);
        if let Err(error) = &result
            && !maker.is_abandoned()
        {
            let client = transport.peer.map(tracing::field::display);
            tracing::warn!(client, error = error_chain(&**error), "a snapshot was not sent to its end");
        }
        drop((source, permit, maker));
        // The call may have ended.
        let _unheard = sender.send(result);
    });
    writing.map_err(|error| Status::owned(Code::ResourceExhausted, format!("etcdserver: no thread: {error}")))?;
    while let Some(piece) = pieces.take().await {
        answers.send(piece).await?;
    }
    match result.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(source_failed(local, &*error)),
        Err(_) => Err(status::STOPPED),
    }
}

fn write_snapshot(
    source: &(dyn Source + Send),
    maker: &Maker<Answer>,
    version: String,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let plan = Plan::new(source)?;
    let chunks = Chunks {
        maker,
        version,
        remaining: plan.file_len(),
        hash: Sha256::new(),
        buf: BytesMut::with_capacity(SNAPSHOT_CHUNK),
    };
    let mut chunks = BoltWriter::new(chunks).write(&plan, source)?;
    chunks.cut()?;
    let digest = Bytes::copy_from_slice(&chunks.hash.finalize_reset());
    Ok(chunks.send(digest)?)
}

/// Cuts a file into messages.
struct Chunks<'a> {
    maker: &'a Maker<Answer>,
    version: String,
    /// Bytes of the file not sent yet.
    remaining: u64,
    hash: Sha256,
    buf: BytesMut,
}

impl Chunks<'_> {
    fn cut(&mut self) -> io::Result<()> {
        if self.buf.is_empty() {
            return Ok(());
        }
        let blob = std::mem::replace(&mut self.buf, BytesMut::with_capacity(SNAPSHOT_CHUNK)).freeze();
        self.hash.update(&blob);
        self.remaining = self.remaining.saturating_sub(blob.len() as u64);
        self.send(blob)
    }

    fn send(&mut self, blob: Bytes) -> io::Result<()> {
        let message =
            SnapshotResponse { header: None, remaining_bytes: self.remaining, blob, version: self.version.clone() };
        self.maker.put(Answer::new(&message)).map_err(io::Error::other)
    }
}

impl Write for Chunks<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(SNAPSHOT_CHUNK - self.buf.len());
        self.buf.extend_from_slice(&bytes[..taken]);
        if self.buf.len() == SNAPSHOT_CHUNK {
            self.cut()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use dolmen_bolt::MemorySource;
    use prost::Message;

    use super::*;

    #[tokio::test]
    async fn a_snapshot_is_the_file_in_chunks_and_its_hash() {
        let pairs: BTreeMap<Bytes, Bytes> =
            (0..2000u32).map(|n| (Bytes::from(format!("key{n:05}")), Bytes::from(vec![n as u8; 100]))).collect();
        let source: MemorySource = BTreeMap::from([(Bytes::from_static(b"key"), pairs)]);
        let (maker, mut pieces) = pipe(1000);
        write_snapshot(&source, &maker, "3.7.0".into()).unwrap();
        drop(maker);
        let mut messages = Vec::new();
        while let Some(piece) = pieces.take().await {
            messages.push(SnapshotResponse::decode(&piece.message()[..]).unwrap());
        }
        let digest = messages.pop().unwrap();
        let file = messages.iter().map(|message| message.blob.clone()).collect::<Vec<_>>().concat();
        assert_eq!(digest.blob.as_ref(), Sha256::digest(&file).as_slice());
        assert_eq!(file.len() as u64, Plan::new(&source).unwrap().file_len());
        let mut left = file.len() as u64;
        for message in &messages {
            left -= message.blob.len() as u64;
            assert_eq!(message.remaining_bytes, left);
            assert!(message.blob.len() == SNAPSHOT_CHUNK || left == 0);
            assert_eq!(message.version, "3.7.0");
        }
        assert_eq!((left, digest.remaining_bytes), (0, 0));
    }

    #[test]
    fn alarms_read_as_in_go() {
        let alarm = |member_id, alarm| alarm_text(&AlarmMember { member_id, alarm });
        assert_eq!(alarm(7, AlarmType::Nospace as i32), "memberID:7 alarm:NOSPACE");
        assert_eq!(alarm(0, AlarmType::Corrupt as i32), "alarm:CORRUPT");
        assert_eq!(alarm(7, 0), "memberID:7");
        assert_eq!(alarm(7, 9), "memberID:7 alarm:9");
    }
}
