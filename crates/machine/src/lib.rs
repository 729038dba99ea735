//! The state machine: what a committed log entry does.
//!
//! [`Machine::apply`] is a pure function of the log. It reads no clock but for lease deadlines (which never decide an
//! outcome: expiry comes through the log as a revoke), no local configuration, and every member computes the same
//! answer, errors included. It is the only writer of the key space, leases, members, users and alarms, and the only place that
//! knows what the bytes of an entry mean.
//!
//! An entry that takes long is applied in slices ([`Machine::begin`], [`Machine::step`]), so that whoever has the machine
//! can do other things between them.
//!
//! Entries are applied in runs: `apply`, `apply`, ..., [`Machine::commit`]. A run becomes one batch of the store: its
//! records, its table changes, the index and term of its last entry and the hash chain, whole or absent after a crash.
//! There is therefore no consistent index that could disagree with the data.
//!
//! Effects come back as values: [`Applied`] carries the answer and the changes; who waits for the one and watches the
//! other is not known here.

#![forbid(unsafe_code)]

mod alarms;
mod apply;
mod chain;
mod error;
mod install;
mod leases;
mod legacy;
mod membership;
pub mod txn;
mod users;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_auth::{Auth, Tokens};
use dolmen_env::Disk;
use dolmen_lease::Lessor;
use dolmen_mvcc::{Change, CompactionHash, Store};
use dolmen_proto::etcdserverpb::{
    AlarmMember, AlarmResponse, CompactionResponse, DeleteRangeResponse, LeaseGrantResponse, LeaseRevokeResponse,
    PutResponse, ResponseHeader, TxnResponse,
};
use dolmen_proto::raftpb::{ConfChange, ConfState};
use dolmen_revlog::{Log, Table, TableOp};
use dolmen_types::{Index, LeaseId, Term};

use alarms::Alarms;
pub use apply::{Progress, check_form};
use chain::CHAIN;
pub use chain::Chain;
pub use error::ApplyError;
pub use install::{InstallError, InstallJob, Installed};
pub use legacy::decode_request;
pub use membership::{
    ConfChangeContext, MIN_CLUSTER_VERSION, Member, Membership, Position, conf_state_json, parse_conf_state,
};
pub use txn::ReadError;

/// What the machine is opened with.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub lease: dolmen_lease::Config,
    pub log: dolmen_revlog::Options,
    /// How long an unused simple token lives, in seconds; 0: etcd's 300.
    pub token_ttl_seconds: u64,
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
    /// A change of users, roles or permissions, or a login.
    Users(dolmen_auth::Outcome),
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
    /// A request: `id` is what its proposer waits under, `changes` what watchers see. `sliced`: these are the changes of the
    /// last slice only; those before came with [`Progress::More`], and all can be read from the store by now, where they are
    /// the current revision.
    Request { id: u64, result: Result<Response, ApplyError>, changes: Vec<Change>, sliced: bool },
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
    alarms: Alarms,
    auth: Auth,
    /// Assigned by the log, kept in memory; shared with the door, which looks them up.
    tokens: Arc<Tokens>,
    conf_state: ConfState,
    applied: Index,
    applied_term: Term,
    chain: Chain,
    /// Table changes of the present run.
    ops: Vec<TableOp>,
    /// The compaction applied last, for whoever makes its hash.
    compaction: Option<Compaction>,
    /// Leases that the entries of this run revoked or checkpointed.
    touched_leases: Vec<LeaseId>,
    /// The entry under way.
    work: Option<apply::Work>,
    /// Whether the present run holds entries that [`Machine::commit`] has not handed to the store.
    dirty: bool,
}

/// A compaction that was just applied: the hash etcd stores for it still has to be made, on another thread.
pub struct Compaction {
    pub hash: CompactionHash,
    /// The caller wants to wait until what was superseded is gone.
    pub physical: bool,
}

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
            alarms: Alarms::default(),
            auth: Auth::default(),
            tokens: Arc::new(Tokens::new(config.token_ttl_seconds)),
            conf_state: ConfState::default(),
            applied: 0,
            applied_term: 0,
            chain: Chain::default(),
            ops: Vec::new(),
            compaction: None,
            touched_leases: Vec::new(),
            work: None,
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
        self.alarms = Alarms::load(tables).map_err(|e| bad(Table::Alarm, e.to_string()))?;
        self.auth = users::load(tables).map_err(|e| bad(Table::Auth, e.to_string()))?;
        self.tokens.set_enabled(self.auth.is_enabled());
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
        self.touched_leases.clear();
    }

    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { revision: self.store.revision(), ..ResponseHeader::default() })
    }

    /// The compaction that the last applied entry made, once.
    pub fn take_compaction(&mut self) -> Option<Compaction> {
        self.compaction.take()
    }

    /// Leases that were revoked or checkpointed since the last call or commit: renewals may have waited for that.
    pub fn take_touched_leases(&mut self) -> Vec<LeaseId> {
        std::mem::take(&mut self.touched_leases)
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

    /// Users, roles and permissions as of what is applied.
    pub fn auth(&self) -> &Auth {
        &self.auth
    }

    /// The simple tokens that the log has assigned since this process began.
    pub fn tokens(&self) -> &Arc<Tokens> {
        &self.tokens
    }

    /// Raised alarms of one type, or all for `NONE`.
    pub fn alarms(&self, alarm: i32) -> Vec<AlarmMember> {
        self.alarms.raised(alarm)
    }
}
