//! etcdutl: snapshots and data directories of etcd, worked on as files while no server has them.
//!
//! ```text
//! snapshot status   proves a snapshot: SHA-256, every page, every key; prints hash, revision, keys, size, version
//! snapshot restore  makes a data directory from a snapshot
//! hashkv            the HashKV that a server with this database would answer
//! defrag            rewrites the database of a data directory without its free pages
//! migrate           changes the storage version of a data directory
//! export            makes a data directory for etcd from one of Dolmen
//! bbolt             looks into a bbolt file: buckets, keys, pages
//! ```
//!
//! Words on stdout, exit codes and `Error:` lines are those of Go's etcdutl 3.7.3, and of the bbolt command of 1.5.0.
//! Where this tool differs on purpose:
//!
//! * `snapshot status` compares the SHA-256, which Go's does not read, and refuses what Go's would crash on. See
//!   [`status`].
//! * Nothing here writes to the file it reads. Go's `hashkv` begins to compact a database whose compaction was
//!   interrupted.
//! * A database that a server holds is refused after `--timeout`, by all commands; some of Go's wait for ever.
//! * Progress is shown on a terminal, and only there.

#![forbid(unsafe_code)]
// A tool at the edge: it opens files and reads the clock.
#![allow(clippy::disallowed_methods)]

use std::process::ExitCode;

use dolmen_cli::{Command, Flag, Help, Tool};

mod bbolt;
mod commands;
mod defrag;
mod files;
pub mod hashkv;
pub mod keys;
mod printer;
pub mod status;

/// The whole tool, for who needs its table: help, completion, documents.
pub static ROOT: Command = Command {
    usage: "etcdutl",
    short: "An administrative command line tool for etcd3.",
    suggest_for: &["etcdutl"],
    persistent: &[
        Flag::duration("timeout", "10s", "time to wait to obtain a file lock on db file, 0 to block indefinitely"),
        Flag::text("write-out", "simple", "set the output format (fields, json, protobuf, simple, table)")
            .short('w')
            .choices(&["fields", "json", "protobuf", "simple", "table"]),
    ],
    commands: commands::ALL,
    ..Command::NEW
};

static TOOL: Tool = Tool { prefix_matching: true, help: Help::Usage, repeat_error: true, ..Tool::new(&ROOT) };

/// Runs one command line. `args`: the words after the program's name.
pub fn main(args: Vec<String>) -> ExitCode {
    TOOL.main(args)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_has_no_mistakes() {
        assert_eq!(super::ROOT.faults(), Vec::<String>::new());
    }
}
