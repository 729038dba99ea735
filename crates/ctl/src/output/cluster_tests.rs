//! What Go's etcdctl 3.7.3 printed for these answers of a Go server.

use dolmen_proto::authpb::Permission;

use super::*;
use crate::output::{json_cluster, simple_cluster, table_cluster};

const CLUSTER: u64 = 12473840995364583112;
const MEMBER: u64 = 6238424141634996409;

fn header(revision: i64) -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader { cluster_id: CLUSTER, member_id: MEMBER, revision, raft_term: 2 })
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn members() -> Vec<pb::Member> {
    let learner = pb::Member {
        id: 463671880135728154,
        peer_ur_ls: texts(&["http://127.0.0.1:36008"]),
        is_learner: true,
        ..Default::default()
    };
    let started = pb::Member {
        id: MEMBER,
        name: "s1".to_owned(),
        peer_ur_ls: texts(&["http://127.0.0.1:36002"]),
        client_ur_ls: texts(&["http://127.0.0.1:36001"]),
        is_learner: false,
    };
    vec![learner, started]
}

fn shown(fill: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    fill(&mut out);
    String::from_utf8(out).expect("printed text")
}

#[test]
fn members_in_every_format() {
    assert_eq!(
        json_cluster::members(false, header(0).as_ref(), &members()[1..]).end(),
        r#"{"header":{"cluster_id":12473840995364583112,"member_id":6238424141634996409,"raft_term":2},"members":[{"ID":6238424141634996409,"name":"s1","peerURLs":["http://127.0.0.1:36002"],"clientURLs":["http://127.0.0.1:36001"]}]}"#
    );
    assert_eq!(
        json_cluster::members(true, header(0).as_ref(), &members()).end(),
        r#"{"header":{"cluster_id":"ad1bfc4bc96936c8","member_id":"569355b4486008b9","raft_term":2},"members":[{"ID":"66f4b1e4bd3dc1a","peerURLs":["http://127.0.0.1:36008"],"isLearner":true},{"ID":"569355b4486008b9","name":"s1","peerURLs":["http://127.0.0.1:36002"],"clientURLs":["http://127.0.0.1:36001"]}]}"#
    );
    let r = pb::MemberListResponse { header: header(0), members: members()[1..].to_vec() };
    assert_eq!(
        shown(|out| fields_cluster::member_list(out, false, &r)),
        "\"ClusterID\" : 12473840995364583112\n\"MemberID\" : 6238424141634996409\n\"RaftTerm\" : 2\n\
         \"ID\" : 6238424141634996409\n\"Name\" : \"s1\"\n\"PeerURL\" : \"http://127.0.0.1:36002\"\n\
         \"ClientURL\" : \"http://127.0.0.1:36001\"\n\"IsLearner\" : false\n\n"
    );
    assert_eq!(
        shown(|out| simple_cluster::rows(out, &table_cluster::member_rows(&members()))),
        "66f4b1e4bd3dc1a, unstarted, , http://127.0.0.1:36008, , true\n\
         569355b4486008b9, started, s1, http://127.0.0.1:36002, http://127.0.0.1:36001, false\n"
    );
}

#[test]
fn an_added_member_is_in_the_answer_twice() {
    let r = pb::MemberAddResponse { header: header(0), member: members().first().cloned(), members: members() };
    assert_eq!(
        json_cluster::member_add(false, &r).end(),
        r#"{"header":{"cluster_id":12473840995364583112,"member_id":6238424141634996409,"raft_term":2},"member":{"ID":463671880135728154,"peerURLs":["http://127.0.0.1:36008"],"isLearner":true},"members":[{"ID":463671880135728154,"peerURLs":["http://127.0.0.1:36008"],"isLearner":true},{"ID":6238424141634996409,"name":"s1","peerURLs":["http://127.0.0.1:36002"],"clientURLs":["http://127.0.0.1:36001"]}]}"#
    );
    assert_eq!(
        shown(|out| simple_cluster::member_add(out, &r)),
        "Member  66f4b1e4bd3dc1a added as learner to cluster ad1bfc4bc96936c8\n"
    );
}

fn status() -> EndpointStatus {
    let status = pb::StatusResponse {
        header: header(1),
        version: "3.7.3".to_owned(),
        db_size: 20480,
        leader: MEMBER,
        raft_index: 4,
        raft_term: 2,
        raft_applied_index: 4,
        db_size_in_use: 16384,
        storage_version: "3.7.0".to_owned(),
        db_size_quota: 2147483648,
        downgrade_info: Some(pb::DowngradeInfo::default()),
        ..Default::default()
    };
    EndpointStatus { endpoint: "127.0.0.1:36001".to_owned(), status }
}

#[test]
fn status_in_every_format() {
    assert_eq!(
        shown(|out| simple_cluster::rows(out, &table_cluster::status_rows(&[status()]))),
        "127.0.0.1:36001, 569355b4486008b9, 3.7.3, 3.7.0, 20 kB, 16 kB, 20%, 2.1 GB, true, false, 2, 4, 4, , , false\n"
    );
    assert_eq!(
        shown(|out| json_cluster::endpoint_status(out, &[status()])),
        r#"[{"Endpoint":"127.0.0.1:36001","Status":{"header":{"cluster_id":12473840995364583112,"member_id":6238424141634996409,"revision":1,"raft_term":2},"version":"3.7.3","dbSize":20480,"leader":6238424141634996409,"raftIndex":4,"raftTerm":2,"raftAppliedIndex":4,"dbSizeInUse":16384,"storageVersion":"3.7.0","dbSizeQuota":2147483648,"downgradeInfo":{}}}]
"#
    );
    assert_eq!(
        shown(|out| fields_cluster::endpoint_status(out, false, &[status()])),
        "\"ClusterID\" : 12473840995364583112\n\"MemberID\" : 6238424141634996409\n\"Revision\" : 1\n\"RaftTerm\" : 2\n\
         \"Version\" : \"3.7.3\"\n\"StorageVersion\" : \"3.7.0\"\n\"DBSize\" : 20480\n\"DBSizeInUse\" : 16384\n\
         \"DBSizeQuota\" : 2147483648\n\"Leader\" : 6238424141634996409\n\"IsLearner\" : false\n\"RaftIndex\" : 4\n\
         \"RaftAppliedIndex\" : 4\n\"Errors\" : []\n\"Endpoint\" : \"127.0.0.1:36001\"\n\
         \"DowngradeTargetVersion\" : \"\"\n\"DowngradeEnabled\" : false\n\n"
    );
    assert_eq!(shown(|out| json_cluster::endpoint_status(out, &[])), "null\n");
}

#[test]
fn a_store_of_no_size_is_no_division_by_zero() {
    let mut empty = status();
    empty.status.db_size = 0;
    assert_eq!(table_cluster::status_rows(&[empty])[0][6], "0%");
}

#[test]
fn hashes_and_health() {
    let hash = pb::HashKvResponse { header: header(1), hash: 1084519789, compact_revision: -1, hash_revision: 1 };
    let list = [EndpointHash { endpoint: "127.0.0.1:36001".to_owned(), hash }];
    assert_eq!(
        shown(|out| json_cluster::endpoint_hashkv(out, &list)),
        r#"[{"Endpoint":"127.0.0.1:36001","HashKV":{"header":{"cluster_id":12473840995364583112,"member_id":6238424141634996409,"revision":1,"raft_term":2},"hash":1084519789,"compact_revision":-1,"hash_revision":1}}]
"#
    );
    let ill = EndpointHealth {
        endpoint: "e".to_owned(),
        health: false,
        took: "1.5ms".to_owned(),
        error: "Active Alarm(s): NOSPACE ".to_owned(),
    };
    let well = EndpointHealth { health: true, error: String::new(), ..ill.clone() };
    assert_eq!(
        shown(|out| json_cluster::endpoint_health(out, &[ill.clone(), well.clone()])),
        r#"[{"endpoint":"e","health":false,"took":"1.5ms","error":"Active Alarm(s): NOSPACE "},{"endpoint":"e","health":true,"took":"1.5ms"}]
"#
    );
    assert_eq!(
        shown(|out| fields_cluster::endpoint_health(out, &[well])),
        "\"Endpoint\" : \"e\"\n\"Health\" : true\n\"Took\" : 1.5ms\n\"Error\" : \n\n"
    );
}

fn role() -> pb::AuthRoleGetResponse {
    let perm = |perm_type, key: &'static [u8], end: &'static [u8]| Permission {
        perm_type,
        key: key.into(),
        range_end: end.into(),
    };
    let perm = vec![perm(1, b"\0", b"\0"), perm(0, b"a", b"z"), perm(1, b"k", b""), perm(2, b"p", b"q")];
    pb::AuthRoleGetResponse { header: header(1), perm }
}

#[test]
fn a_role_in_every_format() {
    assert_eq!(
        shown(|out| simple_cluster::role_get(out, b"r", &role())),
        "Role r\nKV Read:\n\t[a, z)\n\t[p, q) (prefix p)\nKV Write:\n\t[\0, <open ended>\n\tk\n\t[p, q) (prefix p)\n"
    );
    assert_eq!(
        json_cluster::role_get(&role()).end(),
        r#"{"header":{"cluster_id":12473840995364583112,"member_id":6238424141634996409,"revision":1,"raft_term":2},"perm":[{"permType":1,"key":"AA==","range_end":"AA=="},{"key":"YQ==","range_end":"eg=="},{"permType":1,"key":"aw=="},{"permType":2,"key":"cA==","range_end":"cQ=="}]}"#
    );
    assert!(shown(|out| fields_cluster::role_get(out, false, &role())).ends_with(
        "\"PermType\" :  WRITE\n\"Key\" : \"k\"\n\"RangeEnd\" : \"\"\n\
         \"PermType\" :  READWRITE\n\"Key\" : \"p\"\n\"RangeEnd\" : \"q\"\n"
    ));
    let roles = pb::AuthRoleListResponse { header: header(1), roles: texts(&["r", "s"]) };
    assert!(shown(|out| fields_cluster::role_list(out, false, &roles)).ends_with("\"Roles\" : \"r\" \"s\"\n"));
    assert_eq!(
        shown(|out| simple_cluster::role_get(out, b"root", &pb::AuthRoleGetResponse::default())),
        "Role root\nKV Read:\n\t[, <open ended>\nKV Write:\n\t[, <open ended>\n"
    );
}

#[test]
fn revoked_ranges() {
    let table: [(&[u8], &str); 3] = [
        (b"", "Permission of key k is revoked from role r\n"),
        (b"z", "Permission of range [k, z) is revoked from role r\n"),
        (b"\0", "Permission of range [k, <open ended> is revoked from role r\n"),
    ];
    for (end, line) in table {
        assert_eq!(shown(|out| simple_cluster::role_revoke_permission(out, b"r", b"k", end)), line);
    }
}

#[test]
fn formats_that_cannot_show_an_answer_say_so() {
    let text = |format: &str, outcome: fn(&Printer) -> Result<(), Failure>| {
        let printer = Printer::new(format, false).expect("a known format");
        outcome(&printer).expect_err("not shown").text().map(str::to_owned)
    };
    type Case = (&'static str, fn(&Printer) -> Result<(), Failure>);
    let table: [Case; 6] = [
        ("fields", |p| p.member_add(&pb::MemberAddResponse::default())),
        ("table", |p| p.alarm(&pb::AlarmResponse::default())),
        ("table", |p| p.role_add(b"r", &pb::AuthRoleAddResponse::default())),
        ("protobuf", |p| p.endpoint_status(&[])),
        ("fields", |p| p.user_list(&pb::AuthUserListResponse::default())),
        ("fields", |p| p.downgrade("cancel", &pb::DowngradeResponse::default())),
    ];
    for (format, outcome) in table {
        assert_eq!(text(format, outcome), Some(format!("{format} not supported as output format")));
    }
}
