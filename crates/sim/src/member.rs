//! One member: the node on its simulated disk, and how it is started from it.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dolmen_env::{Disk, DiskLock, Mono, SimDisk};
use dolmen_node::{Bootstrap, Config, Input, Layout, Member as Peer, Node, StartError, StartOptions};
use dolmen_proto::raftpb::{Entry, Message};
use dolmen_raft::Storage;
use dolmen_types::{ClusterId, MemberId, error_chain};
use dolmen_wal::{WalError, WalOptions};

use crate::mutants::{self, Mutant, ShiftingDisk};
use crate::plan::{MS, Plan};
use crate::threads::{HashThread, HistoryThread, LogThread, StoreThread};

pub(crate) const DATA: &str = "/data";

/// A process that runs.
pub(crate) struct Running {
    pub node: Node,
    _lock: DiskLock,
    pub inbox: VecDeque<Input>,
    /// A turn of the loop is scheduled.
    pub awake: bool,
    pub next_tick: u64,
    pub log: LogThread,
    pub store: StoreThread,
    pub hash: HashThread,
    pub history: HistoryThread,
    /// Entries in the node's log that may be applied in the next turn.
    pub ahead: VecDeque<Entry>,
    /// The index up to which applied entries were compared with the model.
    pub seen: u64,
    /// The newest proposal that it passed on to a leader: [`Mutant::ProposeTooSoon`].
    pub passed_on: Option<Message>,
    /// It hands leadership over since it came upon rot, at this time of its clock.
    pub leaving: Option<Mono>,
}

pub(crate) struct Member {
    pub id: MemberId,
    pub disk: SimDisk,
    rate: u64,
    offset: u64,
    pub running: Option<Box<Running>>,
    /// Tells a process's events from those of the process before.
    pub epoch: u64,
    /// A start is scheduled.
    pub restarting: bool,
    pub paused_until: u64,
    pub slow_until: u64,
    /// Syncs that begin before end no sooner.
    pub hangs_until: u64,
    /// When the first of them began.
    pub hangs_since: Option<u64>,
    /// A bit of its files was flipped: it may refuse, now or later, and is not brought back when it does.
    pub rotten: bool,
    /// A bit was flipped at some time; only a minority ever is.
    pub hit: bool,
    pub dead: bool,
    /// Errors of its disk are to be expected.
    pub disk_trouble: bool,
    /// Revision a serializable read last saw of this process.
    pub read_floor: i64,
}

/// What all members are started with.
pub(crate) struct Cluster {
    pub id: ClusterId,
    pub peers: Vec<Peer>,
}

impl Cluster {
    pub fn new(nodes: usize) -> Self {
        let peers: Vec<Peer> = (0..nodes)
            .map(|n| {
                let urls = vec![format!("http://n{n}:2380")];
                Peer { id: dolmen_node::member_id(&urls, "sim"), peer_urls: urls, ..Peer::default() }
            })
            .collect();
        let ids: Vec<MemberId> = peers.iter().map(|peer| peer.id).collect();
        Self { id: dolmen_node::cluster_id(&ids), peers }
    }

    pub fn position(&self, id: MemberId) -> Option<usize> {
        self.peers.iter().position(|peer| peer.id == id)
    }
}

/// Why a member did not start.
pub(crate) enum Refusal {
    /// The power failed meanwhile, or a planned fault struck.
    Fault(String),
    /// It says that its files are not well.
    Refused(String),
}

impl Member {
    pub fn new(id: MemberId, seed: u64, rate: u64, offset: u64) -> Self {
        Self {
            id,
            disk: SimDisk::new(seed),
            rate,
            offset,
            running: None,
            epoch: 0,
            restarting: false,
            paused_until: 0,
            slow_until: 0,
            hangs_until: 0,
            hangs_since: None,
            rotten: false,
            hit: false,
            dead: false,
            disk_trouble: false,
            read_floor: 0,
        }
    }

    /// What this member's clock shows.
    pub fn clock(&self, now: u64) -> Mono {
        Mono(self.offset + (u128::from(now) * u128::from(self.rate) / 1000) as u64)
    }

    /// When this member's clock will show `local`.
    pub fn when(&self, local: u64) -> u64 {
        (u128::from(local.saturating_sub(self.offset)) * 1000).div_ceil(u128::from(self.rate)) as u64
    }

    pub fn layout() -> Layout {
        Layout::new(Path::new(DATA), None)
    }

    /// Starts the process from what the disk holds.
    pub fn start(&mut self, plan: &Plan, cluster: &Cluster, mutant: Option<Mutant>, now: u64) -> Result<(), Refusal> {
        self.epoch += 1;
        self.paused_until = 0;
        self.read_floor = 0;
        let at = cluster.position(self.id).expect("members are those of the cluster");
        let layout = Self::layout();
        let options = StartOptions {
            layout: layout.clone(),
            bootstrap: Bootstrap::New { members: cluster.peers.clone() },
            machine: plan.machine(),
            wal: WalOptions { segment_bytes: plan.wal_segment_bytes },
        };
        let config = Config {
            member_id: self.id,
            cluster_id: cluster.id,
            name: format!("n{at}"),
            client_urls: vec![format!("http://n{at}:2379")],
            tick_nanos: plan.tick,
            election_ticks: plan.election_ticks,
            pre_vote: plan.pre_vote,
            snapshot_count: plan.snapshot_count,
            catch_up_entries: plan.catch_up_entries,
            log_bytes: plan.log_bytes,
            max_request_bytes: 1_572_864,
            apply_bytes_per_turn: plan.apply_bytes,
            progress_notify_nanos: plan.progress_notify,
            watch_near_revisions: plan.watch_near,
            priority_request: true,
            seed: self.epoch << 8 | at as u64,
            incarnation: 1_000_000 + now / MS,
        };
        let local = self.clock(now);
        let started = match mutant {
            Some(Mutant::TornTailKept) => self.start_behind_torn_tail(&options, config, local),
            Some(Mutant::ReapplyOne) => {
                self.reapply_last_put(&options);
                dolmen_node::start(Arc::new(self.disk.clone()), &options, config, local)
            }
            Some(Mutant::CutAtRot | Mutant::WipeAndRejoin) => self.start_unwell(mutant, options, config, local),
            _ => dolmen_node::start(Arc::new(self.disk.clone()), &options, config, local),
        };
        let started = started.map_err(|error| {
            let text = error_chain(&error);
            if self.disk.crashed() || self.disk_trouble { Refusal::Fault(text) } else { Refusal::Refused(text) }
        })?;
        let seen = started.node.machine().applied();
        self.running = Some(Box::new(Running {
            node: started.node,
            _lock: started.lock,
            inbox: VecDeque::new(),
            awake: false,
            next_tick: local.0 + plan.tick,
            log: LogThread::new(started.wal, now),
            store: StoreThread::default(),
            hash: HashThread::default(),
            history: HistoryThread::default(),
            ahead: VecDeque::new(),
            seen,
            passed_on: None,
            leaving: None,
        }));
        Ok(())
    }

    fn start_behind_torn_tail(
        &self,
        options: &StartOptions,
        config: Config,
        local: Mono,
    ) -> Result<dolmen_node::Started, StartError> {
        let torn = mutants::torn_tail(&self.disk, &options.layout.wal);
        let shifting = ShiftingDisk::new(self.disk.clone());
        let started = dolmen_node::start(Arc::new(shifting.clone()), options, config, local)?;
        if let Some(torn) = torn {
            mutants::keep_torn_tail(&self.disk, &shifting, &torn);
        }
        Ok(started)
    }

    fn start_unwell(
        &mut self,
        mutant: Option<Mutant>,
        mut options: StartOptions,
        config: Config,
        local: Mono,
    ) -> Result<dolmen_node::Started, StartError> {
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let damaged =
            |error: &StartError| matches!(error, StartError::Wal(WalError::Corrupt { .. }) | StartError::Machine(_));
        let error = match dolmen_node::start(disk.clone(), &options, config.clone(), local) {
            Err(error) if damaged(&error) && !self.disk.crashed() => error,
            other => return other,
        };
        let member = options.layout.member.clone();
        if mutant == Some(Mutant::WipeAndRejoin) {
            let _gone = self.disk.remove_dir_all(&member);
            options.bootstrap = Bootstrap::Join;
        } else if let StartError::Wal(WalError::Corrupt { file, offset, .. }) = &error {
            let _cut = mutants::cut_at_rot(&self.disk, &member, file, *offset);
        }
        let started = dolmen_node::start(disk, &options, config, local)?;
        // It takes itself for well again, and is held to that.
        self.rotten = false;
        Ok(started)
    }

    /// Applies a put of the present state once more, without moving the index.
    fn reapply_last_put(&self, options: &StartOptions) {
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let store = options.layout.store();
        if !self.disk.exists(&store).unwrap_or(false) {
            return;
        }
        let Ok(mut machine) = dolmen_machine::Machine::open(disk, &store, options.machine.clone()) else { return };
        let position = machine.position();
        let all = dolmen_types::KeyRange::From(bytes::Bytes::from_static(b"\0"));
        let Ok(found) = machine.store().reader().range(&all, &dolmen_mvcc::RangeOptions::default()) else { return };
        let newest =
            found.kvs.iter().filter_map(|kv| dolmen_mvcc::KeyValueRef::decode(kv)).max_by_key(|kv| kv.mod_revision);
        let Some(kv) = newest else { return };
        let key = bytes::Bytes::copy_from_slice(kv.key);
        let mut txn = machine.store_mut().begin();
        txn.put(&key, kv.value, kv.lease);
        let _changes = txn.finish();
        machine.store_mut().commit(position.index, position.term, Vec::new());
        while let Some(job) = machine.store_mut().log().next_job(Mono(0), dolmen_revlog::Hint::Sync) {
            let Ok(done) = job.run() else { return };
            machine.store_mut().log().finish_job(done);
        }
    }

    /// The files whose damage must be noticed: log segments and the store's.
    pub fn files(&self) -> Vec<PathBuf> {
        let layout = Self::layout();
        let mut files = Vec::new();
        for dir in [layout.wal.clone(), layout.store()] {
            for name in self.disk.read_dir(&dir).unwrap_or_default() {
                if name != "LOCK" && name != "spare" {
                    files.push(dir.join(name));
                }
            }
        }
        files
    }
}

impl Running {
    /// Remembers what the log holds above the applied index, before a turn may apply and even cut it.
    pub fn look_ahead(&mut self) {
        let storage = self.node.raft().storage();
        let applied = self.node.machine().applied();
        while self.ahead.front().is_some_and(|entry| entry.index <= applied) {
            self.ahead.pop_front();
        }
        let last = storage.last_index();
        let from = applied + 1;
        if last < from || storage.first_index() > from {
            self.ahead.clear();
            return;
        }
        // A change of leader may have replaced entries that were not committed.
        let same = |entry: Option<&Entry>| {
            entry.is_some_and(|entry| {
                entry.index <= last && storage.term(entry.index).is_ok_and(|term| term == entry.term)
            })
        };
        if same(self.ahead.back()) && self.ahead.front().is_some_and(|entry| entry.index == from) {
            let next = self.ahead.back().map_or(from, |entry| entry.index + 1);
            if next <= last
                && let Ok(more) = storage.entries(next, last + 1, u64::MAX)
            {
                self.ahead.extend(more);
            }
        } else {
            self.ahead = storage.entries(from, last + 1, u64::MAX).map(Into::into).unwrap_or_default();
        }
    }
}
