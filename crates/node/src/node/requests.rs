//! Callers: a request comes in ([`Node::submit`]) and is answered once, whatever becomes of it.
//!
//! ```text
//!   propose      -> propose.rs     answered when applied, or by its timeout here
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
use crate::request::{Completion, Reply, Request, RequestError, Submission};

impl Node {
    pub(super) fn submit(&mut self, submission: Submission) {
        let Submission { request, completion, since } = submission;
        if self.stopping.is_some() {
            self.refuse(request, completion, RequestError::Stopped);
            return;
        }
        match request {
            Request::Propose { id, data, kind } => self.propose(id, data, kind, completion, since),
            Request::ReadIndex => self.reads.push(Confirm::Read(completion), since),
            Request::LeaseRenew { id } => self.renew(id, completion, since),
            Request::LeaseTimeToLive { id, keys } => {
                let lessor = self.machine.lessor();
                if self.leads() && (!lessor.is_primary() || !lessor.contains(id)) {
                    // As with renewals: this leader may not know of it yet.
                    self.reads.push(Confirm::TimeToLive(completion, id, keys), since);
                } else {
                    let reply = self.time_to_live(id, keys);
                    self.reply(completion, Reply::LeaseTimeToLive(reply));
                }
            }
            Request::Leases => {
                let leases = self.machine.lessor().list();
                self.reply(completion, Reply::Leases(leases));
            }
            Request::Alarms => {
                let alarms = self.machine.alarms(0);
                self.reply(completion, Reply::Alarms(alarms));
            }
            Request::MoveLeader { target } => self.move_leader(target, completion),
            Request::Defragment => {
                self.reclaim = true;
                self.reply(completion, Reply::Done(Ok(())));
            }
            Request::Snapshot => {
                let reply = match self.snapshot_source() {
                    Some(source) => Reply::Snapshot(source),
                    None => Reply::Done(Err(RequestError::Stopped)),
                };
                self.reply(completion, reply);
            }
            Request::WatchOpen { stream, outbox } => self.hub.open(stream, outbox),
            Request::WatchCreate { stream, create } => {
                let (revision, compacted) = (self.machine.store().revision(), self.machine.store().compact_revision());
                self.hub.create(stream, create, revision, compacted);
            }
            Request::WatchCancel { stream, watch_id } => self.hub.cancel(stream, watch_id),
            Request::WatchProgress { stream } => self.hub.progress(stream),
            Request::WatchClose { stream } => self.hub.close(stream),
        }
    }

    fn refuse(&mut self, request: Request, completion: Completion, error: RequestError) {
        let reply = match request {
            Request::Propose { .. } => Reply::Applied(Err(error)),
            Request::LeaseRenew { .. } => Reply::LeaseRenewed(Err(error)),
            Request::LeaseTimeToLive { .. } => Reply::LeaseTimeToLive(Err(error)),
            Request::ReadIndex => Reply::ReadReady(Err(error)),
            Request::WatchOpen { .. }
            | Request::WatchCreate { .. }
            | Request::WatchCancel { .. }
            | Request::WatchProgress { .. }
            | Request::WatchClose { .. } => return,
            Request::Leases
            | Request::Alarms
            | Request::MoveLeader { .. }
            | Request::Defragment
            | Request::Snapshot => Reply::Done(Err(error)),
        };
        self.reply(completion, reply);
    }

    pub(super) fn answer(&mut self, id: u64, result: Result<Response, RequestError>) {
        if let Some(pending) = self.pending.remove(&id) {
            self.reply(pending.completion, Reply::Applied(result));
        }
    }

    pub(super) fn answer_everybody(&mut self, error: RequestError) {
        let mut waiting: Vec<(u64, Completion)> =
            self.pending.drain().map(|(id, pending)| (id, pending.completion)).collect();
        waiting.sort_unstable_by_key(|(id, _)| *id);
        for (_, completion) in waiting {
            self.reply(completion, Reply::Applied(Err(error.clone())));
        }
        for reader in self.reads.drain() {
            self.confirm_failed(reader, error.clone());
        }
        for (_, completions) in std::mem::take(&mut self.renewals) {
            for completion in completions {
                self.reply(completion, Reply::LeaseRenewed(Err(error.clone())));
            }
        }
        if let Some(completion) = self.transfer.take().and_then(|t| t.completion) {
            self.reply(completion, Reply::Done(Err(error)));
        }
    }

    pub(super) fn expire_requests(&mut self) {
        let timeout = self.config.request_timeout_nanos();
        let deadline = Mono(self.now.0.saturating_sub(timeout));
        while let Some((since, id)) = self.deadlines.front().copied() {
            if since >= deadline {
                break;
            }
            self.deadlines.pop_front();
            if let Some(pending) = self.pending.remove(&id) {
                self.shared.metrics.proposals_failed.add(1);
                let error = self.timeout_error(since);
                self.reply(pending.completion, Reply::Applied(Err(error)));
            }
        }
        for reader in self.reads.expired(deadline) {
            self.shared.metrics.read_indexes_failed.add(1);
            self.confirm_failed(reader, RequestError::Timeout);
        }
    }

    fn timeout_error(&self, since: Mono) -> RequestError {
        let doubt = 2 * self.config.election_nanos();
        if since < self.leader_since && self.leader_since.since(since) <= doubt {
            RequestError::TimeoutLeaderFailure
        } else if self.leader != 0
            && self.leader != self.config.member_id
            && !self.shared.is_connected(self.leader, since)
        {
            RequestError::TimeoutConnectionLost
        } else {
            RequestError::Timeout
        }
    }
}
