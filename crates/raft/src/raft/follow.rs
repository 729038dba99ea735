//! A follower's side: appends, heartbeats, snapshots.

use dolmen_proto::raftpb::{ConfState, Message, MessageType, Snapshot};

use super::{Raft, Role, message};
use crate::NONE;
use crate::confchange::{Changer, ConfChangeError, equivalent};
use crate::entry::EntryId;
use crate::error::Error;
use crate::logger::log;
use crate::storage::{Storage, snapshot_index, snapshot_term};

impl<S: Storage> Raft<S> {
    pub(super) fn handle_append(&mut self, append: Message) {
        let previous = EntryId { term: append.log_term, index: append.index };
        let leader = append.from;
        if previous.index < self.log.committed {
            // Stale: everything up to the commit index is known to match.
            let index = self.log.committed;
            self.send(Message { index, ..message(MessageType::MsgAppResp, leader) });
            return;
        }
        if let Some(index) = self.log.maybe_append(previous, append.entries, append.commit) {
            self.send(Message { index, ..message(MessageType::MsgAppResp, leader) });
            return;
        }
        log!(
            self.logger,
            Debug,
            "{:x} [logterm: {}, index: {}] rejected MsgApp [logterm: {}, index: {}] from {leader:x}",
            self.id,
            self.log.term_or_zero(previous.index),
            previous.index,
            previous.term,
            previous.index
        );
        // The hint spares the leader from probing entry by entry: the last of ours that its log could contain, as far
        // as the terms tell. See `handle_append_rejection` for the other half.
        let upper = previous.index.min(self.log.last_index());
        let (reject_hint, log_term) = self.log.find_conflict_by_term(upper, previous.term);
        self.send(Message {
            index: previous.index,
            reject: true,
            reject_hint,
            log_term,
            ..message(MessageType::MsgAppResp, leader)
        });
    }

    pub(super) fn handle_heartbeat(&mut self, heartbeat: Message) -> Result<(), Error> {
        let last_index = self.log.last_index();
        if heartbeat.commit > self.log.committed && heartbeat.commit > last_index {
            // A leader sends at most what this member acknowledged.
            return Err(Error::CommitOutOfRange { commit: heartbeat.commit, last_index });
        }
        self.log.commit_to(heartbeat.commit);
        self.send(Message { context: heartbeat.context, ..message(MessageType::MsgHeartbeatResp, heartbeat.from) });
        Ok(())
    }

    pub(super) fn handle_snapshot(&mut self, request: Message) -> Result<(), Error> {
        let snapshot = request.snapshot.unwrap_or_default();
        let (index, term) = (snapshot_index(&snapshot), snapshot_term(&snapshot));
        let restored = self.restore(snapshot)?;
        log!(
            self.logger,
            Info,
            "{:x} [commit: {}] {} snapshot [index: {index}, term: {term}]",
            self.id,
            self.log.committed,
            if restored { "restored" } else { "ignored" }
        );
        let index = if restored { self.log.last_index() } else { self.log.committed };
        self.send(Message { index, ..message(MessageType::MsgAppResp, request.from) });
        Ok(())
    }

    /// Replaces log and membership by a snapshot's. False when it brings nothing new.
    fn restore(&mut self, snapshot: Snapshot) -> Result<bool, Error> {
        let id = EntryId { term: snapshot_term(&snapshot), index: snapshot_index(&snapshot) };
        if id.index <= self.log.committed {
            return Ok(false);
        }
        if self.role != Role::Follower {
            // Cannot happen: whoever takes a snapshot follows its sender. If it did, this keeps the damage small.
            log!(self.logger, Warning, "{:x} attempted to restore snapshot as leader; should never happen", self.id);
            self.become_follower(self.term + 1, NONE);
            return Ok(false);
        }
        let default = ConfState::default();
        let conf_state = snapshot.metadata.as_ref().and_then(|metadata| metadata.conf_state.as_ref());
        let conf_state = conf_state.unwrap_or(&default);
        // `learners_next` are voters of the outgoing half.
        if ![&conf_state.voters, &conf_state.learners, &conf_state.voters_outgoing]
            .iter()
            .any(|ids| ids.contains(&self.id))
        {
            log!(
                self.logger,
                Warning,
                "{:x} attempted to restore snapshot but it is not in the ConfState {conf_state:?}; should never happen",
                self.id
            );
            return Ok(false);
        }
        if self.log.matches(id) {
            let last = self.log.last_id();
            log!(
                self.logger,
                Info,
                "{:x} [commit: {}, lastindex: {}, lastterm: {}] fast-forwarded commit to snapshot \
                 [index: {}, term: {}]",
                self.id,
                self.log.committed,
                last.index,
                last.term,
                id.index,
                id.term
            );
            self.log.commit_to(id.index);
            return Ok(false);
        }

        // Work out the membership before anything changes, so that a bad one is refused whole.
        let mut reached = self.tracker.blank();
        let mut changer = Changer::new(&reached, id.index);
        changer.restore(conf_state)?;
        (reached.config, reached.progress) = changer.into_parts();
        if !equivalent(conf_state, &reached.conf_state()) {
            return Err(ConfChangeError::BadConfState.into());
        }
        self.log.restore(snapshot);
        self.tracker.reset_votes();
        self.switch_to(reached.config, reached.progress);

        let last = self.log.last_id();
        log!(
            self.logger,
            Info,
            "{:x} [commit: {}, lastindex: {}, lastterm: {}] restored snapshot [index: {}, term: {}]",
            self.id,
            self.log.committed,
            last.index,
            last.term,
            id.index,
            id.term
        );
        Ok(true)
    }
}
