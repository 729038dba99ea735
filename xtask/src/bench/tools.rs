//! `cargo xtask bench tools`: etcdctl and etcdutl, ours and Go's 3.7.3, on the same files and the same servers.
//!
//! Ours is the server's program under the tools' names, since that is how it is used. What both print is compared as
//! well: a tool that is quick because it does something else would not count.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::parts::{Bar, Limit};
use super::results::Figures;
use super::{Bench, QUOTA, lean};
use crate::go::Judge;
use crate::member::{self, Cluster};
use crate::run::{self, Result};

/// Which server is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Server {
    Dolmen,
    Go,
}

enum What {
    Status,
    Restore,
    /// One key, over and over.
    Get(Server),
    /// All keys below a prefix.
    Prefix(Server),
}

pub struct Part {
    pub name: &'static str,
    pub what: &'static str,
    kind: What,
    pub bars: &'static [Bar],
}

const fn share(figure: &'static str, limit: f64) -> Bar {
    Bar { figure, limit: Limit::Share(limit) }
}

const OF_FILES: &[Bar] = &[share("wall_s", 0.5), share("peak_mib", 0.25)];
const OF_CALLS: &[Bar] = &[share("wall_s", 0.5)];

pub const PARTS: &[Part] = &[
    Part { name: "status", what: "`etcdutl snapshot status`, 2 GB", kind: What::Status, bars: OF_FILES },
    Part { name: "restore", what: "`etcdutl snapshot restore`, 2 GB", kind: What::Restore, bars: OF_FILES },
    Part { name: "get", what: "`etcdctl get KEY`, of Dolmen", kind: What::Get(Server::Dolmen), bars: OF_CALLS },
    Part { name: "get-go", what: "`etcdctl get KEY`, of etcd 3.7.3", kind: What::Get(Server::Go), bars: OF_CALLS },
    Part {
        name: "prefix",
        what: "`etcdctl get --prefix`, 100,000 keys, of Dolmen",
        kind: What::Prefix(Server::Dolmen),
        bars: OF_CALLS,
    },
    Part {
        name: "prefix-go",
        what: "`etcdctl get --prefix`, 100,000 keys, of etcd 3.7.3",
        kind: What::Prefix(Server::Go),
        bars: OF_CALLS,
    },
];

const GETS: u32 = 200;
const PREFIX_KEYS: u64 = 100_000;
const PREFIX_VALUE_BYTES: u64 = 100;

/// The snapshot: so many keys, written twice, in Go etcd, which leaves a file of 2 GB.
const SNAPSHOT_KEYS: u64 = 800_000;

/// Measures the parts that were asked for and prints their ratios.
///
/// # Errors
/// A tool fails, or the two print something else.
pub fn run(bench: &mut Bench, server: &Path) -> Result {
    let links = bench.scratch.dir.join("tools");
    run::make_dir(&links)?;
    for name in ["etcdctl", "etcdutl"] {
        run::place(server, &links.join(name))?;
    }
    for part in PARTS {
        if !bench.request.wanted(part.name) {
            continue;
        }
        let key = key(part);
        // What the first said, and the second must say as well.
        let mut said: Option<Vec<u8>> = None;
        bench.rounds(&key, |bench, side| {
            let tool = |name: &str, judge: Judge| if side == 0 { links.join(name) } else { judge.path() };
            let (figures, now) = match part.kind {
                What::Status => status(bench, &tool("etcdutl", Judge::Etcdutl))?,
                What::Restore => restore(bench, &tool("etcdutl", Judge::Etcdutl))?,
                What::Get(server) => get(bench, &tool("etcdctl", Judge::Etcdctl), server)?,
                What::Prefix(server) => prefix(bench, &tool("etcdctl", Judge::Etcdctl), server)?,
            };
            match said.get_or_insert_with(|| now.clone()) == &now {
                true => Ok(figures),
                false => Err("the two tools print something else".into()),
            }
        })?;
        if let Some(part) = bench.results.get(&key) {
            for figure in ["wall_s", "cpu_s", "peak_mib"] {
                if let (Some(ours), Some(theirs)) = (part.median(0, figure), part.median(1, figure)) {
                    println!("{key:22} {figure:9} {ours:.4} of {theirs:.4}: {:.2}", ours / theirs);
                }
            }
        }
    }
    Ok(())
}

/// Where a part's rounds are kept.
pub fn key(part: &Part) -> String {
    format!("{}/tools", part.name)
}

fn status(bench: &Bench, etcdutl: &Path) -> Result<(Figures, Vec<u8>)> {
    let mut command = Command::new(etcdutl);
    command.args(["snapshot", "status"]).arg(snapshot(bench)?);
    let (figures, said) = watched(&mut command)?;
    Ok((figures, said))
}

fn restore(bench: &Bench, etcdutl: &Path) -> Result<(Figures, Vec<u8>)> {
    let dir = bench.data();
    let mut command = Command::new(etcdutl);
    command.args(["snapshot", "restore"]).arg(snapshot(bench)?).arg("--data-dir").arg(&dir);
    let (figures, _log) = watched(&mut command)?;
    let db = dir.join("member/snap/db");
    match db.metadata() {
        Ok(file) if file.len() > 1 << 30 => Ok((figures, Vec::new())),
        _ => Err(format!("no database at {}", db.display())),
    }
}

/// The snapshot, made by Go etcd when it is not there yet. It stays, since making it takes a minute.
fn snapshot(bench: &Bench) -> Result<PathBuf> {
    let path = run::target().join("bench/snapshot.db");
    if path.exists() {
        return Ok(path);
    }
    if let Some(dir) = path.parent() {
        run::make_dir(dir)?;
    }
    println!("making a snapshot of 2 GB");
    let mut cluster = Cluster::start(&bench.servers[1], 1, &bench.scratch.tmp().join("source"), &[QUOTA])?;
    for _ in 0..2 {
        lean::fill(bench, &cluster, SNAPSHOT_KEYS, super::big::VALUE_BYTES)?;
    }
    let save = ["snapshot", "save", &path.display().to_string()];
    run::text(&mut super::big::etcdctl(&cluster.endpoints(), &save))?;
    cluster.stop();
    Ok(path)
}

fn server(bench: &Bench, server: Server) -> Result<Cluster> {
    // Below the scratch folder, so that it goes with it, and called `etcd` like the others.
    let program = match server {
        Server::Dolmen => bench.servers[0].clone(),
        Server::Go => {
            let dir = bench.scratch.dir.join("etcd37");
            run::make_dir(&dir)?;
            let at = dir.join("etcd");
            if !at.exists() {
                run::place(&Judge::Etcd37.path(), &at)?;
            }
            at
        }
    };
    Cluster::start(&program, 1, &bench.data(), &[QUOTA])
}

fn get(bench: &Bench, etcdctl: &Path, of: Server) -> Result<(Figures, Vec<u8>)> {
    let mut cluster = server(bench, of)?;
    lean::fill(bench, &cluster, 1_000, 64)?;
    let ask = || {
        let mut command = Command::new(etcdctl);
        command.args(["--endpoints", &cluster.endpoints(), "get", "load/000000000000000000000000500"]);
        command
    };
    let said = output(&mut ask())?;
    let (begin, cpu) = (Instant::now(), member::children_cpu_us());
    for _ in 0..GETS {
        quiet(&mut ask())?;
    }
    let figures = per_call(begin.elapsed(), member::children_cpu_us() - cpu, GETS);
    cluster.stop();
    Ok((figures, said))
}

fn prefix(bench: &Bench, etcdctl: &Path, of: Server) -> Result<(Figures, Vec<u8>)> {
    let mut cluster = server(bench, of)?;
    lean::fill(bench, &cluster, PREFIX_KEYS, PREFIX_VALUE_BYTES)?;
    let ask = || {
        let mut command = Command::new(etcdctl);
        command.args(["--endpoints", &cluster.endpoints(), "get", "--prefix", "load/"]);
        command
    };
    let said = output(&mut ask())?;
    const CALLS: u32 = 5;
    let (begin, cpu) = (Instant::now(), member::children_cpu_us());
    for _ in 0..CALLS {
        quiet(&mut ask())?;
    }
    let mut figures = per_call(begin.elapsed(), member::children_cpu_us() - cpu, CALLS);
    figures.insert("peak_mib".into(), watched(&mut ask())?.0["peak_mib"]);
    cluster.stop();
    Ok((figures, said))
}

fn per_call(wall: Duration, cpu_us: f64, calls: u32) -> Figures {
    let calls = f64::from(calls);
    Figures::from([("wall_s".to_owned(), wall.as_secs_f64() / calls), ("cpu_s".to_owned(), cpu_us / 1e6 / calls)])
}

/// Standard output of a tool that must succeed.
fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = run::output(command)?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!("`{}`: {}", run::shown(command), String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Runs a tool whose output nobody reads.
fn quiet(command: &mut Command) -> Result {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}`: {status}", run::shown(command))),
        Err(error) => Err(format!("`{}`: {error}", run::shown(command))),
    }
}

/// Runs a tool, and watches its memory until it ends. What it prints must be short.
fn watched(command: &mut Command) -> Result<(Figures, Vec<u8>)> {
    let (begin, cpu) = (Instant::now(), member::children_cpu_us());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = run::spawn(command)?;
    let id = child.id();
    let waiting = std::thread::spawn(move || child.wait_with_output());
    let mut peak = 0.0f64;
    while !waiting.is_finished() {
        // The kernel keeps the peak itself; only what is touched after the last look is missed.
        peak = peak.max(member::peak_mib(id));
        std::thread::sleep(Duration::from_millis(1));
    }
    let wall = begin.elapsed();
    let output = waiting.join().map_err(|_| "waiting for a tool failed".to_owned())?;
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("`{}`: {}", run::shown(command), String::from_utf8_lossy(&output.stderr).trim()));
    }
    let mut figures = per_call(wall, member::children_cpu_us() - cpu, 1);
    figures.insert("peak_mib".into(), peak);
    Ok((figures, output.stdout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_tool_has_a_time_and_a_peak() {
        let (figures, said) = watched(Command::new("sh").args(["-c", "sleep 0.1; echo done"])).expect("figures");
        assert_eq!(said, b"done\n");
        assert!(figures["wall_s"] >= 0.1 && figures["peak_mib"] > 0.1, "{figures:?}");
        assert!(watched(&mut Command::new("false")).is_err());
    }
}
