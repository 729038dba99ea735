//! What a snapshot is, and whether it is whole.
//!
//! One walk over the file proves and counts at once, while a second thread reads it from end to end for the SHA-256:
//!
//! ```text
//! SHA-256 in the last 32 bytes      covers every byte before it: one flipped bit anywhere is refused
//! pages, buckets, order of keys     what `dolmen_bolt`'s verification lists; names the page, bucket and key
//! bucket key                        keys are revisions, ascending; values are KeyValues of that very revision
//! ```
//!
//! # Without SHA-256
//!
//! A database copied from a data directory has no such bytes at its end. It is taken, with a note on stderr. All that
//! is said about pages and revisions still holds, but bytes that nothing else depends on are not covered then: the
//! inside of a key's or a value's text, pages that are free (even when a page in use claims them as its overflow), the
//! length of the last key of a branch, the part of a page behind its last element. `hashkv`, compared with the
//! server's, covers keys and values.
//!
//! # Memory
//!
//! A page for each level of a tree, a bit for each page, 256 KiB for the SHA-256, and 12 bytes for each distinct key
//! ([`crate::keys`]). Pages are read, not mapped.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use dolmen_bolt::{BoltReader, Error, ReadAt, TRAILER_LEN, Visitor, has_trailer};
use dolmen_mvcc::KeyValueRef;
use sha2::{Digest, Sha256};

use crate::files::{Ahead, Body, go_text};
use crate::keys::KeyTable;

/// Bytes hashed per read.
const SHA_CHUNK: usize = 256 << 10;

/// What `snapshot status` prints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// CRC-32C of all buckets, names, keys and values.
    pub hash: u32,
    /// The largest revision.
    pub revision: i64,
    /// Keys alive at it.
    pub total_key: u64,
    /// Bytes of the database, without the SHA-256.
    pub total_size: u64,
    /// The storage version, `3.7.0`; empty before 3.6.
    pub version: String,
    /// Whether the file carries a SHA-256, which then was right.
    pub has_sha: bool,
}

/// A key of bucket `key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision {
    /// Counts transactions.
    pub main: i64,
    /// Counts changes within one.
    pub sub: i64,
    /// Whether the change is a deletion.
    pub tombstone: bool,
}

impl Revision {
    /// Reads `<main, 8 bytes>_<sub, 8 bytes>`, with a `t` behind when it is a deletion.
    ///
    /// # Errors
    /// A text that says what it is instead.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let number = |range: std::ops::Range<usize>| {
            bytes.get(range).and_then(|part| part.try_into().ok()).map(i64::from_be_bytes)
        };
        let (17 | 18, Some(main), Some(sub)) = (bytes.len(), number(0..8), number(9..17)) else {
            return Err(format!("invalid revision length: {}", bytes.len()));
        };
        if bytes[8] != b'_' {
            return Err(format!("invalid separator in bucket key: {}", dolmen_cli::golang::quote_bytes(&bytes[8..9])));
        }
        if main < 0 || sub < 0 {
            return Err(format!("negative revision: main={main} sub={sub}"));
        }
        match bytes.get(17) {
            None => Ok(Self { main, sub, tombstone: false }),
            Some(b't') => Ok(Self { main, sub, tombstone: true }),
            Some(other) => Err(format!("invalid mark on a revision: 0x{other:02x}")),
        }
    }
}

/// Which bucket the walk is in, as far as it matters.
#[derive(PartialEq, Eq)]
enum Bucket {
    Key,
    Meta,
    Other,
}

struct Survey {
    bucket: Bucket,
    crc: u32,
    last: Option<Revision>,
    keys: KeyTable<()>,
    version: String,
    has_key: bool,
    has_meta: bool,
}

impl Survey {
    fn new() -> Self {
        Self {
            bucket: Bucket::Other,
            crc: crc32c::crc32c(&[]),
            last: None,
            keys: KeyTable::new(),
            version: String::new(),
            has_key: false,
            has_meta: false,
        }
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let revision = Revision::parse(key)?;
        if self.last.is_some_and(|last| (last.main, last.sub) >= (revision.main, revision.sub)) {
            return Err(format!("revision {}_{} stands twice", revision.main, revision.sub));
        }
        self.last = Some(revision);
        let kv = KeyValueRef::decode(value).ok_or("the value is no KeyValue")?;
        // A restore that bumps the revision writes a value of no bytes, and no deletion.
        if revision.tombstone || !value.is_empty() {
            check_key_value(revision, &kv)?;
            check_end(&kv, value)?;
        }
        if revision.tombstone {
            self.keys.remove(kv.key);
        } else {
            self.keys.insert(kv.key, ());
        }
        Ok(())
    }
}

fn check_key_value(revision: Revision, kv: &KeyValueRef<'_>) -> Result<(), String> {
    if kv.key.is_empty() {
        return Err("the KeyValue has no key".into());
    }
    let lawful = if revision.tombstone {
        kv.mod_revision == 0 || kv.mod_revision == revision.main
    } else {
        kv.mod_revision == revision.main && (1..=revision.main).contains(&kv.create_revision) && kv.version >= 1
    };
    if lawful {
        return Ok(());
    }
    let (main, modified, created, version) = (revision.main, kv.mod_revision, kv.create_revision, kv.version);
    Err(format!(
        "revision {main} holds a KeyValue of mod_revision {modified}, create_revision {created}, version {version}"
    ))
}

/// A length that is too large takes in what lies behind the last value of a page: zeroes, which a reader of messages
/// may pass over.
fn check_end(kv: &KeyValueRef<'_>, value: &[u8]) -> Result<(), String> {
    let varint = |number: u64| (63 - (number | 1).leading_zeros() as usize) / 7 + 1;
    let bytes = |bytes: &[u8]| if bytes.is_empty() { 0 } else { 1 + varint(bytes.len() as u64) + bytes.len() };
    let int = |number: i64| if number == 0 { 0 } else { 1 + varint(number as u64) };
    let numbers = [kv.create_revision, kv.mod_revision, kv.version, kv.lease];
    let needed = bytes(kv.key) + bytes(kv.value) + numbers.into_iter().map(int).sum::<usize>();
    match value.get(needed..) {
        Some(rest) if !rest.is_empty() && rest.iter().all(|byte| *byte == 0) => {
            Err(format!("{} zeroes follow the KeyValue", rest.len()))
        }
        _ => Ok(()),
    }
}

impl Visitor for Survey {
    fn bucket(&mut self, name: &[u8]) {
        self.bucket = match name {
            b"key" => Bucket::Key,
            b"meta" => Bucket::Meta,
            _ => Bucket::Other,
        };
        self.has_key |= self.bucket == Bucket::Key;
        self.has_meta |= self.bucket == Bucket::Meta;
        self.data(name);
    }

    fn data(&mut self, bytes: &[u8]) {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
    }

    fn pair(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        match self.bucket {
            Bucket::Key => self.record(key, value),
            Bucket::Meta if key == b"storageVersion" => {
                self.version = version_text(value);
                Ok(())
            }
            Bucket::Meta | Bucket::Other => Ok(()),
        }
    }
}

/// A semantic version as it is printed; empty when the bytes are none.
fn version_text(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return String::new() };
    let core = text.split(['-', '+']).next().unwrap_or_default();
    let numbers: Vec<Option<u64>> = core.split('.').map(|part| part.parse().ok()).collect();
    match numbers[..] {
        [Some(major), Some(minor), Some(patch)] => format!("{major}.{minor}.{patch}{}", &text[core.len()..]),
        _ => String::new(),
    }
}

/// Proves and counts a snapshot. `progress` hears of bytes read for the SHA-256, of the number in all.
///
/// # Errors
/// One line that says what is wrong, and where.
pub fn status(file: &File, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Status, String> {
    let reading = |error: io::Error| format!("reading the file: {}", go_text(&error));
    let len = file.byte_len().map_err(reading)?;
    let has_sha = has_trailer(len);
    let body = Body { file, len: if has_sha { len - TRAILER_LEN } else { len } };
    let reader = BoltReader::open(Ahead::new(body)).map_err(|error| refusal(&error))?;
    if !has_sha && len % u64::from(reader.page_size()) != 0 {
        let page_size = reader.page_size();
        return Err(failed(format_args!(
            "file of {len} bytes ends neither with a page of {page_size} nor with a SHA-256"
        )));
    }
    let stop = AtomicBool::new(false);
    let mut survey = Survey::new();
    let (walked, sha) = std::thread::scope(|scope| {
        let sha = has_sha.then(|| scope.spawn(|| sha256(body, &stop, progress)));
        let walked = reader.verify(&mut survey);
        // What the walk found says more than a sum that doesn't match.
        stop.store(walked.is_err(), Ordering::Relaxed);
        (walked, sha.map(std::thread::ScopedJoinHandle::join))
    });
    walked.map_err(failed)?;
    if let Some(joined) = sha {
        let got = joined.map_err(|_| "the thread that makes the SHA-256 ended".to_owned())?.map_err(reading)?;
        let told = file.bytes_at(body.len, TRAILER_LEN as usize).map_err(reading)?;
        if got[..] != told[..] {
            let (told, got, at) = (hex(&told), hex(&got), body.len);
            return Err(failed(format_args!("SHA-256 of the first {at} bytes is {got}, at offset {at} stands {told}")));
        }
    }
    for (name, there) in [("key", survey.has_key), ("meta", survey.has_meta)] {
        if !there {
            return Err(failed(format_args!("no bucket \"{name}\": not a database of etcd")));
        }
    }
    Ok(Status {
        hash: survey.crc,
        revision: survey.last.map_or(0, |last| last.main),
        total_key: survey.keys.len() as u64,
        total_size: reader.file_len(),
        version: survey.version,
        has_sha,
    })
}

fn failed(what: impl std::fmt::Display) -> String {
    format!("snapshot file integrity check failed. 1 errors found. {what}")
}

fn refusal(error: &Error) -> String {
    match error {
        // Go's words for a file that is no database at all, and what ours know beyond them.
        Error::NoMeta { first, second } => format!("invalid database (page 0: {first}; page 1: {second})"),
        other => failed(other),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha256(body: Body<'_>, stop: &AtomicBool, progress: &(dyn Fn(u64, u64) + Sync)) -> io::Result<[u8; 32]> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; SHA_CHUNK];
    let mut offset = 0;
    while offset < body.len && !stop.load(Ordering::Relaxed) {
        let step = usize::try_from(body.len - offset).map_or(SHA_CHUNK, |left| left.min(SHA_CHUNK));
        body.file.read_exact_at(&mut buffer[..step], offset)?;
        hasher.update(&buffer[..step]);
        offset += step as u64;
        progress(offset, body.len);
    }
    Ok(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_print_as_semver() {
        for (stored, printed) in
            [("3.7.0", "3.7.0"), ("3.8.0-alpha.0", "3.8.0-alpha.0"), ("3.7", ""), ("", ""), ("x.y.z", "")]
        {
            assert_eq!(version_text(stored.as_bytes()), printed, "{stored}");
        }
    }

    #[test]
    fn revisions_are_seventeen_bytes_and_a_mark() {
        let mut bytes = [0, 0, 0, 0, 0, 0, 0, 9, b'_', 0, 0, 0, 0, 0, 0, 0, 2, b't'];
        assert_eq!(Revision::parse(&bytes), Ok(Revision { main: 9, sub: 2, tombstone: true }));
        assert_eq!(Revision::parse(&bytes[..17]), Ok(Revision { main: 9, sub: 2, tombstone: false }));
        assert_eq!(Revision::parse(&bytes[..16]), Err("invalid revision length: 16".into()));
        bytes[17] = b'u';
        assert_eq!(Revision::parse(&bytes), Err("invalid mark on a revision: 0x75".into()));
        bytes[0] = 0x80;
        assert!(Revision::parse(&bytes).is_err_and(|text| text.starts_with("negative revision: main=-")));
        bytes[8] = b'-';
        assert_eq!(Revision::parse(&bytes), Err("invalid separator in bucket key: \"-\"".into()));
    }
}
