//! `export`: the way back to etcd. Go's tool has no such command.

use std::path::PathBuf;

use dolmen_cli::{Args, Call, Command, Failure, Flag};
use dolmen_datadir::{ExportOptions, export};

use super::datadir::{Told, with_causes};
use super::failed;

pub(super) static COMMAND: Command = Command {
    usage: "export",
    short: "Makes a data directory that etcd starts from, out of one of Dolmen",
    long: "Makes a data directory that etcd 3.6 or 3.7 starts from, out of one of Dolmen that no server has open.\n\
           Member id, cluster id, keys, revisions, leases, users and roles are the same; the source is left as it is.",
    flags: &[
        Flag::text("data-dir", "", "Path to the data directory of a stopped Dolmen member").required().dir(),
        Flag::text("wal-dir", "", "Path to its WAL directory (use --data-dir if none given)").dir(),
        Flag::text("to", "", "Path to the etcd data directory to make").required().dir(),
        Flag::text("target-version", "", "etcd version it is for: 3.6 or 3.7 (default: the version of the cluster)"),
    ],
    args: Args::None,
    run: Some(run),
    ..Command::NEW
};

fn run(call: &Call) -> Result<(), Failure> {
    let given = |name: &str| Some(call.text(name).to_owned()).filter(|text| !text.is_empty());
    let options = ExportOptions {
        data_dir: call.text("data-dir").into(),
        wal_dir: given("wal-dir").map(PathBuf::from),
        to: call.text("to").into(),
        target_version: given("target-version"),
    };
    let mut told = Told::new("exporting", "datadir/export");
    let outcome = export(&options, &mut told);
    told.finish();
    outcome.map_err(|error| failed(with_causes(&error)))
}
