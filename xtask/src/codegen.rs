//! `cargo xtask codegen`: the protobuf messages and stubs in `crates/proto/src/gen`.
//!
//! The generator is a package of its own (`tools/codegen`), outside the workspace, so that an ordinary build compiles no
//! protobuf compiler.

use std::collections::BTreeMap;
use std::path::Path;

use crate::run::{self, Arguments, Result};

pub fn run(arguments: &[String]) -> Result {
    let mut check = false;
    let mut arguments = Arguments::new(arguments);
    while let Some(name) = arguments.next_name() {
        match name {
            "--check" => check = true,
            other => return Err(format!("unknown argument {other}")),
        }
    }
    let generated = run::root().join("crates/proto/src/gen");
    let before = contents(&generated)?;
    run::run(&mut run::cargo(["run", "-q", "--manifest-path", "tools/codegen/Cargo.toml"]))?;
    let files = contents(&generated)?;
    let mut rustfmt = std::process::Command::new("rustfmt");
    rustfmt.args(["--edition", "2024", "--config-path"]).arg(run::root());
    rustfmt.args(files.keys().map(|name| generated.join(name)));
    run::run(&mut rustfmt)?;
    let after = contents(&generated)?;
    if !check {
        println!("{} files in {}", after.len(), generated.display());
        return Ok(());
    }
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let stale: Vec<&str> =
        names.into_iter().filter(|name| before.get(*name) != after.get(*name)).map(String::as_str).collect();
    if stale.is_empty() { Ok(()) } else { Err(format!("stale, and renewed now: {}", stale.join(", "))) }
}

/// Name and text of each file.
fn contents(dir: &Path) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".rs") {
            all.insert(name, run::read(&entry.path())?);
        }
    }
    Ok(all)
}
