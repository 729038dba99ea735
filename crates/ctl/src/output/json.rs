//! `-w json`: the messages as Go's `encoding/json` spells them, one a line.
//!
//! Names are the proto's, zero and empty fields are left out, 64-bit numbers are numbers, bytes are base64. Leases and
//! watches are types of Go's client library rather than messages, and have habits of their own: fields that are always
//! there, the header's fields among the others.

use dolmen_cli::json::{self, Object};
use dolmen_proto::etcdserverpb as pb;
use dolmen_proto::etcdserverpb::response_op::Response;
use dolmen_proto::mvccpb::{Event, KeyValue};

use super::WatchView;

/// A value that is whole, and can be written.
pub trait Ended {
    /// As JSON.
    fn ended(self) -> String;
}

impl Ended for Object {
    fn ended(self) -> String {
        self.end()
    }
}

/// One value and a line feed.
pub fn line(out: &mut Vec<u8>, value: impl Ended) {
    out.extend_from_slice(value.ended().as_bytes());
    out.push(b'\n');
}

fn header_fields(object: Object, h: &pb::ResponseHeader) -> Object {
    object
        .uint_or_none("cluster_id", h.cluster_id)
        .uint_or_none("member_id", h.member_id)
        .int_or_none("revision", h.revision)
        .uint_or_none("raft_term", h.raft_term)
}

/// The beginning of most answers: an object with the header in it.
pub fn header_only(header: Option<&pb::ResponseHeader>) -> Object {
    match header {
        Some(h) => Object::new().object("header", header_fields(Object::new(), h)),
        None => Object::new(),
    }
}

/// An object that begins with the header's own fields.
fn embedded(header: Option<&pb::ResponseHeader>) -> Object {
    header.map_or_else(Object::new, |h| header_fields(Object::new(), h))
}

/// A key and what belongs to it.
pub fn key_value(kv: &KeyValue) -> Object {
    Object::new()
        .bytes_or_none("key", &kv.key)
        .int_or_none("create_revision", kv.create_revision)
        .int_or_none("mod_revision", kv.mod_revision)
        .int_or_none("version", kv.version)
        .bytes_or_none("value", &kv.value)
        .int_or_none("lease", kv.lease)
}

fn key_values(kvs: &[KeyValue]) -> impl Iterator<Item = String> {
    kvs.iter().map(|kv| key_value(kv).end())
}

pub fn range(r: &pb::RangeResponse) -> Object {
    header_only(r.header.as_ref())
        .list_or_none("kvs", key_values(&r.kvs))
        .boolean_or_none("more", r.more)
        .int_or_none("count", r.count)
}

pub fn put(r: &pb::PutResponse) -> Object {
    optional_kv(header_only(r.header.as_ref()), "prev_kv", r.prev_kv.as_ref())
}

fn optional_kv(object: Object, name: &str, kv: Option<&KeyValue>) -> Object {
    match kv {
        Some(kv) => object.object(name, key_value(kv)),
        None => object,
    }
}

pub fn delete_range(r: &pb::DeleteRangeResponse) -> Object {
    header_only(r.header.as_ref()).int_or_none("deleted", r.deleted).list_or_none("prev_kvs", key_values(&r.prev_kvs))
}

pub fn txn(r: &pb::TxnResponse) -> Object {
    let responses = r.responses.iter().map(|op| {
        let inner = match &op.response {
            Some(Response::ResponseRange(r)) => Object::new().object("response_range", range(r)),
            Some(Response::ResponsePut(r)) => Object::new().object("response_put", put(r)),
            Some(Response::ResponseDeleteRange(r)) => Object::new().object("response_delete_range", delete_range(r)),
            Some(Response::ResponseTxn(r)) => Object::new().object("response_txn", txn(r)),
            None => Object::new(),
        };
        Object::new().object("Response", inner).end()
    });
    header_only(r.header.as_ref()).boolean_or_none("succeeded", r.succeeded).list_or_none("responses", responses)
}

fn event(e: &Event) -> Object {
    let object = optional_kv(Object::new().int_or_none("type", e.r#type.into()), "kv", e.kv.as_ref());
    optional_kv(object, "prev_kv", e.prev_kv.as_ref())
}

pub fn watch(r: &WatchView<'_>) -> Object {
    let header = embedded(r.header);
    Object::new()
        .object("Header", header)
        .list_or_null("Events", r.events.iter().map(|e| event(e).end()))
        .int("CompactRevision", r.compact_revision)
        .boolean("Canceled", r.canceled)
        .boolean("Created", r.created)
        .text("CancelReason", r.cancel_reason)
}

pub fn lease_grant(r: &pb::LeaseGrantResponse) -> Object {
    embedded(r.header.as_ref()).int("ID", r.id).int("TTL", r.ttl).text("Error", &r.error)
}

pub fn lease_keep_alive(r: &pb::LeaseKeepAliveResponse) -> Object {
    embedded(r.header.as_ref()).int("ID", r.id).int("TTL", r.ttl)
}

pub fn lease_time_to_live(r: &pb::LeaseTimeToLiveResponse) -> Object {
    embedded(r.header.as_ref())
        .int("id", r.id)
        .int("ttl", r.ttl)
        .int("granted-ttl", r.granted_ttl)
        .list_or_null("keys", r.keys.iter().map(|key| json::bytes(key)))
}

pub fn lease_leases(r: &pb::LeaseLeasesResponse) -> Object {
    let leases = r.leases.iter().map(|lease| Object::new().int("id", lease.id).end());
    // Go's client makes the list before it fills it: it is never null.
    embedded(r.header.as_ref()).list("leases", leases)
}
