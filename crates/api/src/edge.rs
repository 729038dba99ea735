//! From listening sockets to requests: runtimes, accepting, protocols, draining.
//!
//! ```text
//! listener ── accept ──┬─> runtime 0 ──┐   one thread: its connections, its mailbox, its counters
//!                      ├─> runtime 1 ──┤
//!                      └─> ...         │   handed out in turn
//!  (metrics listeners) ───> the door <─┘   plain HTTP/1: probes, metrics; and it is the one that accepts
//! ```
//!
//! Whether a member lives is thus asked of a thread that serves no requests.
//!
//! A runtime is tokio's single-threaded one: a request is taken up, waits for the node and is answered on the core that
//! holds its connection. (A work-stealing runtime hands each stream's task between cores; that alone costs as much as the
//! rest of a request.)

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use dolmen_env::Memory;
use dolmen_net::{Accepted, Bound, NOT_TLS, Room, Seat, ServerTls};
use dolmen_node::{Agreement, Handle, Sink};
use dolmen_tls::Certificate;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use crate::body::Body;
use crate::budget::Budget;
use crate::call::Transport;
use crate::completion::Mailbox;
use crate::damage::Damage;
use crate::health::HealthStats;
use crate::helpers::Helpers;
use crate::http_mux::{self, Pages};
use crate::http2;
use crate::io::{Protocol, Rewind};
use crate::maintenance::MAX_SNAPSHOTS;
use crate::peer_http::PeerHttp;
use crate::server::{Config, ExtraMetrics, LeaseForwarder, Local, Server};
use crate::stats::Stats;
use crate::users::Logins;

/// How long the head of an HTTP/1 request may take.
const HEADER_TIMEOUT: Duration = Duration::from_secs(300);
/// Election timeouts without a leader after which streams that want one end.
const MISSED_LEADERS: u32 = 3;
/// Threads of a runtime for passwords.
const BLOCKING_THREADS: usize = 8;
/// Threads that put metrics pages together.
const PAGE_THREADS: usize = 2;

/// Runtimes to be: their mailboxes exist before the node does, as the node is given their letter boxes.
pub struct Runtimes {
    /// One for each runtime, and the last for whoever asks from elsewhere ([`PeerHttp`]).
    mailboxes: Vec<Arc<Mailbox>>,
}

impl Runtimes {
    /// `threads` runtimes (at least one), and what the node answers them through: the sinks of [`dolmen_node::spawn`], in
    /// that order.
    pub fn new(threads: usize) -> (Self, Vec<Box<dyn Sink>>) {
        // A completion names its runtime in 16 bits.
        let threads = threads.clamp(1, 1024) as u16;
        let mailboxes: Vec<Arc<Mailbox>> = (0..=threads).map(Mailbox::new).collect();
        let sinks = mailboxes.iter().map(Mailbox::letterbox).collect();
        (Self { mailboxes }, sinks)
    }

    /// One runtime for each core.
    pub fn per_core() -> (Self, Vec<Box<dyn Sink>>) {
        Self::new(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

/// What a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// gRPC, and HTTP beside it.
    GrpcAndHttp,
    /// gRPC alone (`--listen-client-urls` when there are `--listen-client-http-urls`).
    Grpc,
    /// HTTP alone (`--listen-client-http-urls`).
    Http,
    /// Health and metrics (`--listen-metrics-urls`).
    Metrics,
}

/// A socket and how to serve it.
pub struct Listener {
    pub socket: Bound,
    pub mode: Mode,
    /// Plain connections are served.
    pub plain: bool,
    /// TLS connections are served.
    pub tls: Option<ServerTls>,
    /// How many connections it holds, together with the listeners that have the same room.
    pub room: Arc<Room>,
}

/// What [`serve`] is given beside listeners.
pub struct Options {
    pub config: Config,
    pub node: Handle,
    pub forwarder: Arc<dyn LeaseForwarder>,
    /// Further families for the metrics page.
    pub extra_metrics: Vec<ExtraMetrics>,
    /// How the thread of each runtime gives freed memory back.
    pub memory: Memory,
}

/// A running edge.
pub struct Edge {
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
    listeners: mpsc::UnboundedSender<Listener>,
    peer: PeerHttp,
}

impl Edge {
    /// Adds a listener; its connections are handed to all runtimes.
    pub fn listen(&self, listener: Listener) {
        // Only a stopped edge has no receiver, and that serves nobody.
        let _stopped = self.listeners.send(listener);
    }

    /// The handlers of the peer port's endpoints that are not raft's.
    pub fn peer_http(&self) -> PeerHttp {
        self.peer.clone()
    }

    /// Stops accepting, tells clients to go elsewhere, and lets open requests end, for as long as the configuration
    /// allows. Returns at once.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Stops, and waits until the last runtime has ended.
    pub fn join(self) {
        self.stop();
        for thread in self.threads {
            // A runtime that panicked has said so.
            let _panicked = thread.join();
        }
    }
}

/// Starts the runtimes and serves `listeners`.
///
/// # Errors
/// The operating system gives no thread, or no event queue.
pub fn serve(runtimes: Runtimes, listeners: Vec<Listener>, options: Options) -> io::Result<Edge> {
    let (stop, stopping) = watch::channel(false);
    let (lost, leader_lost) = watch::channel(0);
    let stats: Vec<Arc<Stats>> = runtimes.mailboxes.iter().map(|_| Arc::default()).collect();
    let budget = Budget::new(options.config.max_in_flight_bytes);
    let server = Arc::new(Server {
        config: options.config,
        node: options.node,
        forwarder: options.forwarder,
        logins: Logins::default(),
        stats: stats.clone(),
        health: HealthStats::default(),
        extra_metrics: options.extra_metrics,
        helpers: Helpers::start()?,
        budget,
        damage: Damage::default(),
        snapshots: Arc::new(Semaphore::new(MAX_SNAPSHOTS)),
        leader_lost,
        stopping,
    });
    let mut locals: Vec<Arc<Local>> = runtimes
        .mailboxes
        .into_iter()
        .zip(stats)
        .map(|(mailbox, stats)| Arc::new(Local { server: server.clone(), mailbox, stats }))
        .collect();
    let outside = locals.pop().expect("there is always the mailbox for others");
    let peer = PeerHttp { local: outside.clone() };

    let (to_door, arrivals) = mpsc::unbounded_channel();
    let mut threads = Vec::new();
    let mut senders = Vec::new();
    for (index, local) in locals.into_iter().enumerate() {
        let (sender, receiver) = mpsc::unbounded_channel();
        senders.push(sender);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(BLOCKING_THREADS)
            .build()?;
        let thread = std::thread::Builder::new().name(format!("edge-{index}"));
        let door = to_door.clone();
        threads.push(thread.spawn(move || {
            runtime.block_on(async move {
                tokio::spawn(give_back(options.memory));
                run(local, receiver, Some(door)).await;
            });
            runtime.shutdown_background();
        })?);
    }
    let (listener_sender, mut new_listeners) = mpsc::unbounded_channel::<Listener>();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(PAGE_THREADS)
        .build()?;
    threads.push(std::thread::Builder::new().name("door".into()).spawn(move || {
        runtime.block_on(async move {
            tokio::spawn(give_back(options.memory));
            tokio::spawn(watch_leader(server.clone(), lost));
            tokio::spawn(async move {
                let mut next = 0;
                while let Some(listener) = new_listeners.recv().await {
                    // Each listener begins with another runtime.
                    next += 1;
                    let to = if listener.mode == Mode::Metrics { vec![to_door.clone()] } else { senders.clone() };
                    tokio::spawn(accept(server.clone(), listener, to, next));
                }
            });
            run(outside, arrivals, None).await;
        });
        // A page may be in the middle of being put together; the process does not wait for it.
        runtime.shutdown_background();
    })?);
    let edge = Edge { stop, threads, listeners: listener_sender, peer };
    for listener in listeners {
        edge.listen(listener);
    }
    Ok(edge)
}

/// What all connections of a listener share.
struct Served {
    mode: Mode,
    plain: bool,
    tls: Option<ServerTls>,
}

/// Where connections are passed on to the door.
type Door = mpsc::UnboundedSender<Arrival>;

/// A connection on its way to a runtime.
struct Arrival {
    accepted: Accepted,
    /// What was read of it already.
    ahead: Vec<u8>,
    served: Arc<Served>,
    seat: Seat,
}

/// One runtime: takes connections in until the stop, then waits for them to end.
async fn run(local: Arc<Local>, mut arrivals: mpsc::UnboundedReceiver<Arrival>, door: Option<Door>) {
    tokio::spawn(local.mailbox.pump(local.server.node.clone()));
    let mut stopping = local.server.stopping.clone();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            arrival = arrivals.recv() => {
                let Some(arrival) = arrival else { break };
                connections.spawn(connection(local.clone(), arrival, door.clone()));
            }
            Some(_) = connections.join_next() => {}
            _ = stopping.wait_for(|stopping| *stopping) => break,
        }
    }
    let drained = async { while connections.join_next().await.is_some() {} };
    // What has not ended by then is cut off.
    let _cut_off = tokio::time::timeout(local.config().drain_timeout, drained).await;
}

/// Gives back what connections and requests left on the calling task's thread, as long as its runtime lasts.
pub async fn give_back(memory: Memory) {
    loop {
        tokio::time::sleep(Duration::from_nanos(Memory::INTERVAL)).await;
        memory.give_back();
    }
}

/// Tells streams when the leader has been missing for too long, or this member's state turns out to be wrong.
async fn watch_leader(server: Arc<Server>, lost: watch::Sender<u64>) {
    let mut missed = 0;
    loop {
        tokio::time::sleep(server.config.election_timeout).await;
        missed = if server.node.status().leader == 0 { missed + 1 } else { 0 };
        if missed >= MISSED_LEADERS || server.node.agreement() == Agreement::Outvoted {
            lost.send_modify(|count| *count += 1);
        }
    }
}

/// Accepts until the stop and hands connections out in turn.
async fn accept(
    server: Arc<Server>,
    listener: Listener,
    runtimes: Vec<mpsc::UnboundedSender<Arrival>>,
    mut next: usize,
) {
    let served = Arc::new(Served { mode: listener.mode, plain: listener.plain, tls: listener.tls });
    // A socket that cannot be polled accepts nothing; its clients are refused when it closes.
    let Ok(socket) = dolmen_net::Listener::new(listener.socket) else { return };
    let mut stopping = server.stopping.clone();
    loop {
        let (accepted, seat) = tokio::select! {
            accepted = socket.accept(&listener.room) => accepted,
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        let arrival = Arrival { accepted, ahead: Vec::new(), served: served.clone(), seat };
        if runtimes[next % runtimes.len()].send(arrival).is_err() {
            return;
        }
        next = next.wrapping_add(1);
    }
}

/// Serves one connection to its end. How it ends is the client's affair: nothing is reported.
///
/// Plain HTTP/1 is passed on to the door, where probes and scrapers share a thread with no request (`None`: this is it).
async fn connection(local: Arc<Local>, arrival: Arrival, door: Option<Door>) {
    let Arrival { accepted, ahead, served, seat } = arrival;
    if ahead.is_empty() {
        local.stats.connections.add(1);
    }
    let peer = accepted.remote();
    let stats = local.stats.clone();
    let mut stopping = local.server.stopping.clone();
    let established = async {
        let mut stream = Rewind::ahead(accepted.adopt()?, ahead);
        let protocol = stream.sniff().await?;
        io::Result::Ok((stream, protocol))
    };
    // A connection that has said nothing yet is not waited for.
    let established = tokio::select! {
        established = established => established,
        _ = stopping.wait_for(|stopping| *stopping) => Err(io::ErrorKind::Interrupted.into()),
        () = seat.asked_to_leave() => Err(io::ErrorKind::Interrupted.into()),
    };
    if let Ok((stream, protocol)) = established {
        match (protocol, &served.tls) {
            (Protocol::Tls, Some(tls)) => {
                if let Some(stream) = tls.accept(stream, peer).await {
                    let session = stream.get_ref().1;
                    let is_h2 = session.alpn_protocol() == Some(b"h2");
                    let certificate = session.peer_certificates().and_then(|chain| Certificate::parse(chain.first()?));
                    let common_name = certificate.and_then(|certificate| certificate.common_name);
                    let transport = Transport { peer, secure: true, common_name };
                    let mut stream = Rewind::new(stream);
                    let protocol = async { if is_h2 { Ok(Protocol::Http2) } else { stream.sniff().await } };
                    let protocol = tokio::select! {
                        protocol = protocol => protocol.ok(),
                        () = seat.asked_to_leave() => None,
                    };
                    if let Some(protocol) = protocol {
                        http(local, stream, protocol, served.mode, transport, &seat).await;
                    }
                }
            }
            (Protocol::Http1, _) if served.plain && door.is_some() => {
                let (socket, ahead) = stream.into_parts();
                if let (Some(door), Ok(accepted)) = (door, socket.leave(peer)) {
                    // The door counts its end; there is no door only when the server stops.
                    let _stopped = door.send(Arrival { accepted, ahead, served, seat });
                    return;
                }
            }
            (Protocol::Http2 | Protocol::Http1, _) if served.plain => {
                http(local, stream, protocol, served.mode, Transport { peer, ..Transport::default() }, &seat).await;
            }
            // The wrong one of the two.
            (_, Some(tls)) => tls.reject(peer, NOT_TLS),
            _ => {}
        }
    }
    stats.connections_closed.add(1);
}

async fn http<S>(local: Arc<Local>, stream: S, protocol: Protocol, mode: Mode, transport: Transport, seat: &Seat)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match protocol {
        Protocol::Http2 => {
            http2::serve(stream, http2::Service { local, transport: Arc::new(transport), mode }, seat).await;
        }
        Protocol::Http1 if mode != Mode::Grpc => pages(local, stream, mode, transport.secure, seat).await,
        // TLS inside TLS, or HTTP/1 where only gRPC is spoken.
        Protocol::Http1 | Protocol::Tls => {}
    }
}

/// Serves pages over HTTP/1 until the client leaves, or is told to go and the open request is done.
async fn pages<S>(local: Arc<Local>, stream: S, mode: Mode, secure: bool, seat: &Seat)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut stopping = local.server.stopping.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (local, open) = (local.clone(), seat.open());
        async move {
            let response = page(local, request.into_parts().0, mode, secure).await;
            Ok::<_, Infallible>(response.map(|body| open.during(body)))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ended = connection.as_mut() => return,
        _ = stopping.wait_for(|stopping| *stopping) => {}
        () = seat.asked_to_leave() => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ended = connection => {}
        () = seat.overstayed() => {}
    }
}

/// Answers a request that is no gRPC call.
pub(crate) async fn page(local: Arc<Local>, head: Parts, mode: Mode, secure: bool) -> Response<Body> {
    let pages = match mode {
        Mode::Metrics => Pages::Metrics,
        Mode::GrpcAndHttp | Mode::Http => Pages::Client,
        Mode::Grpc => return http_mux::error(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid gRPC request content-type"),
    };
    // Pages are rare: boxed, so that a gRPC call's future stays small.
    Box::pin(http_mux::serve(local, head, pages, secure)).await
}
