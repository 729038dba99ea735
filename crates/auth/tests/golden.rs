//! Runs the scripts in `tests/golden`: `> command`, then what it answers; the rest is commentary. With
//! `UPDATE_GOLDEN=1` the answers are rewritten instead of compared. After each change the state is loaded from its own records
//! and has to be the same.
//!
//! ```text
//! > as NAME [REVISION]          whose the next changes are, at the present auth revision unless said; `as -`: nobody's
//! > enable | disable            > login NAME PREFIX
//! > user add NAME [none]        > user delete NAME      > user passwd NAME     > user get NAME     > user list
//! > user grant NAME ROLE        > user revoke NAME ROLE
//! > role add NAME               > role delete NAME      > role get NAME        > role list
//! > role grant NAME TYPE KEY [END]                      > role revoke NAME KEY [END]
//! > lease ID KEY...             > token TOKEN
//! > may read|write KEY [END]    > may put KEY [lease=ID] [prev]    > may delete KEY [END] [prev]   > may admin
//! > may revoke ID               > may list ID           > may user NAME        > may role NAME
//! ```
//! `END` is `\0` for an open end; a key `-` is the empty one.

#![allow(clippy::disallowed_methods, reason = "a test has real files")]

use std::collections::BTreeMap;
use std::fmt::Write;

use bytes::Bytes;
use dolmen_auth::{Access, Auth, AuthError, Change, Identity, Keys, Outcome, Record, RecordTable, Tokens};
use dolmen_env::Mono;
use dolmen_proto::authpb;
use dolmen_proto::authpb::permission::Type;
use dolmen_proto::etcdserverpb as pb;
use dolmen_types::LeaseId;

#[derive(Default)]
struct Leases(BTreeMap<LeaseId, Vec<Bytes>>);

impl Keys for Leases {
    fn all(&self, lease: LeaseId, look: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.get(&lease).is_none_or(|keys| keys.iter().all(|key| look(key)))
    }
}

struct World {
    auth: Auth,
    tokens: Tokens,
    who: Option<Identity>,
    /// By table and key, as the machine would store them.
    tables: BTreeMap<(u8, Bytes), Bytes>,
    leases: Leases,
    index: u64,
}

fn key(text: &str) -> Bytes {
    match text {
        "-" => Bytes::new(),
        "\\0" => Bytes::from_static(&[0]),
        _ => Bytes::copy_from_slice(text.as_bytes()),
    }
}

fn table(table: RecordTable) -> u8 {
    match table {
        RecordTable::Auth => 0,
        RecordTable::Users => 1,
        RecordTable::Roles => 2,
    }
}

impl World {
    fn new() -> Self {
        Self {
            auth: Auth::default(),
            tokens: Tokens::new(300),
            who: None,
            tables: BTreeMap::new(),
            leases: Leases::default(),
            index: 0,
        }
    }

    fn change(&mut self, change: Change) -> String {
        self.index += 1;
        let before = self.auth.revision();
        let mut records = Vec::new();
        let outcome = self.auth.apply(self.who.as_ref(), change, self.index, Mono(0), &self.tokens, &mut records);
        assert!(outcome.is_ok() || records.is_empty(), "a refused change changes nothing");
        for Record { table: place, key, value } in records {
            match value {
                Some(value) => self.tables.insert((table(place), key), value),
                None => self.tables.remove(&(table(place), key)),
            };
        }
        self.reload();
        match outcome {
            Ok(Outcome::Done) if self.auth.revision() == before => "ok".into(),
            Ok(Outcome::Done) => format!("ok revision={}", self.auth.revision()),
            Ok(Outcome::Token(token)) => format!("token {token}"),
            Err(refused) => refused.to_string(),
        }
    }

    /// What is stored has to be the whole state.
    fn reload(&mut self) {
        let of = |wanted: u8| self.tables.iter().filter(move |((table, _), _)| *table == wanted);
        let loaded = Auth::load(
            of(0).map(|((_, key), value)| (key, value)),
            of(1).map(|(_, value)| value),
            of(2).map(|(_, value)| value),
        )
        .expect("what was written can be read");
        assert_eq!(format!("{loaded:?}"), format!("{:?}", self.auth));
        self.auth = loaded;
    }

    fn run(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let text = |at: usize| words.get(at).map(|word| (*word).to_owned()).unwrap_or_default();
        let told = |result: Result<(), AuthError>| match result {
            Ok(()) => "yes".to_owned(),
            Err(refused) => format!("no: {refused}"),
        };
        let list = |names: Result<Vec<String>, AuthError>| match names {
            Ok(names) => format!("[{}]", names.join(" ")),
            Err(refused) => refused.to_string(),
        };
        let who = self.who.clone();
        let who = who.as_ref();
        match words.as_slice() {
            ["as", "-"] => self.who = None,
            ["as", name] => {
                self.who = Some(Identity { user: (*name).to_owned(), revision: self.auth.revision() });
            }
            ["as", name, revision] => {
                let revision = revision.parse().expect("a number");
                self.who = Some(Identity { user: (*name).to_owned(), revision });
            }
            ["enable"] => return self.change(Change::Enable),
            ["disable"] => return self.change(Change::Disable),
            ["login", name, prefix] => {
                return self.change(Change::Authenticate(pb::InternalAuthenticateRequest {
                    name: (*name).to_owned(),
                    password: String::new(),
                    simple_token: prefix.trim_matches('-').to_owned(),
                }));
            }
            ["user", "add", name, rest @ ..] => {
                return self.change(Change::UserAdd(pb::AuthUserAddRequest {
                    name: name.trim_matches('-').to_owned(),
                    hashed_password: "aGFzaA==".into(),
                    options: Some(authpb::UserAddOptions { no_password: rest == ["none"] }),
                    ..Default::default()
                }));
            }
            ["user", "delete", name] => {
                return self.change(Change::UserDelete(pb::AuthUserDeleteRequest { name: (*name).to_owned() }));
            }
            ["user", "passwd", name] => {
                return self.change(Change::UserChangePassword(pb::AuthUserChangePasswordRequest {
                    name: (*name).to_owned(),
                    password: String::new(),
                    hashed_password: "b3RoZXI=".into(),
                }));
            }
            ["user", "get", name] => return list(self.auth.roles_of(name)),
            ["user", "list"] => return list(Ok(self.auth.users())),
            ["user", "grant", _, _] => {
                let request = pb::AuthUserGrantRoleRequest { user: text(2), role: text(3) };
                return self.change(Change::UserGrantRole(request));
            }
            ["user", "revoke", _, _] => {
                let request = pb::AuthUserRevokeRoleRequest { name: text(2), role: text(3) };
                return self.change(Change::UserRevokeRole(request));
            }
            ["role", "add", name] => {
                let name = name.trim_matches('-').to_owned();
                return self.change(Change::RoleAdd(pb::AuthRoleAddRequest { name }));
            }
            ["role", "delete", name] => {
                return self.change(Change::RoleDelete(pb::AuthRoleDeleteRequest { role: (*name).to_owned() }));
            }
            ["role", "list"] => return list(Ok(self.auth.roles())),
            ["role", "get", name] => {
                let mut out = String::new();
                match self.auth.permissions_of(name) {
                    Err(refused) => return refused.to_string(),
                    Ok(permissions) => {
                        for held in permissions {
                            let kind = held.perm_type().as_str_name();
                            write!(out, "{kind} {:?} {:?}; ", held.key, held.range_end).expect("a string takes all");
                        }
                    }
                }
                return format!("[{}]", out.trim_end_matches("; "));
            }
            ["role", "grant", name] => {
                let request = pb::AuthRoleGrantPermissionRequest { name: (*name).to_owned(), perm: None };
                return self.change(Change::RoleGrantPermission(request));
            }
            ["role", "grant", name, kind, rest @ ..] => {
                let perm_type = Type::from_str_name(kind).expect("a type of permission") as i32;
                let (start, end) = (key(rest[0]), rest.get(1).map(|end| key(end)).unwrap_or_default());
                return self.change(Change::RoleGrantPermission(pb::AuthRoleGrantPermissionRequest {
                    name: (*name).to_owned(),
                    perm: Some(authpb::Permission { perm_type, key: start, range_end: end }),
                }));
            }
            ["role", "revoke", name, rest @ ..] => {
                return self.change(Change::RoleRevokePermission(pb::AuthRoleRevokePermissionRequest {
                    role: (*name).to_owned(),
                    key: key(rest[0]),
                    range_end: rest.get(1).map(|end| key(end)).unwrap_or_default(),
                }));
            }
            ["lease", id, keys @ ..] => {
                let keys = keys.iter().map(|name| key(name)).collect();
                self.leases.0.insert(id.parse().expect("a number"), keys);
            }
            ["token", token] => {
                return self.tokens.user_of(token, Mono(0)).map_or("unknown".into(), |user| user.to_string());
            }
            ["may", "admin"] => return told(self.auth.check_admin(who)),
            ["may", "user", name] => return told(self.auth.check_user_get(who, name)),
            ["may", "role", name] => return told(self.auth.check_role_get(who, name)),
            ["may", verb @ ("read" | "write"), rest @ ..] => {
                let access = if *verb == "read" { Access::Read } else { Access::Write };
                let end = rest.get(1).map(|end| key(end)).unwrap_or_default();
                return told(self.auth.check_range(who, &key(rest[0]), &end, access));
            }
            ["may", verb @ ("revoke" | "list"), id] => {
                let access = if *verb == "list" { Access::Read } else { Access::Write };
                let id = id.parse().expect("a number");
                return told(self.auth.check_lease(who, id, access, &self.leases));
            }
            ["may", "put", name, rest @ ..] => {
                let lease = rest.iter().find_map(|word| word.strip_prefix("lease="));
                let put = pb::PutRequest {
                    key: key(name),
                    lease: lease.map_or(0, |id| id.parse().expect("a number")),
                    prev_kv: rest.contains(&"prev"),
                    ..Default::default()
                };
                let alone = self.auth.check_put(who, &put, &self.leases);
                // Deep inside a transaction the answer is the same, in either branch.
                let mut txn = pb::TxnRequest {
                    failure: vec![pb::RequestOp { request: Some(pb::request_op::Request::RequestPut(put)) }],
                    ..Default::default()
                };
                for _ in 0..3 {
                    let inner = Some(pb::request_op::Request::RequestTxn(txn));
                    txn = pb::TxnRequest { success: vec![pb::RequestOp { request: inner }], ..Default::default() };
                }
                assert_eq!(self.auth.check_txn(who, &txn, &self.leases), alone);
                return told(alone);
            }
            ["may", "delete", name, rest @ ..] => {
                let end = rest.first().filter(|word| **word != "prev").map(|end| key(end)).unwrap_or_default();
                let delete = pb::DeleteRangeRequest { key: key(name), range_end: end, prev_kv: rest.contains(&"prev") };
                return told(self.auth.check_delete(who, &delete));
            }
            _ => panic!("no command: {line}"),
        }
        String::new()
    }
}

#[test]
fn scripts() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let mut paths: Vec<_> =
        std::fs::read_dir(dir).expect("scripts").map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("a script");
        let (mut world, mut out) = (World::new(), String::new());
        let mut answered = false;
        for line in text.lines() {
            // An answer stands right below its command, and is the only line that is replaced.
            if std::mem::take(&mut answered) && line.starts_with("  ") {
                continue;
            }
            out.push_str(line);
            out.push('\n');
            if let Some(command) = line.strip_prefix("> ") {
                let answer = world.run(command);
                if !answer.is_empty() {
                    writeln!(out, "  {answer}").expect("a string takes all");
                }
                answered = true;
            }
        }
        if update {
            std::fs::write(&path, out).expect("written");
        } else {
            assert!(out == text, "{}: answers differ; they are now\n{out}", path.display());
        }
    }
}
