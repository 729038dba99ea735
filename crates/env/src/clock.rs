use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::Mono;

/// The operating system's clocks, for drivers; the core never asks.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealClock;

impl RealClock {
    /// Nanoseconds since the first call in this process.
    #[allow(clippy::disallowed_methods, reason = "this is where the monotonic clock enters")]
    pub fn mono() -> Mono {
        static START: OnceLock<Instant> = OnceLock::new();
        let start = *START.get_or_init(Instant::now);
        Mono(start.elapsed().as_nanos() as u64)
    }

    /// Milliseconds of wall time since 1970, to tell incarnations of a process apart.
    #[allow(clippy::disallowed_methods, reason = "this is where the wall clock enters")]
    pub fn unix_millis() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }
}
