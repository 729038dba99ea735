//! One member from its flags to its end: sockets, files, node, transport, edge, and the signal that stops it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use dolmen_api::{Edge, Runtimes};
use dolmen_env::{Disk, RealClock, RealDisk};
use dolmen_net::ClientTls;
use dolmen_node::{DiskFailure, Handle, Layout, PeerSender, StopReason};
use dolmen_transport::{Lobby, PeerClient, Transport};
use dolmen_types::hex_id;
use tokio::signal::unix::SignalKind;
use tokio::sync::oneshot;

use crate::bootstrap::{self, Identity};
use crate::config::Config;
use crate::ending::{self, Outcome, Signals};
use crate::failure::Failure;
use crate::memory::MEMORY;
use crate::ports::{self, ClientPort, Ports, Rooms};
use crate::wiring::{self, PeerPort};
use crate::{agreement, cluster_version, data_dir, version};

/// For one connect to a peer.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the start looks whether the cluster knows this member.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs a member until it is told to stop.
pub fn run(config: Config) -> ExitCode {
    tracing::info!(data_dir = %config.data_dir.display(), "Initialize and start etcd server");
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed("cannot start", &format!("no runtime: {error}"), ExitCode::FAILURE),
    };
    match runtime.block_on(serve(config)) {
        Ok(code) => code,
        Err(Failure { what, text, code }) => failed(what, &text, ExitCode::from(code)),
    }
}

fn failed(what: &str, error: &str, code: ExitCode) -> ExitCode {
    tracing::error!(error, "{what}");
    code
}

/// The stages of a member, in order.
async fn serve(config: Config) -> Result<ExitCode, Failure> {
    // Taken first: a signal that comes while the member starts is not lost.
    let mut signals = Signals::take()?;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let layout = Layout::new(&config.data_dir, config.wal_dir.as_deref());

    data_dir::prepare(&*disk, &config.data_dir)?;
    let ports = Ports::open(&config).map_err(Failure::of_ports)?;
    bootstrap::import(&disk, &layout)?;
    let Ports { peer, client: clients, peer_client, rooms } = ports;
    let lobby = Lobby::listen(peer, MEMORY).map_err(|error| format!("cannot start the peer port: {error}"))?;
    // Others may have to answer first, which may take until they are started.
    let identity = tokio::select! {
        identity = bootstrap::identify(&config, &disk, &layout, &lobby, peer_client.clone()) => identity?,
        kind = signals.next() => return Ok(ending::not_started(kind)),
    };
    log_start(&config, &identity);
    let parts = start(&config, &disk, &layout, identity, lobby, peer_client, rooms)?;
    let serves = |parts: &Parts| {
        parts.serve_clients(clients);
        if !config.keep_imported {
            bootstrap::forget_imported(&disk, &layout);
        }
    };
    let (outcome, stopped_by) = parts.run(&mut signals, serves).await;
    Ok(ending::report(&config.name, outcome, stopped_by))
}

/// The running parts of a member.
struct Parts {
    node: Handle,
    edge: Edge,
    transport: Arc<Transport>,
    /// How the node ended.
    ended: oneshot::Receiver<Result<StopReason, DiskFailure>>,
}

/// Starts the node, the edge, and what is behind the peer port. The client ports are served once the cluster knows this
/// member.
fn start(
    config: &Config,
    disk: &Arc<dyn Disk>,
    layout: &Layout,
    identity: Identity,
    lobby: Lobby,
    peer_client: Option<ClientTls>,
    rooms: Rooms,
) -> Result<Parts, Failure> {
    let options = wiring::start_options(config, layout.clone(), identity.bootstrap.clone());
    let node_config = wiring::node_config(config, &identity);
    let started = dolmen_node::start(disk.clone(), &options, node_config, RealClock::mono())?;
    let transport = Transport::new(wiring::transport_config(config, layout, &identity, peer_client.clone()));
    transport.set_peers(identity.peers, Vec::new());
    let (runtimes, sinks) = Runtimes::per_core();
    let running = dolmen_node::spawn(started, disk.clone(), transport.clone(), sinks, MEMORY)
        .map_err(|error| format!("cannot start the node's threads: {error}"))?;
    let node = running.handle().clone();
    let client = PeerClient::new(peer_client, DIAL_TIMEOUT);
    let options = wiring::api_options(config, node.clone(), client.clone(), &transport, rooms);
    let edge = dolmen_api::serve(runtimes, Vec::new(), options)
        .map_err(|error| format!("cannot start the client port: {error}"))?;
    transport
        .start(lobby, Arc::new(node.clone()), Arc::new(PeerPort { edge: edge.peer_http(), node: node.clone() }))
        .map_err(|error| format!("cannot start the peer port: {error}"))?;

    tokio::spawn(dolmen_api::give_back(MEMORY));
    tokio::spawn(agreement::keep(node.clone(), client.clone()));
    tokio::spawn(cluster_version::keep(node.clone(), client, config.election));
    let (tell, ended) = oneshot::channel();
    let waiting = std::thread::Builder::new().name("wait".into()).spawn(move || tell.send(running.wait()));
    waiting.map_err(|error| error.to_string())?;
    Ok(Parts { node, edge, transport, ended })
}

impl Parts {
    /// Runs to the node's end, which a signal asks for. `serves`: what is to be done once the cluster knows this member.
    async fn run(mut self, signals: &mut Signals, serves: impl FnOnce(&Self)) -> (Outcome, Option<SignalKind>) {
        let mut serves = Some(serves);
        let mut stopped_by = None;
        let outcome = loop {
            tokio::select! {
                outcome = &mut self.ended => break outcome.ok(),
                kind = signals.next() => {
                    let name = if kind == SignalKind::interrupt() { "interrupt" } else { "terminated" };
                    tracing::info!(signal = name, "received signal; shutting down");
                    stopped_by = Some(kind);
                    self.node.stop(true);
                }
                () = published(&self.node), if serves.is_some() => {
                    if let Some(serves) = serves.take() {
                        serves(&self);
                    }
                }
            }
        };
        self.edge.join();
        self.transport.stop();
        (outcome, stopped_by)
    }

    fn serve_clients(&self, clients: Vec<ClientPort>) {
        tracing::info!("published local member to cluster through raft");
        tracing::info!("ready to serve client requests");
        ports::serve(&self.edge, clients);
        notify_init();
    }
}

/// Returns when the cluster knows this member.
async fn published(node: &Handle) {
    while !node.is_published() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Tells systemd, if it started us, that the member serves.
fn notify_init() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Ok(socket) = std::os::unix::net::UnixDatagram::unbound() {
        // Nobody listening is nobody to tell.
        let _ = socket.send_to(b"READY=1", Path::new(&path));
    }
}

fn log_start(config: &Config, identity: &Identity) {
    tracing::info!(
        etcd_version = version::ETCD,
        dolmen_version = env!("CARGO_PKG_VERSION"),
        member_initialized = identity.initialized,
        name = config.name,
        local_member_id = hex_id(identity.member_id),
        cluster_id = hex_id(identity.cluster_id),
        data_dir = %config.data_dir.display(),
        heartbeat_interval = ?config.heartbeat,
        election_timeout = ?config.election,
        snapshot_count = config.snapshot_count,
        snapshot_catchup_entries = config.catch_up_entries,
        quota_backend_bytes = config.quota_bytes,
        max_request_bytes = config.max_request_bytes,
        "starting an etcd server"
    );
}
