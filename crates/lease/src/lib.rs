//! The lessor: who holds which lease, for how long, and which keys die with it.
//!
//! A **lease** is granted for a **TTL** in seconds. Keys **attach** to it by a put. When nobody renews it in time it
//! **expires**: the **primary** lessor (the one on the raft leader) names it in [`Lessor::expired`], its owner proposes a
//! `LeaseRevoke` entry, and applying that entry on every member takes the lease and its keys away together. So the
//! clock decides only when a revoke is *proposed*; what is true is decided by the log, and no two members can differ.
//!
//! ```text
//! log (every member)    grant ── attach ── attach ──────────────── revoke → keys to delete
//! clock (primary only)    └─ deadline ── renew: deadline ── … ── expired ──┘
//! ```
//!
//! Only a primary keeps deadlines. A new leader does not know how long ago the last renewal was, so on promotion
//! every lease starts over: with its full TTL or, if a **checkpoint** told how much was left, with that. A lease
//! therefore lives longer than its TTL across a change of leaders, never shorter. Checkpoints go through the log too;
//! a renewal makes the checkpoint stale, and a stale checkpoint at the next leader would expire the lease early.
//! [`RenewError::Checkpointed`] exists for that: the checkpoint is cleared through the log first.
//!
//! Costs: a renewal is one lookup. The queue of deadlines is lazy: an entry stands at or before its lease's deadline
//! and is moved only when it comes up, so renewing a lease a hundred times moves it once.
//!
//! Renewing is all that most requests want, and changes nothing but a deadline. [`Renewals`] holds the deadlines where
//! other threads can move them too, for as long as the lessor's owner vouches that this is the primary; whatever is not
//! plain, the owner is asked.
//!
//! Not here: threads, clocks, storage, proposals and auth. Time is an argument. What must be stored is read off with
//! [`Lessor::record`] and written by the machine in the same batch as the entry's other effects.

#![forbid(unsafe_code)]

mod lessor;
mod record;
mod renewals;

pub use lessor::{
    AttachError, Checkpoint, Config, GrantError, Lessor, MAX_CHECKPOINT_BATCH, MAX_TTL_SECONDS, RenewError, TimeToLive,
    TimeToLiveError,
};
pub use record::{LeaseRecord, RecordError, record_key};
pub use renewals::Renewals;
