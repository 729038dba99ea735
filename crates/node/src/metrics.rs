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

/// One family of the metrics page.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    pub name: &'static str,
    pub help: &'static str,
    /// Whether the page calls it a counter; etcd calls some of its counts gauges.
    pub counter: bool,
    pub labels: &'static [(&'static str, &'static str)],
}

/// What a family stands at.
#[derive(Clone, Copy, Debug)]
pub enum Figure<'a> {
    Number(u64),
    Histogram(&'a Histogram),
}

trait Show {
    fn figure(&self) -> Figure<'_>;
}

impl Show for Counter {
    fn figure(&self) -> Figure<'_> {
        Figure::Number(self.get())
    }
}

impl Show for Gauge {
    fn figure(&self) -> Figure<'_> {
        Figure::Number(self.get())
    }
}

impl Show for Histogram {
    fn figure(&self) -> Figure<'_> {
        Figure::Histogram(self)
    }
}

const MILLI: u64 = 1_000_000;

macro_rules! metrics {
    ($($field:ident: $type:ident = $value:expr, $as:ident $name:literal $labels:expr, $help:literal;)*) => {
        /// The node's figures, each with its name on the metrics page. Whatever stands here is on the page, and
        /// `cargo xtask tidy` refuses what nothing writes.
        #[derive(Debug)]
        pub struct Metrics {
            $(pub $field: $type,)*
        }

        impl Default for Metrics {
            fn default() -> Self {
                Self { $($field: $value,)* }
            }
        }

        impl Metrics {
            /// Shows every family and what it stands at.
            pub fn each(&self, show: &mut dyn FnMut(&Family, Figure<'_>)) {
                $(show(
                    &Family { name: $name, help: $help, counter: metrics!($as), labels: &$labels },
                    self.$field.figure(),
                );)*
            }
        }
    };
    (counter) => { true };
    (gauge) => { false };
}

metrics! {
    proposals_pending: Gauge = Gauge::default(), gauge "etcd_server_proposals_pending" [],
        "Proposals waiting for their result.";
    proposals_failed: Counter = Counter::default(), counter "etcd_server_proposals_failed_total" [],
        "Failed proposals seen.";
    leader_changes: Counter = Counter::default(), counter "etcd_server_leader_changes_seen_total" [],
        "Leader changes seen.";
    read_indexes_failed: Counter = Counter::default(), counter "etcd_server_read_indexes_failed_total" [],
        "Failed read indexes seen.";
    slow_read_indexes: Counter = Counter::default(), counter "etcd_server_slow_read_indexes_total" [],
        "Read indexes that were not confirmed in time.";
    late_heartbeats: Counter = Counter::default(), counter "etcd_server_heartbeat_send_failures_total" [],
        "Heartbeats that this leader sent late.";
    slow_applies: Counter = Counter::default(), counter "etcd_server_slow_apply_total" [],
        "Turns of applying that took longer than 100 ms.";
    apply: Histogram = Histogram::new(MILLI / 10, 20), counter "etcd_server_apply_duration_seconds"
        [("op", "all"), ("success", "true"), ("version", "v3")], "Latency of a turn that applied entries of the log.";
    snapshots_applied: Counter = Counter::default(), counter "dolmen_snapshots_installed_total" [],
        "Snapshots of other members put in place of the store.";
    lease_granted: Counter = Counter::default(), counter "etcd_debugging_lease_granted_total" [], "Granted leases.";
    lease_revoked: Counter = Counter::default(), counter "etcd_debugging_lease_revoked_total" [], "Revoked leases.";
    lease_renewed: Counter = Counter::default(), counter "etcd_debugging_lease_renewed_total" [],
        "Renewals seen by the leader.";
    lease_expired: Counter = Counter::default(), counter "etcd_debugging_server_lease_expired_total" [],
        "Expired leases.";
    puts: Counter = Counter::default(), counter "etcd_mvcc_put_total" [], "Puts seen by this member.";
    deletes: Counter = Counter::default(), counter "etcd_mvcc_delete_total" [], "Deletes seen by this member.";
    txns: Counter = Counter::default(), counter "etcd_mvcc_txn_total" [], "Txns seen by this member.";
    put_bytes: Counter = Counter::default(), gauge "etcd_debugging_mvcc_total_put_size_in_bytes" [],
        "Key and value bytes put.";
    events: Gauge = Gauge::default(), counter "etcd_debugging_mvcc_events_total" [], "Events put out to watchers.";
    watchers: Gauge = Gauge::default(), gauge "etcd_debugging_mvcc_watcher_total" [], "Watchers.";
    watch_streams: Gauge = Gauge::default(), gauge "etcd_debugging_mvcc_watch_stream_total" [], "Watch streams.";
    slow_watchers: Gauge = Gauge::default(), gauge "etcd_debugging_mvcc_slow_watcher_total" [],
        "Unsynced slow watchers.";
    pending_events: Gauge = Gauge::default(), gauge "etcd_debugging_mvcc_pending_events_total" [],
        "Events waiting to be sent.";
    compactions: Counter = Counter::default(), counter "dolmen_compactions_total" [], "Compactions applied.";
    wal_bytes: Counter = Counter::default(), gauge "etcd_disk_wal_write_bytes_total" [],
        "Bytes of entries written to the WAL.";
    wal_write: Histogram = Histogram::new(MILLI, 14), counter "etcd_disk_wal_write_duration_seconds" [],
        "Latency of write called by WAL.";
    wal_fsync: Histogram = Histogram::new(MILLI, 14), counter "etcd_disk_wal_fsync_duration_seconds" [],
        "Latency of fsync called by WAL.";
    store_sync: Histogram = Histogram::new(MILLI, 14), counter "etcd_disk_backend_commit_duration_seconds" [],
        "Latency of a write and sync of the store.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_family_is_shown_once_with_what_was_written() {
        let metrics = Metrics::default();
        metrics.puts.add(3);
        metrics.apply.observe(MILLI);
        let (mut names, mut puts, mut applied) = (BTreeSet::new(), 0, 0);
        metrics.each(&mut |family, figure| {
            assert!(names.insert(family.name), "{} twice", family.name);
            match figure {
                Figure::Number(number) if family.name == "etcd_mvcc_put_total" => puts = number,
                Figure::Histogram(histogram) if !family.labels.is_empty() => applied = histogram.count(),
                _ => {}
            }
        });
        assert_eq!((puts, applied), (3, 1));
    }
}
