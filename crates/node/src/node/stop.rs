//! The end of a node: as asked, with leadership handed over first; or at once, when it cannot go on.

use dolmen_env::Mono;
use dolmen_types::error_chain;

use super::leadership::Transfer;
use super::{Node, StopReason};

impl Node {
    pub(super) fn begin_stop(&mut self, transfer: bool) {
        if self.stopping.is_some() {
            return;
        }
        let others = self.machine.membership().members.len() > 1;
        let mut patience = 0;
        if transfer
            && others
            && self.leads()
            && let Some(target) = self.most_caught_up_voter()
        {
            self.raft.transfer_leader(target);
            self.transfer = Some(Transfer { completion: None, target, since: self.now });
            patience = self.config.request_timeout_nanos();
        }
        self.stopping = Some(Mono(self.now.0 + patience));
        self.sync_now = true;
    }

    /// Stops once leadership is handed over (or its time is up) and the store has written what it holds.
    pub(super) fn finish_stop(&mut self, until: Mono) {
        let waits = self.transfer.is_some() && self.leads() && self.now < until;
        let flushed = self.machine.store().log_ref().durable_index() >= self.machine.applied();
        self.sync_now = true;
        if !waits && flushed && self.wal_in_flight == 0 {
            let here = self.machine.membership().members.contains_key(&self.config.member_id);
            let removed = !here && !self.machine.membership().members.is_empty();
            if !removed || self.now >= until {
                self.stop = Some(if removed { StopReason::Removed } else { StopReason::Asked });
            }
        }
    }

    pub(super) fn fatal(&mut self, error: &dyn std::error::Error) {
        self.stop = Some(StopReason::Fatal(error_chain(error)));
    }
}
