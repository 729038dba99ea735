//! etcd's own data directories: made from a snapshot or from a Dolmen member, and taken over at a start.
//!
//! ```text
//! <data-dir>/member/
//!   snap/db                          all state: a bbolt file, as of its consistent index
//!   snap/<term>-<index>.snap         what raft begins with, and the members for etcd 3.5
//!   snap/<index>.snap.db             a database received from the leader, not yet in the place of db
//!   wal/<sequence>-<first>.wal       the raft log
//! ```
//!
//! * [`restore`]: a snapshot file becomes such a directory, for a new cluster. What `etcdutl snapshot restore` does.
//! * [`import`]: such a directory becomes a Dolmen member's; etcd's files are moved aside. What a start does.
//! * [`export`]: a Dolmen member's directory becomes one that an etcd starts from. The way back.
//! * [`migrate`]: the storage version of such a directory is changed. What `etcdutl migrate` does.
//!
//! Each is all or nothing: killed at any moment, it leaves what was there before or what should be there after, and nothing
//! that a server would take for either.

#![forbid(unsafe_code)]

mod bootstrap;
mod export;
mod files;
mod found;
mod import;
mod migrate;
mod report;
mod restore;
mod snap;

pub use bootstrap::BootstrapError;
pub use export::{ExportError, ExportOptions, export, export_on};
pub use files::{DiskError, PlaceError};
pub use import::{ImportError, ImportOptions, Imported, import, remove_imported};
pub use migrate::{MigrateError, MigrateOptions, Version, migrate, migrate_on};
pub use report::{Level, Report, Silent};
pub use restore::{RestoreError, RestoreOptions, restore, restore_on};
