//! bbolt files, read and written in bulk.
//!
//! etcd keeps its state in one bbolt file (`member/snap/db`), and that file is also what a snapshot is: the bytes that
//! `etcdctl snapshot save` stores and that a leader sends to a member far behind. Dolmen keeps its state in another form,
//! so this crate is the border: [`BoltReader`] takes such a file apart, [`Plan`] and [`BoltWriter`] build one.
//!
//! # The file, for a newcomer
//!
//! A file is an array of pages, 4096 bytes each, numbered from 0. All numbers are little-endian.
//!
//! ```text
//! page 0, page 1   meta: magic, page size, root page of the root bucket, high water (pages in use), txid, checksum
//! other pages      leaf (sorted keys with values), branch (sorted keys with child pages), or free list
//! ```
//!
//! A page starts with 16 bytes: its own number, a kind, a count of elements, and `overflow`, how many pages follow that
//! belong to it (a value larger than a page makes its leaf a run of pages). A table of 16-byte elements follows, then the
//! bytes of keys and values. Leaves and branches form a B+ tree. A bucket is such a tree; its name stands as a key in the
//! root bucket, whose value holds the number of the tree's root page, or 0 and then a whole leaf page inside the value (an
//! inline bucket). Of the two metas the valid one with the larger txid rules.
//!
//! # Reading
//!
//! Nothing in a file is believed: every offset, count, length and page number is checked against the page it stands in
//! and the file; a child page must hold keys within the bounds its parent gives, so no page can be walked twice and no
//! cycle can run. The answer to any bytes is a result or an [`Error`] that names the page, never a panic.
//! [`BoltReader::verify`] checks a whole file and hands out what it holds on the way; [`raw`] shows single pages as they are,
//! broken or not.
//!
//! # Writing
//!
//! [`Plan::new`] goes over the lengths of keys and values once and lays out every page, so the length of the file is
//! known before its first byte. [`BoltWriter::write`] then goes over the pairs and emits pages strictly in file order.
//! Both hold one page for each level of the tree (and the pair in hand), whatever the size of the store. The file has no
//! free list (the form etcd itself keeps on disk), so a reader rebuilds it by walking the tree: every page is in use.
//!
//! # The trailer
//!
//! A saved snapshot is the file and then its SHA-256: [`HashingWriter`] appends it, [`verify_trailer`] proves it.

#![forbid(unsafe_code)]

mod edit;
mod error;
mod layout;
mod page;
pub mod raw;
mod read_at;
mod reader;
mod source;
mod trailer;
mod verify;
mod writer;

pub use edit::{Edit, Patch};
pub use error::{Error, Fault, WriteError};
pub use read_at::ReadAt;
pub use reader::{BoltReader, Bucket, BucketReport, Pairs, ReaderSource, Report};
pub use source::{MemorySource, Source};
pub use trailer::{HashingWriter, TRAILER_LEN, has_trailer, verify_trailer};
pub use verify::{Finding, FindingError, Visitor};
pub use writer::{BoltWriter, Plan};

/// The page size of files made here, in bytes. Files read may use another.
pub const PAGE_SIZE: usize = 4096;
/// The longest key bbolt takes, in bytes. Bucket names are keys too.
pub const MAX_KEY_LEN: usize = 32_768;
/// The longest value bbolt takes, in bytes.
pub const MAX_VALUE_LEN: usize = (1 << 31) - 2;
