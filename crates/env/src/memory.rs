use crate::Mono;

/// How the calling thread gives what it has freed back to the system.
///
/// An allocator keeps freed memory with the thread it was allocated by and lets go of some when that thread next asks
/// for more. A thread that rests after a burst asks for nothing, so the memory of the burst stays with the process for
/// good, and no other thread may take it from there. So every long-lived thread calls this when it has nothing to do;
/// which allocator there is, and how it is told, only the binary knows.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    give_back: fn(),
}

impl Memory {
    /// Nanoseconds from one time to the next. What is freed and used again within them costs no page faults on the way.
    pub const INTERVAL: u64 = 1_000_000_000;

    /// `give_back` must be cheap where there is nothing to give, and never block.
    pub const fn new(give_back: fn()) -> Self {
        Self { give_back }
    }

    /// Of an allocator that wants no telling: tests, the simulator.
    pub const fn untold() -> Self {
        Self::new(|| {})
    }

    /// Gives back now.
    pub fn give_back(self) {
        (self.give_back)();
    }
}

/// When one thread gives memory back: not more often than each [`Memory::INTERVAL`], however often it rests.
#[derive(Debug)]
pub struct Rests {
    memory: Memory,
    next: Mono,
}

impl Rests {
    pub const fn new(memory: Memory) -> Self {
        Self { memory, next: Mono(0) }
    }

    /// Says that the thread has nothing to do at `now`.
    pub fn rest(&mut self, now: Mono) {
        if now >= self.next {
            self.memory.give_back();
            self.next = Mono(now.0 + Memory::INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_thread_that_rests_often_gives_back_once_an_interval() {
        static GIVEN: AtomicU32 = AtomicU32::new(0);
        let mut rests = Rests::new(Memory::new(|| {
            GIVEN.fetch_add(1, Ordering::Relaxed);
        }));
        for (now, given) in [(5, 1), (6, 1), (Memory::INTERVAL + 4, 1), (Memory::INTERVAL + 5, 2), (1 << 40, 3)] {
            rests.rest(Mono(now));
            assert_eq!(GIVEN.load(Ordering::Relaxed), given, "at {now}");
        }
    }
}
