//! Sources made from a seed, and files made from sources.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;

use bytes::Bytes;
use dolmen_bolt::{BoltWriter, MemorySource, Plan};

/// A small generator (splitmix64): the same seed, the same numbers.
pub struct Seeded(pub u64);

impl Seeded {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn bytes(&mut self, len: usize) -> Bytes {
        (0..len).map(|_| self.next() as u8).collect::<Vec<u8>>().into()
    }
}

/// Up to six buckets of up to `pairs` pairs; lengths of keys and values of many kinds, at the edges of a page too.
pub fn random_source(seed: u64, pairs: usize) -> MemorySource {
    let mut random = Seeded(seed);
    let mut source = MemorySource::new();
    for _ in 0..random.below(7) {
        let name_len = 1 + random.below(20);
        let name = random.bytes(name_len);
        let longest_key = [4, 20, 300, 3000][random.below(4)];
        let longest_value = [1, 100, 4090, 20_000][random.below(4)];
        let mut bucket = BTreeMap::new();
        for _ in 0..random.below(pairs + 1) {
            let (key_len, value_len) = (1 + random.below(longest_key), random.below(longest_value));
            bucket.insert(random.bytes(key_len), random.bytes(value_len));
        }
        source.insert(name, bucket);
    }
    source
}

/// The file of a source.
pub fn file_of(source: &MemorySource) -> Vec<u8> {
    let plan = Plan::new(source).unwrap();
    let file = BoltWriter::new(Vec::new()).write(&plan, source).unwrap();
    assert_eq!(file.len() as u64, plan.file_len());
    file
}

/// A source with one bucket.
pub fn one_bucket(pairs: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> MemorySource {
    let bucket = pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
    MemorySource::from([(Bytes::from_static(b"key"), bucket)])
}
