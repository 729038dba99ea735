//! Go reads our files: a snapshot through `etcdutl`, a cluster started from it, and a write-ahead log.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::go::{self, Judge};
use crate::member::{Cluster, Restored};
use crate::run::{self, Result, Scratch};

const KEYS: usize = 2_000;

pub fn run(server: &Path) -> Result {
    go::build(&[Judge::Etcdctl, Judge::Etcdutl, Judge::Etcd37, Judge::Etcd36, Judge::Boltcheck, Judge::Walcheck])?;
    let scratch = Scratch::new("files")?;
    let program = scratch.dir.join("etcd");
    run::place(server, &program)?;
    let mut cluster = Cluster::start(&program, 1, &scratch.dir.join("dolmen"), &["--snapshot-count=500"])?;
    fill(&cluster)?;

    let snapshot = scratch.dir.join("snapshot.db");
    let snapshot_text = snapshot.display().to_string();
    run::text(&mut etcdctl(&cluster, &["snapshot", "save", &snapshot_text]))?;
    let ours = hash(&cluster)?;
    let status =
        run::text(Command::new(Judge::Etcdutl.path()).args(["snapshot", "status", "-w", "json", &snapshot_text]))?;
    println!("etcdutl snapshot status: {}", status.trim());
    let revision = number(&status, "revision")?;
    if revision != ours.revision {
        return Err(format!("the snapshot is of revision {revision}, the server at {}", ours.revision));
    }
    println!("boltcheck: {}", run::text(Command::new(Judge::Boltcheck.path()).arg(&snapshot))?.trim());
    run::count(2, 0);

    // Not the last release: etcd refuses what a newer one has written.
    let data = scratch.dir.join("restored.etcd");
    let restored = Restored::new()?;
    let mut restore = Command::new(Judge::Etcdutl.path());
    restore.args(["snapshot", "restore", &snapshot_text]).arg("--data-dir").arg(&data);
    restore.args(["--name", &restored.name, "--initial-advertise-peer-urls", &restored.peer]);
    restore.arg(format!("--initial-cluster={}={}", restored.name, restored.peer));
    run::text(&mut restore)?;
    let program = scratch.dir.join("etcd-3.7.3");
    run::place(&Judge::Etcd37.path(), &program)?;
    let mut theirs = Cluster::start_on(&program, &data, &restored)?;
    let found = hash(&theirs)?;
    theirs.stop();
    if found != ours {
        return Err(format!("Go etcd, restored from our snapshot, says {found:?}; we say {ours:?}"));
    }
    println!("Go etcd, restored from the snapshot, has the same hash {} at revision {}", found.hash, found.revision);
    run::count(1, 0);

    cluster.stop();
    let wal = cluster.data(0).join("member/wal");
    println!("walcheck: {}", run::text(Command::new(Judge::Walcheck.path()).arg(&wal))?.trim());
    run::count(1, 0);
    Ok(())
}

/// Keys, a lease, deletions and a compaction, so that there is something to hash on both sides of it.
fn fill(cluster: &Cluster) -> Result {
    put_many(&cluster.endpoints(), KEYS, 100)?;
    put_many(&cluster.endpoints(), KEYS / 2, 60)?;
    let granted = run::text(&mut etcdctl(cluster, &["lease", "grant", "6000"]))?;
    let lease = granted.split(' ').nth(1).unwrap_or_default().to_owned();
    run::text(&mut etcdctl(cluster, &["put", "leased", "value", &format!("--lease={lease}")]))?;
    run::text(&mut etcdctl(cluster, &["del", "k00000100", "k00000200"]))?;
    let middle = hash(cluster)?.revision - 3;
    run::text(&mut etcdctl(cluster, &["compact", "--physical", &middle.to_string()]))?;
    run::text(&mut etcdctl(cluster, &["put", "last", "value"])).map(|_| ())
}

fn etcdctl(cluster: &Cluster, arguments: &[&str]) -> Command {
    let mut command = Command::new(Judge::Etcdctl.path());
    command.arg("--endpoints").arg(cluster.endpoints()).arg("--command-timeout=60s").args(arguments);
    command
}

#[derive(Debug, PartialEq, Eq)]
struct Hash {
    hash: i64,
    revision: i64,
    compact_revision: i64,
}

fn hash(cluster: &Cluster) -> Result<Hash> {
    let json = run::text(&mut etcdctl(cluster, &["endpoint", "hashkv", "-w", "json"]))?;
    Ok(Hash {
        hash: number(&json, "hash")?,
        revision: number(&json, "revision")?,
        // Left out when it is 0.
        compact_revision: number(&json, "compact_revision").unwrap_or(0),
    })
}

/// The first number behind a name in JSON.
fn number(json: &str, name: &str) -> Result<i64> {
    let digits = json.split_once(&format!("\"{name}\":")).map_or("", |(_, rest)| rest).trim_start();
    let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().map_err(|_| format!("no {name} in {json}"))
}

/// Puts `count` keys `k00000000`, ... of `size` bytes each, a hundred in one transaction.
fn put_many(endpoints: &str, count: usize, size: usize) -> Result {
    let value = "v".repeat(size);
    for first in (0..count).step_by(100) {
        let puts: String = (first..count.min(first + 100)).map(|at| format!("put k{at:08} {value}\n")).collect();
        let mut etcdctl = Command::new(Judge::Etcdctl.path());
        etcdctl.args(["--endpoints", endpoints, "txn"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = run::spawn(&mut etcdctl)?;
        if let Some(mut input) = child.stdin.take() {
            let text = format!("\n{puts}\n\n");
            input.write_all(text.as_bytes()).map_err(|error| format!("etcdctl txn: {error}"))?;
        }
        let status = child.wait().map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("etcdctl txn: {status}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_name() {
        let json = r#"{"header":{"revision":12},"hash":345,"compact_revision":6}"#;
        assert_eq!(
            (number(json, "revision"), number(json, "hash"), number(json, "compact_revision")),
            (Ok(12), Ok(345), Ok(6))
        );
        assert!(number(json, "none").is_err());
    }
}
