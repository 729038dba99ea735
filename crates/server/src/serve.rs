//! One member from its flags to its end: sockets, files, node, transport, edge, and the signal that stops it.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dolmen_api::{Edge, LeaseForwarder, Listener, Mode, PeerAnswer, PeerHttp, PeerRequest, Runtimes};
use dolmen_env::{Disk, RealClock, RealDisk, Rng};
use dolmen_node::{Bootstrap, Completion, Handle, Layout, PeerSender, ProposeKind, Request, StartOptions, StopReason};
use dolmen_proto::etcdserverpb::{InternalRaftRequest, RequestHeader};
use dolmen_proto::membershippb::ClusterVersionSetRequest;
use dolmen_transport::{
    ApiFuture, ApiRequest, ApiResponse, ClientTls, LeasePipes, PeerApi, PeerClient, PeerListener, PeerUrl, Port,
    ServerTls, TlsInfo, Transport,
};
use dolmen_types::{MemberId, error_chain, hex_id};
use prost::Message;
use tokio::signal::unix::{SignalKind, signal};

use crate::bootstrap::{self, Identity};
use crate::config::{Config, Url};
use crate::failure::{EXIT_DATA, Failure, explained};
use crate::memory::MEMORY;
use crate::network_metrics;
use crate::sockets::{Socket, bind};
use crate::version;

/// A disk failed while the server ran.
const EXIT_DISK: u8 = 74;
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the leader looks at the versions of the members, as in etcd.
const VERSION_INTERVAL: Duration = Duration::from_secs(4);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs a member until it is told to stop.
pub fn run(config: Config) -> ExitCode {
    tracing::info!(data_dir = %config.data_dir.display(), "Initialize and start etcd server");
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("no runtime: {error}"), ExitCode::FAILURE),
    };
    match runtime.block_on(serve(config)) {
        Ok(code) => code,
        Err(Failure { text, code }) => failed(&text, ExitCode::from(code)),
    }
}

fn failed(error: &str, code: ExitCode) -> ExitCode {
    tracing::error!(error, "discovery failed");
    code
}

/// The ports of a member, bound before anything else is touched.
struct Ports {
    peer: Vec<(Url, Socket)>,
    client: Vec<(Url, Socket, Mode)>,
}

/// The TLS of both ports; `None` where no URL wants it.
struct Secrets {
    client_server: Option<ServerTls>,
    peer_server: Option<ServerTls>,
    peer_client: Option<ClientTls>,
}

async fn serve(config: Config) -> Result<ExitCode, Failure> {
    // Taken first: a signal that comes while the member starts is not lost.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;

    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    disk.create_dir_all(&config.data_dir).map_err(|error| Failure::of_directory(&config.data_dir, &error))?;
    let secrets = secrets(&config)?;
    let ports = open_ports(&config, &secrets)?;
    let layout = Layout::new(&config.data_dir, config.wal_dir.as_deref());
    bootstrap::import(&disk, &layout)?;
    let identity = bootstrap::identify(&config, &disk, &layout, secrets.peer_client.clone()).await?;
    log_start(&config, &identity);

    let options = start_options(&config, layout.clone(), identity.bootstrap.clone());
    let started = dolmen_node::start(disk.clone(), &options, node_config(&config, &identity), RealClock::mono())?;
    let transport = Transport::new(transport_config(&config, &layout, &identity, secrets.peer_client.clone()));
    transport.set_peers(identity.peers.clone(), Vec::new());
    let (runtimes, sinks) = Runtimes::per_core();
    let running = dolmen_node::spawn(started, disk.clone(), transport.clone(), sinks, MEMORY)
        .map_err(|error| format!("cannot start the node's threads: {error}"))?;
    let node = running.handle().clone();
    let client = PeerClient::new(secrets.peer_client.clone(), DIAL_TIMEOUT);
    let edge = dolmen_api::serve(runtimes, Vec::new(), api_options(&config, node.clone(), client.clone(), &transport))
        .map_err(|error| format!("cannot start the client port: {error}"))?;
    transport
        .start(peer_listeners(ports.peer, &secrets), Arc::new(node.clone()), Arc::new(PeerPort(edge.peer_http())))
        .map_err(|error| format!("cannot start the peer port: {error}"))?;

    tokio::spawn(dolmen_api::give_back(MEMORY));
    tokio::spawn(keep_cluster_version(node.clone(), client, config.election));
    let (ended, mut end) = tokio::sync::oneshot::channel();
    let waiting = std::thread::Builder::new().name("wait".into()).spawn(move || ended.send(running.wait()));
    waiting.map_err(|error| error.to_string())?;

    let mut ports = Some(ports.client);
    let mut stopped_by = None;
    let outcome = loop {
        tokio::select! {
            outcome = &mut end => break outcome,
            _ = interrupt.recv() => stop(&node, &mut stopped_by, SignalKind::interrupt()),
            _ = terminate.recv() => stop(&node, &mut stopped_by, SignalKind::terminate()),
            () = published(&node), if ports.is_some() => {
                open_edge(&edge, ports.take().unwrap_or_default(), &secrets);
                if !config.keep_imported {
                    bootstrap::forget_imported(&disk, &layout);
                }
            }
        }
    };
    edge.join();
    transport.stop();
    Ok(match outcome {
        Ok(Ok(StopReason::Asked)) => {
            tracing::info!(name = config.name, "closed etcd server");
            match stopped_by {
                Some(kind) => die_by(kind),
                None => ExitCode::SUCCESS,
            }
        }
        Ok(Ok(StopReason::Removed)) => {
            tracing::warn!("server error: the member has been permanently removed from the cluster");
            ExitCode::SUCCESS
        }
        Ok(Ok(StopReason::Fatal(error))) => {
            tracing::error!(error, "the state machine cannot go on; restore this member from its peers or a backup");
            ExitCode::from(EXIT_DATA)
        }
        Ok(Err(failure)) => {
            let error = failure.to_string();
            tracing::error!(error, "a disk failed; nothing is retried, check the disk before starting again");
            ExitCode::from(EXIT_DISK)
        }
        Err(_) => ExitCode::FAILURE,
    })
}

fn stop(node: &Handle, stopped_by: &mut Option<SignalKind>, kind: SignalKind) {
    let name = if kind == SignalKind::interrupt() { "interrupt" } else { "terminated" };
    tracing::info!(signal = name, "received signal; shutting down");
    *stopped_by = Some(kind);
    node.stop(true);
}

/// Ends the process as the signal would have, so that whoever waits for it sees why; the first process of a container
/// has no such end and exits with 0.
fn die_by(kind: SignalKind) -> ExitCode {
    if std::process::id() != 1 {
        // Comes back only when the signal has no such effect.
        let _ = signal_hook::low_level::emulate_default_handler(kind.as_raw_value());
    }
    ExitCode::SUCCESS
}

async fn published(node: &Handle) {
    while !node.is_published() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn open_edge(edge: &Edge, ports: Vec<(Url, Socket, Mode)>, secrets: &Secrets) {
    tracing::info!("published local member to cluster through raft");
    tracing::info!("ready to serve client requests");
    for (url, socket, mode) in ports {
        let traffic = match mode {
            Mode::GrpcAndHttp => "grpc+http",
            Mode::Grpc => "grpc",
            Mode::Http => "http",
            Mode::Metrics => "metrics",
        };
        let tls = url.scheme.is_tls();
        if tls {
            tracing::info!(traffic, address = url.address, "serving client traffic securely");
        } else {
            tracing::info!(
                traffic,
                address = url.address,
                "serving client traffic insecurely; this is strongly discouraged!"
            );
        }
        let socket = match socket {
            Socket::Tcp(socket) => dolmen_api::ListenSocket::Tcp(socket),
            Socket::Unix(socket) => dolmen_api::ListenSocket::Unix(socket),
        };
        let server = secrets.client_server.as_ref().filter(|_| tls);
        edge.listen(Listener { socket, mode, plain: !tls, tls: server.map(|server| server.config.clone()) });
    }
    notify_init();
}

/// Tells systemd, if it started us, that the member serves.
fn notify_init() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Ok(socket) = std::os::unix::net::UnixDatagram::unbound() {
        // Nobody listening is nobody to tell.
        let _ = socket.send_to(b"READY=1", Path::new(&path));
    }
}

// ---- before the node ----

fn secrets(config: &Config) -> Result<Secrets, String> {
    let hosts = |urls: &[Url]| urls.iter().map(|url| url.address.clone()).collect::<Vec<_>>();
    let secured = |urls: &[Url]| urls.iter().any(|url| url.scheme.is_tls());
    let fixtures = config.data_dir.join("fixtures");
    let prepare = |info: &TlsInfo, auto: bool, folder: &str, urls: &[Url]| {
        if auto && info.is_empty() && secured(urls) {
            TlsInfo::self_signed(&fixtures.join(folder), &hosts(urls), config.self_signed_years)
                .map_err(|error| format!("error creating self-signed {folder} certificates: {}", explained(&error)))
        } else {
            Ok(info.clone())
        }
    };
    let clients: Vec<Url> = [&config.listen_client, &config.listen_client_http, &config.listen_metrics]
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    let client = prepare(&config.client_tls, config.auto_tls, "client", &clients)?;
    let peer = prepare(&config.peer_tls, config.peer_auto_tls, "peer", &config.listen_peer)?;
    for url in clients.iter().filter(|url| url.scheme.is_tls()) {
        if client.is_empty() {
            return Err(if config.listen_metrics.contains(url) {
                "client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url".into()
            } else {
                format!(
                    "TLS key/cert (--cert-file, --key-file) must be provided for client url {url} with HTTPS scheme"
                )
            });
        }
    }
    for url in config.listen_peer.iter().filter(|url| url.scheme.is_tls()) {
        if peer.is_empty() {
            return Err(format!(
                "TLS key/cert (--peer-cert-file, --peer-key-file) must be provided for peer url {url} with HTTPS scheme"
            ));
        }
    }
    let server = |info: &TlsInfo, port, urls: &[Url]| {
        secured(urls).then(|| info.server(port)).transpose().map_err(|error| error_chain(&error))
    };
    let dials_tls = secured(&config.advertise_peer)
        || config.initial_cluster.values().flatten().any(|url| url.starts_with("https"));
    Ok(Secrets {
        client_server: server(&client, Port::Client, &clients)?,
        peer_server: server(&peer, Port::Peer, &config.listen_peer)?,
        peer_client: dials_tls.then(|| peer.client()).transpose().map_err(|error| error_chain(&error))?,
    })
}

fn open_ports(config: &Config, secrets: &Secrets) -> Result<Ports, String> {
    if secrets.peer_server.is_none() && !config.peer_tls.is_empty() {
        tracing::warn!("scheme is HTTP while key and cert files are present; ignoring key and cert files for peers");
    }
    tracing::info!(listen_peer_urls = ?shown(&config.listen_peer), "configuring peer listeners");
    let peer = config.listen_peer.iter().map(|url| Ok((url.clone(), bind(url)?))).collect::<Result<_, String>>()?;
    tracing::info!(listen_client_urls = ?shown(&config.listen_client), "configuring client listeners");
    let clients = if config.listen_client_http.is_empty() { Mode::GrpcAndHttp } else { Mode::Grpc };
    let groups = [
        (&config.listen_client, clients),
        (&config.listen_client_http, Mode::Http),
        (&config.listen_metrics, Mode::Metrics),
    ];
    let mut client = Vec::new();
    for (urls, mode) in groups {
        for url in urls {
            client.push((url.clone(), bind(url)?, mode));
        }
    }
    Ok(Ports { peer, client })
}

fn shown(urls: &[Url]) -> Vec<String> {
    urls.iter().map(ToString::to_string).collect()
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

// ---- wiring ----

fn node_config(config: &Config, identity: &Identity) -> dolmen_node::Config {
    let incarnation = RealClock::unix_millis();
    let mut rng = Rng::new(incarnation ^ identity.member_id ^ (u64::from(std::process::id()) << 32));
    dolmen_node::Config {
        member_id: identity.member_id,
        cluster_id: identity.cluster_id,
        name: config.name.clone(),
        client_urls: shown(&config.advertise_client),
        tick_nanos: config.heartbeat.as_nanos() as u64,
        election_ticks: (config.election.as_millis() / config.heartbeat.as_millis().max(1)) as usize,
        pre_vote: config.pre_vote,
        snapshot_count: config.snapshot_count,
        catch_up_entries: config.catch_up_entries,
        max_request_bytes: config.max_request_bytes as usize,
        progress_notify_nanos: config.progress_notify.as_nanos() as u64,
        priority_request: config.gate("PriorityRequest"),
        seed: rng.next_u64(),
        incarnation,
    }
}

fn start_options(config: &Config, layout: Layout, bootstrap: Bootstrap) -> StartOptions {
    let ticks = config.election.as_secs_f64() / config.heartbeat.as_secs_f64();
    let minimum = (3.0 * ticks / 2.0 * config.heartbeat.as_secs_f64()).ceil() as i64;
    let lease = dolmen_lease::Config {
        min_ttl_seconds: minimum,
        checkpoints: config.gate("LeaseCheckpoint"),
        ..dolmen_lease::Config::default()
    };
    StartOptions {
        layout,
        bootstrap,
        machine: dolmen_machine::Config { lease, log: dolmen_revlog::Options::default() },
        wal: dolmen_wal::WalOptions::default(),
    }
}

fn transport_config(
    config: &Config,
    layout: &Layout,
    identity: &Identity,
    tls: Option<ClientTls>,
) -> dolmen_transport::Config {
    dolmen_transport::Config {
        member_id: identity.member_id,
        cluster_id: identity.cluster_id,
        peer_urls: shown(&config.advertise_peer),
        server_version: version::ETCD.into(),
        min_cluster_version: dolmen_machine::MIN_CLUSTER_VERSION.into(),
        snap_dir: layout.snap(),
        dial_timeout: DIAL_TIMEOUT,
        tls,
        local_addr: None,
        clock: Arc::new(RealClock::mono),
        memory: MEMORY,
    }
}

fn api_options(config: &Config, node: Handle, client: PeerClient, transport: &Transport) -> dolmen_api::Options {
    let api = dolmen_api::Config {
        server_version: version::ETCD.into(),
        max_request_bytes: config.max_request_bytes as usize,
        max_txn_ops: config.max_txn_ops as usize,
        quota_bytes: config.quota_bytes,
        max_concurrent_streams: config.max_concurrent_streams,
        election_timeout: config.election,
        request_timeout: Duration::from_secs(5) + 2 * config.election,
        keepalive_interval: config.keepalive_interval,
        keepalive_timeout: config.keepalive_timeout,
        host_whitelist: config.host_whitelist.clone(),
        cors: config.cors.clone(),
        ..dolmen_api::Config::default()
    };
    let extra_metrics = vec![network_metrics::families(node.status().member_id, transport.stats().clone())];
    let runtimes = std::thread::available_parallelism().map_or(1, usize::from);
    let forwarder = ToLeader { renewals: LeasePipes::new(client.clone(), runtimes), client };
    dolmen_api::Options { config: api, node, forwarder: Arc::new(forwarder), extra_metrics, memory: MEMORY }
}

fn peer_listeners(sockets: Vec<(Url, Socket)>, secrets: &Secrets) -> Vec<PeerListener> {
    let listener = |(url, socket): (Url, Socket)| PeerListener {
        socket: match socket {
            Socket::Tcp(socket) => dolmen_transport::ListenSocket::Tcp(socket),
            Socket::Unix(socket) => dolmen_transport::ListenSocket::Unix(socket),
        },
        tls: secrets.peer_server.clone().filter(|_| url.scheme.is_tls()),
    };
    sockets.into_iter().map(listener).collect()
}

/// The peer port's requests that are not raft's, answered by the edge.
struct PeerPort(PeerHttp);

impl PeerApi for PeerPort {
    fn handle(&self, request: ApiRequest) -> ApiFuture {
        let edge = self.0.clone();
        Box::pin(async move {
            let ApiRequest { method, path, headers, body, .. } = request;
            let answer = edge.handle(PeerRequest { method, path, headers, body }).await;
            ApiResponse { status: answer.status, headers: answer.headers, body: answer.body }
        })
    }

    fn renew_lease(&self, request: &[u8]) -> Option<Bytes> {
        self.0.renew_at_once(request)
    }
}

/// What only the leader can do with leases, asked of its peer URLs in turn.
struct ToLeader {
    client: PeerClient,
    renewals: LeasePipes,
}

impl LeaseForwarder for ToLeader {
    fn post<'a>(
        &'a self,
        _member: MemberId,
        urls: &'a [String],
        path: &'static str,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = PeerAnswer> + Send + 'a>> {
        Box::pin(async move {
            let mut last = std::io::Error::other("the leader has no peer URL");
            for url in urls {
                let url = match PeerUrl::parse(url) {
                    Ok(url) => url,
                    Err(error) => {
                        last = std::io::Error::other(error);
                        continue;
                    }
                };
                let timeout = Duration::from_secs(5);
                let answer = match path {
                    "/leases/internal" => self.client.post_leases_internal(&url, body.clone(), timeout).await,
                    _ => self.client.post_leases(&url, body.clone(), timeout).await,
                };
                match answer {
                    Ok(response) => return Ok((response.status.as_u16(), response.body)),
                    Err(error) => last = std::io::Error::other(error),
                }
            }
            Err(last)
        })
    }

    fn renew<'a>(
        &'a self,
        runtime: u16,
        member: MemberId,
        urls: &'a [String],
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = PeerAnswer> + Send + 'a>> {
        let pending = urls.first().and_then(|url| self.renewals.post(usize::from(runtime), url, &body));
        Box::pin(async move {
            let answer = match pending {
                Some(pending) => pending.await,
                None => None,
            };
            match answer {
                Some(answer) => Ok(answer),
                // A renewal made twice is one: it may be sent again whatever became of it.
                None => self.post(member, urls, "/leases", body).await,
            }
        })
    }
}

// ---- the cluster version ----

/// On the leader: sets the cluster version to the lowest of the members' versions, and raises it when they have all
/// moved on.
async fn keep_cluster_version(node: Handle, client: PeerClient, election: Duration) {
    loop {
        let undecided = node.members().cluster_version.is_none();
        if node.status().is_leader() && !node.members().members.is_empty() {
            let lowest = lowest_version(&node, &client).await;
            if let Some(version) = decide(node.members().cluster_version.as_deref(), lowest) {
                tracing::info!(version, "setting the cluster version");
                propose_cluster_version(&node, version);
                tokio::time::sleep(election).await;
                continue;
            }
        }
        tokio::time::sleep(if undecided { POLL_INTERVAL } else { VERSION_INTERVAL }).await;
    }
}

/// The lowest major.minor of all members, `None` while one of them does not tell.
async fn lowest_version(node: &Handle, client: &PeerClient) -> Option<(u64, u64)> {
    let mut lowest = parse_version(version::ETCD)?;
    let own = node.status().member_id;
    for member in node.members().members.values().filter(|member| member.id != own) {
        let mut told = None;
        for url in &member.peer_urls {
            let Ok(url) = PeerUrl::parse(url) else { continue };
            if let Ok(json) = client.get_version(&url, Duration::from_secs(2)).await {
                let json: serde_json::Value = serde_json::from_slice(&json).unwrap_or_default();
                told = json["etcdserver"].as_str().and_then(parse_version);
                break;
            }
        }
        lowest = lowest.min(told?);
    }
    Some(lowest)
}

fn parse_version(text: &str) -> Option<(u64, u64)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The version to set, if it has to change.
fn decide(current: Option<&str>, lowest: Option<(u64, u64)>) -> Option<String> {
    let shown = |(major, minor): (u64, u64)| format!("{major}.{minor}.0");
    match (current.and_then(parse_version), lowest) {
        (None, lowest) => Some(lowest.map_or_else(|| dolmen_machine::MIN_CLUSTER_VERSION.to_owned(), shown)),
        (Some(current), Some(lowest)) if current < lowest => Some(shown(lowest)),
        _ => None,
    }
}

fn propose_cluster_version(node: &Handle, ver: String) {
    let id = node.next_id();
    let request = InternalRaftRequest {
        header: Some(RequestHeader { id, ..RequestHeader::default() }),
        cluster_version_set: Some(ClusterVersionSetRequest { ver }),
        ..InternalRaftRequest::default()
    };
    let request = Request::Propose { id, data: request.encode_to_vec().into(), kind: ProposeKind::Normal };
    // No runtime has this number: whoever set the version reads it from the members.
    node.submit(request, Completion { runtime: u16::MAX, slot: 0 });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_version_is_the_lowest_and_never_falls() {
        assert_eq!(decide(None, None).as_deref(), Some("3.0.0"));
        assert_eq!(decide(None, Some((3, 6))).as_deref(), Some("3.6.0"));
        assert_eq!(decide(Some("3.0.0"), Some((3, 7))).as_deref(), Some("3.7.0"));
        assert_eq!(decide(Some("3.7.0"), Some((3, 6))), None);
        assert_eq!(decide(Some("3.6.0"), None), None);
    }
}
