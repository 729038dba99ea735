//! A leader's side: replicating, committing, transferring leadership.

use bytes::Bytes;
use dolmen_proto::raftpb::{Message, MessageType};

use super::{Raft, Role, message};
use crate::NONE;
use crate::config::ReadOnlyOption;
use crate::entry::{EntryId, payload_sizes};
use crate::error::Error;
use crate::logger::log;
use crate::progress::ProgressState;
use crate::storage::{Storage, StorageError, snapshot_index, snapshot_term};

impl<S: Storage> Raft<S> {
    /// Sends what a member lacks, or at least the commit index.
    pub(super) fn send_append(&mut self, to: u64) {
        self.maybe_send_append(to, true);
    }

    /// Sends an append, or the snapshot when what the member needs is gone. Nothing while it is paused, nor an append
    /// without entries unless `even_empty`. True when something was sent.
    pub(super) fn maybe_send_append(&mut self, to: u64, even_empty: bool) -> bool {
        let Some(progress) = self.tracker.progress.get(to) else {
            return false;
        };
        if progress.is_paused() {
            return false;
        }
        let next = progress.next;
        let Ok(previous_term) = self.log.term(next - 1) else {
            return self.maybe_send_snapshot(to);
        };
        // Into a full window go only empty appends: should everything in flight be lost, their answers reopen it.
        let throttled = progress.state == ProgressState::Replicate && progress.inflights.full();
        let entries = if throttled { Ok(Vec::new()) } else { self.log.entries(next, self.max_message_size) };
        let entries = match entries {
            Ok(entries) if entries.is_empty() && !even_empty => return false,
            Ok(entries) => entries,
            Err(_) if !even_empty => return false,
            Err(_) => return self.maybe_send_snapshot(to),
        };
        let commit = self.log.committed;
        if let Some(progress) = self.tracker.progress.get_mut(to) {
            progress.sent_entries(entries.len(), payload_sizes(&entries));
            progress.sent_commit = commit;
        }
        self.send(Message {
            index: next - 1,
            log_term: previous_term,
            entries,
            commit,
            ..message(MessageType::MsgApp, to)
        });
        true
    }

    fn maybe_send_snapshot(&mut self, to: u64) -> bool {
        let snapshot = self.log.snapshot();
        let (first_index, committed) = (self.log.first_index(), self.log.committed);
        let Some(progress) = self.tracker.progress.get_mut(to) else {
            return false;
        };
        if !progress.recent_active {
            log!(self.logger, Debug, "ignore sending snapshot to {to:x} since it is not recently active");
            return false;
        }
        // Without an index there is no snapshot yet; the member is asked again when it is next heard from.
        let snapshot = snapshot.and_then(|snapshot| match snapshot_index(&snapshot) {
            0 => Err(StorageError::SnapshotTemporarilyUnavailable),
            _ => Ok(snapshot),
        });
        let Ok(snapshot) = snapshot else {
            log!(
                self.logger,
                Debug,
                "{:x} failed to send snapshot to {to:x} because snapshot is temporarily unavailable",
                self.id
            );
            return false;
        };
        let (index, term) = (snapshot_index(&snapshot), snapshot_term(&snapshot));
        log!(
            self.logger,
            Debug,
            "{:x} [firstindex: {first_index}, commit: {committed}] sent snapshot[index: {index}, term: {term}] \
             to {to:x} [{progress}]",
            self.id
        );
        progress.become_snapshot(index);
        log!(self.logger, Debug, "{:x} paused sending replication messages to {to:x} [{progress}]", self.id);
        self.send(Message { snapshot: Some(snapshot), ..message(MessageType::MsgSnap, to) });
        true
    }

    /// Sends an append to every other member.
    pub(super) fn broadcast_append(&mut self) {
        self.each_other(Self::send_append);
    }

    /// Runs `each` for every member but this one, in ascending order. `each` leaves the membership alone.
    pub(super) fn each_other(&mut self, mut each: impl FnMut(&mut Self, u64)) {
        for at in 0..self.tracker.progress.len() {
            let id = self.tracker.progress.id_at(at);
            if id != self.id {
                each(self, id);
            }
        }
    }

    /// Sends a heartbeat to every other member, with the number of the newest waiting read.
    pub(super) fn broadcast_heartbeat(&mut self) {
        let context = self.read_only.heartbeat_context();
        self.each_other(|raft, id| raft.send_heartbeat(id, context.clone()));
    }

    fn send_heartbeat(&mut self, to: u64, context: Bytes) {
        let committed = self.log.committed;
        let Some(progress) = self.tracker.progress.get_mut(to) else {
            return;
        };
        // Not beyond what it is known to have: its log may differ there.
        let commit = progress.matched.min(committed);
        progress.sent_commit = commit;
        self.send(Message { commit, context, ..message(MessageType::MsgHeartbeat, to) });
    }

    /// Commits what a quorum has. True when the commit index moved.
    pub(super) fn maybe_commit(&mut self) -> bool {
        let id = EntryId { term: self.term, index: self.tracker.committed() };
        self.log.maybe_commit(id)
    }

    pub(super) fn check_quorum_active(&mut self) {
        if !self.tracker.quorum_active() {
            log!(self.logger, Warning, "{:x} stepped down to follower since quorum is not active", self.id);
            self.become_follower(self.term, NONE);
        }
        for (id, progress) in self.tracker.progress.iter_mut() {
            if id != self.id {
                progress.recent_active = false;
            }
        }
    }

    pub(super) fn handle_append_response(&mut self, response: &Message) -> Result<(), Error> {
        let last_index = self.log.last_index();
        if !response.reject && response.index > last_index {
            // Believing it would send that member a commit index it cannot have.
            return Err(self.invalid(response, "acknowledges entries that were never sent"));
        }
        let Some(progress) = self.tracker.progress.get_mut(response.from) else {
            return Ok(());
        };
        progress.recent_active = true;
        if response.reject {
            self.handle_append_rejection(response);
            return Ok(());
        }
        // An old index is news too when the member is being probed: it ends the probing.
        let news = progress.maybe_update(response.index)
            || (progress.matched == response.index && progress.state == ProgressState::Probe);
        if !news {
            return Ok(());
        }
        match progress.state {
            ProgressState::Probe => progress.become_replicate(),
            // Whichever snapshot it was that the member applied: the log can take over from there.
            ProgressState::Snapshot if progress.matched + 1 >= self.log.first_index() => {
                log!(
                    self.logger,
                    Debug,
                    "{:x} recovered from needing snapshot, resumed sending replication messages to {:x} [{progress}]",
                    self.id,
                    response.from
                );
                progress.become_probe();
                progress.become_replicate();
            }
            ProgressState::Snapshot => {}
            ProgressState::Replicate => progress.inflights.free_to(response.index),
        }
        let can_bump_commit = progress.can_bump_commit(self.log.committed);
        let caught_up = progress.matched == last_index;
        let from = response.from;
        if self.maybe_commit() {
            // The first commit in its term tells a new leader its commit index: reads may go on.
            self.release_postponed_reads();
            self.broadcast_append();
        } else if from != self.id && can_bump_commit {
            self.send_append(from);
        }
        if from != self.id {
            // The answer made room for perhaps several messages.
            while self.maybe_send_append(from, false) {}
        }
        if from == self.transferee && caught_up {
            log!(self.logger, Info, "{:x} sent MsgTimeoutNow to {from:x} after received MsgAppResp", self.id);
            self.send(message(MessageType::MsgTimeoutNow, from));
        }
        Ok(())
    }

    /// The member's log does not match at `index`; it hints where it may.
    ///
    /// The hint is the last entry of its log, at most `index`, whose term is not above the leader's there. If the
    /// leader's term at the hint is higher than the member's, they differ there too, and at every entry before it with
    /// such a term; so the leader steps back to the first whose term is not higher. Both sides together need one probe
    /// per term in which the logs differ, instead of one per entry.
    fn handle_append_rejection(&mut self, response: &Message) {
        log!(
            self.logger,
            Debug,
            "{:x} received MsgAppResp(rejected, hint: (index {}, term {})) from {:x} for index {}",
            self.id,
            response.reject_hint,
            response.log_term,
            response.from,
            response.index
        );
        let mut next_probe = response.reject_hint;
        if response.log_term > 0 {
            (next_probe, _) = self.log.find_conflict_by_term(next_probe, response.log_term);
        }
        let Some(progress) = self.tracker.progress.get_mut(response.from) else {
            return;
        };
        if progress.maybe_decrease_to(response.index, next_probe) {
            log!(self.logger, Debug, "{:x} decreased progress of {:x} to [{progress}]", self.id, response.from);
            if progress.state == ProgressState::Replicate {
                progress.become_probe();
            }
            self.send_append(response.from);
        }
    }

    pub(super) fn handle_heartbeat_response(&mut self, response: &Message) -> Result<(), Error> {
        let last_index = self.log.last_index();
        let Some(progress) = self.tracker.progress.get_mut(response.from) else {
            return Ok(());
        };
        progress.recent_active = true;
        progress.append_paused = false;
        // An append when it is behind, or when probing would otherwise never end.
        if progress.matched < last_index || progress.state == ProgressState::Probe {
            self.send_append(response.from);
        }
        if self.read_only.option() != ReadOnlyOption::Safe || response.context.is_empty() {
            return Ok(());
        }
        self.read_only.receive_ack(response.from, &response.context).map_err(|bad| self.invalid(response, bad.0))?;
        self.answer_confirmed_reads();
        Ok(())
    }

    pub(super) fn handle_snapshot_status(&mut self, report: &Message) {
        let Some(progress) = self.tracker.progress.get_mut(report.from) else {
            return;
        };
        if progress.state != ProgressState::Snapshot {
            return;
        }
        if report.reject {
            progress.pending_snapshot = 0;
        }
        progress.become_probe();
        log!(
            self.logger,
            Debug,
            "{:x} snapshot {}, resumed sending replication messages to {:x} [{progress}]",
            self.id,
            if report.reject { "failed" } else { "succeeded" },
            report.from
        );
        // Sent: its answer comes first. Failed: a heartbeat interval passes before the next try.
        progress.append_paused = true;
    }

    pub(super) fn handle_unreachable(&mut self, id: u64) {
        let Some(progress) = self.tracker.progress.get_mut(id) else {
            return;
        };
        // What was pipelined is probably lost.
        if progress.state == ProgressState::Replicate {
            progress.become_probe();
        }
        log!(
            self.logger,
            Debug,
            "{:x} failed to send message to {id:x} because it is unreachable [{progress}]",
            self.id
        );
    }

    /// Starts handing leadership over (thesis 3.10): bring the member up to date, then tell it to stand at once.
    pub(super) fn handle_transfer_leader(&mut self, transferee: u64) {
        let last_index = self.log.last_index();
        let Some(progress) = self.tracker.progress.get(transferee) else {
            return;
        };
        let caught_up = progress.matched == last_index;
        if progress.is_learner {
            log!(self.logger, Debug, "{:x} is learner. Ignored transferring leadership", self.id);
            return;
        }
        let previous = self.transferee;
        if previous != NONE {
            if previous == transferee {
                log!(
                    self.logger,
                    Info,
                    "{:x} [term {}] transfer leadership to {transferee:x} is in progress, ignores request to same node \
                     {transferee:x}",
                    self.id,
                    self.term
                );
                return;
            }
            self.transferee = NONE;
            log!(
                self.logger,
                Info,
                "{:x} [term {}] abort previous transferring leadership to {previous:x}",
                self.id,
                self.term
            );
        }
        if transferee == self.id {
            log!(self.logger, Debug, "{:x} is already leader. Ignored transferring leadership to self", self.id);
            return;
        }
        log!(self.logger, Info, "{:x} [term {}] starts to transfer leadership to {transferee:x}", self.id, self.term);
        // It has one election timeout; see `tick_leader`.
        self.election_elapsed = 0;
        self.transferee = transferee;
        if caught_up {
            self.send(message(MessageType::MsgTimeoutNow, transferee));
            log!(
                self.logger,
                Info,
                "{:x} sends MsgTimeoutNow to {transferee:x} immediately as {transferee:x} already has up-to-date log",
                self.id
            );
        } else {
            self.send_append(transferee);
        }
    }

    /// True while this member leads.
    pub(super) fn is_leader(&self) -> bool {
        self.role == Role::Leader
    }
}
