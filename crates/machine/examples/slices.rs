//! What long requests cost the thread that applies them: how long a slice takes, how many there are, how much memory. Run with
//! `cargo run --release -p dolmen-machine --example slices [keys]`.

// A program at the edge: it measures, so it needs the clock and the real file system.
#![allow(clippy::disallowed_methods)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dolmen_env::{Mono, RealDisk};
use dolmen_machine::{Config, Machine, Progress};
use dolmen_mvcc::Budget;
use dolmen_proto::etcdserverpb::request_op::Request as Op;
use dolmen_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, InternalRaftRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest,
    RangeRequest, RequestOp, TxnRequest,
};
use dolmen_proto::raftpb::Entry;
use dolmen_revlog::Hint;
use prost::Message;

/// As the node's.
const BUDGET: usize = 512 << 10;

struct World {
    machine: Machine,
    zero: Instant,
}

/// Resident memory in MiB, of pages of 4 KiB.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) / 256
}

impl World {
    /// What the store's thread would do.
    fn jobs(&mut self) {
        let now = Mono(self.zero.elapsed().as_nanos() as u64);
        while let Some(job) = self.machine.store_mut().log().next_job(now, Hint::Normal) {
            let done = job.run().expect("the disk works");
            self.machine.store_mut().log().finish_job(done);
        }
    }

    /// Applies a request; time of all slices, of the longest, and how many there were.
    fn apply(&mut self, request: &InternalRaftRequest, wanted: bool) -> (Duration, Duration, usize) {
        let index = self.machine.applied() + 1;
        let entry = Entry { index, term: 1, data: request.encode_to_vec().into(), ..Entry::default() };
        self.machine.begin(&entry, Mono(0));
        let (mut total, mut longest, mut slices) = (Duration::ZERO, Duration::ZERO, 0);
        loop {
            let start = Instant::now();
            let progress = self.machine.step(&mut Budget::new(BUDGET), &|_| wanted).expect("applies");
            let done = matches!(progress, Progress::Done(_));
            if done {
                self.machine.commit();
            }
            let took = start.elapsed();
            // The edge's to let go of.
            drop(progress);
            (total, longest, slices) = (total + took, longest.max(took), slices + 1);
            self.jobs();
            if done {
                return (total, longest, slices);
            }
        }
    }

    fn show(&mut self, what: &str, request: &InternalRaftRequest, wanted: bool) {
        let before = resident();
        let (total, longest, slices) = self.apply(request, wanted);
        let after = resident();
        println!("{what:40} {total:>9.1?} in {slices:>6} slices, the longest {longest:>8.1?}; {before} to {after} MiB");
    }
}

fn put(key: String, lease: i64) -> InternalRaftRequest {
    let put = PutRequest { key: key.into(), value: Bytes::from_static(&[b'v'; 100]), lease, ..PutRequest::default() };
    InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() }
}

fn all() -> (Bytes, Bytes) {
    (Bytes::from_static(&[0]), Bytes::from_static(&[0]))
}

fn main() {
    let keys: usize = std::env::args().nth(1).map_or(200_000, |text| text.parse().expect("a number"));
    let dir = std::env::temp_dir().join(format!("dolmen-slices-{}", std::process::id()));
    let config =
        Config { lease: dolmen_lease::Config::default(), log: dolmen_revlog::Options::default(), ..Config::default() };
    let machine = Machine::open(Arc::new(RealDisk), Path::new(&dir), config).expect("opens");
    let mut world = World { machine, zero: Instant::now() };
    let lease_grant = Some(LeaseGrantRequest { id: 7, ttl: 1000 });
    world.apply(&InternalRaftRequest { lease_grant, ..InternalRaftRequest::default() }, true);
    for at in 0..keys {
        world.apply(&put(format!("/registry/pods/{at:08}"), 0), true);
    }

    let (key, range_end) = all();
    let sorted = RangeRequest {
        key: key.clone(),
        range_end: range_end.clone(),
        sort_target: 3,
        sort_order: 2,
        ..RangeRequest::default()
    };
    let operation = |request| RequestOp { request: Some(request) };
    let mut success = vec![operation(Op::RequestPut(put("x".into(), 0).put.expect("a put")))];
    success.extend((0..10).map(|_| operation(Op::RequestRange(sorted.clone()))));
    let txn = TxnRequest { success, ..TxnRequest::default() };
    let reads = InternalRaftRequest { txn: Some(txn), ..InternalRaftRequest::default() };
    world.show("a put and 10 sorted reads", &reads, true);
    world.show("the same where nobody waits", &reads, false);

    let delete = DeleteRangeRequest { key, range_end, prev_kv: false };
    let delete = InternalRaftRequest { delete_range: Some(delete), ..InternalRaftRequest::default() };
    world.show(&format!("{keys} keys deleted"), &delete, true);

    for at in 0..keys / 5 {
        world.apply(&put(format!("/registry/pods/{at:08}"), 7), true);
    }
    let lease_revoke = Some(LeaseRevokeRequest { id: 7 });
    let revoke = InternalRaftRequest { lease_revoke, ..InternalRaftRequest::default() };
    world.show(&format!("a lease with {} keys revoked", keys / 5), &revoke, true);

    for _ in 0..keys {
        world.apply(&put("one".into(), 0), true);
    }
    let compaction = Some(CompactionRequest { revision: world.machine.store().revision(), physical: false });
    world.show("compacted", &InternalRaftRequest { compaction, ..InternalRaftRequest::default() }, true);
    drop(world.machine.take_compaction());
    let (mut turns, mut longest, start) = (0, Duration::ZERO, Instant::now());
    loop {
        let turn = Instant::now();
        let more = world.machine.store_mut().compact_step(512);
        longest = longest.max(turn.elapsed());
        turns += 1;
        if !more {
            break;
        }
    }
    println!("pruned in {turns} turns and {:.1?}, the longest {longest:.1?}", start.elapsed());
    drop(world);
    let _left = std::fs::remove_dir_all(&dir);
}
