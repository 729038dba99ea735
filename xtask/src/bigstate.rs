//! Large stores: memory, restart, and what a client feels while a store is compacted, copied and defragmented.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::bench::{QUOTA, Side, Tool, median};
use crate::go::Judge;
use crate::member::{Cluster, disk_mib};
use crate::run::{self, Result, Scratch};

const VALUE_BYTES: u64 = 1024;
/// The longest the probe runs; what follows the last step is quiet time.
const PROBE_SECONDS: u64 = 60;

/// What one server came to.
#[derive(Default)]
struct Big {
    load_per_second: f64,
    anonymous_mib: f64,
    restart_s: f64,
    /// The three steps together.
    steps_s: f64,
    disk_before_mib: f64,
    disk_after_mib: f64,
    put_p99_ms: f64,
    put_slowest_ms: f64,
}

/// Measures both sides; the second part of `docs/bench.md`.
///
/// # Errors
/// A server or a tool fails.
pub fn run(scratch: &Scratch, sides: &[Side; 2], keys: u64, rounds: usize) -> Result<String> {
    let mut all = [Vec::new(), Vec::new()];
    for round in 0..rounds.max(1) {
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            println!("big store, round {}, {}", round + 1, sides[side].name);
            let big = one(scratch, &sides[side], keys).map_err(|why| format!("{}: {why}", sides[side].name))?;
            scratch.clear();
            println!(
                "  {:.0} puts/s, anonymous {:.0} MiB, restart {:.2} s, steps {:.1} s, disk {:.0} -> {:.0} MiB, put p99 \
                 {:.1} ms, slowest {:.0} ms",
                big.load_per_second,
                big.anonymous_mib,
                big.restart_s,
                big.steps_s,
                big.disk_before_mib,
                big.disk_after_mib,
                big.put_p99_ms,
                big.put_slowest_ms
            );
            all[side].push(big);
        }
    }
    Ok(table(&all, keys))
}

fn one(scratch: &Scratch, side: &Side, keys: u64) -> Result<Big> {
    let mut big = Big::default();
    let dir = scratch.tmp().join("big");
    let mut cluster = Cluster::start(&side.program, 1, &dir, &[QUOTA])?;
    big.load_per_second = Tool { cluster: &cluster }.load(keys, VALUE_BYTES)?.per_second;
    big.anonymous_mib = cluster.anonymous_mib();
    cluster.kill();
    big.restart_s = cluster.restart()?.as_secs_f64();

    // The same keys again: half of the store is then superseded, and there is something to give back.
    Tool { cluster: &cluster }.load(keys, VALUE_BYTES)?;
    big.disk_before_mib = disk_mib(cluster.data(0));
    let endpoints = cluster.endpoints();
    let revision = revision(&endpoints)?;
    let snapshot = scratch.tmp().join("snapshot.db");
    let tool = Tool { cluster: &cluster };
    let (steps, probe) = std::thread::scope(|scope| {
        let steps = scope.spawn(|| -> Result<f64> {
            std::thread::sleep(Duration::from_secs(2));
            let begin = Instant::now();
            run::text(&mut etcdctl(&endpoints, &["compact", "--physical", &revision.to_string()]))?;
            run::text(etcdctl(&endpoints, &["snapshot", "save"]).arg(&snapshot))?;
            run::text(&mut etcdctl(&endpoints, &["defrag"]))?;
            Ok(begin.elapsed().as_secs_f64())
        });
        let probe = tool.probe(PROBE_SECONDS);
        (steps.join().unwrap_or_else(|_| Err("a step panicked".into())), probe)
    });
    big.steps_s = steps?;
    let probe = probe?;
    (big.put_p99_ms, big.put_slowest_ms) = (probe.p99_ms, probe.slowest_ms);
    big.disk_after_mib = disk_mib(cluster.data(0));
    cluster.stop();
    Ok(big)
}

fn etcdctl(endpoints: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(Judge::Etcdctl.path());
    command.args(["--endpoints", endpoints, "--command-timeout=300s"]).args(arguments);
    command
}

fn revision(endpoints: &str) -> Result<u64> {
    let json = run::text(&mut etcdctl(endpoints, &["endpoint", "status", "-w", "json"]))?;
    let digits = json.split_once("\"revision\":").map_or("", |(_, rest)| rest);
    let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().map_err(|_| format!("no revision in {json}"))
}

fn table(all: &[Vec<Big>; 2], keys: u64) -> String {
    type Row = (&'static str, fn(&Big) -> f64, fn(f64, f64) -> Option<(String, bool)>);
    let half = |ours: f64, theirs: f64| Some(("0.50".to_owned(), ours <= theirs / 2.0));
    let rows: [Row; 8] = [
        ("load, puts/s", |b| b.load_per_second, |_, _| None),
        ("anonymous memory, MiB", |b| b.anonymous_mib, half),
        ("restart after kill -9, s", |b| b.restart_s, half),
        ("compact, snapshot and defragment, s", |b| b.steps_s, |_, _| None),
        ("disk before, MiB", |b| b.disk_before_mib, |_, _| None),
        ("disk after, MiB", |b| b.disk_after_mib, |_, _| None),
        ("put p99 meanwhile, ms", |b| b.put_p99_ms, |_, _| None),
        ("slowest put meanwhile, ms", |b| b.put_slowest_ms, |ours, _| Some(("50 ms".to_owned(), ours <= 50.0))),
    ];
    let mut text = format!(
        "\n## {keys} keys of {VALUE_BYTES} bytes, one member\n\n\
         Loaded once for memory and restart, then rewritten, so that half of it is superseded; then compacted, saved and \
         defragmented while 200 small puts a second went on for {PROBE_SECONDS} s.\n\n\
         | | Dolmen | etcd 3.6.16 | ratio | bar |\n|---|---|---|---|---|\n"
    );
    for (name, field, bar) in rows {
        let [ours, theirs] = [0, 1].map(|side| median(all[side].iter().map(field).collect()));
        let bar = match bar(ours, theirs) {
            Some((bar, true)) => format!("{bar}: met"),
            Some((bar, false)) => format!("{bar}: **missed**"),
            None => String::new(),
        };
        text.push_str(&format!("| {name} | {ours:.2} | {theirs:.2} | {:.2} | {bar} |\n", ours / theirs));
    }
    text
}
