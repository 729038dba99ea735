//! The table of etcdutl against what etcdutl 3.7.3 printed.
//!
//! `testdata/etcdutl.golden` was written by running Go's etcdutl: `######## COMMAND LINE`, the exit code, stdout,
//! stderr. No line of it gets as far as doing something, so the commands here do nothing.

use crate::{Args, Call, Command, Failure, Flag, Help, Tool, completion, output};

fn nothing(_: &Call) -> Result<(), Failure> {
    Ok(())
}

static DEFRAG: Command = Command {
    usage: "defrag",
    short: "Defragments the storage of the etcd",
    flags: &[Flag::text("data-dir", "", "Required. Defragments a data directory not in use by etcd.").required().dir()],
    run: Some(nothing),
    ..Command::NEW
};

static RESTORE: Command = Command {
    usage: "restore <filename> --data-dir {output dir} [options]",
    short: "Restores an etcd member snapshot to an etcd directory",
    flags: &[
        Flag::text("data-dir", "", "Path to the output data directory").dir(),
        Flag::text("wal-dir", "", "Path to the WAL directory (use --data-dir if none given)").dir(),
        Flag::text(
            "initial-cluster",
            "default=http://localhost:2380",
            "Initial cluster configuration for restore bootstrap",
        ),
        Flag::text(
            "initial-cluster-token",
            "etcd-cluster",
            "Initial cluster token for the etcd cluster during restore bootstrap",
        ),
        Flag::text(
            "initial-advertise-peer-urls",
            "http://localhost:2380",
            "List of this member's peer URLs to advertise to the rest of the cluster",
        ),
        Flag::text("name", "default", "Human-readable name for this member"),
        Flag::boolean(
            "skip-hash-check",
            "Ignore snapshot integrity hash value (required if copied from data directory)",
        ),
        Flag::uint64(
            "initial-memory-map-size",
            "10737418240",
            "Initial memory map size of the database in bytes. It uses the default value if not defined or defined to 0",
        ),
        Flag::uint64("bump-revision", "0", "How much to increase the latest revision after restore"),
        Flag::boolean(
            "mark-compacted",
            "Mark the latest revision after restore as the point of scheduled compaction (required if --bump-revision > 0, disallowed otherwise)",
        ),
    ],
    run: Some(nothing),
    ..Command::NEW
};

static STATUS: Command = Command {
    usage: "status <filename>",
    short: "Gets backend snapshot status of a given file",
    run: Some(nothing),
    ..Command::NEW
};

static SNAPSHOT: Command = Command {
    usage: "snapshot <subcommand>",
    short: "Manages etcd node snapshots",
    commands: &[&RESTORE, &STATUS],
    ..Command::NEW
};

static HASHKV: Command = Command {
    usage: "hashkv <filename>",
    short: "Prints the KV history hash of a given file",
    flags: &[Flag::int64("rev", "0", "maximum revision to hash (default: latest revision)")],
    args: Args::Exactly(1),
    run: Some(nothing),
    ..Command::NEW
};

static VERSION: Command =
    Command { usage: "version", short: "Prints the version of etcdutl", run: Some(nothing), ..Command::NEW };

static COMPLETION: Command = Command {
    usage: "completion [bash|zsh|fish|powershell]",
    short: "Generate completion script",
    args: Args::ExactlyValid(1),
    valid_args: completion::SHELLS,
    no_flags_in_usage: true,
    run: Some(completion::run),
    ..Command::NEW
};

static MIGRATE: Command = Command {
    usage: "migrate",
    short: "Migrates schema of etcd data dir files to make them compatible with different etcd version",
    flags: &[
        Flag::text("data-dir", "", "Path to the etcd data dir").required().dir(),
        Flag::text(
            "target-version",
            "",
            "Target etcd version to migrate contents of data dir. Minimal value 3.5. Format \"X.Y\" for example 3.6.",
        )
        .required(),
        Flag::boolean("force", "Ignore migration failure and forcefully override storage version. Not recommended."),
    ],
    run: Some(nothing),
    ..Command::NEW
};

static ROOT: Command = Command {
    usage: "etcdutl",
    short: "An administrative command line tool for etcd3.",
    suggest_for: &["etcdutl"],
    persistent: &[
        Flag::duration("timeout", "10s", "time to wait to obtain a file lock on db file, 0 to block indefinitely"),
        Flag::text("write-out", "simple", "set the output format (fields, json, protobuf, simple, table)")
            .short('w')
            .choices(&["fields", "json", "protobuf", "simple", "table"]),
    ],
    commands: &[&DEFRAG, &SNAPSHOT, &HASHKV, &VERSION, &COMPLETION, &MIGRATE],
    ..Command::NEW
};

static TOOL: Tool = Tool { prefix_matching: true, help: Help::Usage, repeat_error: true, ..Tool::new(&ROOT) };

/// Parted by spaces; `'...'` holds a word that is empty or has back quotes.
fn words(line: &str) -> Vec<String> {
    line.split(' ').skip(1).map(|word| word.trim_matches('\'').to_owned()).collect()
}

#[test]
fn the_table_has_no_faults() {
    assert_eq!(ROOT.faults(), Vec::<String>::new());
}

#[test]
fn as_etcdutl_answers() {
    let golden = include_str!("testdata/etcdutl.golden");
    let mut wrong = Vec::new();
    let mut count = 0;
    for block in golden.split("######## ").skip(1) {
        let Some((line, expected)) = block.split_once('\n') else { continue };
        let (code, out, err) = output::captured(|| TOOL.run(&words(line)));
        let found = format!("# exit {code}\n# stdout\n{out}# stderr\n{err}\n");
        if found != expected {
            wrong.push(format!("{line}\n--- etcdutl\n{expected}--- ours\n{found}"));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{} of {count} command lines differ:\n\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 80, "only {count} command lines");
}
