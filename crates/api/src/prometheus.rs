//! The metrics page: etcd's names, in the text format, with what this server really does behind them.
//!
//! Names that dashboards and alerts use are all here. Where etcd's storage has a part that this one has not (the v2
//! store, bbolt's rebalance), the name is there and counts nothing.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use dolmen_node::Metrics;
use dolmen_node::metrics::{Family, Figure};
use dolmen_proto::etcdserverpb::AlarmType;
use dolmen_types::hex_id;

use crate::health::Probe;
use crate::maintenance::{DEFAULT_QUOTA_BYTES, db_size};
use crate::methods::METHODS;
use crate::server::Server;
use crate::stats::{HistogramSum, RequestType};
use crate::status::Code;

/// A page in the making.
#[derive(Default)]
pub struct Page(String);

/// What a family of samples is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Counter,
    Gauge,
    Histogram,
}

impl Page {
    /// Begins a family; its samples follow.
    pub fn family(&mut self, name: &str, kind: Type, help: &str) {
        let kind = match kind {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
        };
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// One sample; labels are name and value.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        self.labels(labels, None);
        self.0.push(' ');
        number(&mut self.0, value);
        self.0.push('\n');
    }

    /// A family of one sample without labels.
    pub fn single(&mut self, name: &str, kind: Type, help: &str, value: f64) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// The samples of one histogram. `cumulative`: upper bound and observations at or below it, ascending.
    pub fn histogram(&mut self, name: &str, labels: &[(&str, &str)], cumulative: &[(f64, u64)], count: u64, sum: f64) {
        for (bound, at_or_below) in cumulative.iter().copied().chain([(f64::INFINITY, count)]) {
            let mut le = String::new();
            number(&mut le, bound);
            let _ = write!(self.0, "{name}_bucket");
            self.labels(labels, Some(("le", &le)));
            let _ = writeln!(self.0, " {at_or_below}");
        }
        for (suffix, value) in [("_sum", sum), ("_count", count as f64)] {
            self.0.push_str(name);
            self.0.push_str(suffix);
            self.labels(labels, None);
            self.0.push(' ');
            number(&mut self.0, value);
            self.0.push('\n');
        }
    }

    fn labels(&mut self, labels: &[(&str, &str)], last: Option<(&str, &str)>) {
        let mut separator = '{';
        for (name, value) in labels.iter().copied().chain(last) {
            let _ = write!(self.0, "{separator}{name}=\"");
            for c in value.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
            separator = ',';
        }
        if separator == ',' {
            self.0.push('}');
        }
    }

    /// The finished text.
    pub fn into_text(self) -> String {
        self.0
    }
}

/// Writes a number as Go's `%g` does in its shortest form: with an exponent below 1e-04 and from 1e+06 on.
fn number(out: &mut String, value: f64) {
    if value.is_infinite() {
        out.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
        return;
    }
    if value.is_nan() {
        out.push_str("NaN");
        return;
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{mantissa}e{sign}{:02}", exponent.abs());
    } else {
        let _ = write!(out, "{value}");
    }
}

/// The whole page.
pub fn render(server: &Server) -> String {
    let mut page = Page(String::with_capacity(64 * 1024));
    node(&mut page, server);
    store(&mut page, server);
    counted(&mut page, server.node.metrics());
    edge(&mut page, server);
    grpc(&mut page, server);
    health(&mut page, server);
    absent(&mut page);
    process(&mut page);
    for extra in &server.extra_metrics {
        extra(&mut page);
    }
    page.into_text()
}

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

fn node(page: &mut Page, server: &Server) {
    use Type::Gauge;
    let node = &server.node;
    let (status, members) = (node.status(), node.members());
    let id = hex_id(status.member_id);
    page.family("etcd_server_id", Gauge, "Server or member ID in hexadecimal format. 1 for 'server_id' label.");
    page.sample("etcd_server_id", &[("server_id", &id)], 1.0);
    page.family("etcd_server_version", Gauge, "Which version is running. 1 for 'server_version' label.");
    page.sample("etcd_server_version", &[("server_version", &server.config.server_version)], 1.0);
    page.family("etcd_cluster_version", Gauge, "Which version is running. 1 for 'cluster_version' label.");
    if let Some(version) = &members.cluster_version {
        let minor = version.rsplit_once('.').map_or(version.as_str(), |(minor, _)| minor);
        page.sample("etcd_cluster_version", &[("cluster_version", minor)], 1.0);
    }
    page.single(
        "etcd_server_has_leader",
        Gauge,
        "Whether a leader is known. 1 is known, 0 is not.",
        flag(status.leader != 0),
    );
    page.single(
        "etcd_server_is_leader",
        Gauge,
        "Whether this member leads. 1 if it does, 0 otherwise.",
        flag(status.is_leader()),
    );
    page.single(
        "etcd_server_is_learner",
        Gauge,
        "Whether this member is a learner. 1 if it is, 0 otherwise.",
        flag(status.is_learner),
    );
    page.single(
        "etcd_server_proposals_committed_total",
        Gauge,
        "Consensus proposals committed.",
        status.committed as f64,
    );
    page.single("etcd_server_proposals_applied_total", Gauge, "Consensus proposals applied.", status.applied as f64);
    page.single("etcd_server_snapshot_apply_in_progress_total", Gauge, "1 while an incoming snapshot is applied.", 0.0);
    page.family("etcd_debugging_server_alarms", Gauge, "Active alarms.");
    for alarm in node.alarms().iter() {
        let kind = AlarmType::try_from(alarm.alarm).map_or("UNKNOWN", |kind| kind.as_str_name());
        let labels = [("alarm_type", kind), ("server_id", &hex_id(alarm.member_id))];
        page.sample("etcd_debugging_server_alarms", &labels, 1.0);
    }
}

fn store(page: &mut Page, server: &Server) {
    use Type::{Counter, Gauge};
    let node = &server.node;
    let reader = node.reader();
    let sizes = reader.sizes();
    let quota = server.config.quota_bytes;
    let quota = if quota == 0 { DEFAULT_QUOTA_BYTES } else { quota };
    page.single("etcd_server_quota_backend_bytes", Gauge, "Current backend storage quota size in bytes.", quota as f64);
    let size = db_size(&sizes) as f64;
    page.single("etcd_mvcc_db_total_size_in_bytes", Gauge, "Bytes the store occupies, history left out.", size);
    let live = sizes.live_bytes as f64;
    page.single("etcd_mvcc_db_total_size_in_use_in_bytes", Gauge, "Bytes of the store that are in use.", live);
    let history = sizes.history_bytes as f64;
    page.single("dolmen_store_history_bytes", Gauge, "Bytes of compacted revisions kept for undo.", history);
    let ranges: u64 = server.stats.iter().flat_map(|stats| &stats.ranges).map(|ranges| ranges.count()).sum();
    page.single("etcd_mvcc_range_total", Counter, "Ranges seen by this member.", ranges as f64);
    page.single("etcd_mvcc_db_open_read_transactions", Gauge, "Open read transactions.", 0.0);
    page.single("etcd_debugging_mvcc_keys_total", Gauge, "Keys.", reader.keys() as f64);
    page.single(
        "etcd_debugging_mvcc_current_revision",
        Gauge,
        "Current revision of the store.",
        reader.revision() as f64,
    );
    let compact = reader.compact_revision() as f64;
    page.single("etcd_debugging_mvcc_compact_revision", Gauge, "Revision of the last compaction.", compact);
    let revision = server.node.auth().revision() as f64;
    page.single("etcd_debugging_auth_revision", Gauge, "Revision of users, roles and permissions.", revision);
    let failed = server.logins.failed.get() as f64;
    page.single("dolmen_auth_failed_logins_total", Counter, "Logins with a wrong name or password.", failed);
    let damage = &server.damage;
    let name = "dolmen_store_damaged_reads_total";
    page.single(name, Counter, "Reads that met a damaged record.", damage.reads.get() as f64);
    page.single("dolmen_store_damaged_records", Gauge, "Damaged records known of.", damage.known() as f64);
}

/// What the node counts, by its own table.
fn counted(page: &mut Page, metrics: &Metrics) {
    metrics.each(&mut |family, figure| {
        let Family { name, help, labels, .. } = *family;
        match figure {
            Figure::Number(number) => {
                page.family(name, if family.counter { Type::Counter } else { Type::Gauge }, help);
                page.sample(name, labels, number as f64);
            }
            Figure::Histogram(histogram) => {
                page.family(name, Type::Histogram, help);
                let cumulative = histogram.cumulative();
                page.histogram(name, labels, &cumulative, histogram.count(), histogram.sum_seconds());
            }
        }
    });
}

fn stats_histogram(page: &mut Page, name: &str, labels: &[(&str, &str)], sum: &HistogramSum) {
    let mut total = 0;
    let mut cumulative = Vec::with_capacity(sum.bounds.len());
    for (bound, count) in sum.bounds.iter().zip(&sum.counts) {
        total += count;
        cumulative.push((*bound, total));
    }
    page.histogram(name, labels, &cumulative, sum.counts.iter().sum(), sum.sum_seconds);
}

fn edge(page: &mut Page, server: &Server) {
    use Type::{Counter, Gauge, Histogram};
    let sum =
        |read: &dyn Fn(&crate::stats::Stats) -> u64| server.stats.iter().map(|stats| read(stats)).sum::<u64>() as f64;
    let name = "etcd_server_request_duration_seconds";
    page.family(name, Histogram, "Response latency of requests in seconds.");
    for kind in RequestType::ALL {
        for (success, success_name) in ["false", "true"].into_iter().enumerate() {
            let mut total = HistogramSum::default();
            server.stats.iter().for_each(|stats| stats.requests[kind as usize][success].add_to(&mut total));
            if total.counts.iter().any(|count| *count > 0) {
                stats_histogram(page, name, &[("success", success_name), ("type", kind.name())], &total);
            }
        }
    }
    let name = "etcd_server_range_duration_seconds";
    page.family(name, Histogram, "Latency of ranges in seconds.");
    for (success, success_name) in ["false", "true"].into_iter().enumerate() {
        let mut total = HistogramSum::default();
        server.stats.iter().for_each(|stats| stats.ranges[success].add_to(&mut total));
        stats_histogram(page, name, &[("success", success_name)], &total);
    }
    let received = sum(&|stats| stats.received_bytes.get());
    page.single(
        "etcd_network_client_grpc_received_bytes_total",
        Counter,
        "Bytes received from grpc clients.",
        received,
    );
    let sent = sum(&|stats| stats.sent_bytes.get());
    page.single("etcd_network_client_grpc_sent_bytes_total", Counter, "Bytes sent to grpc clients.", sent);
    let open = sum(&|stats| stats.connections.get()) - sum(&|stats| stats.connections_closed.get());
    page.single("dolmen_client_connections", Gauge, "Open client connections.", open.max(0.0));
    let used = server.budget.used() as f64;
    page.single("dolmen_in_flight_bytes", Gauge, "Bytes that requests and answers in flight hold.", used);
    let refused = server.budget.refused.get() as f64;
    page.single("dolmen_in_flight_refused_total", Counter, "Refusals because they held too much.", refused);
    let name = "etcd_server_client_requests_total";
    page.family(name, Counter, "Requests per client version.");
    let mut versions = std::collections::BTreeMap::<Box<str>, [u64; 2]>::new();
    for (version, counts) in server.stats.iter().flat_map(|stats| stats.versions()) {
        let total = versions.entry(version).or_default();
        total[0] += counts[0];
        total[1] += counts[1];
    }
    for (version, counts) in &versions {
        for (kind, count) in ["unary", "stream"].into_iter().zip(counts) {
            if *count > 0 {
                page.sample(name, &[("client_api_version", version), ("type", kind)], *count as f64);
            }
        }
    }
}

fn grpc(page: &mut Page, server: &Server) {
    use Type::Counter;
    type Read = fn(&crate::stats::MethodStats) -> u64;
    let families: [(&str, &str, Read); 3] = [
        ("grpc_server_started_total", "RPCs started on the server.", |stats| stats.started.get()),
        ("grpc_server_msg_received_total", "RPC stream messages received on the server.", |stats| stats.received.get()),
        ("grpc_server_msg_sent_total", "gRPC stream messages sent by the server.", |stats| stats.sent.get()),
    ];
    for (name, help, read) in families {
        page.family(name, Counter, help);
        for (index, info) in METHODS.iter().enumerate() {
            let total: u64 = server.stats.iter().map(|stats| read(&stats.methods[index])).sum();
            let labels = [("grpc_method", info.name), ("grpc_service", info.service), ("grpc_type", info.kind.name())];
            page.sample(name, &labels, total as f64);
        }
    }
    let name = "grpc_server_handled_total";
    page.family(name, Counter, "RPCs completed on the server, regardless of success or failure.");
    for (index, info) in METHODS.iter().enumerate() {
        for code in Code::ALL {
            let total: u64 = server.stats.iter().map(|stats| stats.methods[index].handled[code as usize].get()).sum();
            let labels = [
                ("grpc_code", code.name()),
                ("grpc_method", info.name),
                ("grpc_service", info.service),
                ("grpc_type", info.kind.name()),
            ];
            page.sample(name, &labels, total as f64);
        }
    }
}

fn health(page: &mut Page, server: &Server) {
    use Type::{Counter, Gauge};
    let stats = &server.health;
    let success = stats.success.get() as f64;
    page.single("etcd_server_health_success", Counter, "The total number of successful health checks", success);
    let failures = stats.failures.get() as f64;
    page.single("etcd_server_health_failures", Counter, "The total number of failed health checks", failures);
    let checks = || {
        Probe::ALL.into_iter().flat_map(|probe| {
            probe
                .checks()
                .iter()
                .enumerate()
                .map(move |(index, check)| (probe.name(), check.name(), &stats.checks[probe as usize][index]))
        })
    };
    page.family("etcd_server_healthcheck", Gauge, "The result of each kind of healthcheck.");
    for (probe, check, stats) in checks() {
        if stats.failures.get() + stats.successes.get() > 0 {
            let last = flag(stats.last.load(Ordering::Relaxed));
            page.sample("etcd_server_healthcheck", &[("name", check), ("type", probe)], last);
        }
    }
    page.family("etcd_server_healthchecks_total", Counter, "The total number of each kind of healthcheck.");
    for (probe, check, stats) in checks() {
        for (status, count) in [("error", stats.failures.get()), ("success", stats.successes.get())] {
            if count > 0 {
                let labels = [("name", check), ("status", status), ("type", probe)];
                page.sample("etcd_server_healthchecks_total", &labels, count as f64);
            }
        }
    }
}

/// Names of parts that etcd has and this server has not. They count nothing, and say so truthfully.
fn absent(page: &mut Page) {
    for (name, kind) in [
        ("etcd_disk_defrag_inflight", Type::Gauge),
        ("etcd_debugging_mvcc_db_compaction_keys_total", Type::Counter),
        ("etcd_debugging_mvcc_db_compaction_last", Type::Gauge),
        ("etcd_debugging_store_expires_total", Type::Counter),
        ("etcd_debugging_store_watch_requests_total", Type::Counter),
        ("etcd_debugging_store_watchers", Type::Gauge),
        ("etcd_grpc_proxy_cache_hits_total", Type::Gauge),
        ("etcd_grpc_proxy_cache_keys_total", Type::Gauge),
        ("etcd_grpc_proxy_cache_misses_total", Type::Gauge),
        ("etcd_grpc_proxy_events_coalescing_total", Type::Counter),
        ("etcd_grpc_proxy_watchers_coalescing_total", Type::Gauge),
        ("etcd_server_learner_promote_successes", Type::Counter),
    ] {
        page.single(name, kind, "Not used by this server.", 0.0);
    }
    for (name, first, buckets) in [
        ("etcd_debugging_disk_backend_commit_rebalance_duration_seconds", 0.001, 14),
        ("etcd_debugging_disk_backend_commit_spill_duration_seconds", 0.001, 14),
        ("etcd_debugging_disk_backend_commit_write_duration_seconds", 0.001, 14),
        ("etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds", 1.0, 13),
        ("etcd_debugging_mvcc_db_compaction_total_duration_milliseconds", 100.0, 14),
        ("etcd_debugging_mvcc_index_compaction_pause_duration_milliseconds", 0.5, 14),
        ("etcd_debugging_snap_save_marshalling_duration_seconds", 0.001, 14),
        ("etcd_debugging_snap_save_total_duration_seconds", 0.001, 14),
        ("etcd_disk_backend_defrag_duration_seconds", 0.1, 13),
        ("etcd_disk_backend_snapshot_duration_seconds", 0.01, 17),
        ("etcd_snap_db_fsync_duration_seconds", 0.001, 14),
        ("etcd_snap_db_save_total_duration_seconds", 0.1, 10),
        ("etcd_snap_fsync_duration_seconds", 0.001, 14),
        ("etcd_mvcc_hash_duration_seconds", 0.01, 15),
        ("etcd_mvcc_hash_rev_duration_seconds", 0.01, 15),
    ] {
        page.family(name, Type::Histogram, "Not measured by this server.");
        let cumulative: Vec<(f64, u64)> = (0..buckets).map(|index| (first * f64::from(1u32 << index), 0)).collect();
        page.histogram(name, &[], &cumulative, 0, 0.0);
    }
}

/// The limit of open files; `u64::MAX` for none.
pub fn fd_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Memory in use as the kernel counts it, 0 when it does not tell.
pub fn resident_bytes() -> u64 {
    ProcessStat::read().map_or(0, |stat| stat.resident_bytes)
}

/// A few fields of `/proc/self/stat`.
struct ProcessStat {
    cpu_seconds: f64,
    start_seconds: f64,
    virtual_bytes: u64,
    resident_bytes: u64,
}

impl ProcessStat {
    fn read() -> Option<Self> {
        /// Fields after the closing parenthesis of the process's name; the first of them is the third of the file.
        const OFFSET: usize = 3;
        let text = std::fs::read_to_string("/proc/self/stat").ok()?;
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - OFFSET).and_then(|field| field.parse::<u64>().ok());
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let boot: f64 = std::fs::read_to_string("/proc/stat")
            .ok()?
            .lines()
            .find_map(|line| line.strip_prefix("btime "))
            .and_then(|seconds| seconds.trim().parse().ok())?;
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) as f64 / ticks,
            start_seconds: boot + field(22)? as f64 / ticks,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * rustix::param::page_size() as u64,
        })
    }
}

fn process(page: &mut Page) {
    use Type::{Counter, Gauge};
    let limit = fd_limit() as f64;
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count()) as f64;
    page.single("os_fd_limit", Gauge, "The file descriptor limit.", limit);
    page.single("os_fd_used", Gauge, "The number of used file descriptors.", open);
    page.single("process_max_fds", Gauge, "Maximum number of open file descriptors.", limit);
    page.single("process_open_fds", Gauge, "Number of open file descriptors.", open);
    if let Some(stat) = ProcessStat::read() {
        let cpu = stat.cpu_seconds;
        page.single("process_cpu_seconds_total", Counter, "Total user and system CPU time spent in seconds.", cpu);
        let resident = stat.resident_bytes as f64;
        page.single("process_resident_memory_bytes", Gauge, "Resident memory size in bytes.", resident);
        let virtual_bytes = stat.virtual_bytes as f64;
        page.single("process_virtual_memory_bytes", Gauge, "Virtual memory size in bytes.", virtual_bytes);
        let start = stat.start_seconds;
        page.single(
            "process_start_time_seconds",
            Gauge,
            "Start time of the process since unix epoch in seconds.",
            start,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_gos() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (-1.0, "-1"),
            (0.5, "0.5"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (8.192, "8.192"),
            (2147483648.0, "2.147483648e+09"),
            (123456.0, "123456"),
            (1000000.0, "1e+06"),
            (1234567.0, "1.234567e+06"),
            (52.4288, "52.4288"),
            (f64::INFINITY, "+Inf"),
        ] {
            let mut out = String::new();
            number(&mut out, value);
            assert_eq!(out, text);
        }
    }

    #[test]
    fn samples_are_lines_of_the_text_format() {
        let mut page = Page::default();
        page.single("a_total", Type::Counter, "Help.", 3.0);
        page.sample("b", &[("x", "1"), ("y", "a\"b\\c\n")], 0.25);
        page.histogram("h", &[("k", "v")], &[(0.001, 1), (0.002, 3)], 4, 1.5);
        let expected = "# HELP a_total Help.\n# TYPE a_total counter\na_total 3\n\
            b{x=\"1\",y=\"a\\\"b\\\\c\\n\"} 0.25\n\
            h_bucket{k=\"v\",le=\"0.001\"} 1\nh_bucket{k=\"v\",le=\"0.002\"} 3\nh_bucket{k=\"v\",le=\"+Inf\"} 4\n\
            h_sum{k=\"v\"} 1.5\nh_count{k=\"v\"} 4\n";
        assert_eq!(page.into_text(), expected);
    }

    #[test]
    fn this_process_has_a_size_and_an_age() {
        let stat = ProcessStat::read().unwrap();
        assert!(stat.resident_bytes > 100_000 && stat.virtual_bytes > stat.resident_bytes);
        assert!(stat.start_seconds > 1e9);
        assert!(fd_limit() > 3);
    }
}
