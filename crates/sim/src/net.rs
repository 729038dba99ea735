//! The network between members: delay, loss, repeats, disorder, and who hears whom.

use dolmen_env::Rng;
use dolmen_proto::raftpb::{Message, MessageType};

use crate::plan::{MS, Plan};

pub(crate) struct Net {
    /// `cut[from][to]`: nothing gets through.
    cut: Vec<Vec<bool>>,
    /// When the last message of each link arrives, where links keep order.
    last: Vec<Vec<u64>>,
    calm: bool,
}

/// What becomes of one message: the times at which it arrives, none if it is lost.
pub(crate) type Arrivals = Vec<u64>;

impl Net {
    pub fn new(nodes: usize) -> Self {
        Self { cut: vec![vec![false; nodes]; nodes], last: vec![vec![0; nodes]; nodes], calm: false }
    }

    pub fn heal(&mut self) {
        self.cut.iter_mut().for_each(|row| row.fill(false));
    }

    /// From now on nothing is lost, repeated or late.
    pub fn calm(&mut self) {
        self.heal();
        self.calm = true;
    }

    pub fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cut[from][to]
    }

    /// Whether everybody hears everybody.
    pub fn is_whole(&self) -> bool {
        self.cut.iter().flatten().all(|cut| !cut)
    }

    pub fn cut_one_way(&mut self, from: usize, to: usize) {
        self.cut[from][to] = true;
    }

    /// Cuts everything between members of `side` and the others.
    pub fn partition(&mut self, side: &[bool]) {
        for (from, row) in self.cut.iter_mut().enumerate() {
            for (to, cut) in row.iter_mut().enumerate() {
                *cut |= side[from] != side[to];
            }
        }
    }

    pub fn send(
        &mut self,
        plan: &Plan,
        rng: &mut Rng,
        now: u64,
        from: usize,
        to: usize,
        message: &Message,
    ) -> Arrivals {
        if self.cut[from][to] {
            return Vec::new();
        }
        if !self.calm && rng.chance(plan.loss) {
            return Vec::new();
        }
        let mut at = now + rng.range(plan.delay.0, plan.delay.1 + 1);
        if !self.calm && rng.chance(plan.spike.0) {
            at += rng.range(MS, plan.spike.1);
        }
        if plan.fifo {
            at = at.max(self.last[from][to]);
            self.last[from][to] = at;
        }
        let mut arrivals = vec![at];
        // A connection never repeats a message; raft bears it but for proposals, which would be committed twice.
        if !self.calm && message.r#type != MessageType::MsgProp as i32 && rng.chance(plan.duplicate) {
            arrivals.push(at + rng.range(plan.delay.0, 20 * plan.delay.1));
        }
        arrivals
    }
}

/// The name of a message's type.
pub(crate) fn kind(message: &Message) -> &'static str {
    MessageType::try_from(message.r#type).map_or("MsgUnknown", |kind| kind.as_str_name())
}
