//! What the writer writes, the reader reads.

#![allow(clippy::disallowed_methods, reason = "a test has the real clock and real files")]

mod common;

use std::cell::Cell;
use std::io;

use bytes::Bytes;
use common::{Seeded, file_of, one_bucket, random_source};
use dolmen_bolt::{
    BoltReader, BoltWriter, HashingWriter, MemorySource, PAGE_SIZE, Plan, ReadAt, Source, WriteError, has_trailer,
    verify_trailer,
};

fn read_all<R: ReadAt>(reader: &BoltReader<R>) -> MemorySource {
    let mut all = MemorySource::new();
    for name in reader.buckets().unwrap() {
        let bucket = reader.bucket(&name).unwrap().unwrap();
        let pairs = bucket.pairs().unwrap().collect::<Result<_, _>>().unwrap();
        all.insert(name, pairs);
    }
    all
}

#[test]
fn random_sources_come_back() {
    for seed in 0..150 {
        let source = random_source(seed, 400);
        let file = file_of(&source);
        let reader = BoltReader::open(&file[..]).unwrap();
        assert_eq!(read_all(&reader), source, "seed {seed}");
        let report = reader.check().unwrap();
        assert_eq!(report.metas, [true, true]);
        assert_eq!(report.pages_free, 0, "seed {seed}: every page is in use");
        assert_eq!(report.buckets.len(), source.len());
        for bucket in &report.buckets {
            assert_eq!(bucket.pairs as usize, source[&bucket.name].len());
        }
    }
}

#[test]
fn get_and_pairs_from_agree_with_the_source() {
    let mut random = Seeded(5);
    for seed in 200..230 {
        let source = random_source(seed, 200);
        let reader = BoltReader::open(Bytes::from(file_of(&source))).unwrap();
        for (name, pairs) in &source {
            let bucket = reader.bucket(name).unwrap().unwrap();
            for (key, value) in pairs {
                assert_eq!(bucket.get(key).unwrap().as_ref(), Some(value));
            }
            for _ in 0..50 {
                let len = 1 + random.below(5);
                let from = random.bytes(len);
                assert_eq!(bucket.get(&from).unwrap().as_ref(), pairs.get(&from));
                let found: Vec<_> = bucket.pairs_from(&from).unwrap().map(|pair| pair.unwrap().0).collect();
                let expected: Vec<_> = pairs.range(from..).map(|(key, _)| key.clone()).collect();
                assert_eq!(found, expected);
            }
        }
        assert!(reader.bucket(b"no such bucket, its name is too long").unwrap().is_none());
    }
}

#[test]
fn no_buckets_and_empty_buckets() {
    let empty = MemorySource::new();
    let file = file_of(&empty);
    assert_eq!(file.len(), 3 * PAGE_SIZE);
    assert!(BoltReader::open(&file[..]).unwrap().buckets().unwrap().is_empty());

    let source = MemorySource::from([(Bytes::from_static(b"alarm"), Default::default())]);
    let file = file_of(&source);
    let reader = BoltReader::open(&file[..]).unwrap();
    let bucket = reader.bucket(b"alarm").unwrap().unwrap();
    assert_eq!(bucket.pairs().unwrap().count(), 0);
    assert_eq!(bucket.get(b"x").unwrap(), None);
    assert_eq!(bucket.sequence(), 0);
    reader.check().unwrap();
}

/// Kind and count of every page that starts a run, by page number.
fn pages(file: &[u8]) -> Vec<(u16, u16)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < file.len() {
        let word = |offset: usize| u16::from_le_bytes([file[at + offset], file[at + offset + 1]]);
        found.push((word(8), word(10)));
        at += PAGE_SIZE * (1 + usize::from(word(12)));
    }
    found
}

#[test]
fn long_keys_make_deep_trees_and_no_branch_is_alone() {
    // Keys of 1500 bytes: two elements a branch. 300 pairs make a tree of more than six levels.
    for count in 1..=300usize {
        if count > 40 && count % 13 != 0 {
            continue;
        }
        let source = one_bucket((0..count).map(|index| {
            let mut key = format!("{index:05}").into_bytes();
            key.resize(1500, b'k');
            (key, vec![b'v'; 2000])
        }));
        let file = file_of(&source);
        let reader = BoltReader::open(&file[..]).unwrap();
        reader.check().unwrap();
        assert_eq!(read_all(&reader), source, "{count} pairs");
        for (kind, elements) in pages(&file) {
            assert!(kind != 1 || elements >= 2, "{count} pairs: a branch with {elements} elements");
        }
    }
}

#[test]
fn many_small_pairs_fill_their_pages() {
    let source = one_bucket((0..100_000u32).map(|index| (index.to_be_bytes().to_vec(), vec![7; 40])));
    let file = file_of(&source);
    let reader = BoltReader::open(&file[..]).unwrap();
    let report = reader.check().unwrap();
    assert_eq!(report.buckets[0].pairs, 100_000);
    assert_eq!(report.buckets[0].bytes, 4_400_000);
    // 60 bytes each with the element, 68 to a page.
    let leaves = 100_000_u64.div_ceil(68);
    assert!(report.pages_used < leaves + leaves / 50, "{} pages", report.pages_used);
}

#[test]
fn values_of_megabytes_and_keys_of_the_longest_kind() {
    let mut random = Seeded(11);
    let mut pairs = Vec::new();
    for index in 0..6u8 {
        pairs.push((vec![index, b'a'], random.bytes((3 << 20) + usize::from(index)).to_vec()));
        pairs.push((vec![index, b'b'], vec![index; usize::from(index)]));
        pairs.push(([&[index, b'c'][..], &vec![b'k'; 32_766]].concat(), vec![]));
    }
    let source = one_bucket(pairs);
    let file = file_of(&source);
    let reader = BoltReader::open(Bytes::from(file)).unwrap();
    reader.check().unwrap();
    assert_eq!(read_all(&reader), source);
}

#[test]
fn one_meta_is_enough() {
    let source = random_source(3, 50);
    let file = file_of(&source);
    for (lost, kept) in [(0, 1), (1, 0)] {
        let mut damaged = file.clone();
        damaged[lost * PAGE_SIZE + 40] ^= 1;
        let reader = BoltReader::open(&damaged[..]).unwrap();
        assert_eq!(read_all(&reader), source);
        let report = reader.check().unwrap();
        assert!(report.metas[kept] && !report.metas[lost]);
    }
}

#[test]
fn unlawful_sources_are_refused() {
    let long_key = one_bucket([(vec![1; 32_769], vec![])]);
    assert!(matches!(Plan::new(&long_key), Err(WriteError::KeyLen(32_769))));
    let no_key = one_bucket([(vec![], vec![])]);
    assert!(matches!(Plan::new(&no_key), Err(WriteError::KeyLen(0))));

    /// Says one thing to the plan and another to the writer.
    struct Fickle {
        first: Vec<(&'static [u8], &'static [u8])>,
        second: Vec<(&'static [u8], &'static [u8])>,
        planned: Cell<bool>,
    }
    impl Source for Fickle {
        fn buckets(&self) -> Vec<Bytes> {
            vec![Bytes::from_static(b"b")]
        }
        fn for_each(&self, _: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> io::Result<()>) -> io::Result<()> {
            let pairs = if self.planned.replace(true) { &self.second } else { &self.first };
            pairs.iter().try_for_each(|(key, value)| visit(key, value))
        }
    }
    let write = |first: Vec<(&'static [u8], &'static [u8])>, second: Vec<(&'static [u8], &'static [u8])>| {
        let source = Fickle { first, second, planned: Cell::new(false) };
        let plan = Plan::new(&source).unwrap();
        BoltWriter::new(Vec::new()).write(&plan, &source).unwrap_err()
    };
    let big: &[u8] = &[9; 5000];
    assert!(matches!(write(vec![(b"a", b"")], vec![]), WriteError::SourceChanged));
    assert!(matches!(write(vec![], vec![(b"a", b"")]), WriteError::SourceChanged));
    assert!(matches!(write(vec![(b"a", b"")], vec![(b"a", big)]), WriteError::SourceChanged));
    assert!(matches!(write(vec![(b"a", b"1"), (b"b", b"")], vec![(b"b", b"1"), (b"a", b"")]), WriteError::Order));
    assert!(matches!(write(vec![(b"a", b"1"), (b"b", b"")], vec![(b"a", b"1"), (b"a", b"")]), WriteError::Order));
}

#[test]
fn errors_of_the_sink_come_out() {
    struct Full(usize);
    impl io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if bytes.len() > self.0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0 -= bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let source = random_source(3, 50);
    let plan = Plan::new(&source).unwrap();
    for room in [0, 5000, 8192, plan.file_len() as usize - 1] {
        match BoltWriter::new(Full(room)).write(&plan, &source) {
            Err(WriteError::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::StorageFull),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("wrote into a full sink"),
        }
    }
    BoltWriter::new(Full(plan.file_len() as usize)).write(&plan, &source).unwrap();
}

#[test]
fn trailers_are_proved() {
    let source = random_source(8, 30);
    let plan = Plan::new(&source).unwrap();
    let sink = BoltWriter::new(HashingWriter::new(Vec::new())).write(&plan, &source).unwrap();
    let (mut saved, digest) = sink.finish().unwrap();
    assert_eq!(saved.len() as u64, plan.file_len() + 32);
    assert!(saved.ends_with(&digest));
    assert_eq!(verify_trailer(&&saved[..]).unwrap(), plan.file_len());
    assert_eq!(read_all(&BoltReader::open(&saved[..]).unwrap()), source);

    saved[9000] ^= 4;
    assert!(matches!(verify_trailer(&&saved[..]), Err(dolmen_bolt::Error::TrailerMismatch)));
    saved.truncate(plan.file_len() as usize);
    assert!(!has_trailer(saved.len() as u64));
    assert!(matches!(verify_trailer(&&saved[..]), Err(dolmen_bolt::Error::NoTrailer)));
}

#[test]
fn a_file_rewritten_is_the_same_file() {
    let file = file_of(&random_source(21, 300));
    let reader = BoltReader::open(&file[..]).unwrap();
    let source = reader.source().unwrap();
    let plan = Plan::new(&source).unwrap();
    let again = BoltWriter::new(Vec::new()).write(&plan, &source).unwrap();
    assert!(again == file);
}

#[test]
fn real_files_are_read_in_place() {
    let source = random_source(33, 100);
    let path = std::env::temp_dir().join(format!("dolmen-bolt-{}.db", std::process::id()));
    std::fs::write(&path, file_of(&source)).unwrap();
    let reader = BoltReader::open(std::fs::File::open(&path).unwrap()).unwrap();
    assert_eq!(read_all(&reader), source);
    std::fs::remove_file(&path).unwrap();
}
