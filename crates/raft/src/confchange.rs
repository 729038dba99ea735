//! Membership changes (thesis chapter 4): how a list of changes turns one membership into the next.
//!
//! * **Simple**: at most one voter differs, so any old and any new majority overlap, and the change takes effect at
//!   once.
//! * **Joint**: several changes enter a state in which old and new voters both decide, and a second change leaves it.
//!
//! A [`Changer`] works on copies of the membership and the progress; the caller puts them in force when it succeeds.
//! [`Changer::restore`] rebuilds a membership from the [`ConfState`] in a snapshot, by the changes that lead to it.

use dolmen_proto::raftpb::{
    ConfChange, ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState,
};

use crate::NONE;
use crate::progress::Progress;
use crate::quorum::MajorityConfig;
use crate::tracker::{ProgressMap, ProgressTracker, TrackerConfig};

/// Why a change cannot be applied to the membership in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfChangeError {
    #[error("config is already joint")]
    AlreadyJoint,
    #[error("can't make a zero-voter config joint")]
    ZeroVotersJoint,
    #[error("can't leave a non-joint config")]
    NotJoint,
    #[error("can't apply simple config change in joint config")]
    SimpleInJoint,
    #[error("more than one voter changed without entering joint config")]
    MoreThanOneVoter,
    #[error("removed all voters")]
    RemovedAllVoters,
    #[error("unexpected conf type {0}")]
    UnknownType(i32),
    #[error("unknown transition {0}")]
    UnknownTransition(i32),
    #[error("no progress for {0}")]
    NoProgress(u64),
    #[error("{id} is in {set}, but {but}")]
    Inconsistent { id: u64, set: &'static str, but: &'static str },
    #[error("a membership that is not joint has {0}")]
    JointLeftover(&'static str),
    /// The changes that a `ConfState` stands for lead to another one: it repeats or contradicts itself.
    #[error("conf state is inconsistent")]
    BadConfState,
}

/// The same change in the general form.
pub fn into_v2(change: &ConfChange) -> ConfChangeV2 {
    ConfChangeV2 {
        transition: ConfChangeTransition::Auto as i32,
        changes: vec![ConfChangeSingle { r#type: change.r#type, node_id: change.node_id }],
        context: change.context.clone(),
    }
}

/// What a change asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Simple,
    EnterJoint { auto_leave: bool },
    LeaveJoint,
}

/// An empty change without a transition leaves the joint state; several changes, or an explicit transition, enter it.
pub(crate) fn kind(change: &ConfChangeV2) -> Result<Kind, ConfChangeError> {
    let transition = ConfChangeTransition::try_from(change.transition)
        .map_err(|_| ConfChangeError::UnknownTransition(change.transition))?;
    Ok(match transition {
        ConfChangeTransition::Auto if change.changes.is_empty() => Kind::LeaveJoint,
        ConfChangeTransition::Auto if change.changes.len() == 1 => Kind::Simple,
        ConfChangeTransition::Auto | ConfChangeTransition::JointImplicit => Kind::EnterJoint { auto_leave: true },
        ConfChangeTransition::JointExplicit => Kind::EnterJoint { auto_leave: false },
    })
}

/// Refuses a change that names a type or a transition this version does not know, wherever it would be applied.
pub(crate) fn check_known(change: &ConfChangeV2) -> Result<(), ConfChangeError> {
    kind(change)?;
    for single in &change.changes {
        ConfChangeType::try_from(single.r#type).map_err(|_| ConfChangeError::UnknownType(single.r#type))?;
    }
    Ok(())
}

/// True when both describe the same membership, in whatever order they list it.
pub(crate) fn equivalent(a: &ConfState, b: &ConfState) -> bool {
    fn same(a: &[u64], b: &[u64]) -> bool {
        let (mut a, mut b) = (a.to_vec(), b.to_vec());
        a.sort_unstable();
        b.sort_unstable();
        a == b
    }
    same(&a.voters, &b.voters)
        && same(&a.learners, &b.learners)
        && same(&a.voters_outgoing, &b.voters_outgoing)
        && same(&a.learners_next, &b.learners_next)
        && a.auto_leave == b.auto_leave
}

/// Works out the next membership. After an error the changer's own copies are half changed: drop it.
#[derive(Clone, Debug)]
pub struct Changer {
    config: TrackerConfig,
    progress: ProgressMap,
    /// Blank tracker that knows the bounds of new members' windows.
    bounds: ProgressTracker,
    last_index: u64,
}

impl Changer {
    /// Starts from `tracker`'s membership. `last_index` is where new members are probed first.
    pub fn new(tracker: &ProgressTracker, last_index: u64) -> Self {
        Self { config: tracker.config.clone(), progress: tracker.progress.clone(), bounds: tracker.blank(), last_index }
    }

    /// The membership and the progress as changed.
    pub fn into_parts(self) -> (TrackerConfig, ProgressMap) {
        (self.config, self.progress)
    }

    /// Applies whichever of the three steps `change` asks for.
    pub fn apply(&mut self, change: &ConfChangeV2) -> Result<(), ConfChangeError> {
        match kind(change)? {
            Kind::LeaveJoint => self.leave_joint(),
            Kind::EnterJoint { auto_leave } => self.enter_joint(auto_leave, &change.changes),
            Kind::Simple => self.simple(&change.changes),
        }
    }

    /// From `(1 2 3)` to `(1 2 3)&&(1 2 3)`, then the changes on the incoming half.
    pub fn enter_joint(&mut self, auto_leave: bool, changes: &[ConfChangeSingle]) -> Result<(), ConfChangeError> {
        self.check()?;
        if self.config.is_joint() {
            return Err(ConfChangeError::AlreadyJoint);
        }
        if self.config.voters.incoming.is_empty() {
            return Err(ConfChangeError::ZeroVotersJoint);
        }
        self.config.voters.outgoing = self.config.voters.incoming.clone();
        self.apply_changes(changes)?;
        self.config.auto_leave = auto_leave;
        self.check()
    }

    /// Drops the outgoing half; staged learners become learners, members left in no set are forgotten.
    pub fn leave_joint(&mut self) -> Result<(), ConfChangeError> {
        self.check()?;
        if !self.config.is_joint() {
            return Err(ConfChangeError::NotJoint);
        }
        for id in std::mem::take(&mut self.config.learners_next).iter() {
            self.config.learners.insert(id);
            if let Some(progress) = self.progress.get_mut(id) {
                progress.is_learner = true;
            }
        }
        for id in std::mem::take(&mut self.config.voters.outgoing).iter() {
            if !self.config.voters.incoming.contains(id) && !self.config.learners.contains(id) {
                self.progress.remove(id);
            }
        }
        self.config.auto_leave = false;
        self.check()
    }

    /// Changes that together move at most one voter.
    pub fn simple(&mut self, changes: &[ConfChangeSingle]) -> Result<(), ConfChangeError> {
        self.check()?;
        if self.config.is_joint() {
            return Err(ConfChangeError::SimpleInJoint);
        }
        let before = self.config.voters.incoming.clone();
        self.apply_changes(changes)?;
        if symmetric_difference(&before, &self.config.voters.incoming) > 1 {
            return Err(ConfChangeError::MoreThanOneVoter);
        }
        self.check()
    }

    /// From an empty membership to the one `state` describes.
    ///
    /// A joint one is reached by making the outgoing voters first, then entering the joint state with changes that
    /// remove them all and add what `state` lists.
    pub fn restore(&mut self, state: &ConfState) -> Result<(), ConfChangeError> {
        let single = |kind: ConfChangeType| move |&node_id: &u64| ConfChangeSingle { r#type: kind as i32, node_id };
        let add = state.voters.iter().map(single(ConfChangeType::ConfChangeAddNode));
        let learn = state.learners.iter().chain(&state.learners_next);
        let incoming = add.chain(learn.map(single(ConfChangeType::ConfChangeAddLearnerNode)));
        if state.voters_outgoing.is_empty() {
            for change in incoming {
                self.simple(&[change])?;
            }
        } else {
            for change in state.voters_outgoing.iter().map(single(ConfChangeType::ConfChangeAddNode)) {
                self.simple(&[change])?;
            }
            let remove = state.voters_outgoing.iter().map(single(ConfChangeType::ConfChangeRemoveNode));
            let changes: Vec<_> = remove.chain(incoming).collect();
            self.enter_joint(state.auto_leave, &changes)?;
        }
        Ok(())
    }

    fn apply_changes(&mut self, changes: &[ConfChangeSingle]) -> Result<(), ConfChangeError> {
        for change in changes {
            // A server that decides against a change applies it with id 0: nothing happens, on every member.
            if change.node_id == NONE {
                continue;
            }
            match ConfChangeType::try_from(change.r#type) {
                Ok(ConfChangeType::ConfChangeAddNode) => self.make_voter(change.node_id),
                Ok(ConfChangeType::ConfChangeAddLearnerNode) => self.make_learner(change.node_id),
                Ok(ConfChangeType::ConfChangeRemoveNode) => self.remove(change.node_id),
                Ok(ConfChangeType::ConfChangeUpdateNode) => {}
                Err(_) => return Err(ConfChangeError::UnknownType(change.r#type)),
            }
        }
        if self.config.voters.incoming.is_empty() {
            return Err(ConfChangeError::RemovedAllVoters);
        }
        Ok(())
    }

    fn make_voter(&mut self, id: u64) {
        match self.progress.get_mut(id) {
            None => self.add_member(id, false),
            Some(progress) => {
                progress.is_learner = false;
                self.config.learners.remove(id);
                self.config.learners_next.remove(id);
                self.config.voters.incoming.insert(id);
            }
        }
    }

    fn make_learner(&mut self, id: u64) {
        let Some(progress) = self.progress.get(id) else {
            return self.add_member(id, true);
        };
        if progress.is_learner {
            return;
        }
        let mut progress = progress.clone();
        self.remove(id);
        if self.config.voters.outgoing.contains(id) {
            // Still a voter in the outgoing half, and nobody is both: it waits until that half goes.
            self.config.learners_next.insert(id);
        } else {
            progress.is_learner = true;
            self.config.learners.insert(id);
        }
        self.progress.insert(id, progress);
    }

    fn remove(&mut self, id: u64) {
        if !self.progress.contains(id) {
            return;
        }
        self.config.voters.incoming.remove(id);
        self.config.learners.remove(id);
        self.config.learners_next.remove(id);
        if !self.config.voters.outgoing.contains(id) {
            self.progress.remove(id);
        }
    }

    fn add_member(&mut self, id: u64, is_learner: bool) {
        if is_learner {
            self.config.learners.insert(id);
        } else {
            self.config.voters.incoming.insert(id);
        }
        let mut progress = Progress::new(self.last_index.max(1), self.bounds.new_inflights(), is_learner);
        // Counts as heard from, or the next quorum check could depose a leader for a member it just added.
        progress.recent_active = true;
        self.progress.insert(id, progress);
    }

    /// The invariants of a membership; see [`TrackerConfig`].
    fn check(&self) -> Result<(), ConfChangeError> {
        let config = &self.config;
        let voters = config.voters.ids();
        for id in voters.iter().chain(config.learners.iter()).chain(config.learners_next.iter()) {
            if !self.progress.contains(id) {
                return Err(ConfChangeError::NoProgress(id));
            }
        }
        let is_learner = |id| self.progress.get(id).is_some_and(|progress| progress.is_learner);
        let inconsistent = |id, set, but| Err(ConfChangeError::Inconsistent { id, set, but });
        for id in config.learners_next.iter() {
            if !config.voters.outgoing.contains(id) {
                return inconsistent(id, "LearnersNext", "not Voters[1]");
            }
            if is_learner(id) {
                return inconsistent(id, "LearnersNext", "is already marked as learner");
            }
        }
        for id in config.learners.iter() {
            if config.voters.contains(id) {
                return inconsistent(id, "Learners", "is a voter too");
            }
            if !is_learner(id) {
                return inconsistent(id, "Learners", "is not marked as learner");
            }
        }
        if !config.is_joint() {
            if !config.learners_next.is_empty() {
                return Err(ConfChangeError::JointLeftover("staged learners"));
            }
            if config.auto_leave {
                return Err(ConfChangeError::JointLeftover("auto leave set"));
            }
        }
        Ok(())
    }
}

/// How many ids are in one set and not in the other.
fn symmetric_difference(a: &MajorityConfig, b: &MajorityConfig) -> usize {
    a.iter().filter(|&id| !b.contains(id)).count() + b.iter().filter(|&id| !a.contains(id)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restored(state: &ConfState) -> Result<ConfState, ConfChangeError> {
        let mut tracker = ProgressTracker::new(20, 0);
        let mut changer = Changer::new(&tracker, 10);
        changer.restore(state)?;
        (tracker.config, tracker.progress) = changer.into_parts();
        Ok(tracker.conf_state())
    }

    #[test]
    fn restore_reaches_every_shape() {
        let states = [
            ConfState::default(),
            ConfState { voters: vec![1, 2, 3], ..ConfState::default() },
            ConfState { voters: vec![3, 1, 2], learners: vec![6, 4, 5], ..ConfState::default() },
            ConfState {
                voters: vec![1, 2, 3],
                learners: vec![5],
                voters_outgoing: vec![1, 2, 4, 6],
                learners_next: vec![4],
                auto_leave: true,
            },
        ];
        for state in &states {
            let reached = restored(state).unwrap();
            assert!(equivalent(state, &reached), "{state:?} became {reached:?}");
        }
    }

    #[test]
    fn contradictions_do_not_restore_to_themselves() {
        let repeated = ConfState { voters: vec![1, 1], ..ConfState::default() };
        assert!(!equivalent(&repeated, &restored(&repeated).unwrap()));
        let both = ConfState { voters: vec![1, 2], learners: vec![2], ..ConfState::default() };
        assert!(!equivalent(&both, &restored(&both).unwrap()));
        let only_learners = ConfState { learners: vec![2], ..ConfState::default() };
        assert_eq!(restored(&only_learners), Err(ConfChangeError::RemovedAllVoters));
    }

    #[test]
    fn unknown_words_are_refused() {
        let change = |transition, kind| ConfChangeV2 {
            transition,
            changes: vec![ConfChangeSingle { r#type: kind, node_id: 1 }],
            ..ConfChangeV2::default()
        };
        assert_eq!(check_known(&change(0, 3)), Ok(()));
        assert_eq!(check_known(&change(0, 4)), Err(ConfChangeError::UnknownType(4)));
        assert_eq!(check_known(&change(3, 0)), Err(ConfChangeError::UnknownTransition(3)));
    }
}
