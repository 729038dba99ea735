//! `get`: reads a key or a range.

use dolmen_cli::{Call, Command, Failure, Flag, golang};
use dolmen_proto::etcdserverpb as pb;
use dolmen_proto::etcdserverpb::range_request::{SortOrder, SortTarget};

use crate::connect::{self, Limit, Link};
use crate::hints;
use crate::output::{Format, simple, write_stdout};
use crate::text::prefix_end;
use crate::tool::KV;

/// `get`
pub static COMMAND: Command = Command {
    usage: "get [options] <key> [range_end]",
    short: "Gets the key or a range of keys",
    group: KV,
    flags: &[
        Flag::text("consistency", "l", "Linearizable(l) or Serializable(s)").choices(&["l", "s"]),
        Flag::text("order", "", "Order of results; ASCEND or DESCEND (ASCEND by default)")
            .choices(&["ASCEND", "DESCEND"]),
        Flag::text("sort-by", "", "Sort target; CREATE, KEY, MODIFY, VALUE, or VERSION")
            .choices(&["CREATE", "KEY", "MODIFY", "VALUE", "VERSION"]),
        Flag::int64("limit", "0", "Maximum number of results"),
        Flag::boolean("prefix", "Get keys with matching prefix"),
        Flag::boolean("from-key", "Get keys that are greater than or equal to the given key using byte compare"),
        Flag::int64("rev", "0", "Specify the kv revision"),
        Flag::boolean("keys-only", "Get only the keys"),
        Flag::boolean("count-only", "Get only the count"),
        Flag::boolean("print-value-only", "Only write values when using the \"simple\" output format"),
        Flag::int64("min-create-rev", "0", "Minimum create revision"),
        Flag::int64("max-create-rev", "0", "Maximum create revision"),
        Flag::int64("min-mod-rev", "0", "Minimum modification revision"),
        Flag::int64("max-mod-rev", "0", "Maximum modification revision"),
        Flag::boolean("stream", "Use the RangeStream RPC"),
    ],
    run: Some(run),
    ..Command::NEW
};

fn run(call: &Call) -> Result<(), Failure> {
    let request = request(call)?;
    connect::run(call, Limit::Command, async |link| {
        let value_only = call.boolean("print-value-only");
        let printer = if value_only { link.printer.with_value_only() } else { link.printer };
        let mut lines = simple::Lines::new(printer.style());
        let response = match printer.format() {
            _ if call.boolean("stream") => stream(&link, request).await.map(Some),
            // Nothing but the key-values is printed, so they become text while the others are still on their way.
            Format::Simple => link.client.range_into(request, &mut lines).await.map(|_| None),
            _ => link.client.range(request).await.map(Some),
        };
        let response = response.map_err(|e| hints::failure(&e))?;
        // These two are looked at only now, as etcdctl does: a wrong key or a missing permission is told first.
        if call.boolean("count-only") && printer.format() != Format::Fields {
            return Err(Failure::bad_args("--count-only is only for `--write-out=fields`"));
        }
        if value_only && printer.format() != Format::Simple {
            return Err(Failure::bad_args("print-value-only is only for `--write-out=simple`"));
        }
        match response {
            Some(response) => printer.get(&response),
            None => write_stdout(&lines.text),
        }
    })
}

/// The pieces of a streamed range as one answer, merged as protobuf merges messages: keys in a row, of all else the last that
/// is not zero.
async fn stream(link: &Link, request: pb::RangeRequest) -> Result<pb::RangeResponse, dolmen_client::Error> {
    let mut pieces = link.client.range_stream(request).await?;
    let mut whole = pb::RangeResponse::default();
    while let Some(piece) = pieces.next().await {
        let Some(piece) = piece?.range_response else { continue };
        whole.header = merged(whole.header, piece.header);
        whole.kvs.extend(piece.kvs);
        whole.more |= piece.more;
        if piece.count != 0 {
            whole.count = piece.count;
        }
    }
    Ok(whole)
}

fn merged(a: Option<pb::ResponseHeader>, b: Option<pb::ResponseHeader>) -> Option<pb::ResponseHeader> {
    let (Some(a), Some(b)) = (a, b) else { return a.or(b) };
    let last = |a: u64, b: u64| if b == 0 { a } else { b };
    Some(pb::ResponseHeader {
        cluster_id: last(a.cluster_id, b.cluster_id),
        member_id: last(a.member_id, b.member_id),
        revision: if b.revision == 0 { a.revision } else { b.revision },
        raft_term: last(a.raft_term, b.raft_term),
    })
}

/// The request that the words of a `get` stand for; also of a `get` inside a transaction.
///
/// # Errors
/// Bad arguments (exit 128) and flags with values that mean nothing (exit 4), in etcdctl's order.
pub fn request(call: &Call) -> Result<pb::RangeRequest, Failure> {
    if call.args().is_empty() {
        return Err(Failure::bad_args("get command needs one argument as key and an optional argument as range_end"));
    }
    let (prefix, from_key) = (call.boolean("prefix"), call.boolean("from-key"));
    let (keys_only, count_only) = (call.boolean("keys-only"), call.boolean("count-only"));
    if prefix && from_key {
        return Err(Failure::bad_args("`--prefix` and `--from-key` cannot be set at the same time, choose one"));
    }
    if keys_only && count_only {
        return Err(Failure::bad_args("`--keys-only` and `--count-only` cannot be set at the same time, choose one"));
    }
    let serializable = serializable(call.text("consistency"))?;
    let range_end = range_end(call, prefix || from_key)?;
    let (sort_target, sort_order) = sorting(call.text("sort-by"), call.text("order"))?;
    let (key, range_end) = range(call.arg_bytes(0), range_end, prefix, from_key);
    let (min_create, max_create) = (call.int("min-create-rev"), call.int("max-create-rev"));
    let (min_mod, max_mod) = (call.int("min-mod-rev"), call.int("max-mod-rev"));
    if max_create > 0 && min_create > max_create {
        let text = format!("getMinCreateRev(={min_create}) > getMaxCreateRev(={max_create})");
        return Err(Failure::bad_feature(text));
    }
    if max_mod > 0 && min_mod > max_mod {
        return Err(Failure::bad_feature(format!("getMinModRev(={min_mod}) > getMaxModRev(={max_mod})")));
    }
    Ok(pb::RangeRequest {
        key: key.into(),
        range_end: range_end.into(),
        limit: call.int("limit"),
        revision: call.int("rev").max(0),
        sort_order: sort_order.into(),
        sort_target: sort_target.into(),
        serializable,
        keys_only,
        count_only,
        min_mod_revision: min_mod.max(0),
        max_mod_revision: max_mod.max(0),
        min_create_revision: min_create.max(0),
        max_create_revision: max_create.max(0),
    })
}

/// What `--consistency` asks for.
///
/// # Errors
/// `unknown consistency flag "x"` (exit 4).
pub fn serializable(consistency: &str) -> Result<bool, Failure> {
    match consistency {
        "s" => Ok(true),
        "l" => Ok(false),
        other => Err(Failure::bad_feature(format!("unknown consistency flag {}", golang::quote(other)))),
    }
}

/// The second argument, which excludes the flags that say where the range ends by themselves.
pub(super) fn range_end(call: &Call, ends_itself: bool) -> Result<Option<Vec<u8>>, Failure> {
    if call.args().len() < 2 {
        return Ok(None);
    }
    if ends_itself {
        return Err(Failure::bad_args(
            "too many arguments, only accept one argument when `--prefix` or `--from-key` is set",
        ));
    }
    Ok(Some(call.arg_bytes(1)))
}

/// The range a key and its flags stand for; an empty range end is the key alone. An empty key with `--prefix` or `--from-key`
/// is every key.
pub(super) fn range(key: Vec<u8>, range_end: Option<Vec<u8>>, prefix: bool, from_key: bool) -> (Vec<u8>, Vec<u8>) {
    match (prefix || from_key, key.is_empty()) {
        (true, true) => (vec![0], vec![0]),
        (true, false) if prefix => {
            let end = prefix_end(&key);
            (key, end)
        }
        (true, false) => (key, vec![0]),
        (false, _) => (key, range_end.unwrap_or_default()),
    }
}

/// Target and order of `--sort-by` and `--order`. Ascending by key is how keys come anyway, so no order is asked for then.
fn sorting(target: &str, order: &str) -> Result<(SortTarget, SortOrder), Failure> {
    let order = match order.to_uppercase().as_str() {
        "ASCEND" => SortOrder::Ascend,
        "DESCEND" => SortOrder::Descend,
        "" => SortOrder::None,
        _ => return Err(Failure::bad_feature(format!("bad sort order {order}"))),
    };
    let target = match target.to_uppercase().as_str() {
        "CREATE" => SortTarget::Create,
        "MODIFY" => SortTarget::Mod,
        "VALUE" => SortTarget::Value,
        "VERSION" => SortTarget::Version,
        "KEY" | "" => SortTarget::Key,
        _ => return Err(Failure::bad_feature(format!("bad sort target {target}"))),
    };
    let plain = target == SortTarget::Key && order == SortOrder::Ascend;
    Ok((target, if plain { SortOrder::None } else { order }))
}
