//! What Go's etcdctl 3.7.3 prints for the same messages.

use dolmen_proto::etcdserverpb as pb;
use dolmen_proto::etcdserverpb::response_op::Response;
use dolmen_proto::mvccpb::{Event, KeyValue};

use super::simple::Style;
use super::{WatchView, fields, json, simple};

fn header() -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader {
        cluster_id: 12344858505696106758,
        member_id: 5590756152783310859,
        revision: 5,
        raft_term: 2,
    })
}

fn foo() -> KeyValue {
    KeyValue { key: "foo".into(), value: "bar".into(), create_revision: 2, mod_revision: 4, version: 2, lease: 0 }
}

/// A value that is not UTF-8, and a key that HTML would trip over.
fn odd() -> KeyValue {
    KeyValue {
        key: "a<b>&".into(),
        value: b"x\xff\xe2\x80\xa8".as_slice().into(),
        create_revision: 3,
        mod_revision: 3,
        version: 1,
        lease: 0x100ba22c9767ad08,
    }
}

fn range() -> pb::RangeResponse {
    pb::RangeResponse { header: header(), kvs: vec![odd(), foo()], more: false, count: 2 }
}

fn txn() -> pb::TxnResponse {
    let op = |response| pb::ResponseOp { response: Some(response) };
    let only_revision = Some(pb::ResponseHeader { revision: 5, ..Default::default() });
    pb::TxnResponse {
        header: header(),
        succeeded: true,
        responses: vec![
            op(Response::ResponseRange(pb::RangeResponse { header: None, kvs: vec![foo()], more: true, count: 7 })),
            op(Response::ResponsePut(pb::PutResponse { header: only_revision, prev_kv: None })),
            op(Response::ResponseDeleteRange(pb::DeleteRangeResponse {
                header: only_revision,
                deleted: 1,
                prev_kvs: vec![foo()],
            })),
        ],
    }
}

fn written(fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    fill(&mut out);
    out
}

fn text(fill: impl FnOnce(&mut Vec<u8>)) -> String {
    String::from_utf8(written(fill)).expect("text")
}

const HEADER_JSON: &str =
    r#"{"cluster_id":12344858505696106758,"member_id":5590756152783310859,"revision":5,"raft_term":2}"#;
const FOO_JSON: &str = r#"{"key":"Zm9v","create_revision":2,"mod_revision":4,"version":2,"value":"YmFy"}"#;

#[test]
fn simple_is_lines_of_bytes() {
    let plain = Style::default();
    assert_eq!(written(|out| simple::get(out, plain, &range())), b"a<b>&\nx\xff\xe2\x80\xa8\nfoo\nbar\n");
    assert_eq!(
        text(|out| simple::get(out, Style { hex: true, value_only: false }, &range())),
        "\\x61\\x3c\\x62\\x3e\\x26\n\\x78\\xff\\xe2\\x80\\xa8\n\\x66\\x6f\\x6f\n\\x62\\x61\\x72\n"
    );
    assert_eq!(
        written(|out| simple::get(out, Style { hex: false, value_only: true }, &range())),
        b"x\xff\xe2\x80\xa8\nbar\n"
    );
    let put = pb::PutResponse { header: header(), prev_kv: Some(foo()) };
    assert_eq!(text(|out| simple::put(out, plain, &put)), "OK\nfoo\nbar\n");
    assert_eq!(text(|out| simple::txn(out, plain, &txn())), "SUCCESS\n\nfoo\nbar\n\nOK\n\n1\nfoo\nbar\n");
}

#[test]
fn simple_leases() {
    let id = 0x100ba22c9767ad08;
    let grant = pb::LeaseGrantResponse { header: header(), id, ttl: 100, error: String::new() };
    assert_eq!(text(|out| simple::lease_grant(out, &grant)), "lease 100ba22c9767ad08 granted with TTL(100s)\n");
    let mut ttl = pb::LeaseTimeToLiveResponse {
        header: header(),
        id: 0x1f,
        ttl: 90,
        granted_ttl: 100,
        keys: vec!["a".into(), "b c".into()],
    };
    assert_eq!(
        text(|out| simple::lease_time_to_live(out, &ttl, true)),
        "lease 000000000000001f granted with TTL(100s), remaining(90s), attached keys([a b c])\n"
    );
    ttl.keys.clear();
    assert_eq!(
        text(|out| simple::lease_time_to_live(out, &ttl, true)),
        "lease 000000000000001f granted with TTL(100s), remaining(90s), attached keys([])\n"
    );
    let gone = pb::LeaseTimeToLiveResponse { id: -1, ttl: -1, ..Default::default() };
    assert_eq!(text(|out| simple::lease_time_to_live(out, &gone, false)), "lease -000000000000001 already expired\n");
}

#[test]
fn fields_are_named_in_the_order_of_the_message() {
    let header = "\"ClusterID\" : 12344858505696106758\n\"MemberID\" : 5590756152783310859\n\"Revision\" : 5\n\"RaftTerm\" : 2\n";
    let foo = "Key\" : \"foo\"\n\"CreateRevision\" : 2\n\"ModRevision\" : 4\n\"Version\" : 2\n\"Value\" : \"bar\"\n\"Lease\" : 0\n";
    let odd = "\"Key\" : \"a<b>&\"\n\"CreateRevision\" : 3\n\"ModRevision\" : 3\n\"Version\" : 1\n\
               \"Value\" : \"x\\xff\\u2028\"\n\"Lease\" : 1156196041753079048\n";
    assert_eq!(
        text(|out| fields::get(out, false, &range())),
        format!("{header}{odd}\"{foo}\"More\" : false\n\"Count\" : 2\n")
    );
    let put = pb::PutResponse { header: None, prev_kv: Some(odd_short()) };
    assert_eq!(
        text(|out| fields::put(out, true, &put)),
        "\"ClusterID\" : 0\n\"MemberID\" : 0\n\"RaftTerm\" : 0\n\"PrevKey\" : \"k\"\n\"PrevCreateRevision\" : 0\n\
         \"PrevModRevision\" : 0\n\"PrevVersion\" : 0\n\"PrevValue\" : \"\"\n\"PrevLease\" : 000000000000001f\n"
    );
}

fn odd_short() -> KeyValue {
    KeyValue { key: "k".into(), lease: 31, ..Default::default() }
}

#[test]
fn json_is_gos() {
    let ended = |value: dolmen_cli::json::Object| value.end();
    assert_eq!(
        ended(json::range(&range())),
        format!(
            r#"{{"header":{HEADER_JSON},"kvs":[{{"key":"YTxiPiY=","create_revision":3,"mod_revision":3,"version":1,"value":"eP/igKg=","lease":1156196041753079048}},{FOO_JSON}],"count":2}}"#
        )
    );
    assert_eq!(ended(json::range(&pb::RangeResponse::default())), "{}");
    assert_eq!(
        ended(json::txn(&txn())),
        format!(
            r#"{{"header":{HEADER_JSON},"succeeded":true,"responses":[{{"Response":{{"response_range":{{"kvs":[{FOO_JSON}],"more":true,"count":7}}}}}},{{"Response":{{"response_put":{{"header":{{"revision":5}}}}}}}},{{"Response":{{"response_delete_range":{{"header":{{"revision":5}},"deleted":1,"prev_kvs":[{FOO_JSON}]}}}}}}]}}"#
        )
    );
    let grant = pb::LeaseGrantResponse { header: header(), id: 7, ttl: 100, error: String::new() };
    assert_eq!(
        ended(json::lease_grant(&grant)),
        r#"{"cluster_id":12344858505696106758,"member_id":5590756152783310859,"revision":5,"raft_term":2,"ID":7,"TTL":100,"Error":""}"#
    );
    let ttl = pb::LeaseTimeToLiveResponse { header: None, id: 7, ttl: -1, granted_ttl: 0, keys: vec![] };
    assert_eq!(ended(json::lease_time_to_live(&ttl)), r#"{"id":7,"ttl":-1,"granted-ttl":0,"keys":null}"#);
    assert_eq!(ended(json::lease_leases(&pb::LeaseLeasesResponse::default())), r#"{"leases":[]}"#);
}

#[test]
fn json_of_watches() {
    let events = [
        Event { r#type: 0, kv: Some(foo()), prev_kv: None },
        Event {
            r#type: 1,
            kv: Some(KeyValue { key: "foo".into(), mod_revision: 5, ..Default::default() }),
            prev_kv: Some(foo()),
        },
    ];
    let header = header();
    let view = WatchView { header: header.as_ref(), events: &events, ..Default::default() };
    assert_eq!(
        json::watch(&view).end(),
        format!(
            r#"{{"Header":{HEADER_JSON},"Events":[{{"kv":{FOO_JSON}}},{{"type":1,"kv":{{"key":"Zm9v","mod_revision":5}},"prev_kv":{FOO_JSON}}}],"CompactRevision":0,"Canceled":false,"Created":false,"CancelReason":""}}"#
        )
    );
    let empty = pb::ResponseHeader::default();
    let ended = WatchView { header: Some(&empty), canceled: true, ..Default::default() };
    assert_eq!(
        json::watch(&ended).end(),
        r#"{"Header":{},"Events":null,"CompactRevision":0,"Canceled":true,"Created":false,"CancelReason":""}"#
    );
    assert_eq!(text(|out| simple::watch(out, Style::default(), &view)), "PUT\nfoo\nbar\nDELETE\nfoo\nbar\nfoo\n\n");
}
