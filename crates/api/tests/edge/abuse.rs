//! What no honest client sends.

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Answers, Client, Failed, framed};
use crate::member::TestMember;

const RANGE: &str = "/etcdserverpb.KV/Range";

#[tokio::test]
async fn bytes_that_are_no_protocol_end_the_connection_and_nothing_else() {
    let member = TestMember::start();
    let mut bytes = 0x9e37_79b9_7f4a_7c15u64;
    for round in 0..40 {
        let mut stream = TcpStream::connect(member.address).await.unwrap();
        let mut junk = Vec::new();
        if round % 3 == 0 {
            junk.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        }
        for _ in 0..200 {
            bytes ^= bytes << 13;
            bytes ^= bytes >> 7;
            bytes ^= bytes << 17;
            junk.push(bytes as u8);
        }
        stream.write_all(&junk).await.unwrap();
        let _closed = stream.shutdown().await;
        let mut rest = Vec::new();
        let _reset = tokio::time::timeout(std::time::Duration::from_secs(10), stream.read_to_end(&mut rest))
            .await
            .expect("the connection is closed");
    }
    let client = Client::connect(member.address).await;
    let key = dolmen_proto::etcdserverpb::RangeRequest { key: "a".into(), ..Default::default() };
    client.unary::<dolmen_proto::etcdserverpb::RangeResponse>(RANGE, &key).await.unwrap();
}

#[tokio::test]
async fn broken_messages_are_refused_one_by_one() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    let key = framed(&[0x0a, 1, b'a']);
    let code = async |pieces: Vec<Bytes>| {
        let response = client.raw(RANGE, &[], pieces).await;
        match Answers::new(response).end().await {
            Ok(()) => 0,
            Err(failed) => failed.code,
        }
    };
    assert_eq!(code(vec![]).await, 13);
    assert_eq!(code(vec![key.slice(..4)]).await, 13);
    assert_eq!(code(vec![key.slice(..6)]).await, 13);
    assert_eq!(code(vec![framed(&[0x0a, 200])]).await, 13);
    assert_eq!(code(vec![key.clone(), key.clone()]).await, 13);
    assert_eq!(code(vec![Bytes::from_static(&[1, 0, 0, 0, 1, 0])]).await, 13);
    let response = client.raw(RANGE, &[("grpc-encoding", "gzip")], vec![key.clone()]).await;
    assert_eq!(
        Answers::new(response).end().await.unwrap_err(),
        Failed { code: 12, message: "grpc: Decompressor is not installed for grpc-encoding \"gzip\"".into() }
    );
    // Whole, however it is cut.
    let response = client.raw(RANGE, &[], vec![key.slice(..2), key.slice(2..7), key.slice(7..)]).await;
    let mut answers = Answers::new(response);
    assert!(answers.next::<dolmen_proto::etcdserverpb::RangeResponse>().await.is_some());
    answers.end().await.unwrap();
    let response = client.raw(RANGE, &[("content-type", "text/plain")], vec![]).await;
    assert_eq!(response.status(), 404);
}

#[tokio::test]
async fn calls_given_up_leave_nothing_behind() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    for _ in 0..50 {
        let (requests, answers) = client.stream("/etcdserverpb.Watch/Watch", &[]).await;
        drop((requests, answers));
        let call = client.raw(RANGE, &[], vec![framed(&[0x0a, 1, b'a'])]);
        let _given_up = tokio::time::timeout(std::time::Duration::ZERO, call).await;
    }
    for _ in 0..200 {
        let (_, _, text) = crate::client::http1(member.address, "GET", "/metrics", &[]).await;
        if text.lines().any(|line| line == "etcd_debugging_mvcc_watch_stream_total 0") {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("streams are left");
}

/// What a refused call has sent ahead counts against its connection until it is dropped.
#[tokio::test]
async fn refused_uploads_do_not_use_up_their_connection() {
    let member = TestMember::start();
    let client = Client::connect(member.address).await;
    let announced = Bytes::from_static(&[0, 0x7f, 0, 0, 0]);
    // Eight times what a connection may send ahead.
    for _ in 0..160 {
        let pieces = vec![announced.clone(), vec![0; 100_000].into(), vec![0; 100_000].into()];
        let response = client.raw(RANGE, &[], pieces).await;
        assert_eq!(Answers::new(response).end().await.unwrap_err().code, 8);
    }
    let key = dolmen_proto::etcdserverpb::RangeRequest { key: "a".into(), ..Default::default() };
    client.unary::<dolmen_proto::etcdserverpb::RangeResponse>(RANGE, &key).await.unwrap();
}
