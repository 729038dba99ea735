//! The log window in memory.

use std::collections::VecDeque;

use bytes::Bytes;
use dolmen_proto::raftpb::{ConfState, Entry, HardState, Snapshot, SnapshotMetadata};

use crate::entry::{encoded_size, take_within};
use crate::storage::{Storage, StorageError, snapshot_index, snapshot_term};

/// A [`Storage`] that holds hard state, snapshot and the entries above the last compaction.
///
/// In production it mirrors the tail of the write-ahead log: appending costs what is appended, compacting what is
/// dropped, and payloads are shared, not copied. Invariant: entries are consecutive from `before + 1`.
#[derive(Clone, Debug, Default)]
pub struct MemoryStorage {
    hard_state: HardState,
    snapshot: Snapshot,
    entries: VecDeque<Entry>,
    /// Index and term just below the first entry: the last compaction.
    before: u64,
    before_term: u64,
    /// Encoded bytes of `entries`.
    size_bytes: u64,
}

impl MemoryStorage {
    /// An empty log: first index 1, last index 0.
    pub fn new() -> Self {
        Self::default()
    }

    pub fn set_hard_state(&mut self, hard_state: HardState) {
        self.hard_state = hard_state;
    }

    pub const fn hard_state(&self) -> HardState {
        self.hard_state
    }

    /// Encoded bytes of the entries held.
    pub const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Number of entries held.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Appends consecutive entries; those held from the first one's index on are replaced, those that are already
    /// compacted are skipped.
    ///
    /// # Errors
    /// `Unavailable` when they would leave a hole; nothing is changed.
    pub fn append(&mut self, entries: Vec<Entry>) -> Result<(), StorageError> {
        let Some(first) = entries.first() else {
            return Ok(());
        };
        if first.index > self.last_index() + 1 {
            return Err(StorageError::Unavailable);
        }
        let skip = (self.first_index()).saturating_sub(first.index);
        if skip >= entries.len() as u64 {
            return Ok(());
        }
        let from = first.index + skip;
        while self.last_index() >= from {
            if let Some(dropped) = self.entries.pop_back() {
                self.size_bytes -= encoded_size(&dropped);
            }
        }
        for entry in entries.into_iter().skip(skip as usize) {
            self.size_bytes += encoded_size(&entry);
            self.entries.push_back(entry);
        }
        Ok(())
    }

    /// Drops the entries up to and including `index`; its term is kept. Not above what the state machine has applied.
    ///
    /// # Errors
    /// `Compacted` when that was done, `Unavailable` above the last entry.
    pub fn compact(&mut self, index: u64) -> Result<(), StorageError> {
        if index <= self.before {
            return Err(StorageError::Compacted);
        }
        if index > self.last_index() {
            return Err(StorageError::Unavailable);
        }
        for dropped in self.entries.drain(..(index - self.before) as usize) {
            self.size_bytes -= encoded_size(&dropped);
            self.before_term = dropped.term;
        }
        self.before = index;
        Ok(())
    }

    /// Drops entries from the front, none above `limit`, until those held take no more than `bytes`.
    pub fn compact_to_bytes(&mut self, bytes: u64, limit: u64) {
        while self.size_bytes > bytes
            && self.before < limit
            && let Some(dropped) = self.entries.pop_front()
        {
            self.size_bytes -= encoded_size(&dropped);
            (self.before, self.before_term) = (dropped.index, dropped.term);
        }
    }

    /// Makes the state at `index` the snapshot to send; `conf_state` when membership changed since the last one.
    /// Entries stay until compacted.
    ///
    /// # Errors
    /// `SnapshotOutOfDate` when there is one as new, `Unavailable` above the last entry, `Compacted` when the entry is
    /// gone.
    pub fn create_snapshot(
        &mut self,
        index: u64,
        conf_state: Option<ConfState>,
        data: Bytes,
    ) -> Result<&Snapshot, StorageError> {
        if index <= snapshot_index(&self.snapshot) {
            return Err(StorageError::SnapshotOutOfDate);
        }
        let term = self.term(index)?;
        let conf_state = conf_state.or_else(|| self.snapshot.metadata.take().and_then(|old| old.conf_state));
        self.snapshot = Snapshot { data, metadata: Some(SnapshotMetadata { conf_state, index, term }) };
        Ok(&self.snapshot)
    }

    /// Replaces everything but the hard state by a snapshot from elsewhere.
    ///
    /// # Errors
    /// `SnapshotOutOfDate` when there is one as new.
    pub fn apply_snapshot(&mut self, snapshot: Snapshot) -> Result<(), StorageError> {
        let held = snapshot_index(&self.snapshot);
        if held != 0 && held >= snapshot_index(&snapshot) {
            return Err(StorageError::SnapshotOutOfDate);
        }
        self.before = snapshot_index(&snapshot);
        self.before_term = snapshot_term(&snapshot);
        self.snapshot = snapshot;
        self.entries.clear();
        self.size_bytes = 0;
        Ok(())
    }
}

impl Storage for MemoryStorage {
    fn initial_state(&self) -> Result<(HardState, ConfState), StorageError> {
        let conf_state = self.snapshot.metadata.as_ref().and_then(|metadata| metadata.conf_state.clone());
        Ok((self.hard_state, conf_state.unwrap_or_default()))
    }

    fn entries(&self, low: u64, high: u64, max_size: u64) -> Result<Vec<Entry>, StorageError> {
        if low <= self.before {
            return Err(StorageError::Compacted);
        }
        if low >= high || high > self.last_index() + 1 {
            return Err(StorageError::Unavailable);
        }
        let (low, high) = ((low - self.first_index()) as usize, (high - self.first_index()) as usize);
        Ok(take_within(self.entries.range(low..high), max_size))
    }

    fn term(&self, index: u64) -> Result<u64, StorageError> {
        if index < self.before {
            return Err(StorageError::Compacted);
        }
        if index == self.before {
            return Ok(self.before_term);
        }
        let at = usize::try_from(index - self.first_index()).map_err(|_| StorageError::Unavailable)?;
        self.entries.get(at).map(|entry| entry.term).ok_or(StorageError::Unavailable)
    }

    fn last_index(&self) -> u64 {
        self.before + self.entries.len() as u64
    }

    fn first_index(&self) -> u64 {
        self.before + 1
    }

    fn snapshot(&self) -> Result<Snapshot, StorageError> {
        Ok(self.snapshot.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(from: u64, terms: &[u64]) -> Vec<Entry> {
        terms
            .iter()
            .zip(from..)
            .map(|(&term, index)| Entry { term, index, data: Bytes::from_static(b"payload"), ..Entry::default() })
            .collect()
    }

    /// Entries 4 to 6 of terms 4 to 6 above a snapshot at 3.
    fn storage() -> MemoryStorage {
        let mut storage = MemoryStorage::new();
        let metadata = SnapshotMetadata { index: 3, term: 3, ..SnapshotMetadata::default() };
        storage.apply_snapshot(Snapshot { metadata: Some(metadata), ..Snapshot::default() }).unwrap();
        storage.append(entries(4, &[4, 5, 6])).unwrap();
        storage
    }

    fn check(storage: &MemoryStorage, first: u64, terms: &[u64]) {
        let held: Vec<_> = storage.entries.iter().map(|entry| (entry.index, entry.term)).collect();
        assert_eq!(held, terms.iter().zip(first..).map(|(&term, index)| (index, term)).collect::<Vec<_>>());
        assert_eq!(storage.size_bytes, storage.entries.iter().map(encoded_size).sum::<u64>());
        assert_eq!((storage.first_index(), storage.last_index()), (first, first + terms.len() as u64 - 1));
    }

    #[test]
    fn append_follows_replaces_and_skips() {
        let table: [(u64, &[u64], &[u64]); 5] = [
            (1, &[1, 2], &[4, 5, 6]),
            (2, &[2, 3, 4, 5], &[4, 5]),
            (4, &[4, 5, 6, 6], &[4, 5, 6, 6]),
            (5, &[7], &[4, 7]),
            (7, &[7, 8], &[4, 5, 6, 7, 8]),
        ];
        for (from, appended, after) in table {
            let mut storage = storage();
            storage.append(entries(from, appended)).unwrap();
            check(&storage, 4, after);
        }
        assert_eq!(storage().append(entries(8, &[8])), Err(StorageError::Unavailable));
    }

    #[test]
    fn terms_and_entries_answer_within_the_window() {
        let storage = storage();
        let terms: Vec<_> = (2..=7).map(|index| storage.term(index)).collect();
        let gone = Err(StorageError::Compacted);
        assert_eq!(terms, [gone, Ok(3), Ok(4), Ok(5), Ok(6), Err(StorageError::Unavailable)]);
        assert_eq!(storage.term(u64::MAX), Err(StorageError::Unavailable));
        assert_eq!(storage.entries(3, 5, u64::MAX), Err(StorageError::Compacted));
        assert_eq!(storage.entries(4, 8, u64::MAX), Err(StorageError::Unavailable));
        let size = encoded_size(&storage.entries[0]);
        for (max_size, count) in [(0, 1), (size, 1), (2 * size, 2), (3 * size - 1, 2), (3 * size, 3), (u64::MAX, 3)] {
            assert_eq!(storage.entries(4, 7, max_size).unwrap().len(), count, "max size {max_size}");
        }
    }

    #[test]
    fn compaction_keeps_the_term_below() {
        let mut storage = storage();
        assert_eq!(storage.compact(3), Err(StorageError::Compacted));
        assert_eq!(storage.compact(7), Err(StorageError::Unavailable));
        storage.compact(5).unwrap();
        check(&storage, 6, &[6]);
        assert_eq!((storage.term(4), storage.term(5)), (Err(StorageError::Compacted), Ok(5)));
        storage.compact(6).unwrap();
        assert!(storage.is_empty());
        assert_eq!((storage.first_index(), storage.last_index(), storage.size_bytes()), (7, 6, 0));
    }

    #[test]
    fn bytes_bound_the_window_and_the_limit_the_bound() {
        let size = encoded_size(&storage().entries[0]);
        for (bytes, limit, first, terms) in [
            (3 * size, 6, 4, &[4, 5, 6][..]),
            (2 * size, 6, 5, &[5, 6]),
            (0, 4, 5, &[5, 6]),
            (0, 3, 4, &[4, 5, 6]),
            (0, 99, 7, &[]),
        ] {
            let mut storage = storage();
            storage.compact_to_bytes(bytes, limit);
            check(&storage, first, terms);
            assert_eq!(storage.term(first - 1), Ok(first - 1), "the term below stays");
        }
    }

    #[test]
    fn snapshots_only_get_newer() {
        let mut storage = storage();
        let membership = ConfState { voters: vec![1], ..ConfState::default() };
        assert_eq!(storage.create_snapshot(3, None, Bytes::new()).unwrap_err(), StorageError::SnapshotOutOfDate);
        assert_eq!(storage.create_snapshot(7, None, Bytes::new()).unwrap_err(), StorageError::Unavailable);
        storage.create_snapshot(4, Some(membership.clone()), Bytes::from_static(b"x")).unwrap();
        let next = storage.create_snapshot(5, None, Bytes::new()).unwrap();
        assert_eq!(next.metadata, Some(SnapshotMetadata { conf_state: Some(membership), index: 5, term: 5 }));
        assert_eq!(storage.apply_snapshot(next_at(5)), Err(StorageError::SnapshotOutOfDate));
        storage.apply_snapshot(next_at(9)).unwrap();
        assert_eq!((storage.first_index(), storage.last_index()), (10, 9));
    }

    fn next_at(index: u64) -> Snapshot {
        let metadata = SnapshotMetadata { index, term: 9, ..SnapshotMetadata::default() };
        Snapshot { metadata: Some(metadata), ..Snapshot::default() }
    }
}
