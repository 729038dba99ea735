//! The segmented revision log: every revision of every key on disk, in revision order, and a few small tables beside.
//!
//! # What it is
//!
//! [`Log`] is the one writer. A [`Batch`] is what one apply run did: records, table changes, the raft index they stand
//! for. [`Log::append`] encodes it into a frame in memory, where [`Reader`]s see it at once; disk work leaves the
//! writer as [`Job`]s, values that a background thread runs and hands back. So the thread that owns the log never
//! waits for a disk, and everything here is deterministic: no thread, no clock, no randomness inside.
//!
//! ```text
//! append ─► frame in memory ─► Write job: file + sync, mapped ─► durable_index moves
//!              │ file past segment_bytes
//!              └► Seal job: footer, next file with a checkpoint of the tables, MANIFEST
//! mark_dead ─► Reclaim jobs: a slice each, copy what is not dead, MANIFEST ─► Unlink job, when no view needs it
//! ```
//!
//! Durability of a single write is the raft log's business. The store only says how far it has come
//! ([`Log::durable_index`]), and after a crash begins at some batch at or after that point, whole.
//!
//! # Files
//!
//! `MANIFEST` names the sealed segments and the one file that grows; replacing it by a rename is the commit point of
//! everything but appending. Sealed segments never change, and neither does what is durable of the growing one: both are
//! mapped. The footers of the sealed ones hold keys and positions, so that opening reads no value.
//! `docs/format-revlog.md` has the byte tables and the argument.
//!
//! # Reading
//!
//! A [`Reader`] takes a pointer to the list of segments, finds a segment and then a record by binary search, verifies
//! the record's checksum, and answers a slice of the mapping or of the frame. A [`View`] keeps one such list: what it
//! sees stays, files included.

#![forbid(unsafe_code)]

mod active;
mod bits;
mod choose;
mod codec;
mod error;
mod frame;
mod install;
mod jobs;
mod log;
mod manifest;
mod options;
mod reader;
mod reclaim;
mod record;
mod recovery;
mod segment;
mod store;
mod tables;

pub use error::Error;
pub use install::{Builder, Replacement};
pub use jobs::{Job, JobDone, JobKind};
pub use log::{Log, Recovered};
pub use options::{Hint, Options};
pub use reader::{Entry, Metas, Reader, RecordMetas, Scan, Sizes, View};
pub use record::{Batch, NewRecord, RecordMeta};
pub use tables::{Table, TableOp, Tables};
