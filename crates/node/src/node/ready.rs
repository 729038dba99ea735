//! What raft is ready for: messages to peers, appends to our own log, entries to apply.
//!
//! Raft hands over work as messages to itself. An append becomes a job of the WAL's thread ([`WalJob`]); the answers that
//! rest on it travel with it, and leave only when it has come back durable ([`Node::wal_done`]). Messages that promise
//! nothing leave at once.

use std::collections::VecDeque;

use dolmen_env::Mono;
use dolmen_proto::raftpb::{HardState, Message, MessageType, Snapshot, SnapshotMetadata};
use dolmen_proto::walpb;
use dolmen_raft::{LOCAL_APPEND_THREAD, LOCAL_APPLY_THREAD, Role};
use dolmen_types::{Index, Term};

use super::{Node, WalJob};

/// What an entry takes beside its data, about.
const ENTRY_BYTES: usize = 64;

/// What may be handed to the WAL and not be durable yet, in any role. Above it a leader takes no proposals, its own
/// callers' or others', and a follower no entries: it still hears the leader, and is sent them again.
pub(super) const MAX_UNWRITTEN_BYTES: usize = 128 << 20;

/// What has been handed to the WAL.
pub(super) struct LogWriter {
    /// The newest hard state.
    hard_state: HardState,
    /// Of the newest hard state that is durable.
    durable_term: Term,
    /// Jobs handed out and not yet done, in order.
    in_flight: VecDeque<InFlight>,
    /// Their bytes together.
    bytes: usize,
    /// The newest entry handed out.
    last: Index,
    /// The end of the log when a leader last asked for proof that its own disk alone is to blame for a delay.
    probed: Index,
}

struct InFlight {
    since: Mono,
    /// The newest entry handed out by then.
    through: Index,
    bytes: usize,
}

impl LogWriter {
    pub(super) fn new(hard_state: HardState) -> Self {
        Self { hard_state, durable_term: hard_state.term, in_flight: VecDeque::new(), bytes: 0, last: 0, probed: 0 }
    }

    fn handed_out(&mut self, job: &WalJob, now: Mono) {
        let bytes = job.entries.iter().map(|entry| entry.data.len() + ENTRY_BYTES).sum();
        self.last = job.entries.last().map_or(self.last, |entry| entry.index);
        self.bytes += bytes;
        self.in_flight.push_back(InFlight { since: now, through: self.last, bytes });
    }

    fn done(&mut self) {
        if let Some(done) = self.in_flight.pop_front() {
            self.bytes -= done.bytes;
        }
    }

    /// Whether so much is not durable yet that nothing more is taken.
    pub(super) fn is_full(&self) -> bool {
        self.bytes > MAX_UNWRITTEN_BYTES
    }

    /// The newest entry handed out.
    pub(super) fn newest(&self) -> Index {
        self.last
    }

    /// How long the oldest job has taken so far, and the newest entry that was handed out by then.
    pub(super) fn oldest(&self, now: Mono) -> Option<(u64, Index)> {
        self.in_flight.front().map(|oldest| (now.since(oldest.since), oldest.through))
    }

    /// Whether to append something to find out who still writes: once while the log ends at `last`.
    pub(super) fn ask_proof(&mut self, last: Index) -> bool {
        std::mem::replace(&mut self.probed, last) != last
    }

    /// How far the log is known to be committed.
    pub(super) fn committed(&self) -> Index {
        self.hard_state.commit
    }

    /// The term that a restart would begin with.
    pub(super) fn durable_term(&self) -> Term {
        self.durable_term
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// What of an append has to be written.
    fn job(&mut self, append: Message) -> WalJob {
        let hard_state = HardState { term: append.term, vote: append.vote, commit: append.commit };
        // Raft leaves all three at 0 when the hard state did not change.
        let changed = hard_state != HardState::default() && hard_state != self.hard_state;
        let must_sync = !append.entries.is_empty()
            || append.snapshot.is_some()
            || (changed && (hard_state.term, hard_state.vote) != (self.hard_state.term, self.hard_state.vote));
        if changed {
            self.hard_state = hard_state;
        }
        let received = append.snapshot;
        let snapshot = received.as_ref().and_then(|s| s.metadata.as_ref()).map(|metadata| walpb::Snapshot {
            index: metadata.index,
            term: metadata.term,
            conf_state: metadata.conf_state.clone(),
        });
        WalJob {
            hard_state: changed.then_some(hard_state),
            entries: append.entries,
            snapshot,
            received,
            release: None,
            must_sync,
            responses: append.responses,
        }
    }
}

impl Node {
    pub(super) fn carry_out_ready(&mut self) {
        let ready = self.raft.ready_messages();
        if let Some(soft_state) = ready.soft_state {
            let leader = Some(soft_state.leader_id).filter(|leader| *leader != dolmen_raft::NONE);
            self.led_by(leader, soft_state.role == Role::Leader);
        }
        for read in ready.read_states {
            self.reads.answered(&read.request_ctx, read.index);
        }
        for message in ready.messages {
            match message.to {
                LOCAL_APPEND_THREAD => self.persist(message),
                LOCAL_APPLY_THREAD => self.applying.push(message),
                _ => self.send(message),
            }
        }
    }

    /// Sends one message, filling in what only the state machine knows of a snapshot.
    fn send(&mut self, mut message: Message) {
        if message.r#type != MessageType::MsgSnap as i32 {
            self.cx.effects.messages.push(message);
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
        self.cx.effects.snapshots.push((message, source));
    }

    pub(super) fn append(&mut self, message: Message) {
        let job = self.log.job(message);
        self.send_wal(job);
    }

    pub(super) fn send_wal(&mut self, job: WalJob) {
        let nothing = job.hard_state.is_none() && job.entries.is_empty() && job.snapshot.is_none();
        if nothing && self.log.is_idle() {
            self.wal_acknowledged(job);
        } else {
            self.log.handed_out(&job, self.cx.now);
            self.cx.effects.wal.push(job);
        }
    }

    pub(super) fn wal_done(&mut self, job: WalJob) {
        self.log.done();
        self.wal_acknowledged(job);
    }

    /// What the WAL holds durably becomes visible to raft's log, and the answers that waited for it may go.
    fn wal_acknowledged(&mut self, job: WalJob) {
        let storage = self.raft.storage_mut();
        if let Some(hard_state) = job.hard_state {
            self.log.durable_term = hard_state.term;
            storage.set_hard_state(hard_state);
        }
        if let Some(snapshot) = job.received {
            // Refused only when older than what we hold, and then there is nothing to do.
            let _outdated = storage.apply_snapshot(snapshot);
        }
        if !job.entries.is_empty()
            && let Err(error) = storage.append(job.entries)
        {
            self.ending.fatal(format!("the log does not continue: {error}"));
        }
        for response in job.responses {
            if response.to == self.cx.config.member_id {
                let _refused = self.raft.step_local(response);
            } else {
                self.cx.effects.messages.push(response);
            }
        }
    }
}
