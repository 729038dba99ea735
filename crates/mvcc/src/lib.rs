//! Every revision of every key, by key: the multi-version store over [`dolmen_revlog`].
//!
//! The log keeps revisions on disk in the order they were made and knows nothing of keys. This crate adds what etcd calls
//! mvcc: an index from keys to revisions in memory ([`Index`]), and on top of it put, delete, range, compaction and hashes
//! with etcd's meanings.
//!
//! # One writer, many readers
//!
//! [`Store`] is the writer and lives on one thread. [`Reader`] is what every other thread has; it clones cheaply.
//!
//! ```text
//!  Store::begin -> Txn: put, delete_range, range      holds the write lock; main revision = current + 1
//!        |  finish -> changes                         from here readers see the revision, whole
//!        v
//!  Store::commit(index, term, tables)                 one batch for everything since the last commit goes to the log
//!
//!  Reader::range                                      read lock while revisions are collected, none while values are read
//! ```
//!
//! A request that is too long for one hold of the lock goes on in slices: [`Txn::suspend`] gives the lock away and keeps
//! what was done, which no reader sees, as its revision is above the current one; [`Store::resume`] goes on. What it has
//! written by then goes to the log as parts of the batch to come ([`Store::append_part`]), so that neither memory nor a
//! frame grows with it.
//!
//! Between `finish` and `commit` payloads stand in a list beside the index, so a reader never meets a revision it cannot
//! read. A long range gives the lock away every few thousand keys and pins its revision meanwhile; [`Reader::begin`] gives the
//! thread away as well.
//!
//! # Compaction
//!
//! [`Store::compact`] moves a watermark: reads below it are refused from that moment. What it supersedes leaves the index in
//! slices ([`Store::compact_step`]) and is then reported dead to the log, which takes the space back when it likes. Answers
//! and hashes depend on the watermark alone, never on how far either has come; pins hold back the slices, not the watermark.
//!
//! After a restart [`Store::open`] replays the log's record heads and compacts while it does.
//!
//! # What is stored
//!
//! A record's payload is the encoded `mvccpb.KeyValue` ([`KeyValueRef`]); answers, events, snapshots and hashes take those
//! bytes as they are. [`SnapshotSource`] shows the store as etcd's bbolt buckets, and [`Restore`] takes such buckets in.

#![forbid(unsafe_code)]

mod budget;
mod hash;
mod index;
mod keys;
mod kv;
mod range;
mod reader;
mod snapshot;
mod state;
mod store;
mod turns;
mod txn;

pub use budget::Budget;
pub use hash::{CompactionHash, HashKv, hash_all};
pub use index::Index;
pub use kv::{KeyValueRef, key_of};
pub use range::{Meta, RangeError, RangeOptions, RangeResult, RangeSlices, SortOrder, SortTarget};
pub use reader::{Event, ReadTxn, Reader};
pub use snapshot::{Restore, RestoreError, Restored, SnapshotSource, restore_from};
pub use state::Found;
pub use store::{CompactError, OpenError, OpenReport, Store};
pub use turns::RangeRead;
pub use txn::{Change, Txn};
