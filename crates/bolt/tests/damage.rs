//! Any bytes at all: an answer or an error, soon, and never a panic.

mod common;

use bytes::Bytes;
use common::{Seeded, file_of, one_bucket};
use dolmen_bolt::{BoltReader, Error, Fault, MemorySource, PAGE_SIZE};

/// A file with a branch, several buckets, an overflow page and an empty bucket: 30 pages or so.
fn small_file() -> Vec<u8> {
    let mut random = Seeded(77);
    let pairs = (0..120u32).map(|index| {
        let len = if index == 50 { 9000 } else { random.below(300) };
        (index.to_be_bytes().to_vec(), random.bytes(len).to_vec())
    });
    let mut source = one_bucket(pairs.collect::<Vec<_>>());
    source.insert(Bytes::from_static(b"alarm"), Default::default());
    let meta = MemorySource::from([(
        Bytes::from_static(b"meta"),
        [(Bytes::from_static(b"term"), Bytes::from_static(&[0; 8]))].into(),
    )]);
    source.extend(meta);
    file_of(&source)
}

/// Does everything a caller can do; the answers do not matter.
fn exercise(file: &[u8]) -> Result<(), Error> {
    let reader = BoltReader::open(file)?;
    let checked = reader.check();
    // Walks stay bounded even where a check would have refused.
    for name in reader.buckets()?.into_iter().take(100) {
        if let Some(bucket) = reader.bucket(&name)? {
            let _ = bucket.get(&[0, 0, 0, 60]);
            let pairs = bucket.pairs()?.take_while(Result::is_ok).count();
            assert!(pairs <= file.len(), "a walk that gives more pairs than the file has bytes");
        }
    }
    checked.map(|_| ())
}

#[test]
fn every_truncation_is_refused() {
    let file = small_file();
    assert!(exercise(&file).is_ok());
    for len in 0..file.len() {
        assert!(BoltReader::open(&file[..len]).is_err(), "{len} bytes of {} accepted", file.len());
    }
}

#[test]
fn random_flips_never_panic() {
    let file = small_file();
    let mut random = Seeded(1);
    let mut refused = 0;
    for _ in 0..10_000 {
        let mut damaged = file.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(damaged.len());
            damaged[at] ^= 1 << random.below(8);
        }
        refused += usize::from(exercise(&damaged).is_err());
    }
    // Most bytes are values and padding, which nothing covers. A good part of the rest must be noticed.
    assert!(refused > 300, "only {refused} of 10000 damaged files refused");
}

#[test]
fn every_flip_in_headers_and_tables_is_noticed_or_harmless() {
    let file = small_file();
    for page in 2..file.len() / PAGE_SIZE {
        for at in 0..160 {
            for bit in 0..8 {
                let mut damaged = file.clone();
                damaged[page * PAGE_SIZE + at] ^= 1 << bit;
                let _ = exercise(&damaged);
            }
        }
    }
}

#[test]
fn random_numbers_in_headers_never_panic() {
    let file = small_file();
    let mut random = Seeded(2);
    let extremes = [0, 1, 2, 0x7fff_ffff, 0x8000_0000, 0xffff_fff0, u32::MAX];
    for _ in 0..10_000 {
        let mut damaged = file.clone();
        let page = 2 + random.below(file.len() / PAGE_SIZE - 2);
        let word = page * PAGE_SIZE + 4 * random.below(40);
        let value = extremes[random.below(extremes.len())];
        damaged[word..word + 4].copy_from_slice(&value.to_le_bytes());
        let _ = exercise(&damaged);
    }
}

#[test]
fn noise_is_no_file() {
    let mut random = Seeded(3);
    for len in [0, 1, 15, 16, 79, 80, 4096, 8192, 20_000] {
        let noise = random.bytes(len);
        assert!(matches!(BoltReader::open(noise), Err(Error::NoMeta { .. })));
    }
}

fn put(file: &mut [u8], at: usize, number: u64) {
    file[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

fn fault_of(file: &[u8]) -> Fault {
    match BoltReader::open(file).unwrap().check() {
        Err(Error::Page { fault, .. }) => fault,
        other => panic!("{other:?}"),
    }
}

/// The page number and place of the branch in the small file.
fn branch_of(file: &[u8]) -> usize {
    let pages = 2..file.len() / PAGE_SIZE;
    pages.map(|page| page * PAGE_SIZE).find(|at| file[at + 8] == 1).expect("the small file has a branch")
}

#[test]
fn cycles_and_shared_pages_are_named() {
    let file = small_file();
    let branch = branch_of(&file);
    let child = |index: usize| branch + 16 + index * 16 + 8;

    let mut cycle = file.clone();
    put(&mut cycle, child(0), (branch / PAGE_SIZE) as u64);
    assert_eq!(fault_of(&cycle), Fault::UsedTwice);
    // A plain walk has no page set: the bounds of the keys end it,
    let first_of = |file: &[u8]| {
        let reader = BoltReader::open(file).unwrap();
        let bucket = reader.bucket(b"key").unwrap().unwrap();
        let first = bucket.pairs().unwrap().next().unwrap();
        first.unwrap_err()
    };
    assert!(matches!(first_of(&cycle), Error::Page { fault: Fault::Order, .. }));
    // or the depth, where one element leaves no bounds.
    cycle[branch + 10] = 1;
    assert!(matches!(first_of(&cycle), Error::Page { fault: Fault::Depth, .. }));

    let mut shared = file.clone();
    let first: Vec<u8> = shared[child(0)..child(0) + 8].to_vec();
    shared[child(1)..child(1) + 8].copy_from_slice(&first);
    assert_eq!(fault_of(&shared), Fault::UsedTwice);
    let reader = BoltReader::open(&shared[..]).unwrap();
    let bucket = reader.bucket(b"key").unwrap().unwrap();
    let last = bucket.pairs().unwrap().last();
    assert!(matches!(last, Some(Err(Error::Page { fault: Fault::Order, .. }))));
}

#[test]
fn faults_carry_their_page() {
    let file = small_file();
    let branch = branch_of(&file);
    let id = (branch / PAGE_SIZE) as u64;
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut damaged = file.clone();
        change(&mut damaged);
        match BoltReader::open(&damaged[..]).unwrap().check() {
            Err(Error::Page { id, fault }) => (id, fault),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(with(&|file| file[branch] ^= 1), (id, Fault::WrongId));
    assert_eq!(with(&|file| file[branch + 8] = 4), (id, Fault::WrongKind));
    assert_eq!(with(&|file| file[branch + 11] = 0xff), (id, Fault::Count));
    assert_eq!(with(&|file| file[branch + 10] = 0), (id, Fault::Empty));
    assert_eq!(with(&|file| file[branch + 15] = 0xff), (id, Fault::OutOfRange));
    assert_eq!(with(&|file| file[branch + 16 + 3] = 0xff), (id, Fault::Bounds));
    assert_eq!(with(&|file| put(file, branch + 16 + 8, u64::MAX)), (u64::MAX, Fault::OutOfRange));
    assert_eq!(with(&|file| put(file, branch + 16 + 8, 0)), (0, Fault::OutOfRange));
}
