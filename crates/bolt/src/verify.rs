//! Checking a whole file while handing out what it holds: one walk for proof, hash and count.
//!
//! A verification reads every page that the newer meta reaches, once, in the order of the buckets' names and keys, and
//! holds one page for each level of a tree and one bit for each page of the file.
//!
//! # What it notices
//!
//! ```text
//! both metas     magic, version, checksum, page size, own number, nothing where bbolt writes nothing
//! every page     own number, kind, table of elements, keys and values packed without gap, keys strictly ascending
//! every child    keys within what the parent's keys say, no page without elements
//! every bucket   header of 16 bytes, or an inline page that fills the rest of the value exactly
//! all pages      none used twice, none beyond the high water mark; with a free list: each either free or in use
//! ```
//!
//! # What it cannot notice
//!
//! Bytes that say nothing about others: a value, the part of a page behind its last element, a page that is free, what follows
//! the last page. A saved snapshot has its SHA-256 for these ([`verify_trailer`](crate::verify_trailer)); a file copied
//! from a data directory has nothing.

use std::fmt;

use bytes::{Buf, Bytes};

use crate::layout::Kind;
use crate::page::{FLAG_BUCKET, FLAG_FREELIST, HEADER_LEN, Header, META_PAGE_LEN, NO_FREELIST, Page};
use crate::reader::{BoltReader, BucketReport, PageSet, Report, Root, Walk, fault};
use crate::{Error, Fault, ReadAt};

/// Buckets within buckets. etcd has one level.
const MAX_NESTING: usize = 16;

/// Receives what a verified file holds. All of it is checked before it is handed out, except what lies behind it.
pub trait Visitor {
    /// A bucket of the top level begins; its pairs follow.
    fn bucket(&mut self, name: &[u8]) {
        let _ = name;
    }

    /// Keys and values of the bucket last begun, one behind the other as they stand in their page: many pairs in one call.
    /// A bucket inside the bucket comes as its name alone.
    fn data(&mut self, bytes: &[u8]) {
        let _ = bytes;
    }

    /// One pair of the bucket last begun; not of buckets inside it.
    ///
    /// # Errors
    /// A text that says why the pair cannot be, which ends the walk.
    fn pair(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let _ = (key, value);
        Ok(())
    }
}

/// Wants nothing.
pub(crate) struct Nobody;

impl Visitor for Nobody {}

/// What is wrong with a file, and where.
#[derive(Debug)]
pub struct Finding {
    /// The broken rule, with its page.
    pub error: FindingError,
    /// Where the page starts in the file, in bytes.
    pub offset: Option<u64>,
    /// The bucket it belongs to, outermost first; empty: the root bucket, or no bucket at all.
    pub bucket: Vec<Bytes>,
    /// The key of the pair that is wrong.
    pub key: Option<Bytes>,
}

/// The broken rule of a [`Finding`].
#[derive(Debug)]
pub enum FindingError {
    /// One of the file's.
    File(Error),
    /// One of the visitor's.
    Pair {
        /// Page that holds the pair.
        page: u64,
        /// What the visitor said.
        text: String,
    },
}

impl Finding {
    fn file(error: Error, page_size: u32, bucket: &[Bytes]) -> Self {
        let offset = match error {
            // An inline page has no number of its own.
            Error::Page { id: 0, fault } if !matches!(fault, Fault::Checksum | Fault::Magic | Fault::Version) => None,
            Error::Page { id, .. } => id.checked_mul(u64::from(page_size)),
            _ => None,
        };
        Self { error: FindingError::File(error), offset, bucket: bucket.to_vec(), key: None }
    }

    /// The file's error, when it is one.
    pub fn into_error(self) -> Error {
        match self.error {
            FindingError::File(error) => error,
            FindingError::Pair { page, text } => {
                Error::Io(std::io::Error::new(std::io::ErrorKind::InvalidData, format!("page {page}: {text}")))
            }
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            FindingError::File(error) => write!(f, "{error}")?,
            FindingError::Pair { page, text } => write!(f, "page {page}: {text}")?,
        }
        let mut parts = Vec::new();
        if let Some(offset) = self.offset {
            parts.push(format!("at offset {offset}"));
        }
        for name in &self.bucket {
            parts.push(format!("bucket \"{}\"", name.escape_ascii()));
        }
        if let Some(key) = &self.key {
            let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
            parts.push(format!("key {hex}"));
        }
        if parts.is_empty() { Ok(()) } else { write!(f, " ({})", parts.join(", ")) }
    }
}

impl std::error::Error for Finding {}

/// How much is asked of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rigour {
    /// What a reader needs.
    Readable,
    /// All that bbolt keeps to.
    Flawless,
}

impl<R: ReadAt> BoltReader<R> {
    /// Walks the whole file, checks what the module page lists, and hands what it holds to `visitor`.
    ///
    /// # Errors
    /// The first fault found, with its place. The visitor may have seen a part of the file by then.
    pub fn verify(&self, visitor: &mut dyn Visitor) -> Result<Report, Finding> {
        self.verify_metas().map_err(|error| Finding::file(error, self.page_size(), &[]))?;
        self.walk_all(Rigour::Flawless, visitor)
    }

    /// Both metas whole, and nothing beside them that bbolt does not write.
    fn verify_metas(&self) -> Result<(), Error> {
        for (id, whole) in [(0, self.metas[0]), (1, self.metas[1])] {
            if let Err(found) = whole {
                return Err(fault(id, found));
            }
            let bytes = self.file.bytes_at(id * u64::from(self.page_size()), META_PAGE_LEN)?;
            let header = Header::parse(&bytes).ok_or_else(|| fault(id, Fault::BeyondFile))?;
            if header.count != 0 || header.overflow != 0 {
                return Err(fault(id, Fault::Count));
            }
        }
        Ok(())
    }

    pub(crate) fn walk_all(&self, rigour: Rigour, visitor: &mut dyn Visitor) -> Result<Report, Finding> {
        let mut used = PageSet::new(self.meta.high_water);
        let mut report = Report { metas: self.metas.map(|meta| meta.is_ok()), ..Report::default() };
        let mut path = Vec::new();
        self.walk_root(rigour, visitor, &mut used, &mut report, &mut path)
            .map_err(|stop| stop.into_finding(self.page_size(), &path))?;
        report.pages_used = used.count();
        report.pages_free =
            self.check_freelist(&mut used).map_err(|error| Finding::file(error, self.page_size(), &[]))?;
        Ok(report)
    }

    fn walk_root(
        &self,
        rigour: Rigour,
        visitor: &mut dyn Visitor,
        used: &mut PageSet,
        report: &mut Report,
        path: &mut Vec<Bytes>,
    ) -> Result<(), Stop> {
        // Names and headers of the buckets are few: the root is read through before any bucket is entered.
        let mut entries = Vec::new();
        let mut walk = Walk::start(self, Root::Page(self.meta.root), None, Some(&mut *used))?;
        while let Some(page) = walk.next_leaf()? {
            check_packing(page, rigour)?;
            for index in 0..page.len() {
                if page.word(index) == u64::from(FLAG_BUCKET) {
                    entries.push((page.id, page.key_bytes(index), page.value_bytes(index)));
                } else if rigour == Rigour::Flawless {
                    return Err(fault(page.id, Fault::NotABucket).into());
                }
            }
        }
        for (page, name, value) in entries {
            visitor.bucket(&name);
            let mut bucket = BucketReport { name: name.clone(), ..BucketReport::default() };
            path.push(name);
            self.walk_bucket((page, value), rigour, Some(&mut *visitor), used, &mut bucket, path)?;
            path.pop();
            report.buckets.push(bucket);
        }
        Ok(())
    }

    fn walk_bucket(
        &self,
        (page, value): (u64, Bytes),
        rigour: Rigour,
        mut visitor: Option<&mut dyn Visitor>,
        used: &mut PageSet,
        report: &mut BucketReport,
        path: &mut Vec<Bytes>,
    ) -> Result<(), Stop> {
        if path.len() > MAX_NESTING {
            return Err(fault(page, Fault::Depth).into());
        }
        let (root, _) = self.bucket_root(page, value.clone())?;
        if rigour == Rigour::Flawless {
            check_header(page, &root, value.len())?;
        }
        let mut nested = Vec::new();
        let mut walk = Walk::start(self, root, None, Some(&mut *used))?;
        while let Some(page) = walk.next_leaf()? {
            check_packing(page, rigour)?;
            let plain = (0..page.len()).all(|index| page.word(index) == 0);
            if let Some(visitor) = &mut visitor
                && plain
                && page.is_packed()
            {
                visitor.data(page.data());
            }
            let whole = plain && page.is_packed();
            for index in 0..page.len() {
                let (key, value) = (page.key(index), page.value(index));
                if page.word(index) == u64::from(FLAG_BUCKET) {
                    nested.push((page.id, page.key_bytes(index), page.value_bytes(index)));
                    if let Some(visitor) = &mut visitor {
                        visitor.data(key);
                    }
                    continue;
                }
                report.pairs += 1;
                report.bytes += (key.len() + value.len()) as u64;
                if let Some(visitor) = &mut visitor {
                    if !whole {
                        visitor.data(key);
                        visitor.data(value);
                    }
                    visitor.pair(key, value).map_err(|text| Stop::Pair {
                        page: page.id,
                        key: page.key_bytes(index),
                        text,
                    })?;
                }
            }
        }
        for (page, name, value) in nested {
            path.push(name);
            self.walk_bucket((page, value), rigour, None, used, report, path)?;
            path.pop();
        }
        Ok(())
    }

    /// Reads the free list, if any, and returns how many pages are free.
    fn check_freelist(&self, used: &mut PageSet) -> Result<u64, Error> {
        let all = self.meta.high_water - 2;
        if self.meta.freelist == NO_FREELIST {
            return Ok(all - used.count());
        }
        let id = self.meta.freelist;
        let (header, run_len) = self.header(id)?;
        if header.flags != FLAG_FREELIST {
            return Err(fault(id, Fault::WrongKind));
        }
        used.mark(id, u64::from(header.overflow) + 1).map_err(|found| fault(id, found))?;
        let offset = self.offset(id) + HEADER_LEN as u64;
        let (count, offset) = match header.count {
            u16::MAX => (self.file.bytes_at(offset, 8)?.get_u64_le(), offset + 8),
            count => (u64::from(count), offset),
        };
        let room = run_len - (offset - self.offset(id));
        if count > room / 8 {
            return Err(fault(id, Fault::Count));
        }
        self.check_free_ids(id, offset, count, used)?;
        if used.count() != all {
            let lost = used.first_unmarked(2).unwrap_or(id);
            return Err(fault(lost, Fault::Unreachable));
        }
        Ok(count)
    }

    /// Marks the free pages, a few thousand at a time.
    fn check_free_ids(&self, id: u64, mut offset: u64, count: u64, used: &mut PageSet) -> Result<(), Error> {
        let (mut left, mut last) = (count, 0);
        while left > 0 {
            let step = left.min(8192);
            let mut ids = self.file.bytes_at(offset, step as usize * 8)?;
            while ids.has_remaining() {
                let free = ids.get_u64_le();
                if free <= last {
                    return Err(fault(id, Fault::FreeList));
                }
                last = free;
                used.mark(free, 1).map_err(|found| match found {
                    Fault::UsedTwice => fault(free, Fault::FreeInUse),
                    other => fault(free, other),
                })?;
            }
            offset += step * 8;
            left -= step;
        }
        Ok(())
    }
}

/// bbolt writes keys and values one behind the other.
fn check_packing(page: &Page, rigour: Rigour) -> Result<(), Error> {
    if rigour == Rigour::Flawless && !page.is_packed() { Err(fault(page.id, Fault::Gap)) } else { Ok(()) }
}

/// The value that describes a bucket has no byte more than it needs.
fn check_header(page: u64, root: &Root, value_len: usize) -> Result<(), Error> {
    let needed = match root {
        Root::Page(_) => 0,
        Root::Inline(bytes) => {
            let inner = Page::inline(bytes.clone()).map_err(|found| fault(page, found))?;
            if Header::parse(bytes).is_some_and(|header| header.id != 0) {
                return Err(fault(page, Fault::WrongId));
            }
            inner.end()
        }
    };
    if value_len == 16 + needed { Ok(()) } else { Err(fault(page, Fault::BucketHeader)) }
}

/// What ended a walk. The bucket is known to the caller.
enum Stop {
    File(Error),
    Pair { page: u64, key: Bytes, text: String },
}

impl Stop {
    fn into_finding(self, page_size: u32, bucket: &[Bytes]) -> Finding {
        match self {
            Self::File(error) => Finding::file(error, page_size, bucket),
            Self::Pair { page, key, text } => Finding {
                error: FindingError::Pair { page, text },
                offset: (page > 0).then(|| page.saturating_mul(u64::from(page_size))),
                bucket: bucket.to_vec(),
                key: Some(key),
            },
        }
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::File(error)
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::File(error.into())
    }
}

// A branch is checked for packing where it is loaded; this says so to the reader of the table above.
pub(crate) fn branch_is_packed(page: &Page) -> Result<(), Error> {
    if page.kind == Kind::Branch && !page.is_packed() { Err(fault(page.id, Fault::Gap)) } else { Ok(()) }
}
