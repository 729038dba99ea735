//! Reading while the writer writes: a list of segments that is replaced whole, never changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use dolmen_types::Revision;
use parking_lot::RwLock;

use crate::Error;
use crate::active::{self, Active};
use crate::bits::Bits;
use crate::record::{RecordMeta, Slot};
use crate::segment::{FooterEntries, Segment};

/// The segments of one moment, in revision order.
pub(crate) struct State {
    pub sealed: Vec<Arc<Segment>>,
    /// Grew past its size; a job is about to seal it, or will be.
    pub sealing: Option<Arc<Active>>,
    pub active: Arc<Active>,
}

impl State {
    /// The sealed segment that would hold a revision.
    pub fn sealed_at(&self, rev: Revision) -> Option<&Arc<Segment>> {
        let after = self.sealed.partition_point(|segment| segment.first() <= rev);
        self.sealed.get(after.checked_sub(1)?)
    }

    /// The segment in memory that would hold a revision: it starts at or before it.
    pub fn growing_at(&self, rev: Revision) -> Option<&Arc<Active>> {
        let starts = |active: &&Arc<Active>| active.first().is_some_and(|first| first <= rev);
        Some(&self.active).filter(starts).or_else(|| self.sealing.as_ref().filter(starts))
    }

    fn get(&self, rev: Revision, limit: impl Fn(&Active) -> usize) -> Result<Option<Bytes>, Error> {
        if let Some(growing) = self.growing_at(rev) {
            return match growing.payload(rev, limit(growing)) {
                None => Ok(None),
                Some(Some(payload)) => Ok(Some(payload)),
                Some(None) => Err(damaged(growing, rev)),
            };
        }
        let Some(segment) = self.sealed_at(rev) else { return Ok(None) };
        segment.find(rev).map(|at| segment.payload(&segment.slots()[at])).transpose()
    }
}

fn damaged(active: &Active, revision: Revision) -> Error {
    let offset = active.find(revision, usize::MAX).map_or(0, |(_, slot)| u64::from(slot.offset));
    Error::Record { file: active.path.clone(), offset, revision }
}

/// What the writer shows to readers.
pub(crate) struct Published {
    state: RwLock<Arc<State>>,
    total_bytes: AtomicU64,
    live_bytes: AtomicU64,
    history_bytes: AtomicU64,
}

impl Published {
    pub fn new(state: State) -> Self {
        Self {
            state: RwLock::new(Arc::new(state)),
            total_bytes: AtomicU64::new(0),
            live_bytes: AtomicU64::new(0),
            history_bytes: AtomicU64::new(0),
        }
    }

    /// The lock is held for the copy of one pointer, on both sides.
    pub fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.read())
    }

    pub fn publish(&self, state: State) {
        let old = std::mem::replace(&mut *self.state.write(), Arc::new(state));
        // Not under the lock: it may be the last holder of an active segment's frames.
        drop(old);
    }

    pub fn set_sizes(&self, sizes: Sizes) {
        self.total_bytes.store(sizes.total_bytes, Ordering::Relaxed);
        self.live_bytes.store(sizes.live_bytes, Ordering::Relaxed);
        self.history_bytes.store(sizes.history_bytes, Ordering::Relaxed);
    }

    pub fn sizes(&self) -> Sizes {
        Sizes {
            total_bytes: self.total_bytes.load(Ordering::Relaxed),
            live_bytes: self.live_bytes.load(Ordering::Relaxed),
            history_bytes: self.history_bytes.load(Ordering::Relaxed),
        }
    }
}

/// How much the store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of all segment files, what is buffered included and what is only reserved not.
    pub total_bytes: u64,
    /// Bytes of the records that are not dead.
    pub live_bytes: u64,
    /// Bytes of dead records that are kept on purpose.
    pub history_bytes: u64,
}

/// Reads from any thread; a clone costs a pointer. See [`crate::Log::reader`].
#[derive(Clone)]
pub struct Reader {
    pub(crate) published: Arc<Published>,
}

impl Reader {
    /// The payload of one revision, without a copy. `None` when it never was, or is dead and reclaimed.
    ///
    /// # Errors
    /// [`Error::Record`] when the bytes do not match their checksum.
    pub fn get(&self, rev: Revision) -> Result<Option<Bytes>, Error> {
        self.published.state().get(rev, |_| usize::MAX)
    }

    /// The CRC-32C that the payload of a revision had when it was written, by the footer of its segment: what a copy from
    /// elsewhere must match to take its place. `None` when the segment is not sealed, or of version 1. Walks the footer.
    pub fn checksum(&self, rev: Revision) -> Option<u32> {
        let state = self.published.state();
        let segment = state.sealed_at(rev)?;
        segment.payload_crc(segment.find(rev)?)
    }

    /// Everything as it is now. Reclaim goes on, but nothing the view sees goes away, on disk neither: drop it soon.
    pub fn view(&self) -> View {
        let state = self.published.state();
        let sealing_len = state.sealing.as_ref().map_or(0, |sealing| sealing.len());
        let active_len = state.active.len();
        View { state, sealing_len, active_len }
    }

    /// How much the store holds.
    pub fn sizes(&self) -> Sizes {
        self.published.sizes()
    }
}

/// A pinned moment of the log.
#[derive(Clone)]
pub struct View {
    state: Arc<State>,
    sealing_len: usize,
    active_len: usize,
}

/// A record without key and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub rev: Revision,
    pub tombstone: bool,
    /// Bytes of the payload.
    pub len: u32,
}

impl View {
    /// As [`Reader::get`], at the view's moment.
    ///
    /// # Errors
    /// [`Error::Record`] when the bytes do not match their checksum.
    pub fn get(&self, rev: Revision) -> Result<Option<Bytes>, Error> {
        self.state.get(rev, |active| if active.id == self.state.active.id { self.active_len } else { self.sealing_len })
    }

    /// (revision, tombstone, payload) of every record from `from` on, up to the last sub revision of `to_main`, in
    /// revision order. Dead records that are not reclaimed yet are among them.
    pub fn scan(&self, from: Revision, to_main: i64) -> Scan {
        Scan { cursor: Cursor::new(self.clone(), from, to_main) }
    }

    /// As [`View::scan`], without reading a payload.
    pub fn metas(&self, from: Revision, to_main: i64) -> Metas {
        Metas { cursor: Cursor::new(self.clone(), from, to_main) }
    }

    fn growing(&self, stage: usize) -> Option<(&Arc<Active>, usize)> {
        match stage.checked_sub(self.state.sealed.len())? {
            0 => self.state.sealing.as_ref().map(|sealing| (sealing, self.sealing_len)),
            1 => Some((&self.state.active, self.active_len)),
            _ => None,
        }
    }
}

/// Walks the slots of a view. Stages: each sealed segment, then the sealing one, then the active one.
struct Cursor {
    view: View,
    from: Revision,
    to_main: i64,
    stage: usize,
    /// Position inside the stage; `None` before it is looked up.
    at: Option<usize>,
    /// Of a growing segment, read a chunk at a time so that the lock is not taken for each record.
    chunk: std::vec::IntoIter<(Slot, Option<Bytes>)>,
}

const SCAN_CHUNK: usize = 256;

impl Cursor {
    fn new(view: View, from: Revision, to_main: i64) -> Self {
        let stage = view.state.sealed.partition_point(|segment| segment.last() < from);
        Self { view, from, to_main, stage, at: None, chunk: Vec::new().into_iter() }
    }

    /// The next slot, its stage, and its record where that is in memory.
    fn next(&mut self) -> Option<(usize, Slot, Option<Bytes>)> {
        loop {
            let (slot, record) = match self.view.state.sealed.get(self.stage) {
                Some(segment) => {
                    let slots = segment.slots();
                    let at = self.at.unwrap_or_else(|| slots.partition_point(|slot| slot.rev() < self.from));
                    self.at = Some(at + 1);
                    match slots.get(at) {
                        Some(slot) => (*slot, None),
                        None => {
                            (self.stage, self.at) = (self.stage + 1, None);
                            continue;
                        }
                    }
                }
                None => match self.chunk.next() {
                    Some(next) => next,
                    None => {
                        if self.stage > self.view.state.sealed.len() + 1 {
                            return None;
                        }
                        if !self.refill() {
                            (self.stage, self.at) = (self.stage + 1, None);
                        }
                        continue;
                    }
                },
            };
            if slot.main > self.to_main {
                self.stage = usize::MAX;
                self.chunk = Vec::new().into_iter();
                return None;
            }
            return Some((self.stage, slot, record));
        }
    }

    fn refill(&mut self) -> bool {
        let Some((growing, limit)) = self.view.growing(self.stage) else { return false };
        let at = self.at.unwrap_or_else(|| growing.lower_bound(self.from, limit));
        let chunk = growing.read(at, limit, SCAN_CHUNK);
        self.at = Some(at + chunk.len());
        self.chunk = chunk.into_iter();
        self.chunk.len() > 0
    }
}

/// See [`View::scan`].
pub struct Scan {
    cursor: Cursor,
}

impl Iterator for Scan {
    type Item = Result<(Revision, bool, Bytes), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let (stage, slot, record) = self.cursor.next()?;
        let payload = match self.cursor.view.state.sealed.get(stage) {
            Some(segment) => segment.payload(&slot),
            None => record.as_ref().and_then(|record| active::payload(&slot, record)).ok_or_else(|| {
                let active =
                    self.cursor.view.growing(stage).map_or(&self.cursor.view.state.active, |(active, _)| active);
                damaged(active, slot.rev())
            }),
        };
        Some(payload.map(|payload| (slot.rev(), slot.tombstone(), payload)))
    }
}

/// See [`View::metas`].
pub struct Metas {
    cursor: Cursor,
}

impl Iterator for Metas {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let (_, slot, _) = self.cursor.next()?;
        Some(Entry { rev: slot.rev(), tombstone: slot.tombstone(), len: slot.len })
    }
}

/// The metadata of every record a start-up must know, in revision order: from footers, and from the frames of the
/// active file. No sealed payload is read. Records known to be dead for good are left out.
pub struct RecordMetas {
    sealed: std::vec::IntoIter<(Arc<Segment>, Bits)>,
    current: Option<(Arc<Segment>, FooterEntries, Bits, usize)>,
    active: Arc<Active>,
    at: usize,
    chunk: std::vec::IntoIter<(Slot, Option<Bytes>)>,
}

impl RecordMetas {
    pub(crate) fn new(sealed: Vec<(Arc<Segment>, Bits)>, active: Arc<Active>) -> Self {
        Self { sealed: sealed.into_iter(), current: None, active, at: 0, chunk: Vec::new().into_iter() }
    }

    fn next_sealed(&mut self) -> Option<Result<RecordMeta, Error>> {
        loop {
            let Some((segment, entries, dead, at)) = &mut self.current else {
                let (segment, dead) = self.sealed.next()?;
                let entries = segment.metas();
                self.current = Some((segment, entries, dead, 0));
                continue;
            };
            match entries.next_slot() {
                Ok(Some(slot)) => {
                    *at += 1;
                    if !dead.contains(*at - 1) {
                        return Some(Ok(entries.meta(&slot)));
                    }
                }
                Ok(None) => self.current = None,
                Err(()) => {
                    let offset = segment.parts.footer.start as u64;
                    let error = Error::corrupt(&segment.path, offset, "the footer changed while it was read");
                    self.current = None;
                    return Some(Err(error));
                }
            }
        }
    }

    fn next_active(&mut self) -> Option<Result<RecordMeta, Error>> {
        if self.chunk.len() == 0 {
            let chunk = self.active.read(self.at, usize::MAX, SCAN_CHUNK);
            self.at += chunk.len();
            self.chunk = chunk.into_iter();
        }
        let (slot, record) = self.chunk.next()?;
        let meta = record.as_ref().and_then(active::meta);
        Some(meta.ok_or_else(|| damaged(&self.active, slot.rev())))
    }
}

impl Iterator for RecordMetas {
    type Item = Result<RecordMeta, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_sealed().or_else(|| self.next_active())
    }
}
