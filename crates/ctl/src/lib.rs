//! `etcdctl` and `etcd-defrag`: an etcd cluster from the command line.
//!
//! Both say what Go's tools say, word for word: operators' scripts read it. What one command does, from words to exit code:
//!
//! 1. `dolmen_cli` finds the command in the table ([`tool::ROOT`]), parses the flags and calls the command's `run`.
//! 2. `run`, in [`commands`], checks its arguments and builds a request, before anything is connected.
//! 3. [`connect::run`] reads the global flags and the environment, connects, and gives the command a [`connect::Link`]: the
//!    client, the printer, and how long a call may take.
//! 4. The command makes its call and hands the answer to the [`output::Printer`]; a failed call becomes a
//!    [`dolmen_cli::Failure`] by [`hints::failure`], which knows what to advise.
//!
//! Everything runs on one thread: a tool that scripts call in loops starts no runtime it does not need.

#![forbid(unsafe_code)]
// A tool reads files, the clock and the environment: it is the outside.
#![allow(clippy::disallowed_methods)]

pub mod commands;
pub mod connect;
pub mod etcd_defrag;
pub mod hints;
pub mod metrics;
pub mod output;
pub mod process;
pub mod text;
pub mod tool;

use std::process::ExitCode;

pub use etcd_defrag::defrag_main;

/// `etcdctl`: `args` are the words after the program's name, as [`dolmen_cli::words::of_process`] gives them.
pub fn main(args: Vec<String>) -> ExitCode {
    tool::TOOL.main(args)
}
