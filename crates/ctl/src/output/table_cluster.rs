//! `-w table`: members and endpoints; and the same rows for `simple`, which joins their cells by commas.

use dolmen_cli::{humanize, table};
use dolmen_proto::etcdserverpb as pb;

use super::cluster::{EndpointHash, EndpointHealth, EndpointStatus};

fn draw(out: &mut Vec<u8>, headings: &[&str], rows: &[Vec<String>]) {
    out.extend_from_slice(table::draw(headings, rows).as_bytes());
}

/// Cells of `member list`.
pub fn member_rows(members: &[pb::Member]) -> Vec<Vec<String>> {
    let row = |m: &pb::Member| {
        vec![
            format!("{:x}", m.id),
            if m.name.is_empty() { "unstarted" } else { "started" }.to_owned(),
            m.name.clone(),
            m.peer_ur_ls.join(","),
            m.client_ur_ls.join(","),
            m.is_learner.to_string(),
        ]
    };
    members.iter().map(row).collect()
}

pub fn member_list(out: &mut Vec<u8>, members: &[pb::Member]) {
    draw(out, &["ID", "Status", "Name", "Peer Addrs", "Client Addrs", "Is Learner"], &member_rows(members));
}

pub fn endpoint_health(out: &mut Vec<u8>, list: &[EndpointHealth]) {
    let row = |h: &EndpointHealth| vec![h.endpoint.clone(), h.health.to_string(), h.took.clone(), h.error.clone()];
    draw(out, &["endpoint", "health", "took", "error"], &list.iter().map(row).collect::<Vec<_>>());
}

/// Cells of `endpoint status`.
pub fn status_rows(list: &[EndpointStatus]) -> Vec<Vec<String>> {
    list.iter().map(|EndpointStatus { endpoint, status }| status_row(endpoint, status)).collect()
}

fn status_row(endpoint: &str, r: &pb::StatusResponse) -> Vec<String> {
    let member_id = r.header.as_ref().map_or(0, |h| h.member_id);
    let downgrade = r.downgrade_info.clone().unwrap_or_default();
    // Sizes come as signed numbers and are never negative; Go reads their bits.
    let size = |bytes: i64| humanize::bytes(bytes as u64);
    let used_percent = r.db_size_in_use.wrapping_mul(100).checked_div(r.db_size).unwrap_or(100);
    vec![
        endpoint.to_owned(),
        format!("{member_id:x}"),
        r.version.clone(),
        r.storage_version.clone(),
        size(r.db_size),
        size(r.db_size_in_use),
        format!("{}%", 100 - used_percent),
        size(r.db_size_quota),
        (r.leader == member_id).to_string(),
        r.is_learner.to_string(),
        r.raft_term.to_string(),
        r.raft_index.to_string(),
        r.raft_applied_index.to_string(),
        r.errors.join(", "),
        downgrade.target_version,
        downgrade.enabled.to_string(),
    ]
}

const STATUS_HEADINGS: [&str; 16] = [
    "endpoint",
    "ID",
    "version",
    "storage version",
    "db size",
    "in use",
    "percentage not in use",
    "quota",
    "is leader",
    "is learner",
    "raft term",
    "raft index",
    "raft applied index",
    "errors",
    "downgrade target version",
    "downgrade enabled",
];

pub fn endpoint_status(out: &mut Vec<u8>, list: &[EndpointStatus]) {
    draw(out, &STATUS_HEADINGS, &status_rows(list));
}

/// Cells of `endpoint hashkv`.
pub fn hash_rows(list: &[EndpointHash]) -> Vec<Vec<String>> {
    let row = |h: &EndpointHash| vec![h.endpoint.clone(), h.hash.hash.to_string(), h.hash.hash_revision.to_string()];
    list.iter().map(row).collect()
}

pub fn endpoint_hashkv(out: &mut Vec<u8>, list: &[EndpointHash]) {
    draw(out, &["endpoint", "hash", "hash_revision"], &hash_rows(list));
}
