//! `put`: writes a key.

use std::io::Read;

use dolmen_cli::{Call, Command, Failure, Flag, golang};
use dolmen_proto::etcdserverpb as pb;

use crate::connect::{self, Limit};
use crate::hints;
use crate::tool::KV;

/// `put`
pub static COMMAND: Command = Command {
    usage: "put [options] <key> <value> (<value> can also be given from stdin)",
    short: "Puts the given key into the store",
    long: "
Puts the given key into the store.

When <value> begins with '-', <value> is interpreted as a flag.
Insert '--' for workaround:

$ put <key> -- <value>
$ put -- <key> <value>

If <value> isn't given as a command line argument and '--ignore-value' is not specified,
this command tries to read the value from standard input.

If <lease> isn't given as a command line argument and '--ignore-lease' is not specified,
this command tries to read the value from standard input.

For example,
$ cat file | put <key>
will store the content of the file to <key>.
",
    group: KV,
    flags: &[
        Flag::text("lease", "0", "lease ID (in hexadecimal) to attach to the key"),
        Flag::boolean("prev-kv", "return the previous key-value pair before modification"),
        Flag::boolean("ignore-value", "updates the key using its current value"),
        Flag::boolean("ignore-lease", "updates the key using its current lease"),
    ],
    run: Some(run),
    ..Command::NEW
};

fn run(call: &Call) -> Result<(), Failure> {
    let request = request(call, &mut std::io::stdin().lock())?;
    connect::run(call, Limit::Command, async |link| {
        let response = link.client.put(request).await.map_err(|e| hints::failure(&e))?;
        link.printer.put(&response)
    })
}

/// The request that the words of a `put` stand for; a value that is not among them is read from `stdin` to its end.
///
/// # Errors
/// Bad arguments (exit 128), in etcdctl's order. An empty stdin is no value.
pub fn request(call: &Call, stdin: &mut dyn Read) -> Result<pb::PutRequest, Failure> {
    let needs = || Failure::bad_args("put command needs 1 argument and input from stdin or 2 arguments");
    let args = call.args().len();
    if args == 0 {
        return Err(needs());
    }
    let ignore_value = call.boolean("ignore-value");
    if ignore_value && args > 1 {
        return Err(Failure::bad_args("put command needs only 1 argument when 'ignore-value' is set"));
    }
    let value = if ignore_value {
        Vec::new()
    } else if args > 1 {
        call.arg_bytes(1)
    } else {
        let mut value = Vec::new();
        stdin.read_to_end(&mut value).map_err(|_| needs())?;
        if value.is_empty() {
            return Err(needs());
        }
        value
    };
    let lease = golang::parse_int(call.text("lease"), 16)
        .map_err(|why| Failure::bad_args(format!("bad lease ID ({why}), expecting ID in Hex")))?;
    Ok(pb::PutRequest {
        key: call.arg_bytes(0).into(),
        value: value.into(),
        lease,
        prev_kv: call.boolean("prev-kv"),
        ignore_value,
        ignore_lease: call.boolean("ignore-lease"),
    })
}
