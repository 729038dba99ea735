//! The hash of a file is the hash of the server.

mod common;

use bytes::Bytes;
use common::{OF_ETCD, Scratch, deleted, put, revision, snapshot_of};
use dolmen_bolt::MemorySource;
use dolmen_utl::hashkv::{HashKv, hash_kv};

/// Answers of the etcd 3.6.16 that the snapshot is of, and of Go's etcdutl 3.7.3.
#[test]
fn a_snapshot_of_etcd_has_the_hashes_of_etcd() {
    let scratch = Scratch::new("hash-etcd", OF_ETCD);
    for (asked, hash, hash_revision) in
        [(0, 3_031_045_868, 45), (45, 3_031_045_868, 45), (30, 3_081_000_959, 30), (-5, 1_084_519_789, -5)]
    {
        let expected = HashKv { hash, hash_revision, compact_revision: 20 };
        assert_eq!(hash_kv(&scratch.file, asked), Ok(expected), "revision {asked}");
    }
    let text = |asked| hash_kv(&scratch.file, asked).expect_err("refused");
    assert_eq!(text(19), "mvcc: required revision has been compacted");
    assert_eq!(text(46), "mvcc: required revision is a future revision");
}

/// Five changes of two keys.
fn history() -> MemorySource {
    let mut source = MemorySource::new();
    source.insert(
        "key".into(),
        [
            (revision(2, 0, false), put("a", 2, 2, 1, b"1")),
            (revision(3, 0, false), put("b", 3, 3, 1, b"1")),
            (revision(4, 0, false), put("a", 2, 4, 2, b"2")),
            (revision(5, 0, true), deleted("a")),
            (revision(6, 0, true), deleted("b")),
        ]
        .into(),
    );
    source.insert("meta".into(), Default::default());
    source
}

fn crc(source: &MemorySource, mains: &[i64]) -> u32 {
    let keys = &source[&b"key"[..]];
    let counted = keys.iter().filter(|(key, _)| mains.contains(&i64::from(key[7])));
    counted
        .fold(crc32c::crc32c(b"key"), |crc, (key, value)| crc32c::crc32c_append(crc32c::crc32c_append(crc, key), value))
}

#[test]
fn what_a_compaction_would_drop_does_not_count() {
    // (compact revision, revision, records that count)
    let cases: [(i64, i64, &[i64]); 6] = [
        (-1, 6, &[2, 3, 4, 5, 6]),
        (-1, 4, &[2, 3, 4]),
        (4, 4, &[3, 4]),
        (4, 5, &[3, 5]),
        // No key is alive at 6: what stood at the compact revision counts.
        (4, 6, &[3, 4, 5, 6]),
        (6, 6, &[]),
    ];
    for (compact, asked, counted) in cases {
        for begun_only in [false, true] {
            let mut source = history();
            if compact > 0 {
                let name: &'static [u8] = if begun_only { b"scheduledCompactRev" } else { b"finishedCompactRev" };
                source.insert("meta".into(), [(Bytes::from_static(name), revision(compact, 0, false))].into());
            }
            let scratch = Scratch::new(&format!("hash-{compact}-{asked}-{begun_only}"), &snapshot_of(&source));
            let expected = HashKv { hash: crc(&source, counted), hash_revision: asked, compact_revision: compact };
            assert_eq!(hash_kv(&scratch.file, asked), Ok(expected), "compacted at {compact}, revision {asked}");
        }
    }
}
