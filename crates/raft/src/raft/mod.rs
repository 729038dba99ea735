//! The state machine of one member: roles, terms, and what each message does to them.
//!
//! Everything happens inside two calls: [`Raft::step`] takes a message, `tick` lets time pass. Both only change state
//! and queue messages; [`RawNode`](crate::RawNode) turns what changed into a Ready.
//!
//! | file | what |
//! |---|---|
//! | this one | state, roles, ticks, the send queue |
//! | `step` | terms, votes, dispatch by role |
//! | `elect` | standing for election |
//! | `lead` | replicating, committing, transferring leadership |
//! | `follow` | taking appends, heartbeats and snapshots |
//! | `propose` | proposals and membership changes |
//! | `read` | linearizable reads |
//! | `check` | refusing messages that no correct member sends |
//!
//! A message queues in one of two places. Answers that promise something (a vote, an accepted append) go to
//! `messages_after_append` and leave only when everything this member has to write is durable; this holds for promises
//! to itself too. All others go to `messages` and may leave at once (thesis 10.2.1).

mod check;
mod elect;
mod follow;
mod lead;
mod propose;
mod read;
mod step;

pub use check::{is_local, is_local_target};

use std::fmt;

use bytes::Bytes;
use dolmen_proto::raftpb::{Entry, HardState, Message, MessageType};

use crate::NONE;
use crate::confchange::{Changer, equivalent};
use crate::config::{Config, NO_LIMIT};
use crate::error::Error;
use crate::log::RaftLog;
use crate::logger::{Logger, log};
use crate::progress::Progress;
use crate::read_only::ReadOnly;
use crate::rng::Rng;
use crate::storage::Storage;
use crate::tracker::ProgressTracker;

/// What a member is to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Follower,
    Candidate,
    Leader,
    PreCandidate,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Follower => "StateFollower",
            Role::Candidate => "StateCandidate",
            Role::Leader => "StateLeader",
            Role::PreCandidate => "StatePreCandidate",
        })
    }
}

/// What a member knows and need not survive a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftState {
    /// 0: no leader known.
    pub leader_id: u64,
    pub role: Role,
}

/// The answer to a `read_index`: once the state machine has applied `index`, a read of it is linearizable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadState {
    pub index: u64,
    /// The context the read was asked with.
    pub request_ctx: Bytes,
}

/// One member's consensus state. Driven through [`RawNode`](crate::RawNode).
pub struct Raft<S> {
    pub(crate) id: u64,
    pub(crate) term: u64,
    /// Whom this member voted for in `term`; 0 for nobody.
    pub(crate) vote: u64,
    pub(crate) log: RaftLog<S>,
    pub(crate) tracker: ProgressTracker,
    pub(crate) role: Role,
    pub(crate) is_learner: bool,
    pub(crate) leader_id: u64,
    /// The member leadership is being transferred to; 0 for none.
    pub(crate) transferee: u64,
    pub(crate) read_states: Vec<ReadState>,
    pub(crate) messages: Vec<Message>,
    pub(crate) messages_after_append: Vec<Message>,

    /// At least the index of the newest membership change that may be unapplied; no other is taken before that is
    /// applied.
    pending_conf_index: u64,
    /// Payload bytes a leader appended above the commit index; never over-estimated.
    uncommitted_size: u64,
    read_only: ReadOnly,
    /// Reads that arrived before the leader committed an entry of its own term, and so knows its commit index.
    postponed_reads: Vec<Message>,

    /// Ticks since the last election timeout (leader), or word from the leader (others).
    election_elapsed: usize,
    heartbeat_elapsed: usize,
    /// Drawn anew on each change of role.
    randomized_election_timeout: usize,
    rng: Rng,

    election_timeout: usize,
    heartbeat_timeout: usize,
    max_message_size: u64,
    max_uncommitted_size: u64,
    check_quorum: bool,
    pre_vote: bool,
    disable_proposal_forwarding: bool,
    disable_conf_change_validation: bool,
    step_down_on_removal: bool,
    durable_candidacies: bool,
    pub(crate) logger: Logger,
}

impl<S: Storage> Raft<S> {
    pub(crate) fn new(config: &Config, storage: S) -> Result<Self, Error> {
        config.validate()?;
        let (hard_state, conf_state) =
            storage.initial_state().map_err(|cause| Error::StoredState(format!("initial state: {cause}")))?;
        let max_applying_size = match config.max_committed_size_per_ready {
            0 => config.max_size_per_msg,
            size => size,
        };
        let or_no_limit = |bound| if bound == 0 { NO_LIMIT } else { bound };
        let mut raft = Self {
            id: config.id,
            term: 0,
            vote: NONE,
            log: RaftLog::new(storage, max_applying_size, config.logger.clone()),
            tracker: ProgressTracker::new(config.max_inflight_msgs, or_no_limit(config.max_inflight_bytes)),
            role: Role::Follower,
            is_learner: false,
            leader_id: NONE,
            transferee: NONE,
            read_states: Vec::new(),
            messages: Vec::new(),
            messages_after_append: Vec::new(),
            pending_conf_index: 0,
            uncommitted_size: 0,
            read_only: ReadOnly::new(config.read_only_option),
            postponed_reads: Vec::new(),
            election_elapsed: 0,
            heartbeat_elapsed: 0,
            randomized_election_timeout: 0,
            rng: Rng::new(config.seed),
            election_timeout: config.election_tick,
            heartbeat_timeout: config.heartbeat_tick,
            max_message_size: config.max_size_per_msg,
            max_uncommitted_size: or_no_limit(config.max_uncommitted_entries_size),
            check_quorum: config.check_quorum,
            pre_vote: config.pre_vote,
            disable_proposal_forwarding: config.disable_proposal_forwarding,
            disable_conf_change_validation: config.disable_conf_change_validation,
            step_down_on_removal: config.step_down_on_removal,
            durable_candidacies: config.durable_candidacies,
            logger: config.logger.clone(),
        };

        let last = raft.log.last_id();
        let mut changer = Changer::new(&raft.tracker, last.index);
        changer.restore(&conf_state)?;
        let (membership, progress) = changer.into_parts();
        if !equivalent(&conf_state, &raft.switch_to(membership, progress)) {
            return Err(Error::StoredState(format!("membership repeats or contradicts itself: {conf_state:?}")));
        }
        if hard_state != HardState::default() {
            raft.load_state(hard_state)?;
        }
        if config.applied > 0 {
            if config.applied < raft.log.applied() || config.applied > raft.log.committed {
                return Err(Error::StoredState(format!(
                    "applied index {} is outside of {}..={}",
                    config.applied,
                    raft.log.applied(),
                    raft.log.committed
                )));
            }
            raft.log.applied_to(config.applied, 0);
        }
        raft.become_follower(raft.term, NONE);
        log!(
            raft.logger,
            Info,
            "newRaft {:x} [peers: [{}], term: {}, commit: {}, applied: {}, lastindex: {}, lastterm: {}]",
            raft.id,
            Peers(raft.tracker.config.voters.ids().as_slice()),
            raft.term,
            raft.log.committed,
            raft.log.applied(),
            last.index,
            last.term
        );
        Ok(raft)
    }

    fn load_state(&mut self, state: HardState) -> Result<(), Error> {
        let (committed, last) = (self.log.committed, self.log.last_index());
        if state.commit < committed || state.commit > last {
            return Err(Error::StoredState(format!("commit {} is outside of {committed}..={last}", state.commit)));
        }
        self.log.committed = state.commit;
        self.term = state.term;
        self.vote = state.vote;
        Ok(())
    }

    /// This member.
    pub const fn id(&self) -> u64 {
        self.id
    }

    pub const fn term(&self) -> u64 {
        self.term
    }

    pub const fn role(&self) -> Role {
        self.role
    }

    /// 0: no leader known.
    pub const fn leader_id(&self) -> u64 {
        self.leader_id
    }

    /// True while this member is a learner in the membership it has applied.
    pub const fn is_learner(&self) -> bool {
        self.is_learner
    }

    pub const fn commit_index(&self) -> u64 {
        self.log.committed
    }

    /// What was reported back as applied.
    pub const fn applied_index(&self) -> u64 {
        self.log.applied()
    }

    pub fn first_index(&self) -> u64 {
        self.log.first_index()
    }

    pub fn last_index(&self) -> u64 {
        self.log.last_index()
    }

    /// The membership in force, with the leader's notes on each member.
    pub const fn tracker(&self) -> &ProgressTracker {
        &self.tracker
    }

    pub(crate) const fn soft_state(&self) -> SoftState {
        SoftState { leader_id: self.leader_id, role: self.role }
    }

    pub(crate) const fn hard_state(&self) -> HardState {
        HardState { term: self.term, vote: self.vote, commit: self.log.committed }
    }

    /// Queues a message. Its term is filled in here, except for votes, which speak about a term of their own, and for
    /// what a follower passes on to the leader, which belongs to no term.
    fn send(&mut self, mut message: Message) {
        if message.from == NONE {
            message.from = self.id;
        }
        use MessageType::*;
        match message_type(&message) {
            MsgAppResp => {
                message.term = self.term;
                self.messages_after_append.push(message);
            }
            MsgVoteResp | MsgPreVoteResp => {
                assert_ne!(message.term, 0, "a vote names its term");
                self.messages_after_append.push(message);
            }
            MsgVote if self.durable_candidacies => {
                assert_ne!(message.term, 0, "a candidate names its term");
                assert_ne!(message.to, self.id, "a candidate asks others");
                self.messages_after_append.push(message);
            }
            kind => {
                assert_ne!(message.to, self.id, "{} to itself", kind.as_str_name());
                match kind {
                    MsgVote | MsgPreVote => assert_ne!(message.term, 0, "a candidate names its term"),
                    MsgProp | MsgReadIndex => message.term = 0,
                    _ => message.term = self.term,
                }
                self.messages.push(message);
            }
        }
    }

    /// Starts `term`, or a new role in the same one.
    fn reset(&mut self, term: u64) {
        if self.term != term {
            self.term = term;
            self.vote = NONE;
        }
        self.leader_id = NONE;
        self.election_elapsed = 0;
        self.heartbeat_elapsed = 0;
        self.randomized_election_timeout = self.election_timeout + self.rng.below(self.election_timeout);
        self.transferee = NONE;
        self.tracker.reset_votes();
        let last = self.log.last_index();
        let inflights = self.tracker.new_inflights();
        for (id, progress) in self.tracker.progress.iter_mut() {
            *progress = Progress::new(last + 1, inflights.clone(), progress.is_learner);
            if id == self.id {
                progress.matched = last;
            }
        }
        self.pending_conf_index = 0;
        self.uncommitted_size = 0;
        self.read_only.reset();
        // Whoever asked asks again; a leader of a later term must not answer what an earlier one was asked.
        self.postponed_reads.clear();
    }

    pub(crate) fn become_follower(&mut self, term: u64, leader_id: u64) {
        self.reset(term);
        self.leader_id = leader_id;
        self.role = Role::Follower;
        log!(self.logger, Info, "{:x} became follower at term {}", self.id, self.term);
    }

    fn become_candidate(&mut self) {
        assert_ne!(self.role, Role::Leader, "a leader does not stand for election");
        self.reset(self.term + 1);
        self.vote = self.id;
        self.role = Role::Candidate;
        log!(self.logger, Info, "{:x} became candidate at term {}", self.id, self.term);
    }

    /// Neither term nor vote change: it only asks.
    fn become_pre_candidate(&mut self) {
        assert_ne!(self.role, Role::Leader, "a leader does not stand for election");
        self.tracker.reset_votes();
        self.leader_id = NONE;
        self.role = Role::PreCandidate;
        log!(self.logger, Info, "{:x} became pre-candidate at term {}", self.id, self.term);
    }

    fn become_leader(&mut self) {
        assert_ne!(self.role, Role::Follower, "a follower does not become leader without an election");
        self.reset(self.term);
        self.leader_id = self.id;
        self.role = Role::Leader;
        if let Some(own) = self.tracker.progress.get_mut(self.id) {
            own.become_replicate();
            own.recent_active = true;
        }
        // There may be an unapplied membership change in the log; looking for it could read the whole log, waiting is
        // cheap.
        self.pending_conf_index = self.log.last_index();
        // An entry of its own term, so that it learns the commit index (paper section 8). Its payload is empty, so no
        // size bound refuses it.
        let appended = self.append_entries(vec![Entry::default()]);
        assert!(appended, "an empty entry weighs nothing");
        log!(self.logger, Info, "{:x} became leader at term {}", self.id, self.term);
    }

    /// One tick passes.
    pub(crate) fn tick(&mut self) {
        match self.role {
            Role::Leader => self.tick_leader(),
            Role::Follower | Role::Candidate | Role::PreCandidate => self.tick_election(),
        }
    }

    fn tick_election(&mut self) {
        self.election_elapsed = self.election_elapsed.saturating_add(1);
        if self.election_elapsed >= self.randomized_election_timeout && self.promotable() {
            self.election_elapsed = 0;
            self.hup_by_config();
        }
    }

    fn tick_leader(&mut self) {
        self.heartbeat_elapsed = self.heartbeat_elapsed.saturating_add(1);
        self.election_elapsed = self.election_elapsed.saturating_add(1);
        if self.election_elapsed >= self.election_timeout {
            self.election_elapsed = 0;
            if self.check_quorum {
                self.check_quorum_active();
            }
            // A transfer that took an election timeout has failed; take proposals again.
            if self.role == Role::Leader {
                self.transferee = NONE;
            }
        }
        if self.role == Role::Leader && self.heartbeat_elapsed >= self.heartbeat_timeout {
            self.heartbeat_elapsed = 0;
            self.broadcast_heartbeat();
        }
    }

    /// Overrides the drawn election timeout until the next change of role. For simulators and scripts.
    pub(crate) fn set_randomized_election_timeout(&mut self, ticks: usize) {
        self.randomized_election_timeout = ticks;
    }
}

/// The type of a message that was checked on its way in or made here.
pub(crate) fn message_type(message: &Message) -> MessageType {
    MessageType::try_from(message.r#type).expect("types are checked at the door")
}

/// A message of this type to that member.
pub(crate) fn message(kind: MessageType, to: u64) -> Message {
    Message { r#type: kind as i32, to, ..Message::default() }
}

/// Ids in hexadecimal, separated by commas.
struct Peers<'a>(&'a [u64]);

impl fmt::Display for Peers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, id) in self.0.iter().enumerate() {
            write!(f, "{}{id:x}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}
