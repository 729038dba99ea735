//! `cargo xtask fuzz`: damaged bytes to everything that reads bytes, for a minute each.
//!
//! The targets are a package of its own (`fuzz`), outside the workspace.

use crate::run::{self, Arguments, Result};

pub const TARGETS: &[&str] = &["wal", "segment", "bolt", "peer", "request", "http2"];

pub fn run(arguments: &[String]) -> Result {
    let (mut seconds, mut only) = (60u64, None);
    let mut arguments = Arguments::new(arguments);
    while let Some(name) = arguments.next_name() {
        match name {
            "--seconds" => seconds = arguments.parsed(name)?,
            "--target" => only = Some(arguments.value(name)?.to_owned()),
            other => return Err(format!("unknown argument {other}")),
        }
    }
    if let Some(name) = &only
        && !TARGETS.contains(&name.as_str())
    {
        return Err(format!("no target {name:?}; there are {}", TARGETS.join(", ")));
    }
    for target in TARGETS.iter().filter(|target| only.as_deref().is_none_or(|only| only == **target)) {
        run::stage(&format!("fuzz {target}"), || {
            let seconds = seconds.to_string();
            let manifest = ["run", "-q", "--release", "--manifest-path", "fuzz/Cargo.toml", "--"];
            run::run(run::cargo(manifest).args([target, "--seconds", &seconds]))
        })?;
    }
    Ok(())
}
