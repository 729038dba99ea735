//! The one queue into the node: many producers, one consumer that takes everything at once.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// A queue whose consumer sleeps when it is empty and is woken once, however much arrives before it looks.
#[derive(Debug)]
pub struct Inbox<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
}

#[derive(Debug)]
struct State<T> {
    queue: VecDeque<T>,
    sleeping: bool,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Self { state: Mutex::new(State { queue: VecDeque::new(), sleeping: false }), arrived: Condvar::new() }
    }
}

impl<T> Inbox<T> {
    /// Puts one item in; never waits for the consumer.
    pub fn push(&self, item: T) {
        let mut state = self.state.lock();
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
    }
}
