//! One seed's world: members, network, clients, time; and the order in which everything happens.

use std::collections::BTreeMap;
use std::path::PathBuf;

use dolmen_bolt::{BoltWriter, Source};
use dolmen_env::{Disk, Mono, OpenMode, Rng, SimDisk};
use dolmen_mvcc::RangeOptions;
use dolmen_node::{Effects, Input, Reply, StopReason};
use dolmen_proto::raftpb::{Message, MessageType};
use dolmen_raft::Storage as _;
use dolmen_types::{KeyRange, LeaseId, MemberId, Term, error_chain};

use crate::clients::{ANSWERS, Client, Floor, Issued, LeaseTrack, ReadAnswer, client};
use crate::member::{Cluster, Member, Ran, Refusal, StoreWork};
use crate::model::Model;
use crate::mutants::Mutant;
use crate::net::{Net, kind};
use crate::plan::{MS, Plan, SECOND, US};
use crate::queue::Queue;
use crate::trace::{NOBODY, Trace};
use crate::watchers::Watcher;
use crate::{Options, Stats};

/// After everything is healed and started: how long until a write must have gone through.
const PROGRESS: u64 = 4 * SECOND;
/// And from then until everybody has everything.
const SETTLE: u64 = 4 * SECOND;
/// No run is longer.
const MAX_EVENTS: u64 = 3_000_000;

pub(crate) enum Event {
    Tick {
        node: usize,
        epoch: u64,
    },
    Turn {
        node: usize,
        epoch: u64,
    },
    WalSync {
        node: usize,
        epoch: u64,
    },
    WalIdle {
        node: usize,
        epoch: u64,
    },
    StoreDone {
        node: usize,
        epoch: u64,
    },
    HashDone {
        node: usize,
        epoch: u64,
    },
    Deliver {
        from: usize,
        to: usize,
        message: Box<Message>,
    },
    Unreachable {
        node: usize,
        epoch: u64,
        to: MemberId,
    },
    SnapshotArrives {
        from: usize,
        epoch: u64,
        to: usize,
        message: Box<Message>,
        source: Box<dyn Source + Send>,
    },
    SnapshotStatus {
        node: usize,
        epoch: u64,
        to: MemberId,
        arrived: bool,
    },
    Restart(usize),
    /// The member's vote for one of two rivals is on its way.
    Voted {
        node: usize,
        epoch: u64,
    },
    Fault,
    Quiet,
    Probe,
    Look,

    Next(usize),
    Arrive {
        op: usize,
        node: usize,
    },
    Serve {
        op: usize,
        node: usize,
        epoch: u64,
    },
    Answer {
        op: usize,
        reply: Box<Reply>,
    },
    Read {
        op: usize,
        answer: Box<ReadAnswer>,
    },
    GiveUp(usize),
    Keep(LeaseId),
    Watch(usize),
    WatchAct(usize),
    Drain {
        watcher: usize,
        node: usize,
        epoch: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Faults and workload.
    Faults,
    /// Everything is healed; a write must go through.
    Progress,
    /// It did; now everybody has to see everything.
    Settle,
    Over,
}

pub(crate) struct World {
    pub options: Options,
    pub plan: Plan,
    pub rng: Rng,
    pub queue: Queue<Event>,
    pub trace: Trace,
    pub net: Net,
    pub cluster: Cluster,
    pub members: Vec<Member>,
    pub model: Model,
    leaders: BTreeMap<Term, MemberId>,
    /// By revision and compact revision: hash, and who had it first.
    hashes: BTreeMap<(i64, i64), (u32, usize)>,
    pub ops: Vec<Issued>,
    pub clients: Vec<Client>,
    pub watchers: Vec<Watcher>,
    pub leases: BTreeMap<LeaseId, LeaseTrack>,
    pub floor: Floor,
    pub streams: u64,
    pub phase: Phase,
    /// Two who want to lead and do not hear each other, until the first vote for one of them.
    pub rivals: Option<[usize; 2]>,
    deadline: u64,
    pub stats: Stats,
}

impl World {
    pub fn new(seed: u64, options: &Options) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Plan::new(&mut rng, options.short);
        let cluster = Cluster::new(plan.nodes);
        let members = cluster
            .peers
            .iter()
            .zip(&plan.rates)
            .map(|(peer, rate)| Member::new(peer.id, rng.next_u64(), *rate, rng.range(0, 1000 * SECOND)))
            .collect();
        let clients = (0..plan.clients).map(|_| client(&mut rng, plan.nodes)).collect();
        Self {
            options: options.clone(),
            queue: Queue::new(),
            trace: Trace::new(options.verbose),
            net: Net::new(plan.nodes),
            cluster,
            members,
            model: Model::new(plan.lease.min_ttl_seconds),
            leaders: BTreeMap::new(),
            hashes: BTreeMap::new(),
            ops: Vec::new(),
            clients,
            watchers: Vec::new(),
            leases: BTreeMap::new(),
            floor: Floor::default(),
            streams: 0,
            phase: Phase::Faults,
            rivals: None,
            deadline: u64::MAX,
            stats: Stats::default(),
            rng,
            plan,
        }
    }

    /// Lives through the whole seed.
    ///
    /// # Errors
    /// What was promised and not kept.
    pub fn run(&mut self) -> Result<(), String> {
        self.trace.say(0, || format!("{:#?}", self.plan));
        for node in 0..self.plan.nodes {
            self.members[node].restarting = true;
            let late = self.rng.range(0, 50 * MS);
            self.queue.at(late, Event::Restart(node));
        }
        for at in 0..self.clients.len() {
            self.queue.at(self.plan.think, Event::Next(at));
        }
        for at in 0..self.plan.watchers {
            let watcher = self.new_watcher();
            self.watchers.push(watcher);
            self.queue.at(100 * MS, Event::Watch(at));
            self.queue.at(200 * MS, Event::WatchAct(at));
        }
        if !self.plan.faults.is_empty() {
            self.queue.at(self.plan.fault_every, Event::Fault);
        }
        self.queue.at(self.plan.fault_time, Event::Quiet);
        while self.phase != Phase::Over {
            let Some(event) = self.queue.pop() else { break };
            if self.queue.now > self.deadline {
                return Err(self.stuck());
            }
            if self.trace.events > MAX_EVENTS {
                return Err("it does not come to an end: too many events".into());
            }
            self.dispatch(event)?;
        }
        self.stats.virtual_nanos = self.queue.now;
        self.stats.commits = self.model.last_index();
        Ok(())
    }

    fn dispatch(&mut self, event: Event) -> Result<(), String> {
        // A process that stands still does nothing; what was to happen happens when it goes on.
        let local = match &event {
            Event::Tick { node, epoch }
            | Event::Turn { node, epoch }
            | Event::WalSync { node, epoch }
            | Event::WalIdle { node, epoch }
            | Event::StoreDone { node, epoch }
            | Event::HashDone { node, epoch }
            | Event::Unreachable { node, epoch, .. }
            | Event::SnapshotStatus { node, epoch, .. }
            | Event::Serve { node, epoch, .. }
            | Event::Drain { node, epoch, .. }
            | Event::Voted { node, epoch } => Some((*node, *epoch)),
            _ => None,
        };
        if let Some((node, epoch)) = local {
            let member = &self.members[node];
            if member.epoch != epoch || member.running.is_none() {
                return Ok(());
            }
            if self.queue.now < member.paused_until {
                let at = member.paused_until;
                self.queue.at(at, event);
                return Ok(());
            }
        }
        match event {
            Event::Tick { node, .. } | Event::Turn { node, .. } => self.turn(node),
            Event::WalSync { node, .. } => self.wal_sync(node),
            Event::WalIdle { node, .. } => self.wal_idle(node),
            Event::StoreDone { node, .. } => self.store_done(node),
            Event::HashDone { node, .. } => self.hash_done(node),
            Event::Deliver { from, to, message } => {
                self.deliver(from, to, *message);
                Ok(())
            }
            Event::Unreachable { node, to, .. } => {
                self.input(node, Input::Unreachable(to));
                Ok(())
            }
            Event::SnapshotArrives { from, epoch, to, message, source } => {
                self.snapshot_arrives(from, epoch, to, *message, source)
            }
            Event::SnapshotStatus { node, to, arrived, .. } => {
                self.input(node, Input::SnapshotStatus(to, arrived));
                Ok(())
            }
            Event::Restart(node) => self.restart(node),
            Event::Voted { node, .. } => {
                if self.phase == Phase::Faults {
                    self.die_and_come_back(node, "dies after its vote", 10 * MS);
                }
                Ok(())
            }
            Event::Fault => self.fault(),
            Event::Quiet => self.quiet(),
            Event::Probe => {
                if self.phase == Phase::Progress {
                    self.probe();
                    self.queue.after(100 * MS, Event::Probe);
                }
                Ok(())
            }
            Event::Look => self.look(),
            Event::Next(client) => {
                self.next_request(client);
                Ok(())
            }
            Event::Arrive { op, node } => self.arrive(op, node),
            Event::Serve { op, node, .. } => self.serve(op, node),
            Event::Answer { op, reply } => self.answered(op, *reply),
            Event::Read { op, answer } => self.read(op, *answer),
            Event::GiveUp(op) => {
                self.give_up(op);
                Ok(())
            }
            Event::Keep(lease) => {
                self.keep(lease);
                Ok(())
            }
            Event::Watch(at) => {
                self.watch(at);
                Ok(())
            }
            Event::WatchAct(at) => {
                self.act_on_watch(at);
                Ok(())
            }
            Event::Drain { watcher, node, epoch } => self.drain(watcher, node, epoch),
        }
    }

    // ---- the loop of a member ----

    fn input(&mut self, node: usize, input: Input) {
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

    fn turn(&mut self, node: usize) -> Result<(), String> {
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
        if ticked {
            let at = member.when(next_tick);
            self.queue.at(at, Event::Tick { node, epoch });
        }
        self.watch_leaving(node, local, effects.stopped.is_some())?;
        let applied = self.members[node].running.as_ref().map_or(0, |running| running.node.machine().applied());
        self.trace.note(now, node as u8, if ticked { "tick" } else { "turn" }, inputs, applied);
        if effects.stopped.is_none() {
            self.observe(node)?;
        }
        self.carry_out(node, effects)
    }

    /// A leader that came upon damage hands over, and has stopped within an election timeout.
    fn watch_leaving(&mut self, node: usize, local: Mono, stopped: bool) -> Result<(), String> {
        let member = &mut self.members[node];
        let Some(running) = &mut member.running else { return Ok(()) };
        if let (None, Some(what)) = (running.leaving, running.node.damage()) {
            if !member.rotten && !member.disk_trouble {
                return Err(format!("n{node} is well and says: {what}"));
            }
            running.leaving = Some(local);
            self.stats.led_rotten += 1;
            self.trace.note(self.queue.now, node as u8, "hands over", 0, 0);
        }
        let Some(since) = running.leaving else { return Ok(()) };
        if stopped {
            let leader = running.node.raft().basic_status().leader_id;
            self.stats.handed_over += u64::from(leader != 0 && leader != member.id);
        } else if local.since(since) >= self.plan.tick * self.plan.election_ticks as u64 {
            return Err(format!("n{node} is damaged and does not stop"));
        }
        Ok(())
    }

    /// Compares what the member has applied with everybody else.
    fn observe(&mut self, node: usize) -> Result<(), String> {
        let id = self.members[node].id;
        let Some(running) = &mut self.members[node].running else { return Ok(()) };
        let raft = running.node.raft();
        if raft.is_leader() {
            let leader = *self.leaders.entry(raft.term()).or_insert(id);
            if leader != id {
                return Err(format!("two members lead in term {}", raft.term()));
            }
        }
        let applied = running.node.machine().applied();
        if applied < running.seen {
            return Err(format!("n{node} went back from index {} to {applied}", running.seen));
        }
        if applied == running.seen {
            return Ok(());
        }
        let revision = running.node.machine().store().revision();
        let entries: Vec<_> = running
            .ahead
            .iter()
            .take_while(|entry| entry.index <= applied)
            .filter(|entry| entry.index > running.seen)
            .cloned()
            .collect();
        running.seen = applied;
        for entry in entries {
            let taken = self.model.take(&entry);
            if let Err(what) = &taken {
                return Err(format!("n{node}: {what}{}", self.logs_around(entry.index)));
            }
            if taken == Ok(true) {
                self.stats.applied += 1;
                self.trace.say(self.queue.now, || {
                    format!("n{node} is first to apply {}: {}", entry.index, crate::model::describe(&entry))
                });
                if let Some(lease) = self.model.effect(entry.index).and_then(|effect| effect.revoked) {
                    self.lease_revoked(lease)?;
                }
            }
        }
        let Some(effect) = self.model.effect(applied) else {
            return Err(format!("n{node} stands at index {applied}, which nobody applied"));
        };
        if effect.revision != revision {
            return Err(format!(
                "n{node} is at revision {revision} after index {applied}; it should be {}",
                effect.revision
            ));
        }
        if self.rng.chance(self.plan.deep_check) {
            self.compare_all(node)?;
        }
        Ok(())
    }

    /// What the logs of all members hold near an index, for the report of a failure.
    fn logs_around(&self, index: u64) -> String {
        let mut text = String::new();
        for (node, running) in self.members.iter().enumerate().filter_map(|(at, m)| Some((at, m.running.as_ref()?))) {
            let storage = running.node.raft().storage();
            for at in index.saturating_sub(2)..index + 3 {
                if let Ok(entries) = storage.entries(at, at + 1, u64::MAX) {
                    let entries = entries.iter().map(|e| (e.term, e.data.len(), crc(&e.data))).collect::<Vec<_>>();
                    text.push_str(&format!("\n  n{node} {at}: {entries:?}"));
                }
            }
        }
        text
    }

    /// Compares a member's whole store with the model, and its hash with the others'.
    fn compare_all(&mut self, node: usize) -> Result<(), String> {
        let Some(running) = &self.members[node].running else { return Ok(()) };
        let (machine, rotten) = (running.node.machine(), self.members[node].rotten);
        let reader = machine.store().reader();
        let everything = KeyRange::From(bytes::Bytes::from_static(b"\0"));
        let found = match reader.range(&everything, &RangeOptions::default()) {
            Ok(found) => found,
            Err(error) if rotten => {
                self.found_rot(node, &error);
                return Ok(());
            }
            Err(error) => return Err(format!("n{node} cannot read its store: {}", error_chain(&error))),
        };
        let wanted = self.model.range(&everything, found.revision);
        let given: Vec<dolmen_proto::mvccpb::KeyValue> =
            found.kvs.iter().filter_map(|kv| prost::Message::decode(kv.clone()).ok()).collect();
        if given.len() != wanted.len() || given.iter().zip(&wanted).any(|(a, b)| a != *b) {
            return Err(format!("n{node} holds {given:?} at revision {}, the log says {wanted:?}", found.revision));
        }
        if self.model.last_index() == machine.applied() {
            let mut leases = machine.lessor().list();
            leases.sort_unstable();
            if leases.iter().ne(self.model.leases.keys()) {
                let wanted: Vec<_> = self.model.leases.keys().collect();
                return Err(format!("n{node} holds leases {leases:?}, the log says {wanted:?}"));
            }
            for (id, lease) in &self.model.leases {
                if machine.lessor().keys(*id).is_none_or(|keys| keys.ne(lease.keys.iter())) {
                    return Err(format!("n{node}: the keys of lease {id} are not {:?}", lease.keys));
                }
            }
        }
        match reader.hash_kv(0) {
            Ok(hash) => {
                let first = *self.hashes.entry((hash.revision, hash.compact_revision)).or_insert((hash.hash, node));
                if first.0 != hash.hash {
                    return Err(format!(
                        "n{node} and n{} differ at revision {}, compacted at {}: hashes {:x} and {:x}",
                        first.1, hash.revision, hash.compact_revision, hash.hash, first.0
                    ));
                }
            }
            Err(error) if rotten => self.found_rot(node, &error),
            Err(error) => return Err(format!("n{node} cannot hash its store: {}", error_chain(&error))),
        }
        self.stats.compared += 1;
        Ok(())
    }

    /// Whoever reads the whole store, as a snapshot does, may tell the node what it came upon.
    fn found_rot(&mut self, node: usize, error: &dyn std::error::Error) {
        let leads = self.members[node].running.as_ref().is_some_and(|running| running.node.raft().is_leader());
        // Followers mostly live on, and may lead before they are found out.
        if self.rng.chance(if leads { 1000 } else { 50 }) {
            self.input(node, Input::StoreDamaged(error_chain(error)));
        }
    }

    /// In the order of the real driver.
    fn carry_out(&mut self, node: usize, effects: Effects) -> Result<(), String> {
        let epoch = self.members[node].epoch;
        for message in effects.messages {
            self.send(node, message);
        }
        if let Some(running) = &mut self.members[node].running {
            running.wal_queue.extend(effects.wal);
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
            running.store_queue.extend(effects.store.into_iter().map(StoreWork::Job));
            running.store_queue.extend(effects.install.map(|job| StoreWork::Install(Box::new(job))));
            running.hash_queue.extend(effects.hashes);
        }
        if let Some(path) = effects.remove {
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

    // ---- disk threads ----

    fn work_wal(&mut self, node: usize) -> Result<(), String> {
        let (low, high) =
            if self.queue.now < self.members[node].slow_until { (50 * MS, 400 * MS) } else { self.plan.wal_latency };
        let mutant = self.options.mutant;
        let member = &mut self.members[node];
        let epoch = member.epoch;
        let Some(running) = &mut member.running else { return Ok(()) };
        if running.wal_at_work || running.wal_queue.is_empty() {
            return Ok(());
        }
        running.wal_busy = std::mem::take(&mut running.wal_queue);
        running.wal_at_work = true;
        if let Err(error) = running.append(mutant) {
            let what = error_chain(&error);
            return self.broken(node, &what);
        }
        if mutant == Some(Mutant::AckBeforeSync) {
            let early: Vec<_> = running.wal_busy.drain(..).collect();
            running.inbox.extend(early.into_iter().map(Input::WalDone));
            self.wake(node);
        }
        let delay = self.rng.range(low, high + 1);
        self.queue.after(delay, Event::WalSync { node, epoch });
        Ok(())
    }

    fn wal_sync(&mut self, node: usize) -> Result<(), String> {
        let mutant = self.options.mutant;
        let member = &mut self.members[node];
        let epoch = member.epoch;
        let Some(running) = &mut member.running else { return Ok(()) };
        running.wal_at_work = false;
        let jobs = std::mem::take(&mut running.wal_busy);
        if jobs.iter().any(|job| job.must_sync) || mutant == Some(Mutant::AckBeforeSync) {
            if let Err(error) = running.wal.sync() {
                let what = error_chain(&error);
                return self.broken(node, &what);
            }
            running.wal_news = true;
        }
        let release = jobs.iter().filter_map(|job| job.release).max();
        self.trace.note(self.queue.now, node as u8, "wal", jobs.len() as u64, running.wal.last_index());
        running.inbox.extend(jobs.into_iter().map(Input::WalDone));
        if let Some(index) = release
            && let Err(error) = running.wal.release(index)
        {
            let what = error_chain(&error);
            return self.broken(node, &what);
        }
        if self.queue.now.saturating_sub(running.wal_noted) > dolmen_node::driver::NOTE_NANOS {
            running.wal_noted = self.queue.now;
            if let Err(error) = running.wal.note_acked() {
                let what = error_chain(&error);
                return self.broken(node, &what);
            }
        }
        self.queue.after(dolmen_node::driver::IDLE.as_nanos() as u64, Event::WalIdle { node, epoch });
        self.wake(node);
        self.work_wal(node)
    }

    fn wal_idle(&mut self, node: usize) -> Result<(), String> {
        let Some(running) = &mut self.members[node].running else { return Ok(()) };
        if running.wal_at_work || !std::mem::take(&mut running.wal_news) {
            return Ok(());
        }
        if let Err(error) = running.wal.note_acked() {
            let what = error_chain(&error);
            return self.broken(node, &what);
        }
        Ok(())
    }

    fn work_store(&mut self, node: usize) -> Result<(), String> {
        let member = &mut self.members[node];
        let epoch = member.epoch;
        let Some(running) = &mut member.running else { return Ok(()) };
        if running.store_at_work {
            return Ok(());
        }
        let Some(work) = running.store_queue.pop_front() else { return Ok(()) };
        running.store_at_work = true;
        // The work itself may fall at the beginning of the time it takes, or at its end.
        let work = if self.rng.chance(500) { StoreWork::Ran(run(work)) } else { work };
        if let StoreWork::Ran(Ran::Job(Err(what))) = &work {
            let what = what.clone();
            return self.broken(node, &what);
        }
        running.store_queue.push_front(work);
        let (low, high) = self.plan.store_latency;
        let delay = self.rng.range(low, high + 1);
        self.queue.after(delay, Event::StoreDone { node, epoch });
        Ok(())
    }

    fn store_done(&mut self, node: usize) -> Result<(), String> {
        let Some(running) = &mut self.members[node].running else { return Ok(()) };
        running.store_at_work = false;
        let Some(work) = running.store_queue.pop_front() else { return Ok(()) };
        self.trace.note(self.queue.now, node as u8, "store", 0, 0);
        match if let StoreWork::Ran(ran) = work { ran } else { run(work) } {
            Ran::Job(Ok(done)) => running.inbox.push_back(Input::StoreDone(done)),
            Ran::Job(Err(what)) => return self.broken(node, &what),
            Ran::Install(input) => running.inbox.push_back(input),
        }
        self.wake(node);
        self.work_store(node)
    }

    fn work_hash(&mut self, node: usize) {
        let member = &mut self.members[node];
        let epoch = member.epoch;
        let Some(running) = &mut member.running else { return };
        if !running.hash_at_work && !running.hash_queue.is_empty() {
            running.hash_at_work = true;
            let delay = self.rng.range(100 * US, 30 * MS);
            self.queue.after(delay, Event::HashDone { node, epoch });
        }
    }

    fn hash_done(&mut self, node: usize) -> Result<(), String> {
        let Some(running) = &mut self.members[node].running else { return Ok(()) };
        running.hash_at_work = false;
        if let Some((id, job)) = running.hash_queue.pop_front() {
            let _hash = job.run();
            running.inbox.push_back(Input::Hashed(id));
            self.wake(node);
        }
        self.work_hash(node);
        Ok(())
    }

    /// A disk call failed, or the node cannot go on: the process ends.
    fn broken(&mut self, node: usize, what: &str) -> Result<(), String> {
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

    pub(crate) fn power_loss(&mut self, node: usize) {
        let shape = *self.rng.pick(&dolmen_env::PowerLoss::ALL);
        let disk = self.members[node].disk.clone();
        disk.power_loss(shape);
        self.stop(node, "power loss");
    }

    fn restart(&mut self, node: usize) -> Result<(), String> {
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
        if applied > self.model.last_index() {
            return Err(format!("n{node} came back at index {applied}, which nobody applied"));
        }
        self.queue.at(at, Event::Tick { node, epoch });
        self.compare_all(node)?;
        self.wake(node);
        Ok(())
    }

    // ---- messages ----

    fn send(&mut self, from: usize, message: Message) {
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

    fn deliver(&mut self, from: usize, to: usize, message: Message) {
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

    fn snapshot_arrives(
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
                Ok(bytes) => match save(&self.members[to].disk, index, &bytes) {
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

    // ---- the end ----

    /// No more faults: everything is healed and started, and a write must go through.
    fn quiet(&mut self) -> Result<(), String> {
        self.phase = Phase::Progress;
        self.rivals = None;
        self.trace.note(self.queue.now, NOBODY, "quiet", 0, 0);
        self.net.calm();
        let mut from = self.queue.now;
        for node in 0..self.plan.nodes {
            let member = &mut self.members[node];
            member.slow_until = 0;
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

    fn stuck(&self) -> String {
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

    fn look(&mut self) -> Result<(), String> {
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

fn crc(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Does the store thread's work.
fn run(work: StoreWork) -> Ran {
    match work {
        StoreWork::Job(job) => Ran::Job(job.run().map_err(|error| error_chain(&error))),
        StoreWork::Install(job) => Ran::Install(Input::Installed(job.run())),
        StoreWork::Ran(ran) => ran,
    }
}

/// Stores a received snapshot as the transport does: whole and synced before it has its name.
fn save(disk: &SimDisk, index: u64, bytes: &[u8]) -> std::io::Result<PathBuf> {
    let dir = Member::layout().snap();
    let path = dir.join(format!("{index:016x}.snap.db"));
    let temporary = dir.join(format!("{index:016x}.tmp"));
    let file = disk.open(&temporary, OpenMode::Truncate)?;
    file.write_all_at(bytes, 0)?;
    file.sync_data()?;
    disk.rename(&temporary, &path)?;
    disk.sync_dir(&dir)?;
    Ok(path)
}
