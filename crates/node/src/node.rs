//! The node: one loop, one closed list of inputs.
//!
//! [`Node::step`] takes one input and does what can be done at once; [`Node::advance`] then carries out, in order,
//! whatever raft is ready for, and returns the [`Effects`]: messages, disk jobs and answers. Between the two nothing
//! blocks and nothing touches a disk, so ticks never wait for one, and the simulator drives the same code.
//!
//! The order that everything rests on: an entry is applied only when it is in our own WAL ([`Input::WalDone`]), answered
//! only when applied, and the WAL is cut only below what the store holds durably.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dolmen_env::{Disk, Mono};
use dolmen_lease::{MAX_CHECKPOINT_BATCH, RenewError};
use dolmen_machine::{Applied, InstallError, InstallJob, Installed, Machine, OpenError, Outcome, Response};
use dolmen_mvcc::CompactionHash;
use dolmen_proto::etcdserverpb::{
    InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest, LeaseRevokeRequest, LeaseTimeToLiveResponse,
    RequestHeader,
};
use dolmen_proto::membershippb::{Attributes, ClusterMemberAttrSetRequest};
use dolmen_proto::raftpb::{Entry, HardState, Message, MessageType, Snapshot, SnapshotMetadata};
use dolmen_proto::walpb;
use dolmen_raft::{BasicStatus, LOCAL_APPEND_THREAD, LOCAL_APPLY_THREAD, MemoryStorage, ProgressState, RawNode, Role};
use dolmen_revlog::{Hint, Job, JobDone};
use dolmen_types::{Index, LeaseId, MemberId, Term, error_chain};
use dolmen_watch::{CloseReason, Hub};
use prost::Message as _;

use crate::history::{History, event};
use crate::identity::first_id;
use crate::peers::PeerAddress;
use crate::reads::{Reader, Reads};
use crate::request::{Completion, ProposeKind, Reply, Request, RequestError, Submission};
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

/// Who waits for a proposal's outcome.
struct Pending {
    completion: Completion,
}

/// What waits for confirmed leadership.
enum Confirm {
    Read(Completion),
    /// A lease renewal that came just after this process had been paused.
    Renew(Completion, LeaseId),
    /// What is left of a lease that this member has not heard of.
    TimeToLive(Completion, LeaseId, bool),
    /// Nobody: the node itself wants to know whether it still leads.
    Doubt,
}

/// A proposal on its way to raft.
struct Queued {
    id: u64,
    data: Bytes,
    origin: Origin,
}

/// Who wants a proposal.
#[derive(Clone, Copy)]
enum Origin {
    Caller,
    /// The node itself; nobody waits for it.
    Member,
    /// The node as leader of this term. Never forwarded: a later leader knows the leases' deadlines better.
    Leader(Term),
}

struct Transfer {
    completion: Option<Completion>,
    target: MemberId,
    since: Mono,
}

/// Refused above this gap between commit and apply, as in etcd.
const MAX_APPLY_GAP: u64 = 5_000;
const MAX_APPLY_GAP_PRIORITY: u64 = 10_000;
/// Refused above so much proposed and not yet applied: what a member may hold in memory for callers who wait.
const MAX_PENDING_BYTES: usize = 512 << 20;
const MAX_PENDING: usize = 200_000;
/// Entries forwarded or proposed in one message.
const MAX_PROPOSAL_BYTES: usize = 1 << 20;
/// The store's backlog of unwritten batches above which proposals are refused rather than memory grown.
const MAX_STORE_BACKLOG: usize = 256 << 20;
/// Ticks after which one that has not come means that this process was paused.
const MISSED_TICKS: u64 = 3;
const LEASE_REVOKES_PER_TICK: usize = 100;
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
    stopping: Option<Mono>,
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
            Input::StoreDamaged(what) => self.stop = Some(StopReason::Fatal(format!("cannot make a snapshot: {what}"))),
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

    fn wake_streams(&mut self) {
        for (runtime, slot) in self.hub.take_wakeups() {
            self.effects.replies.entry(runtime).or_default().push((slot, Reply::WatchReady));
        }
    }

    // ---- callers ----

    fn submit(&mut self, submission: Submission) {
        let Submission { request, completion, since } = submission;
        if self.stopping.is_some() {
            self.refuse(request, completion, RequestError::Stopped);
            return;
        }
        match request {
            Request::Propose { id, data, kind } => self.propose(id, data, kind, completion, since),
            Request::ReadIndex => self.reads.push(Confirm::Read(completion), since),
            Request::LeaseRenew { id } => self.renew(id, completion, since),
            Request::LeaseTimeToLive { id, keys } => {
                let lessor = self.machine.lessor();
                if self.leads() && (!lessor.is_primary() || !lessor.contains(id)) {
                    // As with renewals: this leader may not know of it yet.
                    self.reads.push(Confirm::TimeToLive(completion, id, keys), since);
                } else {
                    let reply = self.time_to_live(id, keys);
                    self.reply(completion, Reply::LeaseTimeToLive(reply));
                }
            }
            Request::Leases => {
                let leases = self.machine.lessor().list();
                self.reply(completion, Reply::Leases(leases));
            }
            Request::Alarms => {
                let alarms = self.machine.alarms(0);
                self.reply(completion, Reply::Alarms(alarms));
            }
            Request::MoveLeader { target } => self.move_leader(target, completion),
            Request::Defragment => {
                self.reclaim = true;
                self.reply(completion, Reply::Done(Ok(())));
            }
            Request::Snapshot => {
                if let Some(source) = self.snapshot_source() {
                    self.reply(completion, Reply::Snapshot(source));
                }
            }
            Request::WatchOpen { stream, outbox } => self.hub.open(stream, outbox),
            Request::WatchCreate { stream, create } => {
                let (revision, compacted) = (self.machine.store().revision(), self.machine.store().compact_revision());
                self.hub.create(stream, create, revision, compacted);
            }
            Request::WatchCancel { stream, watch_id } => self.hub.cancel(stream, watch_id),
            Request::WatchProgress { stream } => self.hub.progress(stream),
            Request::WatchClose { stream } => self.hub.close(stream),
        }
    }

    /// The whole state, pinned; `None` stops the node, whose store cannot be read.
    fn snapshot_source(&mut self) -> Option<Box<dyn dolmen_bolt::Source + Send>> {
        match self.machine.snapshot_source() {
            Ok(source) => Some(Box::new(source)),
            Err(error) => {
                self.fatal(&error);
                None
            }
        }
    }

    fn reply(&mut self, to: Completion, reply: Reply) {
        self.effects.replies.entry(to.runtime).or_default().push((to.slot, reply));
    }

    fn refuse(&mut self, request: Request, completion: Completion, error: RequestError) {
        let reply = match request {
            Request::Propose { .. } => Reply::Applied(Err(error)),
            Request::LeaseRenew { .. } => Reply::LeaseRenewed(Err(error)),
            Request::LeaseTimeToLive { .. } => Reply::LeaseTimeToLive(Err(error)),
            Request::ReadIndex => Reply::ReadReady(Err(error)),
            Request::WatchOpen { .. }
            | Request::WatchCreate { .. }
            | Request::WatchCancel { .. }
            | Request::WatchProgress { .. }
            | Request::WatchClose { .. } => return,
            Request::Leases
            | Request::Alarms
            | Request::MoveLeader { .. }
            | Request::Defragment
            | Request::Snapshot => Reply::Done(Err(error)),
        };
        self.reply(completion, reply);
    }

    fn propose(&mut self, id: u64, data: Bytes, kind: ProposeKind, completion: Completion, since: Mono) {
        let gap = self.hard_state.commit.saturating_sub(self.machine.applied());
        let allowed = match kind {
            ProposeKind::LeaseRevoke if self.config.priority_request => MAX_APPLY_GAP_PRIORITY,
            _ => MAX_APPLY_GAP,
        };
        let full = self.pending.len() >= MAX_PENDING
            || self.pending_bytes + data.len() > MAX_PENDING_BYTES
            || self.machine.store().log_ref().backlog_bytes() > MAX_STORE_BACKLOG;
        if gap > allowed || full {
            self.shared.metrics.proposals_failed.add(1);
            self.reply(completion, Reply::Applied(Err(RequestError::TooManyRequests)));
            return;
        }
        self.pending.insert(id, Pending { completion });
        self.deadlines.push_back((since, id));
        self.pending_bytes += data.len();
        self.queued.push_back(Queued { id, data, origin: Origin::Caller });
    }

    /// Proposes a request of the node's own, under the returned id; nobody waits for it.
    fn propose_own(&mut self, origin: Origin, request: InternalRaftRequest) -> u64 {
        let id = self.shared.next_id();
        let header = RequestHeader { id, ..RequestHeader::default() };
        let data: Bytes = InternalRaftRequest { header: Some(header), ..request }.encode_to_vec().into();
        self.pending_bytes += data.len();
        self.queued.push_back(Queued { id, data, origin });
        id
    }

    /// Hands everything queued to raft in as few messages as it allows, once somebody leads and does not hand over.
    fn propose_queued(&mut self) {
        if self.leader == 0 || self.raft_status().transferee != 0 {
            return;
        }
        let led = self.leads().then_some(self.raft_status().term);
        while !self.queued.is_empty() {
            let mut bytes = 0;
            let mut entries = Vec::with_capacity(self.queued.len().min(1024));
            let pending = &self.pending;
            while let Some(next) =
                self.queued.pop_front_if(|next| bytes == 0 || bytes + next.data.len() <= MAX_PROPOSAL_BYTES)
            {
                bytes += next.data.len();
                let wanted = match next.origin {
                    // One whose caller has been told of a timeout while nobody led must not happen later.
                    Origin::Caller => pending.contains_key(&next.id),
                    Origin::Member => true,
                    Origin::Leader(term) => led == Some(term),
                };
                if wanted {
                    entries.push(Entry { data: next.data, ..Entry::default() });
                }
            }
            self.pending_bytes = self.pending_bytes.saturating_sub(bytes);
            if entries.is_empty() {
                continue;
            }
            // Dropped proposals (raft is between leaders) are answered by their timeout: whether a forwarded one
            // arrived cannot be known, and nothing is ever proposed twice.
            let _dropped = self.raft.propose_entries(entries);
        }
    }

    fn renew(&mut self, id: LeaseId, completion: Completion, since: Mono) {
        if !self.leads() {
            let error = RequestError::NotLeader { leader: self.leader };
            self.reply(completion, Reply::LeaseRenewed(Err(error)));
        } else if self.was_paused || !self.machine.lessor().is_primary() || !self.machine.lessor().contains(id) {
            // A new leader waits until it has applied what others left it, and a leader with a slow disk may apply a grant
            // later than its followers: only what a quorum confirms is gone.
            self.reads.push(Confirm::Renew(completion, id), since);
        } else {
            self.renew_confirmed(id, completion);
        }
    }

    fn renew_confirmed(&mut self, id: LeaseId, completion: Completion) {
        let reply = match self.machine.lessor_mut().renew(id, self.now) {
            Ok(ttl) => {
                self.shared.metrics.lease_renewed.add(1);
                Ok(ttl)
            }
            Err(RenewError::NotFound) => Ok(0),
            // Past its deadline: the answer waits for the revoke that is on its way.
            Err(RenewError::PendingRevoke) => {
                self.renewals.entry(id).or_default().push(completion);
                return;
            }
            // A checkpoint shortens the lease: it is cleared through the log first, so that no later leader believes it.
            Err(RenewError::Checkpointed) => {
                if !self.renewals.contains_key(&id) {
                    self.propose_checkpoints(vec![LeaseCheckpoint { id, remaining_ttl: 0 }]);
                }
                self.renewals.entry(id).or_default().push(completion);
                return;
            }
            Err(RenewError::NotPrimary) => Err(RequestError::NotLeader { leader: self.leader }),
        };
        self.reply(completion, Reply::LeaseRenewed(reply));
    }

    /// Lets other threads renew what is plain ([`dolmen_lease::Renewals`]) for as long as this member leads without
    /// doubt: until the next ticks have stayed out, after which it may have been paused and followed by another leader.
    /// Losing the lead closes the table by itself ([`dolmen_lease::Lessor::demote`]).
    fn open_renewals(&mut self) {
        let sure = self.leads() && !self.was_paused && self.machine.lessor().is_primary() && self.stopping.is_none();
        let until = if sure { Mono(self.last_tick.0 + MISSED_TICKS * self.config.tick_nanos) } else { Mono(0) };
        if until != self.renewals_open {
            self.renewals_open = until;
            self.shared.renewals.open(until);
        }
    }

    fn time_to_live(&mut self, id: LeaseId, keys: bool) -> Result<LeaseTimeToLiveResponse, RequestError> {
        if !self.leads() {
            return Err(RequestError::NotLeader { leader: self.leader });
        }
        Ok(match self.machine.lessor().time_to_live(id, self.now, keys) {
            Ok(found) => LeaseTimeToLiveResponse {
                id,
                ttl: found.ttl,
                granted_ttl: found.granted_ttl,
                keys: found.keys,
                ..LeaseTimeToLiveResponse::default()
            },
            Err(_) => LeaseTimeToLiveResponse { id, ttl: -1, ..LeaseTimeToLiveResponse::default() },
        })
    }

    fn move_leader(&mut self, target: MemberId, completion: Completion) {
        let voter = self.machine.membership().members.get(&target).is_some_and(|member| !member.is_learner);
        if !self.leads() {
            let error = RequestError::NotLeader { leader: self.leader };
            self.reply(completion, Reply::Done(Err(error)));
        } else if !voter {
            self.reply(completion, Reply::Done(Err(RequestError::BadTransferee)));
        } else if target == self.config.member_id {
            self.reply(completion, Reply::Done(Ok(())));
        } else if self.transfer.is_some() {
            self.reply(completion, Reply::Done(Err(RequestError::TransferTimeout)));
        } else {
            self.raft.transfer_leader(target);
            self.transfer = Some(Transfer { completion: Some(completion), target, since: self.now });
        }
    }

    // ---- time ----

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
        self.hub.tick(self.now);
        self.expire_requests();
        self.check_transfer();
        self.publish_self();
    }

    fn is_only_voter(&self) -> bool {
        let conf_state = self.machine.conf_state();
        conf_state.voters == [self.config.member_id] && conf_state.voters_outgoing.is_empty()
    }

    fn expire_leases(&mut self) {
        let expired = self.machine.lessor_mut().expired(self.now, LEASE_REVOKES_PER_TICK);
        for id in expired {
            self.shared.metrics.lease_expired.add(1);
            let lease_revoke = Some(LeaseRevokeRequest { id });
            let request = InternalRaftRequest { lease_revoke, ..InternalRaftRequest::default() };
            let _id = self.propose_own(Origin::Leader(self.raft_status().term), request);
        }
        let due = self.machine.lessor_mut().checkpoints_due(self.now, MAX_CHECKPOINT_BATCH);
        if !due.is_empty() {
            self.propose_checkpoints(
                due.into_iter().map(|due| LeaseCheckpoint { id: due.id, remaining_ttl: due.remaining_ttl }).collect(),
            );
        }
    }

    fn propose_checkpoints(&mut self, checkpoints: Vec<LeaseCheckpoint>) {
        let lease_checkpoint = Some(LeaseCheckpointRequest { checkpoints });
        let request = InternalRaftRequest { lease_checkpoint, ..InternalRaftRequest::default() };
        let _id = self.propose_own(Origin::Leader(self.raft_status().term), request);
    }

    fn expire_requests(&mut self) {
        let timeout = self.config.request_timeout_nanos();
        let deadline = Mono(self.now.0.saturating_sub(timeout));
        while let Some((since, id)) = self.deadlines.front().copied() {
            if since >= deadline {
                break;
            }
            self.deadlines.pop_front();
            if let Some(pending) = self.pending.remove(&id) {
                self.shared.metrics.proposals_failed.add(1);
                let error = self.timeout_error(since);
                self.reply(pending.completion, Reply::Applied(Err(error)));
            }
        }
        for reader in self.reads.expired(deadline) {
            self.shared.metrics.read_indexes_failed.add(1);
            self.confirm_failed(reader, RequestError::Timeout);
        }
    }

    fn timeout_error(&self, since: Mono) -> RequestError {
        let doubt = 2 * self.config.election_nanos();
        if since < self.leader_since && self.leader_since.since(since) <= doubt {
            RequestError::TimeoutLeaderFailure
        } else if self.leader != 0
            && self.leader != self.config.member_id
            && !self.shared.is_connected(self.leader, since)
        {
            RequestError::TimeoutConnectionLost
        } else {
            RequestError::Timeout
        }
    }

    fn check_transfer(&mut self) {
        let Some(transfer) = &self.transfer else { return };
        if self.leader == transfer.target {
            let transfer = self.transfer.take().and_then(|t| t.completion);
            if let Some(completion) = transfer {
                self.reply(completion, Reply::Done(Ok(())));
            }
        } else if self.now.since(transfer.since) > self.config.request_timeout_nanos()
            || (!self.leads() && self.leader != 0)
        {
            if let Some(completion) = self.transfer.take().and_then(|t| t.completion) {
                self.reply(completion, Reply::Done(Err(RequestError::TransferTimeout)));
            }
        } else if self.stopping.is_some() && self.leads() && self.raft_status().transferee == 0 {
            // Raft gave up after an election timeout. One that stops asks again; one that goes on does not, because nothing
            // is proposed meanwhile, and the transferee may be down for good.
            self.raft.transfer_leader(transfer.target);
        }
    }

    /// Proposes this member's name and client URLs until the log says them.
    fn publish_self(&mut self) {
        if self.published || self.leader == 0 || self.stopping.is_some() {
            return;
        }
        let known = self.machine.membership().members.get(&self.config.member_id);
        if self.publish_id == 0
            && known.is_some_and(|m| m.name == self.config.name && m.client_urls == self.config.client_urls)
        {
            self.published = true;
            self.shared.set_published();
            return;
        }
        if known.is_none() || self.now < self.publish_at {
            return;
        }
        self.publish_at = Mono(self.now.0 + self.config.request_timeout_nanos());
        let member_attributes =
            Attributes { name: self.config.name.clone(), client_urls: self.config.client_urls.clone() };
        let request = InternalRaftRequest {
            cluster_member_attr_set: Some(ClusterMemberAttrSetRequest {
                member_id: self.config.member_id,
                member_attributes: Some(member_attributes),
            }),
            ..InternalRaftRequest::default()
        };
        self.publish_id = self.propose_own(Origin::Member, request);
    }

    // ---- raft ----

    fn ask_reads(&mut self) {
        if self.leader != 0
            && let Some(context) = self.reads.ask(self.now)
        {
            self.raft.read_index(context);
        }
    }

    fn carry_out_ready(&mut self) {
        let ready = self.raft.ready_messages();
        if let Some(soft_state) = ready.soft_state {
            self.leadership(soft_state.leader_id, soft_state.role == Role::Leader);
        }
        for read in ready.read_states {
            self.reads.answered(&read.request_ctx, read.index);
        }
        for message in ready.messages {
            match message.to {
                LOCAL_APPEND_THREAD => self.persist(message),
                LOCAL_APPLY_THREAD => self.apply(message),
                _ => self.send(message),
            }
        }
    }

    fn leadership(&mut self, leader: MemberId, leads: bool) {
        if leader != self.leader {
            if leader != 0 {
                self.shared.metrics.leader_changes.add(1);
                self.leader_since = self.now;
                self.reads.ask_again();
            }
            self.leader = leader;
        }
        let lessor = self.machine.lessor_mut();
        if !leads && lessor.is_primary() {
            lessor.demote();
            self.renewals_open = Mono(0);
            for (_, completions) in std::mem::take(&mut self.renewals) {
                for completion in completions {
                    let error = RequestError::NotLeader { leader };
                    self.reply(completion, Reply::LeaseRenewed(Err(error)));
                }
            }
        }
        self.hub.set_term(self.raft_status().term);
        self.check_transfer();
    }

    /// A leader keeps leases once it has applied an entry of its own term, and with it everything that leaders before it
    /// answered for: grants, and checkpoints with what cleared them.
    fn take_over_leases(&mut self) {
        let leads = self.leads() && self.machine.applied_term() == self.raft_status().term;
        if leads && !self.machine.lessor().is_primary() {
            let extend = Duration::from_nanos(self.config.election_nanos());
            self.machine.lessor_mut().promote(self.now, extend);
        }
    }

    /// Sends one message, filling in what only the state machine knows of a snapshot.
    fn send(&mut self, mut message: Message) {
        if message.r#type != MessageType::MsgSnap as i32 {
            self.effects.messages.push(message);
            return;
        }
        let position = self.machine.position();
        message.snapshot = Some(Snapshot {
            data: self.machine.snapshot_message_data(),
            metadata: Some(SnapshotMetadata {
                conf_state: Some(position.conf_state),
                index: position.index,
                term: position.term,
            }),
        });
        match self.snapshot_source() {
            Some(source) => self.effects.snapshots.push((message, source)),
            None => self.raft.report_snapshot(message.to, false),
        }
    }

    /// An append for our own WAL: entries and hard state, maybe a snapshot that has to be installed first.
    fn persist(&mut self, message: Message) {
        if self.installing.is_some() {
            self.held.push_back(message);
            return;
        }
        let Some(snapshot) = message.snapshot.as_ref().filter(|s| s.metadata.as_ref().is_some_and(|m| m.index > 0))
        else {
            self.append(message);
            return;
        };
        let index = snapshot.metadata.as_ref().map_or(0, |m| m.index);
        match self.received.remove(&index) {
            Some(db) => {
                let job = self.machine.begin_install(self.disk.clone(), &db, index);
                self.effects.install = Some(job);
                self.installing = Some((message, db));
            }
            None => {
                self.stop = Some(StopReason::Fatal(format!("the database of the snapshot at index {index} is gone")));
            }
        }
    }

    fn append(&mut self, message: Message) {
        let hard_state = HardState { term: message.term, vote: message.vote, commit: message.commit };
        // Raft leaves all three at 0 when the hard state did not change.
        let changed = hard_state != HardState::default() && hard_state != self.hard_state;
        let must_sync = !message.entries.is_empty()
            || message.snapshot.is_some()
            || (changed && (hard_state.term, hard_state.vote) != (self.hard_state.term, self.hard_state.vote));
        if changed {
            self.hard_state = hard_state;
        }
        let received = message.snapshot;
        let snapshot = received.as_ref().and_then(|s| s.metadata.as_ref()).map(|metadata| walpb::Snapshot {
            index: metadata.index,
            term: metadata.term,
            conf_state: metadata.conf_state.clone(),
        });
        self.send_wal(WalJob {
            hard_state: changed.then_some(hard_state),
            entries: message.entries,
            snapshot,
            received,
            release: None,
            must_sync,
            responses: message.responses,
        });
    }

    fn send_wal(&mut self, job: WalJob) {
        let nothing = job.hard_state.is_none() && job.entries.is_empty() && job.snapshot.is_none();
        if nothing && self.wal_in_flight == 0 {
            self.wal_acknowledged(job);
        } else {
            self.wal_in_flight += 1;
            self.effects.wal.push(job);
        }
    }

    fn wal_done(&mut self, job: WalJob) {
        self.wal_in_flight -= 1;
        self.wal_acknowledged(job);
    }

    /// What the WAL holds durably becomes visible to raft's log, and the answers that waited for it may go.
    fn wal_acknowledged(&mut self, job: WalJob) {
        let storage = self.raft.storage_mut();
        if let Some(hard_state) = job.hard_state {
            storage.set_hard_state(hard_state);
        }
        if let Some(snapshot) = job.received {
            // Refused only when older than what we hold, and then there is nothing to do.
            let _outdated = storage.apply_snapshot(snapshot);
        }
        if !job.entries.is_empty()
            && let Err(error) = storage.append(job.entries)
        {
            self.stop = Some(StopReason::Fatal(format!("the log does not continue: {error}")));
        }
        for response in job.responses {
            if response.to == self.config.member_id {
                let _refused = self.raft.step_local(response);
            } else {
                self.effects.messages.push(response);
            }
        }
    }

    fn installed(&mut self, result: Result<Installed, InstallError>) {
        let Some((message, db)) = self.installing.take() else { return };
        let outcome: Result<(), String> = match result {
            Ok(installed) => self.machine.finish_install(installed).map_err(|error: OpenError| error_chain(&error)),
            Err(error) => Err(error_chain(&error)),
        };
        if let Err(error) = outcome {
            self.stop = Some(StopReason::Fatal(error));
            return;
        }
        self.shared.metrics.snapshots_applied.add(1);
        self.effects.remove = Some(db);
        self.history = History::new(self.machine.store().reader());
        self.shared.set_reader(self.machine.store().reader());
        self.hub.on_restore(self.machine.store().revision());
        self.marked = self.machine.applied();
        self.mark = None;
        self.publish_configuration();
        self.append(message);
        while self.installing.is_none()
            && let Some(message) = self.held.pop_front()
        {
            self.persist(message);
        }
    }

    // ---- apply ----

    fn apply(&mut self, message: Message) {
        let mut answers = Vec::new();
        let mut events = Vec::new();
        let mut reconfigured = false;
        for entry in &message.entries {
            // An installed snapshot may reach beyond the index that its message named.
            if entry.index <= self.machine.applied() {
                continue;
            }
            match self.machine.apply(entry, self.now) {
                Ok(applied) => reconfigured |= self.applied(applied, &mut answers, &mut events),
                Err(fatal) => {
                    self.fatal(&fatal);
                    return;
                }
            }
        }
        self.machine.commit();
        self.take_over_leases();
        if !events.is_empty()
            && let Err(error) = self.hub.notify(&events, &self.history)
        {
            self.fatal(&error);
            return;
        }
        if reconfigured {
            self.publish_configuration();
        }
        for (id, result) in answers {
            self.answer(id, result);
        }
        for response in message.responses {
            let _refused = self.raft.step_local(response);
        }
        self.remember_mark();
    }

    /// Sorts one applied entry's effects; true when the configuration may have changed.
    fn applied(
        &mut self,
        applied: Applied,
        answers: &mut Vec<(u64, Result<Response, RequestError>)>,
        events: &mut Vec<dolmen_watch::Event>,
    ) -> bool {
        match applied.outcome {
            Outcome::Empty => false,
            Outcome::Request { id, result, changes } => {
                self.count(&result, &changes);
                if let Some(compaction) = self.machine.take_compaction() {
                    self.effects.hashes.push((id, compaction.hash));
                    if compaction.physical {
                        // Its caller hears when everything superseded is gone and the hash is stored.
                        return false;
                    }
                }
                let reconfigured = matches!(result, Ok(Response::Empty | Response::Alarm(_)));
                if !self.renewals.is_empty() {
                    self.answer_renewals();
                }
                if id == self.publish_id {
                    self.publish_id = 0;
                    self.publish_at = self.now;
                }
                answers.push((id, result.map_err(RequestError::from)));
                events.extend(changes.into_iter().map(event));
                reconfigured
            }
            Outcome::ConfChange { id, change, result } => {
                let removed_self = change.node_id == self.config.member_id
                    && !self.machine.membership().members.contains_key(&self.config.member_id);
                match self.raft.apply_conf_change(&change) {
                    Ok(conf_state) => self.machine.set_conf_state(conf_state),
                    Err(error) => self.fatal(&error),
                }
                if removed_self {
                    self.stopping.get_or_insert(Mono(self.now.0 + 1_000_000_000));
                }
                answers.push((id, result.map(|()| Response::Empty).map_err(RequestError::from)));
                true
            }
        }
    }

    fn count(&self, result: &Result<Response, dolmen_machine::ApplyError>, changes: &[dolmen_mvcc::Change]) {
        let metrics = &self.shared.metrics;
        match result {
            Ok(Response::Put(_)) => metrics.puts.add(1),
            Ok(Response::DeleteRange(_)) => metrics.deletes.add(1),
            Ok(Response::Txn(_)) => metrics.txns.add(1),
            Ok(Response::Compaction(_)) => metrics.compactions.add(1),
            Ok(Response::LeaseGrant(_)) => metrics.lease_granted.add(1),
            Ok(Response::LeaseRevoke(_)) => metrics.lease_revoked.add(1),
            _ => {}
        }
        let bytes: usize = changes.iter().filter(|c| !c.tombstone).map(|c| c.payload.len()).sum();
        metrics.put_bytes.add(bytes as u64);
    }

    /// Renewals that waited for their lease's revoke, or for its checkpoint to be cleared.
    fn answer_renewals(&mut self) {
        let lessor = self.machine.lessor_mut();
        let waits = |id: &LeaseId, lessor: &mut dolmen_lease::Lessor| {
            matches!(lessor.renew(*id, self.now), Err(RenewError::PendingRevoke | RenewError::Checkpointed))
        };
        let due: Vec<LeaseId> = self.renewals.keys().copied().filter(|id| !waits(id, lessor)).collect();
        for id in due {
            for completion in self.renewals.remove(&id).unwrap_or_default() {
                self.renew_confirmed(id, completion);
            }
        }
    }

    /// The hash of a compaction is stored. A caller who asked for a physical one is answered once pruning is done too.
    fn hashed(&mut self, id: u64) {
        if self.pending.contains_key(&id) {
            self.hashed.push(id);
        }
    }

    fn leads(&self) -> bool {
        self.raft_status().role == Role::Leader
    }

    fn raft_status(&self) -> BasicStatus {
        self.raft.basic_status()
    }

    fn answer(&mut self, id: u64, result: Result<Response, RequestError>) {
        if let Some(pending) = self.pending.remove(&id) {
            self.reply(pending.completion, Reply::Applied(result));
        }
    }

    fn fatal(&mut self, error: &dyn std::error::Error) {
        self.stop = Some(StopReason::Fatal(error_chain(error)));
    }

    fn answer_reads(&mut self) {
        for reader in self.reads.ready(self.machine.applied()) {
            match reader.what {
                Confirm::Read(completion) => self.reply(completion, Reply::ReadReady(Ok(()))),
                Confirm::Renew(completion, id) => self.renew_confirmed(id, completion),
                Confirm::TimeToLive(completion, id, keys) => {
                    let reply = self.time_to_live(id, keys);
                    self.reply(completion, Reply::LeaseTimeToLive(reply));
                }
                // A quorum has just confirmed that this member leads.
                Confirm::Doubt => self.was_paused = false,
            }
        }
    }

    fn confirm_failed(&mut self, reader: Reader<Confirm>, error: RequestError) {
        match reader.what {
            Confirm::Read(completion) => self.reply(completion, Reply::ReadReady(Err(error))),
            Confirm::Renew(completion, _) => self.reply(completion, Reply::LeaseRenewed(Err(error))),
            Confirm::TimeToLive(completion, ..) => self.reply(completion, Reply::LeaseTimeToLive(Err(error))),
            Confirm::Doubt => {}
        }
    }

    fn answer_everybody(&mut self, error: RequestError) {
        let mut waiting: Vec<(u64, Completion)> =
            self.pending.drain().map(|(id, pending)| (id, pending.completion)).collect();
        waiting.sort_unstable_by_key(|(id, _)| *id);
        for (_, completion) in waiting {
            self.reply(completion, Reply::Applied(Err(error.clone())));
        }
        for reader in self.reads.drain() {
            self.confirm_failed(reader, error.clone());
        }
        for (_, completions) in std::mem::take(&mut self.renewals) {
            for completion in completions {
                self.reply(completion, Reply::LeaseRenewed(Err(error.clone())));
            }
        }
        if let Some(completion) = self.transfer.take().and_then(|t| t.completion) {
            self.reply(completion, Reply::Done(Err(error)));
        }
    }

    // ---- what goes on beside ----

    fn background(&mut self) {
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
                Err(error) => self.fatal(&error),
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
        if let Some(until) = self.stopping {
            self.finish_stop(until);
        }
    }

    /// Notes a place that the log may be cut at once the store holds it durably.
    fn remember_mark(&mut self) {
        if self.mark.is_none() && self.machine.applied() >= self.marked + self.config.snapshot_count {
            self.mark = Some(self.machine.position());
        }
    }

    fn cut_log(&mut self) {
        let durable = self.machine.store().log_ref().durable_index();
        let Some(mark) = self.mark.take_if(|mark| mark.index <= durable) else { return };
        self.marked = mark.index;
        let storage = self.raft.storage_mut();
        let cut = mark.index.saturating_sub(self.config.catch_up_entries);
        // Both refuse only what an installed snapshot has overtaken.
        let _outdated = storage.create_snapshot(mark.index, Some(mark.conf_state.clone()), Bytes::new());
        let _outdated = storage.compact(cut);
        self.send_wal(WalJob {
            snapshot: Some(walpb::Snapshot { index: mark.index, term: mark.term, conf_state: Some(mark.conf_state) }),
            release: Some(mark.index),
            must_sync: true,
            ..WalJob::default()
        });
    }

    /// Tells readers and peers who belongs to the cluster now.
    fn publish_configuration(&mut self) {
        let membership = self.machine.membership();
        self.shared.set_membership(membership.clone());
        self.shared.set_alarms(self.machine.alarms(0));
        let peers = membership
            .members
            .values()
            .filter(|member| member.id != self.config.member_id)
            .map(|member| PeerAddress { id: member.id, urls: member.peer_urls.clone() })
            .collect();
        // Until the log has said who belongs here, the peers are those that the configuration named.
        if !membership.members.is_empty() {
            self.effects.peers = Some((peers, membership.removed.iter().copied().collect()));
        }
    }

    fn publish_status(&mut self) {
        let learner =
            self.machine.membership().members.get(&self.config.member_id).is_some_and(|member| member.is_learner);
        let status = self.raft_status();
        self.shared.set_status(
            self.leader,
            status.term,
            status.commit,
            self.machine.applied(),
            learner,
            self.pending.len(),
        );
        let stats = self.hub.stats();
        let metrics = &self.shared.metrics;
        metrics.watch_streams.set(stats.streams);
        metrics.watchers.set(stats.watchers);
        metrics.slow_watchers.set(stats.slow_watchers);
        metrics.pending_events.set(stats.pending_events);
        metrics.events.set(stats.events_total);
    }

    // ---- stopping ----

    fn begin_stop(&mut self, transfer: bool) {
        if self.stopping.is_some() {
            return;
        }
        let others = self.machine.membership().members.len() > 1;
        let mut patience = 0;
        if transfer
            && others
            && self.leads()
            && let Some(target) = self.most_caught_up_voter()
        {
            self.raft.transfer_leader(target);
            self.transfer = Some(Transfer { completion: None, target, since: self.now });
            patience = self.config.request_timeout_nanos();
        }
        self.stopping = Some(Mono(self.now.0 + patience));
        self.sync_now = true;
    }

    /// The voter that holds most of the log, of those that have been heard from lately.
    fn most_caught_up_voter(&self) -> Option<MemberId> {
        let others = self.raft.progress().filter(|(id, progress)| {
            *id != self.config.member_id
                && !progress.is_learner
                && progress.recent_active
                && progress.state == ProgressState::Replicate
        });
        others.max_by_key(|(_, progress)| progress.matched).map(|(id, _)| id)
    }

    /// Stops once leadership is handed over (or its time is up) and the store has written what it holds.
    fn finish_stop(&mut self, until: Mono) {
        let waits = self.transfer.is_some() && self.leads() && self.now < until;
        let flushed = self.machine.store().log_ref().durable_index() >= self.machine.applied();
        self.sync_now = true;
        if !waits && flushed && self.wal_in_flight == 0 {
            let here = self.machine.membership().members.contains_key(&self.config.member_id);
            let removed = !here && !self.machine.membership().members.is_empty();
            if !removed || self.now >= until {
                self.stop = Some(if removed { StopReason::Removed } else { StopReason::Asked });
            }
        }
    }
}
