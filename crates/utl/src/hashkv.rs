//! `HashKV` from a file: the hash that members of a cluster compare, made without a server.
//!
//! It is a CRC-32C over bucket `key` up to a revision R. Above the compact revision C all records count. Up to C those
//! count that a finished compaction would have left, whether it has finished or not: the newest record of a key as it
//! stood at R, when that is not above C and no deletion. (Should no key at all be alive at R, etcd takes all that
//! stands up to C; that is, the newest of each key as it stood at C.)
//!
//! So a first walk finds which records up to C are superseded: one bit a record, and a [`KeyTable`] of the keys alive.
//! A second walk hashes.

use std::fs::File;

use dolmen_bolt::{BoltReader, Error, ReadAt, TRAILER_LEN, has_trailer};
use dolmen_mvcc::KeyValueRef;

use crate::files::{Ahead, Body};
use crate::keys::KeyTable;
use crate::status::Revision;

/// What `hashkv` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKv {
    /// CRC-32C.
    pub hash: u32,
    /// The revision hashed.
    pub hash_revision: i64,
    /// The compact revision it was made with; -1: never compacted.
    pub compact_revision: i64,
}

/// One bit for each record up to the compact revision.
#[derive(Clone, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn set(&mut self, at: u64, to: bool) {
        let word = (at / 64) as usize;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        let bit = 1 << (at % 64);
        if to {
            self.0[word] |= bit;
        } else {
            self.0[word] &= !bit;
        }
    }

    fn get(&self, at: u64) -> bool {
        self.0.get((at / 64) as usize).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }
}

/// Takes a record of bucket `key`: its revision, that as it stands there, and the value.
type Visit<'v> = dyn FnMut(Revision, &[u8], &[u8]) -> Result<(), Stop> + 'v;

/// Why there is no hash.
enum Stop {
    File(Error),
    Record(String),
    /// All that was asked for has been seen.
    Done,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::File(error)
    }
}

fn finish(outcome: Result<(), Stop>) -> Result<(), String> {
    match outcome {
        Ok(()) | Err(Stop::Done) => Ok(()),
        Err(Stop::File(error)) => Err(error.to_string()),
        Err(Stop::Record(text)) => Err(format!("bucket \"key\": {text}")),
    }
}

/// The hash up to `asked`; 0: up to the last revision.
///
/// # Errors
/// etcd's texts for a revision that is compacted or not yet made, else what is wrong with the file.
pub fn hash_kv(file: &File, asked: i64) -> Result<HashKv, String> {
    let len = file.byte_len().map_err(|error| crate::files::go_text(&error))?;
    let body = Body { file, len: if has_trailer(len) { len - TRAILER_LEN } else { len } };
    let reader = BoltReader::open(Ahead::new(body)).map_err(|error| match error {
        Error::NoMeta { first, second } => format!("invalid database (page 0: {first}; page 1: {second})"),
        other => other.to_string(),
    })?;
    let text = |error: Error| error.to_string();
    let meta = reader.bucket(b"meta").map_err(text)?;
    let number = |name: &[u8]| -> Result<Option<i64>, String> {
        let Some(meta) = &meta else { return Ok(None) };
        match meta.get(name).map_err(text)? {
            None => Ok(None),
            Some(bytes) => Revision::parse(&bytes).map(|revision| Some(revision.main)),
        }
    };
    let finished = number(b"finishedCompactRev")?.unwrap_or(-1);
    // A compaction that was begun counts: the server goes on with it when it starts.
    let scheduled = number(b"scheduledCompactRev")?.unwrap_or(0);
    let compact = if scheduled > 0 { finished.max(scheduled) } else { finished };

    let bucket = reader.bucket(b"key").map_err(text)?;
    let walk = |visit: &mut Visit<'_>| match &bucket {
        None => Ok(()),
        Some(bucket) => finish(bucket.visit(|key, value| {
            let revision = Revision::parse(key).map_err(Stop::Record)?;
            visit(revision, key, value)
        })),
    };
    let mut last = 1;
    if asked <= 0 || asked > compact {
        walk(&mut |revision, _, _| {
            last = revision.main;
            Ok(())
        })?;
    }
    let current = last.max(compact);
    if asked > 0 && asked < compact {
        return Err("mvcc: required revision has been compacted".into());
    }
    if asked > current {
        return Err("mvcc: required revision is a future revision".into());
    }
    let revision = if asked == 0 { current } else { asked };
    let kept = if compact >= 0 { kept(&walk, revision, compact)? } else { Bits::default() };

    let mut crc = crc32c::crc32c(b"key");
    let mut at = 0;
    walk(&mut |found, key, value| {
        if found.main > revision {
            return Err(Stop::Done);
        }
        let counts = if found.main > compact { true } else { kept.get(at) };
        at += 1;
        if counts {
            crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, key), value);
        }
        Ok(())
    })?;
    Ok(HashKv { hash: crc, hash_revision: revision, compact_revision: compact })
}

/// Which records up to `compact` count at `revision`, by their place.
fn kept(walk: &dyn Fn(&mut Visit<'_>) -> Result<(), String>, revision: i64, compact: i64) -> Result<Bits, String> {
    /// The place of a record above the compact revision: it needs none.
    const ABOVE: u64 = u64::MAX;
    let mut alive = KeyTable::<u64>::new();
    let mut bits = Bits::default();
    let mut at_compact = None;
    let mut at = 0;
    walk(&mut |found, _, value| {
        if found.main > revision {
            return Err(Stop::Done);
        }
        let up_to = found.main <= compact;
        if !up_to && at_compact.is_none() {
            at_compact = Some(bits.clone());
        }
        let kv = KeyValueRef::decode(value)
            .ok_or_else(|| Stop::Record(format!("revision {} holds no KeyValue", found.main)))?;
        let place = if up_to { at } else { ABOVE };
        let before = if found.tombstone { alive.remove(kv.key) } else { alive.insert(kv.key, place) };
        if let Some(before) = before.filter(|before| *before != ABOVE) {
            bits.set(before, false);
        }
        if up_to && !found.tombstone {
            bits.set(at, true);
        }
        at += 1;
        Ok(())
    })?;
    Ok(if alive.is_empty() { at_compact.unwrap_or(bits) } else { bits })
}
