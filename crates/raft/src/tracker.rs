//! The membership in force and the leader's notes on each member.

use std::collections::BTreeMap;
use std::fmt;

use dolmen_proto::raftpb::ConfState;

use crate::inflights::Inflights;
use crate::progress::Progress;
use crate::quorum::{JointConfig, MajorityConfig, VoteResult};

/// Who votes and who learns.
///
/// Voters and learners are disjoint. A voter that becomes a learner in a joint change waits in `learners_next` while it
/// still votes in the outgoing half, and turns learner when the joint state is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrackerConfig {
    pub voters: JointConfig,
    /// The leader leaves the joint state by itself, once the change that entered it is applied.
    pub auto_leave: bool,
    pub learners: MajorityConfig,
    pub learners_next: MajorityConfig,
}

impl TrackerConfig {
    pub fn is_joint(&self) -> bool {
        !self.voters.outgoing.is_empty()
    }
}

impl fmt::Display for TrackerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "voters={}", self.voters)?;
        if !self.learners.is_empty() {
            write!(f, " learners={}", self.learners)?;
        }
        if !self.learners_next.is_empty() {
            write!(f, " learners_next={}", self.learners_next)?;
        }
        if self.auto_leave {
            f.write_str(" autoleave")?;
        }
        Ok(())
    }
}

/// [`Progress`] by member id, in ascending order. A sorted vector: groups are small, and the leader walks it per
/// proposal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgressMap {
    members: Vec<(u64, Progress)>,
}

impl ProgressMap {
    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The id in position `at`, so that a caller can walk the members while changing one.
    pub fn id_at(&self, at: usize) -> u64 {
        self.members[at].0
    }

    fn find(&self, id: u64) -> Result<usize, usize> {
        self.members.binary_search_by_key(&id, |(id, _)| *id)
    }

    pub fn contains(&self, id: u64) -> bool {
        self.find(id).is_ok()
    }

    pub fn get(&self, id: u64) -> Option<&Progress> {
        self.find(id).ok().map(|at| &self.members[at].1)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut Progress> {
        self.find(id).ok().map(|at| &mut self.members[at].1)
    }

    pub fn insert(&mut self, id: u64, progress: Progress) {
        match self.find(id) {
            Ok(at) => self.members[at].1 = progress,
            Err(at) => self.members.insert(at, (id, progress)),
        }
    }

    pub fn remove(&mut self, id: u64) -> Option<Progress> {
        self.find(id).ok().map(|at| self.members.remove(at).1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Progress)> {
        self.members.iter().map(|(id, progress)| (*id, progress))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Progress)> {
        self.members.iter_mut().map(|(id, progress)| (*id, progress))
    }
}

/// One line a member: `1: StateReplicate match=11 next=12`.
impl fmt::Display for ProgressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|(id, progress)| writeln!(f, "{id}: {progress}"))
    }
}

/// Membership, progress and the votes of the election under way.
#[derive(Clone, Debug)]
pub struct ProgressTracker {
    pub config: TrackerConfig,
    pub progress: ProgressMap,
    votes: BTreeMap<u64, bool>,
    max_inflight_msgs: usize,
    max_inflight_bytes: u64,
}

impl ProgressTracker {
    /// Without members. The bounds are those of every member's [`Inflights`].
    pub fn new(max_inflight_msgs: usize, max_inflight_bytes: u64) -> Self {
        Self {
            config: TrackerConfig::default(),
            progress: ProgressMap::default(),
            votes: BTreeMap::new(),
            max_inflight_msgs,
            max_inflight_bytes,
        }
    }

    /// A tracker without members, with this one's bounds.
    pub fn blank(&self) -> Self {
        Self::new(self.max_inflight_msgs, self.max_inflight_bytes)
    }

    /// An empty window with this tracker's bounds.
    pub fn new_inflights(&self) -> Inflights {
        Inflights::new(self.max_inflight_msgs, self.max_inflight_bytes)
    }

    /// The membership as it goes into snapshots.
    pub fn conf_state(&self) -> ConfState {
        ConfState {
            voters: self.config.voters.incoming.as_slice().to_vec(),
            voters_outgoing: self.config.voters.outgoing.as_slice().to_vec(),
            learners: self.config.learners.as_slice().to_vec(),
            learners_next: self.config.learners_next.as_slice().to_vec(),
            auto_leave: self.config.auto_leave,
        }
    }

    /// True when exactly one member votes.
    pub fn is_singleton(&self) -> bool {
        self.config.voters.incoming.len() == 1 && self.config.voters.outgoing.is_empty()
    }

    /// The largest index that the voters have acknowledged as theirs.
    pub fn committed(&self) -> u64 {
        self.config.voters.committed_index(|id| self.progress.get(id).map(|progress| progress.matched))
    }

    /// True when voters enough for a quorum were heard from since the last check.
    pub fn quorum_active(&self) -> bool {
        let active = |id| match self.progress.get(id) {
            Some(progress) if !progress.is_learner => Some(progress.recent_active),
            _ => None,
        };
        self.config.voters.vote_result(active) == VoteResult::Won
    }

    /// Starts a new count of votes.
    pub fn reset_votes(&mut self) {
        self.votes.clear();
    }

    /// Counts a vote; a member's first word stands.
    pub fn record_vote(&mut self, id: u64, granted: bool) {
        self.votes.entry(id).or_insert(granted);
    }

    /// Granted, rejected (both among current voters, for the log) and how the election stands.
    pub fn tally_votes(&self) -> (usize, usize, VoteResult) {
        let (mut granted, mut rejected) = (0, 0);
        for (id, progress) in self.progress.iter() {
            match self.votes.get(&id) {
                Some(_) if progress.is_learner => {}
                Some(true) => granted += 1,
                Some(false) => rejected += 1,
                None => {}
            }
        }
        (granted, rejected, self.config.voters.vote_result(|id| self.votes.get(&id).copied()))
    }
}
