//! `check`: whether a cluster is fast enough (`perf`), and how much memory data takes (`datascale`).

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dolmen_cli::progress::Bar;
use dolmen_cli::{Call, Command, Failure, Flag, golang, print};
use dolmen_client::{Client, Error};
use dolmen_proto::etcdserverpb as pb;
use tokio::sync::{Mutex, mpsc};

use super::get::range;
use crate::connect::{Options, block_on};
use crate::hints;
use crate::metrics;
use crate::process::Stop;
use crate::tool::UTILITY;

/// `check`
pub static COMMAND: Command = Command {
    usage: "check <subcommand>",
    short: "commands for checking properties of the etcd cluster. Use `etcdctl check --help` to see subcommands",
    long: "commands for checking properties of the etcd cluster",
    group: UTILITY,
    commands: &[&PERF, &DATASCALE],
    ..Command::NEW
};

const AUTO_COMPACT: Flag = Flag::boolean("auto-compact", "Compact storage with last revision after test is finished.");
const AUTO_DEFRAG: Flag = Flag::boolean("auto-defrag", "Defragment storage after test is finished.");

static PERF: Command = Command {
    usage: "perf [options]",
    short: "Check the performance of the etcd cluster",
    flags: &[
        Flag::text(
            "load",
            "s",
            "The performance check's workload model. Accepted workloads: s(small), m(medium), l(large), xl(xLarge). \
             Different workload models use different configurations in terms of number of clients and expected throughput.",
        )
        .choices(&["small", "medium", "large", "xLarge"]),
        Flag::text("prefix", "/etcdctl-check-perf/", "The prefix for writing the performance check's keys."),
        AUTO_COMPACT,
        AUTO_DEFRAG,
    ],
    run: Some(perf),
    ..Command::NEW
};

static DATASCALE: Command = Command {
    usage: "datascale [options]",
    short: "Check the memory usage of holding data for different workloads on a given server endpoint.",
    long: "If no endpoint is provided, localhost will be used. If multiple endpoints are provided, first endpoint will be used.",
    flags: &[
        Flag::text(
            "load",
            "s",
            "The datascale check's workload model. Accepted workloads: s(small), m(medium), l(large), xl(xLarge)",
        ),
        Flag::text("prefix", "/etcdctl-check-datascale/", "The prefix for writing the datascale check's keys."),
        AUTO_COMPACT,
        AUTO_DEFRAG,
    ],
    run: Some(datascale),
    ..Command::NEW
};

/// How long a cleanup, a compaction or a defragmentation may take.
const CLEANUP_LIMIT: Duration = Duration::from_secs(30);

/// Which of the four workloads `--load` names.
///
/// # Errors
/// `unknown load option x` (exit 4).
fn model(call: &Call) -> Result<usize, Failure> {
    match call.text("load") {
        "s" | "small" => Ok(0),
        "m" | "medium" => Ok(1),
        "l" | "large" => Ok(2),
        "xl" | "xLarge" => Ok(3),
        other => Err(Failure::bad_feature(format!("unknown load option {other}"))),
    }
}

/// What both checks share: the clients, the prefix they write under, and what to do at the end.
struct Check {
    options: Options,
    clients: Vec<Client>,
    prefix: Bytes,
    auto_compact: bool,
    auto_defrag: bool,
}

impl Check {
    /// Connects `count` clients.
    async fn new(call: &Call, count: usize) -> Result<Check, Failure> {
        let options = Options::read(call).await?;
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            clients.push(options.connect().await?);
        }
        Ok(Check {
            options,
            clients,
            prefix: call.text_bytes("prefix").into(),
            auto_compact: call.boolean("auto-compact"),
            auto_defrag: call.boolean("auto-defrag"),
        })
    }

    fn first(&self) -> &Client {
        &self.clients[0]
    }

    /// Key and range end of everything under the prefix.
    fn range(&self) -> (Bytes, Bytes) {
        let (key, end) = range(self.prefix.to_vec(), None, true, false);
        (key.into(), end.into())
    }

    /// Whether there is nothing under the prefix yet.
    async fn is_clean(&self) -> Result<bool, Failure> {
        let (key, range_end) = self.range();
        let request = pb::RangeRequest { key, range_end, limit: 1, ..Default::default() };
        Ok(self.first().range(request).await.map_err(|e| hints::failure(&e))?.kvs.is_empty())
    }

    /// Deletes everything under the prefix; the revision of that.
    async fn delete(&self, client: &Client) -> Result<i64, Error> {
        let (key, range_end) = self.range();
        let deleted = client.delete_range(pb::DeleteRangeRequest { key, range_end, prev_kv: false }).await?;
        Ok(deleted.header.map_or(0, |header| header.revision))
    }

    async fn compact(&self, revision: i64) -> Result<(), Failure> {
        print(format!("Compacting with revision {revision}\n"));
        let client = self.first().with_timeout(Some(CLEANUP_LIMIT));
        client.compact(pb::CompactionRequest { revision, physical: true }).await.map_err(|e| hints::failure(&e))?;
        print(format!("Compacted with revision {revision}\n"));
        Ok(())
    }

    async fn defragment(&self) -> Result<(), Failure> {
        for endpoint in &self.options.endpoints {
            let shown = golang::quote(endpoint);
            print(format!("Defragmenting {shown}\n"));
            let client = self.first().at(endpoint).map_err(|e| hints::failure(&e))?.with_timeout(Some(CLEANUP_LIMIT));
            client.defragment(pb::DefragmentRequest {}).await.map_err(|e| hints::failure(&e))?;
            print(format!("Defragmented {shown}\n"));
        }
        Ok(())
    }

    /// What `perf` does at its end, and when it is interrupted: a failure is told and no more.
    async fn clean_up(&self, compact: bool) -> Result<(), Failure> {
        match self.delete(&self.first().with_timeout(Some(CLEANUP_LIMIT))).await {
            Ok(revision) if compact => self.compact(revision).await,
            Ok(_) => Ok(()),
            Err(e) => {
                print(format!("FAIL: Cleanup failed during key deletion: ERROR({e})\n"));
                Ok(())
            }
        }
    }

    /// Starts a writer for each client. They end when the sender is dropped and what it sent is done.
    fn writers(&self, bar: Option<Arc<Bar>>) -> (mpsc::Sender<pb::PutRequest>, mpsc::UnboundedReceiver<Outcome>) {
        let (requests, queue) = mpsc::channel::<pb::PutRequest>(self.clients.len());
        let (outcomes, receiver) = mpsc::unbounded_channel();
        let queue = Arc::new(Mutex::new(queue));
        for client in &self.clients {
            let (client, queue, outcomes, bar) = (client.clone(), queue.clone(), outcomes.clone(), bar.clone());
            tokio::spawn(async move {
                loop {
                    let Some(request) = queue.lock().await.recv().await else { return };
                    let began = Instant::now();
                    let outcome = client.put(request).await.map(|_| began.elapsed()).map_err(|e| e.to_string());
                    if let Some(bar) = &bar {
                        bar.add(1);
                    }
                    if outcomes.send(outcome).is_err() {
                        return;
                    }
                }
            });
        }
        (requests, receiver)
    }
}

/// How long one put took, or why it failed.
type Outcome = Result<Duration, String>;

/// What all puts together came to.
#[derive(Debug, Default)]
struct Report {
    errors: BTreeMap<String, usize>,
    puts_per_second: f64,
    slowest_seconds: f64,
    stddev_seconds: f64,
}

impl Report {
    /// Takes all outcomes until the last writer has ended.
    async fn collect(mut outcomes: mpsc::UnboundedReceiver<Outcome>) -> Report {
        let began = Instant::now();
        let (mut errors, mut seconds) = (BTreeMap::new(), Vec::new());
        while let Some(outcome) = outcomes.recv().await {
            match outcome {
                Ok(took) => seconds.push(took.as_secs_f64()),
                Err(why) => *errors.entry(why).or_default() += 1,
            }
        }
        Report::of(errors, &seconds, began.elapsed().as_secs_f64())
    }

    fn of(errors: BTreeMap<String, usize>, seconds: &[f64], total_seconds: f64) -> Report {
        let count = seconds.len() as f64;
        let average = seconds.iter().sum::<f64>() / count;
        let squares: f64 = seconds.iter().map(|one| (one - average).powi(2)).sum();
        Report {
            errors,
            puts_per_second: count / total_seconds,
            slowest_seconds: seconds.iter().copied().fold(0.0, f64::max),
            stddev_seconds: (squares / count).sqrt(),
        }
    }

    /// Tells about failed puts; true: there were some.
    fn tell_errors(&self) -> bool {
        if self.errors.is_empty() {
            return false;
        }
        print("FAIL: too many errors\n");
        for (why, count) in &self.errors {
            print(format!("FAIL: ERROR({why}) -> {count}\n"));
        }
        true
    }

    /// The verdict of `perf`, line by line; true: all passed.
    fn tell_perf(&self, wanted_per_second: f64) -> bool {
        let mut passed = !self.tell_errors();
        let rate = self.puts_per_second as i64 + 1;
        if self.puts_per_second / wanted_per_second <= 0.9 {
            print(format!("FAIL: Throughput too low: {rate} writes/s\n"));
            passed = false;
        } else {
            print(format!("PASS: Throughput is {rate} writes/s\n"));
        }
        if self.slowest_seconds > 0.5 {
            print(format!("Slowest request took too long: {:.6}s\n", self.slowest_seconds));
            passed = false;
        } else {
            print(format!("PASS: Slowest request took {:.6}s\n", self.slowest_seconds));
        }
        if self.stddev_seconds > 0.1 {
            print(format!("Stddev too high: {:.6}s\n", self.stddev_seconds));
            passed = false;
        } else {
            print(format!("PASS: Stddev is {:.6}s\n", self.stddev_seconds));
        }
        passed
    }
}

/// Keys that don't repeat: a random number, as Go's `binary.PutVarint` writes it, in front of zeroes.
struct Keys {
    prefix: Bytes,
    space: Vec<u8>,
    state: u64,
}

impl Keys {
    fn new(prefix: &Bytes, size: usize) -> Keys {
        Keys { prefix: prefix.clone(), space: vec![0; size], state: RandomState::new().hash_one(0) }
    }

    fn next(&mut self) -> Bytes {
        // SplitMix64: every number comes once before one comes again.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // Not negative, and doubled, as the signed varint has it.
        let mut rest = ((mixed ^ (mixed >> 31)) >> 1) << 1;
        for byte in &mut self.space {
            *byte = (rest & 0x7f) as u8 | if rest > 0x7f { 0x80 } else { 0 };
            rest >>= 7;
            if rest == 0 {
                break;
            }
        }
        [&self.prefix[..], &self.space].concat().into()
    }
}

/// Lets through so many a second, and no more than a moment's worth at once after a pause.
struct Pace {
    gap: Duration,
    next: Instant,
}

impl Pace {
    /// The runtime's timers count milliseconds: what they oversleep is made up for, up to this.
    const CREDIT: Duration = Duration::from_millis(5);

    fn new(per_second: u32) -> Pace {
        Pace { gap: Duration::from_secs(1) / per_second, next: Instant::now() }
    }

    async fn wait(&mut self) {
        let now = Instant::now();
        if self.next > now {
            tokio::time::sleep(self.next - now).await;
        } else if now - self.next > Pace::CREDIT {
            self.next = now - Pace::CREDIT;
        }
        self.next += self.gap;
    }
}

/// How long `perf` writes, seconds.
const PERF_SECONDS: u64 = 60;
/// Puts a second, and clients, of the four workloads of `perf`.
const PERF_LOADS: [(u32, usize); 4] = [(150, 50), (1000, 200), (8000, 500), (15000, 1000)];
const PERF_KEY_BYTES: usize = 256;
const PERF_VALUE_BYTES: usize = 1024;

fn perf(call: &Call) -> Result<(), Failure> {
    let (per_second, clients) = PERF_LOADS[model(call)?];
    block_on(async {
        let check = Check::new(call, clients).await?;
        let mut stop = Stop::new()?;
        if !check.is_clean().await? {
            let prefix = call.text("prefix");
            return Err(Failure::bad_input(format!(
                "prefix {} has keys. Delete with 'etcdctl del --prefix {prefix}' first",
                golang::quote(prefix)
            )));
        }
        let bar = Arc::new(Bar::count("puts", Some(u64::from(per_second) * PERF_SECONDS)));
        let (requests, outcomes) = check.writers(Some(bar.clone()));
        let report = tokio::spawn(Report::collect(outcomes));
        let interrupted = tokio::select! {
            () = feed(&check.prefix, per_second, requests) => false,
            () = stop.wait() => true,
        };
        if interrupted {
            check.clean_up(false).await?;
        }
        let report = report.await?;
        bar.finish();
        check.clean_up(check.auto_compact).await?;
        if check.auto_defrag {
            check.defragment().await?;
        }
        let passed = report.tell_perf(f64::from(per_second));
        print(if passed { "PASS\n" } else { "FAIL\n" });
        if passed { Ok(()) } else { Err(Failure::silent(1)) }
    })
}

/// Hands puts to the writers at a steady pace for as long as `perf` takes.
async fn feed(prefix: &Bytes, per_second: u32, requests: mpsc::Sender<pb::PutRequest>) {
    let until = Instant::now() + Duration::from_secs(PERF_SECONDS);
    let value = Bytes::from(vec![0; PERF_VALUE_BYTES]);
    let (mut keys, mut pace) = (Keys::new(prefix, PERF_KEY_BYTES), Pace::new(per_second));
    while Instant::now() < until {
        pace.wait().await;
        let put = pb::PutRequest { key: keys.next(), value: value.clone(), ..Default::default() };
        if requests.send(put).await.is_err() {
            return;
        }
    }
}

/// Keys, and clients, of the four workloads of `datascale`.
const DATASCALE_LOADS: [(usize, usize); 4] = [(10_000, 50), (100_000, 200), (1_000_000, 500), (3_000_000, 1000)];
/// Bytes of a key without its prefix, and of a value.
const DATASCALE_BYTES: usize = 512;

fn datascale(call: &Call) -> Result<(), Failure> {
    let (count, clients) = DATASCALE_LOADS[model(call)?];
    block_on(async {
        let check = Check::new(call, clients).await?;
        if !check.is_clean().await? {
            let prefix = call.text("prefix");
            return Err(Failure::bad_input(format!(
                "prefix {} has keys. Delete with etcdctl del --prefix {prefix} first",
                golang::quote(prefix)
            )));
        }
        let endpoint = check.options.endpoints.first().map(String::as_str).unwrap_or_default();
        let before = resident_memory(endpoint, &check.options, "before").await?;
        print(format!(
            "Start data scale check for work load [{count} key-value pairs, {} bytes per key-value, {clients} concurrent \
             clients].\n",
            2 * DATASCALE_BYTES
        ));
        let bar = Arc::new(Bar::count("puts", Some(count as u64)));
        let (requests, outcomes) = check.writers(Some(bar.clone()));
        let report = tokio::spawn(Report::collect(outcomes));
        let mut keys = Keys::new(&check.prefix, DATASCALE_BYTES);
        let value = Bytes::from(vec![0; DATASCALE_BYTES]);
        for _ in 0..count {
            let put = pb::PutRequest { key: keys.next(), value: value.clone(), ..Default::default() };
            if requests.send(put).await.is_err() {
                break;
            }
        }
        drop(requests);
        let report = report.await?;
        bar.finish();
        let after = resident_memory(endpoint, &check.options, "after").await?;
        let revision = check.delete(check.first()).await.map_err(|e| hints::failure(&e))?;
        if check.auto_compact {
            check.compact(revision).await?;
        }
        if check.auto_defrag {
            check.defragment().await?;
        }
        if report.tell_errors() {
            return Err(Failure::silent(1));
        }
        let used = (after - before) / (1024.0 * 1024.0);
        print(format!("PASS: Approximate system memory used : {used:.2} MB.\n"));
        Ok(())
    })
}

/// What the member's metrics say about its memory, bytes.
async fn resident_memory(endpoint: &str, options: &Options, when: &str) -> Result<f64, Failure> {
    let bytes = match metrics::read(endpoint, &options.secure, "process_resident_memory_bytes").await {
        Ok(bytes) => bytes,
        Err(why) => {
            print(format!("{why}\n"));
            0.0
        }
    };
    if bytes == 0.0 {
        print(format!("FAIL: Could not read process_resident_memory_bytes {when} the put operations.\n"));
        return Err(Failure::silent(1));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_have_their_size() {
        let mut keys = Keys::new(&Bytes::from_static(b"/p/"), 256);
        let made: std::collections::BTreeSet<Bytes> = (0..1000).map(|_| keys.next()).collect();
        assert_eq!(made.len(), 1000);
        assert!(made.iter().all(|key| key.len() == 259 && key.starts_with(b"/p/")));
    }

    #[test]
    fn a_report_is_gos_arithmetic() {
        let report = Report::of(BTreeMap::new(), &[0.1, 0.3], 2.0);
        assert_eq!((report.puts_per_second, report.slowest_seconds), (1.0, 0.3));
        assert!((report.stddev_seconds - 0.1).abs() < 1e-9);
        assert!(Report::of(BTreeMap::new(), &[], 2.0).stddev_seconds.is_nan());
    }
}
