//! Requests, encoded once. What differs between two of a kind is the number in the key, and keys have one length, so
//! making the next request is a copy and a few digits.

use bytes::{Bytes, BytesMut};
use dolmen_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use dolmen_proto::etcdserverpb::{self as pb, compare, request_op};
use prost::Message;

use crate::grpc;

/// Every key is so long, as with etcd's own load tool when it is asked for keys of 32 bytes.
pub const KEY_BYTES: usize = 32;
const KEY_HEAD: &[u8] = b"load/";
/// Stands where a number goes; no value and no other field contains it.
const BLANK: [u8; KEY_BYTES] = [0xfe; KEY_BYTES];

/// Puts in one transaction of `fill`; etcd's default limit is 128.
pub const FILL_AT_ONCE: u64 = 100;

/// A framed request with blanks for keys.
pub struct Template {
    bytes: Vec<u8>,
    blanks: Vec<usize>,
}

impl Template {
    fn new(message: &impl Message) -> Self {
        let bytes = grpc::framed(message).to_vec();
        let blanks = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(&BLANK)).collect();
        Self { bytes, blanks }
    }

    /// The request with `number` in every key.
    pub fn with(&self, number: u64) -> Bytes {
        self.numbered(number, 0)
    }

    /// The request with `first`, `first + 1`, ... in its keys.
    pub fn counting(&self, first: u64) -> Bytes {
        self.numbered(first, 1)
    }

    fn numbered(&self, first: u64, step: u64) -> Bytes {
        let mut bytes = BytesMut::from(&self.bytes[..]);
        for (nth, at) in self.blanks.iter().enumerate() {
            write_key(&mut bytes[*at..*at + KEY_BYTES], first + step * nth as u64);
        }
        bytes.freeze()
    }
}

/// Key number `number`; keys sort as their numbers do.
pub fn key(number: u64) -> Bytes {
    let mut key = [0; KEY_BYTES];
    write_key(&mut key, number);
    Bytes::copy_from_slice(&key)
}

fn write_key(key: &mut [u8], mut number: u64) {
    let (head, digits) = key.split_at_mut(KEY_HEAD.len());
    head.copy_from_slice(KEY_HEAD);
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// A value that does not compress, always the same. Below 0x80 throughout, so no blank is in it.
pub fn value(size: usize) -> Bytes {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8 & 0x7f
    };
    (0..size).map(next).collect()
}

fn put_request(size: usize) -> pb::PutRequest {
    pb::PutRequest { key: Bytes::copy_from_slice(&BLANK), value: value(size), ..Default::default() }
}

fn put_operation(size: usize) -> pb::RequestOp {
    pb::RequestOp { request: Some(request_op::Request::RequestPut(put_request(size))) }
}

pub fn put(size: usize) -> Template {
    Template::new(&put_request(size))
}

pub fn get(serializable: bool) -> Template {
    Template::new(&pb::RangeRequest { key: Bytes::copy_from_slice(&BLANK), serializable, ..Default::default() })
}

/// Keys 0 to `keys - 1`.
pub fn range(keys: u64, serializable: bool, sorted: bool) -> Template {
    let (sort_order, sort_target) =
        if sorted { (SortOrder::Descend as i32, SortTarget::Value as i32) } else { Default::default() };
    Template::new(&pb::RangeRequest {
        key: key(0),
        range_end: key(keys),
        serializable,
        sort_order,
        sort_target,
        ..Default::default()
    })
}

/// Puts a key when its version is 0 or more, which it is: what a comparison costs, without a branch that fails.
pub fn txn(size: usize) -> Template {
    let compare = pb::Compare {
        result: compare::CompareResult::Greater as i32,
        target: compare::CompareTarget::Version as i32,
        key: Bytes::copy_from_slice(&BLANK),
        target_union: Some(compare::TargetUnion::Version(-1)),
        ..Default::default()
    };
    let success = vec![put_operation(size)];
    Template::new(&pb::TxnRequest { compare: vec![compare], success, ..Default::default() })
}

/// `count` puts in one transaction.
pub fn fill(size: usize, count: u64) -> Template {
    let success = (0..count).map(|_| put_operation(size)).collect();
    Template::new(&pb::TxnRequest { success, ..Default::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_becomes_the_request() {
        let bytes = put(300).with(123);
        let put = pb::PutRequest::decode(&bytes[grpc::PREFIX..]).expect("a put");
        assert_eq!(&put.key[..], b"load/000000000000000000000000123");
        assert_eq!(put.value, value(300));

        let bytes = txn(10).with(7);
        let txn = pb::TxnRequest::decode(&bytes[grpc::PREFIX..]).expect("a txn");
        assert_eq!((txn.compare[0].key.clone(), txn.success.len()), (key(7), 1));
    }

    #[test]
    fn a_filling_transaction_counts() {
        let bytes = fill(1, 3).counting(98);
        let txn = pb::TxnRequest::decode(&bytes[grpc::PREFIX..]).expect("a txn");
        let keys: Vec<Bytes> = txn
            .success
            .into_iter()
            .filter_map(|one| match one.request {
                Some(request_op::Request::RequestPut(put)) => Some(put.key),
                _ => None,
            })
            .collect();
        assert_eq!(keys, [key(98), key(99), key(100)]);
    }

    #[test]
    fn a_range_covers_its_keys_only() {
        let bytes = range(1_000, true, false).with(0);
        let range = pb::RangeRequest::decode(&bytes[grpc::PREFIX..]).expect("a range");
        assert!(range.serializable && range.key == key(0) && range.range_end == key(1_000));
        assert!(key(999) < key(1_000));
    }
}
