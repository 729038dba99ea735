//! Runs the scripts in `tests/golden`: `> command`, then what it answers: the entry's answer, and indented what it
//! changed; the rest is commentary. With `UPDATE_GOLDEN=1` the answers are rewritten instead of compared.
//!
//! ```text
//! > put KEY=VALUE [lease=N] [prev] [ignore-value] [ignore-lease]
//! > del KEY [END] [prev]
//! > txn [COMPARE ...] ? [OP ; ...] : [OP ; ...]      an OP is put, del, get KEY [END] [OPTIONS], or ( txn )
//! > grant ID TTL     > revoke ID     > checkpoint ID SECONDS     > leases
//! > alarm get|raise|clear MEMBER none|nospace|corrupt
//! > member add|learn|promote|remove|update ID [URL]     > member name ID NAME URL     > members
//! > as NAME [REVISION] | as -     whose the next requests are; `as -`: nobody's
//! > auth on|off    > login NAME PREFIX    > user NAME [ROLE]    > role NAME [read|write|both KEY [END]]    > users
//! > version X.Y.Z    > compact N     > empty    > junk HEX    > term N    > chain
//! > reopen                                             commits, syncs, and opens the store again
//! ```
//! A COMPARE is `FIELD KEY [END] OPERATOR VALUE` in one word with commas: `value,a,=,1`. `END` is `\0` for an open end.

#![allow(clippy::disallowed_methods, reason = "a test has the real clock and real files")]

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_env::{Disk, Mono, SimDisk};
use dolmen_machine::{Applied, ConfChangeContext, Config, FatalError, Machine, Member, Outcome, Progress, Response};
use dolmen_mvcc::{Budget, Change, RangeOptions};
use dolmen_proto::authpb::Permission;
use dolmen_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use dolmen_proto::etcdserverpb::request_op::Request as Op;
use dolmen_proto::etcdserverpb::response_op::Response as OpAnswer;
use dolmen_proto::etcdserverpb::{
    AlarmRequest, AlarmType, AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthUserAddRequest,
    AuthUserGrantRoleRequest, CompactionRequest, Compare, DeleteRangeRequest, InternalAuthenticateRequest,
    InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest,
    RangeRequest, RequestHeader, RequestOp, TxnRequest, TxnResponse,
};
use dolmen_proto::membershippb::{Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest};
use dolmen_proto::mvccpb::KeyValue;
use dolmen_proto::raftpb::{ConfChange, ConfChangeType, Entry, EntryType};
use dolmen_revlog::Hint;
use dolmen_types::KeyRange;
use prost::Message;

struct World {
    disk: SimDisk,
    machine: Option<Machine>,
    term: u64,
    /// As headers carry it.
    who: (String, u64),
    /// What a slice of an entry may cost; none: no slices.
    budget: Option<usize>,
    /// Whether somebody waits for the answers.
    wanted: bool,
}

fn config() -> Config {
    Config::default()
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(if text == "\\0" { b"\0" } else { text.as_bytes() })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().ok().unwrap_or_else(|| panic!("no number: {word}"))
}

fn is_option(word: &str) -> bool {
    word.contains('=') || ["prev", "ignore-value", "ignore-lease", "count", "keys"].contains(&word)
}

/// KEY [END], and the options behind.
fn range<'a>(words: &'a [&'a str]) -> (Bytes, Bytes, &'a [&'a str]) {
    match words {
        [key, end, rest @ ..] if !is_option(end) => (bytes(key), bytes(end), rest),
        [key, rest @ ..] => (bytes(key), Bytes::new(), rest),
        [] => panic!("a key is missing"),
    }
}

fn put(words: &[&str]) -> PutRequest {
    let (key, value) = words[0].split_once('=').expect("KEY=VALUE");
    let mut request = PutRequest { key: bytes(key), value: bytes(value), ..Default::default() };
    for option in &words[1..] {
        match *option {
            "prev" => request.prev_kv = true,
            "ignore-value" => request.ignore_value = true,
            "ignore-lease" => request.ignore_lease = true,
            other => request.lease = number(other.strip_prefix("lease=").expect("an option")),
        }
    }
    request
}

fn delete(words: &[&str]) -> DeleteRangeRequest {
    let (key, range_end, options) = range(words);
    DeleteRangeRequest { key, range_end, prev_kv: options.contains(&"prev") }
}

fn get(words: &[&str]) -> RangeRequest {
    let (key, range_end, options) = range(words);
    let mut request = RangeRequest { key, range_end, ..Default::default() };
    for option in options {
        match option.split_once('=') {
            Some(("rev", value)) => request.revision = number(value),
            Some(("limit", value)) => request.limit = number(value),
            _ if *option == "count" => request.count_only = true,
            _ if *option == "keys" => request.keys_only = true,
            _ => panic!("no option: {option}"),
        }
    }
    request
}

fn compare(word: &str) -> Compare {
    let parts: Vec<&str> = word.split(',').collect();
    let (field, key, end, operator, value) = match parts[..] {
        [field, key, operator, value] => (field, key, "", operator, value),
        [field, key, end, operator, value] => (field, key, end, operator, value),
        _ => panic!("no compare: {word}"),
    };
    let result = match operator {
        "=" => CompareResult::Equal,
        "!=" => CompareResult::NotEqual,
        ">" => CompareResult::Greater,
        "<" => CompareResult::Less,
        _ => panic!("no operator: {operator}"),
    };
    let (target, union) = match field {
        "value" => (CompareTarget::Value, TargetUnion::Value(bytes(value))),
        "version" => (CompareTarget::Version, TargetUnion::Version(number(value))),
        "create" => (CompareTarget::Create, TargetUnion::CreateRevision(number(value))),
        "mod" => (CompareTarget::Mod, TargetUnion::ModRevision(number(value))),
        "lease" => (CompareTarget::Lease, TargetUnion::Lease(number(value))),
        _ => panic!("no field: {field}"),
    };
    Compare {
        result: result as i32,
        target: target as i32,
        key: bytes(key),
        range_end: bytes(end),
        target_union: Some(union),
    }
}

/// Takes a txn off the front of `words`, up to the end or a closing parenthesis.
fn txn(words: &mut &[&str]) -> TxnRequest {
    let mut request = TxnRequest::default();
    while let Some((word, rest)) = words.split_first() {
        *words = rest;
        if *word == "?" {
            break;
        }
        request.compare.push(compare(word));
    }
    request.success = operations(words);
    if words.first() == Some(&":") {
        *words = &words[1..];
        request.failure = operations(words);
    }
    request
}

fn operations(words: &mut &[&str]) -> Vec<RequestOp> {
    let mut operations = Vec::new();
    while let Some(first) = words.first().filter(|word| ![":", ")"].contains(*word)) {
        let request = match *first {
            ";" => {
                *words = &words[1..];
                continue;
            }
            "(" => {
                *words = &words[1..];
                let inner = txn(words);
                assert_eq!(words.first(), Some(&")"), "a txn is closed");
                *words = &words[1..];
                Op::RequestTxn(inner)
            }
            verb => {
                let end = words.iter().position(|word| [";", ":", ")"].contains(word)).unwrap_or(words.len());
                let (operation, rest) = words.split_at(end);
                *words = rest;
                match verb {
                    "put" => Op::RequestPut(put(&operation[1..])),
                    "del" => Op::RequestDeleteRange(delete(&operation[1..])),
                    "get" => Op::RequestRange(get(&operation[1..])),
                    _ => panic!("no operation: {verb}"),
                }
            }
        };
        operations.push(RequestOp { request: Some(request) });
    }
    operations
}

fn show_kv(kv: &KeyValue) -> String {
    let lease = if kv.lease == 0 { String::new() } else { format!(" lease={}", kv.lease) };
    let (key, value) = (text(&kv.key), text(&kv.value));
    format!("{key}={value}@{}.{}v{}{lease}", kv.create_revision, kv.mod_revision, kv.version)
}

fn show_kvs<'a>(kvs: impl IntoIterator<Item = &'a KeyValue>) -> String {
    kvs.into_iter().map(|kv| format!(" {}", show_kv(kv))).collect()
}

fn show_txn(response: &TxnResponse) -> String {
    let mut out = if response.succeeded { "yes".to_owned() } else { "no".to_owned() };
    for response in &response.responses {
        out += &match response.response.as_ref() {
            Some(OpAnswer::ResponsePut(put)) => format!(" | put{}", show_kvs(&put.prev_kv)),
            Some(OpAnswer::ResponseDeleteRange(delete)) => {
                format!(" | deleted {}{}", delete.deleted, show_kvs(&delete.prev_kvs))
            }
            Some(OpAnswer::ResponseRange(range)) => {
                let revision = range.header.as_ref().map_or(0, |header| header.revision);
                format!(" | {} of rev={revision}{}", range.count, show_kvs(&range.kvs))
            }
            Some(OpAnswer::ResponseTxn(txn)) => format!(" | ( {} )", show_txn(txn)),
            None => " | nothing".to_owned(),
        };
    }
    out
}

fn show_answer(response: &Response) -> String {
    let (header, what) = match response {
        Response::Put(put) => (&put.header, format!("put{}", show_kvs(&put.prev_kv))),
        Response::DeleteRange(delete) => {
            (&delete.header, format!("deleted {}{}", delete.deleted, show_kvs(&delete.prev_kvs)))
        }
        Response::Txn(txn) => (&txn.header, show_txn(txn)),
        Response::Compaction(compaction) => (&compaction.header, "compacted".to_owned()),
        Response::LeaseGrant(grant) => (&grant.header, format!("lease {} for {} s", grant.id, grant.ttl)),
        Response::LeaseRevoke(revoke) => (&revoke.header, "revoked".to_owned()),
        Response::Alarm(alarm) => {
            let show = |alarm: &dolmen_proto::etcdserverpb::AlarmMember| {
                format!(" {}:{}", alarm.member_id, alarm.alarm().as_str_name())
            };
            (&alarm.header, format!("alarms{}", alarm.alarms.iter().map(show).collect::<String>()))
        }
        Response::Users(dolmen_auth::Outcome::Done) => return "users changed".to_owned(),
        Response::Users(dolmen_auth::Outcome::Token(token)) => return format!("token {token}"),
        Response::Empty => return "done".to_owned(),
    };
    format!("rev={} {what}", header.as_ref().expect("every answer has a header").revision)
}

fn show_change(change: &Change) -> String {
    let mut out = String::new();
    let kv = KeyValue::decode(change.payload.clone()).expect("a payload decodes");
    assert_eq!(kv.key, change.key);
    if change.tombstone {
        write!(out, "  del {}@{}.{}", text(&change.key), change.rev.main, change.rev.sub).expect("a string takes all");
    } else {
        write!(out, "  put {} sub={}", show_kv(&kv), change.rev.sub).expect("a string takes all");
    }
    if change.prev_mod != 0 {
        write!(out, " was@{}", change.prev_mod).expect("a string takes all");
    }
    if change.prev_lease != 0 {
        write!(out, " was-lease={}", change.prev_lease).expect("a string takes all");
    }
    out
}

impl World {
    fn new(budget: Option<usize>, wanted: bool) -> Self {
        let who = Default::default();
        let mut world = Self { disk: SimDisk::new(1), machine: None, term: 1, who, budget, wanted };
        world.open();
        world
    }

    fn open(&mut self) {
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        self.machine = Some(Machine::open(disk, Path::new("/member/store"), config()).expect("the store opens"));
    }

    fn machine(&mut self) -> &mut Machine {
        self.machine.as_mut().expect("open")
    }

    fn reopen(&mut self) {
        let log = self.machine().store_mut().log();
        while let Some(job) = log.next_job(Mono(0), Hint::Sync) {
            log.finish_job(job.run().expect("the disk works"));
        }
        self.machine = None;
        self.open();
    }

    fn entry(&mut self, kind: EntryType, data: Vec<u8>) -> String {
        let (index, term) = (self.machine().applied() + 1, self.term);
        let entry = Entry { r#type: kind as i32, term, index, data: data.into() };
        let (applied, earlier) = match self.apply(&entry) {
            Ok(applied) => applied,
            Err(error) => return format!("fatal: {error}\n"),
        };
        assert_eq!(applied.index, index);
        self.machine().commit();
        match applied.outcome {
            Outcome::Empty => "nothing\n".to_owned(),
            Outcome::Request { id, result, changes, sliced } => {
                assert!(id == index + 100 && (sliced || earlier.is_empty()));
                let mut out = match result {
                    Ok(response) => show_answer(&response),
                    Err(error) => format!("error: {error}"),
                };
                out.push('\n');
                for change in earlier.iter().chain(&changes) {
                    out += &show_change(change);
                    out.push('\n');
                }
                out
            }
            Outcome::ConfChange { id, change, result } => {
                assert_eq!(id, index + 100);
                match result {
                    Ok(()) => format!("{} {}\n", change.r#type().as_str_name(), change.node_id),
                    Err(error) => format!("error: {error}, raft is told of node {}\n", change.node_id),
                }
            }
        }
    }

    /// Applies an entry, in slices if there is a budget: whatever it has done by then, nothing is to be seen of it. Returns
    /// the changes of all slices but the last as well.
    fn apply(&mut self, entry: &Entry) -> Result<(Applied, Vec<Change>), FatalError> {
        let (budget, wanted) = (self.budget.map_or(Budget::unlimited(), Budget::new), self.wanted);
        let machine = self.machine();
        let everything = KeyRange::From(Bytes::new());
        let seen = |machine: &Machine| {
            let all = machine.store().reader().range(&everything, &RangeOptions::default()).expect("readable");
            (all, machine.applied(), machine.alarms(0), machine.membership().clone())
        };
        let before = seen(machine);
        machine.begin(entry, Mono(0));
        let mut earlier = Vec::new();
        loop {
            match machine.step(&mut budget.clone(), &|_| wanted)? {
                Progress::Done(applied) => return Ok((applied, earlier)),
                Progress::More { changes } => earlier.extend(changes),
            }
            assert_eq!(seen(machine), before);
        }
    }

    fn request(&mut self, mut request: InternalRaftRequest) -> String {
        let id = self.machine().applied() + 101;
        request.header = Some(RequestHeader { id, username: self.who.0.clone(), auth_revision: self.who.1 });
        self.entry(EntryType::EntryNormal, request.encode_to_vec())
    }

    fn member(&mut self, words: &[&str]) -> String {
        let id = number(words[1]);
        if words[0] == "name" {
            let attributes = Attributes { name: words[2].into(), client_urls: vec![words[3].into()] };
            let set = ClusterMemberAttrSetRequest { member_id: id, member_attributes: Some(attributes) };
            return self.request(InternalRaftRequest { cluster_member_attr_set: Some(set), ..Default::default() });
        }
        let kind = match words[0] {
            "add" | "promote" => ConfChangeType::ConfChangeAddNode,
            "learn" => ConfChangeType::ConfChangeAddLearnerNode,
            "remove" => ConfChangeType::ConfChangeRemoveNode,
            "update" => ConfChangeType::ConfChangeUpdateNode,
            other => panic!("no change: {other}"),
        };
        let peer_urls = words[2..].iter().map(|url| (*url).to_owned()).collect();
        let context = ConfChangeContext {
            member: Member { id, peer_urls, is_learner: words[0] == "learn", ..Member::default() },
            is_promote: words[0] == "promote",
        };
        let change_id = self.machine().applied() + 101;
        let change = ConfChange { id: change_id, r#type: kind as i32, node_id: id, context: context.to_json() };
        self.entry(EntryType::EntryConfChange, change.encode_to_vec())
    }

    fn alarm(&mut self, words: &[&str]) -> String {
        let action = ["get", "raise", "clear"].iter().position(|action| *action == words[0]).expect("an action");
        let alarm = match words[2] {
            "none" => AlarmType::None,
            "nospace" => AlarmType::Nospace,
            "corrupt" => AlarmType::Corrupt,
            other => panic!("no alarm: {other}"),
        };
        let alarm = AlarmRequest { action: action as i32, member_id: number(words[1]), alarm: alarm as i32 };
        self.request(InternalRaftRequest { alarm: Some(alarm), ..Default::default() })
    }

    fn run(&mut self, command: &str) -> String {
        let words: Vec<&str> = command.split_whitespace().collect();
        let (verb, words) = words.split_first().expect("a command");
        let mut request = InternalRaftRequest::default();
        match *verb {
            "put" => request.put = Some(put(words)),
            "del" => request.delete_range = Some(delete(words)),
            "txn" => {
                let mut rest = words;
                request.txn = Some(txn(&mut rest));
                assert!(rest.is_empty(), "left over: {rest:?}");
            }
            "grant" => {
                request.lease_grant = Some(LeaseGrantRequest { id: number(words[0]), ttl: number(words[1]) });
            }
            "revoke" => request.lease_revoke = Some(LeaseRevokeRequest { id: number(words[0]) }),
            "checkpoint" => {
                let checkpoint = LeaseCheckpoint { id: number(words[0]), remaining_ttl: number(words[1]) };
                request.lease_checkpoint = Some(LeaseCheckpointRequest { checkpoints: vec![checkpoint] });
            }
            "compact" => {
                request.compaction = Some(CompactionRequest { revision: number(words[0]), physical: false });
            }
            "version" => request.cluster_version_set = Some(ClusterVersionSetRequest { ver: words[0].into() }),
            "as" => {
                let revision = self.machine().auth().revision();
                self.who = match words {
                    ["-"] => Default::default(),
                    [name] => ((*name).into(), revision),
                    [name, revision] => ((*name).into(), number(revision)),
                    _ => panic!("nobody: {words:?}"),
                };
                return String::new();
            }
            "auth" if words == ["on"] => request.auth_enable = Some(Default::default()),
            "auth" => request.auth_disable = Some(Default::default()),
            "login" => {
                request.authenticate = Some(InternalAuthenticateRequest {
                    name: words[0].into(),
                    simple_token: words[1].into(),
                    ..Default::default()
                });
            }
            "user" => match words {
                [name] => {
                    let hashed_password = "aGFzaA==".into();
                    let add = AuthUserAddRequest { name: (*name).into(), hashed_password, ..Default::default() };
                    request.auth_user_add = Some(add);
                }
                [name, role] => {
                    let grant = AuthUserGrantRoleRequest { user: (*name).into(), role: (*role).into() };
                    request.auth_user_grant_role = Some(grant);
                }
                _ => panic!("no user: {words:?}"),
            },
            "role" => match words {
                [name] => request.auth_role_add = Some(AuthRoleAddRequest { name: (*name).into() }),
                [name, kind, key, end @ ..] => {
                    let kind = ["read", "write", "both"].iter().position(|known| known == kind).expect("a kind");
                    let range_end = end.first().map(|end| bytes(end)).unwrap_or_default();
                    let perm = Permission { perm_type: kind as i32, key: bytes(key), range_end };
                    let name = (*name).into();
                    request.auth_role_grant_permission =
                        Some(AuthRoleGrantPermissionRequest { name, perm: Some(perm) });
                }
                _ => panic!("no role: {words:?}"),
            },
            "alarm" => return self.alarm(words),
            "member" => return self.member(words),
            "empty" => return self.entry(EntryType::EntryNormal, Vec::new()),
            "junk" => {
                let byte = |at| u8::from_str_radix(&words[0][at..at + 2], 16).expect("hex");
                return self.entry(EntryType::EntryNormal, (0..words[0].len()).step_by(2).map(byte).collect());
            }
            "term" => {
                self.term = number(words[0]);
                return String::new();
            }
            "reopen" => {
                self.reopen();
                return String::new();
            }
            _ => return self.show(verb),
        }
        self.request(request)
    }

    fn show(&mut self, verb: &str) -> String {
        let machine = self.machine();
        match verb {
            "chain" => {
                let chain = machine.chain();
                format!(
                    "index {} term {} since {} value {:08x}\n",
                    machine.applied(),
                    machine.applied_term(),
                    chain.from,
                    chain.value
                )
            }
            "users" => {
                let auth = machine.auth();
                let mut out = format!("on={} revision={}\n", auth.is_enabled(), auth.revision());
                for user in auth.users() {
                    let roles = auth.roles_of(&user).expect("listed");
                    writeln!(out, "{user} {roles:?}").expect("a string takes all");
                }
                out
            }
            "leases" => {
                let mut out = String::new();
                let mut ids = machine.lessor().list();
                ids.sort_unstable();
                for id in ids {
                    let record = machine.lessor().record(id).expect("listed");
                    let keys = machine.lessor().keys(id).expect("listed");
                    let keys: String = keys.map(|key| format!(" {}", text(key))).collect();
                    writeln!(out, "{id} ttl={} remaining={}{keys}", record.ttl, record.remaining_ttl)
                        .expect("a string takes all");
                }
                out
            }
            "members" => {
                let membership = machine.membership();
                let mut out = String::new();
                for member in membership.members.values() {
                    writeln!(out, "{}", serde_json::to_string(member).expect("plain")).expect("a string takes all");
                }
                writeln!(
                    out,
                    "removed {:?} cluster {:?} storage {:?}",
                    membership.removed, membership.cluster_version, membership.storage_version
                )
                .expect("a string takes all");
                out
            }
            _ => panic!("no command: {verb}"),
        }
    }
}

/// A script with its answers as they are now. A blank line or a comment ends a command's answers.
fn rerun(script: &str, budget: Option<usize>, wanted: bool) -> String {
    let mut world = World::new(budget, wanted);
    let mut out = String::new();
    let mut answers = false;
    for line in script.lines() {
        if let Some(command) = line.strip_prefix("> ") {
            writeln!(out, "{line}").expect("a string takes all");
            out += &world.run(command);
            answers = true;
        } else if line.is_empty() || line.starts_with('#') {
            writeln!(out, "{line}").expect("a string takes all");
            answers = false;
        } else {
            assert!(answers, "an answer without a command: {line}");
        }
    }
    out
}

#[test]
fn scripts_answer_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).expect("scripts").map(|entry| entry.expect("a script").path()).collect();
    paths.sort();
    assert!(paths.len() > 3, "scripts are missing");
    for path in paths {
        let script = std::fs::read_to_string(&path).expect("a script reads");
        let now = rerun(&script, None, true);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &now).expect("a script can be written");
        } else {
            assert_eq!(now, script, "{}", path.display());
        }
        for budget in [1, 100, 400] {
            assert_eq!(rerun(&script, Some(budget), true), now, "{} in slices of {budget}", path.display());
        }
        // Who waits for no answer changes the same and refuses the same.
        let effects = |answers: &str| {
            let kept = |line: &&str| [">", "  ", "error:", "index"].iter().any(|start| line.starts_with(start));
            answers.lines().filter(kept).map(|line| format!("{line}\n")).collect::<String>()
        };
        for budget in [None, Some(1)] {
            assert_eq!(effects(&rerun(&script, budget, false)), effects(&now), "{} unheard", path.display());
        }
    }
}
