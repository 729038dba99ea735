//! Virtual time: events in order of (time, when they were scheduled).

use std::cmp::Ordering;
use std::collections::BinaryHeap;

struct Entry<T> {
    at: u64,
    seq: u64,
    event: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.seq).cmp(&(self.at, self.seq))
    }
}

/// A queue of events to come. Of two at the same time, the one scheduled first comes first.
pub(crate) struct Queue<T> {
    heap: BinaryHeap<Entry<T>>,
    seq: u64,
    pub now: u64,
}

impl<T> Queue<T> {
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), seq: 0, now: 0 }
    }

    /// `at`: nanoseconds since the start; not before now.
    pub fn at(&mut self, at: u64, event: T) {
        self.seq += 1;
        self.heap.push(Entry { at: at.max(self.now), seq: self.seq, event });
    }

    pub fn after(&mut self, delay: u64, event: T) {
        self.at(self.now + delay, event);
    }

    /// The next event; time moves to it.
    pub fn pop(&mut self) -> Option<T> {
        let entry = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_by_arrival() {
        let mut queue = Queue::new();
        queue.at(5, 'b');
        queue.at(3, 'a');
        queue.at(5, 'c');
        assert_eq!((queue.pop(), queue.pop(), queue.now), (Some('a'), Some('b'), 5));
        queue.at(1, 'd');
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some('c'), Some('d'), None), "never into the past");
    }
}
