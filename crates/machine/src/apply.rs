//! One entry: decoded, admitted, authorised, executed.
//!
//! ```text
//! entry -> header, Command -> admit (alarms) -> authorise (users) -> execute (keys, leases, alarms, members)
//! ```
//!
//! What one request may do without a bound (deletions, transactions, revokes) is executed in slices: [`Machine::step`]
//! returns when its budget is spent and goes on from there at the next call.

use bytes::Bytes;
use dolmen_auth::Identity;
use dolmen_env::Mono;
use dolmen_mvcc::{Budget, Change, CompactError};
use dolmen_proto::etcdserverpb::request_op::Request as Op;
use dolmen_proto::etcdserverpb::{
    AlarmRequest, AlarmResponse, CompactionRequest, DeleteRangeRequest, InternalRaftRequest, LeaseCheckpointRequest,
    LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RequestOp, TxnRequest,
};
use dolmen_proto::membershippb::{ClusterMemberAttrSetRequest, ClusterVersionSetRequest};
use dolmen_proto::raftpb::{ConfChange, Entry, EntryType};
use dolmen_types::{Index, Term};
use prost::Message;

use crate::alarms::Writes;
use crate::legacy::decode_request;
use crate::txn::{self, ReadError};
use crate::users;
use crate::{Applied, ApplyError, Compaction, ConfChangeContext, FatalError, Machine, Member, Outcome, Response};

/// What a normal entry asks for.
pub(crate) enum Command {
    Put(PutRequest),
    DeleteRange(DeleteRangeRequest),
    Txn(TxnRequest),
    Compaction(CompactionRequest),
    LeaseGrant(LeaseGrantRequest),
    LeaseRevoke(LeaseRevokeRequest),
    LeaseCheckpoint(LeaseCheckpointRequest),
    Alarm(AlarmRequest),
    ClusterVersion(ClusterVersionSetRequest),
    MemberAttributes(ClusterMemberAttrSetRequest),
    Users(dolmen_auth::Change),
    /// Changes nothing on any member.
    Nothing,
    /// Of a kind that this release does not carry out.
    Unknown,
}

impl Command {
    /// The first field that is set decides, as in etcd.
    fn of(mut request: InternalRaftRequest) -> Self {
        if let Some(put) = request.put {
            Self::Put(put)
        } else if let Some(delete) = request.delete_range {
            Self::DeleteRange(delete)
        } else if let Some(txn) = request.txn {
            Self::Txn(txn)
        } else if let Some(compaction) = request.compaction {
            Self::Compaction(compaction)
        } else if let Some(grant) = request.lease_grant {
            Self::LeaseGrant(grant)
        } else if let Some(revoke) = request.lease_revoke {
            Self::LeaseRevoke(revoke)
        } else if let Some(alarm) = request.alarm {
            Self::Alarm(alarm)
        } else if let Some(checkpoint) = request.lease_checkpoint {
            Self::LeaseCheckpoint(checkpoint)
        } else if let Some(version) = request.cluster_version_set {
            Self::ClusterVersion(version)
        } else if let Some(attributes) = request.cluster_member_attr_set {
            Self::MemberAttributes(attributes)
        } else if let Some(change) = users::change_of(&mut request) {
            Self::Users(change)
        } else if request.range.is_some() || request.downgrade_version_test.is_some() || users::only_reads(&request) {
            // A range through the log is what very old releases sent for a linearizable read.
            Self::Nothing
        } else {
            Self::Unknown
        }
    }

    /// What alarms may refuse; `None`: nothing.
    fn writes(&self) -> Option<Writes> {
        match self {
            Self::Put(_) | Self::LeaseGrant(_) => Some(Writes::Grows),
            Self::Txn(request) if has_put(request) => Some(Writes::Grows),
            Self::Txn(_) | Self::DeleteRange(_) | Self::Compaction(_) | Self::LeaseRevoke(_) => Some(Writes::Shrinks),
            _ => None,
        }
    }
}

/// An entry under way.
pub(crate) struct Work {
    index: Index,
    term: Term,
    data: Bytes,
    now: Mono,
    doing: Doing,
}

enum Doing {
    /// Not looked at yet; its type as on the wire.
    Entry(i32),
    /// Decoded and permitted: the id its proposer waits under, and the request.
    Slices { id: u64, request: Slices, suspended: bool },
}

/// What may take longer than one slice.
enum Slices {
    KeySpace(txn::Run),
    Revoke(LeaseRevokeRequest),
}

/// How far an entry has come.
#[derive(Debug)]
pub enum Progress {
    /// The budget is spent: [`Machine::step`] goes on. These are the changes of this slice; nobody sees them yet.
    More {
        changes: Vec<Change>,
    },
    Done(Applied),
}

impl Machine {
    /// Applies one entry whole, for whoever has time. The caller hands entries in order, each once, from
    /// [`Machine::applied`] + 1 on.
    ///
    /// # Errors
    /// The process must stop: the store cannot be read, or the entry is of a kind no known release writes. Until it has,
    /// readers see everything up to the entry and nothing of it; nothing must be applied or committed after that.
    pub fn apply(&mut self, entry: &Entry, now: Mono) -> Result<Applied, FatalError> {
        self.begin(entry, now);
        loop {
            if let Progress::Done(applied) = self.step(&mut Budget::unlimited(), &|_| true)? {
                return Ok(applied);
            }
        }
    }

    /// Takes the next entry; [`Machine::step`] applies it.
    pub fn begin(&mut self, entry: &Entry, now: Mono) {
        assert!(self.work.is_none(), "one entry after the other");
        assert!(entry.index == self.applied + 1, "entry {} after {}", entry.index, self.applied);
        let (index, term, data) = (entry.index, entry.term, entry.data.clone());
        self.work = Some(Work { index, term, data, now, doing: Doing::Entry(entry.r#type) });
    }

    /// Whether an entry was begun and is not done. What was applied before it stands as it did: it can be read, committed
    /// and sent as a snapshot.
    pub fn is_busy(&self) -> bool {
        self.work.is_some()
    }

    /// Goes on with the entry that was begun until it is done or the budget is spent. One revision is seen whole or not
    /// at all, however many slices it takes, and so it is on disk. `wanted`: whether somebody waits here for the answer to the
    /// request of this id; if not, what only the answer needs is not read.
    ///
    /// # Errors
    /// As [`Machine::apply`].
    pub fn step(&mut self, budget: &mut Budget, wanted: &dyn Fn(u64) -> bool) -> Result<Progress, FatalError> {
        let mut work = self.work.take().expect("an entry was begun");
        if let Doing::Entry(kind) = work.doing {
            match self.short(&work, kind, wanted)? {
                Ok(outcome) => return Ok(self.done(&work, outcome)),
                Err(doing) => work.doing = doing,
            }
        }
        let Doing::Slices { id, request, suspended } = &mut work.doing else {
            unreachable!("short entries are done by now")
        };
        let id = *id;
        match self.slice(request, *suspended, budget) {
            Ok((Some(response), changes)) => {
                Ok(self.done(&work, Outcome::Request { id, result: Ok(response), changes, sliced: self.sliced(&work) }))
            }
            Ok((None, changes)) => {
                *suspended = true;
                // Entries before it are a batch of their own: this one's goes on in parts.
                self.commit();
                self.store.append_part();
                self.work = Some(work);
                Ok(Progress::More { changes })
            }
            Err(ReadError::Outcome(error)) => {
                let outcome = Outcome::Request { id, result: Err(error), changes: Vec::new(), sliced: false };
                Ok(self.done(&work, outcome))
            }
            Err(fatal) => Err(fatal.into()),
        }
    }

    fn sliced(&self, work: &Work) -> bool {
        matches!(work.doing, Doing::Slices { suspended: true, .. })
    }

    fn done(&mut self, work: &Work, outcome: Outcome) -> Progress {
        self.applied = work.index;
        self.applied_term = work.term;
        self.chain.extend(work.term, &work.data);
        self.dirty = true;
        Progress::Done(Applied { index: work.index, outcome })
    }

    /// Decodes, admits and authorises an entry, and carries it out where that is short. `Err`: it takes slices.
    fn short(
        &mut self,
        work: &Work,
        kind: i32,
        wanted: &dyn Fn(u64) -> bool,
    ) -> Result<Result<Outcome, Doing>, FatalError> {
        let bad = |what: String| FatalError::BadEntry { index: work.index, what };
        match Asked::read(kind, &work.data).map_err(bad)? {
            Asked::Nothing => Ok(Ok(Outcome::Empty)),
            Asked::Request(request) => self.short_request(*request, work, wanted),
            Asked::ConfChange(change, context) => Ok(Ok(self.apply_conf_change(change, *context))),
        }
    }

    fn short_request(
        &mut self,
        mut request: InternalRaftRequest,
        work: &Work,
        wanted: &dyn Fn(u64) -> bool,
    ) -> Result<Result<Outcome, Doing>, FatalError> {
        let header = request.header.take().unwrap_or_default();
        let id = if header.id == 0 { request.id } else { header.id };
        let (who, command) = (users::identity(header), Command::of(request));
        let mut changes = Vec::new();
        let result = match self.permitted(who.as_ref(), &command) {
            Err(error) => Err(error),
            Ok(()) => match command {
                Command::DeleteRange(delete) => {
                    let request = Slices::KeySpace(txn::Run::delete_range(delete, wanted(id)));
                    return Ok(Err(Doing::Slices { id, request, suspended: false }));
                }
                Command::Txn(request) => {
                    let request = Slices::KeySpace(txn::Run::txn(request, wanted(id)));
                    return Ok(Err(Doing::Slices { id, request, suspended: false }));
                }
                Command::LeaseRevoke(revoke) => {
                    return Ok(Err(Doing::Slices { id, request: Slices::Revoke(revoke), suspended: false }));
                }
                Command::Users(change) => self
                    .change_users(who.as_ref(), change, work.index, work.now)
                    .map(Response::Users)
                    .map_err(ReadError::from),
                command => self.execute(command, work.now, wanted(id), &mut changes),
            },
        };
        let result = match result {
            Ok(response) => Ok(response),
            Err(ReadError::Outcome(error)) => Err(error),
            Err(fatal) => return Err(fatal.into()),
        };
        Ok(Ok(Outcome::Request { id, result, changes, sliced: false }))
    }

    /// Alarms refuse before users do, as in etcd.
    fn permitted(&self, who: Option<&Identity>, command: &Command) -> Result<(), ReadError> {
        if let Some(writes) = command.writes() {
            self.alarms.admit(writes)?;
        }
        Ok(self.authorise(who, command)?)
    }

    /// One slice of a long request: its answer once it is done, and what this slice changed.
    fn slice(
        &mut self,
        request: &mut Slices,
        suspended: bool,
        budget: &mut Budget,
    ) -> Result<(Option<Response>, Vec<Change>), ReadError> {
        let run = match request {
            Slices::KeySpace(run) => run,
            Slices::Revoke(request) => return Ok(self.revoke(request, suspended, budget)?),
        };
        let mut txn = if suspended { self.store.resume() } else { self.store.begin() };
        match run.step(&mut txn, &self.lessor, budget) {
            Ok(response) => {
                let changes = if response.is_some() { txn.finish() } else { txn.suspend() };
                self.attach(&changes);
                Ok((response, changes))
            }
            // When it comes upon damage midway, readers never see the half it has done.
            Err(error @ ReadError::Log(_)) => {
                txn.abandon();
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    fn execute(
        &mut self,
        command: Command,
        now: Mono,
        wanted: bool,
        changes: &mut Vec<Change>,
    ) -> Result<Response, ReadError> {
        Ok(match command {
            Command::Put(put) => {
                let mut txn = self.store.begin();
                let response = txn::put(&mut txn, &self.lessor, put, wanted)?;
                *changes = txn.finish();
                self.attach(changes);
                Response::Put(response)
            }
            Command::Compaction(request) => self.compact(&request)?,
            Command::LeaseGrant(grant) => Response::LeaseGrant(self.grant(&grant, now)?),
            Command::LeaseCheckpoint(request) => {
                self.checkpoint(request, now);
                Response::Empty
            }
            Command::Alarm(request) => {
                let alarms = self.alarms.apply(&request, &mut self.ops);
                Response::Alarm(AlarmResponse { header: self.header(), alarms })
            }
            Command::ClusterVersion(request) => {
                self.membership.set_cluster_version(&request.ver, &mut self.ops);
                Response::Empty
            }
            Command::MemberAttributes(request) => {
                let attributes = request.member_attributes.unwrap_or_default();
                let (name, urls) = (attributes.name, attributes.client_urls);
                self.membership.set_attributes(request.member_id, name, urls, &mut self.ops);
                Response::Empty
            }
            Command::Nothing | Command::Users(_) => Response::Empty,
            Command::DeleteRange(_) | Command::Txn(_) | Command::LeaseRevoke(_) => {
                unreachable!("what may be long goes in slices")
            }
            Command::Unknown => return Err(ApplyError::NotSupported.into()),
        })
    }

    fn compact(&mut self, request: &CompactionRequest) -> Result<Response, ApplyError> {
        match self.store.compact_with_hash(request.revision) {
            Ok(hash) => {
                self.compaction = Some(Compaction { hash, physical: request.physical });
                Ok(self.compacted())
            }
            Err(CompactError::Compacted) => Err(ApplyError::Compacted),
            Err(CompactError::FutureRevision) => Err(ApplyError::FutureRevision),
        }
    }

    fn apply_conf_change(&mut self, mut change: ConfChange, context: ConfChangeContext) -> Outcome {
        let id = change.id;
        let result = self.membership.validate(&change, &context);
        match result {
            Ok(()) => self.membership.change(&change, context, &mut self.ops),
            Err(_) => change.node_id = 0,
        }
        Outcome::ConfChange { id, change, result }
    }
}

/// What an entry asks for, as far as its form goes.
enum Asked {
    Nothing,
    Request(Box<InternalRaftRequest>),
    ConfChange(ConfChange, Box<ConfChangeContext>),
}

impl Asked {
    fn read(kind: i32, data: &Bytes) -> Result<Self, String> {
        match EntryType::try_from(kind) {
            Ok(EntryType::EntryNormal) if data.is_empty() => Ok(Self::Nothing),
            Ok(EntryType::EntryNormal) => Ok(Self::Request(Box::new(decode_request(data)?))),
            Ok(EntryType::EntryConfChange) => {
                let change = ConfChange::decode(data.clone()).map_err(|e| e.to_string())?;
                let context = if change.context.is_empty() {
                    ConfChangeContext { member: Member { id: change.node_id, ..Member::default() }, is_promote: false }
                } else {
                    serde_json::from_slice(&change.context).map_err(|e| format!("conf change context: {e}"))?
                };
                Ok(Self::ConfChange(change, Box::new(context)))
            }
            Ok(EntryType::EntryConfChangeV2) => Err("joint configuration changes are not etcd's".into()),
            Err(_) => Err(format!("unknown entry type {kind}")),
        }
    }
}

/// Whether an entry has a form that can be applied. One that has not stops every member that applies it, so it is to be
/// refused before it is in the log.
///
/// # Errors
/// Says what is wrong with it.
pub fn check_form(entry: &Entry) -> Result<(), String> {
    Asked::read(entry.r#type, &entry.data).map(|_| ())
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
