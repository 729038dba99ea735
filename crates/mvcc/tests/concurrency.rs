//! Readers on other threads while the writer writes, compacts and gives space back.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bytes::Bytes;
use common::{open, run_jobs, small_options};
use dolmen_env::{Rng, SimDisk};
use dolmen_mvcc::{KeyValueRef, RangeError, RangeOptions, Reader};
use dolmen_revlog::Hint;
use dolmen_types::KeyRange;

const GROUP: usize = 5;
/// More keys than one hold of the lock covers.
const MANY: usize = 5_000;

/// Every request sets all keys of a group to one value, so any read that shows two values has seen half a request.
fn read_groups(reader: &Reader, stop: &AtomicBool, seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let (mut last, mut reads) = (0, 0);
    let group = KeyRange::parse("g/".into(), "g0".into());
    while !stop.load(Ordering::Relaxed) {
        let back = rng.below(3) as i64;
        let revision = if rng.chance(500) { 0 } else { reader.revision() - back };
        let result = match reader.range(&group, &RangeOptions { revision, ..RangeOptions::default() }) {
            Ok(result) => result,
            Err(RangeError::Compacted) => continue,
            Err(error) => panic!("{error}"),
        };
        assert!(result.revision >= last, "revisions do not go back");
        last = result.revision;
        assert!(result.kvs.is_empty() || result.kvs.len() == GROUP);
        assert_eq!(result.count as usize, result.kvs.len());
        let mods: Vec<i64> =
            result.kvs.iter().map(|kv| KeyValueRef::decode(kv).expect("a KeyValue").mod_revision).collect();
        assert!(mods.iter().all(|rev| *rev == mods[0]), "{mods:?}");
        let one = reader.range(&KeyRange::Single("g/0".into()), &RangeOptions::default()).expect("always readable");
        assert!(one.revision >= last && one.count as usize == one.kvs.len());
        last = one.revision;
        reads += 1;
    }
    reads
}

fn read_all(reader: &Reader, stop: &AtomicBool) -> u64 {
    let mut reads = 0;
    while !stop.load(Ordering::Relaxed) {
        let txn = reader.read();
        for result in [
            reader.range(&KeyRange::From("k".into()), &RangeOptions::default()),
            txn.range(&KeyRange::From("k".into()), &RangeOptions::default()),
            txn.range(&KeyRange::From("k".into()), &RangeOptions { keys_only: true, ..RangeOptions::default() }),
        ] {
            let result = result.expect("a pinned revision stays");
            assert_eq!(result.count as usize, result.kvs.len());
            let ours: Vec<KeyValueRef<'_>> =
                result.kvs.iter().map(|kv| KeyValueRef::decode(kv).expect("a KeyValue")).collect();
            assert!(ours.is_sorted_by(|a, b| a.key < b.key));
            assert!(ours.iter().all(|kv| kv.mod_revision <= result.revision));
        }
        let hash = reader.hash_kv(0).expect("the current revision can be hashed");
        assert!(hash.hash_revision >= txn.revision());
        reads += 1;
    }
    reads
}

#[test]
fn readers_see_whole_requests_at_one_revision() {
    let disk = SimDisk::new(3);
    let (mut store, _) = open(&disk, small_options());
    let stop = AtomicBool::new(false);
    let (mut index, mut now) = (0, 0);
    let mut rng = Rng::new(9);
    thread::scope(|scope| {
        let stop = &stop;
        let mut threads = Vec::new();
        for seed in 0..2 {
            let reader = store.reader();
            threads.push(scope.spawn(move || read_groups(&reader, stop, seed)));
        }
        let reader = store.reader();
        threads.push(scope.spawn(move || read_all(&reader, stop)));
        for round in 0..3_000u64 {
            let mut txn = store.begin();
            if round % 7 == 6 {
                assert_eq!(txn.delete_range(&KeyRange::parse("g/".into(), "g0".into())).len(), GROUP);
            } else {
                for n in 0..GROUP {
                    txn.put(&Bytes::from(format!("g/{n}")), format!("{round}").as_bytes(), 0);
                }
            }
            let fill = if round < 50 { MANY / 50 } else { 3 };
            for _ in 0..fill {
                let key = Bytes::from(format!("k{:05}", rng.below(MANY as u64)));
                if rng.chance(800) {
                    txn.put(&key, &[7; 30], 0);
                } else {
                    txn.delete_range(&KeyRange::Single(key));
                }
            }
            txn.finish();
            if rng.chance(300) {
                index += 1;
                store.commit(index, 1, Vec::new());
            }
            if rng.chance(50) {
                let rev = store.revision() - rng.below(3) as i64;
                let _ = store.compact(rev);
            }
            store.compact_step(300);
            if rng.chance(30) {
                run_jobs(&mut store, &mut now, Hint::Reclaim);
            }
        }
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            let reads = thread.join().expect("no reader fails");
            assert!(reads > 0, "a reader that read nothing tests nothing");
        }
    });
}
