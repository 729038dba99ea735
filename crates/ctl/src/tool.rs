//! The table of etcdctl: its root, its global flags and the order of its commands.

use dolmen_cli::{Command, Flag, Tool};

use crate::commands::{
    alarm, auth, check, compaction, completion, defrag, del, downgrade, elect, endpoint, get, lease, lock, make_mirror,
    member, move_leader, options, put, role, snapshot, txn, user, version, watch,
};

/// The release of etcd whose tool this is; `etcdctl version` says it, and scripts look at it.
pub const VERSION: &str = "3.7.3";
/// Its API's version.
pub const API_VERSION: &str = "3.7";

/// Id of the group of commands that read and write keys.
pub const KV: &str = "kv";
/// Id of the group of commands about members and their stores.
pub const CLUSTER_MAINTENANCE: &str = "cluster maintenance";
/// Id of the group of locks and elections.
pub const CONCURRENCY: &str = "concurrency";
/// Id of the group of users and roles.
pub const AUTHENTICATION: &str = "authentication";
/// Id of the group of everything else.
pub const UTILITY: &str = "utility";

/// etcdctl.
pub static TOOL: Tool = Tool {
    env_prefix: Some("ETCDCTL_"),
    prefix_matching: true,
    footer: "Use \"etcdctl options\" for a list of global command-line options (applies to all commands).",
    help_group: UTILITY,
    hide_root_help: true,
    ..Tool::new(&ROOT)
};

/// The root of etcdctl's commands.
pub static ROOT: Command = Command {
    usage: "etcdctl",
    short: "A simple command line client for etcd3.",
    suggest_for: &["etcdctl"],
    groups: &[
        (KV, "Key-value commands"),
        (CLUSTER_MAINTENANCE, "Cluster maintenance commands"),
        (CONCURRENCY, "Concurrency commands"),
        (AUTHENTICATION, "Authentication commands"),
        (UTILITY, "Utility commands"),
    ],
    persistent: GLOBAL_FLAGS,
    commands: &[
        &get::COMMAND,
        &put::COMMAND,
        &del::COMMAND,
        &txn::COMMAND,
        &compaction::COMMAND,
        &alarm::COMMAND,
        &defrag::COMMAND,
        &endpoint::COMMAND,
        &move_leader::COMMAND,
        &watch::COMMAND,
        &version::COMMAND,
        &lease::COMMAND,
        &member::COMMAND,
        &snapshot::COMMAND,
        &make_mirror::COMMAND,
        &lock::COMMAND,
        &elect::COMMAND,
        &auth::COMMAND,
        &user::COMMAND,
        &role::COMMAND,
        &check::COMMAND,
        &completion::COMMAND,
        &downgrade::COMMAND,
        &options::COMMAND,
    ],
    ..Command::NEW
};

/// The flags every command takes, in the order etcdctl declares them. Only `etcdctl options` shows them.
pub static GLOBAL_FLAGS: &[Flag] = &[
    Flag::list("endpoints", "127.0.0.1:2379", "gRPC endpoints").hidden(),
    Flag::boolean("debug", "enable client-side debug logging").hidden(),
    Flag::text("write-out", "simple", "set the output format (fields, json, protobuf, simple, table)")
        .short('w')
        .choices(&["fields", "json", "protobuf", "simple", "table"])
        .hidden(),
    Flag::boolean("hex", "print byte strings as hex encoded strings").hidden(),
    Flag::duration("dial-timeout", "2s", "dial timeout for client connections").hidden(),
    Flag::duration("command-timeout", "5s", "timeout for short running command (excluding dial timeout)").hidden(),
    Flag::duration("keepalive-time", "2s", "keepalive time for client connections").hidden(),
    Flag::duration("keepalive-timeout", "6s", "keepalive timeout for client connections").hidden(),
    Flag::int(
        "max-request-bytes",
        "0",
        "client-side request send limit in bytes (if 0, it defaults to 2.0 MiB (2 * 1024 * 1024).)",
    )
    .hidden(),
    Flag::int(
        "max-recv-bytes",
        "0",
        "client-side response receive limit in bytes (if 0, it defaults to \"math.MaxInt32\")",
    )
    .hidden(),
    Flag::boolean("insecure-transport", "disable transport security for client connections").default("true").hidden(),
    Flag::boolean("insecure-discovery", "accept insecure SRV records describing cluster endpoints")
        .default("true")
        .hidden(),
    Flag::boolean(
        "insecure-skip-tls-verify",
        "skip server certificate verification (CAUTION: this option should be enabled only for testing purposes)",
    )
    .hidden(),
    Flag::text("cert", "", "identify secure client using this TLS certificate file").hidden(),
    Flag::text("key", "", "identify secure client using this TLS key file").hidden(),
    Flag::text("cacert", "", "verify certificates of TLS-enabled secure servers using this CA bundle").hidden(),
    Flag::text(
        "auth-jwt-token",
        "",
        "JWT token used for authentication (if this option is used, --user and --password should not be set)",
    )
    .hidden(),
    Flag::text("user", "", "username[:password] for authentication (prompt if password is not supplied)").hidden(),
    Flag::text(
        "password",
        "",
        "password for authentication (if this option is used, --user option shouldn't include password)",
    )
    .hidden(),
    Flag::text("discovery-srv", "", "domain name to query for SRV records describing cluster endpoints")
        .short('d')
        .hidden(),
    Flag::text("discovery-srv-name", "", "service name to query when using DNS discovery").hidden(),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_no_faults() {
        assert_eq!(ROOT.faults(), Vec::<String>::new());
        assert_eq!(GLOBAL_FLAGS.len(), 21);
        assert!(GLOBAL_FLAGS.iter().all(|flag| flag.hidden), "`options` is the one place that shows them");
    }
}
