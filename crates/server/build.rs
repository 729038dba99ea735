//! Which commit a release is made of, for `--version`. Read from `.git` where there is one; nothing fails without.

#![allow(clippy::disallowed_methods, reason = "a build reads the repository")]

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-env-changed=DOLMEN_COMMIT");
    // While developing, a commit should not mean a new binary.
    let release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = match std::env::var("DOLMEN_COMMIT") {
        Ok(given) => Some(given),
        Err(_) if release => git_dir().and_then(|git| commit(&git)),
        Err(_) => None,
    };
    if let Some(commit) =
        commit.filter(|commit| commit.len() >= 7 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()))
    {
        println!("cargo::rustc-env=DOLMEN_COMMIT={}", &commit[..commit.len().min(12)]);
    }
}

/// `.git` of the workspace; a work tree has a file there that names it.
fn git_dir() -> Option<PathBuf> {
    let manifest = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    let git = manifest.ancestors().nth(2)?.join(".git");
    if git.is_file() {
        let text = std::fs::read_to_string(&git).ok()?;
        return Some(git.parent()?.join(text.strip_prefix("gitdir: ")?.trim()));
    }
    git.is_dir().then_some(git)
}

fn commit(git: &Path) -> Option<String> {
    let head = watched(&git.join("HEAD"))?;
    let Some(reference) = head.strip_prefix("ref: ") else { return Some(head) };
    // References are with the repository that a work tree belongs to.
    let common = match std::fs::read_to_string(git.join("commondir")) {
        Ok(path) => git.join(path.trim()),
        Err(_) => git.to_owned(),
    };
    if let Some(commit) = watched(&common.join(reference)) {
        return Some(commit);
    }
    let packed = watched(&common.join("packed-refs"))?;
    packed.lines().find_map(|line| line.strip_suffix(reference)?.strip_suffix(' ').map(str::to_owned))
}

/// Reads a file, and has the build run again when it changes.
fn watched(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text.trim().to_owned())
}
