//! Unary calls.

use bytes::Bytes;
use dolmen_api::{Config, Mode, status};
use dolmen_proto::etcdserverpb::compare::TargetUnion;
use dolmen_proto::etcdserverpb::request_op::Request as Op;
use dolmen_proto::etcdserverpb::response_op::Response as Answer;
use dolmen_proto::etcdserverpb::*;
use prost::Message;

use crate::client::{Client, Failed, framed, http1};
use crate::member::{CLUSTER, MEMBER, TestMember};

const RANGE: &str = "/etcdserverpb.KV/Range";
const PUT: &str = "/etcdserverpb.KV/Put";
const TXN: &str = "/etcdserverpb.KV/Txn";

fn failed(status: &status::Status) -> Failed {
    Failed { code: status.code as u32, message: status.message.to_string() }
}

fn put(key: &str, value: impl Into<Bytes>) -> PutRequest {
    PutRequest { key: Bytes::from(key.to_owned()), value: value.into(), ..Default::default() }
}

fn get(key: &str) -> RangeRequest {
    RangeRequest { key: Bytes::from(key.to_owned()), ..Default::default() }
}

#[tokio::test]
async fn a_key_is_put_read_and_deleted() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    let written: PutResponse = client.unary(PUT, &put("a", "1")).await.unwrap();
    let header = written.header.unwrap();
    assert_eq!((header.cluster_id, header.member_id, header.revision), (CLUSTER, MEMBER, 2));
    assert!(header.raft_term >= 1);
    let again = PutRequest { prev_kv: true, ..put("a", "2") };
    let written: PutResponse = client.unary(PUT, &again).await.unwrap();
    assert_eq!(written.prev_kv.unwrap().value, "1");

    let read: RangeResponse = client.unary(RANGE, &get("a")).await.unwrap();
    assert_eq!((read.count, read.more, read.header.unwrap().revision), (1, false, 3));
    let kv = &read.kvs[0];
    assert_eq!((&kv.value[..], kv.create_revision, kv.mod_revision, kv.version), (&b"2"[..], 2, 3, 2));
    let old = RangeRequest { revision: 2, serializable: true, ..get("a") };
    let read: RangeResponse = client.unary(RANGE, &old).await.unwrap();
    assert_eq!((&read.kvs[0].value[..], read.header.unwrap().revision), (&b"1"[..], 3));
    let future = RangeRequest { revision: 9, ..get("a") };
    assert_eq!(client.unary::<RangeResponse>(RANGE, &future).await, Err(failed(&status::FUTURE_REVISION)));

    let delete = DeleteRangeRequest { key: "a".into(), ..Default::default() };
    let deleted: DeleteRangeResponse = client.unary("/etcdserverpb.KV/DeleteRange", &delete).await.unwrap();
    assert_eq!((deleted.deleted, deleted.header.unwrap().revision), (1, 4));
    let compact = CompactionRequest { revision: 3, physical: true };
    let compacted: CompactionResponse = client.unary("/etcdserverpb.KV/Compact", &compact).await.unwrap();
    assert_eq!(compacted.header.unwrap().revision, 4);
    assert_eq!(client.unary::<RangeResponse>(RANGE, &old).await, Err(failed(&status::COMPACTED)));
}

#[tokio::test]
async fn long_ranges_are_whole_whatever_the_pages() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    const KEYS: usize = 2503;
    for chunk in (0..KEYS).collect::<Vec<_>>().chunks(100) {
        let op = |n: &usize| RequestOp {
            request: Some(Op::RequestPut(put(
                &format!("key{n:05}"),
                vec![0x61; if n.is_multiple_of(100) { 9000 } else { 10 }],
            ))),
        };
        let txn = TxnRequest { success: chunk.iter().map(op).collect(), ..Default::default() };
        client.unary::<TxnResponse>(TXN, &txn).await.unwrap();
    }
    let all = RangeRequest { key: "key".into(), range_end: "kez".into(), ..Default::default() };
    for (limit, expected, more) in
        [(0, KEYS, false), (1, 1, true), (1001, 1001, true), (KEYS as i64, KEYS, false), (9999, KEYS, false)]
    {
        let read: RangeResponse = client.unary(RANGE, &RangeRequest { limit, ..all.clone() }).await.unwrap();
        assert_eq!((read.kvs.len(), read.more, read.count), (expected, more, KEYS as i64), "limit {limit}");
        for (n, kv) in read.kvs.iter().enumerate() {
            assert_eq!(kv.key, format!("key{n:05}"));
        }
    }
    let descending = RangeRequest { sort_order: 2, limit: 2, ..all.clone() };
    let read: RangeResponse = client.unary(RANGE, &descending).await.unwrap();
    assert_eq!(read.kvs[0].key, format!("key{:05}", KEYS - 1));
    let counted: RangeResponse = client.unary(RANGE, &RangeRequest { count_only: true, ..all.clone() }).await.unwrap();
    assert_eq!((counted.kvs.len(), counted.count), (0, KEYS as i64));
    let keys: RangeResponse = client.unary(RANGE, &RangeRequest { keys_only: true, ..all.clone() }).await.unwrap();
    assert!(keys.kvs.iter().all(|kv| kv.value.is_empty()) && keys.kvs.len() == KEYS);

    let (requests, mut answers) = client.stream("/etcdserverpb.KV/RangeStream", &[]).await;
    requests.send(crate::client::framed(&prost::Message::encode_to_vec(&all))).unwrap();
    drop(requests);
    let (mut streamed, mut messages, mut last) = (Vec::new(), 0, None);
    while let Some(message) = answers.next::<RangeStreamResponse>().await {
        let mut response = message.range_response.unwrap();
        assert!(last.is_none(), "only the last message has a header");
        streamed.append(&mut response.kvs);
        messages += 1;
        last = response.header.map(|header| (header.revision, response.more, response.count));
    }
    answers.end().await.unwrap();
    assert!(messages > 3);
    assert_eq!(last, Some((read.header.unwrap().revision, false, KEYS as i64)));
    let whole: RangeResponse = client.unary(RANGE, &all).await.unwrap();
    assert_eq!(streamed, whole.kvs);
}

#[tokio::test]
async fn transactions_compare_and_choose() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    client.unary::<PutResponse>(PUT, &put("a", "1")).await.unwrap();
    let compare =
        |version| Compare { key: "a".into(), target_union: Some(TargetUnion::Version(version)), ..Default::default() };
    let read = || vec![RequestOp { request: Some(Op::RequestRange(get("a"))) }];
    for (version, succeeded, revision) in [(1, true, 2), (2, false, 3)] {
        let reads = TxnRequest { compare: vec![compare(version)], success: read(), failure: read() };
        let answer: TxnResponse = client.unary(TXN, &reads).await.unwrap();
        assert_eq!((answer.succeeded, answer.header.unwrap().revision), (succeeded, revision));
        let Some(Answer::ResponseRange(range)) = &answer.responses[0].response else { panic!("no range") };
        assert_eq!(range.kvs[0].value, "1");

        let write = vec![RequestOp { request: Some(Op::RequestPut(put("b", "2"))) }];
        let writes = TxnRequest { compare: vec![compare(version)], success: write, failure: read() };
        let answer: TxnResponse = client.unary(TXN, &writes).await.unwrap();
        assert_eq!(answer.succeeded, succeeded);
    }
    let twice = vec![
        RequestOp { request: Some(Op::RequestPut(put("b", "2"))) },
        RequestOp { request: Some(Op::RequestPut(put("b", "3"))) },
    ];
    let twice = TxnRequest { success: twice, ..Default::default() };
    assert_eq!(client.unary::<TxnResponse>(TXN, &twice).await, Err(failed(&status::DUPLICATE_KEY)));
}

#[tokio::test]
async fn bad_requests_are_refused_in_etcds_words() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    fn refused<T>(status: &status::Status) -> Result<T, Failed> {
        Err(failed(status))
    }
    assert_eq!(client.unary::<RangeResponse>(RANGE, &get("")).await, refused(&status::EMPTY_KEY));
    assert_eq!(client.unary::<PutResponse>(PUT, &put("", "v")).await, refused(&status::EMPTY_KEY));
    let unknown = PutRequest { lease: 77, ..put("a", "v") };
    assert_eq!(client.unary::<PutResponse>(PUT, &unknown).await, refused(&status::LEASE_NOT_FOUND));
    let large = put("a", vec![0; 1_572_864]);
    assert_eq!(client.unary::<PutResponse>(PUT, &large).await, refused(&status::REQUEST_TOO_LARGE));
    let larger = put("a", vec![0; 3 << 20]);
    let error = client.unary::<PutResponse>(PUT, &larger).await.unwrap_err();
    assert_eq!(error.code, 8);
    assert!(error.message.starts_with("grpc: received message larger than max (31457"), "{error:?}");
    assert!(error.message.ends_with(" vs. 2097152)"));

    let error = client.unary::<PutResponse>("/etcdserverpb.KV/Nope", &put("a", "v")).await.unwrap_err();
    assert_eq!(error, Failed { code: 12, message: "unknown method Nope for service etcdserverpb.KV".into() });
    let error = client.unary::<PutResponse>("/etcdserverpb.Cluster/MemberAdd", &put("a", "v")).await.unwrap_err();
    assert_eq!(error, Failed { code: 12, message: "not yet supported: etcdserverpb.Cluster/MemberAdd".into() });
    let login = AuthenticateRequest { name: "a".into(), password: "b".into() };
    let answer = client.unary::<AuthenticateResponse>("/etcdserverpb.Auth/Authenticate", &login).await;
    assert_eq!(answer, refused(&status::AUTH_NOT_ENABLED));
}

#[tokio::test]
async fn status_members_and_hashes_agree_with_the_store() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    client.unary::<PutResponse>(PUT, &put("a", "1")).await.unwrap();
    let now: StatusResponse = client.unary("/etcdserverpb.Maintenance/Status", &StatusRequest {}).await.unwrap();
    assert_eq!((now.leader, now.version.as_str(), now.is_learner), (MEMBER, "3.7.3", false));
    assert!(now.raft_index >= now.raft_applied_index && now.raft_applied_index > 0);
    assert!(now.errors.is_empty());
    assert_eq!(now.db_size_quota, 2 << 30);
    let list = MemberListRequest { linearizable: true };
    let members: MemberListResponse = client.unary("/etcdserverpb.Cluster/MemberList", &list).await.unwrap();
    assert_eq!((members.members[0].id, members.header.unwrap().revision), (MEMBER, 0));
    assert_eq!(members.members[0].name, "one");
    let hash: HashKvResponse =
        client.unary("/etcdserverpb.Maintenance/HashKV", &HashKvRequest { revision: 0 }).await.unwrap();
    assert_eq!((hash.compact_revision, hash.hash_revision, hash.header.unwrap().revision), (-1, 2, 2));
    let whole: HashResponse = client.unary("/etcdserverpb.Maintenance/Hash", &HashRequest {}).await.unwrap();
    assert_ne!(whole.hash, 0);
    let late = client.unary::<HashKvResponse>("/etcdserverpb.Maintenance/HashKV", &HashKvRequest { revision: 9 }).await;
    assert_eq!(late, Err(failed(&status::FUTURE_REVISION)));
    client.unary::<DefragmentResponse>("/etcdserverpb.Maintenance/Defragment", &DefragmentRequest {}).await.unwrap();
    let alarms: AlarmResponse =
        client.unary("/etcdserverpb.Maintenance/Alarm", &AlarmRequest::default()).await.unwrap();
    assert!(alarms.alarms.is_empty());
    let moved = MoveLeaderRequest { target_id: 8 };
    let moved = client.unary::<MoveLeaderResponse>("/etcdserverpb.Maintenance/MoveLeader", &moved).await;
    assert_eq!(moved, Err(failed(&status::BAD_LEADER_TRANSFEREE)));
}

#[tokio::test]
async fn leases_are_granted_listed_and_revoked_with_their_keys() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    let grant = LeaseGrantRequest { ttl: 60, id: 0 };
    let granted: LeaseGrantResponse = client.unary("/etcdserverpb.Lease/LeaseGrant", &grant).await.unwrap();
    assert!(granted.id > 0 && granted.ttl == 60);
    let attached = PutRequest { lease: granted.id, ..put("a", "1") };
    client.unary::<PutResponse>(PUT, &attached).await.unwrap();
    let ask = LeaseTimeToLiveRequest { id: granted.id, keys: true };
    let live: LeaseTimeToLiveResponse = client.unary("/etcdserverpb.Lease/LeaseTimeToLive", &ask).await.unwrap();
    assert_eq!((live.granted_ttl, live.keys), (60, vec![Bytes::from("a")]));
    let leases: LeaseLeasesResponse =
        client.unary("/etcdserverpb.Lease/LeaseLeases", &LeaseLeasesRequest {}).await.unwrap();
    assert_eq!(leases.leases, vec![LeaseStatus { id: granted.id }]);
    let revoke = LeaseRevokeRequest { id: granted.id };
    client.unary::<LeaseRevokeResponse>("/etcdserverpb.Lease/LeaseRevoke", &revoke).await.unwrap();
    let gone: LeaseTimeToLiveResponse = client.unary("/etcdserverpb.Lease/LeaseTimeToLive", &ask).await.unwrap();
    assert_eq!((gone.ttl, gone.id), (-1, granted.id));
    let read: RangeResponse = client.unary(RANGE, &get("a")).await.unwrap();
    assert_eq!(read.count, 0);
    let again = client.unary::<LeaseRevokeResponse>("/etcdserverpb.Lease/LeaseRevoke", &revoke).await;
    assert_eq!(again, Err(failed(&status::LEASE_NOT_FOUND)));
}

#[tokio::test]
async fn a_full_store_refuses_what_grows_it() {
    let config = dolmen_api::Config { quota_bytes: 100, ..Default::default() };
    let member = TestMember::with(config, dolmen_api::Mode::GrpcAndHttp);
    let client = Client::connect(member.address).await;
    assert_eq!(client.unary::<PutResponse>(PUT, &put("a", "1")).await, Err(failed(&status::NO_SPACE)));
    client.unary::<RangeResponse>(RANGE, &get("a")).await.unwrap();
    for _ in 0..100 {
        let alarms: AlarmResponse =
            client.unary("/etcdserverpb.Maintenance/Alarm", &AlarmRequest::default()).await.unwrap();
        if alarms.alarms == [AlarmMember { member_id: MEMBER, alarm: AlarmType::Nospace as i32 }] {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("no alarm");
}

#[tokio::test]
async fn a_deadline_ends_a_wait_and_a_timeout_must_be_one() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    let read: RangeResponse = client.unary_with(RANGE, &[("grpc-timeout", "5S")], &get("a")).await.unwrap();
    assert_eq!(read.count, 0);
    let late = client.unary_with::<RangeResponse>(RANGE, &[("grpc-timeout", "0n")], &get("a")).await;
    assert_eq!(late, Err(failed(&status::DEADLINE_EXCEEDED)));
    let odd = client.unary_with::<RangeResponse>(RANGE, &[("grpc-timeout", "soon")], &get("a")).await;
    assert_eq!(odd.unwrap_err().code, 13);
    let leader: RangeResponse = client.unary_with(RANGE, &[("hasleader", "true")], &get("a")).await.unwrap();
    assert_eq!(leader.count, 0);
}

#[tokio::test]
async fn what_is_in_flight_holds_no_more_than_it_may() {
    let member = TestMember::with(Config { max_in_flight_bytes: 1 << 20, ..Config::default() }, Mode::GrpcAndHttp);
    let client = Client::connect(member.address).await;
    for n in 0..20 {
        client.unary::<PutResponse>(PUT, &put(&format!("key{n}"), vec![7; 100_000])).await.unwrap();
    }
    let all = |order| RangeRequest { range_end: "l".into(), sort_order: order, ..get("key") };
    for order in [0, 2] {
        let refused = client.unary::<RangeResponse>(RANGE, &all(order)).await;
        assert_eq!(refused, Err(failed(&status::IN_FLIGHT_EXHAUSTED)));
        let few = RangeRequest { limit: 5, ..all(order) };
        assert_eq!(client.unary::<RangeResponse>(RANGE, &few).await.unwrap().kvs.len(), 5);
    }
    let refused = client.unary::<PutResponse>(PUT, &put("key", vec![7; (1 << 20) + 1])).await;
    assert_eq!(refused, Err(failed(&status::IN_FLIGHT_EXHAUSTED)));

    // Answers that nobody takes hold what they hold, until their connections go.
    let mut stalled = Vec::new();
    let refused = loop {
        let client = Client::connect_narrow(member.address).await;
        let message = RangeRequest { limit: 3, ..all(0) }.encode_to_vec();
        let response = client.raw(RANGE, &[], vec![framed(&message)]).await;
        if response.headers().contains_key("grpc-status") {
            break response.headers()["grpc-status"].clone();
        }
        stalled.push((client, response));
        assert!(stalled.len() < 100, "none is refused");
    };
    assert_eq!(refused, "8");
    drop(stalled);
    let used = async {
        while !http1(member.address, "GET", "/metrics", &[]).await.2.contains("\ndolmen_in_flight_bytes 0\n") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), used).await.unwrap();
    assert!(client.unary::<RangeResponse>(RANGE, &RangeRequest { limit: 5, ..all(0) }).await.is_ok());
}
