//! The border to bbolt: the store shown as etcd's buckets, and taken in from them.
//!
//! Bucket `key` holds a record under its revision: 8 bytes main, `_`, 8 bytes sub, and `t` behind a tombstone. What the last
//! compaction superseded is left out, as if etcd had just finished it. The other buckets are the log's tables, and `meta`
//! has four keys more than its table, which the log keeps in another form:
//!
//! | key | value |
//! |---|---|
//! | `consistent_index`, `term` | 8 bytes, big-endian: the last entry applied |
//! | `scheduledCompactRev`, `finishedCompactRev` | the compact revision, in the form of a key of bucket `key`; absent: never compacted |

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use dolmen_bolt::Source;
use dolmen_revlog::{Builder, NewRecord, Replacement, Table, TableOp, Tables};
use dolmen_types::{Index as RaftIndex, Revision, Term};
use parking_lot::Mutex;

use crate::kv::{KeyValueRef, key_of};
use crate::reader::Kept;
use crate::store::{Capture, Head, OpenError, Pin, Replay, Shared};

const KEY_BUCKET: &[u8] = b"key";
const META_BUCKET: &[u8] = b"meta";
const CONSISTENT_INDEX: &[u8] = b"consistent_index";
const TERM: &[u8] = b"term";
const SCHEDULED_COMPACT: &[u8] = b"scheduledCompactRev";
const FINISHED_COMPACT: &[u8] = b"finishedCompactRev";

/// The store of one moment as bbolt buckets, pinned. Give it to `dolmen_bolt`'s writer, on any thread.
///
/// Making it takes no time; the first look at bucket `key` walks the index. Until then pruning is held back, and the index
/// kept should a snapshot be put in the store's place.
pub struct SnapshotSource {
    shared: Arc<Shared>,
    capture: Capture,
    pin: Mutex<Option<Pin>>,
    kept: OnceLock<Kept>,
    tables: Tables,
    meta: BTreeMap<Bytes, Bytes>,
}

impl SnapshotSource {
    pub(crate) fn new(shared: &Arc<Shared>, tables: Tables, index: RaftIndex, term: Term) -> Self {
        let inner = shared.inner.read();
        let capture = inner.capture();
        let compact = inner.compact;
        let pin = shared.pin(&inner, compact);
        drop(inner);
        let mut meta: BTreeMap<Bytes, Bytes> =
            tables.iter(Table::Meta).map(|(key, value)| (key.clone(), value.clone())).collect();
        let mut set = |key: &'static [u8], value: &[u8]| {
            meta.insert(Bytes::from_static(key), Bytes::copy_from_slice(value));
        };
        set(CONSISTENT_INDEX, &index.to_be_bytes());
        set(TERM, &term.to_be_bytes());
        if compact >= 0 {
            let (key, len) = Revision::new(compact, 0).to_bolt_key(false);
            set(SCHEDULED_COMPACT, &key[..len]);
            set(FINISHED_COMPACT, &key[..len]);
        }
        let (pin, kept) = (Mutex::new(Some(pin)), OnceLock::new());
        Self { shared: shared.clone(), capture, pin, kept, tables, meta }
    }

    /// What of the records up to the compact revision is not superseded.
    fn kept(&self) -> io::Result<&Kept> {
        if let Some(kept) = self.kept.get() {
            return Ok(kept);
        }
        let compact = self.capture.compact;
        let kept = if compact < 0 {
            Kept { slots: Vec::new(), any: true }
        } else {
            self.shared.kept(compact, compact, Some(compact), self.capture.epoch).map_err(other)?
        };
        let kept = self.kept.get_or_init(|| kept);
        self.pin.lock().take();
        Ok(kept)
    }

    /// The current main revision of that moment.
    pub fn revision(&self) -> i64 {
        self.capture.current
    }

    /// The compact revision of that moment, -1: never compacted.
    pub fn compact_revision(&self) -> i64 {
        self.capture.compact
    }
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(error)
}

impl Source for SnapshotSource {
    fn buckets(&self) -> Vec<Bytes> {
        let tables = Table::ALL.into_iter().map(|table| Bytes::from_static(table.name().as_bytes()));
        let mut names: Vec<Bytes> = tables.chain([Bytes::from_static(KEY_BUCKET)]).collect();
        names.sort_unstable();
        names
    }

    fn for_each(&self, bucket: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> io::Result<()>) -> io::Result<()> {
        if bucket == KEY_BUCKET {
            let mut kept = self.kept()?.filter();
            for record in self.capture.scan(0, self.capture.current) {
                let (rev, tombstone, payload) = record.map_err(other)?;
                if rev.main > self.capture.compact || kept(rev) {
                    let (key, len) = rev.to_bolt_key(tombstone);
                    visit(&key[..len], &payload)?;
                }
            }
            return Ok(());
        }
        if bucket == META_BUCKET {
            return self.meta.iter().try_for_each(|(key, value)| visit(key, value));
        }
        let Some(table) = Table::from_name(bucket) else { return Ok(()) };
        self.tables.iter(table).try_for_each(|(key, value)| visit(key, value))
    }

    fn sizes(&self, bucket: &[u8], visit: &mut dyn FnMut(usize, usize) -> io::Result<()>) -> io::Result<()> {
        if bucket != KEY_BUCKET {
            return self.for_each(bucket, &mut |key, value| visit(key.len(), value.len()));
        }
        let mut kept = self.kept()?.filter();
        for (rev, tombstone, len) in self.capture.metas(self.capture.current) {
            if rev.main > self.capture.compact || kept(rev) {
                visit(17 + usize::from(tombstone), len)?;
            }
        }
        Ok(())
    }
}

/// Why buckets cannot be taken in.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("cannot read the snapshot")]
    Source(#[source] io::Error),
    #[error("bucket {bucket}: key {key:02x?} does not hold what etcd stores there")]
    Foreign { bucket: &'static str, key: Vec<u8> },
    #[error("bucket key is out of order")]
    Order(#[source] OpenError),
    #[error("cannot write the store")]
    Log(#[from] dolmen_revlog::Error),
}

/// A store made from buckets, to be put in place by [`crate::Store::install`].
pub struct Restored {
    pub(crate) replacement: Replacement,
    pub(crate) replay: Replay,
    pub(crate) index: RaftIndex,
    pub(crate) term: Term,
}

impl Restored {
    /// Raft index and term of the last entry the snapshot holds.
    pub fn position(&self) -> (RaftIndex, Term) {
        (self.index, self.term)
    }

    /// The main revision it stands at.
    pub fn revision(&self) -> i64 {
        self.replay.current()
    }
}

/// Takes in the records of a bucket `key`, in order, and builds the index while it does. For a background thread.
pub struct Restore {
    builder: Builder,
    replay: Replay,
}

impl Restore {
    /// `builder` comes from `Log::replace`; `compact`: the snapshot's compact revision, -1 for none.
    pub fn new(builder: Builder, compact: i64) -> Self {
        Self { builder, replay: Replay::new(compact) }
    }

    /// Takes in one pair of bucket `key`.
    ///
    /// # Errors
    /// `Foreign` when the pair is none of etcd's, `Order` when it does not follow the one before, `Log`.
    pub fn push(&mut self, bolt_key: &[u8], value: Bytes) -> Result<(), RestoreError> {
        let foreign = || RestoreError::Foreign { bucket: "key", key: bolt_key.to_vec() };
        let (rev, tombstone) = Revision::from_bolt_key(bolt_key).ok_or_else(foreign)?;
        let kv = KeyValueRef::decode(&value).ok_or_else(foreign)?;
        let (create, version, lease) = if tombstone { (0, 0, 0) } else { (kv.create_revision, kv.version, kv.lease) };
        let key = key_of(&value).ok_or_else(foreign)?;
        let head = Head { rev, tombstone, create, version, lease, key: key.clone() };
        self.replay.push(head).map_err(RestoreError::Order)?;
        self.builder.push(NewRecord { rev, tombstone, create, version, lease, key, payload: value })?;
        Ok(())
    }

    /// Completes the files; nothing of the store in use has changed so far.
    ///
    /// # Errors
    /// `Log`.
    pub fn finish(mut self, tables: Tables, index: RaftIndex, term: Term) -> Result<Restored, RestoreError> {
        self.replay.flush().map_err(RestoreError::Order)?;
        let replacement = self.builder.finish(tables, index, term, self.replay.compact)?;
        Ok(Restored { replacement, replay: self.replay, index, term })
    }
}

/// Takes in all of etcd's buckets. Buckets that etcd does not have are passed over.
///
/// # Errors
/// As [`Restore::push`], and `Source`.
pub fn restore_from(builder: Builder, source: &dyn Source) -> Result<Restored, RestoreError> {
    let mut tables = Tables::default();
    let mut meta = Meta { index: 0, term: 0, compact: -1 };
    for name in source.buckets() {
        let Some(table) = Table::from_name(&name) else { continue };
        each(source, &name, |key, value| {
            if table == Table::Meta && meta.take(key, value)? {
                return Ok(());
            }
            let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
            tables.apply(TableOp { table, key, value: Some(value) });
            Ok(())
        })?;
    }
    let mut restore = Restore::new(builder, meta.compact);
    if source.buckets().iter().any(|name| &name[..] == KEY_BUCKET) {
        each(source, KEY_BUCKET, |key, value| restore.push(key, Bytes::copy_from_slice(value)))?;
    }
    restore.finish(tables, meta.index, meta.term)
}

/// Walks a bucket with errors of our own.
fn each(
    source: &dyn Source,
    bucket: &[u8],
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), RestoreError>,
) -> Result<(), RestoreError> {
    let mut failure = None;
    let walked = source.for_each(bucket, &mut |key, value| {
        visit(key, value).map_err(|error| {
            failure = Some(error);
            io::Error::other("stopped by the visitor")
        })
    });
    match failure {
        Some(error) => Err(error),
        None => walked.map_err(RestoreError::Source),
    }
}

/// What bucket `meta` says that the log keeps itself.
struct Meta {
    index: RaftIndex,
    term: Term,
    compact: i64,
}

impl Meta {
    /// False when the pair is not one of these.
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<bool, RestoreError> {
        let foreign = || RestoreError::Foreign { bucket: "meta", key: key.to_vec() };
        let number = |value: &[u8]| value.try_into().map(u64::from_be_bytes).map_err(|_| foreign());
        match key {
            CONSISTENT_INDEX => self.index = number(value)?,
            TERM => self.term = number(value)?,
            // A compaction that was scheduled and not finished counts: etcd resumes it when it starts.
            SCHEDULED_COMPACT | FINISHED_COMPACT => {
                let (rev, _) = Revision::from_bolt_key(value).ok_or_else(foreign)?;
                self.compact = self.compact.max(rev.main);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}
