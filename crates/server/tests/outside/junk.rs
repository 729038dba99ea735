//! Bytes that are no protocol, on every port.

use std::time::Duration;

use crate::server::{Port, Server};
use crate::wire::{PREFACE, Wire, call, frame};

/// Numbers that look random and are the same each time.
struct Noise(u64);

impl Noise {
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let next = |_| {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 as u8
        };
        (0..count).map(next).collect()
    }
}

/// What goes before the noise, so that it meets each parser.
fn beginnings() -> Vec<Vec<u8>> {
    let raft = |line: &str| {
        format!(
            "{line} HTTP/1.1\r\nHost: x\r\nX-Server-From: 2\r\nX-Server-Version: 3.7.0\r\nX-Min-Cluster-Version: 3.0.0\r\n\
             X-Etcd-Cluster-ID: 1\r\nContent-Length: 200\r\n\r\n"
        )
    };
    vec![
        Vec::new(),
        PREFACE.to_vec(),
        [PREFACE, &frame(4, 0, 0, &[])].concat(),
        [PREFACE, &frame(4, 0, 0, &[]), &frame(1, 4, 1, &call("/etcdserverpb.KV/Put"))].concat(),
        // A TLS record: of a handshake, and one that is too long.
        vec![0x16, 3, 1, 0, 200, 1, 0, 0, 196],
        vec![0x16, 3, 3, 0xff, 0xff],
        b"GET /".to_vec(),
        b"POST /v3/kv/put HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n".to_vec(),
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n".to_vec(),
        raft("POST /raft").into_bytes(),
        raft("POST /raft/snapshot").into_bytes(),
        raft("GET /raft/stream/msgapp/2").into_bytes(),
        b"POST /leases HTTP/1.1\r\nHost: x\r\nContent-Length: 200\r\n\r\n".to_vec(),
        b"POST /leases/internal HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n".to_vec(),
    ]
}

fn throw(port: Port, bytes: &[u8]) {
    // A TLS port may be spoken to in plain, and that is the more likely junk.
    for plain in [true, false] {
        let Ok(mut wire) = Wire::connect(Port { tls: port.tls && !plain, ..port }) else { continue };
        let _closed = wire.send(bytes);
        wire.finish();
        wire.read_to_end();
        if !port.tls {
            return;
        }
    }
}

#[test]
fn junk_ends_its_connection_and_nothing_else() {
    let mut server = Server::start();
    let before = server.memory();
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    for port in server.ports() {
        for beginning in beginnings() {
            for len in [0, 1, 9, 200, 3000] {
                throw(port, &[beginning.clone(), noise.bytes(len)].concat());
            }
        }
    }
    server.is_well();
    let grown = server.memory().saturating_sub(before);
    assert!(grown < 64 << 20, "junk left {grown} bytes behind");
}

/// What was acknowledged before is there after, whatever came in between.
#[test]
fn requests_cut_off_anywhere_do_nothing() {
    let mut server = Server::start();
    let put = [0x0a, 1, b'k', 0x12, 1, b'v'];
    let whole = [
        PREFACE.to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &call("/etcdserverpb.KV/Put")),
        frame(0, 0, 1, &crate::wire::message(&put)),
    ]
    .concat();
    for port in server.client {
        // The last byte is there, and the end of the stream is not: not a request yet.
        for len in (0..=whole.len()).step_by(7).chain([whole.len()]) {
            let mut wire = port.connect();
            wire.send(&whole[..len]).expect("it listens");
            wire.finish();
            wire.read_to_end();
        }
    }
    server.is_well();
    let answer = server.metrics[0].connect().http1("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let puts = answer.lines().find(|line| line.starts_with("etcd_mvcc_put_total ")).expect("a count of puts");
    assert_eq!(puts, "etcd_mvcc_put_total 0");
}

/// Connections whose client is gone without a word: the server keeps them no longer than it has to.
#[test]
fn a_client_that_vanishes_in_the_middle_is_forgotten() {
    let mut server = Server::start();
    for port in server.client {
        for _ in 0..20 {
            let mut wire = port.connect();
            wire.greet();
            wire.send(&frame(1, 4, 1, &call("/etcdserverpb.Watch/Watch"))).expect("it listens");
            wire.send(&frame(0, 0, 1, &crate::wire::message(&[0x0a, 3, 0x0a, 1, b'k']))).expect("it listens");
        }
    }
    let streams = || {
        let page = server.metrics[0].connect().http1("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let line =
            page.lines().find(|line| line.starts_with("etcd_debugging_mvcc_watch_stream_total ")).map(str::to_owned);
        line.expect("a count of streams")
    };
    let begin = std::time::Instant::now();
    while streams() != "etcd_debugging_mvcc_watch_stream_total 0" {
        assert!(begin.elapsed() < crate::server::PATIENCE, "streams of clients that are gone: {}", streams());
        std::thread::sleep(Duration::from_millis(20));
    }
    server.is_well();
}
