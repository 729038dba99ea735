//! Requests in slices: wherever they are interrupted the store ends the same, readers see nothing of them before their end,
//! and neither does a start after a crash.

mod common;

use bytes::Bytes;
use common::{DIR, open, small_options};
use dolmen_env::{Mono, PowerLoss, Rng, SimDisk};
use dolmen_mvcc::{Budget, Change, RangeError, RangeOptions, RangeResult, RangeSlices, SortOrder, SortTarget, Store};
use dolmen_revlog::{Hint, Options};
use dolmen_types::{KeyRange, Revision};

const KEYS: u64 = 300;

fn key(at: u64) -> Bytes {
    format!("k/{at:04}").into()
}

/// Keys with one revision and with many, some with leases, some deleted, over a few leaves of the index.
fn fill(store: &mut Store) {
    let mut rng = Rng::new(3);
    for at in 0..KEYS {
        let mut txn = store.begin();
        for _ in 0..1 + at % 4 {
            txn.put(&key(at), &[b'v'; 5][..rng.below(5) as usize], if at % 5 == 0 { 7 } else { 0 });
        }
        if at % 11 == 0 {
            txn.delete_range(&KeyRange::Single(key(at)));
        }
        txn.finish();
    }
    store.commit(1, 1, Vec::new());
}

fn sync(store: &mut Store) {
    while let Some(job) = store.log().next_job(Mono(0), Hint::Sync) {
        let done = job.run().expect("the disk works");
        store.log().finish_job(done);
    }
}

fn everything() -> KeyRange {
    KeyRange::From(Bytes::new())
}

fn seen(store: &Store) -> (i64, Vec<RangeResult>, u32) {
    let reader = store.reader();
    let ranges = [everything(), KeyRange::Range(key(20), key(90)), KeyRange::Single(key(21))];
    let options = [RangeOptions::default(), RangeOptions { count_only: true, ..RangeOptions::default() }];
    let read = |range: &KeyRange, options: &RangeOptions| reader.range(range, options).expect("readable");
    let results = ranges.iter().flat_map(|range| options.iter().map(move |options| (range, options)));
    let results = results.map(|(range, options)| read(range, options)).collect();
    (reader.revision(), results, reader.hash_kv(0).expect("readable").hash)
}

/// A request of a deletion, puts and another deletion, in slices of this budget; stops after `stop` slices.
fn request(store: &mut Store, budget: usize, stop: usize) -> (Vec<Change>, bool) {
    let mut changes = Vec::new();
    let (mut step, mut from, mut slices) = (0, None, 0);
    let before = seen(store);
    loop {
        let mut txn = if slices == 0 { store.begin() } else { store.resume() };
        let mut left = Budget::new(budget);
        while !left.is_spent() {
            match step {
                0 | 2 => {
                    let range = if step == 0 { KeyRange::Range(key(10), key(250)) } else { everything() };
                    from = txn.delete_some(&range, from, &mut left);
                    step += usize::from(from.is_none());
                }
                1 => {
                    txn.put(&key(40), b"again", 8);
                    txn.delete_keys(&[key(41), key(260), key(261)]);
                    txn.put(&key(999), b"new", 0);
                    left.spend(10);
                    step += 1;
                }
                _ => {
                    changes.extend(txn.finish());
                    return (changes, true);
                }
            }
        }
        changes.extend(txn.suspend());
        store.append_part();
        slices += 1;
        assert_eq!(seen(store), before, "after {slices} slices");
        if slices == stop {
            return (changes, false);
        }
    }
}

#[test]
fn a_request_ends_the_same_however_it_is_cut() {
    let disk = SimDisk::new(1);
    let (mut whole, _) = open(&disk, small_options());
    fill(&mut whole);
    let (expected, _) = request(&mut whole, usize::MAX - 1, usize::MAX);
    whole.commit(2, 1, Vec::new());
    let mains: Vec<i64> = expected.iter().map(|change| change.rev.main).collect();
    assert!(mains.iter().all(|main| *main == mains[0]));
    assert!(expected.iter().enumerate().all(|(sub, change)| change.rev.sub == sub as i64));
    for budget in [1, 65, 200, 333, 1000, 5000] {
        let disk = SimDisk::new(1);
        let (mut store, _) = open(&disk, small_options());
        fill(&mut store);
        let (changes, done) = request(&mut store, budget, usize::MAX);
        assert!(done);
        assert_eq!(changes, expected, "budget {budget}");
        store.commit(2, 1, Vec::new());
        assert_eq!(seen(&store), seen(&whole));
        sync(&mut store);
        drop(store);
        disk.power_loss(PowerLoss::LoseAll);
        let (store, report) = open(&disk, small_options());
        assert_eq!((report.index, report.revision), (2, mains[0]));
        assert_eq!(seen(&store), seen(&whole));
        for at in [0, 40, 41, 260, 999] {
            assert_eq!(store.lease_of(&key(at)), whole.lease_of(&key(at)));
        }
    }
}

#[test]
fn a_crash_between_two_slices_leaves_nothing_of_the_request() {
    let large = Options { segment_bytes: 1 << 20, ..small_options() };
    for (options, shape) in
        [(small_options(), PowerLoss::KeepAll), (large, PowerLoss::KeepAll), (small_options(), PowerLoss::TornPrefix)]
    {
        for stop in [1, 2, 9, 40, 120] {
            let disk = SimDisk::new(stop as u64);
            let (mut store, _) = open(&disk, options.clone());
            fill(&mut store);
            sync(&mut store);
            let before = seen(&store);
            let (_, done) = request(&mut store, 100, stop);
            assert!(!done);
            // Written, or lost on the way.
            if stop % 2 == 0 {
                sync(&mut store);
            }
            drop(store);
            disk.power_loss(shape);
            let (mut store, report) = open(&disk, options.clone());
            assert_eq!(report.index, 1);
            assert_eq!(seen(&store), before, "{DIR} after {stop} slices");
            // And it can be done anew.
            let (changes, done) = request(&mut store, 1000, usize::MAX);
            assert!(done && changes[0].rev == Revision::new(before.0 + 1, 0));
            store.commit(2, 1, Vec::new());
            sync(&mut store);
        }
    }
}

#[test]
fn a_range_in_slices_is_the_range() {
    let disk = SimDisk::new(1);
    let (mut store, _) = open(&disk, small_options());
    fill(&mut store);
    store.compact(20).expect("not compacted");
    store.commit(2, 1, Vec::new());
    let reader = store.reader();
    let mut rng = Rng::new(9);
    let orders = [SortOrder::None, SortOrder::Ascend, SortOrder::Descend];
    let targets = [SortTarget::Key, SortTarget::Version, SortTarget::Create, SortTarget::Mod, SortTarget::Value];
    for _ in 0..600 {
        let (low, high) = (rng.below(KEYS), rng.below(KEYS + 20));
        let range = match rng.below(4) {
            0 => everything(),
            1 => KeyRange::Single(key(low)),
            _ => KeyRange::Range(key(low), key(high)),
        };
        let options = RangeOptions {
            revision: if rng.chance(500) { rng.below(KEYS + 10) as i64 } else { 0 },
            limit: rng.below(3) as i64 * rng.below(200) as i64,
            count_only: rng.chance(100),
            keys_only: rng.chance(300),
            sort_order: *rng.pick(&orders),
            sort_target: *rng.pick(&targets),
            min_mod_revision: if rng.chance(200) { 100 } else { 0 },
            ..RangeOptions::default()
        };
        let budget = [1, 100, 1000, 100_000][rng.below(4) as usize];
        let txn = store.begin();
        let mut read = RangeSlices::new(&range, &options);
        let sliced = loop {
            match txn.read_some(&mut read, &mut Budget::new(budget)) {
                Ok(None) => {}
                Ok(Some(result)) => break Ok(result),
                Err(error) => break Err(error),
            }
        };
        drop(txn);
        match (sliced, reader.range(&range, &options)) {
            (Ok(sliced), Ok(whole)) => assert_eq!(sliced, whole, "{range:?} {options:?}"),
            (Err(RangeError::Compacted), Err(RangeError::Compacted)) => {}
            (Err(RangeError::FutureRevision), Err(RangeError::FutureRevision)) => {}
            (sliced, whole) => panic!("{sliced:?} and {whole:?}"),
        }
    }
}

/// One key of many revisions is let go of a few at a time, oldest first, and reads the same meanwhile.
#[test]
fn a_key_of_many_revisions_is_pruned_in_slices() {
    let disk = SimDisk::new(1);
    let (mut store, _) = open(&disk, small_options());
    for value in 0..1000_u32 {
        let mut txn = store.begin();
        txn.put(&key(1), &value.to_be_bytes(), 0);
        txn.finish();
    }
    store.compact(990).expect("not compacted");
    store.commit(1, 1, Vec::new());
    let reader = store.reader();
    let at = |revision| reader.range(&everything(), &RangeOptions { revision, ..RangeOptions::default() });
    let expected: Vec<_> = (990..=1001).map(|revision| at(revision).expect("readable").kvs).collect();
    let mut turns = 0;
    while store.compact_step(16) {
        turns += 1;
        let found: Vec<_> = (990..=1001).map(|revision| at(revision).expect("readable").kvs).collect();
        assert_eq!(found, expected, "after {turns} turns");
    }
    assert!(turns > 988 / 16, "{turns} turns");
    assert_eq!(store.reader().index_stats().0, 1);
    let hash = store.reader().hash_kv(0).expect("readable");
    sync(&mut store);
    drop(store);
    let (store, _) = open(&disk, small_options());
    assert_eq!(store.reader().hash_kv(0).expect("readable"), hash);
}
