//! Counts of what went over the wire, one set a peer, read by whoever prints metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use dolmen_env::Mono;
use dolmen_types::{MemberId, hex_id};
use parking_lot::Mutex;

/// A histogram with doubling buckets: upper bounds `first`, `first * 2`, and so on, and then everything.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    first: f64,
    buckets: [AtomicU64; N],
    count: AtomicU64,
    sum_nanos: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    fn new(first: f64) -> Self {
        Self {
            first,
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            count: AtomicU64::new(0),
            sum_nanos: AtomicU64::new(0),
        }
    }

    pub(crate) fn observe(&self, value: Duration) {
        let mut bound = self.first;
        for bucket in &self.buckets {
            if value.as_secs_f64() <= bound {
                bucket.fetch_add(1, Relaxed);
                break;
            }
            bound *= 2.0;
        }
        self.sum_nanos.fetch_add(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        self.count.fetch_add(1, Relaxed);
    }

    /// Upper bounds in seconds with the counts up to and including each, as Prometheus wants them.
    pub fn cumulative(&self) -> Vec<(f64, u64)> {
        let mut total = 0;
        let mut bound = self.first / 2.0;
        self.buckets
            .iter()
            .map(|bucket| {
                total += bucket.load(Relaxed);
                bound *= 2.0;
                (bound, total)
            })
            .collect()
    }

    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    pub fn sum_seconds(&self) -> f64 {
        self.sum_nanos.load(Relaxed) as f64 / 1e9
    }
}

/// Transfers of snapshots in one direction.
#[derive(Debug)]
pub struct SnapshotCounts {
    pub success: AtomicU64,
    pub failures: AtomicU64,
    pub inflight: AtomicI64,
    pub seconds: Histogram<10>,
}

impl SnapshotCounts {
    fn new() -> Self {
        Self {
            success: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            inflight: AtomicI64::new(0),
            seconds: Histogram::new(0.1),
        }
    }
}

/// What is known of the link with one member. The names are those of etcd's `etcd_network_*` metrics.
#[derive(Debug)]
pub struct PeerStats {
    pub id: MemberId,
    active: AtomicBool,
    since: AtomicU64,
    pub disconnected: AtomicU64,
    pub sent_bytes: AtomicU64,
    pub received_bytes: AtomicU64,
    pub sent_failures: AtomicU64,
    pub received_failures: AtomicU64,
    pub snapshot_send: SnapshotCounts,
    pub snapshot_receive: SnapshotCounts,
    pub round_trip: Histogram<16>,
    /// The last round trip in nanoseconds, smoothed.
    pub smoothed_round_trip_nanos: AtomicU64,
}

impl PeerStats {
    fn new(id: MemberId) -> Self {
        Self {
            id,
            active: AtomicBool::new(false),
            since: AtomicU64::new(0),
            disconnected: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            sent_failures: AtomicU64::new(0),
            received_failures: AtomicU64::new(0),
            snapshot_send: SnapshotCounts::new(),
            snapshot_receive: SnapshotCounts::new(),
            round_trip: Histogram::new(0.0001),
            smoothed_round_trip_nanos: AtomicU64::new(0),
        }
    }

    /// Whether the member is connected.
    pub fn is_active(&self) -> bool {
        self.active.load(Relaxed)
    }

    /// Since when the member is connected without a break.
    pub fn active_since(&self) -> Option<Mono> {
        self.is_active().then(|| Mono(self.since.load(Relaxed)))
    }

    pub(crate) fn activate(&self, now: Mono) {
        if self.is_active() {
            return;
        }
        self.since.store(now.0, Relaxed);
        self.active.store(true, Relaxed);
        tracing::info!(peer_id = hex_id(self.id), "peer became active");
    }

    pub(crate) fn deactivate(&self, source: &str, action: &str, reason: &dyn std::fmt::Display) {
        let peer_id = hex_id(self.id);
        if !self.active.swap(false, Relaxed) {
            tracing::debug!(
                peer_id,
                error = %format_args!("failed to {action} {peer_id} on {source} ({reason})"),
                "peer deactivated again"
            );
            return;
        }
        self.disconnected.fetch_add(1, Relaxed);
        tracing::warn!(
            peer_id,
            error = %format_args!("failed to {action} {peer_id} on {source} ({reason})"),
            "peer became inactive (message send to peer failed)"
        );
    }

    pub(crate) fn forget_active(&self) {
        self.active.store(false, Relaxed);
    }
}

/// All sets, by member; a member that has left keeps its counts.
#[derive(Debug, Default)]
pub struct NetworkStats {
    peers: Mutex<BTreeMap<MemberId, Arc<PeerStats>>>,
    /// Link heartbeats received, in bytes: etcd counts them for member 0.
    pub heartbeat_bytes: AtomicU64,
    /// Requests that could not be understood, whoever sent them.
    pub unknown_received_failures: AtomicU64,
    /// Snapshot transfers that failed before their sender was known.
    pub unknown_snapshot_failures: AtomicU64,
}

/// Sets kept at most: members come and go, and the sender of a message is a number anybody can write.
const MAX_SETS: usize = 1024;

impl NetworkStats {
    /// The sets there are, in order of member id.
    pub fn peers(&self) -> Vec<Arc<PeerStats>> {
        self.peers.lock().values().cloned().collect()
    }

    /// The set of one member, when there is one.
    pub fn get(&self, id: MemberId) -> Option<Arc<PeerStats>> {
        self.peers.lock().get(&id).cloned()
    }

    pub(crate) fn of(&self, id: MemberId) -> Arc<PeerStats> {
        let mut peers = self.peers.lock();
        if let Some(stats) = peers.get(&id) {
            return Arc::clone(stats);
        }
        let stats = Arc::new(PeerStats::new(id));
        if peers.len() < MAX_SETS {
            peers.insert(id, Arc::clone(&stats));
        }
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_count_up() {
        let histogram = Histogram::<3>::new(0.1);
        for millis in [50, 100, 150, 350, 10_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let counts: Vec<u64> = histogram.cumulative().into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [2, 3, 4]);
        assert_eq!(histogram.count(), 5);
    }
}
