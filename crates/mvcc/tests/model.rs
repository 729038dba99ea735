//! Random histories against a model that keeps every record and looks things up the slow way.

mod common;

use std::ops::ControlFlow;

use bytes::Bytes;
use common::{Model, Record, Refused, key_of, open, options_of, range_of, run_jobs, small_options};
use dolmen_bolt::{MemorySource, Source};
use dolmen_env::{PowerLoss, Rng, SimDisk};
use dolmen_mvcc::{Change, CompactError, Event, RangeError, RangeOptions, RangeResult, Store, hash_all, restore_from};
use dolmen_proto::mvccpb::KeyValue;
use dolmen_revlog::{Hint, Table, TableOp};
use dolmen_types::{KeyRange, Revision};

struct World {
    rng: Rng,
    disk: SimDisk,
    store: Store,
    model: Model,
    index: u64,
    /// The model as it stood at each commit since the last restart, with its raft index.
    commits: Vec<(u64, Model)>,
    now: u64,
    keys: u64,
}

fn same(ours: Result<RangeResult, RangeError>, theirs: Result<RangeResult, Refused>) {
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => assert_eq!(ours, theirs),
        (Err(RangeError::Compacted), Err(Refused::Compacted)) => {}
        (Err(RangeError::FutureRevision), Err(Refused::Future)) => {}
        (ours, theirs) => panic!("{ours:?} is not {theirs:?}"),
    }
}

impl World {
    fn new(seed: u64, keys: u64) -> Self {
        println!("seed {seed}");
        let disk = SimDisk::new(seed);
        let (store, report) = open(&disk, small_options());
        assert_eq!((report.revision, report.compact_revision), (1, -1));
        let model = Model::new();
        let commits = vec![(0, model.clone())];
        Self { rng: Rng::new(seed), disk, store, model, index: 0, commits, now: 0, keys }
    }

    fn request(&mut self) {
        let rng = &mut self.rng;
        let before = self.model.clone();
        let main = before.current + 1;
        let mut txn = self.store.begin();
        let mut expected: Vec<Record> = Vec::new();
        for _ in 0..1 + rng.below(3) {
            let mut state = self.model.clone();
            state.current = txn.revision();
            assert_eq!(state.current, main - i64::from(expected.is_empty()));
            if rng.chance(400) {
                let (range, mut options) = (range_of(rng, self.keys), options_of(rng, &state));
                if rng.chance(500) {
                    options.revision = state.current;
                }
                same(txn.range(&range, &options), state.range(&range, &options));
            }
            if rng.chance(650) {
                let key = key_of(rng, self.keys);
                let lease = if rng.chance(300) { rng.below(4) as i64 - 1 } else { 0 };
                let value = Bytes::from(vec![b'0' + rng.below(10) as u8; rng.below(60) as usize]);
                let alive = state.at(main).get(&key).map(|record| record.kv.clone());
                let prev = txn.put(&key, &value, lease);
                assert_eq!(prev.map(|found| found.version), alive.as_ref().map(|kv| kv.version));
                let (create, version) = alive.map_or((main, 0), |kv| (kv.create_revision, kv.version));
                let kv =
                    KeyValue { key, value, create_revision: create, mod_revision: main, version: version + 1, lease };
                expected.push(Record { rev: Revision::new(main, expected.len() as i64), tombstone: false, kv });
            } else {
                let range = if rng.chance(700) {
                    KeyRange::Single(key_of(rng, self.keys))
                } else {
                    KeyRange::Range(key_of(rng, self.keys), key_of(rng, self.keys))
                };
                let alive = state.at(main);
                let gone: Vec<Bytes> = alive.keys().filter(|key| range.contains(key)).cloned().collect();
                assert_eq!(txn.delete_range(&range), gone);
                for key in gone {
                    let kv = KeyValue { key, ..KeyValue::default() };
                    expected.push(Record { rev: Revision::new(main, expected.len() as i64), tombstone: true, kv });
                }
            }
            self.model.records.truncate(before.records.len());
            self.model.records.extend(expected.iter().cloned());
        }
        for change in txn.changes() {
            assert_eq!(txn.payload(change.rev).expect("just made"), change.payload);
        }
        let changes = txn.finish();
        self.model.current = main - i64::from(expected.is_empty());
        assert_eq!(self.store.revision(), self.model.current);
        check_changes(&changes, &expected, &before);
    }

    fn commit(&mut self) {
        self.index += 1 + self.rng.below(3);
        let value = Bytes::from(self.index.to_string());
        let op = TableOp { table: Table::Meta, key: "confState".into(), value: Some(value) };
        self.store.commit(self.index, 7, vec![op]);
        self.commits.push((self.index, self.model.clone()));
    }

    fn compact(&mut self) {
        let rev = self.model.current + 1 - self.rng.below(20.min(self.model.current as u64 + 2)) as i64;
        let hash = self.model.compaction_hash(rev);
        let with_hash = self.rng.chance(500);
        let job = if with_hash {
            self.store.compact_with_hash(rev).map(Some)
        } else {
            self.store.compact(rev).map(|()| None)
        };
        match job {
            Err(CompactError::Compacted) => assert!(rev <= self.model.compact),
            Err(CompactError::FutureRevision) => assert!(rev > self.model.current),
            Ok(job) => {
                assert!(rev > self.model.compact && rev <= self.model.current);
                self.model.compact = rev;
                let Some(job) = job else { return };
                if self.rng.chance(700) {
                    // Whatever happens meanwhile, the job sees the moment it was made.
                    if self.rng.chance(500) {
                        self.request();
                        self.commit();
                        while self.store.compact_step(7) {}
                        run_jobs(&mut self.store, &mut self.now, Hint::Reclaim);
                    }
                    assert_eq!(job.run().expect("readable"), hash);
                    let reader = self.store.reader();
                    assert_eq!(reader.compaction_hashes().last(), Some(&hash));
                    if rev != 0 {
                        let again = reader.hash_kv(rev).expect("readable");
                        assert_eq!((again.hash, again.compact_revision), (hash.hash, hash.compact_revision));
                    }
                }
            }
        }
    }

    fn stored(&self, rev: i64) -> bool {
        rev != 0 && self.store.reader().compaction_hashes().iter().any(|hash| hash.hash_revision == rev)
    }

    fn check(&mut self) {
        let reader = self.store.reader();
        let txn = reader.read();
        for _ in 0..3 {
            let range = range_of(&mut self.rng, self.keys);
            let options = options_of(&mut self.rng, &self.model);
            same(reader.range(&range, &options), self.model.range(&range, &options));
            same(txn.range(&range, &options), self.model.range(&range, &options));
        }
        let low = self.model.compact - 1;
        let rev = low + self.rng.below((self.model.current + 2 - low) as u64) as i64;
        if !self.stored(rev) {
            match (reader.hash_kv(rev), self.model.hash_kv(rev)) {
                (Ok(ours), Ok(theirs)) => assert_eq!(ours, theirs),
                (Err(RangeError::Compacted), Err(Refused::Compacted)) => {}
                (Err(RangeError::FutureRevision), Err(Refused::Future)) => {}
                (ours, theirs) => panic!("{ours:?} is not {theirs:?}"),
            }
        }
        self.check_history(rev);
        let key = key_of(&mut self.rng, self.keys);
        let prev = reader.prev_payload(&key, rev).expect("readable");
        let state =
            (rev > 1 && rev > self.model.compact && rev <= self.model.current + 1).then(|| self.model.at(rev - 1));
        let expected = state.and_then(|state| state.get(&key).map(|record| record.payload()));
        assert_eq!(prev.map(|payload| payload.to_vec()), expected);
        self.check_metas();
    }

    fn check_metas(&mut self) {
        let range = range_of(&mut self.rng, self.keys);
        let state = self.model.at(self.model.current);
        let expected: Vec<_> = state
            .values()
            .filter(|record| range.contains(&record.kv.key))
            .map(|record| (record.kv.key.to_vec(), record.kv.create_revision, record.kv.version, record.rev))
            .collect();
        let mut seen = Vec::new();
        let txn = self.store.reader().read();
        txn.for_each_meta(&range, |meta| {
            seen.push((meta.key.to_vec(), meta.create_revision, meta.version, meta.modified));
            ControlFlow::Continue(())
        })
        .expect("nothing was installed");
        for (_, _, _, rev) in &seen {
            assert!(!txn.payload(*rev).expect("readable").is_empty());
        }
        assert_eq!(seen, expected);
        seen.clear();
        self.store.begin().for_each_meta(&range, |meta| {
            seen.push((meta.key.to_vec(), meta.create_revision, meta.version, meta.modified));
            ControlFlow::Continue(())
        });
        assert_eq!(seen, expected);
    }

    fn check_history(&mut self, from: i64) {
        let reader = self.store.reader();
        if from < self.model.compact {
            let compacted = reader.history(from, i64::MAX, |_| ControlFlow::Continue(()));
            assert!(matches!(compacted, Err(RangeError::Compacted)));
            return;
        }
        // Read in pieces that end behind a revision.
        let piece = self.rng.range(1, 20) as usize;
        let (mut next, mut events) = (from, Vec::new());
        loop {
            let before = events.len();
            let read = reader.history(next, i64::MAX, |event| {
                if events.len() >= before + piece
                    && events.last().is_some_and(|last: &Event| last.rev.main < event.rev.main)
                {
                    return ControlFlow::Break(());
                }
                events.push(event);
                ControlFlow::Continue(())
            });
            read.expect("readable");
            if events.len() == before {
                break;
            }
            next = events[events.len() - 1].rev.main + 1;
        }
        // At the compact revision itself a record superseded within its own request may be gone already.
        let bucket = self.model.bucket();
        let expected = bucket.iter().filter(|record| record.rev.main >= from);
        let got = events
            .iter()
            .filter(|event| event.rev.main > self.model.compact || bucket.iter().any(|record| record.rev == event.rev));
        let got: Vec<_> = got.map(|event| (event.rev, event.tombstone, event.payload.to_vec())).collect();
        let expected: Vec<_> = expected.map(|record| (record.rev, record.tombstone, record.payload())).collect();
        assert_eq!(got, expected);
        for event in &events {
            let kv = self.model.records.iter().find(|record| record.rev == event.rev).map(|record| &record.kv);
            let kv = kv.expect("the model has every record");
            assert_eq!((&event.key, event.create), (&kv.key, kv.create_revision));
        }
    }

    /// Exports, imports into another store, and compares.
    fn check_snapshot(&mut self) {
        let tables = self.store.log().tables().clone();
        let source = self.store.reader().snapshot_source(tables.clone(), self.index, 7).expect("nothing installed");
        let mut copy = MemorySource::new();
        let mut lens = 0;
        for bucket in source.buckets() {
            let mut sizes = Vec::new();
            source
                .sizes(&bucket, &mut |key, value| {
                    sizes.push((key, value));
                    Ok(())
                })
                .expect("readable");
            let into = copy.entry(bucket.clone()).or_default();
            let mut at = 0;
            source
                .for_each(&bucket, &mut |key, value| {
                    assert_eq!(sizes[at], (key.len(), value.len()));
                    at += 1;
                    into.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
                    Ok(())
                })
                .expect("readable");
            assert_eq!(at, sizes.len());
            lens += at;
        }
        let bucket = &copy[&b"key"[..]];
        let expected = self.model.bucket();
        assert_eq!(bucket.len(), expected.len());
        for (record, (key, value)) in expected.iter().zip(bucket) {
            let (bolt_key, len) = record.rev.to_bolt_key(record.tombstone);
            assert_eq!((&key[..], &value[..]), (&bolt_key[..len], &record.payload()[..]));
        }
        assert!(lens >= bucket.len() + 3);
        assert_eq!(hash_all(&source).expect("readable"), hash_all(&copy).expect("readable"));

        let disk = SimDisk::new(self.rng.next_u64());
        let (mut other, _) = open(&disk, small_options());
        let old = other.reader();
        let fill = self.rng.below(4);
        for n in 0..fill {
            let mut txn = other.begin();
            txn.put(&Bytes::from(format!("old{n}")), b"value", 9);
            txn.finish();
            other.commit(n + 1, 1, Vec::new());
        }
        let pinned = old.read();
        let restored = restore_from(other.log().replace(), &copy).expect("a snapshot of ours");
        assert_eq!(restored.position(), (self.index, 7));
        let report = other.install(restored).expect("the disk is healthy");
        assert_eq!(report.leases, self.model.leases());
        assert_eq!((report.revision, report.compact_revision), (self.model.current, self.model.compact));
        assert_eq!(other.log().tables(), &tables);
        for reader in [old, other.reader()] {
            let all = KeyRange::From(Bytes::new());
            same(reader.range(&all, &RangeOptions::default()), self.model.range(&all, &RangeOptions::default()));
            assert_eq!(reader.hash_kv(0).expect("readable"), self.model.hash_kv(0).expect("0 is fine"));
        }
        drop(pinned);
        drop(other);
        let (other, report) = open(&disk, small_options());
        assert_eq!((report.index, report.revision), (self.index, self.model.current));
        assert_eq!(other.reader().hash_kv(0).expect("readable"), self.model.hash_kv(0).expect("0 is fine"));
    }

    fn reopen(&mut self) {
        let crash = self.rng.chance(500);
        if !crash {
            self.commit();
            run_jobs(&mut self.store, &mut self.now, Hint::Sync);
            assert_eq!(self.store.log().durable_index(), self.index);
        }
        let durable = self.store.log().durable_index();
        // The store must go before the disk's lock does.
        let empty = SimDisk::new(1);
        let old = std::mem::replace(&mut self.store, open(&empty, small_options()).0);
        drop(old);
        if crash {
            let shape = *self.rng.pick(&PowerLoss::ALL);
            self.disk.power_loss(shape);
        }
        let (store, report) = open(&self.disk, small_options());
        self.store = store;
        assert!(report.index >= durable, "{} is durable, {} was found", durable, report.index);
        let commit = self.commits.iter().find(|(index, _)| *index == report.index);
        let (index, model) = commit.expect("a log ends at a commit").clone();
        (self.index, self.model) = (index, model.clone());
        self.commits = vec![(index, model)];
        assert_eq!((report.revision, report.compact_revision), (self.model.current, self.model.compact));
        assert_eq!(report.leases, self.model.leases());
        assert_eq!(report.keys, self.model.at(i64::MAX).len() as u64);
        assert!(!self.store.compact_step(10), "opening compacts");
    }
}

fn check_changes(changes: &[Change], expected: &[Record], before: &Model) {
    assert_eq!(changes.len(), expected.len());
    let mut all = before.clone();
    for (change, record) in changes.iter().zip(expected) {
        let kv = &record.kv;
        assert_eq!((change.rev, change.tombstone, &change.key), (record.rev, record.tombstone, &kv.key));
        assert_eq!(change.payload, record.payload());
        assert_eq!((change.create, change.version, change.lease), (kv.create_revision, kv.version, kv.lease));
        let state = all.at(i64::MAX);
        let prev = state.get(&kv.key);
        assert_eq!(change.prev_lease, prev.map_or(0, |record| record.kv.lease));
        assert_eq!(change.prev_rev, prev.map_or(Revision::default(), |record| record.rev));
        assert_eq!(change.prev_mod, change.prev_rev.main);
        all.records.push(record.clone());
    }
}

fn history(seed: u64, keys: u64, steps: u64) {
    let mut world = World::new(seed, keys);
    for _ in 0..steps {
        match world.rng.below(100) {
            0..=44 => world.request(),
            45..=59 => world.commit(),
            60..=64 => world.compact(),
            65..=74 => {
                let budget = 1 + world.rng.below(20) as usize;
                world.store.compact_step(budget);
            }
            75..=79 => {
                let hint = if world.rng.chance(300) { Hint::Reclaim } else { Hint::Normal };
                run_jobs(&mut world.store, &mut world.now, hint);
            }
            80..=95 => world.check(),
            96 => {
                world.commit();
                world.check_snapshot();
            }
            97 => world.reopen(),
            _ => {}
        }
    }
    world.check();
}

#[test]
fn random_histories_agree_with_the_model() {
    for seed in 0..24 {
        history(seed, 24, 900);
    }
}

#[test]
fn random_histories_of_many_keys_agree_with_the_model() {
    for seed in 1000..1004 {
        history(seed, 700, 1_500);
    }
}
