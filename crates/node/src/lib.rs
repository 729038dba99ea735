//! The node: it owns raft, the WAL and the state machine, and carries out what raft is ready for.
//!
//! Read [`node`] first: one loop with a closed list of inputs ([`Input`]), and effects that come back as values. Around
//! it stand [`start`] (from files to a node), [`driver`] (the node on real threads), [`request`] (what callers ask and
//! hear), [`peers`] (the seam to the other members) and [`shared`] (what other threads may look at).
//!
//! ```text
//!  callers ── Submission ──┐                         ┌─> replies, one batch a runtime
//!  peers ──── Message ─────┤                         ├─> messages to peers
//!  clock ──── Tick ────────┼─> step ... ─> advance ──┼─> WAL jobs ──> wal thread ──┐
//!  disks ──── WalDone ─────┤                         ├─> store jobs ─> store thread ┤
//!             StoreDone ───┘                         └─> status, members, metrics   │
//!                 ^──────────────────────────────────────────────────────────────────┘
//! ```

#![forbid(unsafe_code)]

mod chain_points;
pub mod driver;
pub mod first_start;
mod history;
mod identity;
mod inbox;
pub mod metrics;
pub mod node;
pub mod peers;
mod reads;
pub mod request;
pub mod shared;
pub mod start;

pub use chain_points::ChainPoint;
pub use dolmen_machine::{ApplyError, Member, Membership, Response};
pub use driver::{DiskFailure, Running, spawn};
pub use history::HistoryJob;
pub use identity::{cluster_id, member_id};
pub use metrics::Metrics;
pub use node::{Config, Effects, Input, LOG_BYTES, Node, StopReason, WalJob};
pub use peers::{PeerAddress, PeerSender, RaftSink};
pub use request::{Completion, ProposeKind, Reply, Request, RequestError, Sink, Submission};
pub use shared::{Agreement, Handle, Shared, Status};
pub use start::{Bootstrap, Identity, Layout, StartError, StartOptions, Started, identity, is_initialized, start};
