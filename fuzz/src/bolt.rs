//! A bbolt file: a snapshot from a leader, or an operator's backup.

use bytes::Bytes;
use dolmen_bolt::{BoltReader, BoltWriter, MemorySource, Plan};
use dolmen_env::Rng;

use crate::mutate::mutate;
use crate::{Reached, Target};

pub struct Bolt {
    files: Vec<Vec<u8>>,
}

impl Bolt {
    pub fn new() -> Self {
        let files = [0, 3, 40, 900].into_iter().map(file).collect();
        Self { files }
    }
}

/// A file of three buckets, one of them with `pairs` pairs of all sizes.
fn file(pairs: usize) -> Vec<u8> {
    let mut source = MemorySource::new();
    let mut keys = std::collections::BTreeMap::new();
    for at in 0..pairs {
        let value = vec![at as u8; at * at % 5000];
        keys.insert(Bytes::from(format!("key{at:05}")), Bytes::from(value));
    }
    source.insert(Bytes::from_static(b"key"), keys);
    let meta = [(Bytes::from_static(b"consistent_index"), Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 9]))];
    source.insert(Bytes::from_static(b"meta"), meta.into_iter().collect());
    source.insert(Bytes::from_static(b"alarm"), std::collections::BTreeMap::new());
    let plan = Plan::new(&source).expect("a small source fits a file");
    BoltWriter::new(Vec::new()).write(&plan, &source).expect("memory takes all bytes")
}

impl Target for Bolt {
    fn case(&mut self, rng: &mut Rng) -> Reached {
        let mut bytes = rng.pick(&self.files).clone();
        mutate(rng, &mut bytes);
        let Ok(reader) = BoltReader::open(Bytes::from(bytes)) else { return Reached::Refused };
        let whole = reader.check().is_ok();
        let mut read = true;
        for name in reader.buckets().unwrap_or_default() {
            let Ok(Some(bucket)) = reader.bucket(&name) else { continue };
            read &= bucket.get(b"key00007").is_ok();
            if let Ok(pairs) = bucket.pairs() {
                read &= pairs.take(10_000).all(|pair| pair.is_ok());
            }
        }
        if whole && read { Reached::Accepted } else { Reached::Refused }
    }
}
