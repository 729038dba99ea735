//! What the index costs: bytes of memory a key, and nanoseconds a put, get, count and prune, at a million keys.
//!
//! `cargo run --release -p dolmen-mvcc --example mem [keys]`

#![allow(clippy::disallowed_methods, reason = "an example has the real clock and real files")]

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_env::{Disk, Mono, Rng, SimDisk};
use dolmen_mvcc::{RangeOptions, Store};
use dolmen_revlog::{Hint, Log, Options};
use dolmen_types::KeyRange;

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()).unwrap_or_default() * 1024
}

fn key(n: u64) -> Bytes {
    // 20 bytes, in no order.
    Bytes::from(format!("{:020}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// Nanoseconds this thread has been on a processor: other programs on the machine do not count.
fn cpu() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default()
}

fn timed(what: &str, times: u64, work: impl FnOnce()) {
    let start = cpu();
    work();
    println!("{what:<44} {:>8.0} ns of processor time", (cpu() - start) as f64 / times as f64);
}

fn drain(store: &mut Store, now: &mut u64) {
    *now += 1_000_000_000;
    while let Some(job) = store.log().next_job(Mono(*now), Hint::Sync) {
        let done = job.run().expect("a disk in memory does not fail");
        store.log().finish_job(done);
    }
}

fn puts(store: &mut Store, keys: u64, index: &mut u64, now: &mut u64, value: &[u8]) {
    for n in 0..keys {
        let mut txn = store.begin();
        txn.put(&key(n), value, 0);
        txn.finish();
        if n % 256 == 255 || n + 1 == keys {
            *index += 1;
            store.commit(*index, 1, Vec::new());
            if store.log().backlog_bytes() > 16 << 20 {
                drain(store, now);
            }
        }
    }
}

fn open(disk: &SimDisk) -> Store {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let options = Options { spare_bytes: 0, ..Options::default() };
    let (log, recovered) = Log::open(disk, std::path::Path::new("/store"), options).expect("a healthy disk");
    Store::open(log, recovered).expect("a healthy log").0
}

fn main() {
    let keys: u64 = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(1_000_000);
    let disk = SimDisk::new(1);
    let mut store = open(&disk);
    let (mut index, mut now) = (0, 0);
    for round in 1..=2 {
        let start = resident();
        timed(&format!("put, new batch every 256 (round {round})"), keys, || {
            puts(&mut store, keys, &mut index, &mut now, b"v");
        });
        let bytes = store.reader().index_stats().1 as f64 / keys as f64;
        println!("index, {round} revisions of a 20-byte key: {bytes:.1} bytes a key");
        println!("resident, the log's copies included: +{} MiB", (resident().saturating_sub(start)) >> 20);
    }
    drain(&mut store, &mut now);
    let reader = store.reader();
    let mut rng = Rng::new(5);
    timed("get of one key, index and log", keys, || {
        for _ in 0..keys {
            let range = KeyRange::Single(key(rng.below(keys)));
            black_box(reader.range(&range, &RangeOptions::default()).expect("there"));
        }
    });
    timed("whether it exists: index only", keys, || {
        let count = RangeOptions { count_only: true, ..RangeOptions::default() };
        for _ in 0..keys {
            let range = KeyRange::Single(key(rng.below(keys)));
            black_box(reader.range(&range, &count).expect("there"));
        }
    });
    timed("making such a key", keys, || {
        for _ in 0..keys {
            black_box(KeyRange::Single(key(rng.below(keys))));
        }
    });
    let count = RangeOptions { count_only: true, ..RangeOptions::default() };
    timed("count_only of a random range", 100_000, || {
        for _ in 0..100_000 {
            let range = KeyRange::Range(key(rng.below(keys)), key(rng.below(keys)));
            black_box(reader.range(&range, &count).expect("there"));
        }
    });
    let page = RangeOptions { limit: 1000, ..RangeOptions::default() };
    timed("range with limit 1000, a key", 1_000_000, || {
        for _ in 0..1000 {
            black_box(reader.range(&KeyRange::From(key(rng.below(keys))), &page).expect("there"));
        }
    });
    store.compact(store.revision()).expect("not compacted yet");
    index += 1;
    store.commit(index, 1, Vec::new());
    timed("pruning, a key", keys, || while store.compact_step(4096) {});
    let bytes = store.reader().index_stats().1 as f64 / keys as f64;
    println!("index after compaction: {bytes:.1} bytes a key");
    drain(&mut store, &mut now);
    drop((store, reader));
    disk.kill();
    timed("opening: a revision of two a key", 2 * keys, || {
        assert_eq!(open(&disk).keys(), keys);
    });
}
