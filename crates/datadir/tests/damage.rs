//! A snapshot with a flipped bit, or cut at some length: its restore is refused, or gives what the whole one gives.
//!
//! The quick form takes some hundred of each. With `DOLMEN_DAMAGE=full` in the environment it is 10,000 flips and every
//! length.

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use bytes::Bytes;
use common::{SEGMENT, content, disk_of, options, put};
use dolmen_bolt::{MemorySource, TRAILER_LEN};
use dolmen_datadir::{ImportOptions, RestoreOptions, Silent, import, restore_on};
use dolmen_env::SimDisk;
use dolmen_node::Layout;

/// A snapshot that `etcdctl snapshot save` 3.7.3 took of an etcd 3.6.16: inline buckets, overflow pages, free pages,
/// compacted at 20.
const WHOLE: &[u8] = include_bytes!("../../utl/tests/data/etcd-3.6.16-snapshot.db");

/// The database in it, without its SHA-256.
const BODY: usize = WHOLE.len() - TRAILER_LEN as usize;

fn is_full() -> bool {
    std::env::var("DOLMEN_DAMAGE").is_ok_and(|form| form == "full")
}

/// Restores a file; `None`: refused. A refusal leaves nothing; what is restored can be imported or is refused there, and
/// `imported` says which.
fn restored(file: &[u8], skip_hash_check: bool) -> Option<(MemorySource, bool)> {
    let sim = SimDisk::new(1);
    let disk = disk_of(&sim);
    put(&*disk, "/s.db", file);
    let options = RestoreOptions { skip_hash_check, ..options() };
    let outcome = restore_on(&disk, &options, SEGMENT, &mut Silent);
    if let Err(error) = outcome {
        assert!(!error.to_string().contains('\n'), "{error}");
        assert_eq!(disk.read_dir(Path::new("/")).expect("reads"), ["s.db"], "a refusal leaves nothing");
        return None;
    }
    let found = content(&*disk, Path::new("/d/member/snap/db")).expect("a sound database");
    let layout = Layout::new(Path::new("/d"), None);
    let to = ImportOptions { wal: SEGMENT, ..ImportOptions::new(layout) };
    let imported = import(&disk, &to, &mut Silent).is_ok();
    Some((found, imported))
}

/// Numbers that repeat: flips of every run are the same.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % end as u64) as usize
    }
}

/// Files with one bit flipped, the metas and the SHA-256 oftener than their size; `len`: what is left of the file.
fn flips(seed: u64, len: usize) -> impl Iterator<Item = (usize, Vec<u8>)> {
    let mut draw = Draw(seed);
    (0..if is_full() { 10_000 } else { 400 }).map(move |round| {
        let at = match round % 8 {
            0 => draw.below(80),
            1 => 4_096 + draw.below(80),
            2 => len - 1 - draw.below(32),
            _ => draw.below(len),
        };
        let mut file = WHOLE[..len].to_vec();
        file[at] ^= 1 << draw.below(8);
        (at, file)
    })
}

/// Lengths below that of `len`, the last hundred among them always.
fn cuts(len: usize) -> impl Iterator<Item = usize> {
    (0..len).filter(move |at| is_full() || at % 251 == 0 || at % 512 == 32 || *at > len - 100)
}

#[test]
fn every_flip_is_refused_by_the_hash() {
    assert!(restored(WHOLE, false).is_some_and(|(_, imported)| imported));
    for (at, file) in flips(1, WHOLE.len()) {
        assert!(restored(&file, false).is_none(), "a flip at {at}");
    }
}

#[test]
fn every_cut_is_refused_by_the_hash() {
    for len in cuts(WHOLE.len()) {
        assert!(restored(&WHOLE[..len], false).is_none(), "cut at {len}");
    }
}

#[test]
fn a_cut_is_refused_without_the_hash_unless_only_that_is_gone() {
    let (whole, _) = restored(WHOLE, true).expect("whole");
    for len in cuts(WHOLE.len()) {
        match restored(&WHOLE[..len], true) {
            None => assert!(len < BODY, "cut at {len}"),
            Some((found, imported)) => {
                assert!(len >= BODY && imported, "cut at {len}");
                assert_eq!(found, whole, "cut at {len}");
            }
        }
    }
}

/// Without the hash nothing covers the bytes of a value. What is restored is what the file says then: all the pairs, of which
/// one at most is another than before, by the one bit, or by where it ends; or a server refuses to start from it.
#[test]
fn without_the_hash_a_flip_changes_one_pair_or_nothing() {
    let whole = pairs(&restored(WHOLE, true).expect("whole").0);
    // A restore writes some pairs itself; where the flip is in the key of such a one, the old one stays beside it.
    let mut known = whole.clone();
    let sim = SimDisk::new(1);
    let disk = disk_of(&sim);
    put(&*disk, "/s.db", &WHOLE[..BODY]);
    known.extend(pairs(&content(&*disk, Path::new("/s.db")).expect("sound")));
    let (mut refused, mut same, mut other) = (0, 0, 0);
    for (at, file) in flips(2, BODY) {
        let Some((found, true)) = restored(&file, true) else {
            refused += 1;
            continue;
        };
        let found = pairs(&found);
        let gone = whole.difference(&found).count();
        let new: Vec<&Bytes> = found.difference(&whole).collect();
        match new[..] {
            [] => same += 1,
            [new] => {
                let cut = |before: &Bytes| before.starts_with(new) || new.starts_with(before);
                let close = known.iter().any(|before| bits(before, new) == 1 || cut(before));
                assert!(close, "a flip at {at}: {new:?}");
                other += 1;
            }
            _ => panic!("a flip at {at}: {new:?}"),
        }
        assert!(gone <= new.len(), "a flip at {at}: {gone} pairs are gone");
    }
    println!("{refused} refused, {same} harmless, {other} with one pair changed");
    assert!(refused > 0 && same > 0 && other > 0);
}

/// Bucket, key and value of each, in one.
fn pairs(all: &MemorySource) -> BTreeSet<Bytes> {
    let each = all.iter().flat_map(|(bucket, pairs)| pairs.iter().map(move |(key, value)| (bucket, key, value)));
    each.map(|(bucket, key, value)| [&bucket[..], key, value].concat().into()).collect()
}

/// Bits in which two differ; all of them when one is longer.
fn bits(a: &[u8], b: &[u8]) -> u32 {
    if a.len() == b.len() { a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum() } else { u32::MAX }
}
