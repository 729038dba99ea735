//! Watchers: events go in, each watcher's responses come out in order, without a gap or a repeat.
//!
//! # Words
//!
//! A **stream** is one `Watch` call; a client runs many **watchers** on it, each with its own id, range of keys and place
//! in the history (its **next** revision). The [`Hub`] lives on the node's thread and owns all watchers of the member.
//! Each stream has an [`Outbox`], the bounded queue of responses its own thread drains.
//!
//! ```text
//!            create ┌────────── next > current ─────────┐
//!                   │                                   v
//!                   ├─ next <= current ─> unsynced ─> synced ── notify: events of a new revision
//!                   v                      ^  ^         │
//!              (refused)                   │  └─────────┤ a large revision, or the store restored
//!                             room is made │            │ outbox full
//!                                        victim <───────┘
//! ```
//!
//! A **synced** watcher is at the head: each new revision is handed to it at once. An **unsynced** one is behind and is
//! served from the store's [`History`], a bounded slice at a time. A **victim** is one whose outbox was full; it is left
//! alone until the drain that makes room ([`Drained::room`]), and then is unsynced. A **held** one waits for a revision that
//! comes in parts and that readers do not see yet. Nothing waits for a slow reader, and nothing is kept for it but its next
//! revision: a watcher is a cursor into the store.
//!
//! # Turns
//!
//! Calls that tell the hub of something only note it; [`Hub::work`], called once a turn of the node, does a bounded part of
//! what there is to do and says whether there is more. What has to be read at length comes out as a [`Scan`], to be run on
//! another thread. Nothing waits for a tick but progress responses.
//!
//! # What holds
//!
//! * All events of one revision come in one response (or in fragments of one), in order of `sub`; the events of one
//!   watcher in order of revision, each once, none before `start_revision`.
//! * A watcher's responses come after its created reply. A progress response naming revision R comes after every event
//!   at or below R of the watchers it speaks for. Both because each stream has a single queue, and because only
//!   revisions that were notified are named.
//! * The wire form of an event is built once and shared ([`Frame::tail`]); a watcher adds a small head of its own.
//! * A watcher whose next revision has been compacted is cancelled with the compact revision, and keeps its id until
//!   the client cancels it or the stream ends.
//!
//! Not here: permissions (a caller refuses with [`Hub::refuse`]), gRPC, threads and clocks.

#![forbid(unsafe_code)]

mod budget;
mod catch_up;
mod event;
mod head;
mod hub;
mod index;
mod live;
mod outbox;
mod scan;

pub use event::{Event, History, HistoryError};
pub use head::Head;
pub use hub::{Config, CreateRequest, Hub, Stats, StreamId};
pub use outbox::{CloseReason, Drained, Frame, Limits, Outbox};
pub use scan::{Scan, Scanned};
