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

use super::{Node, StopReason};

/// How long a member that was removed from its cluster still tells the others what it knows.
const REMOVED_NANOS: u64 = 1_000_000_000;

/// How near the end is.
#[derive(Default)]
pub(super) struct Ending {
    /// This member is about to stop, and will have by then.
    by: Option<Mono>,
    /// What was found wrong with the store: until the node stops because of it, it only hands leadership over.
    damage: Option<String>,
    /// The store is to be written at once.
    flush: bool,
    reason: Option<StopReason>,
}

impl Ending {
    /// Whether this member is about to stop: it takes nothing new.
    pub(super) fn is_near(&self) -> bool {
        self.by.is_some()
    }

    pub(super) fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    pub(super) fn wants_flush(&self) -> bool {
        self.flush
    }

    /// Whether it is over: nothing is carried out any more.
    pub(super) fn is_here(&self) -> bool {
        self.reason.is_some()
    }

    /// Ends the node with this turn.
    pub(super) fn now(&mut self, reason: StopReason) {
        self.reason = Some(reason);
    }

    /// This node cannot go on at all.
    pub(super) fn fatal(&mut self, what: String) {
        self.now(StopReason::Fatal(what));
    }

    pub(super) fn take(&mut self) -> Option<StopReason> {
        self.reason.take()
    }

    /// The log says that this member no longer belongs to the cluster.
    pub(super) fn removed(&mut self, now: Mono) {
        self.by.get_or_insert(Mono(now.0 + REMOVED_NANOS));
    }
}

impl Node {
    pub(super) fn begin_stop(&mut self, transfer: bool) {
        if self.ending.is_near() {
            return;
        }
        let handing_over = transfer && self.hand_over();
        let patience = if handing_over { self.cx.config.request_timeout_nanos() } else { 0 };
        self.ending.by = Some(Mono(self.cx.now.0 + patience));
        self.ending.flush = true;
    }

    /// Our store cannot be read, which the next leader's can. After the time allowed the others elect one by themselves.
    pub(super) fn damaged(&mut self, what: String) {
        if self.ending.damage.is_some() || self.ending.is_here() {
            return;
        }
        if !self.hand_over() {
            self.ending.fatal(what);
            return;
        }
        let until = Mono(self.cx.now.0 + self.cx.config.election_nanos());
        self.ending.by = Some(self.ending.by.map_or(until, |asked| asked.min(until)));
        self.ending.damage = Some(what);
        // The messages of the hand-over may be waiting behind what has just failed.
        self.cx.effects.busy = true;
    }

    /// Stops once the new leader is known (or its time is up) and, unless the store is damaged, the store has written
    /// what it holds.
    pub(super) fn finish_stop(&mut self) {
        let Some(by) = self.ending.by else { return };
        let handing_over = self.leadership.is_handing_over() && self.cx.now < by;
        if self.ending.damage.is_some() {
            if !handing_over {
                self.ending.reason = self.ending.damage.take().map(StopReason::Fatal);
            }
            return;
        }
        let flushed = self.machine.store().log_ref().durable_index() >= self.machine.applied();
        self.ending.flush = true;
        if !handing_over && flushed && self.log.is_idle() {
            let members = &self.machine.membership().members;
            let removed = !members.is_empty() && !members.contains_key(&self.cx.config.member_id);
            if !removed || self.cx.now >= by {
                self.ending.now(if removed { StopReason::Removed } else { StopReason::Asked });
            }
        }
    }

    /// This node cannot go on at all.
    pub(super) fn fatal(&mut self, error: &dyn std::error::Error) {
        self.ending.fatal(error_chain(error));
    }
}
