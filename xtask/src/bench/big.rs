//! Large stores, one member.
//!
//! `memory`: what a member holds for itself with so many keys, and how long it takes to come back.
//! `store`: every key written twice, so that half of the store is superseded; then it is compacted, saved and
//! defragmented while small puts go on at a steady rate, and what they felt is the result.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::lean::{self, Probe};
use super::results::Figures;
use super::{Bench, QUOTA};
use crate::go::Judge;
use crate::member::{Cluster, disk_mib};
use crate::run::{self, Result};

pub const NAMES: [&str; 2] = ["memory", "store"];
pub const VALUE_BYTES: u64 = 1024;

/// The steps of `store`, in order. `snapshot` goes to memory, as a backup goes to another machine; `snapshot here` is a
/// file of 2 GB written to the disk that the server needs for its log, which no server can do much about.
pub const STEPS: [&str; 4] = ["compact", "snapshot", "defragment", "snapshot here"];
/// Those that the bar is about.
const OWN_STEPS: usize = 3;

/// How long the probe goes on after a step: a server may answer first and do the work behind.
const AFTERMATH: Duration = Duration::from_secs(3);

/// # Errors
/// A server or a tool fails, or a put did.
pub fn measure(bench: &Bench, side: usize, name: &str) -> Result<Figures> {
    if name == "memory" { memory(bench, side) } else { store(bench, side) }
}

fn memory(bench: &Bench, side: usize) -> Result<Figures> {
    let mut figures = Figures::new();
    let mut cluster = Cluster::start(&bench.servers[side], 1, &bench.data(), &[QUOTA])?;
    let keys = bench.request.keys;
    let flags = [
        "--clients=1000".to_owned(),
        format!("--total={keys}"),
        format!("--keys={keys}"),
        "--value-size=1024".to_owned(),
    ];
    let load = lean::run(bench, &cluster, "put", &flags)?;
    for name in ["per_second", "p99_ms", "max_ms", "server_us"] {
        figures.insert(format!("load_{name}"), load[name]);
    }
    // What is left once collectors and background work have had their time.
    std::thread::sleep(Duration::from_secs(2));
    figures.insert("anonymous_mib".into(), cluster.anonymous_mib());
    figures.insert("disk_mib".into(), disk_mib(cluster.data(0)));
    cluster.kill();
    figures.insert("restart_killed_s".into(), cluster.restart()?.as_secs_f64());
    cluster.stop();
    figures.insert("restart_stopped_s".into(), cluster.restart()?.as_secs_f64());
    figures.insert("restarted_anonymous_mib".into(), cluster.anonymous_mib());
    cluster.stop();
    Ok(figures)
}

fn store(bench: &Bench, side: usize) -> Result<Figures> {
    let mut figures = Figures::new();
    let mut cluster = Cluster::start(&bench.servers[side], 1, &bench.data(), &[QUOTA])?;
    for _ in 0..2 {
        lean::fill(bench, &cluster, bench.request.keys, VALUE_BYTES)?;
    }
    figures.insert("disk_before_mib".into(), disk_mib(cluster.data(0)));
    let endpoints = cluster.endpoints();
    let revision = revision(&endpoints)?.to_string();
    // What the load left to be written is not to be blamed on the steps.
    rustix::fs::sync();
    let away = Path::new("/dev/shm").join(format!("dolmen-bench-{}", std::process::id()));
    let (away, here) = (away.display().to_string(), bench.scratch.tmp().join("snapshot.db").display().to_string());
    felt(&mut figures, "idle", bench, &cluster, || {
        std::thread::sleep(Duration::from_secs(3));
        Ok(())
    })?;
    let commands: [&[&str]; STEPS.len()] = [
        &["compact", "--physical", &revision],
        &["snapshot", "save", &away],
        &["defrag"],
        &["snapshot", "save", &here],
    ];
    for (step, command) in STEPS.into_iter().zip(commands) {
        let outcome =
            felt(&mut figures, step, bench, &cluster, || run::text(&mut etcdctl(&endpoints, command)).map(|_| ()));
        if step == "snapshot" {
            // Gone from memory whatever came of it; it may not be there.
            let _absent = std::fs::remove_file(&away);
        }
        outcome?;
    }
    for (name, of) in [("slowest_ms", "max_ms"), ("failed_puts", "failed")] {
        let all = STEPS.iter().take(OWN_STEPS).filter_map(|step| figures.get(&format!("{step}_{of}")));
        let worst = all.copied().fold(0.0, f64::max);
        figures.insert(name.into(), worst);
    }
    figures.insert("disk_after_mib".into(), disk_mib(cluster.data(0)));
    cluster.stop();
    Ok(figures)
}

/// Does one thing with a probe around it.
fn felt(figures: &mut Figures, step: &str, bench: &Bench, cluster: &Cluster, work: impl FnOnce() -> Result) -> Result {
    let probe = Probe::start(bench, cluster)?;
    std::thread::sleep(Duration::from_secs(1));
    let begin = Instant::now();
    let outcome = work();
    figures.insert(format!("{step}_s"), begin.elapsed().as_secs_f64());
    std::thread::sleep(AFTERMATH);
    let probe = probe.stop().map_err(|why| format!("puts during {step}: {why}"))?;
    for name in ["p50_ms", "p99_ms", "max_ms", "failed"] {
        figures.insert(format!("{step}_{name}"), probe[name]);
    }
    outcome.map_err(|why| format!("{step}: {why}"))
}

pub fn etcdctl(endpoints: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(Judge::Etcdctl.path());
    command.args(["--endpoints", endpoints, "--command-timeout=300s"]).args(arguments);
    command
}

fn revision(endpoints: &str) -> Result<u64> {
    let json = run::text(&mut etcdctl(endpoints, &["endpoint", "status", "-w", "json"]))?;
    let value: serde_json::Value = serde_json::from_str(&json).map_err(|error| format!("{json}: {error}"))?;
    value[0]["Status"]["header"]["revision"].as_u64().ok_or_else(|| format!("no revision in {json}"))
}
