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
//!   requests     takes what a caller asks, and answers it; timeouts
//!   proposals    what waits to be proposed, and what is refused at the door
//!   ready        messages out, appends to the WAL and their acknowledgements
//!   apply        committed entries through the state machine: answers, events, the new configuration
//!
//!   confirm      linearizable reads: what waits for confirmed leadership
//!   leases       what only the leader does about leases
//!   leadership   who leads, and handing that over
//!   snapshots    made, installed, and what may be cut from the log behind them
//!   publication  this member's name and URLs, until the log says them
//!   upkeep       compaction, watchers that are behind, the store's jobs
//!   stop         as asked, or because something cannot go on
//! ```
//!
//! Each of these files owns its part of the state, in a struct with private fields, and is handed the rest of what it
//! needs as [`context::Context`]. What needs several parts at once is a method of [`Node`].

mod apply;
mod confirm;
mod context;
mod leadership;
mod leases;
mod proposals;
mod publication;
mod ready;
mod requests;
mod snapshots;
mod stop;
mod upkeep;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dolmen_env::{Disk, Mono};
use dolmen_machine::{InstallError, InstallJob, Installed, Machine};
use dolmen_mvcc::{Budget, CompactionHash};
use dolmen_proto::raftpb::{Entry, HardState, Message, MessageType, Snapshot};
use dolmen_proto::walpb;
use dolmen_raft::{MemoryStorage, RawNode, Role};
use dolmen_revlog::{Job, JobDone};
use dolmen_types::{Index, MemberId};
use dolmen_watch::{CloseReason, Hub, Scanned};

use self::apply::Applying;
use self::confirm::Confirm;
use self::context::Context;
use self::leadership::Leadership;
use self::leases::LeaseKeeper;
use self::proposals::Proposals;
use self::publication::Publication;
use self::ready::LogWriter;
use self::snapshots::SnapshotExchange;
use self::stop::Ending;
use self::upkeep::Upkeep;
use crate::history::{History, HistoryJob};
use crate::identity::first_id;
use crate::peers::PeerAddress;
use crate::reads::Reads;
use crate::request::{Completion, Reply, RequestError, Submission};
use crate::shared::Shared;

/// What [`Config::log_bytes`] is unless somebody wants less: the log on disk stays within four times that, 256 MiB, with the
/// segment that is written, the next one, and one that waits for its removal.
pub const LOG_BYTES: u64 = 64 << 20;

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
    /// Bytes of entries that raft's log holds in memory, and that are written between two marks, whatever their number. What
    /// is not applied or not durable in the store yet comes on top; a follower that is further behind gets a snapshot.
    pub log_bytes: u64,
    pub max_request_bytes: usize,
    /// Bytes of entries, keys and values that one turn applies and then does something else, in the midst of an entry if
    /// need be.
    pub apply_bytes_per_turn: usize,
    /// How often a watcher that asked for it and saw no event is told the revision.
    pub progress_notify_nanos: u64,
    /// Watchers that are no further behind are served on the node's thread: what was written lately is in memory.
    pub watch_near_revisions: i64,
    /// Feature gate `PriorityRequest`.
    pub priority_request: bool,
    /// Seeds raft's election timeouts.
    pub seed: u64,
    /// Differs between incarnations of a member: unique ids are built on it.
    pub incarnation: u64,
}

impl Config {
    /// About a millisecond's work.
    pub const APPLY_BYTES_PER_TURN: usize = 512 << 10;
    /// How far behind watchers may be and still find what they need in memory, nearly always.
    pub const WATCH_NEAR_REVISIONS: i64 = 256;

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
    /// A proposal for which there was no room in the inbox.
    Overflow(Completion),
    /// A checked message of a peer.
    Peer(Message),
    /// A snapshot message whose database lies at the path.
    PeerSnapshot(Message, PathBuf),
    /// The process behind a member is a Dolmen, or is not. Comes before the first message of that process.
    PeerIsDolmen(MemberId, bool),
    /// Everything says that a member's process has died; see [`crate::RaftSink::peer_gone`].
    PeerGone(MemberId),
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
    /// A slice of history for watchers has been read.
    Scanned(Scanned),
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
    /// A slice of history, to be read anywhere and reported as [`Input::Scanned`]. There is one at a time.
    pub history: Option<HistoryJob>,
    /// Received snapshots' files that are not needed, or no longer.
    pub remove: Vec<PathBuf>,
    /// By runtime.
    pub replies: BTreeMap<u16, Vec<(u64, Reply)>>,
    /// The configuration changed.
    pub peers: Option<(Vec<PeerAddress>, Vec<MemberId>)>,
    /// There is more to do: come back without waiting.
    pub busy: bool,
    /// Come back then, whatever happens.
    pub wake_at: Option<Mono>,
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

pub struct Node {
    cx: Context,
    raft: RawNode<MemoryStorage>,
    machine: Machine,
    hub: Hub,
    history: History,

    applying: Applying,
    proposals: Proposals,
    reads: Reads<Confirm>,
    leadership: Leadership,
    leases: LeaseKeeper,
    log: LogWriter,
    snapshots: SnapshotExchange,
    publication: Publication,
    upkeep: Upkeep,
    ending: Ending,
}

/// What a node continues from: built by [`crate::start`].
pub(crate) struct Parts {
    pub(crate) raft: RawNode<MemoryStorage>,
    pub(crate) machine: Machine,
    pub(crate) hard_state: HardState,
    pub(crate) marked: Index,
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
            near_revisions: config.watch_near_revisions,
            ..dolmen_watch::Config::default()
        };
        let hub = Hub::new(watch, parts.machine.store().revision());
        let history = History::new(parts.machine.store().reader());
        let mut node = Self {
            raft: parts.raft,
            machine: parts.machine,
            hub,
            history,
            applying: Applying::default(),
            proposals: Proposals::default(),
            reads: Reads::new(first_id(config.member_id, config.incarnation)),
            leadership: Leadership::new(parts.now, config.seed ^ config.incarnation),
            leases: LeaseKeeper::new(),
            log: LogWriter::new(parts.hard_state),
            snapshots: SnapshotExchange::new(parts.disk, parts.marked),
            publication: Publication::Due(parts.now),
            upkeep: Upkeep::default(),
            ending: Ending::default(),
            cx: Context { config, shared: parts.shared, now: parts.now, effects: Effects::default() },
        };
        node.note_chain();
        node.publish_configuration();
        node
    }

    pub(crate) fn config(&self) -> &Config {
        &self.cx.config
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.cx.shared
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    pub fn raft(&self) -> &RawNode<MemoryStorage> {
        &self.raft
    }

    /// What is wrong with the store, while the node hands leadership over because of it and before it stops.
    pub fn damage(&self) -> Option<&str> {
        self.ending.damage()
    }

    /// Takes one input. What follows from it comes out of the next [`Node::advance`].
    pub fn step(&mut self, now: Mono, input: Input) {
        self.cx.now = now;
        match input {
            Input::Tick => self.tick(),
            Input::Submit(submission) => self.submit(submission),
            Input::Peer(message) => self.receive(message),
            Input::PeerSnapshot(message, db) => {
                self.cx.effects.remove.extend(self.snapshots.arrived(&message, db));
                self.receive(message);
            }
            Input::PeerIsDolmen(id, dolmen) => self.leadership.set_dolmen(id, dolmen),
            Input::PeerGone(id) => self.peer_gone(id),
            Input::Unreachable(id) => self.raft.report_unreachable(id),
            Input::SnapshotStatus(id, arrived) => self.raft.report_snapshot(id, arrived),
            // A leader that can make no snapshot would leave a follower behind for good; whoever leads next can help it.
            Input::StoreDamaged(what) => self.damaged(format!("cannot make a snapshot: {what}")),
            Input::RemovedFromCluster => self.ending.now(StopReason::Removed),
            Input::WalDone(job) => self.wal_done(job),
            Input::StoreDone(done) => self.machine.store_mut().log().finish_job(done),
            Input::Hashed(id) => {
                self.upkeep.hash_done();
                self.hashed(id);
            }
            Input::Overflow(completion) => {
                self.cx.shared.metrics.proposals_failed.add(1);
                self.cx.reply(completion, Reply::Applied(Err(RequestError::TooManyRequests)));
            }
            Input::Scanned(scanned) => self.scanned(scanned),
            Input::Installed(result) => self.installed(result),
            Input::Stop { transfer } => self.begin_stop(transfer),
        }
    }

    /// A message off the wire. A lying or unknown one is refused and has no effect: peers are not trusted to be well.
    fn receive(&mut self, mut message: Message) {
        // What could not be applied would stop every member; no sender is above that.
        if message.r#type == MessageType::MsgProp as i32
            && message.entries.iter().any(|entry| dolmen_machine::check_form(entry).is_err())
        {
            self.cx.shared.metrics.proposals_failed.add(1);
            return;
        }
        if !message.entries.is_empty() && self.is_behind() {
            match MessageType::try_from(message.r#type) {
                // The leader is heard, and asked for them again when it next sends.
                Ok(MessageType::MsgApp) => message.entries.clear(),
                // Whoever passed it on proposes it again, or says that nobody knows.
                Ok(MessageType::MsgProp) => return,
                _ => {}
            }
        }
        if let Err(error @ dolmen_raft::Error::CommitOutOfRange { .. }) = self.raft.step(message) {
            // The leader knows this member to hold entries that it does not have: its log was lost or cut.
            self.fatal(&error);
        }
    }

    /// Carries out what raft is ready for and hands out what has to happen outside.
    pub fn advance(&mut self, now: Mono) -> Effects {
        self.cx.now = now;
        // One leads to another: a leader that is found takes what waited for one, an answered read may want a proposal.
        // Whatever is left here waits for the next input, at worst for a tick.
        let mut budget = Budget::new(self.cx.config.apply_bytes_per_turn);
        self.follow_hint();
        loop {
            if !self.applying.is_empty() {
                self.apply(&mut budget);
            }
            self.publish_self();
            self.answer_reads();
            self.propose_queued();
            self.ask_reads();
            if self.ending.is_here() || !self.raft.has_ready() {
                break;
            }
            self.carry_out_ready();
        }
        self.cx.effects.busy |= self.can_apply();
        self.cx.effects.remove.extend(self.snapshots.ignored());
        self.background();
        self.open_renewals();
        self.publish_status();
        self.cx.effects.wake_at = self.leadership.wake_at();
        self.wake_streams();
        if let Some(reason) = self.ending.take() {
            self.answer_everybody(&RequestError::Stopped);
            self.cx.shared.renewals.open(Mono(0));
            self.hub.close_all(CloseReason::Stopping);
            self.wake_streams();
            self.cx.effects.stopped = Some(reason);
        }
        std::mem::take(&mut self.cx.effects)
    }

    fn tick(&mut self) {
        let leads = self.leads();
        self.leadership.ticked(&self.cx, leads);
        if self.leadership.leader().is_none() && self.is_only_voter() && self.raft.role() == Role::Follower {
            // Nobody else could lead: there is no reason to wait for an election timeout. A candidate already waits for
            // its own vote to be durable.
            let _leads_already = self.raft.campaign();
        }
        self.raft.tick();
        if self.leads() {
            if self.leadership.in_doubt() {
                self.reads.push(Confirm::Doubt, self.cx.now);
            }
            self.expire_leases();
            self.leave_hanging_log();
        }
        if self.ending.damage().is_none() {
            self.hub.tick(self.cx.now);
        }
        self.expire_requests();
        self.check_transfer();
    }

    fn wake_streams(&mut self) {
        for (runtime, slot) in self.hub.take_wakeups() {
            self.cx.effects.replies.entry(runtime).or_default().push((slot, Reply::WatchReady));
        }
    }
}
