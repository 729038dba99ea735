//! From what lies on disk to a running [`Node`]: a new member, one that joins, or one that comes back.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use dolmen_env::{Disk, DiskLock, Mono};
use dolmen_machine::{ConfChangeContext, Machine, Member, OpenError};
use dolmen_proto::raftpb::{ConfChange, ConfState, Entry, EntryType, HardState, Snapshot, SnapshotMetadata};
use dolmen_proto::walpb;
use dolmen_raft::{MemoryStorage, RawNode};
use dolmen_types::{ClusterId, MemberId, Term};
use dolmen_wal::{Metadata, Wal, WalError, WalOptions};
use prost::Message;

use crate::identity::cluster_id;
use crate::node::{Config, Node, Parts};
use crate::shared::Shared;

/// The term of a new cluster's first entries, in which nobody votes.
pub(crate) const FOUNDING_TERM: Term = 1;

/// Where a member keeps its files. Nothing else may use the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// `<data-dir>/member`.
    pub member: PathBuf,
    /// `<data-dir>/member/wal`, or wherever `--wal-dir` says.
    pub wal: PathBuf,
}

impl Layout {
    pub fn new(data_dir: &Path, wal_dir: Option<&Path>) -> Self {
        let member = data_dir.join("member");
        let wal = wal_dir.map_or_else(|| member.join("wal"), Path::to_owned);
        Self { member, wal }
    }

    /// The segmented revision log.
    pub fn store(&self) -> PathBuf {
        self.member.join("store")
    }

    /// Snapshots being received.
    pub fn snap(&self) -> PathBuf {
        self.member.join("snap")
    }
}

/// How a member without a log begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bootstrap {
    /// A new cluster of these members, the same list on each of them.
    New { members: Vec<Member> },
    /// A running cluster that has added this member; its log and configuration come from there.
    Join,
}

/// What a start needs besides the disk.
#[derive(Clone, Debug)]
pub struct StartOptions {
    pub layout: Layout,
    pub bootstrap: Bootstrap,
    pub machine: dolmen_machine::Config,
    pub wal: WalOptions,
}

/// Why a member does not start. Nothing on disk has been changed but by a first start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the data directory {dir} is in use by another process: stop it, or choose another --data-dir")]
    Locked { dir: PathBuf },
    #[error("the data directory {dir} cannot be used")]
    Directory {
        dir: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "{dir} holds an etcd database beside a store of this server's: an etcd was started on it since; move one of the \
         two away, or choose another --data-dir"
    )]
    ForeignDirectory { dir: PathBuf },
    #[error("opening the write-ahead log")]
    Wal(#[from] WalError),
    #[error(transparent)]
    Machine(#[from] OpenError),
    #[error(
        "the store is at index {applied}, but no log begins at or below it: files of {dir} are missing; bring them back, or \
         remove the member from its cluster and start it again with an empty data directory"
    )]
    MissingLog { applied: u64, dir: PathBuf },
    #[error(
        "the first start of {dir} was cut off, and it was for other members than those configured now: remove {dir}, which \
         holds nothing yet, or start with --initial-cluster and --initial-cluster-token as they were"
    )]
    Unfinished { dir: PathBuf },
    #[error(
        "the store is at index {} of term {}, where the log of {dir} has committed term {in_log}: the two are not of one member; \
         bring both back from the same copy, or remove the member from its cluster and start it again with an empty data \
         directory",
        applied.0, applied.1
    )]
    Disagree { applied: (u64, u64), in_log: u64, dir: PathBuf },
    #[error("raft refuses the configuration: {0}")]
    Raft(String),
}

/// What a data directory says of itself before anything is started from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub member_id: MemberId,
    pub cluster_id: ClusterId,
}

/// A started node and the log it writes to.
pub struct Started {
    pub node: Node,
    pub wal: Wal,
    /// Held as long as the member runs.
    pub lock: DiskLock,
}

/// Whether the folder already holds a member.
///
/// # Errors
/// When the folder cannot be read.
pub fn is_initialized(disk: &dyn Disk, layout: &Layout) -> Result<bool, StartError> {
    let found = Wal::exists(disk, &layout.wal);
    found.map_err(|source| StartError::Directory { dir: layout.wal.clone(), source })
}

/// Reads who an initialized folder belongs to.
///
/// # Errors
/// When there is no log, or it cannot be read.
pub fn identity(disk: &dyn Disk, layout: &Layout) -> Result<Identity, StartError> {
    let metadata = Wal::identify(disk, &layout.wal)?;
    Ok(Identity { member_id: metadata.node_id, cluster_id: metadata.cluster_id })
}

/// Keeps other processes out of the folder.
pub(crate) fn lock(disk: &dyn Disk, layout: &Layout) -> Result<DiskLock, StartError> {
    disk.lock(&layout.member.join("LOCK")).map_err(|source| match source.kind() {
        std::io::ErrorKind::WouldBlock => StartError::Locked { dir: layout.member.clone() },
        _ => StartError::Directory { dir: layout.member.clone(), source },
    })
}

/// Opens or makes a member's files and builds its node.
///
/// # Errors
/// See [`StartError`]; each names what to do.
pub fn start(disk: Arc<dyn Disk>, options: &StartOptions, config: Config, now: Mono) -> Result<Started, StartError> {
    let layout = &options.layout;
    let directory = |source| StartError::Directory { dir: layout.member.clone(), source };
    disk.create_dir_all(&layout.member).map_err(directory)?;
    let lock = lock(&*disk, layout)?;
    disk.create_dir_all(&layout.snap()).map_err(directory)?;
    refuse_foreign(&*disk, layout)?;
    remove_leftovers(&*disk, layout).map_err(directory)?;

    let metadata = Metadata { node_id: config.member_id, cluster_id: config.cluster_id };
    let machine = Machine::open(disk.clone(), &layout.store(), options.machine.clone())?;
    if !is_initialized(&*disk, layout)? {
        // A log that begins anew would know nothing of the votes of whoever filled the store.
        if machine.applied() > 0 {
            return Err(StartError::MissingLog { applied: machine.applied(), dir: layout.wal.clone() });
        }
        drop(Wal::create(disk.clone(), &layout.wal, metadata, options.wal)?);
    }
    let (wal, begin) = open_log(&disk, options, &machine)?;
    let shared = Shared::new(
        config.member_id,
        config.cluster_id,
        config.incarnation,
        machine.store().reader(),
        machine.lessor().renewals().clone(),
        machine.tokens().clone(),
    );
    let Begin { storage, hard_state, marked } = begin;
    let raft = RawNode::new(&raft_config(&config, machine.applied()), storage)
        .map_err(|error| StartError::Raft(error.to_string()))?;
    let node = Node::new(config, Parts { raft, machine, hard_state, marked, shared, disk, now });
    Ok(Started { node, wal, lock })
}

/// What raft continues from.
struct Begin {
    storage: MemoryStorage,
    hard_state: HardState,
    marked: u64,
}

/// Store and log are two files that agree on the term of an index, or the log is brought to where the store is. What it says
/// only by an index may be about other entries: a tail that was never committed can be longer than what replaced it.
fn open_log(disk: &Arc<dyn Disk>, options: &StartOptions, machine: &Machine) -> Result<(Wal, Begin), StartError> {
    let layout = &options.layout;
    let applied = machine.position();
    // The newest mark that the store has reached; the log before the first mark begins at nothing.
    let from = Wal::snapshots(&**disk, &layout.wal)?
        .into_iter()
        .rfind(|mark| mark.index <= applied.index)
        .ok_or_else(|| StartError::MissingLog { applied: applied.index, dir: layout.wal.clone() })?;
    let (mut wal, recovered) = Wal::open(disk.clone(), &layout.wal, (from.index, from.term), options.wal)?;
    let mut hard_state = recovered.hard_state;
    let mut entries = recovered.entries;

    if applied.index == 0
        && hard_state == HardState::default()
        && let Bootstrap::New { members } = &options.bootstrap
    {
        // The log's head is written first, and says whom the first start was for.
        let ids: Vec<MemberId> = members.iter().map(|member| member.id).collect();
        let Metadata { node_id, cluster_id: cluster } = recovered.metadata;
        if !ids.contains(&node_id) || cluster_id(&ids) != cluster {
            return Err(StartError::Unfinished { dir: layout.member.clone() });
        }
        // A first start, or one that was cut off before its first sync: then some of its entries may be there, and are
        // written again, but not the hard state that is written behind them.
        entries = bootstrap_entries(members);
        hard_state = HardState { term: FOUNDING_TERM, vote: 0, commit: entries.len() as u64 };
        wal.append(Some(&hard_state), &entries)?;
        wal.sync()?;
    }

    let in_log = match applied.index.checked_sub(from.index) {
        Some(0) => Some(from.term),
        Some(above) => entries.get(above as usize - 1).map(|entry| entry.term),
        None => None,
    };
    if let Some(in_log) = in_log.filter(|term| *term != applied.term && hard_state.commit >= applied.index) {
        let applied = (applied.index, applied.term);
        return Err(StartError::Disagree { applied, in_log, dir: layout.wal.clone() });
    }
    let base = if in_log != Some(applied.term) {
        // The process stopped between installing a snapshot and noting it in the log, whose entries it replaces. The mark
        // counts only with a hard state that commits it, and the log goes on behind both; so they are there first. In the
        // snapshot's term this member has voted for nobody yet, or the log would know of that term.
        entries.clear();
        let base =
            walpb::Snapshot { index: applied.index, term: applied.term, conf_state: Some(applied.conf_state.clone()) };
        hard_state = HardState { commit: applied.index, ..in_term(hard_state, applied.term) };
        wal.append_snapshot(&base)?;
        wal.append(Some(&hard_state), &[])?;
        wal.sync()?;
        base
    } else {
        // Raft takes the configuration as of what is applied: earlier changes are not applied again.
        let conf_state = if applied.index > 0 { Some(applied.conf_state.clone()) } else { from.conf_state.clone() };
        walpb::Snapshot { conf_state, ..from.clone() }
    };
    let mut storage = MemoryStorage::new();
    if base.index > 0 || base.conf_state.as_ref().is_some_and(|state| *state != ConfState::default()) {
        let metadata = SnapshotMetadata { conf_state: base.conf_state.clone(), index: base.index, term: base.term };
        storage
            .apply_snapshot(Snapshot { data: Bytes::new(), metadata: Some(metadata) })
            .map_err(|error| StartError::Raft(error.to_string()))?;
    }
    // Entries are written before the hard state that goes with them, and a torn batch may have lost just that.
    let term = entries.last().map_or(base.term, |entry| entry.term);
    storage.append(entries).map_err(|error| StartError::Raft(error.to_string()))?;
    hard_state = in_term(hard_state, term);
    hard_state.commit = hard_state.commit.max(applied.index);
    storage.set_hard_state(hard_state);
    Ok((wal, Begin { storage, hard_state, marked: base.index }))
}

/// A hard state of at least this term, in which nobody has the vote if it is a later one.
fn in_term(state: HardState, term: Term) -> HardState {
    if state.term < term { HardState { term, vote: 0, ..state } } else { state }
}

/// The first entries of a new cluster, the same on each member: one configuration change a member, by ascending id.
fn bootstrap_entries(members: &[Member]) -> Vec<Entry> {
    let mut members: Vec<&Member> = members.iter().collect();
    members.sort_by_key(|member| member.id);
    let entry = |(at, member): (usize, &Member)| {
        let context = ConfChangeContext { member: member.clone(), is_promote: false };
        let change = ConfChange { node_id: member.id, context: context.to_json(), ..ConfChange::default() };
        Entry {
            term: FOUNDING_TERM,
            index: at as u64 + 1,
            r#type: EntryType::EntryConfChange as i32,
            data: change.encode_to_vec().into(),
        }
    };
    members.into_iter().enumerate().map(entry).collect()
}

fn raft_config(config: &Config, applied: u64) -> dolmen_raft::Config {
    dolmen_raft::Config {
        election_tick: config.election_ticks,
        heartbeat_tick: 1,
        applied,
        async_storage_writes: true,
        max_size_per_msg: 1 << 20,
        max_committed_size_per_ready: 4 << 20,
        max_inflight_msgs: 512,
        // What a follower may have been sent and not have acknowledged, and so what waits in its queues and ours.
        max_inflight_bytes: 64 << 20,
        check_quorum: true,
        pre_vote: config.pre_vote,
        step_down_on_removal: true,
        durable_candidacies: true,
        seed: config.seed,
        ..dolmen_raft::Config::new(config.member_id)
    }
}

/// etcd's own files beside a log of ours, or instead of it: refused rather than overwritten.
fn refuse_foreign(disk: &dyn Disk, layout: &Layout) -> Result<(), StartError> {
    let directory = |source| StartError::Directory { dir: layout.member.clone(), source };
    if disk.exists(&layout.snap().join("db")).map_err(directory)? {
        return Err(StartError::ForeignDirectory { dir: layout.member.clone() });
    }
    Ok(())
}

/// Received snapshots that nobody waits for any more.
fn remove_leftovers(disk: &dyn Disk, layout: &Layout) -> std::io::Result<()> {
    let snap = layout.snap();
    for name in disk.read_dir(&snap)? {
        if name.ends_with(".snap.db") || name.starts_with("tmp") || name.ends_with(".tmp") {
            disk.remove_file(&snap.join(name))?;
        }
    }
    Ok(())
}
