//! What an operation tells while it runs: lines of a log, and how far it is.

use serde_json::Value;

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Info,
    Warn,
    Error,
}

/// Takes what an operation tells. Lines have the words and the fields of etcd's where etcd says the same.
pub trait Report {
    /// A line of the log; fields in the order they are to be shown in.
    fn log(&mut self, level: Level, message: &str, fields: &[(&str, Value)]);

    /// `done` of `total` bytes are behind us. Called about once a MiB.
    fn progress(&mut self, _done: u64, _total: u64) {}
}

/// Listens to nothing.
pub struct Silent;

impl Report for Silent {
    fn log(&mut self, _level: Level, _message: &str, _fields: &[(&str, Value)]) {}
}
