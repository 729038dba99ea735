//! Threads beside the runtimes, for what would hold up everybody else there: long reads, and computations over the whole
//! store.
//!
//! A job in turns (a [`Helpers::in_turns`] read) gives its thread away after a few milliseconds and waits for its next slice
//! behind the others, so that many of them share the threads evenly. A job that cannot stop in between
//! ([`Helpers::whole`]) keeps its thread; such jobs never take the last one. No job waits for a client or for the log, so the
//! threads always get free again. A job whose caller has gone is dropped at its next turn.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::status::{self, Status};

/// How long a job in turns runs before others get theirs.
const SLICE: Duration = Duration::from_millis(5);
/// Jobs that may wait. Further ones are refused: they would wait for longer than their callers do.
const MAX_WAITING: usize = 4096;
/// Helpers give way to the threads that clients wait for one by one, as far as the system goes along.
const NICE: i32 = 5;

/// Does one slice; true when the job is done with.
type Job = Box<dyn FnMut() -> bool + Send>;

#[derive(Default)]
struct Waiting {
    in_turns: VecDeque<Job>,
    whole: VecDeque<Job>,
    /// Threads that are at a job of the second kind.
    at_whole: usize,
    stopping: bool,
}

struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    threads: usize,
}

/// See the module page. When it is dropped, the threads end after the turn they are at; nobody waits for them.
pub struct Helpers {
    queue: Arc<Queue>,
}

impl Helpers {
    /// One thread for each core, two at least.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn start() -> io::Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).max(2);
        let queue = Arc::new(Queue { waiting: Mutex::default(), arrived: Condvar::new(), threads });
        let helpers = Self { queue };
        for index in 0..threads {
            let queue = helpers.queue.clone();
            std::thread::Builder::new().name(format!("helper-{index}")).spawn(move || {
                // Of this thread alone. Where it is not allowed, helpers are as others.
                let _as_others = rustix::process::setpriority_process(None, NICE);
                queue.run();
            })?;
        }
        Ok(helpers)
    }

    /// Runs `turn` until it breaks with a result. A turn should take less than a few milliseconds.
    ///
    /// # Errors
    /// Too many jobs wait, or the server stops.
    pub async fn in_turns<T: Send + 'static>(
        &self,
        mut turn: impl FnMut() -> ControlFlow<T> + Send + 'static,
    ) -> Result<T, Status> {
        let (sender, receiver) = oneshot::channel();
        let mut sender = Some(sender);
        self.push(
            Box::new(move || {
                let until = Instant::now() + SLICE;
                while sender.as_ref().is_some_and(|sender| !sender.is_closed()) {
                    if let ControlFlow::Break(result) = turn() {
                        // Nobody may be waiting any more.
                        let _unheard = sender.take().map(|sender| sender.send(result));
                    } else if Instant::now() >= until {
                        return false;
                    }
                }
                true
            }),
            |waiting| &mut waiting.in_turns,
        )?;
        receiver.await.map_err(|_| status::STOPPED)
    }

    /// Runs something that cannot stop in between.
    ///
    /// # Errors
    /// Too many jobs wait, or the server stops.
    pub async fn whole<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
        let (sender, receiver) = oneshot::channel();
        let mut once = Some((work, sender));
        self.push(
            Box::new(move || {
                if let Some((work, sender)) = once.take().filter(|(_, sender)| !sender.is_closed()) {
                    let _unheard = sender.send(work());
                }
                true
            }),
            |waiting| &mut waiting.whole,
        )?;
        receiver.await.map_err(|_| status::STOPPED)
    }

    fn push(&self, job: Job, queue: impl Fn(&mut Waiting) -> &mut VecDeque<Job>) -> Result<(), Status> {
        let mut waiting = self.queue.waiting.lock();
        let queue = queue(&mut waiting);
        if queue.len() >= MAX_WAITING {
            return Err(status::TOO_MANY_REQUESTS);
        }
        queue.push_back(job);
        drop(waiting);
        self.queue.arrived.notify_one();
        Ok(())
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        let mut waiting = self.queue.waiting.lock();
        waiting.stopping = true;
        // Whoever waits learns it by the loss of the job's channel.
        let jobs = (std::mem::take(&mut waiting.in_turns), std::mem::take(&mut waiting.whole));
        drop(waiting);
        drop(jobs);
        self.queue.arrived.notify_all();
    }
}

impl Queue {
    fn run(&self) {
        let mut waiting = self.waiting.lock();
        while !waiting.stopping {
            if waiting.at_whole + 1 < self.threads
                && let Some(mut job) = waiting.whole.pop_front()
            {
                waiting.at_whole += 1;
                drop(waiting);
                job();
                drop(job);
                waiting = self.waiting.lock();
                waiting.at_whole -= 1;
                // Another one may have waited for the room.
                self.arrived.notify_one();
            } else if let Some(mut job) = waiting.in_turns.pop_front() {
                drop(waiting);
                let unfinished = (!job()).then_some(job);
                waiting = self.waiting.lock();
                if !waiting.stopping {
                    waiting.in_turns.extend(unfinished);
                }
            } else {
                self.arrived.wait(&mut waiting);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn jobs_that_cannot_stop_leave_a_thread_to_the_others() {
        let helpers = Helpers::start().unwrap();
        let threads = helpers.queue.threads;
        let (free, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let mut stuck = Vec::new();
        for _ in 0..threads + 1 {
            let held = held.clone();
            stuck.push(Box::pin(helpers.whole(move || held.lock().recv().is_err())));
        }
        // Each is queued at its first poll.
        for job in &mut stuck {
            assert!(polled(job.as_mut()).await.is_none());
        }
        let mut left = 3;
        let turn = move || {
            left -= 1;
            if left == 0 { ControlFlow::Break("done") } else { ControlFlow::Continue(()) }
        };
        assert_eq!(helpers.in_turns(turn).await.unwrap(), "done");
        drop(free);
        for job in stuck {
            assert!(job.await.unwrap());
        }
    }

    #[tokio::test]
    async fn a_job_ends_when_nobody_waits_for_it() {
        let helpers = Helpers::start().unwrap();
        let (dropped, turns) = (Arc::new(()), Arc::new(AtomicUsize::new(0)));
        let (held, counted) = (dropped.clone(), turns.clone());
        let endless = helpers.in_turns(move || {
            let _held = &held;
            counted.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(1));
            ControlFlow::<()>::Continue(())
        });
        assert!(tokio::time::timeout(Duration::from_millis(50), endless).await.is_err());
        while Arc::strong_count(&dropped) > 1 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn long_jobs_share_the_threads() {
        let helpers = Helpers::start().unwrap();
        let busy = |millis: u64| {
            let mut left = millis;
            move || {
                std::thread::sleep(Duration::from_millis(1));
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }
        };
        let mut long: Vec<_> = (0..8).map(|_| Box::pin(helpers.in_turns(busy(100_000)))).collect();
        for job in &mut long {
            assert!(polled(job.as_mut()).await.is_none());
        }
        // Behind eight that would take minutes, in its own time.
        helpers.in_turns(busy(20)).await.unwrap();
        assert!(polled(long[0].as_mut()).await.is_none());
    }

    /// One poll.
    async fn polled<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|cx| {
            std::task::Poll::Ready(match future.as_mut().poll(cx) {
                std::task::Poll::Ready(output) => Some(output),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}
