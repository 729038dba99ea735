//! What a file is made from.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;

/// Buckets and pairs that can be gone over twice with the same result: once for the lengths, once for the bytes. A view
/// of a store that stands still, in other words.
pub trait Source {
    /// Names of the buckets, in any order, each once.
    fn buckets(&self) -> Vec<Bytes>;

    /// Visits the pairs of one bucket in ascending order of keys, each key once. An error of `visit` ends the walk and is
    /// returned as it is.
    // Spelt out: an alias would need a lifetime that every implementor had to repeat.
    #[allow(clippy::type_complexity)]
    fn for_each(&self, bucket: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> io::Result<()>) -> io::Result<()>;

    /// Visits the lengths (key, value) of the same pairs in the same order. Worth writing when lengths are known without
    /// reading values.
    fn sizes(&self, bucket: &[u8], visit: &mut dyn FnMut(usize, usize) -> io::Result<()>) -> io::Result<()> {
        self.for_each(bucket, &mut |key, value| visit(key.len(), value.len()))
    }
}

/// Buckets in memory: name to key to value.
pub type MemorySource = BTreeMap<Bytes, BTreeMap<Bytes, Bytes>>;

impl Source for MemorySource {
    fn buckets(&self) -> Vec<Bytes> {
        self.keys().cloned().collect()
    }

    fn for_each(&self, bucket: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> io::Result<()>) -> io::Result<()> {
        for (key, value) in self.get(bucket).into_iter().flatten() {
            visit(key, value)?;
        }
        Ok(())
    }
}
