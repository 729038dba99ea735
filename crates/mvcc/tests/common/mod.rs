//! A store that keeps everything and looks everything up the slow way.

// Each test crate uses its own part of this.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_env::{Disk, Mono, Rng, SimDisk};
use dolmen_mvcc::{HashKv, OpenReport, RangeOptions, RangeResult, SortOrder, SortTarget, Store};
use dolmen_proto::mvccpb::KeyValue;
use dolmen_revlog::{Hint, Log, Options};
use dolmen_types::{KeyRange, Revision};
use prost::Message;

/// One record that etcd would have put into bucket `key`.
#[derive(Clone, Debug)]
pub struct Record {
    pub rev: Revision,
    pub tombstone: bool,
    pub kv: KeyValue,
}

impl Record {
    pub fn payload(&self) -> Vec<u8> {
        self.kv.encode_to_vec()
    }
}

#[derive(Clone, Debug)]
pub struct Model {
    /// Every record ever, in revision order.
    pub records: Vec<Record>,
    pub current: i64,
    pub compact: i64,
}

/// What a range may answer besides a result.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    Compacted,
    Future,
}

impl Model {
    pub fn new() -> Self {
        Self { records: Vec::new(), current: 1, compact: -1 }
    }

    /// The newest record at or below `at` of each key.
    fn newest(&self, at: i64) -> BTreeMap<Bytes, &Record> {
        let records = self.records.iter().take_while(|record| record.rev.main <= at);
        records.map(|record| (record.kv.key.clone(), record)).collect()
    }

    pub fn at(&self, at: i64) -> BTreeMap<Bytes, &Record> {
        let mut newest = self.newest(at);
        newest.retain(|_, record| !record.tombstone);
        newest
    }

    /// Bucket `key` after a finished compaction at `self.compact`.
    pub fn bucket(&self) -> Vec<&Record> {
        let newest = self.newest(self.compact);
        let stays = |record: &&Record| {
            let last = newest.get(&record.kv.key).is_some_and(|last| last.rev == record.rev);
            record.rev.main > self.compact || last && (!record.tombstone || record.rev.main == self.compact)
        };
        self.records.iter().filter(stays).collect()
    }

    /// As etcd's `executeRange`, step by step.
    pub fn range(&self, range: &KeyRange, options: &RangeOptions) -> Result<RangeResult, Refused> {
        if options.revision > self.current {
            return Err(Refused::Future);
        }
        let at = if options.revision <= 0 { self.current } else { options.revision };
        if at < self.compact {
            return Err(Refused::Compacted);
        }
        let state = self.at(at);
        let mut kvs: Vec<KeyValue> =
            state.values().filter(|record| range.contains(&record.kv.key)).map(|record| record.kv.clone()).collect();
        let count = kvs.len() as i64;
        if options.count_only {
            return Ok(RangeResult { count, revision: self.current, ..RangeResult::default() });
        }
        let (target, mut order) = (options.sort_target, options.sort_order);
        let default = order == SortOrder::None || (target == SortTarget::Key && order == SortOrder::Ascend);
        let filters = [
            options.max_mod_revision,
            options.min_mod_revision,
            options.max_create_revision,
            options.min_create_revision,
        ];
        if default && filters == [0; 4] && options.limit > 0 {
            kvs.truncate((options.limit as usize).saturating_add(1));
        }
        kvs.retain(|kv| filters[0] == 0 || kv.mod_revision <= filters[0]);
        kvs.retain(|kv| filters[1] == 0 || kv.mod_revision >= filters[1]);
        kvs.retain(|kv| filters[2] == 0 || kv.create_revision <= filters[2]);
        kvs.retain(|kv| filters[3] == 0 || kv.create_revision >= filters[3]);
        if target != SortTarget::Key && order == SortOrder::None {
            order = SortOrder::Ascend;
        }
        match target {
            SortTarget::Key => kvs.sort_by_key(|kv| kv.key.clone()),
            SortTarget::Version => kvs.sort_by_key(|kv| kv.version),
            SortTarget::Create => kvs.sort_by_key(|kv| kv.create_revision),
            SortTarget::Mod => kvs.sort_by_key(|kv| kv.mod_revision),
            SortTarget::Value => kvs.sort_by_key(|kv| kv.value.clone()),
        }
        if order == SortOrder::Descend {
            // Ties keep key order, as the store under test has it: etcd leaves them open.
            kvs.reverse();
            if target != SortTarget::Key {
                kvs = ties_ascending(kvs, target);
            }
        }
        let more = options.limit > 0 && kvs.len() as i64 > options.limit;
        if more {
            kvs.truncate(options.limit as usize);
        }
        if options.keys_only {
            for kv in &mut kvs {
                kv.value = Bytes::new();
                if target != SortTarget::Value {
                    kv.lease = 0;
                }
            }
        }
        let kvs = kvs.iter().map(|kv| kv.encode_to_vec().into()).collect();
        Ok(RangeResult { kvs, count, more, revision: self.current })
    }

    /// HashKV over the bucket a finished compaction leaves, with etcd's rules of what is left out.
    pub fn hash_kv(&self, asked: i64) -> Result<HashKv, Refused> {
        if asked > 0 && asked < self.compact {
            return Err(Refused::Compacted);
        }
        if asked > self.current {
            return Err(Refused::Future);
        }
        let revision = if asked == 0 { self.current } else { asked };
        let keep = self.at(revision);
        Ok(self.hash_of(&self.bucket(), &keep, keep.is_empty(), self.compact, revision))
    }

    /// The hash etcd makes while it compacts at `revision`; to be called before the model compacts.
    pub fn compaction_hash(&self, revision: i64) -> HashKv {
        let keep = self.at(revision);
        let empty = keep.is_empty() && !self.records.iter().any(|record| record.rev.main == revision);
        self.hash_of(&self.bucket(), &keep, empty, self.compact, revision)
    }

    fn hash_of(
        &self,
        bucket: &[&Record],
        keep: &BTreeMap<Bytes, &Record>,
        keep_empty: bool,
        compact: i64,
        revision: i64,
    ) -> HashKv {
        let mut hash = crc32c::crc32c(b"key");
        for record in bucket {
            let main = record.rev.main;
            let kept = keep.get(&record.kv.key).is_some_and(|kept| kept.rev == record.rev);
            if main > revision || main <= compact && !keep_empty && !kept || main == compact && record.tombstone {
                continue;
            }
            let (key, len) = record.rev.to_bolt_key(record.tombstone);
            hash = crc32c::crc32c_append(hash, &key[..len]);
            hash = crc32c::crc32c_append(hash, &record.payload());
        }
        HashKv { hash, compact_revision: compact, hash_revision: revision, revision: self.current }
    }

    pub fn leases(&self) -> Vec<(i64, Bytes)> {
        let state = self.at(self.current);
        let leased = state.iter().filter(|(_, record)| record.kv.lease != 0);
        leased.map(|(key, record)| (record.kv.lease, key.clone())).collect()
    }
}

fn ties_ascending(kvs: Vec<KeyValue>, target: SortTarget) -> Vec<KeyValue> {
    let mut runs: Vec<Vec<KeyValue>> = Vec::new();
    let number = |kv: &KeyValue| match target {
        SortTarget::Version => kv.version,
        SortTarget::Create => kv.create_revision,
        _ => kv.mod_revision,
    };
    let same = |a: &KeyValue, b: &KeyValue| {
        if target == SortTarget::Value { a.value == b.value } else { number(a) == number(b) }
    };
    for kv in kvs {
        match runs.last_mut() {
            Some(run) if same(&run[0], &kv) => run.insert(0, kv),
            _ => runs.push(vec![kv]),
        }
    }
    runs.concat()
}

pub fn small_options() -> Options {
    Options {
        segment_bytes: 4 << 10,
        sync_interval: 0,
        sync_bytes: 1 << 10,
        part_bytes: 200,
        reclaim_bytes_per_second: 1 << 40,
        reclaim_slice_bytes: 1 << 10,
        garbage_percent: 1,
        history_bytes: 0,
        spare_bytes: 0,
    }
}

pub const DIR: &str = "/member/store";

pub fn open(disk: &SimDisk, options: Options) -> (Store, OpenReport) {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let (log, recovered) = Log::open(disk, Path::new(DIR), options).expect("the log opens");
    Store::open(log, recovered).expect("the store opens")
}

/// Runs the log's jobs at one moment until none is due.
pub fn run_jobs(store: &mut Store, now: &mut u64, hint: Hint) {
    *now += 1_000_000_000;
    while let Some(job) = store.log().next_job(Mono(*now), hint) {
        let done = job.run().expect("the disk is healthy");
        store.log().finish_job(done);
    }
}

pub fn key_of(rng: &mut Rng, keys: u64) -> Bytes {
    let n = rng.below(keys);
    match n % 16 {
        15 => Bytes::from(vec![b'k'; 200]),
        m => Bytes::from(format!("{}/{n:03}", (b'a' + (m % 5) as u8) as char)),
    }
}

pub fn range_of(rng: &mut Rng, keys: u64) -> KeyRange {
    match rng.below(10) {
        0..=3 => KeyRange::Single(key_of(rng, keys)),
        4..=6 => KeyRange::Range(key_of(rng, keys), key_of(rng, keys)),
        7 => KeyRange::From(key_of(rng, keys)),
        8 => KeyRange::parse("b/".into(), "b0".into()),
        _ => KeyRange::parse("\0".into(), "\0".into()),
    }
}

pub fn options_of(rng: &mut Rng, model: &Model) -> RangeOptions {
    let mut rev = |permille| {
        if !rng.chance(permille) {
            return 0;
        }
        let (low, high) = ((model.compact - 2).max(-2), model.current + 2);
        low + rng.below((high - low + 1) as u64) as i64
    };
    let revision = rev(600);
    let (min_mod_revision, max_mod_revision) = (rev(150), rev(150));
    let (min_create_revision, max_create_revision) = (rev(150), rev(150));
    RangeOptions {
        revision,
        limit: if rng.chance(500) { rng.below(12) as i64 - 1 } else { 0 },
        count_only: rng.chance(150),
        keys_only: rng.chance(250),
        sort_order: SortOrder::from_number(rng.below(3) as i32).expect("0 to 2 are orders"),
        sort_target: SortTarget::from_number(rng.below(5) as i32).expect("0 to 4 are targets"),
        min_mod_revision,
        max_mod_revision,
        min_create_revision,
        max_create_revision,
    }
}
