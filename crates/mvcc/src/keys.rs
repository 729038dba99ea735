//! The keys of one node.

use std::cmp::Ordering;

use crate::index::FANOUT;

/// Room made at a time when a node's arrays grow: exact growth keeps memory near what is used.
pub(crate) const GROWTH: usize = 8;

/// Keys in order, in one buffer, and beside it what a search needs of them: their first bytes after the prefix they all
/// share. A lookup then reads a few lines of `marks` and one key, where a search over the keys themselves would miss the
/// cache at every step.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    bytes: Vec<u8>,
    marks: Vec<Mark>,
    /// Bytes that all keys begin with, or fewer.
    prefix: usize,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    /// The four bytes after the prefix, zeroes where the key ends: in the order of the keys, though not telling all apart.
    head: u32,
    /// Where the key ends in the buffer; it starts where the one before ends.
    end: u32,
}

fn head(key: &[u8], prefix: usize) -> u32 {
    let mut head = [0; 4];
    for (into, byte) in head.iter_mut().zip(key.get(prefix..).unwrap_or_default()) {
        *into = *byte;
    }
    u32::from_be_bytes(head)
}

fn shared(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Keys {
    pub(crate) fn len(&self) -> usize {
        self.marks.len()
    }

    fn start(&self, at: usize) -> usize {
        if at == 0 { 0 } else { self.marks[at - 1].end as usize }
    }

    pub(crate) fn get(&self, at: usize) -> &[u8] {
        &self.bytes[self.start(at)..self.marks[at].end as usize]
    }

    /// The place of `key` among the keys that share the prefix, as it does itself: `Err` is where it would stand.
    fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let head = head(key, self.prefix);
        let mut low = self.marks.partition_point(|mark| mark.head < head);
        let mut high = low + self.marks[low..].iter().take_while(|mark| mark.head == head).count();
        while low < high {
            let middle = (low + high) / 2;
            match self.get(middle).cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// The place of any key.
    pub(crate) fn place(&self, key: &[u8]) -> Result<usize, usize> {
        if self.marks.is_empty() {
            return Err(0);
        }
        let prefix = &self.get(0)[..self.prefix];
        match key[..key.len().min(self.prefix)].cmp(prefix) {
            Ordering::Less => Err(0),
            Ordering::Equal => self.search(key),
            Ordering::Greater => Err(self.len()),
        }
    }

    /// Where `key` is, if it is here.
    pub(crate) fn find(&self, key: &[u8]) -> Option<usize> {
        // One without the prefix meets a key it does not equal, wherever the search leads it.
        self.search(key).ok()
    }

    /// Keys below `key`.
    pub(crate) fn below(&self, key: &[u8]) -> usize {
        self.place(key).unwrap_or_else(|at| at)
    }

    /// Keys at or below `key`.
    pub(crate) fn up_to(&self, key: &[u8]) -> usize {
        self.place(key).map_or_else(|at| at, |at| at + 1)
    }

    pub(crate) fn insert(&mut self, at: usize, key: &[u8]) {
        if self.marks.is_empty() {
            self.prefix = key.len();
        } else {
            let prefix = shared(&self.get(0)[..self.prefix], key);
            if prefix < self.prefix {
                self.set_prefix(prefix);
            }
        }
        let start = self.start(at);
        if self.bytes.capacity() - self.bytes.len() < key.len() {
            self.bytes.reserve_exact(key.len() * GROWTH.min(FANOUT - self.len().min(FANOUT - 1)));
        }
        let old = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.copy_within(start..old, start + key.len());
        self.bytes[start..start + key.len()].copy_from_slice(key);
        grow(&mut self.marks);
        self.marks.insert(at, Mark { head: head(key, self.prefix), end: start as u32 });
        for mark in &mut self.marks[at..] {
            mark.end += len_u32(key.len());
        }
    }

    pub(crate) fn remove(&mut self, at: usize) {
        let (start, end) = (self.start(at), self.marks[at].end as usize);
        self.bytes.drain(start..end);
        self.marks.remove(at);
        for later in &mut self.marks[at..] {
            later.end -= (end - start) as u32;
        }
    }

    /// Takes away the keys from `at` on and returns them.
    pub(crate) fn split_off(&mut self, at: usize) -> Self {
        let start = self.start(at);
        let bytes = self.bytes.split_off(start);
        let mut marks = self.marks.split_off(at);
        for mark in &mut marks {
            mark.end -= start as u32;
        }
        self.bytes.shrink_to(start + start / 8);
        self.marks.shrink_to(at + GROWTH);
        let mut right = Self { bytes, marks, prefix: 0 };
        self.find_prefix();
        right.find_prefix();
        right
    }

    pub(crate) fn append(&mut self, other: &Self) {
        let base = len_u32(self.bytes.len());
        self.bytes.reserve_exact(other.bytes.len());
        self.bytes.extend_from_slice(&other.bytes);
        self.marks.reserve_exact(other.marks.len());
        self.marks.extend(other.marks.iter().map(|mark| Mark { end: mark.end + base, ..*mark }));
        self.find_prefix();
    }

    /// Keeps the keys `keep` says.
    pub(crate) fn retain(&mut self, keep: &[bool]) {
        let (mut bytes, mut marks) = (Vec::with_capacity(self.bytes.len()), Vec::with_capacity(self.len()));
        for at in (0..self.len()).filter(|at| keep[*at]) {
            bytes.extend_from_slice(self.get(at));
            marks.push(Mark { end: bytes.len() as u32, ..self.marks[at] });
        }
        bytes.shrink_to_fit();
        marks.shrink_to_fit();
        *self = Self { bytes, marks, prefix: self.prefix };
    }

    /// Sets the prefix to the longest there is: what the lowest and the highest key share.
    fn find_prefix(&mut self) {
        match self.len() {
            0 => self.prefix = 0,
            len => self.set_prefix(shared(self.get(0), self.get(len - 1))),
        }
    }

    fn set_prefix(&mut self, prefix: usize) {
        self.prefix = prefix;
        for at in 0..self.len() {
            self.marks[at].head = head(self.get(at), prefix);
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.marks.capacity() * size_of::<Mark>()
    }

    /// Bytes of all keys.
    pub(crate) fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// Checks what a search relies on; for tests.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        assert!((0..self.len()).all(|at| self.place(self.get(at)) == Ok(at) && self.find(self.get(at)) == Some(at)));
        assert!((0..self.len()).all(|at| self.get(at)[..self.prefix] == self.get(0)[..self.prefix]));
    }
}

fn len_u32(len: usize) -> u32 {
    u32::try_from(len).expect("a leaf holds less than 4 GiB: requests are far smaller")
}

pub(crate) fn grow<T>(vec: &mut Vec<T>) {
    if vec.len() == vec.capacity() {
        vec.reserve_exact(GROWTH);
    }
}
