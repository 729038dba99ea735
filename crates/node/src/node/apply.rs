//! Applying: committed entries run through the state machine, in order, and their effects go where they belong.
//!
//! Everything that one turn applies becomes one batch of the store. After that watchers are served and callers answered:
//! what they hear of, readers can see. Other threads are told of the new state at the end of the turn.

use dolmen_machine::{Applied, Outcome, Response};
use dolmen_proto::raftpb::Message;
use dolmen_types::error_chain;

use super::Node;
use crate::history::event;
use crate::peers::PeerAddress;
use crate::request::RequestError;

impl Node {
    pub(super) fn apply(&mut self, message: Message) {
        if self.ending.damage().is_some() {
            return;
        }
        let mut answers = Vec::new();
        let mut events = Vec::new();
        let mut reconfigured = false;
        for entry in &message.entries {
            // An installed snapshot may reach beyond the index that its message named.
            if entry.index <= self.machine.applied() {
                continue;
            }
            match self.machine.apply(entry, self.cx.now) {
                Ok(applied) => reconfigured |= self.applied(applied, &mut answers, &mut events),
                Err(fatal) => {
                    self.damaged(error_chain(&fatal));
                    return;
                }
            }
        }
        self.machine.commit();
        self.take_over_leases();
        if !events.is_empty()
            && let Err(error) = self.hub.notify(&events, &self.history)
        {
            self.damaged(error_chain(&error));
            return;
        }
        if reconfigured {
            self.publish_configuration();
        }
        for (id, result) in answers {
            self.answer(id, result);
        }
        for response in message.responses {
            let _refused = self.raft.step_local(response);
        }
        self.remember_mark();
    }

    /// Sorts one applied entry's effects; true when the configuration may have changed.
    pub(super) fn applied(
        &mut self,
        applied: Applied,
        answers: &mut Vec<(u64, Result<Response, RequestError>)>,
        events: &mut Vec<dolmen_watch::Event>,
    ) -> bool {
        match applied.outcome {
            Outcome::Empty => false,
            Outcome::Request { id, result, changes } => {
                self.count(&result, &changes);
                if let Some(compaction) = self.machine.take_compaction() {
                    self.cx.effects.hashes.push((id, compaction.hash));
                    if compaction.physical {
                        // Its caller hears when everything superseded is gone and the hash is stored.
                        return false;
                    }
                }
                let reconfigured = matches!(result, Ok(Response::Empty | Response::Alarm(_) | Response::Users(_)));
                self.answer_renewals();
                answers.push((id, result.map_err(RequestError::from)));
                events.extend(changes.into_iter().map(event));
                reconfigured
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
                answers.push((id, result.map(|()| Response::Empty).map_err(RequestError::from)));
                true
            }
        }
    }

    fn count(&self, result: &Result<Response, dolmen_machine::ApplyError>, changes: &[dolmen_mvcc::Change]) {
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
        let bytes: usize = changes.iter().filter(|c| !c.tombstone).map(|c| c.payload.len()).sum();
        metrics.put_bytes.add(bytes as u64);
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
