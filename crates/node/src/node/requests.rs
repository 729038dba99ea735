//! Callers: a request comes in ([`Node::submit`]) and is answered once, whatever becomes of it.
//!
//! ```text
//!   propose      -> proposals.rs    answered when applied, or by its timeout here
//!   read, renew  -> confirm.rs     answered when a quorum has confirmed that this member leads
//!   watch        -> the hub        answered through the stream's outbox
//!   move leader  -> leadership.rs  answered when the other one leads
//!   the rest     answered at once
//! ```
//!
//! Nobody is forgotten: who still waits at a timeout is told by [`Node::expire_requests`], who still waits at the end by
//! [`Node::answer_everybody`].

use dolmen_env::Mono;
use dolmen_machine::Response;

use super::Node;
use super::confirm::Confirm;
use super::proposals::{Expired, Proposal};
use crate::request::{Completion, ProposeKind, Reply, Request, RequestError, Submission};

impl Node {
    pub(super) fn submit(&mut self, submission: Submission) {
        let Submission { request, completion, since } = submission;
        if self.ending.is_near() {
            self.refuse(request, completion, RequestError::Stopped);
            return;
        }
        match request {
            Request::Propose { id, data, kind } => {
                self.propose(Proposal::Normal { id, data }, kind, completion, since);
            }
            Request::ChangeMembers { change } => {
                self.propose(Proposal::conf_change(&change), ProposeKind::Normal, completion, since);
            }
            Request::ReadIndex => self.reads.push(Confirm::Read(completion), since),
            Request::LeaseRenew { id } => self.renew(id, completion, since),
            Request::LeaseTimeToLive { id, keys } => {
                let lessor = self.machine.lessor();
                let unsure = self.leadership.in_doubt() || !lessor.is_primary() || !lessor.contains(id);
                if self.leads() && unsure {
                    // As with renewals: this leader may not know of it yet, or lead no more.
                    self.reads.push(Confirm::TimeToLive(completion, id, keys), since);
                } else {
                    self.answer_time_to_live(id, keys, completion);
                }
            }
            Request::Leases => {
                let leases = self.machine.lessor().list();
                self.cx.reply(completion, Reply::Leases(leases));
            }
            Request::LeaseCheck { who, lease, access } => {
                let checked = self.machine.check_lease(who.as_ref(), lease, access);
                let checked = checked.map_err(|error| RequestError::Apply(error.into()));
                self.cx.reply(completion, Reply::Done(checked));
            }
            Request::Alarms => {
                let alarms = self.machine.alarms(0);
                self.cx.reply(completion, Reply::Alarms(alarms));
            }
            Request::MoveLeader { target } => self.move_leader(target, completion),
            Request::Defragment => {
                self.upkeep.ask_reclaim();
                self.cx.reply(completion, Reply::Done(Ok(())));
            }
            Request::Snapshot => {
                let reply = match self.snapshot_source() {
                    Some(source) => Reply::Snapshot(source),
                    None => Reply::Done(Err(RequestError::Stopped)),
                };
                self.cx.reply(completion, reply);
            }
            Request::WatchOpen { stream, outbox } => self.hub.open(stream, outbox),
            Request::WatchCreate { stream, create } => {
                let (revision, compacted) = (self.machine.store().revision(), self.machine.store().compact_revision());
                self.hub.create(stream, create, revision, compacted);
            }
            Request::WatchRefuse { stream, reason } => self.hub.refuse(stream, &reason),
            Request::WatchCancel { stream, watch_id } => self.hub.cancel(stream, watch_id),
            Request::WatchProgress { stream } => self.hub.progress(stream),
            Request::WatchRoom { stream } => self.hub.room(stream),
            Request::WatchClose { stream } => self.hub.close(stream),
        }
    }

    fn refuse(&mut self, request: Request, completion: Completion, error: RequestError) {
        let reply = match request {
            Request::Propose { .. } | Request::ChangeMembers { .. } => Reply::Applied(Err(error)),
            Request::LeaseRenew { .. } => Reply::LeaseRenewed(Err(error)),
            Request::LeaseTimeToLive { .. } => Reply::LeaseTimeToLive(Err(error)),
            Request::ReadIndex => Reply::ReadReady(Err(error)),
            Request::WatchOpen { .. }
            | Request::WatchCreate { .. }
            | Request::WatchRefuse { .. }
            | Request::WatchCancel { .. }
            | Request::WatchProgress { .. }
            | Request::WatchRoom { .. }
            | Request::WatchClose { .. } => return,
            Request::Leases
            | Request::LeaseCheck { .. }
            | Request::Alarms
            | Request::MoveLeader { .. }
            | Request::Defragment
            | Request::Snapshot => Reply::Done(Err(error)),
        };
        self.cx.reply(completion, reply);
    }

    pub(super) fn answer(&mut self, id: u64, result: Result<Response, RequestError>) {
        if let Some(completion) = self.proposals.answered(id) {
            self.cx.reply(completion, Reply::Applied(result));
        }
    }

    pub(super) fn answer_everybody(&mut self, error: &RequestError) {
        for completion in self.proposals.drain() {
            self.cx.reply(completion, Reply::Applied(Err(error.clone())));
        }
        for waiting in self.reads.drain() {
            waiting.what.failed(&mut self.cx, error.clone());
        }
        self.leases.fail(&mut self.cx, error);
        for (_, completion) in self.applying.take_held() {
            self.cx.reply(completion, Reply::LeaseTimeToLive(Err(error.clone())));
        }
        self.leadership.end_transfer(&mut self.cx, Err(error.clone()));
    }

    pub(super) fn expire_requests(&mut self) {
        let deadline = Mono(self.cx.now.0.saturating_sub(self.cx.config.request_timeout_nanos()));
        while let Some(Expired { since, completion, sent_term }) = self.proposals.expired(deadline) {
            self.cx.shared.metrics.proposals_failed.add(1);
            let outlived = sent_term.is_some_and(|sent| sent < self.raft_status().term);
            let error = if outlived { RequestError::TimeoutLeaderFailure } else { self.timeout_error(since) };
            self.cx.reply(completion, Reply::Applied(Err(error)));
        }
        for waiting in self.reads.expired(deadline) {
            self.cx.shared.metrics.read_indexes_failed.add(1);
            self.cx.shared.metrics.slow_read_indexes.add(1);
            waiting.what.failed(&mut self.cx, RequestError::Timeout);
        }
    }

    fn timeout_error(&self, since: Mono) -> RequestError {
        let doubt = 2 * self.cx.config.election_nanos();
        let led_since = self.leadership.since();
        let elsewhere = self.leadership.leader().filter(|leader| *leader != self.cx.config.member_id);
        if since < led_since && led_since.since(since) <= doubt {
            RequestError::TimeoutLeaderFailure
        } else if elsewhere.is_some_and(|leader| !self.cx.shared.is_connected(leader, since)) {
            RequestError::TimeoutConnectionLost
        } else {
            RequestError::Timeout
        }
    }
}
