//! The commands, one module a file: its words and flags (a [`dolmen_cli::Command`] table) and what it does.

pub mod alarm;
pub mod auth;
pub mod check;
pub mod compaction;
pub mod completion;
pub mod defrag;
pub mod del;
pub mod downgrade;
pub mod elect;
pub mod endpoint;
pub mod get;
pub mod lease;
pub mod lock;
pub mod make_mirror;
pub mod member;
pub mod move_leader;
pub mod options;
pub mod put;
pub mod role;
pub mod snapshot;
pub mod txn;
pub mod user;
pub mod version;
pub mod watch;
