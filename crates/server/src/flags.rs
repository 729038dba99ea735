//! The flags of etcd's server as Go's `flag` package reads them, and their `ETCD_` variables.
//!
//! Every flag etcd 3.7 registers stands in [`FLAGS`], so that one that is not carried out yet is refused by its name
//! rather than passed over. What the values mean is decided in [`crate::config`].

use std::collections::BTreeMap;

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Never takes the next argument.
    Bool,
    Text,
    Int,
    Uint,
    /// Go's form: `1h2m3.5s`.
    Duration,
    /// Comma-separated URLs.
    Urls,
}

/// What becomes of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    Full,
    /// Taken, and without meaning here: the reason says why nothing is lost.
    NoEffect(&'static str),
    /// Refused unless it keeps its default.
    Later,
    /// Taken with a warning, as etcd does with flags of old releases.
    Ignored,
}

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    pub name: &'static str,
    pub kind: Kind,
    pub default: &'static str,
    pub support: Support,
}

const fn flag(name: &'static str, kind: Kind, default: &'static str) -> Flag {
    Flag { name, kind, default, support: Support::Full }
}

const fn later(name: &'static str, kind: Kind, default: &'static str) -> Flag {
    Flag { name, kind, default, support: Support::Later }
}

const fn no_effect(name: &'static str, kind: Kind, default: &'static str, why: &'static str) -> Flag {
    Flag { name, kind, default, support: Support::NoEffect(why) }
}

const fn ignored(name: &'static str) -> Flag {
    Flag { name, kind: Kind::Text, default: "", support: Support::Ignored }
}

const NO_BBOLT: &str = "the store is not bbolt";
const NO_PAUSE: &str = "reclaim works beside requests";

/// All flags, by name.
pub const FLAGS: &[Flag] = &[
    flag("advertise-client-urls", Kind::Urls, "http://localhost:2379"),
    later("auth-token", Kind::Text, "simple"),
    flag("auth-token-ttl", Kind::Uint, "300"),
    later("auto-compaction-mode", Kind::Text, "periodic"),
    later("auto-compaction-retention", Kind::Text, "0"),
    flag("auto-tls", Kind::Bool, "false"),
    no_effect("backend-batch-interval", Kind::Duration, "0s", NO_BBOLT),
    no_effect("backend-batch-limit", Kind::Int, "0", NO_BBOLT),
    no_effect("backend-bbolt-freelist-type", Kind::Text, "", NO_BBOLT),
    flag("bcrypt-cost", Kind::Uint, "10"),
    no_effect("bootstrap-defrag-threshold-megabytes", Kind::Uint, "0", NO_PAUSE),
    flag("cert-file", Kind::Text, ""),
    flag("cipher-suites", Kind::Text, ""),
    flag("client-cert-allowed-hostname", Kind::Text, ""),
    flag("client-cert-auth", Kind::Bool, "false"),
    flag("client-cert-file", Kind::Text, ""),
    flag("client-crl-file", Kind::Text, ""),
    flag("client-key-file", Kind::Text, ""),
    no_effect("compact-hash-check-time", Kind::Duration, "1m0s", "the check it paces is behind a feature gate"),
    no_effect("compaction-batch-limit", Kind::Int, "0", "compaction moves a mark"),
    no_effect("compaction-sleep-interval", Kind::Duration, "0s", "compaction moves a mark"),
    later("config-file", Kind::Text, ""),
    flag("cors", Kind::Text, "*"),
    later("corrupt-check-time", Kind::Duration, "0s"),
    flag("data-dir", Kind::Text, ""),
    later("discovery-cacert", Kind::Text, ""),
    later("discovery-cert", Kind::Text, ""),
    later("discovery-dial-timeout", Kind::Duration, "2s"),
    later("discovery-endpoints", Kind::Text, ""),
    later("discovery-fallback", Kind::Text, "exit"),
    later("discovery-insecure-skip-tls-verify", Kind::Bool, "false"),
    later("discovery-insecure-transport", Kind::Bool, "true"),
    later("discovery-keepalive-time", Kind::Duration, "2s"),
    later("discovery-keepalive-timeout", Kind::Duration, "6s"),
    later("discovery-key", Kind::Text, ""),
    later("discovery-password", Kind::Text, ""),
    later("discovery-request-timeout", Kind::Duration, "5s"),
    later("discovery-srv", Kind::Text, ""),
    later("discovery-srv-name", Kind::Text, ""),
    later("discovery-token", Kind::Text, ""),
    later("discovery-user", Kind::Text, ""),
    later("distributed-tracing-address", Kind::Text, "localhost:4317"),
    later("distributed-tracing-instance-id", Kind::Text, ""),
    later("distributed-tracing-sampling-rate", Kind::Int, "0"),
    later("distributed-tracing-service-name", Kind::Text, "etcd"),
    no_effect("downgrade-check-time", Kind::Duration, "5s", "downgrades are not supported yet"),
    flag("election-timeout", Kind::Uint, "1000"),
    later("enable-distributed-tracing", Kind::Bool, "false"),
    no_effect("enable-grpc-gateway", Kind::Bool, "true", "the gateway is not supported yet"),
    later("enable-log-rotation", Kind::Bool, "false"),
    later("enable-pprof", Kind::Bool, "false"),
    flag("feature-gates", Kind::Text, ""),
    later("force-new-cluster", Kind::Bool, "false"),
    flag("grpc-keepalive-interval", Kind::Duration, "2h0m0s"),
    no_effect("grpc-keepalive-min-time", Kind::Duration, "5s", "pings are answered, never punished"),
    flag("grpc-keepalive-timeout", Kind::Duration, "20s"),
    flag("heartbeat-interval", Kind::Uint, "100"),
    flag("host-whitelist", Kind::Text, "*"),
    flag("initial-advertise-peer-urls", Kind::Urls, "http://localhost:2380"),
    flag("initial-cluster", Kind::Text, ""),
    flag("initial-cluster-state", Kind::Text, "new"),
    flag("initial-cluster-token", Kind::Text, "etcd-cluster"),
    no_effect("initial-election-tick-advance", Kind::Bool, "true", "an election is not waited for longer than needed"),
    flag("key-file", Kind::Text, ""),
    flag("keep-imported", Kind::Bool, "true"),
    flag("listen-client-http-urls", Kind::Urls, ""),
    flag("listen-client-urls", Kind::Urls, "http://localhost:2379"),
    flag("listen-metrics-urls", Kind::Urls, ""),
    flag("listen-peer-urls", Kind::Urls, "http://localhost:2380"),
    flag("log-format", Kind::Text, "json"),
    flag("log-level", Kind::Text, "info"),
    flag("log-outputs", Kind::Text, "default"),
    later(
        "log-rotation-config-json",
        Kind::Text,
        r#"{"maxsize": 100, "maxage": 0, "maxbackups": 0, "localtime": false, "compress": false}"#,
    ),
    flag("logger", Kind::Text, "zap"),
    flag("max-concurrent-streams", Kind::Uint, "4294967295"),
    flag("max-in-flight-bytes", Kind::Uint, "0"),
    no_effect("max-learners", Kind::Int, "1", "membership changes are not supported yet"),
    flag("max-request-bytes", Kind::Uint, "1572864"),
    no_effect("max-snapshots", Kind::Uint, "5", "received snapshots are removed once installed"),
    flag("max-txn-ops", Kind::Uint, "128"),
    no_effect("max-wals", Kind::Uint, "5", "log segments go as soon as the store holds them durably"),
    no_effect("memory-mlock", Kind::Bool, "false", NO_BBOLT),
    no_effect("metrics", Kind::Text, "basic", "there is one set of metrics"),
    flag("name", Kind::Text, "default"),
    flag("peer-auto-tls", Kind::Bool, "false"),
    flag("peer-cert-allowed-cn", Kind::Text, ""),
    flag("peer-cert-allowed-hostname", Kind::Text, ""),
    flag("peer-cert-file", Kind::Text, ""),
    flag("peer-client-cert-auth", Kind::Bool, "false"),
    flag("peer-client-cert-file", Kind::Text, ""),
    flag("peer-client-key-file", Kind::Text, ""),
    flag("peer-crl-file", Kind::Text, ""),
    flag("peer-key-file", Kind::Text, ""),
    flag("peer-skip-client-san-verification", Kind::Bool, "false"),
    flag("peer-trusted-ca-file", Kind::Text, ""),
    flag("pre-vote", Kind::Bool, "true"),
    flag("quota-backend-bytes", Kind::Int, "0"),
    no_effect("raft-read-timeout", Kind::Duration, "5s", "peer streams use etcd's defaults"),
    no_effect("raft-write-timeout", Kind::Duration, "5s", "peer streams use etcd's defaults"),
    flag("self-signed-cert-validity", Kind::Uint, "1"),
    flag("snapshot-catchup-entries", Kind::Uint, "5000"),
    flag("snapshot-count", Kind::Uint, "10000"),
    later("socket-reuse-address", Kind::Bool, "false"),
    later("socket-reuse-port", Kind::Bool, "false"),
    no_effect("strict-reconfig-check", Kind::Bool, "true", "membership changes are not supported yet"),
    flag("tls-max-version", Kind::Text, ""),
    flag("tls-min-version", Kind::Text, "TLS1.2"),
    flag("trusted-ca-file", Kind::Text, ""),
    later("unsafe-no-fsync", Kind::Bool, "false"),
    flag("version", Kind::Bool, "false"),
    flag("wal-dir", Kind::Text, ""),
    no_effect("warning-apply-duration", Kind::Duration, "100ms", "slow applies are counted, not logged"),
    no_effect("warning-unary-request-duration", Kind::Duration, "300ms", "slow requests are counted, not logged"),
    flag("watch-progress-notify-interval", Kind::Duration, "0s"),
    ignored("cluster-active-size"),
    ignored("cluster-remove-delay"),
    ignored("cluster-sync-interval"),
    ignored("config"),
    ignored("force"),
    ignored("max-result-buffer"),
    ignored("max-retry-attempts"),
    ignored("peer-election-timeout"),
    ignored("peer-heartbeat-interval"),
    ignored("retry-interval"),
    ignored("snapshot"),
    ignored("v"),
    ignored("vv"),
];

/// Why the command line or the environment cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FlagError {
    /// Go's `flag` package refuses: usage goes to stderr, exit 2.
    #[error("{0}")]
    Usage(String),
    /// `-h`: usage, exit 0.
    #[error("help requested")]
    Help,
    /// etcd's own check refuses: logged, exit 1.
    #[error("{0}")]
    Invalid(String),
    /// A variable and its flag are both given: logged with the variable's name, exit 1.
    #[error(
        "conflicting environment variable is shadowed by corresponding command-line flag (either unset environment \
         variable or disable flag))"
    )]
    Shadowed(String),
}

/// Flag values, and which of them somebody gave.
#[derive(Clone, Debug, Default)]
pub struct Values {
    given: BTreeMap<&'static str, String>,
    /// Which of them came from the environment: (variable, value).
    pub from_environment: Vec<(String, String)>,
    /// `ETCD_*` variables that name no flag.
    pub unknown_environment: Vec<(String, String)>,
}

impl Values {
    /// Reads the command line, without the program's name, and then the environment for flags not on it.
    ///
    /// # Errors
    /// As [`FlagError`] says.
    pub fn parse(
        arguments: impl IntoIterator<Item = String>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, FlagError> {
        let mut values = Self::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let Some(text) = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')) else {
                return Err(FlagError::Invalid(format!("{argument:?} is not a valid flag")));
            };
            if text.is_empty() {
                // What follows `--` is positional, and there are no positional arguments.
                match arguments.next() {
                    Some(left) => return Err(FlagError::Invalid(format!("{left:?} is not a valid flag"))),
                    None => break,
                }
            }
            if text.starts_with('-') || text.starts_with('=') {
                return Err(FlagError::Usage(format!("bad flag syntax: {argument}")));
            }
            let (name, inline) = match text.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (text, None),
            };
            let Some(flag) = find(name) else {
                return Err(match name {
                    "h" | "help" => FlagError::Help,
                    _ => FlagError::Usage(format!("flag provided but not defined: -{name}")),
                });
            };
            let value = match (inline, flag.kind) {
                (Some(value), _) => value,
                (None, Kind::Bool) => "true".to_owned(),
                (None, _) => {
                    arguments.next().ok_or_else(|| FlagError::Usage(format!("flag needs an argument: -{name}")))?
                }
            };
            check(flag, &value).map_err(|what| {
                let shown = if flag.kind == Kind::Bool { "boolean value" } else { "value" };
                FlagError::Usage(format!("invalid {shown} {value:?} for flag -{name}: {what}"))
            })?;
            values.given.insert(flag.name, value);
        }
        values.read_environment(environment)?;
        Ok(values)
    }

    fn read_environment(&mut self, environment: impl IntoIterator<Item = (String, String)>) -> Result<(), FlagError> {
        let mut found: Vec<(String, String)> =
            environment.into_iter().filter(|(name, value)| name.starts_with("ETCD_") && !value.is_empty()).collect();
        found.sort();
        for (variable, value) in found {
            let name = variable["ETCD_".len()..].to_lowercase().replace('_', "-");
            let Some(flag) = find(&name).filter(|flag| !matches!(flag.name, "version")) else {
                if !SPECIAL.contains(&variable.as_str()) {
                    self.unknown_environment.push((variable, value));
                }
                continue;
            };
            if self.given.contains_key(flag.name) {
                return Err(FlagError::Shadowed(variable));
            }
            check(flag, &value)
                .map_err(|what| FlagError::Invalid(format!("invalid value {value:?} for {variable}: {what}")))?;
            self.given.insert(flag.name, value.clone());
            self.from_environment.push((variable, value));
        }
        Ok(())
    }

    /// Whether somebody gave the flag.
    pub fn is_given(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// A flag's value: as given, or its default.
    pub fn text(&self, name: &str) -> &str {
        match self.given.get(name) {
            Some(value) => value,
            None => find(name).map_or("", |flag| flag.default),
        }
    }

    pub fn boolean(&self, name: &str) -> bool {
        parse_bool(self.text(name)).unwrap_or(false)
    }

    pub fn unsigned(&self, name: &str) -> u64 {
        parse_integer(self.text(name)).and_then(|n| n.try_into().ok()).unwrap_or(0)
    }

    pub fn signed(&self, name: &str) -> i64 {
        parse_integer(self.text(name)).and_then(|n| n.try_into().ok()).unwrap_or(0)
    }

    /// Nanoseconds.
    pub fn duration(&self, name: &str) -> i64 {
        parse_duration(self.text(name)).unwrap_or(0)
    }

    /// Comma-separated parts, empty ones left out.
    pub fn list(&self, name: &str) -> Vec<String> {
        self.text(name).split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    /// Flags given with another value than their default whose feature does not exist yet.
    pub fn not_yet_supported(&self) -> Vec<&'static str> {
        let given = FLAGS.iter().filter(|flag| flag.support == Support::Later);
        given.filter(|flag| self.text(flag.name) != flag.default).map(|flag| flag.name).collect()
    }

    /// Flags given that change nothing: (name, why).
    pub fn without_effect(&self) -> Vec<(&'static str, &'static str)> {
        FLAGS
            .iter()
            .filter(|flag| self.is_given(flag.name))
            .filter_map(|flag| match flag.support {
                Support::NoEffect(why) => Some((flag.name, why)),
                Support::Ignored => Some((flag.name, "etcd does not use it any more")),
                _ => None,
            })
            .collect()
    }
}

/// Variables that etcd reads without a flag of that name.
const SPECIAL: &[&str] = &["ETCD_UNSUPPORTED_ARCH", "ETCD_VERIFY", "ETCD_VERSION"];

/// Looks a flag up; the old `experimental-` form of a name counts as the name.
pub fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

fn check(flag: &Flag, value: &str) -> Result<(), String> {
    let fine = match flag.kind {
        Kind::Bool => parse_bool(value).is_some(),
        Kind::Int => parse_integer(value).is_some_and(|n| i64::try_from(n).is_ok()),
        Kind::Uint => parse_integer(value).is_some_and(|n| u64::try_from(n).is_ok()),
        Kind::Duration => parse_duration(value).is_some(),
        Kind::Urls => return crate::config::parse_urls(value).map(|_| ()),
        Kind::Text => match flag.name {
            "initial-cluster-state" => return one_of(value, &["new", "existing"]),
            "discovery-fallback" => return one_of(value, &["exit", "proxy"]),
            _ => true,
        },
    };
    if fine { Ok(()) } else { Err("parse error".into()) }
}

fn one_of(value: &str, allowed: &[&str]) -> Result<(), String> {
    if allowed.contains(&value) { Ok(()) } else { Err("invalid value".into()) }
}

fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Go's base-0 integers.
fn parse_integer(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_lowercase().replace('_', "");
    let (radix, digits) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        _ if lower.len() > 1 && lower.starts_with('0') => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    let number = u64::from_str_radix(digits, radix).ok()?;
    Some(if negative { -i128::from(number) } else { i128::from(number) })
}

/// Go's `time.ParseDuration`, in nanoseconds.
pub fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: f64 = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let nanos = match &rest[..unit] {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        total += number * nanos;
        rest = &rest[unit..];
    }
    if total > i64::MAX as f64 {
        return None;
    }
    Some(if negative { -(total as i64) } else { total as i64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Values, FlagError> {
        Values::parse(arguments.iter().map(ToString::to_string), [])
    }

    #[test]
    fn flags_are_read_as_go_reads_them() {
        let values =
            parse(&["-name=a", "--data-dir", "d", "--auto-tls", "--heartbeat-interval", "0x64"]).expect("fine");
        assert_eq!((values.text("name"), values.text("data-dir")), ("a", "d"));
        assert!(values.boolean("auto-tls"));
        assert_eq!(values.unsigned("heartbeat-interval"), 100);
        assert_eq!(values.text("initial-cluster-token"), "etcd-cluster");
        for (arguments, wanted) in [
            (&["--nope"][..], FlagError::Usage("flag provided but not defined: -nope".into())),
            (&["--name"], FlagError::Usage("flag needs an argument: -name".into())),
            (&["--auto-tls", "false"], FlagError::Invalid("\"false\" is not a valid flag".into())),
            (&["-h"], FlagError::Help),
            (
                &["--initial-cluster-state=old"],
                FlagError::Usage("invalid value \"old\" for flag -initial-cluster-state: invalid value".into()),
            ),
            (
                &["--pre-vote=maybe"],
                FlagError::Usage("invalid boolean value \"maybe\" for flag -pre-vote: parse error".into()),
            ),
        ] {
            assert_eq!(parse(arguments).expect_err("refused"), wanted, "{arguments:?}");
        }
    }

    #[test]
    fn the_environment_fills_in_and_must_not_be_shadowed() {
        let environment = || [("ETCD_NAME".to_owned(), "env".to_owned()), ("ETCD_DATA_DIR".to_owned(), String::new())];
        let values = Values::parse([], environment()).expect("fine");
        assert_eq!(values.text("name"), "env");
        assert!(!values.is_given("data-dir"), "an empty variable is unset");
        let shadowed = Values::parse(["--name=cli".to_owned()], environment());
        assert_eq!(shadowed.expect_err("refused"), FlagError::Shadowed("ETCD_NAME".into()));
        let unknown = Values::parse([], [("ETCD_WHAT".to_owned(), "1".to_owned())]).expect("only a warning");
        assert_eq!(unknown.unknown_environment.len(), 1);
    }

    #[test]
    fn what_is_not_carried_out_is_named() {
        let values = parse(&["--force-new-cluster", "--auth-token=simple", "--max-wals=3"]).expect("fine");
        assert_eq!(values.not_yet_supported(), ["force-new-cluster"]);
        assert_eq!(values.without_effect().len(), 1);
    }

    #[test]
    fn durations_are_gos() {
        for (text, nanos) in
            [("1h2m3.5s", 3_723_500_000_000), ("100ms", 100_000_000), ("0", 0), ("-1s", -1_000_000_000)]
        {
            assert_eq!(parse_duration(text), Some(nanos), "{text}");
        }
        for text in ["", "5", "1x", "s", "1.5"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
