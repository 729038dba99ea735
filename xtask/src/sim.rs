//! `cargo xtask sim`: the simulator, in release, with its own arguments.

use crate::run::{self, Result};

pub fn run(arguments: &[String]) -> Result {
    let mut cargo = run::cargo(["run", "-q", "--release", "-p", "dolmen-sim", "--bin", "dolmen-sim", "--"]);
    cargo.args(arguments);
    run::run(&mut cargo)
}
