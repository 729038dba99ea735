//! The window of append messages sent to a member and not yet acknowledged.

use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inflight {
    /// Index of the last entry in the message.
    index: u64,
    /// Payload bytes of its entries.
    bytes: u64,
}

/// Bounds how much a leader sends ahead of acknowledgements, in messages and in bytes.
///
/// The byte bound is soft: the message that crosses it is still taken, the next one is not. Memory grows with what is
/// in flight, not with the bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inflights {
    /// Oldest first; indexes ascend.
    window: VecDeque<Inflight>,
    bytes: u64,
    max_messages: usize,
    max_bytes: u64,
}

impl Inflights {
    /// `max_bytes` 0: no byte bound.
    pub const fn new(max_messages: usize, max_bytes: u64) -> Self {
        Self { window: VecDeque::new(), bytes: 0, max_messages, max_bytes }
    }

    /// Records a message whose last entry is `index`. The caller has checked [`full`](Self::full), and indexes ascend.
    pub fn add(&mut self, index: u64, bytes: u64) {
        assert!(!self.full(), "a message was sent into a full window");
        self.window.push_back(Inflight { index, bytes });
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Forgets messages up to and including `index`.
    pub fn free_to(&mut self, index: u64) {
        while let Some(&oldest) = self.window.front()
            && oldest.index <= index
        {
            self.window.pop_front();
            self.bytes = self.bytes.saturating_sub(oldest.bytes);
        }
    }

    /// True when nothing more may be sent for now.
    pub fn full(&self) -> bool {
        self.window.len() >= self.max_messages || (self.max_bytes != 0 && self.bytes >= self.max_bytes)
    }

    /// Messages in flight.
    pub fn count(&self) -> usize {
        self.window.len()
    }

    /// Payload bytes in flight.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Forgets everything in flight.
    pub fn reset(&mut self) {
        self.window.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_bound_the_window() {
        let mut inflights = Inflights::new(3, 0);
        for index in 1..=3 {
            assert!(!inflights.full());
            inflights.add(index * 10, 5);
        }
        assert!(inflights.full());
        inflights.free_to(9);
        assert_eq!(inflights.count(), 3);
        inflights.free_to(20);
        assert_eq!((inflights.count(), inflights.bytes()), (1, 5));
        inflights.reset();
        assert_eq!((inflights.count(), inflights.bytes(), inflights.full()), (0, 0, false));
    }

    #[test]
    fn bytes_bound_the_window_softly() {
        let mut inflights = Inflights::new(100, 10);
        inflights.add(1, 9);
        assert!(!inflights.full());
        inflights.add(2, 100);
        assert!(inflights.full());
        inflights.free_to(1);
        assert!(inflights.full());
        inflights.free_to(2);
        assert!(!inflights.full());
    }

    #[test]
    #[should_panic(expected = "full window")]
    fn a_full_window_takes_nothing() {
        let mut inflights = Inflights::new(1, 0);
        inflights.add(1, 1);
        inflights.add(2, 1);
    }
}
