//! `cargo xtask bench`: Dolmen beside Go etcd 3.6.16, the faster of etcd's releases, with etcd's own load tool.
//!
//! Every workload runs on both in turn, in every round, each on a fresh cluster with the same flags on the same disk;
//! rounds change the order. The client shares the cores with the servers and holds the throughput of both down, so
//! the figure to compare is the servers' CPU per operation, all members summed. Only ratios of one run mean anything.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::bigstate;
use crate::go::{self, Judge};
use crate::interop;
use crate::member::{self, Cluster};
use crate::run::{self, Arguments, Result, Scratch};

/// Enough for the largest store here, on both servers.
pub const QUOTA: &str = "--quota-backend-bytes=8589934592";

/// One workload: its name, what it counts as operations, and the bar on CPU per operation, as Dolmen's share of Go's.
struct Work {
    name: &'static str,
    what: &'static str,
    operations: u64,
    load: fn(&Tool, u64) -> Result<Figures>,
    bar: Option<f64>,
}

const WORK: &[Work] = &[
    Work { name: "put-1", what: "put, 1 client, 256 B", operations: 2_000, load: |t, n| t.put(1, 256, n), bar: None },
    Work {
        name: "put-100",
        what: "put, 100 clients, 256 B",
        operations: 40_000,
        load: |t, n| t.put(100, 256, n),
        bar: Some(0.5),
    },
    Work {
        name: "put-1000",
        what: "put, 1,000 clients, 256 B",
        operations: 60_000,
        load: |t, n| t.put(1000, 256, n),
        bar: Some(0.5),
    },
    Work {
        name: "put-100-1k",
        what: "put, 100 clients, 1 KiB",
        operations: 40_000,
        load: |t, n| t.put(100, 1024, n),
        bar: Some(0.5),
    },
    Work {
        name: "lin-get",
        what: "linearizable get, 100 clients",
        operations: 60_000,
        load: |t, n| t.get("l", n),
        bar: Some(0.5),
    },
    Work {
        name: "ser-get",
        what: "serializable get, 100 clients",
        operations: 80_000,
        load: |t, n| t.get("s", n),
        bar: Some(0.5),
    },
    Work {
        name: "range-1000",
        what: "range of 1,000 keys, 20 clients",
        operations: 1_500,
        load: |t, n| t.range(n),
        bar: Some(0.5),
    },
    Work {
        name: "txn",
        what: "txn of one put, 100 clients, 256 B",
        operations: 40_000,
        load: |t, n| t.txn(n),
        bar: None,
    },
    Work {
        name: "keepalive",
        what: "lease keepalive, 100 clients",
        operations: 60_000,
        load: |t, n| t.keepalive(n),
        bar: Some(0.5),
    },
    Work {
        name: "watch",
        what: "events to 1,000 watchers of one key, 100 puts/s",
        operations: 1_000_000,
        load: |t, n| t.watch(n),
        bar: Some(0.5),
    },
];

/// What a load tool reported, and what it cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub slowest_ms: f64,
    /// Of the servers, microseconds an operation.
    pub server_us: f64,
    /// Of the load tool, microseconds an operation.
    pub client_us: f64,
}

/// Two servers, Dolmen first.
pub struct Side {
    pub name: &'static str,
    pub program: PathBuf,
}

pub fn run(arguments: &[String]) -> Result {
    let (mut rounds, mut members, mut only, mut scale, mut keys) = (3usize, vec![1, 3], None, 1.0f64, 1_000_000u64);
    let mut arguments = Arguments::new(arguments);
    let (mut whole, mut server) = (true, None);
    while let Some(name) = arguments.next_name() {
        match name {
            "--rounds" => rounds = arguments.parsed(name)?,
            "--members" => members = vec![arguments.parsed(name)?],
            "--only" => only = Some(arguments.value(name)?.split(',').map(str::to_owned).collect::<Vec<_>>()),
            "--scale" => scale = arguments.parsed(name)?,
            "--keys" => keys = arguments.parsed(name)?,
            "--server" => server = Some(PathBuf::from(arguments.value(name)?)),
            other => return Err(format!("unknown argument {other}")),
        }
        whole &= name == "--rounds" || name == "--server";
    }
    if rounds == 0 || members.iter().any(|n| !matches!(n, 1 | 3)) {
        return Err("--rounds is 1 or more, --members is 1 or 3".into());
    }
    let wanted = |name: &str| only.as_ref().is_none_or(|only| only.iter().any(|one| one == name));
    if let Some(unknown) =
        only.iter().flatten().find(|name| *name != "big" && !WORK.iter().any(|work| work.name == name.as_str()))
    {
        let known: Vec<&str> = WORK.iter().map(|work| work.name).collect();
        return Err(format!("no workload {unknown:?}; there are {}, big", known.join(", ")));
    }
    go::build(&[Judge::Etcd36, Judge::Etcdctl, Judge::Benchmark])?;
    let server = match server {
        Some(path) => path,
        None => interop::build_server()?,
    };
    let scratch = Scratch::new("bench")?;
    let place = |from: &Path, folder: &str| -> Result<PathBuf> {
        let dir = scratch.dir.join(folder);
        run::make_dir(&dir)?;
        run::place(from, &dir.join("etcd")).map(|()| dir.join("etcd"))
    };
    let sides = [
        Side { name: "dolmen", program: place(&server, "dolmen")? },
        Side { name: "etcd 3.6.16", program: place(&Judge::Etcd36.path(), "etcd36")? },
    ];

    let mut page = heading(rounds);
    for count in members {
        let work: Vec<&Work> = WORK.iter().filter(|work| wanted(work.name)).collect();
        if work.is_empty() {
            continue;
        }
        let rows = measure(&scratch, &sides, &work, count, rounds, scale)?;
        page.push_str(&table(&work, &rows, count));
    }
    if wanted("big") {
        page.push_str(&bigstate::run(&scratch, &sides, keys, rounds.min(2))?);
    }
    println!("\n{page}");
    if whole {
        let path = run::root().join("docs/bench.md");
        run::write(&path, &page)?;
        println!("written to {}", path.display());
    }
    Ok(())
}

fn heading(rounds: usize) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let model = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        model.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("").trim_matches([' ', '\t', ':']);
    format!(
        "# Dolmen beside etcd\n\n\
         Written by `cargo xtask bench`. Dolmen {} and Go etcd 3.6.16, release builds, the same flags and disk, fresh \
         clusters, {rounds} alternating rounds; medians. The load comes from etcd's `benchmark`, on the same {cores} \
         cores ({model}), which hold the throughput of both down: compare the CPU of the servers for one operation, all \
         members summed. The tool's own CPU stands apart. Absolute figures move with the machine; ratios of one run count.\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// For each workload the medians of Dolmen and of Go.
fn measure(
    scratch: &Scratch,
    sides: &[Side; 2],
    work: &[&Work],
    members: usize,
    rounds: usize,
    scale: f64,
) -> Result<Vec<[Figures; 2]>> {
    let mut all: Vec<[Vec<Figures>; 2]> = work.iter().map(|_| [Vec::new(), Vec::new()]).collect();
    for round in 0..rounds {
        for (at, one) in work.iter().enumerate() {
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for side in order {
                let operations = ((one.operations as f64 * scale) as u64).max(1);
                let dir = scratch.tmp().join("data");
                let mut cluster = Cluster::start(&sides[side].program, members, &dir, &[QUOTA])?;
                let figures = (one.load)(&Tool { cluster: &cluster }, operations)
                    .map_err(|why| format!("{}, {}: {why}", sides[side].name, one.name))?;
                cluster.stop();
                drop(cluster);
                scratch.clear();
                println!(
                    "round {} {members}m {:11} {:12} {:8.0}/s p50 {:7.2} p99 {:7.2} ms  server {:7.1} us  client {:7.1} us",
                    round + 1,
                    one.name,
                    sides[side].name,
                    figures.per_second,
                    figures.p50_ms,
                    figures.p99_ms,
                    figures.server_us,
                    figures.client_us
                );
                run::flush();
                all[at][side].push(figures);
            }
        }
    }
    Ok(all.iter().map(|sides| [medians(&sides[0]), medians(&sides[1])]).collect())
}

fn medians(all: &[Figures]) -> Figures {
    let of = |field: fn(&Figures) -> f64| median(all.iter().map(field).collect());
    Figures {
        per_second: of(|f| f.per_second),
        p50_ms: of(|f| f.p50_ms),
        p99_ms: of(|f| f.p99_ms),
        slowest_ms: of(|f| f.slowest_ms),
        server_us: of(|f| f.server_us),
        client_us: of(|f| f.client_us),
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

fn table(work: &[&Work], rows: &[[Figures; 2]], members: usize) -> String {
    let mut text = format!(
        "\n## {members} member{}\n\n\
         | work | | ops/s | p50 ms | p99 ms | server us/op | tool us/op | ops/s, ratio | server CPU, ratio | bar |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
        if members == 1 { "" } else { "s" }
    );
    for (one, [ours, theirs]) in work.iter().zip(rows) {
        let row = |name: &str, f: &Figures| {
            format!(
                "| {name} | {:.0} | {:.2} | {:.2} | {:.1} | {:.1} |",
                f.per_second, f.p50_ms, f.p99_ms, f.server_us, f.client_us
            )
        };
        let share = ours.server_us / theirs.server_us;
        let bar = match one.bar {
            Some(bar) if share <= bar => format!("{bar:.2}: met"),
            Some(bar) => format!("{bar:.2}: **missed**"),
            None if one.name == "put-1" && ours.p50_ms <= theirs.p50_ms => "p50 no worse: met".into(),
            None if one.name == "put-1" => "p50 no worse: **missed**".into(),
            None => String::new(),
        };
        text.push_str(&format!(
            "{} {:.2} | {share:.2} | {bar} |\n{} | | |\n",
            row(&format!("{} | Dolmen", one.what), ours),
            ours.per_second / theirs.per_second,
            row(" | etcd 3.6.16", theirs)
        ));
    }
    text
}

/// etcd's load tool, against one cluster.
pub struct Tool<'c> {
    pub cluster: &'c Cluster,
}

impl Tool<'_> {
    fn put(&self, clients: u64, size: u64, total: u64) -> Result<Figures> {
        let arguments = ["put", "--key-size=32", "--sequential-keys"].map(str::to_owned).into_iter();
        // Without it the tool writes one single key; it takes the numbers modulo this.
        let space = [format!("--key-space-size={total}"), format!("--val-size={size}"), format!("--total={total}")];
        self.run(clients, &arguments.chain(space).collect::<Vec<_>>(), total)
    }

    fn txn(&self, total: u64) -> Result<Figures> {
        let total_flag = format!("--total={total}");
        let arguments = ["txn-put", "--key-size=32", "--val-size=256", "--key-space-size=10000", &total_flag];
        self.run(100, &arguments.map(str::to_owned), total)
    }

    fn get(&self, consistency: &str, total: u64) -> Result<Figures> {
        put_many(&self.cluster.endpoints(), 1_000, 256)?;
        let flags = [format!("--consistency={consistency}"), format!("--total={total}")];
        let arguments: Vec<String> = ["range", "k00000500"].map(str::to_owned).into_iter().chain(flags).collect();
        self.run(100, &arguments, total)
    }

    fn range(&self, total: u64) -> Result<Figures> {
        put_many(&self.cluster.endpoints(), 1_000, 256)?;
        let flags = ["--consistency=l".to_owned(), format!("--total={total}")];
        let arguments: Vec<String> = ["range", "k", "l"].map(str::to_owned).into_iter().chain(flags).collect();
        self.run(20, &arguments, total)
    }

    fn keepalive(&self, total: u64) -> Result<Figures> {
        self.run(100, &["lease-keepalive".to_owned(), format!("--total={total}")], total)
    }

    fn watch(&self, events: u64) -> Result<Figures> {
        let puts = format!("--put-total={}", (events / 1_000).max(1));
        let arguments = ["watch-latency", "--watchers-per-stream=100", "--streams=10", "--put-rate=100", &puts];
        self.run(100, &arguments.map(str::to_owned), events)
    }

    /// Loads keys, for their own sake.
    ///
    /// # Errors
    /// The tool fails.
    pub fn load(&self, keys: u64, size: u64) -> Result<Figures> {
        self.put(200, size, keys)
    }

    /// Puts at a steady rate for some seconds, which is how a store feels to a client while something else goes on.
    ///
    /// # Errors
    /// The tool fails.
    pub fn probe(&self, seconds: u64) -> Result<Figures> {
        let total = seconds * 200;
        let flags = [format!("--total={total}"), "--rate=200".to_owned(), "--val-size=64".to_owned()];
        let arguments: Vec<String> = ["put", "--key-size=16", "--sequential-keys", "--key-space-size=100"]
            .map(str::to_owned)
            .into_iter()
            .collect();
        self.run(10, &[arguments, flags.into()].concat(), total)
    }

    fn run(&self, clients: u64, arguments: &[String], operations: u64) -> Result<Figures> {
        let mut tool = Command::new(Judge::Benchmark.path());
        tool.arg("--endpoints").arg(self.cluster.endpoints());
        tool.arg(format!("--conns={}", (clients / 10).max(1))).arg(format!("--clients={clients}")).args(arguments);
        let (servers, clients) = (self.cluster.cpu_us(), member::children_cpu_us());
        let said = run::text(&mut tool)?;
        let operations = operations as f64;
        let mut figures = parse(&said).ok_or_else(|| format!("no figures in {said}"))?;
        figures.server_us = (self.cluster.cpu_us() - servers) / operations;
        figures.client_us = (member::children_cpu_us() - clients) / operations;
        Ok(figures)
    }
}

/// Reads the tool's report; the last block of it, since for watches it prints two.
fn parse(said: &str) -> Option<Figures> {
    let last = |name: &str| {
        let rest = said.rsplit_once(name)?.1;
        rest.split_whitespace().next()?.parse::<f64>().ok()
    };
    Some(Figures {
        per_second: last("Requests/sec:")?,
        p50_ms: last("50% in ")? * 1e3,
        // Behind a blank, so that 99.9% is another line.
        p99_ms: last(" 99% in ")? * 1e3,
        slowest_ms: last("Slowest:")? * 1e3,
        ..Figures::default()
    })
}

/// Puts `count` keys `k00000000`, ... of `size` bytes each, a hundred in one transaction.
///
/// # Errors
/// etcdctl fails.
pub fn put_many(endpoints: &str, count: usize, size: usize) -> Result {
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
    fn a_report_is_read() {
        let said = "Summary:\n  Total:\t1.5 secs.\n  Slowest:\t0.0250 secs.\n  Requests/sec:\t6,0\n\n\
                    Summary:\n  Slowest:\t0.0150 secs.\n  Requests/sec:\t1234.5\n\nLatency distribution:\n  \
                    50% in 0.0010 secs.\n  99% in 0.0040 secs.\n  99.9% in 0.0100 secs.\n";
        let figures = parse(said).expect("figures");
        assert_eq!((figures.per_second, figures.p50_ms, figures.p99_ms), (1234.5, 1.0, 4.0));
        assert_eq!(figures.slowest_ms, 15.0);
        assert!(parse("nothing").is_none());
    }

    #[test]
    fn medians_are_of_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
