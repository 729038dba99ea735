//! The same port over TLS, and over a Unix socket.

use std::sync::Arc;

use dolmen_api::{Listener, Mode};
use dolmen_net::{Bound, Room, ServerTls};
use dolmen_proto::etcdserverpb::{RangeRequest, RangeResponse};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::client::Client;
use crate::member::TestMember;

fn any() -> RangeRequest {
    RangeRequest { key: "a".into(), ..Default::default() }
}

/// A server's configuration, and clients that trust it and offer `alpn`.
fn tls() -> (ServerTls, impl Fn(&[&[u8]]) -> TlsConnector) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let connector = move |alpn: &[&[u8]]| {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let mut client = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        TlsConnector::from(Arc::new(client))
    };
    (ServerTls::from_config(server), connector)
}

#[tokio::test]
async fn one_port_speaks_tls_and_plain_grpc_and_http() {
    let member = TestMember::start();
    let (server, connector) = tls();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let listener = Listener {
        socket: Bound::Tcp(socket),
        mode: Mode::GrpcAndHttp,
        plain: true,
        tls: Some(server),
        room: Room::new(1000),
    };
    member.edge.as_ref().unwrap().listen(listener);
    let name = ServerName::try_from("localhost").unwrap();

    let stream = TcpStream::connect(address).await.unwrap();
    let stream = connector(&[b"h2"]).connect(name.clone(), stream).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let client = Client::over(stream).await;
    client.unary::<RangeResponse>("/etcdserverpb.KV/Range", &any()).await.unwrap();

    // Without ALPN, and offering HTTP/1.1 only.
    for alpn in [&[][..], &[&b"http/1.1"[..]][..]] {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream = connector(alpn).connect(name.clone(), stream).await.unwrap();
        stream.write_all(b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut text = Vec::new();
        stream.read_to_end(&mut text).await.unwrap();
        assert!(text.starts_with(b"HTTP/1.1 200 OK\r\n"));
    }

    let plain = Client::connect(address).await;
    plain.unary::<RangeResponse>("/etcdserverpb.KV/Range", &any()).await.unwrap();
}

#[tokio::test]
async fn a_unix_socket_serves_as_well() {
    let member = TestMember::start();
    let dir = std::env::temp_dir().join(format!("dolmen-api-{}", std::process::id()));
    let _absent = std::fs::remove_file(&dir);
    let socket = std::os::unix::net::UnixListener::bind(&dir).unwrap();
    let listener =
        Listener { socket: Bound::Unix(socket), mode: Mode::Grpc, plain: true, tls: None, room: Room::new(1000) };
    member.edge.as_ref().unwrap().listen(listener);
    let client = Client::over(UnixStream::connect(&dir).await.unwrap()).await;
    client.unary::<RangeResponse>("/etcdserverpb.KV/Range", &any()).await.unwrap();
    let odd = client.raw("/etcdserverpb.KV/Range", &[("content-type", "text/plain")], vec![]).await;
    assert_eq!(odd.status(), 415);
    // HTTP/1 is not spoken here.
    let mut stream = UnixStream::connect(&dir).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut text = Vec::new();
    let _reset = stream.read_to_end(&mut text).await;
    assert!(text.is_empty());
    std::fs::remove_file(&dir).unwrap();
}
