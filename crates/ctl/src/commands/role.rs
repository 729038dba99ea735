//! `role`: what the users in a role may read and write.
//!
//! None of these commands has a deadline.

use dolmen_cli::{Call, Command, Failure, Flag, words};
use dolmen_proto::authpb::{Permission, permission};
use dolmen_proto::etcdserverpb as pb;

use crate::connect::{self, Limit};
use crate::hints;
use crate::text::prefix_end;
use crate::tool::AUTHENTICATION;

/// `role`
pub static COMMAND: Command = Command {
    usage: "role <subcommand>",
    short: "Role related commands. Use `etcdctl role --help` to see subcommands",
    long: "Role related commands",
    group: AUTHENTICATION,
    commands: &[&ADD, &DELETE, &GET, &LIST, &GRANT_PERMISSION, &REVOKE_PERMISSION],
    ..Command::NEW
};

static ADD: Command = Command { usage: "add <role name>", short: "Adds a new role", run: Some(add), ..Command::NEW };

static DELETE: Command =
    Command { usage: "delete <role name>", short: "Deletes a role", run: Some(delete), ..Command::NEW };

static GET: Command =
    Command { usage: "get <role name>", short: "Gets detailed information of a role", run: Some(get), ..Command::NEW };

static LIST: Command = Command { usage: "list", short: "Lists all roles", run: Some(list), ..Command::NEW };

static GRANT_PERMISSION: Command = Command {
    usage: "grant-permission [options] <role name> <permission type> <key> [endkey]",
    short: "Grants a key to a role",
    flags: &[
        Flag::boolean("prefix", "grant a prefix permission"),
        Flag::boolean(
            "from-key",
            "grant a permission of keys that are greater than or equal to the given key using byte compare",
        ),
    ],
    run: Some(grant_permission),
    ..Command::NEW
};

static REVOKE_PERMISSION: Command = Command {
    usage: "revoke-permission <role name> <key> [endkey]",
    short: "Revokes a key from a role",
    flags: &[
        Flag::boolean("prefix", "revoke a prefix permission"),
        Flag::boolean(
            "from-key",
            "revoke a permission of keys that are greater than or equal to the given key using byte compare",
        ),
    ],
    run: Some(revoke_permission),
    ..Command::NEW
};

/// The one argument of `add`, `delete` and `get`.
fn role_name(call: &Call) -> Result<&String, Failure> {
    match call.args() {
        [name] => Ok(name),
        _ => {
            let command = call.command().name();
            Err(Failure::bad_args(format!("role {command} command requires role name as its argument")))
        }
    }
}

fn add(call: &Call) -> Result<(), Failure> {
    let name = role_name(call)?;
    connect::run(call, Limit::None, async |link| {
        let request = pb::AuthRoleAddRequest { name: name.clone() };
        let response = link.client.role_add(request).await.map_err(|e| hints::failure(&e))?;
        link.printer.role_add(&words::bytes(name), &response)
    })
}

fn delete(call: &Call) -> Result<(), Failure> {
    let role = role_name(call)?;
    connect::run(call, Limit::None, async |link| {
        let request = pb::AuthRoleDeleteRequest { role: role.clone() };
        let response = link.client.role_delete(request).await.map_err(|e| hints::failure(&e))?;
        link.printer.role_delete(&words::bytes(role), &response)
    })
}

fn get(call: &Call) -> Result<(), Failure> {
    let role = role_name(call)?;
    connect::run(call, Limit::None, async |link| {
        let request = pb::AuthRoleGetRequest { role: role.clone() };
        let response = link.client.role_get(request).await.map_err(|e| hints::failure(&e))?;
        link.printer.role_get(&words::bytes(role), &response)
    })
}

fn list(call: &Call) -> Result<(), Failure> {
    if !call.args().is_empty() {
        return Err(Failure::bad_args("role list command requires no arguments"));
    }
    connect::run(call, Limit::None, async |link| {
        let response = link.client.role_list(pb::AuthRoleListRequest {}).await.map_err(|e| hints::failure(&e))?;
        link.printer.role_list(&response)
    })
}

fn grant_permission(call: &Call) -> Result<(), Failure> {
    let [name, kind, ..] = call.args() else { return Err(grant_needs_more()) };
    if call.args().len() < 3 {
        return Err(grant_needs_more());
    }
    let perm_type = permission::Type::from_str_name(&kind.to_uppercase())
        .ok_or_else(|| Failure::bad_args(format!("invalid permission type: {kind}")))?;
    let (key, range_end) = Range::of(call, 2).resolved()?;
    let perm = Permission { perm_type: perm_type as i32, key: key.into(), range_end: range_end.into() };
    connect::run(call, Limit::None, async |link| {
        let request = pb::AuthRoleGrantPermissionRequest { name: name.clone(), perm: Some(perm) };
        let response = link.client.role_grant_permission(request).await.map_err(|e| hints::failure(&e))?;
        link.printer.role_grant_permission(&words::bytes(name), &response)
    })
}

fn grant_needs_more() -> Failure {
    Failure::bad_args("role grant command requires role name, permission type, and key [endkey] as its argument")
}

fn revoke_permission(call: &Call) -> Result<(), Failure> {
    let [role, _key, ..] = call.args() else {
        return Err(Failure::bad_args(
            "role revoke-permission command requires role name and key [endkey] as its argument",
        ));
    };
    let typed = call.arg_bytes(1);
    let (key, range_end) = Range::of(call, 1).resolved()?;
    connect::run(call, Limit::None, async |link| {
        let request = pb::AuthRoleRevokePermissionRequest {
            role: role.clone(),
            key: key.into(),
            range_end: range_end.clone().into(),
        };
        let response = link.client.role_revoke_permission(request).await.map_err(|e| hints::failure(&e))?;
        link.printer.role_revoke_permission(&words::bytes(role), &typed, &range_end, &response)
    })
}

/// The keys of a permission, as typed.
struct Range {
    key: Vec<u8>,
    end: Option<Vec<u8>>,
    prefix: bool,
    from_key: bool,
}

/// The end of a range that has none; as a key, the lowest one.
const ZERO: &[u8] = b"\0";

impl Range {
    /// The words from `at` on, and the flags.
    fn of(call: &Call, at: usize) -> Self {
        let end = (call.args().len() > at + 1).then(|| call.arg_bytes(at + 1));
        let (prefix, from_key) = (call.boolean("prefix"), call.boolean("from-key"));
        Self { key: call.arg_bytes(at), end, prefix, from_key }
    }

    /// Key and range end as the server takes them. The empty key stands for the lowest one, and an end beside it is
    /// passed over.
    fn resolved(self) -> Result<(Vec<u8>, Vec<u8>), Failure> {
        let exclusive = || Failure::bad_args("--from-key and --prefix flags are mutually exclusive");
        let Self { key, end, prefix, from_key } = self;
        if key.is_empty() {
            if prefix && from_key {
                return Err(exclusive());
            }
            return Ok((ZERO.to_vec(), if prefix || from_key { ZERO.to_vec() } else { Vec::new() }));
        }
        let end = match end {
            None if prefix && from_key => return Err(exclusive()),
            None if prefix => prefix_end(&key),
            None if from_key => ZERO.to_vec(),
            None => Vec::new(),
            Some(_) if prefix => return Err(Failure::bad_args("unexpected endkey argument with --prefix flag")),
            Some(_) if from_key => return Err(Failure::bad_args("unexpected endkey argument with --from-key flag")),
            Some(end) => end,
        };
        Ok((key, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_permissions() {
        type Case =
            (&'static str, Option<&'static str>, bool, bool, Result<(&'static str, &'static str), &'static str>);
        let exclusive = "--from-key and --prefix flags are mutually exclusive";
        let table: &[Case] = &[
            ("k", None, false, false, Ok(("k", ""))),
            ("k", Some("z"), false, false, Ok(("k", "z"))),
            ("k", None, true, false, Ok(("k", "l"))),
            ("k", None, false, true, Ok(("k", "\0"))),
            ("k", None, true, true, Err(exclusive)),
            ("k", Some("z"), true, true, Err("unexpected endkey argument with --prefix flag")),
            ("k", Some("z"), false, true, Err("unexpected endkey argument with --from-key flag")),
            ("", None, false, false, Ok(("\0", ""))),
            ("", Some("z"), false, false, Ok(("\0", ""))),
            ("", Some("z"), true, false, Ok(("\0", "\0"))),
            ("", None, false, true, Ok(("\0", "\0"))),
            ("", None, true, true, Err(exclusive)),
        ];
        for (key, end, prefix, from_key, expected) in table {
            let (key, end) = (key.as_bytes().to_vec(), end.map(|end| end.as_bytes().to_vec()));
            let found = Range { key, end, prefix: *prefix, from_key: *from_key }.resolved();
            match (found, expected) {
                (Ok((key, end)), Ok(expected)) => {
                    assert_eq!((&key[..], &end[..]), (expected.0.as_bytes(), expected.1.as_bytes()))
                }
                (found, expected) => assert_eq!(found.err().as_ref().and_then(Failure::text), expected.err()),
            }
        }
    }
}
