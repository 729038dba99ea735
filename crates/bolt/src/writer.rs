//! Building a file: [`Plan`] lays it out, [`BoltWriter`] writes it.

use std::io::{self, Write};

use bytes::{BufMut, Bytes};

use crate::layout::{ELEMENT_LEN, HEADER_LEN, Item, Kind, PageSink, TreeBuilder, pages_for};
use crate::page::{FLAG_BRANCH, FLAG_BUCKET, FLAG_LEAF, FLAG_META, MAGIC, NO_FREELIST, VERSION, fnv1a};
use crate::{PAGE_SIZE, Source, WriteError};

/// Page of the first tree: the metas are 0 and 1.
const FIRST_PAGE: u64 = 2;
/// Bytes of the value that describes a bucket: root page and sequence.
const BUCKET_LEN: usize = 16;
/// The transaction that a new file claims to be the work of. Even, so that the next one replaces page 1, the older meta.
const TXID: u64 = 2;

/// The layout of a file not yet written. Made by a pass over the lengths of a source; holds a few words per bucket.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name, root page and number of pairs, in name order.
    buckets: Vec<(Bytes, u64, u64)>,
    root: u64,
    high_water: u64,
}

impl Plan {
    /// Lays out a file for all pairs of `source`.
    ///
    /// # Errors
    /// A key or value bbolt cannot hold, a bucket named twice, or an error of the source.
    pub fn new(source: &dyn Source) -> Result<Self, WriteError> {
        let mut names = source.buckets();
        names.sort();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(WriteError::Order);
        }
        let mut sink = Counter { next: FIRST_PAGE };
        let mut buckets = Vec::with_capacity(names.len());
        for name in names {
            let mut tree = TreeBuilder::new();
            source.sizes(&name, &mut |key_len, value_len| {
                Ok(tree.push(Item { key_len, value_len, word: 0 }, &[], &mut sink)?)
            })?;
            let pairs = tree.pairs();
            buckets.push((name, tree.finish(&mut sink)?, pairs));
        }
        let root = build_root(&buckets, &mut sink)?;
        Ok(Self { buckets, root, high_water: sink.next })
    }

    /// Bytes of the file.
    pub fn file_len(&self) -> u64 {
        self.high_water * PAGE_SIZE as u64
    }

    /// Pairs in all buckets.
    pub fn pairs(&self) -> u64 {
        self.buckets.iter().map(|(_, _, pairs)| pairs).sum()
    }
}

/// The root bucket: one element for each bucket, its value the bucket's root page and a sequence of 0.
fn build_root<S: PageSink>(buckets: &[(Bytes, u64, u64)], sink: &mut S) -> Result<u64, WriteError> {
    let mut tree = TreeBuilder::new();
    for (name, root, _) in buckets {
        let mut value = [0; BUCKET_LEN];
        value[..8].copy_from_slice(&root.to_le_bytes());
        let item = Item { key_len: name.len(), value_len: BUCKET_LEN, word: FLAG_BUCKET.into() };
        let bytes: &[&[u8]] = if S::WANTS_BYTES { &[name, &value] } else { &[] };
        tree.push(item, bytes, sink)?;
    }
    tree.finish(sink)
}

/// Numbers pages and forgets them.
struct Counter {
    next: u64,
}

impl PageSink for Counter {
    const WANTS_BYTES: bool = false;

    fn page(&mut self, _kind: Kind, items: &[Item], _data: &[u8]) -> Result<u64, WriteError> {
        let id = self.next;
        self.next += pages_for(items);
        Ok(id)
    }
}

/// Writes a planned file to a sink, first byte to last, with no seeking.
pub struct BoltWriter<W> {
    sink: W,
    next: u64,
    /// No page may reach this: a source that grew is noticed before the file outgrows its announced length.
    high_water: u64,
    /// The head of the page in the making: header and elements. Kept to reuse its memory.
    head: Vec<u8>,
}

impl<W: Write> BoltWriter<W> {
    /// A writer that has written nothing.
    pub fn new(sink: W) -> Self {
        Self { sink, next: 0, high_water: 0, head: Vec::with_capacity(PAGE_SIZE) }
    }

    /// Writes exactly [`Plan::file_len`] bytes and returns the sink, flushed.
    ///
    /// # Errors
    /// [`WriteError::SourceChanged`] when the source is not what it was when `plan` was made (the sink then holds a part
    /// of a file, fit for nothing), [`WriteError::Order`] when its keys do not ascend, and those of source and sink.
    pub fn write(mut self, plan: &Plan, source: &dyn Source) -> Result<W, WriteError> {
        self.high_water = plan.high_water;
        for page in 0..FIRST_PAGE {
            // Page 0 is the newer of the two; both describe the same tree, so losing one loses nothing.
            let mut meta = meta_page(page, TXID - page, PAGE_SIZE as u32, plan.root, plan.high_water);
            meta.resize(PAGE_SIZE, 0);
            self.sink.write_all(&meta)?;
        }
        self.next = FIRST_PAGE;
        for (name, root, pairs) in &plan.buckets {
            let (wrote_root, wrote_pairs) = self.write_bucket(name, source)?;
            if wrote_root != *root || wrote_pairs != *pairs {
                return Err(WriteError::SourceChanged);
            }
        }
        let root = build_root(&plan.buckets, &mut self)?;
        if root != plan.root || self.next != plan.high_water {
            return Err(WriteError::SourceChanged);
        }
        self.sink.flush()?;
        Ok(self.sink)
    }

    fn write_bucket(&mut self, name: &[u8], source: &dyn Source) -> Result<(u64, u64), WriteError> {
        let mut tree = TreeBuilder::new();
        let mut last: Vec<u8> = Vec::new();
        source.for_each(name, &mut |key, value| {
            // The first key passes too: it is longer than nothing.
            if key <= &last[..] {
                return Err(WriteError::Order.into());
            }
            last.clear();
            last.extend_from_slice(key);
            let item = Item { key_len: key.len(), value_len: value.len(), word: 0 };
            Ok(tree.push(item, &[key, value], self)?)
        })?;
        let pairs = tree.pairs();
        Ok((tree.finish(self)?, pairs))
    }
}

impl<W: Write> PageSink for BoltWriter<W> {
    const WANTS_BYTES: bool = true;

    fn page(&mut self, kind: Kind, items: &[Item], data: &[u8]) -> Result<u64, WriteError> {
        let id = self.next;
        let pages = pages_for(items);
        if id + pages > self.high_water {
            return Err(WriteError::SourceChanged);
        }
        self.next += pages;

        self.head.clear();
        put_header(&mut self.head, id, kind, items.len(), pages - 1);
        // An element says where its key starts, counted from the element itself.
        let mut position = items.len() * ELEMENT_LEN;
        for item in items {
            put_element(&mut self.head, kind, item, position);
            position += item.key_len + item.value_len;
            position -= ELEMENT_LEN;
        }
        self.sink.write_all(&self.head)?;
        self.sink.write_all(data)?;
        let padding = pages as usize * PAGE_SIZE - self.head.len() - data.len();
        write_zeroes(&mut self.sink, padding)?;
        Ok(id)
    }
}

pub(crate) fn put_header(page: &mut Vec<u8>, id: u64, kind: Kind, count: usize, overflow: u64) {
    page.put_u64_le(id);
    page.put_u16_le(match kind {
        Kind::Branch => FLAG_BRANCH,
        Kind::Leaf => FLAG_LEAF,
    });
    // A page of a new file holds no more elements than fit 4096 bytes, or the one or three that did not.
    page.put_u16_le(u16::try_from(count).expect("no page made here has 2^16 elements"));
    page.put_u32_le(u32::try_from(overflow).expect("a few values of at most 2 GiB take fewer than 2^32 pages"));
}

pub(crate) fn put_element(page: &mut Vec<u8>, kind: Kind, item: &Item, position: usize) {
    let position = u32::try_from(position).expect("only the last element of a page is much longer than the page");
    let key_len = u32::try_from(item.key_len).expect("key lengths are checked on arrival");
    match kind {
        Kind::Branch => {
            page.put_u32_le(position);
            page.put_u32_le(key_len);
            page.put_u64_le(item.word);
        }
        Kind::Leaf => {
            page.put_u32_le(u32::try_from(item.word).expect("flags of a leaf element are 0 or 1"));
            page.put_u32_le(position);
            page.put_u32_le(key_len);
            page.put_u32_le(u32::try_from(item.value_len).expect("value lengths are checked on arrival"));
        }
    }
}

fn write_zeroes(sink: &mut impl Write, mut len: usize) -> io::Result<()> {
    const ZEROES: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
    while len > 0 {
        let step = len.min(PAGE_SIZE);
        sink.write_all(&ZEROES[..step])?;
        len -= step;
    }
    Ok(())
}

/// Page `id` with a meta, as far as it says anything: the tree below `root`, and no list of free pages.
pub(crate) fn meta_page(id: u64, txid: u64, page_size: u32, root: u64, high_water: u64) -> Vec<u8> {
    let mut page = Vec::with_capacity(HEADER_LEN + 64);
    page.put_u64_le(id);
    page.put_u16_le(FLAG_META);
    page.put_u16_le(0);
    page.put_u32_le(0);
    page.put_u32_le(MAGIC);
    page.put_u32_le(VERSION);
    page.put_u32_le(page_size);
    page.put_u32_le(0);
    page.put_u64_le(root);
    page.put_u64_le(0);
    page.put_u64_le(NO_FREELIST);
    page.put_u64_le(high_water);
    page.put_u64_le(txid);
    let checksum = fnv1a(&page[HEADER_LEN..]);
    page.put_u64_le(checksum);
    page
}
