//! What the node counts. All plain atomics: written by one thread, read by whoever prints them.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that comes and goes.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub fn set(&self, to: u64) {
        self.0.store(to, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Durations in exponential buckets, as etcd's: `first * 2^i` seconds.
#[derive(Debug)]
pub struct Histogram {
    first_nanos: u64,
    buckets: Vec<AtomicU64>,
    count: AtomicU64,
    sum_nanos: AtomicU64,
}

impl Histogram {
    /// `buckets` upper bounds from `first_nanos` on, each twice the one before.
    pub fn new(first_nanos: u64, buckets: usize) -> Self {
        Self {
            first_nanos,
            buckets: (0..buckets).map(|_| AtomicU64::new(0)).collect(),
            count: AtomicU64::new(0),
            sum_nanos: AtomicU64::new(0),
        }
    }

    pub fn observe(&self, nanos: u64) {
        let at = (0..self.buckets.len()).find(|i| nanos <= self.first_nanos << i);
        if let Some(bucket) = at.and_then(|i| self.buckets.get(i)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// (upper bound in seconds, observations at or below it), ascending.
    pub fn cumulative(&self) -> Vec<(f64, u64)> {
        let mut total = 0;
        let bound = |i: usize| (self.first_nanos << i) as f64 / 1e9;
        self.buckets
            .iter()
            .enumerate()
            .map(|(i, bucket)| {
                total += bucket.load(Ordering::Relaxed);
                (bound(i), total)
            })
            .collect()
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub fn sum_seconds(&self) -> f64 {
        self.sum_nanos.load(Ordering::Relaxed) as f64 / 1e9
    }
}

/// The node's figures; the edge prints them under etcd's names.
#[derive(Debug)]
pub struct Metrics {
    pub proposals_pending: Gauge,
    pub proposals_failed: Counter,
    pub leader_changes: Counter,
    pub read_indexes_failed: Counter,
    pub slow_read_indexes: Counter,
    pub heartbeat_send_failures: Counter,
    pub slow_applies: Counter,
    pub snapshots_applied: Counter,
    pub lease_granted: Counter,
    pub lease_revoked: Counter,
    pub lease_renewed: Counter,
    pub lease_expired: Counter,
    pub puts: Counter,
    pub deletes: Counter,
    pub txns: Counter,
    pub ranges: Counter,
    pub put_bytes: Counter,
    pub events: Gauge,
    pub watchers: Gauge,
    pub watch_streams: Gauge,
    pub slow_watchers: Gauge,
    pub pending_events: Gauge,
    pub compactions: Counter,
    pub wal_bytes: Counter,
    pub wal_write: Histogram,
    pub wal_fsync: Histogram,
    pub store_sync: Histogram,
    pub apply: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        const MILLI: u64 = 1_000_000;
        Self {
            proposals_pending: Gauge::default(),
            proposals_failed: Counter::default(),
            leader_changes: Counter::default(),
            read_indexes_failed: Counter::default(),
            slow_read_indexes: Counter::default(),
            heartbeat_send_failures: Counter::default(),
            slow_applies: Counter::default(),
            snapshots_applied: Counter::default(),
            lease_granted: Counter::default(),
            lease_revoked: Counter::default(),
            lease_renewed: Counter::default(),
            lease_expired: Counter::default(),
            puts: Counter::default(),
            deletes: Counter::default(),
            txns: Counter::default(),
            ranges: Counter::default(),
            put_bytes: Counter::default(),
            events: Gauge::default(),
            watchers: Gauge::default(),
            watch_streams: Gauge::default(),
            slow_watchers: Gauge::default(),
            pending_events: Gauge::default(),
            compactions: Counter::default(),
            wal_bytes: Counter::default(),
            wal_write: Histogram::new(MILLI, 14),
            wal_fsync: Histogram::new(MILLI, 14),
            store_sync: Histogram::new(MILLI, 14),
            apply: Histogram::new(MILLI / 10, 20),
        }
    }
}
