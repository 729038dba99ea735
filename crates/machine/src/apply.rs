//! One entry: decoded, admitted, authorised, executed.
//!
//! ```text
//! entry -> header, Command -> admit (alarms) -> authorise (users) -> execute (keys, leases, alarms, members)
//! ```

use dolmen_auth::Identity;
use dolmen_env::Mono;
use dolmen_mvcc::{Change, CompactError, Txn};
use dolmen_proto::etcdserverpb::request_op::Request as Op;
use dolmen_proto::etcdserverpb::{
    AlarmRequest, AlarmResponse, CompactionRequest, DeleteRangeRequest, InternalRaftRequest, LeaseCheckpointRequest,
    LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RequestOp, TxnRequest,
};
use dolmen_proto::membershippb::{ClusterMemberAttrSetRequest, ClusterVersionSetRequest};
use dolmen_proto::raftpb::{ConfChange, Entry, EntryType};
use dolmen_types::Index;
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

impl Machine {
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
                self.apply_request(request, entry.index, now)?
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

    fn apply_request(
        &mut self,
        mut request: InternalRaftRequest,
        index: Index,
        now: Mono,
    ) -> Result<Outcome, FatalError> {
        let header = request.header.take().unwrap_or_default();
        let id = if header.id == 0 { request.id } else { header.id };
        let mut changes = Vec::new();
        let result =
            match self.carry_out(users::identity(header).as_ref(), Command::of(request), index, now, &mut changes) {
                Ok(response) => Ok(response),
                Err(ReadError::Outcome(error)) => Err(error),
                Err(fatal) => return Err(fatal.into()),
            };
        Ok(Outcome::Request { id, result, changes })
    }

    /// Alarms refuse before users do, as in etcd.
    fn carry_out(
        &mut self,
        who: Option<&Identity>,
        command: Command,
        index: Index,
        now: Mono,
        changes: &mut Vec<Change>,
    ) -> Result<Response, ReadError> {
        if let Some(writes) = command.writes() {
            self.alarms.admit(writes)?;
        }
        self.authorise(who, &command)?;
        if let Command::Users(change) = command {
            return Ok(Response::Users(self.change_users(who, change, index, now)?));
        }
        self.execute(command, now, changes)
    }

    fn execute(&mut self, command: Command, now: Mono, changes: &mut Vec<Change>) -> Result<Response, ReadError> {
        Ok(match command {
            Command::Put(put) => {
                let (response, made) = change(self.store.begin(), |txn| txn::put(txn, &self.lessor, put))?;
                *changes = made;
                self.attach(changes);
                Response::Put(response)
            }
            Command::DeleteRange(delete) => {
                let (response, made) = change(self.store.begin(), |txn| txn::delete_range(txn, delete))?;
                *changes = made;
                self.attach(changes);
                Response::DeleteRange(response)
            }
            Command::Txn(request) => {
                let (response, made) = change(self.store.begin(), |txn| txn::txn(txn, &self.lessor, request))?;
                *changes = made;
                self.attach(changes);
                Response::Txn(response)
            }
            Command::Compaction(request) => self.compact(&request)?,
            Command::LeaseGrant(grant) => Response::LeaseGrant(self.grant(&grant, now)?),
            Command::LeaseRevoke(revoke) => Response::LeaseRevoke(self.revoke(&revoke, changes)?),
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
