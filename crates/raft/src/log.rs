//! The log as the state machine sees it: storage below, [`Unstable`] on top, and how far it is committed and applied.
//!
//! ```text
//!   snapshot │ applied ≤ applying ≤ committed │ ... last index
//! ```
//!
//! `applying` is the last entry handed out in a Ready, `applied` the last one reported back; the bytes in between are
//! bounded.

use std::fmt;

use dolmen_proto::raftpb::{Entry, Snapshot};

use crate::entry::{EntryId, encoded_sizes, take_within};
use crate::logger::{Logger, log};
use crate::storage::{Storage, StorageError, snapshot_index, snapshot_term};
use crate::unstable::Unstable;

pub(crate) struct RaftLog<S> {
    pub storage: S,
    pub unstable: Unstable,
    pub committed: u64,
    applying: u64,
    applied: u64,
    /// Bound on the encoded bytes handed out and not reported back.
    max_applying_size: u64,
    applying_size: u64,
    /// The bound is reached, or the next entry would exceed it.
    applying_paused: bool,
    logger: Logger,
}

impl<S: Storage> RaftLog<S> {
    pub(crate) fn new(storage: S, max_applying_size: u64, logger: Logger) -> Self {
        let before = storage.first_index() - 1;
        let next = storage.last_index() + 1;
        Self {
            storage,
            unstable: Unstable::new(next, logger.clone()),
            committed: before,
            applying: before,
            applied: before,
            max_applying_size: max_applying_size.max(1),
            applying_size: 0,
            applying_paused: false,
            logger,
        }
    }

    pub(crate) const fn applied(&self) -> u64 {
        self.applied
    }

    pub(crate) const fn applying(&self) -> u64 {
        self.applying
    }

    pub(crate) fn first_index(&self) -> u64 {
        self.unstable.first_index().unwrap_or_else(|| self.storage.first_index())
    }

    pub(crate) fn last_index(&self) -> u64 {
        self.unstable.last_index().unwrap_or_else(|| self.storage.last_index())
    }

    /// # Errors
    /// `Compacted` below `first_index - 1`, `Unavailable` above `last_index`.
    pub(crate) fn term(&self, index: u64) -> Result<u64, StorageError> {
        if let Some(term) = self.unstable.term(index) {
            return Ok(term);
        }
        if index.saturating_add(1) < self.first_index() {
            return Err(StorageError::Compacted);
        }
        if index > self.last_index() {
            return Err(StorageError::Unavailable);
        }
        self.storage.term(index)
    }

    /// 0 for an entry that is not there.
    pub(crate) fn term_or_zero(&self, index: u64) -> u64 {
        self.term(index).unwrap_or(0)
    }

    pub(crate) fn last_id(&self) -> EntryId {
        let index = self.last_index();
        let term = self.term(index).expect("storage keeps the term of the last entry, or of the one below the first");
        EntryId { term, index }
    }

    pub(crate) fn matches(&self, id: EntryId) -> bool {
        self.term(id.index) == Ok(id.term)
    }

    /// A candidate with that last entry has all that this log has (paper 5.4.1).
    pub(crate) fn is_up_to_date(&self, candidate: EntryId) -> bool {
        let last = self.last_id();
        candidate.term > last.term || candidate.term == last.term && candidate.index >= last.index
    }

    /// A follower's side of an append: takes the entries behind `previous` when that entry is here, and learns
    /// `commit`. The entries are consecutive, and `previous` is not below the commit index. Gives the index up to which
    /// the log now equals the leader's; `None` when `previous` is not here.
    pub(crate) fn maybe_append(&mut self, previous: EntryId, mut entries: Vec<Entry>, commit: u64) -> Option<u64> {
        if !self.matches(previous) {
            return None;
        }
        let last_new = previous.index + entries.len() as u64;
        if let Some(at) = self.find_news(&entries) {
            let index = entries[at].index;
            assert!(index > self.committed, "entry {index} would replace a committed one");
            if at == 0 {
                self.unstable.truncate_and_append(entries);
            } else {
                self.unstable.truncate_and_append(entries.drain(at..));
            }
        }
        self.commit_to(commit.min(last_new));
        Some(last_new)
    }

    /// Appends to the end, after dropping what stands there from the first entry's index on. Gives the last index.
    pub(crate) fn append(&mut self, entries: Vec<Entry>) -> u64 {
        if let Some(first) = entries.first() {
            assert!(first.index > self.committed, "entry {} would replace a committed one", first.index);
            self.unstable.truncate_and_append(entries);
        }
        self.last_index()
    }

    /// Position of the first entry that is missing here or differs.
    fn find_news(&self, entries: &[Entry]) -> Option<usize> {
        let at = entries.iter().position(|entry| !self.matches(EntryId::of(entry)))?;
        let entry = &entries[at];
        if entry.index <= self.last_index() {
            log!(
                self.logger,
                Info,
                "found conflict at index {} [existing term: {}, conflicting term: {}]",
                entry.index,
                self.term_or_zero(entry.index),
                entry.term
            );
        }
        Some(at)
    }

    /// The highest index, at most `index`, where this log may equal another one that has `term` at `index`: terms only
    /// grow along a log, so wherever ours is higher they differ. With our term there; 0 when it is not known.
    pub(crate) fn find_conflict_by_term(&self, index: u64, term: u64) -> (u64, u64) {
        let mut index = index;
        while index > 0 {
            match self.term(index) {
                Err(_) => return (index, 0),
                Ok(ours) if ours <= term => return (index, ours),
                Ok(_) => index -= 1,
            }
        }
        (0, 0)
    }

    /// Never moves back. The caller has made sure that the log reaches so far.
    pub(crate) fn commit_to(&mut self, commit: u64) {
        if self.committed < commit {
            let last = self.last_index();
            assert!(commit <= last, "commit {commit} is above the last index {last}");
            self.committed = commit;
        }
    }

    /// Commits `id` when it is ahead and in the log. A leader passes its own term: older entries are committed only by
    /// being below one of its own (paper 5.4.2).
    pub(crate) fn maybe_commit(&mut self, id: EntryId) -> bool {
        if id.term != 0 && id.index > self.committed && self.matches(id) {
            self.commit_to(id.index);
            return true;
        }
        false
    }

    pub(crate) fn restore(&mut self, snapshot: Snapshot) {
        let (index, term) = (snapshot_index(&snapshot), snapshot_term(&snapshot));
        log!(self.logger, Info, "log [{self}] starts to restore snapshot [index: {index}, term: {term}]");
        self.committed = index;
        self.unstable.restore(snapshot);
    }

    /// The state machine has applied up to `index`, `size` encoded bytes of what was handed out.
    pub(crate) fn applied_to(&mut self, index: u64, size: u64) {
        assert!(
            self.applied <= index && index <= self.committed,
            "applied {index} is outside of {}..={}",
            self.applied,
            self.committed
        );
        self.applied = index;
        self.applying = self.applying.max(index);
        self.applying_size = self.applying_size.saturating_sub(size);
        self.applying_paused = self.applying_size >= self.max_applying_size;
    }

    /// Entries up to `index`, `size` encoded bytes, have been handed out.
    pub(crate) fn accept_applying(&mut self, index: u64, size: u64, allow_unstable: bool) {
        assert!(index <= self.committed, "handed out {index} above the commit index {}", self.committed);
        self.applying = index;
        self.applying_size = self.applying_size.saturating_add(size);
        // When less was handed out than there is, the size bound cut it.
        self.applying_paused =
            self.applying_size >= self.max_applying_size || index < self.max_appliable(allow_unstable);
    }

    /// The last entry that may be applied. Without `allow_unstable`, storage must have it.
    fn max_appliable(&self, allow_unstable: bool) -> u64 {
        if allow_unstable { self.committed } else { self.committed.min(self.unstable.offset() - 1) }
    }

    pub(crate) fn has_next_committed(&self, allow_unstable: bool) -> bool {
        // A snapshot goes first; what follows it is applied on top.
        !self.applying_paused && self.unstable.snapshot.is_none() && self.applying < self.max_appliable(allow_unstable)
    }

    /// Committed entries to hand out, within the size bound.
    pub(crate) fn next_committed(&self, allow_unstable: bool) -> Vec<Entry> {
        if !self.has_next_committed(allow_unstable) {
            return Vec::new();
        }
        let room = self.max_applying_size - self.applying_size;
        self.slice(self.applying + 1, self.max_appliable(allow_unstable) + 1, room)
            .expect("entries above the applied index are not compacted")
    }

    /// Entries from `low` on, within `max_size` bytes; none above the last one.
    pub(crate) fn entries(&self, low: u64, max_size: u64) -> Result<Vec<Entry>, StorageError> {
        let last = self.last_index();
        if low > last {
            return Ok(Vec::new());
        }
        self.slice(low, last + 1, max_size)
    }

    /// Entries `low..high` within `max_size` bytes, at least one.
    pub(crate) fn slice(&self, low: u64, high: u64, max_size: u64) -> Result<Vec<Entry>, StorageError> {
        if low < self.first_index() {
            return Err(StorageError::Compacted);
        }
        if low >= high {
            return Ok(Vec::new());
        }
        let offset = self.unstable.offset();
        if low >= offset {
            return Ok(take_within(self.unstable.slice(low, high), max_size));
        }
        let cut = high.min(offset);
        let mut entries = self.storage.entries(low, cut, max_size)?;
        if high <= offset || (entries.len() as u64) < cut - low {
            return Ok(entries);
        }
        let room = if max_size == u64::MAX { u64::MAX } else { max_size.saturating_sub(encoded_sizes(&entries)) };
        if room == 0 {
            return Ok(entries);
        }
        let more = take_within(self.unstable.slice(offset, high), room);
        // The first one is always taken; here it may not fit behind those from storage.
        if more.len() > 1 || encoded_sizes(&more) <= room {
            entries.reserve_exact(more.len());
            entries.extend(more);
        }
        Ok(entries)
    }

    /// Looks through `low..high` in pages of `page_size` bytes; true as soon as `found` is.
    pub(crate) fn any(
        &self,
        low: u64,
        high: u64,
        page_size: u64,
        found: impl Fn(&Entry) -> bool,
    ) -> Result<bool, StorageError> {
        let mut low = low;
        while low < high {
            let page = self.slice(low, high, page_size)?;
            if page.is_empty() {
                return Err(StorageError::Unavailable);
            }
            if page.iter().any(&found) {
                return Ok(true);
            }
            low += page.len() as u64;
        }
        Ok(false)
    }

    pub(crate) const fn max_applying_size(&self) -> u64 {
        self.max_applying_size
    }

    /// The snapshot to send: the one still being restored, else storage's.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, StorageError> {
        match &self.unstable.snapshot {
            Some(snapshot) => Ok(snapshot.clone()),
            None => self.storage.snapshot(),
        }
    }
}

impl<S> fmt::Display for RaftLog<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "committed={}, applied={}, applying={}, unstable.offset={}, unstable.offsetInProgress={}, \
             len(unstable.Entries)={}",
            self.committed,
            self.applied,
            self.applying,
            self.unstable.offset(),
            self.unstable.offset_in_progress(),
            self.unstable.len()
        )
    }
}
