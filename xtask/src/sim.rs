//! `cargo xtask sim`: the simulator, in release, with its own arguments. Planted bugs may panic, and one that does must not
//! end the count of the others: they run in a profile that unwinds.

use crate::run::{self, Result};

pub fn run(arguments: &[String]) -> Result {
    let planted = arguments.iter().any(|argument| argument.starts_with("--mutant"));
    let profile = if planted { "--profile=sim" } else { "--release" };
    let mut cargo = run::cargo(["run", "-q", profile, "-p", "dolmen-sim", "--bin", "dolmen-sim", "--"]);
    cargo.args(arguments);
    run::run(&mut cargo)
}
