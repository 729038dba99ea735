//! Majorities: who has to agree before something is decided.
//!
//! A [`MajorityConfig`] is a set of voters; more than half of them decide. A [`JointConfig`] is the pair that rules
//! while membership changes: incoming and outgoing voters decide separately, and both must say yes (thesis 4.3). An
//! empty half never objects, so a configuration that is not joint is the pair `(voters, ())`.
//!
//! The same sorting answers two questions: up to which index is the log committed, and up to which counter are reads
//! confirmed. Callers hand in a lookup from voter to what it acknowledged.

use std::fmt;

/// Voters up to this number are counted on the stack.
const STACK_VOTERS: usize = 7;

/// How an election stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoteResult {
    /// Neither yes nor no has a majority yet.
    Pending,
    /// Yes can no longer reach a majority.
    Lost,
    /// A majority said yes.
    Won,
}

impl fmt::Display for VoteResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VoteResult::Pending => "VotePending",
            VoteResult::Lost => "VoteLost",
            VoteResult::Won => "VoteWon",
        })
    }
}

/// A set of member ids, ascending. Majority decisions count over it; learner sets use it for its order and its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MajorityConfig {
    ids: Vec<u64>,
}

impl MajorityConfig {
    pub const fn new() -> Self {
        Self { ids: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub fn contains(&self, id: u64) -> bool {
        self.ids.binary_search(&id).is_ok()
    }

    /// True when `id` was not there before.
    pub fn insert(&mut self, id: u64) -> bool {
        match self.ids.binary_search(&id) {
            Ok(_) => false,
            Err(at) => {
                self.ids.insert(at, id);
                true
            }
        }
    }

    /// True when `id` was there.
    pub fn remove(&mut self, id: u64) -> bool {
        match self.ids.binary_search(&id) {
            Ok(at) => {
                self.ids.remove(at);
                true
            }
            Err(_) => false,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.ids.iter().copied()
    }

    /// The ids, ascending.
    pub fn as_slice(&self) -> &[u64] {
        &self.ids
    }

    /// The largest index that a majority has acknowledged. `acked` answers `None` for a voter nobody heard from, which
    /// counts as 0. An empty set acknowledges everything: `u64::MAX`.
    pub fn committed_index(&self, acked: impl Fn(u64) -> Option<u64>) -> u64 {
        let n = self.ids.len();
        if n == 0 {
            return u64::MAX;
        }
        let mut stack = [0; STACK_VOTERS];
        let mut heap;
        let indexes: &mut [u64] = if n <= STACK_VOTERS {
            &mut stack[..n]
        } else {
            heap = vec![0; n];
            &mut heap
        };
        for (slot, &id) in indexes.iter_mut().zip(&self.ids) {
            *slot = acked(id).unwrap_or(0);
        }
        indexes.sort_unstable();
        // From the top, the (n/2 + 1)-th largest: a majority has it or more.
        indexes[n - (n / 2 + 1)]
    }

    /// Counts votes; `vote` answers `None` while a voter is silent. An empty set has won.
    pub fn vote_result(&self, vote: impl Fn(u64) -> Option<bool>) -> VoteResult {
        if self.ids.is_empty() {
            return VoteResult::Won;
        }
        let (mut yes, mut silent) = (0, 0);
        for &id in &self.ids {
            match vote(id) {
                Some(true) => yes += 1,
                Some(false) => {}
                None => silent += 1,
            }
        }
        let majority = self.ids.len() / 2 + 1;
        if yes >= majority {
            VoteResult::Won
        } else if yes + silent >= majority {
            VoteResult::Pending
        } else {
            VoteResult::Lost
        }
    }

    /// A drawing of who acknowledged what, one line a voter; the longer the bar, the more voters are behind this one.
    pub fn describe(&self, acked: impl Fn(u64) -> Option<u64>) -> String {
        use fmt::Write;
        if self.ids.is_empty() {
            return "<empty majority quorum>".to_owned();
        }
        let n = self.ids.len();
        let mut ranked: Vec<(u64, u64)> = self.ids.iter().map(|&id| (acked(id).unwrap_or(0), id)).collect();
        ranked.sort_unstable();
        let bar_of = |id: u64| {
            let index = acked(id).unwrap_or(0);
            ranked.iter().position(|&(other, _)| other == index).unwrap_or(0)
        };
        let mut out = format!("{}    idx\n", " ".repeat(n));
        for &id in &self.ids {
            let index = acked(id);
            match index {
                None => {
                    let _ = write!(out, "?{}", " ".repeat(n));
                }
                Some(_) => {
                    let bar = bar_of(id);
                    let _ = write!(out, "{}>{}", "x".repeat(bar), " ".repeat(n - bar));
                }
            }
            let _ = writeln!(out, " {:>5}    (id={id:x})", index.unwrap_or(0));
        }
        out
    }
}

impl FromIterator<u64> for MajorityConfig {
    fn from_iter<I: IntoIterator<Item = u64>>(ids: I) -> Self {
        let mut ids: Vec<u64> = ids.into_iter().collect();
        ids.sort_unstable();
        ids.dedup();
        Self { ids }
    }
}

/// Ids in hexadecimal, ascending: `(1 2 a)`.
impl fmt::Display for MajorityConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (i, id) in self.ids.iter().enumerate() {
            write!(f, "{}{id:x}", if i > 0 { " " } else { "" })?;
        }
        f.write_str(")")
    }
}

/// The voters in force: `outgoing` is empty unless a joint change is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JointConfig {
    pub incoming: MajorityConfig,
    pub outgoing: MajorityConfig,
}

impl JointConfig {
    /// Voters of either half.
    pub fn ids(&self) -> MajorityConfig {
        self.incoming.iter().chain(self.outgoing.iter()).collect()
    }

    pub fn contains(&self, id: u64) -> bool {
        self.incoming.contains(id) || self.outgoing.contains(id)
    }

    /// The largest index that both halves have acknowledged.
    pub fn committed_index(&self, acked: impl Fn(u64) -> Option<u64>) -> u64 {
        self.incoming.committed_index(&acked).min(self.outgoing.committed_index(&acked))
    }

    /// Won when both halves won, lost when either lost.
    pub fn vote_result(&self, vote: impl Fn(u64) -> Option<bool>) -> VoteResult {
        match (self.incoming.vote_result(&vote), self.outgoing.vote_result(&vote)) {
            (a, b) if a == b => a,
            (VoteResult::Lost, _) | (_, VoteResult::Lost) => VoteResult::Lost,
            _ => VoteResult::Pending,
        }
    }

    /// As [`MajorityConfig::describe`], over the voters of either half.
    pub fn describe(&self, acked: impl Fn(u64) -> Option<u64>) -> String {
        self.ids().describe(acked)
    }
}

/// `(1 2 3)`, or `(1 2 3)&&(1 2)` while joint.
impl fmt::Display for JointConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.incoming)?;
        if !self.outgoing.is_empty() {
            write!(f, "&&{}", self.outgoing)?;
        }
        Ok(())
    }
}
