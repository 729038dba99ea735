//! Reading a file: pages by number, buckets by name, pairs in order. Checking all of it stands in `verify`.

use bytes::{Buf, Bytes};

use crate::layout::Kind;
use crate::page::{FLAG_BUCKET, Header, META_PAGE_LEN, Meta, NO_FREELIST, Page};
use crate::verify::{Nobody, Rigour, branch_is_packed};
use crate::{Error, Fault, PAGE_SIZE, ReadAt, Source};

/// Levels of a tree no real file reaches: with two children at the least, 2^48 pages.
const MAX_DEPTH: usize = 48;
/// Bytes of one page with its overflow that will be held in memory. etcd's requests are a few MiB.
const MAX_PAGE_LEN: usize = 1 << 30;

/// A bbolt file opened for reading.
///
/// Memory held while walking: one page (its used bytes) for each level of the tree.
pub struct BoltReader<R> {
    pub(crate) file: R,
    pub(crate) meta: Meta,
    /// What is wrong with each of the two metas.
    pub(crate) metas: [Result<(), Fault>; 2],
}

impl<R: ReadAt> BoltReader<R> {
    /// Reads the metas and takes the newer whole one. A trailer after the last page does not disturb.
    ///
    /// # Errors
    /// [`Error::NoMeta`] when neither is whole, [`Error::Truncated`] when the file ends before the last page in use.
    pub fn open(file: R) -> Result<Self, Error> {
        let len = file.byte_len()?;
        let first = read_meta(&file, len, 0, 0)?;
        let second = match first {
            Ok(meta) => read_meta(&file, len, u64::from(meta.page_size), 1)?,
            Err(_) => find_second_meta(&file, len)?,
        };
        let metas = [first.map(|_| ()), second.map(|_| ())];
        let meta = match (first, second) {
            (Ok(first), Ok(second)) if second.txid > first.txid => second,
            (Ok(first), _) => first,
            (Err(_), Ok(second)) => second,
            (Err(first), Err(second)) => return Err(Error::NoMeta { first, second }),
        };
        let needed = meta.high_water.saturating_mul(u64::from(meta.page_size));
        if needed > len {
            return Err(Error::Truncated { len, needed });
        }
        Ok(Self { file, meta, metas })
    }

    /// Bytes of a page.
    pub fn page_size(&self) -> u32 {
        self.meta.page_size
    }

    /// The transaction the file is the work of.
    pub fn txid(&self) -> u64 {
        self.meta.txid
    }

    /// Pages below the high water mark, those at 0 and 1 included.
    pub fn pages(&self) -> u64 {
        self.meta.high_water
    }

    /// Whether the file keeps a list of its free pages; etcd's does not.
    pub fn has_freelist(&self) -> bool {
        self.meta.freelist != NO_FREELIST
    }

    /// Bytes of all pages, without any trailer.
    pub fn file_len(&self) -> u64 {
        self.meta.high_water * u64::from(self.meta.page_size)
    }

    /// Names of the buckets, ascending.
    ///
    /// # Errors
    /// Any fault in the pages of the root bucket.
    pub fn buckets(&self) -> Result<Vec<Bytes>, Error> {
        let mut names = Vec::new();
        let mut walk = self.root_walk(None)?;
        while let Some(entry) = walk.next_entry()? {
            if entry.is_bucket {
                names.push(entry.key);
            }
        }
        Ok(names)
    }

    /// The bucket of a name; `None` when there is none.
    ///
    /// # Errors
    /// Any fault in the pages on the way.
    pub fn bucket(&self, name: &[u8]) -> Result<Option<Bucket<'_, R>>, Error> {
        let mut walk = self.root_walk(Some(name))?;
        match walk.next_entry()? {
            Some(entry) if entry.key == name && entry.is_bucket => self.bucket_of(&entry).map(Some),
            _ => Ok(None),
        }
    }

    /// All buckets as a source for [`Plan`](crate::Plan): the way to rewrite a file without its free pages.
    ///
    /// # Errors
    /// As [`BoltReader::buckets`].
    pub fn source(&self) -> Result<ReaderSource<'_, R>, Error> {
        Ok(ReaderSource { reader: self, names: self.buckets()? })
    }

    /// Walks every page of every bucket: all rules of pages and trees, no page used twice, and, when the file has a
    /// free list, every page either free or in use. Memory: as a walk, and one bit for each page.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self) -> Result<Report, Error> {
        self.walk_all(Rigour::Readable, &mut Nobody).map_err(crate::Finding::into_error)
    }

    fn root_walk(&self, from: Option<&[u8]>) -> Result<Walk<'_, '_, R>, Error> {
        Walk::start(self, Root::Page(self.meta.root), from, None)
    }

    fn bucket_of(&self, entry: &Entry) -> Result<Bucket<'_, R>, Error> {
        let (root, sequence) = self.bucket_root(entry.page, entry.value.clone())?;
        Ok(Bucket { reader: self, root, sequence })
    }

    /// The tree and the sequence that the value of a bucket speaks of; `page` is where it stands.
    pub(crate) fn bucket_root(&self, page: u64, mut value: Bytes) -> Result<(Root, u64), Error> {
        if value.len() < 16 {
            return Err(fault(page, Fault::BucketHeader));
        }
        let (root, sequence) = (value.get_u64_le(), value.get_u64_le());
        Ok((if root == 0 { Root::Inline(value) } else { Root::Page(root) }, sequence))
    }

    /// The elements of the root bucket that describe buckets: name and header.
    pub(crate) fn root_elements(&self) -> Result<Vec<(Bytes, Bytes)>, Error> {
        let mut elements = Vec::new();
        let mut walk = self.root_walk(None)?;
        while let Some(entry) = walk.next_entry()? {
            if entry.is_bucket {
                elements.push((entry.key, entry.value));
            }
        }
        Ok(elements)
    }

    /// The root page of the bucket that `header` describes.
    pub(crate) fn root_page(&self, header: &Bytes) -> Result<Page, Error> {
        match self.bucket_root(0, header.clone())?.0 {
            Root::Page(id) => self.tree_page(id),
            Root::Inline(bytes) => Page::inline(bytes).map_err(|found| fault(0, found)),
        }
    }

    /// A page of a tree.
    pub(crate) fn tree_page(&self, id: u64) -> Result<Page, Error> {
        Ok(self.page(id)?.0)
    }

    pub(crate) fn offset(&self, id: u64) -> u64 {
        id * u64::from(self.meta.page_size)
    }

    /// The header of a page and the bytes of its run. The run lies within the file.
    pub(crate) fn header(&self, id: u64) -> Result<(Header, u64), Error> {
        if id < 2 || id >= self.meta.high_water {
            return Err(fault(id, Fault::OutOfRange));
        }
        let bytes = self.file.bytes_at(self.offset(id), 16)?;
        let header = Header::parse(&bytes).ok_or_else(|| fault(id, Fault::BeyondFile))?;
        let run_len = self.checked_run(id, header)?;
        Ok((header, run_len))
    }

    fn checked_run(&self, id: u64, header: Header) -> Result<u64, Error> {
        if header.id != id {
            return Err(fault(id, Fault::WrongId));
        }
        let pages = u64::from(header.overflow) + 1;
        if pages > self.meta.high_water - id {
            return Err(fault(id, Fault::OutOfRange));
        }
        Ok(pages * u64::from(self.meta.page_size))
    }

    /// Reads and checks a page of a tree; returns the pages it takes with it. Usually one read; pages with overflow
    /// take two or three, none longer than what the elements speak of.
    pub(crate) fn page(&self, id: u64) -> Result<(Page, u64), Error> {
        if id < 2 || id >= self.meta.high_water {
            return Err(fault(id, Fault::OutOfRange));
        }
        let offset = self.offset(id);
        let mut bytes = self.file.bytes_at(offset, self.meta.page_size as usize)?;
        let header = Header::parse(&bytes).ok_or_else(|| fault(id, Fault::BeyondFile))?;
        let run_len = self.checked_run(id, header)?;
        let found = |found| fault(id, found);
        let kind = header.kind().map_err(found)?;
        if header.table_end() as u64 > run_len {
            return Err(found(Fault::Count));
        }
        if header.table_end() > bytes.len() {
            bytes = self.file.bytes_at(offset, header.table_end())?;
        }
        let elements = Page::elements(header, &bytes, run_len).map_err(found)?;
        let used_len = Page::used_len(header, &elements);
        if used_len > MAX_PAGE_LEN {
            return Err(found(Fault::TooLarge));
        }
        if used_len > bytes.len() {
            bytes = self.file.bytes_at(offset, used_len)?;
        }
        let page = Page::new(id, kind, elements, bytes).map_err(found)?;
        Ok((page, u64::from(header.overflow) + 1))
    }
}

pub(crate) fn fault(id: u64, fault: Fault) -> Error {
    Error::Page { id, fault }
}

/// Reads the meta at `offset`. The outer error is the file's, the inner the meta's.
fn read_meta(file: &impl ReadAt, len: u64, offset: u64, id: u64) -> Result<Result<Meta, Fault>, Error> {
    if offset + META_PAGE_LEN as u64 > len {
        return Ok(Err(Fault::BeyondFile));
    }
    let bytes = file.bytes_at(offset, META_PAGE_LEN)?;
    let meta = Meta::parse(&bytes, id);
    // Pages 0 and 1 are always in use; a root of its own must be possible.
    Ok(meta.and_then(|meta| if meta.high_water < 2 { Err(Fault::OutOfRange) } else { Ok(meta) }))
}

/// Looks for the second meta when the first, which would give the page size, is lost.
fn find_second_meta(file: &impl ReadAt, len: u64) -> Result<Result<Meta, Fault>, Error> {
    let mut common = Err(Fault::BeyondFile);
    for bits in 10..=20 {
        let size = 1 << bits;
        let meta = read_meta(file, len, size, 1)?;
        match meta {
            Ok(meta) if u64::from(meta.page_size) == size => return Ok(Ok(meta)),
            Ok(_) => {}
            // What is wrong at the usual place is the answer of most use.
            Err(found) if size == PAGE_SIZE as u64 => common = Err(found),
            Err(_) => {}
        }
    }
    Ok(common)
}

/// Where a tree starts.
#[derive(Clone, Debug)]
pub(crate) enum Root {
    Page(u64),
    /// The bytes of the page in an inline bucket.
    Inline(Bytes),
}

/// An element of a leaf.
struct Entry {
    key: Bytes,
    value: Bytes,
    is_bucket: bool,
    page: u64,
}

/// A bucket of an open file.
pub struct Bucket<'r, R> {
    reader: &'r BoltReader<R>,
    root: Root,
    sequence: u64,
}

impl<'r, R: ReadAt> Bucket<'r, R> {
    /// The bucket's counter. etcd leaves it at 0.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The value of a key.
    ///
    /// # Errors
    /// Any fault in the pages on the way.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let entry = Walk::start(self.reader, self.root.clone(), Some(key), None)?.next_entry()?;
        Ok(entry.filter(|entry| entry.key == key && !entry.is_bucket).map(|entry| entry.value))
    }

    /// All pairs in ascending order of keys.
    ///
    /// # Errors
    /// A fault in the root page here, any later one as an item.
    pub fn pairs(&self) -> Result<Pairs<'r, R>, Error> {
        self.walk(None)
    }

    /// The pairs whose key is not below `from`, in ascending order.
    ///
    /// # Errors
    /// As [`Bucket::pairs`].
    pub fn pairs_from(&self, from: &[u8]) -> Result<Pairs<'r, R>, Error> {
        self.walk(Some(from))
    }

    /// Visits all pairs in ascending order of keys, without the cost of an iterator's item. An error of `visit` ends the
    /// walk and is returned as it is.
    ///
    /// # Errors
    /// Any fault in the pages, as [`Bucket::pairs`], or that of `visit`.
    pub fn visit<E: From<Error>>(&self, mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut walk = Walk::start(self.reader, self.root.clone(), None, None)?;
        while let Some(page) = walk.next_leaf()? {
            for index in 0..page.len() {
                if page.word(index) == u64::from(FLAG_BUCKET) {
                    return Err(fault(page.id, Fault::NestedBucket).into());
                }
                visit(page.key(index), page.value(index))?;
            }
        }
        Ok(())
    }

    fn walk(&self, from: Option<&[u8]>) -> Result<Pairs<'r, R>, Error> {
        Ok(Pairs { walk: Some(Walk::start(self.reader, self.root.clone(), from, None)?) })
    }
}

/// The pairs of a bucket, as an iterator. After an error it ends.
///
/// A bucket inside the bucket is reported as [`Fault::NestedBucket`]: etcd has none, so there it means damage.
pub struct Pairs<'r, R> {
    walk: Option<Walk<'r, 'static, R>>,
}

impl<R: ReadAt> Iterator for Pairs<'_, R> {
    type Item = Result<(Bytes, Bytes), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let result = match self.walk.as_mut()?.next_entry() {
            Ok(Some(entry)) if entry.is_bucket => Err(fault(entry.page, Fault::NestedBucket)),
            Ok(Some(entry)) => Ok((entry.key, entry.value)),
            Ok(None) => {
                self.walk = None;
                return None;
            }
            Err(error) => Err(error),
        };
        if result.is_err() {
            self.walk = None;
        }
        Some(result)
    }
}

/// A page on the path from the root, the element to take next, and the key its content must stay below.
struct Frame {
    page: Page,
    next: usize,
    upper: Option<Bytes>,
}

/// A walk over the leaves of one tree.
pub(crate) struct Walk<'r, 'u, R> {
    reader: &'r BoltReader<R>,
    stack: Vec<Frame>,
    used: Option<&'u mut PageSet>,
}

impl<'r, 'u, R: ReadAt> Walk<'r, 'u, R> {
    /// Stands before the first element, or before the first whose key is not below `from`.
    pub(crate) fn start(
        reader: &'r BoltReader<R>,
        root: Root,
        from: Option<&[u8]>,
        used: Option<&'u mut PageSet>,
    ) -> Result<Self, Error> {
        let mut walk = Self { reader, stack: Vec::new(), used };
        let page = match root {
            Root::Inline(bytes) => Page::inline(bytes).map_err(|found| fault(0, found))?,
            Root::Page(id) => walk.load(id)?,
        };
        if page.kind == Kind::Branch && page.len() == 0 {
            return Err(fault(page.id, Fault::Empty));
        }
        walk.stack.push(Frame { page, next: 0, upper: None });
        if let Some(from) = from {
            walk.seek(from)?;
        }
        Ok(walk)
    }

    /// Goes down to the leaf that may hold `from`.
    fn seek(&mut self, from: &[u8]) -> Result<(), Error> {
        loop {
            let frame = self.stack.last_mut().expect("start pushed the root");
            if frame.page.kind == Kind::Leaf {
                frame.next = frame.page.below(from);
                return Ok(());
            }
            frame.next = frame.page.child_for(from);
            self.descend()?;
        }
    }

    fn load(&mut self, id: u64) -> Result<Page, Error> {
        let (page, pages) = self.reader.page(id)?;
        if let Some(used) = &mut self.used {
            used.mark(id, pages).map_err(|found| fault(id, found))?;
            branch_is_packed(&page)?;
        }
        Ok(page)
    }

    /// Steps into the next child of the branch on top, which has one.
    fn descend(&mut self) -> Result<(), Error> {
        let frame = self.stack.last_mut().expect("a branch is on top");
        let index = frame.next;
        frame.next += 1;
        let child = frame.page.word(index);
        let lower = frame.page.key_bytes(index);
        let upper =
            if index + 1 < frame.page.len() { Some(frame.page.key_bytes(index + 1)) } else { frame.upper.clone() };
        if self.stack.len() >= MAX_DEPTH {
            return Err(fault(child, Fault::Depth));
        }
        let page = self.load(child)?;
        let Some(last) = page.len().checked_sub(1) else {
            return Err(fault(child, Fault::Empty));
        };
        let within = *page.key(0) >= *lower && upper.as_ref().is_none_or(|upper| *page.key(last) < **upper);
        if !within {
            return Err(fault(child, Fault::Order));
        }
        self.stack.push(Frame { page, next: 0, upper });
        Ok(())
    }

    /// The next leaf, whole. Not to be mixed with `next_entry`.
    pub(crate) fn next_leaf(&mut self) -> Result<Option<&Page>, Error> {
        loop {
            let Some(frame) = self.stack.last_mut() else { return Ok(None) };
            if frame.page.kind == Kind::Leaf && frame.next == 0 && frame.page.len() > 0 {
                frame.next = frame.page.len();
                break;
            }
            if frame.next >= frame.page.len() {
                self.stack.pop();
            } else {
                self.descend()?;
            }
        }
        Ok(self.stack.last().map(|frame| &frame.page))
    }

    fn next_entry(&mut self) -> Result<Option<Entry>, Error> {
        loop {
            let Some(frame) = self.stack.last_mut() else { return Ok(None) };
            if frame.next >= frame.page.len() {
                self.stack.pop();
            } else if frame.page.kind == Kind::Branch {
                self.descend()?;
            } else {
                let index = frame.next;
                frame.next += 1;
                return Ok(Some(Entry {
                    key: frame.page.key_bytes(index),
                    value: frame.page.value_bytes(index),
                    is_bucket: frame.page.word(index) == u64::from(FLAG_BUCKET),
                    page: frame.page.id,
                }));
            }
        }
    }
}

/// Which pages have been seen: one bit each.
pub(crate) struct PageSet {
    words: Vec<u64>,
    pages: u64,
    count: u64,
}

impl PageSet {
    /// For pages below `pages`, a number the file's length has been checked against.
    pub(crate) fn new(pages: u64) -> Self {
        Self { words: vec![0; pages.div_ceil(64) as usize], pages, count: 0 }
    }

    pub(crate) fn mark(&mut self, id: u64, pages: u64) -> Result<(), Fault> {
        let end = id.checked_add(pages).filter(|end| id >= 2 && *end <= self.pages).ok_or(Fault::OutOfRange)?;
        for page in id..end {
            let word = &mut self.words[(page / 64) as usize];
            let bit = 1 << (page % 64);
            if *word & bit != 0 {
                return Err(Fault::UsedTwice);
            }
            *word |= bit;
            self.count += 1;
        }
        Ok(())
    }

    /// Pages marked.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn first_unmarked(&self, from: u64) -> Option<u64> {
        (from..self.pages).find(|page| self.words[(page / 64) as usize] & (1 << (page % 64)) == 0)
    }
}

/// What a check found in a sound file.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The buckets, ascending by name.
    pub buckets: Vec<BucketReport>,
    /// Whether the metas at pages 0 and 1 are whole. One is enough to read the file.
    pub metas: [bool; 2],
    /// Pages that trees take, overflow included.
    pub pages_used: u64,
    /// Pages below the high water mark that hold nothing.
    pub pages_free: u64,
}

/// One bucket of a [`Report`].
#[derive(Clone, Debug, Default)]
pub struct BucketReport {
    /// Its name.
    pub name: Bytes,
    /// Pairs, those of buckets inside it included.
    pub pairs: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

/// The buckets of a file as a source.
pub struct ReaderSource<'r, R> {
    reader: &'r BoltReader<R>,
    names: Vec<Bytes>,
}

impl<R: ReadAt> Source for ReaderSource<'_, R> {
    fn buckets(&self) -> Vec<Bytes> {
        self.names.clone()
    }

    fn for_each(
        &self,
        bucket: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        match self.reader.bucket(bucket)? {
            Some(bucket) => bucket.visit(visit),
            None => Ok(()),
        }
    }
}
