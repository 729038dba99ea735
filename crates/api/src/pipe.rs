//! From a thread that makes the messages of a stream to the call that sends them, a few ahead.
//!
//! The maker waits while the pipe is full, so its speed is the client's; but not for ever. A client that takes nothing has its
//! call standing still (the body of a stream is not polled while its window is closed), so the limit is kept at the maker's
//! end: a maker that could put nothing in for [`STALLED`] gives up, and with it go its thread and the view that it reads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How long a client may take nothing at all.
pub const STALLED: Duration = Duration::from_secs(60);

struct State<T> {
    pieces: VecDeque<T>,
    /// The call, when it waits.
    waiting: Option<Waker>,
    ended: bool,
    given_up: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    room: Condvar,
    ahead: usize,
    stalled: Duration,
}

/// The maker's end.
pub struct Maker<T>(Arc<Shared<T>>);

/// The call's end.
pub struct Taker<T>(Arc<Shared<T>>);

/// Why nothing more can be put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    #[error("the caller has gone")]
    Gone,
    #[error("the caller took nothing for {} s", STALLED.as_secs())]
    Stalled,
}

/// A pipe that holds `ahead` pieces.
pub fn pipe<T>(ahead: usize) -> (Maker<T>, Taker<T>) {
    with_limit(ahead, STALLED)
}

fn with_limit<T>(ahead: usize, stalled: Duration) -> (Maker<T>, Taker<T>) {
    let state = State { pieces: VecDeque::with_capacity(ahead), waiting: None, ended: false, given_up: false };
    let shared = Arc::new(Shared { state: Mutex::new(state), room: Condvar::new(), ahead, stalled });
    (Maker(shared.clone()), Taker(shared))
}

impl<T> Maker<T> {
    /// Puts a piece in, as soon as there is room.
    ///
    /// # Errors
    /// The call has ended, or took nothing for too long.
    pub fn put(&self, piece: T) -> Result<(), Closed> {
        let mut state = self.0.state.lock();
        while state.pieces.len() >= self.0.ahead && !state.given_up {
            let left = state.pieces.len();
            if self.0.room.wait_for(&mut state, self.0.stalled).timed_out() && state.pieces.len() == left {
                return Err(Closed::Stalled);
            }
        }
        if state.given_up {
            return Err(Closed::Gone);
        }
        state.pieces.push_back(piece);
        let waiting = state.waiting.take();
        drop(state);
        if let Some(waiting) = waiting {
            waiting.wake();
        }
        Ok(())
    }
}

impl<T> Maker<T> {
    /// Whether the call has ended.
    pub fn is_abandoned(&self) -> bool {
        self.0.state.lock().given_up
    }
}

impl<T> Drop for Maker<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.ended = true;
        let waiting = state.waiting.take();
        drop(state);
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }
}

impl<T> Taker<T> {
    /// The next piece; `None` when the maker has ended and all are taken.
    pub async fn take(&mut self) -> Option<T> {
        std::future::poll_fn(|cx| {
            let mut state = self.0.state.lock();
            if let Some(piece) = state.pieces.pop_front() {
                self.0.room.notify_one();
                return Poll::Ready(Some(piece));
            }
            if state.ended {
                return Poll::Ready(None);
            }
            state.waiting = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl<T> Drop for Taker<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.given_up = true;
        let pieces = std::mem::take(&mut state.pieces);
        drop(state);
        self.0.room.notify_one();
        drop(pieces);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_come_in_order_and_then_the_end() {
        let (maker, mut taker) = pipe(2);
        let thread = std::thread::spawn(move || (0..1000).try_for_each(|n| maker.put(n)));
        for n in 0..1000 {
            assert_eq!(taker.take().await, Some(n));
        }
        assert_eq!(taker.take().await, None);
        assert_eq!(thread.join().unwrap(), Ok(()));
    }

    #[test]
    fn a_maker_gives_up_a_taker_that_takes_nothing_or_has_gone() {
        let (maker, taker) = with_limit(2, Duration::from_millis(10));
        assert_eq!((maker.put(1), maker.put(2)), (Ok(()), Ok(())));
        assert_eq!(maker.put(3), Err(Closed::Stalled));
        drop(taker);
        assert_eq!(maker.put(3), Err(Closed::Gone));
    }
}
