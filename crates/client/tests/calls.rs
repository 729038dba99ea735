//! Which calls are made again, where, and with which token.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Call, Fake, bounded};
use dolmen_client::{Client, Config, ConnectionReason, Field, KeyValueRef, KeyValues, code, pb, text};

async fn answer(mut call: Call) {
    if call.path.ends_with("/Range") {
        let request: pb::RangeRequest = call.next().await.unwrap();
        let kv = dolmen_client::mvccpb::KeyValue { key: request.key, ..Default::default() };
        call.reply(&pb::RangeResponse { kvs: vec![kv], count: 1, ..Default::default() });
    } else {
        let _: pb::PutRequest = call.next().await.unwrap();
        call.reply(&pb::PutResponse::default());
    }
}

fn get(key: &'static str) -> pb::RangeRequest {
    pb::RangeRequest { key: key.into(), ..Default::default() }
}

fn put(key: &'static str) -> pb::PutRequest {
    pb::PutRequest { key: key.into(), value: "v".into(), ..Default::default() }
}

#[tokio::test]
async fn calls_go_where_somebody_answers() {
    let mut gone = Fake::start(answer).await;
    gone.stop().await;
    let up = Fake::start(answer).await;
    let config = Config::new([gone.address.to_string(), up.address.to_string()]);
    let client = bounded(Client::connect(config).await.unwrap());
    assert_eq!(client.range(get("a")).await.unwrap().kvs[0].key, "a");
    client.put(put("a")).await.unwrap();
    assert_eq!((up.count("/Range"), up.count("/Put")), (1, 1));
}

#[tokio::test]
async fn a_client_of_one_call_makes_one_connection_and_a_busy_one_uses_all() {
    let (first, second) = (Fake::start(answer).await, Fake::start(answer).await);
    let config = Config::new([first.address.to_string(), second.address.to_string()]);
    let client = bounded(Client::connect(config).await.unwrap());
    client.range(get("a")).await.unwrap();
    assert_eq!(first.count("/Range") + second.count("/Range"), 1);
    for _ in 0..50 {
        client.range(get("a")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for fake in [&first, &second] {
        assert!(fake.count("/Range") > 10, "{}", fake.count("/Range"));
    }
}

#[tokio::test]
async fn an_unavailable_read_is_made_again() {
    let fake = Fake::start(|mut call: Call| async move {
        let _: pb::RangeRequest = call.next().await.unwrap();
        match call.number {
            0 => call.end(code::UNAVAILABLE, "etcdserver: leader changed"),
            1 => call.cut(),
            _ => call.reply(&pb::RangeResponse { count: 7, ..Default::default() }),
        }
    })
    .await;
    let notices = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&notices);
    let config = Config { log: Some(Arc::new(move |one| log.lock().unwrap().push(one.clone()))), ..fake.config() };
    let client = bounded(Client::connect(config).await.unwrap());
    assert_eq!(client.range(get("a")).await.unwrap().count, 7);
    assert_eq!(fake.count("/Range"), 3);

    let notices = notices.lock().unwrap();
    assert_eq!(notices.len(), 2);
    assert_eq!(notices[0].message, "retrying of unary invoker failed");
    let field = |at: usize, name: &str| {
        notices[at].fields.iter().find(|(own, _)| *own == name).map(|(_, value)| value.clone()).unwrap()
    };
    assert_eq!(field(0, "method"), Field::Text("/etcdserverpb.KV/Range".into()));
    assert_eq!(field(1, "attempt"), Field::Number(1));
    let error = "rpc error: code = Unavailable desc = etcdserver: leader changed";
    assert_eq!(field(0, "error"), Field::Text(error.into()));
    let Field::Text(target) = field(0, "target") else { panic!() };
    assert!(target.starts_with("etcd-endpoints://0x") && target.ends_with(&fake.address.to_string()), "{target}");
}

#[tokio::test]
async fn other_errors_are_told_at_once() {
    let fake = Fake::start(|call: Call| async move { call.end(code::OUT_OF_RANGE, text::COMPACTED) }).await;
    let error = fake.client().await.range(get("a")).await.unwrap_err();
    assert!(error.is(text::COMPACTED), "{error}");
    assert_eq!(fake.count("/Range"), 1);
}

#[tokio::test]
async fn an_unavailable_write_is_not_made_again() {
    let fake = Fake::start(|mut call: Call| async move {
        let _: pb::PutRequest = call.next().await.unwrap();
        call.end(code::UNAVAILABLE, "etcdserver: request timed out");
    })
    .await;
    let error = fake.client().await.put(put("a")).await.unwrap_err();
    assert_eq!(error.to_string(), "etcdserver: request timed out");
    assert_eq!(fake.count("/Put"), 1);
}

#[tokio::test]
async fn a_write_that_was_under_way_when_the_connection_broke_is_not_made_again() {
    let cut = |mut call: Call| async move {
        let _: pb::PutRequest = call.next().await.unwrap();
        call.cut();
    };
    let (one, other) = (Fake::start(cut).await, Fake::start(cut).await);
    let config = Config::new([one.address.to_string(), other.address.to_string()]);
    let client = bounded(Client::connect(config).await.unwrap());
    let error = client.put(put("a")).await.unwrap_err();
    assert_eq!(error.code(), code::UNAVAILABLE);
    assert!(!error.is_known() && !error.is_timeout(), "{error}");
    assert_eq!(one.count("/Put") + other.count("/Put"), 1);
}

#[tokio::test]
async fn a_write_that_was_not_sent_goes_to_another_endpoint() {
    let (one, other) = (Fake::start(answer).await, Fake::start(answer).await);
    let config = Config::new([one.address.to_string(), other.address.to_string()]);
    let client = bounded(Client::connect(config).await.unwrap());
    client.put(put("a")).await.unwrap();
    // Which endpoint comes first is drawn by lot.
    let (mut first, second) = if one.count("/Put") == 1 { (one, other) } else { (other, one) };
    assert_eq!(first.count("/Put"), 1);
    first.stop().await;
    for _ in 0..5 {
        client.put(put("a")).await.unwrap();
    }
    assert_eq!((first.count("/Put"), second.count("/Put")), (1, 5));
}

#[tokio::test]
async fn a_lost_connection_is_dialed_again() {
    let fake = Fake::start(answer).await;
    let client = fake.client().await;
    for _ in 0..5 {
        client.put(put("a")).await.unwrap();
        fake.cut();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(fake.count("/Put"), 5);
}

#[tokio::test]
async fn a_learner_s_refusal_is_tried_elsewhere() {
    let learner = Fake::start(|call: Call| async move {
        call.end(code::FAILED_PRECONDITION, text::NOT_SUPPORTED_FOR_LEARNER);
    })
    .await;
    let voter = Fake::start(answer).await;
    let one = Config::new([learner.address.to_string()]);
    let error = bounded(Client::connect(one).await.unwrap()).put(put("a")).await.unwrap_err();
    assert!(error.is(text::NOT_SUPPORTED_FOR_LEARNER));
    let both = Config::new([learner.address.to_string(), voter.address.to_string()]);
    bounded(Client::connect(both).await.unwrap()).put(put("a")).await.unwrap();
    assert_eq!(voter.count("/Put"), 1);
}

#[tokio::test]
async fn time_is_up() {
    let hanging = Fake::start(|call: Call| async move {
        assert!(call.header("grpc-timeout").ends_with('u'), "{:?}", call.headers);
        assert_eq!(call.header("hasleader"), "true");
        std::future::pending::<()>().await;
    })
    .await;
    let limit = Some(Duration::from_millis(200));
    let client = hanging.client().await.with_timeout(limit).with_require_leader();
    let error = client.range(get("a")).await.unwrap_err();
    assert!(error.is_timeout());
    assert_eq!(error.to_string(), "context deadline exceeded");
    assert!(error.connection().is_none());

    let mut gone = hanging;
    gone.stop().await;
    let client = gone.client().await.with_timeout(limit);
    let error = client.put(put("a")).await.unwrap_err();
    assert_eq!(error.to_string(), "context deadline exceeded");
    let connection = error.connection().unwrap();
    assert_eq!(connection.reason, ConnectionReason::Refused);
    let address = gone.address;
    assert_eq!(
        connection.to_string(),
        format!(
            "connection error: desc = \"transport: Error while dialing: dial tcp {address}: connect: connection refused\""
        )
    );
}

#[tokio::test]
async fn messages_have_limits_both_ways() {
    let fake = Fake::start(|mut call: Call| async move {
        let _: pb::RangeRequest = call.next().await.unwrap();
        let kv = dolmen_client::mvccpb::KeyValue { value: vec![0; 1000].into(), ..Default::default() };
        call.reply(&pb::RangeResponse { kvs: vec![kv], ..Default::default() });
    })
    .await;
    let config = Config { max_request_bytes: 100, max_recv_bytes: 200, ..fake.config() };
    let client = bounded(Client::connect(config).await.unwrap());
    let large = pb::PutRequest { value: vec![0; 200].into(), ..Default::default() };
    let error = client.put(large).await.unwrap_err();
    let expected = "rpc error: code = ResourceExhausted desc = trying to send message larger than max (203 vs. 100)";
    assert_eq!(error.to_string(), expected);
    assert_eq!(fake.count("/Put"), 0);
    let error = client.range(get("a")).await.unwrap_err();
    let expected = "rpc error: code = ResourceExhausted desc = grpc: received message larger than max (1006 vs. 200)";
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn configurations_that_contradict_themselves() {
    let some = || Config::new(["127.0.0.1:1"]);
    let table = [
        (Config::new(Vec::<String>::new()), "etcdclient: no available endpoints"),
        (
            Config { token: Some("t".into()), user: Some(("a".into(), "b".into())), ..some() },
            "Username/Password and Token configurations are mutually exclusive",
        ),
        (
            Config { max_request_bytes: 2, max_recv_bytes: 1, ..some() },
            "gRPC message recv limit (1 bytes) must be greater than send limit (2 bytes)",
        ),
        (
            Config { tls: Some(dolmen_client::Tls { cert_file: Some("c".into()), ..Default::default() }), ..some() },
            "KeyFile and CertFile must both be present[key: , cert: c]",
        ),
        (
            Config {
                tls: Some(dolmen_client::Tls { ca_file: Some("/nowhere/ca".into()), ..Default::default() }),
                ..some()
            },
            "open /nowhere/ca: no such file or directory",
        ),
    ];
    for (config, text) in table {
        assert_eq!(Client::connect(config).await.err().unwrap().to_string(), text);
    }
}

/// Takes the token `t<n>` where n is how often somebody has logged in, and no other.
async fn guarded(logins: Arc<Mutex<usize>>, mut call: Call) {
    if call.path.ends_with("/Authenticate") {
        let request: pb::AuthenticateRequest = call.next().await.unwrap();
        assert_eq!((request.name.as_str(), request.password.as_str()), ("root", "secret"));
        assert_eq!(call.header("token"), "");
        *logins.lock().unwrap() += 1;
        let token = format!("t{}", logins.lock().unwrap());
        call.reply(&pb::AuthenticateResponse { token, ..Default::default() });
    } else if call.header("token") == format!("t{}", logins.lock().unwrap()) {
        answer(call).await;
    } else {
        call.end(code::UNAUTHENTICATED, text::INVALID_AUTH_TOKEN);
    }
}

#[tokio::test]
async fn a_refused_token_is_renewed_once_for_all() {
    let logins = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&logins);
    let fake = Fake::start(move |call| guarded(Arc::clone(&seen), call)).await;
    let config = Config { user: Some(("root".into(), "secret".into())), ..fake.config() };
    let client = bounded(Client::connect(config).await.unwrap());
    assert_eq!(*logins.lock().unwrap(), 1);
    client.put(put("a")).await.unwrap();
    // As if the token had expired: from now on `t2` is wanted, which nobody has.
    *logins.lock().unwrap() = 2;
    let (one, two) = tokio::join!(client.put(put("a")), client.put(put("b")));
    one.unwrap();
    two.unwrap();
    assert_eq!(*logins.lock().unwrap(), 3);
    assert_eq!(fake.count("/Authenticate"), 2);
}

#[tokio::test]
async fn a_given_token_is_used_as_it_is() {
    let fake = Fake::start(|mut call: Call| async move {
        let _: pb::PutRequest = call.next().await.unwrap();
        match call.header("token") {
            "jwt" => call.reply(&pb::PutResponse::default()),
            _ => call.end(code::UNAUTHENTICATED, text::INVALID_AUTH_TOKEN),
        }
    })
    .await;
    let with = |token: &str| Config { token: Some(token.to_owned()), ..fake.config() };
    bounded(Client::connect(with("jwt")).await.unwrap()).put(put("a")).await.unwrap();
    let error = bounded(Client::connect(with("stale")).await.unwrap()).put(put("a")).await.unwrap_err();
    assert!(error.is(text::INVALID_AUTH_TOKEN));
    assert_eq!((fake.count("/Put"), fake.count("/Authenticate")), (2, 0));
}

#[tokio::test]
async fn without_authentication_a_user_does_no_harm() {
    let fake = Fake::start(|mut call: Call| async move {
        if call.path.ends_with("/Authenticate") {
            return call.end(code::FAILED_PRECONDITION, text::AUTH_NOT_ENABLED);
        }
        let _: pb::PutRequest = call.next().await.unwrap();
        assert_eq!(call.header("token"), "");
        call.reply(&pb::PutResponse::default());
    })
    .await;
    let config = Config { user: Some(("root".into(), "secret".into())), ..fake.config() };
    bounded(Client::connect(config).await.unwrap()).put(put("a")).await.unwrap();
}

#[tokio::test]
async fn a_login_is_bounded_by_the_dial_timeout() {
    let mut gone = Fake::start(answer).await;
    gone.stop().await;
    let user = Some(("root".into(), "secret".into()));
    let config = Config { user, dial_timeout: Duration::from_millis(100), ..gone.config() };
    let error = Client::connect(config).await.err().unwrap();
    assert_eq!(error.to_string(), "context deadline exceeded");
}

#[tokio::test]
async fn answers_of_no_grpc_server_are_told_as_such() {
    // Trailers without a status.
    let fake = Fake::start(|call: Call| async move { drop(call) }).await;
    let error = fake.client().await.put(put("a")).await.unwrap_err();
    assert_eq!(error.code(), code::INTERNAL);
    assert!(error.message().contains("without sending trailers"), "{error}");
}

#[tokio::test]
async fn pieces_of_an_answer_come_in_order_and_end() {
    let fake = Fake::start(|mut call: Call| async move {
        let _: pb::SnapshotRequest = call.next().await.unwrap();
        if call.number == 0 {
            return call.end(code::UNAVAILABLE, "etcdserver: server stopped");
        }
        for remaining_bytes in [2, 1, 0] {
            call.send(&pb::SnapshotResponse { remaining_bytes, ..Default::default() });
        }
        call.end(0, "");
    })
    .await;
    let mut chunks = fake.client().await.snapshot().await.unwrap();
    let mut seen = Vec::new();
    while let Some(chunk) = chunks.next().await {
        seen.push(chunk.unwrap().remaining_bytes);
    }
    assert_eq!(seen, [2, 1, 0]);
    assert_eq!(fake.count("/Snapshot"), 2);
}

/// Keys that came with the last answer begun.
#[derive(Default)]
struct Keys {
    begun: usize,
    keys: Vec<Vec<u8>>,
}

impl KeyValues for Keys {
    fn begin(&mut self, _len: usize) {
        self.begun += 1;
        self.keys.clear();
    }

    fn key_value(&mut self, kv: KeyValueRef<'_>) {
        self.keys.push(kv.key.to_vec());
    }
}

#[tokio::test]
async fn a_range_taken_as_it_comes_counts_only_with_its_status() {
    let fake = Fake::start(|mut call: Call| async move {
        let request: pb::RangeRequest = call.next().await.unwrap();
        let kv = |at: u32| dolmen_client::mvccpb::KeyValue {
            key: format!("{}{at:05}", String::from_utf8_lossy(&request.key)).into(),
            value: vec![b'v'; 100].into(),
            ..Default::default()
        };
        let kvs: Vec<_> = (0..20_000).map(kv).collect();
        let answer = pb::RangeResponse { count: 20_000, kvs, ..Default::default() };
        call.send(&answer);
        match (&request.key[..], call.number) {
            // The first time only.
            (b"ill", 0) => call.end(code::UNAVAILABLE, "it went away"),
            (b"refused", _) => call.end(code::RESOURCE_EXHAUSTED, "no more"),
            _ => call.end(code::OK, ""),
        }
    })
    .await;
    let client = bounded(Client::connect(Config::new([fake.address.to_string()])).await.unwrap());
    let mut keys = Keys::default();
    let rest = client.range_into(get("ill"), &mut keys).await.unwrap();
    assert_eq!((rest.count, rest.kvs.len(), keys.begun), (20_000, 0, 2));
    assert_eq!((keys.keys.len(), &keys.keys[19_999][..]), (20_000, &b"ill19999"[..]));
    let error = client.range_into(get("refused"), &mut keys).await.unwrap_err();
    assert_eq!(error.to_string(), "rpc error: code = ResourceExhausted desc = no more");
    // Larger than the client takes: told before anything is handed on.
    let config = Config { max_recv_bytes: 1_000_000, ..Config::new([fake.address.to_string()]) };
    let client = bounded(Client::connect(config).await.unwrap());
    let begun = keys.begun;
    let error = client.range_into(get("large"), &mut keys).await.unwrap_err();
    assert!(error.to_string().contains("received message larger than max"), "{error}");
    assert_eq!(keys.begun, begun);
}

#[tokio::test]
async fn a_lease_is_renewed_until_it_is_gone() {
    let fake = Fake::start(|mut call: Call| async move {
        while let Some(request) = call.next::<pb::LeaseKeepAliveRequest>().await {
            // The renewal over the second connection finds no lease any more.
            let ttl = if call.number == 0 { 1 } else { 0 };
            call.send(&pb::LeaseKeepAliveResponse { id: request.id, ttl, ..Default::default() });
            if call.number == 0 {
                call.flushed().await;
                call.cut();
            }
        }
    })
    .await;
    let client = fake.client().await;
    let mut renewals = client.lease_keep_alive(5);
    let first = tokio::time::timeout(Duration::from_secs(5), renewals.next()).await.unwrap().unwrap();
    assert_eq!((first.id, first.ttl), (5, 1));
    assert!(tokio::time::timeout(Duration::from_secs(5), renewals.next()).await.unwrap().is_none());
    assert_eq!(fake.count("/LeaseKeepAlive"), 2);

    let error = client.lease_keep_alive_once(5).await.unwrap_err();
    assert!(error.is(text::LEASE_NOT_FOUND), "{error}");
}
