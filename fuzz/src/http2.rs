//! Connections of clients: frames of an honest one, damaged, through the session as a connection drives it.

use bytes::Bytes;
use dolmen_env::Rng;
use dolmen_http2::{Event, Field, Limits, PREFACE, Session, Status, StreamId};

use crate::mutate::mutate;
use crate::{Reached, Target};

const LIMITS: Limits =
    Limits { streams: 100, header_bytes: 16 << 10, stream_window: 256 << 10, connection_window: 1 << 20 };
/// HEADERS with the flags that make it whole.
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 4;
const END_STREAM: u8 = 1;

pub struct Http2;

impl Http2 {
    pub fn new() -> Self {
        Self
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A gRPC call's fields: static ones, literals, one for the table, and names of what is there.
fn head(rng: &mut Rng) -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0x44, 4, b'/', b'a', b'/', b'b', 0x41, 1, b'x'];
    if rng.chance(500) {
        block.extend(b"\x40\x02te\x08trailers");
    }
    block.extend(b"\x00\x05hello\x85\xaa\xaa\xaa\xaa\xff");
    if rng.chance(300) {
        block.extend([0xbe, 0xbf, 0xc0]);
    }
    block
}

fn anything(rng: &mut Rng) -> Vec<u8> {
    let stream = (1 + 2 * rng.below(6)) as u32;
    let flags = rng.next_u64() as u8;
    let body: Vec<u8> = (0..rng.below(40)).map(|_| rng.next_u64() as u8).collect();
    match rng.below(12) {
        0..=3 => frame(HEADERS, END_HEADERS | flags & END_STREAM, stream, &head(rng)),
        4 | 5 => frame(0, flags & END_STREAM, stream, &body),
        6 => frame(3, 0, stream, &[0, 0, 0, 8]),
        7 => frame(8, 0, if rng.chance(500) { stream } else { 0 }, &(rng.next_u64() as u32 >> 8).to_be_bytes()),
        8 => frame(4, 0, 0, &[0, 1 + rng.below(6) as u8, 0, 0, rng.next_u64() as u8, rng.next_u64() as u8]),
        9 => frame(6, flags & 1, 0, &[7; 8]),
        10 => frame(9, flags & END_HEADERS, stream, &body),
        _ => frame(rng.next_u64() as u8, flags, stream, &body),
    }
}

impl Target for Http2 {
    fn case(&mut self, rng: &mut Rng) -> Reached {
        let mut bytes: Vec<u8> = (0..1 + rng.below(30)).flat_map(|_| anything(rng)).collect();
        if rng.chance(700) {
            mutate(rng, &mut bytes);
        }
        let bytes = [PREFACE, &frame(4, 0, 0, &[]), &bytes].concat();
        let mut session = Session::new(LIMITS);
        let mut events = Vec::new();
        let mut streams: Vec<StreamId> = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let end = bytes.len().min(at + 1 + rng.below(200) as usize);
            if session.receive(&bytes[at..end]).is_err() {
                return Reached::Refused;
            }
            at = end;
            session.events(&mut events);
            for event in events.drain(..) {
                if let Event::Request(stream) = event {
                    begin(rng, &mut session, stream, &mut streams);
                }
            }
            let stream = streams.get(rng.below(streams.len().max(1) as u64) as usize).copied().unwrap_or(1);
            go_on(rng, &mut session, stream);
            let mut out = Vec::new();
            if session.send(&mut out).is_err() {
                return Reached::Refused;
            }
        }
        if session.status() == Status::Over { Reached::Refused } else { Reached::Accepted }
    }
}

fn begin(rng: &mut Rng, session: &mut Session, stream: StreamId, streams: &mut Vec<StreamId>) {
    let Some((head, _body)) = session.take_request(stream) else { return };
    assert!(head.get(":path").is_some() || head.get(":method") == Some(b"CONNECT"), "a request without a path");
    session.accept(stream, streams.len());
    streams.push(stream);
    match rng.below(3) {
        0 => session.answer(stream, &[("a", "b")], [Bytes::from_static(&[1; 3000])], [None, None]),
        1 => session.respond_static(stream, &[], true),
        _ => {}
    }
}

/// Calls of a handler at any time, also of streams that are over.
fn go_on(rng: &mut Rng, session: &mut Session, stream: StreamId) {
    match rng.below(8) {
        0 => drop(session.push(stream, Bytes::from(vec![2; rng.below(100_000) as usize]))),
        1 => session.finish(stream, [Some(Field { name: "s", value: rng.below(100).to_string().into() }), None]),
        2 => {
            let (body, _ended) = session.take_body(stream);
            session.consume(stream, body.len());
        }
        3 => session.respond(stream, "404", [(&b"x"[..], &b"y"[..])], rng.chance(500)),
        4 => session.ping(),
        5 if rng.chance(100) => session.announce_shutdown(),
        6 if rng.chance(100) => session.shut_down(),
        _ => {}
    }
}
