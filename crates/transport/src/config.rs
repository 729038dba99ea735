//! What the transport is told at its start.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dolmen_env::{Memory, Mono};
use dolmen_net::{Bound, ClientTls, Room, ServerTls};
use dolmen_types::{ClusterId, MemberId};

/// Who this member is and how it reaches others.
#[derive(Clone)]
pub struct Config {
    pub member_id: MemberId,
    pub cluster_id: ClusterId,
    /// Our own advertised peer URLs, told to members that do not know us yet.
    pub peer_urls: Vec<String>,
    /// Our etcd version, `major.minor.patch`.
    pub server_version: String,
    /// The oldest version we speak with: `3.0.0`.
    pub min_cluster_version: String,
    /// `member/snap`: where databases of received snapshots go. Must exist.
    pub snap_dir: PathBuf,
    /// Bytes of a received snapshot at most.
    pub max_snapshot_bytes: u64,
    /// For one connect. etcd: one second and an election timeout.
    pub dial_timeout: Duration,
    /// For peers with `https` URLs.
    pub tls: Option<ClientTls>,
    /// Dial from this address (`--experimental-set-member-localaddr`).
    pub local_addr: Option<IpAddr>,
    /// The process' monotonic clock.
    pub clock: Arc<dyn Fn() -> Mono + Send + Sync>,
    /// How the transport's thread gives freed memory back.
    pub memory: Memory,
}

/// One of our listen-peer-urls.
pub struct PeerListener {
    pub socket: Bound,
    /// For `https` and `unixs`.
    pub tls: Option<ServerTls>,
    /// How many it holds.
    pub room: Arc<Room>,
}
