//! The end of a node.
//!
//! Two ways lead to it by way of a hand-over, so that nobody has to wait for an election: being asked to stop, and a store
//! that turns out to be damaged. Anything else that cannot go on (a log that does not continue, an installation that
//! failed) ends the node at once.
//!
//! ```text
//!   asked     refuse callers │ hand over, if leading │ wait for the store to be durable │ stop
//!   damaged   refuse callers │ hand over, if leading, for one election timeout          │ stop, and say what was found
//! ```
//!
//! A damaged node does nothing more than hand over: it proposes, applies and answers nothing, and makes no snapshot. Its
//! log is well, so raft goes on. What it had applied before may still be read beside it: each record is checked when read.

use dolmen_env::Mono;
use dolmen_types::error_chain;

use super::leadership::Transfer;
use super::{Node, StopReason};

impl Node {
    pub(super) fn begin_stop(&mut self, transfer: bool) {
        if self.stopping.is_some() {
            return;
        }
        let handing_over = transfer && self.hand_over();
        let patience = if handing_over { self.config.request_timeout_nanos() } else { 0 };
        self.stopping = Some(Mono(self.now.0 + patience));
        self.sync_now = true;
    }

    /// Our store cannot be read, which the next leader's can. After the time allowed the others elect one by themselves.
    pub(super) fn damaged(&mut self, what: String) {
        if self.damage.is_some() || self.stop.is_some() {
            return;
        }
        if !self.hand_over() {
            self.stop = Some(StopReason::Fatal(what));
            return;
        }
        let until = Mono(self.now.0 + self.config.election_nanos());
        self.stopping = Some(self.stopping.map_or(until, |asked| asked.min(until)));
        self.damage = Some(what);
        // The messages of the hand-over may be waiting behind what has just failed.
        self.effects.busy = true;
    }

    /// Begins to hand leadership over; false when this member does not lead, or nobody has kept up with it.
    fn hand_over(&mut self) -> bool {
        if !self.leads() {
            return false;
        }
        if self.transfer.is_none() {
            let Some(target) = self.most_caught_up_voter() else { return false };
            self.raft.transfer_leader(target);
            self.transfer = Some(Transfer { completion: None, target, since: self.now });
        }
        true
    }

    /// Stops once the new leader is known (or its time is up) and, unless the store is damaged, the store has written
    /// what it holds.
    pub(super) fn finish_stop(&mut self) {
        let Some(until) = self.stopping else { return };
        let handing_over = self.transfer.is_some() && self.now < until;
        if self.damage.is_some() {
            if !handing_over {
                self.stop = self.damage.take().map(StopReason::Fatal);
            }
            return;
        }
        let flushed = self.machine.store().log_ref().durable_index() >= self.machine.applied();
        self.sync_now = true;
        if !handing_over && flushed && self.wal_in_flight == 0 {
            let here = self.machine.membership().members.contains_key(&self.config.member_id);
            let removed = !here && !self.machine.membership().members.is_empty();
            if !removed || self.now >= until {
                self.stop = Some(if removed { StopReason::Removed } else { StopReason::Asked });
            }
        }
    }

    /// This node cannot go on at all.
    pub(super) fn fatal(&mut self, error: &dyn std::error::Error) {
        self.stop = Some(StopReason::Fatal(error_chain(error)));
    }
}
