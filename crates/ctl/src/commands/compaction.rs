//! `compaction`: drops the history up to a revision.

use dolmen_cli::{Call, Command, Failure, Flag, golang};
use dolmen_proto::etcdserverpb as pb;

use crate::connect::{self, Limit};
use crate::hints;
use crate::output::say;
use crate::tool::KV;

/// `compaction`
pub static COMMAND: Command = Command {
    usage: "compaction [options] <revision>",
    short: "Compacts the event history in etcd",
    group: KV,
    flags: &[Flag::boolean("physical", "'true' to wait for compaction to physically remove all old revisions")],
    run: Some(run),
    ..Command::NEW
};

fn run(call: &Call) -> Result<(), Failure> {
    let [revision] = call.args() else { return Err(Failure::bad_args("compaction command needs 1 argument")) };
    let revision = golang::parse_int(revision, 10).map_err(Failure::error)?;
    let physical = call.boolean("physical");
    connect::run(call, Limit::Command, async |link| {
        link.client.compact(pb::CompactionRequest { revision, physical }).await.map_err(|e| hints::failure(&e))?;
        say(format_args!("compacted revision {revision}"))
    })
}
