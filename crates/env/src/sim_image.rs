//! What one file and one directory of the simulated disk hold: the durable image, what is seen now, and the changes
//! between them; and what each shape of power loss makes of the three.

use std::collections::BTreeMap;

use crate::Rng;
use crate::sim_disk::PowerLoss;

const SECTOR: u64 = 512;

pub(crate) type Ino = u64;

#[derive(Clone, Default)]
pub(crate) struct FileNode {
    pub durable: Vec<u8>,
    pub seen: Vec<u8>,
    changes: Vec<Change>,
    pub handles: usize,
}

#[derive(Clone)]
pub(crate) struct Change {
    kind: ChangeKind,
    len_after: u64,
}

#[derive(Clone)]
pub(crate) enum ChangeKind {
    Write {
        offset: u64,
        bytes: Vec<u8>,
    },
    /// The bytes a cut took away; they read as zeroes if the file grows again.
    Zero {
        from: u64,
        to: u64,
    },
    Grow,
}

#[derive(Clone, Default)]
pub(crate) struct DirNode {
    pub durable: BTreeMap<String, Ino>,
    pub seen: BTreeMap<String, Ino>,
    pub changes: Vec<DirChange>,
}

#[derive(Clone)]
pub(crate) enum DirChange {
    Link { name: String, ino: Ino },
    Unlink { name: String },
    Rename { from: String, to: String, ino: Ino },
}

impl FileNode {
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        put(&mut self.seen, offset, bytes);
        let kind = ChangeKind::Write { offset, bytes: bytes.to_vec() };
        self.changes.push(Change { kind, len_after: self.seen.len() as u64 });
    }

    pub fn set_len(&mut self, len: u64) {
        let old = self.seen.len() as u64;
        if len == old {
            return;
        }
        resize(&mut self.seen, len);
        let kind = if len < old { ChangeKind::Zero { from: len, to: old } } else { ChangeKind::Grow };
        self.changes.push(Change { kind, len_after: len });
    }

    pub fn sync(&mut self) {
        let changes = std::mem::take(&mut self.changes);
        for change in &changes {
            change.apply(&mut self.durable);
        }
    }

    pub fn half_sync(&mut self, rng: &mut Rng) {
        let changes = std::mem::take(&mut self.changes);
        self.durable = holes(&self.durable, &changes, rng);
    }

    pub fn lose_power(&mut self, shape: PowerLoss, rng: &mut Rng) {
        let changes = std::mem::take(&mut self.changes);
        if !changes.is_empty() {
            match shape {
                PowerLoss::LoseAll => {}
                PowerLoss::KeepAll => changes.iter().for_each(|change| change.apply(&mut self.durable)),
                PowerLoss::TornPrefix => torn(&mut self.durable, &changes, rng, false),
                PowerLoss::GarbageTail => torn(&mut self.durable, &changes, rng, true),
                PowerLoss::SectorHoles => self.durable = holes(&self.durable, &changes, rng),
            }
        }
        self.seen = self.durable.clone();
    }
}

impl Change {
    fn apply(&self, image: &mut Vec<u8>) {
        match &self.kind {
            ChangeKind::Write { offset, bytes } => put(image, *offset, bytes),
            ChangeKind::Zero { .. } | ChangeKind::Grow => {}
        }
        resize(image, self.len_after);
    }

    /// Bytes a torn prefix may end in; a change of length counts as one.
    fn weight(&self) -> u64 {
        match &self.kind {
            ChangeKind::Write { bytes, .. } => bytes.len() as u64,
            ChangeKind::Zero { .. } | ChangeKind::Grow => 1,
        }
    }
}

fn torn(image: &mut Vec<u8>, changes: &[Change], rng: &mut Rng, garbage: bool) {
    let total: u64 = changes.iter().map(Change::weight).sum();
    let mut left = rng.below(total + 1);
    for change in changes {
        let weight = change.weight();
        if left >= weight {
            change.apply(image);
            left -= weight;
            continue;
        }
        if let ChangeKind::Write { offset, bytes } = &change.kind {
            put(image, *offset, &bytes[..left as usize]);
            if garbage {
                let noise = noise(bytes.len() - left as usize, rng);
                put(image, offset + left, &noise);
            }
        }
        left = 0;
        if !garbage {
            return;
        }
    }
}

fn noise(len: usize, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        let word = rng.next_u64().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    bytes
}

/// Draws for each touched sector, and for the length, which of its versions reached the medium.
fn holes(durable: &[u8], changes: &[Change], rng: &mut Rng) -> Vec<u8> {
    let count = changes.len() as u64;
    let draw = |rng: &mut Rng| match rng.below(4) {
        0 => 0,
        1 => rng.below(count + 1),
        _ => count,
    };
    let mut image = durable.to_vec();
    let mut kept: BTreeMap<u64, u64> = BTreeMap::new();
    for (version, change) in (1..).zip(changes) {
        let zeroes;
        let (offset, bytes) = match &change.kind {
            ChangeKind::Write { offset, bytes } => (*offset, bytes.as_slice()),
            ChangeKind::Zero { from, to } => {
                zeroes = vec![0; (to - from) as usize];
                (*from, zeroes.as_slice())
            }
            ChangeKind::Grow => continue,
        };
        let mut at = 0;
        while at < bytes.len() {
            let position = offset + at as u64;
            let sector = position / SECTOR;
            let end = bytes.len().min(at + (SECTOR - position % SECTOR) as usize);
            let chosen = *kept.entry(sector).or_insert_with(|| draw(rng));
            if version <= chosen {
                put(&mut image, position, &bytes[at..end]);
            }
            at = end;
        }
    }
    let len = match draw(rng) {
        0 => durable.len() as u64,
        version => changes[version as usize - 1].len_after,
    };
    resize(&mut image, len);
    image
}

impl DirNode {
    pub fn change(&mut self, change: DirChange) {
        change.apply(&mut self.seen);
        self.changes.push(change);
    }

    pub fn lose_power(&mut self, shape: PowerLoss, rng: &mut Rng) {
        for change in std::mem::take(&mut self.changes) {
            let kept = match shape {
                PowerLoss::LoseAll => false,
                PowerLoss::KeepAll => true,
                PowerLoss::TornPrefix | PowerLoss::SectorHoles | PowerLoss::GarbageTail => rng.chance(500),
            };
            if kept {
                change.apply(&mut self.durable);
            }
        }
        self.seen = self.durable.clone();
    }
}

impl DirChange {
    fn apply(&self, entries: &mut BTreeMap<String, Ino>) {
        match self {
            Self::Link { name, ino } => {
                entries.insert(name.clone(), *ino);
            }
            Self::Unlink { name } => {
                entries.remove(name);
            }
            Self::Rename { from, to, ino } => {
                // The earlier link may have been lost: then `from` names nothing, or something else that stays.
                if entries.get(from) == Some(ino) {
                    entries.remove(from);
                }
                entries.insert(to.clone(), *ino);
            }
        }
    }
}

fn put(image: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let start = offset as usize;
    let end = start + bytes.len();
    if image.len() < end {
        resize(image, end as u64);
    }
    image[start..end].copy_from_slice(bytes);
}

fn resize(image: &mut Vec<u8>, len: u64) {
    let len = len as usize;
    if image.is_empty() {
        // Fresh zero pages cost nothing until touched; segments are allocated long before they are full.
        *image = vec![0; len];
    } else {
        image.resize(len, 0);
    }
}
