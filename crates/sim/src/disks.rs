//! The disk threads of a member, and the end and the return of its process.

use dolmen_node::Input;
use dolmen_types::error_chain;

use crate::member::Refusal;
use crate::mutants::Mutant;
use crate::plan::{MS, US};
use crate::world::{Event, Phase, World};

impl World {
    pub(crate) fn work_wal(&mut self, node: usize) -> Result<(), String> {
        let (low, high) =
            if self.queue.now < self.members[node].slow_until { (50 * MS, 400 * MS) } else { self.plan.wal_latency };
        let mutant = self.options.mutant;
        let member = &mut self.members[node];
        let epoch = member.epoch;
        let Some(running) = &mut member.running else { return Ok(()) };
        match running.log.begin(mutant) {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            Err(error) => return self.broken(node, &error_chain(&error)),
        }
        if mutant == Some(Mutant::AckBeforeSync) {
            running.inbox.extend(running.log.take_unsynced().into_iter().map(Input::WalDone));
            self.wake(node);
        }
        let mut delay = self.rng.range(low, high + 1);
        let (now, member) = (self.queue.now, &mut self.members[node]);
        if now < member.hangs_until {
            member.hangs_since.get_or_insert(now);
            delay = delay.max(member.hangs_until - now);
        }
        self.queue.after(delay, Event::WalSync { node, epoch });
        Ok(())
    }

    pub(crate) fn wal_sync(&mut self, node: usize) -> Result<(), String> {
        let now = self.queue.now;
        let member = &mut self.members[node];
        let epoch = member.epoch;
        let Some(running) = &mut member.running else { return Ok(()) };
        let jobs = match running.log.sync(self.options.mutant) {
            Ok(jobs) => jobs,
            Err(error) => return self.broken(node, &error_chain(&error)),
        };
        let release = jobs.iter().filter_map(|job| job.release).max();
        self.trace.note(now, node as u8, "wal", jobs.len() as u64, running.log.wal.last_index());
        running.inbox.extend(jobs.into_iter().map(Input::WalDone));
        if let Err(error) = running.log.after_sync(release, now) {
            return self.broken(node, &error_chain(&error));
        }
        self.queue.after(dolmen_node::driver::IDLE.as_nanos() as u64, Event::WalIdle { node, epoch });
        self.wake(node);
        self.work_wal(node)
    }

    pub(crate) fn wal_idle(&mut self, node: usize) -> Result<(), String> {
        let member = &mut self.members[node];
        let epoch = member.epoch;
        let Some(running) = &mut member.running else { return Ok(()) };
        match running.log.idle() {
            Ok(true) => self.queue.after(dolmen_node::driver::IDLE.as_nanos() as u64, Event::WalIdle { node, epoch }),
            Ok(false) => {}
            Err(error) => return self.broken(node, &error_chain(&error)),
        }
        Ok(())
    }

    pub(crate) fn work_store(&mut self, node: usize) -> Result<(), String> {
        let member = &mut self.members[node];
        let epoch = member.epoch;
        let Some(running) = &mut member.running else { return Ok(()) };
        if !running.store.may_begin() {
            return Ok(());
        }
        // The work itself may fall at the beginning of the time it takes, or at its end.
        if let Err(what) = running.store.begin(self.rng.chance(500)) {
            return self.broken(node, &what);
        }
        let (low, high) = self.plan.store_latency;
        let delay = self.rng.range(low, high + 1);
        self.queue.after(delay, Event::StoreDone { node, epoch });
        Ok(())
    }

    pub(crate) fn store_done(&mut self, node: usize) -> Result<(), String> {
        let Some(running) = &mut self.members[node].running else { return Ok(()) };
        self.trace.note(self.queue.now, node as u8, "store", 0, 0);
        match running.store.finish() {
            Ok(input) => running.inbox.push_back(input),
            Err(what) => return self.broken(node, &what),
        }
        self.wake(node);
        self.work_store(node)
    }

    pub(crate) fn work_hash(&mut self, node: usize) {
        let member = &mut self.members[node];
        let epoch = member.epoch;
        let Some(running) = &mut member.running else { return };
        if running.hash.begin() {
            let delay = self.rng.range(100 * US, 30 * MS);
            self.queue.after(delay, Event::HashDone { node, epoch });
        }
    }

    pub(crate) fn hash_done(&mut self, node: usize) -> Result<(), String> {
        let Some(running) = &mut self.members[node].running else { return Ok(()) };
        if let Some(input) = running.hash.finish() {
            running.inbox.push_back(input);
            self.wake(node);
        }
        self.work_hash(node);
        Ok(())
    }

    pub(crate) fn history_done(&mut self, node: usize) -> Result<(), String> {
        let Some(running) = &mut self.members[node].running else { return Ok(()) };
        if let Some(input) = running.history.finish() {
            self.input(node, input);
        }
        Ok(())
    }

    /// A disk call failed, or the node cannot go on: the process ends.
    pub(crate) fn broken(&mut self, node: usize, what: &str) -> Result<(), String> {
        let member = &self.members[node];
        self.trace.say(self.queue.now, || format!("n{node} stops: {what}"));
        if member.disk.crashed() {
            self.stats.crashes += 1;
            self.power_loss(node);
        } else if member.disk_trouble {
            self.stop(node, "disk failure");
            self.members[node].disk.kill();
        } else if member.rotten {
            self.stop(node, "rot found");
            self.members[node].dead = true;
        } else {
            return Err(format!("n{node} stopped by itself: {what}"));
        }
        Ok(())
    }

    /// The process is gone; it will be started again.
    pub(crate) fn stop(&mut self, node: usize, why: &'static str) {
        let now = self.queue.now;
        let member = &mut self.members[node];
        self.trace.note(now, node as u8, why, member.epoch, 0);
        member.epoch += 1;
        member.running = None;
        if !member.restarting {
            member.restarting = true;
            let down = if self.phase == Phase::Faults { self.plan.down_time } else { 100 * MS };
            let delay = self.rng.range(MS, down.max(2 * MS));
            self.queue.after(delay, Event::Restart(node));
        }
        self.drop_watches(node);
        if why != "power loss" {
            self.show_death(node);
        }
        for at in 0..self.clients.len() {
            if let Some(op) = self.clients[at].current
                && self.ops[op].node == node
            {
                // The connection breaks: the outcome is unknown.
                let delay = self.rng.range(US, 5 * MS);
                self.queue.after(delay, Event::GiveUp(op));
            }
        }
    }

    /// A process that dies shows, where the network lets it: connections to it are reset and refused.
    fn show_death(&mut self, whose: usize) {
        for node in (0..self.plan.nodes).filter(|node| *node != whose) {
            if !self.net.is_cut(node, whose) && !self.net.is_cut(whose, node) && self.members[node].running.is_some() {
                let delay = self.rng.range(100 * US, 20 * MS);
                let epoch = self.members[node].epoch;
                self.queue.after(delay, Event::Gone { node, epoch, whose });
            }
        }
    }

    pub(crate) fn power_loss(&mut self, node: usize) {
        let shape = *self.rng.pick(&dolmen_env::PowerLoss::ALL);
        let disk = self.members[node].disk.clone();
        disk.power_loss(shape);
        self.stop(node, "power loss");
    }

    pub(crate) fn restart(&mut self, node: usize) -> Result<(), String> {
        let now = self.queue.now;
        let member = &mut self.members[node];
        member.restarting = false;
        if member.running.is_some() || member.dead {
            return Ok(());
        }
        member.disk.set_capacity(None);
        member.disk.clear_faults();
        member.disk_trouble = false;
        if self.phase == Phase::Faults
            && self.plan.faults.contains(&crate::plan::FaultKind::CrashCalls)
            && self.rng.chance(250)
        {
            member.disk_trouble = true;
            member.disk.inject(dolmen_env::Fault::CrashAfter { calls: self.rng.below(150) });
        }
        let mutant = self.options.mutant;
        match member.start(&self.plan, &self.cluster, mutant, now) {
            Ok(()) => {}
            Err(Refusal::Fault(what)) => {
                self.trace.say(now, || format!("n{node} stopped while starting: {what}"));
                if self.members[node].disk.crashed() {
                    self.power_loss(node);
                } else {
                    self.members[node].disk.kill();
                    self.stop(node, "start failed");
                }
                return Ok(());
            }
            Err(Refusal::Refused(what)) if member.rotten => {
                self.trace.say(now, || format!("n{node} refuses: {what}"));
                self.trace.note(now, node as u8, "refuses", 0, 0);
                self.members[node].dead = true;
                self.stats.refused += 1;
                return Ok(());
            }
            Err(Refusal::Refused(what)) => return Err(format!("n{node} does not start: {what}")),
        }
        let member = &self.members[node];
        let (epoch, running) = (member.epoch, member.running.as_ref());
        let (applied, next_tick) = running.map_or((0, 0), |r| (r.seen, r.next_tick));
        let at = member.when(next_tick);
        self.trace.note(now, node as u8, "start", epoch, applied);
        self.stats.starts += 1;
        if self.plan.known {
            let others: Vec<_> = self.cluster.peers.iter().map(|peer| peer.id).collect();
            if let Some(running) = &mut self.members[node].running {
                running.inbox.extend(others.into_iter().map(|id| Input::PeerIsDolmen(id, true)));
            }
        }
        if applied > self.model.last_index() {
            return Err(format!("n{node} came back at index {applied}, which nobody applied"));
        }
        self.queue.at(at, Event::Tick { node, epoch });
        self.compare_all(node)?;
        self.wake(node);
        Ok(())
    }
}
