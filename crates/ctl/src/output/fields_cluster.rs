//! `-w fields` of answers about members, endpoints, alarms and authentication.

use dolmen_cli::golang::{quote, quote_bytes};
use dolmen_proto::authpb::permission;
use dolmen_proto::etcdserverpb as pb;

use super::cluster::{EndpointHash, EndpointHealth, EndpointStatus};
use super::fields::header;
use super::simple::line;
use super::simple_cluster::alarm_type;

fn id(out: &mut Vec<u8>, hex: bool, name: &str, id: u64) {
    if hex {
        line!(out, "\"{name}\" : {id:x}");
    } else {
        line!(out, "\"{name}\" : {id}");
    }
}

pub fn member_list(out: &mut Vec<u8>, hex: bool, r: &pb::MemberListResponse) {
    header(out, hex, r.header.as_ref());
    for m in &r.members {
        id(out, hex, "ID", m.id);
        line!(out, "\"Name\" : {}", quote(&m.name));
        for url in &m.peer_ur_ls {
            line!(out, "\"PeerURL\" : {}", quote(url));
        }
        for url in &m.client_ur_ls {
            line!(out, "\"ClientURL\" : {}", quote(url));
        }
        line!(out, "\"IsLearner\" : {}\n", m.is_learner);
    }
}

pub fn endpoint_health(out: &mut Vec<u8>, list: &[EndpointHealth]) {
    for h in list {
        line!(out, "\"Endpoint\" : {}", quote(&h.endpoint));
        line!(out, "\"Health\" : {}", h.health);
        line!(out, "\"Took\" : {}", h.took);
        line!(out, "\"Error\" : {}\n", h.error);
    }
}

pub fn endpoint_status(out: &mut Vec<u8>, hex: bool, list: &[EndpointStatus]) {
    for EndpointStatus { endpoint, status: r } in list {
        let downgrade = r.downgrade_info.clone().unwrap_or_default();
        header(out, hex, r.header.as_ref());
        line!(out, "\"Version\" : {}", quote(&r.version));
        line!(out, "\"StorageVersion\" : {}", quote(&r.storage_version));
        line!(out, "\"DBSize\" : {}", r.db_size);
        line!(out, "\"DBSizeInUse\" : {}", r.db_size_in_use);
        line!(out, "\"DBSizeQuota\" : {}", r.db_size_quota);
        line!(out, "\"Leader\" : {}", r.leader);
        line!(out, "\"IsLearner\" : {}", r.is_learner);
        line!(out, "\"RaftIndex\" : {}", r.raft_index);
        line!(out, "\"RaftAppliedIndex\" : {}", r.raft_applied_index);
        line!(out, "\"Errors\" : [{}]", r.errors.join(" "));
        line!(out, "\"Endpoint\" : {}", quote(endpoint));
        line!(out, "\"DowngradeTargetVersion\" : {}", quote(&downgrade.target_version));
        line!(out, "\"DowngradeEnabled\" : {}\n", downgrade.enabled);
    }
}

pub fn endpoint_hashkv(out: &mut Vec<u8>, hex: bool, list: &[EndpointHash]) {
    for EndpointHash { endpoint, hash: r } in list {
        header(out, hex, r.header.as_ref());
        line!(out, "\"Endpoint\" : {}", quote(endpoint));
        line!(out, "\"Hash\" : {}", r.hash);
        line!(out, "\"HashRevision\" : {}\n", r.hash_revision);
    }
}

pub fn alarm(out: &mut Vec<u8>, hex: bool, r: &pb::AlarmResponse) {
    header(out, hex, r.header.as_ref());
    for a in &r.alarms {
        id(out, hex, "MemberID", a.member_id);
        line!(out, "\"AlarmType\" : {}\n", alarm_type(a.alarm));
    }
}

pub fn role_get(out: &mut Vec<u8>, hex: bool, r: &pb::AuthRoleGetResponse) {
    header(out, hex, r.header.as_ref());
    for perm in &r.perm {
        let kind = match permission::Type::try_from(perm.perm_type) {
            Ok(kind) => kind.as_str_name().to_owned(),
            Err(_) => perm.perm_type.to_string(),
        };
        line!(out, "\"PermType\" :  {kind}");
        line!(out, "\"Key\" : {}", quote_bytes(&perm.key));
        line!(out, "\"RangeEnd\" : {}", quote_bytes(&perm.range_end));
    }
}

pub fn role_list(out: &mut Vec<u8>, hex: bool, r: &pb::AuthRoleListResponse) {
    header(out, hex, r.header.as_ref());
    let quoted: String = r.roles.iter().map(|role| format!(" {}", quote(role))).collect();
    line!(out, "\"Roles\" :{quoted}");
}
