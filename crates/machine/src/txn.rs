//! Range, put, delete and txn over one view of the key space: what is compared before anything is written, what is
//! checked, and in which order operations run. Source of the rules: etcd `server/etcdserver/txn`.

use std::cmp::Ordering;

use bytes::Bytes;
use dolmen_lease::Lessor;
use dolmen_mvcc::{RangeError, RangeOptions, RangeResult, ReadTxn, SortOrder, SortTarget, Txn};
use dolmen_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use dolmen_proto::etcdserverpb::request_op::Request as Op;
use dolmen_proto::etcdserverpb::response_op::Response as OpResponse;
use dolmen_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp,
    ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
};
use dolmen_proto::mvccpb::KeyValue;
use dolmen_types::KeyRange;
use prost::Message;

use crate::ApplyError;

/// Where a txn reads: the open write transaction, or a pinned view of the current revision.
pub trait ReadView {
    fn range(&self, range: &KeyRange, options: &RangeOptions) -> Result<RangeResult, RangeError>;
    /// The current revision, without changes of an open transaction.
    fn revision(&self) -> i64;
    /// The lowest readable revision; -1 when nothing was ever compacted.
    fn first_revision(&self) -> i64;
}

impl ReadView for ReadTxn {
    fn range(&self, range: &KeyRange, options: &RangeOptions) -> Result<RangeResult, RangeError> {
        ReadTxn::range(self, range, options)
    }
    fn revision(&self) -> i64 {
        ReadTxn::revision(self)
    }
    fn first_revision(&self) -> i64 {
        self.compact_revision()
    }
}

impl ReadView for Txn<'_> {
    fn range(&self, range: &KeyRange, options: &RangeOptions) -> Result<RangeResult, RangeError> {
        Txn::range(self, range, options)
    }
    fn revision(&self) -> i64 {
        Txn::base_revision(self)
    }
    fn first_revision(&self) -> i64 {
        Txn::compact_revision(self)
    }
}

/// A failed read. A broken log is the process's illness, not an outcome: the caller stops.
pub type ReadResult<T> = Result<T, ReadError>;

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Outcome(#[from] ApplyError),
    #[error("reading the store failed")]
    Log(#[source] RangeError),
}

impl From<RangeError> for ReadError {
    fn from(error: RangeError) -> Self {
        match error {
            RangeError::Compacted => ApplyError::Compacted.into(),
            RangeError::FutureRevision => ApplyError::FutureRevision.into(),
            other => Self::Log(other),
        }
    }
}

/// The options of a request, which never look at its consistency flags. Sort options are checked at the edge; an entry
/// with unknown ones reads in key order, on every member.
pub fn range_options(request: &RangeRequest) -> RangeOptions {
    RangeOptions {
        revision: request.revision,
        limit: request.limit,
        count_only: request.count_only,
        keys_only: request.keys_only,
        sort_order: SortOrder::from_number(request.sort_order).unwrap_or_default(),
        sort_target: SortTarget::from_number(request.sort_target).unwrap_or_default(),
        min_mod_revision: request.min_mod_revision,
        max_mod_revision: request.max_mod_revision,
        min_create_revision: request.min_create_revision,
        max_create_revision: request.max_create_revision,
    }
}

fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision, ..ResponseHeader::default() })
}

fn decode(payload: &Bytes) -> KeyValue {
    KeyValue::decode(payload.clone()).expect("the store verified the checksum of what it encoded")
}

fn range(view: &impl ReadView, request: &RangeRequest) -> ReadResult<RangeResponse> {
    let keys = KeyRange::parse(request.key.clone(), request.range_end.clone());
    let result = view.range(&keys, &range_options(request))?;
    Ok(RangeResponse {
        header: header(result.revision),
        kvs: result.kvs.iter().map(decode).collect(),
        more: result.more,
        count: result.count,
    })
}

fn previous(view: &impl ReadView, key: &Bytes) -> ReadResult<Option<KeyValue>> {
    let result = view.range(&KeyRange::Single(key.clone()), &RangeOptions::default())?;
    Ok(result.kvs.first().map(decode))
}

/// Executes a txn that only reads, at the view's current revision.
///
/// # Errors
/// The outcomes of [`Plan::new`].
pub fn read_only(view: &impl ReadView, request: &TxnRequest) -> ReadResult<TxnResponse> {
    let plan = Plan::new(view, request, &|_| true)?;
    let mut responses = Vec::new();
    for op in plan.operations(request) {
        if let Some(Op::RequestRange(request)) = &op.request {
            let response = range(view, request)?;
            responses.push(ResponseOp { response: Some(OpResponse::ResponseRange(response)) });
        }
    }
    Ok(TxnResponse { header: header(view.revision()), succeeded: plan.succeeded, responses })
}

/// Which branch each txn of a nest takes, decided on the state before any write.
pub struct Plan {
    pub succeeded: bool,
    /// Plans of the nested txns of the chosen branch, in order.
    nested: Vec<Plan>,
}

impl Plan {
    /// Evaluates all compares of the chosen path and checks its operations.
    ///
    /// # Errors
    /// The first failing check: range revision out of bounds, unknown lease, `ignore_*` on an absent key. Nothing has
    /// been written then.
    pub fn new(view: &impl ReadView, request: &TxnRequest, lease_exists: &dyn Fn(i64) -> bool) -> ReadResult<Self> {
        let plan = Self::decide(view, request)?;
        plan.check(view, request, lease_exists)?;
        Ok(plan)
    }

    fn decide(view: &impl ReadView, request: &TxnRequest) -> ReadResult<Self> {
        let mut plan = Self { succeeded: compares_hold(view, &request.compare)?, nested: Vec::new() };
        for op in plan.operations(request) {
            if let Some(Op::RequestTxn(inner)) = &op.request {
                let inner = Self::decide(view, inner)?;
                plan.nested.push(inner);
            }
        }
        Ok(plan)
    }

    fn operations<'a>(&self, request: &'a TxnRequest) -> &'a [RequestOp] {
        if self.succeeded { &request.success } else { &request.failure }
    }

    fn check(&self, view: &impl ReadView, request: &TxnRequest, lease_exists: &dyn Fn(i64) -> bool) -> ReadResult<()> {
        let mut nested = self.nested.iter();
        for op in self.operations(request) {
            match &op.request {
                Some(Op::RequestRange(request)) if request.revision != 0 => {
                    if request.revision > view.revision() {
                        return Err(ApplyError::FutureRevision.into());
                    }
                    if request.revision < view.first_revision() {
                        return Err(ApplyError::Compacted.into());
                    }
                }
                Some(Op::RequestPut(request)) => check_put(view, request, lease_exists)?,
                Some(Op::RequestTxn(request)) => {
                    nested.next().expect("a plan for each nested txn").check(view, request, lease_exists)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn check_put(view: &impl ReadView, request: &PutRequest, lease_exists: &dyn Fn(i64) -> bool) -> ReadResult<()> {
    if request.lease != 0 && !lease_exists(request.lease) {
        return Err(ApplyError::LeaseNotFound.into());
    }
    if (request.ignore_value || request.ignore_lease) && previous(view, &request.key)?.is_none() {
        return Err(ApplyError::KeyNotFound.into());
    }
    Ok(())
}

fn compares_hold(view: &impl ReadView, compares: &[Compare]) -> ReadResult<bool> {
    for compare in compares {
        if !compare_holds(view, compare)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Every key of the compare's range must satisfy it; an empty range is judged once as an all-zero key, but never
/// equals any value.
fn compare_holds(view: &impl ReadView, compare: &Compare) -> ReadResult<bool> {
    let keys = KeyRange::parse(compare.key.clone(), compare.range_end.clone());
    let result = view.range(&keys, &RangeOptions::default())?;
    if result.kvs.is_empty() {
        let on_value = compare.target == CompareTarget::Value as i32;
        return Ok(!on_value && key_satisfies(compare, &KeyValue::default()));
    }
    Ok(result.kvs.iter().all(|payload| key_satisfies(compare, &decode(payload))))
}

fn key_satisfies(compare: &Compare, kv: &KeyValue) -> bool {
    use TargetUnion as T;
    let union = compare.target_union.as_ref();
    let ordering = match CompareTarget::try_from(compare.target) {
        Ok(CompareTarget::Value) => {
            let wanted = if let Some(T::Value(value)) = union { value.as_ref() } else { &[] };
            kv.value.as_ref().cmp(wanted)
        }
        Ok(CompareTarget::Create) => {
            kv.create_revision.cmp(&if let Some(T::CreateRevision(wanted)) = union { *wanted } else { 0 })
        }
        Ok(CompareTarget::Mod) => {
            kv.mod_revision.cmp(&if let Some(T::ModRevision(wanted)) = union { *wanted } else { 0 })
        }
        Ok(CompareTarget::Version) => kv.version.cmp(&if let Some(T::Version(wanted)) = union { *wanted } else { 0 }),
        Ok(CompareTarget::Lease) => kv.lease.cmp(&if let Some(T::Lease(wanted)) = union { *wanted } else { 0 }),
        Err(_) => Ordering::Equal,
    };
    match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => ordering.is_eq(),
        Ok(CompareResult::NotEqual) => ordering.is_ne(),
        Ok(CompareResult::Greater) => ordering.is_gt(),
        Ok(CompareResult::Less) => ordering.is_lt(),
        Err(_) => true,
    }
}

/// A put outside of a txn.
pub(crate) fn put(txn: &mut Txn<'_>, lessor: &Lessor, request: PutRequest) -> ReadResult<PutResponse> {
    check_put(&*txn, &request, &|id| lessor.contains(id))?;
    write_put(txn, request)
}

fn write_put(txn: &mut Txn<'_>, request: PutRequest) -> ReadResult<PutResponse> {
    let before = if request.prev_kv || request.ignore_value || request.ignore_lease {
        previous(&*txn, &request.key)?
    } else {
        None
    };
    let kept = before.as_ref().filter(|_| request.ignore_value);
    let value = kept.map_or(request.value, |kv| kv.value.clone());
    let kept = before.as_ref().filter(|_| request.ignore_lease);
    let lease = kept.map_or(request.lease, |kv| kv.lease);
    txn.put(&request.key, &value, lease);
    Ok(PutResponse { header: header(txn.revision()), prev_kv: before.filter(|_| request.prev_kv) })
}

pub(crate) fn delete_range(txn: &mut Txn<'_>, request: DeleteRangeRequest) -> ReadResult<DeleteRangeResponse> {
    let keys = KeyRange::parse(request.key, request.range_end);
    let prev_kvs = if request.prev_kv {
        txn.range(&keys, &RangeOptions::default())?.kvs.iter().map(decode).collect()
    } else {
        Vec::new()
    };
    let deleted = txn.delete_range(&keys).len() as i64;
    let revision = txn.revision();
    Ok(DeleteRangeResponse { header: header(revision), deleted, prev_kvs })
}

/// A txn that may write. Decides and checks first; from then on it cannot fail but by a broken log.
pub(crate) fn txn(txn: &mut Txn<'_>, lessor: &Lessor, request: TxnRequest) -> ReadResult<TxnResponse> {
    let plan = Plan::new(&*txn, &request, &|id| lessor.contains(id))?;
    let mut response = execute(txn, plan, request)?;
    response.header = header(txn.revision());
    Ok(response)
}

fn execute(txn: &mut Txn<'_>, plan: Plan, request: TxnRequest) -> ReadResult<TxnResponse> {
    let operations = if plan.succeeded { request.success } else { request.failure };
    let mut nested = plan.nested.into_iter();
    let mut responses = Vec::with_capacity(operations.len());
    for op in operations {
        let response = match op.request {
            Some(Op::RequestRange(request)) => Some(OpResponse::ResponseRange(range(&*txn, &request)?)),
            Some(Op::RequestPut(request)) => Some(OpResponse::ResponsePut(write_put(txn, request)?)),
            Some(Op::RequestDeleteRange(request)) => Some(OpResponse::ResponseDeleteRange(delete_range(txn, request)?)),
            Some(Op::RequestTxn(request)) => {
                let plan = nested.next().expect("a plan for each nested txn");
                Some(OpResponse::ResponseTxn(execute(txn, plan, request)?))
            }
            None => None,
        };
        responses.push(ResponseOp { response });
    }
    Ok(TxnResponse { header: Some(ResponseHeader::default()), succeeded: plan.succeeded, responses })
}
