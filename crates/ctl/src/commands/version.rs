//! `version`: which etcdctl this is.

use dolmen_cli::{Call, Command, Failure};

use crate::output::say;
use crate::tool::{API_VERSION, UTILITY, VERSION};

/// `version`
pub static COMMAND: Command = Command {
    usage: "version",
    short: "Prints the version of etcdctl",
    group: UTILITY,
    run: Some(run),
    ..Command::NEW
};

fn run(_: &Call) -> Result<(), Failure> {
    say(format_args!("etcdctl version: {VERSION}\nAPI version: {API_VERSION}"))
}
