//! Counters of the edge. Each runtime has its own set, so that counting a request never moves a cache line between
//! cores; a scrape adds them up.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::methods::{METHODS, Method};
use crate::status::{Code, Status};

/// A count that only its own runtime adds to.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Buckets of doubling width: the first ends at `START_MICROS`, there are `N` before the open one.
pub struct Histogram<const START_MICROS: u64, const N: usize> {
    buckets: [Counter; N],
    above: Counter,
    sum_nanos: Counter,
}

impl<const START_MICROS: u64, const N: usize> Default for Histogram<START_MICROS, N> {
    fn default() -> Self {
        Self {
            buckets: std::array::from_fn(|_| Counter::default()),
            above: Counter::default(),
            sum_nanos: Counter::default(),
        }
    }
}

impl<const START_MICROS: u64, const N: usize> Histogram<START_MICROS, N> {
    pub fn observe(&self, elapsed: std::time::Duration) {
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.sum_nanos.add(nanos);
        let mut bound = START_MICROS * 1000;
        for bucket in &self.buckets {
            if nanos <= bound {
                bucket.add(1);
                return;
            }
            bound *= 2;
        }
        self.above.add(1);
    }

    /// Observations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(Counter::get).sum::<u64>() + self.above.get()
    }

    /// Adds what was counted to a sum over runtimes.
    pub fn add_to(&self, sum: &mut HistogramSum) {
        sum.bounds.resize(N, 0.0);
        sum.counts.resize(N + 1, 0);
        for (index, bucket) in self.buckets.iter().enumerate() {
            sum.bounds[index] = (START_MICROS << index) as f64 / 1e6;
            sum.counts[index] += bucket.get();
        }
        sum.counts[N] += self.above.get();
        sum.sum_seconds += self.sum_nanos.get() as f64 / 1e9;
    }
}

/// A histogram read out: upper bounds in seconds, and counts of each bucket alone, the open one last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistogramSum {
    pub bounds: Vec<f64>,
    pub counts: Vec<u64>,
    pub sum_seconds: f64,
}

/// etcd's buckets of `etcd_server_request_duration_seconds`.
pub type RequestHistogram = Histogram<1000, 14>;
/// etcd's buckets of `etcd_server_range_duration_seconds`.
pub type RangeHistogram = Histogram<100, 20>;

/// What `etcd_server_request_duration_seconds` tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestType {
    Range,
    ReadonlyTxn,
    Put,
    DeleteRange,
    Txn,
    Compaction,
    LeaseGrant,
    LeaseRevoke,
    Alarm,
    AuthEnable,
    AuthDisable,
    Authenticate,
    UserAdd,
    UserDelete,
    UserChangePassword,
    UserGrantRole,
    UserRevokeRole,
    RoleAdd,
    RoleDelete,
    RoleGrantPermission,
    RoleRevokePermission,
}

impl RequestType {
    pub const ALL: [Self; 21] = [
        Self::Range,
        Self::ReadonlyTxn,
        Self::Put,
        Self::DeleteRange,
        Self::Txn,
        Self::Compaction,
        Self::LeaseGrant,
        Self::LeaseRevoke,
        Self::Alarm,
        Self::AuthEnable,
        Self::AuthDisable,
        Self::Authenticate,
        Self::UserAdd,
        Self::UserDelete,
        Self::UserChangePassword,
        Self::UserGrantRole,
        Self::UserRevokeRole,
        Self::RoleAdd,
        Self::RoleDelete,
        Self::RoleGrantPermission,
        Self::RoleRevokePermission,
    ];

    /// As metrics label it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Range => "Range",
            Self::ReadonlyTxn => "ReadonlyTxn",
            Self::Put => "Put",
            Self::DeleteRange => "DeleteRange",
            Self::Txn => "Txn",
            Self::Compaction => "Compaction",
            Self::LeaseGrant => "LeaseGrant",
            Self::LeaseRevoke => "LeaseRevoke",
            Self::Alarm => "Alarm",
            Self::AuthEnable => "AuthEnable",
            Self::AuthDisable => "AuthDisable",
            Self::Authenticate => "Authenticate",
            Self::UserAdd => "AuthUserAdd",
            Self::UserDelete => "AuthUserDelete",
            Self::UserChangePassword => "AuthUserChangePassword",
            Self::UserGrantRole => "AuthUserGrantRole",
            Self::UserRevokeRole => "AuthUserRevokeRole",
            Self::RoleAdd => "AuthRoleAdd",
            Self::RoleDelete => "AuthRoleDelete",
            Self::RoleGrantPermission => "AuthRoleGrantPermission",
            Self::RoleRevokePermission => "AuthRoleRevokePermission",
        }
    }
}

/// Times a request for `etcd_server_request_duration_seconds`.
pub struct Timed<'a> {
    stats: &'a Stats,
    kind: RequestType,
    since: Instant,
}

impl<'a> Timed<'a> {
    pub fn start(stats: &'a Stats, kind: RequestType) -> Self {
        Self { stats, kind, since: Instant::now() }
    }

    pub fn end<T>(self, result: &Result<T, Status>) {
        self.stats.requests[self.kind as usize][usize::from(result.is_ok())].observe(self.since.elapsed());
    }
}

/// Calls of one method.
#[derive(Default)]
pub struct MethodStats {
    pub started: Counter,
    pub received: Counter,
    pub sent: Counter,
    pub handled: [Counter; Code::ALL.len()],
}

/// A version text told by clients, with its unary and streaming calls.
type VersionCounts = (Box<str>, [u64; 2]);

/// No more client versions than this are told apart: the text is the client's to choose.
const MAX_VERSIONS: usize = 64;

/// One runtime's counters.
pub struct Stats {
    pub methods: Vec<MethodStats>,
    pub received_bytes: Counter,
    pub sent_bytes: Counter,
    /// By [`RequestType`], then failed and succeeded.
    pub requests: [[RequestHistogram; 2]; RequestType::ALL.len()],
    /// Failed and succeeded.
    pub ranges: [RangeHistogram; 2],
    pub read_index_failures: Counter,
    pub connections: Counter,
    pub connections_closed: Counter,
    versions: Mutex<Vec<VersionCounts>>,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            methods: METHODS.iter().map(|_| MethodStats::default()).collect(),
            received_bytes: Counter::default(),
            sent_bytes: Counter::default(),
            requests: Default::default(),
            ranges: Default::default(),
            read_index_failures: Counter::default(),
            connections: Counter::default(),
            connections_closed: Counter::default(),
            versions: Mutex::default(),
        }
    }
}

impl Stats {
    pub fn method(&self, method: Method) -> &MethodStats {
        &self.methods[method as usize]
    }

    /// Counts a call by the version its client claims.
    pub fn client_version(&self, version: &str, stream: bool) {
        let mut versions = self.versions.lock();
        if let Some((_, counts)) = versions.iter_mut().find(|(known, _)| **known == *version) {
            counts[usize::from(stream)] += 1;
            return;
        }
        if versions.len() < MAX_VERSIONS {
            let mut counts = [0, 0];
            counts[usize::from(stream)] = 1;
            versions.push((version.into(), counts));
        }
    }

    /// Versions seen, with their unary and streaming calls.
    pub fn versions(&self) -> Vec<(Box<str>, [u64; 2])> {
        self.versions.lock().clone()
    }
}

/// Counts the end of a call, by whatever way it ends: a call dropped before [`CallGuard::end`] was cancelled.
pub struct CallGuard {
    stats: std::sync::Arc<Stats>,
    method: Method,
    ended: bool,
}

impl CallGuard {
    pub fn start(stats: std::sync::Arc<Stats>, method: Method) -> Self {
        stats.method(method).started.add(1);
        Self { stats, method, ended: false }
    }

    /// A message came in, with its prefix.
    pub fn received(&self, bytes: u64) {
        self.stats.method(self.method).received.add(1);
        self.stats.received_bytes.add(bytes);
    }

    /// Messages went out.
    pub fn sent(&self, messages: u64, bytes: u64) {
        self.stats.method(self.method).sent.add(messages);
        self.stats.sent_bytes.add(bytes);
    }

    pub fn end(mut self, code: Code) {
        self.ended = true;
        self.stats.method(self.method).handled[code as usize].add(1);
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if !self.ended {
            self.stats.method(self.method).handled[Code::Canceled as usize].add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_duration_falls_into_the_first_bucket_that_holds_it() {
        let histogram = RequestHistogram::default();
        for millis in [0, 1, 2, 3, 9_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let mut sum = HistogramSum::default();
        histogram.add_to(&mut sum);
        assert_eq!(sum.bounds[0], 0.001);
        assert_eq!(sum.bounds[13], 8.192);
        assert_eq!(sum.counts[..4], [2, 1, 1, 0]);
        assert_eq!(sum.counts[14], 1);
        assert!((sum.sum_seconds - 9.006).abs() < 1e-9);
    }

    #[test]
    fn request_types_stand_in_their_own_order() {
        let mut names = std::collections::BTreeSet::new();
        for (index, kind) in RequestType::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index, "{}", kind.name());
            assert!(names.insert(kind.name()), "{} twice", kind.name());
        }
    }

    #[test]
    fn a_call_that_is_dropped_was_cancelled() {
        let stats = Arc::new(Stats::default());
        CallGuard::start(stats.clone(), Method::Put).end(Code::Ok);
        drop(CallGuard::start(stats.clone(), Method::Put));
        let put = stats.method(Method::Put);
        assert_eq!(put.started.get(), 2);
        assert_eq!(put.handled[Code::Ok as usize].get(), 1);
        assert_eq!(put.handled[Code::Canceled as usize].get(), 1);
    }

    #[test]
    fn client_versions_are_bounded() {
        let stats = Stats::default();
        for version in 0..1000 {
            stats.client_version(&version.to_string(), false);
        }
        stats.client_version("0", true);
        assert_eq!(stats.versions().len(), MAX_VERSIONS);
        assert_eq!(stats.versions()[0].1, [1, 1]);
    }
}
