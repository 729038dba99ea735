//! What a leader knows about one member's log, and how it paces what it sends there.
//!
//! ```text
//!                    accepted append                  append rejected, or unreachable
//!        Probe ─────────────────────────▶ Replicate ─────────────────────────▶ Probe
//!          │  entries it needs are gone       │
//!          └──────────▶ Snapshot ◀────────────┘
//!                          │  append answered at a usable index, or the transfer was reported
//!                          └──────────▶ Probe or Replicate
//! ```
//!
//! * **Probe**: where its log ends is unknown; one append per heartbeat interval, until one is accepted.
//! * **Replicate**: appends are pipelined, bounded by [`Inflights`].
//! * **Snapshot**: it needs entries the leader no longer has; nothing is sent while a snapshot travels.

use std::fmt;

use crate::inflights::Inflights;

/// How the leader sends to a member; see the module page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgressState {
    #[default]
    Probe,
    Replicate,
    Snapshot,
}

impl fmt::Display for ProgressState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProgressState::Probe => "StateProbe",
            ProgressState::Replicate => "StateReplicate",
            ProgressState::Snapshot => "StateSnapshot",
        })
    }
}

/// One member, in the eyes of the leader. Invariant: `matched < next`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Its log equals the leader's up to here.
    pub matched: u64,
    /// The next entry to send; those in `(matched, next)` are in flight.
    pub next: u64,
    /// The highest commit index that was sent to it, as far as it may still count on it.
    pub sent_commit: u64,
    pub state: ProgressState,
    /// In `Snapshot`: index of the snapshot that was sent; else 0.
    pub pending_snapshot: u64,
    /// Something was heard from it since the last quorum check. Always true of the leader itself.
    pub recent_active: bool,
    /// Appends wait for a heartbeat response: set by a probe, or by a full window.
    pub append_paused: bool,
    pub inflights: Inflights,
    pub is_learner: bool,
}

impl Progress {
    /// A member that will be probed from `next`.
    pub const fn new(next: u64, inflights: Inflights, is_learner: bool) -> Self {
        Self {
            matched: 0,
            next,
            sent_commit: 0,
            state: ProgressState::Probe,
            pending_snapshot: 0,
            recent_active: false,
            append_paused: false,
            inflights,
            is_learner,
        }
    }

    fn enter(&mut self, state: ProgressState) {
        self.append_paused = false;
        self.pending_snapshot = 0;
        self.state = state;
        self.inflights.reset();
    }

    /// Probes from what is known to match, or from a snapshot that was sent and not reported failed.
    pub fn become_probe(&mut self) {
        let after_snapshot = if self.state == ProgressState::Snapshot { self.pending_snapshot } else { 0 };
        self.enter(ProgressState::Probe);
        self.next = self.matched.max(after_snapshot) + 1;
        self.sent_commit = self.sent_commit.min(self.next - 1);
    }

    pub fn become_replicate(&mut self) {
        self.enter(ProgressState::Replicate);
        self.next = self.matched + 1;
    }

    pub fn become_snapshot(&mut self, snapshot_index: u64) {
        self.enter(ProgressState::Snapshot);
        self.pending_snapshot = snapshot_index;
        self.next = snapshot_index + 1;
        self.sent_commit = snapshot_index;
    }

    /// Books an append message of `entries` entries with `bytes` of payload, starting at `next`.
    pub fn sent_entries(&mut self, entries: usize, bytes: u64) {
        match self.state {
            ProgressState::Replicate => {
                if entries > 0 {
                    self.next += entries as u64;
                    self.inflights.add(self.next - 1, bytes);
                }
                // A message that fills the window, or an empty one into a full window, acts as a probe.
                self.append_paused = self.inflights.full();
            }
            ProgressState::Probe => self.append_paused |= entries > 0,
            ProgressState::Snapshot => unreachable!("a member that waits for a snapshot is paused"),
        }
    }

    /// True when telling it `commit` could move its commit index, and no message in flight already does.
    pub const fn can_bump_commit(&self, commit: u64) -> bool {
        commit > self.sent_commit && self.sent_commit < self.next - 1
    }

    /// Takes an acknowledgement of everything up to `index`. False when that was known.
    pub fn maybe_update(&mut self, index: u64) -> bool {
        if index <= self.matched {
            return false;
        }
        self.matched = index;
        self.next = self.next.max(index + 1);
        self.append_paused = false;
        true
    }

    /// Takes the rejection of an append at `rejected`, with the member's `hint` where its log may match. False when the
    /// rejection is stale: reordered or repeated.
    pub fn maybe_decrease_to(&mut self, rejected: u64, hint: u64) -> bool {
        if self.state == ProgressState::Replicate {
            if rejected <= self.matched {
                return false;
            }
            self.next = self.matched + 1;
        } else {
            // Outside of Replicate one append is out at a time, so only the latest can be rejected.
            if self.next - 1 != rejected {
                return false;
            }
            self.next = rejected.min(hint.saturating_add(1)).max(self.matched + 1);
            self.append_paused = false;
        }
        self.sent_commit = self.sent_commit.min(self.next - 1);
        true
    }

    /// True while no append may be sent.
    pub const fn is_paused(&self) -> bool {
        match self.state {
            ProgressState::Probe | ProgressState::Replicate => self.append_paused,
            ProgressState::Snapshot => true,
        }
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} match={} next={}", self.state, self.matched, self.next)?;
        if self.is_learner {
            f.write_str(" learner")?;
        }
        if self.is_paused() {
            f.write_str(" paused")?;
        }
        if self.pending_snapshot > 0 {
            write!(f, " pendingSnap={}", self.pending_snapshot)?;
        }
        if !self.recent_active {
            f.write_str(" inactive")?;
        }
        if self.inflights.count() > 0 {
            write!(f, " inflight={}", self.inflights.count())?;
            if self.inflights.full() {
                f.write_str("[full]")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(state: ProgressState, matched: u64, next: u64) -> Progress {
        let mut progress = Progress::new(next, Inflights::new(256, 0), false);
        progress.matched = matched;
        progress.state = state;
        progress
    }

    #[test]
    fn probing_resumes_after_a_snapshot_that_was_sent() {
        let mut snapshot = progress(ProgressState::Snapshot, 1, 11);
        snapshot.pending_snapshot = 10;
        snapshot.become_probe();
        assert_eq!((snapshot.matched, snapshot.next, snapshot.state), (1, 11, ProgressState::Probe));

        let mut failed = progress(ProgressState::Snapshot, 1, 11);
        failed.pending_snapshot = 0;
        failed.become_probe();
        assert_eq!(failed.next, 2);
    }

    #[test]
    fn rejections() {
        use ProgressState::{Probe, Replicate};
        // state, matched, next, rejected, hint, genuine, next after
        let table = [
            (Replicate, 5, 10, 5, 5, false, 10),
            (Replicate, 5, 10, 4, 4, false, 10),
            (Replicate, 5, 10, 9, 9, true, 6),
            (Probe, 0, 0, 0, 0, false, 0),
            (Probe, 0, 10, 5, 5, false, 10),
            (Probe, 0, 10, 9, 9, true, 9),
            (Probe, 0, 2, 1, 1, true, 1),
            (Probe, 0, 1, 0, 0, true, 1),
            (Probe, 0, 10, 9, 2, true, 3),
            (Probe, 0, 10, 9, 0, true, 1),
            (Probe, 0, 10, 9, u64::MAX, true, 9),
            (Probe, 1, 2, 1, 0, true, 2),
        ];
        for (i, (state, matched, next, rejected, hint, genuine, after)) in table.into_iter().enumerate() {
            if next == 0 {
                continue;
            }
            let mut progress = progress(state, matched, next);
            assert_eq!(progress.maybe_decrease_to(rejected, hint), genuine, "row {i}");
            assert_eq!((progress.matched, progress.next), (matched, after), "row {i}");
        }
    }

    #[test]
    fn a_commit_index_is_sent_once_and_only_as_far_as_entries_are() {
        let mut progress = progress(ProgressState::Replicate, 3, 6);
        for (sent, commit, bumps) in [(3, 3, false), (3, 4, true), (4, 9, true), (5, 9, false), (9, 10, false)] {
            progress.sent_commit = sent;
            assert_eq!(progress.can_bump_commit(commit), bumps, "sent {sent}, commit {commit}");
        }
    }

    #[test]
    fn acknowledgements_move_forward_only() {
        for (update, matched, next, news) in [(2, 3, 5, false), (3, 3, 5, false), (4, 4, 5, true), (5, 5, 6, true)] {
            let mut progress = progress(ProgressState::Replicate, 3, 5);
            assert_eq!(progress.maybe_update(update), news);
            assert_eq!((progress.matched, progress.next), (matched, next));
        }
    }
}
