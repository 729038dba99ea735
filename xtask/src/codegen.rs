//! `cargo xtask codegen`: the protobuf messages and stubs in `crates/proto/src/gen`.
//!
//! The generator is a package of its own (`tools/codegen`), outside the workspace, so that an ordinary build compiles no
//! protobuf compiler.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

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
    keep_times(&generated, &before, &after)?;
    if !check {
        println!("{} files in {}", after.len(), generated.display());
        return Ok(());
    }
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let text = |files: &Files, name: &String| files.get(name).map(|(text, _)| text.clone());
    let stale: Vec<&str> =
        names.into_iter().filter(|name| text(&before, name) != text(&after, name)).map(String::as_str).collect();
    if stale.is_empty() { Ok(()) } else { Err(format!("stale, and renewed now: {}", stale.join(", "))) }
}

/// Name, text and time of each file.
type Files = BTreeMap<String, (String, SystemTime)>;

fn contents(dir: &Path) -> Result<Files> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".rs") {
            let time = entry.metadata().and_then(|metadata| metadata.modified());
            let time = time.map_err(|error| format!("{name}: {error}"))?;
            all.insert(name, (run::read(&entry.path())?, time));
        }
    }
    Ok(all)
}

/// Gives files that came out as they were their time back, so that nothing is built anew for their sake.
fn keep_times(dir: &Path, before: &Files, after: &Files) -> Result {
    for (name, (text, time)) in before {
        if after.get(name).is_some_and(|(now, _)| now == text) {
            let file = std::fs::OpenOptions::new().write(true).open(dir.join(name));
            file.and_then(|file| file.set_modified(*time)).map_err(|error| format!("{name}: {error}"))?;
        }
    }
    Ok(())
}
