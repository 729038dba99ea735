//! `defrag`

use std::path::Path;
use std::time::Instant;

use dolmen_bolt::BoltReader;
use dolmen_cli::progress::Bar;
use dolmen_cli::zap::{Field, Level};
use dolmen_cli::{Call, Command, Failure, Flag, golang, humanize};

use super::{LOG, failed};
use crate::defrag::{Rewrite, sizes, temporary_beside};
use crate::files::{self, Lock};

pub(crate) static COMMAND: Command = Command {
    usage: "defrag",
    short: "Defragments the storage of the etcd",
    flags: &[Flag::text("data-dir", "", "Required. Defragments a data directory not in use by etcd.").required().dir()],
    run: Some(run),
    ..Command::NEW
};

fn run(call: &Call) -> Result<(), Failure> {
    let data_dir = call.text("data-dir");
    defrag(data_dir, call.duration("timeout"))
        .map_err(|why| failed(format_args!("Failed to defragment etcd data[{data_dir}] ({why})")))
}

fn defrag(data_dir: &str, timeout_ns: i64) -> Result<(), String> {
    let path = files::database_of(data_dir);
    files::must_exist(&path)?;
    let start = Instant::now();
    let file = files::open(&path, Lock::Exclusive, timeout_ns)?;
    let reader = BoltReader::open(&file).map_err(|error| error.to_string())?;
    let before = sizes(&reader).map_err(|error| error.to_string())?;
    LOG.log(
        Level::Info,
        "backend/backend.go:532",
        "defragmenting",
        &[
            ("path", Field::text(&path)),
            ("current-db-size-bytes", Field::uint(before.size)),
            ("current-db-size", Field::text(&humanize::bytes(before.size))),
            ("current-db-size-in-use-bytes", Field::uint(before.in_use)),
            ("current-db-size-in-use", Field::text(&humanize::bytes(before.in_use))),
        ],
    );
    let bar = Bar::bytes("defragmenting", Some(before.in_use));
    let target = Path::new(&path);
    let rewrite = Rewrite { reader: &reader, mode: 0o600, sync: true };
    let outcome = rewrite.run(&temporary_beside(target), target, &|done, total| {
        bar.set_total(total);
        bar.set(done);
    });
    bar.finish();
    let after = outcome.map_err(|error| files::go_text(&error))?;
    let difference = |now: u64, then: u64| Field::int(now as i64 - then as i64);
    LOG.log(
        Level::Info,
        "backend/backend.go:602",
        "finished defragmenting directory",
        &[
            ("path", Field::text(&path)),
            ("current-db-size-bytes-diff", difference(after, before.size)),
            ("current-db-size-bytes", Field::uint(after)),
            ("current-db-size", Field::text(&humanize::bytes(after))),
            ("current-db-size-in-use-bytes-diff", difference(after, before.in_use)),
            ("current-db-size-in-use-bytes", Field::uint(after)),
            ("current-db-size-in-use", Field::text(&humanize::bytes(after))),
            (
                "took",
                Field::text(&golang::format_duration(i64::try_from(start.elapsed().as_nanos()).unwrap_or(i64::MAX))),
            ),
        ],
    );
    Ok(())
}
