//! A model of a raft log ten lines long, and random histories for it and the real one.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_env::{Disk, Rng, SimDisk};
use dolmen_proto::raftpb::{ConfState, Entry, HardState};
use dolmen_proto::walpb::Snapshot;
use dolmen_wal::{Metadata, Recovered, Wal, WalError, WalOptions};

pub const DIR: &str = "/m/wal";
pub const IDS: Metadata = Metadata { node_id: 0xabc, cluster_id: 0xdef };
pub const OPTIONS: WalOptions = WalOptions { segment_bytes: 4096 };

pub fn dir() -> &'static Path {
    Path::new(DIR)
}

pub fn arc(disk: &SimDisk) -> Arc<dyn Disk> {
    Arc::new(disk.clone())
}

pub fn new_disk(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    disk.create_dir_all(Path::new("/m")).unwrap();
    disk
}

pub fn create(disk: &SimDisk) -> Wal {
    Wal::create(arc(disk), dir(), IDS, OPTIONS).unwrap()
}

pub fn open(disk: &SimDisk, from: (u64, u64)) -> Result<(Wal, Recovered), WalError> {
    Wal::open(arc(disk), dir(), from, OPTIONS)
}

/// As a member starts: from the newest snapshot the log has committed.
pub fn open_newest(disk: &SimDisk) -> Result<(Wal, Recovered, (u64, u64)), WalError> {
    let snapshots = Wal::snapshots(disk, dir())?;
    let from = snapshots.last().map_or((0, 0), |snapshot| (snapshot.index, snapshot.term));
    let (wal, recovered) = open(disk, from)?;
    Ok((wal, recovered, from))
}

pub fn entry(index: u64, term: u64, len: usize) -> Entry {
    Entry { index, term, r#type: 0, data: Bytes::from(vec![index as u8 | 1; len]) }
}

pub fn entries(from: u64, to: u64, term: u64, len: usize) -> Vec<Entry> {
    (from..=to).map(|index| entry(index, term, len)).collect()
}

pub fn state(term: u64, vote: u64, commit: u64) -> HardState {
    HardState { term, vote, commit }
}

pub fn snapshot(index: u64, term: u64) -> Snapshot {
    let conf_state = ConfState { voters: vec![1, 2, 3], ..ConfState::default() };
    Snapshot { index, term, conf_state: Some(conf_state) }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Rec {
    Entry(Entry),
    State(HardState),
    Snapshot(Snapshot),
}

/// All records ever appended, and how many of them a returned sync covers.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub records: Vec<Rec>,
    pub synced: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    pub hard_state: HardState,
    pub entries: Vec<Entry>,
    pub committed: Vec<(u64, u64)>,
}

impl Model {
    /// What the first `count` records add up to for a member that starts from `from`.
    pub fn view(&self, count: usize, from: (u64, u64)) -> View {
        let mut log: BTreeMap<u64, Entry> = BTreeMap::new();
        let mut view = View::default();
        let mut snapshots = vec![(0, 0)];
        for record in &self.records[..count] {
            match record {
                Rec::Entry(entry) => {
                    log.split_off(&entry.index);
                    log.insert(entry.index, entry.clone());
                }
                Rec::State(state) => view.hard_state = *state,
                Rec::Snapshot(Snapshot { index, term, .. }) => {
                    snapshots.push((*index, *term));
                    if *index <= from.0 && log.get(index).is_none_or(|entry| entry.term != *term) {
                        log.clear();
                    }
                }
            }
        }
        view.entries = log.into_values().filter(|entry| entry.index > from.0).collect();
        view.committed = snapshots.into_iter().filter(|(index, _)| *index <= view.hard_state.commit).collect();
        view
    }

    /// The most records that explain what was recovered; fewer than are synced, or none, is a loss or an invention.
    pub fn explains(&self, recovered: &Recovered, from: (u64, u64)) -> Option<usize> {
        (self.synced..=self.records.len()).rev().find(|&count| {
            let view = self.view(count, from);
            view.hard_state == recovered.hard_state
                && view.entries == recovered.entries
                && view.committed.last() == Some(&from)
        })
    }
}

impl Model {
    /// Whether some number of records explains what was recovered, synced or not.
    pub fn has_prefix(&self, recovered: &Recovered, from: (u64, u64)) -> bool {
        (0..=self.records.len()).rev().any(|count| {
            let view = self.view(count, from);
            view.hard_state == recovered.hard_state && view.entries == recovered.entries
        })
    }
}

/// Gives segments up and removes them at once.
pub fn release(wal: &mut Wal, index: u64) -> Result<(), WalError> {
    wal.release(index);
    while wal.remove_released()?.is_some() {}
    Ok(())
}

/// Entries without their data, for messages.
pub fn brief(entries: &[Entry]) -> Vec<(u64, u64, usize)> {
    entries.iter().map(|entry| (entry.index, entry.term, entry.data.len())).collect()
}

/// A member's life with its log: what raft would ask for, drawn at random.
pub struct History {
    pub model: Model,
    pub rng: Rng,
    last: u64,
    hard_state: HardState,
    terms: BTreeMap<u64, u64>,
    snapshot: u64,
    /// The last snapshot a leader sent. What it covers is committed, so nothing else may ever be committed there: when
    /// a crash takes it back before the hard state has followed, the leader sends it again.
    received: Snapshot,
}

impl History {
    pub fn new(seed: u64) -> Self {
        Self {
            model: Model::default(),
            rng: Rng::new(seed),
            last: 0,
            hard_state: state(1, 0, 0),
            terms: BTreeMap::from([(0, 0)]),
            snapshot: 0,
            received: Snapshot::default(),
        }
    }

    /// The same past, another future.
    pub fn fork(&self, seed: u64) -> Self {
        Self { model: self.model.clone(), received: self.received.clone(), ..Self::new(seed) }
    }

    /// Goes on from what a reopened log told.
    pub fn resume(&mut self, recovered: &Recovered, from: (u64, u64)) {
        self.terms = recovered.entries.iter().map(|entry| (entry.index, entry.term)).collect();
        self.terms.insert(from.0, from.1);
        self.last = recovered.entries.last().map_or(from.0, |entry| entry.index);
        self.hard_state = recovered.hard_state;
        self.hard_state.term = self.hard_state.term.max(1);
        self.snapshot = from.0;
    }

    /// One step. The model takes in what is about to be written before the disk may refuse it.
    pub fn step(&mut self, wal: &mut Wal) -> Result<(), WalError> {
        if self.received.index > self.hard_state.commit {
            self.install(wal)?;
        }
        match self.rng.below(100) {
            0..50 => self.append(wal)?,
            50..58 => self.local_snapshot(wal)?,
            58..62 => self.received_snapshot(wal)?,
            62..68 => {
                wal.note_acked()?;
                return Ok(());
            }
            68..72 => {
                if self.model.synced == self.model.records.len() {
                    release(wal, self.snapshot)?;
                }
                return Ok(());
            }
            _ => {}
        }
        if self.rng.chance(700) {
            wal.sync()?;
            self.model.synced = self.model.records.len();
        }
        Ok(())
    }

    fn append(&mut self, wal: &mut Wal) -> Result<(), WalError> {
        let mut first = self.last + 1;
        if self.rng.chance(200) {
            self.hard_state.term += 1;
            self.hard_state.vote = self.rng.below(4);
            // A new leader may replace what is not committed.
            first = self.rng.range(self.hard_state.commit.max(self.snapshot) + 1, self.last + 2);
        }
        let count = self.rng.below(5);
        let mut batch = Vec::new();
        for index in first..first + count {
            let len = if self.rng.chance(100) { 1500 } else { self.rng.below(120) as usize };
            let bytes: Vec<u8> = (0..len).map(|_| self.rng.next_u64() as u8).collect();
            batch.push(Entry { index, term: self.hard_state.term, r#type: 0, data: bytes.into() });
        }
        if count > 0 {
            self.terms.split_off(&first);
            self.terms.extend(batch.iter().map(|entry| (entry.index, entry.term)));
            self.last = first + count - 1;
        }
        let commit = self.rng.range(self.hard_state.commit, self.last + 1);
        self.hard_state.commit = commit.max(self.hard_state.commit);
        let with_state = self.rng.chance(700) || self.hard_state.commit > 0;
        self.model.records.extend(batch.iter().cloned().map(Rec::Entry));
        if with_state {
            self.model.records.push(Rec::State(self.hard_state));
        }
        wal.append(with_state.then_some(&self.hard_state), &batch)
    }

    fn local_snapshot(&mut self, wal: &mut Wal) -> Result<(), WalError> {
        let (low, high) = (self.snapshot, self.hard_state.commit);
        if low >= high {
            return Ok(());
        }
        let index = self.rng.range(low + 1, high + 1);
        let Some(&term) = self.terms.get(&index) else { return Ok(()) };
        let snapshot = snapshot(index, term);
        self.model.records.push(Rec::Snapshot(snapshot.clone()));
        wal.append_snapshot(&snapshot)?;
        self.snapshot = index;
        Ok(())
    }

    fn received_snapshot(&mut self, wal: &mut Wal) -> Result<(), WalError> {
        let index = self.hard_state.commit + self.rng.range(1, 6);
        self.received = snapshot(index, self.hard_state.term + 1);
        self.install(wal)
    }

    fn install(&mut self, wal: &mut Wal) -> Result<(), WalError> {
        let Snapshot { index, term, .. } = self.received;
        self.hard_state.term = self.hard_state.term.max(term);
        self.hard_state.commit = index;
        self.model.records.extend([Rec::Snapshot(self.received.clone()), Rec::State(self.hard_state)]);
        self.last = index;
        self.terms = BTreeMap::from([(index, term)]);
        self.snapshot = index;
        wal.append_snapshot(&self.received)?;
        wal.append(Some(&self.hard_state), &[])
    }
}
