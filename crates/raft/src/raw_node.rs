//! The surface of one member: commands in, Ready out.

use bytes::Bytes;
use dolmen_proto::raftpb::{
    ConfChange, ConfChangeV2, ConfState, Entry, EntryType, HardState, Message, MessageType, Snapshot,
};
use prost::Message as _;

use crate::confchange::into_v2;
use crate::config::Config;
use crate::entry::{encoded_sizes, payload_sizes};
use crate::error::Error;
use crate::progress::Progress;
use crate::raft::{Raft, ReadState, Role, SoftState, message};
use crate::storage::{Storage, snapshot_index};
use crate::tracker::{ProgressMap, TrackerConfig};
use crate::{LOCAL_APPEND_THREAD, LOCAL_APPLY_THREAD, NONE};

/// Work to be done, in this order: write, then send, then apply. See the crate page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ready {
    /// Leader and role, when they changed. Not to be stored.
    pub soft_state: Option<SoftState>,
    /// Term, vote and commit index to be stored, when they changed.
    pub hard_state: Option<HardState>,
    /// Reads that may be answered once their index is applied.
    pub read_states: Vec<ReadState>,
    /// Entries to be stored; they replace what storage has from the first one's index on.
    pub entries: Vec<Entry>,
    /// A snapshot to be stored and restored, before `entries`.
    pub snapshot: Option<Snapshot>,
    /// Entries to be applied. They may be among `entries`: store first.
    pub committed_entries: Vec<Entry>,
    /// To be sent; without async storage writes not before all of the above is stored.
    pub messages: Vec<Message>,
    /// What is to be stored must be durable before `messages` go out. False when only the commit index moved.
    pub must_sync: bool,
}

/// A member's state at a glance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BasicStatus {
    pub id: u64,
    pub role: Role,
    /// 0: none known.
    pub leader_id: u64,
    pub term: u64,
    /// 0: nobody.
    pub vote: u64,
    pub commit: u64,
    pub applied: u64,
    /// Whom leadership is being transferred to; 0 for nobody.
    pub transferee: u64,
}

/// [`BasicStatus`], the membership in force, and what a leader knows of each member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub basic: BasicStatus,
    pub config: TrackerConfig,
    /// Empty unless this member leads.
    pub progress: ProgressMap,
}

/// What `advance` reports to the state machine, kept from the Ready it closes.
#[derive(Debug, Default)]
struct Outstanding {
    /// A Ready was handed out.
    handed_out: bool,
    /// Promises of this member to itself, and storage's answer.
    steps: Vec<Message>,
    /// Last index, encoded and payload bytes of the committed entries.
    applied: Option<(u64, u64, u64)>,
}

/// Whether a Ready keeps what its storage messages carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copies {
    Keep,
    Move,
}

impl Copies {
    fn of<T: Clone + Default>(self, part: &mut T) -> T {
        match self {
            Copies::Keep => part.clone(),
            Copies::Move => std::mem::take(part),
        }
    }
}

/// One member of a group, without I/O: the caller stores, sends and applies what each [`Ready`] says.
pub struct RawNode<S> {
    raft: Raft<S>,
    async_storage_writes: bool,
    previous_soft_state: SoftState,
    previous_hard_state: HardState,
    outstanding: Outstanding,
}

impl<S: Storage> RawNode<S> {
    /// Starts a member from what storage has.
    ///
    /// # Errors
    /// `Config` for parameters that cannot work, `StoredState` or `ConfChange` for storage that contradicts itself.
    pub fn new(config: &Config, storage: S) -> Result<Self, Error> {
        let raft = Raft::new(config, storage)?;
        Ok(Self {
            previous_soft_state: raft.soft_state(),
            previous_hard_state: raft.hard_state(),
            raft,
            async_storage_writes: config.async_storage_writes,
            outstanding: Outstanding::default(),
        })
    }

    /// Gives an empty log its beginning: term 1, and one committed entry per founding member that adds it, with the
    /// context given for it. Every founding member begins with the same list.
    ///
    /// # Errors
    /// `StoredState` when storage is not empty, `ConfChange` for an empty list.
    pub fn bootstrap(&mut self, peers: &[(u64, Bytes)]) -> Result<(), Error> {
        if self.raft.log.last_index() != 0 {
            return Err(Error::StoredState("can't bootstrap a nonempty log".to_owned()));
        }
        if peers.is_empty() {
            return Err(crate::confchange::ConfChangeError::RemovedAllVoters.into());
        }
        // Nothing of this is stored: the first Ready has to say so.
        self.previous_hard_state = HardState::default();
        self.raft.become_follower(1, NONE);
        let changes: Vec<_> = peers
            .iter()
            .map(|(id, context)| ConfChange { node_id: *id, context: context.clone(), ..ConfChange::default() })
            .collect();
        let entries = changes
            .iter()
            .zip(1..)
            .map(|(change, index)| Entry {
                r#type: EntryType::EntryConfChange as i32,
                term: 1,
                index,
                data: change.encode_to_vec().into(),
            })
            .collect();
        self.raft.log.append(entries);
        self.raft.log.committed = peers.len() as u64;
        // In force at once, so that the member can campaign; applying the entries later changes nothing more.
        for change in &changes {
            self.raft.apply_conf_change(&into_v2(change))?;
        }
        Ok(())
    }

    /// One tick passes.
    pub fn tick(&mut self) {
        self.raft.tick();
    }

    fn command(&mut self, kind: MessageType, from: u64) -> Result<(), Error> {
        self.raft.step(Message { from, ..message(kind, NONE) })
    }

    /// Stands for election now, if it may.
    pub fn campaign(&mut self) -> Result<(), Error> {
        self.command(MessageType::MsgHup, NONE)
    }

    /// Asks for `data` to be put into the log. Without an error it is on its way, not yet decided.
    ///
    /// # Errors
    /// `ProposalDropped`.
    pub fn propose(&mut self, data: Bytes) -> Result<(), Error> {
        self.propose_entries(vec![Entry { data, ..Entry::default() }])
    }

    /// Asks for several entries at once, all or none: one append message per member, one acknowledgement. Term and
    /// index are filled in by the leader.
    ///
    /// # Errors
    /// `ProposalDropped`; `InvalidMessage` for no entries, or a membership change that does not decode.
    pub fn propose_entries(&mut self, entries: Vec<Entry>) -> Result<(), Error> {
        let from = self.raft.id;
        self.raft.step(Message { from, entries, ..message(MessageType::MsgProp, NONE) })
    }

    /// Asks for a change of one member. When another change may be under way, the leader puts an empty entry in its
    /// place.
    ///
    /// # Errors
    /// As [`propose_entries`](Self::propose_entries).
    pub fn propose_conf_change(&mut self, change: &ConfChange) -> Result<(), Error> {
        let data = change.encode_to_vec().into();
        self.propose_entries(vec![Entry { r#type: EntryType::EntryConfChange as i32, data, ..Entry::default() }])
    }

    /// Asks for several changes of membership, or for leaving the joint state (an empty change).
    ///
    /// # Errors
    /// As [`propose_entries`](Self::propose_entries).
    pub fn propose_conf_change_v2(&mut self, change: &ConfChangeV2) -> Result<(), Error> {
        let data = change.encode_to_vec().into();
        self.propose_entries(vec![Entry { r#type: EntryType::EntryConfChangeV2 as i32, data, ..Entry::default() }])
    }

    /// Puts a committed membership change in force; called when its entry is applied. A caller that decides against the
    /// change passes it with member id 0. Gives the membership for snapshots.
    ///
    /// # Errors
    /// `ConfChange`: every member refuses it alike, nothing has changed.
    pub fn apply_conf_change(&mut self, change: &ConfChange) -> Result<ConfState, Error> {
        self.raft.apply_conf_change(&into_v2(change))
    }

    /// As [`apply_conf_change`](Self::apply_conf_change).
    pub fn apply_conf_change_v2(&mut self, change: &ConfChangeV2) -> Result<ConfState, Error> {
        self.raft.apply_conf_change(change)
    }

    /// Takes a message from another member. Anything may come in; only what a correct member could have sent gets
    /// through.
    ///
    /// # Errors
    /// `UnknownMessageType`, `LocalMessage`, `InvalidMessage`, `PeerNotFound`: nothing has changed, and going on is
    /// fine. `ProposalDropped`: a proposal that was passed on here. `CommitOutOfRange`: this member's log contradicts
    /// the group's; it must stop.
    pub fn step(&mut self, message: Message) -> Result<(), Error> {
        self.raft.check_remote(&message)?;
        self.raft.step(message)
    }

    /// With async storage writes: takes a response out of a storage message, once its work is done, when it is
    /// addressed to this member. All other responses are to be sent.
    ///
    /// # Errors
    /// `LocalMessage` for anything else, or without async storage writes. `InvalidMessage` for work that was never
    /// handed out. `PeerNotFound`: this member was removed, nobody waits for its promise.
    pub fn step_local(&mut self, response: Message) -> Result<(), Error> {
        if !self.async_storage_writes {
            return Err(Error::LocalMessage);
        }
        self.raft.check_local(&response)?;
        self.raft.step(response)
    }

    /// True when [`ready`](Self::ready) would give work.
    pub fn has_ready(&self) -> bool {
        let raft = &self.raft;
        raft.soft_state() != self.previous_soft_state
            || raft.hard_state() != self.previous_hard_state
            || !raft.messages.is_empty()
            || !raft.messages_after_append.is_empty()
            || !raft.read_states.is_empty()
            || raft.log.unstable.next_snapshot().is_some()
            || raft.log.unstable.has_next_entries()
            || raft.log.has_next_committed(self.apply_unstable())
    }

    /// Hands out all work there is. Without async storage writes the next Ready comes after [`advance`](Self::advance).
    pub fn ready(&mut self) -> Ready {
        self.build_ready(Copies::Keep)
    }

    /// As [`ready`](Self::ready) with async storage writes, for a caller that works by the messages: `entries`,
    /// `snapshot` and `committed_entries` are moved into them instead of copied, and empty in the result.
    pub fn ready_messages(&mut self) -> Ready {
        assert!(self.async_storage_writes, "without async storage writes the messages do not carry the work");
        self.build_ready(Copies::Move)
    }

    fn build_ready(&mut self, copies: Copies) -> Ready {
        assert!(!self.outstanding.handed_out, "the previous Ready was not advanced");
        let apply_unstable = self.apply_unstable();
        let raft = &mut self.raft;
        let soft_state = raft.soft_state();
        let hard_state = raft.hard_state();
        let previous = self.previous_hard_state;
        let mut ready = Ready {
            soft_state: (soft_state != self.previous_soft_state).then_some(soft_state),
            hard_state: (hard_state != previous).then_some(hard_state),
            read_states: std::mem::take(&mut raft.read_states),
            entries: raft.log.unstable.next_entries().cloned().collect(),
            snapshot: raft.log.unstable.next_snapshot().cloned(),
            committed_entries: raft.log.next_committed(apply_unstable),
            messages: std::mem::take(&mut raft.messages),
            must_sync: false,
        };
        ready.must_sync =
            !ready.entries.is_empty() || hard_state.vote != previous.vote || hard_state.term != previous.term;
        self.previous_soft_state = soft_state;
        self.previous_hard_state = hard_state;

        let promises = std::mem::take(&mut raft.messages_after_append);
        let committed_size = encoded_sizes(&ready.committed_entries);
        let last_committed = ready.committed_entries.last().map(|last| last.index);
        if self.async_storage_writes {
            self.add_storage_messages(&mut ready, promises, copies);
        } else {
            self.hold_until_advance(&mut ready, promises, committed_size);
        }
        self.raft.log.unstable.accept_in_progress();
        if let Some(index) = last_committed {
            self.raft.log.accept_applying(index, committed_size, apply_unstable);
        }
        ready
    }

    /// Promises to others go out with the Ready, which is stored first; those to itself count when it is closed.
    fn hold_until_advance(&mut self, ready: &mut Ready, promises: Vec<Message>, committed_size: u64) {
        let own = self.raft.id;
        let mut steps = std::mem::take(&mut self.outstanding.steps);
        for promise in promises {
            if promise.to == own { &mut steps } else { &mut ready.messages }.push(promise);
        }
        steps.extend(self.storage_append_response(ready));
        let applied = ready
            .committed_entries
            .last()
            .map(|last| (last.index, committed_size, payload_sizes(&ready.committed_entries)));
        self.outstanding = Outstanding { handed_out: true, steps, applied };
    }

    fn add_storage_messages(&mut self, ready: &mut Ready, mut responses: Vec<Message>, copies: Copies) {
        let own = self.raft.id;
        let append = !ready.entries.is_empty()
            || ready.hard_state.is_some()
            || ready.snapshot.is_some()
            || !responses.is_empty();
        if append {
            // Storage's answer comes last: the promises before it can still look up entries without asking storage.
            responses.extend(self.storage_append_response(ready));
            let state = ready.hard_state.unwrap_or_default();
            ready.messages.push(Message {
                from: own,
                term: state.term,
                vote: state.vote,
                commit: state.commit,
                entries: copies.of(&mut ready.entries),
                snapshot: copies.of(&mut ready.snapshot),
                responses,
                ..message(MessageType::MsgStorageAppend, LOCAL_APPEND_THREAD)
            });
        }
        if !ready.committed_entries.is_empty() {
            let response = Message {
                from: LOCAL_APPLY_THREAD,
                entries: ready.committed_entries.clone(),
                ..message(MessageType::MsgStorageApplyResp, own)
            };
            ready.messages.push(Message {
                from: own,
                entries: copies.of(&mut ready.committed_entries),
                responses: vec![response],
                ..message(MessageType::MsgStorageApply, LOCAL_APPLY_THREAD)
            });
        }
    }

    /// What storage will answer; `None` when there is nothing to learn from it.
    ///
    /// It names the last entry of the whole log, not of this Ready, and the term in force. Entries may be replaced, and
    /// replaced by the old ones again, while writes are under way; a write's end then says nothing about what a read of
    /// storage gives. So an answer from an earlier term is ignored, and the next answer, which every change of term
    /// brings, speaks for the entries that are still there.
    fn storage_append_response(&self, ready: &Ready) -> Option<Message> {
        let raft = &self.raft;
        let unstable = raft.log.unstable.len() > 0;
        if !unstable && ready.snapshot.is_none() {
            return None;
        }
        let mut response = Message {
            from: LOCAL_APPEND_THREAD,
            term: raft.term,
            snapshot: ready.snapshot.clone(),
            ..message(MessageType::MsgStorageAppendResp, raft.id)
        };
        if unstable {
            let last = raft.log.last_id();
            response.index = last.index;
            response.log_term = last.term;
            response.reject_hint = raft.log.unstable.epoch();
        }
        Some(response)
    }

    /// Closes a Ready: everything in it is stored, sent and applied. Its fields may have been taken out before. Not
    /// with async storage writes.
    pub fn advance(&mut self, _ready: Ready) {
        assert!(!self.async_storage_writes, "with async storage writes, responses close the work");
        let mut steps = std::mem::take(&mut self.outstanding.steps);
        let applied = self.outstanding.applied.take();
        self.outstanding.handed_out = false;
        for step in steps.drain(..) {
            // What can be refused here are promises of a member that was removed meanwhile.
            let _ = self.raft.step(step);
        }
        // Give the buffer back.
        self.outstanding.steps = steps;
        if let Some((index, encoded_size, payload_size)) = applied {
            self.raft.applied(index, encoded_size, payload_size);
        }
    }

    /// Entries that are committed but not stored here may be applied: only when the Ready that carries them is stored
    /// first.
    const fn apply_unstable(&self) -> bool {
        !self.async_storage_writes
    }

    /// Asks at which index a read that arrives now may be answered. The answer comes as a [`ReadState`] with the same
    /// context, or not at all: without a leader, or when messages are lost. Ask again with another context then.
    pub fn read_index(&mut self, context: Bytes) {
        let entries = vec![Entry { data: context, ..Entry::default() }];
        let request = Message { entries, ..message(MessageType::MsgReadIndex, NONE) };
        self.raft.step(request).expect("a read with one context is taken or dropped");
    }

    /// Asks for leadership to go to `transferee`. Followers pass it on. The outcome shows in the soft state.
    pub fn transfer_leader(&mut self, transferee: u64) {
        self.command(MessageType::MsgTransferLeader, transferee).expect("a transfer is taken or ignored");
    }

    /// Makes a follower forget its leader, so that it may vote for another at once. Ignored by a leader, and with lease
    /// based reads.
    pub fn forget_leader(&mut self) {
        self.command(MessageType::MsgForgetLeader, NONE).expect("forgetting is done or ignored");
    }

    /// The last message to `id` was not delivered.
    pub fn report_unreachable(&mut self, id: u64) {
        self.command(MessageType::MsgUnreachable, id).expect("a report is taken or ignored");
    }

    /// The snapshot sent to `id` arrived (`ok`) or did not.
    pub fn report_snapshot(&mut self, id: u64, ok: bool) {
        let report = Message { from: id, reject: !ok, ..message(MessageType::MsgSnapStatus, NONE) };
        self.raft.step(report).expect("a report is taken or ignored");
    }

    pub fn basic_status(&self) -> BasicStatus {
        let raft = &self.raft;
        BasicStatus {
            id: raft.id,
            role: raft.role,
            leader_id: raft.leader_id,
            term: raft.term,
            vote: raft.vote,
            commit: raft.log.committed,
            applied: raft.log.applied(),
            transferee: raft.transferee,
        }
    }

    /// Copies the progress; see [`progress`](Self::progress) for a look without.
    pub fn status(&self) -> Status {
        let tracker = &self.raft.tracker;
        let progress = if self.raft.role == Role::Leader { tracker.progress.clone() } else { ProgressMap::default() };
        Status { basic: self.basic_status(), config: tracker.config.clone(), progress }
    }

    /// Every member in ascending order, with what a leader knows of it; stale on others.
    pub fn progress(&self) -> impl Iterator<Item = (u64, &Progress)> {
        self.raft.tracker.progress.iter()
    }

    /// The other voter that is furthest along and was heard from lately: whom a leader best hands over to. `None` on
    /// others than the leader, or when there is nobody.
    pub fn most_caught_up_voter(&self) -> Option<u64> {
        let raft = &self.raft;
        if raft.role != Role::Leader {
            return None;
        }
        let others = self.progress().filter(|&(id, progress)| {
            id != raft.id && progress.recent_active && raft.tracker.config.voters.incoming.contains(id)
        });
        others.max_by_key(|&(id, progress)| (progress.matched, std::cmp::Reverse(id))).map(|(id, _)| id)
    }

    pub fn is_leader(&self) -> bool {
        self.raft.role == Role::Leader
    }

    /// 0: no leader known.
    pub const fn leader_id(&self) -> u64 {
        self.raft.leader_id
    }

    pub const fn role(&self) -> Role {
        self.raft.role
    }

    pub const fn term(&self) -> u64 {
        self.raft.term
    }

    /// The commit index.
    pub const fn committed(&self) -> u64 {
        self.raft.log.committed
    }

    /// The applied index, as reported back.
    pub const fn applied(&self) -> u64 {
        self.raft.log.applied()
    }

    /// The state machine, to look at.
    pub const fn raft(&self) -> &Raft<S> {
        &self.raft
    }

    pub const fn storage(&self) -> &S {
        &self.raft.log.storage
    }

    /// Where the owner writes what a Ready says. Compact only what is applied.
    pub const fn storage_mut(&mut self) -> &mut S {
        &mut self.raft.log.storage
    }

    /// Overrides the drawn election timeout until the next change of role. For simulators and scripts.
    pub fn set_randomized_election_timeout(&mut self, ticks: usize) {
        self.raft.set_randomized_election_timeout(ticks);
    }
}

/// True when there is nothing to restore.
pub fn is_empty_snapshot(snapshot: &Snapshot) -> bool {
    snapshot_index(snapshot) == 0
}
