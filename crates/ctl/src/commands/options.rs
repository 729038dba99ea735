//! `options`: the global flags, which no other help lists.

use dolmen_cli::{Call, Command, Failure, print};

use crate::tool::UTILITY;

/// `options`
pub static COMMAND: Command = Command {
    usage: "options",
    short: "Show the global command-line flags",
    group: UTILITY,
    run: Some(run),
    ..Command::NEW
};

fn run(call: &Call) -> Result<(), Failure> {
    print(format!("The following options can be passed to any command:\n\n{}", call.global_usages()));
    Ok(())
}
