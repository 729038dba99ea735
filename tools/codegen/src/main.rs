//! Generates `crates/proto/src/gen/*.rs` from `crates/proto/proto/*.proto`.
//!
//! Run it with `cargo xtask codegen`. It stands outside the workspace so that nobody pays for a protobuf compiler in
//! an ordinary build: the generated files are committed.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/proto");
    let protos = root.join("proto");
    let mut files: Vec<String> = std::fs::read_dir(&protos)?
        .map(|entry| entry.map(|e| e.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_, _>>()?;
    files.sort();
    let descriptors = protox::compile(&files, [&protos])?;

    let out = root.join("src/gen");
    if out.exists() {
        std::fs::remove_dir_all(&out)?;
    }
    std::fs::create_dir_all(&out)?;
    tonic_prost_build::configure()
        .out_dir(&out)
        .bytes(".")
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .client_mod_attribute(".", "#[cfg(feature = \"client\")]")
        .compile_fds(descriptors)?;
    Ok(())
}
