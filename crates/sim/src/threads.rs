//! The threads that the real driver gives a node, as queues; how long they take is up to the world.
//!
//! What `dolmen_node::driver` does happens here in the same order: WAL jobs that wait are written and synced together, the
//! store's jobs run one after the other.

use std::collections::VecDeque;

use dolmen_machine::InstallJob;
use dolmen_mvcc::CompactionHash;
use dolmen_node::{HistoryJob, Input, WalJob};
use dolmen_proto::raftpb::HardState;
use dolmen_revlog::{Job, JobDone};
use dolmen_types::{Index, error_chain};
use dolmen_wal::{Wal, WalError};

use crate::mutants::Mutant;

/// The thread of the write-ahead log.
pub(crate) struct LogThread {
    pub wal: Wal,
    waiting: Vec<WalJob>,
    /// Jobs written and not synced.
    unsynced: Vec<WalJob>,
    at_work: bool,
    /// Something was synced since the log last left word of how far it is durable.
    news: bool,
    /// When it did so while busy.
    noted: u64,
}

impl LogThread {
    pub fn new(wal: Wal, now: u64) -> Self {
        Self { wal, waiting: Vec::new(), unsynced: Vec::new(), at_work: false, news: false, noted: now }
    }

    pub fn hand(&mut self, jobs: Vec<WalJob>) {
        self.waiting.extend(jobs);
    }

    /// Writes all jobs that wait; whether there were any, and the thread was free for them.
    pub fn begin(&mut self, mutant: Option<Mutant>) -> Result<bool, WalError> {
        if self.at_work || self.waiting.is_empty() {
            return Ok(false);
        }
        self.unsynced = std::mem::take(&mut self.waiting);
        self.at_work = true;
        if mutant != Some(Mutant::VoteNotPersisted) {
            dolmen_node::driver::append_all(&mut self.wal, &self.unsynced)?;
            return Ok(true);
        }
        for job in &self.unsynced {
            if let Some(snapshot) = &job.snapshot {
                self.wal.append_snapshot(snapshot)?;
            }
            let forgetful = job.hard_state.map(|state| HardState { vote: 0, ..state });
            if forgetful.is_some() || !job.entries.is_empty() {
                self.wal.append(forgetful.as_ref(), &job.entries)?;
            }
        }
        Ok(true)
    }

    /// Jobs that are written only.
    pub fn take_unsynced(&mut self) -> Vec<WalJob> {
        std::mem::take(&mut self.unsynced)
    }

    /// Syncs what was written, and gives it back.
    pub fn sync(&mut self, mutant: Option<Mutant>) -> Result<Vec<WalJob>, WalError> {
        self.at_work = false;
        let jobs = self.take_unsynced();
        if jobs.iter().any(|job| job.must_sync) || mutant == Some(Mutant::AckBeforeSync) {
            self.wal.sync()?;
            self.news = true;
        }
        Ok(jobs)
    }

    /// What follows when the jobs are on their way back.
    pub fn after_sync(&mut self, release: Option<Index>, now: u64) -> Result<(), WalError> {
        if let Some(index) = release {
            self.wal.release(index);
        }
        if self.wal.released() > dolmen_node::driver::RELEASED_SEGMENTS {
            self.wal.remove_released()?;
        }
        if now.saturating_sub(self.noted) > dolmen_node::driver::NOTE_NANOS {
            self.noted = now;
            self.wal.note_acked()?;
        }
        Ok(())
    }

    /// Nothing came for a while; whether there is more to clear up.
    pub fn idle(&mut self) -> Result<bool, WalError> {
        if self.at_work {
            return Ok(false);
        }
        if std::mem::take(&mut self.news) {
            self.wal.note_acked()?;
        }
        Ok(self.wal.remove_released()?.is_some())
    }
}

/// Work of the store's thread.
enum StoreWork {
    Job(Job),
    Install(Box<InstallJob>),
    /// Run when it was taken up; its result is on its way to the node.
    Ran(Ran),
}

enum Ran {
    Job(Result<JobDone, String>),
    Install(Input),
}

/// The store's thread.
#[derive(Default)]
pub(crate) struct StoreThread {
    queue: VecDeque<StoreWork>,
    at_work: bool,
}

impl StoreThread {
    pub fn hand(&mut self, jobs: Vec<Job>, install: Option<InstallJob>) {
        self.queue.extend(jobs.into_iter().map(StoreWork::Job));
        self.queue.extend(install.map(|job| StoreWork::Install(Box::new(job))));
    }

    /// Whether work waits and the thread is free for it.
    pub fn may_begin(&self) -> bool {
        !self.at_work && !self.queue.is_empty()
    }

    /// Takes the next work up, and does it now or in [`StoreThread::finish`].
    pub fn begin(&mut self, at_once: bool) -> Result<(), String> {
        let Some(work) = self.queue.pop_front() else { return Ok(()) };
        self.at_work = true;
        let work = if at_once { StoreWork::Ran(run(work)) } else { work };
        if let StoreWork::Ran(Ran::Job(Err(what))) = work {
            return Err(what);
        }
        self.queue.push_front(work);
        Ok(())
    }

    /// The work is done: what the node is told.
    pub fn finish(&mut self) -> Result<Input, String> {
        self.at_work = false;
        match self.queue.pop_front().map(run).ok_or("the store's thread ended nothing")? {
            Ran::Job(done) => done.map(Input::StoreDone),
            Ran::Install(input) => Ok(input),
        }
    }
}

fn run(work: StoreWork) -> Ran {
    match work {
        StoreWork::Job(job) => Ran::Job(job.run().map_err(|error| error_chain(&error))),
        StoreWork::Install(job) => Ran::Install(Input::Installed(job.run())),
        StoreWork::Ran(ran) => ran,
    }
}

/// The thread of the hashes that compactions leave behind.
#[derive(Default)]
pub(crate) struct HashThread {
    queue: VecDeque<(u64, CompactionHash)>,
    at_work: bool,
}

impl HashThread {
    pub fn hand(&mut self, jobs: Vec<(u64, CompactionHash)>) {
        self.queue.extend(jobs);
    }

    /// Whether it takes up the next hash.
    pub fn begin(&mut self) -> bool {
        let begins = !self.at_work && !self.queue.is_empty();
        self.at_work |= begins;
        begins
    }

    pub fn finish(&mut self) -> Option<Input> {
        self.at_work = false;
        let (id, job) = self.queue.pop_front()?;
        let _hash = job.run();
        Some(Input::Hashed(id))
    }
}

/// The thread that reads history for watchers: one slice at a time.
#[derive(Default)]
pub(crate) struct HistoryThread {
    job: Option<HistoryJob>,
}

impl HistoryThread {
    pub fn hand(&mut self, job: HistoryJob) {
        self.job = Some(job);
    }

    pub fn finish(&mut self) -> Option<Input> {
        self.job.take().map(|job| Input::Scanned(job.run()))
    }
}
