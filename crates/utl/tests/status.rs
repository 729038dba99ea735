//! Snapshots that are whole, and every way of not being whole.

mod common;

use std::os::unix::fs::FileExt;

use bytes::Bytes;
use common::{OF_ETCD, Scratch, deleted, put, revision, small, snapshot_of};
use dolmen_bolt::MemorySource;
use dolmen_utl::status::{Status, status};

fn of(name: &str, bytes: &[u8]) -> Result<Status, String> {
    status(&Scratch::new(name, bytes).file, &|_, _| {})
}

#[test]
fn a_snapshot_of_etcd_has_the_numbers_of_etcdutl() {
    let expected = Status {
        hash: 1_011_195_175,
        revision: 45,
        total_key: 12,
        total_size: 57_344,
        version: "3.6.0".into(),
        has_sha: true,
    };
    assert_eq!(of("whole", OF_ETCD), Ok(expected.clone()));
    // As copied from a data directory.
    let body = &OF_ETCD[..OF_ETCD.len() - 32];
    assert_eq!(of("body", body), Ok(Status { has_sha: false, ..expected }));
}

#[test]
fn keys_that_were_deleted_do_not_count() {
    let mut source = small();
    let keys = source.get_mut(&b"key"[..]).expect("there");
    keys.insert(revision(50, 0, true), deleted("k9"));
    keys.insert(revision(51, 0, false), put("k9", 51, 51, 1, b""));
    keys.insert(revision(52, 0, true), deleted("never"));
    let found = of("deleted", &snapshot_of(&source)).expect("whole");
    assert_eq!((found.total_key, found.revision), (40, 52));
    // What a restore with --bump-revision writes: a value of no bytes, which is a key of no bytes.
    source.get_mut(&b"key"[..]).expect("there").insert(revision(1_000, 0, false), Bytes::new());
    let found = of("bumped", &snapshot_of(&source)).expect("whole");
    assert_eq!((found.total_key, found.revision), (41, 1_000));
}

#[test]
fn ten_thousand_flipped_bits_are_refused() {
    for (name, bytes) in [("flip-etcd", OF_ETCD.to_vec()), ("flip-own", snapshot_of(&small()))] {
        let scratch = Scratch::new(name, &bytes);
        let mut random: u64 = 11;
        for round in 0..5_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // The metas and the SHA-256 oftener than their size.
            let at = match round % 8 {
                0 => random as usize % 80,
                1 => 4_096 + random as usize % 80,
                2 => bytes.len() - 1 - random as usize % 32,
                _ => (random >> 20) as usize % bytes.len(),
            };
            let flipped = bytes[at] ^ 1 << (random >> 61);
            scratch.file.write_all_at(&[flipped], at as u64).expect("writes");
            let refused = status(&scratch.file, &|_, _| {}).expect_err(&format!("a flip at {at}"));
            assert!(!refused.contains('\n'), "{refused}");
            scratch.file.write_all_at(&bytes[at..=at], at as u64).expect("writes");
        }
        assert!(status(&scratch.file, &|_, _| {}).is_ok());
    }
}

#[test]
fn every_cut_is_refused() {
    for (name, bytes) in [("cut-etcd", OF_ETCD.to_vec()), ("cut-own", snapshot_of(&small()))] {
        let scratch = Scratch::new(name, &bytes);
        for len in (0..bytes.len()).rev() {
            scratch.file.set_len(len as u64).expect("cuts");
            let outcome = status(&scratch.file, &|_, _| {});
            // Cut exactly where the SHA-256 begins it is a database as it lies in a data directory.
            assert_eq!(outcome.is_ok(), len == bytes.len() - 32, "cut at {len}: {outcome:?}");
        }
    }
}

/// Without SHA-256, damage in what pages say of each other is found all the same, and nothing panics.
#[test]
fn without_sha256_headers_and_tables_are_still_covered() {
    let body = &OF_ETCD[..OF_ETCD.len() - 32];
    let scratch = Scratch::new("bare", body);
    // Pages in use, and the bytes of their headers and tables: leaves 2, 4 (33 elements) and 5, branch 8, root 10.
    for (page, bytes) in [(0, 80), (1, 80), (2, 48), (4, 16 + 33 * 16), (5, 64), (8, 64), (10, 16 + 160)] {
        for at in page * 4_096..page * 4_096 + bytes {
            for bit in 0..8 {
                scratch.file.write_all_at(&[body[at] ^ 1 << bit], at as u64).expect("writes");
                let outcome = status(&scratch.file, &|_, _| {});
                // Overflow into a page that is free, and a shorter last key of a branch, contradict nothing.
                let silent = at % 4_096 / 4 == 3 || (page, at % 4_096) == (8, 52);
                assert!(outcome.is_err() || silent, "bit {bit} at {at}, page {page}");
            }
            scratch.file.write_all_at(&body[at..=at], at as u64).expect("writes");
        }
    }
}

#[test]
fn a_refusal_says_what_and_where() {
    let mut swapped = small();
    let keys = swapped.get_mut(&b"key"[..]).expect("there");
    keys.insert(revision(44, 0, false), put("k", 1, 43, 1, b""));
    let mut odd = small();
    odd.get_mut(&b"key"[..]).expect("there").insert("short".into(), Bytes::new());
    let mut foreign = MemorySource::new();
    foreign.insert("things".into(), [("a".into(), "b".into())].into());
    let mut sum = OF_ETCD.to_vec();
    sum[57_344] ^= 1;
    let mut header = OF_ETCD.to_vec();
    header[4_096 * 8] ^= 1;
    let mut meta = OF_ETCD.to_vec();
    meta[4_096 + 60] ^= 1;
    let cases: [(&str, Vec<u8>, &[&str]); 9] = [
        ("empty", vec![], &["invalid database"]),
        ("foreign", vec![b'x'; 20_000], &["invalid database", "page 0: wrong magic number"]),
        ("other", snapshot_of(&foreign), &["no bucket \"key\""]),
        ("half", OF_ETCD[..20_480].to_vec(), &["file of 20480 bytes should have 57344"]),
        ("sum", sum, &["SHA-256 of the first 57344 bytes", "at offset 57344"]),
        ("header", header, &["page 8", "at offset 32768", "bucket \"key\""]),
        ("meta", meta, &["page 1: checksum mismatch", "at offset 4096"]),
        ("odd", snapshot_of(&odd), &["invalid revision length: 5", "key 73686f7274", "bucket \"key\""]),
        ("swapped", snapshot_of(&swapped), &["revision 44 holds a KeyValue of mod_revision 43"]),
    ];
    for (name, bytes, parts) in cases {
        let refused = of(name, &bytes).expect_err(name);
        for part in parts {
            assert!(refused.contains(part), "{name}: {refused}");
        }
        assert!(!refused.contains('\n'), "{refused}");
    }
}
