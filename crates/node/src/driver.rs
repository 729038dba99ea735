//! The node on real threads: one for the loop, one for the WAL, one for the store. The simulator has its own driver.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use dolmen_env::{Disk, DiskLock, Memory, Mono, RealClock, Rests};
use dolmen_machine::InstallJob;
use dolmen_mvcc::CompactionHash;
use dolmen_revlog::Job;
use dolmen_types::error_chain;
use dolmen_wal::{Released, Wal};

use crate::history::HistoryJob;
use crate::node::{Effects, Input, Node, StopReason, WalJob};
use crate::peers::PeerSender;
use crate::request::Sink;
use crate::shared::{Handle, Shared};
use crate::start::Started;

/// How long the WAL has nothing to do before it notes how far it is acknowledged, and how often it does so when busy.
pub const IDLE: Duration = Duration::from_millis(100);
pub const NOTE_NANOS: u64 = 1_000_000_000;
/// Log segments that nobody needs wait for an idle turn to be removed; a log that is never idle removes one a turn while there
/// are more than this.
pub const RELEASED_SEGMENTS: usize = 1;
/// For how long nobody was served before a thread on the way of a request gives memory back: that may take 20 ms.
const QUIET: Duration = Duration::from_secs(1);
/// Applying that takes longer is counted as slow; etcd's default.
const SLOW_APPLY_NANOS: u64 = 100_000_000;
/// How long the store, or the reader of history, has nothing to do before its thread rests.
const STORE_IDLE: Duration = Duration::from_millis(300);

/// Work of the store's thread.
enum StoreWork {
    Job(Job),
    Install(Box<InstallJob>),
}

/// A compaction's hash in the making, and the id its caller may wait under.
type HashWork = (u64, CompactionHash);

/// A running node.
pub struct Running {
    handle: Handle,
    thread: JoinHandle<Result<StopReason, DiskFailure>>,
    _lock: DiskLock,
}

/// A write or sync failed. The file is not touched again: the process ends and says so.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {error}")]
pub struct DiskFailure {
    pub what: &'static str,
    pub error: String,
}

impl Running {
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits until the node has stopped.
    ///
    /// # Errors
    /// A disk failed: leave with an exit code of its own, and touch no file again.
    pub fn wait(self) -> Result<StopReason, DiskFailure> {
        self.thread.join().unwrap_or_else(|_| {
            Err(DiskFailure { what: "the node's thread", error: "it panicked; see the log above".into() })
        })
    }
}

/// Starts the threads of a node.
///
/// `sinks`: one for each runtime, in the order of [`crate::Completion::runtime`]. `memory`: how each thread gives freed
/// memory back while it rests.
///
/// # Errors
/// The operating system gives no thread.
pub fn spawn(
    started: Started,
    disk: Arc<dyn Disk>,
    peers: Arc<dyn PeerSender>,
    sinks: Vec<Box<dyn Sink>>,
    memory: Memory,
) -> std::io::Result<Running> {
    let Started { node, wal, lock } = started;
    let shared = node.shared().clone();
    shared.set_peers(peers.clone());
    let handle = Handle { shared: shared.clone(), clock: RealClock::mono };
    let (wal_jobs, wal_queue) = channel();
    let (store_jobs, store_queue) = channel();
    let (failed, failures) = channel();

    let spawn_named = |name: &str| std::thread::Builder::new().name(name.to_owned());
    let (to_node, broken) = (shared.clone(), failed.clone());
    let (released, closing) = channel();
    let close_thread = spawn_named("close").spawn(move || closing.into_iter().for_each(drop::<Released>))?;
    let wal_thread = spawn_named("wal").spawn(move || {
        if let Err(error) = write_ahead(wal, &wal_queue, &to_node, &released, memory) {
            fail(&broken, &to_node, "writing the write-ahead log", &error);
        }
    })?;
    let to_node = shared.clone();
    let store_thread = spawn_named("store").spawn(move || {
        if let Err(error) = keep_store(&store_queue, &to_node, memory) {
            fail(&failed, &to_node, "writing the store", &error);
        }
    })?;
    let (hash_jobs, hash_queue) = channel();
    let to_node = shared.clone();
    // Reads the whole store, so it is kept apart from the thread that syncs it.
    let hash_thread = spawn_named("hash").spawn(move || make_hashes(&hash_queue, &to_node, memory))?;
    let (history_jobs, history_queue) = channel();
    let to_node = shared.clone();
    // Reads what may be on the disk only, for watchers; nobody else waits for it.
    let history_thread = spawn_named("history").spawn(move || read_history(&history_queue, &to_node, memory))?;
    let driver =
        Driver { node, shared, peers, sinks, wal_jobs, store_jobs, hash_jobs, history_jobs, disk, failures, memory };
    let thread = spawn_named("node").spawn(move || {
        let result = driver.run();
        // They end when the loop has dropped its ends of their queues, and the last one after the log's.
        for thread in [wal_thread, store_thread, hash_thread, history_thread, close_thread] {
            if thread.join().is_err() {
                return Err(DiskFailure { what: "a disk thread", error: "it panicked; see the log above".into() });
            }
        }
        result
    })?;
    Ok(Running { handle, thread, _lock: lock })
}

fn fail(failed: &Sender<DiskFailure>, shared: &Shared, what: &'static str, error: &dyn std::error::Error) {
    // The loop may have ended already; then nobody needs to know.
    let _ended = failed.send(DiskFailure { what, error: error_chain(error) });
    shared.inbox.push(Input::Stop { transfer: false });
}

struct Driver {
    node: Node,
    shared: Arc<Shared>,
    peers: Arc<dyn PeerSender>,
    sinks: Vec<Box<dyn Sink>>,
    wal_jobs: Sender<WalJob>,
    store_jobs: Sender<StoreWork>,
    hash_jobs: Sender<HashWork>,
    history_jobs: Sender<HistoryJob>,
    disk: Arc<dyn Disk>,
    failures: Receiver<DiskFailure>,
    memory: Memory,
}

impl Driver {
    fn run(mut self) -> Result<StopReason, DiskFailure> {
        let tick = self.node.config().tick_nanos;
        // The first one comes at once: a lone voter need not wait for it.
        let mut next_tick = RealClock::mono();
        let mut inputs = VecDeque::new();
        let mut patience = Duration::ZERO;
        let mut rests = Rests::new(self.memory);
        let mut served = RealClock::mono();
        loop {
            self.shared.inbox.take(&mut inputs, patience);
            let now = RealClock::mono();
            let idle = inputs.is_empty();
            if now >= next_tick {
                self.node.step(now, Input::Tick);
                // Ticks missed while the process was stopped are not made up for: time has passed for everybody.
                next_tick = Mono(now.0 + tick);
            }
            for input in inputs.drain(..) {
                self.node.step(now, input);
            }
            if let Ok(failure) = self.failures.try_recv() {
                return Err(failure);
            }
            let (begin, applied) = (RealClock::mono(), self.shared.applied());
            let effects = self.node.advance(begin);
            if self.shared.applied() != applied {
                let took = RealClock::mono().since(begin);
                self.shared.metrics.apply.observe(took);
                self.shared.metrics.slow_applies.add(u64::from(took > SLOW_APPLY_NANOS));
            }
            let busy = effects.busy;
            let wake_at = effects.wake_at.map_or(next_tick, |at| at.min(next_tick));
            if busy || !effects.wal.is_empty() || !effects.replies.is_empty() {
                served = now;
            }
            if let Some(reason) = self.carry_out(effects) {
                return Ok(reason);
            }
            if idle && now.since(served) >= QUIET.as_nanos() as u64 {
                rests.rest(now);
            }
            patience = if busy { Duration::ZERO } else { Duration::from_nanos(wake_at.since(RealClock::mono())) };
        }
    }

    fn carry_out(&mut self, effects: Effects) -> Option<StopReason> {
        // First what others wait for: messages leave while our own disk still writes the same entries.
        if !effects.messages.is_empty() {
            self.peers.send(effects.messages);
        }
        for job in effects.wal {
            // A closed queue means that the thread has failed and says so in `failures`.
            let _failed = self.wal_jobs.send(job);
        }
        for (runtime, batch) in effects.replies {
            if let Some(sink) = self.sinks.get_mut(usize::from(runtime)) {
                sink.complete(batch);
            }
        }
        for (message, source) in effects.snapshots {
            self.peers.send_snapshot(message, source);
        }
        for job in effects.store {
            let _failed = self.store_jobs.send(StoreWork::Job(job));
        }
        if let Some(job) = effects.install {
            let _failed = self.store_jobs.send(StoreWork::Install(Box::new(job)));
        }
        for job in effects.hashes {
            let _ended = self.hash_jobs.send(job);
        }
        if let Some(job) = effects.history {
            let _ended = self.history_jobs.send(job);
        }
        for path in effects.remove {
            // Left behind, it is removed at the next start.
            let _left = self.disk.remove_file(&path);
        }
        if let Some((peers, removed)) = effects.peers {
            self.peers.set_peers(peers, removed);
        }
        effects.stopped
    }
}

fn make_hashes(queue: &Receiver<HashWork>, shared: &Shared, memory: Memory) {
    while let Ok((id, job)) = queue.recv() {
        // A snapshot put in the store's place takes the compaction with it; a damaged store is found by whoever reads.
        let _hash = job.run();
        shared.inbox.push(Input::Hashed(id));
        memory.give_back();
    }
}

fn read_history(queue: &Receiver<HistoryJob>, shared: &Shared, memory: Memory) {
    loop {
        let job = match queue.recv_timeout(STORE_IDLE) {
            Err(RecvTimeoutError::Timeout) => {
                memory.give_back();
                queue.recv().ok()
            }
            job => job.ok(),
        };
        let Some(job) = job else { return };
        shared.inbox.push(Input::Scanned(job.run()));
    }
}

/// Appends all jobs that wait, syncs once, hands them back in order.
fn write_ahead(
    mut wal: Wal,
    queue: &Receiver<WalJob>,
    shared: &Shared,
    released: &Sender<Released>,
    memory: Memory,
) -> Result<(), dolmen_wal::WalError> {
    let mut noted = RealClock::mono();
    let mut rests = Rests::new(memory);
    let mut wait = IDLE;
    loop {
        let first = match queue.recv_timeout(wait) {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) if wait == IDLE => {
                // Nothing to do is the time to write down how far the log is acknowledged, and to clear up: a little, and
                // then whoever came meanwhile is next.
                wal.note_acked()?;
                match wal.remove_released()? {
                    // The thread lives as long as its queue has this end.
                    Some(segment) => {
                        let _lives = released.send(segment);
                    }
                    None => wait = QUIET,
                }
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {
                rests.rest(RealClock::mono());
                match queue.recv() {
                    Ok(first) => first,
                    Err(_) => break,
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        wait = IDLE;
        let mut jobs = vec![first];
        jobs.extend(queue.try_iter());
        let begin = RealClock::mono();
        append_all(&mut wal, &jobs)?;
        let written = RealClock::mono();
        let bytes: usize = jobs.iter().flat_map(|job| &job.entries).map(|entry| entry.data.len()).sum();
        shared.metrics.wal_bytes.add(bytes as u64);
        shared.metrics.wal_write.observe(written.since(begin));
        if jobs.iter().any(|job| job.must_sync) {
            wal.sync()?;
            shared.metrics.wal_fsync.observe(RealClock::mono().since(written));
        }
        let release = jobs.iter().filter_map(|job| job.release).max();
        for job in jobs {
            shared.inbox.push(Input::WalDone(job));
        }
        if let Some(index) = release {
            wal.release(index);
        }
        if wal.released() > RELEASED_SEGMENTS
            && let Some(segment) = wal.remove_released()?
        {
            let _lives = released.send(segment);
        }
        let now = RealClock::mono();
        if now.since(noted) > NOTE_NANOS {
            wal.note_acked()?;
            noted = now;
        }
    }
    wal.close()
}

/// Appends jobs in order: of several hard states only the last matters, and entries go in as few calls as there are
/// jobs.
pub fn append_all(wal: &mut Wal, jobs: &[WalJob]) -> Result<(), dolmen_wal::WalError> {
    for job in jobs {
        // A received snapshot stands before the hard state that commits it.
        if let Some(snapshot) = &job.snapshot {
            wal.append_snapshot(snapshot)?;
        }
        if job.hard_state.is_some() || !job.entries.is_empty() {
            wal.append(job.hard_state.as_ref(), &job.entries)?;
        }
    }
    Ok(())
}

fn keep_store(queue: &Receiver<StoreWork>, shared: &Shared, memory: Memory) -> Result<(), dolmen_revlog::Error> {
    loop {
        let work = match queue.recv_timeout(STORE_IDLE) {
            Err(RecvTimeoutError::Timeout) => {
                memory.give_back();
                queue.recv().ok()
            }
            work => work.ok(),
        };
        match work {
            Some(StoreWork::Job(job)) => {
                let begin = RealClock::mono();
                let done = job.run()?;
                shared.metrics.store_sync.observe(RealClock::mono().since(begin));
                shared.inbox.push(Input::StoreDone(done));
            }
            Some(StoreWork::Install(job)) => shared.inbox.push(Input::Installed(job.run())),
            None => return Ok(()),
        }
    }
}
