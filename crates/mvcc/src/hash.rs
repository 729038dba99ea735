//! Hashes that members compare.
//!
//! `HashKV` is a CRC-32C over bucket `key` as etcd would hold it at a revision. Which records that is depends on how far a
//! compaction has got in etcd, and its hash leaves out just what makes the difference; ours reads the set that a finished
//! compaction leaves, so pruning does not matter. With C the compact revision and R the revision asked for:
//!
//! ```text
//! above C, up to R   every record
//! up to C            the newest record of a key as it stood at R, if that is not above C and not a tombstone
//!                    (no key at all alive at R: the newest as it stood at C, which etcd then does not tell apart)
//! ```
//!
//! # The hash of a compaction
//!
//! When etcd compacts at R, it hashes with C still the compaction before, as records between the two are still there, and
//! keeps the hash to answer a later `HashKV` at R. That is another hash, with another `compact_revision`, than the one
//! that could be made afterwards; members compare only those of equal compact revision.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_bolt::Source;
use dolmen_types::Revision;

use crate::range::RangeError;
use crate::reader::Kept;
use crate::store::{Capture, Pin, Shared};

/// Compaction hashes kept, as in etcd.
const STORED: usize = 10;

/// The answer to `HashKV`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKv {
    /// CRC-32C.
    pub hash: u32,
    /// The compact revision the hash was made with, -1: never compacted.
    pub compact_revision: i64,
    /// The revision hashed.
    pub hash_revision: i64,
    /// The current revision.
    pub revision: i64,
}

/// Feeds records as bucket `key` holds them.
struct Hasher(u32);

impl Hasher {
    fn new() -> Self {
        Self(crc32c::crc32c(b"key"))
    }

    fn record(&mut self, rev: Revision, tombstone: bool, payload: &Bytes) {
        let (key, len) = rev.to_bolt_key(tombstone);
        self.0 = crc32c::crc32c_append(self.0, &key[..len]);
        self.0 = crc32c::crc32c_append(self.0, payload);
    }

    fn all(&mut self, capture: &Capture, kept: &Kept, compact: i64, revision: i64) -> Result<(), dolmen_revlog::Error> {
        let mut is_kept = kept.filter();
        for record in capture.scan(0, revision) {
            let (rev, tombstone, payload) = record?;
            if rev.main > compact || (is_kept(rev) && !tombstone) {
                self.record(rev, tombstone, &payload);
            }
        }
        Ok(())
    }
}

pub(crate) fn hash_kv(shared: &Arc<Shared>, asked: i64) -> Result<HashKv, RangeError> {
    let inner = shared.inner.read();
    let (current, compact) = (inner.current, inner.compact);
    // etcd lets negative revisions through: nothing lies below them.
    if asked > 0 && asked < compact {
        return Err(RangeError::Compacted);
    }
    if asked > current {
        return Err(RangeError::FutureRevision);
    }
    let revision = if asked == 0 { current } else { asked };
    let capture = inner.capture();
    let _pin = shared.pin(&inner, compact);
    drop(inner);
    let mut hasher = Hasher::new();
    if revision > 0 {
        let kept = kept_by(shared, revision, compact, &capture, |kept| kept.any)?;
        hasher.all(&capture, &kept, compact, revision)?;
    }
    Ok(HashKv { hash: hasher.0, compact_revision: compact, hash_revision: revision, revision: current })
}

/// Records up to `compact` that a hash at `revision` takes in; see the module page. `keeps` tells whether etcd's keep set
/// would hold anything.
fn kept_by(
    shared: &Shared,
    revision: i64,
    compact: i64,
    capture: &Capture,
    keeps: impl Fn(&Kept) -> bool,
) -> Result<Kept, RangeError> {
    if compact < 0 {
        return Ok(Kept { slots: Vec::new(), any: true });
    }
    let kept = shared.kept(revision, compact, None, capture.epoch)?;
    if keeps(&kept) { Ok(kept) } else { shared.kept(compact, compact, None, capture.epoch) }
}

/// Makes and stores the hash of one compaction. Holds what the compaction superseded until it has run or is dropped.
pub struct CompactionHash {
    shared: Arc<Shared>,
    capture: Capture,
    _pin: Option<Pin>,
    revision: i64,
}

impl CompactionHash {
    pub(crate) fn new(shared: Arc<Shared>, capture: Capture, pin: Option<Pin>, revision: i64) -> Self {
        Self { shared, capture, _pin: pin, revision }
    }

    /// Reads the store up to the compaction's revision. For a background thread.
    ///
    /// # Errors
    /// `Compacted` when a snapshot was installed meanwhile and nothing had been compacted before; anything else means the
    /// store is damaged.
    pub fn run(self) -> Result<HashKv, RangeError> {
        let (revision, previous) = (self.revision, self.capture.compact);
        // etcd's compaction keeps a tombstone at its very revision, so any change made there fills its keep set.
        let at_revision = self.capture.scan(revision, revision).next().transpose()?.is_some();
        let kept = kept_by(&self.shared, revision, previous, &self.capture, |kept| kept.any || at_revision)?;
        let mut hasher = Hasher::new();
        hasher.all(&self.capture, &kept, previous, revision)?;
        let hash = HashKv {
            hash: hasher.0,
            compact_revision: previous,
            hash_revision: revision,
            revision: self.capture.current,
        };
        let mut hashes = self.shared.hashes.lock();
        hashes.push(hash);
        hashes.sort_by_key(|hash| hash.hash_revision);
        let surplus = hashes.len().saturating_sub(STORED);
        hashes.drain(..surplus);
        Ok(hash)
    }
}

/// The `Hash` RPC: CRC-32C over all buckets in byte order, name, then keys and values, without the three keys of `meta`
/// that differ between healthy members.
///
/// # Errors
/// The source's.
pub fn hash_all(source: &dyn Source) -> io::Result<u32> {
    let mut names = source.buckets();
    names.sort_unstable();
    let mut hash = crc32c::crc32c(&[]);
    for name in names {
        hash = crc32c::crc32c_append(hash, &name);
        source.for_each(&name, &mut |key, value| {
            let ignored = &name[..] == b"meta" && matches!(key, b"term" | b"consistent_index" | b"storageVersion");
            if !ignored {
                hash = crc32c::crc32c_append(hash, key);
                hash = crc32c::crc32c_append(hash, value);
            }
            Ok(())
        })?;
    }
    Ok(hash)
}
