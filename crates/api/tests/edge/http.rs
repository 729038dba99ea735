//! Plain HTTP on the client port, and what other members ask.

use std::collections::BTreeSet;

use bytes::Bytes;
use dolmen_api::{Config, Mode, PeerRequest};
use dolmen_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, PutRequest, PutResponse,
};
use http::{HeaderMap, Method};
use prost::Message;

use crate::client::{Client, http1};
use crate::member::{CLUSTER, MEMBER, TestMember};

#[tokio::test]
async fn probes_answer_as_etcds_do() {
    let member = TestMember::start();
    let get = async |path: &str| {
        let (status, _, text) = http1(member.address, "GET", path, &[]).await;
        (status, text)
    };
    assert_eq!(get("/health").await, (200, "{\"health\":\"true\",\"reason\":\"\"}".into()));
    assert_eq!(get("/health?serializable=true").await.0, 200);
    assert_eq!(get("/livez").await, (200, "ok\n".into()));
    assert_eq!(get("/livez?verbose").await, (200, "[+]serializable_read ok\nok\n".into()));
    let verbose = get("/readyz?verbose&exclude=non_learner").await.1;
    assert_eq!(verbose, "[+]data_corruption ok\n[+]serializable_read ok\n[+]linearizable_read ok\nok\n");
    assert_eq!(get("/readyz/linearizable_read").await.0, 200);
    assert_eq!(get("/nope").await, (404, "404 page not found\n".into()));
    let (status, headers, text) = http1(member.address, "POST", "/health", &[]).await;
    assert_eq!((status, headers["allow"].to_str().unwrap(), text.as_str()), (405, "GET", "Method Not Allowed\n"));
    let (status, headers, _) = http1(member.address, "OPTIONS", "/health", &[]).await;
    assert_eq!((status, headers["access-control-allow-origin"].to_str().unwrap()), (200, "*"));
    let version = get("/version").await.1;
    assert!(version.starts_with("{\"etcdserver\":\"3.7.3\",\"etcdcluster\":"), "{version}");
}

#[tokio::test]
async fn metrics_count_what_happened() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    let put = PutRequest { key: "a".into(), value: "b".into(), ..Default::default() };
    for _ in 0..3 {
        let headers = [("client-api-version", "3.6")];
        client.unary_with::<PutResponse>("/etcdserverpb.KV/Put", &headers, &put).await.unwrap();
    }
    let (status, _, text) = http1(member.address, "GET", "/metrics", &[]).await;
    assert_eq!(status, 200);
    for line in [
        "etcd_server_has_leader 1",
        "etcd_server_is_leader 1",
        "etcd_debugging_mvcc_keys_total 1",
        "etcd_debugging_mvcc_current_revision 4",
        "etcd_server_version{server_version=\"3.7.3\"} 1",
        "etcd_server_quota_backend_bytes 2.147483648e+09",
        "grpc_server_started_total{grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 3",
        "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 3",
        "etcd_server_client_requests_total{client_api_version=\"3.6\",type=\"unary\"} 3",
        "etcd_server_request_duration_seconds_count{success=\"true\",type=\"Put\"} 3",
    ] {
        assert!(text.lines().any(|known| known == line), "{line} is missing");
    }
    let mut families = BTreeSet::new();
    for line in text.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            assert!(families.insert(family), "{family} twice");
        }
    }
}

#[tokio::test]
async fn a_listener_has_the_pages_of_its_mode() {
    let metrics = TestMember::with(Config::default(), Mode::Metrics);
    assert_eq!(http1(metrics.address, "GET", "/metrics", &[("host", "evil")]).await.0, 200);
    assert_eq!(http1(metrics.address, "GET", "/version", &[]).await.0, 404);
    let picky = Config { host_whitelist: BTreeSet::from(["localhost".into()]), ..Config::default() };
    let picky = TestMember::with(picky, Mode::Http);
    assert_eq!(http1(picky.address, "GET", "/version", &[("host", "localhost:2379")]).await.0, 200);
    assert_eq!(http1(picky.address, "GET", "/version", &[("host", "evil.example")]).await.0, 421);
}

#[tokio::test]
async fn other_members_are_answered() {
    let member = TestMember::start();
    let peer = member.edge.as_ref().unwrap().peer_http();
    let ask = async |method: Method, path: &str, body: Bytes| {
        let request = PeerRequest { method, path: path.into(), headers: HeaderMap::new(), body };
        peer.handle(request).await
    };
    let members = ask(Method::GET, "/members", Bytes::new()).await;
    assert_eq!(members.headers["x-etcd-cluster-id"], format!("{CLUSTER:x}"));
    let text = String::from_utf8(members.body.to_vec()).unwrap();
    assert!(text.starts_with(&format!("[{{\"id\":{MEMBER},\"peerURLs\":[\"http://localhost:2380\"],\"name\":\"one\"")));
    assert!(text.ends_with("]\n"));
    let hash = ask(Method::GET, "/members/hashkv", "{\"revision\":1}".into()).await;
    assert_eq!(hash.status, 200);
    assert_eq!(ask(Method::GET, "/members/hashkv", "{\"revision\":99}".into()).await.status, 400);
    assert_eq!(ask(Method::GET, "/downgrade/enabled", Bytes::new()).await.body, "false");
    assert_eq!(ask(Method::POST, "/members", Bytes::new()).await.status, 405);

    let client = Client::connect(member.address).await;
    let grant = LeaseGrantRequest { ttl: 60, id: 5 };
    client.unary::<LeaseGrantResponse>("/etcdserverpb.Lease/LeaseGrant", &grant).await.unwrap();
    let renewed = ask(Method::POST, "/leases", LeaseKeepAliveRequest { id: 5 }.encode_to_vec().into()).await;
    assert_eq!(LeaseKeepAliveResponse::decode(renewed.body).unwrap().ttl, 60);
    let unknown = ask(Method::POST, "/leases", LeaseKeepAliveRequest { id: 6 }.encode_to_vec().into()).await;
    assert_eq!((unknown.status.as_u16(), &unknown.body[..]), (404, &b"lease not found\n"[..]));
}
