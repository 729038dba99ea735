//! Renewals of leases between members: in a row, in order, and never in the way of anything else.

#![allow(clippy::disallowed_methods, reason = "a test has the real clock and real sockets")]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{Member, bind};
use dolmen_transport::{LeasePipes, PeerClient, PipeAnswer};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime")
}

fn pipes() -> LeasePipes {
    LeasePipes::new(PeerClient::new(None, Duration::from_secs(1)), 1)
}

async fn ask(pipes: &LeasePipes, url: &str, body: &str) -> Option<PipeAnswer> {
    pipes.post(0, url, body.as_bytes())?.await
}

#[test]
fn answers_come_in_the_order_of_the_requests() {
    let member = Member::start(1);
    let pipes = pipes();
    runtime().block_on(async {
        for round in 0..3 {
            // Some are answered at once and some are not; nobody is overtaken.
            let bodies: Vec<String> = (0..500).map(|i| format!("{}{round}-{i}", ["!", "?"][i % 7 / 6])).collect();
            let pending: Vec<_> = bodies.iter().map(|body| pipes.post(0, &member.url, body.as_bytes())).collect();
            for (body, pending) in bodies.iter().zip(pending) {
                let (status, answer) = pending.expect("there is a pipe").await.expect("an answer");
                let expected = match body.strip_prefix('!') {
                    Some(rest) => rest.to_owned(),
                    None => format!("POST /leases {body}"),
                };
                assert_eq!((status, answer), (200, Bytes::from(expected)));
            }
        }
        assert!(pipes.post(1, &member.url, b"!").is_none(), "no such runtime");
    });
}

#[test]
fn who_gives_up_leaves_the_others_their_answers() {
    let member = Member::start(1);
    let pipes = pipes();
    runtime().block_on(async {
        let first = pipes.post(0, &member.url, b"!first");
        drop(pipes.post(0, &member.url, b"!gone"));
        let last = pipes.post(0, &member.url, b"!last");
        for (pending, expected) in [(first, "first"), (last, "last")] {
            assert_eq!(pending.expect("a pipe").await, Some((200, Bytes::from(expected))));
        }
    });
}

/// A server that hands over what it reads and answers what it is told.
fn server(answers: Vec<&'static str>) -> (String, Receiver<String>, JoinHandle<()>) {
    let listener = bind();
    let url = format!("http://{}", listener.local_addr().expect("address"));
    let (seen, requests) = channel();
    let thread = std::thread::spawn(move || serve(&listener, &answers, &seen));
    (url, requests, thread)
}

/// One connection for each answer; an empty one leaves the client waiting.
fn serve(listener: &TcpListener, answers: &[&str], seen: &std::sync::mpsc::Sender<String>) {
    for answer in answers {
        let (mut stream, _) = listener.accept().expect("accepts");
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).expect("reads");
        seen.send(String::from_utf8_lossy(&buffer[..read]).into_owned()).expect("is waited for");
        stream.write_all(answer.as_bytes()).expect("writes");
        if answer.is_empty() {
            // Until the client goes.
            assert_eq!(stream.read(&mut buffer).expect("reads"), 0);
        }
    }
}

#[test]
fn requests_are_etcds() {
    let (url, requests, thread) = server(vec!["HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno"]);
    let host = url.strip_prefix("http://").expect("a URL").to_owned();
    runtime().block_on(async {
        assert_eq!(ask(&pipes(), &url, "id").await, Some((404, Bytes::from("no"))));
    });
    assert_eq!(
        requests.recv().expect("a request"),
        format!(
            "POST /leases HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/protobuf\r\nContent-Length: 2\r\n\r\nid"
        )
    );
    thread.join().expect("served");
}

#[test]
fn a_peer_that_does_not_answer_is_given_up_and_left_alone_for_a_while() {
    let (url, _requests, thread) = server(vec!["", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"]);
    let pipes = pipes();
    runtime().block_on(async {
        let begin = Instant::now();
        let (first, second) = (pipes.post(0, &url, b"1"), pipes.post(0, &url, b"2"));
        assert_eq!((first.expect("a pipe").await, second.expect("a pipe").await), (None, None));
        assert!((400..5_000).contains(&begin.elapsed().as_millis()), "after {:?}", begin.elapsed());
        assert!(pipes.post(0, &url, b"3").is_none(), "too soon");
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        assert_eq!(ask(&pipes, &url, "4").await, Some((200, Bytes::from("ok"))));
    });
    thread.join().expect("served");
}

#[test]
fn a_peer_far_away_is_given_more_time_until_it_answers() {
    let listener = bind();
    let url = format!("http://{}", listener.local_addr().expect("address"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("accepts");
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).is_ok_and(|read| read > 0) {
                    std::thread::sleep(Duration::from_millis(700));
                    if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                        return;
                    }
                }
            });
        }
    });
    let pipes = pipes();
    runtime().block_on(async {
        let begin = Instant::now();
        while ask(&pipes, &url, "id").await.is_none() {
            assert!(begin.elapsed() < Duration::from_secs(30), "each connection is given up just before it answers");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}

#[test]
fn what_cannot_be_told_apart_is_no_answer() {
    for answer in [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nok",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
        "SSH-2.0-OpenSSH\r\n",
    ] {
        let (url, _requests, thread) = server(vec![answer]);
        runtime().block_on(async {
            assert_eq!(ask(&pipes(), &url, "id").await, None, "{answer:?}");
        });
        thread.join().expect("served");
    }
    // Nobody there, and no URL at all.
    let nobody = format!("http://{}", bind().local_addr().expect("address"));
    runtime().block_on(async {
        assert_eq!(ask(&pipes(), &nobody, "id").await, None);
        assert_eq!(ask(&pipes(), "nonsense", "id").await, None);
    });
}

// ---- the side that answers ----

fn dial(member: &Member) -> TcpStream {
    let stream = TcpStream::connect(member.url.strip_prefix("http://").expect("a URL")).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    stream
}

/// Bodies of answers until the other side closes, or as many as are wanted.
fn bodies(stream: &mut TcpStream, wanted: usize) -> Vec<String> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let mut found = Vec::new();
        let mut rest = text.as_str();
        while let Some((head, tail)) = rest.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
            let length: usize = length.parse().expect("a number");
            if tail.len() < length {
                break;
            }
            assert!(head.contains("date: "), "{head}");
            found.push(format!("{} {}", &head[9..12], &tail[..length]));
            rest = &tail[length..];
        }
        if found.len() >= wanted {
            return found;
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return found,
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
        }
    }
}

fn renewal(body: &str) -> String {
    // As Go writes it.
    format!(
        "POST /leases HTTP/1.1\r\nHost: x\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: {}\r\n\
         Content-Type: application/protobuf\r\nAccept-Encoding: gzip\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn a_connection_may_bring_renewals_and_then_anything_else() {
    let member = Member::start(1);
    let mut stream = dial(&member);
    let other = "GET /version HTTP/1.1\r\nHost: x\r\n\r\n";
    let all = [&renewal("!a"), &renewal("slow"), &renewal("!b"), other, &renewal("!c"), other].concat();
    stream.write_all(all.as_bytes()).expect("writes");
    let expected =
        ["200 a", "200 POST /leases slow", "200 b", "200 GET /version ", "200 POST /leases !c", "200 GET /version "];
    assert_eq!(bodies(&mut stream, expected.len()), expected);
}

#[test]
fn renewals_may_come_in_pieces() {
    let member = Member::start(1);
    let mut stream = dial(&member);
    stream.set_nodelay(true).expect("sets");
    let both = renewal("!first") + &renewal("!second");
    for piece in both.as_bytes().chunks(37) {
        stream.write_all(piece).expect("writes");
        std::thread::sleep(Duration::from_millis(3));
    }
    assert_eq!(bodies(&mut stream, 2), ["200 first", "200 second"]);
}

#[test]
fn whatever_is_not_plain_is_left_to_the_web_server() {
    let member = Member::start(1);
    for (request, expected) in [
        (
            "POST /leases HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n!a\r\n0\r\n\r\n",
            "200 POST /leases !a",
        ),
        ("POST /leases HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n!a", "200 POST /leases !a"),
        ("POST /leases HTTP/1.1\r\nHost: x\r\n\r\n", "200 POST /leases "),
        ("POST /leases HTTP/1.0\r\nContent-Length: 2\r\n\r\n!a", "200 POST /leases !a"),
        ("PUT /leases HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n!a", "200 PUT /leases !a"),
        ("POST /leases/internal HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n!a", "200 POST /leases/internal !a"),
    ] {
        let mut stream = dial(&member);
        stream.write_all(request.as_bytes()).expect("writes");
        assert_eq!(bodies(&mut stream, 1), [expected], "{request:?}");
    }
    for junk in [
        "POST /leases HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n!a".to_owned(),
        "POST /leases HTTP/1.1\r\nHost: x\r\nContent-Length: +2\r\n\r\n!a".to_owned(),
        "POST /leases HTTP/1.1\r\n\u{1}\r\n\r\n".to_owned(),
        format!("POST /leases HTTP/1.1\r\nHost: {}", "x".repeat(1 << 20)),
    ] {
        let mut stream = dial(&member);
        // The other side may close before it has read all.
        let _ = stream.write_all(junk.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
}
