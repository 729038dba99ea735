//! The readers' side.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_revlog::{Sizes, Tables};
use dolmen_types::{Index as RaftIndex, KeyRange, Revision, Term};

use crate::hash::{HashKv, hash_kv};
use crate::kv::{KeyValueRef, key_of};
use crate::range::{Collector, Meta, RangeError, RangeOptions, RangeResult, RangeSlices, bounds, resolve};
use crate::snapshot::SnapshotSource;
use crate::state::{Found, Slot};
use crate::store::{Capture, IndexOf, Pin, Shared};
use crate::turns::turn;
use crate::txn::check_revision;

/// Keys looked at in one hold of the lock; the writer waits no longer than that takes.
pub(crate) const CHUNK: usize = 2048;
/// How often a read of the current revision starts anew because the revision it had found was compacted and its space
/// taken back between the two looks. Each turn takes a whole compaction and reclaim to spoil.
const RETRIES: usize = 16;

/// Reads the store from any thread. Clones are cheap and all see the same store.
#[derive(Clone)]
pub struct Reader {
    pub(crate) shared: Arc<Shared>,
}

/// One change as it stands in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub rev: Revision,
    pub tombstone: bool,
    /// Shares the payload's buffer.
    pub key: Bytes,
    /// The encoded `KeyValue`; a tombstone's has only the key.
    pub payload: Bytes,
    /// Create revision, 0 for a tombstone. The event creates the key when it equals `rev.main`.
    pub create: i64,
}

impl Reader {
    /// The current main revision.
    pub fn revision(&self) -> i64 {
        self.shared.inner.read().current
    }

    /// The lowest revision that can be read; -1 when nothing was ever compacted.
    pub fn compact_revision(&self) -> i64 {
        self.shared.inner.read().compact
    }

    /// Living keys.
    pub fn keys(&self) -> u64 {
        self.shared.inner.read().index.live()
    }

    /// Keys a compaction could take something from, and the bytes of memory the index takes. Walks the index.
    pub fn index_stats(&self) -> (u64, usize) {
        let inner = self.shared.inner.read();
        (inner.index.dirty(), inner.index.heap_bytes())
    }

    /// Bytes the log takes.
    pub fn sizes(&self) -> Sizes {
        self.log().sizes()
    }

    fn log(&self) -> dolmen_revlog::Reader {
        self.shared.inner.read().log.clone()
    }

    /// Reads a range.
    ///
    /// # Errors
    /// `Compacted` and `FutureRevision`; anything else means the store is damaged.
    pub fn range(&self, range: &KeyRange, options: &RangeOptions) -> Result<RangeResult, RangeError> {
        match range {
            KeyRange::Single(key) => self.get(key, options),
            _ => self.begin(range, options)?.finish(),
        }
    }

    fn get(&self, key: &[u8], options: &RangeOptions) -> Result<RangeResult, RangeError> {
        let mut lost = Revision::default();
        for _ in 0..RETRIES {
            let inner = self.shared.inner.read();
            let revision = inner.current;
            let at = resolve(options.revision, revision, inner.compact)?;
            let Some(found) = inner.index.get(key, at) else {
                return Ok(RangeResult { revision, ..RangeResult::default() });
            };
            if options.count_only {
                return Ok(RangeResult { count: 1, revision, ..RangeResult::default() });
            }
            if options.plain() {
                let payload = match inner.pending(found.modified) {
                    Some(payload) => Some(payload),
                    None => {
                        let log = inner.log.clone();
                        drop(inner);
                        log.get(found.modified)?
                    }
                };
                let Some(payload) = payload else {
                    lost = found.modified;
                    continue;
                };
                return Ok(RangeResult { kvs: vec![payload], count: 1, more: false, revision });
            }
            let mut collector = Collector::new(options);
            collector.add(key, found, |rev| inner.pending(rev));
            let log = inner.log.clone();
            drop(inner);
            match collector.finish(1, revision, |rev| log.get(rev)?.ok_or(RangeError::Lost(rev))) {
                Err(RangeError::Lost(rev)) => lost = rev,
                result => return result,
            }
        }
        Err(RangeError::Lost(lost))
    }

    /// Pins the current state for several reads that must agree: a read-only txn. Superseded revisions are not let go of
    /// while it lives, so it must not live long.
    pub fn read(&self) -> ReadTxn {
        let inner = self.shared.inner.read();
        let pin = self.shared.pin(&inner, inner.compact);
        ReadTxn { shared: self.shared.clone(), capture: inner.capture(), _pin: pin }
    }

    /// The encoded `KeyValue` of a revision, `None` when compaction has let go of it.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn payload(&self, rev: Revision) -> Result<Option<Bytes>, RangeError> {
        let inner = self.shared.inner.read();
        if let Some(payload) = inner.pending(rev) {
            return Ok(Some(payload));
        }
        let log = inner.log.clone();
        drop(inner);
        Ok(log.get(rev)?)
    }

    /// The key that changed at a revision, `None` when compaction has let go of it. Walks the index: for what is rare.
    pub fn key_of(&self, rev: Revision) -> Option<Bytes> {
        let mut low = Vec::new();
        loop {
            match self.shared.inner.read().index.key_of(rev, &low, CHUNK) {
                Ok(key) => return Some(key.into()),
                Err(next) => low = next?,
            }
        }
    }

    /// The encoded `KeyValue` of a key as it stood just before `mod_revision`: a watch event's `prev_kv`. `None` when it
    /// did not exist then, or that revision has been compacted.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn prev_payload(&self, key: &[u8], mod_revision: i64) -> Result<Option<Bytes>, RangeError> {
        if mod_revision <= 1 {
            return Ok(None);
        }
        match self.get(key, &RangeOptions { revision: mod_revision - 1, ..RangeOptions::default() }) {
            Ok(mut result) => Ok(result.kvs.pop()),
            Err(RangeError::Compacted | RangeError::FutureRevision) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Shows the changes of main revisions `from..=to` in order, until `visit` breaks: what a watcher that starts in the past
    /// has missed. No lock is held while `visit` runs.
    ///
    /// # Errors
    /// `Compacted` when `from` is below the compact revision (at it is fine); others mean the store is damaged.
    pub fn history(
        &self,
        from: i64,
        to: i64,
        mut visit: impl FnMut(Event) -> ControlFlow<()>,
    ) -> Result<(), RangeError> {
        let inner = self.shared.inner.read();
        if from < inner.compact {
            return Err(RangeError::Compacted);
        }
        let to = to.min(inner.current);
        if from > to {
            return Ok(());
        }
        let capture = inner.capture();
        drop(inner);
        for record in capture.scan(from, to) {
            let (rev, tombstone, payload) = record?;
            let kv = KeyValueRef::decode(&payload).ok_or(RangeError::Lost(rev))?;
            let (create, key) = (kv.create_revision, key_of(&payload).unwrap_or_default());
            if visit(Event { rev, tombstone, key, create: if tombstone { 0 } else { create }, payload }).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The hash of all that can be read at `revision` (0: the current one), equal on every member at that revision however
    /// far its pruning has come. The hash stored at a compaction of exactly that revision is returned if there is one, as
    /// etcd does.
    ///
    /// # Errors
    /// `Compacted` and `FutureRevision`; anything else means the store is damaged.
    pub fn hash_kv(&self, revision: i64) -> Result<HashKv, RangeError> {
        let stored = self.shared.hashes.lock().iter().find(|hash| hash.hash_revision == revision).copied();
        match stored {
            Some(hash) => Ok(HashKv { revision: self.revision(), ..hash }),
            None => hash_kv(&self.shared, revision),
        }
    }

    /// The hashes of the last compactions, oldest first; at most 10, none from before the last start.
    pub fn compaction_hashes(&self) -> Vec<HashKv> {
        self.shared.hashes.lock().clone()
    }

    /// Pins the store as a set of bbolt buckets: for snapshots, and for the hash over everything. `tables`, `index` and
    /// `term` must be those of the same moment, so this is for the writer's thread, after a commit.
    ///
    /// # Errors
    /// None today: reading the source may fail, making it does not.
    pub fn snapshot_source(&self, tables: Tables, index: RaftIndex, term: Term) -> Result<SnapshotSource, RangeError> {
        Ok(SnapshotSource::new(&self.shared, tables, index, term))
    }
}

/// The store at one moment, for several reads that agree.
pub struct ReadTxn {
    shared: Arc<Shared>,
    capture: Capture,
    _pin: Pin,
}

impl ReadTxn {
    /// The current revision of that moment.
    pub fn revision(&self) -> i64 {
        self.capture.current
    }

    /// The compact revision of that moment.
    pub fn compact_revision(&self) -> i64 {
        self.capture.compact
    }

    /// As [`crate::Txn::check_revision`].
    ///
    /// # Errors
    /// `FutureRevision`, `Compacted`.
    pub fn check_revision(&self, revision: i64) -> Result<(), RangeError> {
        check_revision(revision, self.capture.current, self.capture.compact)
    }

    /// Reads a range.
    ///
    /// # Errors
    /// As [`Reader::range`].
    pub fn range(&self, range: &KeyRange, options: &RangeOptions) -> Result<RangeResult, RangeError> {
        let KeyRange::Single(key) = range else {
            let mut slices = RangeSlices::new(range, options);
            loop {
                if let Some(result) = turn(&self.shared, &self.capture, &mut slices)? {
                    return Ok(result);
                }
            }
        };
        let revision = self.capture.current;
        let at = resolve(options.revision, revision, self.capture.compact)?;
        let mut collector = Collector::new(options);
        let found = self.held()?.index().get(key, at);
        if let Some(found) = found.filter(|_| !options.count_only) {
            collector.add(key, found, |_| None);
        }
        collector.finish(u64::from(found.is_some()), revision, |rev| self.payload(rev))
    }

    /// As [`crate::Txn::for_each_meta`], at the revision of this moment. No lock is held while `visit` runs.
    ///
    /// # Errors
    /// None today: what this read holds a pin of does not go away.
    pub fn for_each_meta(
        &self,
        range: &KeyRange,
        mut visit: impl FnMut(Meta<'_>) -> ControlFlow<()>,
    ) -> Result<(), RangeError> {
        let at = self.capture.current;
        let (mut low, high) = bounds(range);
        loop {
            let mut metas: Vec<(Bytes, Found)> = Vec::new();
            let _ = self.held()?.index().range(&low, high.as_deref(), at, |key, found| {
                metas.push((Bytes::copy_from_slice(key), found));
                if metas.len() < CHUNK { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            for (key, found) in &metas {
                let meta =
                    Meta { key, create_revision: found.create, version: found.version, modified: found.modified };
                if visit(meta).is_break() {
                    return Ok(());
                }
            }
            match metas.last() {
                Some((key, _)) if metas.len() == CHUNK => low = after(key),
                _ => return Ok(()),
            }
        }
    }

    /// The encoded `KeyValue` of a revision that this read has named.
    ///
    /// # Errors
    /// `Lost` and `Log`: the store is damaged.
    pub fn payload(&self, rev: Revision) -> Result<Bytes, RangeError> {
        self.capture.get(rev)?.ok_or(RangeError::Lost(rev))
    }

    fn held(&self) -> Result<IndexOf<'_>, RangeError> {
        self.shared.index_of(self.capture.epoch)
    }
}

/// The lowest key above `key`.
pub(crate) fn after(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}

/// What the keys of the store had as their newest revision at some moment.
pub(crate) struct Kept {
    /// Those at or below the bound asked for, in revision order.
    pub(crate) slots: Vec<Slot>,
    /// Whether any key was alive, below the bound or above it.
    pub(crate) any: bool,
}

impl Shared {
    /// The newest revision at or below `at` of every key, where it is at or below `bound`: living ones, and tombstones of
    /// main revision `tombstones`. `at` must be pinned, from the moment `epoch` was read.
    pub(crate) fn kept(&self, at: i64, bound: i64, tombstones: Option<i64>, epoch: u64) -> Result<Kept, RangeError> {
        let mut kept = Kept { slots: Vec::new(), any: false };
        let mut low = Some(Bytes::new());
        while let Some(from) = low.take() {
            let held = self.index_of(epoch)?;
            let mut left = CHUNK;
            let _ = held.index().last_at(&from, at, |key, slot| {
                kept.any |= !slot.tombstone();
                let wanted = !slot.tombstone() || Some(slot.main()) == tombstones;
                if wanted && slot.main() <= bound {
                    kept.slots.push(slot);
                }
                left -= 1;
                if left == 0 {
                    low = Some(after(key));
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
        }
        kept.slots.sort_unstable();
        Ok(kept)
    }
}

impl Kept {
    /// A filter for records that come in revision order.
    pub(crate) fn filter(&self) -> impl FnMut(Revision) -> bool {
        let mut at = 0;
        move |rev| {
            while self.slots.get(at).is_some_and(|slot| slot.rev() < rev) {
                at += 1;
            }
            self.slots.get(at).is_some_and(|slot| slot.rev() == rev)
        }
    }
}
