//! The default format of answers about members, endpoints, alarms and authentication: sentences and rows.

use std::io::Write as _;

use dolmen_cli::{Failure, complain};
use dolmen_proto::authpb::{Permission, permission};
use dolmen_proto::etcdserverpb as pb;

use super::cluster::EndpointHealth;
use super::simple::line;
use crate::text;

/// Rows of a table, their cells joined by `, `.
pub fn rows(out: &mut Vec<u8>, rows: &[Vec<String>]) {
    for row in rows {
        line!(out, "{}", row.join(", "));
    }
}

/// One line made of these pieces; names are written as they were typed.
pub fn sentence(out: &mut Vec<u8>, pieces: &[&[u8]]) {
    for piece in pieces {
        out.extend_from_slice(piece);
    }
    out.push(b'\n');
}

/// A name a line.
pub fn names(out: &mut Vec<u8>, names: &[String]) {
    for name in names {
        line!(out, "{name}");
    }
}

fn cluster_id(header: Option<&pb::ResponseHeader>) -> u64 {
    header.map_or(0, |h| h.cluster_id)
}

pub fn member_add(out: &mut Vec<u8>, r: &pb::MemberAddResponse) {
    let (id, learner) = r.member.as_ref().map_or((0, false), |m| (m.id, m.is_learner));
    let role = if learner { " as learner " } else { " " };
    line!(out, "Member {id:16x} added{role}to cluster {:16x}", cluster_id(r.header.as_ref()));
}

/// `what`: `removed from`, `updated in`, `promoted in`.
pub fn member_changed(id: u64, what: &str, header: Option<&pb::ResponseHeader>) -> String {
    format!("Member {id:16x} {what} cluster {:16x}\n", cluster_id(header))
}

/// Healthy endpoints on stdout, the others on stderr, in this order.
pub fn endpoint_health(list: &[EndpointHealth]) -> Result<(), Failure> {
    for EndpointHealth { endpoint, took, error, .. } in list {
        if error.is_empty() {
            super::say(format_args!("{endpoint} is healthy: successfully committed proposal: took = {took}"))?;
        } else {
            complain(format!("{endpoint} is unhealthy: failed to commit proposal: {error}\n"));
        }
    }
    Ok(())
}

pub fn move_leader(out: &mut Vec<u8>, from: u64, to: u64) {
    line!(out, "Leadership transferred from {from:x} to {to:x}");
}

pub fn downgrade(out: &mut Vec<u8>, verb: &str, r: &pb::DowngradeResponse) {
    line!(out, "Downgrade {verb} success, cluster version {}", r.version);
}

/// The name of an alarm; a number that etcd has no name for stays a number.
pub fn alarm_type(alarm: i32) -> String {
    match pb::AlarmType::try_from(alarm) {
        Ok(alarm) => alarm.as_str_name().to_owned(),
        Err(_) => alarm.to_string(),
    }
}

/// One alarm a line, in protobuf's text form: fields that are zero are left out. (Go's library puts one space or two
/// between the fields, at the whim of a build; the released tools have one.)
pub fn alarms(out: &mut Vec<u8>, alarms: &[pb::AlarmMember]) {
    for pb::AlarmMember { member_id, alarm } in alarms {
        let mut fields = Vec::new();
        if *member_id != 0 {
            fields.push(format!("memberID:{member_id}"));
        }
        if *alarm != 0 {
            fields.push(format!("alarm:{}", alarm_type(*alarm)));
        }
        line!(out, "{}", fields.join(" "));
    }
}

pub fn auth_status(out: &mut Vec<u8>, r: &pb::AuthStatusResponse) {
    line!(out, "Authentication Status: {}", r.enabled);
    line!(out, "AuthRevision: {}", r.auth_revision);
}

/// The role that may do everything; a server lists no permissions of it.
const ROOT_ROLE: &[u8] = b"root";

pub fn role_get(out: &mut Vec<u8>, role: &[u8], r: &pb::AuthRoleGetResponse) {
    sentence(out, &[b"Role ", role]);
    if role == ROOT_ROLE && r.perm.is_empty() {
        line!(out, "KV Read:\n\t[, <open ended>\nKV Write:\n\t[, <open ended>");
        return;
    }
    for (title, kind) in [("KV Read:", permission::Type::Read), ("KV Write:", permission::Type::Write)] {
        line!(out, "{title}");
        for perm in &r.perm {
            if perm.perm_type == kind as i32 || perm.perm_type == permission::Type::Readwrite as i32 {
                permission_line(out, perm);
            }
        }
    }
}

fn permission_line(out: &mut Vec<u8>, perm: &Permission) {
    let (key, end) = (&perm.key[..], &perm.range_end[..]);
    if end.is_empty() {
        sentence(out, &[b"\t", key]);
        return;
    }
    let prefix: &[&[u8]] =
        if !key.is_empty() && text::prefix_end(key) == end { &[b" (prefix ", key, b")"] } else { &[] };
    let range: &[&[u8]] =
        if end == b"\0" { &[b"\t[", key, b", <open ended>"] } else { &[b"\t[", key, b", ", end, b")"] };
    sentence(out, &[range, prefix].concat());
}

/// `key`: as typed; `end`: as sent.
pub fn role_revoke_permission(out: &mut Vec<u8>, role: &[u8], key: &[u8], end: &[u8]) {
    match end {
        b"" => sentence(out, &[b"Permission of key ", key, b" is revoked from role ", role]),
        b"\0" => sentence(out, &[b"Permission of range [", key, b", <open ended> is revoked from role ", role]),
        end => sentence(out, &[b"Permission of range [", key, b", ", end, b") is revoked from role ", role]),
    }
}

pub fn user_get(out: &mut Vec<u8>, user: &[u8], r: &pb::AuthUserGetResponse) {
    sentence(out, &[b"User: ", user]);
    let _ = write!(out, "Roles:");
    for role in &r.roles {
        let _ = write!(out, " {role}");
    }
    out.push(b'\n');
}
