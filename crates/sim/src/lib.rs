//! The simulator: whole clusters of the real node and everything below it, in one thread, from one seed.
//!
//! ```text
//!   seed ──> plan (cluster, settings, faults, workload)
//!              │
//!   ┌──────────v───────────────────────────────────────────────┐
//!   │ queue of events by virtual time                          │
//!   │   clients, watchers ──> node ──> wal, store, hash queues │
//!   │   network: delay, loss, repeats, disorder, partitions    │──> checks after every turn, against the model
//!   │   disks: power loss, EIO, full, slow, rot                │
//!   └──────────────────────────────────────────────────────────┘
//! ```
//!
//! One seed draws everything, so the same seed gives the same trace, and a failure is repeated with one line. The model
//! (`model`) is fed the entries in the order in which any member first applies them; every answer, watch event and
//! store is held against it. After the faults everything is healed and a write has to go through within 4 virtual
//! seconds, then every member and watcher has to have everything.
//!
//! `world` has the order of events, `turn` the loop of a member and its messages, `disks` the threads beside the loop,
//! `invariants` what has to hold after every turn, `ending` how a run comes to its end.
//!
//! What is simulated: time with a clock rate a member, the network, the disk, the process. What is real: node, raft, WAL,
//! store, key space, leases, watch hub. Left out: gRPC, the peer protocol, threads.

#![forbid(unsafe_code)]

mod clients;
mod disks;
mod ending;
mod faults;
mod invariants;
mod member;
mod model;
mod mutants;
mod net;
mod plan;
mod queue;
mod threads;
mod trace;
mod turn;
mod watchers;
mod world;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use mutants::Mutant;
use world::World;

/// How to run a seed.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A planted bug.
    pub mutant: Option<Mutant>,
    /// Print every event.
    pub verbose: bool,
    /// A shorter time of faults, for tests.
    pub short: bool,
}

/// What happened, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub virtual_nanos: u64,
    pub commits: u64,
    pub applied: u64,
    pub acknowledged: u64,
    pub reads: u64,
    pub unknown: u64,
    pub renewed: u64,
    /// Events that watchers got.
    pub watched: u64,
    pub faults: u64,
    pub crashes: u64,
    pub starts: u64,
    pub snapshots: u64,
    /// Whole stores compared.
    pub compared: u64,
    pub rotten: u64,
    /// Rotten members that refused to start.
    pub refused: u64,
    /// Rotten members that found it while they led and a voter had kept up with them.
    pub led_rotten: u64,
    /// Those of them that knew who led after them before they stopped.
    pub handed_over: u64,
    /// Rot that could not be told from a torn tail, and was undone.
    pub unseen_rot: u64,
}

impl Stats {
    pub fn add(&mut self, other: &Self) {
        self.virtual_nanos += other.virtual_nanos;
        self.commits += other.commits;
        self.applied += other.applied;
        self.acknowledged += other.acknowledged;
        self.reads += other.reads;
        self.unknown += other.unknown;
        self.renewed += other.renewed;
        self.watched += other.watched;
        self.faults += other.faults;
        self.crashes += other.crashes;
        self.starts += other.starts;
        self.snapshots += other.snapshots;
        self.compared += other.compared;
        self.rotten += other.rotten;
        self.refused += other.refused;
        self.led_rotten += other.led_rotten;
        self.handed_over += other.handed_over;
        self.unseen_rot += other.unseen_rot;
    }
}

/// A promise that was not kept.
#[derive(Clone, Debug)]
pub struct Failure {
    pub what: String,
    /// Virtual nanoseconds.
    pub at: u64,
    /// The last events before it.
    pub last: Vec<String>,
}

/// How one seed went.
#[derive(Clone, Debug)]
pub struct Report {
    pub seed: u64,
    pub failure: Option<Failure>,
    /// A hash of everything that happened, in order.
    pub trace: u64,
    pub events: u64,
    pub stats: Stats,
}

impl Report {
    /// The line that repeats this run.
    pub fn rerun(&self, options: &Options) -> String {
        let mutant = options.mutant.map_or(String::new(), |mutant| format!(" --mutant {}", mutant.name()));
        let short = if options.short { " --short" } else { "" };
        format!("seed={}: cargo xtask sim --seed {}{mutant}{short}", self.seed, self.seed)
    }

    /// Everything about a failure, to be printed.
    pub fn text(&self, options: &Options) -> String {
        let Some(failure) = &self.failure else { return format!("seed={} passed", self.seed) };
        format!(
            "last events:\n{}\nseed={} broke at {:.6} s: {}\n{}",
            failure.last.join("\n"),
            self.seed,
            failure.at as f64 / 1e9,
            failure.what,
            self.rerun(options)
        )
    }
}

/// Runs one seed from beginning to end.
pub fn run(seed: u64, options: &Options) -> Report {
    let mut world = World::new(seed, options);
    let result = catch_unwind(AssertUnwindSafe(|| world.run())).unwrap_or_else(|panic| Err(panicked(&*panic)));
    let failure = result.err().map(|what| Failure { what, at: world.queue.now, last: world.trace.last() });
    Report { seed, failure, trace: world.trace.hash(), events: world.trace.events, stats: world.stats }
}

fn panicked(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without a message"))
}
