//! `hashkv`

use dolmen_cli::{Args, Call, Command, Failure, Flag};

use super::failed;
use crate::files::{self, Lock};
use crate::printer::{self, Format};

pub(crate) static COMMAND: Command = Command {
    usage: "hashkv <filename>",
    short: "Prints the KV history hash of a given file",
    flags: &[Flag::int64("rev", "0", "maximum revision to hash (default: latest revision)")],
    args: Args::Exactly(1),
    run: Some(run),
    ..Command::NEW
};

fn run(call: &Call) -> Result<(), Failure> {
    let format = Format::of(call)?;
    let path = &call.args()[0];
    files::must_exist(path).map_err(failed)?;
    let file = files::open(path, Lock::Shared, call.duration("timeout")).map_err(failed)?;
    let hash = crate::hashkv::hash_kv(&file, call.int("rev")).map_err(failed)?;
    printer::hash_kv(format, &hash)
}
