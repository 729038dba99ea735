//! Where the scripts are.

use std::path::{Path, PathBuf};
use std::process::Command;

const MODULE: &str = "go.etcd.io/raft/v3@v3.7.0";
const REMEDY: &str = "the raft scripts come with the Go module go.etcd.io/raft/v3; install Go 1.24 or later, and let \
                      `go mod download` reach a module proxy or a filled module cache";

/// The directory of the pinned Go module, downloaded when it is not there yet. Asked from the repository's module of Go
/// tools when it exists, so that checksums are verified against its `go.sum`.
pub fn module_dir() -> PathBuf {
    let interop = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop");
    let mut command = Command::new("go");
    command.args(["mod", "download", "-json", MODULE]);
    if interop.join("go.mod").exists() {
        command.current_dir(interop);
    } else {
        command.current_dir(std::env::temp_dir()).env("GOFLAGS", "-mod=mod");
    }
    let output = command.output().unwrap_or_else(|error| panic!("cannot run go: {error}; {REMEDY}"));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| {
        panic!("go mod download {MODULE} failed: {}; {REMEDY}", String::from_utf8_lossy(&output.stderr))
    });
    match answer["Dir"].as_str() {
        Some(dir) => PathBuf::from(dir),
        None => panic!("go mod download {MODULE} failed: {}; {REMEDY}", answer["Error"]),
    }
}

/// Name and text of every script in a folder, by name.
pub fn scripts(folder: &Path) -> Vec<(String, String)> {
    let listing = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut scripts: Vec<_> = listing
        .map(|file| {
            let path = file.expect("a directory entry").path();
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let name = path.file_name().expect("a file in a folder has a name");
            (name.to_string_lossy().into_owned(), text)
        })
        .collect();
    scripts.sort();
    scripts
}
