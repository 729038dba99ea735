//! What `etcd --help` and `dolmen serve --help` print: every flag with its one line, in groups.

use std::fmt::Write;

use crate::flags::{FLAGS, Flag, Kind, Support};

/// How it is called, in short.
pub const USAGE: &str = "Usage:

  etcd [flags]              Start a member (dolmen serve [flags] is the same).
  etcd --version            Show the versions.
  etcd --help               Show every flag.
";

/// Where a flag without effect, or not there yet, is told apart.
const NOTES: &str = "
Every flag may also be given as a variable: ETCD_DATA_DIR for --data-dir. Not both at once.
(no effect) is taken, and nothing is lost by it. (not yet) is refused unless it keeps its default.
";

/// Flags by what they are about, and what each does.
const GROUPS: &[(&str, &[(&str, &str)])] = &[
    (
        "Member",
        &[
            ("name", "This member's name, as --initial-cluster has it."),
            ("data-dir", "Where its data is; NAME.etcd if not given."),
            ("wal-dir", "Where its log is, if not below --data-dir."),
            ("keep-imported", "Keep the files of an etcd that is taken over beside ours."),
            ("listen-client-urls", "Where clients are served."),
            ("listen-client-http-urls", "Where HTTP is served to clients, apart from gRPC."),
            ("listen-metrics-urls", "Where health and metrics are served besides."),
            ("listen-peer-urls", "Where other members are served."),
            ("heartbeat-interval", "Milliseconds between two heartbeats of a leader."),
            ("election-timeout", "Milliseconds without a leader before an election."),
            ("initial-election-tick-advance", "Shorten the wait for a first election."),
            ("snapshot-count", "Entries of the log between two snapshots."),
            ("snapshot-catchup-entries", "Entries kept after a snapshot for slow followers."),
            ("quota-backend-bytes", "Live bytes above which nothing is written; 0 is 2 GiB."),
            ("max-txn-ops", "Operations in one transaction at most."),
            ("max-request-bytes", "Bytes of one request at most."),
            ("max-in-flight-bytes", "Bytes that requests and answers under way may hold; 0: a quarter of memory."),
            ("max-concurrent-streams", "Streams of one client connection at most."),
            ("grpc-keepalive-min-time", "Between two pings of a client at least."),
            ("grpc-keepalive-interval", "Between two pings to an idle client; 0 sends none."),
            ("grpc-keepalive-timeout", "How long such a ping may stay unanswered."),
            ("watch-progress-notify-interval", "Between two progress notifications to a watch."),
            ("max-snapshots", "Snapshot files kept."),
            ("max-wals", "Log files kept."),
            ("memory-mlock", "Keep the store in memory."),
            ("socket-reuse-port", "Let several processes listen on one port."),
            ("socket-reuse-address", "Listen on a port that is in TIME_WAIT."),
            ("raft-read-timeout", "How long a read from a peer may take."),
            ("raft-write-timeout", "How long a write to a peer may take."),
        ],
    ),
    (
        "Cluster",
        &[
            ("initial-cluster", "Its first members: NAME=PEER_URL,..."),
            ("initial-cluster-state", "new, or existing to join a cluster that runs."),
            ("initial-cluster-token", "Tells this cluster from others that begin alike."),
            ("initial-advertise-peer-urls", "Where other members reach this one."),
            ("advertise-client-urls", "Where clients reach this member."),
            ("pre-vote", "Ask whether an election could be won before calling it."),
            ("strict-reconfig-check", "Refuse member changes that would cost the quorum."),
            ("max-learners", "Learners at a time at most."),
            ("auto-compaction-mode", "periodic or revision."),
            ("auto-compaction-retention", "How much history it leaves: a time, or revisions."),
            ("force-new-cluster", "Make a cluster of this member alone out of its data."),
            ("discovery-token", "Token of the discovery service."),
            ("discovery-endpoints", "Endpoints of the discovery service."),
            ("discovery-dial-timeout", "How long connecting to it may take."),
            ("discovery-request-timeout", "How long a request to it may take."),
            ("discovery-keepalive-time", "Between two pings to it."),
            ("discovery-keepalive-timeout", "How long such a ping may stay unanswered."),
            ("discovery-insecure-transport", "Speak to it without TLS."),
            ("discovery-insecure-skip-tls-verify", "Believe any certificate of it."),
            ("discovery-cert", "Certificate shown to it."),
            ("discovery-key", "Key of that certificate."),
            ("discovery-cacert", "Authorities it is checked against."),
            ("discovery-user", "User name there."),
            ("discovery-password", "Password there."),
            ("discovery-fallback", "What to do when it fails: exit or proxy."),
            ("discovery-srv", "Domain whose SRV records name the members."),
            ("discovery-srv-name", "Suffix of the name asked for there."),
        ],
    ),
    (
        "TLS for clients",
        &[
            ("cert-file", "Certificate of this server."),
            ("key-file", "Its key."),
            ("client-cert-auth", "Demand certificates of clients."),
            ("trusted-ca-file", "Authorities whose clients are believed; demands certificates."),
            ("client-crl-file", "Certificates of clients that are revoked."),
            ("client-cert-allowed-hostname", "Host names of clients that are let in."),
            ("client-cert-file", "Certificate this server shows when it is a client itself."),
            ("client-key-file", "Its key."),
            ("auto-tls", "Make a certificate if none is given."),
            ("cors", "Origins that browsers may come from; * is any."),
            ("host-whitelist", "Hosts that plain HTTP requests may name; * is any."),
        ],
    ),
    (
        "TLS between members",
        &[
            ("peer-cert-file", "Certificate shown to other members."),
            ("peer-key-file", "Its key."),
            ("peer-client-cert-auth", "Demand certificates of other members."),
            ("peer-trusted-ca-file", "Authorities whose members are believed; demands certificates."),
            ("peer-crl-file", "Certificates of members that are revoked."),
            ("peer-cert-allowed-cn", "Common names of members that are let in."),
            ("peer-cert-allowed-hostname", "Host names of members that are let in."),
            ("peer-client-cert-file", "Certificate shown when dialling other members."),
            ("peer-client-key-file", "Its key."),
            ("peer-skip-client-san-verification", "Believe a member's certificate from any address."),
            ("peer-auto-tls", "Make a certificate if none is given."),
            ("self-signed-cert-validity", "Years that such a certificate is good for."),
        ],
    ),
    (
        "TLS of both",
        &[
            ("cipher-suites", "Suites of TLS 1.2, by Go's names; all that are safe if not given."),
            ("tls-min-version", "TLS1.2 or TLS1.3."),
            ("tls-max-version", "TLS1.2 or TLS1.3; any if not given."),
        ],
    ),
    (
        "Users",
        &[
            ("auth-token", "simple, or jwt with its options."),
            ("auth-token-ttl", "Seconds that a simple token lasts."),
            ("bcrypt-cost", "What hashing a password costs, 4 to 31."),
        ],
    ),
    (
        "Logs, metrics, traces",
        &[
            ("logger", "zap."),
            ("log-outputs", "stderr, stdout, default, or paths of files."),
            ("log-level", "debug, info, warn or error."),
            ("log-format", "json or console."),
            ("enable-log-rotation", "Begin new log files as they grow."),
            ("log-rotation-config-json", "When, and how many are kept."),
            ("metrics", "basic, or extensive with histograms of requests."),
            ("enable-pprof", "Serve profiles below /debug/pprof."),
            ("warning-apply-duration", "Log applies that take longer."),
            ("warning-unary-request-duration", "Log requests that take longer."),
            ("enable-distributed-tracing", "Send traces."),
            ("distributed-tracing-address", "Where to."),
            ("distributed-tracing-service-name", "The name of the service in them."),
            ("distributed-tracing-instance-id", "The id of this member in them."),
            ("distributed-tracing-sampling-rate", "How many of a million requests."),
        ],
    ),
    (
        "Rare and dangerous",
        &[
            ("config-file", "Read flags from a YAML file, and no others."),
            ("feature-gates", "Turn features on or off: NAME=true,..."),
            ("corrupt-check-time", "Between two comparisons of members' data; 0 is never."),
            ("compact-hash-check-time", "Between two comparisons of hashes after compactions."),
            ("enable-grpc-gateway", "Serve JSON below /v3."),
            ("unsafe-no-fsync", "Do not sync to disk: loses data."),
            ("downgrade-check-time", "Between two looks whether a downgrade is done."),
            ("backend-batch-interval", "How long bbolt gathers writes."),
            ("backend-batch-limit", "How many of them."),
            ("backend-bbolt-freelist-type", "How bbolt keeps free pages."),
            ("bootstrap-defrag-threshold-megabytes", "Free space above which a start defragments."),
            ("compaction-batch-limit", "Revisions that a compaction deletes at once."),
            ("compaction-sleep-interval", "Its pauses."),
            ("version", "Show the versions, and end."),
        ],
    ),
];

/// The whole page.
pub fn text() -> String {
    let mut text = format!("{USAGE}{NOTES}");
    for (title, flags) in GROUPS {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{title}:\n");
        for (name, what) in *flags {
            let Some(flag) = FLAGS.iter().find(|flag| flag.name == *name) else { continue };
            let _ = write!(text, "  --{name} {}\n      {what}{}\n", default(flag), note(flag));
        }
    }
    text
}

fn default(flag: &Flag) -> String {
    match flag.kind {
        Kind::Text | Kind::Urls => format!("'{}'", flag.default),
        Kind::Bool | Kind::Int | Kind::Uint | Kind::Duration => flag.default.to_owned(),
    }
}

fn note(flag: &Flag) -> String {
    match flag.support {
        Support::Later => " (not yet)".to_owned(),
        Support::NoEffect(why) => format!(" (no effect: {why})"),
        Support::Full | Support::Ignored => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_has_its_line_once() {
        let mut described: Vec<&str> = GROUPS.iter().flat_map(|(_, flags)| *flags).map(|(name, _)| *name).collect();
        described.sort_unstable();
        let mut flags: Vec<&str> =
            FLAGS.iter().filter(|flag| flag.support != Support::Ignored).map(|flag| flag.name).collect();
        flags.sort_unstable();
        assert_eq!(described, flags);
    }
}
