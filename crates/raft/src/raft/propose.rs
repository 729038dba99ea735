//! Proposals, and membership changes from proposal to effect.

use bytes::Bytes;
use dolmen_proto::raftpb::{ConfChangeV2, ConfState, Entry, EntryType, Message, MessageType};

use super::{Raft, message};
use crate::NONE;
use crate::confchange::{Changer, check_known};
use crate::describe;
use crate::entry::{conf_change_of, payload_sizes};
use crate::error::Error;
use crate::logger::log;
use crate::storage::Storage;
use crate::tracker::{ProgressMap, TrackerConfig};

impl<S: Storage> Raft<S> {
    /// A leader takes a proposal: append, then send.
    pub(super) fn handle_proposal(&mut self, mut proposal: Message) -> Result<(), Error> {
        if proposal.entries.is_empty() {
            return Err(self.invalid(&proposal, "a proposal without entries"));
        }
        let changes = self.conf_changes_in(&proposal)?;
        if proposal.sent_term != 0 && proposal.sent_term != self.term {
            // Its sender may have proposed it again since: it is good for the term it was sent in, and for no other.
            log!(
                self.logger,
                Debug,
                "{:x} [term {}] was passed a proposal in term {}; dropping proposal",
                self.id,
                self.term,
                proposal.sent_term
            );
            return Err(Error::ProposalDropped);
        }
        if !self.tracker.progress.contains(self.id) {
            // Removed while it leads: it finishes what it began and takes nothing new.
            return Err(Error::ProposalDropped);
        }
        if self.transferee != NONE {
            log!(
                self.logger,
                Debug,
                "{:x} [term {}] transfer leadership to {:x} is in progress; dropping proposal",
                self.id,
                self.term,
                self.transferee
            );
            return Err(Error::ProposalDropped);
        }
        for (at, change) in changes {
            match self.refusal(&change) {
                Some(reason) if !self.disable_conf_change_validation => {
                    log!(
                        self.logger,
                        Info,
                        "{:x} ignoring conf change {} at config {}: {reason}",
                        self.id,
                        describe::conf_change(&change),
                        self.tracker.config
                    );
                    // An empty entry in its place, so that whoever waits for it hears something.
                    proposal.entries[at] = Entry::default();
                }
                _ => self.pending_conf_index = self.log.last_index() + at as u64 + 1,
            }
        }
        if !self.append_entries(proposal.entries) {
            return Err(Error::ProposalDropped);
        }
        self.broadcast_append();
        Ok(())
    }

    /// The membership changes in a proposal, by position. Usually none.
    pub(super) fn conf_changes_in(&self, proposal: &Message) -> Result<Vec<(usize, ConfChangeV2)>, Error> {
        let mut changes = Vec::new();
        for (at, entry) in proposal.entries.iter().enumerate() {
            if entry.r#type == EntryType::EntryNormal as i32 {
                continue;
            }
            let change =
                conf_change_of(entry).map_err(|_| self.invalid(proposal, "a membership change does not decode"))?;
            let change = change.ok_or_else(|| self.invalid(proposal, "an entry of unknown type"))?;
            check_known(&change).map_err(|_| self.invalid(proposal, "an unknown kind of membership change"))?;
            changes.push((at, change));
        }
        Ok(changes)
    }

    /// Why the change may not follow the membership in force. A best effort: that membership may be older than the log.
    fn refusal(&self, change: &ConfChangeV2) -> Option<String> {
        let applied = self.log.applied();
        let leaves_joint = change.changes.is_empty();
        if self.pending_conf_index > applied {
            Some(format!("possible unapplied conf change at index {} (applied to {applied})", self.pending_conf_index))
        } else if self.tracker.config.is_joint() && !leaves_joint {
            Some("must transition out of joint config first".to_owned())
        } else if !self.tracker.config.is_joint() && leaves_joint {
            Some("not in joint state; refusing empty conf change".to_owned())
        } else {
            None
        }
    }

    /// Gives entries their term and index and appends them. False when the bound on uncommitted bytes refuses them.
    pub(super) fn append_entries(&mut self, mut entries: Vec<Entry>) -> bool {
        let size = payload_sizes(&entries);
        // One proposal of any size is let through when nothing else is uncommitted, and empty ones always.
        if self.uncommitted_size > 0
            && size > 0
            && self.uncommitted_size.saturating_add(size) > self.max_uncommitted_size
        {
            log!(
                self.logger,
                Warning,
                "{:x} appending new entries to log would exceed uncommitted entry size limit; dropping proposal",
                self.id
            );
            return false;
        }
        self.uncommitted_size = self.uncommitted_size.saturating_add(size);
        let next = self.log.last_index() + 1;
        for (entry, index) in entries.iter_mut().zip(next..) {
            entry.term = self.term;
            entry.index = index;
        }
        let index = self.log.append(entries);
        // Its own acknowledgement: counts once the entries are durable here.
        self.send(Message { index, ..message(MessageType::MsgAppResp, self.id) });
        true
    }

    /// Books applied entries; a leader then leaves a joint state that is to be left by itself.
    pub(super) fn applied_to(&mut self, index: u64, size: u64) {
        let index = index.max(self.log.applied());
        self.log.applied_to(index, size);
        if self.tracker.config.auto_leave && index >= self.pending_conf_index && self.is_leader() {
            // An empty change leaves the joint state; its empty payload passes every size bound. A transfer under way
            // can still refuse it; then the next applied entry, or the next leader, tries again.
            let entry = Entry { r#type: EntryType::EntryConfChangeV2 as i32, data: Bytes::new(), ..Entry::default() };
            let proposal = Message { entries: vec![entry], ..message(MessageType::MsgProp, NONE) };
            match self.step(proposal) {
                Ok(()) => log!(
                    self.logger,
                    Info,
                    "initiating automatic transition out of joint configuration {}",
                    self.tracker.config
                ),
                Err(error) => log!(
                    self.logger,
                    Debug,
                    "not initiating automatic transition out of joint configuration {}: {error}",
                    self.tracker.config
                ),
            }
        }
    }

    pub(crate) fn apply_conf_change(&mut self, change: &ConfChangeV2) -> Result<ConfState, Error> {
        let mut changer = Changer::new(&self.tracker, self.log.last_index());
        changer.apply(change)?;
        let (config, progress) = changer.into_parts();
        Ok(self.switch_to(config, progress))
    }

    /// Puts a membership in force and draws the consequences.
    pub(super) fn switch_to(&mut self, config: TrackerConfig, progress: ProgressMap) -> ConfState {
        self.tracker.config = config;
        self.tracker.progress = progress;
        log!(self.logger, Info, "{:x} switched to configuration {}", self.id, self.tracker.config);
        let conf_state = self.tracker.conf_state();
        let own = self.tracker.progress.get(self.id).map(|own| own.is_learner);
        self.is_learner = own == Some(true);
        if !self.is_leader() {
            return conf_state;
        }
        if own != Some(false) {
            // Removed, or a learner now. Without the option it leads on until somebody else is elected.
            if self.step_down_on_removal {
                self.become_follower(self.term, NONE);
            }
            return conf_state;
        }
        if conf_state.voters.is_empty() {
            return conf_state;
        }
        if self.maybe_commit() {
            // A smaller quorum may have what a larger one had not.
            self.broadcast_append();
        } else {
            // New members need not wait for the next heartbeat.
            self.each_other(|raft, id| {
                raft.maybe_send_append(id, false);
            });
        }
        if self.transferee != NONE && !self.tracker.config.voters.contains(self.transferee) {
            self.transferee = NONE;
        }
        conf_state
    }
}
