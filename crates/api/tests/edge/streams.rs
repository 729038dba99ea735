//! Watches, keep-alives, snapshots and health over streams.

use bytes::Bytes;
use dolmen_proto::etcdserverpb::watch_request::RequestUnion;
use dolmen_proto::etcdserverpb::*;
use dolmen_proto::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse};
use prost::Message;
use sha2::{Digest, Sha256};

use crate::client::{Answers, Client, Failed, framed, http1};
use crate::member::TestMember;

const PUT: &str = "/etcdserverpb.KV/Put";
const WATCH: &str = "/etcdserverpb.Watch/Watch";

async fn put(client: &Client, key: &str, value: impl Into<Bytes>) -> i64 {
    let request = PutRequest { key: Bytes::from(key.to_owned()), value: value.into(), ..Default::default() };
    client.unary::<PutResponse>(PUT, &request).await.unwrap().header.unwrap().revision
}

fn request(union: RequestUnion) -> Bytes {
    framed(&WatchRequest { request_union: Some(union) }.encode_to_vec())
}

fn create(request: WatchCreateRequest) -> Bytes {
    self::request(RequestUnion::CreateRequest(request))
}

#[tokio::test]
async fn watchers_see_the_past_the_present_and_their_end() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    let first = put(&client, "a", "1").await;
    let (requests, mut answers) = client.stream(WATCH, &[("hasleader", "true")]).await;
    let past = WatchCreateRequest { key: "a".into(), start_revision: first, prev_kv: true, ..Default::default() };
    requests.send(create(past)).unwrap();
    let created: WatchResponse = answers.next().await.unwrap();
    assert!(created.created && created.watch_id == 0 && created.header.unwrap().revision == first);
    let replayed: WatchResponse = answers.next().await.unwrap();
    assert_eq!(replayed.events[0].kv.as_ref().unwrap().value, "1");

    let second = put(&client, "a", "2").await;
    let live: WatchResponse = answers.next().await.unwrap();
    assert_eq!(live.header.unwrap().revision, second);
    assert_eq!(live.events[0].prev_kv.as_ref().unwrap().value, "1");

    requests.send(request(RequestUnion::ProgressRequest(WatchProgressRequest {}))).unwrap();
    let progress: WatchResponse = answers.next().await.unwrap();
    assert_eq!((progress.watch_id, progress.header.unwrap().revision), (-1, second));

    requests.send(request(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 0 }))).unwrap();
    let canceled: WatchResponse = answers.next().await.unwrap();
    assert!(canceled.canceled && canceled.watch_id == 0);
    drop(requests);
    answers.end().await.unwrap();
}

#[tokio::test]
async fn many_events_arrive_in_order_and_none_is_lost() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    let (requests, mut answers) = client.stream(WATCH, &[]).await;
    let all = WatchCreateRequest { range_end: Bytes::from_static(&[0]), ..Default::default() };
    requests.send(create(all)).unwrap();
    assert!(answers.next::<WatchResponse>().await.unwrap().created);
    const PUTS: usize = 300;
    let writer = client.clone();
    let writing = tokio::spawn(async move {
        for n in 0..PUTS {
            put(&writer, &format!("k{n}"), vec![0; if n % 50 == 0 { 200_000 } else { 20 }]).await;
        }
    });
    let mut seen = Vec::new();
    while seen.len() < PUTS {
        let response: WatchResponse = answers.next().await.unwrap();
        seen.extend(response.events.into_iter().map(|event| event.kv.unwrap().mod_revision));
    }
    writing.await.unwrap();
    assert!(seen.windows(2).all(|pair| pair[0] + 1 == pair[1]));
}

#[tokio::test]
async fn a_refused_watch_says_why() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    let (requests, mut answers) = client.stream(WATCH, &[]).await;
    let negative = WatchCreateRequest { key: "a".into(), start_revision: -1, ..Default::default() };
    requests.send(create(negative)).unwrap();
    let refused: WatchResponse = answers.next().await.unwrap();
    assert!(refused.created && refused.canceled && refused.watch_id == -1);
    assert_eq!(refused.cancel_reason, "etcdserver: mvcc: required revision has been compacted");
    // Bytes that are no message end the call.
    requests.send(framed(&[0xff; 4])).unwrap();
    let Err(Failed { code, .. }) = answers.end().await else { panic!("no error") };
    assert_eq!(code, 13);
}

#[tokio::test]
async fn leases_are_kept_alive() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    let grant = LeaseGrantRequest { ttl: 60, id: 5 };
    client.unary::<LeaseGrantResponse>("/etcdserverpb.Lease/LeaseGrant", &grant).await.unwrap();
    let (requests, mut answers) = client.stream("/etcdserverpb.Lease/LeaseKeepAlive", &[]).await;
    for (id, ttl) in [(5, 60), (6, 0), (5, 60)] {
        requests.send(framed(&LeaseKeepAliveRequest { id }.encode_to_vec())).unwrap();
        let answer: LeaseKeepAliveResponse = answers.next().await.unwrap();
        assert_eq!((answer.id, answer.ttl, answer.header.unwrap().revision), (id, ttl, 1));
    }
    drop(requests);
    answers.end().await.unwrap();
}

#[tokio::test]
async fn a_snapshot_is_a_bbolt_file_and_its_hash() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    for n in 0..20 {
        put(&client, &format!("key{n}"), vec![n; 10_000]).await;
    }
    let (requests, mut answers) = client.stream("/etcdserverpb.Maintenance/Snapshot", &[]).await;
    requests.send(framed(&[])).unwrap();
    drop(requests);
    let mut messages = Vec::new();
    while let Some(message) = answers.next::<SnapshotResponse>().await {
        messages.push(message);
    }
    answers.end().await.unwrap();
    let digest = messages.pop().unwrap();
    let mut file = messages.iter().map(|message| message.blob.clone()).collect::<Vec<_>>().concat();
    assert_eq!(digest.blob.as_ref(), Sha256::digest(&file).as_slice());
    assert_eq!(messages.last().unwrap().remaining_bytes, 0);
    file.extend_from_slice(&digest.blob);
    assert!(dolmen_bolt::has_trailer(file.len() as u64));
}

#[tokio::test]
async fn health_is_told_for_the_whole_server_only() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    let of = |service: &str| HealthCheckRequest { service: service.into() };
    let well: HealthCheckResponse = client.unary("/grpc.health.v1.Health/Check", &of("")).await.unwrap();
    assert_eq!(well.status, 1);
    let unknown = client.unary::<HealthCheckResponse>("/grpc.health.v1.Health/Check", &of("x")).await;
    assert_eq!(unknown, Err(Failed { code: 5, message: "unknown service".into() }));
    let (requests, mut answers) = client.stream("/grpc.health.v1.Health/Watch", &[]).await;
    requests.send(framed(&of("").encode_to_vec())).unwrap();
    drop(requests);
    assert_eq!(answers.next::<HealthCheckResponse>().await.unwrap().status, 1);
}

#[tokio::test]
async fn a_stop_ends_streams_with_a_status() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    let (requests, mut answers) = client.stream(WATCH, &[]).await;
    requests.send(create(WatchCreateRequest { key: "a".into(), ..Default::default() })).unwrap();
    assert!(answers.next::<WatchResponse>().await.unwrap().created);
    member.edge.as_ref().unwrap().stop();
    let error = answers.end().await.unwrap_err();
    assert_eq!(error, Failed { code: 14, message: "etcdserver: server stopped".into() });
}

#[tokio::test]
async fn snapshots_that_nobody_takes_hold_up_nobody_else() {
    const SNAPSHOT: &str = "/etcdserverpb.Maintenance/Snapshot";
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    // More than a connection takes ahead.
    for n in 0..40 {
        put(&client, &format!("key{n}"), vec![7; 100_000]).await;
    }
    let mut stalled = Vec::new();
    for _ in 0..24 {
        let client = Client::connect_narrow(member.address).await;
        let response = client.raw(SNAPSHOT, &[], vec![framed(b"")]).await;
        assert_eq!(response.status(), 200);
        stalled.push((client, response));
    }
    let others = async {
        assert_eq!(http1(member.address, "GET", "/metrics", &[]).await.0, 200);
        let hash: HashKvResponse =
            client.unary("/etcdserverpb.Maintenance/HashKV", &HashKvRequest::default()).await.unwrap();
        assert_eq!(hash.hash_revision, 41);
        let mut answers = Answers::new(client.raw(SNAPSHOT, &[], vec![framed(b"")]).await);
        while answers.next::<SnapshotResponse>().await.is_some() {}
        answers.end().await.unwrap();
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), others).await.unwrap();
}
