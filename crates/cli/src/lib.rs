//! What etcd's command-line tools have in common: commands, flags and help, and Go's way with numbers, quotes, JSON and
//! tables.
//!
//! etcdctl, etcdutl and etcd-defrag are Go programs on the library pair cobra (commands, help, completion) and pflag
//! (flags). Scripts depend on what those print and on when they refuse, so this crate behaves as cobra 1.10 and pflag
//! 1.0.10 do, byte for byte.
//!
//! # Declaring a tool
//!
//! A tool is one table of `static` commands. Everything that is not named comes from [`Command::NEW`]:
//!
//! ```
//! use dolmen_cli::{Args, Call, Command, Failure, Flag, Tool};
//!
//! static GREET: Command = Command {
//!     usage: "greet [options] <name>",
//!     short: "Says hello",
//!     flags: &[
//!         Flag::boolean("loud", "Says it in capitals"),
//!         Flag::int64("times", "1", "How often"),
//!         Flag::text("tone", "warm", "How it `sounds`").short('t'),
//!     ],
//!     args: Args::Any,
//!     run: Some(greet),
//!     ..Command::NEW
//! };
//!
//! static ROOT: Command = Command {
//!     usage: "tool",
//!     short: "A tool",
//!     persistent: &[Flag::duration("timeout", "5s", "how long to wait")],
//!     commands: &[&GREET],
//!     ..Command::NEW
//! };
//!
//! static TOOL: Tool = Tool { prefix_matching: true, ..Tool::new(&ROOT) };
//!
//! fn greet(call: &Call) -> Result<(), Failure> {
//!     let [name] = call.args() else { return Err(Failure::bad_args("greet needs one name")) };
//!     for _ in 0..call.int("times") {
//!         dolmen_cli::print(format!("hello {name}\n"));
//!     }
//!     Ok(())
//! }
//!
//! let words = ["greet", "--times", "2", "world"].map(String::from).to_vec();
//! assert_eq!(TOOL.main(words), std::process::ExitCode::SUCCESS);
//! ```
//!
//! * Children stand in the order in which the Go tool adds them: suggestions follow it. Help sorts by itself.
//! * `-h/--help`, `help [command]`, `__complete` and `__completeNoDesc` exist without being declared. `completion` is
//!   declared, with [`completion::run`] as what it runs, as etcdctl and etcdutl do it.
//! * Checks that cobra makes (`Args`, `required` flags) fail with the error and the usage, exit code 1. Checks that the
//!   tool makes in `run` fail with a [`Failure`] and its code.
//! * Environment variables are read when `run` asks for them by [`Call::environment`], as etcdctl does: commands that
//!   never connect do not look at them.
//! * Put [`Command::faults`] of the root into a unit test: it finds twice declared flags, defaults that don't parse,
//!   unknown groups.
//!
//! # Words that are not UTF-8
//!
//! Go's strings are bytes. [`words`] turns the process's arguments into `String`s without loss, and back: use
//! [`Call::arg_bytes`] and [`Call::text_bytes`] where the bytes go to a server, and [`print`] where they go to stdout.

#![forbid(unsafe_code)]
// A tool meets the real clock; what the ban protects is the core.
#![allow(clippy::disallowed_methods)]

mod call;
mod command;
pub mod completion;
mod env;
mod failure;
mod flags;
pub mod golang;
#[cfg(test)]
mod golang_tests;
#[cfg(test)]
mod golden_tests;
mod help;
pub mod humanize;
pub mod json;
mod output;
pub mod progress;
pub mod table;
mod tool;
pub mod words;
pub mod zap;

pub use call::{Call, parse};
pub use command::{Args, Command, Complete, Flag, Kind, Run};
pub use failure::Failure;
pub use output::{complain, print};
pub use tool::{Help, Tool};
