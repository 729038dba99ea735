//! Leases, as far as they are the leader's: it alone knows deadlines, renews, and proposes what has expired.
//!
//! Grants, revokes and checkpoints come through the log like any write. A member leads the leases only once it has applied
//! an entry of its own term ([`Node::take_over_leases`]), and renews without asking a quorum only while it has not been
//! paused ([`Node::open_renewals`]).

use std::collections::BTreeMap;
use std::time::Duration;

use dolmen_env::Mono;
use dolmen_lease::{MAX_CHECKPOINT_BATCH, RenewError};
use dolmen_proto::etcdserverpb::{
    InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest, LeaseRevokeRequest, LeaseTimeToLiveResponse,
    RequestHeader,
};
use dolmen_types::{LeaseId, MemberId};

use super::Node;
use super::confirm::Confirm;
use super::context::Context;
use super::proposals::Origin;
use crate::request::{Completion, Reply, RequestError};

const LEASE_REVOKES_PER_TICK: usize = 100;

/// What the leader of the leases holds besides the lessor itself.
pub(super) struct LeaseKeeper {
    /// Renewals that wait for their lease's revoke, or for its checkpoint to be cleared.
    waiting: BTreeMap<LeaseId, Vec<Completion>>,
    /// Until when leases may be renewed beside this loop; 0 when only here.
    open_until: Mono,
}

impl LeaseKeeper {
    pub(super) fn new() -> Self {
        Self { waiting: BTreeMap::new(), open_until: Mono(0) }
    }

    /// Somebody else keeps the leases now; the lessor itself has closed the table that others renew in.
    pub(super) fn lost(&mut self, cx: &mut Context, leader: Option<MemberId>) {
        self.open_until = Mono(0);
        self.fail(cx, &RequestError::not_leader(leader));
    }

    /// Answers everybody who waits.
    pub(super) fn fail(&mut self, cx: &mut Context, error: &RequestError) {
        for completion in std::mem::take(&mut self.waiting).into_values().flatten() {
            cx.reply(completion, Reply::LeaseRenewed(Err(error.clone())));
        }
    }

    /// Has others renew leases by themselves until then.
    fn open(&mut self, cx: &Context, until: Mono) {
        if until != self.open_until {
            self.open_until = until;
            cx.shared.renewals.open(until);
        }
    }
}

impl Node {
    pub(super) fn renew(&mut self, id: LeaseId, completion: Completion, since: Mono) {
        let lessor = self.machine.lessor();
        if !self.leads() {
            let error = RequestError::not_leader(self.leadership.leader());
            self.cx.reply(completion, Reply::LeaseRenewed(Err(error)));
        } else if self.leadership.in_doubt() || !lessor.is_primary() || !lessor.contains(id) {
            // A new leader waits until it has applied what others left it, and a leader with a slow disk may apply a grant
            // later than its followers: only what a quorum confirms is gone.
            self.reads.push(Confirm::Renew(completion, id), since);
        } else {
            self.renew_confirmed(id, completion);
        }
    }

    pub(super) fn renew_confirmed(&mut self, id: LeaseId, completion: Completion) {
        let reply = match self.machine.lessor_mut().renew(id, self.cx.now) {
            Ok(ttl) => {
                self.cx.shared.metrics.lease_renewed.add(1);
                Ok(ttl)
            }
            Err(RenewError::NotFound) => Ok(0),
            // Past its deadline: the answer waits for the revoke that is on its way.
            Err(RenewError::PendingRevoke) => {
                self.leases.waiting.entry(id).or_default().push(completion);
                return;
            }
            // A checkpoint shortens the lease: it is cleared through the log first, so that no later leader believes it.
            Err(RenewError::Checkpointed) => {
                if !self.leases.waiting.contains_key(&id) {
                    self.propose_checkpoints(vec![LeaseCheckpoint { id, remaining_ttl: 0 }]);
                }
                self.leases.waiting.entry(id).or_default().push(completion);
                return;
            }
            Err(RenewError::NotPrimary) => Err(RequestError::not_leader(self.leadership.leader())),
        };
        self.cx.reply(completion, Reply::LeaseRenewed(reply));
    }

    /// Renewals that waited for their lease's revoke, or for its checkpoint to be cleared: those of the leases that an entry
    /// has just done this to.
    pub(super) fn answer_renewals(&mut self, touched: &[LeaseId]) {
        for id in touched {
            if !self.leases.waiting.contains_key(id) {
                continue;
            }
            let renewed = self.machine.lessor_mut().renew(*id, self.cx.now);
            if matches!(renewed, Err(RenewError::PendingRevoke | RenewError::Checkpointed)) {
                continue;
            }
            for completion in self.leases.waiting.remove(id).unwrap_or_default() {
                self.renew_confirmed(*id, completion);
            }
        }
    }

    /// Lets other threads renew what is plain ([`dolmen_lease::Renewals`]) for as long as this member leads without
    /// doubt: until the next ticks have stayed out, after which it may have been paused and followed by another leader.
    /// Losing the lead closes the table by itself ([`dolmen_lease::Lessor::demote`]).
    pub(super) fn open_renewals(&mut self) {
        let sure =
            self.leads() && !self.leadership.in_doubt() && self.machine.lessor().is_primary() && !self.ending.is_near();
        let until = if sure { self.leadership.sure_until(&self.cx) } else { Mono(0) };
        self.leases.open(&self.cx, until);
    }

    /// Keys of leases move while an entry is carried out: who asks for them waits until it is whole.
    pub(super) fn answer_time_to_live(&mut self, id: LeaseId, keys: bool, completion: Completion) {
        if keys && self.machine.is_busy() {
            self.applying.hold(id, completion);
        } else {
            let reply = self.time_to_live(id, keys);
            self.cx.reply(completion, Reply::LeaseTimeToLive(reply));
        }
    }

    fn time_to_live(&mut self, id: LeaseId, keys: bool) -> Result<LeaseTimeToLiveResponse, RequestError> {
        if !self.leads() {
            return Err(RequestError::not_leader(self.leadership.leader()));
        }
        Ok(match self.machine.lessor().time_to_live(id, self.cx.now, keys) {
            Ok(found) => LeaseTimeToLiveResponse {
                id,
                ttl: found.ttl,
                granted_ttl: found.granted_ttl,
                keys: found.keys,
                ..LeaseTimeToLiveResponse::default()
            },
            Err(_) => LeaseTimeToLiveResponse { id, ttl: -1, ..LeaseTimeToLiveResponse::default() },
        })
    }

    pub(super) fn expire_leases(&mut self) {
        let expired = self.machine.lessor_mut().expired(self.cx.now, LEASE_REVOKES_PER_TICK);
        for id in expired {
            self.cx.shared.metrics.lease_expired.add(1);
            let lease_revoke = Some(LeaseRevokeRequest { id });
            self.propose_as_leader(InternalRaftRequest {
                lease_revoke,
                header: self.as_root(),
                ..InternalRaftRequest::default()
            });
        }
        let due = self.machine.lessor_mut().checkpoints_due(self.cx.now, MAX_CHECKPOINT_BATCH);
        if !due.is_empty() {
            self.propose_checkpoints(
                due.into_iter().map(|due| LeaseCheckpoint { id: due.id, remaining_ttl: due.remaining_ttl }).collect(),
            );
        }
    }

    /// The header of what expires by itself: once users are checked, nobody's revoke would be refused.
    fn as_root(&self) -> Option<RequestHeader> {
        let auth = self.machine.auth();
        auth.is_enabled().then(|| RequestHeader {
            username: dolmen_auth::ROOT.to_owned(),
            auth_revision: auth.revision(),
            ..RequestHeader::default()
        })
    }

    fn propose_checkpoints(&mut self, checkpoints: Vec<LeaseCheckpoint>) {
        let lease_checkpoint = Some(LeaseCheckpointRequest { checkpoints });
        self.propose_as_leader(InternalRaftRequest { lease_checkpoint, ..InternalRaftRequest::default() });
    }

    fn propose_as_leader(&mut self, request: InternalRaftRequest) {
        let origin = Origin::Leader(self.raft_status().term);
        self.proposals.own(&self.cx, origin, request);
    }

    /// A leader keeps leases once it has applied an entry of its own term, and with it everything that leaders before it
    /// answered for: grants, and checkpoints with what cleared them.
    pub(super) fn take_over_leases(&mut self) {
        let leads = self.leads() && self.machine.applied_term() == self.raft_status().term;
        if leads && !self.machine.lessor().is_primary() {
            // Who led before may go on renewing until it notices that no quorum hears it, which takes it up to two election
            // timeouts; and this member may have been elected at once, by a hand-over or a hint.
            let extend = Duration::from_nanos(2 * self.cx.config.election_nanos());
            self.machine.lessor_mut().promote(self.cx.now, extend);
        }
    }
}
