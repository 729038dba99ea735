//! Clients: each does one request after the other, gives up after a while, and checks every answer against the model.
//!
//! An answer that never comes means that the request may or may not have happened; nothing is sent again.

use std::collections::BTreeMap;

use bytes::Bytes;
use dolmen_env::Rng;
use dolmen_machine::Response;
use dolmen_mvcc::{RangeError, RangeOptions, RangeResult};
use dolmen_node::{Completion, Input, ProposeKind, Reply, Request, RequestError, Submission};
use dolmen_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use dolmen_proto::etcdserverpb::request_op::Request as Op;
use dolmen_proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, InternalRaftRequest, LeaseGrantRequest, LeaseRevokeRequest,
    PutRequest, PutResponse, RangeRequest, RequestHeader, RequestOp, ResponseHeader, TxnRequest,
};
use dolmen_proto::mvccpb::KeyValue;
use dolmen_types::{KeyRange, LeaseId};
use prost::Message;

use crate::model;
use crate::mutants::Mutant;
use crate::plan::{MS, SECOND, US};
use crate::world::{Event, Phase, World};

/// The runtime whose letter box answers go to; watch streams have another.
pub(crate) const ANSWERS: u16 = 0;

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Put,
    PutWithLease,
    Cas,
    Txn,
    Delete,
    DeleteRange,
    Get,
    Range,
    Serializable,
    Past,
    Compact,
    Grant,
    Revoke,
    Defragment,
    Backup,
}

impl Kind {
    /// With the usual weight of each.
    pub const ALL: [(u64, Self); 15] = [
        (30, Self::Put),
        (8, Self::PutWithLease),
        (15, Self::Cas),
        (10, Self::Txn),
        (4, Self::Delete),
        (2, Self::DeleteRange),
        (15, Self::Get),
        (8, Self::Range),
        (6, Self::Serializable),
        (3, Self::Past),
        (2, Self::Compact),
        (4, Self::Grant),
        (1, Self::Revoke),
        (1, Self::Defragment),
        (1, Self::Backup),
    ];
}

/// What was known to have happened when a request began: it must not be answered from before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Floor {
    pub index: u64,
    pub revision: i64,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Propose(Box<InternalRaftRequest>),
    Read { range: KeyRange, revision: i64, linearizable: bool },
    Renew { lease: LeaseId, hops: u32 },
    Defragment,
    Backup,
    MoveLeader { target: u64 },
}

/// Who issued a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Client(usize),
    Keeper,
    Probe,
    Operator,
}

pub(crate) struct Issued {
    pub owner: Owner,
    pub what: What,
    pub node: usize,
    pub start: u64,
    pub floor: Floor,
    pub done: bool,
    /// Of a proposal, once it has arrived.
    pub id: u64,
}

#[derive(Default)]
pub(crate) struct Client {
    pub current: Option<usize>,
    node: usize,
    /// The mod revision a key was last seen with.
    seen: BTreeMap<Bytes, i64>,
}

/// What the harness knows of a lease.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaseTrack {
    pub ttl: i64,
    /// It must not expire before: its holder was told so.
    pub protected: u64,
    pub kept_until: u64,
    pub revoke_asked: bool,
    pub revoked_at: Option<u64>,
}

pub(crate) type ReadAnswer = Result<RangeResult, RangeError>;

impl World {
    /// A client is ready for its next request.
    pub(crate) fn next_request(&mut self, client: usize) {
        if self.phase != Phase::Faults || self.clients[client].current.is_some() {
            return;
        }
        if self.rng.chance(200) {
            self.clients[client].node = self.rng.below(self.plan.nodes as u64) as usize;
        }
        let node = self.clients[client].node;
        if self.members[node].running.is_none() {
            // Refused at once: another one, a little later.
            self.clients[client].node = self.rng.below(self.plan.nodes as u64) as usize;
            let pause = self.rng.range(MS, 20 * MS);
            self.queue.after(pause, Event::Next(client));
            return;
        }
        let Some(what) = self.draw(client) else {
            self.queue.after(self.plan.think, Event::Next(client));
            return;
        };
        let op = self.issue(Owner::Client(client), node, what);
        self.clients[client].current = Some(op);
    }

    /// Sends a request on its way.
    pub(crate) fn issue(&mut self, owner: Owner, node: usize, what: What) -> usize {
        let op = self.ops.len();
        let start = self.queue.now;
        if let What::Propose(request) = &what
            && let Some(revoke) = &request.lease_revoke
            && let Some(track) = self.leases.get_mut(&revoke.id)
        {
            track.revoke_asked = true;
        }
        self.ops.push(Issued { owner, what, node, start, floor: self.floor, done: false, id: 0 });
        let delay = self.rng.range(20 * US, 500 * US);
        self.queue.after(delay, Event::Arrive { op, node });
        let (low, high) = self.plan.client_timeout;
        let timeout = if owner == Owner::Probe { 400 * MS } else { self.rng.range(low, high) };
        self.queue.after(timeout, Event::GiveUp(op));
        op
    }

    fn key(&mut self) -> Bytes {
        format!("k{:02}", self.rng.below(self.plan.keys)).into()
    }

    fn value(&mut self) -> Bytes {
        let mut value = format!("v{}.{}.", self.ops.len(), self.rng.below(1000)).into_bytes();
        value.resize(value.len() + self.rng.below(self.plan.value_bytes) as usize, b'.');
        value.into()
    }

    fn put(&mut self, key: Bytes) -> PutRequest {
        PutRequest { key, value: self.value(), prev_kv: self.rng.chance(200), ..PutRequest::default() }
    }

    fn some_lease(&mut self) -> Option<LeaseId> {
        let live: Vec<LeaseId> =
            self.leases.iter().filter(|(_, track)| track.revoked_at.is_none()).map(|(id, _)| *id).collect();
        (!live.is_empty()).then(|| *self.rng.pick(&live))
    }

    fn some_range(&mut self) -> (Bytes, Bytes) {
        let all = self.rng.chance(300);
        if all {
            return (Bytes::from_static(b"\0"), Bytes::from_static(b"\0"));
        }
        let low = self.rng.below(self.plan.keys);
        let high = low + 1 + self.rng.below(self.plan.keys);
        (format!("k{low:02}").into(), format!("k{high:02}").into())
    }

    fn draw(&mut self, client: usize) -> Option<What> {
        let total: u64 = self.plan.weights.iter().map(|(weight, _)| weight).sum();
        let mut at = self.rng.below(total.max(1));
        let kind = self
            .plan
            .weights
            .iter()
            .find(|(weight, _)| {
                let found = at < *weight;
                at = at.saturating_sub(*weight);
                found
            })
            .map_or(Kind::Put, |(_, kind)| *kind);
        let mut request = InternalRaftRequest::default();
        match kind {
            Kind::Put => {
                let key = self.key();
                request.put = Some(self.put(key));
            }
            Kind::PutWithLease => {
                let lease = self.some_lease()?;
                let key = self.key();
                let put = self.put(key);
                request.put = Some(PutRequest { lease, ..put });
            }
            Kind::Cas => {
                let key = self.key();
                let seen = self.clients[client].seen.get(&key).copied().unwrap_or(0);
                let put = self.put(key.clone());
                let get = RangeRequest { key: key.clone(), ..RangeRequest::default() };
                request.txn = Some(TxnRequest {
                    compare: vec![compare(
                        key,
                        CompareTarget::Mod,
                        CompareResult::Equal,
                        TargetUnion::ModRevision(seen),
                    )],
                    success: vec![op(Op::RequestPut(put))],
                    failure: vec![op(Op::RequestRange(get))],
                });
            }
            Kind::Txn => request.txn = Some(self.draw_txn(1)),
            Kind::Delete => {
                let key = self.key();
                request.delete_range =
                    Some(DeleteRangeRequest { key, prev_kv: self.rng.chance(300), ..DeleteRangeRequest::default() });
            }
            Kind::DeleteRange => {
                let (key, range_end) = self.some_range();
                request.delete_range = Some(DeleteRangeRequest { key, range_end, prev_kv: self.rng.chance(300) });
            }
            Kind::Get | Kind::Range | Kind::Serializable | Kind::Past => {
                let range = if kind == Kind::Get || (kind == Kind::Serializable && self.rng.chance(500)) {
                    KeyRange::Single(self.key())
                } else {
                    let (low, high) = self.some_range();
                    KeyRange::parse(low, high)
                };
                let revision = if kind == Kind::Past {
                    let now = self.model.revision();
                    let back = self.rng.below(60) as i64;
                    (now + 2 - back).max(1)
                } else {
                    0
                };
                return Some(What::Read { range, revision, linearizable: kind != Kind::Serializable });
            }
            Kind::Compact => {
                let back = self.rng.below(40) as i64;
                let revision = self.model.revision() + 1 - back;
                if revision < 1 {
                    return None;
                }
                request.compaction = Some(CompactionRequest { revision, physical: self.rng.chance(300) });
            }
            Kind::Grant => {
                let id = 1000 + self.ops.len() as i64;
                request.lease_grant = Some(LeaseGrantRequest { id, ttl: self.rng.range(0, 4) as i64 });
            }
            Kind::Revoke => request.lease_revoke = Some(LeaseRevokeRequest { id: self.some_lease()? }),
            Kind::Defragment => return Some(What::Defragment),
            Kind::Backup => return Some(What::Backup),
        }
        Some(What::Propose(Box::new(request)))
    }

    /// A txn over distinct keys: puts and deletes of one key in one txn are refused at the edge.
    fn draw_txn(&mut self, depth: u32) -> TxnRequest {
        let mut compares = Vec::new();
        for _ in 0..self.rng.below(3) {
            let key = self.key();
            let result = *self.rng.pick(&[
                CompareResult::Equal,
                CompareResult::NotEqual,
                CompareResult::Greater,
                CompareResult::Less,
            ]);
            let number = self.rng.below(4) as i64;
            let revision = self.model.revision() - number * 3;
            let (target, union) = match self.rng.below(5) {
                0 => (CompareTarget::Version, TargetUnion::Version(number)),
                1 => (CompareTarget::Create, TargetUnion::CreateRevision(if number == 0 { 0 } else { revision })),
                2 => (CompareTarget::Mod, TargetUnion::ModRevision(revision)),
                3 => (CompareTarget::Value, TargetUnion::Value(Bytes::from_static(b"v5"))),
                _ => (CompareTarget::Lease, TargetUnion::Lease(0)),
            };
            compares.push(compare(key, target, result, union));
        }
        let mut keys: Vec<u64> = (0..self.plan.keys).collect();
        let mut branch = |world: &mut Self| {
            let mut ops = Vec::new();
            for _ in 0..world.rng.below(4) {
                if keys.is_empty() {
                    break;
                }
                let at = world.rng.below(keys.len() as u64) as usize;
                let key: Bytes = format!("k{:02}", keys.swap_remove(at)).into();
                ops.push(match world.rng.below(6) {
                    0..=2 => {
                        let put = world.put(key);
                        let lease = if world.rng.chance(100) { world.some_lease().unwrap_or(0) } else { 0 };
                        let ignore_value = world.rng.chance(30);
                        let value = if ignore_value { Bytes::new() } else { put.value };
                        op(Op::RequestPut(PutRequest { lease, ignore_value, value, ..put }))
                    }
                    3 => {
                        let delete = DeleteRangeRequest { key, prev_kv: true, ..DeleteRangeRequest::default() };
                        op(Op::RequestDeleteRange(delete))
                    }
                    4 if depth > 0 => op(Op::RequestTxn(TxnRequest {
                        compare: Vec::new(),
                        success: vec![op(Op::RequestPut(world.put(key)))],
                        failure: Vec::new(),
                    })),
                    _ => op(Op::RequestRange(RangeRequest { key, ..RangeRequest::default() })),
                });
            }
            ops
        };
        let (success, failure) = (branch(self), branch(self));
        TxnRequest { compare: compares, success, failure }
    }

    /// A request reaches a member.
    pub(crate) fn arrive(&mut self, op: usize, node: usize) -> Result<(), String> {
        if self.ops[op].done {
            return Ok(());
        }
        let now = self.queue.now;
        let member = &mut self.members[node];
        if now < member.paused_until {
            self.queue.at(member.paused_until + US, Event::Arrive { op, node });
            return Ok(());
        }
        let since = member.clock(now);
        let Some(running) = &mut member.running else {
            // Connection refused: it has certainly not happened.
            let delay = self.rng.range(20 * US, MS);
            self.queue.after(delay, Event::GiveUp(op));
            return Ok(());
        };
        let issued = &mut self.ops[op];
        issued.node = node;
        self.trace.note(now, node as u8, "request", op as u64, 0);
        let request = match &mut issued.what {
            What::Propose(request) => {
                let id = running.node.shared().next_id();
                issued.id = id;
                request.header = Some(RequestHeader { id, ..RequestHeader::default() });
                if self.options.mutant == Some(Mutant::AckOnPropose) && request.put.is_some() {
                    let revision = running.node.machine().store().revision() + 1;
                    let header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
                    let early = Response::Put(PutResponse { header, prev_kv: None });
                    self.queue.after(50 * US, Event::Answer { op, reply: Box::new(Reply::Applied(Ok(early))) });
                }
                Request::Propose { id, data: request.encode_to_vec().into(), kind: ProposeKind::Normal }
            }
            What::Read { linearizable, .. } => {
                if !*linearizable || self.options.mutant == Some(Mutant::StaleRead) {
                    let epoch = member.epoch;
                    self.queue.after(US, Event::Serve { op, node, epoch });
                    return Ok(());
                }
                Request::ReadIndex
            }
            What::Renew { lease, .. } => {
                // As the edge does: the node is asked only where its deadlines do not tell.
                if let Some(ttl) = running.node.shared().renew_lease(*lease, since) {
                    self.queue.after(US, Event::Answer { op, reply: Box::new(Reply::LeaseRenewed(Ok(ttl))) });
                    return Ok(());
                }
                Request::LeaseRenew { id: *lease }
            }
            What::Defragment => Request::Defragment,
            What::Backup => Request::Snapshot,
            What::MoveLeader { target } => Request::MoveLeader { target: *target },
        };
        let completion = Completion { runtime: ANSWERS, slot: op as u64 };
        running.inbox.push_back(Input::Submit(Submission { request, completion, since }));
        self.wake(node);
        Ok(())
    }

    /// The node has an answer; the API around it goes on from there.
    pub(crate) fn node_replied(&mut self, node: usize, op: usize, reply: Reply) -> Result<(), String> {
        let delay = self.rng.range(10 * US, 300 * US);
        match (&mut self.ops[op].what, &reply) {
            (What::Read { .. }, Reply::ReadReady(Ok(()))) => {
                let epoch = self.members[node].epoch;
                self.queue.after(delay, Event::Serve { op, node, epoch });
                return Ok(());
            }
            // Forwarded to the leader, as the API does.
            (What::Renew { hops, .. }, Reply::LeaseRenewed(Err(RequestError::NotLeader { leader }))) => {
                *hops += 1;
                let leader = self.cluster.position(*leader);
                if let (Some(leader), true) = (leader, *hops < 4)
                    && !self.net.is_cut(node, leader)
                {
                    self.queue.after(delay + self.plan.delay.1, Event::Arrive { op, node: leader });
                    return Ok(());
                }
            }
            (What::Backup, Reply::Snapshot(source)) => {
                if let Err(error) = dolmen_bolt::Plan::new(&**source)
                    && !self.members[node].rotten
                {
                    return Err(format!("a backup of n{node} cannot be made: {error}"));
                }
            }
            _ => {}
        }
        if self.phase == Phase::Faults && self.rng.chance(self.plan.reply_loss) {
            return Ok(());
        }
        self.queue.after(delay, Event::Answer { op, reply: Box::new(reply) });
        Ok(())
    }

    /// The API reads for a client.
    pub(crate) fn serve(&mut self, op: usize, node: usize) -> Result<(), String> {
        let What::Read { range, revision, .. } = &self.ops[op].what else { return Ok(()) };
        let Some(running) = &self.members[node].running else { return Ok(()) };
        let options = RangeOptions { revision: *revision, ..RangeOptions::default() };
        let answer = running.node.machine().store().reader().range(range, &options);
        if let Ok(found) = &answer {
            let floor = &mut self.members[node].read_floor;
            if found.revision < *floor {
                return Err(format!("n{node} went back from revision {floor} to {}", found.revision));
            }
            *floor = found.revision;
        }
        let delay = self.rng.range(10 * US, 300 * US);
        self.queue.after(delay, Event::Read { op, answer: Box::new(answer) });
        Ok(())
    }

    /// A client has waited long enough.
    pub(crate) fn give_up(&mut self, op: usize) {
        if !self.ops[op].done {
            self.stats.unknown += 1;
            self.finish(op);
        }
    }

    fn finish(&mut self, op: usize) {
        self.ops[op].done = true;
        if let Owner::Client(client) = self.ops[op].owner {
            self.clients[client].current = None;
            let think = self.rng.range(0, 2 * self.plan.think);
            self.queue.after(think, Event::Next(client));
        }
    }

    /// An answer reaches its client.
    pub(crate) fn answered(&mut self, op: usize, reply: Reply) -> Result<(), String> {
        let late = self.ops[op].done;
        match reply {
            Reply::Applied(Ok(response)) => self.check_applied(op, Ok(response))?,
            Reply::Applied(Err(RequestError::Apply(error))) => self.check_applied(op, Err(error))?,
            Reply::Applied(Err(RequestError::TooManyRequests)) => {
                if let Some(index) = self.model.index_of(self.ops[op].id) {
                    return Err(format!("request {op} was refused as too many and yet committed at {index}"));
                }
            }
            Reply::Applied(Err(_)) => self.stats.unknown += 1,
            Reply::LeaseRenewed(Ok(ttl)) => self.check_renewed(op, ttl)?,
            _ => {}
        }
        if !late {
            self.finish(op);
        }
        Ok(())
    }

    fn check_applied(&mut self, op: usize, outcome: model::Outcome) -> Result<(), String> {
        let issued = &self.ops[op];
        let now = self.queue.now;
        let Some(index) = self.model.index_of(issued.id) else {
            return Err(format!("request {op} ({:?}) was acknowledged, but nobody has applied it", issued.what));
        };
        let effect = self.model.effect(index).expect("known requests have an effect").clone();
        let before = self.model.effect(index - 1).map_or(1, |effect| effect.revision);
        if index <= issued.floor.index {
            return Err(format!(
                "request {op} stands at index {index}, but began after {} was acknowledged",
                issued.floor.index
            ));
        }
        let read_floor = issued.floor.revision + i64::from(effect.revision > before);
        if effect.revision < read_floor {
            return Err(format!(
                "request {op} made revision {}, but began after revision {} was seen",
                effect.revision, issued.floor.revision
            ));
        }
        let expected = effect.outcome.expect("requests have an outcome");
        let given = outcome.map(model::normal);
        let wanted = expected.map(model::normal);
        let same = match (&given, &wanted) {
            // A compaction that waits for its pruning names the revision at its end.
            (Ok(Response::Compaction(_)), Ok(Response::Compaction(_))) => true,
            _ => given == wanted,
        };
        if !same {
            return Err(format!("request {op} at index {index} was answered {given:?}, the log says {wanted:?}"));
        }
        self.stats.acknowledged += 1;
        self.floor.index = self.floor.index.max(index);
        self.floor.revision = self.floor.revision.max(effect.revision);
        let owner = issued.owner;
        let start = issued.start;
        if let Owner::Client(client) = owner {
            self.learn(client, op, &given);
        }
        if let (Ok(Response::LeaseGrant(grant)), false) = (&given, self.ops[op].done) {
            let protected = start + self.fastest(grant.ttl);
            let kept = self.rng.chance(600);
            let kept_until = if kept { now + self.rng.range(SECOND, 5 * SECOND) } else { 0 };
            let track = self.leases.entry(grant.id).or_default();
            track.ttl = grant.ttl;
            track.protected = protected;
            track.kept_until = kept_until;
            if track.revoked_at.is_some_and(|at| at < protected) && !track.revoke_asked {
                return Err(format!("lease {} of {} s was gone before it was granted", grant.id, grant.ttl));
            }
            if kept {
                self.queue.after(grant.ttl as u64 * SECOND / 4, Event::Keep(grant.id));
            }
        }
        if owner == Owner::Probe && given.is_ok() {
            self.probed();
        }
        Ok(())
    }

    /// How soon a clock of this cluster may say that so many seconds are over.
    fn fastest(&self, ttl: i64) -> u64 {
        let rate = self.plan.rates.iter().copied().max().unwrap_or(1000);
        (ttl as u64 * SECOND).saturating_mul(1000) / rate
    }

    fn learn(&mut self, client: usize, op: usize, given: &model::Outcome) {
        let What::Propose(request) = &self.ops[op].what else { return };
        match (given, &request.put, &request.txn) {
            (Ok(Response::Put(response)), Some(put), _) => {
                let revision = response.header.as_ref().map_or(0, |header| header.revision);
                self.clients[client].seen.insert(put.key.clone(), revision);
            }
            (Ok(Response::Txn(response)), _, Some(txn)) => {
                let revision = response.header.as_ref().map_or(0, |header| header.revision);
                if let Some(compare) = txn.compare.first() {
                    let seen = if response.succeeded { revision } else { self.model_mod(&compare.key, revision) };
                    self.clients[client].seen.insert(compare.key.clone(), seen);
                }
            }
            _ => {}
        }
    }

    fn model_mod(&self, key: &[u8], revision: i64) -> i64 {
        self.model.at(key, revision).map_or(0, |kv| kv.mod_revision)
    }

    fn check_renewed(&mut self, op: usize, ttl: i64) -> Result<(), String> {
        let issued = &self.ops[op];
        let What::Renew { lease, .. } = issued.what else { return Ok(()) };
        let protected = issued.start + self.fastest(ttl);
        let late = issued.done;
        let Some(track) = self.leases.get_mut(&lease) else { return Ok(()) };
        if ttl == 0 {
            if self.model.leases.contains_key(&lease) && !track.revoke_asked {
                return Err(format!("the keepalive of lease {lease} was told that it is gone; it is alive"));
            }
            track.kept_until = 0;
            return Ok(());
        }
        self.stats.renewed += 1;
        self.trace.note(self.queue.now, self.ops[op].node as u8, "renewed", lease as u64, self.ops[op].start);
        let track = self.leases.entry(lease).or_default();
        if !late && !track.revoke_asked {
            if track.revoked_at.is_some_and(|at| at < protected) {
                return Err(format!("lease {lease} was renewed for {ttl} s and was gone before they were over"));
            }
            track.protected = track.protected.max(protected);
        }
        Ok(())
    }

    /// The log revoked a lease.
    pub(crate) fn lease_revoked(&mut self, lease: LeaseId) -> Result<(), String> {
        let now = self.queue.now;
        self.trace.note(now, crate::trace::NOBODY, "revoked", lease as u64, 0);
        let Some(track) = self.leases.get_mut(&lease) else { return Ok(()) };
        track.revoked_at = Some(now);
        if now < track.protected && !track.revoke_asked {
            return Err(format!(
                "lease {lease} of {} s expired {:.3} s early: its holder was told that it lives",
                track.ttl,
                (track.protected - now) as f64 / 1e9
            ));
        }
        Ok(())
    }

    /// Time to keep a lease alive.
    pub(crate) fn keep(&mut self, lease: LeaseId) {
        let Some(track) = self.leases.get(&lease).copied() else { return };
        if self.queue.now >= track.kept_until || track.revoked_at.is_some() || self.phase != Phase::Faults {
            return;
        }
        let node = self.rng.below(self.plan.nodes as u64) as usize;
        self.issue(Owner::Keeper, node, What::Renew { lease, hops: 0 });
        let pause = self.rng.range(50 * MS, track.ttl as u64 * SECOND / 3);
        self.queue.after(pause, Event::Keep(lease));
    }

    /// What was read reaches its client.
    pub(crate) fn read(&mut self, op: usize, answer: ReadAnswer) -> Result<(), String> {
        let issued = &self.ops[op];
        let What::Read { range, revision, linearizable } = &issued.what else { return Ok(()) };
        let node = issued.node;
        match answer {
            Ok(found) => {
                let at = if *revision > 0 { *revision } else { found.revision };
                if found.revision > self.model.revision() {
                    return Err(format!("request {op} read at revision {}, which nobody has made", found.revision));
                }
                if *linearizable && found.revision < issued.floor.revision {
                    return Err(format!(
                        "a stale read: request {op} was answered at revision {}, but began after {} was acknowledged",
                        found.revision, issued.floor.revision
                    ));
                }
                let kvs: Vec<KeyValue> = found.kvs.iter().filter_map(|kv| KeyValue::decode(kv.clone()).ok()).collect();
                let wanted = self.model.range(range, at);
                if kvs.len() != wanted.len() || kvs.iter().zip(&wanted).any(|(a, b)| a != *b) {
                    return Err(format!(
                        "request {op} read {kvs:?} at revision {at} of n{node}, the log says {wanted:?}"
                    ));
                }
                if *linearizable {
                    self.floor.revision = self.floor.revision.max(found.revision);
                }
                self.stats.reads += 1;
                if let (Owner::Client(client), KeyRange::Single(key)) = (issued.owner, range) {
                    let seen = kvs.first().map_or(0, |kv| kv.mod_revision);
                    let key = key.clone();
                    self.clients[client].seen.insert(key, seen);
                }
            }
            Err(RangeError::Compacted) => {
                if *revision >= self.model.compact_revision() || *revision == 0 {
                    return Err(format!("request {op} at revision {revision} was told compacted; it is not"));
                }
            }
            Err(RangeError::FutureRevision) => {
                if *linearizable && *revision <= issued.floor.revision {
                    return Err(format!("request {op} was told that revision {revision} is in the future; it is not"));
                }
            }
            Err(error) => {
                if !self.members[node].rotten {
                    return Err(format!("n{node} cannot read its store: {error}"));
                }
            }
        }
        if !self.ops[op].done {
            self.finish(op);
        }
        Ok(())
    }

    /// A small write to a member that runs, to see whether the cluster does.
    pub(crate) fn probe(&mut self) {
        let up: Vec<usize> = (0..self.plan.nodes).filter(|node| self.members[*node].running.is_some()).collect();
        if up.is_empty() {
            return;
        }
        let node = *self.rng.pick(&up);
        let put = PutRequest { key: Bytes::from_static(b"probe"), value: self.value(), ..PutRequest::default() };
        let request = InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() };
        self.issue(Owner::Probe, node, What::Propose(Box::new(request)));
    }
}

fn op(request: Op) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn compare(key: Bytes, target: CompareTarget, result: CompareResult, union: TargetUnion) -> Compare {
    Compare { key, target: target as i32, result: result as i32, target_union: Some(union), ..Compare::default() }
}

/// Starts a client somewhere.
pub(crate) fn client(rng: &mut Rng, nodes: usize) -> Client {
    Client { node: rng.below(nodes as u64) as usize, ..Client::default() }
}
