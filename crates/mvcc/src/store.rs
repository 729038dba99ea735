//! The writer's side: opening, committing, compacting.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_revlog::{Batch, Log, NewRecord, Recovered, TableOp, View};
use dolmen_types::{Index as RaftIndex, LeaseId, Revision, Term};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::hash::{CompactionHash, HashKv};
use crate::index::Index;
use crate::range::RangeError;
use crate::reader::Reader;
use crate::snapshot::Restored;
use crate::state::Slot;
use crate::txn::Txn;

/// Keys and revisions pruned in one hold of the lock, at most; readers wait no longer than that takes.
const PRUNE_SLICE: usize = 512;
/// Records sorted together while an index is made; some 10 MiB of memory.
const REPLAY_CHUNK: usize = 1 << 17;

/// What readers and the writer share, behind one lock.
pub(crate) struct Inner {
    pub(crate) index: Index,
    pub(crate) log: dolmen_revlog::Reader,
    /// Records that no commit has handed to the log yet, in revision order.
    pub(crate) pending: Vec<Pending>,
    pub(crate) current: i64,
    /// -1: never compacted.
    pub(crate) compact: i64,
    /// Counts snapshots installed in place of the store.
    pub(crate) epoch: u64,
}

/// A record the log does not have yet, as readers need it.
#[derive(Clone)]
pub(crate) struct Pending {
    pub(crate) rev: Revision,
    pub(crate) tombstone: bool,
    pub(crate) payload: Bytes,
}

/// What the writer alone knows.
#[derive(Default)]
pub(crate) struct Writer {
    /// Keys that have a lease. The log's records tell, too, but reading one back may cost a disk read.
    pub(crate) leases: BTreeMap<Bytes, LeaseId>,
    /// The records of [`Inner::pending`], whole, for the next batch; those of the open request apart.
    pub(crate) records: Vec<NewRecord>,
    /// The request that gave the lock away midway.
    pub(crate) open: Option<Open>,
}

/// A request between two slices.
pub(crate) struct Open {
    pub(crate) main: i64,
    /// Changes so far.
    pub(crate) subs: i64,
    /// Those of its records that the log does not have.
    pub(crate) records: Vec<NewRecord>,
}

impl Inner {
    /// The payload of a revision that is not in the log yet.
    pub(crate) fn pending(&self, rev: Revision) -> Option<Bytes> {
        if self.pending.first().is_none_or(|first| rev < first.rev) {
            return None;
        }
        let at = self.pending.binary_search_by_key(&rev, |record| record.rev).ok()?;
        Some(self.pending[at].payload.clone())
    }

    /// All records of a moment, pinned: the log's, and those it has not been given yet.
    pub(crate) fn capture(&self) -> Capture {
        self.capture_with(self.pending.clone())
    }

    /// The records that the log has, for a caller that has looked at the others.
    pub(crate) fn capture_log(&self) -> Capture {
        self.capture_with(Vec::new())
    }

    fn capture_with(&self, tail: Vec<Pending>) -> Capture {
        Capture { view: self.log.view(), tail, current: self.current, compact: self.compact, epoch: self.epoch }
    }
}

/// See [`Inner::capture`].
pub(crate) struct Capture {
    pub(crate) view: View,
    tail: Vec<Pending>,
    pub(crate) current: i64,
    pub(crate) compact: i64,
    pub(crate) epoch: u64,
}

impl Capture {
    pub(crate) fn get(&self, rev: Revision) -> Result<Option<Bytes>, dolmen_revlog::Error> {
        match self.tail.binary_search_by_key(&rev, |record| record.rev) {
            Ok(at) => Ok(Some(self.tail[at].payload.clone())),
            Err(_) => self.view.get(rev),
        }
    }

    /// Records in revision order, dead ones that are still there too.
    pub(crate) fn scan(
        &self,
        from: i64,
        to: i64,
    ) -> impl Iterator<Item = Result<(Revision, bool, Bytes), dolmen_revlog::Error>> {
        let tail = self.tail.iter().filter(move |record| (from..=to).contains(&record.rev.main));
        let tail = tail.map(|record| Ok((record.rev, record.tombstone, record.payload.clone())));
        self.view.scan(Revision::new(from, 0), to).chain(tail)
    }

    /// Heads of the same records: revision, tombstone, bytes of payload.
    pub(crate) fn metas(&self, to: i64) -> impl Iterator<Item = (Revision, bool, usize)> {
        let tail = self.tail.iter().filter(move |record| record.rev.main <= to);
        let tail = tail.map(|record| (record.rev, record.tombstone, record.payload.len()));
        let metas = self.view.metas(Revision::new(0, 0), to);
        metas.map(|entry| (entry.rev, entry.tombstone, entry.len as usize)).chain(tail)
    }
}

pub(crate) struct Shared {
    pub(crate) inner: RwLock<Inner>,
    /// Taken after the lock of `inner`, where both are.
    pins: Mutex<Pins>,
    /// Hashes made at the last compactions, oldest first.
    pub(crate) hashes: Mutex<Vec<HashKv>>,
}

/// What readers hold.
#[derive(Default)]
struct Pins {
    /// By epoch and revision, how many do. Pruning stays at or below the lowest revision of the present epoch.
    held: BTreeMap<(u64, i64), usize>,
    /// Indexes that a snapshot has replaced, while a pin of their epoch is left; so there are never more than pins.
    retired: BTreeMap<u64, Arc<Index>>,
}

impl Pins {
    fn any(&self, epoch: u64) -> bool {
        self.held.range((epoch, i64::MIN)..=(epoch, i64::MAX)).next().is_some()
    }
}

/// Holds a revision, and the index to read it by, until dropped.
pub(crate) struct Pin {
    shared: Arc<Shared>,
    epoch: u64,
    revision: i64,
}

/// The index of an epoch: the present one under its lock, or one that a pin has kept.
pub(crate) enum IndexOf<'a> {
    Present(RwLockReadGuard<'a, Inner>),
    Retired(Arc<Index>),
}

impl IndexOf<'_> {
    pub(crate) fn index(&self) -> &Index {
        match self {
            Self::Present(inner) => &inner.index,
            Self::Retired(index) => index,
        }
    }
}

impl Shared {
    /// `inner` shows that its lock is held, and with a revision that is not compacted pruning cannot run then.
    pub(crate) fn pin(self: &Arc<Self>, inner: &Inner, revision: i64) -> Pin {
        let epoch = inner.epoch;
        *self.pins.lock().held.entry((epoch, revision)).or_default() += 1;
        Pin { shared: self.clone(), epoch, revision }
    }

    /// The index of `epoch`, which a pin must hold: without one it is gone once a snapshot was put in the store's place.
    pub(crate) fn index_of(&self, epoch: u64) -> Result<IndexOf<'_>, RangeError> {
        let inner = self.inner.read();
        if inner.epoch == epoch {
            return Ok(IndexOf::Present(inner));
        }
        self.pins.lock().retired.get(&epoch).cloned().map(IndexOf::Retired).ok_or(RangeError::Compacted)
    }

    fn lowest_pin(&self, epoch: u64) -> i64 {
        self.pins.lock().held.range((epoch, i64::MIN)..).next().map_or(i64::MAX, |((_, revision), _)| *revision)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.shared.pins.lock();
        let key = (self.epoch, self.revision);
        if let Some(count) = pins.held.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                pins.held.remove(&key);
            }
        }
        let last = if pins.any(self.epoch) { None } else { pins.retired.remove(&self.epoch) };
        // Not under the lock: an index takes a while to be freed.
        drop(pins);
        drop(last);
    }
}

/// How far pruning has come.
struct Prune {
    /// Everything superseded at or below this revision has left the index.
    done: i64,
    /// The pass under way: the revision it prunes at, and the key it goes on from.
    pass: Option<(i64, Vec<u8>)>,
}

/// Why a compaction is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompactError {
    /// At or below the last compaction.
    #[error("required revision has been compacted")]
    Compacted,
    /// Above the current revision.
    #[error("required revision is a future revision")]
    FutureRevision,
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot read the revision log")]
    Log(#[from] dolmen_revlog::Error),
    /// The log's checksums hold and yet it makes no sense: it was not written by this program.
    #[error("the log's record of revision {}.{} does not follow the records before it", .0.main, .0.sub)]
    Order(Revision),
}

/// What opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Leases of living keys, in key order.
    pub leases: Vec<(LeaseId, Bytes)>,
    pub revision: i64,
    /// -1: never compacted.
    pub compact_revision: i64,
    /// Living keys.
    pub keys: u64,
    /// Raft index and term of the last batch the log holds.
    pub index: RaftIndex,
    pub term: Term,
}

/// The store's one writer. See the crate's page.
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    pub(crate) log: Log,
    writer: Writer,
    /// The same as the readers see.
    compact: i64,
    epoch: u64,
    compacted: Option<i64>,
    prune: Prune,
}

/// An index in the making, from records in revision order.
pub(crate) struct Replay {
    pub(crate) index: Index,
    pub(crate) leases: BTreeMap<Bytes, LeaseId>,
    pub(crate) compact: i64,
    pub(crate) dead: Vec<Revision>,
    last: Revision,
    waiting: Vec<Head>,
}

/// The parts of a record that the index needs.
pub(crate) struct Head {
    pub(crate) rev: Revision,
    pub(crate) tombstone: bool,
    pub(crate) create: i64,
    pub(crate) version: i64,
    pub(crate) lease: LeaseId,
    pub(crate) key: Bytes,
}

impl Replay {
    pub(crate) fn new(compact: i64) -> Self {
        Self {
            index: Index::new(),
            leases: BTreeMap::new(),
            compact,
            dead: Vec::new(),
            last: Revision::default(),
            waiting: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, head: Head) -> Result<(), OpenError> {
        if head.rev <= self.last || head.rev.main <= 0 || Slot::new(head.rev, head.tombstone).is_none() {
            return Err(OpenError::Order(head.rev));
        }
        self.last = head.rev;
        self.waiting.push(head);
        if self.waiting.len() >= REPLAY_CHUNK { self.flush() } else { Ok(()) }
    }

    /// Takes the records that wait into the index, in the order of their keys: neighbours then meet in leaves that the
    /// cache still has, where revision order would miss it for each key anew. What is dead is given in revision order.
    pub(crate) fn flush(&mut self) -> Result<(), OpenError> {
        let mut waiting = std::mem::take(&mut self.waiting);
        // Stable, so each key's revisions stay in their order.
        waiting.sort_by(|a, b| a.key.cmp(&b.key));
        for head in waiting.drain(..) {
            let slot = Slot::new(head.rev, head.tombstone).ok_or(OpenError::Order(head.rev))?;
            if !self.index.replay(&head.key, slot, head.create, head.version, self.compact, &mut self.dead) {
                return Err(OpenError::Order(head.rev));
            }
            self.attach(&head);
        }
        self.dead.sort_unstable();
        self.waiting = waiting;
        Ok(())
    }

    fn attach(&mut self, head: &Head) {
        if head.lease == 0 || head.tombstone {
            if !self.leases.is_empty() {
                self.leases.remove(&head.key);
            }
        } else if let Some(lease) = self.leases.get_mut(&head.key) {
            *lease = head.lease;
        } else {
            self.leases.insert(Bytes::copy_from_slice(&head.key), head.lease);
        }
    }

    /// Never below the compact revision: the records that carried a higher one may all be gone.
    pub(crate) fn current(&self) -> i64 {
        self.last.main.max(self.compact).max(1)
    }

    pub(crate) fn report(&self, index: RaftIndex, term: Term) -> OpenReport {
        OpenReport {
            leases: self.leases.iter().map(|(key, lease)| (*lease, key.clone())).collect(),
            revision: self.current(),
            compact_revision: self.compact,
            keys: self.index.live(),
            index,
            term,
        }
    }
}

impl Store {
    /// Builds the index from what the log recovered.
    ///
    /// # Errors
    /// When the log cannot be read or is not in revision order.
    pub fn open(mut log: Log, recovered: Recovered) -> Result<(Self, OpenReport), OpenError> {
        let mut replay = Replay::new(recovered.compact_revision);
        for record in recovered.records {
            let record = record?;
            replay.push(Head {
                rev: record.rev,
                tombstone: record.tombstone,
                create: record.create,
                version: record.version,
                lease: record.lease,
                key: record.key,
            })?;
            if !replay.dead.is_empty() {
                log.mark_dead(&replay.dead);
                replay.dead.clear();
            }
        }
        replay.flush()?;
        log.mark_dead(&replay.dead);
        let report = replay.report(recovered.index, recovered.term);
        let inner = Inner {
            log: log.reader(),
            pending: Vec::new(),
            current: report.revision,
            compact: report.compact_revision,
            index: replay.index,
            epoch: 0,
        };
        let shared = Shared { inner: RwLock::new(inner), pins: Mutex::default(), hashes: Mutex::default() };
        let prune = Prune { done: report.compact_revision, pass: None };
        let writer = Writer { leases: replay.leases, ..Writer::default() };
        let compact = report.compact_revision;
        Ok((Self { shared: Arc::new(shared), log, writer, compact, epoch: 0, compacted: None, prune }, report))
    }

    /// A handle for other threads. It stays good when a snapshot is installed.
    pub fn reader(&self) -> Reader {
        Reader { shared: self.shared.clone() }
    }

    /// The current main revision: 1 for an empty store.
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

    /// The lease a living key is attached to, 0 for none.
    pub fn lease_of(&self, key: &[u8]) -> LeaseId {
        self.writer.leases.get(key).copied().unwrap_or(0)
    }

    /// Begins one request. Readers wait until it is finished or dropped, so nothing slow may happen meanwhile.
    pub fn begin(&mut self) -> Txn<'_> {
        assert!(self.writer.open.is_none(), "one request after the other");
        Txn::new(self.shared.inner.write(), &mut self.writer)
    }

    /// Goes on with the request that was suspended.
    pub fn resume(&mut self) -> Txn<'_> {
        let open = self.writer.open.take().expect("a request was suspended");
        assert!(open.records.is_empty(), "the log has what it has written by now");
        Txn::resume(self.shared.inner.write(), &mut self.writer, &open)
    }

    /// Hands what the suspended request has written to the log, as a part of the batch that its end will be in. Whatever was
    /// finished before it must be committed.
    pub fn append_part(&mut self) {
        assert!(
            self.writer.records.is_empty(),
            "earlier requests are committed before a later one is written in parts"
        );
        let Some(open) = &mut self.writer.open else { return };
        let records = std::mem::take(&mut open.records);
        if !records.is_empty() {
            self.log.append_part(&records);
            self.shared.inner.write().pending.clear();
        }
    }

    /// Moves the compact revision, effective at once. What it supersedes goes later, by [`Store::compact_step`].
    ///
    /// # Errors
    /// `Compacted` at or below the last compaction (a fresh store stands at -1, so revision 0 passes once),
    /// `FutureRevision` above the current revision.
    pub fn compact(&mut self, rev: i64) -> Result<(), CompactError> {
        let mut inner = self.shared.inner.write();
        if rev <= inner.compact {
            return Err(CompactError::Compacted);
        }
        if rev > inner.current {
            return Err(CompactError::FutureRevision);
        }
        inner.compact = rev;
        self.compact = rev;
        self.compacted = Some(rev);
        Ok(())
    }

    /// As [`Store::compact`], and returns a job that makes the hash etcd stores for the revision: of everything between
    /// the compaction before and this one. Run it on another thread, or drop it; it reads the whole store up to `rev`.
    ///
    /// # Errors
    /// As [`Store::compact`].
    pub fn compact_with_hash(&mut self, rev: i64) -> Result<CompactionHash, CompactError> {
        let (capture, pin) = {
            let inner = self.shared.inner.read();
            (inner.capture(), (inner.compact >= 0).then(|| self.shared.pin(&inner, inner.compact)))
        };
        self.compact(rev)?;
        Ok(CompactionHash::new(self.shared.clone(), capture, pin, rev))
    }

    /// Takes superseded revisions out of the index, looking at about `budget_keys` keys and revisions, and reports them dead
    /// to the log. Returns whether there is more to do right now.
    ///
    /// Cheap when there is nothing to do, and takes no lock then that readers hold, so it may be called on every turn of a
    /// loop. It waits, and says there is nothing
    /// to do, until the compaction is committed, and while a reader pins an older revision.
    pub fn compact_step(&mut self, budget_keys: usize) -> bool {
        // The log drops nothing before the batch that moved the compact revision is durable, but it cannot tell what is dead
        // by a compaction it has not been told of: after a crash those records would be missed.
        if self.compacted.is_some() {
            return false;
        }
        let mut dead = Vec::new();
        let mut left = budget_keys.max(1);
        while left > 0 {
            // Readers that come while a pass runs pin the compact revision of that moment or later, never below the pass.
            let at = match &self.prune.pass {
                Some((at, _)) => *at,
                None => self.prunable(),
            };
            if at <= self.prune.done {
                break;
            }
            let mut inner = self.shared.inner.write();
            let slice = left.min(PRUNE_SLICE);
            left -= slice;
            let from = self.prune.pass.take().map(|(_, from)| from);
            match inner.index.prune(from.as_deref(), at, slice, &mut dead) {
                Some(next) => self.prune.pass = Some((at, next)),
                None => self.prune.done = at,
            }
        }
        if !dead.is_empty() {
            // In the log's own order: neighbours are found in lines the cache already has, and of one key the older still
            // come first.
            dead.sort_unstable();
            self.log.mark_dead(&dead);
        }
        self.prune.pass.is_some() || self.prune.done < self.prunable()
    }

    /// The revision up to which pruning may go.
    fn prunable(&self) -> i64 {
        if self.prune.done >= self.compact {
            self.compact
        } else {
            self.compact.min(self.shared.lowest_pin(self.epoch))
        }
    }

    /// Ends an apply run: everything since the last commit, with the table changes and the raft position, becomes one
    /// batch of the log, whole or absent after a crash.
    pub fn commit(&mut self, index: RaftIndex, term: Term, tables: Vec<TableOp>) {
        let (records, compact) = (std::mem::take(&mut self.writer.records), self.compacted.take());
        let pending = !records.is_empty();
        self.log.append(Batch { index, term, records, tables, compact });
        if pending {
            // From here on readers find them in the log. The open request's are not there yet.
            let open = self.writer.open.as_ref().map_or(i64::MAX, |open| open.main);
            let mut inner = self.shared.inner.write();
            let committed = inner.pending.partition_point(|record| record.rev.main < open);
            inner.pending.drain(..committed);
        }
    }

    /// Puts a restored snapshot in place of everything. Readers go on with the new state; whoever holds a pin ends with
    /// the state it began with.
    ///
    /// # Errors
    /// The log's. The store must not be used after one.
    pub fn install(&mut self, restored: Restored) -> Result<OpenReport, OpenError> {
        let Restored { replacement, replay, index, term } = restored;
        self.log.install(replacement)?;
        self.log.mark_dead(&replay.dead);
        let report = replay.report(index, term);
        let mut inner = self.shared.inner.write();
        inner.log = self.log.reader();
        inner.pending.clear();
        inner.current = report.revision;
        inner.compact = report.compact_revision;
        let replaced = Arc::new(std::mem::replace(&mut inner.index, replay.index));
        let mut pins = self.shared.pins.lock();
        if pins.any(inner.epoch) {
            pins.retired.insert(inner.epoch, replaced.clone());
        }
        inner.epoch += 1;
        drop(pins);
        drop(inner);
        // Not under the lock: an index takes a while to be freed.
        drop(replaced);
        self.writer = Writer { leases: replay.leases, ..Writer::default() };
        self.compact = report.compact_revision;
        self.epoch += 1;
        self.compacted = None;
        self.prune = Prune { done: report.compact_revision, pass: None };
        self.shared.hashes.lock().clear();
        Ok(report)
    }

    /// The log under this store, for its jobs, tables and sizes. Batches are appended by [`Store::commit`] alone.
    pub fn log(&mut self) -> &mut Log {
        &mut self.log
    }

    /// The same to look at.
    pub fn log_ref(&self) -> &Log {
        &self.log
    }
}
