//! `version`

use dolmen_cli::{Call, Command, Failure, print};

/// The etcd whose words this tool speaks.
const VERSION: &str = "3.7.3";
const API_VERSION: &str = "3.7";

pub(crate) static COMMAND: Command =
    Command { usage: "version", short: "Prints the version of etcdutl", run: Some(run), ..Command::NEW };

fn run(_: &Call) -> Result<(), Failure> {
    print(format!("etcdutl version: {VERSION}\nAPI version: {API_VERSION}\n"));
    Ok(())
}
