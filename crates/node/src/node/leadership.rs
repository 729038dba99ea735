//! Who leads: what changes when leadership comes or goes, how sure of it this member is, and handing it over on request.

use dolmen_env::Mono;
use dolmen_raft::{BasicStatus, ProgressState, Role};
use dolmen_types::MemberId;

use super::Node;
use super::context::Context;
use crate::request::{Completion, Reply, RequestError};

/// Ticks after which one that has not come means that this process was paused.
const MISSED_TICKS: u64 = 3;

/// Leadership on its way to another member.
struct Transfer {
    /// Who asked, if anybody waits.
    completion: Option<Completion>,
    target: MemberId,
    since: Mono,
}

/// What this member knows of who leads.
pub(super) struct Leadership {
    leader: Option<MemberId>,
    /// Since when the newest leader has been known.
    since: Mono,
    transfer: Option<Transfer>,
    last_tick: Mono,
    /// The last tick came late: this process was paused, and may not be the leader it believes to be.
    was_paused: bool,
}

impl Leadership {
    pub(super) fn new(now: Mono) -> Self {
        Self { leader: None, since: now, transfer: None, last_tick: now, was_paused: false }
    }

    pub(super) fn leader(&self) -> Option<MemberId> {
        self.leader
    }

    pub(super) fn since(&self) -> Mono {
        self.since
    }

    /// Notes who leads; true when that is a new leader.
    fn set_leader(&mut self, leader: Option<MemberId>, now: Mono) -> bool {
        let new = leader != self.leader && leader.is_some();
        if new {
            self.since = now;
        }
        self.leader = leader;
        new
    }

    /// A tick came.
    pub(super) fn ticked(&mut self, cx: &Context, leads: bool) {
        let late = cx.now.since(self.last_tick) > MISSED_TICKS * cx.config.tick_nanos;
        // Only a quorum's word clears the doubt (see `Confirm::Doubt`); where nobody else votes there is none.
        self.was_paused = late || (self.was_paused && leads);
        self.last_tick = cx.now;
    }

    /// Whether this process was paused, and no quorum has confirmed since that it leads.
    pub(super) fn in_doubt(&self) -> bool {
        self.was_paused
    }

    /// A quorum has confirmed that this member leads.
    pub(super) fn confirmed(&mut self) {
        self.was_paused = false;
    }

    /// Until when nobody else can have been elected without a tick coming late first.
    pub(super) fn sure_until(&self, cx: &Context) -> Mono {
        Mono(self.last_tick.0 + MISSED_TICKS * cx.config.tick_nanos)
    }

    pub(super) fn is_handing_over(&self) -> bool {
        self.transfer.is_some()
    }

    pub(super) fn begin_transfer(&mut self, target: MemberId, completion: Option<Completion>, now: Mono) {
        self.transfer = Some(Transfer { completion, target, since: now });
    }

    /// Ends a transfer, and tells who asked for it.
    pub(super) fn end_transfer(&mut self, cx: &mut Context, result: Result<(), RequestError>) {
        if let Some(completion) = self.transfer.take().and_then(|transfer| transfer.completion) {
            cx.reply(completion, Reply::Done(result));
        }
    }
}

impl Node {
    pub(super) fn leads(&self) -> bool {
        self.raft_status().role == Role::Leader
    }

    pub(super) fn raft_status(&self) -> BasicStatus {
        self.raft.basic_status()
    }

    pub(super) fn is_only_voter(&self) -> bool {
        let conf_state = self.machine.conf_state();
        conf_state.voters == [self.cx.config.member_id] && conf_state.voters_outgoing.is_empty()
    }

    /// Raft says who leads now.
    pub(super) fn led_by(&mut self, leader: Option<MemberId>, leads: bool) {
        if self.leadership.set_leader(leader, self.cx.now) {
            self.cx.shared.metrics.leader_changes.add(1);
            self.reads.ask_again();
        }
        let lessor = self.machine.lessor_mut();
        if !leads && lessor.is_primary() {
            lessor.demote();
            self.leases.lost(&mut self.cx, leader);
        }
        self.hub.set_term(self.raft_status().term);
        self.check_transfer();
    }

    pub(super) fn move_leader(&mut self, target: MemberId, completion: Completion) {
        let voter = self.machine.membership().members.get(&target).is_some_and(|member| !member.is_learner);
        let answer = if !self.leads() {
            Err(RequestError::not_leader(self.leadership.leader()))
        } else if !voter {
            Err(RequestError::BadTransferee)
        } else if target == self.cx.config.member_id {
            Ok(())
        } else if self.leadership.is_handing_over() {
            Err(RequestError::TransferTimeout)
        } else {
            self.raft.transfer_leader(target);
            self.leadership.begin_transfer(target, Some(completion), self.cx.now);
            return;
        };
        self.cx.reply(completion, Reply::Done(answer));
    }

    pub(super) fn check_transfer(&mut self) {
        let Some(Transfer { target, since, .. }) = self.leadership.transfer else { return };
        if self.leadership.leader == Some(target) {
            self.leadership.end_transfer(&mut self.cx, Ok(()));
        } else if self.cx.now.since(since) > self.cx.config.request_timeout_nanos()
            || (!self.leads() && self.leadership.leader.is_some())
        {
            self.leadership.end_transfer(&mut self.cx, Err(RequestError::TransferTimeout));
        } else if self.ending.is_near() && self.leads() && self.raft_status().transferee == 0 {
            // Raft gave up after an election timeout. One that stops asks again, whoever has kept up by now; one that goes
            // on does not, because nothing is proposed meanwhile, and the transferee may be down for good.
            let target = self.most_caught_up_voter().unwrap_or(target);
            self.raft.transfer_leader(target);
            if let Some(transfer) = &mut self.leadership.transfer {
                transfer.target = target;
            }
        }
    }

    /// Begins to hand leadership over; false when this member does not lead, or nobody has kept up with it.
    pub(super) fn hand_over(&mut self) -> bool {
        if !self.leads() {
            return false;
        }
        if !self.leadership.is_handing_over() {
            let Some(target) = self.most_caught_up_voter() else { return false };
            self.raft.transfer_leader(target);
            self.leadership.begin_transfer(target, None, self.cx.now);
        }
        true
    }

    /// The voter that holds most of the log, of those that have been heard from lately.
    fn most_caught_up_voter(&self) -> Option<MemberId> {
        let others = self.raft.progress().filter(|(id, progress)| {
            *id != self.cx.config.member_id
                && !progress.is_learner
                && progress.recent_active
                && progress.state == ProgressState::Replicate
        });
        others.max_by_key(|(_, progress)| progress.matched).map(|(id, _)| id)
    }
}
