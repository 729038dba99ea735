/// What an operator, or a test, may turn. The defaults suit a member of a Kubernetes cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A segment is sealed when it has grown past this.
    pub segment_bytes: u64,
    /// Nanoseconds a batch waits at most before a job that writes and syncs it is due.
    pub sync_interval: u64,
    /// Bytes of unwritten batches that make such a job due at once.
    pub sync_bytes: u64,
    /// Bytes of records in a frame, about: a larger batch takes several.
    pub part_bytes: usize,
    /// What reclaim may read and write in a second.
    pub reclaim_bytes_per_second: u64,
    /// What reclaim handles in one job, so that jobs of the log never wait long behind it.
    pub reclaim_slice_bytes: u64,
    /// Share of the store's bytes, in percent, that may be garbage before reclaim starts by itself.
    pub garbage_percent: u64,
    /// Bytes of dead records that are kept as history, most recently dead first.
    pub history_bytes: u64,
    /// Bytes held back at most in the file `spare`, given up when the disk is full; a small store holds back less. 0
    /// keeps none.
    pub spare_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 32 << 20,
            sync_interval: 1_000_000_000,
            sync_bytes: 16 << 20,
            part_bytes: 4 << 20,
            reclaim_bytes_per_second: 64 << 20,
            reclaim_slice_bytes: 1 << 20,
            garbage_percent: 15,
            history_bytes: 0,
            spare_bytes: 16 << 20,
        }
    }
}

/// Why the caller asks for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Whatever is due.
    Normal,
    /// Write and sync what is buffered, due or not: before a snapshot, at shutdown.
    Sync,
    /// Begin a pass over every segment with garbage, however little: the Defragment request. The pass goes on over
    /// later calls with [`Hint::Normal`].
    Reclaim,
}
