//! Who leads: what changes when leadership comes or goes, how sure of it this member is, and handing it over on request.

use std::collections::BTreeSet;

use dolmen_env::{Mono, Rng};
use dolmen_proto::raftpb::Entry;
use dolmen_raft::{BasicStatus, Progress, ProgressState, Role};
use dolmen_types::{MemberId, Term};

use super::Node;
use super::context::Context;
use crate::request::{Completion, Reply, RequestError};

/// Ticks after which one that has not come means that this process was paused.
const MISSED_TICKS: u64 = 3;

/// After a hint that the leader is gone, members stand at times so far apart, lest they split their votes.
const HINT_STAGGER_NANOS: u64 = 50_000_000;
/// So long they wait for an answer to the question whether they could win, and for votes.
const HINT_RETRY_NANOS: u64 = 100_000_000;
const HINT_PATIENCE_NANOS: u64 = 300_000_000;
/// So often they stand before they leave it to raft's own timeout.
const HINT_ATTEMPTS: u32 = 5;

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
    /// Members whose process is known to be a Dolmen.
    dolmens: BTreeSet<MemberId>,
    /// The leader's process seems to have died, and this member stands for election.
    hint: Option<Hint>,
    /// The last term in which it did so.
    hinted: Term,
    rng: Rng,
}

/// A stand for election for which nobody waited a timeout.
struct Hint {
    /// When it stands next.
    at: Mono,
    /// How often it still does.
    attempts: u32,
    /// It has won the question whether it could win, and waits for votes.
    voting: bool,
}

impl Leadership {
    pub(super) fn new(now: Mono, seed: u64) -> Self {
        Self {
            leader: None,
            since: now,
            transfer: None,
            last_tick: now,
            was_paused: false,
            dolmens: BTreeSet::new(),
            hint: None,
            hinted: 0,
            rng: Rng::new(seed),
        }
    }

    pub(super) fn set_dolmen(&mut self, id: MemberId, dolmen: bool) {
        if dolmen {
            self.dolmens.insert(id);
        } else {
            self.dolmens.remove(&id);
        }
    }

    pub(super) fn is_dolmen(&self, id: MemberId) -> bool {
        self.dolmens.contains(&id)
    }

    /// When the node has something to do although nothing comes in.
    pub(super) fn wake_at(&self) -> Option<Mono> {
        self.hint.as_ref().map(|hint| hint.at)
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
        if leads && cx.now.since(self.last_tick) > 2 * cx.config.tick_nanos {
            // What goes out with this tick should have gone with the one before.
            cx.shared.metrics.late_heartbeats.add(1);
        }
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
    /// A member's process seems to have died. If it leads, this member need not wait for a timeout to stand for election:
    /// it forgets the leader, so that it may vote for another, and stands a moment later, as the others do. Only a hint, so
    /// once a term, any word of the leader ends it, and nobody's term moves unless a quorum agrees to vote.
    pub(super) fn peer_gone(&mut self, id: MemberId) {
        let status = self.raft_status();
        if status.leader_id != id
            || status.role != Role::Follower
            || status.term == self.leadership.hinted
            || !self.cx.config.pre_vote
            || self.ending.is_near()
        {
            return;
        }
        self.raft.forget_leader();
        self.leadership.hinted = status.term;
        let at = Mono(self.cx.now.0 + self.leadership.rng.below(HINT_STAGGER_NANOS));
        self.leadership.hint = Some(Hint { at, attempts: HINT_ATTEMPTS, voting: false });
    }

    /// Stands for election when a hint says so.
    pub(super) fn follow_hint(&mut self) {
        let Some(hint) = &mut self.leadership.hint else { return };
        let status = self.raft.basic_status();
        if status.leader_id != dolmen_raft::NONE || hint.attempts == 0 || self.ending.is_near() {
            self.leadership.hint = None;
            return;
        }
        if self.cx.now < hint.at {
            return;
        }
        let stagger = self.leadership.rng.below(HINT_STAGGER_NANOS);
        let voting = status.role == Role::Candidate;
        if voting && !std::mem::replace(&mut hint.voting, true) {
            // Votes that are being written are not asked for anew, unless so late that two candidates have split them.
            hint.at = Mono(self.cx.now.0 + HINT_PATIENCE_NANOS + stagger);
            return;
        }
        // The others may get the hint a little later, and give no answer until then.
        let _leads_already = self.raft.campaign();
        hint.voting = false;
        hint.attempts -= 1;
        hint.at = Mono(self.cx.now.0 + HINT_RETRY_NANOS + stagger);
    }

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
            let target = self.most_caught_up_voter(|_| true).unwrap_or(target);
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
            let Some(target) = self.most_caught_up_voter(|_| true) else { return false };
            self.raft.transfer_leader(target);
            self.leadership.begin_transfer(target, None, self.cx.now);
        }
        true
    }

    /// A leader whose log's disk hangs answers nobody: the entries it appends count when others have them, but it applies
    /// only what is in its own log. When the oldest write has taken an election timeout, it hands over to a voter that has
    /// acknowledged something newer, and so is known to write. Where nobody has (they share the disk, or are few), it stays;
    /// so no two members with a bad disk play ball with leadership. Once its disk is well it can be elected like anybody.
    pub(super) fn leave_hanging_log(&mut self) {
        let timeout = self.cx.config.election_nanos();
        let Some((age, stalled)) = self.log.oldest(self.cx.now).filter(|(age, _)| *age >= timeout / 2) else { return };
        let status = self.raft_status();
        if status.role != Role::Leader || status.transferee != dolmen_raft::NONE || self.ending.damage().is_some() {
            return;
        }
        let newer = |progress: &Progress| progress.matched > stalled;
        if age >= timeout
            && let Some(target) = self.most_caught_up_voter(newer)
        {
            self.raft.transfer_leader(target);
            if !self.leadership.is_handing_over() {
                self.leadership.begin_transfer(target, None, self.cx.now);
            }
        } else if self.log.newest() == stalled && self.log.ask_proof(stalled) {
            // Nobody has asked for anything since, so nobody can have acknowledged it.
            let _dropped = self.raft.propose_entries(vec![Entry::default()]);
        }
    }

    /// The voter that holds most of the log, of those that have been heard from lately.
    fn most_caught_up_voter(&self, fits: impl Fn(&Progress) -> bool) -> Option<MemberId> {
        let others = self.raft.progress().filter(|(id, progress)| {
            *id != self.cx.config.member_id
                && !progress.is_learner
                && progress.recent_active
                && progress.state == ProgressState::Replicate
                && fits(progress)
        });
        others.max_by_key(|(_, progress)| progress.matched).map(|(id, _)| id)
    }
}
