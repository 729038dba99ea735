//! `migrate`

use dolmen_cli::{Call, Command, Failure, Flag};
use dolmen_datadir::{MigrateOptions, migrate};

use super::datadir::{Told, with_causes};
use super::failed;

pub(super) static COMMAND: Command = Command {
    usage: "migrate",
    short: "Migrates schema of etcd data dir files to make them compatible with different etcd version",
    flags: &[
        Flag::text("data-dir", "", "Path to the etcd data dir").required().dir(),
        Flag::text(
            "target-version",
            "",
            "Target etcd version to migrate contents of data dir. Minimal value 3.5. Format \"X.Y\" for example 3.6.",
        )
        .required(),
        Flag::boolean("force", "Ignore migration failure and forcefully override storage version. Not recommended."),
    ],
    run: Some(run),
    ..Command::NEW
};

fn run(call: &Call) -> Result<(), Failure> {
    let options = MigrateOptions {
        data_dir: call.text("data-dir").into(),
        target_version: call.text("target-version").to_owned(),
        force: call.boolean("force"),
    };
    let mut told = Told::new("migrating", "schema/migration.go");
    let outcome = migrate(&options, &mut told);
    told.finish();
    outcome.map_err(|error| {
        let text = with_causes(&error);
        if error.is_usage() { Failure::bad_args(text) } else { failed(text) }
    })
}
