//! Bytes that no member sends. They may be refused in any way, as long as the port goes on working.

#![allow(clippy::disallowed_methods, reason = "a test has the real clock and real files")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::{Member, connect, heartbeat, wait};
use dolmen_env::Rng;
use dolmen_transport::{PeerAddress, PeerSender};

const HEADERS: &str = "Host: x\r\nX-Server-From: 2\r\nX-Server-Version: 3.7.0\r\nX-Min-Cluster-Version: 3.0.0\r\n\
     X-Etcd-Cluster-ID: c1\r\nX-Raft-To: 1\r\n";

fn dial(member: &Member) -> TcpStream {
    let address = member.url.split_once("://").expect("url").1;
    let stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    stream
}

/// Sends bytes and reads what comes until the other side closes.
fn exchange(member: &Member, bytes: &[u8]) -> String {
    let mut stream = dial(member);
    // The other side may close early.
    let _ = stream.write_all(bytes);
    read_all(&mut stream)
}

/// As `exchange`, but the sending half is closed at once.
fn throw(member: &Member, bytes: &[u8]) -> String {
    let mut stream = dial(member);
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    read_all(&mut stream)
}

fn read_all(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn request(line: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{line} HTTP/1.1\r\n{headers}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

fn still_works(a: &Member, b: &Member) {
    let before = a.sink.received.load(SeqCst);
    b.transport.send(vec![heartbeat(2, 1, 1)]);
    wait("a message arrives", || a.sink.received.load(SeqCst) == before + 1);
}

#[test]
fn junk_is_refused_and_forgotten() {
    let (a, b) = (Member::start(1), Member::start(2));
    connect(&a, &b);
    let mut rng = Rng::new(7);
    for round in 0..200 {
        let len = rng.below(2000) as usize;
        let mut bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        match round % 4 {
            0 => {}
            1 => bytes = request("POST /raft", HEADERS, &bytes),
            2 => bytes = request("POST /raft/snapshot", HEADERS, &bytes),
            _ => bytes.splice(0..0, *b"GET /raft/stream/msgapp/2 HTTP/1.1\r\n").for_each(drop),
        }
        throw(&a, &bytes);
    }
    still_works(&a, &b);
    assert!(a.sink.snapshots.lock().is_empty());
}

#[test]
fn refusals_have_etcds_statuses_and_bodies() {
    let a = Member::start(1);
    a.transport.set_peers(vec![], vec![0xdead]);
    std::thread::sleep(Duration::from_millis(100));
    let ask = |line: &str, headers: &str, body: &[u8]| {
        let headers = format!("{headers}Connection: close\r\n");
        let answer = exchange(&a, &request(line, &headers, body));
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        (head[9..12].to_owned(), body.to_owned(), head.to_ascii_lowercase())
    };
    let is = |answer: &(String, String, String), status: &str, body: &str| {
        assert_eq!((answer.0.as_str(), answer.1.as_str()), (status, body));
    };
    is(&ask("GET /raft", HEADERS, b""), "405", "Method Not Allowed\n");
    is(&ask("POST /raft/stream/message/2", HEADERS, b""), "405", "Method Not Allowed\n");
    is(&ask("POST /raft", HEADERS, b"\xff"), "400", "error unmarshalling raft message\n");
    let old = HEADERS.replace("3.7.0", "2.3.0");
    is(&ask("POST /raft", &old, b""), "412", "incompatible version\n");
    let foreign = HEADERS.replace("c1", "c2");
    let answer = ask("GET /raft/stream/message/2", &foreign, b"");
    is(&answer, "412", "cluster ID mismatch\n");
    assert!(answer.2.contains("x-etcd-cluster-id: c1") && answer.2.contains("x-server-version: 3.7.3"));
    is(&ask("GET /raft/stream/message/2", HEADERS, b""), "404", "error sender not found\n");
    is(&ask("GET /raft/stream/message/zz", HEADERS, b""), "404", "invalid from\n");
    is(&ask("GET /raft/stream/other/2", HEADERS, b""), "404", "invalid path\n");
    is(&ask("GET /raft/stream/msgapp/dead", HEADERS, b""), "410", "removed member\n");
    // A heartbeat to member 3 (field 2), and one from a removed member (field 3).
    let mismatch = "{\"message\":\"cannot process message to mismatch member\"}";
    is(&ask("POST /raft", HEADERS, &[8, 8, 16, 3]), "403", mismatch);
    let removed = "{\"message\":\"cannot process message from removed member\"}";
    is(&ask("POST /raft", HEADERS, &[8, 8, 16, 1, 24, 0xad, 0xbd, 3]), "403", removed);
    is(&ask("POST /raft", HEADERS, &[8, 8, 16, 1, 24, 2]), "204", "");
    is(&ask("POST /raft", HEADERS, &[8, 7, 16, 1, 24, 2]), "400", "wrong raft message type\n");
    let too_long = [0, 0, 0, 0, 4, 0, 0, 1];
    let answer = ask("POST /raft/snapshot", HEADERS, &too_long);
    is(&answer, "400", "failed to decode raft message (rafthttp: error limit exceeded)\n");
    is(&ask("POST /raft/snapshot", HEADERS, &[0, 0, 0, 0, 0, 0, 0, 2, 8, 8]), "400", "wrong raft message type\n");
    let probe = ask("GET /raft/probing", "Host: x\r\n", b"");
    assert!(probe.1.starts_with("{\"OK\":true,\"Now\":\"20"), "{}", probe.1);

    let b = Member::start(2);
    a.transport.set_peers(vec![b.address()], vec![0xdead]);
    std::thread::sleep(Duration::from_millis(200));
    let elsewhere = HEADERS.replace("X-Raft-To: 1", "X-Raft-To: 5");
    is(&ask("GET /raft/stream/message/2", &elsewhere, b""), "412", "to field mismatch\n");
}

#[test]
fn a_thousand_idle_connections_do_no_harm() {
    let (a, b) = (Member::start(1), Member::start(2));
    connect(&a, &b);
    // Both ends are in this process; where that is over its limit of descriptors, as many as there may be.
    let mut idle = Vec::new();
    for number in 0..1000 {
        let address = a.url.split_once("://").expect("url").1;
        let Ok(mut stream) = TcpStream::connect(address) else { break };
        // Half of them begin a request.
        if number % 2 == 0 && stream.write_all(b"POST /raft HTTP/1.1\r\nHost: x\r\nContent-Le").is_err() {
            break;
        }
        idle.push(stream);
        if idle.len() >= 400 && std::fs::read_dir("/proc/self/fd").is_ok_and(|list| list.count() > 900) {
            break;
        }
    }
    assert!(idle.len() >= 200);
    still_works(&a, &b);
    // They are closed before long.
    let stream = idle.last_mut().expect("some");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    let mut rest = Vec::new();
    assert!(stream.read_to_end(&mut rest).is_ok(), "closed, not waited for");
    still_works(&a, &b);
}

/// A peer whose streams are bad: whatever is dialled answers with these bytes.
fn bad_peer(answers: &'static [u8]) -> String {
    let listener = common::bind();
    let url = format!("http://{}", listener.local_addr().expect("address"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(answers);
        }
    });
    url
}

#[test]
fn bad_streams_are_closed_and_dialled_again() {
    const OK: &str = "HTTP/1.1 200 OK\r\nX-Server-Version: 3.7.0\r\n\r\n";
    let bodies: [&[u8]; 6] = [
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x00\x00\x00\x00\x1f\xff\xff\xffshort",
        b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00\x1f\xff\xff\xff",
        b"\x02\x00\x00\x00\x00\x00\x00\x00\x04\xff\xff\xff\xff",
        b"\x07",
        b"",
    ];
    let a = Member::start(1);
    let mut peers = Vec::new();
    for (number, body) in bodies.into_iter().enumerate() {
        let answer: &'static [u8] = [OK.as_bytes(), body].concat().leak();
        peers.push(PeerAddress { id: 10 + number as u64, urls: vec![bad_peer(answer)] });
    }
    peers.push(PeerAddress { id: 20, urls: vec![bad_peer(b"SSH-2.0-x\r\n")] });
    peers.push(PeerAddress { id: 21, urls: vec![bad_peer(b"HTTP/1.1 200 OK\r\nX-Server-Version: no\r\n\r\n")] });
    peers.push(PeerAddress { id: 22, urls: vec!["nonsense".into()] });
    let b = Member::start(2);
    peers.push(b.address());
    a.transport.set_peers(peers, vec![]);
    b.transport.set_peers(vec![a.address()], vec![]);
    common::settle(&a, &b);
    std::thread::sleep(Duration::from_secs(1));
    still_works(&a, &b);
    assert_eq!(a.sink.received.load(SeqCst), 1);
}
