//! What raft is ready for: messages to peers, appends to our own log, entries to apply.
//!
//! Raft hands over work as messages to itself. An append becomes a job of the WAL's thread ([`WalJob`]); the answers that
//! rest on it travel with it, and leave only when it has come back durable ([`Node::wal_done`]). Messages that promise
//! nothing leave at once.

use dolmen_proto::raftpb::{HardState, Message, MessageType, Snapshot, SnapshotMetadata};
use dolmen_proto::walpb;
use dolmen_raft::{LOCAL_APPEND_THREAD, LOCAL_APPLY_THREAD, Role};

use super::{Node, StopReason, WalJob};

impl Node {
    pub(super) fn carry_out_ready(&mut self) {
        let ready = self.raft.ready_messages();
        if let Some(soft_state) = ready.soft_state {
            self.leadership(soft_state.leader_id, soft_state.role == Role::Leader);
        }
        for read in ready.read_states {
            self.reads.answered(&read.request_ctx, read.index);
        }
        for message in ready.messages {
            match message.to {
                LOCAL_APPEND_THREAD => self.persist(message),
                LOCAL_APPLY_THREAD => self.apply(message),
                _ => self.send(message),
            }
        }
    }

    /// Sends one message, filling in what only the state machine knows of a snapshot.
    fn send(&mut self, mut message: Message) {
        if message.r#type != MessageType::MsgSnap as i32 {
            self.effects.messages.push(message);
            return;
        }
        let Some(source) = self.snapshot_source() else {
            self.raft.report_snapshot(message.to, false);
            return;
        };
        let position = self.machine.position();
        message.snapshot = Some(Snapshot {
            data: self.machine.snapshot_message_data(),
            metadata: Some(SnapshotMetadata {
                conf_state: Some(position.conf_state),
                index: position.index,
                term: position.term,
            }),
        });
        self.effects.snapshots.push((message, source));
    }

    /// An append for our own WAL: entries and hard state, maybe a snapshot that has to be installed first.
    pub(super) fn persist(&mut self, message: Message) {
        if self.installing.is_some() {
            self.held.push_back(message);
            return;
        }
        let Some(snapshot) = message.snapshot.as_ref().filter(|s| s.metadata.as_ref().is_some_and(|m| m.index > 0))
        else {
            self.append(message);
            return;
        };
        let index = snapshot.metadata.as_ref().map_or(0, |m| m.index);
        match self.received.remove(&index) {
            Some(db) => {
                let job = self.machine.begin_install(self.disk.clone(), &db, index);
                self.effects.install = Some(job);
                self.installing = Some((message, db));
            }
            None => {
                self.stop = Some(StopReason::Fatal(format!("the database of the snapshot at index {index} is gone")));
            }
        }
    }

    pub(super) fn append(&mut self, message: Message) {
        let hard_state = HardState { term: message.term, vote: message.vote, commit: message.commit };
        // Raft leaves all three at 0 when the hard state did not change.
        let changed = hard_state != HardState::default() && hard_state != self.hard_state;
        let must_sync = !message.entries.is_empty()
            || message.snapshot.is_some()
            || (changed && (hard_state.term, hard_state.vote) != (self.hard_state.term, self.hard_state.vote));
        if changed {
            self.hard_state = hard_state;
        }
        let received = message.snapshot;
        let snapshot = received.as_ref().and_then(|s| s.metadata.as_ref()).map(|metadata| walpb::Snapshot {
            index: metadata.index,
            term: metadata.term,
            conf_state: metadata.conf_state.clone(),
        });
        self.send_wal(WalJob {
            hard_state: changed.then_some(hard_state),
            entries: message.entries,
            snapshot,
            received,
            release: None,
            must_sync,
            responses: message.responses,
        });
    }

    pub(super) fn send_wal(&mut self, job: WalJob) {
        let nothing = job.hard_state.is_none() && job.entries.is_empty() && job.snapshot.is_none();
        if nothing && self.wal_in_flight == 0 {
            self.wal_acknowledged(job);
        } else {
            self.wal_in_flight += 1;
            self.effects.wal.push(job);
        }
    }

    pub(super) fn wal_done(&mut self, job: WalJob) {
        self.wal_in_flight -= 1;
        self.wal_acknowledged(job);
    }

    /// What the WAL holds durably becomes visible to raft's log, and the answers that waited for it may go.
    fn wal_acknowledged(&mut self, job: WalJob) {
        let storage = self.raft.storage_mut();
        if let Some(hard_state) = job.hard_state {
            storage.set_hard_state(hard_state);
        }
        if let Some(snapshot) = job.received {
            // Refused only when older than what we hold, and then there is nothing to do.
            let _outdated = storage.apply_snapshot(snapshot);
        }
        if !job.entries.is_empty()
            && let Err(error) = storage.append(job.entries)
        {
            self.stop = Some(StopReason::Fatal(format!("the log does not continue: {error}")));
        }
        for response in job.responses {
            if response.to == self.config.member_id {
                let _refused = self.raft.step_local(response);
            } else {
                self.effects.messages.push(response);
            }
        }
    }
}
