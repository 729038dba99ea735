//! Who leads: what changes when leadership comes or goes, and handing it over on request.

use dolmen_env::Mono;
use dolmen_raft::{BasicStatus, ProgressState, Role};
use dolmen_types::MemberId;

use super::Node;
use crate::request::{Completion, Reply, RequestError};

/// Leadership on its way to another member.
pub(super) struct Transfer {
    /// Who asked, if anybody waits.
    pub(super) completion: Option<Completion>,
    pub(super) target: MemberId,
    pub(super) since: Mono,
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
        conf_state.voters == [self.config.member_id] && conf_state.voters_outgoing.is_empty()
    }

    pub(super) fn leadership(&mut self, leader: MemberId, leads: bool) {
        if leader != self.leader {
            if leader != 0 {
                self.shared.metrics.leader_changes.add(1);
                self.leader_since = self.now;
                self.reads.ask_again();
            }
            self.leader = leader;
        }
        let lessor = self.machine.lessor_mut();
        if !leads && lessor.is_primary() {
            lessor.demote();
            self.renewals_open = Mono(0);
            for (_, completions) in std::mem::take(&mut self.renewals) {
                for completion in completions {
                    let error = RequestError::NotLeader { leader };
                    self.reply(completion, Reply::LeaseRenewed(Err(error)));
                }
            }
        }
        self.hub.set_term(self.raft_status().term);
        self.check_transfer();
    }

    pub(super) fn move_leader(&mut self, target: MemberId, completion: Completion) {
        let voter = self.machine.membership().members.get(&target).is_some_and(|member| !member.is_learner);
        if !self.leads() {
            let error = RequestError::NotLeader { leader: self.leader };
            self.reply(completion, Reply::Done(Err(error)));
        } else if !voter {
            self.reply(completion, Reply::Done(Err(RequestError::BadTransferee)));
        } else if target == self.config.member_id {
            self.reply(completion, Reply::Done(Ok(())));
        } else if self.transfer.is_some() {
            self.reply(completion, Reply::Done(Err(RequestError::TransferTimeout)));
        } else {
            self.raft.transfer_leader(target);
            self.transfer = Some(Transfer { completion: Some(completion), target, since: self.now });
        }
    }

    pub(super) fn check_transfer(&mut self) {
        let Some(transfer) = &self.transfer else { return };
        if self.leader == transfer.target {
            let transfer = self.transfer.take().and_then(|t| t.completion);
            if let Some(completion) = transfer {
                self.reply(completion, Reply::Done(Ok(())));
            }
        } else if self.now.since(transfer.since) > self.config.request_timeout_nanos()
            || (!self.leads() && self.leader != 0)
        {
            if let Some(completion) = self.transfer.take().and_then(|t| t.completion) {
                self.reply(completion, Reply::Done(Err(RequestError::TransferTimeout)));
            }
        } else if self.stopping.is_some() && self.leads() && self.raft_status().transferee == 0 {
            // Raft gave up after an election timeout. One that stops asks again; one that goes on does not, because nothing
            // is proposed meanwhile, and the transferee may be down for good.
            self.raft.transfer_leader(transfer.target);
        }
    }

    /// The voter that holds most of the log, of those that have been heard from lately.
    pub(super) fn most_caught_up_voter(&self) -> Option<MemberId> {
        let others = self.raft.progress().filter(|(id, progress)| {
            *id != self.config.member_id
                && !progress.is_learner
                && progress.recent_active
                && progress.state == ProgressState::Replicate
        });
        others.max_by_key(|(_, progress)| progress.matched).map(|(id, _)| id)
    }
}
