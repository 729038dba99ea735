//! Single cases that random histories may not hit.

mod common;

use bytes::Bytes;
use common::{open, run_jobs, small_options};
use dolmen_bolt::MemorySource;
use dolmen_env::SimDisk;
use dolmen_mvcc::{
    CompactError, CompactionHash, KeyValueRef, RangeError, RangeOptions, ReadTxn, Reader, RestoreError, Restored,
    SnapshotSource, SortOrder, SortTarget, Store, hash_all, restore_from,
};
use dolmen_revlog::Hint;
use dolmen_types::{KeyRange, Revision};

fn put(store: &mut Store, key: &'static str, value: &str) -> i64 {
    let mut txn = store.begin();
    txn.put(&Bytes::from_static(key.as_bytes()), value.as_bytes(), 0);
    txn.finish();
    store.revision()
}

fn value_at(reader: &Reader, key: &'static str, revision: i64) -> Option<Vec<u8>> {
    let options = RangeOptions { revision, ..RangeOptions::default() };
    let result = reader.range(&KeyRange::Single(key.into()), &options).expect("readable");
    result.kvs.first().map(|kv| KeyValueRef::decode(kv).expect("a KeyValue").value.to_vec())
}

#[test]
fn what_crosses_threads_may_cross_them() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    send::<Store>();
    send::<SnapshotSource>();
    send::<Restored>();
    send::<CompactionHash>();
    send::<ReadTxn>();
    send::<Reader>();
    sync::<Reader>();
}

#[test]
fn a_fresh_store_accepts_a_compaction_at_0_once() {
    let (mut store, _) = open(&SimDisk::new(1), small_options());
    assert_eq!((store.revision(), store.compact_revision()), (1, -1));
    assert_eq!(store.compact(0), Ok(()));
    assert_eq!(store.compact(0), Err(CompactError::Compacted));
    assert_eq!(store.compact(2), Err(CompactError::FutureRevision));
    assert_eq!(store.compact(1), Ok(()));
}

#[test]
fn an_abandoned_request_is_never_seen() {
    let (mut store, _) = open(&SimDisk::new(1), small_options());
    put(&mut store, "a", "1");
    let reader = store.reader();
    let before = reader.hash_kv(0).expect("readable").hash;
    let mut txn = store.begin();
    txn.put(&"a".into(), b"2", 0);
    txn.put(&"b".into(), b"2", 0);
    txn.abandon();
    assert_eq!(store.revision(), 2);
    assert_eq!((value_at(&reader, "a", 0), value_at(&reader, "b", 0)), (Some(b"1".to_vec()), None));
    let all = reader.range(&KeyRange::From(Bytes::from_static(b"\0")), &RangeOptions::default()).expect("readable");
    assert_eq!((all.count, all.kvs.len(), all.revision), (1, 1, 2));
    assert_eq!(reader.hash_kv(0).expect("readable").hash, before);
}

#[test]
fn a_request_without_changes_uses_no_revision_and_a_dropped_one_keeps_its_changes() {
    let (mut store, _) = open(&SimDisk::new(1), small_options());
    let mut txn = store.begin();
    assert!(txn.delete_range(&KeyRange::From(Bytes::new())).is_empty());
    assert!(txn.finish().is_empty());
    assert_eq!(store.revision(), 1);
    let mut txn = store.begin();
    txn.put(&"a".into(), b"1", 0);
    assert_eq!((txn.base_revision(), txn.revision()), (1, 2));
    drop(txn);
    assert_eq!(store.revision(), 2);
    assert_eq!(value_at(&store.reader(), "a", 0).as_deref(), Some(&b"1"[..]));
}

#[test]
fn a_txn_checks_a_ranges_revision_as_etcd_does() {
    let (mut store, _) = open(&SimDisk::new(1), small_options());
    for n in 0..4 {
        put(&mut store, "a", &n.to_string());
    }
    let check = |store: &mut Store, revision| match store.begin().check_revision(revision) {
        Ok(()) => "ok",
        Err(RangeError::Compacted) => "compacted",
        Err(_) => "future",
    };
    // Never compacted stands at -1.
    assert_eq!([0, -1, -2, 5, 6].map(|rev| check(&mut store, rev)), ["ok", "ok", "compacted", "ok", "future"]);
    store.compact(3).expect("not compacted yet");
    assert_eq!([0, -1, 2, 3, 6].map(|rev| check(&mut store, rev)), ["ok", "compacted", "compacted", "ok", "future"]);
    let txn = store.begin();
    let single = KeyRange::Single("a".into());
    let at = |revision| RangeOptions { revision, ..RangeOptions::default() };
    assert!(txn.range(&single, &at(-1)).is_ok_and(|result| result.count == 1));
    assert!(matches!(txn.range(&single, &at(2)), Err(RangeError::Compacted)));
    assert!(matches!(txn.range(&single, &at(6)), Err(RangeError::FutureRevision)));
}

#[test]
fn a_pin_holds_back_pruning_but_not_the_watermark() {
    let disk = SimDisk::new(1);
    let (mut store, _) = open(&disk, small_options());
    for n in 0..20 {
        put(&mut store, "a", &n.to_string());
        put(&mut store, "b", &n.to_string());
        store.commit(n + 1, 1, Vec::new());
    }
    let reader = store.reader();
    let pinned = reader.read();
    let (old, mut now) = (pinned.revision(), 0);
    for n in 0..20 {
        put(&mut store, "a", &(100 + n).to_string());
    }
    let rev = store.revision();
    store.compact(rev).expect("not compacted yet");
    assert!(!store.compact_step(100), "not before the commit");
    store.commit(40, 1, Vec::new());
    run_jobs(&mut store, &mut now, Hint::Sync);
    while store.compact_step(1) {}
    run_jobs(&mut store, &mut now, Hint::Reclaim);
    let at = RangeOptions { revision: old, ..RangeOptions::default() };
    assert!(matches!(reader.range(&KeyRange::Single("a".into()), &at), Err(RangeError::Compacted)));
    let result = pinned.range(&KeyRange::From("a".into()), &at).expect("pinned");
    let values: Vec<&[u8]> = result.kvs.iter().map(|kv| KeyValueRef::decode(kv).expect("a KeyValue").value).collect();
    assert_eq!(values, [b"19", b"19"]);
    let pinned_size = reader.index_stats().0;
    assert_eq!(pinned_size, 2, "nothing is pruned of what the pinned reader may ask for");
    drop(pinned);
    while store.compact_step(1) {}
    assert_eq!(reader.index_stats().0, 0);
    assert!(!store.compact_step(1));
    assert_eq!(reader.payload(Revision::new(rev, 0)).expect("readable").map(|_| ()), Some(()));
}

#[test]
fn keys_only_leaves_out_the_lease_unless_sorted_by_value() {
    let (mut store, _) = open(&SimDisk::new(1), small_options());
    let mut txn = store.begin();
    txn.put(&"a".into(), b"value", 77);
    txn.finish();
    let lease = |sort_target| {
        let options = RangeOptions { keys_only: true, sort_target, ..RangeOptions::default() };
        let result = store.reader().range(&KeyRange::From("a".into()), &options).expect("readable");
        let kv = KeyValueRef::decode(&result.kvs[0]).expect("a KeyValue");
        assert_eq!((kv.key, kv.value, kv.mod_revision, kv.version), (&b"a"[..], &b""[..], 2, 1));
        kv.lease
    };
    assert_eq!((lease(SortTarget::Key), lease(SortTarget::Mod), lease(SortTarget::Value)), (0, 0, 77));
}

fn bucket(pairs: &[(Revision, bool, &str)]) -> MemorySource {
    let mut source = MemorySource::new();
    let into = source.entry("key".into()).or_default();
    for (rev, tombstone, key) in pairs {
        let (bolt_key, len) = rev.to_bolt_key(*tombstone);
        let kv = KeyValueRef { key: key.as_bytes(), ..KeyValueRef::default() };
        let kv = if *tombstone {
            kv
        } else {
            KeyValueRef { create_revision: rev.main, mod_revision: rev.main, version: 1, ..kv }
        };
        into.insert(Bytes::copy_from_slice(&bolt_key[..len]), kv.encode());
    }
    source
}

#[test]
fn a_restored_store_never_stands_below_its_compact_revision() {
    // The highest revision was a tombstone, compacted away; only the mark of the scheduled compaction is left of it.
    let mut source = bucket(&[(Revision::new(4, 0), false, "a")]);
    let (key, len) = Revision::new(1_000_000_009, 0).to_bolt_key(false);
    let meta = source.entry("meta".into()).or_default();
    meta.insert("scheduledCompactRev".into(), Bytes::copy_from_slice(&key[..len]));
    meta.insert("finishedCompactRev".into(), Bytes::copy_from_slice(&Revision::new(3, 0).to_bolt_key(false).0[..17]));
    meta.insert("consistent_index".into(), Bytes::copy_from_slice(&12u64.to_be_bytes()));
    meta.insert("term".into(), Bytes::copy_from_slice(&3u64.to_be_bytes()));
    meta.insert("storageVersion".into(), "3.6.0".into());
    source.entry("test".into()).or_default().insert("unknown".into(), "bucket".into());
    let disk = SimDisk::new(1);
    let (mut store, _) = open(&disk, small_options());
    let restored = restore_from(store.log().replace(), &source).expect("a snapshot of etcd's");
    assert_eq!((restored.position(), restored.revision()), ((12, 3), 1_000_000_009));
    let report = store.install(restored).expect("healthy");
    assert_eq!((report.revision, report.compact_revision, report.keys), (1_000_000_009, 1_000_000_009, 1));
    assert_eq!(put(&mut store, "b", "1"), 1_000_000_010);
    store.commit(13, 3, Vec::new());
    run_jobs(&mut store, &mut 0, Hint::Sync);
    drop(store);
    let (store, report) = open(&disk, small_options());
    assert_eq!((report.revision, report.compact_revision, report.index), (1_000_000_010, 1_000_000_009, 13));
    assert!(value_at(&store.reader(), "a", 0).is_some());
}

#[test]
fn buckets_that_are_not_etcds_are_refused_and_change_nothing() {
    let (mut store, _) = open(&SimDisk::new(1), small_options());
    put(&mut store, "a", "1");
    store.commit(1, 1, Vec::new());
    let good = bucket(&[(Revision::new(2, 0), false, "a"), (Revision::new(3, 0), true, "a")]);
    let with = |bucket: &'static str, key: &'static [u8], value: &'static [u8]| {
        let mut source = good.clone();
        source.entry(bucket.into()).or_default().insert(key.into(), value.into());
        source
    };
    let cases = [
        with("key", b"short", b""),
        with("key", b"\0\0\0\0\0\0\0\x04_\0\0\0\0\0\0\0\0", b"\x0a\x7f"),
        with("meta", b"consistent_index", b"\x01"),
        with("meta", b"term", b""),
        with("meta", b"finishedCompactRev", b"none"),
        // Negative, and above what one request may hold.
        with("key", b"\xff\0\0\0\0\0\0\x04_\0\0\0\0\0\0\0\0", b""),
        with("key", b"\0\0\0\0\0\0\0\x04_\x01\0\0\0\0\0\0\0", b""),
    ];
    for (case, source) in cases.iter().enumerate() {
        let error = restore_from(store.log().replace(), source).map(|_| ()).expect_err("not etcd's");
        assert!(matches!(error, RestoreError::Foreign { .. } | RestoreError::Order(_)), "case {case}: {error:?}");
    }
    assert_eq!(value_at(&store.reader(), "a", 0).as_deref(), Some(&b"1"[..]));
    let restored = restore_from(store.log().replace(), &good).expect("a snapshot of etcd's");
    store.install(restored).expect("healthy");
    assert_eq!((store.revision(), value_at(&store.reader(), "a", 0)), (3, None));
    assert!(value_at(&store.reader(), "a", 2).is_some());
}

/// A follower installs a snapshot while a backup waits for its turn, a transaction reads and a hash is made: each of them
/// ends with the store that it began with, compacted or not.
#[test]
fn what_is_pinned_outlives_an_installed_snapshot() {
    for compacted in [false, true] {
        let (mut store, _) = open(&SimDisk::new(1), small_options());
        for value in ["old", "new"] {
            put(&mut store, "a", value);
        }
        put(&mut store, "b", "b");
        store.commit(1, 1, Vec::new());
        if compacted {
            store.compact(3).expect("a revision that there is");
            store.commit(2, 1, Vec::new());
        }
        put(&mut store, "c", "pending");
        let reader = store.reader();
        let tables = store.log_ref().tables().clone();
        let (read, backup) = (reader.read(), reader.snapshot_source(tables, 2, 1).expect("healthy"));
        let wanted = hash_all(&backup).expect("healthy");
        let backup = reader.snapshot_source(store.log_ref().tables().clone(), 2, 1).expect("healthy");
        for source in [
            bucket(&[(Revision::new(2, 0), false, "a"), (Revision::new(9, 0), false, "d")]),
            bucket(&[(Revision::new(3, 0), false, "x")]),
        ] {
            let restored = restore_from(store.log().replace(), &source).expect("a snapshot of etcd's");
            store.install(restored).expect("healthy");
        }
        let all = KeyRange::From("a".into());
        let found = read.range(&all, &RangeOptions::default()).expect("pinned");
        let keys: Vec<_> = found.kvs.iter().map(|kv| KeyValueRef::decode(kv).expect("a KeyValue").key).collect();
        assert_eq!((keys, found.revision), (vec![&b"a"[..], b"b", b"c"], 5));
        assert_eq!(hash_all(&backup).expect("pinned"), wanted, "compacted: {compacted}");
        drop((read, backup));
        let found = reader.range(&all, &RangeOptions::default()).expect("healthy");
        assert_eq!((found.count, found.revision), (1, 3));
    }
}

#[test]
fn the_key_of_a_revision_is_found() {
    let (mut store, _) = open(&SimDisk::new(1), small_options());
    let mut txn = store.begin();
    for n in 0..5000 {
        txn.put(&Bytes::from(format!("key{n:05}")), b"1", 0);
    }
    txn.finish();
    for _ in 0..3 {
        put(&mut store, "key04321", "2");
    }
    let reader = store.reader();
    assert_eq!(reader.key_of(Revision::new(2, 4999)).as_deref(), Some(&b"key04999"[..]));
    for main in 3..6 {
        assert_eq!(reader.key_of(Revision::new(main, 0)).as_deref(), Some(&b"key04321"[..]));
    }
    assert_eq!((reader.key_of(Revision::new(3, 1)), reader.key_of(Revision::new(9, 0))), (None, None));
}

#[test]
fn a_read_in_turns_stays_at_its_revision_whatever_happens_in_between() {
    const KEYS: usize = 10_000;
    let (mut store, _) = open(&SimDisk::new(1), small_options());
    let mut txn = store.begin();
    for n in 0..KEYS {
        txn.put(&Bytes::from(format!("key{n:05}")), &Bytes::from(format!("{:05}", n * 7919 % KEYS)), 0);
    }
    txn.finish();
    store.commit(1, 1, Vec::new());
    let all = KeyRange::From("key".into());
    let sorted = RangeOptions { sort_target: SortTarget::Value, sort_order: SortOrder::Descend, ..Default::default() };
    let filtered = RangeOptions { max_create_revision: 1, ..Default::default() };
    let mut index = 1;
    let mut commit = |store: &mut Store| {
        index += 1;
        store.commit(index, 1, Vec::new());
    };
    for (case, options) in [RangeOptions::default(), sorted, filtered].into_iter().enumerate() {
        // What is asked is in the past, so nothing may be counted by the sums of the present.
        let at = store.revision();
        let options = RangeOptions { revision: at, ..options };
        let reader = store.reader();
        let expected = reader.range(&all, &options).expect("healthy");
        let mut txn = store.begin();
        for n in (case..KEYS).step_by(4) {
            txn.put(&Bytes::from(format!("key{n:05}")), &Bytes::from_static(b"later"), 0);
        }
        txn.finish();
        commit(&mut store);
        let mut read = reader.begin(&all, &options).expect("healthy");
        let mut turns = 0;
        let result = loop {
            if let Some(result) = read.turn().expect("healthy") {
                break result;
            }
            turns += 1;
            if turns == 2 {
                store.compact(store.revision()).expect("a revision to come");
                while store.compact_step(1000) {}
                put(&mut store, "key00000x", "new");
                commit(&mut store);
            }
        };
        assert_eq!(result.count, (KEYS + case.min(1)) as i64, "case {case}");
        assert_eq!((result.kvs == expected.kvs, result.more), (true, expected.more), "case {case}");
        assert!(turns > 4, "case {case}: {turns} turns");
        // Compaction has moved on; the next case begins above it.
        put(&mut store, "key00000x", "again");
        commit(&mut store);
    }
}
