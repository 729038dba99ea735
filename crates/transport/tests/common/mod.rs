//! Members made of a transport and a sink that remembers.

#![allow(dead_code, reason = "each test uses its part")]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dolmen_env::{Memory, Mono};
use dolmen_net::{Bound, ClientTls, Room, ServerTls};
use dolmen_proto::raftpb::{Entry, Message, MessageType};
use dolmen_transport::{
    ApiFuture, ApiRequest, ApiResponse, Config, Lobby, PeerAddress, PeerApi, PeerListener, PeerSender, RaftSink,
    Transport,
};
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;

pub const CLUSTER: u64 = 0xc1;

/// What a node would have been told.
#[derive(Default)]
pub struct Recorder {
    pub messages: Mutex<Vec<Message>>,
    pub received: AtomicU64,
    pub snapshots: Mutex<Vec<(Message, PathBuf)>>,
    pub unreachable: Mutex<BTreeMap<u64, u64>>,
    pub statuses: Mutex<Vec<(u64, bool)>>,
    pub removed: AtomicU64,
    pub damaged: Mutex<Vec<String>>,
    pub dolmens: Mutex<BTreeMap<u64, bool>>,
    pub gone: Mutex<Vec<u64>>,
}

impl RaftSink for Recorder {
    fn receive(&self, message: Message) {
        self.messages.lock().push(message);
        self.received.fetch_add(1, SeqCst);
    }

    fn receive_snapshot(&self, message: Message, db: PathBuf) {
        self.snapshots.lock().push((message, db));
    }

    fn peer_is_dolmen(&self, id: u64, dolmen: bool) {
        self.dolmens.lock().insert(id, dolmen);
    }

    fn peer_gone(&self, id: u64) {
        self.gone.lock().push(id);
    }

    fn unreachable(&self, id: u64) {
        *self.unreachable.lock().entry(id).or_default() += 1;
    }

    fn snapshot_status(&self, id: u64, arrived: bool) {
        self.statuses.lock().push((id, arrived));
    }

    fn store_damaged(&self, what: String) {
        self.damaged.lock().push(what);
    }

    fn removed_from_cluster(&self) {
        self.removed.fetch_add(1, SeqCst);
    }
}

/// Answers with what was asked.
pub struct EchoApi;

impl PeerApi for EchoApi {
    fn handle(&self, request: ApiRequest) -> ApiFuture {
        Box::pin(async move {
            let mut headers = HeaderMap::new();
            headers.insert("x-etcd-cluster-id", http::HeaderValue::from_static("c1"));
            let body = match request.path.as_str() {
                "/downgrade/enabled" => Bytes::from_static(b"false"),
                "/members" => Bytes::from_static(b"[]\n"),
                path => format!("{} {path} {}", request.method, String::from_utf8_lossy(&request.body)).into(),
            };
            ApiResponse { status: StatusCode::OK, headers, body }
        })
    }

    /// Bodies that begin with an exclamation mark can be answered at once.
    fn renew_lease(&self, request: &[u8]) -> Option<Bytes> {
        request.strip_prefix(b"!").map(Bytes::copy_from_slice)
    }
}

#[derive(Clone, Default)]
pub struct Tls {
    pub server: Option<ServerTls>,
    pub client: Option<ClientTls>,
}

pub struct Member {
    pub id: u64,
    pub url: String,
    pub transport: Arc<Transport>,
    pub sink: Arc<Recorder>,
    pub dir: tempfile::TempDir,
}

impl Member {
    pub fn start(id: u64) -> Self {
        Self::start_on(id, bind(), Tls::default())
    }

    pub fn start_on(id: u64, listener: TcpListener, tls: Tls) -> Self {
        let scheme = if tls.server.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().expect("address"));
        let dir = tempfile::tempdir().expect("directory");
        let start = Instant::now();
        let transport = Transport::new(Config {
            member_id: id,
            cluster_id: CLUSTER,
            peer_urls: vec![url.clone()],
            server_version: "3.7.3".into(),
            min_cluster_version: "3.0.0".into(),
            snap_dir: dir.path().into(),
            max_snapshot_bytes: 64 << 20,
            dial_timeout: Duration::from_secs(2),
            tls: tls.client,
            local_addr: None,
            clock: Arc::new(move || Mono(1 + u64::try_from(start.elapsed().as_nanos()).expect("fits"))),
            memory: Memory::untold(),
        });
        let sink = Arc::new(Recorder::default());
        let listener = PeerListener { socket: Bound::Tcp(listener), tls: tls.server, room: Room::new(4096) };
        let lobby = Lobby::listen(vec![listener], Memory::untold()).expect("listens");
        transport.start(lobby, Arc::clone(&sink) as _, Arc::new(EchoApi)).expect("starts");
        Self { id, url, transport, sink, dir }
    }

    pub fn address(&self) -> PeerAddress {
        PeerAddress { id: self.id, urls: vec![self.url.clone()] }
    }

    pub fn is_active(&self, other: u64) -> bool {
        self.transport.active_since(other).is_some()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.transport.stop();
    }
}

pub fn bind() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("binds")
}

/// Makes two members peers, and waits until all four streams stand.
pub fn connect(a: &Member, b: &Member) {
    a.transport.set_peers(vec![a.address(), b.address()], vec![]);
    b.transport.set_peers(vec![a.address(), b.address()], vec![]);
    settle(a, b);
}

/// Waits until a message of either kind arrives both ways by stream.
pub fn settle(a: &Member, b: &Member) {
    wait("both are connected", || a.is_active(b.id) && b.is_active(a.id));
    // Both streams are dialled at the same time, and again within 100 ms when one came too early.
    std::thread::sleep(Duration::from_millis(400));
}

pub fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn heartbeat(from: u64, to: u64, commit: u64) -> Message {
    Message { r#type: MessageType::MsgHeartbeat as i32, from, to, term: 5, commit, ..Default::default() }
}

/// A `MsgApp` with entries `index + 1` to `index + data.len()`.
pub fn append(from: u64, to: u64, index: u64, data: &[Bytes]) -> Message {
    let entry = |(index, data): (u64, &Bytes)| Entry { term: 5, index, r#type: 0, data: data.clone() };
    Message {
        r#type: MessageType::MsgApp as i32,
        from,
        to,
        term: 5,
        log_term: 5,
        index,
        commit: index,
        entries: (index + 1..).zip(data).map(entry).collect(),
        ..Default::default()
    }
}
