//! The node: one loop, one closed list of inputs.
//!
//! [`Node::step`] takes one input and does what can be done at once; [`Node::advance`] then carries out, in order,
//! whatever raft is ready for, and returns the [`Effects`]: messages, disk jobs and answers. Between the two nothing
//! blocks and nothing touches a disk, so ticks never wait for one, and the simulator drives the same code.
//!
//! The order that everything rests on: an entry is applied only when it is in our own WAL ([`Input::WalDone`]), answered
//! only when applied, and the WAL is cut only below what the store holds durably.
//!
//! The list of inputs, the order of a turn and the state are in this file. What happens on the way is in a file for each
//! job, and a write meets them in this order:
//!
//! ```text
//!   requests    takes what a caller asks, and answers it; timeouts
//!   propose     what waits to be proposed, and what is refused at the door
//!   ready       messages out, appends to the WAL and their acknowledgements
//!   apply       committed entries through the state machine: answers, events, the new configuration
//!
//!   confirm     linearizable reads: what waits for confirmed leadership
//!   leases      what only the leader does about leases
//!   leadership  who leads, and handing that over
//!   snapshots   made, installed, and what may be cut from the log behind them
//!   stop        as asked, or because something cannot go on
//! ```

mod apply;
mod confirm;
mod leadership;
mod leases;
mod propose;
mod ready;
mod requests;
mod snapshots;
mod stop;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dolmen_env::{Disk, Mono};
use dolmen_machine::{InstallError, InstallJob, Installed, Machine};
use dolmen_mvcc::CompactionHash;
use dolmen_proto::raftpb::{Entry, HardState, Message, Snapshot};
use dolmen_proto::walpb;
use dolmen_raft::{MemoryStorage, RawNode, Role};
use dolmen_revlog::{Hint, Job, JobDone};
use dolmen_types::{Index, LeaseId, MemberId, error_chain};
use dolmen_watch::{CloseReason, Hub};

use self::confirm::Confirm;
use self::leadership::Transfer;
use self::propose::{Pending, Queued};
use crate::history::History;
use crate::identity::first_id;
use crate::peers::PeerAddress;
use crate::reads::Reads;
use crate::request::{Completion, Reply, RequestError, Submission};
use crate::shared::Shared;

/// Timing and limits, as etcd's flags set them.
#[derive(Clone, Debug)]
pub struct Config {
    pub member_id: MemberId,
    pub cluster_id: u64,
    pub name: String,
    pub client_urls: Vec<String>,
    pub tick_nanos: u64,
    pub election_ticks: usize,
    pub pre_vote: bool,
    /// Applied entries between raft snapshots (marks from which the WAL can be cut).
    pub snapshot_count: u64,
    /// Entries kept in memory behind a snapshot, for followers that are a little late.
    pub catch_up_entries: u64,
    pub max_request_bytes: usize,
    /// How often a watcher that asked for it and saw no event is told the revision.
    pub progress_notify_nanos: u64,
    /// Feature gate `PriorityRequest`.
    pub priority_request: bool,
    /// Seeds raft's election timeouts.
    pub seed: u64,
    /// Differs between incarnations of a member: unique ids are built on it.
    pub incarnation: u64,
}

impl Config {
    pub fn election_nanos(&self) -> u64 {
        self.tick_nanos * self.election_ticks as u64
    }

    /// How long a request may take: 5 s and two election timeouts, as in etcd.
    pub fn request_timeout_nanos(&self) -> u64 {
        5_000_000_000 + 2 * self.election_nanos()
    }
}

/// Everything that can ever happen to a node.
pub enum Input {
    /// One heartbeat interval has passed.
    Tick,
    Submit(Submission),
    /// A checked message of a peer.
    Peer(Message),
    /// A snapshot message whose database lies at the path.
    PeerSnapshot(Message, PathBuf),
    Unreachable(MemberId),
    SnapshotStatus(MemberId, bool),
    /// Our store could not be read while a snapshot was made of it, for the reason given.
    StoreDamaged(String),
    /// A peer says that this member is no longer part of the cluster.
    RemovedFromCluster,
    /// A WAL job is durable. In the order the jobs were handed out.
    WalDone(WalJob),
    /// A store job is done.
    StoreDone(JobDone),
    /// The hash of a compaction is stored; its caller may be waiting under this id.
    Hashed(u64),
    /// A snapshot has been rebuilt into a store, or could not be.
    Installed(Result<Installed, InstallError>),
    /// Stop: hand leadership over if `transfer`, answer everybody, flush, finish.
    Stop {
        transfer: bool,
    },
}

/// What goes to the WAL in one piece: append all, sync if it needs to, then come back as [`Input::WalDone`].
#[derive(Debug, Default)]
pub struct WalJob {
    pub hard_state: Option<HardState>,
    pub entries: Vec<Entry>,
    /// A snapshot mark; written before entries and hard state.
    pub snapshot: Option<walpb::Snapshot>,
    /// Whether the mark is of a snapshot received from the leader, rather than of our own progress.
    received: Option<Snapshot>,
    /// Entries at or below are held durably by the store: their segments may go.
    pub release: Option<Index>,
    /// Term, vote or entries changed: the job is done only once synced.
    pub must_sync: bool,
    responses: Vec<Message>,
}

/// What the driver does after a turn of the loop, in the order of the fields.
#[derive(Default)]
pub struct Effects {
    /// To peers; may leave at once.
    pub messages: Vec<Message>,
    pub snapshots: Vec<(Message, Box<dyn dolmen_bolt::Source + Send>)>,
    pub wal: Vec<WalJob>,
    pub store: Vec<Job>,
    pub install: Option<InstallJob>,
    /// The hash of a compaction, to be made anywhere and reported as [`Input::Hashed`] with the id.
    pub hashes: Vec<(u64, CompactionHash)>,
    /// A received snapshot's file that is no longer needed.
    pub remove: Option<PathBuf>,
    /// By runtime.
    pub replies: BTreeMap<u16, Vec<(u64, Reply)>>,
    /// The configuration changed.
    pub peers: Option<(Vec<PeerAddress>, Vec<MemberId>)>,
    /// There is more to do: come back without waiting.
    pub busy: bool,
    pub stopped: Option<StopReason>,
}

/// Why a node stopped by itself or as asked.
#[derive(Debug)]
pub enum StopReason {
    Asked,
    /// This member was removed from the cluster.
    Removed,
    /// The state machine cannot go on.
    Fatal(String),
}

/// Ticks after which one that has not come means that this process was paused.
const MISSED_TICKS: u64 = 3;
const COMPACT_KEYS_PER_TURN: usize = 512;
const CATCH_UP_BYTES_PER_TURN: usize = 4 << 20;

pub struct Node {
    pub(crate) config: Config,
    raft: RawNode<MemoryStorage>,
    machine: Machine,
    hub: Hub,
    history: History,
    shared: Arc<Shared>,
    disk: Arc<dyn Disk>,

    now: Mono,
    last_tick: Mono,
    /// The last tick came late: this process was paused, and may not be the leader it believes to be.
    was_paused: bool,
    /// Until when leases may be renewed beside this loop; 0 when only here.
    renewals_open: Mono,
    leader: MemberId,
    leader_since: Mono,

    /// Proposals that wait for a leader, or for the end of a transfer.
    queued: VecDeque<Queued>,
    pending: HashMap<u64, Pending>,
    /// Ids in the order they came, for timeouts; those already answered are skipped.
    deadlines: VecDeque<(Mono, u64)>,
    pending_bytes: usize,
    reads: Reads<Confirm>,
    renewals: BTreeMap<LeaseId, Vec<Completion>>,
    /// Physical compactions whose hash is stored.
    hashed: Vec<u64>,
    transfer: Option<Transfer>,
    published: bool,
    publish_id: u64,
    publish_at: Mono,

    /// WAL jobs handed out and not yet done.
    wal_in_flight: usize,
    hard_state: HardState,
    /// Appends that wait for a snapshot's installation.
    held: VecDeque<Message>,
    installing: Option<(Message, PathBuf)>,
    received: BTreeMap<Index, PathBuf>,
    /// A mark that becomes a WAL snapshot once the store holds it durably.
    mark: Option<dolmen_machine::Position>,
    marked: Index,
    reclaim: bool,
    sync_now: bool,
    /// This member is about to stop, and will have by then.
    stopping: Option<Mono>,
    /// What was found wrong with the store: until the node stops because of it, it only hands leadership over.
    damage: Option<String>,
    stop: Option<StopReason>,

    effects: Effects,
}

/// What a node continues from: built by [`crate::start`].
pub(crate) struct Parts {
    pub(crate) raft: RawNode<MemoryStorage>,
    pub(crate) machine: Machine,
    pub(crate) hard_state: HardState,
    pub(crate) marked: Index,
    /// A mark to be written to the WAL before anything else.
    pub(crate) mark: Option<walpb::Snapshot>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) now: Mono,
}

impl Node {
    pub(crate) fn new(config: Config, parts: Parts) -> Self {
        let watch = dolmen_watch::Config {
            cluster_id: config.cluster_id,
            member_id: config.member_id,
            max_request_bytes: config.max_request_bytes,
            progress_interval: Duration::from_nanos(config.progress_notify_nanos),
        };
        let hub = Hub::new(watch, parts.machine.store().revision());
        let history = History::new(parts.machine.store().reader());
        let mut node = Self {
            reads: Reads::new(first_id(config.member_id, config.incarnation)),
            raft: parts.raft,
            machine: parts.machine,
            hub,
            history,
            shared: parts.shared,
            disk: parts.disk,
            now: parts.now,
            last_tick: parts.now,
            was_paused: false,
            renewals_open: Mono(0),
            leader: 0,
            leader_since: parts.now,
            queued: VecDeque::new(),
            pending: HashMap::new(),
            deadlines: VecDeque::new(),
            pending_bytes: 0,
            renewals: BTreeMap::new(),
            hashed: Vec::new(),
            transfer: None,
            published: false,
            publish_id: 0,
            publish_at: parts.now,
            wal_in_flight: 0,
            hard_state: parts.hard_state,
            held: VecDeque::new(),
            installing: None,
            received: BTreeMap::new(),
            mark: None,
            marked: parts.marked,
            reclaim: false,
            sync_now: false,
            stopping: None,
            damage: None,
            stop: None,
            effects: Effects::default(),
            config,
        };
        if let Some(mark) = parts.mark {
            node.send_wal(WalJob { snapshot: Some(mark), must_sync: true, ..WalJob::default() });
        }
        node.publish_configuration();
        node
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    pub fn raft(&self) -> &RawNode<MemoryStorage> {
        &self.raft
    }

    /// What is wrong with the store, while the node hands leadership over because of it and before it stops.
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    /// Takes one input. What follows from it comes out of the next [`Node::advance`].
    pub fn step(&mut self, now: Mono, input: Input) {
        self.now = now;
        match input {
            Input::Tick => self.tick(),
            Input::Submit(submission) => self.submit(submission),
            Input::Peer(message) => self.receive(message),
            Input::PeerSnapshot(message, db) => {
                let index = message.snapshot.as_ref().and_then(|s| s.metadata.as_ref()).map_or(0, |m| m.index);
                if let Some(replaced) = self.received.insert(index, db.clone())
                    && replaced != db
                {
                    self.effects.remove = Some(replaced);
                }
                self.receive(message);
            }
            Input::Unreachable(id) => self.raft.report_unreachable(id),
            Input::SnapshotStatus(id, arrived) => self.raft.report_snapshot(id, arrived),
            // A leader that can make no snapshot would leave a follower behind for good; whoever leads next can help it.
            Input::StoreDamaged(what) => self.damaged(format!("cannot make a snapshot: {what}")),
            Input::RemovedFromCluster => self.stop = Some(StopReason::Removed),
            Input::WalDone(job) => self.wal_done(job),
            Input::StoreDone(done) => self.machine.store_mut().log().finish_job(done),
            Input::Hashed(id) => self.hashed(id),
            Input::Installed(result) => self.installed(result),
            Input::Stop { transfer } => self.begin_stop(transfer),
        }
    }

    /// A message off the wire. A lying or unknown one is refused and has no effect: peers are not trusted to be well.
    fn receive(&mut self, message: Message) {
        if let Err(error @ dolmen_raft::Error::CommitOutOfRange { .. }) = self.raft.step(message) {
            // The leader knows this member to hold entries that it does not have: its log was lost or cut.
            self.fatal(&error);
        }
    }

    /// Carries out what raft is ready for and hands out what has to happen outside.
    pub fn advance(&mut self, now: Mono) -> Effects {
        self.now = now;
        self.propose_queued();
        self.ask_reads();
        while self.stop.is_none() && self.raft.has_ready() {
            self.carry_out_ready();
        }
        self.answer_reads();
        self.background();
        self.open_renewals();
        self.publish_status();
        self.wake_streams();
        if let Some(reason) = self.stop.take() {
            self.answer_everybody(RequestError::Stopped);
            self.shared.renewals.open(Mono(0));
            self.hub.close_all(CloseReason::Stopping);
            self.wake_streams();
            self.effects.stopped = Some(reason);
        }
        std::mem::take(&mut self.effects)
    }

    fn tick(&mut self) {
        let late = self.now.since(self.last_tick) > MISSED_TICKS * self.config.tick_nanos;
        // Only a quorum's word clears the doubt (see `answer_reads`); where nobody else votes there is none.
        self.was_paused = late || (self.was_paused && self.leads());
        self.last_tick = self.now;
        if self.leader == 0 && self.is_only_voter() && self.raft.role() == Role::Follower {
            // Nobody else could lead: there is no reason to wait for an election timeout. A candidate already waits for
            // its own vote to be durable.
            let _leads_already = self.raft.campaign();
        }
        self.raft.tick();
        if self.was_paused && self.leads() {
            self.reads.push(Confirm::Doubt, self.now);
        }
        if self.leads() {
            self.expire_leases();
        }
        if self.damage.is_none() {
            self.hub.tick(self.now);
        }
        self.expire_requests();
        self.check_transfer();
        self.publish_self();
    }

    /// What goes on beside requests: compaction, watchers that are behind, the store's jobs, cutting the log.
    fn background(&mut self) {
        if self.damage.is_some() {
            self.finish_stop();
            return;
        }
        let pruning = self.machine.store_mut().compact_step(COMPACT_KEYS_PER_TURN);
        self.effects.busy |= pruning;
        if !pruning {
            for id in std::mem::take(&mut self.hashed) {
                self.answer(id, Ok(self.machine.compacted()));
            }
        }
        if self.hub.has_unsynced() {
            match self.hub.catch_up(&self.history, CATCH_UP_BYTES_PER_TURN) {
                Ok(more) => self.effects.busy |= more,
                Err(error) => self.damaged(error_chain(&error)),
            }
        }
        let hint = if self.sync_now {
            Hint::Sync
        } else if std::mem::take(&mut self.reclaim) {
            Hint::Reclaim
        } else {
            Hint::Normal
        };
        while let Some(job) = self.machine.store_mut().log().next_job(self.now, hint) {
            self.effects.store.push(job);
        }
        self.cut_log();
        self.finish_stop();
    }

    fn wake_streams(&mut self) {
        for (runtime, slot) in self.hub.take_wakeups() {
            self.effects.replies.entry(runtime).or_default().push((slot, Reply::WatchReady));
        }
    }

    pub(super) fn reply(&mut self, to: Completion, reply: Reply) {
        self.effects.replies.entry(to.runtime).or_default().push((to.slot, reply));
    }
}
