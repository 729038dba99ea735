//! What a request costs this server: `cargo run --release -p dolmen-api --example cost`.
//!
//! Starts itself again as a member of one (a disk in memory, so that the edge is what is measured), asks it with 100
//! connections, and prints requests a second and the member's CPU time per request. Compare runs of one machine only.

#![allow(clippy::disallowed_methods, reason = "an example has the real clock and real files")]

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use dolmen_api::{Config, LeaseForwarder, Listener, Mode, Options, PeerAnswer, Runtimes, serve};
use dolmen_env::{Memory, Mono, RealClock, SimDisk};
use dolmen_net::{Bound, Room};
use dolmen_node::{Bootstrap, Layout, Member, PeerAddress, PeerSender, StartOptions, spawn, start};
use dolmen_proto::etcdserverpb::{PutRequest, RangeRequest};
use http::Request;
use http_body::{Body as _, Frame, SizeHint};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpStream;

const CONNECTIONS: usize = 100;
const SECONDS: u64 = 4;
/// Clock ticks a second in `/proc/<pid>/stat`.
const TICKS: f64 = 100.0;

fn main() {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("serve") => member(),
        _ => measure(),
    }
}

struct NoPeers;

impl PeerSender for NoPeers {
    fn send(&self, _messages: Vec<dolmen_proto::raftpb::Message>) {}
    fn send_snapshot(&self, _message: dolmen_proto::raftpb::Message, _source: Box<dyn dolmen_bolt::Source + Send>) {}
    fn set_peers(&self, _peers: Vec<PeerAddress>, _removed: Vec<u64>) {}
    fn active_since(&self, _id: u64) -> Option<Mono> {
        None
    }
}

impl LeaseForwarder for NoPeers {
    fn post<'a>(
        &'a self,
        _member: u64,
        _urls: &'a [String],
        _path: &'static str,
        _body: Bytes,
    ) -> Pin<Box<dyn Future<Output = PeerAnswer> + Send + 'a>> {
        Box::pin(async { Err(std::io::Error::other("no peers")) })
    }
}

fn member() {
    let disk = Arc::new(SimDisk::new(1));
    let member = Member { id: 1, peer_urls: vec!["http://localhost:2380".into()], ..Member::default() };
    let options = StartOptions {
        layout: Layout::new(Path::new("/data"), None),
        bootstrap: Bootstrap::New { members: vec![member] },
        machine: dolmen_machine::Config::default(),
        wal: Default::default(),
    };
    let config = dolmen_node::Config {
        member_id: 1,
        cluster_id: dolmen_node::cluster_id(&[1]),
        name: "one".into(),
        client_urls: vec!["http://localhost:2379".into()],
        tick_nanos: 100_000_000,
        election_ticks: 10,
        pre_vote: true,
        snapshot_count: 10_000,
        catch_up_entries: 5_000,
        log_bytes: dolmen_node::LOG_BYTES,
        max_request_bytes: 1_572_864,
        progress_notify_nanos: 600_000_000_000,
        apply_bytes_per_turn: dolmen_node::Config::APPLY_BYTES_PER_TURN,
        watch_near_revisions: dolmen_node::Config::WATCH_NEAR_REVISIONS,
        priority_request: false,
        seed: 1,
        incarnation: 1,
    };
    let started = start(disk.clone(), &options, config, RealClock::mono()).expect("an empty disk starts");
    let (runtimes, sinks) = Runtimes::per_core();
    let running = spawn(started, disk, Arc::new(NoPeers), sinks, Memory::untold()).expect("threads");
    let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = socket.local_addr().expect("a bound socket has an address");
    let listener =
        Listener { socket: Bound::Tcp(socket), mode: Mode::GrpcAndHttp, plain: true, tls: None, room: Room::new(1000) };
    let node = running.handle().clone();
    while !node.is_published() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let options = Options {
        config: Config::default(),
        node,
        forwarder: Arc::new(NoPeers),
        extra_metrics: Vec::new(),
        memory: Memory::untold(),
    };
    let _edge = serve(runtimes, vec![listener], options).expect("threads");
    println!("{address}");
    // Until the parent kills it.
    let _stopped = running.wait();
}

/// A request body of one piece.
struct Once(Option<Bytes>);

impl http_body::Body for Once {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.take().map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |data| data.len() as u64))
    }
}

fn framed(message: &impl Message) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.encoded_len() as u32);
    frame.extend_from_slice(&message.encode_to_vec());
    frame.freeze()
}

fn measure() {
    use std::io::BufRead;
    let this = std::env::current_exe().expect("the running program");
    let mut server = Command::new(this).arg("serve").stdout(Stdio::piped()).spawn().expect("a second process");
    let mut line = String::new();
    let out = server.stdout.take().expect("it was piped");
    std::io::BufReader::new(out).read_line(&mut line).expect("the server says where it listens");
    let address: SocketAddr = line.trim().parse().expect("an address");
    let key = Bytes::from_static(b"some/key");
    let put = PutRequest { key: key.clone(), value: vec![7; 256].into(), ..Default::default() };
    let get = RangeRequest { key: key.clone(), ..Default::default() };
    let serializable = RangeRequest { serializable: true, ..get.clone() };
    for (name, path, body) in [
        ("put 256 B", "/etcdserverpb.KV/Put", framed(&put)),
        ("get", "/etcdserverpb.KV/Range", framed(&get)),
        ("get, serializable", "/etcdserverpb.KV/Range", framed(&serializable)),
    ] {
        let before = cpu_seconds(server.id());
        let requests = load(address, path, &body);
        let micros = (cpu_seconds(server.id()) - before) * 1e6 / requests as f64;
        println!("{name:20} {:>8} requests/s  {micros:6.1} us of CPU each", requests / SECONDS);
    }
    server.kill().expect("it runs");
    server.wait().expect("it was killed");
}

fn load(address: SocketAddr, path: &'static str, body: &Bytes) -> u64 {
    let done = Arc::new(AtomicU64::new(0));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("an event queue");
    runtime.block_on(async {
        for _ in 0..CONNECTIONS {
            let (done, body) = (done.clone(), body.clone());
            let stream = TcpStream::connect(address).await.expect("the server listens");
            stream.set_nodelay(true).expect("a TCP socket");
            let (mut sender, connection) =
                http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
            tokio::spawn(connection);
            tokio::spawn(async move {
                loop {
                    let request = Request::post(format!("http://localhost{path}"))
                        .header("content-type", "application/grpc")
                        .header("te", "trailers")
                        .body(Once(Some(body.clone())))
                        .expect("a valid request");
                    let Ok(mut response) = sender.send_request(request).await else { return };
                    let body = response.body_mut();
                    while std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await.is_some() {}
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        tokio::time::sleep(Duration::from_secs(SECONDS)).await;
    });
    done.load(Ordering::Relaxed)
}

/// User and system time of a process.
fn cpu_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let fields: Vec<&str> = text.rsplit_once(')').expect("a process name").1.split_ascii_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / TICKS
}
