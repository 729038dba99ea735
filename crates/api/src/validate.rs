//! What a request must be before anything is asked of the store, in the order in which etcd asks.
//!
//! The order matters: a request with two faults is told of the same one as by etcd. Nothing here looks at the store.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use dolmen_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use dolmen_proto::etcdserverpb::request_op::Request as Op;
use dolmen_proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};

use crate::status::{self, Status};

/// Transactions nested deeper than this are refused as having too many operations.
///
/// etcd has no such limit of its own (its budget of operations, 128, ends the nesting). Ours keeps every request
/// decodable one level further down, inside a log entry, where a failure to decode would come too late: prost stops at
/// 100 levels and a nested transaction takes two.
pub const MAX_TXN_DEPTH: usize = 40;

/// # Errors
/// No key; a sort order or target that the enumeration does not hold.
pub fn range(request: &RangeRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(status::EMPTY_KEY);
    }
    if SortOrder::try_from(request.sort_order).is_err() || SortTarget::try_from(request.sort_target).is_err() {
        return Err(status::INVALID_SORT_OPTION);
    }
    Ok(())
}

/// # Errors
/// As [`range`], and anything that streaming in key order cannot do.
pub fn range_stream(request: &RangeRequest) -> Result<(), Status> {
    range(request)?;
    if !default_order(request) {
        return Err(status::RANGE_STREAM_SORT);
    }
    if has_revision_filters(request) {
        return Err(status::RANGE_STREAM_FILTER);
    }
    Ok(())
}

/// Keys come in byte order without sorting.
pub fn default_order(request: &RangeRequest) -> bool {
    request.sort_order == SortOrder::None as i32
        || (request.sort_target == SortTarget::Key as i32 && request.sort_order == SortOrder::Ascend as i32)
}

/// Any of the four revision filters is set.
pub fn has_revision_filters(request: &RangeRequest) -> bool {
    request.min_mod_revision != 0
        || request.max_mod_revision != 0
        || request.min_create_revision != 0
        || request.max_create_revision != 0
}

/// # Errors
/// No key; a value or a lease where the request says that the old one stays.
pub fn put(request: &PutRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(status::EMPTY_KEY);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(status::VALUE_PROVIDED);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(status::LEASE_PROVIDED);
    }
    Ok(())
}

/// # Errors
/// No key.
pub fn delete_range(request: &DeleteRangeRequest) -> Result<(), Status> {
    if request.key.is_empty() { Err(status::EMPTY_KEY) } else { Ok(()) }
}

/// Checks a transaction and everything nested in it: counts, then each operation, then keys touched twice.
///
/// # Errors
/// Too many operations (`max_ops` is the budget of this level; a nested level gets what is left), the faults of the
/// single operations, or a key written twice.
pub fn txn(request: &TxnRequest, max_ops: usize) -> Result<(), Status> {
    txn_ops(request, max_ops, 1)?;
    // After the counts: the work below is then bounded.
    intervals(&request.success)?;
    intervals(&request.failure)?;
    Ok(())
}

fn txn_ops(request: &TxnRequest, max_ops: usize, depth: usize) -> Result<(), Status> {
    let ops = request.compare.len().max(request.success.len()).max(request.failure.len());
    if ops > max_ops || depth > MAX_TXN_DEPTH {
        return Err(status::TOO_MANY_OPS);
    }
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(status::EMPTY_KEY);
    }
    for op in request.success.iter().chain(&request.failure) {
        match &op.request {
            Some(Op::RequestRange(request)) => range(request)?,
            Some(Op::RequestPut(request)) => put(request)?,
            Some(Op::RequestDeleteRange(request)) => delete_range(request)?,
            Some(Op::RequestTxn(request)) => txn_ops(request, max_ops - ops, depth + 1)?,
            None => return Err(status::KEY_NOT_FOUND),
        }
    }
    Ok(())
}

/// Keys and half-open ranges that deletes of one branch cover.
#[derive(Default)]
struct Deletes<'a> {
    points: BTreeSet<&'a Bytes>,
    /// Start to the furthest end seen for it.
    ranges: BTreeMap<&'a Bytes, &'a Bytes>,
}

impl<'a> Deletes<'a> {
    /// A range that is open-ended (`range_end` one zero byte) covers nothing here: etcd takes the zero byte for the end
    /// as it stands, so lets such a delete and a put through. Both are carried out in the order given.
    fn insert(&mut self, key: &'a Bytes, range_end: &'a Bytes) {
        if range_end.is_empty() {
            self.points.insert(key);
        } else {
            self.insert_range(key, range_end);
        }
    }

    fn insert_range(&mut self, start: &'a Bytes, end: &'a Bytes) {
        let furthest = self.ranges.entry(start).or_insert(end);
        *furthest = (*furthest).max(end);
    }

    fn absorb(&mut self, other: Deletes<'a>) {
        self.points.extend(other.points);
        for (start, end) in other.ranges {
            self.insert_range(start, end);
        }
    }

    fn cover(&self, key: &Bytes) -> bool {
        self.points.contains(key) || self.ranges.range::<&Bytes, _>(..=key).any(|(_, end)| key < *end)
    }
}

type Touched<'a> = (BTreeSet<&'a Bytes>, Deletes<'a>);

/// Refuses a branch that touches a key twice, and tells what it touches otherwise.
///
/// The two branches of one nested transaction exclude each other and may share keys. Two deletes may overlap. A put
/// conflicts with a delete of the same list, wherever in the list either stands.
fn intervals(ops: &[RequestOp]) -> Result<Touched<'_>, Status> {
    let mut deletes = Deletes::default();
    for op in ops {
        if let Some(Op::RequestDeleteRange(request)) = &op.request {
            deletes.insert(&request.key, &request.range_end);
        }
    }
    let mut puts: BTreeSet<&Bytes> = BTreeSet::new();
    for op in ops {
        let Some(Op::RequestTxn(nested)) = &op.request else { continue };
        let (then_puts, then_deletes) = intervals(&nested.success)?;
        let (else_puts, else_deletes) = intervals(&nested.failure)?;
        for key in then_puts.iter().chain(&else_puts) {
            if puts.contains(key) || deletes.cover(key) {
                return Err(status::DUPLICATE_KEY);
            }
        }
        puts.extend(then_puts);
        puts.extend(else_puts);
        deletes.absorb(then_deletes);
        deletes.absorb(else_deletes);
    }
    for op in ops {
        let Some(Op::RequestPut(request)) = &op.request else { continue };
        if deletes.cover(&request.key) || !puts.insert(&request.key) {
            return Err(status::DUPLICATE_KEY);
        }
    }
    Ok((puts, deletes))
}

/// Every operation of both branches is a range: nothing to replicate. A nested transaction counts as a write.
pub fn is_read_only(request: &TxnRequest) -> bool {
    request.success.iter().chain(&request.failure).all(|op| matches!(op.request, Some(Op::RequestRange(_))))
}

/// The caller has said that an old answer will do: there are ranges, and each of both branches is serializable. A
/// transaction of compares alone has said no such thing (etcd takes it for serializable).
pub fn is_serializable(request: &TxnRequest) -> bool {
    let mut ops = request.success.iter().chain(&request.failure).peekable();
    ops.peek().is_some() && ops.all(|op| matches!(&op.request, Some(Op::RequestRange(range)) if range.serializable))
}

/// Bytes a put may add to the store: key, value and etcd's allowance for the rest.
pub fn put_cost(request: &PutRequest) -> u64 {
    256 + request.key.len() as u64 + request.value.len() as u64
}

/// The dearer branch of a transaction, nested ones included.
pub fn txn_cost(request: &TxnRequest) -> u64 {
    let branch = |ops: &[RequestOp]| -> u64 {
        ops.iter()
            .map(|op| match &op.request {
                Some(Op::RequestPut(put)) => put_cost(put),
                Some(Op::RequestTxn(nested)) => txn_cost(nested),
                _ => 0,
            })
            .sum()
    };
    branch(&request.success).max(branch(&request.failure))
}

/// What a lease grant is counted as.
pub const LEASE_GRANT_COST: u64 = 64;

#[cfg(test)]
mod tests {
    use dolmen_proto::etcdserverpb::Compare;

    use super::*;

    const MAX_OPS: usize = 128;

    fn put_op(key: &'static str) -> RequestOp {
        RequestOp { request: Some(Op::RequestPut(PutRequest { key: key.into(), ..Default::default() })) }
    }

    fn delete_op(key: &'static str, range_end: &'static str) -> RequestOp {
        let request = DeleteRangeRequest { key: key.into(), range_end: range_end.into(), prev_kv: false };
        RequestOp { request: Some(Op::RequestDeleteRange(request)) }
    }

    fn range_op(key: &'static str) -> RequestOp {
        RequestOp { request: Some(Op::RequestRange(RangeRequest { key: key.into(), ..Default::default() })) }
    }

    fn txn_op(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        RequestOp { request: Some(Op::RequestTxn(TxnRequest { compare: vec![], success, failure })) }
    }

    fn check(success: Vec<RequestOp>) -> Result<(), Status> {
        txn(&TxnRequest { compare: vec![], success, failure: vec![] }, MAX_OPS)
    }

    #[test]
    fn ranges_need_a_key_and_a_known_order() {
        let request = |key: &'static str, order, target| RangeRequest {
            key: key.into(),
            sort_order: order,
            sort_target: target,
            ..Default::default()
        };
        assert_eq!(range(&request("", 9, 9)), Err(status::EMPTY_KEY));
        assert_eq!(range(&request("a", 3, 0)), Err(status::INVALID_SORT_OPTION));
        assert_eq!(range(&request("a", -1, 0)), Err(status::INVALID_SORT_OPTION));
        assert_eq!(range(&request("a", 0, 5)), Err(status::INVALID_SORT_OPTION));
        assert_eq!(range(&request("a", 2, 4)), Ok(()));
        assert_eq!(range_stream(&request("a", 2, 0)), Err(status::RANGE_STREAM_SORT));
        assert_eq!(range_stream(&request("a", 1, 0)), Ok(()));
        assert_eq!(range_stream(&request("a", 0, 3)), Ok(()));
        let filtered = RangeRequest { min_create_revision: 1, ..request("a", 0, 0) };
        assert_eq!(range_stream(&filtered), Err(status::RANGE_STREAM_FILTER));
    }

    #[test]
    fn puts_do_not_carry_what_they_tell_to_ignore() {
        let request = |key: &'static str| PutRequest {
            key: key.into(),
            value: "v".into(),
            lease: 1,
            ignore_value: true,
            ignore_lease: true,
            ..Default::default()
        };
        assert_eq!(put(&request("")), Err(status::EMPTY_KEY));
        assert_eq!(put(&request("k")), Err(status::VALUE_PROVIDED));
        assert_eq!(put(&PutRequest { value: "".into(), ..request("k") }), Err(status::LEASE_PROVIDED));
        assert_eq!(put(&PutRequest { value: "".into(), lease: 0, ..request("k") }), Ok(()));
    }

    #[test]
    fn operations_are_counted_by_the_longest_list_and_nesting_spends_the_same_budget() {
        let many = |n| (0..n).map(|_| range_op("a")).collect::<Vec<_>>();
        assert_eq!(check(many(MAX_OPS)), Ok(()));
        assert_eq!(check(many(MAX_OPS + 1)), Err(status::TOO_MANY_OPS));
        assert_eq!(check(vec![txn_op(many(MAX_OPS - 1), vec![])]), Ok(()));
        assert_eq!(check(vec![txn_op(many(MAX_OPS), vec![])]), Err(status::TOO_MANY_OPS));
        let compares = TxnRequest { compare: vec![Compare::default(); MAX_OPS + 1], ..Default::default() };
        assert_eq!(txn(&compares, MAX_OPS), Err(status::TOO_MANY_OPS));
        let keyless = TxnRequest { compare: vec![Compare::default()], ..Default::default() };
        assert_eq!(txn(&keyless, MAX_OPS), Err(status::EMPTY_KEY));
        assert_eq!(check(vec![RequestOp { request: None }]), Err(status::KEY_NOT_FOUND));
    }

    #[test]
    fn nesting_ends_before_the_decoder_does() {
        let mut op = put_op("a");
        for _ in 0..MAX_TXN_DEPTH - 1 {
            op = txn_op(vec![op], vec![]);
        }
        assert_eq!(check(vec![op.clone()]), Ok(()));
        assert_eq!(check(vec![txn_op(vec![op], vec![])]), Err(status::TOO_MANY_OPS));
    }

    #[test]
    fn a_key_is_written_once_in_a_branch() {
        let cases: Vec<(Vec<RequestOp>, bool)> = vec![
            (vec![put_op("a"), put_op("b")], true),
            (vec![put_op("a"), put_op("a")], false),
            (vec![put_op("a"), delete_op("a", "")], false),
            (vec![delete_op("a", ""), put_op("a")], false),
            (vec![delete_op("a", "c"), put_op("b")], false),
            (vec![delete_op("a", "c"), put_op("c")], true),
            (vec![delete_op("a", "\0"), put_op("z")], true),
            (vec![delete_op("b", "a"), put_op("b")], true),
            (vec![delete_op("a", "c"), delete_op("b", "d")], true),
            (vec![delete_op("a", "z"), delete_op("a", "b"), put_op("c")], false),
            (vec![range_op("a"), put_op("a"), range_op("a")], true),
            // The two branches of one nested transaction exclude each other.
            (vec![txn_op(vec![put_op("a")], vec![put_op("a")])], true),
            (vec![txn_op(vec![put_op("a")], vec![]), txn_op(vec![put_op("a")], vec![])], false),
            (vec![txn_op(vec![put_op("a")], vec![]), put_op("a")], false),
            (vec![txn_op(vec![delete_op("a", "c")], vec![]), put_op("b")], false),
            (vec![delete_op("a", "c"), txn_op(vec![put_op("b")], vec![])], false),
            (vec![delete_op("a", "c"), txn_op(vec![], vec![put_op("b")])], false),
            // A delete of an earlier nested transaction meets a put of a later one, not the other way round.
            (vec![txn_op(vec![delete_op("a", "")], vec![]), txn_op(vec![put_op("a")], vec![])], false),
            (vec![txn_op(vec![put_op("a")], vec![]), txn_op(vec![delete_op("a", "")], vec![])], true),
            (vec![txn_op(vec![put_op("a"), put_op("a")], vec![])], false),
        ];
        for (case, (ops, allowed)) in cases.into_iter().enumerate() {
            let expected = if allowed { Ok(()) } else { Err(status::DUPLICATE_KEY) };
            assert_eq!(check(ops), expected, "case {case}");
        }
    }

    #[test]
    fn only_ranges_are_read_only() {
        let of = |success| TxnRequest { compare: vec![], success, failure: vec![] };
        assert!(is_read_only(&of(vec![])));
        assert!(is_read_only(&of(vec![range_op("a")])));
        assert!(!is_read_only(&of(vec![txn_op(vec![range_op("a")], vec![])])));
        assert!(!is_read_only(&of(vec![put_op("a")])));
    }

    #[test]
    fn only_serializable_ranges_make_a_transaction_serializable() {
        let range = |serializable| {
            let range = RangeRequest { key: "a".into(), serializable, ..Default::default() };
            RequestOp { request: Some(Op::RequestRange(range)) }
        };
        let compare = vec![Compare { key: "a".into(), ..Default::default() }];
        for (success, failure, serializable) in [
            (vec![], vec![], false),
            (vec![range(true)], vec![], true),
            (vec![], vec![range(true)], true),
            (vec![range(true)], vec![range(false)], false),
            (vec![range(true), range(false)], vec![], false),
        ] {
            for compare in [vec![], compare.clone()] {
                let request = TxnRequest { compare, success: success.clone(), failure: failure.clone() };
                assert_eq!(is_serializable(&request), serializable);
            }
        }
    }

    #[test]
    fn a_transaction_costs_its_dearer_branch() {
        let request = TxnRequest {
            compare: vec![],
            success: vec![put_op("abc"), delete_op("a", "")],
            failure: vec![txn_op(vec![put_op("a")], vec![put_op("a"), put_op("b")])],
        };
        assert_eq!(txn_cost(&request), 2 * 257);
    }
}
