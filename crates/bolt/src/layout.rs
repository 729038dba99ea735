//! How pairs become pages: the decisions that the sizing pass and the writing pass must take alike.
//!
//! [`TreeBuilder`] builds one B+ tree from ascending keys. Each level holds back the elements of the page it is filling; when
//! a page is full it goes to the [`PageSink`], which gives it the next page number, and its first key becomes an element one
//! level up. Leaves and branches therefore mix in the file, each page after its children, and the root comes last.
//!
//! One rule needs care: bbolt, when it later deletes keys from a file, takes for granted that a branch page has at
//! least two children. So a branch goes out only once two elements more than it holds have come, and the last two pages
//! of a level share what is left.

use crate::{MAX_KEY_LEN, MAX_VALUE_LEN, PAGE_SIZE, WriteError};

/// Bytes of a page header.
pub(crate) const HEADER_LEN: usize = 16;
/// Bytes of an element, of either kind.
pub(crate) const ELEMENT_LEN: usize = 16;

/// What a page is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Branch,
    Leaf,
}

impl Kind {
    /// The fewest elements a page may have when it is not alone on its level.
    fn least(self) -> usize {
        match self {
            Self::Branch => 2,
            Self::Leaf => 1,
        }
    }
}

/// One element: the lengths of its bytes, and the word that is a branch's child page or a leaf's flags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub key_len: usize,
    pub value_len: usize,
    pub word: u64,
}

impl Item {
    fn data_len(self) -> usize {
        self.key_len + self.value_len
    }

    fn len(self) -> usize {
        ELEMENT_LEN + self.data_len()
    }
}

/// Takes finished pages and numbers them.
pub(crate) trait PageSink {
    /// Whether `page` wants the bytes; without, `data` is empty.
    const WANTS_BYTES: bool;

    /// Takes one page and returns its number. `data` holds each item's key and value in turn.
    fn page(&mut self, kind: Kind, items: &[Item], data: &[u8]) -> Result<u64, WriteError>;
}

/// Pages that hold these elements, with the overflow.
pub(crate) fn pages_for(items: &[Item]) -> u64 {
    let len = HEADER_LEN + items.iter().map(|item| item.len()).sum::<usize>();
    len.div_ceil(PAGE_SIZE) as u64
}

/// The page being filled on one level.
struct Level {
    kind: Kind,
    items: Vec<Item>,
    data: Vec<u8>,
    /// Leading items that go into the next page, and their bytes with the page header.
    fitting: usize,
    fitting_len: usize,
}

impl Level {
    fn new(kind: Kind) -> Self {
        Self { kind, items: Vec::new(), data: Vec::new(), fitting: 0, fitting_len: HEADER_LEN }
    }

    fn push(&mut self, item: Item, bytes: &[&[u8]]) {
        self.items.push(item);
        for part in bytes {
            self.data.extend_from_slice(part);
        }
        self.extend_fitting();
    }

    /// Counts in as many leading items as a page holds, and the least number in any case.
    fn extend_fitting(&mut self) {
        while let Some(item) = self.items.get(self.fitting) {
            let len = self.fitting_len + item.len();
            if self.fitting >= self.kind.least() && len > PAGE_SIZE {
                break;
            }
            self.fitting += 1;
            self.fitting_len = len;
        }
    }

    /// Whether a full page and the start of a lawful next one are here.
    fn has_full_page(&self) -> bool {
        self.items.len() >= self.fitting + self.kind.least()
    }

    /// Removes the first `count` items after they went out.
    fn drop_front(&mut self, count: usize) {
        let data_len: usize = self.items[..count].iter().map(|item| item.data_len()).sum();
        self.items.drain(..count);
        // The sizing pass carries no bytes.
        self.data.drain(..data_len.min(self.data.len()));
        self.fitting = 0;
        self.fitting_len = HEADER_LEN;
        self.extend_fitting();
    }

    /// How many items the next page takes when no more will come.
    fn last_pages_take(&self) -> usize {
        let (all, least) = (self.items.len(), self.kind.least());
        if all <= self.fitting {
            all
        } else if all - self.fitting >= least {
            self.fitting
        } else if all >= 2 * least {
            // What does not fit is too little for a page: this page leaves some of its own for it.
            all - least
        } else {
            all
        }
    }
}

/// Builds one tree. Memory: a page of elements for each level, and one pair.
pub(crate) struct TreeBuilder {
    levels: Vec<Level>,
    pairs: u64,
}

impl TreeBuilder {
    pub(crate) fn new() -> Self {
        Self { levels: vec![Level::new(Kind::Leaf)], pairs: 0 }
    }

    /// Pairs pushed so far.
    pub(crate) fn pairs(&self) -> u64 {
        self.pairs
    }

    /// Adds a pair after all before it; `bytes` is its key and value, or nothing in a sizing pass.
    pub(crate) fn push<S: PageSink>(&mut self, item: Item, bytes: &[&[u8]], sink: &mut S) -> Result<(), WriteError> {
        if item.key_len == 0 || item.key_len > MAX_KEY_LEN {
            return Err(WriteError::KeyLen(item.key_len));
        }
        if item.value_len > MAX_VALUE_LEN {
            return Err(WriteError::ValueLen(item.value_len));
        }
        self.pairs += 1;
        self.levels[0].push(item, bytes);
        let mut depth = 0;
        while self.levels[depth].has_full_page() {
            let count = self.levels[depth].fitting;
            self.emit_into_parent(depth, count, sink)?;
            depth += 1;
        }
        Ok(())
    }

    /// Emits what is held back and returns the number of the root page. An empty tree is one empty leaf.
    pub(crate) fn finish<S: PageSink>(mut self, sink: &mut S) -> Result<u64, WriteError> {
        let mut depth = 0;
        loop {
            let top = depth + 1 == self.levels.len();
            let take = self.levels[depth].last_pages_take();
            if top && take == self.levels[depth].items.len() {
                return self.emit(depth, take, sink).map(|(id, _)| id);
            }
            while !self.levels[depth].items.is_empty() {
                let take = self.levels[depth].last_pages_take();
                self.emit_into_parent(depth, take, sink)?;
            }
            depth += 1;
        }
    }

    fn emit<S: PageSink>(&self, depth: usize, count: usize, sink: &mut S) -> Result<(u64, usize), WriteError> {
        let level = &self.levels[depth];
        let items = &level.items[..count];
        let data_len: usize = if S::WANTS_BYTES { items.iter().map(|item| item.data_len()).sum() } else { 0 };
        let id = sink.page(level.kind, items, &level.data[..data_len])?;
        Ok((id, items.first().map_or(0, |item| item.key_len)))
    }

    fn emit_into_parent<S: PageSink>(&mut self, depth: usize, count: usize, sink: &mut S) -> Result<(), WriteError> {
        let (id, key_len) = self.emit(depth, count, sink)?;
        if depth + 1 == self.levels.len() {
            self.levels.push(Level::new(Kind::Branch));
        }
        let (lower, upper) = self.levels.split_at_mut(depth + 1);
        let key = if S::WANTS_BYTES { &lower[depth].data[..key_len] } else { &[] };
        upper[0].push(Item { key_len, value_len: 0, word: id }, &[key]);
        lower[depth].drop_front(count);
        Ok(())
    }
}
