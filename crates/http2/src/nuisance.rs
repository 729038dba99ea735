//! How many frames that cost their sender nothing a connection may bring.

use std::time::Instant;

/// At once, and a second for good. A client with a thousand calls in flight may give up all of them at a deadline, and again
/// at the next; one that resets what it has just asked for, over and over, is no client.
pub const NUISANCES: (u32, u32) = (10_000, 1_000);

/// What is left of a connection's patience.
#[derive(Debug)]
pub struct Patience {
    left: u32,
    since: Instant,
}

impl Patience {
    pub fn new(now: Instant) -> Self {
        Self { left: NUISANCES.0, since: now }
    }

    /// Counts one; false when it was one too many. The clock is looked at only when the first allowance is used up.
    pub fn bears(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.left == 0 {
            let now = now();
            let seconds = now.saturating_duration_since(self.since).as_secs();
            self.left = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(NUISANCES.1).min(NUISANCES.0);
            self.since = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn patience_ends_and_comes_back_with_time() {
        let begin = Instant::now();
        let mut patience = Patience::new(begin);
        let mut borne = |at: u64| {
            let now = begin + Duration::from_secs(at);
            (0..30_000).take_while(|_| patience.bears(|| now)).count()
        };
        assert_eq!(borne(0), 10_000);
        assert_eq!(borne(0), 0);
        assert_eq!(borne(3), 3_000);
        assert_eq!(borne(3), 0);
        assert_eq!(borne(3_000), 10_000);
    }
}
