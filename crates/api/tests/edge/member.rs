//! One member that is a cluster of its own.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dolmen_api::{Config, Edge, LeaseForwarder, Listener, Mode, Options, PeerAnswer, Runtimes, serve};
use dolmen_env::{Memory, Mono, RealClock, SimDisk};
use dolmen_net::{Bound, Room};
use dolmen_node::{Bootstrap, Layout, Member, PeerAddress, PeerSender, Running, StartOptions, spawn, start};

/// Nobody to send anything to.
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

pub struct TestMember {
    pub address: SocketAddr,
    pub edge: Option<Edge>,
    running: Option<Running>,
}

pub const MEMBER: u64 = 7;
/// etcd's id of the cluster of that one member.
pub const CLUSTER: u64 = 0xaebf_7400_96fe_a5f7;

impl TestMember {
    /// Starts a member and waits until it leads.
    pub fn start() -> Self {
        Self::with(Config::default(), Mode::GrpcAndHttp)
    }

    pub fn with(config: Config, mode: Mode) -> Self {
        // Clients of a test end with it, on the same thread: there is nothing to wait for.
        let config = Config { drain_timeout: Duration::from_millis(100), ..config };
        let disk = Arc::new(SimDisk::new(1));
        let member = Member { id: MEMBER, peer_urls: vec!["http://localhost:2380".into()], ..Member::default() };
        let options = StartOptions {
            layout: Layout::new(Path::new("/data"), None),
            bootstrap: Bootstrap::New { members: vec![member] },
            machine: dolmen_machine::Config {
                log: dolmen_revlog::Options { segment_bytes: 1 << 20, spare_bytes: 0, ..Default::default() },
                ..Default::default()
            },
            wal: dolmen_wal::WalOptions { segment_bytes: 1 << 20 },
        };
        let node_config = dolmen_node::Config {
            member_id: MEMBER,
            cluster_id: CLUSTER,
            name: "one".into(),
            client_urls: vec!["http://localhost:2379".into()],
            tick_nanos: 10_000_000,
            election_ticks: 10,
            pre_vote: true,
            snapshot_count: 10_000,
            catch_up_entries: 5_000,
            log_bytes: dolmen_node::LOG_BYTES,
            max_request_bytes: config.max_request_bytes,
            progress_notify_nanos: 600_000_000_000,
            apply_bytes_per_turn: dolmen_node::Config::APPLY_BYTES_PER_TURN,
            watch_near_revisions: dolmen_node::Config::WATCH_NEAR_REVISIONS,
            priority_request: false,
            seed: 1,
            incarnation: 1,
        };
        let started = start(disk.clone(), &options, node_config, RealClock::mono()).unwrap();
        let (runtimes, sinks) = Runtimes::new(2);
        let running = spawn(started, disk, Arc::new(NoPeers), sinks, Memory::untold()).unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let listener = Listener { socket: Bound::Tcp(socket), mode, plain: true, tls: None, room: Room::new(1000) };
        let node = running.handle().clone();
        let options =
            Options { config, node, forwarder: Arc::new(NoPeers), extra_metrics: Vec::new(), memory: Memory::untold() };
        let edge = serve(runtimes, vec![listener], options).unwrap();
        let member = Self { address, edge: Some(edge), running: Some(running) };
        for _ in 0..1000 {
            let handle = member.running.as_ref().unwrap().handle();
            if handle.status().is_leader() && handle.is_published() {
                return member;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("no leader in 10 s");
    }
}

impl Drop for TestMember {
    fn drop(&mut self) {
        if let Some(edge) = self.edge.take() {
            edge.join();
        }
        if let Some(running) = self.running.take() {
            running.handle().stop(false);
            let stopped = running.wait();
            if !std::thread::panicking() {
                stopped.unwrap();
            }
        }
    }
}
