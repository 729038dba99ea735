//! Entries and a snapshot that storage does not have yet.
//!
//! ```text
//!    storage            unstable
//!   ... 7 8 9 │ 10 11 12 │ 13 14
//!             offset     offset_in_progress
//!               being written
//! ```
//!
//! Work leaves here when a Ready takes it (it is then "in progress") and is dropped when storage reports it durable. In
//! between it stays readable, so the log never has a hole. `offset` may lie below storage's last index: the next write
//! then replaces storage's tail.

use std::collections::VecDeque;

use dolmen_proto::raftpb::{Entry, Snapshot};

use crate::entry::EntryId;
use crate::logger::{Logger, log};
use crate::storage::{snapshot_index, snapshot_term};

/// An emptied buffer larger than this is given back.
const KEPT_CAPACITY: usize = 4096;

#[derive(Debug)]
pub(crate) struct Unstable {
    /// The snapshot to be restored; entries, if any, follow it.
    pub snapshot: Option<Snapshot>,
    /// `entries[i]` has index `offset + i`.
    entries: VecDeque<Entry>,
    offset: u64,
    snapshot_in_progress: bool,
    /// Entries below are being written.
    offset_in_progress: u64,
    /// Grows whenever entries are replaced. A write from before that says nothing about what is here now: the write
    /// that replaces its entries in storage is still to come.
    epoch: u64,
    logger: Logger,
}

impl Unstable {
    pub(crate) const fn new(offset: u64, logger: Logger) -> Self {
        Self {
            snapshot: None,
            entries: VecDeque::new(),
            offset,
            snapshot_in_progress: false,
            offset_in_progress: offset,
            epoch: 0,
            logger,
        }
    }

    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) const fn offset_in_progress(&self) -> u64 {
        self.offset_in_progress
    }

    pub(crate) const fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The first index there can be, when a snapshot says so.
    pub(crate) fn first_index(&self) -> Option<u64> {
        self.snapshot.as_ref().map(|snapshot| snapshot_index(snapshot) + 1)
    }

    pub(crate) fn last_index(&self) -> Option<u64> {
        if !self.entries.is_empty() {
            return Some(self.offset + self.entries.len() as u64 - 1);
        }
        self.snapshot.as_ref().map(snapshot_index)
    }

    pub(crate) fn term(&self, index: u64) -> Option<u64> {
        if index < self.offset {
            let snapshot = self.snapshot.as_ref()?;
            return (snapshot_index(snapshot) == index).then(|| snapshot_term(snapshot));
        }
        let at = usize::try_from(index - self.offset).ok()?;
        self.entries.get(at).map(|entry| entry.term)
    }

    /// Entries that no write has taken yet.
    pub(crate) fn next_entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.range(self.in_progress()..)
    }

    /// How many entries are being written.
    const fn in_progress(&self) -> usize {
        (self.offset_in_progress - self.offset) as usize
    }

    pub(crate) fn has_next_entries(&self) -> bool {
        self.entries.len() > self.in_progress()
    }

    /// The snapshot that no write has taken yet.
    pub(crate) fn next_snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref().filter(|_| !self.snapshot_in_progress)
    }

    /// Everything here now is being written.
    pub(crate) fn accept_in_progress(&mut self) {
        if !self.entries.is_empty() {
            self.offset_in_progress = self.offset + self.entries.len() as u64;
        }
        self.snapshot_in_progress = self.snapshot.is_some();
    }

    /// A write that was handed out at `epoch` is durable: storage has everything up to `id`. Ignored when the entry
    /// here is another one, or was replaced, perhaps by the same one, while the write ran.
    pub(crate) fn stable_to(&mut self, id: EntryId, epoch: u64) {
        let Some(term) = self.term(id.index) else {
            log!(self.logger, Info, "entry at index {} missing from unstable log; ignoring", id.index);
            return;
        };
        if id.index < self.offset {
            log!(self.logger, Info, "entry at index {} matched unstable snapshot; ignoring", id.index);
            return;
        }
        if term != id.term {
            log!(
                self.logger,
                Info,
                "entry at (index,term)=({},{}) mismatched with entry at ({},{term}) in unstable log; ignoring",
                id.index,
                id.term,
                id.index
            );
            return;
        }
        if epoch != self.epoch {
            // Only two leaders in one term, or a forged append, get here: a leader does not replace its own entries.
            log!(self.logger, Warning, "entry at index {} was replaced while it was written; ignoring", id.index);
            return;
        }
        self.entries.drain(..(id.index + 1 - self.offset) as usize);
        if self.entries.is_empty() && self.entries.capacity() > KEPT_CAPACITY {
            self.entries = VecDeque::new();
        }
        self.offset = id.index + 1;
        self.offset_in_progress = self.offset_in_progress.max(self.offset);
    }

    pub(crate) fn stable_snapshot_to(&mut self, index: u64) {
        if self.snapshot.as_ref().is_some_and(|snapshot| snapshot_index(snapshot) == index) {
            self.snapshot = None;
            self.snapshot_in_progress = false;
        }
    }

    /// Forgets all entries in favour of a snapshot.
    pub(crate) fn restore(&mut self, snapshot: Snapshot) {
        self.epoch += 1;
        self.offset = snapshot_index(&snapshot) + 1;
        self.offset_in_progress = self.offset;
        self.entries.clear();
        self.snapshot = Some(snapshot);
        self.snapshot_in_progress = false;
    }

    /// Appends consecutive entries, after dropping those here from the first one's index on.
    pub(crate) fn truncate_and_append(&mut self, entries: impl IntoIterator<Item = Entry>) {
        let mut entries = entries.into_iter();
        let Some(first) = entries.next() else {
            return;
        };
        let from = first.index;
        let end = self.offset + self.entries.len() as u64;
        assert!(from <= end, "entry {from} would leave a hole after {end}");
        if from == end {
            // The common case: they follow.
        } else if from <= self.offset {
            log!(self.logger, Info, "replace the unstable entries from index {from}");
            self.epoch += 1;
            self.entries.clear();
            self.offset = from;
            self.offset_in_progress = from;
        } else {
            log!(self.logger, Info, "truncate the unstable entries before index {from}");
            self.epoch += 1;
            self.entries.truncate((from - self.offset) as usize);
            self.offset_in_progress = self.offset_in_progress.min(from);
        }
        self.entries.push_back(first);
        self.entries.extend(entries);
    }

    /// Entries `low..high`; all of them must be here.
    pub(crate) fn slice(&self, low: u64, high: u64) -> impl ExactSizeIterator<Item = &Entry> {
        let end = self.offset + self.entries.len() as u64;
        assert!(
            self.offset <= low && low <= high && high <= end,
            "unstable entries {low}..{high} asked of {}..{end}",
            self.offset
        );
        self.entries.range((low - self.offset) as usize..(high - self.offset) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(from: u64, terms: &[u64]) -> Vec<Entry> {
        terms.iter().zip(from..).map(|(&term, index)| Entry { term, index, ..Entry::default() }).collect()
    }

    fn unstable(from: u64, terms: &[u64]) -> Unstable {
        let mut unstable = Unstable::new(from, Logger::none());
        unstable.truncate_and_append(entries(from, terms));
        unstable
    }

    fn terms(unstable: &Unstable) -> Vec<u64> {
        unstable.entries.iter().map(|entry| entry.term).collect()
    }

    #[test]
    fn appending_follows_replaces_or_truncates() {
        // from, terms appended, offset after, in progress after, terms after
        let table = [
            (8, vec![2], 5, 7, vec![1, 1, 1, 2]),
            (5, vec![2, 2], 5, 5, vec![2, 2]),
            (4, vec![2, 2, 2], 4, 4, vec![2, 2, 2]),
            (6, vec![2], 5, 6, vec![1, 2]),
            (7, vec![2, 2], 5, 7, vec![1, 1, 2, 2]),
        ];
        for (from, appended, offset, in_progress, after) in table {
            let mut unstable = unstable(5, &[1, 1]);
            unstable.accept_in_progress();
            unstable.truncate_and_append(entries(7, &[1]));
            unstable.truncate_and_append(entries(from, &appended));
            assert_eq!(
                (unstable.offset, unstable.offset_in_progress, terms(&unstable)),
                (offset, in_progress, after),
                "from {from}"
            );
        }
    }

    #[test]
    fn only_the_entry_that_was_written_becomes_stable() {
        let mut unstable = unstable(5, &[1, 2]);
        unstable.stable_to(EntryId { term: 1, index: 6 }, 0);
        unstable.stable_to(EntryId { term: 2, index: 7 }, 0);
        unstable.stable_to(EntryId { term: 1, index: 4 }, 0);
        assert_eq!(terms(&unstable), [1, 2]);
        unstable.stable_to(EntryId { term: 1, index: 5 }, 0);
        assert_eq!((unstable.offset, unstable.offset_in_progress, terms(&unstable)), (6, 6, vec![2]));
        unstable.stable_to(EntryId { term: 2, index: 6 }, 0);
        assert_eq!((unstable.last_index(), unstable.term(6)), (None, None));
    }

    #[test]
    fn a_write_from_before_a_replacement_says_nothing() {
        let mut unstable = unstable(5, &[1, 1]);
        let epoch = unstable.epoch();
        unstable.truncate_and_append(entries(6, &[2]));
        unstable.truncate_and_append(entries(6, &[1]));
        unstable.stable_to(EntryId { term: 1, index: 6 }, epoch);
        assert_eq!(terms(&unstable), [1, 1]);
        unstable.stable_to(EntryId { term: 1, index: 6 }, unstable.epoch());
        assert!(terms(&unstable).is_empty());
    }

    #[test]
    fn work_is_handed_out_once() {
        let mut unstable = unstable(5, &[1]);
        assert_eq!(unstable.next_entries().len(), 1);
        unstable.accept_in_progress();
        assert!(!unstable.has_next_entries());
        unstable.truncate_and_append(entries(6, &[1]));
        assert_eq!(unstable.next_entries().map(|entry| entry.index).collect::<Vec<_>>(), [6]);
    }
}
