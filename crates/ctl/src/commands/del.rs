//! `del`: deletes a key or a range.

use std::time::Duration;

use dolmen_cli::{Call, Command, Failure, Flag, complain, golang};
use dolmen_proto::etcdserverpb as pb;

use super::get::{range, range_end};
use crate::connect::{self, Limit};
use crate::hints;
use crate::tool::KV;

/// `del`
pub static COMMAND: Command = Command {
    usage: "del [options] <key> [range_end]",
    short: "Removes the specified key or range of keys [key, range_end)",
    group: KV,
    flags: &[
        Flag::boolean("prefix", "delete keys with matching prefix"),
        Flag::boolean("prev-kv", "return deleted key-value pairs"),
        Flag::boolean("from-key", "delete keys that are greater than or equal to the given key using byte compare"),
        Flag::boolean("range", "delete range of keys"),
    ],
    run: Some(run),
    ..Command::NEW
};

/// How long a `del` of a range waits for somebody to think again, unless `--range` says that it is meant.
const SECOND_THOUGHTS: Duration = Duration::from_secs(2);

fn run(call: &Call) -> Result<(), Failure> {
    let request = request(call)?;
    connect::run(call, Limit::Command, async |link| {
        let response = link.client.delete_range(request).await.map_err(|e| hints::failure(&e))?;
        link.printer.del(&response)
    })
}

/// The request that the words of a `del` stand for; also of a `del` inside a transaction. Warns and waits two seconds
/// for a range without `--range`.
///
/// # Errors
/// Bad arguments (exit 128), in etcdctl's order.
pub fn request(call: &Call) -> Result<pb::DeleteRangeRequest, Failure> {
    if call.args().is_empty() || call.args().len() > 2 {
        return Err(Failure::bad_args("del command needs one argument as key and an optional argument as range_end"));
    }
    let (prefix, from_key) = (call.boolean("prefix"), call.boolean("from-key"));
    if prefix && from_key {
        return Err(Failure::bad_args("`--prefix` and `--from-key` cannot be set at the same time, choose one"));
    }
    let key = call.arg_bytes(0);
    let range_end = range_end(call, prefix || from_key)?;
    if let Some(end) = &range_end
        && !call.boolean("range")
    {
        complain(format!(
            "Warning: Keys between {} and {} will be deleted. Please interrupt the command within next 2 seconds to cancel. \
             You can provide `--range` flag to avoid the delay.\n",
            golang::quote_bytes(&key),
            golang::quote_bytes(end)
        ));
        std::thread::sleep(SECOND_THOUGHTS);
    }
    let (key, range_end) = range(key, range_end, prefix, from_key);
    Ok(pb::DeleteRangeRequest { key: key.into(), range_end: range_end.into(), prev_kv: call.boolean("prev-kv") })
}
