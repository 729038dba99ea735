//! What is counted while a workload runs, and the line that says it.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::options::Options;

/// Latencies are kept to three digits, from a nanosecond to ten minutes.
const LONGEST_NS: u64 = 600_000_000_000;

/// Everything the clients of a run share; they are on one thread.
pub struct Report {
    latencies: RefCell<Histogram<u64>>,
    errors: Cell<u64>,
    first_error: RefCell<Option<String>>,
    /// The longest that an operation took to fail.
    slowest_failure: Cell<Duration>,
    begin: Instant,
    cpu_before: Duration,
}

impl Report {
    /// Begins: what came before is not measured.
    ///
    /// # Errors
    /// Never with the bounds above; the library cannot know.
    pub fn begin() -> Result<Rc<Self>, String> {
        let latencies = Histogram::new_with_bounds(1, LONGEST_NS, 3).map_err(|error| error.to_string())?;
        Ok(Rc::new(Self {
            latencies: RefCell::new(latencies),
            errors: Cell::new(0),
            first_error: RefCell::new(None),
            slowest_failure: Cell::new(Duration::ZERO),
            begin: Instant::now(),
            cpu_before: own_cpu(),
        }))
    }

    /// An operation that went well, and how long it took.
    pub fn done(&self, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(LONGEST_NS);
        self.latencies.borrow_mut().saturating_record(nanoseconds.max(1));
    }

    /// `count` operations that did not.
    pub fn failed(&self, count: u64, why: &dyn Display) {
        self.errors.set(self.errors.get() + count);
        self.first_error.borrow_mut().get_or_insert_with(|| why.to_string());
    }

    /// One operation that failed, after so long.
    pub fn failed_after(&self, took: Duration, why: &dyn Display) {
        self.slowest_failure.set(self.slowest_failure.get().max(took));
        self.failed(1, why);
    }

    /// The line.
    pub fn json(&self, options: &Options) -> Value {
        let (seconds, cpu) = (self.begin.elapsed().as_secs_f64(), own_cpu() - self.cpu_before);
        let latencies = self.latencies.borrow();
        let ms = |nanoseconds: u64| nanoseconds as f64 / 1e6;
        let operations = latencies.len();
        json!({
            "workload": options.name(),
            "clients": options.clients,
            "operations": operations,
            "errors": self.errors.get(),
            "first_error": *self.first_error.borrow(),
            "seconds": seconds,
            "per_second": operations as f64 / seconds,
            "p50_ms": ms(latencies.value_at_quantile(0.5)),
            "p90_ms": ms(latencies.value_at_quantile(0.9)),
            "p99_ms": ms(latencies.value_at_quantile(0.99)),
            "p999_ms": ms(latencies.value_at_quantile(0.999)),
            "max_ms": ms(latencies.max()),
            "failed_max_ms": self.slowest_failure.get().as_secs_f64() * 1e3,
            "cpu_us_per_operation": cpu.as_secs_f64() * 1e6 / (operations.max(1)) as f64,
        })
    }
}

/// User and system time of this process.
fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Hands out operations until there are no more, each at its time.
pub struct Schedule {
    next: Cell<u64>,
    total: u64,
    rate: Option<f64>,
    begin: Instant,
    end: Option<Instant>,
    closed: Arc<AtomicBool>,
}

impl Schedule {
    /// Begins.
    pub fn begin(options: &Options, total: u64) -> Rc<Self> {
        let closed = Arc::new(AtomicBool::new(false));
        if options.until_closed {
            let closed = closed.clone();
            std::thread::spawn(move || {
                // Whether it ended or failed: nobody wants more.
                let _ended = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
                closed.store(true, Ordering::Relaxed);
            });
        }
        let begin = Instant::now();
        let end = options.seconds.map(|seconds| begin + seconds);
        Rc::new(Self { next: Cell::new(0), total, rate: options.rate, begin, end, closed })
    }

    /// The next operation's number and the moment from which its latency counts, once that has come.
    pub async fn next(&self) -> Option<(u64, Instant)> {
        let number = self.next.get();
        let mut now = Instant::now();
        if self.over(now) || number >= self.total {
            return None;
        }
        self.next.set(number + 1);
        let Some(rate) = self.rate else { return Some((number, now)) };
        let due = self.begin + Duration::from_secs_f64(number as f64 / rate);
        if due <= now {
            return Some((number, due));
        }
        tokio::time::sleep_until(due.into()).await;
        // A timer that is late is no fault of the server.
        now = Instant::now();
        (!self.over(now)).then_some((number, now))
    }

    fn over(&self, now: Instant) -> bool {
        self.end.is_some_and(|end| now >= end) || self.closed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Options {
        Options::parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).expect("options")
    }

    #[test]
    fn a_report_counts() {
        let report = Report::begin().expect("a report");
        for ms in 1..=100 {
            report.done(Duration::from_millis(ms));
        }
        report.failed(2, &"first");
        report.failed_after(Duration::from_secs(7), &"second");
        let json = report.json(&options("put --endpoints a:1"));
        assert_eq!((&json["operations"], &json["errors"]), (&json!(100), &json!(3)));
        assert_eq!(json["first_error"], json!("first"));
        assert_eq!(json["failed_max_ms"], json!(7_000.0));
        let p99 = json["p99_ms"].as_f64().expect("a number");
        assert!((98.9..=99.2).contains(&p99), "{p99}");
        assert!(json["max_ms"].as_f64().is_some_and(|max| (100.0..100.2).contains(&max)));
    }

    #[tokio::test]
    async fn what_starts_late_counts_from_when_it_was_due() {
        let schedule = Schedule::begin(&options("put --endpoints a:1 --rate 100 --total 4"), 4);
        let (first, _) = schedule.next().await.expect("the first");
        tokio::time::sleep(Duration::from_millis(35)).await;
        let (second, since) = schedule.next().await.expect("the second");
        assert_eq!((first, second), (0, 1));
        // Due after 10 ms, begun after 35.
        assert!(since.elapsed() >= Duration::from_millis(20));
        // Due after 20 and 30 ms.
        assert!(schedule.next().await.is_some() && schedule.next().await.is_some());
        assert!(schedule.next().await.is_none());
    }
}
