//! The flags of etcd-defrag. Each may be given as `ETCD_DEFRAG_<NAME>` too, which becomes the flag's default: help shows it,
//! and the command line wins.
//!
//! A variable that does not parse becomes the zero of its kind, without a word. A time without a unit is nanoseconds.

use dolmen_cli::{Call, Command, Failure, Flag, Kind, golang, words};

/// The words etcd-defrag has for each flag: name, letter, kind, default, usage.
type Row = (&'static str, Option<char>, Kind, &'static str, &'static str);

const ROWS: [Row; 28] = [
    ("endpoints", None, Kind::List, "127.0.0.1:2379", "comma separated etcd endpoints"),
    ("dial-timeout", None, Kind::Duration, "2s", "dial timeout for client connections"),
    ("command-timeout", None, Kind::Duration, "30s", "command timeout (excluding dial timeout)"),
    ("keepalive-time", None, Kind::Duration, "2s", "keepalive time for client connections"),
    ("keepalive-timeout", None, Kind::Duration, "6s", "keepalive timeout for client connections"),
    ("cacert", None, Kind::Text, "", "verify certificates of TLS-enabled secure servers using this CA bundle"),
    ("cert", None, Kind::Text, "", "identify secure client using this TLS certificate file"),
    ("key", None, Kind::Text, "", "identify secure client using this TLS key file"),
    ("insecure-transport", None, Kind::Bool, "true", "disable transport security for client connections"),
    (
        "insecure-skip-tls-verify",
        None,
        Kind::Bool,
        "false",
        "skip server certificate verification (CAUTION: this option should be enabled only for testing purposes)",
    ),
    ("cluster", None, Kind::Bool, "false", "use all endpoints from the cluster member list"),
    ("discovery-srv", Some('d'), Kind::Text, "", "domain name to query for SRV records describing cluster endpoints"),
    ("discovery-srv-name", None, Kind::Text, "", "service name to query when using DNS discovery"),
    ("insecure-discovery", None, Kind::Bool, "true", "accept insecure SRV records describing cluster endpoints"),
    ("user", None, Kind::Text, "", "username[:password] for authentication (prompt if password is not supplied)"),
    (
        "password",
        None,
        Kind::Text,
        "",
        "password for authentication (if this option is used, --user option shouldn't include password)",
    ),
    (
        "compaction",
        None,
        Kind::Bool,
        "true",
        "whether execute compaction before the defragmentation (defaults to true)",
    ),
    (
        "continue-on-error",
        None,
        Kind::Bool,
        "true",
        "whether continue to defragment next endpoint if current one fails",
    ),
    (
        "defrag-rule",
        None,
        Kind::Text,
        "",
        "defragmentation rule (etcd-defrag will run defragmentation if the rule is empty or it is evaluated to true)",
    ),
    (
        "dry-run",
        None,
        Kind::Bool,
        "false",
        "evaluate whether or not endpoints require defragmentation, but don't actually perform it",
    ),
    (
        QUOTA,
        None,
        Kind::Int64,
        "2147483648",
        "etcd storage quota in bytes (the value passed to etcd instance by flag --quota-backend-bytes)",
    ),
    ("exclude-localhost", None, Kind::Bool, "false", "whether to exclude localhost endpoints"),
    (
        "move-leader",
        None,
        Kind::Bool,
        "false",
        "whether to move the leadership before performing defragmentation on the leader",
    ),
    (
        "wait-between-defrags",
        None,
        Kind::Duration,
        "0s",
        "wait time between consecutive defragmentation runs or after a leader movement (if --move-leader is enabled). \
         Defaults to 0s (no wait)",
    ),
    (
        "skip-healthcheck-cluster-endpoints",
        None,
        Kind::Bool,
        "false",
        "skip cluster endpoint discovery during health check and only check the endpoints provided via --endpoints",
    ),
    (
        "auto-disalarm",
        None,
        Kind::Bool,
        "false",
        "automatically disalarm NOSPACE alarms after successful defragmentation",
    ),
    (
        "disalarm-threshold",
        None,
        Kind::Float64,
        "0.9",
        "threshold ratio for automatic alarm clearing (db size / quota)",
    ),
    ("version", None, Kind::Bool, "false", "print the version and exit"),
];

/// The flag of the quota.
const QUOTA: &str = "etcd-storage-quota-bytes";

/// `ETCD_DEFRAG_DRY_RUN` for `dry-run`.
fn variable(flag: &str) -> String {
    format!("ETCD_DEFRAG_{}", flag.to_uppercase().replace('-', "_"))
}

/// A variable's value; an empty one counts as absent.
fn from_environment(flag: &str) -> Option<String> {
    std::env::var_os(variable(flag)).map(words::from_os).filter(|value| !value.is_empty())
}

/// The tool's table, with the defaults that `environment` gives for the name of a flag.
///
/// The table of a tool lives as long as the process, which makes it once: it is never freed.
pub(super) fn command(
    environment: impl Fn(&str) -> Option<String>,
    run: fn(&Call) -> Result<(), Failure>,
) -> &'static Command {
    let mut flags = Vec::new();
    for (name, short, kind, default, usage) in ROWS {
        let default = match environment(name) {
            Some(value) => Box::leak(typed(kind, &value).into_boxed_str()),
            None => default,
        };
        flags.push(Flag { short, ..Flag::new(name, kind, default, usage) });
    }
    Box::leak(Box::new(Command {
        usage: "etcd-defrag",
        short: "A simple command line tool for etcd defragmentation",
        flags: Box::leak(flags.into_boxed_slice()),
        run: Some(run),
        ..Command::NEW
    }))
}

/// The tool's table for this process.
pub(super) fn of_process(run: fn(&Call) -> Result<(), Failure>) -> &'static Command {
    command(from_environment, run)
}

/// A variable's value as it would be typed behind the flag.
fn typed(kind: Kind, value: &str) -> String {
    match kind {
        Kind::Bool => golang::parse_bool(value).unwrap_or(false).to_string(),
        Kind::Duration => {
            let unit = if value.contains(['n', 's', 'u', 'µ', 'm', 'h']) { "" } else { "ns" };
            golang::format_duration(golang::parse_duration(&format!("{value}{unit}")).unwrap_or(0))
        }
        Kind::Int | Kind::Int64 | Kind::Uint64 => golang::parse_int(whole_part(value), 0).unwrap_or(0).to_string(),
        Kind::Float64 => golang::parse_float(value).map_or_else(|_| "0".to_owned(), |_| value.to_owned()),
        Kind::List => golang::csv_write(&value.split(',').map(str::to_owned).collect::<Vec<_>>()).trim_end().to_owned(),
        Kind::Text => value.to_owned(),
    }
}

/// `10` of `10.50`; all of what is not a decimal number.
fn whole_part(value: &str) -> &str {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    match value.split_once('.') {
        Some((whole, fraction)) if digits(whole.trim_start_matches(['-', '+'])) && digits(fraction) => whole,
        _ => value,
    }
}

/// What the flags say.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub endpoints: Vec<String>,
    pub dial_timeout: i64,
    /// Of each call. Nanoseconds, as all times here.
    pub command_timeout: i64,
    pub keepalive_time: i64,
    pub keepalive_timeout: i64,
    pub cacert: String,
    pub cert: String,
    pub key: String,
    pub insecure_transport: bool,
    pub insecure_skip_verify: bool,
    pub cluster: bool,
    pub discovery_srv: String,
    pub discovery_srv_name: String,
    pub insecure_discovery: bool,
    pub user: String,
    pub password: String,
    pub compaction: bool,
    pub continue_on_error: bool,
    pub rule: String,
    pub dry_run: bool,
    pub quota: i64,
    /// The quota was given: what the server says about its own does not count.
    pub quota_given: bool,
    pub exclude_localhost: bool,
    pub move_leader: bool,
    pub wait: i64,
    pub skip_cluster_health: bool,
    pub auto_disalarm: bool,
    pub disalarm_threshold: f64,
    pub version: bool,
}

impl Settings {
    pub fn read(call: &Call) -> Self {
        let text = |name| call.text(name).to_owned();
        Self {
            endpoints: call.list("endpoints"),
            dial_timeout: call.duration("dial-timeout"),
            command_timeout: call.duration("command-timeout"),
            keepalive_time: call.duration("keepalive-time"),
            keepalive_timeout: call.duration("keepalive-timeout"),
            cacert: text("cacert"),
            cert: text("cert"),
            key: text("key"),
            insecure_transport: call.boolean("insecure-transport"),
            insecure_skip_verify: call.boolean("insecure-skip-tls-verify"),
            cluster: call.boolean("cluster"),
            discovery_srv: text("discovery-srv"),
            discovery_srv_name: text("discovery-srv-name"),
            insecure_discovery: call.boolean("insecure-discovery"),
            user: text("user"),
            password: text("password"),
            compaction: call.boolean("compaction"),
            continue_on_error: call.boolean("continue-on-error"),
            rule: text("defrag-rule"),
            dry_run: call.boolean("dry-run"),
            quota: call.int(QUOTA),
            quota_given: call.changed(QUOTA) || from_environment(QUOTA).is_some(),
            exclude_localhost: call.boolean("exclude-localhost"),
            move_leader: call.boolean("move-leader"),
            wait: call.duration("wait-between-defrags"),
            skip_cluster_health: call.boolean("skip-healthcheck-cluster-endpoints"),
            auto_disalarm: call.boolean("auto-disalarm"),
            disalarm_threshold: call.float("disalarm-threshold"),
            version: call.boolean("version"),
        }
    }

    /// What is wrong with the flags; the first mistake of several.
    ///
    /// # Errors
    /// The sentence that says so.
    pub fn validated(&self, call: &Call) -> Result<(), String> {
        for (name, value) in [("cert", &self.cert), ("key", &self.key), ("cacert", &self.cacert)] {
            if value.is_empty() && call.changed(name) {
                return Err(format!("empty string is passed to --{name} option"));
            }
        }
        let skip = "--skip-healthcheck-cluster-endpoints";
        if self.skip_cluster_health && self.endpoints.is_empty() {
            return Err(format!("{skip} requires explicit endpoints to be provided via --endpoints flag"));
        }
        if self.skip_cluster_health && self.cluster {
            return Err(format!("{skip} and --cluster flags are mutually exclusive"));
        }
        if self.skip_cluster_health && !self.discovery_srv.is_empty() {
            return Err(format!("{skip} and --discovery-srv flags are mutually exclusive"));
        }
        if self.auto_disalarm && (self.disalarm_threshold <= 0.0 || self.disalarm_threshold >= 1.0) {
            return Err(
                "--disalarm-threshold must be greater than 0 and less than 1.0 when --auto-disalarm is enabled"
                    .to_owned(),
            );
        }
        if self.quota == 0 {
            return Err("--etcd-storage-quota must be greater than 0".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &Call) -> Result<(), Failure> {
        Ok(())
    }

    #[test]
    fn variables_become_defaults_as_viper_reads_them() {
        let table = [
            (Kind::Bool, "T", "true"),
            (Kind::Bool, "yes", "false"),
            (Kind::Duration, "5", "5ns"),
            (Kind::Duration, "1.5m", "1m30s"),
            (Kind::Duration, "abc", "0s"),
            (Kind::Int64, "0x10", "16"),
            (Kind::Int64, "12.00", "12"),
            (Kind::Int64, "1e9", "0"),
            (Kind::Float64, "0.5", "0.5"),
            (Kind::Float64, "half", "0"),
            (Kind::List, "a:1,b:2", "a:1,b:2"),
            (Kind::Text, "dbSize > 1", "dbSize > 1"),
        ];
        for (kind, value, expected) in table {
            assert_eq!(typed(kind, value), expected, "{kind:?} {value}");
        }
    }

    #[test]
    fn the_table_is_sound_whatever_the_environment_says() {
        for value in [None, Some("x"), Some("\"")] {
            let faults = command(|_| value.map(str::to_owned), nothing).faults();
            assert_eq!(faults, Vec::<String>::new(), "{value:?}");
        }
    }
}
