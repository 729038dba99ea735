//! HTTP/2 used against the server: frames that cost the sender nothing, by the hundred thousand.
//!
//! Each flood either ends with the connection, for a reason that is told, or is answered frame by frame without anything
//! piling up. Both are fine; what piles up is looked at in the process's memory.

use crate::server::{Port, Server};
use crate::wire::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE, call,
    frame, header,
};

const RANGE: &str = "/etcdserverpb.KV/Range";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// HTTP/2's error code for those who overdo it.
const ENHANCE_YOUR_CALM: u32 = 11;
/// What a flood may leave behind, allocator's slack included.
const LEFT_BEHIND: u64 = 48 << 20;

/// What became of a flood.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// All of it was taken, and the connection went on.
    Borne,
    /// The server closed the connection, with a reason if it got through.
    Ended(Option<(u32, String)>),
}

impl Outcome {
    /// Asserts that the server had enough, and said so where it could.
    fn was_too_much(&self, what: &str) {
        match self {
            Self::Borne => panic!("{what}: not ended"),
            Self::Ended(reason) => {
                assert!(reason.as_ref().is_none_or(|(code, _)| *code == ENHANCE_YOUR_CALM), "{what}: {reason:?}");
            }
        }
    }
}

/// Sends until the server has had enough, or there is no more.
fn pour(port: Port, rounds: u32, piece: impl Fn(u32) -> Vec<u8>) -> Outcome {
    let mut wire = port.connect();
    wire.greet();
    let refused = (0..rounds).any(|round| wire.send(&piece(round)).is_err());
    // The client leaves, and reads what there is to read.
    wire.finish();
    match wire.farewell() {
        None if !refused => Outcome::Borne,
        reason => Outcome::Ended(reason),
    }
}

/// Streams `per_round` at a time, never the same number twice.
fn streams(round: u32, per_round: u32) -> impl Iterator<Item = u32> {
    (0..per_round).map(move |n| 1 + 2 * (round * per_round + n))
}

#[test]
fn floods_are_ended_or_borne() {
    let mut server = Server::start();
    server.is_well();
    let before = server.memory();
    for port in server.client {
        for path in [RANGE, WATCH] {
            let reset = |round| {
                let one = |id| {
                    [frame(HEADERS, END_HEADERS, id, &call(path)), frame(RST_STREAM, 0, id, &8u32.to_be_bytes())]
                        .concat()
                };
                streams(round, 100).flat_map(one).collect()
            };
            pour(port, 300, reset).was_too_much("rapid resets");
        }
        for (what, piece) in [
            ("settings", frame(SETTINGS, 0, 0, &[])),
            ("settings that change something", frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])),
            ("pings", frame(PING, 0, 0, b"12345678")),
            ("priorities", frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1])),
            ("windows", frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
            ("unknown frames", frame(0x77, 0, 0, &[7; 50])),
        ] {
            let outcome = pour(port, 50, |_| piece.repeat(1000));
            assert!(outcome == Outcome::Borne, "{what}: {outcome:?}");
        }
        let empty_data = |round| {
            let head = if round == 0 { frame(HEADERS, END_HEADERS, 1, &call(WATCH)) } else { Vec::new() };
            [head, frame(DATA, 0, 1, &[]).repeat(1000)].concat()
        };
        pour(port, 50, empty_data).was_too_much("data without data");
        server.is_well();
    }
    let grown = server.memory().saturating_sub(before);
    assert!(grown < LEFT_BEHIND, "floods left {grown} bytes behind");
}

#[test]
fn heads_without_an_end_are_cut_off() {
    let mut server = Server::start();
    server.is_well();
    let before = server.memory();
    for port in server.client {
        let unended = |more: Vec<u8>| {
            move |round| {
                let head = if round == 0 { frame(HEADERS, END_STREAM, 1, &call(RANGE)) } else { Vec::new() };
                [head, frame(CONTINUATION, 0, 1, &more).repeat(100)].concat()
            }
        };
        for more in [Vec::new(), header("x-more", &"y".repeat(1000), false).repeat(10)] {
            pour(port, 200, unended(more)).was_too_much("a head without an end");
        }
        // A header of 3,900 bytes, stored once and named 12,000 times: 48 MB out of 16 KB.
        let bomb = [call(RANGE), header("x-bomb", &"y".repeat(3900), true), vec![0xbe; 12_000]].concat();
        let exploding = |round| frame(HEADERS, END_HEADERS, 1 + 2 * round, &bomb);
        pour(port, 5, exploding).was_too_much("a head of 48 MB");
        // Larger than allowed, and sent in full: this call fails, the connection and others go on.
        let large = [call(RANGE), header("x-large", &"y".repeat(15_000), false).repeat(6)].concat();
        let mut wire = port.connect();
        wire.greet();
        let pieces: Vec<&[u8]> = large.chunks(16_000).collect();
        let last = pieces.len() - 1;
        for (at, piece) in pieces.iter().enumerate() {
            let flags = if at == last { END_HEADERS } else { 0 };
            wire.send(&frame(if at == 0 { HEADERS } else { CONTINUATION }, flags, 1, piece)).expect("it listens");
        }
        loop {
            let frame = wire.frame().expect("the connection goes on");
            if frame.stream == 1 {
                assert!(frame.kind == HEADERS || frame.kind == RST_STREAM, "{frame:?}");
                break;
            }
        }
        server.is_well();
    }
    let grown = server.memory().saturating_sub(before);
    assert!(grown < LEFT_BEHIND, "heads left {grown} bytes behind");
}

/// A client that opens calls and never finishes them, or never reads what it is sent.
#[test]
fn calls_that_are_held_open_cost_little() {
    let mut server = Server::start();
    server.is_well();
    let before = server.memory();
    let mut wire = server.client[0].connect();
    wire.greet();
    for round in 0..50 {
        let opened: Vec<u8> =
            streams(round, 100).flat_map(|id| frame(HEADERS, END_HEADERS, id, &call(RANGE))).collect();
        wire.send(&opened).expect("it listens");
    }
    server.is_well();
    let each = server.memory().saturating_sub(before) / 5000;
    assert!(each < 32 << 10, "{each} bytes for an open call");
    drop(wire);

    // 100,000 answers to one who does not read: the server stops reading too, and keeps no answer for later.
    let mut deaf = server.client[0].connect();
    deaf.greet();
    deaf.give_up_sending_after(std::time::Duration::from_millis(500));
    for _ in 0..100 {
        if deaf.send(&frame(PING, 0, 0, b"12345678").repeat(1000)).is_err() {
            break;
        }
    }
    server.is_well();
    let grown = server.memory().saturating_sub(before);
    assert!(grown < 256 << 20, "{grown} bytes for one who does not read");
}

/// Messages of which the first bytes have come hold memory for those bytes, not for what they announce.
#[test]
fn announced_messages_reserve_nothing() {
    const STREAMS: u32 = 4000;
    let mut server = Server::start();
    server.is_well();
    let before = server.reserved();
    let announced = [&[0, 0, 0x20, 0, 0][..], &[b'x'; 100]].concat();
    let mut wire = server.client[0].connect();
    wire.greet();
    for round in 0..STREAMS / 100 {
        let opened = streams(round, 100).flat_map(|id| {
            [frame(HEADERS, END_HEADERS, id, &call("/etcdserverpb.KV/Put")), frame(DATA, 0, id, &announced)].concat()
        });
        wire.send(&opened.collect::<Vec<u8>>()).expect("it listens");
    }
    // Frames are read in order: once this is answered, all of them were.
    wire.send(&frame(PING, 0, 0, b"the last")).expect("it listens");
    while wire.frame().expect("the connection goes on").kind != PING {}
    server.is_well();
    let each = server.reserved().saturating_sub(before) / u64::from(STREAMS);
    assert!(each < 64 << 10, "{each} bytes reserved for a message of 100");
}
