//! Applying: committed entries run through the state machine, in order, and their effects go where they belong.
//!
//! A turn applies as much as its budget allows, and stops in the midst of an entry if it must: ticks, messages and the WAL
//! never wait for more than that. What one turn has finished becomes one batch of the store. After that watchers are served
//! and callers answered: what they hear of, readers can see. Other threads are told of the new state at the end of the turn.

use std::collections::VecDeque;

use dolmen_machine::{Applied, Outcome, Progress, Response};
use dolmen_mvcc::{Budget, Change};
use dolmen_proto::raftpb::{Entry, Message};
use dolmen_types::{Index, LeaseId, error_chain};

use super::Node;
use crate::chain_points::{ChainPoint, ChainPoints};
use crate::history::event;
use crate::peers::PeerAddress;
use crate::request::{Completion, RequestError};

/// Bytes that an entry in the making may have handed to the store before they are written: it goes on when they are.
const MAX_BACKLOG: usize = 64 << 20;

/// What raft has committed and the state machine has not done with.
#[derive(Default)]
pub(super) struct Applying {
    /// Oldest first. Bounded by what raft hands out before it hears of the first.
    queue: VecDeque<Message>,
    /// Entries of the first that are done.
    done: usize,
    /// Who asked for a lease and its keys in the midst of an entry. Bounded as callers are, and never there for longer than
    /// that entry.
    held: Vec<(LeaseId, Completion)>,
}

impl Applying {
    pub(super) fn push(&mut self, message: Message) {
        self.queue.push_back(message);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn hold(&mut self, id: LeaseId, completion: Completion) {
        self.held.push((id, completion));
    }

    pub(super) fn take_held(&mut self) -> Vec<(LeaseId, Completion)> {
        std::mem::take(&mut self.held)
    }

    /// The next entry above `applied`; what came with those before it is for raft to hear.
    fn next(&mut self, applied: Index, responses: &mut Vec<Message>) -> Option<&Entry> {
        while let Some(message) = self.queue.front_mut() {
            let rest = &message.entries[self.done..];
            // An installed snapshot may reach beyond the index that its message named.
            match rest.iter().position(|entry| entry.index > applied) {
                Some(skipped) => {
                    self.done += skipped;
                    break;
                }
                None => {
                    responses.append(&mut message.responses);
                    self.queue.pop_front();
                    self.done = 0;
                }
            }
        }
        self.queue.front().map(|message| &message.entries[self.done])
    }
}

/// What entries of one turn have led to.
#[derive(Default)]
struct Outcomes {
    answers: Vec<(u64, Result<Response, RequestError>)>,
    events: Vec<dolmen_watch::Event>,
    reconfigured: bool,
    /// For raft.
    responses: Vec<Message>,
    /// Of the entries.
    bytes: u64,
}

impl Node {
    /// Applies what is committed until the budget is spent.
    pub(super) fn apply(&mut self, budget: &mut Budget) {
        let mut outcomes = Outcomes::default();
        while self.ending.damage().is_none() {
            if !self.machine.is_busy() {
                let next = self.applying.next(self.machine.applied(), &mut outcomes.responses);
                let Some(entry) = next.filter(|_| !budget.is_spent()) else { break };
                budget.spend(entry.data.len());
                outcomes.bytes += entry.data.len() as u64;
                self.machine.begin(entry, self.cx.now);
            } else if budget.is_spent() || self.machine.store().log_ref().backlog_bytes() > MAX_BACKLOG {
                break;
            }
            let proposals = &self.proposals;
            match self.machine.step(budget, &|id| proposals.is_waiting(id)) {
                Ok(Progress::Done(applied)) => {
                    if ChainPoints::is_round(applied.index) {
                        self.note_chain();
                    }
                    self.applied(applied, &mut outcomes);
                }
                Ok(Progress::More { changes }) => {
                    self.count_bytes(&changes);
                    self.notify_part(changes, &mut outcomes);
                }
                Err(fatal) => return self.damaged(error_chain(&fatal)),
            }
        }
        self.publish(outcomes);
    }

    /// Tells other threads where the running hash stands.
    pub(super) fn note_chain(&self) {
        let (chain, index, term) = (self.machine.chain(), self.machine.applied(), self.machine.applied_term());
        self.cx.shared.note_chain(ChainPoint { index, term, from: chain.from, value: chain.value });
    }

    /// Whether there is something to apply now.
    pub(super) fn can_apply(&self) -> bool {
        !self.applying.is_empty()
            && self.ending.damage().is_none()
            && !(self.machine.is_busy() && self.machine.store().log_ref().backlog_bytes() > MAX_BACKLOG)
    }

    /// A part of a revision that takes several slices. Whoever watches any of it will read it from the store, as those do
    /// who are behind.
    fn notify_part(&mut self, changes: Vec<Change>, outcomes: &mut Outcomes) {
        self.hub.notify(std::mem::take(&mut outcomes.events));
        self.hub.notify_part(changes.into_iter().map(event).collect());
    }

    fn publish(&mut self, outcomes: Outcomes) {
        let Outcomes { answers, events, reconfigured, responses, bytes } = outcomes;
        self.machine.commit();
        self.note_chain();
        self.take_over_leases();
        self.hub.notify(events);
        if self.ending.damage().is_some() || self.ending.is_here() {
            return;
        }
        if reconfigured {
            self.publish_configuration();
        }
        for (id, result) in answers {
            self.answer(id, result);
        }
        self.propose_lost();
        for response in responses {
            let _refused = self.raft.step_local(response);
        }
        if !self.machine.is_busy() {
            for (id, completion) in self.applying.take_held() {
                self.answer_time_to_live(id, true, completion);
            }
        }
        self.remember_mark(bytes);
        self.trim_log();
    }

    /// Sorts one applied entry's effects.
    fn applied(&mut self, applied: Applied, outcomes: &mut Outcomes) {
        match applied.outcome {
            Outcome::Empty => {}
            Outcome::Request { id, result, changes, sliced } => {
                self.count(&result);
                self.count_bytes(&changes);
                if let Some(compaction) = self.machine.take_compaction() {
                    match self.upkeep.begin_hash() {
                        true => self.cx.effects.hashes.push((id, compaction.hash)),
                        false => self.hashed(id),
                    }
                    if compaction.physical {
                        // Its caller hears when everything superseded is gone and the hash is stored.
                        self.proposals.applied(id);
                        return;
                    }
                }
                outcomes.reconfigured |=
                    matches!(result, Ok(Response::Empty | Response::Alarm(_) | Response::Users(_)));
                let touched = self.machine.take_touched_leases();
                self.answer_renewals(&touched);
                outcomes.answers.push((id, result.map_err(RequestError::from)));
                if sliced {
                    self.notify_part(changes, outcomes);
                    self.hub.notify_end(self.machine.store().revision());
                } else {
                    outcomes.events.extend(changes.into_iter().map(event));
                }
            }
            Outcome::ConfChange { id, change, result } => {
                let removed_self = change.node_id == self.cx.config.member_id
                    && !self.machine.membership().members.contains_key(&self.cx.config.member_id);
                match self.raft.apply_conf_change(&change) {
                    Ok(conf_state) => self.machine.set_conf_state(conf_state),
                    Err(error) => self.fatal(&error),
                }
                if removed_self {
                    self.ending.removed(self.cx.now);
                }
                outcomes.answers.push((id, result.map(|()| Response::Empty).map_err(RequestError::from)));
                outcomes.reconfigured = true;
            }
        }
    }

    fn count(&self, result: &Result<Response, dolmen_machine::ApplyError>) {
        let metrics = &self.cx.shared.metrics;
        match result {
            Ok(Response::Put(_)) => metrics.puts.add(1),
            Ok(Response::DeleteRange(_)) => metrics.deletes.add(1),
            Ok(Response::Txn(_)) => metrics.txns.add(1),
            Ok(Response::Compaction(_)) => metrics.compactions.add(1),
            Ok(Response::LeaseGrant(_)) => metrics.lease_granted.add(1),
            Ok(Response::LeaseRevoke(_)) => metrics.lease_revoked.add(1),
            _ => {}
        }
    }

    fn count_bytes(&self, changes: &[dolmen_mvcc::Change]) {
        let bytes: usize = changes.iter().filter(|c| !c.tombstone).map(|c| c.payload.len()).sum();
        self.cx.shared.metrics.put_bytes.add(bytes as u64);
    }

    /// Tells readers and peers who belongs to the cluster now.
    pub(super) fn publish_configuration(&mut self) {
        let membership = self.machine.membership();
        self.cx.shared.set_membership(membership.clone());
        self.cx.shared.set_alarms(self.machine.alarms(0));
        self.cx.shared.set_auth(self.machine.auth().clone());
        let peers = membership
            .members
            .values()
            .filter(|member| member.id != self.cx.config.member_id)
            .map(|member| PeerAddress { id: member.id, urls: member.peer_urls.clone() })
            .collect();
        // Until the log has said who belongs here, the peers are those that the configuration named.
        if !membership.members.is_empty() {
            self.cx.effects.peers = Some((peers, membership.removed.iter().copied().collect()));
        }
    }

    pub(super) fn publish_status(&mut self) {
        let learner =
            self.machine.membership().members.get(&self.cx.config.member_id).is_some_and(|member| member.is_learner);
        let status = self.raft_status();
        self.cx.shared.set_status(
            self.leadership.leader(),
            status.term,
            status.commit,
            self.machine.applied(),
            learner,
            self.proposals.waiting(),
        );
        let stats = self.hub.stats();
        let metrics = &self.cx.shared.metrics;
        metrics.watch_streams.set(stats.streams);
        metrics.watchers.set(stats.watchers);
        metrics.slow_watchers.set(stats.slow_watchers);
        metrics.pending_events.set(stats.pending_events);
        metrics.events.set(stats.events_total);
    }
}
