//! The one queue into the node: many producers, one consumer that takes everything at once.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Data of proposals and of entries from peers that waits while the loop is in a turn; what is small, or answers what the
/// node itself has handed out, is bounded by that. Above it callers are refused, and messages lost as on a network.
pub const MAX_BYTES: usize = 128 << 20;

/// A queue whose consumer sleeps when it is empty and is woken once, however much arrives before it looks.
#[derive(Debug)]
pub struct Inbox<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
}

#[derive(Debug)]
struct State<T> {
    queue: VecDeque<T>,
    /// What of it was counted.
    bytes: usize,
    sleeping: bool,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Self { state: Mutex::new(State { queue: VecDeque::new(), bytes: 0, sleeping: false }), arrived: Condvar::new() }
    }
}

impl<T> Inbox<T> {
    /// Puts one item in; never waits for the consumer.
    pub fn push(&self, item: T) {
        let state = self.state.lock();
        self.put(state, item);
    }

    /// Puts in what is `bytes` long, or gives it back when with it more than [`MAX_BYTES`] would wait.
    ///
    /// # Errors
    /// The item.
    pub fn push_counted(&self, item: T, bytes: usize) -> Result<(), T> {
        let mut state = self.state.lock();
        if state.bytes.saturating_add(bytes) > MAX_BYTES {
            return Err(item);
        }
        state.bytes += bytes;
        self.put(state, item);
        Ok(())
    }

    fn put(&self, mut state: MutexGuard<'_, State<T>>, item: T) {
        state.queue.push_back(item);
        if std::mem::take(&mut state.sleeping) {
            drop(state);
            self.arrived.notify_one();
        }
    }

    /// Swaps everything that waits into `into` (which must be empty), after waiting up to `patience` for the first.
    pub fn take(&self, into: &mut VecDeque<T>, patience: Duration) {
        debug_assert!(into.is_empty(), "what was taken before has been handled");
        let mut state = self.state.lock();
        if state.queue.is_empty() && !patience.is_zero() {
            state.sleeping = true;
            self.arrived.wait_for(&mut state, patience);
            state.sleeping = false;
        }
        std::mem::swap(&mut state.queue, into);
        state.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_has_an_end_until_it_is_taken() {
        let inbox = Inbox::default();
        assert_eq!(inbox.push_counted(1, MAX_BYTES - 1), Ok(()));
        assert_eq!(inbox.push_counted(2, 2), Err(2));
        inbox.push(3);
        let mut taken = VecDeque::new();
        inbox.take(&mut taken, Duration::ZERO);
        assert_eq!(taken, [1, 3]);
        assert_eq!(inbox.push_counted(4, 2), Ok(()));
    }
}
