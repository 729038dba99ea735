//! The keys of one node.

use std::cmp::Ordering;

use crate::index::FANOUT;

/// Room made at a time when a node's arrays grow: exact growth keeps memory near what is used.
pub(crate) const GROWTH: usize = 8;

/// Keys in order, in one buffer: first the prefix they share, once, then what each has behind it. Beside the buffer stands
/// what a search needs of them, their first bytes after the prefix. A lookup then reads a few lines of `marks` and one
/// key, where a search over the keys themselves would miss the cache at every step.
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
    /// Where the key ends in the buffer; what it has behind the prefix starts where the one before ends.
    end: u32,
}

fn head(suffix: &[u8]) -> u32 {
    let mut head = [0; 4];
    for (into, byte) in head.iter_mut().zip(suffix) {
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

    fn prefix(&self) -> &[u8] {
        &self.bytes[..self.prefix]
    }

    fn start(&self, at: usize) -> usize {
        if at == 0 { self.prefix } else { self.marks[at - 1].end as usize }
    }

    /// What a key has behind the prefix.
    fn suffix(&self, at: usize) -> &[u8] {
        &self.bytes[self.start(at)..self.marks[at].end as usize]
    }

    pub(crate) fn get(&self, at: usize) -> Vec<u8> {
        let mut key = Vec::new();
        self.write(at, &mut key);
        key
    }

    /// Makes `key` the key at `at`.
    pub(crate) fn write(&self, at: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(self.suffix(at));
    }

    /// The place of a key with this behind the prefix: `Err` is where it would stand.
    fn search(&self, suffix: &[u8]) -> Result<usize, usize> {
        let head = head(suffix);
        let mut low = self.marks.partition_point(|mark| mark.head < head);
        let mut high = low + self.marks[low..].iter().take_while(|mark| mark.head == head).count();
        while low < high {
            let middle = (low + high) / 2;
            match self.suffix(middle).cmp(suffix) {
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
        match key[..key.len().min(self.prefix)].cmp(self.prefix()) {
            Ordering::Less => Err(0),
            Ordering::Equal => self.search(&key[self.prefix..]),
            Ordering::Greater => Err(self.len()),
        }
    }

    /// Where `key` is, if it is here.
    pub(crate) fn find(&self, key: &[u8]) -> Option<usize> {
        self.search(key.strip_prefix(self.prefix())?).ok()
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
            self.bytes.clear();
            self.bytes.extend_from_slice(key);
            self.prefix = key.len();
        } else {
            let prefix = shared(self.prefix(), key);
            if prefix < self.prefix {
                self.set_prefix(prefix);
            }
        }
        let start = self.start(at);
        let suffix = &key[self.prefix..];
        if self.bytes.capacity() - self.bytes.len() < suffix.len() {
            self.bytes.reserve_exact(suffix.len() * GROWTH.min(FANOUT - self.len().min(FANOUT - 1)));
        }
        let old = self.bytes.len();
        self.bytes.extend_from_slice(suffix);
        self.bytes.copy_within(start..old, start + suffix.len());
        self.bytes[start..start + suffix.len()].copy_from_slice(suffix);
        grow(&mut self.marks);
        self.marks.insert(at, Mark { head: head(suffix), end: start as u32 });
        for mark in &mut self.marks[at..] {
            mark.end += len_u32(suffix.len());
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
        let (start, prefix) = (self.start(at), self.prefix);
        let mut bytes = Vec::with_capacity(prefix + self.bytes.len() - start);
        bytes.extend_from_slice(self.prefix());
        bytes.extend_from_slice(&self.bytes[start..]);
        self.bytes.truncate(start);
        let mut marks = self.marks.split_off(at);
        for mark in &mut marks {
            mark.end -= (start - prefix) as u32;
        }
        self.bytes.shrink_to(start + start / 8);
        self.marks.shrink_to(at + GROWTH);
        let mut right = Self { bytes, marks, prefix };
        self.find_prefix();
        right.find_prefix();
        right
    }

    pub(crate) fn append(&mut self, other: &Self) {
        if other.marks.is_empty() {
            return;
        }
        if self.marks.is_empty() {
            (self.bytes, self.prefix) = (other.prefix().to_vec(), other.prefix);
        }
        let prefix = shared(self.prefix(), other.prefix());
        self.set_prefix(prefix);
        let rest = &other.prefix()[prefix..];
        self.bytes.reserve_exact(other.bytes.len() + other.len() * rest.len());
        self.marks.reserve_exact(other.len());
        for at in 0..other.len() {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(rest);
            self.bytes.extend_from_slice(other.suffix(at));
            self.marks.push(Mark { head: head(&self.bytes[start..]), end: len_u32(self.bytes.len()) });
        }
        self.find_prefix();
    }

    /// Keeps the keys `keep` says.
    pub(crate) fn retain(&mut self, keep: &[bool]) {
        let (mut bytes, mut marks) = (Vec::with_capacity(self.bytes.len()), Vec::with_capacity(self.len()));
        bytes.extend_from_slice(self.prefix());
        for at in (0..self.len()).filter(|at| keep[*at]) {
            bytes.extend_from_slice(self.suffix(at));
            marks.push(Mark { end: bytes.len() as u32, ..self.marks[at] });
        }
        bytes.shrink_to_fit();
        marks.shrink_to_fit();
        *self = Self { bytes, marks, prefix: self.prefix };
    }

    /// Sets the prefix to the longest there is: what the lowest and the highest key share.
    fn find_prefix(&mut self) {
        if let Some(last) = self.len().checked_sub(1) {
            self.set_prefix(self.prefix + shared(self.suffix(0), self.suffix(last)));
        }
    }

    /// Writes the keys anew behind a prefix of this length, which they share.
    fn set_prefix(&mut self, prefix: usize) {
        if prefix == self.prefix {
            return;
        }
        let (old, more) = (self.prefix, prefix.saturating_sub(self.prefix));
        // The bytes that leave the prefix go to each key, or the other way round.
        let each = &self.bytes[prefix.min(old)..old];
        let mut bytes = Vec::with_capacity(self.bytes.len() + self.len() * each.len());
        bytes.extend_from_slice(&self.bytes[..prefix]);
        let mut start = old;
        for mark in &mut self.marks {
            let from = bytes.len();
            bytes.extend_from_slice(each);
            bytes.extend_from_slice(&self.bytes[start + more..mark.end as usize]);
            start = mark.end as usize;
            *mark = Mark { head: head(&bytes[from..]), end: len_u32(bytes.len()) };
        }
        bytes.shrink_to_fit();
        (self.bytes, self.prefix) = (bytes, prefix);
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.marks.capacity() * size_of::<Mark>()
    }

    /// Bytes of all keys, each in full.
    pub(crate) fn byte_len(&self) -> usize {
        self.bytes.len() + self.prefix * self.len().saturating_sub(1)
    }

    /// Checks what a search relies on; for tests.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let there = |at: usize| self.place(&self.get(at)) == Ok(at) && self.find(&self.get(at)) == Some(at);
        assert!((0..self.len()).all(there));
        assert!((0..self.len()).all(|at| self.marks[at].head == head(self.suffix(at))));
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
