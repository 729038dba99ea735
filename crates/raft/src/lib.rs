//! Consensus without I/O: one log, agreed on by a group of members, of which a minority may be down, slow or cut off.
//!
//! This is Raft (Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm"; "paper" below, and
//! Ongaro's dissertation, "thesis"), with etcd's messages and etcd's behaviour, so that members of both kinds can form
//! one group. [`RawNode`] is one member. It has no clock, no disk, no network and no thread: the owner tells it that
//! time passes and what arrived, and carries out the [`Ready`] it gives.
//!
//! # The words
//!
//! A **term** is a period with at most one leader. An **entry** has a term and an **index**, its position in the log.
//! An entry is **stable** when this member's disk has it, **committed** when a quorum's disks have it and no later
//! leader can miss it, **applied** when the state machine has executed it. **Progress** is what a leader knows of one
//! member's log. A **quorum** is a majority of voters, in a joint membership a majority of each half. **Hard state**
//! (term, vote, commit index) has to survive a crash; soft state does not.
//!
//! # The loop
//!
//! ```
//! use dolmen_raft::{Config, MemoryStorage, RawNode};
//!
//! let mut node = RawNode::new(&Config::new(1), MemoryStorage::new())?;
//! node.bootstrap(&[(1, Default::default())])?;
//! let mut applied = Vec::new();
//! while node.raft().leader_id() == 0 || node.has_ready() {
//!     node.tick();
//!     if !node.has_ready() {
//!         continue;
//!     }
//!     let mut ready = node.ready();
//!     // 1. Write. In a server: the write-ahead log, synced when `must_sync` says so; the memory mirrors it.
//!     if let Some(snapshot) = ready.snapshot.take() {
//!         node.storage_mut().apply_snapshot(snapshot)?;
//!     }
//!     node.storage_mut().append(std::mem::take(&mut ready.entries))?;
//!     if let Some(hard_state) = ready.hard_state {
//!         node.storage_mut().set_hard_state(hard_state);
//!     }
//!     // 2. Send `ready.messages`. 3. Apply; membership changes go through `apply_conf_change`.
//!     applied.append(&mut ready.committed_entries);
//!     // 4. Say so.
//!     node.advance(ready);
//! }
//! assert_eq!((node.raft().leader_id(), applied.len()), (1, 2));
//! node.propose("hello".into())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The order is the safety of the protocol: nothing is sent, and nothing applied, before what the same Ready wants
//! stored is durable.
//!
//! # Async storage writes
//!
//! With [`Config::async_storage_writes`] a Ready need not be finished before the next one. Its work is (also) in
//! `messages`: a `MsgStorageAppend` to [`LOCAL_APPEND_THREAD`] and a `MsgStorageApply` to [`LOCAL_APPLY_THREAD`]. Each
//! is carried out in order among those to the same thread; then its `responses` are delivered, to other members by
//! sending and to this one by [`RawNode::step_local`]. Everything else in `messages` may leave at once: a leader's
//! appends travel while its own disk still writes. Hard state travels in `term`, `vote` and `commit`, all 0 when
//! unchanged. Committed entries are handed out only once they are stable here. [`RawNode::ready_messages`] spares the
//! copies in the other fields.
//!
//! # Two doors
//!
//! [`RawNode::step`] takes what came off the wire and trusts none of it: types, senders, terms, indexes and entries are
//! checked before anything changes, and nothing that arrives can make this crate panic or allocate more than it was
//! given. [`RawNode::step_local`] takes storage's answers, which the wire must not be able to forge. Our own mistakes,
//! such as compacting what was not applied, are assertions.
//!
//! # Left out
//!
//! Storage errors (the log window lives in memory; a failed disk stops the process), message transport, snapshots'
//! content, the meaning of entries, and sessions of clients.
//!
//! Source of the behaviour: etcd's raft library 3.7, whose own data-driven scripts are this crate's conformance test.

#![forbid(unsafe_code)]

pub mod confchange;
mod config;
pub mod describe;
mod entry;
mod error;
mod inflights;
mod log;
mod logger;
mod memory_storage;
mod progress;
pub mod quorum;
mod raft;
mod raw_node;
mod read_only;
mod rng;
mod storage;
mod tracker;
mod unstable;

pub use config::{Config, NO_LIMIT, ReadOnlyOption};
pub use error::Error;
pub use inflights::Inflights;
pub use logger::{Level, LogSink, Logger};
pub use memory_storage::MemoryStorage;
pub use progress::{Progress, ProgressState};
pub use raft::{Raft, ReadState, Role, SoftState, is_local, is_local_target};
pub use raw_node::{BasicStatus, RawNode, Ready, Status, is_empty_snapshot};
pub use storage::{Storage, StorageError, snapshot_index, snapshot_term};
pub use tracker::{ProgressMap, ProgressTracker, TrackerConfig};

/// No member: no leader known, nobody voted for.
pub const NONE: u64 = 0;
/// Addressee of `MsgStorageAppend`, sender of its response.
pub const LOCAL_APPEND_THREAD: u64 = u64::MAX;
/// Addressee of `MsgStorageApply`, sender of its response.
pub const LOCAL_APPLY_THREAD: u64 = u64::MAX - 1;
