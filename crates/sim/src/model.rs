//! What the committed log means: a second, naive state machine that keeps every version of every key.
//!
//! Entries are fed in order as soon as any member applies them; a member that applies anything else at an index is
//! caught there. Everything that a client or watcher is told is compared with what the model computed for that entry, or
//! holds at that revision.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::Bytes;
use dolmen_machine::{ApplyError, Response};
use dolmen_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use dolmen_proto::etcdserverpb::request_op::Request as Op;
use dolmen_proto::etcdserverpb::response_op::Response as OpResponse;
use dolmen_proto::etcdserverpb::{
    CompactionResponse, Compare, DeleteRangeRequest, DeleteRangeResponse, InternalRaftRequest, LeaseGrantResponse,
    LeaseRevokeResponse, PutRequest, PutResponse, RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest,
    TxnResponse,
};
use dolmen_proto::mvccpb::KeyValue;
use dolmen_proto::raftpb::{Entry, EntryType};
use dolmen_types::KeyRange;
use prost::Message;

pub(crate) type Outcome = Result<Response, ApplyError>;

/// One change of one key, as a watcher must see it.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// `None`: deleted.
    pub kv: Option<KeyValue>,
    pub key: Bytes,
    pub previous: Option<KeyValue>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Lease {
    pub keys: BTreeSet<Bytes>,
}

/// What one entry did.
#[derive(Clone, Debug)]
pub(crate) struct Effect {
    /// The request's id, 0 for entries that are no request.
    pub id: u64,
    /// The revision after it.
    pub revision: i64,
    pub outcome: Option<Outcome>,
    /// The lease it revoked.
    pub revoked: Option<i64>,
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    log: Vec<Entry>,
    effects: Vec<Effect>,
    by_id: BTreeMap<u64, u64>,
    revision: i64,
    compact: i64,
    keys: BTreeMap<Bytes, Vec<(i64, Option<KeyValue>)>>,
    /// By main revision.
    changes: Vec<Vec<Change>>,
    pub leases: BTreeMap<i64, Lease>,
    min_ttl: i64,
}

fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision, ..ResponseHeader::default() })
}

impl Model {
    pub fn new(min_ttl: i64) -> Self {
        Self { revision: 1, compact: -1, changes: vec![Vec::new(); 2], min_ttl, ..Self::default() }
    }

    pub fn last_index(&self) -> u64 {
        self.log.len() as u64
    }

    pub fn revision(&self) -> i64 {
        self.revision
    }

    pub fn compact_revision(&self) -> i64 {
        self.compact
    }

    /// The entry at an index and what it did.
    pub fn effect(&self, index: u64) -> Option<&Effect> {
        self.effects.get(index.checked_sub(1)? as usize)
    }

    pub fn index_of(&self, id: u64) -> Option<u64> {
        self.by_id.get(&id).copied()
    }

    pub fn changes(&self, revision: i64) -> &[Change] {
        self.changes.get(revision as usize).map_or(&[], Vec::as_slice)
    }

    /// Takes an entry that a member applied. `true` when nobody had applied it before.
    ///
    /// # Errors
    /// Another entry was applied there, one before it is unknown, or a request was applied twice.
    pub fn take(&mut self, entry: &Entry) -> Result<bool, String> {
        let at = entry.index as usize - 1;
        if let Some(known) = self.log.get(at) {
            if (known.term, known.r#type, &known.data) != (entry.term, entry.r#type, &entry.data) {
                let ids =
                    [known, entry].map(|e| InternalRaftRequest::decode(e.data.clone()).ok().and_then(|r| r.header));
                return Err(format!(
                    "two entries were committed at index {}: of term {} and of term {} ({ids:?})",
                    entry.index, known.term, entry.term
                ));
            }
            return Ok(false);
        }
        if at > self.log.len() {
            return Err(format!("index {} was applied, but nobody applied {}", entry.index, self.log.len() + 1));
        }
        let effect = self.apply(entry)?;
        if effect.id != 0
            && let Some(before) = self.by_id.insert(effect.id, entry.index)
        {
            return Err(format!("request {:x} was committed twice, at {before} and {}", effect.id, entry.index));
        }
        self.log.push(entry.clone());
        self.effects.push(effect);
        Ok(true)
    }

    fn apply(&mut self, entry: &Entry) -> Result<Effect, String> {
        let none = Effect { id: 0, revision: self.revision, outcome: None, revoked: None };
        if entry.r#type != EntryType::EntryNormal as i32 || entry.data.is_empty() {
            return Ok(none);
        }
        let request = InternalRaftRequest::decode(entry.data.clone()).map_err(|e| format!("undecodable entry: {e}"))?;
        let id = request.header.as_ref().map_or(0, |header| header.id);
        let leases_before: Vec<i64> = request.lease_revoke.iter().map(|revoke| revoke.id).collect();
        let known = leases_before.first().filter(|id| self.leases.contains_key(id)).copied();
        let outcome = self.request(request);
        Ok(Effect { id, revision: self.revision, revoked: known, outcome: Some(outcome) })
    }

    fn request(&mut self, request: InternalRaftRequest) -> Outcome {
        if let Some(put) = request.put {
            self.check_put(&put)?;
            let mut txn = Txn::new(self);
            let response = txn.put(put);
            txn.finish();
            return Ok(Response::Put(response));
        }
        if let Some(delete) = request.delete_range {
            let mut txn = Txn::new(self);
            let response = txn.delete(&delete);
            txn.finish();
            return Ok(Response::DeleteRange(response));
        }
        if let Some(request) = request.txn {
            let branches = self.decide(&request);
            self.check(&request, &branches, &mut 0)?;
            let mut txn = Txn::new(self);
            let mut response = txn.execute(request, &branches, &mut 0);
            response.header = header(txn.revision());
            txn.finish();
            return Ok(Response::Txn(response));
        }
        if let Some(compaction) = request.compaction {
            if compaction.revision <= self.compact {
                return Err(ApplyError::Compacted);
            }
            if compaction.revision > self.revision {
                return Err(ApplyError::FutureRevision);
            }
            self.compact = compaction.revision;
            return Ok(Response::Compaction(CompactionResponse { header: header(self.revision) }));
        }
        if let Some(grant) = request.lease_grant {
            if grant.id == 0 {
                return Err(ApplyError::LeaseNotFound);
            }
            if self.leases.contains_key(&grant.id) {
                return Err(ApplyError::LeaseExists);
            }
            let ttl = grant.ttl.max(self.min_ttl);
            self.leases.insert(grant.id, Lease::default());
            let header = header(self.revision);
            return Ok(Response::LeaseGrant(LeaseGrantResponse { header, id: grant.id, ttl, error: String::new() }));
        }
        if let Some(revoke) = request.lease_revoke {
            let Some(lease) = self.leases.remove(&revoke.id) else { return Err(ApplyError::LeaseNotFound) };
            let mut txn = Txn::new(self);
            for key in lease.keys {
                txn.delete_key(&key);
            }
            txn.finish();
            return Ok(Response::LeaseRevoke(LeaseRevokeResponse { header: header(self.revision) }));
        }
        Ok(Response::Empty)
    }

    /// The key as it stands now.
    fn live(&self, key: &[u8]) -> Option<&KeyValue> {
        self.keys.get(key)?.last()?.1.as_ref()
    }

    /// The key as it stood at a main revision.
    pub fn at(&self, key: &[u8], revision: i64) -> Option<&KeyValue> {
        let versions = self.keys.get(key)?;
        let end = versions.partition_point(|(main, _)| *main <= revision);
        versions.get(end.checked_sub(1)?)?.1.as_ref()
    }

    /// Everything of a range at a main revision.
    pub fn range(&self, range: &KeyRange, revision: i64) -> Vec<&KeyValue> {
        let from = Bound::Included(range.start().clone());
        self.keys
            .range((from, Bound::Unbounded))
            .map(|(key, _)| key)
            .take_while(|key| range.end().is_none_or(|end| **key < end))
            .filter(|key| range.contains(key))
            .filter_map(|key| self.at(key, revision))
            .collect()
    }

    fn check_put(&self, put: &PutRequest) -> Result<(), ApplyError> {
        if put.lease != 0 && !self.leases.contains_key(&put.lease) {
            return Err(ApplyError::LeaseNotFound);
        }
        if (put.ignore_value || put.ignore_lease) && self.live(&put.key).is_none() {
            return Err(ApplyError::KeyNotFound);
        }
        Ok(())
    }

    fn holds(&self, compare: &Compare) -> bool {
        let range = KeyRange::parse(compare.key.clone(), compare.range_end.clone());
        let kvs = self.range(&range, i64::MAX);
        if kvs.is_empty() {
            return compare.target != CompareTarget::Value as i32 && satisfies(compare, &KeyValue::default());
        }
        kvs.into_iter().all(|kv| satisfies(compare, kv))
    }

    /// Which branch each txn of a nest takes, in the order they are met.
    fn decide(&self, request: &TxnRequest) -> Vec<bool> {
        let succeeded = request.compare.iter().all(|compare| self.holds(compare));
        let mut branches = vec![succeeded];
        for op in branch(request, succeeded) {
            if let Some(Op::RequestTxn(inner)) = &op.request {
                branches.extend(self.decide(inner));
            }
        }
        branches
    }

    fn check(&self, request: &TxnRequest, branches: &[bool], at: &mut usize) -> Result<(), ApplyError> {
        let succeeded = branches[*at];
        *at += 1;
        for op in branch(request, succeeded) {
            match &op.request {
                Some(Op::RequestRange(range)) if range.revision != 0 => {
                    if range.revision > self.revision {
                        return Err(ApplyError::FutureRevision);
                    }
                    if range.revision < self.compact {
                        return Err(ApplyError::Compacted);
                    }
                }
                Some(Op::RequestPut(put)) => self.check_put(put)?,
                Some(Op::RequestTxn(inner)) => self.check(inner, branches, at)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// An entry in a few words, for readers of a trace.
pub(crate) fn describe(entry: &Entry) -> String {
    match InternalRaftRequest::decode(entry.data.clone()) {
        Ok(request) if request.lease_grant.is_some() => format!("{:?}", request.lease_grant),
        Ok(request) if request.lease_revoke.is_some() => format!("{:?}", request.lease_revoke),
        Ok(request) if request.lease_checkpoint.is_some() => format!("{:?}", request.lease_checkpoint),
        Ok(request) if request.compaction.is_some() => format!("{:?}", request.compaction),
        _ => format!("term {}, {} bytes", entry.term, entry.data.len()),
    }
}

fn branch(request: &TxnRequest, succeeded: bool) -> &[RequestOp] {
    if succeeded { &request.success } else { &request.failure }
}

fn satisfies(compare: &Compare, kv: &KeyValue) -> bool {
    let number = match &compare.target_union {
        Some(TargetUnion::Version(n) | TargetUnion::CreateRevision(n) | TargetUnion::ModRevision(n)) => *n,
        Some(TargetUnion::Lease(n)) => *n,
        _ => 0,
    };
    let ordering = match CompareTarget::try_from(compare.target) {
        Ok(CompareTarget::Value) => {
            let wanted = if let Some(TargetUnion::Value(value)) = &compare.target_union { value.as_ref() } else { &[] };
            kv.value.as_ref().cmp(wanted)
        }
        Ok(CompareTarget::Create) => kv.create_revision.cmp(&number),
        Ok(CompareTarget::Mod) => kv.mod_revision.cmp(&number),
        Ok(CompareTarget::Version) => kv.version.cmp(&number),
        Ok(CompareTarget::Lease) | Err(_) => kv.lease.cmp(&number),
    };
    match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) | Err(_) => ordering.is_eq(),
        Ok(CompareResult::NotEqual) => ordering.is_ne(),
        Ok(CompareResult::Greater) => ordering.is_gt(),
        Ok(CompareResult::Less) => ordering.is_lt(),
    }
}

/// One request's changes; they share a main revision.
struct Txn<'m> {
    model: &'m mut Model,
    changes: Vec<Change>,
}

impl<'m> Txn<'m> {
    fn new(model: &'m mut Model) -> Self {
        Self { model, changes: Vec::new() }
    }

    fn main(&self) -> i64 {
        self.model.revision + 1
    }

    fn revision(&self) -> i64 {
        self.model.revision + i64::from(!self.changes.is_empty())
    }

    fn finish(self) {
        if !self.changes.is_empty() {
            self.model.revision += 1;
            self.model.changes.push(self.changes);
        }
    }

    fn write(&mut self, key: &Bytes, kv: Option<KeyValue>) {
        let main = self.main();
        let before = self.model.live(key).cloned();
        for (lease, attach) in
            [(before.as_ref().map_or(0, |kv| kv.lease), false), (kv.as_ref().map_or(0, |kv| kv.lease), true)]
        {
            if let Some(lease) = self.model.leases.get_mut(&lease) {
                if attach {
                    lease.keys.insert(key.clone());
                } else {
                    lease.keys.remove(key);
                }
            }
        }
        self.model.keys.entry(key.clone()).or_default().push((main, kv.clone()));
        let previous = self.model.at(key, main - 1).cloned();
        self.changes.push(Change { kv, key: key.clone(), previous });
    }

    fn put(&mut self, put: PutRequest) -> PutResponse {
        let before = self.model.live(&put.key).cloned();
        let main = self.main();
        let kv = KeyValue {
            key: put.key.clone(),
            create_revision: before.as_ref().map_or(main, |kv| kv.create_revision),
            mod_revision: main,
            version: before.as_ref().map_or(1, |kv| kv.version + 1),
            value: before.as_ref().filter(|_| put.ignore_value).map_or(put.value, |kv| kv.value.clone()),
            lease: before.as_ref().filter(|_| put.ignore_lease).map_or(put.lease, |kv| kv.lease),
        };
        self.write(&put.key, Some(kv));
        PutResponse { header: header(self.revision()), prev_kv: before.filter(|_| put.prev_kv) }
    }

    fn delete_key(&mut self, key: &Bytes) -> Option<KeyValue> {
        let before = self.model.live(key).cloned()?;
        self.write(key, None);
        Some(before)
    }

    fn delete(&mut self, request: &DeleteRangeRequest) -> DeleteRangeResponse {
        let range = KeyRange::parse(request.key.clone(), request.range_end.clone());
        let keys: Vec<Bytes> = self.model.range(&range, i64::MAX).into_iter().map(|kv| kv.key.clone()).collect();
        let gone: Vec<KeyValue> = keys.iter().filter_map(|key| self.delete_key(key)).collect();
        let deleted = gone.len() as i64;
        let prev_kvs = if request.prev_kv { gone } else { Vec::new() };
        DeleteRangeResponse { header: header(self.revision()), deleted, prev_kvs }
    }

    fn execute(&mut self, request: TxnRequest, branches: &[bool], at: &mut usize) -> TxnResponse {
        let succeeded = branches[*at];
        *at += 1;
        let ops = if succeeded { request.success } else { request.failure };
        let mut responses = Vec::with_capacity(ops.len());
        for op in ops {
            let response = op.request.map(|op| match op {
                Op::RequestRange(range) => {
                    let keys = KeyRange::parse(range.key, range.range_end);
                    let at = if range.revision > 0 { range.revision } else { i64::MAX };
                    let kvs: Vec<KeyValue> = self.model.range(&keys, at).into_iter().cloned().collect();
                    let count = kvs.len() as i64;
                    OpResponse::ResponseRange(RangeResponse { kvs, count, ..RangeResponse::default() })
                }
                Op::RequestPut(put) => OpResponse::ResponsePut(self.put(put)),
                Op::RequestDeleteRange(delete) => OpResponse::ResponseDeleteRange(self.delete(&delete)),
                Op::RequestTxn(inner) => OpResponse::ResponseTxn(self.execute(inner, branches, at)),
            });
            responses.push(ResponseOp { response });
        }
        TxnResponse { header: None, succeeded, responses }
    }
}

/// Leaves out the headers inside of a txn's answer, whose meaning is no promise.
pub(crate) fn normal(response: Response) -> Response {
    fn strip(txn: &mut TxnResponse) {
        for op in &mut txn.responses {
            match &mut op.response {
                Some(OpResponse::ResponseRange(range)) => range.header = None,
                Some(OpResponse::ResponsePut(put)) => put.header = None,
                Some(OpResponse::ResponseDeleteRange(delete)) => delete.header = None,
                Some(OpResponse::ResponseTxn(inner)) => {
                    inner.header = None;
                    strip(inner);
                }
                None => {}
            }
        }
    }
    match response {
        Response::Txn(mut txn) => {
            strip(&mut txn);
            Response::Txn(txn)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use dolmen_proto::etcdserverpb::RequestHeader;

    use super::*;

    fn put(index: u64, id: u64, key: &'static str, value: &'static str) -> Entry {
        let put = PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() };
        let request = InternalRaftRequest {
            header: Some(RequestHeader { id, ..RequestHeader::default() }),
            put: Some(put),
            ..InternalRaftRequest::default()
        };
        Entry { index, term: 1, data: request.encode_to_vec().into(), ..Entry::default() }
    }

    #[test]
    fn every_version_stays_readable() {
        let mut model = Model::new(1);
        for (index, value) in [(1, "x"), (2, "y")] {
            assert_eq!(model.take(&put(index, index, "k", value)), Ok(true));
        }
        assert_eq!(model.revision(), 3);
        assert_eq!(model.at(b"k", 2).map(|kv| kv.value.clone()), Some("x".into()));
        assert_eq!(model.at(b"k", 3).map(|kv| (kv.version, kv.create_revision)), Some((2, 2)));
        assert!(model.at(b"k", 1).is_none());
        assert_eq!(model.changes(3)[0].previous.as_ref().map(|kv| kv.mod_revision), Some(2));
    }

    #[test]
    fn another_entry_at_an_index_is_refused() {
        let mut model = Model::new(1);
        assert_eq!(model.take(&put(1, 1, "k", "x")), Ok(true));
        assert_eq!(model.take(&put(1, 1, "k", "x")), Ok(false));
        assert!(model.take(&put(1, 2, "k", "x")).is_err(), "different");
        assert!(model.take(&put(3, 3, "k", "x")).is_err(), "a gap");
        assert!(model.take(&put(2, 1, "k", "x")).is_err(), "twice");
    }
}
