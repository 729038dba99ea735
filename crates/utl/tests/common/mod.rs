//! Snapshots made here and by etcd, and files for them.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::disallowed_methods)]

use std::fs::{File, OpenOptions};
use std::path::PathBuf;

use bytes::Bytes;
use dolmen_bolt::{BoltWriter, HashingWriter, MemorySource, Plan};
use dolmen_mvcc::KeyValueRef;

/// A snapshot that `etcdctl snapshot save` 3.7.3 took of an etcd 3.6.16: inline buckets, overflow pages, free pages,
/// compacted at 20.
pub const OF_ETCD: &[u8] = include_bytes!("../data/etcd-3.6.16-snapshot.db");

/// A key of bucket `key`.
pub fn revision(main: i64, sub: i64, tombstone: bool) -> Bytes {
    let mut bytes = main.to_be_bytes().to_vec();
    bytes.push(b'_');
    bytes.extend_from_slice(&sub.to_be_bytes());
    if tombstone {
        bytes.push(b't');
    }
    bytes.into()
}

/// A value of bucket `key`.
pub fn put(key: &str, create_revision: i64, mod_revision: i64, version: i64, value: &[u8]) -> Bytes {
    KeyValueRef { key: key.as_bytes(), create_revision, mod_revision, version, value, lease: 0 }.encode()
}

/// The value of a tombstone.
pub fn deleted(key: &str) -> Bytes {
    KeyValueRef { key: key.as_bytes(), ..KeyValueRef::default() }.encode()
}

/// Three keys, four revisions, a tombstone: a branch and a few leaves.
pub fn small() -> MemorySource {
    let mut source = MemorySource::new();
    let keys = source.entry("key".into()).or_default();
    for main in 2..42 {
        let value = vec![main as u8; 40 * (main as usize % 9)];
        keys.insert(revision(main, 0, false), put(&format!("k{main}"), main, main, 1, &value));
    }
    keys.insert(revision(42, 0, true), deleted("k7"));
    keys.insert(revision(43, 0, false), put("big", 43, 43, 1, &[7; 6_000]));
    source.insert(
        "meta".into(),
        [("storageVersion".into(), "3.7.0".into()), ("term".into(), Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 2]))]
            .into(),
    );
    source.insert("lease".into(), Default::default());
    source
}

/// The file of a source, with SHA-256 at its end.
pub fn snapshot_of(source: &MemorySource) -> Vec<u8> {
    let plan = Plan::new(source).expect("a plan");
    let writer = BoltWriter::new(HashingWriter::new(Vec::new())).write(&plan, source).expect("a file");
    writer.finish().expect("memory").0
}

/// A file that is removed in the end.
pub struct Scratch {
    path: PathBuf,
    pub file: File,
}

impl Scratch {
    pub fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("dolmen-utl-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).expect("a file");
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("is there");
        Self { path, file }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
