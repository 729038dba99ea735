//! Clients that make a server hold memory for nothing: messages announced and never sent, answers asked for and never read.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use super::{Trial, World};
use crate::member::Cluster;
use crate::run::Result;

pub const TRIAL: Trial = Trial {
    name: "held-memory",
    bar: "4,000 messages of 2 MiB announced and 100 bytes sent, and 1,000 readers of 1 MB who take nothing: +96 MiB each",
    quick: true,
    run,
};

const ANNOUNCED: usize = 4_000;
const READERS: usize = 1_000;
const BAR_MIB: f64 = 96.0;
/// Streams of one connection.
const STREAMS: usize = 100;
/// How long the server has for what it was sent.
const SETTLED: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(60);

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const SETTINGS_INITIAL_WINDOW: [u8; 2] = [0, 4];

fn run(world: &World) -> Result<String> {
    let mut cluster = Cluster::start(&world.server, 1, &world.scratch.dir.join("m"), &[])?;
    let address = cluster.client(0).to_owned();
    // A megabyte, in pieces that fit on a command line.
    let value = "v".repeat(100_000);
    for n in 0..10 {
        world.ctl(&address, &["put", &format!("k{n}"), &value])?;
    }
    // What was announced is two million bytes; what comes is a hundred.
    let announced = [&[0, 0, 0x20, 0, 0][..], &[b'x'; 100]].concat();
    let put = |stream| {
        [frame(HEADERS, END_HEADERS, stream, &call("/etcdserverpb.KV/Put")), frame(DATA, 0, stream, &announced)]
            .concat()
    };
    let (first, held) = grown(&cluster, &address, ANNOUNCED, &[], &put)?;
    drop(held);
    let get = [&[0, 0, 0, 0, 6][..], &[0x0a, 1, b'k', 0x12, 1, b'l']].concat();
    let read = |stream| {
        [frame(HEADERS, END_HEADERS, stream, &call("/etcdserverpb.KV/Range")), frame(DATA, END_STREAM, stream, &get)]
            .concat()
    };
    let no_window = [&SETTINGS_INITIAL_WINDOW[..], &[0; 4]].concat();
    let (second, held) = grown(&cluster, &address, READERS, &no_window, &read)?;
    drop(held);
    cluster.kill();
    let measured = format!("announced {first:.0} MiB, unread {second:.0} MiB");
    if first.max(second) > BAR_MIB { Err(measured) } else { Ok(measured) }
}

/// Opens `count` streams and returns by how much the server's memory has grown, and what keeps it so.
fn grown(
    cluster: &Cluster,
    address: &str,
    count: usize,
    settings: &[u8],
    open: &dyn Fn(u32) -> Vec<u8>,
) -> Result<(f64, Vec<TcpStream>)> {
    let before = cluster.anonymous_mib();
    let mut connections = Vec::new();
    for _ in 0..count.div_ceil(STREAMS) {
        let mut stream = connect(address)?;
        let opened: Vec<u8> = (0..STREAMS as u32).flat_map(|n| open(1 + 2 * n)).collect();
        let sent = stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, settings), &opened].concat());
        sent.map_err(|error| error.to_string())?;
        connections.push(stream);
    }
    std::thread::sleep(SETTLED);
    Ok((cluster.anonymous_mib() - before, connections))
}

fn connect(address: &str) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).map_err(|error| format!("{address}: {error}"))?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
    Ok(stream)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The head of a call, in plain literals.
fn call(path: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "x"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let literal = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], literal(name), literal(value)].concat()).collect()
}
