//! Turns of a member's loop, and what goes from member to member.

use std::path::PathBuf;

use dolmen_bolt::{BoltWriter, Source};
use dolmen_env::{Disk, OpenMode, SimDisk};
use dolmen_node::{Effects, Input, StopReason};
use dolmen_proto::raftpb::{Message, MessageType};
use dolmen_types::error_chain;

use crate::clients::ANSWERS;
use crate::invariants::crc;
use crate::member::Member;
use crate::mutants::Mutant;
use crate::net::kind;
use crate::plan::{MS, US};
use crate::world::{Event, World};

impl World {
    pub(crate) fn input(&mut self, node: usize, input: Input) {
        if let Some(running) = &mut self.members[node].running {
            running.inbox.push_back(input);
            self.wake(node);
        }
    }

    /// Has the node's loop take what waits, soon.
    pub(crate) fn wake(&mut self, node: usize) {
        let (low, high) = self.plan.turn_latency;
        let member = &mut self.members[node];
        let epoch = member.epoch;
        if let Some(running) = &mut member.running
            && !running.awake
        {
            running.awake = true;
            let delay = self.rng.range(low, high + 1);
            self.queue.after(delay, Event::Turn { node, epoch });
        }
    }

    pub(crate) fn turn(&mut self, node: usize) -> Result<(), String> {
        let now = self.queue.now;
        let member = &mut self.members[node];
        let (local, epoch) = (member.clock(now), member.epoch);
        let Some(running) = &mut member.running else { return Ok(()) };
        running.awake = false;
        let mut ticked = false;
        if local.0 >= running.next_tick {
            running.node.step(local, Input::Tick);
            running.next_tick = local.0 + self.plan.tick;
            ticked = true;
        }
        let inputs = running.inbox.len() as u64;
        for input in running.inbox.drain(..) {
            running.node.step(local, input);
        }
        running.look_ahead();
        let effects = running.node.advance(local);
        let next_tick = running.next_tick;
        let wake_at = effects.wake_at;
        if ticked {
            let at = member.when(next_tick);
            self.queue.at(at, Event::Tick { node, epoch });
        }
        if let Some(wake_at) = wake_at {
            let at = member.when(wake_at.0);
            self.queue.at(at, Event::Turn { node, epoch });
        }
        self.watch_leaving(node, local, effects.stopped.is_some())?;
        let applied = self.members[node].running.as_ref().map_or(0, |running| running.node.machine().applied());
        self.trace.note(now, node as u8, if ticked { "tick" } else { "turn" }, inputs, applied);
        if effects.stopped.is_none() {
            self.observe(node)?;
        }
        self.carry_out(node, effects)
    }

    /// In the order of the real driver.
    fn carry_out(&mut self, node: usize, effects: Effects) -> Result<(), String> {
        let epoch = self.members[node].epoch;
        for message in effects.messages {
            self.send(node, message);
        }
        if self.options.mutant == Some(Mutant::ProposeTooSoon) {
            self.propose_too_soon(node);
        }
        if let Some(running) = &mut self.members[node].running {
            running.log.hand(effects.wal);
        }
        for (runtime, batch) in effects.replies {
            for (slot, reply) in batch {
                if runtime == ANSWERS {
                    self.node_replied(node, slot as usize, reply)?;
                } else {
                    self.watch_ready(node, slot as usize);
                }
            }
        }
        for (message, source) in effects.snapshots {
            let to = self.cluster.position(message.to).ok_or("a snapshot for nobody")?;
            let delay = self.rng.range(MS, 100 * MS);
            let message = Box::new(message);
            self.queue.after(delay, Event::SnapshotArrives { from: node, epoch, to, message, source });
        }
        if let Some(running) = &mut self.members[node].running {
            running.store.hand(effects.store, effects.install);
            running.hash.hand(effects.hashes);
            if let Some(job) = effects.history {
                running.history.hand(job);
                let delay = self.rng.range(20 * US, 30 * MS);
                self.queue.after(delay, Event::HistoryDone { node, epoch });
            }
        }
        for path in effects.remove {
            let _left = self.members[node].disk.remove_file(&path);
        }
        match effects.stopped {
            None => {}
            Some(StopReason::Fatal(what)) => return self.broken(node, &what),
            Some(StopReason::Asked | StopReason::Removed) => return Err(format!("n{node} stopped and nobody asked")),
        }
        if effects.busy {
            self.wake(node);
        }
        self.work_wal(node)?;
        self.work_store(node)?;
        self.work_hash(node);
        Ok(())
    }

    /// What was passed on to the last leader is passed on to the next, without waiting to see what became of it.
    fn propose_too_soon(&mut self, node: usize) {
        let Some(running) = &mut self.members[node].running else { return };
        let status = running.node.raft().basic_status();
        if let Some(message) = running.passed_on.take_if(|message| {
            message.sent_term < status.term && status.leader_id != 0 && status.leader_id != message.from
        }) {
            self.send(node, Message { to: status.leader_id, sent_term: status.term, ..message });
        }
    }

    fn send(&mut self, from: usize, message: Message) {
        if message.r#type == MessageType::MsgProp as i32
            && let Some(running) = &mut self.members[from].running
        {
            running.passed_on = Some(message.clone());
        }
        if message.r#type == MessageType::MsgTimeoutNow as i32 && self.options.mutant == Some(Mutant::HandOverLost) {
            return;
        }
        let now = self.queue.now;
        let Some(to) = self.cluster.position(message.to) else { return };
        let arrivals = self.net.send(&self.plan, &mut self.rng, now, from, to, &message);
        if arrivals.is_empty() {
            let epoch = self.members[from].epoch;
            // A broken connection is noticed sooner or later, a lost packet is not.
            if self.net.is_cut(from, to) && self.rng.chance(100) {
                let (delay, to) = (self.rng.range(MS, 100 * MS), message.to);
                self.queue.after(delay, Event::Unreachable { node: from, epoch, to });
            }
            return;
        }
        if self.rivals.is_some_and(|rivals| rivals.contains(&to) && !rivals.contains(&from))
            && message.r#type == MessageType::MsgVoteResp as i32
            && !message.reject
        {
            self.voted(from, to);
        }
        let mut message = Some(Box::new(message));
        let count = arrivals.len();
        for (at, time) in arrivals.into_iter().enumerate() {
            let copy = if at + 1 == count { message.take() } else { message.clone() };
            if let Some(message) = copy {
                self.queue.at(time, Event::Deliver { from, to, message });
            }
        }
    }

    pub(crate) fn deliver(&mut self, from: usize, to: usize, message: Message) {
        if self.members[to].running.is_none() {
            let (epoch, id) = (self.members[from].epoch, message.to);
            if self.rng.chance(300) {
                self.queue.after(MS, Event::Unreachable { node: from, epoch, to: id });
            }
            return;
        }
        self.trace.note(self.queue.now, to as u8, kind(&message), from as u64, message.index);
        self.trace.say(self.queue.now, || {
            let entries: Vec<_> = message.entries.iter().map(|e| (e.index, e.term, crc(&e.data) % 10_000)).collect();
            format!("term {} {entries:?} reject {}", message.term, message.reject)
        });
        self.input(to, Input::Peer(message));
    }

    pub(crate) fn snapshot_arrives(
        &mut self,
        from: usize,
        epoch: u64,
        to: usize,
        message: Message,
        source: Box<dyn Source + Send>,
    ) -> Result<(), String> {
        let now = self.queue.now;
        if self.members[from].epoch != epoch {
            return Ok(());
        }
        if now < self.members[to].paused_until && self.members[to].running.is_some() {
            let at = self.members[to].paused_until + MS;
            let message = Box::new(message);
            self.queue.at(at, Event::SnapshotArrives { from, epoch, to, message, source });
            return Ok(());
        }
        let id = message.to;
        self.trace.note(now, to as u8, "MsgSnap", from as u64, 0);
        let index = dolmen_raft::snapshot_index(message.snapshot.as_ref().ok_or("a MsgSnap without a snapshot")?);
        debug_assert_eq!(message.r#type, MessageType::MsgSnap as i32);
        let lost = self.net.is_cut(from, to) || self.members[to].running.is_none() || self.rng.chance(self.plan.loss);
        let mut arrived = false;
        if !lost {
            let bytes =
                dolmen_bolt::Plan::new(&*source).and_then(|plan| BoltWriter::new(Vec::new()).write(&plan, &*source));
            match bytes {
                Ok(bytes) => match save(&self.members[to].disk, index, now, &bytes) {
                    Ok(path) => {
                        arrived = true;
                        self.stats.snapshots += 1;
                        self.trace.note(now, to as u8, "snapshot", from as u64, index);
                        self.input(to, Input::PeerSnapshot(message, path));
                    }
                    Err(error) => {
                        // The transport reports it and the process goes on; only a crash ends it.
                        if self.members[to].disk.crashed() {
                            self.broken(to, &error_chain(&error))?;
                        }
                    }
                },
                Err(_) if self.members[from].disk_trouble => {}
                // A member whose store is damaged can bring nobody up to date; it has to make room for one that can.
                Err(error) if self.members[from].rotten => self.input(from, Input::StoreDamaged(error_chain(&error))),
                Err(error) => return Err(format!("n{from} cannot make a snapshot: {error}")),
            }
        }
        let delay = self.rng.range(US, 50 * MS);
        self.queue.after(delay, Event::SnapshotStatus { node: from, epoch, to: id, arrived });
        Ok(())
    }
}

/// Stores a received snapshot as the transport does: whole and synced before it has its name.
fn save(disk: &SimDisk, index: u64, now: u64, bytes: &[u8]) -> std::io::Result<PathBuf> {
    let dir = Member::layout().snap();
    // One that has the same index may be being installed.
    let path = dir.join(format!("{index:016x}-{now}.snap.db"));
    let temporary = dir.join(format!("{index:016x}.tmp"));
    let file = disk.open(&temporary, OpenMode::Truncate)?;
    file.write_all_at(bytes, 0)?;
    file.sync_data()?;
    disk.rename(&temporary, &path)?;
    disk.sync_dir(&dir)?;
    Ok(path)
}
