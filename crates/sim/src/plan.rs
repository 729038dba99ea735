//! What one seed means: the cluster, its settings, the faults it will meet and how often.
//!
//! Swarm testing: each seed switches a random subset of the faults on, at random rates. A cluster that meets three kinds
//! of trouble often finds more than one that meets fifteen rarely.

use dolmen_env::Rng;

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Something that goes wrong, as the scheduler draws it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// Some members and the others do not hear each other.
    Partition,
    /// One direction of one link is dead.
    OneWay,
    /// One member neither hears nor is heard until it needs a snapshot.
    Blackhole,
    /// Everything is fine again between all members.
    Heal,
    /// Unsynced bytes are lost, in one of the shapes.
    PowerLoss,
    /// The process ends, the page cache lives on.
    Kill,
    /// All members lose power at once.
    AllDown,
    /// A process stands still for a while; its clock goes on.
    Pause,
    /// Syncs take 50 to 400 ms for a while.
    SlowDisk,
    /// A sync takes many election timeouts.
    HangingDisk,
    /// A member loses power and a bit of its files is flipped.
    Rot,
    /// The disk is full; the process stops, and comes back when there is space.
    NoSpace,
    /// A disk call fails.
    Eio,
    /// The power fails in the middle of coming disk calls.
    CrashCalls,
    /// Leadership is handed over.
    MoveLeader,
    /// A member is told that another's process has died, which lives.
    FalseHint,
    /// The leader dies, and two members that do not hear each other want to follow it. Whoever votes for one of them dies
    /// at once and is soon back, while the one it voted for is heard by nobody.
    Contest,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub nodes: usize,
    pub tick: u64,
    pub election_ticks: usize,
    pub pre_vote: bool,
    /// Whether members know each other for Dolmens.
    pub known: bool,
    /// Permille of real time each member's clock runs at.
    pub rates: Vec<u64>,
    pub snapshot_count: u64,
    pub catch_up_entries: u64,
    /// What raft holds in memory, and what lies between two marks, at most.
    pub log_bytes: u64,
    pub wal_segment_bytes: u64,
    pub log: dolmen_revlog::Options,
    pub lease: dolmen_lease::Config,
    pub apply_bytes: usize,
    pub progress_notify: u64,
    /// How far behind watchers are served without a read elsewhere.
    pub watch_near: i64,

    pub faults: Vec<FaultKind>,
    /// Mean time between two faults.
    pub fault_every: u64,
    /// How long the faults go on.
    pub fault_time: u64,
    /// How long a member stays down at most.
    pub down_time: u64,

    pub delay: (u64, u64),
    /// One message in so many is late by up to this.
    pub spike: (u64, u64),
    pub loss: u64,
    pub duplicate: u64,
    pub fifo: bool,
    pub reply_loss: u64,

    pub wal_latency: (u64, u64),
    pub store_latency: (u64, u64),
    pub turn_latency: (u64, u64),

    pub clients: usize,
    pub watchers: usize,
    pub keys: u64,
    pub think: u64,
    pub client_timeout: (u64, u64),
    pub value_bytes: u64,
    /// Weights of the kinds of requests; see `clients`.
    pub weights: Vec<(u64, crate::clients::Kind)>,
    /// Whether the end waits for every abandoned lease to expire.
    pub wait_for_leases: bool,
    /// Permille of applying turns after which the whole store is compared with the model.
    pub deep_check: u64,
}

impl Plan {
    pub fn machine(&self) -> dolmen_machine::Config {
        dolmen_machine::Config { lease: self.lease, log: self.log.clone(), ..Default::default() }
    }

    pub fn new(rng: &mut Rng, short: bool) -> Self {
        use FaultKind as F;
        let nodes = match rng.below(10) {
            0 => 1,
            1..=6 => 3,
            _ => 5,
        };
        let mut faults = Vec::new();
        let all = [
            F::Partition,
            F::OneWay,
            F::Blackhole,
            F::PowerLoss,
            F::PowerLoss,
            F::Kill,
            F::AllDown,
            F::Pause,
            F::SlowDisk,
            F::HangingDisk,
            F::Rot,
            F::NoSpace,
            F::Eio,
            F::CrashCalls,
            F::MoveLeader,
            F::FalseHint,
            F::Contest,
        ];
        for fault in all {
            if rng.chance(400) {
                faults.push(fault);
            }
        }
        if faults.iter().any(|fault| matches!(fault, F::Partition | F::OneWay | F::Blackhole | F::Contest)) {
            faults.push(F::Heal);
            faults.push(F::Heal);
        }
        let skewed = rng.chance(500);
        let rates = (0..nodes).map(|_| if skewed { rng.range(700, 1301) } else { 1000 }).collect();
        // Without a pre-vote the member with the fastest clock keeps the others from being elected, by luck for minutes.
        let pre_vote = !rng.chance(150) || skewed;
        let wal_slow = rng.chance(300);
        let mut some = |permille: u64, low: u64, high: u64| if rng.chance(permille) { rng.range(low, high) } else { 0 };
        let loss = some(400, 5, 200);
        let duplicate = some(400, 5, 200);
        let reply_loss = some(300, 5, 100);
        let spike = (some(400, 5, 200), 150 * MS);
        let spare = some(500, 1024, 8192);
        let history = some(300, 1024, 65536);
        let weights = crate::clients::Kind::ALL
            .into_iter()
            .map(|(weight, kind)| (if rng.chance(150) { 0 } else { weight * rng.range(1, 4) }, kind))
            .collect();
        let log = dolmen_revlog::Options {
            segment_bytes: rng.range(4 << 10, 48 << 10),
            sync_interval: rng.range(5, 400) * MS,
            sync_bytes: rng.range(512, 32 << 10),
            part_bytes: 1 << 10,
            reclaim_bytes_per_second: rng.range(64 << 10, 4 << 20),
            reclaim_slice_bytes: rng.range(512, 16 << 10),
            garbage_percent: rng.range(2, 50),
            history_bytes: history,
            spare_bytes: spare,
        };
        let lease = dolmen_lease::Config {
            min_ttl_seconds: 1,
            checkpoints: rng.chance(500),
            checkpoint_interval: std::time::Duration::from_millis(rng.range(200, 900)),
            retry_interval: std::time::Duration::from_millis(rng.range(300, 1500)),
            revoke_rate: if rng.chance(200) { 2 } else { 1000 },
        };
        Self {
            nodes,
            tick: rng.range(10, 26) * MS,
            election_ticks: rng.range(5, 11) as usize,
            pre_vote,
            known: rng.chance(800),
            rates,
            snapshot_count: rng.range(5, 120),
            catch_up_entries: rng.range(1, 30),
            log_bytes: if rng.chance(300) { rng.range(1 << 10, 32 << 10) } else { dolmen_node::LOG_BYTES },
            wal_segment_bytes: rng.range(2 << 10, 24 << 10),
            log,
            lease,
            // Most of the time a few keys a turn, so that requests are carried out in slices.
            apply_bytes: rng.range(1, 2000) as usize,
            progress_notify: rng.range(50, 1000) * MS,
            watch_near: [256, 1, 8][nodes % 3],
            faults,
            fault_every: rng.range(60, 700) * MS,
            fault_time: if short { rng.range(800, 2000) } else { rng.range(1000, 5000) } * MS,
            down_time: rng.range(20, 1200) * MS,
            delay: (rng.range(20, 200) * US, rng.range(300, 8000) * US),
            spike,
            loss,
            duplicate,
            fifo: rng.chance(400),
            reply_loss,
            wal_latency: if wal_slow { (2 * MS, 30 * MS) } else { (50 * US, rng.range(200, 5000) * US) },
            store_latency: (100 * US, rng.range(1, 40) * MS),
            turn_latency: (US, rng.range(5, 2000) * US),
            clients: rng.range(1, 8) as usize,
            watchers: rng.range(0, 4) as usize,
            keys: rng.range(2, 13),
            think: rng.range(1, 15) * MS,
            client_timeout: (150 * MS, rng.range(300, 2000) * MS),
            value_bytes: if rng.chance(200) { 2000 } else { 100 },
            weights,
            // A slow rate of revokes spreads them over minutes.
            wait_for_leases: rng.chance(300) && lease.revoke_rate > 2,
            deep_check: 20,
        }
    }
}
