//! The end of a run: everything is healed, a write goes through, and everybody has everything.

use crate::plan::{MS, SECOND};
use crate::trace::NOBODY;
use crate::world::{Event, Phase, World};

/// After everything is healed and started: how long until a write must have gone through.
const PROGRESS: u64 = 4 * SECOND;
/// And from then until everybody has everything.
const SETTLE: u64 = 4 * SECOND;

impl World {
    /// No more faults: everything is healed and started, and a write must go through.
    pub(crate) fn quiet(&mut self) -> Result<(), String> {
        self.phase = Phase::Progress;
        self.rivals = None;
        self.trace.note(self.queue.now, NOBODY, "quiet", 0, 0);
        self.net.calm();
        let mut from = self.queue.now;
        for node in 0..self.plan.nodes {
            let member = &mut self.members[node];
            member.slow_until = 0;
            from = from.max(std::mem::take(&mut member.hangs_until));
            member.disk.set_capacity(None);
            member.disk.clear_faults();
            member.disk.lying_sync(false);
            if member.running.is_some() {
                from = from.max(member.paused_until);
                // What struck already may still show.
            } else if !member.dead {
                member.restarting = true;
                let delay = self.rng.range(MS, 50 * MS);
                self.queue.after(delay, Event::Restart(node));
            }
        }
        // Where everybody left is needed for a quorum, or members disturb each other's elections, some more are lost.
        let live = self.members.iter().filter(|member| !member.dead && !member.rotten).count();
        let slack = self.plan.pre_vote && live > self.plan.nodes / 2 + 1;
        self.deadline = from + if slack || self.plan.nodes == 1 { PROGRESS } else { 3 * PROGRESS };
        self.queue.after(10 * MS, Event::Probe);
        Ok(())
    }

    /// A probing write went through.
    pub(crate) fn probed(&mut self) {
        if self.phase != Phase::Progress {
            return;
        }
        self.phase = Phase::Settle;
        self.trace.note(self.queue.now, NOBODY, "progress", 0, 0);
        self.deadline = self.queue.now + SETTLE;
        if self.plan.wait_for_leases {
            let slowest = self.plan.rates.iter().copied().min().unwrap_or(1000);
            let ttl = self.leases.values().map(|track| track.ttl).max().unwrap_or(0) as u64;
            self.deadline +=
                ttl * SECOND * 1000 / slowest + 2 * self.plan.tick * self.plan.election_ticks as u64 + SECOND;
        }
        self.queue.after(MS, Event::Look);
    }

    fn unsettled(&self) -> Option<String> {
        for (node, member) in self.members.iter().enumerate().filter(|(_, member)| !member.dead) {
            let Some(running) = &member.running else { return Some(format!("n{node} is down")) };
            let applied = running.node.machine().applied();
            if applied != self.model.last_index() {
                return Some(format!("n{node} has applied {applied} of {}", self.model.last_index()));
            }
        }
        if self.plan.wait_for_leases && !self.model.leases.is_empty() {
            return Some(format!("leases {:?} have not expired", self.model.leases.keys().collect::<Vec<_>>()));
        }
        self.behind()
    }

    pub(crate) fn stuck(&self) -> String {
        if self.phase == Phase::Progress {
            return "no progress after everything was healed".into();
        }
        let mut progress = String::new();
        for (node, running) in self.members.iter().enumerate().filter_map(|(at, m)| Some((at, m.running.as_ref()?))) {
            if running.node.raft().is_leader() {
                for (id, of) in running.node.raft().progress() {
                    let whose = self.cluster.position(id).unwrap_or(usize::MAX);
                    progress.push_str(&format!("; n{node} leads, n{whose}: {of}"));
                }
            }
        }
        format!("it does not settle: {}{progress}", self.unsettled().unwrap_or_default())
    }

    pub(crate) fn look(&mut self) -> Result<(), String> {
        if self.unsettled().is_some() {
            self.queue.after(20 * MS, Event::Look);
            return Ok(());
        }
        for node in 0..self.plan.nodes {
            self.compare_all(node)?;
        }
        self.phase = Phase::Over;
        Ok(())
    }
}
