//! What the core reads of the log that is already written.

use dolmen_proto::raftpb::{ConfState, Entry, HardState, Snapshot};

/// Why storage cannot answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// The entry lies at or below the last compaction.
    #[error("requested index is unavailable due to compaction")]
    Compacted,
    /// The entry lies above the last one.
    #[error("requested entry at index is unavailable")]
    Unavailable,
    /// The snapshot is older than the one that is there.
    #[error("requested index is older than the existing snapshot")]
    SnapshotOutOfDate,
    /// Ask again later.
    #[error("snapshot is temporarily unavailable")]
    SnapshotTemporarilyUnavailable,
}

/// The written log, as the core reads it: the entries above the last compaction, and the snapshot below them.
///
/// Called on every step, so answers come from memory; there are no I/O errors here. The owner writes Ready's entries
/// into it before it tells the core that they are durable.
pub trait Storage {
    /// What a restart begins with. An empty `ConfState` for a member that knows no membership yet.
    fn initial_state(&self) -> Result<(HardState, ConfState), StorageError>;

    /// Entries `low..high` in order, cut short so that they encode to at most `max_size` bytes, but at least one.
    ///
    /// # Errors
    /// `Compacted` when `low` is gone, `Unavailable` when `high` is beyond the last entry.
    fn entries(&self, low: u64, high: u64, max_size: u64) -> Result<Vec<Entry>, StorageError>;

    /// The term of an entry in `first_index - 1..=last_index`. The one below the first is kept for matching.
    fn term(&self, index: u64) -> Result<u64, StorageError>;

    /// Index of the last entry; `first_index - 1` when there is none.
    fn last_index(&self) -> u64;

    /// Index of the first entry that [`entries`](Self::entries) may still give.
    fn first_index(&self) -> u64;

    /// The snapshot to send to a member whose next entry is gone. Its index is at least `first_index - 1`.
    ///
    /// # Errors
    /// `SnapshotTemporarilyUnavailable`: the core asks again when that member is next heard from.
    fn snapshot(&self) -> Result<Snapshot, StorageError>;
}

/// The index a snapshot stands at; 0 for none.
pub fn snapshot_index(snapshot: &Snapshot) -> u64 {
    snapshot.metadata.as_ref().map_or(0, |metadata| metadata.index)
}

/// The term of the entry a snapshot stands at; 0 for none.
pub fn snapshot_term(snapshot: &Snapshot) -> u64 {
    snapshot.metadata.as_ref().map_or(0, |metadata| metadata.term)
}
