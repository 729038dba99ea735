//! `cargo xtask crash`: power loss at every disk call (tests of the log and the store), and kill -9 of running members.
//! Quick: fewer kills, and without the tests, which are among those of the workspace.

use crate::interop;
use crate::run::{self, Arguments, Result};

pub fn run(arguments: &[String]) -> Result {
    let mut quick = false;
    let mut arguments = Arguments::new(arguments);
    while let Some(name) = arguments.next_name() {
        match name {
            "--quick" => quick = true,
            other => return Err(format!("unknown argument {other}")),
        }
    }
    if !quick {
        run::stage("crash tests of wal and revlog", || {
            run::run(&mut run::cargo(["test", "-q", "-p", "dolmen-wal", "-p", "dolmen-revlog", "--tests"]))
        })?;
    }
    let server = interop::build_server()?;
    run::stage("kill -9", || interop::kill9(&server, quick))
}
