//! `-w fields`: one `"Name" : value` a line, in the order of the message; strings quoted as Go quotes them.
//!
//! With `--hex` ids of clusters, members and leases are hexadecimal.

use dolmen_cli::golang::quote_bytes as quote;
use dolmen_proto::etcdserverpb as pb;
use dolmen_proto::etcdserverpb::response_op::Response;
use dolmen_proto::mvccpb::{Event, KeyValue};

use super::simple::{lease_id, line};
use super::{WatchView, event_type};

/// The header's lines. The revision is left out where it is zero: answers about members have none.
pub fn header(out: &mut Vec<u8>, hex: bool, header: Option<&pb::ResponseHeader>) {
    let h = header.copied().unwrap_or_default();
    if hex {
        line!(out, "\"ClusterID\" : {:x}", h.cluster_id);
        line!(out, "\"MemberID\" : {:x}", h.member_id);
    } else {
        line!(out, "\"ClusterID\" : {}", h.cluster_id);
        line!(out, "\"MemberID\" : {}", h.member_id);
    }
    if h.revision > 0 {
        line!(out, "\"Revision\" : {}", h.revision);
    }
    line!(out, "\"RaftTerm\" : {}", h.raft_term);
}

/// A key and what belongs to it; `prefix` is `Prev` for one that was replaced or deleted.
pub fn key_value(out: &mut Vec<u8>, hex: bool, prefix: &str, kv: &KeyValue) {
    line!(out, "\"{prefix}Key\" : {}", quote(&kv.key));
    line!(out, "\"{prefix}CreateRevision\" : {}", kv.create_revision);
    line!(out, "\"{prefix}ModRevision\" : {}", kv.mod_revision);
    line!(out, "\"{prefix}Version\" : {}", kv.version);
    line!(out, "\"{prefix}Value\" : {}", quote(&kv.value));
    if hex {
        line!(out, "\"{prefix}Lease\" : {}", lease_id(kv.lease));
    } else {
        line!(out, "\"{prefix}Lease\" : {}", kv.lease);
    }
}

pub fn get(out: &mut Vec<u8>, hex: bool, r: &pb::RangeResponse) {
    header(out, hex, r.header.as_ref());
    for kv in &r.kvs {
        key_value(out, hex, "", kv);
    }
    line!(out, "\"More\" : {}", r.more);
    line!(out, "\"Count\" : {}", r.count);
}

pub fn put(out: &mut Vec<u8>, hex: bool, r: &pb::PutResponse) {
    header(out, hex, r.header.as_ref());
    if let Some(kv) = &r.prev_kv {
        key_value(out, hex, "Prev", kv);
    }
}

pub fn del(out: &mut Vec<u8>, hex: bool, r: &pb::DeleteRangeResponse) {
    header(out, hex, r.header.as_ref());
    line!(out, "\"Deleted\" : {}", r.deleted);
    for kv in &r.prev_kvs {
        key_value(out, hex, "Prev", kv);
    }
}

pub fn txn(out: &mut Vec<u8>, hex: bool, r: &pb::TxnResponse) {
    header(out, hex, r.header.as_ref());
    line!(out, "\"Succeeded\" : {}", r.succeeded);
    for op in &r.responses {
        match &op.response {
            Some(Response::ResponseRange(r)) => get(out, hex, r),
            Some(Response::ResponsePut(r)) => put(out, hex, r),
            Some(Response::ResponseDeleteRange(r)) => del(out, hex, r),
            Some(Response::ResponseTxn(_)) | None => line!(out, "\"Unknown\" : \"<nil>\""),
        }
    }
}

pub fn watch(out: &mut Vec<u8>, hex: bool, r: &WatchView<'_>) {
    header(out, hex, r.header);
    for Event { r#type, kv, prev_kv } in r.events {
        line!(out, "\"Type\" : {}", event_type(*r#type));
        if let Some(kv) = prev_kv {
            key_value(out, hex, "Prev", kv);
        }
        key_value(out, hex, "", kv.as_ref().unwrap_or(&KeyValue::default()));
    }
}

fn lease(out: &mut Vec<u8>, hex: bool, id: i64) {
    if hex {
        line!(out, "\"ID\" : {}", lease_id(id));
    } else {
        line!(out, "\"ID\" : {id}");
    }
}

pub fn lease_grant(out: &mut Vec<u8>, hex: bool, r: &pb::LeaseGrantResponse) {
    header(out, hex, r.header.as_ref());
    lease(out, hex, r.id);
    line!(out, "\"TTL\" : {}", r.ttl);
}

pub fn lease_keep_alive(out: &mut Vec<u8>, hex: bool, r: &pb::LeaseKeepAliveResponse) {
    header(out, hex, r.header.as_ref());
    lease(out, hex, r.id);
    line!(out, "\"TTL\" : {}", r.ttl);
}

pub fn lease_time_to_live(out: &mut Vec<u8>, hex: bool, r: &pb::LeaseTimeToLiveResponse) {
    header(out, hex, r.header.as_ref());
    lease(out, hex, r.id);
    line!(out, "\"TTL\" : {}", r.ttl);
    line!(out, "\"GrantedTTL\" : {}", r.granted_ttl);
    for key in &r.keys {
        line!(out, "\"Key\" : {}", quote(key));
    }
}

pub fn lease_leases(out: &mut Vec<u8>, hex: bool, r: &pb::LeaseLeasesResponse) {
    header(out, hex, r.header.as_ref());
    for status in &r.leases {
        lease(out, hex, status.id);
    }
}
