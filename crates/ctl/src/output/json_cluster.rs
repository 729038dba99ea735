//! `-w json` of answers about members, endpoints, alarms and authentication.

use dolmen_cli::json::{self, Object};
use dolmen_proto::authpb::Permission;
use dolmen_proto::etcdserverpb as pb;

use super::cluster::{EndpointHash, EndpointHealth, EndpointStatus};
use super::json::header_only;

/// A line with a list at the top level; Go's slices are `null` as long as nothing was appended.
fn list_line(out: &mut Vec<u8>, values: Vec<String>) {
    let text = if values.is_empty() { "null".to_owned() } else { json::list(values) };
    out.extend_from_slice(text.as_bytes());
    out.push(b'\n');
}

fn member(hex: bool, m: &pb::Member) -> Object {
    let id =
        if hex { Object::new().text("ID", &format!("{:x}", m.id)) } else { Object::new().uint_or_none("ID", m.id) };
    id.text_or_none("name", &m.name)
        .texts_or_none("peerURLs", &m.peer_ur_ls)
        .texts_or_none("clientURLs", &m.client_ur_ls)
        .boolean_or_none("isLearner", m.is_learner)
}

/// An answer's beginning. With `--hex` ids are hexadecimal strings, and both are always there.
fn beginning(hex: bool, header: Option<&pb::ResponseHeader>) -> Object {
    let Some(h) = header else {
        return if hex { Object::new().null("header") } else { Object::new() };
    };
    if !hex {
        return header_only(header);
    }
    let fields = Object::new()
        .text("cluster_id", &format!("{:x}", h.cluster_id))
        .text("member_id", &format!("{:x}", h.member_id))
        .int_or_none("revision", h.revision)
        .uint_or_none("raft_term", h.raft_term);
    Object::new().object("header", fields)
}

fn with_members(object: Object, hex: bool, members: &[pb::Member]) -> Object {
    let members = members.iter().map(|m| member(hex, m).end());
    if hex { object.list("members", members) } else { object.list_or_none("members", members) }
}

/// All but `member add`.
pub fn members(hex: bool, header: Option<&pb::ResponseHeader>, members: &[pb::Member]) -> Object {
    with_members(beginning(hex, header), hex, members)
}

pub fn member_add(hex: bool, r: &pb::MemberAddResponse) -> Object {
    let object = beginning(hex, r.header.as_ref());
    let object = match &r.member {
        Some(added) => object.object("member", member(hex, added)),
        None if hex => object.null("member"),
        None => object,
    };
    with_members(object, hex, &r.members)
}

pub fn endpoint_health(out: &mut Vec<u8>, list: &[EndpointHealth]) {
    let one = |h: &EndpointHealth| {
        Object::new()
            .text("endpoint", &h.endpoint)
            .boolean("health", h.health)
            .text("took", &h.took)
            .text_or_none("error", &h.error)
            .end()
    };
    list_line(out, list.iter().map(one).collect());
}

pub fn endpoint_status(out: &mut Vec<u8>, list: &[EndpointStatus]) {
    let one = |one: &EndpointStatus| {
        Object::new().text("Endpoint", &one.endpoint).object("Status", status(&one.status)).end()
    };
    list_line(out, list.iter().map(one).collect());
}

fn status(r: &pb::StatusResponse) -> Object {
    let object = header_only(r.header.as_ref())
        .text_or_none("version", &r.version)
        .int_or_none("dbSize", r.db_size)
        .uint_or_none("leader", r.leader)
        .uint_or_none("raftIndex", r.raft_index)
        .uint_or_none("raftTerm", r.raft_term)
        .uint_or_none("raftAppliedIndex", r.raft_applied_index)
        .texts_or_none("errors", &r.errors)
        .int_or_none("dbSizeInUse", r.db_size_in_use)
        .boolean_or_none("isLearner", r.is_learner)
        .text_or_none("storageVersion", &r.storage_version)
        .int_or_none("dbSizeQuota", r.db_size_quota);
    match &r.downgrade_info {
        Some(info) => {
            let fields = Object::new()
                .boolean_or_none("enabled", info.enabled)
                .text_or_none("targetVersion", &info.target_version);
            object.object("downgradeInfo", fields)
        }
        None => object,
    }
}

pub fn endpoint_hashkv(out: &mut Vec<u8>, list: &[EndpointHash]) {
    let one = |EndpointHash { endpoint, hash: r }: &EndpointHash| {
        let hash = header_only(r.header.as_ref())
            .uint_or_none("hash", u64::from(r.hash))
            .int_or_none("compact_revision", r.compact_revision)
            .int_or_none("hash_revision", r.hash_revision);
        Object::new().text("Endpoint", endpoint).object("HashKV", hash).end()
    };
    list_line(out, list.iter().map(one).collect());
}

pub fn downgrade(r: &pb::DowngradeResponse) -> Object {
    header_only(r.header.as_ref()).text_or_none("version", &r.version)
}

pub fn alarm(r: &pb::AlarmResponse) -> Object {
    let one = |a: &pb::AlarmMember| {
        Object::new().uint_or_none("memberID", a.member_id).int_or_none("alarm", i64::from(a.alarm)).end()
    };
    header_only(r.header.as_ref()).list_or_none("alarms", r.alarms.iter().map(one))
}

pub fn auth_status(r: &pb::AuthStatusResponse) -> Object {
    header_only(r.header.as_ref()).boolean_or_none("enabled", r.enabled).uint_or_none("authRevision", r.auth_revision)
}

pub fn role_get(r: &pb::AuthRoleGetResponse) -> Object {
    let one = |p: &Permission| {
        Object::new()
            .int_or_none("permType", i64::from(p.perm_type))
            .bytes_or_none("key", &p.key)
            .bytes_or_none("range_end", &p.range_end)
            .end()
    };
    header_only(r.header.as_ref()).list_or_none("perm", r.perm.iter().map(one))
}

/// `role list`, `user list` and `user get`: names under the proto's name of the field.
pub fn names(field: &str, header: Option<&pb::ResponseHeader>, names: &[String]) -> Object {
    header_only(header).texts_or_none(field, names)
}
