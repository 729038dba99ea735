//! The segment that grows, and the index readers use while the writer appends. What is on disk is read from there,
//! mapped; only the frames that no job has written yet, and a few after those, are in memory.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::OnceLock;

use bytes::Bytes;
use dolmen_types::Revision;
use parking_lot::RwLock;

use crate::record::{Head, RecordMeta, Slot, checks};

/// Records a chunk of the index holds. A chunk never moves, so an append under the lock costs what it adds.
const CHUNK: usize = 1024;

/// Appended by the writer, read by everybody. The lock is held for lookups and for adding one frame, never for I/O.
pub(crate) struct Active {
    pub id: u64,
    pub path: PathBuf,
    first: OnceLock<Revision>,
    inner: RwLock<Inner>,
}

#[derive(Default)]
struct Inner {
    chunks: Vec<Vec<Slot>>,
    count: usize,
    /// The file's first bytes, written and synced: they never change again.
    mapped: Bytes,
    /// Offset in the file and bytes of each frame behind those.
    frames: VecDeque<(u32, Bytes)>,
}

impl Active {
    pub fn new(id: u64, path: PathBuf) -> Self {
        Self { id, path, first: OnceLock::new(), inner: RwLock::default() }
    }

    /// Adds a frame; its records are readable on return.
    pub fn push(&self, offset: u32, frame: Bytes, slots: &[Slot]) {
        let mut inner = self.inner.write();
        inner.frames.push_back((offset, frame));
        if let Some(slot) = slots.first() {
            self.first.get_or_init(|| slot.rev());
        }
        for slot in slots {
            if inner.count.is_multiple_of(CHUNK) {
                inner.chunks.push(Vec::with_capacity(CHUNK));
            }
            inner.chunks.last_mut().expect("just pushed").push(*slot);
            inner.count += 1;
        }
    }

    /// Takes the file's first bytes, which end with a frame and are durable, in the place of the frames in memory.
    pub fn settle(&self, mapped: Bytes) {
        let mut inner = self.inner.write();
        let on_disk = inner.frames.partition_point(|(offset, _)| (*offset as usize) < mapped.len());
        let old = (inner.frames.drain(..on_disk).collect::<Vec<_>>(), std::mem::replace(&mut inner.mapped, mapped));
        inner.frames.shrink_to_fit();
        drop(inner);
        // Not under the lock: freeing megabytes takes a while.
        drop(old);
    }

    /// Bytes that [`Self::settle`] was given last.
    pub fn settled(&self) -> u64 {
        self.inner.read().mapped.len() as u64
    }

    /// Records so far.
    pub fn len(&self) -> usize {
        self.inner.read().count
    }

    /// Its first revision, `None` while it holds no record. Takes no lock.
    pub fn first(&self) -> Option<Revision> {
        self.first.get().copied()
    }

    /// Position and slot of a revision among the first `limit` records.
    pub fn find(&self, rev: Revision, limit: usize) -> Option<(usize, Slot)> {
        let inner = self.inner.read();
        let at = inner.lower_bound(rev, limit);
        let slot = *inner.slot(at, limit)?;
        (slot.rev() == rev).then_some((at, slot))
    }

    /// Position of the first record at or after a revision, `limit` or the count when there is none.
    pub fn lower_bound(&self, rev: Revision, limit: usize) -> usize {
        self.inner.read().lower_bound(rev, limit)
    }

    /// The payload of a revision among the first `limit` records. Outer `None`: not here; inner `None`: damaged.
    pub fn payload(&self, rev: Revision, limit: usize) -> Option<Option<Bytes>> {
        let (slot, record) = {
            let inner = self.inner.read();
            let slot = *inner.slot(inner.lower_bound(rev, limit), limit).filter(|slot| slot.rev() == rev)?;
            (slot, inner.record(&slot))
        };
        Some(record.and_then(|record| payload(&slot, &record)))
    }

    /// Slots and records from position `at`, at most `max`.
    pub fn read(&self, at: usize, limit: usize, max: usize) -> Vec<(Slot, Option<Bytes>)> {
        let inner = self.inner.read();
        (at..limit.min(at.saturating_add(max)))
            .map_while(|at| inner.slot(at, limit))
            .map(|slot| (*slot, inner.record(slot)))
            .collect()
    }
}

/// The payload inside a record's bytes, if its checksum fits.
pub(crate) fn payload(slot: &Slot, record: &Bytes) -> Option<Bytes> {
    let head = usize::from(slot.head);
    checks(record).then(|| record.slice(head..head + slot.len as usize))
}

/// The metadata inside a record's bytes.
pub(crate) fn meta(record: &Bytes) -> Option<RecordMeta> {
    Head::parse(record).map(|head| head.meta(record))
}

impl Inner {
    fn slot(&self, at: usize, limit: usize) -> Option<&Slot> {
        if at >= limit { None } else { self.chunks.get(at / CHUNK)?.get(at % CHUNK) }
    }

    fn lower_bound(&self, rev: Revision, limit: usize) -> usize {
        let chunk = self.chunks.partition_point(|chunk| chunk.last().is_some_and(|slot| slot.rev() < rev));
        let inside = self.chunks.get(chunk).map_or(0, |chunk| chunk.partition_point(|slot| slot.rev() < rev));
        (chunk * CHUNK + inside).min(limit).min(self.count)
    }

    /// The whole record, checksum not verified.
    fn record(&self, slot: &Slot) -> Option<Bytes> {
        let (frame, start) = if (slot.offset as usize) < self.mapped.len() {
            (&self.mapped, slot.offset as usize)
        } else {
            let at = self.frames.partition_point(|(offset, _)| *offset <= slot.offset).checked_sub(1)?;
            let (offset, frame) = &self.frames[at];
            (frame, (slot.offset - offset) as usize)
        };
        let total = Head::parse(frame.get(start..)?)?.total();
        Some(frame.slice(start..start + total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{NewRecord, put_record};

    #[test]
    fn what_is_settled_is_read_from_the_file_and_the_rest_from_memory() {
        let active = Active::new(7, PathBuf::from("/7"));
        let mut file = b"header".to_vec();
        let mut ends = Vec::new();
        for main in 1..=3 {
            let payload = Bytes::from(vec![main as u8; 50]);
            let record = NewRecord {
                rev: Revision::new(main, 0),
                tombstone: false,
                create: main,
                version: 1,
                lease: 0,
                key: Bytes::from_static(b"key"),
                payload,
            };
            let start = file.len();
            let slot = put_record(&mut file, &record, 0);
            active.push(start as u32, Bytes::copy_from_slice(&file[start..]), &[slot]);
            ends.push(file.len());
        }
        let read = |main| active.payload(Revision::new(main, 0), usize::MAX).flatten().map(|payload| payload[0]);
        // The frame in memory goes even where the file holds something else: that shows which of the two is read.
        file[ends[0] - 1] ^= 1;
        for (settled, frames) in [(ends[0], 2), (ends[1], 1), (ends[2], 0)] {
            active.settle(Bytes::copy_from_slice(&file[..settled]));
            assert_eq!(active.settled(), settled as u64);
            assert_eq!((read(1), read(2), read(3)), (None, Some(2), Some(3)));
            assert_eq!(active.inner.read().frames.len(), frames);
        }
        assert_eq!((active.len(), active.read(0, usize::MAX, 9).len()), (3, 3));
    }
}
