//! A database opened as bbolt's tool opens it: the newer sound meta, and pages by number.

use std::fs::{File, Metadata};
use std::io;

use bytes::Bytes;
use dolmen_bolt::ReadAt;
use dolmen_bolt::raw::{RawLeaf, RawMeta, RawPage};
use dolmen_cli::{Call, golang};

use crate::files::{self, Lock, go_text};

/// Levels of a tree no real file reaches.
const MAX_DEPTH: usize = 64;
/// Bytes read to find the page size, as in Go.
const FIRST_READ: usize = 4096;

/// An open database.
pub(super) struct Db {
    file: File,
    meta: RawMeta,
    /// Bytes of the file.
    pub len: u64,
}

/// Where a bucket's tree begins.
pub(super) enum Root {
    Page(u64),
    /// The page in an inline bucket.
    Inline(RawPage),
}

/// What a visit of pages answers: its error, in words.
type Outcome = Result<(), String>;

/// Fails as Go's tool does when there is no such file.
pub(super) fn source(path: &str) -> Result<Metadata, String> {
    std::fs::metadata(path).map_err(|error| {
        let quoted = golang::quote(path);
        if error.kind() == io::ErrorKind::NotFound {
            format!("source database file {quoted} doesn't exist")
        } else {
            let why = files::path_error("stat", path, &error);
            format!("failed to open source database file {quoted}: {why}")
        }
    })
}

/// Go's text for a read that fails.
pub(super) fn read_error(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof { "EOF".into() } else { go_text(error) }
}

/// Reads the meta at `offset`, when there are bytes for it.
fn meta_at(file: &File, offset: u64) -> Option<RawMeta> {
    RawPage::parse(file.bytes_at(offset, 80).ok()?)?.meta().filter(RawMeta::is_valid)
}

fn is_page_size(size: u64) -> bool {
    size.is_power_of_two() && (1 << 10..=1 << 20).contains(&size)
}

impl Db {
    /// Opens and locks, waiting for the lock as long as `--timeout` says.
    pub(super) fn open(path: &str, call: &Call) -> Result<Self, String> {
        Self::open_within(path, call.duration("timeout"))
    }

    /// As [`Db::open`]; `timeout` in nanoseconds, 0 for ever.
    pub(super) fn open_within(path: &str, timeout: i64) -> Result<Self, String> {
        source(path)?;
        let file = files::open(path, Lock::Shared, timeout)?;
        let len = file.byte_len().map_err(|error| go_text(&error))?;
        let first = meta_at(&file, 0);
        let second = match first {
            Some(meta) => meta_at(&file, u64::from(meta.page_size)),
            // The page size is not known: try all there can be.
            None => (10..=20)
                .map(|bits| 1 << bits)
                .find_map(|size| meta_at(&file, size).filter(|meta| u64::from(meta.page_size) == size)),
        };
        let newer = [first, second].into_iter().flatten().max_by_key(|meta| meta.txid);
        match newer {
            Some(meta) if is_page_size(meta.page_size.into()) => Ok(Self { file, meta, len }),
            _ => Err("invalid database".into()),
        }
    }

    pub(super) fn page_size(&self) -> u64 {
        self.meta.page_size.into()
    }

    pub(super) fn high_water(&self) -> u64 {
        self.meta.high_water
    }

    /// The page of the free list; `None`: the file keeps none.
    pub(super) fn freelist(&self) -> Option<u64> {
        Some(self.meta.freelist).filter(|id| *id != u64::MAX)
    }

    pub(super) fn root_page(&self) -> u64 {
        self.meta.root
    }

    pub(super) fn root(&self) -> Root {
        Root::Page(self.meta.root)
    }

    /// A page with its overflow.
    pub(super) fn page(&self, id: u64) -> Result<RawPage, String> {
        let head = self.head(id)?;
        if head.id != id {
            return Err(format!("Page expected to be: {id}, but self identifies as {}", head.id));
        }
        if u64::from(head.overflow) >= self.meta.high_water - id {
            return Err(format!("page {id}: {} overflow pages reach beyond the last page", head.overflow));
        }
        let len = (u64::from(head.overflow) + 1) * self.page_size();
        let len = usize::try_from(len).map_err(|_| format!("page {id}: too large"))?;
        self.read(id, len)
    }

    /// The first bytes of a page: enough for its header.
    pub(super) fn head(&self, id: u64) -> Result<RawPage, String> {
        if id >= self.meta.high_water {
            return Err(format!("page {id}: out of bounds: {}", self.meta.high_water));
        }
        self.read(id, 16)
    }

    fn read(&self, id: u64, len: usize) -> Result<RawPage, String> {
        let offset = id.checked_mul(self.page_size()).filter(|offset| offset.saturating_add(len as u64) <= self.len);
        let offset = offset.ok_or_else(|| format!("page {id}: beyond the end of the file"))?;
        let bytes = self.file.bytes_at(offset, len).map_err(|error| format!("page {id}: {}", read_error(&error)))?;
        RawPage::parse(bytes).ok_or_else(|| format!("page {id}: beyond the end of the file"))
    }

    /// Visits the pages of a tree, each before those below it, with its depth from 0.
    pub(super) fn for_each_page(&self, root: &Root, visit: &mut dyn FnMut(&RawPage, usize) -> Outcome) -> Outcome {
        match root {
            Root::Inline(page) => visit(page, 0),
            Root::Page(id) => self.visit_pages(*id, 0, &mut self.meta.high_water.clone(), visit),
        }
    }

    /// `left`: pages that may still come, since a tree that refers to itself has no end.
    fn visit_pages(
        &self,
        id: u64,
        depth: usize,
        left: &mut u64,
        visit: &mut dyn FnMut(&RawPage, usize) -> Outcome,
    ) -> Outcome {
        if depth >= MAX_DEPTH || *left == 0 {
            return Err(format!("page {id}: tree too deep"));
        }
        *left -= 1;
        let page = self.page(id)?;
        visit(&page, depth)?;
        if page.is_branch() {
            for index in 0..usize::from(page.count) {
                let child = page.branch(index).ok_or_else(|| outside(id, index))?.child;
                self.visit_pages(child, depth + 1, left, visit)?;
            }
        }
        Ok(())
    }

    /// Visits the elements of a bucket in the order of their keys.
    pub(super) fn for_each(&self, root: &Root, visit: &mut dyn FnMut(&RawLeaf<'_>) -> Outcome) -> Outcome {
        self.for_each_page(root, &mut |page, _| {
            if page.is_branch() {
                return Ok(());
            }
            if !page.is_leaf() {
                return Err(format!("page {}: invalid type: {}", page.id, page.kind()));
            }
            for index in 0..usize::from(page.count) {
                visit(&page.leaf(index).ok_or_else(|| outside(page.id, index))?)?;
            }
            Ok(())
        })
    }

    /// The element of a key, from the root down: whether it is a bucket, and its value.
    fn find(&self, root: &Root, key: &[u8]) -> Result<Option<(bool, Bytes)>, String> {
        let mut page = match root {
            Root::Inline(page) => page.clone(),
            Root::Page(id) => self.page(*id)?,
        };
        for _ in 0..MAX_DEPTH {
            let count = usize::from(page.count);
            let mut at = 0;
            // The first element above the key, by halves.
            let mut end = count;
            while at < end {
                let middle = at.midpoint(end);
                if page.key(middle).ok_or_else(|| outside(page.id, middle))? <= key {
                    at = middle + 1
                } else {
                    end = middle
                }
            }
            if page.is_branch() {
                let index = at.saturating_sub(1);
                let child = page.branch(index).ok_or_else(|| outside(page.id, index))?.child;
                page = self.page(child)?;
                continue;
            }
            if !page.is_leaf() {
                return Err(format!("page {}: invalid type: {}", page.id, page.kind()));
            }
            let Some(index) = at.checked_sub(1) else { return Ok(None) };
            let leaf = page.leaf(index).ok_or_else(|| outside(page.id, index))?;
            return Ok((leaf.key == key).then(|| (leaf.is_bucket(), Bytes::copy_from_slice(leaf.value))));
        }
        Err(format!("page {}: tree too deep", page.id))
    }

    /// The bucket that the value of an element describes.
    pub(super) fn bucket_in(&self, value: &[u8]) -> Result<Root, String> {
        let header = value.get(..8).filter(|_| value.len() >= 16);
        let root =
            header.and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes).ok_or("broken bucket header")?;
        if root != 0 {
            return Ok(Root::Page(root));
        }
        let page = RawPage::parse(Bytes::copy_from_slice(&value[16..])).ok_or("broken bucket header")?;
        Ok(Root::Inline(page))
    }

    /// The bucket at a path of names.
    pub(super) fn bucket(&self, names: &[Vec<u8>]) -> Result<Root, String> {
        let mut root = self.root();
        for name in names {
            root = match self.find(&root, name)? {
                Some((true, value)) => self.bucket_in(&value)?,
                _ => return Err("bucket not found".into()),
            };
        }
        Ok(root)
    }

    /// The value of a key; a bucket is none.
    pub(super) fn get(&self, root: &Root, key: &[u8]) -> Result<Option<Bytes>, String> {
        Ok(self.find(root, key)?.filter(|(is_bucket, _)| !is_bucket).map(|(_, value)| value))
    }
}

/// An element that does not lie in its page.
pub(super) fn outside(page: u64, index: usize) -> String {
    format!("page {page}: element {index} lies outside the page")
}

/// A database of which not even the metas have to be sound: for `page` and `dump`.
pub(super) struct Loose {
    file: File,
    pub page_size: u64,
    pub high_water: u64,
}

impl Loose {
    /// Page size and high water from page 0, whatever they are.
    pub(super) fn open(path: &str) -> Result<Self, String> {
        let file = File::open(path).map_err(|error| files::path_error("open", path, &error))?;
        let len = file.byte_len().map_err(|error| go_text(&error))?;
        let bytes = file.bytes_at(0, FIRST_READ).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof if len > 0 => "unexpected EOF".to_owned(),
            _ => read_error(&error),
        })?;
        let meta = RawPage::parse(bytes).and_then(|page| page.meta()).filter(RawMeta::has_magic);
        let meta = meta.ok_or("the Meta Page has wrong (unexpected) magic")?;
        if !is_page_size(meta.page_size.into()) {
            return Err(format!("impossible page size {}", meta.page_size));
        }
        Ok(Self { file, page_size: meta.page_size.into(), high_water: meta.high_water })
    }

    /// The bytes of one page, without its overflow.
    pub(super) fn bytes(&self, id: u64, pages: u64) -> Result<Bytes, String> {
        let len = pages.checked_mul(self.page_size).and_then(|len| usize::try_from(len).ok());
        let offset = id.checked_mul(self.page_size);
        let (Some(len), Some(offset)) = (len, offset) else { return Err("EOF".into()) };
        let there = self.file.byte_len().map_err(|error| go_text(&error))?;
        if offset.checked_add(len as u64).is_none_or(|end| end > there) {
            return Err("EOF".into());
        }
        self.file.bytes_at(offset, len).map_err(|error| read_error(&error))
    }

    /// A page with its overflow, with the texts of Go's tool.
    pub(super) fn page(&self, id: u64) -> Result<RawPage, String> {
        let parse = |bytes| RawPage::parse(bytes).ok_or_else(|| "EOF".to_owned());
        let page = parse(self.bytes(id, 1)?)?;
        if page.id != id {
            return Err(format!("error: invalid value due to unexpected Page id: {} != {id}", page.id));
        }
        // As Go computes it: in 32 bits, with what wraps around.
        if page.overflow >= (self.high_water as u32).wrapping_sub(3) {
            let (overflow, high_water) = (page.overflow, self.high_water);
            return Err(format!(
                "error: invalid value, Page claims to have {overflow} overflow pages (>=hwm={high_water}). Interrupting to avoid risky OOM"
            ));
        }
        if page.overflow == 0 { Ok(page) } else { parse(self.bytes(id, u64::from(page.overflow) + 1)?) }
    }
}
