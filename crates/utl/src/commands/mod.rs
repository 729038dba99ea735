//! One file a command: its flags and help, and what it runs.

mod completion;
mod datadir;
mod defrag;
mod export;
mod hashkv;
mod migrate;
mod restore;
mod snapshot;
mod version;

use dolmen_cli::zap::Logger;
use dolmen_cli::{Command, Failure};

/// In the order in which Go's tool adds them, then ours.
pub(crate) const ALL: &[&Command] = &[
    &defrag::COMMAND,
    &snapshot::COMMAND,
    &hashkv::COMMAND,
    &version::COMMAND,
    &completion::COMMAND,
    &migrate::COMMAND,
    &export::COMMAND,
    &crate::bbolt::COMMAND,
];

/// Where the log of an operation goes.
pub(crate) const LOG: Logger = Logger::console();

/// A general error: exit code 1.
pub(crate) fn failed(text: impl std::fmt::Display) -> Failure {
    Failure::error(text)
}
