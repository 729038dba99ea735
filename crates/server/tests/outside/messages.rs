//! gRPC calls whose messages are none: they are refused with the codes of grpc-go, and so of etcd, on every method.

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use tokio::net::TcpStream;

use crate::server::{Port, Server};

const UNARY: &[&str] = &[
    "KV/Range",
    "KV/Put",
    "KV/Txn",
    "KV/DeleteRange",
    "KV/Compact",
    "Lease/LeaseGrant",
    "Lease/LeaseRevoke",
    "Lease/LeaseTimeToLive",
    "Lease/LeaseLeases",
    "Cluster/MemberList",
    "Maintenance/Alarm",
    "Maintenance/Status",
    "Maintenance/Defragment",
    "Maintenance/Hash",
    "Maintenance/HashKV",
    "Maintenance/MoveLeader",
    "Auth/AuthStatus",
    "Auth/Authenticate",
];
/// Refused as a whole until they are carried out.
const LATER: &[&str] = &[
    "Cluster/MemberAdd",
    "Cluster/MemberRemove",
    "Cluster/MemberUpdate",
    "Cluster/MemberPromote",
    "Maintenance/Downgrade",
    "Auth/AuthEnable",
    "Auth/AuthDisable",
    "Auth/UserAdd",
    "Auth/RoleAdd",
];
const BIDI: &[&str] = &["Watch/Watch", "Lease/LeaseKeepAlive"];

const OK: u32 = 0;
const RESOURCE_EXHAUSTED: u32 = 8;
const UNIMPLEMENTED: u32 = 12;
const INTERNAL: u32 = 13;

/// A message with gRPC's prefix, whatever the prefix says.
fn prefixed(flag: u8, len: u32, bytes: &[u8]) -> Bytes {
    let mut framed = vec![flag];
    framed.extend(len.to_be_bytes());
    framed.extend(bytes);
    framed.into()
}

fn whole(bytes: &[u8]) -> Bytes {
    prefixed(0, bytes.len() as u32, bytes)
}

/// What is no message, and the code it is answered with.
fn broken() -> Vec<(&'static str, Bytes, u32)> {
    vec![
        ("nothing", Bytes::new(), INTERNAL),
        ("half a prefix", Bytes::from_static(&[0, 0, 0]), INTERNAL),
        ("a prefix alone", prefixed(0, 5, &[]), INTERNAL),
        ("less than the prefix says", prefixed(0, 9, &[0x0a, 1, b'a']), INTERNAL),
        ("far more than is allowed", prefixed(0, u32::MAX, &[0x0a, 1, b'a']), RESOURCE_EXHAUSTED),
        ("a field longer than the message", whole(&[0x0a, 100, b'a']), INTERNAL),
        ("a number without an end", whole(&[0x08, 0xff, 0xff, 0xff]), INTERNAL),
        ("a number of eleven bytes", whole(&[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]), INTERNAL),
        ("a field of no type", whole(&[0x0e, 1]), INTERNAL),
        ("a field without a number", whole(&[0x02, 1, b'a']), INTERNAL),
        ("a group without an end", whole(&[0xa3, 0x3f, 0x08, 1]), INTERNAL),
        ("an end without a group", whole(&[0xa4, 0x3f]), INTERNAL),
        ("compressed with nothing", prefixed(1, 3, &[0x0a, 1, b'a']), INTERNAL),
    ]
}

/// Fields of a later release, of every type.
const UNKNOWN: &[u8] = &[
    0xa0, 0x3f, 0x07, // a number
    0xa1, 0x3f, 1, 2, 3, 4, 5, 6, 7, 8, // eight bytes
    0xa2, 0x3f, 3, 0xff, 0xfe, 0xfd, // bytes
    0xa3, 0x3f, 0x08, 1, 0xa4, 0x3f, // a group
    0xa5, 0x3f, 1, 2, 3, 4, // four bytes
];

struct Client(SendRequest<Bytes>);

impl Client {
    async fn connect(port: Port) -> Self {
        let tcp = TcpStream::connect(port.address).await.expect("it listens");
        let sender = if port.tls {
            let tls = tokio_rustls::TlsConnector::from(crate::wire::trusting(&[b"h2"]));
            let name = rustls::pki_types::ServerName::try_from("localhost").expect("a name");
            let (sender, connection) =
                h2::client::handshake(tls.connect(name, tcp).await.expect("TLS")).await.expect("HTTP/2");
            tokio::spawn(connection);
            sender
        } else {
            let (sender, connection) = h2::client::handshake(tcp).await.expect("HTTP/2");
            tokio::spawn(connection);
            sender
        };
        Self(sender)
    }

    /// Sends the pieces of a call's body, and returns its status and how many messages were answered.
    async fn call(&self, method: &str, pieces: &[Bytes]) -> (u32, String, usize) {
        self.exchange(method, pieces, false).await
    }

    /// As `call`, but the sending side stays open until something is answered: one who leaves at once may miss it.
    async fn converse(&self, method: &str, pieces: &[Bytes]) -> (u32, String, usize) {
        self.exchange(method, pieces, true).await
    }

    async fn exchange(&self, method: &str, pieces: &[Bytes], stays: bool) -> (u32, String, usize) {
        let request = Request::post(format!("http://localhost/etcdserverpb.{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .expect("a request");
        let mut sender = self.0.clone().ready().await.expect("the connection goes on");
        let (response, mut stream) = sender.send_request(request, false).expect("a stream");
        for piece in pieces {
            // An answer may come before all is sent.
            let _answered = stream.send_data(piece.clone(), false);
        }
        if !stays {
            let _answered = stream.send_data(Bytes::new(), true);
        }
        let (head, mut body) = response.await.expect("an answer").into_parts();
        let mut received = Vec::new();
        let mut open = stays;
        while let Some(data) = body.data().await {
            // The rest of a call that failed early may be refused.
            let Ok(data) = data else { break };
            let _counted = body.flow_control().release_capacity(data.len());
            received.extend(data);
            if std::mem::take(&mut open) {
                let _ended = stream.send_data(Bytes::new(), true);
            }
        }
        let trailers = body.trailers().await.ok().flatten();
        let status = |headers: &HeaderMap| {
            let code = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
            let text = headers.get("grpc-message").map_or("", |text| text.to_str().unwrap_or_default());
            Some((code, text.to_owned()))
        };
        let (code, text) = trailers.as_ref().and_then(status).or_else(|| status(&head.headers)).expect("a status");
        let mut messages = 0;
        let mut rest = &received[..];
        while let Some(len) = rest.get(1..5).and_then(|len| len.try_into().ok()).map(u32::from_be_bytes) {
            messages += 1;
            rest = rest.get(5 + len as usize..).unwrap_or_default();
        }
        (code, text, messages)
    }
}

fn run(test: impl AsyncFnOnce()) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test());
}

#[test]
fn broken_messages_get_etcds_codes_on_every_method() {
    let mut server = Server::start();
    let before = server.memory();
    run(async || {
        let mut wrong = Vec::new();
        for port in server.client {
            let client = Client::connect(port).await;
            for method in UNARY.iter().chain(LATER).chain(BIDI) {
                for (what, bytes, code) in broken() {
                    // To say nothing is a stream's right.
                    let code = if bytes.is_empty() && BIDI.contains(method) { OK } else { code };
                    let (answer, text, messages) = client.call(method, &[bytes]).await;
                    let later = LATER.contains(method) && answer == UNIMPLEMENTED;
                    if !later && (answer, messages) != (code, 0) {
                        wrong.push(format!("{method}, {what}: {answer} {text:?}, {messages} messages; wanted {code}"));
                    }
                }
            }
            // The snapshot's request has no fields; its answer is the whole store.
            let (answer, ..) = client.call("Maintenance/Snapshot", &[prefixed(0, 9, &[1])]).await;
            assert_eq!(answer, INTERNAL);
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
    server.is_well();
    let grown = server.memory().saturating_sub(before);
    assert!(grown < 64 << 20, "broken messages left {grown} bytes behind");
}

#[test]
fn streams_end_at_the_broken_message_and_not_before() {
    let mut server = Server::start();
    run(async || {
        for port in server.client {
            let client = Client::connect(port).await;
            let watch = whole(&[0x0a, 3, 0x0a, 1, b'k']);
            let renew = whole(&[0x08, 77]);
            for (method, good) in [("Watch/Watch", &watch), ("Lease/LeaseKeepAlive", &renew)] {
                for (what, bytes, code) in broken().into_iter().skip(1) {
                    let (answer, text, messages) = client.call(method, &[good.clone(), bytes]).await;
                    assert_eq!(answer, code, "{method}, {what}: {text:?}");
                    assert!(messages <= 1, "{method}, {what}: {messages} answers to one request");
                }
                let split: Vec<Bytes> = good.chunks(1).map(Bytes::copy_from_slice).collect();
                let (answer, text, messages) = client.converse(method, &split).await;
                assert_eq!((answer, messages), (OK, 1), "{method}, a byte at a time: {text:?}");
            }
        }
    });
    server.is_well();
}

#[test]
fn fields_of_a_later_release_are_passed_over() {
    let mut server = Server::start();
    run(async || {
        for port in server.client {
            let client = Client::connect(port).await;
            let put = [&[0x0a, 1, b'k', 0x12, 1, b'v'], UNKNOWN].concat();
            let (code, text, messages) = client.call("KV/Put", &[whole(&put)]).await;
            assert_eq!((code, messages), (OK, 1), "{text:?}");
            let range = [UNKNOWN, &[0x0a, 1, b'k'], UNKNOWN].concat();
            let (code, text, messages) = client.call("KV/Range", &[whole(&range)]).await;
            assert_eq!((code, messages), (OK, 1), "{text:?}");
            // Inside of an operation inside of a transaction, too: it goes through the log as it came.
            let request = [&[0x0a, range.len() as u8], &range[..]].concat();
            let txn = [&[0x12, request.len() as u8], &request[..], UNKNOWN].concat();
            let (code, text, messages) = client.call("KV/Txn", &[whole(&txn)]).await;
            assert_eq!((code, messages), (OK, 1), "{text:?}");
            let create = [&[0x0a, 1, b'k'], UNKNOWN].concat();
            let create = [&[0x0a, create.len() as u8], &create[..], UNKNOWN].concat();
            let (code, text, messages) = client.converse("Watch/Watch", &[whole(&create)]).await;
            assert_eq!((code, messages), (OK, 1), "{text:?}");
            let renew = [&[0x08, 77], UNKNOWN].concat();
            let (code, text, messages) = client.call("Lease/LeaseKeepAlive", &[whole(&renew)]).await;
            assert_eq!((code, messages), (OK, 1), "{text:?}");
        }
    });
    server.is_well();
}

/// A request as large as is allowed goes through; one a little larger is refused by name, and one that is far larger before
/// it has been read.
#[test]
fn large_requests_are_refused_with_etcds_words() {
    let mut server = Server::start();
    let before = server.memory();
    run(async || {
        for port in server.client {
            let client = Client::connect(port).await;
            let put = |bytes: usize| {
                let mut value = vec![0x0a, 1, b'k', 0x12];
                let mut len = bytes;
                while len >= 128 {
                    value.push(len as u8 | 128);
                    len >>= 7;
                }
                value.push(len as u8);
                value.extend(vec![b'v'; bytes]);
                whole(&value)
            };
            let (code, text, _) = client.call("KV/Put", &[put(1_500_000)]).await;
            assert_eq!(code, OK, "{text:?}");
            let (code, text, _) = client.call("KV/Put", &[put(1_600_000)]).await;
            assert_eq!((code, text.as_str()), (3, "etcdserver: request is too large"));
            let (code, text, _) = client.call("KV/Put", &[put(4_000_000)]).await;
            assert_eq!(code, RESOURCE_EXHAUSTED, "{text:?}");
            assert!(text.starts_with("grpc: received message larger than max ("), "{text:?}");
        }
    });
    server.is_well();
    let grown = server.memory().saturating_sub(before);
    assert!(grown < 96 << 20, "large requests left {grown} bytes behind");
}
