//! The workloads, as a table: how each client is asked for it, how much of it, and what it may cost.

use std::time::Duration;

use super::results::Figures;
use super::{Bench, QUOTA, gotool, lean};
use crate::member::Cluster;
use crate::run::Result;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// `dolmen-load`.
    Lean,
    /// etcd's `benchmark`.
    Tool,
}

impl Client {
    pub fn name(self) -> &'static str {
        match self {
            Self::Lean => "load",
            Self::Tool => "benchmark",
        }
    }

    /// # Errors
    /// No such client.
    pub fn named(name: &str) -> Result<Self> {
        let all = [Self::Lean, Self::Tool];
        all.into_iter()
            .find(|one| one.name() == name)
            .ok_or_else(|| format!("--client is load or benchmark, not {name}"))
    }
}

/// What a figure must be, for Dolmen.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    pub figure: &'static str,
    pub limit: Limit,
}

#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// The median, as a share of etcd's.
    Share(f64),
    /// Every round, in the figure's own unit.
    Worst(f64),
}

const fn share(figure: &'static str, limit: f64) -> Bar {
    Bar { figure, limit: Limit::Share(limit) }
}

pub const HALF_CPU: &[Bar] = &[share("server_us", 0.5)];
const HALF_CPU_AND_TAIL: &[Bar] = &[share("server_us", 0.5), share("p99_ms", 1.0)];
const LATENCY: &[Bar] = &[share("p50_ms", 1.0), share("p99_ms", 1.0)];

/// A workload. Flags: one string, words apart.
pub struct Work {
    pub name: &'static str,
    pub what: &'static str,
    /// Operations with `--scale 1`; requests for the clients, events for watches.
    operations: u64,
    clients: u64,
    /// Keys of 256 bytes that must be there before.
    keys: u64,
    lean: &'static str,
    /// Arguments of etcd's tool, where it has the workload; `TOTAL` becomes the number of operations.
    pub tool: Option<&'static str>,
    pub bars: &'static [Bar],
}

/// Puts of a watch workload reach so many watchers.
const WATCHERS: u64 = 1_000;

pub const WORK: &[Work] = &[
    Work {
        name: "put-1",
        what: "put, 1 client, 256 B",
        operations: 3_000,
        clients: 1,
        keys: 0,
        lean: "put",
        // Without a key space the tool writes one single key; it takes the numbers modulo that.
        tool: Some("put --key-size=32 --sequential-keys --key-space-size=TOTAL --val-size=256 --total=TOTAL"),
        bars: LATENCY,
    },
    Work {
        name: "put-100",
        what: "put, 100 clients, 256 B",
        operations: 40_000,
        clients: 100,
        keys: 0,
        lean: "put",
        tool: Some("put --key-size=32 --sequential-keys --key-space-size=TOTAL --val-size=256 --total=TOTAL"),
        bars: HALF_CPU_AND_TAIL,
    },
    Work {
        name: "put-100-1k",
        what: "put, 100 clients, 1 KiB",
        operations: 40_000,
        clients: 100,
        keys: 0,
        lean: "put --value-size=1024",
        tool: Some("put --key-size=32 --sequential-keys --key-space-size=TOTAL --val-size=1024 --total=TOTAL"),
        bars: HALF_CPU_AND_TAIL,
    },
    Work {
        name: "put-1000",
        what: "put, 1,000 clients, 256 B",
        operations: 60_000,
        clients: 1_000,
        keys: 0,
        lean: "put",
        tool: Some("put --key-size=32 --sequential-keys --key-space-size=TOTAL --val-size=256 --total=TOTAL"),
        bars: HALF_CPU,
    },
    Work {
        name: "put-1000-1k",
        what: "put, 1,000 clients, 1 KiB",
        operations: 60_000,
        clients: 1_000,
        keys: 0,
        lean: "put --value-size=1024",
        tool: None,
        bars: HALF_CPU,
    },
    Work {
        name: "lin-get",
        what: "linearizable get, 100 clients",
        operations: 80_000,
        clients: 100,
        keys: 1_000,
        lean: "get",
        tool: Some("range load/000000000000000000000000500 --consistency=l --total=TOTAL"),
        bars: HALF_CPU,
    },
    Work {
        name: "ser-get",
        what: "serializable get, 100 clients",
        operations: 80_000,
        clients: 100,
        keys: 1_000,
        lean: "get --serializable",
        tool: Some("range load/000000000000000000000000500 --consistency=s --total=TOTAL"),
        bars: HALF_CPU,
    },
    Work {
        name: "range-1000",
        what: "range of 1,000 keys, 20 clients",
        operations: 2_000,
        clients: 20,
        keys: 1_000,
        lean: "range",
        tool: Some("range load/ load0 --consistency=l --total=TOTAL"),
        bars: HALF_CPU,
    },
    Work {
        name: "txn",
        what: "txn of a comparison and a put, 100 clients, 256 B",
        operations: 40_000,
        clients: 100,
        keys: 0,
        lean: "txn --keys=10000",
        tool: None,
        bars: &[],
    },
    Work {
        name: "keepalive",
        what: "lease keepalive, 100 clients",
        operations: 100_000,
        clients: 100,
        keys: 0,
        lean: "keepalive",
        tool: Some("lease-keepalive --total=TOTAL"),
        bars: HALF_CPU,
    },
    Work {
        name: "watch",
        what: "events to 1,000 watchers of one key, 100 puts/s",
        operations: 500_000,
        clients: WATCHERS,
        keys: 0,
        lean: "watch --conns=10 --rate=100 --value-size=32",
        tool: Some("watch-latency --watchers-per-stream=100 --streams=10 --put-rate=100 --put-total=TOTAL"),
        bars: HALF_CPU,
    },
];

/// One side, once, on a fresh cluster.
///
/// # Errors
/// The cluster or the client fails.
pub fn measure(bench: &Bench, side: usize, work: &Work, members: usize, client: Client) -> Result<Figures> {
    let mut cluster = Cluster::start(&bench.servers[side], members, &bench.data(), &[QUOTA])?;
    if work.keys > 0 {
        lean::fill(bench, &cluster, work.keys, 256)?;
        // A serializable read of a follower is to find them too.
        std::thread::sleep(Duration::from_millis(300));
    }
    // Below some hundreds etcd's tool prints no 99th percentile.
    let operations = ((work.operations as f64 * bench.request.scale) as u64).max(200);
    // A put to watchers is as many events.
    let requests = if work.name == "watch" { operations.div_ceil(WATCHERS) } else { operations };
    let figures = match (client, work.tool) {
        (Client::Tool, Some(tool)) => {
            let arguments: Vec<String> =
                tool.split(' ').map(|word| word.replace("TOTAL", &requests.to_string())).collect();
            let clients = if work.name == "watch" { 100 } else { work.clients };
            gotool::run(&cluster, clients, &arguments, operations as f64)?
        }
        _ => {
            let mut words = work.lean.split(' ').map(str::to_owned);
            let workload = words.next().unwrap_or_default();
            let flags = [format!("--clients={}", work.clients), format!("--total={requests}")];
            lean::run(bench, &cluster, &workload, &words.chain(flags).collect::<Vec<_>>())?
        }
    };
    cluster.stop();
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_clients_have_theirs() {
        for (at, work) in WORK.iter().enumerate() {
            assert!(WORK[..at].iter().all(|other| other.name != work.name), "{}", work.name);
        }
        assert_eq!(Client::named("benchmark"), Ok(Client::Tool));
        assert!(Client::named("other").is_err());
    }
}
