//! What goes wrong, and how.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use dolmen_env::{Disk, Fault, SimDisk};
use dolmen_machine::Machine;
use dolmen_mvcc::RangeOptions;
use dolmen_types::{KeyRange, Term};
use dolmen_wal::Wal;

use crate::clients::{Owner, What};
use crate::member::Member;
use crate::mutants::Mutant;
use crate::plan::{FaultKind, MS};
use crate::trace::NOBODY;
use crate::world::{Event, Phase, World};

/// Bits that are tried in search of one that only a reader finds.
const TRIES: usize = 6;

impl World {
    /// Draws a fault, has it happen, and plans the next.
    pub(crate) fn fault(&mut self) -> Result<(), String> {
        if self.phase != Phase::Faults {
            return Ok(());
        }
        if self.queue.now < self.quiet_until {
            self.queue.at(self.quiet_until + 1, Event::Fault);
            return Ok(());
        }
        let pause = self.rng.range(self.plan.fault_every / 2, self.plan.fault_every * 3 / 2);
        self.queue.after(pause, Event::Fault);
        if self.options.mutant == Some(Mutant::SyncLies) {
            self.members.iter().for_each(|member| member.disk.lying_sync(true));
        }
        let kind = *self.rng.pick(&self.plan.faults);
        let nodes = self.plan.nodes;
        let node = self.rng.below(nodes as u64) as usize;
        let now = self.queue.now;
        let running = self.members[node].running.is_some();
        match kind {
            FaultKind::Partition => {
                let side: Vec<bool> = (0..nodes).map(|_| self.rng.chance(500)).collect();
                self.net.partition(&side);
                self.trace.note(now, NOBODY, "partition", side.iter().filter(|side| **side).count() as u64, 0);
            }
            FaultKind::OneWay => {
                let other = self.rng.below(nodes as u64) as usize;
                if node != other {
                    self.net.cut_one_way(node, other);
                    self.trace.note(now, node as u8, "one way", other as u64, 0);
                }
            }
            FaultKind::Blackhole => {
                let side: Vec<bool> = (0..nodes).map(|at| at == node).collect();
                self.net.partition(&side);
                self.trace.note(now, node as u8, "blackhole", 0, 0);
            }
            FaultKind::Heal => {
                self.net.heal();
                self.trace.note(now, NOBODY, "heal", 0, 0);
            }
            FaultKind::PowerLoss if running => {
                self.stats.crashes += 1;
                self.power_loss(node);
            }
            FaultKind::Kill if running => {
                self.stats.crashes += 1;
                self.members[node].disk.kill();
                self.stop(node, "kill");
            }
            FaultKind::AllDown => {
                let kill = self.rng.chance(300);
                for node in 0..nodes {
                    if self.members[node].running.is_some() {
                        self.stats.crashes += 1;
                        if kill {
                            self.members[node].disk.kill();
                            self.stop(node, "kill all");
                        } else {
                            self.power_loss(node);
                        }
                    }
                }
            }
            FaultKind::Pause if running => {
                let longest = 30 * self.plan.tick * self.plan.election_ticks as u64 / 10;
                self.members[node].paused_until = now + self.rng.range(MS, longest);
                self.trace.note(now, node as u8, "pause", self.members[node].paused_until - now, 0);
            }
            FaultKind::SlowDisk => {
                self.members[node].slow_until = now + self.rng.range(200 * MS, 2000 * MS);
                self.trace.note(now, node as u8, "slow disk", 0, 0);
            }
            FaultKind::HangingDisk if running => self.hang(node),
            FaultKind::Rot => self.rot(node),
            FaultKind::NoSpace if running => {
                let member = &mut self.members[node];
                member.disk_trouble = true;
                let used = member.disk.used_bytes();
                member.disk.set_capacity(Some(used + self.rng.below(20_000)));
                self.trace.note(now, node as u8, "full disk", used, 0);
            }
            FaultKind::Eio if running => {
                let member = &mut self.members[node];
                member.disk_trouble = true;
                member.disk.inject(Fault::Eio { after: self.rng.below(40) });
                self.trace.note(now, node as u8, "EIO", 0, 0);
            }
            FaultKind::CrashCalls if running => {
                let member = &mut self.members[node];
                member.disk_trouble = true;
                member.disk.inject(Fault::CrashAfter { calls: self.rng.below(80) });
                self.trace.note(now, node as u8, "crash soon", 0, 0);
            }
            FaultKind::MoveLeader => {
                let target = self.members[self.rng.below(nodes as u64) as usize].id;
                self.issue(Owner::Operator, node, What::MoveLeader { target });
            }
            FaultKind::FalseHint if running => {
                let leader = self.members[node].running.as_ref().map_or(0, |r| r.node.raft().basic_status().leader_id);
                self.trace.note(now, node as u8, "false hint", leader, 0);
                self.input(node, dolmen_node::Input::PeerGone(leader));
            }
            FaultKind::Contest if nodes > 2 => self.contest(node),
            _ => {}
        }
        self.stats.faults += 1;
        Ok(())
    }

    /// Syncs of one member's log take so long that a leader has to make room; nothing else goes wrong meanwhile.
    fn hang(&mut self, node: usize) {
        let now = self.queue.now;
        let slowest = self.plan.rates.iter().copied().min().unwrap_or(1000);
        let timeout = self.plan.tick * self.plan.election_ticks as u64 * 1000 / slowest;
        let end = now + self.rng.range(10 * timeout, 14 * timeout);
        let well = |member: &Member| {
            member.running.is_some()
                && !member.rotten
                && !member.disk_trouble
                && member.paused_until <= now
                && member.slow_until <= now
                && member.hangs_until <= now
        };
        let quiet = self.plan.nodes > 2
            && self.members.iter().all(well)
            && self.net.is_whole()
            && (self.plan.loss, self.plan.spike.0) == (0, 0);
        let member = &mut self.members[node];
        let raft = member.running.as_ref().map(|running| running.node.raft());
        let led = raft.filter(|raft| quiet && raft.is_leader()).map(|raft| raft.term());
        (member.hangs_until, member.hangs_since) = (end, None);
        let epoch = member.epoch;
        self.queue.at(end, Event::Hung { node, epoch, led });
        self.quiet_until = end;
        self.trace.note(now, node as u8, "hanging disk", end - now, 0);
    }

    /// A leader whose disk hung for long is one no longer: it wrote something, and everybody else was well.
    pub(crate) fn hung(&mut self, node: usize, led: Option<Term>) -> Result<(), String> {
        let member = &self.members[node];
        let (Some(running), Some(term), Some(since)) = (&member.running, led, member.hangs_since) else {
            return Ok(());
        };
        let raft = running.node.raft();
        let timeout = self.plan.tick * self.plan.election_ticks as u64;
        let long = member.clock(self.queue.now).since(member.clock(since)) >= 6 * timeout;
        if self.phase == Phase::Faults && long && raft.is_leader() && raft.term() == term {
            return Err(format!("n{node} leads on although its log has hung since {since}"));
        }
        Ok(())
    }

    fn contest(&mut self, one: usize) {
        let other = (one + 1 + self.rng.below(self.plan.nodes as u64 - 1) as usize) % self.plan.nodes;
        self.net.cut_one_way(one, other);
        self.net.cut_one_way(other, one);
        self.rivals = Some([one, other]);
        self.trace.note(self.queue.now, one as u8, "contest", other as u64, 0);
        let leads = |member: &Member| member.running.as_ref().is_some_and(|running| running.node.raft().is_leader());
        if let Some(leader) = self.members.iter().position(leads) {
            self.die_and_come_back(leader, "leader dies", 50 * MS);
        }
    }

    /// A vote for one of two rivals has just left its voter, which does not survive it.
    pub(crate) fn voted(&mut self, voter: usize, winner: usize) {
        self.rivals = None;
        for other in (0..self.plan.nodes).filter(|other| *other != winner) {
            self.net.cut_one_way(winner, other);
        }
        let epoch = self.members[voter].epoch;
        self.queue.after(1, Event::Voted { node: voter, epoch });
    }

    pub(crate) fn die_and_come_back(&mut self, node: usize, why: &'static str, soon: u64) {
        self.stats.crashes += 1;
        if self.rng.chance(500) {
            self.members[node].disk.kill();
            self.stop(node, why);
        } else {
            self.power_loss(node);
        }
        let delay = self.rng.range(MS, soon);
        self.queue.after(delay, Event::Restart(node));
    }

    /// Flips a bit of a member's files while it is down. Only a minority ever rots.
    fn rot(&mut self, node: usize) {
        let rotten = self.members.iter().filter(|member| member.hit).count();
        if self.members[node].hit || rotten >= (self.plan.nodes - 1) / 2 {
            return;
        }
        if self.members[node].running.is_some() {
            self.stats.crashes += 1;
            self.power_loss(node);
        }
        let files = self.members[node].files();
        if files.is_empty() {
            return;
        }
        let (file, bit) = match self.hidden_rot(node, &files) {
            Some(found) if self.rng.chance(500) => found,
            _ => {
                let file = self.rng.pick(&files).clone();
                let Some(bit) = self.some_bit(node, &file) else { return };
                (file, bit)
            }
        };
        let member = &self.members[node];
        let before = member.disk.fork(1);
        let after = member.disk.fork(1);
        if after.flip_bit(&file, bit).is_err() {
            return;
        }
        if forgets(&before, &after) {
            // The last records before anything vouched for them: nobody can tell that from a torn tail. Together with
            // the loss of another holder this is a double fault, which nothing is promised about.
            self.stats.unseen_rot += 1;
            return;
        }
        let _flipped = member.disk.flip_bit(&file, bit);
        (self.members[node].rotten, self.members[node].hit) = (true, true);
        self.stats.rotten += 1;
        self.trace.note(self.queue.now, node as u8, "rot", bit, 0);
        self.trace.say(self.queue.now, || format!("n{node}: bit {bit} of {}", file.display()));
    }
}

impl World {
    /// A bit of a member's file, which is not empty.
    fn some_bit(&mut self, node: usize, file: &Path) -> Option<u64> {
        let len = self.members[node].disk.read(file).map_or(0, |bytes| bytes.len() as u64);
        (len > 0).then(|| self.rng.below(len * 8))
    }

    /// A bit that no start misses, and whoever reads everything does: most bits are of neither kind.
    fn hidden_rot(&mut self, node: usize, files: &[PathBuf]) -> Option<(PathBuf, u64)> {
        let segments: Vec<&PathBuf> =
            files.iter().filter(|file| file.extension().is_some_and(|e| e == "seg")).collect();
        if segments.len() < 2 {
            return None;
        }
        for _ in 0..TRIES {
            let file = (*self.rng.pick(&segments)).clone();
            let bit = self.some_bit(node, &file)?;
            let disk = self.members[node].disk.fork(1);
            let config = self.plan.machine();
            if disk.flip_bit(&file, bit).is_ok()
                && let Ok(machine) = Machine::open(Arc::new(disk), &Member::layout().store(), config)
                && machine
                    .store()
                    .reader()
                    .range(&KeyRange::From(Bytes::from_static(b"\0")), &RangeOptions::default())
                    .is_err()
            {
                return Some((file, bit));
            }
        }
        None
    }
}

/// Whether a damaged log opens as if nothing were wrong and holds less than before.
fn forgets(before: &SimDisk, after: &SimDisk) -> bool {
    let read = |disk: &SimDisk| {
        let wal = Member::layout().wal;
        let from = Wal::snapshots(disk, &wal).ok()?.first().map_or((0, 0), |mark| (mark.index, mark.term));
        let log = Wal::read(disk, &wal, from).ok()?;
        Some((log.entries, log.hard_state, log.snapshots))
    };
    match (read(before), read(after)) {
        (before, Some(after)) => before.is_none_or(|before| before != after),
        (_, None) => false,
    }
}
