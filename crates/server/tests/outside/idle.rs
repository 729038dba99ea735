//! Connections that say nothing, or too little.

use std::time::Instant;

use crate::server::{PATIENCE, Server};
use crate::wire::{HEADERS, PREFACE, Wire, call, frame};

/// Descriptors for both ends' worth of connections; as many as the system lets us have.
fn raise_the_limit() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(4096).min(4096);
    if limit.current.is_some_and(|current| current < wanted) {
        // Refused, it stays as it was.
        let _refused = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    }
    getrlimit(Resource::Nofile).current.map_or(4096, |current| current as usize)
}

#[test]
fn a_thousand_idle_connections_cost_little_and_keep_nobody_out() {
    let room = raise_the_limit();
    let mut server = Server::start();
    server.is_well();
    let before = server.memory();
    let count = 1000.min(room.saturating_sub(100));
    let begin = Instant::now();
    let mut held: Vec<Wire> = Vec::new();
    for number in 0..count {
        // Most of them are plain: a handshake takes time, and what it leaves is no more than the rest.
        let [plain, tls] = if number % 4 == 3 { server.peer } else { server.client };
        let mut wire = if number % 10 == 0 { tls } else { plain }.connect();
        match number % 3 {
            0 => {}
            // Half of a preface, and a whole one.
            1 => wire.send(&PREFACE[..10]).expect("it listens"),
            _ => wire.greet(),
        }
        held.push(wire);
        // A server that accepts slowly is the machine's affair; one that stops accepting is not.
        assert!(begin.elapsed() < PATIENCE, "only {number} connections were taken");
    }
    server.is_well();
    let each = server.memory().saturating_sub(before) / count as u64;
    assert!(each < 64 << 10, "{each} bytes for an idle connection");
    drop(held);
    server.is_well();
}

/// Heads that come a byte at a time: they are waited for, others are served meanwhile. (When
/// they are given up is the affair of each port: seconds for peers, minutes for clients, as in etcd.)
#[test]
fn slow_heads_hold_nobody_up() {
    let mut server = Server::start();
    let mut held = Vec::new();
    for port in server.ports() {
        for _ in 0..50 {
            let mut wire = port.connect();
            wire.send(b"POST /raft HTTP/1.1\r\nHost: x\r\nX-Slow: ").expect("it listens");
            held.push(wire);
        }
    }
    for port in server.client {
        for _ in 0..50 {
            let mut wire = port.connect();
            wire.greet();
            wire.send(&frame(HEADERS, 0, 1, &call("/etcdserverpb.KV/Range"))[..20]).expect("it listens");
            held.push(wire);
        }
    }
    for _ in 0..5 {
        for wire in &mut held {
            // One that was closed meanwhile is one less.
            let _closed = wire.send(b"x");
        }
        server.is_well();
    }
}
