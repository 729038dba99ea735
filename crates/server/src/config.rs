//! What the flags mean: checked together, with etcd's texts where they contradict.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use dolmen_net::{TlsInfo, TlsVersion};

use crate::flags::Values;

/// A URL of the few forms etcd takes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Url {
    pub scheme: Scheme,
    /// `host:port`, or the socket's path.
    pub address: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheme {
    Http,
    Https,
    Unix,
    Unixs,
}

impl Scheme {
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::Unixs)
    }

    pub fn is_unix(self) -> bool {
        matches!(self, Self::Unix | Self::Unixs)
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::Unix => "unix",
            Scheme::Unixs => "unixs",
        };
        write!(f, "{scheme}://{}", self.address)
    }
}

impl Url {
    /// Splits `host:port`; `None` for sockets.
    pub fn host_port(&self) -> Option<(&str, u16)> {
        let (host, port) = self.address.rsplit_once(':')?;
        Some((host.trim_start_matches('[').trim_end_matches(']'), port.parse().ok()?))
    }
}

/// Reads a comma-separated list of URLs: without repeats, sorted.
///
/// # Errors
/// etcd's text for the first that is no URL of its forms.
pub fn parse_urls(text: &str) -> Result<Vec<Url>, String> {
    let mut urls = BTreeSet::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        urls.insert(parse_url(part)?);
    }
    Ok(urls.into_iter().collect())
}

fn parse_url(text: &str) -> Result<Url, String> {
    let (scheme, rest) = text.split_once(':').unwrap_or((text, ""));
    let scheme = match scheme {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        "unix" => Scheme::Unix,
        "unixs" => Scheme::Unixs,
        _ => return Err(format!("URL scheme must be http, https, unix, or unixs: {text}")),
    };
    let address = rest.strip_prefix("//").unwrap_or(rest);
    if scheme.is_unix() {
        return Ok(Url { scheme, address: address.to_owned() });
    }
    let (authority, path) = address.split_once('/').unwrap_or((address, ""));
    let url = Url { scheme, address: authority.to_owned() };
    if url.host_port().is_none() {
        return Err(format!("URL address does not have the form \"host:port\": {text}"));
    }
    if !path.is_empty() {
        return Err(format!("URL must not contain a path: {text}"));
    }
    Ok(url)
}

/// Everything a server is started with.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: String,
    pub data_dir: PathBuf,
    pub wal_dir: Option<PathBuf>,
    /// Whether the files of an etcd that was taken over stay beside ours.
    pub keep_imported: bool,
    pub listen_peer: Vec<Url>,
    pub listen_client: Vec<Url>,
    pub listen_client_http: Vec<Url>,
    pub listen_metrics: Vec<Url>,
    pub advertise_peer: Vec<Url>,
    pub advertise_client: Vec<Url>,
    /// By name; a name may stand several times in the flag, once for each of its URLs.
    pub initial_cluster: BTreeMap<String, Vec<String>>,
    pub initial_cluster_token: String,
    pub existing: bool,
    pub client_tls: TlsInfo,
    pub peer_tls: TlsInfo,
    pub auto_tls: bool,
    pub peer_auto_tls: bool,
    pub self_signed_years: u32,
    pub heartbeat: Duration,
    pub election: Duration,
    pub pre_vote: bool,
    pub snapshot_count: u64,
    pub catch_up_entries: u64,
    pub quota_bytes: i64,
    pub max_txn_ops: u64,
    pub token_ttl_seconds: u64,
    /// As bcrypt takes it, 4 to 31.
    pub bcrypt_cost: u32,
    /// Bytes that requests and answers in flight may hold; 0 for a quarter of the memory.
    pub max_in_flight_bytes: u64,
    pub max_request_bytes: u64,
    pub max_concurrent_streams: u32,
    pub keepalive_interval: Duration,
    pub keepalive_timeout: Duration,
    pub progress_notify: Duration,
    pub cors: BTreeSet<String>,
    pub host_whitelist: BTreeSet<String>,
    pub gates: BTreeMap<String, bool>,
}

/// Where and how to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    pub level: tracing::Level,
    pub json: bool,
    pub outputs: Vec<String>,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: tracing::Level::INFO, json: true, outputs: vec!["default".into()] }
    }
}

/// etcd 3.7's gates and their defaults.
const GATES: &[(&str, bool)] = &[
    ("AllAlpha", false),
    ("AllBeta", false),
    ("CompactHashCheck", false),
    ("FastLeaseKeepAlive", true),
    ("InitialCorruptCheck", false),
    ("LeaseCheckpoint", false),
    ("LeaseCheckpointPersist", false),
    ("PriorityRequest", false),
    ("SetMemberLocalAddr", false),
    ("StopGRPCServiceOnDefrag", false),
    ("TxnModeWriteWithSharedBuffer", true),
];

/// Taken because those who deploy etcd set them (kubeadm the first); there is no such check here.
const WITHOUT_EFFECT: &[&str] = &["CompactHashCheck", "InitialCorruptCheck"];

/// Reads the logging flags alone: what goes wrong with the others has to be logged.
///
/// # Errors
/// etcd's text.
pub fn log_config(values: &Values) -> Result<LogConfig, String> {
    match values.text("logger") {
        "zap" => {}
        "capnslog" => return Err("--logger=capnslog is removed in v3.5".into()),
        other => return Err(format!("unknown logger option {other:?}")),
    }
    let level = match values.text("log-level") {
        "debug" => tracing::Level::DEBUG,
        "info" => tracing::Level::INFO,
        "warn" => tracing::Level::WARN,
        "error" | "dpanic" | "panic" | "fatal" => tracing::Level::ERROR,
        other => return Err(format!("unrecognized level: {other:?}")),
    };
    let json = match values.text("log-format") {
        "json" => true,
        "console" => false,
        other => return Err(format!("unknown log format: {other}")),
    };
    let outputs = values.list("log-outputs");
    if outputs.len() > 1 && outputs.iter().any(|output| output == "default") {
        return Err("multi logoutput for \"default\" is not supported yet".into());
    }
    if outputs.iter().any(|output| output == "systemd/journal") {
        return Err("not yet supported: --log-outputs=systemd/journal".into());
    }
    Ok(LogConfig { level, json, outputs })
}

impl Config {
    /// Checks all flags together.
    ///
    /// # Errors
    /// etcd's text for the first thing wrong; `not yet supported: --flag` for a feature that does not exist yet.
    pub fn new(values: &Values) -> Result<Self, String> {
        if let Some(flag) = values.not_yet_supported().first() {
            return Err(format!("not yet supported: --{flag}"));
        }
        let listen_peer = listen_urls(values, "listen-peer-urls")?;
        let listen_client = listen_urls(values, "listen-client-urls")?;
        let listen_client_http = listen_urls(values, "listen-client-http-urls")?;
        let listen_metrics = listen_urls(values, "listen-metrics-urls")?;
        for url in &listen_client_http {
            if listen_client.contains(url) {
                return Err(format!(
                    "cannot bind both --listen-client-urls and --listen-client-http-urls on the same url {url}"
                ));
            }
        }
        let name = values.text("name").to_owned();
        let advertise_peer = parse_urls(values.text("initial-advertise-peer-urls"))?;
        if values.is_given("listen-client-urls") && !values.is_given("advertise-client-urls") {
            return Err("--advertise-client-urls is required when --listen-client-urls is set explicitly".into());
        }
        let advertise_client = parse_urls(values.text("advertise-client-urls"))?;
        for (flag, urls) in
            [("initial-advertise-peer-urls", &advertise_peer), ("advertise-client-urls", &advertise_client)]
        {
            if let Some(url) = urls.iter().find(|url| url.host_port().is_some_and(|(host, _)| host.is_empty())) {
                return Err(format!("--{flag} {url:?} must be \"host:port\" (unexpected empty host ({url}))"));
            }
        }
        let heartbeat = values.unsigned("heartbeat-interval");
        let election = values.unsigned("election-timeout");
        check_timing(heartbeat, election)?;
        let initial_cluster = initial_cluster(values, &name, &advertise_peer)?;
        let (client_tls, peer_tls) = (client_tls(values)?, peer_tls(values)?);
        // Wrong names are wrong whether or not a port speaks TLS.
        client_tls.check_cipher_suites().map_err(|error| error.to_string())?;
        let data_dir = match values.text("data-dir") {
            "" => PathBuf::from(format!("{name}.etcd")),
            given => PathBuf::from(given),
        };
        let set = |flag: &str| values.list(flag).into_iter().collect();
        Ok(Self {
            data_dir,
            wal_dir: optional_path(values, "wal-dir"),
            keep_imported: values.boolean("keep-imported"),
            listen_peer,
            listen_client,
            listen_client_http,
            listen_metrics,
            advertise_peer,
            advertise_client,
            initial_cluster,
            initial_cluster_token: values.text("initial-cluster-token").to_owned(),
            existing: values.text("initial-cluster-state") == "existing",
            client_tls,
            peer_tls,
            auto_tls: values.boolean("auto-tls"),
            peer_auto_tls: values.boolean("peer-auto-tls"),
            self_signed_years: u32::try_from(values.unsigned("self-signed-cert-validity")).unwrap_or(u32::MAX),
            heartbeat: Duration::from_millis(heartbeat),
            election: Duration::from_millis(election),
            pre_vote: values.boolean("pre-vote"),
            snapshot_count: values.unsigned("snapshot-count").max(1),
            catch_up_entries: values.unsigned("snapshot-catchup-entries"),
            quota_bytes: values.signed("quota-backend-bytes"),
            max_txn_ops: values.unsigned("max-txn-ops"),
            token_ttl_seconds: values.unsigned("auth-token-ttl"),
            bcrypt_cost: bcrypt_cost(values.unsigned("bcrypt-cost")),
            max_in_flight_bytes: values.unsigned("max-in-flight-bytes"),
            max_request_bytes: values.unsigned("max-request-bytes"),
            max_concurrent_streams: u32::try_from(values.unsigned("max-concurrent-streams")).unwrap_or(u32::MAX),
            keepalive_interval: nanos(values.duration("grpc-keepalive-interval")),
            keepalive_timeout: nanos(values.duration("grpc-keepalive-timeout")),
            progress_notify: match values.duration("watch-progress-notify-interval") {
                0 => Duration::from_secs(600),
                given => nanos(given).max(Duration::from_millis(100)),
            },
            cors: set("cors"),
            host_whitelist: set("host-whitelist"),
            gates: gates(values.text("feature-gates"))?,
            name,
        })
    }

    pub fn gate(&self, name: &str) -> bool {
        self.gates.get(name).copied().unwrap_or(false)
    }
}

fn nanos(duration: i64) -> Duration {
    Duration::from_nanos(u64::try_from(duration).unwrap_or(0))
}

fn listen_urls(values: &Values, flag: &str) -> Result<Vec<Url>, String> {
    let urls = parse_urls(values.text(flag))?;
    for url in urls.iter().filter(|url| !url.scheme.is_unix()) {
        let bindable = url.host_port().is_some_and(|(host, _)| host == "localhost" || host.parse::<IpAddr>().is_ok());
        if !bindable {
            return Err(format!("expected IP in URL for binding ({url})"));
        }
    }
    Ok(urls)
}

fn check_timing(heartbeat: u64, election: u64) -> Result<(), String> {
    if heartbeat == 0 {
        return Err("--heartbeat-interval must be >0 (set to 0ms)".into());
    }
    if election == 0 {
        return Err("--election-timeout must be >0 (set to 0ms)".into());
    }
    if heartbeat.saturating_mul(5) > election {
        return Err(format!(
            "--election-timeout[{election}ms] should be at least as 5 times as --heartbeat-interval[{heartbeat}ms]"
        ));
    }
    if election > 50_000 {
        return Err(format!("--election-timeout[{election}ms] is too long, and should be set less than 50000ms"));
    }
    Ok(())
}

fn initial_cluster(values: &Values, name: &str, own: &[Url]) -> Result<BTreeMap<String, Vec<String>>, String> {
    let mut cluster: BTreeMap<String, Vec<String>> = BTreeMap::new();
    if !values.is_given("initial-cluster") {
        cluster.insert(name.to_owned(), own.iter().map(ToString::to_string).collect());
        return Ok(cluster);
    }
    for part in values.text("initial-cluster").split(',').filter(|part| !part.is_empty()) {
        let (name, url) = part
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| format!("error setting up initial cluster: invalid member {part:?}, expected name=url"))?;
        let url = parse_url(url).map_err(|what| format!("error setting up initial cluster: {what}"))?;
        cluster.entry(name.to_owned()).or_default().push(url.to_string());
    }
    let mut seen = BTreeSet::new();
    for urls in cluster.values_mut() {
        urls.sort();
        if urls.iter().any(|url| !seen.insert(url.clone())) {
            return Err(format!("initial cluster {} has duplicate url", values.text("initial-cluster")));
        }
    }
    Ok(cluster)
}

/// Checks that this member's part of the initial cluster is what it advertises; only for a first start.
///
/// # Errors
/// etcd's text.
pub fn check_own_urls(config: &Config) -> Result<(), String> {
    let Some(configured) = config.initial_cluster.get(&config.name) else {
        return Err(format!("couldn't find local name {:?} in the initial cluster configuration", config.name));
    };
    let mut advertised: Vec<String> = config.advertise_peer.iter().map(ToString::to_string).collect();
    advertised.sort();
    if *configured == advertised || resolved(configured) == resolved(&advertised) {
        return Ok(());
    }
    let all = advertised.join(",");
    for url in configured {
        if !advertised.contains(url) {
            return Err(format!(
                "--initial-cluster has {}={url} but missing from --initial-advertise-peer-urls={all}",
                config.name
            ));
        }
    }
    let missing = advertised.iter().find(|url| !configured.contains(url)).cloned().unwrap_or_default();
    Err(format!(
        "--initial-advertise-peer-urls has {missing} but missing from --initial-cluster={}={}",
        config.name,
        configured.join(",")
    ))
}

fn resolved(urls: &[String]) -> BTreeSet<String> {
    use std::net::ToSocketAddrs;
    let mut all = BTreeSet::new();
    for url in urls {
        let Some((scheme, address)) = url.split_once("://") else { continue };
        match address.to_socket_addrs().ok().and_then(|mut found| found.next()) {
            Some(found) => all.insert(format!("{scheme}://{found}")),
            None => all.insert(url.clone()),
        };
    }
    all
}

fn optional_path(values: &Values, flag: &str) -> Option<PathBuf> {
    Some(values.text(flag)).filter(|text| !text.is_empty()).map(PathBuf::from)
}

fn versions(values: &Values) -> Result<(Option<TlsVersion>, Option<TlsVersion>), String> {
    let parse = |flag: &str| match values.text(flag) {
        "" => Ok(None),
        "TLS1.2" => Ok(Some(TlsVersion::Tls12)),
        "TLS1.3" => Ok(Some(TlsVersion::Tls13)),
        other => Err(format!("unexpected TLS version {other:?} (must be one of: TLS1.2, TLS1.3)")),
    };
    let (min, max) = (parse("tls-min-version")?, parse("tls-max-version")?);
    if let (Some(low), Some(high)) = (min, max)
        && low > high
    {
        return Err(format!(
            "min version ({}) is greater than max version ({})",
            values.text("tls-min-version"),
            values.text("tls-max-version")
        ));
    }
    if min == Some(TlsVersion::Tls13) && !values.list("cipher-suites").is_empty() {
        return Err("cipher suites cannot be configured when only TLS1.3 is enabled".into());
    }
    Ok((min, max))
}

/// etcd takes its default for a cost that bcrypt does not have.
fn bcrypt_cost(given: u64) -> u32 {
    u32::try_from(given).ok().filter(|cost| (4..=31).contains(cost)).unwrap_or(10)
}

fn client_tls(values: &Values) -> Result<TlsInfo, String> {
    let (min_version, max_version) = versions(values)?;
    Ok(TlsInfo {
        cert_file: optional_path(values, "cert-file"),
        key_file: optional_path(values, "key-file"),
        client_cert_file: optional_path(values, "client-cert-file"),
        client_key_file: optional_path(values, "client-key-file"),
        trusted_ca_file: optional_path(values, "trusted-ca-file"),
        client_cert_auth: values.boolean("client-cert-auth"),
        crl_file: optional_path(values, "client-crl-file"),
        allowed_hostnames: values.list("client-cert-allowed-hostname"),
        min_version,
        max_version,
        cipher_suites: values.list("cipher-suites"),
        ..TlsInfo::default()
    })
}

fn peer_tls(values: &Values) -> Result<TlsInfo, String> {
    let (min_version, max_version) = versions(values)?;
    Ok(TlsInfo {
        cert_file: optional_path(values, "peer-cert-file"),
        key_file: optional_path(values, "peer-key-file"),
        client_cert_file: optional_path(values, "peer-client-cert-file"),
        client_key_file: optional_path(values, "peer-client-key-file"),
        trusted_ca_file: optional_path(values, "peer-trusted-ca-file"),
        client_cert_auth: values.boolean("peer-client-cert-auth"),
        crl_file: optional_path(values, "peer-crl-file"),
        allowed_cns: values.list("peer-cert-allowed-cn"),
        allowed_hostnames: values.list("peer-cert-allowed-hostname"),
        skip_client_san_verify: values.boolean("peer-skip-client-san-verification"),
        min_version,
        max_version,
        cipher_suites: values.list("cipher-suites"),
        ..TlsInfo::default()
    })
}

fn gates(text: &str) -> Result<BTreeMap<String, bool>, String> {
    let mut gates: BTreeMap<String, bool> =
        GATES.iter().map(|(name, default)| ((*name).to_owned(), *default)).collect();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').ok_or_else(|| format!("missing bool value for {part}"))?;
        if !gates.contains_key(name) {
            return Err(format!("unrecognized feature gate: {name}"));
        }
        let value = match value {
            "true" | "1" | "t" | "T" | "TRUE" | "True" => true,
            "false" | "0" | "f" | "F" | "FALSE" | "False" => false,
            other => {
                return Err(format!(
                    "invalid value of {name}={other}, err: strconv.ParseBool: parsing {other:?}: invalid syntax"
                ));
            }
        };
        if value && WITHOUT_EFFECT.contains(&name) {
            tracing::info!(gate = name, "feature gate has no effect");
        }
        gates.insert(name.to_owned(), value);
    }
    if gates["LeaseCheckpointPersist"] && !gates["LeaseCheckpoint"] {
        return Err(
            "enabling feature gate LeaseCheckpointPersist requires enabling feature gate LeaseCheckpoint".into()
        );
    }
    Ok(gates)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(arguments: &[&str]) -> Result<Config, String> {
        let values = Values::parse(arguments.iter().map(ToString::to_string), []).map_err(|e| e.to_string())?;
        Config::new(&values)
    }

    #[test]
    fn defaults_are_etcds() {
        let config = config(&[]).expect("defaults are fine");
        assert_eq!(config.data_dir, PathBuf::from("default.etcd"));
        assert_eq!(config.initial_cluster["default"], ["http://localhost:2380"]);
        assert_eq!(config.listen_client[0].to_string(), "http://localhost:2379");
        assert!(config.gate("FastLeaseKeepAlive") && !config.gate("LeaseCheckpoint"));
    }

    #[test]
    fn gates_that_kubeadm_writes_are_taken() {
        let config = config(&["--feature-gates=InitialCorruptCheck=true,CompactHashCheck=true"]).expect("taken");
        assert!(config.gate("InitialCorruptCheck"));
    }

    #[test]
    fn contradictions_are_named_as_etcd_names_them() {
        for (arguments, wanted) in [
            (&["--heartbeat-interval=0"][..], "--heartbeat-interval must be >0 (set to 0ms)"),
            (
                &["--heartbeat-interval=300"],
                "--election-timeout[1000ms] should be at least as 5 times as --heartbeat-interval[300ms]",
            ),
            (
                &["--election-timeout=60000"],
                "--election-timeout[60000ms] is too long, and should be set less than 50000ms",
            ),
            (
                &["--listen-client-urls=http://127.0.0.1:1"],
                "--advertise-client-urls is required when --listen-client-urls is set explicitly",
            ),
            (&["--listen-peer-urls=http://example.com:1"], "expected IP in URL for binding (http://example.com:1)"),
            (&["--feature-gates=Nope=true"], "unrecognized feature gate: Nope"),
            (&["--tls-min-version=TLS1.1"], "unexpected TLS version \"TLS1.1\" (must be one of: TLS1.2, TLS1.3)"),
            (&["--force-new-cluster"], "not yet supported: --force-new-cluster"),
            (&["--cipher-suites=TLS_NOPE"], "unexpected TLS cipher suite \"TLS_NOPE\""),
        ] {
            assert_eq!(config(arguments).expect_err("refused"), wanted, "{arguments:?}");
        }
    }

    #[test]
    fn own_urls_must_match_the_initial_cluster() {
        let cluster = "--initial-cluster=a=http://127.0.0.1:1,b=http://127.0.0.1:2";
        let own = |name: &str, url: &str| {
            let (name, url) = (format!("--name={name}"), format!("--initial-advertise-peer-urls={url}"));
            check_own_urls(&config(&[cluster, &name, &url]).expect("parses"))
        };
        assert_eq!(own("a", "http://127.0.0.1:1"), Ok(()));
        assert_eq!(own("a", "http://localhost:1"), Ok(()), "equal once resolved");
        assert!(own("c", "http://127.0.0.1:1").expect_err("refused").starts_with("couldn't find local name \"c\""));
        assert!(own("a", "http://127.0.0.1:3").expect_err("refused").contains("missing from"));
    }

    #[test]
    fn urls_have_etcds_forms() {
        assert_eq!(parse_urls("http://b:1,http://a:1,http://b:1").expect("fine").len(), 2);
        assert!(
            parse_urls("ftp://a:1").is_err() && parse_urls("http://a").is_err() && parse_urls("http://a:1/x").is_err()
        );
        assert_eq!(parse_urls("unix:///run/x").expect("fine")[0].address, "/run/x");
    }
}
