//! What the connections to a peer say of its process.
//!
//! A process that dies takes its sockets along: within a moment all its streams are closed, in both directions, and whoever
//! dials is refused. That is told once ([`Presence::refused`]), and again only after a stream has been open since. A
//! process that stands still, a network that swallows packets, a peer that closes one stream for a newer one: none of them
//! looks like this. A firewall that rejects does, so whoever is told takes it for a hint.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

#[derive(Default)]
pub(crate) struct Presence {
    state: Mutex<State>,
    /// The last stream has closed: it is time to dial.
    closed: Notify,
}

#[derive(Default)]
struct State {
    /// What the peer's process was last known to be.
    dolmen: Option<bool>,
    /// Streams open now, those it reads and those we read.
    open: usize,
    /// When the last of them closed; `None` when none was open since the end was told.
    closed_at: Option<Instant>,
    /// URLs that have refused a dial since.
    refused: BTreeSet<String>,
}

/// A stream that is open.
pub(crate) struct OpenStream<'p>(&'p Presence);

impl Presence {
    /// Notes whether the process is a Dolmen; true when that is news.
    pub(crate) fn is_dolmen(&self, dolmen: bool) -> bool {
        self.state.lock().dolmen.replace(dolmen) != Some(dolmen)
    }

    /// A stream was opened, for as long as the guard lives.
    pub(crate) fn opened(&self) -> OpenStream<'_> {
        self.count_opened();
        OpenStream(self)
    }

    /// As [`Presence::opened`], without a guard: [`Presence::count_closed`] follows.
    pub(crate) fn count_opened(&self) {
        let mut state = self.state.lock();
        state.open += 1;
        state.closed_at = None;
        state.refused.clear();
    }

    pub(crate) fn count_closed(&self) {
        let mut state = self.state.lock();
        state.open -= 1;
        if state.open == 0 {
            state.closed_at = Some(Instant::now());
            drop(state);
            self.closed.notify_waiters();
        }
    }

    /// Waits until the last open stream closes.
    pub(crate) async fn closed(&self) {
        self.closed.notified().await;
    }

    /// A dial of one of the peer's `urls`, begun at `began`, was refused. True when that completes the picture.
    pub(crate) fn refused(&self, url: &str, urls: usize, began: Instant) -> bool {
        let mut state = self.state.lock();
        if state.closed_at.is_none_or(|closed| began < closed) {
            return false;
        }
        state.refused.insert(url.to_owned());
        if state.refused.len() < urls {
            return false;
        }
        state.closed_at = None;
        state.dolmen == Some(true)
    }
}

impl Drop for OpenStream<'_> {
    fn drop(&mut self) {
        self.0.count_closed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_picture_counts_and_only_once() {
        let presence = Presence::default();
        assert!(presence.is_dolmen(true));
        assert!(!presence.is_dolmen(true));
        assert!(!presence.refused("a", 1, Instant::now()), "it was never connected");
        let (first, second) = (presence.opened(), presence.opened());
        drop(first);
        assert!(!presence.refused("a", 1, Instant::now()), "a stream is open");
        let before = Instant::now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        drop(second);
        assert!(!presence.refused("a", 1, before), "it was dialled before the last stream closed");
        assert!(!presence.refused("a", 2, Instant::now()), "there is another way");
        assert!(presence.refused("b", 2, Instant::now()));
        assert!(!presence.refused("b", 2, Instant::now()), "it was told");
        drop(presence.opened());
        assert!(presence.refused("a", 1, Instant::now()), "it was back meanwhile");
        assert!(presence.is_dolmen(false));
        drop(presence.opened());
        assert!(!presence.refused("a", 1, Instant::now()), "a Go member: as before");
    }
}
