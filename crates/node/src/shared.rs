//! What other threads see of the node without asking it: atomics and swapped-in values, never a lock held for long.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use dolmen_auth::{Auth, Tokens};
use dolmen_env::Mono;
use dolmen_lease::Renewals;
use dolmen_machine::Membership;
use dolmen_proto::etcdserverpb::{AlarmMember, AlarmType};
use dolmen_proto::raftpb::Message;
use dolmen_types::{ClusterId, Index, LeaseId, MemberId, Term};
use parking_lot::{Mutex, RwLock};

use crate::chain_points::{ChainPoint, ChainPoints};
use crate::identity::first_id;
use crate::inbox::Inbox;
use crate::metrics::Metrics;
use crate::node::Input;
use crate::peers::{PeerSender, RaftSink};
use crate::request::{Completion, Request, Submission};

/// A consistent-enough copy of where the node stands; each field is the newest published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub member_id: MemberId,
    pub cluster_id: ClusterId,
    /// 0 when nobody is known to lead.
    pub leader: MemberId,
    pub term: Term,
    pub committed: Index,
    pub applied: Index,
    pub is_learner: bool,
}

impl Status {
    pub fn is_leader(&self) -> bool {
        self.leader == self.member_id
    }
}

/// How this member's state goes with that of the others, as far as somebody has compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// Nothing is known to the contrary.
    Agrees,
    /// Members differ, and no majority of them says who is right.
    Split,
    /// A majority agrees on another state: what this member holds is not to be served.
    Outvoted,
}

/// The published side of a node.
pub struct Shared {
    member_id: MemberId,
    cluster_id: ClusterId,
    leader: AtomicU64,
    term: AtomicU64,
    committed: AtomicU64,
    applied: AtomicU64,
    learner: AtomicBool,
    published: AtomicBool,
    next_id: AtomicU64,
    membership: RwLock<Arc<Membership>>,
    alarms: RwLock<Arc<Vec<AlarmMember>>>,
    auth: RwLock<Arc<Auth>>,
    tokens: Arc<Tokens>,
    agreement: AtomicU8,
    chain: Mutex<ChainPoints>,
    reader: RwLock<dolmen_mvcc::Reader>,
    peers: RwLock<Option<Arc<dyn PeerSender>>>,
    /// The lessor's deadlines; open while this node is sure to lead.
    pub(crate) renewals: Renewals,
    pub metrics: Metrics,
    pub(crate) inbox: Inbox<Input>,
}

impl Shared {
    /// `incarnation`: milliseconds of the wall clock at start; ids of different starts must differ.
    pub(crate) fn new(
        member_id: MemberId,
        cluster_id: ClusterId,
        incarnation: u64,
        reader: dolmen_mvcc::Reader,
        renewals: Renewals,
        tokens: Arc<Tokens>,
    ) -> Arc<Self> {
        Arc::new(Self {
            member_id,
            cluster_id,
            leader: AtomicU64::new(0),
            term: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            learner: AtomicBool::new(false),
            published: AtomicBool::new(false),
            next_id: AtomicU64::new(first_id(member_id, incarnation)),
            membership: RwLock::default(),
            alarms: RwLock::default(),
            auth: RwLock::default(),
            tokens,
            agreement: AtomicU8::new(Agreement::Agrees as u8),
            chain: Mutex::default(),
            reader: RwLock::new(reader),
            peers: RwLock::new(None),
            renewals,
            metrics: Metrics::default(),
            inbox: Inbox::default(),
        })
    }

    /// An id for one request of this member, never given twice, over restarts too.
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Renews a lease at `now` without asking the node, and returns its TTL in seconds. `None` when that takes more than
    /// moving a deadline: another member leads, leadership is in doubt, the lease is unknown, over or checkpointed. Then
    /// [`Request::LeaseRenew`] tells.
    pub fn renew_lease(&self, id: LeaseId, now: Mono) -> Option<i64> {
        let ttl = self.renewals.renew(id, now)?;
        self.metrics.lease_renewed.add(1);
        Some(ttl)
    }

    pub(crate) fn applied(&self) -> Index {
        self.applied.load(Ordering::Relaxed)
    }

    pub(crate) fn set_status(
        &self,
        leader: Option<MemberId>,
        term: Term,
        committed: Index,
        applied: Index,
        learner: bool,
        pending: usize,
    ) {
        self.term.store(term, Ordering::Relaxed);
        self.committed.store(committed, Ordering::Relaxed);
        self.applied.store(applied, Ordering::Relaxed);
        self.learner.store(learner, Ordering::Relaxed);
        self.leader.store(leader.unwrap_or(0), Ordering::Release);
        self.metrics.proposals_pending.set(pending as u64);
    }

    pub(crate) fn set_membership(&self, membership: Membership) {
        *self.membership.write() = Arc::new(membership);
    }

    pub(crate) fn set_auth(&self, auth: Auth) {
        *self.auth.write() = Arc::new(auth);
    }

    pub(crate) fn set_alarms(&self, alarms: Vec<AlarmMember>) {
        *self.alarms.write() = Arc::new(alarms);
    }

    pub(crate) fn note_chain(&self, point: ChainPoint) {
        self.chain.lock().note(point);
    }

    pub(crate) fn set_reader(&self, reader: dolmen_mvcc::Reader) {
        *self.reader.write() = reader;
    }

    pub(crate) fn set_published(&self) {
        self.published.store(true, Ordering::Release);
    }

    pub(crate) fn set_peers(&self, peers: Arc<dyn PeerSender>) {
        *self.peers.write() = Some(peers);
    }

    /// Whether a peer has been connected without a break since `since`.
    pub(crate) fn is_connected(&self, id: MemberId, since: Mono) -> bool {
        let peers = self.peers.read();
        peers.as_ref().and_then(|peers| peers.active_since(id)).is_some_and(|connected| connected <= since)
    }
}

/// The way to a node for every other thread. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) clock: fn() -> Mono,
}

impl Handle {
    /// An id for one request of this member, never given twice, over restarts too.
    pub fn next_id(&self) -> u64 {
        self.shared.next_id()
    }

    /// Hands a request in. The answer comes to `completion`, once.
    pub fn submit(&self, request: Request, completion: Completion) {
        let since = (self.clock)();
        let bytes = if let Request::Propose { data, .. } = &request { data.len() } else { 0 };
        let submission = Input::Submit(Submission { request, completion, since });
        if self.shared.inbox.push_counted(submission, bytes).is_err() {
            self.shared.inbox.push(Input::Overflow(completion));
        }
    }

    /// See [`Shared::renew_lease`].
    pub fn renew_lease(&self, id: LeaseId) -> Option<i64> {
        self.shared.renew_lease(id, (self.clock)())
    }

    /// The key space as it is now. Ask each time: a snapshot from the leader replaces it.
    pub fn reader(&self) -> dolmen_mvcc::Reader {
        self.shared.reader.read().clone()
    }

    pub fn status(&self) -> Status {
        let shared = &self.shared;
        Status {
            member_id: shared.member_id,
            cluster_id: shared.cluster_id,
            leader: shared.leader.load(Ordering::Acquire),
            term: shared.term.load(Ordering::Relaxed),
            committed: shared.committed.load(Ordering::Relaxed),
            applied: shared.applied.load(Ordering::Relaxed),
            is_learner: shared.learner.load(Ordering::Relaxed),
        }
    }

    pub fn members(&self) -> Arc<Membership> {
        self.shared.membership.read().clone()
    }

    /// Users, roles and permissions as of what is applied here.
    pub fn auth(&self) -> Arc<Auth> {
        self.shared.auth.read().clone()
    }

    /// The simple tokens this member knows.
    pub fn tokens(&self) -> &Tokens {
        &self.shared.tokens
    }

    /// Those of the cluster; and CORRUPT for this member, when it differs from others, which stands in no log.
    pub fn alarms(&self) -> Arc<Vec<AlarmMember>> {
        let mut alarms = self.shared.alarms.read().clone();
        let own = AlarmMember { member_id: self.shared.member_id, alarm: AlarmType::Corrupt as i32 };
        if self.agreement() != Agreement::Agrees && !alarms.contains(&own) {
            Arc::make_mut(&mut alarms).push(own);
        }
        alarms
    }

    pub fn agreement(&self) -> Agreement {
        match self.shared.agreement.load(Ordering::Relaxed) {
            agreement if agreement == Agreement::Outvoted as u8 => Agreement::Outvoted,
            agreement if agreement == Agreement::Split as u8 => Agreement::Split,
            _ => Agreement::Agrees,
        }
    }

    /// Takes the outcome of a comparison. Who was outvoted stays so: its state does not mend by itself.
    pub fn set_agreement(&self, agreement: Agreement) {
        self.shared.agreement.fetch_max(agreement as u8, Ordering::Relaxed);
        if agreement == Agreement::Agrees {
            let (split, agrees) = (Agreement::Split as u8, agreement as u8);
            // It is one or the other already otherwise.
            let _other = self.shared.agreement.compare_exchange(split, agrees, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Where the running hash over applied entries stood, newest first.
    pub fn chain(&self) -> Vec<ChainPoint> {
        self.shared.chain.lock().known()
    }

    /// Whether this member's name and client URLs stand in the log: it has joined and serves.
    pub fn is_published(&self) -> bool {
        self.shared.published.load(Ordering::Acquire)
    }

    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Since when each member that is connected has been so.
    pub fn connected(&self) -> BTreeMap<MemberId, Mono> {
        let peers = self.shared.peers.read();
        let ids = self.members().members.keys().copied().collect::<Vec<_>>();
        ids.into_iter()
            .filter_map(|id| peers.as_ref().and_then(|p| p.active_since(id)).map(|since| (id, since)))
            .collect()
    }

    /// Asks the node to stop; [`crate::Running::wait`] tells when it has.
    pub fn stop(&self, transfer: bool) {
        self.shared.inbox.push(Input::Stop { transfer });
    }
}

impl RaftSink for Handle {
    fn receive(&self, message: Message) {
        let bytes = message.entries.iter().map(|entry| entry.data.len()).sum();
        // Lost as on a network: raft repairs it.
        let _lost = self.shared.inbox.push_counted(Input::Peer(message), bytes);
    }

    fn receive_snapshot(&self, message: Message, db: PathBuf) {
        self.shared.inbox.push(Input::PeerSnapshot(message, db));
    }

    fn peer_is_dolmen(&self, id: MemberId, dolmen: bool) {
        self.shared.inbox.push(Input::PeerIsDolmen(id, dolmen));
    }

    fn peer_gone(&self, id: MemberId) {
        self.shared.inbox.push(Input::PeerGone(id));
    }

    fn unreachable(&self, id: MemberId) {
        self.shared.inbox.push(Input::Unreachable(id));
    }

    fn snapshot_status(&self, id: MemberId, arrived: bool) {
        self.shared.inbox.push(Input::SnapshotStatus(id, arrived));
    }

    fn store_damaged(&self, what: String) {
        self.shared.inbox.push(Input::StoreDamaged(what));
    }

    fn removed_from_cluster(&self) {
        self.shared.inbox.push(Input::RemovedFromCluster);
    }
}
