//! Snapshots, and restores of them on the simulated disk.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_bolt::{BoltReader, BoltWriter, HashingWriter, MemorySource, Plan, Source};
use dolmen_datadir::RestoreOptions;
use dolmen_env::{Disk, OpenMode, SimDisk};
use dolmen_wal::WalOptions;

/// Segments that fit the simulated disk.
pub const SEGMENT: WalOptions = WalOptions { segment_bytes: 16 << 10 };
/// Where the one member of a restored cluster is.
pub const PEER: &str = "http://localhost:2380";

pub fn disk_of(disk: &SimDisk) -> Arc<dyn Disk> {
    Arc::new(disk.clone())
}

/// A durable file.
pub fn put(disk: &dyn Disk, path: &str, bytes: &[u8]) {
    let file = disk.open(Path::new(path), OpenMode::Truncate).expect("opens");
    file.write_all_at(bytes, 0).expect("writes");
    file.sync_data().expect("syncs");
    disk.sync_dir(Path::new("/")).expect("syncs");
}

/// The file of a source, with a SHA-256 at its end.
pub fn snapshot_of(source: &MemorySource) -> Vec<u8> {
    let plan = Plan::new(source).expect("a plan");
    let writer = BoltWriter::new(HashingWriter::new(Vec::new())).write(&plan, source).expect("a file");
    writer.finish().expect("a trailer").0
}

/// A restore of `/s.db` to `/d`.
pub fn options() -> RestoreOptions {
    RestoreOptions {
        snapshot: "/s.db".into(),
        name: "default".into(),
        data_dir: "/d".into(),
        wal_dir: None,
        initial_advertise_peer_urls: vec![PEER.into()],
        initial_cluster: format!("default={PEER}"),
        initial_cluster_token: "etcd-cluster".into(),
        skip_hash_check: false,
        initial_memory_map_size: 0,
        bump_revision: 0,
        mark_compacted: false,
    }
}

/// Everything in a database; `None` when it is absent or none.
pub fn content(disk: &dyn Disk, path: &Path) -> Option<MemorySource> {
    let reader = BoltReader::open(Bytes::from(disk.read(path).ok()?)).ok()?;
    reader.check().expect("sound");
    let source = reader.source().expect("a source");
    let mut all = MemorySource::new();
    for name in source.buckets() {
        let pairs = all.entry(name.clone()).or_default();
        let mut take = |key: &[u8], value: &[u8]| {
            pairs.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
            Ok(())
        };
        source.for_each(&name, &mut take).expect("pairs");
    }
    Some(all)
}
