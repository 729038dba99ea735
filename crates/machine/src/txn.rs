//! Range, put, delete and txn over one view of the key space: what is compared before anything is written, what is
//! checked, and in which order operations run. Source of the rules: etcd `server/etcdserver/txn`.

use std::cmp::Ordering;

use bytes::Bytes;
use dolmen_lease::Lessor;
use dolmen_mvcc::{Budget, RangeError, RangeOptions, RangeResult, RangeSlices, ReadTxn, SortOrder, SortTarget, Txn};
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

use crate::{ApplyError, Response};

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
/// `FutureRevision`, `Compacted`; or the store is damaged.
pub fn read_only(view: &impl ReadView, request: &TxnRequest) -> ReadResult<TxnResponse> {
    let mut plan = Plan::new(request.clone());
    let done = plan.decide(view, &mut Budget::unlimited())?;
    debug_assert!(done, "the budget has no end");
    plan.check(view, &|_| true, &mut Budget::unlimited())?;
    let mut answer = Answer::default();
    for step in plan.steps {
        match step {
            Step::Range(request) => answer.push(OpResponse::ResponseRange(range(view, &request)?)),
            Step::Open(succeeded) => answer.open(succeeded),
            Step::Close => answer.close(),
            Step::Put(_) | Step::Delete(_) | Step::Nothing => {}
        }
    }
    Ok(TxnResponse { header: header(view.revision()), ..answer.done() })
}

/// The operations of a txn and its nested ones, in the order in which they run.
enum Step {
    /// A txn begins: whether its compares held.
    Open(bool),
    Range(RangeRequest),
    Put(PutRequest),
    Delete(DeleteRangeRequest),
    Close,
    /// An operation that names none.
    Nothing,
}

/// What a txn will do, decided and checked on the state before any write.
struct Plan {
    steps: Vec<Step>,
    /// What is not decided yet, the next last.
    undecided: Vec<Undecided>,
    /// Steps that are checked.
    checked: usize,
}

enum Undecided {
    /// Compares up to the numbered one hold, and that one for the keys below `from`.
    Txn {
        request: TxnRequest,
        compare: usize,
        from: Option<Bytes>,
    },
    Operation(RequestOp),
    End,
}

impl Plan {
    fn new(request: TxnRequest) -> Self {
        let undecided = vec![Undecided::Txn { request, compare: 0, from: None }];
        Self { steps: Vec::new(), undecided, checked: 0 }
    }

    /// A request of one operation.
    fn single(step: Step) -> Self {
        Self { steps: vec![Step::Open(true), step, Step::Close], undecided: Vec::new(), checked: 0 }
    }

    /// Evaluates the compares of the chosen path until the budget is spent; true once it is decided.
    fn decide(&mut self, view: &impl ReadView, budget: &mut Budget) -> ReadResult<bool> {
        while let Some(next) = self.undecided.pop() {
            if budget.is_spent() {
                self.undecided.push(next);
                return Ok(false);
            }
            match next {
                Undecided::Txn { request, mut compare, from } => {
                    let holds = match request.compare.get(compare) {
                        Some(compare) => compare_some(view, compare, from, budget)?,
                        None => Holds::Yes,
                    };
                    let from = match holds {
                        Holds::Yes if compare < request.compare.len() => {
                            compare += 1;
                            None
                        }
                        Holds::SoFar(from) => Some(from),
                        Holds::Yes | Holds::No => {
                            let succeeded = matches!(holds, Holds::Yes);
                            self.steps.push(Step::Open(succeeded));
                            self.undecided.push(Undecided::End);
                            let operations = if succeeded { request.success } else { request.failure };
                            self.undecided.extend(operations.into_iter().rev().map(Undecided::Operation));
                            continue;
                        }
                    };
                    self.undecided.push(Undecided::Txn { request, compare, from });
                }
                Undecided::Operation(operation) => match operation.request {
                    Some(Op::RequestTxn(request)) => {
                        self.undecided.push(Undecided::Txn { request, compare: 0, from: None });
                    }
                    Some(Op::RequestRange(request)) => self.steps.push(Step::Range(request)),
                    Some(Op::RequestPut(request)) => self.steps.push(Step::Put(request)),
                    Some(Op::RequestDeleteRange(request)) => self.steps.push(Step::Delete(request)),
                    None => self.steps.push(Step::Nothing),
                },
                Undecided::End => self.steps.push(Step::Close),
            }
        }
        Ok(true)
    }

    /// Checks the operations until the budget is spent; true once all are.
    ///
    /// # Errors
    /// The first failing check: range revision out of bounds, unknown lease, `ignore_*` on an absent key.
    fn check(
        &mut self,
        view: &impl ReadView,
        lease_exists: &dyn Fn(i64) -> bool,
        budget: &mut Budget,
    ) -> ReadResult<bool> {
        while let Some(step) = self.steps.get(self.checked) {
            if budget.is_spent() {
                return Ok(false);
            }
            match step {
                Step::Range(request) if request.revision != 0 => {
                    if request.revision > view.revision() {
                        return Err(ApplyError::FutureRevision.into());
                    }
                    if request.revision < view.first_revision() {
                        return Err(ApplyError::Compacted.into());
                    }
                }
                Step::Put(request) => {
                    budget.spend(request.key.len());
                    check_put(view, request, lease_exists)?;
                }
                _ => {}
            }
            self.checked += 1;
        }
        Ok(true)
    }
}

/// An answer in the making: the txns that are open, outermost first.
#[derive(Default)]
struct Answer {
    open: Vec<(bool, Vec<ResponseOp>)>,
    done: TxnResponse,
}

impl Answer {
    fn push(&mut self, response: OpResponse) {
        if let Some((_, responses)) = self.open.last_mut() {
            responses.push(ResponseOp { response: Some(response) });
        }
    }

    fn nothing(&mut self) {
        if let Some((_, responses)) = self.open.last_mut() {
            responses.push(ResponseOp { response: None });
        }
    }

    fn open(&mut self, succeeded: bool) {
        self.open.push((succeeded, Vec::new()));
    }

    fn close(&mut self) {
        let Some((succeeded, responses)) = self.open.pop() else { return };
        let response = TxnResponse { header: Some(ResponseHeader::default()), succeeded, responses };
        if self.open.is_empty() {
            self.done = response;
        } else {
            self.push(OpResponse::ResponseTxn(response));
        }
    }

    fn done(self) -> TxnResponse {
        self.done
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

/// Whether a compare holds.
enum Holds {
    Yes,
    No,
    /// For the keys below this one.
    SoFar(Bytes),
}

/// Keys a compare looks at in one go.
const COMPARED: i64 = 256;

/// Every key of the compare's range must satisfy it; an empty range is judged once as an all-zero key, but never
/// equals any value.
fn compare_some(
    view: &impl ReadView,
    compare: &Compare,
    mut from: Option<Bytes>,
    budget: &mut Budget,
) -> ReadResult<Holds> {
    let range = KeyRange::parse(compare.key.clone(), compare.range_end.clone());
    // What is stored beside the key tells the rest.
    let keys_only = ![CompareTarget::Value as i32, CompareTarget::Lease as i32].contains(&compare.target);
    let options = RangeOptions { limit: COMPARED, keys_only, ..RangeOptions::default() };
    loop {
        let rest = match (&from, &range) {
            (None, range) => range.clone(),
            (Some(from), KeyRange::Range(_, end)) => KeyRange::Range(from.clone(), end.clone()),
            (Some(from), _) => KeyRange::From(from.clone()),
        };
        let result = view.range(&rest, &options)?;
        if result.kvs.is_empty() && from.is_none() {
            let on_value = compare.target == CompareTarget::Value as i32;
            let holds = !on_value && key_satisfies(compare, &KeyValue::default());
            return Ok(if holds { Holds::Yes } else { Holds::No });
        }
        let mut last = Bytes::new();
        for payload in &result.kvs {
            budget.spend(payload.len());
            let kv = decode(payload);
            if !key_satisfies(compare, &kv) {
                return Ok(Holds::No);
            }
            last = kv.key;
        }
        if !result.more {
            return Ok(Holds::Yes);
        }
        let next = Bytes::from([&last[..], &[0]].concat());
        if budget.is_spent() {
            return Ok(Holds::SoFar(next));
        }
        from = Some(next);
    }
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
pub(crate) fn put(txn: &mut Txn<'_>, lessor: &Lessor, request: PutRequest, wanted: bool) -> ReadResult<PutResponse> {
    check_put(&*txn, &request, &|id| lessor.contains(id))?;
    write_put(txn, request, wanted)
}

fn write_put(txn: &mut Txn<'_>, request: PutRequest, wanted: bool) -> ReadResult<PutResponse> {
    let before = if request.prev_kv && wanted || request.ignore_value || request.ignore_lease {
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

/// A deletion or a txn, carried out in slices: decided, checked, executed. Once something is written it cannot fail but by a
/// broken log.
pub(crate) struct Run {
    plan: Plan,
    stage: Stage,
    answer: Answer,
    single: bool,
    /// Somebody waits for the answer here: elsewhere nothing is read for it.
    wanted: bool,
}

enum Stage {
    Decide,
    Check,
    /// The steps that are left, and how far the one under way has come.
    Execute(std::vec::IntoIter<Step>, Operation),
}

/// An operation that takes more than one slice.
enum Operation {
    None,
    Range(RangeSlices),
    /// What was read takes the form of the answer.
    Decode(std::vec::IntoIter<Bytes>, RangeResponse),
    /// The keys as they were before the deletion.
    Previous(RangeSlices, KeyRange),
    DecodePrevious(std::vec::IntoIter<Bytes>, DeleteRangeResponse, KeyRange),
    Delete(DeleteRangeResponse, KeyRange, Option<Bytes>),
}

impl Run {
    pub(crate) fn txn(request: TxnRequest, wanted: bool) -> Self {
        Self::new(Plan::new(request), false, wanted)
    }

    pub(crate) fn delete_range(request: DeleteRangeRequest, wanted: bool) -> Self {
        Self::new(Plan::single(Step::Delete(request)), true, wanted)
    }

    fn new(plan: Plan, single: bool, wanted: bool) -> Self {
        Self { plan, stage: Stage::Decide, answer: Answer::default(), single, wanted }
    }

    /// Goes on until the budget is spent; the answer once all is done.
    pub(crate) fn step(
        &mut self,
        txn: &mut Txn<'_>,
        lessor: &Lessor,
        budget: &mut Budget,
    ) -> ReadResult<Option<Response>> {
        loop {
            let done = match &mut self.stage {
                Stage::Decide => self.plan.decide(&*txn, budget)?,
                Stage::Check => self.plan.check(&*txn, &|id| lessor.contains(id), budget)?,
                Stage::Execute(steps, operation) => {
                    execute(txn, steps, operation, &mut self.answer, self.wanted, budget)?
                }
            };
            if !done {
                return Ok(None);
            }
            self.stage = match &self.stage {
                Stage::Decide => Stage::Check,
                Stage::Check => Stage::Execute(std::mem::take(&mut self.plan.steps).into_iter(), Operation::None),
                Stage::Execute(..) => return Ok(Some(self.respond(txn.revision()))),
            };
        }
    }

    fn respond(&mut self, revision: i64) -> Response {
        let mut response = std::mem::take(&mut self.answer).done();
        if self.single
            && let Some(ResponseOp { response: Some(OpResponse::ResponseDeleteRange(delete)) }) =
                response.responses.pop()
        {
            return Response::DeleteRange(delete);
        }
        response.header = header(revision);
        Response::Txn(response)
    }
}

/// Runs operations until the budget is spent; true when none is left.
fn execute(
    txn: &mut Txn<'_>,
    steps: &mut std::vec::IntoIter<Step>,
    operation: &mut Operation,
    answer: &mut Answer,
    wanted: bool,
    budget: &mut Budget,
) -> ReadResult<bool> {
    while !budget.is_spent() {
        *operation = match std::mem::replace(operation, Operation::None) {
            Operation::None => match steps.next() {
                None => return Ok(true),
                Some(step) => begin(txn, step, answer, wanted, budget)?,
            },
            Operation::Range(mut read) => match txn.read_some(&mut read, budget)? {
                None => Operation::Range(read),
                Some(result) => {
                    let header = header(result.revision);
                    let response = RangeResponse { header, kvs: Vec::new(), more: result.more, count: result.count };
                    Operation::Decode(result.kvs.into_iter(), response)
                }
            },
            Operation::Decode(mut kvs, mut response) => {
                if decode_some(&mut kvs, &mut response.kvs, budget) {
                    answer.push(OpResponse::ResponseRange(response));
                    Operation::None
                } else {
                    Operation::Decode(kvs, response)
                }
            }
            Operation::Previous(mut read, range) => match txn.read_some(&mut read, budget)? {
                None => Operation::Previous(read, range),
                Some(result) => {
                    Operation::DecodePrevious(result.kvs.into_iter(), DeleteRangeResponse::default(), range)
                }
            },
            Operation::DecodePrevious(mut kvs, mut response, range) => {
                if decode_some(&mut kvs, &mut response.prev_kvs, budget) {
                    Operation::Delete(response, range, None)
                } else {
                    Operation::DecodePrevious(kvs, response, range)
                }
            }
            Operation::Delete(mut response, range, from) => {
                let before = txn.changes().len();
                let next = txn.delete_some(&range, from, budget);
                response.deleted += (txn.changes().len() - before) as i64;
                if next.is_some() {
                    Operation::Delete(response, range, next)
                } else {
                    response.header = header(txn.revision());
                    answer.push(OpResponse::ResponseDeleteRange(response));
                    Operation::None
                }
            }
        };
    }
    Ok(false)
}

/// Carries out what is short, and begins what may be long.
fn begin(
    txn: &mut Txn<'_>,
    step: Step,
    answer: &mut Answer,
    wanted: bool,
    budget: &mut Budget,
) -> ReadResult<Operation> {
    match step {
        Step::Open(succeeded) => answer.open(succeeded),
        Step::Close => answer.close(),
        // In its place, so that the others keep theirs.
        Step::Range(_) if !wanted => answer.nothing(),
        Step::Range(request) => {
            let keys = KeyRange::parse(request.key.clone(), request.range_end.clone());
            return Ok(Operation::Range(RangeSlices::new(&keys, &range_options(&request))));
        }
        Step::Put(request) => {
            budget.spend(request.key.len() + request.value.len());
            answer.push(OpResponse::ResponsePut(write_put(txn, request, wanted)?));
        }
        Step::Delete(request) => {
            let range = KeyRange::parse(request.key, request.range_end);
            return Ok(if request.prev_kv && wanted {
                Operation::Previous(RangeSlices::new(&range, &RangeOptions::default()), range)
            } else {
                Operation::Delete(DeleteRangeResponse::default(), range, None)
            });
        }
        Step::Nothing => answer.nothing(),
    }
    Ok(Operation::None)
}

/// Decodes until the budget is spent; true when nothing is left.
fn decode_some(payloads: &mut std::vec::IntoIter<Bytes>, kvs: &mut Vec<KeyValue>, budget: &mut Budget) -> bool {
    while !budget.is_spent() {
        let Some(payload) = payloads.next() else { return true };
        budget.spend(payload.len());
        kvs.push(decode(&payload));
    }
    false
}
