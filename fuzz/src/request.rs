//! Requests of clients: decoded, checked as the edge checks them, and applied as a log entry.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_env::{Mono, Rng, SimDisk};
use dolmen_machine::{Config, Machine};
use dolmen_proto::etcdserverpb::request_op::Request as Op;
use dolmen_proto::etcdserverpb::{
    AlarmRequest, CompactionRequest, Compare, DefragmentRequest, DeleteRangeRequest, HashKvRequest,
    InternalRaftRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest,
    MemberAddRequest, MoveLeaderRequest, PutRequest, RangeRequest, RequestHeader, RequestOp, SnapshotRequest,
    StatusRequest, TxnRequest, WatchRequest,
};
use dolmen_proto::raftpb::Entry;
use prost::Message;

use crate::mutate::mutate;
use crate::{Reached, Target, validate};

/// As `--max-txn-ops`.
const MAX_OPS: usize = 128;
/// Entries after which the store begins anew, so that cases stay cheap and repeatable.
const LIFE: u64 = 16;

pub struct Requests;

impl Requests {
    pub fn new() -> Self {
        Self
    }
}

fn machine(seed: u64) -> Machine {
    let log = dolmen_revlog::Options { spare_bytes: 0, ..dolmen_revlog::Options::default() };
    let config = Config { log, ..Config::default() };
    Machine::open(Arc::new(SimDisk::new(seed)), Path::new("/member/store"), config).expect("an empty folder")
}

fn bytes(rng: &mut Rng) -> Bytes {
    let letters: [&'static [u8]; 9] = [b"", b"a", b"b", b"ab", b"c", b"\0", b"\xff", b"\xff\xff", b"zz"];
    Bytes::from_static(rng.pick::<&'static [u8]>(&letters))
}

fn small(rng: &mut Rng) -> i64 {
    rng.below(9) as i64 - 2
}

fn range(rng: &mut Rng) -> RangeRequest {
    RangeRequest {
        key: bytes(rng),
        range_end: bytes(rng),
        limit: small(rng),
        revision: small(rng),
        sort_order: small(rng) as i32,
        sort_target: small(rng) as i32,
        serializable: rng.chance(500),
        keys_only: rng.chance(300),
        count_only: rng.chance(300),
        min_mod_revision: small(rng),
        max_create_revision: small(rng),
        ..RangeRequest::default()
    }
}

fn put(rng: &mut Rng) -> PutRequest {
    PutRequest {
        key: bytes(rng),
        value: bytes(rng),
        lease: small(rng),
        prev_kv: rng.chance(500),
        ignore_value: rng.chance(200),
        ignore_lease: rng.chance(200),
    }
}

fn delete(rng: &mut Rng) -> DeleteRangeRequest {
    DeleteRangeRequest { key: bytes(rng), range_end: bytes(rng), prev_kv: rng.chance(500) }
}

fn operations(rng: &mut Rng, depth: u32) -> Vec<RequestOp> {
    let operation = |rng: &mut Rng| match rng.below(if depth > 3 { 3 } else { 4 }) {
        0 => Op::RequestRange(range(rng)),
        1 => Op::RequestPut(put(rng)),
        2 => Op::RequestDeleteRange(delete(rng)),
        _ => Op::RequestTxn(txn(rng, depth + 1)),
    };
    (0..rng.below(4)).map(|_| RequestOp { request: Some(operation(rng)) }).collect()
}

fn txn(rng: &mut Rng, depth: u32) -> TxnRequest {
    let compare = (0..rng.below(3)).map(|_| Compare {
        result: small(rng) as i32,
        target: small(rng) as i32,
        key: bytes(rng),
        range_end: bytes(rng),
        ..Compare::default()
    });
    let compare = compare.collect();
    TxnRequest { compare, success: operations(rng, depth), failure: operations(rng, depth) }
}

/// Decodes damaged bytes of a message; what decodes must encode to something that decodes to the same.
fn survive<M: Message + Default + PartialEq + std::fmt::Debug>(rng: &mut Rng, message: &M) -> Option<M> {
    let mut bytes = message.encode_to_vec();
    if rng.chance(700) {
        mutate(rng, &mut bytes);
    }
    let decoded = M::decode(Bytes::from(bytes)).ok()?;
    let again = M::decode(Bytes::from(decoded.encode_to_vec())).ok();
    assert!(again.as_ref() == Some(&decoded), "{decoded:?} came back as {again:?}");
    Some(decoded)
}

impl Target for Requests {
    fn case(&mut self, rng: &mut Rng) -> Reached {
        let mut machine = machine(rng.next_u64());
        let mut reached = Reached::Refused;
        for index in 1..=LIFE {
            let Some(request) = draw(rng) else { continue };
            reached = Reached::Accepted;
            let header = Some(RequestHeader { id: index, ..RequestHeader::default() });
            let request = InternalRaftRequest { header, ..request };
            let index = machine.applied() + 1;
            let entry = Entry { term: 1, index, data: request.encode_to_vec().into(), ..Entry::default() };
            // A client that could stop the machine could stop every member.
            let applied = machine.apply(&entry, Mono::from_millis(index));
            assert!(applied.is_ok(), "{:?} for {request:?}", applied.err());
            machine.commit();
        }
        reached
    }
}

/// A request that passed the edge's checks, in the form of a log entry. Kinds that never reach the log end here.
fn draw(rng: &mut Rng) -> Option<InternalRaftRequest> {
    let mut request = InternalRaftRequest::default();
    match rng.below(10) {
        0 | 1 => {
            let drawn = put(rng);
            let drawn = survive(rng, &drawn)?;
            validate::put(&drawn).ok()?;
            request.put = Some(drawn);
        }
        2 => {
            let drawn = delete(rng);
            let drawn = survive(rng, &drawn)?;
            validate::delete_range(&drawn).ok()?;
            request.delete_range = Some(drawn);
        }
        3 | 4 => {
            let drawn = txn(rng, 0);
            let drawn = survive(rng, &drawn)?;
            validate::txn(&drawn, MAX_OPS).ok()?;
            request.txn = Some(drawn);
        }
        5 => {
            let drawn = CompactionRequest { revision: small(rng), physical: rng.chance(500) };
            request.compaction = Some(survive(rng, &drawn)?);
        }
        6 => {
            let drawn = LeaseGrantRequest { ttl: small(rng), id: small(rng) };
            request.lease_grant = Some(survive(rng, &drawn)?);
        }
        7 => {
            let drawn = LeaseRevokeRequest { id: small(rng) };
            request.lease_revoke = Some(survive(rng, &drawn)?);
        }
        8 => {
            let drawn = range(rng);
            let drawn = survive(rng, &drawn)?;
            validate::range(&drawn).ok()?;
            return None;
        }
        _ => {
            only_decoded(rng);
            return None;
        }
    }
    Some(request)
}

fn only_decoded(rng: &mut Rng) {
    let (id, key) = (small(rng), bytes(rng));
    survive(rng, &WatchRequest::default());
    survive(rng, &LeaseKeepAliveRequest { id });
    survive(rng, &LeaseTimeToLiveRequest { id, keys: true });
    survive(rng, &AlarmRequest { member_id: id as u64, ..AlarmRequest::default() });
    survive(rng, &HashKvRequest { revision: id });
    survive(rng, &MoveLeaderRequest { target_id: id as u64 });
    survive(rng, &StatusRequest::default());
    survive(rng, &DefragmentRequest::default());
    survive(rng, &SnapshotRequest::default());
    let url = String::from_utf8_lossy(&key).into_owned();
    survive(rng, &MemberAddRequest { peer_ur_ls: vec![url], is_learner: true });
}
