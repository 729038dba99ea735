//! The state machine: what a committed log entry does.
//!
//! [`Machine::apply`] is a pure function of the log. It reads no clock but for lease deadlines (which never decide an
//! outcome: expiry comes through the log as a revoke), no local configuration, and every member computes the same
//! answer, errors included. It is the only writer of the key space, leases, members and alarms, and the only place that
//! knows what the bytes of an entry mean.
//!
//! Entries are applied in runs: `apply`, `apply`, ..., [`Machine::commit`]. A run becomes one batch of the store: its
//! records, its table changes, the index and term of its last entry and the hash chain, whole or absent after a crash.
//! There is therefore no consistent index that could disagree with the data.
//!
//! Effects come back as values: [`Applied`] carries the answer and the changes; who waits for the one and watches the
//! other is not known here.

#![forbid(unsafe_code)]

mod error;
mod install;
mod legacy;
mod membership;
pub mod txn;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_env::{Disk, Mono};
use dolmen_lease::{GrantError, LeaseRecord, Lessor, record_key};
use dolmen_mvcc::{Change, CompactError, CompactionHash, Store, Txn};
use dolmen_proto::etcdserverpb::alarm_request::AlarmAction;
use dolmen_proto::etcdserverpb::request_op::Request as Op;
use dolmen_proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, CompactionResponse, DeleteRangeResponse, InternalRaftRequest,
    LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeResponse, PutResponse, RequestOp, ResponseHeader, TxnRequest,
    TxnResponse,
};
use dolmen_proto::raftpb::{ConfChange, ConfState, Entry, EntryType};
use dolmen_revlog::{Log, Table, TableOp};
use dolmen_types::{Index, LeaseId, MemberId, Term};
use prost::Message;

pub use error::ApplyError;
pub use install::{InstallError, InstallJob, Installed};
pub use legacy::decode_request;
pub use membership::{
    ConfChangeContext, MIN_CLUSTER_VERSION, Member, Membership, Position, conf_state_json, parse_conf_state,
};
pub use txn::ReadError;

/// What the machine is opened with.
#[derive(Clone, Debug)]
pub struct Config {
    pub lease: dolmen_lease::Config,
    pub log: dolmen_revlog::Options,
}

/// The answer to one applied request. Headers hold only the revision; the edge fills in the rest.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    Put(PutResponse),
    DeleteRange(DeleteRangeResponse),
    Txn(TxnResponse),
    Compaction(CompactionResponse),
    LeaseGrant(LeaseGrantResponse),
    LeaseRevoke(LeaseRevokeResponse),
    Alarm(AlarmResponse),
    /// Done, with nothing to tell.
    Empty,
}

/// What one entry did.
#[derive(Debug)]
pub struct Applied {
    pub index: Index,
    pub outcome: Outcome,
}

#[derive(Debug)]
pub enum Outcome {
    /// A new leader's empty entry.
    Empty,
    /// A request: `id` is what its proposer waits under, `changes` what watchers see.
    Request { id: u64, result: Result<Response, ApplyError>, changes: Vec<Change> },
    /// A change of the configuration, to be handed to raft; node id 0 when it was refused, which raft takes as no
    /// change. `id` is what its proposer waits under.
    ConfChange { id: u64, change: ConfChange, result: Result<(), ApplyError> },
}

/// Why the machine cannot go on: the process stops.
#[derive(Debug, thiserror::Error)]
pub enum FatalError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("log entry {index} cannot be decoded: {what}; the log was written by an incompatible server or is damaged")]
    BadEntry { index: Index, what: String },
}

/// Why the machine cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("opening the store")]
    Log(#[from] dolmen_revlog::Error),
    #[error("rebuilding the key index")]
    Mvcc(#[from] dolmen_mvcc::OpenError),
    #[error("the store's table {table} holds what no release writes: {what}")]
    Table { table: &'static str, what: String },
}

/// The applied state of this member.
pub struct Machine {
    store: Store,
    lessor: Lessor,
    membership: Membership,
    /// (member, alarm type as on the wire).
    alarms: BTreeSet<(MemberId, i32)>,
    conf_state: ConfState,
    applied: Index,
    applied_term: Term,
    chain: Chain,
    /// Table changes of the present run.
    ops: Vec<TableOp>,
    /// The compaction applied last, for whoever makes its hash.
    compaction: Option<Compaction>,
    /// Whether the present run holds entries that [`Machine::commit`] has not handed to the store.
    dirty: bool,
}

/// A compaction that was just applied: the hash etcd stores for it still has to be made, on another thread.
pub struct Compaction {
    pub hash: CompactionHash,
    /// The caller wants to wait until what was superseded is gone.
    pub physical: bool,
}

/// A running hash over every applied entry since `from`: two members that agree on `from` and the applied index must
/// agree on `value`, or one of them has applied something else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// The index after which the chain began: 0, or that of an installed snapshot.
    pub from: Index,
    pub value: u32,
}

impl Chain {
    fn extend(&mut self, entry: &Entry) {
        self.value = crc32c::crc32c_append(self.value, &entry.term.to_le_bytes());
        self.value = crc32c::crc32c_append(self.value, &entry.data);
    }

    fn to_bytes(self) -> Bytes {
        let mut bytes = Vec::with_capacity(12);
        bytes.extend_from_slice(&self.from.to_be_bytes());
        bytes.extend_from_slice(&self.value.to_be_bytes());
        bytes.into()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (from, value) = bytes.split_at_checked(8)?;
        Some(Self {
            from: u64::from_be_bytes(from.try_into().ok()?),
            value: u32::from_be_bytes(value.try_into().ok()?),
        })
    }
}

/// Where table `Meta` holds the [`Chain`]; never exported.
const CHAIN: &str = "dolmenChain";

impl Machine {
    /// Opens the store in `dir`, made if absent, and rebuilds everything that lives in memory.
    ///
    /// # Errors
    /// When the store is damaged, of an unknown format, or unreadable.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, config: Config) -> Result<Self, OpenError> {
        let (log, recovered) = Log::open(disk, dir, config.log.clone())?;
        let (store, report) = Store::open(log, recovered)?;
        let lessor = Lessor::new(config.lease);
        let mut machine = Self {
            store,
            lessor,
            membership: Membership::default(),
            alarms: BTreeSet::new(),
            conf_state: ConfState::default(),
            applied: 0,
            applied_term: 0,
            chain: Chain::default(),
            ops: Vec::new(),
            compaction: None,
            dirty: false,
        };
        machine.load(report.leases)?;
        Ok(machine)
    }

    /// Fills everything but the key space from the store's tables.
    fn load(&mut self, attachments: Vec<(LeaseId, Bytes)>) -> Result<(), OpenError> {
        let bad = |table: Table, what: String| OpenError::Table { table: table.name(), what };
        let log = self.store.log_ref();
        self.applied = log.index();
        self.applied_term = log.term();
        let tables = log.tables();
        self.membership = Membership::load(tables).map_err(|e| bad(Table::Members, e.to_string()))?;
        self.alarms.clear();
        for (key, _) in tables.iter(Table::Alarm) {
            let alarm = AlarmMember::decode(key.clone()).map_err(|e| bad(Table::Alarm, e.to_string()))?;
            self.alarms.insert((alarm.member_id, alarm.alarm));
        }
        self.conf_state = match tables.get(Table::Meta, membership::CONF_STATE.as_bytes()) {
            Some(json) => {
                membership::parse_conf_state(json).map_err(|e| bad(Table::Meta, format!("confState: {e}")))?
            }
            None => ConfState::default(),
        };
        self.chain = tables
            .get(Table::Meta, CHAIN.as_bytes())
            .and_then(|bytes| Chain::from_bytes(bytes))
            .unwrap_or(Chain { from: self.applied, value: 0 });
        let leases = tables.iter(Table::Lease).map(|(_, value)| value);
        self.lessor.restore(leases, attachments).map_err(|e| bad(Table::Lease, e.to_string()))
    }

    /// Applies one entry. The caller hands entries in order, each once, from [`Machine::applied`] + 1 on.
    ///
    /// # Errors
    /// The process must stop: the store cannot be read, or the entry is of a kind no known release writes. Until it has,
    /// readers see everything up to the entry and nothing of it; `apply` and `commit` must not be called again.
    pub fn apply(&mut self, entry: &Entry, now: Mono) -> Result<Applied, FatalError> {
        assert!(entry.index == self.applied + 1, "entry {} after {}", entry.index, self.applied);
        let bad = |what: String| FatalError::BadEntry { index: entry.index, what };
        let outcome = match EntryType::try_from(entry.r#type) {
            Ok(EntryType::EntryNormal) if entry.data.is_empty() => Outcome::Empty,
            Ok(EntryType::EntryNormal) => {
                let request = decode_request(&entry.data).map_err(bad)?;
                self.apply_request(request, now)?
            }
            Ok(EntryType::EntryConfChange) => {
                let change = ConfChange::decode(entry.data.clone()).map_err(|e| bad(e.to_string()))?;
                self.apply_conf_change(change).map_err(bad)?
            }
            Ok(EntryType::EntryConfChangeV2) => return Err(bad("joint configuration changes are not etcd's".into())),
            Err(_) => return Err(bad(format!("unknown entry type {}", entry.r#type))),
        };
        self.applied = entry.index;
        self.applied_term = entry.term;
        self.chain.extend(entry);
        self.dirty = true;
        Ok(Applied { index: entry.index, outcome })
    }

    fn apply_request(&mut self, request: InternalRaftRequest, now: Mono) -> Result<Outcome, FatalError> {
        let id = match &request.header {
            Some(header) if header.id != 0 => header.id,
            _ => request.id,
        };
        let mut changes = Vec::new();
        let result = match self.dispatch(request, now, &mut changes) {
            Ok(response) => Ok(response),
            Err(ReadError::Outcome(error)) => Err(error),
            Err(fatal) => return Err(fatal.into()),
        };
        Ok(Outcome::Request { id, result, changes })
    }

    /// One arm a kind of request, in the order of their field numbers.
    fn dispatch(
        &mut self,
        request: InternalRaftRequest,
        now: Mono,
        changes: &mut Vec<Change>,
    ) -> Result<Response, ReadError> {
        if let Some(put) = request.put {
            self.refuse_under_alarm(Writes::Grows)?;
            let (response, made) = change(self.store.begin(), |txn| txn::put(txn, &self.lessor, put))?;
            *changes = made;
            self.attach(changes);
            return Ok(Response::Put(response));
        }
        if let Some(delete) = request.delete_range {
            self.refuse_under_alarm(Writes::Shrinks)?;
            let (response, made) = change(self.store.begin(), |txn| txn::delete_range(txn, delete))?;
            *changes = made;
            self.attach(changes);
            return Ok(Response::DeleteRange(response));
        }
        if let Some(request) = request.txn {
            self.refuse_under_alarm(if has_put(&request) { Writes::Grows } else { Writes::Shrinks })?;
            let (response, made) = change(self.store.begin(), |txn| txn::txn(txn, &self.lessor, request))?;
            *changes = made;
            self.attach(changes);
            return Ok(Response::Txn(response));
        }
        if let Some(compaction) = request.compaction {
            self.refuse_under_alarm(Writes::Shrinks)?;
            return match self.store.compact_with_hash(compaction.revision) {
                Ok(hash) => {
                    self.compaction = Some(Compaction { hash, physical: compaction.physical });
                    Ok(self.compacted())
                }
                Err(CompactError::Compacted) => Err(ApplyError::Compacted.into()),
                Err(CompactError::FutureRevision) => Err(ApplyError::FutureRevision.into()),
            };
        }
        if let Some(grant) = request.lease_grant {
            self.refuse_under_alarm(Writes::Grows)?;
            return self.grant(&grant, now);
        }
        if let Some(revoke) = request.lease_revoke {
            self.refuse_under_alarm(Writes::Shrinks)?;
            return self.revoke(revoke.id, changes);
        }
        if let Some(request) = request.alarm {
            return Ok(Response::Alarm(self.alarm(&request)));
        }
        if let Some(request) = request.lease_checkpoint {
            for checkpoint in request.checkpoints {
                self.lessor.apply_checkpoint(checkpoint.id, checkpoint.remaining_ttl, now);
                self.save_lease(checkpoint.id);
            }
            return Ok(Response::Empty);
        }
        if let Some(request) = request.cluster_version_set {
            self.membership.set_cluster_version(&request.ver, &mut self.ops);
            return Ok(Response::Empty);
        }
        if let Some(request) = request.cluster_member_attr_set {
            let attributes = request.member_attributes.unwrap_or_default();
            let (name, urls) = (attributes.name, attributes.client_urls);
            self.membership.set_attributes(request.member_id, name, urls, &mut self.ops);
            return Ok(Response::Empty);
        }
        // A range through the log is what very old releases sent for a linearizable read: it changes nothing.
        if request.range.is_some() || request.downgrade_version_test.is_some() {
            return Ok(Response::Empty);
        }
        Err(ApplyError::NotSupported.into())
    }

    /// Moves the keys of applied changes between leases.
    fn attach(&mut self, changes: &[Change]) {
        for change in changes {
            if change.prev_lease != change.lease && change.prev_lease != 0 {
                self.lessor.detach(change.prev_lease, &change.key);
            }
            if change.lease != 0 {
                // Copied: the lessor keeps it, and must not keep the whole value with it. Unknown leases were refused.
                let _known = self.lessor.attach(change.lease, Bytes::copy_from_slice(&change.key));
            }
        }
    }

    fn grant(&mut self, request: &LeaseGrantRequest, now: Mono) -> Result<Response, ReadError> {
        match self.lessor.grant(request.id, request.ttl, now) {
            Ok(ttl) => {
                self.save_lease(request.id);
                let header = self.header();
                Ok(Response::LeaseGrant(LeaseGrantResponse { header, id: request.id, ttl, error: String::new() }))
            }
            Err(GrantError::Exists) => Err(ApplyError::LeaseExists.into()),
            Err(GrantError::TooLarge) => Err(ApplyError::LeaseTtlTooLarge.into()),
            Err(GrantError::NoId) => Err(ApplyError::LeaseNotFound.into()),
        }
    }

    fn save_lease(&mut self, id: LeaseId) {
        let value = self.lessor.record(id).as_ref().map(LeaseRecord::encode);
        if value.is_some() {
            self.ops.push(TableOp { table: Table::Lease, key: record_key(id), value });
        }
    }

    fn revoke(&mut self, id: LeaseId, changes: &mut Vec<Change>) -> Result<Response, ReadError> {
        let Some(keys) = self.lessor.revoke(id) else { return Err(ApplyError::LeaseNotFound.into()) };
        self.ops.push(TableOp { table: Table::Lease, key: record_key(id), value: None });
        let mut txn = self.store.begin();
        for key in keys {
            txn.delete_range(&dolmen_types::KeyRange::Single(key));
        }
        *changes = txn.finish();
        Ok(Response::LeaseRevoke(LeaseRevokeResponse { header: self.header() }))
    }

    fn alarm(&mut self, request: &AlarmRequest) -> AlarmResponse {
        let member = AlarmMember { member_id: request.member_id, alarm: request.alarm };
        let place = (request.member_id, request.alarm);
        let none = request.alarm == AlarmType::None as i32;
        let mut op = |value: Option<Bytes>| {
            self.ops.push(TableOp { table: Table::Alarm, key: member.encode_to_vec().into(), value });
        };
        let alarms = match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Get) => self.alarms(request.alarm),
            Ok(AlarmAction::Activate) if !none => {
                if self.alarms.insert(place) {
                    op(Some(Bytes::new()));
                }
                vec![member]
            }
            Ok(AlarmAction::Deactivate) if self.alarms.remove(&place) => {
                op(None);
                vec![member]
            }
            _ => Vec::new(),
        };
        AlarmResponse { header: self.header(), alarms }
    }

    fn refuse_under_alarm(&self, writes: Writes) -> Result<(), ApplyError> {
        let raised = |alarm: AlarmType| self.alarms.iter().any(|(_, raised)| *raised == alarm as i32);
        if self.alarms.is_empty() {
            Ok(())
        } else if raised(AlarmType::Corrupt) {
            Err(ApplyError::Corrupt)
        } else if matches!(writes, Writes::Grows) && raised(AlarmType::Nospace) {
            Err(ApplyError::NoSpace)
        } else {
            Ok(())
        }
    }

    fn apply_conf_change(&mut self, mut change: ConfChange) -> Result<Outcome, String> {
        let id = change.id;
        let context = if change.context.is_empty() {
            ConfChangeContext { member: Member { id: change.node_id, ..Member::default() }, is_promote: false }
        } else {
            serde_json::from_slice(&change.context).map_err(|e| format!("conf change context: {e}"))?
        };
        let result = self.membership.validate(&change, &context);
        match result {
            Ok(()) => self.membership.change(&change, context, &mut self.ops),
            Err(_) => change.node_id = 0,
        }
        Ok(Outcome::ConfChange { id, change, result })
    }

    /// Takes raft's configuration after an applied change; part of the present run.
    pub fn set_conf_state(&mut self, conf_state: ConfState) {
        if conf_state != self.conf_state {
            let json = membership::conf_state_json(&conf_state).into();
            let key = Bytes::from_static(membership::CONF_STATE.as_bytes());
            self.ops.push(TableOp { table: Table::Meta, key, value: Some(json) });
            self.conf_state = conf_state;
        }
    }

    /// Ends a run: everything applied since the last call becomes one batch, whole or absent after a crash, and
    /// visible to readers now.
    pub fn commit(&mut self) {
        if !self.dirty {
            return;
        }
        let mut ops = std::mem::take(&mut self.ops);
        let key = Bytes::from_static(CHAIN.as_bytes());
        ops.push(TableOp { table: Table::Meta, key, value: Some(self.chain.to_bytes()) });
        self.store.commit(self.applied, self.applied_term, ops);
        self.dirty = false;
    }

    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { revision: self.store.revision(), ..ResponseHeader::default() })
    }

    /// The compaction that the last applied entry made, once.
    pub fn take_compaction(&mut self) -> Option<Compaction> {
        self.compaction.take()
    }

    /// The answer to a compaction, as it stands now.
    pub fn compacted(&self) -> Response {
        Response::Compaction(CompactionResponse { header: self.header() })
    }

    /// The index of the last applied entry.
    pub fn applied(&self) -> Index {
        self.applied
    }

    /// The term of the last applied entry.
    pub fn applied_term(&self) -> Term {
        self.applied_term
    }

    /// Where the applied state stands, for a raft snapshot.
    pub fn position(&self) -> Position {
        Position { index: self.applied, term: self.applied_term, conf_state: self.conf_state.clone() }
    }

    /// Raft's configuration as of what is applied.
    pub fn conf_state(&self) -> &ConfState {
        &self.conf_state
    }

    pub fn chain(&self) -> Chain {
        self.chain
    }

    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// For jobs, compaction steps and hints; the key space itself is written by [`Machine::apply`] alone.
    pub fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

    pub fn lessor(&self) -> &Lessor {
        &self.lessor
    }

    /// For what only the leader does with leases, and never changes the applied state: deadlines.
    pub fn lessor_mut(&mut self) -> &mut Lessor {
        &mut self.lessor
    }

    /// Raised alarms of one type, or all for `NONE`.
    pub fn alarms(&self, alarm: i32) -> Vec<AlarmMember> {
        self.alarms
            .iter()
            .filter(|(_, raised)| alarm == AlarmType::None as i32 || alarm == *raised)
            .map(|(member_id, alarm)| AlarmMember { member_id: *member_id, alarm: *alarm })
            .collect()
    }
}

/// What a request does to the size of the store, for alarms.
#[derive(Clone, Copy)]
enum Writes {
    Grows,
    Shrinks,
}

/// Runs one request on the key space. When it comes upon damage midway, readers never see the half it has done.
fn change<T>(
    mut txn: Txn<'_>,
    request: impl FnOnce(&mut Txn<'_>) -> Result<T, ReadError>,
) -> Result<(T, Vec<Change>), ReadError> {
    match request(&mut txn) {
        Ok(response) => Ok((response, txn.finish())),
        Err(error) => {
            if matches!(error, ReadError::Log(_)) {
                txn.abandon();
            }
            Err(error)
        }
    }
}

/// Whether either branch holds a put, at any depth: what a full store refuses.
fn has_put(request: &TxnRequest) -> bool {
    let any = |operations: &[RequestOp]| {
        operations.iter().any(|op| match &op.request {
            Some(Op::RequestPut(_)) => true,
            Some(Op::RequestTxn(inner)) => has_put(inner),
            _ => false,
        })
    };
    any(&request.success) || any(&request.failure)
}
