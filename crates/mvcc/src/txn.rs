//! One changing request.

use std::ops::ControlFlow;

use bytes::{Bytes, BytesMut};
use dolmen_revlog::NewRecord;
use dolmen_types::{KeyRange, LeaseId, Revision};
use parking_lot::RwLockWriteGuard;

use crate::budget::Budget;
use crate::kv::{KeyValueRef, leading_key, put_key};
use crate::range::{Meta, RangeError, RangeOptions, RangeResult, RangeSlices, Source, bounds};
use crate::state::{Found, Slot};
use crate::store::{Inner, Open, Pending, Writer};

/// What it costs to see whether a key has a lease, and to take it away.
const LEASE_COST: usize = 256;

/// One change of one key, as the watch hub and the lessor need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub rev: Revision,
    pub tombstone: bool,
    /// Shares the payload's buffer: copy it to keep it for long.
    pub key: Bytes,
    /// The encoded `KeyValue`; a tombstone's has only the key.
    pub payload: Bytes,
    /// 0 for a tombstone.
    pub create: i64,
    /// 0 for a tombstone.
    pub version: i64,
    /// 0: none.
    pub lease: LeaseId,
    /// The lease the key was attached to before, 0 for none.
    pub prev_lease: LeaseId,
    /// Main revision of the key before this change, 0 when it did not exist.
    pub prev_mod: i64,
    /// The same with its sub revision, for [`Txn::payload`] and [`crate::Reader::payload`].
    pub prev_rev: Revision,
}

/// One request that may change the store. All its changes share one main revision, the current one plus 1, and become
/// visible to readers together when it is finished (or dropped: what was changed is never taken back, but see
/// [`Txn::abandon`]).
///
/// Its own reads see its changes. It holds the store's lock; a long one gives it away between slices ([`Txn::suspend`]).
pub struct Txn<'s> {
    inner: RwLockWriteGuard<'s, Inner>,
    writer: &'s mut Writer,
    main: i64,
    changes: Vec<Change>,
    subs: i64,
    /// Where its records begin among those of the next batch.
    first_record: usize,
    /// Nobody is to see what was changed, or not yet.
    hidden: bool,
}

impl<'s> Txn<'s> {
    pub(crate) fn new(inner: RwLockWriteGuard<'s, Inner>, writer: &'s mut Writer) -> Self {
        let main = inner.current.checked_add(1).expect("there are fewer than 2^63 revisions");
        Self::at(inner, writer, main, 0)
    }

    pub(crate) fn resume(inner: RwLockWriteGuard<'s, Inner>, writer: &'s mut Writer, open: &Open) -> Self {
        Self::at(inner, writer, open.main, open.subs)
    }

    fn at(inner: RwLockWriteGuard<'s, Inner>, writer: &'s mut Writer, main: i64, subs: i64) -> Self {
        let first_record = writer.records.len();
        Self { inner, writer, main, changes: Vec::new(), subs, first_record, hidden: false }
    }

    /// The revision reads see: the current one, plus 1 once something was changed.
    pub fn revision(&self) -> i64 {
        if self.subs > 0 { self.main } else { self.main - 1 }
    }

    /// The revision before the request.
    pub fn base_revision(&self) -> i64 {
        self.main - 1
    }

    /// -1: never compacted.
    pub fn compact_revision(&self) -> i64 {
        self.inner.compact
    }

    /// Changes so far, in this slice.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The check etcd makes of a range's revision before a txn executes: 0 passes, anything else must lie between the
    /// compact revision and the current one (so a negative one is `Compacted` once something was compacted).
    ///
    /// # Errors
    /// `FutureRevision`, `Compacted`.
    pub fn check_revision(&self, revision: i64) -> Result<(), RangeError> {
        check_revision(revision, self.revision(), self.inner.compact)
    }

    /// Reads a range, own changes included.
    ///
    /// # Errors
    /// `Compacted` and `FutureRevision`; anything else means the store is damaged.
    pub fn range(&self, range: &KeyRange, options: &RangeOptions) -> Result<RangeResult, RangeError> {
        let mut read = RangeSlices::new(range, options);
        loop {
            if let Some(result) = self.read_some(&mut read, &mut Budget::unlimited())? {
                return Ok(result);
            }
        }
    }

    /// Reads a range, own changes included, until the budget is spent: the answer, once it is there. Nothing may be changed
    /// between two calls for one range.
    ///
    /// # Errors
    /// As [`Txn::range`].
    pub fn read_some(&self, read: &mut RangeSlices, budget: &mut Budget) -> Result<Option<RangeResult>, RangeError> {
        let source = Source {
            index: &self.inner.index,
            current: self.revision(),
            compact: self.inner.compact,
            pending: |rev| self.inner.pending(rev),
            read: |rev| self.payload(rev),
            index_only: false,
        };
        read.step(&source, budget)
    }

    /// A key as it stands now, own changes included.
    pub fn get(&self, key: &[u8]) -> Option<Found> {
        self.inner.index.get(key, i64::MAX)
    }

    /// The lease a living key is attached to, 0 for none.
    pub fn lease_of(&self, key: &[u8]) -> LeaseId {
        self.writer.leases.get(key).copied().unwrap_or(0)
    }

    /// The encoded `KeyValue` of a revision: one that a read or a change has just named.
    ///
    /// # Errors
    /// `Lost` and `Log`: the store is damaged.
    pub fn payload(&self, rev: Revision) -> Result<Bytes, RangeError> {
        match self.inner.pending(rev) {
            Some(payload) => Ok(payload),
            None => self.inner.log.get(rev)?.ok_or(RangeError::Lost(rev)),
        }
    }

    /// Visits the keys of a range as they stand now, in key order, until `visit` breaks: what compares need. Values and
    /// leases are [`Txn::payload`] of [`Meta::modified`].
    pub fn for_each_meta(&self, range: &KeyRange, mut visit: impl FnMut(Meta<'_>) -> ControlFlow<()>) {
        let mut show = |key: &[u8], found: Found| {
            visit(Meta { key, create_revision: found.create, version: found.version, modified: found.modified })
        };
        if let KeyRange::Single(key) = range {
            if let Some(found) = self.get(key) {
                let _ = show(key, found);
            }
            return;
        }
        let (low, high) = bounds(range);
        let _ = self.inner.index.range(&low, high.as_deref(), i64::MAX, show);
    }

    fn next(&mut self, tombstone: bool) -> Slot {
        let rev = Revision::new(self.main, self.subs);
        self.subs += 1;
        Slot::new(rev, tombstone).expect("a request has fewer than 2^31 changes")
    }

    /// Sets a key; `lease` 0 detaches it from the one it has. Returns the key as it stood before, `None` for a new one.
    pub fn put(&mut self, key: &Bytes, value: &[u8], lease: LeaseId) -> Option<Found> {
        let slot = self.next(false);
        let (found, before) = self.inner.index.put(key, slot);
        let payload = KeyValueRef {
            key,
            create_revision: found.create,
            mod_revision: self.main,
            version: found.version,
            value,
            lease,
        }
        .encode();
        let prev_lease = if lease != 0 {
            match self.writer.leases.get_mut(&key[..]) {
                Some(place) => std::mem::replace(place, lease),
                None => self.writer.leases.insert(Bytes::copy_from_slice(key), lease).unwrap_or(0),
            }
        } else {
            self.detach(key)
        };
        self.record(slot, key.len(), payload, Some(&found), lease, prev_lease, before);
        before
    }

    /// Deletes every key of the range; returns them in key order. Nothing changes when there is none.
    pub fn delete_range(&mut self, range: &KeyRange) -> Vec<Bytes> {
        let before = self.changes.len();
        let left = self.delete_some(range, None, &mut Budget::unlimited());
        debug_assert!(left.is_none(), "the budget has no end");
        self.changes[before..].iter().map(|change| change.key.clone()).collect()
    }

    /// Deletes the keys of the range from `from` on (none: the first), in key order, until the budget is spent. Returns the
    /// key to go on from, `None` at the end.
    pub fn delete_some(&mut self, range: &KeyRange, from: Option<Bytes>, budget: &mut Budget) -> Option<Bytes> {
        let (low, high) = bounds(range);
        let (low, main, mut sub) = (from.unwrap_or(low), self.main, self.subs);
        let (mut payloads, mut deleted) = (BytesMut::new(), Vec::new());
        let lookup = if self.writer.leases.is_empty() { 0 } else { LEASE_COST };
        let next = self.inner.index.tombstones(&low, high.as_deref(), |key, before| {
            if budget.is_spent() {
                return None;
            }
            budget.spend(2 * key.len() + lookup);
            let slot = Slot::new(Revision::new(main, sub), true).expect("a request has fewer than 2^31 changes");
            sub += 1;
            put_key(&mut payloads, key);
            deleted.push((slot, key.len(), payloads.len(), before));
            Some(slot)
        });
        self.record_deleted(payloads, deleted);
        next
    }

    /// Deletes those of the keys that exist.
    pub fn delete_keys(&mut self, keys: &[Bytes]) {
        let (main, mut sub) = (self.main, self.subs);
        let (mut payloads, mut deleted) = (BytesMut::new(), Vec::new());
        for key in keys {
            let slot = Slot::new(Revision::new(main, sub), true).expect("a request has fewer than 2^31 changes");
            if let Some(before) = self.inner.index.tombstone(key, slot) {
                sub += 1;
                put_key(&mut payloads, key);
                deleted.push((slot, key.len(), payloads.len(), before));
            }
        }
        self.record_deleted(payloads, deleted);
    }

    /// Records tombstones: slot, bytes of the key, end of the payload, and the key as it stood before.
    fn record_deleted(&mut self, payloads: BytesMut, deleted: Vec<(Slot, usize, usize, Found)>) {
        self.subs += deleted.len() as i64;
        // One buffer for all of them: most of what a deletion costs would be small allocations.
        let payloads = payloads.freeze();
        let mut start = 0;
        for (slot, key_len, end, before) in deleted {
            let payload = payloads.slice(start..end);
            start = end;
            let prev_lease = self.detach(&leading_key(&payload, key_len));
            self.record(slot, key_len, payload, None, 0, prev_lease, Some(before));
        }
    }

    fn detach(&mut self, key: &[u8]) -> LeaseId {
        if self.writer.leases.is_empty() { 0 } else { self.writer.leases.remove(key).unwrap_or(0) }
    }

    /// Notes the change for the log and for the caller.
    #[allow(clippy::too_many_arguments)]
    fn record(
        &mut self,
        slot: Slot,
        key_len: usize,
        payload: Bytes,
        found: Option<&Found>,
        lease: LeaseId,
        prev_lease: LeaseId,
        before: Option<Found>,
    ) {
        let key = leading_key(&payload, key_len);
        let (rev, tombstone) = (slot.rev(), slot.tombstone());
        let (create, version) = found.map_or((0, 0), |found| (found.create, found.version));
        self.inner.pending.push(Pending { rev, tombstone, payload: payload.clone() });
        let record = NewRecord { rev, tombstone, create, version, lease, key: key.clone(), payload: payload.clone() };
        self.writer.records.push(record);
        let prev_rev = before.map(|found| found.modified).unwrap_or_default();
        self.changes.push(Change {
            rev,
            tombstone,
            key,
            payload,
            create,
            version,
            lease,
            prev_lease,
            prev_mod: prev_rev.main,
            prev_rev,
        });
    }

    /// Ends a slice: gives the lock away and keeps what was changed, which readers do not see. Returns the changes of this
    /// slice. [`crate::Store::resume`] goes on.
    pub fn suspend(mut self) -> Vec<Change> {
        let records = self.writer.records.split_off(self.first_record);
        self.writer.open = Some(Open { main: self.main, subs: self.subs, records });
        self.hidden = true;
        std::mem::take(&mut self.changes)
    }

    /// Ends the request and makes its changes visible; returns those of its last slice. They come in the order they were
    /// made, one event each; none at all means that the revision was not used up.
    pub fn finish(mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Ends a request that came upon a damaged record midway. Readers go on at the revision before it and see nothing of
    /// what it has done; the store must not be changed or committed after it.
    pub fn abandon(mut self) {
        self.hidden = true;
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        if !self.hidden {
            self.inner.current = self.revision();
        }
    }
}

pub(crate) fn check_revision(revision: i64, current: i64, compact: i64) -> Result<(), RangeError> {
    match revision {
        0 => Ok(()),
        _ if revision > current => Err(RangeError::FutureRevision),
        _ if revision < compact => Err(RangeError::Compacted),
        _ => Ok(()),
    }
}
