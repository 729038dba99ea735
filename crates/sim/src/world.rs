//! One seed's world: members, network, clients, time; and the order in which everything happens.
//!
//! What the events do is in a file for each side of it: [`crate::turn`] the loop of a member and what members send each
//! other, [`crate::disks`] the threads beside the loop, [`crate::clients`], [`crate::watchers`], [`crate::faults`]. What
//! has to hold is in [`crate::invariants`], and how a run comes to an end in [`crate::ending`].

use std::collections::BTreeMap;

use dolmen_bolt::Source;
use dolmen_env::Rng;
use dolmen_node::{Input, Reply};
use dolmen_proto::raftpb::Message;
use dolmen_types::{LeaseId, MemberId, Term};

use crate::clients::{Client, Floor, Issued, LeaseTrack, ReadAnswer, client};
use crate::member::{Cluster, Member};
use crate::model::Model;
use crate::net::Net;
use crate::plan::{MS, Plan, SECOND};
use crate::queue::Queue;
use crate::trace::Trace;
use crate::watchers::Watcher;
use crate::{Options, Stats};

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
    HistoryDone {
        node: usize,
        epoch: u64,
    },
    Deliver {
        from: usize,
        to: usize,
        message: Box<Message>,
    },
    /// A disk that hung is well again. `led`: the term in which its member led, when nothing else was wrong.
    Hung {
        node: usize,
        epoch: u64,
        led: Option<Term>,
    },
    /// A member's transport finds that another's process has died, if it is still down.
    Gone {
        node: usize,
        epoch: u64,
        whose: usize,
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
    /// Who led in each term.
    pub leaders: BTreeMap<Term, MemberId>,
    /// By revision and compact revision: hash, and who had it first.
    pub hashes: BTreeMap<(i64, i64), (u32, usize)>,
    pub ops: Vec<Issued>,
    pub clients: Vec<Client>,
    pub watchers: Vec<Watcher>,
    pub leases: BTreeMap<LeaseId, LeaseTrack>,
    pub floor: Floor,
    pub streams: u64,
    pub phase: Phase,
    /// Two who want to lead and do not hear each other, until the first vote for one of them.
    pub rivals: Option<[usize; 2]>,
    /// By when the present phase is over.
    /// No other fault happens before.
    pub quiet_until: u64,
    pub deadline: u64,
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
            quiet_until: 0,
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
            | Event::HistoryDone { node, epoch }
            | Event::Unreachable { node, epoch, .. }
            | Event::Gone { node, epoch, .. }
            | Event::SnapshotStatus { node, epoch, .. }
            | Event::Serve { node, epoch, .. }
            | Event::Drain { node, epoch, .. }
            | Event::Hung { node, epoch, .. }
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
            Event::HistoryDone { node, .. } => self.history_done(node),
            Event::Deliver { from, to, message } => {
                self.deliver(from, to, *message);
                Ok(())
            }
            Event::Hung { node, led, .. } => self.hung(node, led),
            Event::Gone { node, whose, .. } => {
                if self.members[whose].running.is_none() {
                    let id = self.members[whose].id;
                    self.input(node, Input::PeerGone(id));
                }
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
}
