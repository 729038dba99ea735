//! A store on a simulated disk next to a model of what it may hold.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use dolmen_env::{Disk, Mono, Rng, SimDisk};
use dolmen_revlog::{
    Batch, Error, Hint, Job, JobDone, Log, NewRecord, Options, RecordMeta, Recovered, Table, TableOp, Tables,
};
use dolmen_types::Revision;

pub const DIR: &str = "/member/store";

pub fn dir() -> PathBuf {
    PathBuf::from(DIR)
}

/// Everything small, so that short histories roll, reclaim and merge.
pub fn small() -> Options {
    Options {
        segment_bytes: 3000,
        sync_interval: 1_000_000_000,
        sync_bytes: 1500,
        part_bytes: 150,
        reclaim_bytes_per_second: 1 << 40,
        reclaim_slice_bytes: 700,
        garbage_percent: 15,
        history_bytes: 0,
        spare_bytes: 2000,
    }
}

pub fn key_value(key: &[u8], value: &[u8]) -> Bytes {
    [&[0x0a, key.len() as u8][..], key, &[0x2a, value.len() as u8], value].concat().into()
}

pub fn put(main: i64, sub: i64, key: &str, value: &[u8]) -> NewRecord {
    NewRecord {
        rev: Revision::new(main, sub),
        tombstone: false,
        create: main,
        version: 1,
        lease: main % 3,
        key: Bytes::copy_from_slice(key.as_bytes()),
        payload: key_value(key.as_bytes(), value),
    }
}

pub fn tombstone(main: i64, sub: i64, key: &str) -> NewRecord {
    let payload = [&[0x0a, key.len() as u8][..], key.as_bytes()].concat();
    NewRecord {
        rev: Revision::new(main, sub),
        tombstone: true,
        create: 0,
        version: 0,
        lease: 0,
        key: Bytes::copy_from_slice(key.as_bytes()),
        payload: payload.into(),
    }
}

pub fn batch(index: u64, records: Vec<NewRecord>) -> Batch {
    Batch { index, term: 1, records, ..Batch::default() }
}

/// Runs jobs until none is due.
pub fn settle(log: &mut Log, now: Mono, hint: Hint) {
    let mut hint = hint;
    for _ in 0..100_000 {
        let Some(job) = log.next_job(now, hint) else { return };
        if hint == Hint::Reclaim {
            hint = Hint::Normal;
        }
        log.finish_job(job.run().unwrap());
    }
    panic!("jobs never end");
}

pub fn sync(log: &mut Log, now: Mono) {
    settle(log, now, Hint::Sync);
    assert_eq!(log.durable_index(), log.index());
}

/// What the store should be after one batch.
#[derive(Clone)]
pub struct Point {
    pub index: u64,
    pub term: u64,
    pub compact: i64,
    pub tables: Tables,
    /// Records up to here, of the model's list.
    pub records: usize,
}

/// Dead records in the order they died: superseded at or below the compact revision, and tombstones there.
pub fn dead(records: impl Iterator<Item = (Revision, bool, Bytes)>, compact: i64) -> Vec<Revision> {
    let mut newest: BTreeMap<Bytes, (Revision, bool)> = BTreeMap::new();
    let mut out = Vec::new();
    for (rev, tombstone, key) in records.filter(|(rev, ..)| rev.main <= compact) {
        if let Some((old, old_tombstone)) = newest.insert(key, (rev, tombstone))
            && !old_tombstone
        {
            out.push((rev, old));
        }
        if tombstone {
            out.push((rev, rev));
        }
    }
    out.sort();
    out.into_iter().map(|(_, rev)| rev).collect()
}

pub struct World {
    pub disk: SimDisk,
    pub options: Options,
    pub log: Option<Log>,
    pub now: Mono,
    pub rng: Rng,
    /// Points of the content the log is in, oldest first.
    pub points: Vec<Point>,
    pub records: Vec<NewRecord>,
    /// A content whose installation had begun when the machine stopped.
    pub installing: Option<(Point, Vec<NewRecord>)>,
    /// Jobs handed out and not run, results not handed in.
    pub jobs: Vec<Job>,
    pub done: Vec<JobDone>,
    pub durable: u64,
    marks: Vec<Revision>,
    pub swaps: u64,
}

impl World {
    pub fn new(disk: SimDisk, seed: u64, options: Options) -> Self {
        Self {
            disk,
            options,
            log: None,
            now: Mono(0),
            rng: Rng::new(seed),
            points: vec![Point { index: 0, term: 0, compact: -1, tables: Tables::default(), records: 0 }],
            records: Vec::new(),
            installing: None,
            jobs: Vec::new(),
            done: Vec::new(),
            durable: 0,
            marks: Vec::new(),
            swaps: 0,
        }
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.rng.below(n)
    }

    /// Opens the store and compares it with the model.
    pub fn open(&mut self) -> Result<(), Error> {
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let (mut log, recovered) = Log::open(disk, Path::new(DIR), self.options.clone())?;
        self.compare(&mut log, recovered);
        self.log = Some(log);
        Ok(())
    }

    fn compare(&mut self, log: &mut Log, recovered: Recovered) {
        if let Some((point, records)) = self.installing.take()
            && point.index == recovered.index
        {
            (self.points, self.records) = (vec![point], records);
        }
        let at = self.points.iter().rposition(|point| point.index == recovered.index);
        let at = at.unwrap_or_else(|| panic!("index {} is no point of the model", recovered.index));
        assert!(recovered.index >= self.durable, "{} was durable, {} is left", self.durable, recovered.index);
        self.points.truncate(at + 1);
        let point = self.points[at].clone();
        self.records.truncate(point.records);
        self.durable = log.durable_index();
        assert_eq!(self.durable, point.index);
        assert_eq!(log.tables(), &point.tables);
        assert_eq!((log.index(), log.term()), (point.index, point.term));
        assert_eq!((log.compact_revision(), recovered.compact_revision), (point.compact, point.compact));
        let metas: Vec<RecordMeta> = recovered.records.map(Result::unwrap).collect();
        self.marks = dead(metas.iter().map(|meta| (meta.rev, meta.tombstone, meta.key.clone())), point.compact);
        for meta in &metas {
            let at = self.records.binary_search_by_key(&meta.rev, |record| record.rev).expect("a record never written");
            let record = &self.records[at];
            let expected = RecordMeta {
                rev: record.rev,
                tombstone: record.tombstone,
                create: record.create,
                version: record.version,
                lease: record.lease,
                key: record.key.clone(),
                len: record.payload.len() as u32,
            };
            assert_eq!(*meta, expected);
        }
        assert!(metas.is_sorted_by(|a, b| a.rev < b.rev));
        self.same_visible(&metas, point.compact);
        self.check_reads(log, &metas.iter().map(|meta| meta.rev).collect::<Vec<_>>());
    }

    /// At every readable revision, what is left shows each key as the full history does: nothing lost, nothing risen.
    fn same_visible(&self, metas: &[RecordMeta], compact: i64) {
        let mut full: BTreeMap<&[u8], Vec<(Revision, bool)>> = BTreeMap::new();
        let mut left = full.clone();
        for record in &self.records {
            full.entry(&record.key).or_default().push((record.rev, record.tombstone));
        }
        for meta in metas {
            left.entry(&meta.key).or_default().push((meta.rev, meta.tombstone));
        }
        let visible = |history: &[(Revision, bool)], main: i64| {
            let newest = history.iter().rev().find(|(rev, _)| rev.main <= main);
            newest.filter(|(_, tombstone)| !tombstone).copied()
        };
        for (key, history) in &full {
            let left = left.get(key).map_or(&[][..], Vec::as_slice);
            let mains = history.iter().map(|(rev, _)| rev.main).chain([compact]);
            for main in mains.filter(|main| *main >= compact) {
                assert_eq!(visible(left, main), visible(history, main), "key {key:?} at {main}");
            }
        }
    }

    /// Every revision that must be readable is, with its payload; gets and scans agree.
    pub fn check_reads(&self, log: &Log, must: &[Revision]) {
        let (reader, view) = (log.reader(), log.reader().view());
        for rev in must {
            let at = self.records.binary_search_by_key(rev, |record| record.rev).expect("known");
            let payload = Some(self.records[at].payload.clone());
            assert_eq!(reader.get(*rev).unwrap(), payload, "{rev:?}");
            assert_eq!(view.get(*rev).unwrap(), payload);
        }
        let all: Vec<_> = view.scan(Revision::default(), i64::MAX).map(Result::unwrap).collect();
        for (rev, tombstone, payload) in &all {
            let at = self.records.binary_search_by_key(rev, |record| record.rev).expect("known");
            let record = &self.records[at];
            assert_eq!((*tombstone, payload), (record.tombstone, &record.payload));
        }
        assert!(all.is_sorted_by(|a, b| a.0 < b.0));
        let metas =
            view.metas(Revision::default(), i64::MAX).map(|entry| (entry.rev, entry.tombstone, entry.len as usize));
        assert!(metas.eq(all.iter().map(|(rev, tombstone, payload)| (*rev, *tombstone, payload.len()))));
        assert!(must.iter().all(|rev| all.binary_search_by_key(rev, |(rev, ..)| *rev).is_ok()));
    }

    /// Revisions that are not dead now.
    pub fn live(&self) -> Vec<Revision> {
        let compact = self.points.last().map_or(-1, |point| point.compact);
        let mut gone = dead(self.history(), compact);
        gone.sort();
        let revs = self.records.iter().map(|record| record.rev);
        revs.filter(|rev| gone.binary_search(rev).is_err()).collect()
    }

    fn history(&self) -> impl Iterator<Item = (Revision, bool, Bytes)> {
        self.records.iter().map(|record| (record.rev, record.tombstone, record.key.clone()))
    }

    /// One random step. An error is a fault of the disk.
    pub fn step(&mut self) -> Result<(), Error> {
        if self.log.is_none() {
            return self.open();
        }
        match self.below(100) {
            0..40 => self.append(),
            40..50 => self.compact(),
            50..60 => self.mark_some(),
            60..70 => self.now.0 += self.below(900_000_000),
            70..95 => self.work()?,
            95..97 => self.reopen()?,
            97..99 => self.install()?,
            _ => self.check_reads(self.log.as_ref().unwrap(), &self.live()),
        }
        Ok(())
    }

    pub fn append(&mut self) {
        let last = self.points.last().unwrap().clone();
        let mut main = self.records.last().map_or(1, |record| record.rev.main);
        let mut tables = Vec::new();
        let before = self.records.len();
        for _ in 0..self.below(4) {
            main += 1;
            for sub in 0..1 + self.below(2) as i64 {
                let key = format!("key/{}", self.below(12));
                let record = if self.below(4) == 0 {
                    tombstone(main, sub, &key)
                } else {
                    let value = vec![main as u8; self.below(120) as usize];
                    let mut record = put(main, sub, &key, &value);
                    if self.below(10) == 0 {
                        record.payload = value.into();
                    }
                    record
                };
                self.records.push(record);
            }
        }
        for _ in 0..self.below(3) {
            let table = Table::ALL[self.below(9) as usize];
            let key = vec![b'a' + self.below(5) as u8].into();
            let value = (self.below(3) > 0).then(|| vec![main as u8; self.below(30) as usize].into());
            tables.push(TableOp { table, key, value });
        }
        let mut point = Point { index: last.index + 1 + self.below(3), term: last.term + self.below(2), ..last };
        tables.iter().cloned().for_each(|op| point.tables.apply(op));
        point.records = self.records.len();
        let batch = Batch {
            index: point.index,
            term: point.term,
            records: self.records[before..].to_vec(),
            tables,
            compact: None,
        };
        self.points.push(point);
        self.log.as_mut().unwrap().append(batch);
    }

    fn compact(&mut self) {
        let last = self.points.last().unwrap().clone();
        let current = self.records.last().map_or(1, |record| record.rev.main);
        if current <= last.compact + 1 {
            return;
        }
        let compact = last.compact + 1 + self.below((current - last.compact) as u64) as i64;
        let point = Point { index: last.index + 1, compact, ..last };
        let batch = Batch { index: point.index, term: point.term, compact: Some(compact), ..Batch::default() };
        self.points.push(point);
        let marks = dead(self.history(), compact);
        let log = self.log.as_mut().unwrap();
        // Some marks come before the batch; the log holds them back.
        if self.rng.below(3) == 0 {
            log.mark_dead(&marks[..marks.len() / 2]);
        }
        log.append(batch);
        self.marks = marks;
    }

    fn mark_some(&mut self) {
        let some = self.marks.len().min(self.rng.below(20) as usize);
        let marks: Vec<_> = self.marks.drain(..some).collect();
        self.log.as_mut().unwrap().mark_dead(&marks);
    }

    fn mark_all(&mut self) {
        let marks = std::mem::take(&mut self.marks);
        self.log.as_mut().unwrap().mark_dead(&marks);
    }

    /// Hands out, runs and hands in jobs, in any interleaving.
    pub fn work(&mut self) -> Result<(), Error> {
        if self.below(3) == 0 {
            self.mark_all();
        }
        for _ in 0..self.below(12) {
            let hint = match self.below(10) {
                0 => Hint::Sync,
                1 => Hint::Reclaim,
                _ => Hint::Normal,
            };
            match self.below(3) {
                0 => self.jobs.extend(self.log.as_mut().unwrap().next_job(self.now, hint)),
                1 if !self.jobs.is_empty() => {
                    let at = self.below(self.jobs.len() as u64) as usize;
                    let done = self.jobs.remove(at).run()?;
                    self.done.push(done);
                }
                2 if !self.done.is_empty() => {
                    let at = self.below(self.done.len() as u64) as usize;
                    let done = self.done.remove(at);
                    self.log.as_mut().unwrap().finish_job(done);
                }
                _ => {}
            }
            self.durable = self.durable.max(self.log.as_ref().unwrap().durable_index());
        }
        Ok(())
    }

    /// Finishes what is out, then does all that is due.
    pub fn drain(&mut self, hint: Hint) -> Result<(), Error> {
        self.mark_all();
        let mut hint = hint;
        let log = self.log.as_mut().unwrap();
        for _ in 0..10_000 {
            let job = match self.jobs.pop() {
                None if self.done.is_empty() => log.next_job(self.now, hint),
                job => job,
            };
            if job.is_none() && self.done.is_empty() {
                self.durable = log.durable_index();
                return Ok(());
            }
            if hint == Hint::Reclaim {
                hint = Hint::Normal;
            }
            self.done.extend(job.map(Job::run).transpose()?);
            self.done.drain(..).for_each(|done| log.finish_job(done));
        }
        panic!("jobs never end");
    }

    fn reopen(&mut self) -> Result<(), Error> {
        if self.below(2) == 0 {
            self.drain(Hint::Sync)?;
            assert_eq!(self.durable, self.points.last().unwrap().index);
        }
        self.close();
        self.open()
    }

    /// The process ends.
    pub fn close(&mut self) {
        self.jobs.clear();
        self.done.clear();
        self.log = None;
    }

    fn install(&mut self) -> Result<(), Error> {
        let last = self.points.last().unwrap().clone();
        let mut tables = Tables::default();
        let value = Some(Bytes::from_static(b"v"));
        tables.apply(TableOp { table: Table::Members, key: Bytes::from_static(b"m"), value });
        let base = self.records.last().map_or(1, |record| record.rev.main) + 1;
        let mut records = Vec::new();
        for at in 0..self.below(60) as i64 {
            let key = format!("key/{}", self.below(12));
            let value = vec![at as u8; self.below(100) as usize];
            records.push(put(base + at, 0, &key, &value));
        }
        let point = Point { index: last.index + 5, term: last.term + 1, compact: base, tables, records: records.len() };
        let mut builder = self.log.as_mut().unwrap().replace();
        for record in &records {
            builder.push(record.clone())?;
            if self.rng.below(40) == 0 {
                // Given up half way.
                return Ok(());
            }
        }
        let replacement = builder.finish(point.tables.clone(), point.index, point.term, point.compact)?;
        let view = self.log.as_ref().unwrap().reader().view();
        let before: Vec<_> = view.scan(Revision::default(), i64::MAX).map(Result::unwrap).collect();
        self.installing = Some((point, records));
        let log = self.log.as_mut().unwrap();
        let recovered = log.install(replacement)?;
        assert!(view.scan(Revision::default(), i64::MAX).map(Result::unwrap).eq(before));
        let mut log = self.log.take().unwrap();
        self.durable = 0;
        self.compare(&mut log, recovered);
        self.durable = log.durable_index();
        self.log = Some(log);
        Ok(())
    }
}
