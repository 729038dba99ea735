//! What each part of a member is told of the flags.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dolmen_api::{PeerHttp, PeerRequest};
use dolmen_env::{RealClock, Rng};
use dolmen_net::ClientTls;
use dolmen_node::{Bootstrap, Handle, Layout, StartOptions};
use dolmen_transport::{ApiFuture, ApiRequest, ApiResponse, MEMBER_PATH, PeerApi, PeerClient, Transport};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, StatusCode};

use crate::agreement::{self, CHAIN_PATH};
use crate::bootstrap::{self, Identity};
use crate::config::Config;
use crate::memory::MEMORY;
use crate::network_metrics;
use crate::ports::{Rooms, shown};
use crate::serve::DIAL_TIMEOUT;
use crate::to_leader::ToLeader;
use crate::version;

/// What quota 0 stands for, as in etcd.
const DEFAULT_QUOTA: u64 = 2 << 30;

pub fn node_config(config: &Config, identity: &Identity) -> dolmen_node::Config {
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
        log_bytes: dolmen_node::LOG_BYTES,
        max_request_bytes: config.max_request_bytes as usize,
        apply_bytes_per_turn: dolmen_node::Config::APPLY_BYTES_PER_TURN,
        progress_notify_nanos: config.progress_notify.as_nanos() as u64,
        watch_near_revisions: dolmen_node::Config::WATCH_NEAR_REVISIONS,
        priority_request: config.gate("PriorityRequest"),
        seed: rng.next_u64(),
        incarnation,
    }
}

pub fn machine_config(config: &Config) -> dolmen_machine::Config {
    let ticks = config.election.as_secs_f64() / config.heartbeat.as_secs_f64();
    let minimum = (3.0 * ticks / 2.0 * config.heartbeat.as_secs_f64()).ceil() as i64;
    let lease = dolmen_lease::Config {
        min_ttl_seconds: minimum,
        checkpoints: config.gate("LeaseCheckpoint"),
        ..dolmen_lease::Config::default()
    };
    dolmen_machine::Config { lease, token_ttl_seconds: config.token_ttl_seconds, ..dolmen_machine::Config::default() }
}

pub fn start_options(config: &Config, layout: Layout, bootstrap: Bootstrap) -> StartOptions {
    StartOptions { layout, bootstrap, machine: machine_config(config), wal: dolmen_wal::WalOptions::default() }
}

pub fn transport_config(
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
        max_snapshot_bytes: max_snapshot_bytes(config.quota_bytes),
        dial_timeout: DIAL_TIMEOUT,
        tls,
        local_addr: None,
        clock: Arc::new(RealClock::mono),
        memory: MEMORY,
    }
}

/// Twice the quota, and a GiB: a file has pages that are free, and what is live may exceed a quota by what was in flight.
fn max_snapshot_bytes(quota: i64) -> u64 {
    match quota {
        ..0 => u64::MAX,
        0 => 2 * DEFAULT_QUOTA + (1 << 30),
        quota => (quota as u64).saturating_mul(2).saturating_add(1 << 30),
    }
}

pub fn api_options(
    config: &Config,
    node: Handle,
    client: PeerClient,
    transport: &Transport,
    rooms: Rooms,
) -> dolmen_api::Options {
    let api = dolmen_api::Config {
        server_version: version::ETCD.into(),
        max_request_bytes: config.max_request_bytes as usize,
        max_txn_ops: config.max_txn_ops as usize,
        max_in_flight_bytes: config.max_in_flight_bytes,
        quota_bytes: config.quota_bytes,
        max_concurrent_streams: config.max_concurrent_streams,
        election_timeout: config.election,
        request_timeout: Duration::from_secs(5) + 2 * config.election,
        keepalive_interval: config.keepalive_interval,
        keepalive_timeout: config.keepalive_timeout,
        host_whitelist: config.host_whitelist.clone(),
        cors: config.cors.clone(),
        client_cert_auth: config.client_tls.client_cert_auth,
        bcrypt_cost: config.bcrypt_cost,
        ..dolmen_api::Config::default()
    };
    let extra_metrics = vec![
        network_metrics::families(node.status().member_id, transport.stats().clone(), rooms),
        agreement::families(node.clone()),
    ];
    let runtimes = std::thread::available_parallelism().map_or(1, usize::from);
    let forwarder = Arc::new(ToLeader::new(client, runtimes));
    dolmen_api::Options { config: api, node, forwarder, extra_metrics, memory: MEMORY }
}

/// The peer port's requests that are not raft's: answered by the edge, but for what this member is and has applied.
pub struct PeerPort {
    pub edge: PeerHttp,
    pub node: Handle,
}

impl PeerPort {
    fn who(&self) -> String {
        let (status, members) = (self.node.status(), self.node.members());
        let data = members.members.values().any(|member| !member.client_urls.is_empty());
        let revision = self.node.reader().revision();
        bootstrap::own_words(status.cluster_id, status.member_id, data, false, revision)
    }
}

fn json(body: String) -> ApiFuture {
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
    let answer = ApiResponse { status: StatusCode::OK, headers, body: body.into() };
    Box::pin(async move { answer })
}

impl PeerApi for PeerPort {
    fn handle(&self, request: ApiRequest) -> ApiFuture {
        match request.path.as_str() {
            MEMBER_PATH => return json(self.who()),
            CHAIN_PATH => return json(agreement::points(&self.node, &request.query)),
            _ => {}
        }
        let edge = self.edge.clone();
        Box::pin(async move {
            let ApiRequest { method, path, headers, body, .. } = request;
            let answer = edge.handle(PeerRequest { method, path, headers, body }).await;
            ApiResponse { status: answer.status, headers: answer.headers, body: answer.body }
        })
    }

    fn renew_lease(&self, request: &[u8]) -> Option<Bytes> {
        self.edge.renew_at_once(request)
    }
}
