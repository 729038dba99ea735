//! Leases, as far as they are the leader's: it alone knows deadlines, renews, and proposes what has expired.
//!
//! Grants, revokes and checkpoints come through the log like any write. A member leads the leases only once it has applied
//! an entry of its own term ([`Node::take_over_leases`]), and renews without asking a quorum only while it has not been
//! paused ([`Node::open_renewals`]).

use std::time::Duration;

use dolmen_env::Mono;
use dolmen_lease::{MAX_CHECKPOINT_BATCH, RenewError};
use dolmen_proto::etcdserverpb::{
    InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest, LeaseRevokeRequest, LeaseTimeToLiveResponse,
};
use dolmen_types::LeaseId;

use super::confirm::Confirm;
use super::propose::Origin;
use super::{MISSED_TICKS, Node};
use crate::request::{Completion, Reply, RequestError};

const LEASE_REVOKES_PER_TICK: usize = 100;

impl Node {
    pub(super) fn renew(&mut self, id: LeaseId, completion: Completion, since: Mono) {
        if !self.leads() {
            let error = RequestError::NotLeader { leader: self.leader };
            self.reply(completion, Reply::LeaseRenewed(Err(error)));
        } else if self.was_paused || !self.machine.lessor().is_primary() || !self.machine.lessor().contains(id) {
            // A new leader waits until it has applied what others left it, and a leader with a slow disk may apply a grant
            // later than its followers: only what a quorum confirms is gone.
            self.reads.push(Confirm::Renew(completion, id), since);
        } else {
            self.renew_confirmed(id, completion);
        }
    }

    pub(super) fn renew_confirmed(&mut self, id: LeaseId, completion: Completion) {
        let reply = match self.machine.lessor_mut().renew(id, self.now) {
            Ok(ttl) => {
                self.shared.metrics.lease_renewed.add(1);
                Ok(ttl)
            }
            Err(RenewError::NotFound) => Ok(0),
            // Past its deadline: the answer waits for the revoke that is on its way.
            Err(RenewError::PendingRevoke) => {
                self.renewals.entry(id).or_default().push(completion);
                return;
            }
            // A checkpoint shortens the lease: it is cleared through the log first, so that no later leader believes it.
            Err(RenewError::Checkpointed) => {
                if !self.renewals.contains_key(&id) {
                    self.propose_checkpoints(vec![LeaseCheckpoint { id, remaining_ttl: 0 }]);
                }
                self.renewals.entry(id).or_default().push(completion);
                return;
            }
            Err(RenewError::NotPrimary) => Err(RequestError::NotLeader { leader: self.leader }),
        };
        self.reply(completion, Reply::LeaseRenewed(reply));
    }

    /// Renewals that waited for their lease's revoke, or for its checkpoint to be cleared.
    pub(super) fn answer_renewals(&mut self) {
        let lessor = self.machine.lessor_mut();
        let waits = |id: &LeaseId, lessor: &mut dolmen_lease::Lessor| {
            matches!(lessor.renew(*id, self.now), Err(RenewError::PendingRevoke | RenewError::Checkpointed))
        };
        let due: Vec<LeaseId> = self.renewals.keys().copied().filter(|id| !waits(id, lessor)).collect();
        for id in due {
            for completion in self.renewals.remove(&id).unwrap_or_default() {
                self.renew_confirmed(id, completion);
            }
        }
    }

    /// Lets other threads renew what is plain ([`dolmen_lease::Renewals`]) for as long as this member leads without
    /// doubt: until the next ticks have stayed out, after which it may have been paused and followed by another leader.
    /// Losing the lead closes the table by itself ([`dolmen_lease::Lessor::demote`]).
    pub(super) fn open_renewals(&mut self) {
        let sure = self.leads() && !self.was_paused && self.machine.lessor().is_primary() && self.stopping.is_none();
        let until = if sure { Mono(self.last_tick.0 + MISSED_TICKS * self.config.tick_nanos) } else { Mono(0) };
        if until != self.renewals_open {
            self.renewals_open = until;
            self.shared.renewals.open(until);
        }
    }

    pub(super) fn time_to_live(&mut self, id: LeaseId, keys: bool) -> Result<LeaseTimeToLiveResponse, RequestError> {
        if !self.leads() {
            return Err(RequestError::NotLeader { leader: self.leader });
        }
        Ok(match self.machine.lessor().time_to_live(id, self.now, keys) {
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
        let expired = self.machine.lessor_mut().expired(self.now, LEASE_REVOKES_PER_TICK);
        for id in expired {
            self.shared.metrics.lease_expired.add(1);
            let lease_revoke = Some(LeaseRevokeRequest { id });
            let request = InternalRaftRequest { lease_revoke, ..InternalRaftRequest::default() };
            let _id = self.propose_own(Origin::Leader(self.raft_status().term), request);
        }
        let due = self.machine.lessor_mut().checkpoints_due(self.now, MAX_CHECKPOINT_BATCH);
        if !due.is_empty() {
            self.propose_checkpoints(
                due.into_iter().map(|due| LeaseCheckpoint { id: due.id, remaining_ttl: due.remaining_ttl }).collect(),
            );
        }
    }

    fn propose_checkpoints(&mut self, checkpoints: Vec<LeaseCheckpoint>) {
        let lease_checkpoint = Some(LeaseCheckpointRequest { checkpoints });
        let request = InternalRaftRequest { lease_checkpoint, ..InternalRaftRequest::default() };
        let _id = self.propose_own(Origin::Leader(self.raft_status().term), request);
    }

    /// A leader keeps leases once it has applied an entry of its own term, and with it everything that leaders before it
    /// answered for: grants, and checkpoints with what cleared them.
    pub(super) fn take_over_leases(&mut self) {
        let leads = self.leads() && self.machine.applied_term() == self.raft_status().term;
        if leads && !self.machine.lessor().is_primary() {
            let extend = Duration::from_nanos(self.config.election_nanos());
            self.machine.lessor_mut().promote(self.now, extend);
        }
    }
}
