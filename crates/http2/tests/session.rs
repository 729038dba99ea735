//! A session against a client made of frames: what it does for honest ones, and what others cannot make it do.

use bytes::Bytes;
use dolmen_http2::{Event, Field, Limits, NUISANCES, PREFACE, Session, Status, StreamId};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const PRIORITY_UPDATE: u8 = 16;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const ENHANCE_YOUR_CALM: u32 = 11;
const INITIAL_WINDOW: usize = 65_535;

const LIMITS: Limits =
    Limits { streams: u32::MAX, header_bytes: 64 << 10, stream_window: 1 << 20, connection_window: 4 << 20 };

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A field as a plain literal; `indexed` ones go into the receiver's table.
fn field(name: &str, value: &str, indexed: bool) -> Vec<u8> {
    let text = |text: &str| {
        let mut bytes = vec![text.len().min(127) as u8];
        if text.len() >= 127 {
            let mut left = text.len() - 127;
            while left >= 128 {
                bytes.push(left as u8 | 128);
                left >>= 7;
            }
            bytes.push(left as u8);
        }
        [&bytes, text.as_bytes()].concat()
    };
    [vec![if indexed { 0x40 } else { 0 }], text(name), text(value)].concat()
}

fn call() -> Vec<u8> {
    let fields = [(":method", "POST"), (":scheme", "http"), (":path", "/a/b"), (":authority", "x"), ("te", "trailers")];
    fields.iter().flat_map(|(name, value)| field(name, value, false)).collect()
}

fn open(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &call())
}

#[derive(Debug, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// A session that has been greeted with settings of the client, and what it says.
struct Server {
    session: Session,
    said: Vec<u8>,
}

impl Server {
    fn greeted(settings: &[u8]) -> Self {
        let mut server = Self { session: Session::new(LIMITS), said: Vec::new() };
        server.receive(&[PREFACE, &frame(SETTINGS, 0, 0, settings)].concat());
        let settings = server.frames();
        assert!(settings.iter().any(|frame| frame.kind == SETTINGS && frame.flags == 0));
        assert!(settings.iter().any(|frame| frame.kind == SETTINGS && frame.flags == ACK));
        server.receive(&frame(SETTINGS, ACK, 0, &[]));
        server
    }

    fn new() -> Self {
        Self::greeted(&[])
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.session.receive(bytes).unwrap();
    }

    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.session.events(&mut events);
        events
    }

    /// Everything that it has to say now.
    fn frames(&mut self) -> Vec<Frame> {
        loop {
            let mut out = Vec::new();
            self.session.send(&mut out).unwrap();
            if out.is_empty() {
                break;
            }
            self.said.extend(out);
        }
        let mut frames = Vec::new();
        let mut rest = &self.said[..];
        while let Some((head, after)) = rest.split_first_chunk::<9>() {
            let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            frames.push(Frame { kind: head[3], flags: head[4], stream, payload: after[..len].to_vec() });
            rest = &after[len..];
        }
        self.said.clear();
        frames
    }

    fn answer(&mut self, stream: StreamId, body: &[&'static str]) {
        let status = Field { name: "grpc-status", value: "0".into() };
        let body = body.iter().map(|piece| Bytes::from_static(piece.as_bytes()));
        self.session.answer(stream, &[("content-type", "application/grpc")], body, [Some(status), None]);
    }

    /// Pours pieces in until the session has had enough, and returns the code of its farewell.
    fn drown(&mut self, pieces: impl Iterator<Item = Vec<u8>>) -> Option<u32> {
        for piece in pieces {
            if let Err(error) = self.session.receive(&piece) {
                return Some(code(&error.farewell()));
            }
            // As a connection does: nothing is read while something is unsent.
            self.frames();
            self.events();
        }
        None
    }
}

fn code(goaway: &[u8]) -> u32 {
    assert_eq!((goaway.len(), goaway[3]), (17, GOAWAY));
    u32::from_be_bytes(goaway[13..].try_into().unwrap())
}

fn data(frames: &[Frame], stream: u32) -> Vec<u8> {
    frames.iter().filter(|frame| frame.kind == DATA && frame.stream == stream).flat_map(|f| f.payload.clone()).collect()
}

#[test]
fn a_call_that_came_whole_is_answered_at_once() {
    let mut server = Server::new();
    server.receive(&[open(1), frame(DATA, END_STREAM, 1, b"ask")].concat());
    assert_eq!(server.events(), [Event::Request(1)]);
    let (head, body) = server.session.take_request(1).unwrap();
    assert_eq!((head.get(":path"), head.get("te")), (Some(&b"/a/b"[..]), Some(&b"trailers"[..])));
    assert_eq!(body.unwrap(), "ask"[..]);
    assert!(server.session.take_request(1).is_none());
    server.session.accept(1, 7);
    server.answer(1, &["an", "", "swer"]);
    let frames = server.frames();
    let kinds: Vec<(u8, u8)> = frames.iter().map(|frame| (frame.kind, frame.flags)).collect();
    assert_eq!(kinds, [(HEADERS, END_HEADERS), (DATA, 0), (HEADERS, END_HEADERS | END_STREAM)]);
    assert_eq!(data(&frames, 1), b"answer");
    assert_eq!(server.events(), [Event::Closed(7)]);
    assert_eq!(server.session.open_streams(), 0);
}

#[test]
fn a_body_that_comes_bit_by_bit_is_told_and_its_window_opens_when_it_is_consumed() {
    let mut server = Server::new();
    server.receive(&open(1));
    assert_eq!(server.events(), [Event::Request(1)]);
    let (_, body) = server.session.take_request(1).unwrap();
    assert!(body.is_none());
    server.session.accept(1, 0);
    let piece = frame(DATA, 0, 1, &[b'x'; 16_384]);
    for _ in 0..40 {
        server.receive(&piece);
    }
    // Told once, until it is taken.
    assert_eq!(server.events(), [Event::Data(0)]);
    assert!(server.frames().is_empty());
    let (taken, ended) = server.session.take_body(1);
    assert_eq!((taken.len(), ended), (40 * 16_384, false));
    server.session.consume(1, taken.len());
    let opened = server.frames();
    assert_eq!(opened.iter().filter(|frame| frame.kind == WINDOW_UPDATE && frame.stream == 1).count(), 1);
    server.receive(&frame(DATA, END_STREAM, 1, &[]));
    assert_eq!(server.events(), [Event::Data(0)]);
    assert_eq!(server.session.take_body(1), (Default::default(), true));
}

#[test]
fn what_is_not_read_of_a_stream_that_ends_does_not_close_the_connections_window() {
    let mut server = Server::new();
    let mut opened = 0;
    for stream in (1..200).step_by(2) {
        server.receive(&open(stream));
        for _ in 0..4 {
            server.receive(&frame(DATA, 0, stream, &[b'x'; 16_384]));
        }
        server.receive(&frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()));
        opened += server.frames().iter().filter(|frame| frame.kind == WINDOW_UPDATE && frame.stream == 0).count();
    }
    assert!(opened > 0 && server.session.status() == Status::Open);
}

#[test]
fn answers_wait_for_the_clients_window() {
    // Windows of no byte.
    let mut server = Server::greeted(&[0, 4, 0, 0, 0, 0]);
    server.receive(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &call()));
    server.session.accept(1, 0);
    server.session.respond_static(1, &[], true);
    let pieces: Vec<Bytes> = (0..10).map(|n| vec![n; 10_000].into()).collect();
    for piece in &pieces {
        server.session.push(1, piece.clone());
    }
    server.session.finish(1, [None, None]);
    assert_eq!(data(&server.frames(), 1).len(), 0);
    server.receive(&frame(WINDOW_UPDATE, 0, 1, &200_000u32.to_be_bytes()));
    // The connection's window is what it is.
    let first = data(&server.frames(), 1);
    assert_eq!(first.len(), INITIAL_WINDOW);
    server.receive(&frame(WINDOW_UPDATE, 0, 0, &200_000u32.to_be_bytes()));
    let frames = server.frames();
    assert_eq!([first, data(&frames, 1)].concat(), pieces.concat());
    assert_eq!(frames.last().unwrap().flags, END_STREAM);
}

#[test]
fn a_small_answer_does_not_wait_for_a_large_one() {
    for streaming in [false, true] {
        // Windows of a megabyte.
        let mut server = Server::greeted(&[0, 4, 0, 0x10, 0, 0]);
        server.receive(&frame(WINDOW_UPDATE, 0, 0, &0x10_0000u32.to_be_bytes()));
        for stream in [1, 3] {
            server.receive(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &call()));
        }
        let large = Bytes::from(vec![0; 500_000]);
        if streaming {
            server.session.respond_static(1, &[], true);
            server.session.push(1, large);
            server.session.finish(1, [None, None]);
        } else {
            server.session.answer(1, &[], [large], [None, None]);
        }
        server.answer(3, &["small"]);
        let frames = server.frames();
        assert_eq!(data(&frames, 1).len(), 500_000);
        let last = |stream| frames.iter().rposition(|frame| frame.stream == stream).unwrap();
        assert!(last(3) < 10 && last(1) > 30, "{} {}", last(3), last(1));
    }
}

#[test]
fn a_stream_asks_for_more_when_all_is_sent_and_ends_with_its_status() {
    let mut server = Server::new();
    server.receive(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &call()));
    server.events();
    server.session.accept(1, 3);
    server.session.respond_static(1, &[], true);
    assert_eq!(server.frames().len(), 1);
    for text in ["a", "b"] {
        assert_eq!(server.session.push(1, Bytes::from_static(text.as_bytes())), 1);
        assert_eq!(data(&server.frames(), 1), text.as_bytes());
        assert_eq!(server.events(), [Event::Room(3)]);
    }
    let text = Field { name: "grpc-message", value: "why".to_owned().into() };
    server.session.finish(1, [Some(Field { name: "grpc-status", value: "14".into() }), Some(text)]);
    let frames = server.frames();
    assert_eq!((frames.len(), frames[0].kind, frames[0].flags), (1, HEADERS, END_HEADERS | END_STREAM));
    assert_eq!(server.events(), [Event::Closed(3)]);
    // Too late, and nothing happens.
    assert_eq!(server.session.push(1, Bytes::from_static(b"c")), 0);
    server.session.finish(1, [None, None]);
    server.answer(1, &["d"]);
    assert!(server.frames().is_empty());
}

#[test]
fn once_a_call_is_answered_the_rest_of_it_is_not_wanted() {
    let mut server = Server::new();
    server.receive(&open(1));
    server.session.accept(1, 0);
    server.answer(1, &["no"]);
    let last = server.frames().pop().unwrap();
    assert_eq!((last.kind, last.payload), (RST_STREAM, vec![0; 4]));
    assert_eq!(server.session.open_streams(), 0);
}

#[test]
fn a_stop_is_announced_and_open_calls_are_finished() {
    let mut server = Server::new();
    server.receive(&open(1));
    server.session.announce_shutdown();
    let frames = server.frames();
    assert_eq!(frames[0].kind, GOAWAY);
    assert_eq!(frames[0].payload[..4], 0x7fff_ffffu32.to_be_bytes());
    server.session.ping();
    assert_eq!(server.frames()[0].kind, PING);
    // On its way before the client knew.
    server.receive(&[open(3), frame(PING, ACK, 0, &[0; 8])].concat());
    assert!(server.events().contains(&Event::Pong));
    server.session.shut_down();
    assert_eq!(server.frames()[0].payload[..4], 3u32.to_be_bytes());
    server.receive(&open(5));
    assert!(!server.events().contains(&Event::Request(5)));
    for stream in [1, 3] {
        assert_eq!(server.session.status(), Status::Open);
        server.receive(&frame(DATA, END_STREAM, stream, b"x"));
        server.answer(stream as i32, &["y"]);
        server.frames();
    }
    assert_eq!(server.session.status(), Status::Over);
}

/// CVE-2023-44487, CVE-2023-26964.
#[test]
fn rapid_resets_end_the_connection_and_bring_no_request() {
    let mut server = Server::new();
    let reset = |n: u32| {
        let stream = 2 * n + 1;
        [open(stream), frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())].concat()
    };
    // Over before anybody looked: the head is gone.
    server.receive(&reset(0));
    assert_eq!(server.events(), [Event::Request(1)]);
    assert!(server.session.take_request(1).is_none());
    assert_eq!(server.drown((1..3 * NUISANCES.0).map(reset)), Some(ENHANCE_YOUR_CALM));
}

/// CVE-2025-8671: streams that the server has to reset itself.
#[test]
fn resets_that_the_client_provokes_count_as_its_own() {
    let mut server = Server::new();
    let provoke = |n: u32| {
        let stream = 2 * n + 1;
        [open(stream), frame(WINDOW_UPDATE, 0, stream, &[0; 4])].concat()
    };
    let ended = server.drown((0..3 * NUISANCES.0).map(provoke));
    // nghttp2 may call it a fault of the connection at once.
    assert!(ended == Some(ENHANCE_YOUR_CALM) || server.session.status() == Status::Over, "{ended:?}");
}

/// CVE-2019-9518.
#[test]
fn data_without_data_ends_the_connection() {
    let mut server = Server::new();
    server.receive(&open(1));
    let empty = frame(DATA, 0, 1, &[]);
    assert_eq!(server.drown((0..3 * NUISANCES.0).map(|_| empty.clone())), Some(ENHANCE_YOUR_CALM));
}

/// CVE-2024-28182 and its like.
#[test]
fn a_head_without_an_end_ends_the_connection() {
    for piece in [Vec::new(), field("x", &"y".repeat(1000), false).repeat(10)] {
        let mut server = Server::new();
        let more = frame(CONTINUATION, 0, 1, &piece);
        let pieces = std::iter::once(frame(HEADERS, END_STREAM, 1, &call())).chain((0..10_000).map(|_| more.clone()));
        assert_eq!(server.drown(pieces), Some(ENHANCE_YOUR_CALM));
    }
}

/// CVE-2016-6581: a field stored once and named thousands of times.
#[test]
fn a_head_that_is_far_larger_than_it_looks_ends_the_connection() {
    let mut server = Server::new();
    let bomb = [call(), field("x-bomb", &"y".repeat(3900), true), vec![0xbe; 12_000]].concat();
    assert_eq!(server.drown(std::iter::once(frame(HEADERS, END_HEADERS, 1, &bomb))), Some(ENHANCE_YOUR_CALM));
}

/// CVE-2019-9516: fields of hardly a byte count too.
#[test]
fn a_head_that_is_too_large_is_refused_alone() {
    let large = field("x", &"y".repeat(8_000), false).repeat(9);
    let empty = field("x", "", false).repeat(5_000);
    for more in [large, empty] {
        let mut server = Server::new();
        let block = [call(), more].concat();
        let mut pieces = block.chunks(16_000).peekable();
        let mut kind = HEADERS;
        while let Some(piece) = pieces.next() {
            let flags = if pieces.peek().is_none() { END_HEADERS } else { 0 };
            let flags = if kind == HEADERS { flags | END_STREAM } else { flags };
            server.receive(&frame(kind, flags, 1, piece));
            kind = CONTINUATION;
        }
        assert!(!server.events().contains(&Event::Request(1)));
        assert!(server.frames().iter().any(|frame| frame.stream == 1), "it is told");
        server.receive(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &call()));
        assert!(server.events().contains(&Event::Request(3)), "the connection goes on");
    }
}

/// CVE-2019-9512, CVE-2019-9515, and others that want an answer or just time.
#[test]
fn pings_settings_and_priorities_are_borne_and_leave_nothing() {
    for (piece, answers) in [
        (frame(PING, 0, 0, b"12345678"), true),
        (frame(SETTINGS, 0, 0, &[]), true),
        (frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]), true),
        (frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1]), false),
        (frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]), false),
        (frame(0x77, 0, 0, &[7; 50]), false),
    ] {
        let mut server = Server::new();
        for _ in 0..50 {
            server.receive(&piece.repeat(1_000));
            let answered = server.frames().iter().filter(|frame| frame.flags == ACK).count();
            assert_eq!(answered, if answers { 1_000 } else { 0 });
        }
        assert!(server.events().is_empty() && server.session.status() == Status::Open);
    }
}

/// CVE-2026-27135: what comes behind the end of a connection.
#[test]
fn frames_behind_a_fault_are_ignored_however_broken() {
    for fault in [frame(DATA, 0, 0, b"x"), frame(SETTINGS, 0, 0, &[1]), frame(HEADERS, END_HEADERS, 2, &call())] {
        let mut server = Server::new();
        server.receive(&fault);
        for kind in [PRIORITY_UPDATE, 10, 12, SETTINGS, WINDOW_UPDATE, PING, RST_STREAM, 0x77] {
            let _ended = server.session.receive(&frame(kind, 0, 0, &[1, 2, 3]));
        }
        let mut out = Vec::new();
        let _ended = server.session.send(&mut out);
        assert_eq!(out[3], GOAWAY);
        assert_eq!(server.session.status(), Status::Over);
    }
}

#[test]
fn windows_cannot_be_made_larger_than_there_are_numbers() {
    for stream in [0, 1] {
        let mut server = Server::new();
        server.receive(&open(1));
        server.receive(&frame(WINDOW_UPDATE, 0, stream, &0x7fff_ffffu32.to_be_bytes()));
        assert!(server.frames().iter().any(|frame| frame.kind == GOAWAY));
        assert_eq!(server.session.status(), Status::Over);
    }
}

#[test]
fn another_protocol_is_told_that_this_is_http2() {
    let mut session = Session::new(LIMITS);
    let error = session.receive(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap_err();
    assert_eq!(code(&error.farewell()), 1);
    assert!(!error.to_string().is_empty());
}

#[test]
fn sessions_end_in_the_middle_of_everything() {
    let mut server = Server::new();
    server.receive(&[open(1), open(3), frame(DATA, 0, 3, b"half")].concat());
    server.session.respond_static(1, &[], true);
    server.session.push(1, Bytes::from(vec![0; 1 << 20]));
    let mut out = Vec::new();
    server.session.send(&mut out).unwrap();
    drop(server);
}
