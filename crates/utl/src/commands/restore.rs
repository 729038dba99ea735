//! `snapshot restore`

use std::path::PathBuf;

use dolmen_cli::{Call, Command, Failure, Flag};
use dolmen_datadir::{RestoreOptions, restore};

use super::datadir::{Told, with_causes};
use super::failed;

pub(super) static COMMAND: Command = Command {
    usage: "restore <filename> --data-dir {output dir} [options]",
    short: "Restores an etcd member snapshot to an etcd directory",
    flags: &[
        Flag::text("data-dir", "", "Path to the output data directory").dir(),
        Flag::text("wal-dir", "", "Path to the WAL directory (use --data-dir if none given)").dir(),
        Flag::text(
            "initial-cluster",
            "default=http://localhost:2380",
            "Initial cluster configuration for restore bootstrap",
        ),
        Flag::text(
            "initial-cluster-token",
            "etcd-cluster",
            "Initial cluster token for the etcd cluster during restore bootstrap",
        ),
        Flag::text(
            "initial-advertise-peer-urls",
            "http://localhost:2380",
            "List of this member's peer URLs to advertise to the rest of the cluster",
        ),
        Flag::text("name", "default", "Human-readable name for this member"),
        Flag::boolean(
            "skip-hash-check",
            "Ignore snapshot integrity hash value (required if copied from data directory)",
        ),
        Flag::uint64(
            "initial-memory-map-size",
            "10737418240",
            "Initial memory map size of the database in bytes. It uses the default value if not defined or defined to 0",
        ),
        Flag::uint64("bump-revision", "0", "How much to increase the latest revision after restore"),
        Flag::boolean(
            "mark-compacted",
            "Mark the latest revision after restore as the point of scheduled compaction (required if --bump-revision > 0, disallowed otherwise)",
        ),
    ],
    run: Some(run),
    ..Command::NEW
};

fn run(call: &Call) -> Result<(), Failure> {
    let [snapshot] = call.args() else {
        return Err(Failure::bad_args("snapshot restore requires exactly one argument"));
    };
    let (bump_revision, mark_compacted) = (call.uint("bump-revision"), call.boolean("mark-compacted"));
    if (bump_revision > 0) != mark_compacted {
        return Err(Failure::bad_args("--mark-compacted required if --revision-bump > 0"));
    }
    let name = call.text("name").to_owned();
    let data_dir = match call.text("data-dir") {
        "" => format!("{name}.etcd"),
        given => given.to_owned(),
    };
    let options = RestoreOptions {
        snapshot: snapshot.into(),
        name,
        data_dir: data_dir.into(),
        wal_dir: Some(call.text("wal-dir")).filter(|dir| !dir.is_empty()).map(PathBuf::from),
        initial_advertise_peer_urls: call.text("initial-advertise-peer-urls").split(',').map(str::to_owned).collect(),
        initial_cluster: call.text("initial-cluster").to_owned(),
        initial_cluster_token: call.text("initial-cluster-token").to_owned(),
        skip_hash_check: call.boolean("skip-hash-check"),
        initial_memory_map_size: call.uint("initial-memory-map-size"),
        bump_revision,
        mark_compacted,
    };
    let mut told = Told::new("restoring", "snapshot/v3_snapshot.go");
    let outcome = restore(&options, &mut told);
    told.finish();
    outcome.map_err(|error| failed(with_causes(&error)))
}
