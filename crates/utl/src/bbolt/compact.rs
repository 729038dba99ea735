//! `compact`: a copy without free pages.
//!
//! Go's tool writes the copy by transactions of `--tx-max-size` bytes; here it is written in one go and takes its name
//! when it is whole, so that flag is taken and has no effect. Buckets within buckets, which etcd has not, are refused.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use dolmen_bolt::BoltReader;
use dolmen_cli::progress::Bar;
use dolmen_cli::{Call, Failure, print};

use super::file::source;
use super::returned;
use crate::defrag::{Rewrite, temporary_beside};
use crate::files::{self, Lock, go_text};

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let target = call.text("output");
    if target.is_empty() {
        return Err(returned("output file required"));
    }
    let path = &call.args()[0];
    let metadata = source(path).map_err(returned)?;
    // What is there already has buckets of the same names, as Go's tool would find on its way.
    if std::fs::metadata(target).is_ok_and(|there| there.len() > 0) {
        return Err(returned("bucket already exists"));
    }
    let file = files::open(path, Lock::Shared, call.duration("timeout")).map_err(returned)?;
    let reader = BoltReader::open(&file).map_err(|error| match error {
        dolmen_bolt::Error::NoMeta { .. } => returned("invalid database"),
        other => returned(other),
    })?;
    let bar = Bar::bytes("compacting", None);
    let rewrite =
        Rewrite { reader: &reader, mode: metadata.permissions().mode() & 0o7777, sync: !call.boolean("no-sync") };
    let target = Path::new(target);
    let outcome = rewrite.run(&temporary_beside(target), target, &|done, _| bar.set(done));
    bar.finish();
    let (before, after) = (metadata.len(), outcome.map_err(|error| returned(go_text(&error)))?);
    print(format!("{before} -> {after} bytes (gain={:.2}x)\n", before as f64 / after as f64));
    Ok(())
}
