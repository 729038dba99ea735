//! The default format: text for people and for scripts which want nothing but values.
//!
//! Keys and values are written as they are, byte for byte, each followed by a line feed; with `--hex` each byte as
//! `\x6f`. Everything here appends to a buffer, and [`super::Printer`] writes that in one piece.

use std::io::Write as _;

use dolmen_client::{KeyValueRef, KeyValues};
use dolmen_proto::etcdserverpb as pb;
use dolmen_proto::etcdserverpb::response_op::Response;
use dolmen_proto::mvccpb::{Event, KeyValue};

use super::{WatchView, event_type};

/// What changes how keys and values look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// `--hex`: bytes as `\x6f`.
    pub hex: bool,
    /// `get --print-value-only`: no key lines.
    pub value_only: bool,
}

/// Appends one line; writing to memory does not fail.
macro_rules! line {
    ($out:expr, $($arg:tt)*) => {{
        let _ = ::std::io::Write::write_fmt($out, format_args!("{}\n", format_args!($($arg)*)));
    }};
}
pub(crate) use line;

fn text(out: &mut Vec<u8>, style: Style, bytes: &[u8]) {
    if style.hex {
        for byte in bytes {
            let _ = write!(out, "\\x{byte:02x}");
        }
    } else {
        out.extend_from_slice(bytes);
    }
    out.push(b'\n');
}

/// A key and its value, a line each.
pub fn key_value(out: &mut Vec<u8>, style: Style, kv: &KeyValue) {
    if !style.value_only {
        text(out, style, &kv.key);
    }
    text(out, style, &kv.value);
}

/// The lines of a `get`, made while its answer comes.
pub struct Lines {
    /// What to write once the answer is known to be one.
    pub text: Vec<u8>,
    style: Style,
}

/// Room is made at once for answers up to this many bytes.
const MOST_AT_ONCE: usize = 1 << 30;

impl Lines {
    pub fn new(style: Style) -> Lines {
        Lines { text: Vec::new(), style }
    }
}

impl KeyValues for Lines {
    fn begin(&mut self, len: usize) {
        self.text.clear();
        // Lines are shorter than the message they come in, save those in hexadecimal. What is not used takes no memory.
        self.text.reserve(len.min(MOST_AT_ONCE));
    }

    fn key_value(&mut self, kv: KeyValueRef<'_>) {
        if !self.style.value_only {
            text(&mut self.text, self.style, kv.key);
        }
        text(&mut self.text, self.style, kv.value);
    }
}

pub fn get(out: &mut Vec<u8>, style: Style, r: &pb::RangeResponse) {
    for kv in &r.kvs {
        key_value(out, style, kv);
    }
}

pub fn put(out: &mut Vec<u8>, style: Style, r: &pb::PutResponse) {
    line!(out, "OK");
    if let Some(kv) = &r.prev_kv {
        key_value(out, style, kv);
    }
}

pub fn del(out: &mut Vec<u8>, style: Style, r: &pb::DeleteRangeResponse) {
    line!(out, "{}", r.deleted);
    for kv in &r.prev_kvs {
        key_value(out, style, kv);
    }
}

pub fn txn(out: &mut Vec<u8>, style: Style, r: &pb::TxnResponse) {
    line!(out, "{}", if r.succeeded { "SUCCESS" } else { "FAILURE" });
    for op in &r.responses {
        line!(out, "");
        match &op.response {
            Some(Response::ResponseRange(r)) => get(out, style, r),
            Some(Response::ResponsePut(r)) => put(out, style, r),
            Some(Response::ResponseDeleteRange(r)) => del(out, style, r),
            // etcdctl has no syntax for a nested transaction, so no server answers with one.
            Some(Response::ResponseTxn(_)) | None => line!(out, "unexpected response "),
        }
    }
}

pub fn watch(out: &mut Vec<u8>, style: Style, r: &WatchView<'_>) {
    for Event { r#type, kv, prev_kv } in r.events {
        line!(out, "{}", event_type(*r#type));
        if let Some(kv) = prev_kv {
            key_value(out, style, kv);
        }
        key_value(out, style, kv.as_ref().unwrap_or(&KeyValue::default()));
    }
}

pub fn lease_grant(out: &mut Vec<u8>, r: &pb::LeaseGrantResponse) {
    line!(out, "lease {} granted with TTL({}s)", lease_id(r.id), r.ttl);
}

pub fn lease_revoke(out: &mut Vec<u8>, id: i64) {
    line!(out, "lease {} revoked", lease_id(id));
}

pub fn lease_keep_alive(out: &mut Vec<u8>, r: &pb::LeaseKeepAliveResponse) {
    line!(out, "lease {} keepalived with TTL({})", lease_id(r.id), r.ttl);
}

/// `keys`: whether the attached keys were asked for; they are then listed even when there are none.
pub fn lease_time_to_live(out: &mut Vec<u8>, r: &pb::LeaseTimeToLiveResponse, keys: bool) {
    let id = lease_id(r.id);
    if r.granted_ttl == 0 && r.ttl == -1 {
        line!(out, "lease {id} already expired");
        return;
    }
    let _ = write!(out, "lease {id} granted with TTL({}s), remaining({}s)", r.granted_ttl, r.ttl);
    if keys {
        out.extend_from_slice(b", attached keys([");
        for (i, key) in r.keys.iter().enumerate() {
            if i > 0 {
                out.push(b' ');
            }
            out.extend_from_slice(key);
        }
        out.extend_from_slice(b"])");
    }
    out.push(b'\n');
}

pub fn lease_leases(out: &mut Vec<u8>, r: &pb::LeaseLeasesResponse) {
    line!(out, "found {} leases", r.leases.len());
    for lease in &r.leases {
        line!(out, "{}", lease_id(lease.id));
    }
}

/// A lease id as etcd's tools show it: 16 hexadecimal digits; a negative one with its sign, as Go's `%016x`.
pub fn lease_id(id: i64) -> String {
    if id < 0 { format!("-{:015x}", id.unsigned_abs()) } else { format!("{id:016x}") }
}
