//! `snapshot status`, and the group it stands in.

use dolmen_cli::progress::Bar;
use dolmen_cli::{Call, Command, Failure, complain};

use super::failed;
use crate::files::{self, Lock};
use crate::printer::{self, Format};

pub(crate) static COMMAND: Command = Command {
    usage: "snapshot <subcommand>",
    short: "Manages etcd node snapshots",
    commands: &[&super::restore::COMMAND, &STATUS],
    ..Command::NEW
};

static STATUS: Command = Command {
    usage: "status <filename>",
    short: "Gets backend snapshot status of a given file",
    long: "When --write-out is set to simple, this command prints out comma-separated status lists for each endpoint.\n\
           The items in the lists are hash, revision, total keys, total size.\n",
    run: Some(status),
    ..Command::NEW
};

fn status(call: &Call) -> Result<(), Failure> {
    let [path] = call.args() else {
        return Err(Failure::bad_args("snapshot status requires exactly one argument"));
    };
    files::must_exist(path).map_err(failed)?;
    let format = Format::of(call)?;
    let file = files::open(path, Lock::Shared, call.duration("timeout")).map_err(failed)?;
    let bar = Bar::bytes("verifying", file.metadata().ok().map(|metadata| metadata.len()));
    let outcome = crate::status::status(&file, &|done, _| bar.set(done));
    bar.finish();
    let status = outcome.map_err(failed)?;
    if !status.has_sha {
        complain(
            "note: no SHA-256 at the end, as in a file copied from a data directory: keys, values and free pages are not covered\n",
        );
    }
    printer::status(format, &status)
}
