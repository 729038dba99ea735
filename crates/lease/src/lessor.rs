//! The state machine behind the crate's front page.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use bytes::Bytes;
use dolmen_env::Mono;
use dolmen_types::LeaseId;

use crate::record::{LeaseRecord, RecordError};
use crate::renewals::{Deadline, Renewals};

/// The longest TTL etcd grants, in seconds. Times a billion it still fits the nanoseconds of [`Mono`].
pub const MAX_TTL_SECONDS: i64 = 9_000_000_000;
/// The most checkpoints one log entry carries; what a caller should pass to [`Lessor::checkpoints_due`].
pub const MAX_CHECKPOINT_BATCH: usize = 1000;

const SECOND: u64 = 1_000_000_000;

/// What a lessor is built with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Shorter TTLs are raised to this: ceil(3 x election ticks / 2 x tick) seconds, so that a lease outlives an
    /// election.
    pub min_ttl_seconds: i64,
    /// Whether the primary writes checkpoints at all (feature gate `LeaseCheckpoint`).
    pub checkpoints: bool,
    /// Time between two checkpoints of one lease; leases with no more than this left get none.
    pub checkpoint_interval: Duration,
    /// An expired lease that is still here this long after it was handed out is handed out again.
    pub retry_interval: Duration,
    /// Revokes per second the cluster is asked to carry; promotion spreads bursts of deadlines to 3/4 of it.
    pub revoke_rate: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            min_ttl_seconds: 2,
            checkpoints: false,
            checkpoint_interval: Duration::from_secs(300),
            retry_interval: Duration::from_secs(3),
            revoke_rate: 1000,
        }
    }
}

/// Why a grant was refused. Every member refuses alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    #[error("a lease needs an id other than 0")]
    NoId,
    #[error("lease already exists")]
    Exists,
    #[error("too large lease TTL")]
    TooLarge,
}

/// Why a renewal did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenewError {
    /// Another member is primary; ask there.
    #[error("this lessor is not the primary")]
    NotPrimary,
    #[error("requested lease not found")]
    NotFound,
    /// Past its deadline. Answer only once it is revoked (then: not found) or leadership is lost (then: not primary).
    #[error("the lease has expired and waits to be revoked")]
    PendingRevoke,
    /// A checkpoint shortens it, or is about to. Propose checkpoint 0 for it, once however many wait, wait until that is
    /// applied, and renew again.
    #[error("the lease carries a checkpoint that has to be cleared first")]
    Checkpointed,
}

/// The lease a key should attach to is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("requested lease not found")]
pub struct AttachError;

/// Why there is no answer to a time-to-live request here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeToLiveError {
    /// Another member is primary and alone knows the deadline.
    #[error("this lessor is not the primary")]
    NotPrimary,
    #[error("requested lease not found")]
    NotFound,
}

/// The answer to a time-to-live request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeToLive {
    /// Whole seconds left, rounded down; 0 once the deadline has passed.
    pub ttl: i64,
    /// Seconds granted.
    pub granted_ttl: i64,
    /// Attached keys, ascending; empty unless asked for.
    pub keys: Vec<Bytes>,
}

/// How much a lease had left, to be sent through the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub id: LeaseId,
    /// Seconds, rounded up.
    pub remaining_ttl: i64,
}

/// Times a primary keeps about one lease, beside its deadline: that one is in [`Renewals`].
#[derive(Clone, Copy, Debug)]
struct Times {
    /// Where the lease stands in `Lessor::queue`. At or before its deadline until the lease expires; after that, the time
    /// of the next handing out.
    queued: Mono,
    /// Where it stands in `Lessor::checkpoints`, if it does.
    checkpoint: Option<Mono>,
    /// Checkpoints handed out and not applied yet: a renewal must not be answered before them, or they would outlive it.
    proposed: u32,
    /// A renewal waits for checkpoint 0: no other is handed out before that is applied.
    clearing: bool,
}

#[derive(Debug)]
struct Lease {
    ttl: i64,
    remaining_ttl: i64,
    keys: BTreeSet<Bytes>,
    /// `Some` exactly while the lessor is primary.
    times: Option<Times>,
}

impl Lease {
    /// Seconds a new primary gives it.
    fn restart_ttl(&self) -> i64 {
        if self.remaining_ttl > 0 { self.remaining_ttl } else { self.ttl }
    }

    /// Whether a checkpoint has to be cleared before the lease may be renewed.
    fn is_held(&self) -> bool {
        self.remaining_ttl > 0 || self.times.is_some_and(|times| times.proposed > 0)
    }
}

/// All leases of one member. See the crate's page.
///
/// Invariants: `owner[key] == id` exactly when `leases[id].keys` holds `key`; while primary each lease stands once in
/// `queue`, at `times.queued`, at most once in `checkpoints`, and has a deadline in `renewals`; otherwise all three are
/// empty.
#[derive(Debug)]
pub struct Lessor {
    config: Config,
    primary: bool,
    leases: BTreeMap<LeaseId, Lease>,
    /// Looked up, never iterated.
    owner: HashMap<Bytes, LeaseId>,
    queue: BTreeSet<(Mono, LeaseId)>,
    checkpoints: BTreeSet<(Mono, LeaseId)>,
    renewals: Renewals,
}

impl Lessor {
    /// An empty lessor that is not primary.
    pub fn new(config: Config) -> Self {
        Self {
            renewals: Renewals::default(),
            config,
            primary: false,
            leases: BTreeMap::new(),
            owner: HashMap::new(),
            queue: BTreeSet::new(),
            checkpoints: BTreeSet::new(),
        }
    }

    /// Replaces everything by what a store holds: the values of table `lease` and the attachments of live keys. The
    /// lessor is not primary afterwards. TTLs below the minimum are raised; attachments to unknown leases are dropped.
    ///
    /// # Errors
    /// The first value that is no lease record; the lessor is left as it was.
    pub fn restore<V: AsRef<[u8]>>(
        &mut self,
        values: impl IntoIterator<Item = V>,
        attachments: impl IntoIterator<Item = (LeaseId, Bytes)>,
    ) -> Result<(), RecordError> {
        let mut restored = Self::new(self.config);
        for value in values {
            let record = LeaseRecord::decode(value.as_ref())?;
            let ttl = record.ttl.clamp(self.config.min_ttl_seconds, MAX_TTL_SECONDS);
            let remaining_ttl = record.remaining_ttl.clamp(0, MAX_TTL_SECONDS);
            restored.leases.insert(record.id, Lease { ttl, remaining_ttl, keys: BTreeSet::new(), times: None });
        }
        for (id, key) in attachments {
            let _unknown_is_dropped = restored.attach(id, key);
        }
        // Others hold on to the deadlines that are shared with them: those stay the same ones, emptied.
        self.renewals.clear();
        restored.renewals = self.renewals.clone();
        *self = restored;
        Ok(())
    }

    // ---- what the log says; alike on every member ----

    /// Adds a lease and returns the TTL it got, in seconds: `ttl_seconds`, raised to the minimum. On a primary its
    /// deadline starts at `now`.
    ///
    /// # Errors
    /// `NoId` for id 0 (whoever proposes picks the id), `TooLarge` above [`MAX_TTL_SECONDS`], `Exists`.
    pub fn grant(&mut self, id: LeaseId, ttl_seconds: i64, now: Mono) -> Result<i64, GrantError> {
        if id == 0 {
            return Err(GrantError::NoId);
        }
        if ttl_seconds > MAX_TTL_SECONDS {
            return Err(GrantError::TooLarge);
        }
        if self.leases.contains_key(&id) {
            return Err(GrantError::Exists);
        }
        let ttl = ttl_seconds.max(self.config.min_ttl_seconds);
        self.leases.insert(id, Lease { ttl, remaining_ttl: 0, keys: BTreeSet::new(), times: None });
        if self.primary {
            self.start(id, after(now, ttl));
            self.schedule_checkpoint(id, now);
        }
        Ok(ttl)
    }

    /// Takes a lease away and returns the keys attached to it, ascending: the machine deletes them in one revision.
    /// `None` when there is no such lease.
    pub fn revoke(&mut self, id: LeaseId) -> Option<Vec<Bytes>> {
        let lease = self.leases.remove(&id)?;
        if let Some(times) = lease.times {
            self.queue.remove(&(times.queued, id));
            if let Some(at) = times.checkpoint {
                self.checkpoints.remove(&(at, id));
            }
            self.renewals.remove(id);
        }
        for key in &lease.keys {
            self.owner.remove(key);
        }
        Some(lease.keys.into_iter().collect())
    }

    /// Detaches the first keys of a lease, ascending, at most `max`, and returns them: for a revoke in slices.
    pub fn take_keys(&mut self, id: LeaseId, max: usize) -> Vec<Bytes> {
        let Some(lease) = self.leases.get_mut(&id) else { return Vec::new() };
        let keys: Vec<Bytes> = std::iter::from_fn(|| lease.keys.pop_first()).take(max).collect();
        for key in &keys {
            self.owner.remove(key);
        }
        keys
    }

    /// Attaches `key` to lease `id`, taking it from the lease it was attached to. `key` is kept: it should not be a
    /// slice of a larger buffer.
    ///
    /// # Errors
    /// The lease is unknown; nothing changes.
    pub fn attach(&mut self, id: LeaseId, key: Bytes) -> Result<(), AttachError> {
        let lease = self.leases.get_mut(&id).ok_or(AttachError)?;
        lease.keys.insert(key.clone());
        let before = self.owner.insert(key.clone(), id);
        if let Some(before) = before.filter(|before| *before != id)
            && let Some(lease) = self.leases.get_mut(&before)
        {
            lease.keys.remove(&key);
        }
        Ok(())
    }

    /// Detaches `key` from lease `id`. Does nothing when it is not attached to it.
    pub fn detach(&mut self, id: LeaseId, key: &[u8]) {
        if self.owner.get(key) != Some(&id) {
            return;
        }
        self.owner.remove(key);
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.keys.remove(key);
        }
    }

    /// Stores how much a lease has left, 0 clearing it. Unknown leases are ignored: the checkpoint may come after the
    /// revoke. A running deadline stays as it is; the next promotion starts from here.
    pub fn apply_checkpoint(&mut self, id: LeaseId, remaining_ttl: i64, now: Mono) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        lease.remaining_ttl = remaining_ttl.clamp(0, MAX_TTL_SECONDS);
        if let Some(times) = &mut lease.times {
            // Proposals of one leader are applied in their order: what was handed out before a 0 is applied by now, or lost.
            times.proposed = if remaining_ttl > 0 { times.proposed.saturating_sub(1) } else { 0 };
            times.clearing &= remaining_ttl > 0;
        }
        self.renewals.hold(id, lease.is_held());
        if self.primary {
            self.schedule_checkpoint(id, now);
        }
    }

    // ---- what can be read ----

    /// The lease as it is stored, `None` when unknown.
    pub fn record(&self, id: LeaseId) -> Option<LeaseRecord> {
        self.leases.get(&id).map(|lease| LeaseRecord { id, ttl: lease.ttl, remaining_ttl: lease.remaining_ttl })
    }

    /// Whether the lease exists.
    pub fn contains(&self, id: LeaseId) -> bool {
        self.leases.contains_key(&id)
    }

    /// The lease a key is attached to, 0 for none.
    pub fn lookup(&self, key: &[u8]) -> LeaseId {
        self.owner.get(key).copied().unwrap_or(0)
    }

    /// Whether `look` is true of every key attached to a lease; of one that is unknown it is.
    pub fn all_keys(&self, id: LeaseId, look: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.leases.get(&id).is_none_or(|lease| lease.keys.iter().all(|key| look(key)))
    }

    /// The keys attached to a lease, ascending; `None` when it is unknown.
    pub fn keys(&self, id: LeaseId) -> Option<impl Iterator<Item = &Bytes>> {
        self.leases.get(&id).map(|lease| lease.keys.iter())
    }

    /// Time until the deadline, zero once it has passed; `None` when unknown or not primary.
    pub fn remaining(&self, id: LeaseId, now: Mono) -> Option<Duration> {
        Some(Duration::from_nanos(self.renewals.deadline(id)?.since(now)))
    }

    /// What a `LeaseTimeToLive` answers. `keys` asks for the attached keys.
    ///
    /// # Errors
    /// `NotPrimary`, `NotFound`.
    pub fn time_to_live(&self, id: LeaseId, now: Mono, keys: bool) -> Result<TimeToLive, TimeToLiveError> {
        if !self.primary {
            return Err(TimeToLiveError::NotPrimary);
        }
        let lease = self.leases.get(&id).ok_or(TimeToLiveError::NotFound)?;
        let left = self.renewals.deadline(id).map_or(0, |deadline| deadline.since(now));
        Ok(TimeToLive {
            // A new leader gives a while more than was granted, which is nobody's to count on.
            ttl: ((left / SECOND) as i64).min(lease.ttl),
            granted_ttl: lease.ttl,
            keys: if keys { lease.keys.iter().cloned().collect() } else { Vec::new() },
        })
    }

    /// All leases, soonest deadline first, ids ascending among equals (and everywhere on a member that is not
    /// primary).
    pub fn list(&self) -> Vec<LeaseId> {
        let mut ids: Vec<LeaseId> = self.leases.keys().copied().collect();
        if self.primary {
            ids.sort_by_cached_key(|id| self.renewals.deadline(*id));
        }
        ids
    }

    /// How many leases there are.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    // ---- the clock; primary only ----

    /// Whether this lessor keeps deadlines.
    pub fn is_primary(&self) -> bool {
        self.primary
    }

    /// The deadlines, for whoever renews without the lessor's owner; closed until [`Renewals::open`] is called.
    pub fn renewals(&self) -> &Renewals {
        &self.renewals
    }

    /// Starts a lease over and returns its TTL in seconds.
    ///
    /// # Errors
    /// See [`RenewError`]; in each case the deadline is unchanged.
    pub fn renew(&mut self, id: LeaseId, now: Mono) -> Result<i64, RenewError> {
        if !self.primary {
            return Err(RenewError::NotPrimary);
        }
        let lease = self.leases.get_mut(&id).ok_or(RenewError::NotFound)?;
        let held = lease.is_held();
        let times = lease.times.as_mut().ok_or(RenewError::NotPrimary)?;
        if self.renewals.is_over(id, now) {
            return Err(RenewError::PendingRevoke);
        }
        if held {
            times.clearing = true;
            return Err(RenewError::Checkpointed);
        }
        let deadline = self.renewals.extend(id, now);
        // A burst spread at promotion or `extend_by` may have left the entry beyond the new deadline. Otherwise it is
        // early and corrects itself when it comes up.
        if times.queued > deadline {
            self.queue.remove(&(times.queued, id));
            times.queued = deadline;
            self.queue.insert((deadline, id));
        }
        Ok(lease.ttl)
    }

    /// Makes this lessor primary: every lease starts over with its checkpointed or full TTL plus `extend_by` (one
    /// election timeout: its holder could not renew while there was no leader). Bursts are spread.
    pub fn promote(&mut self, now: Mono, extend_by: Duration) {
        self.demote();
        self.primary = true;
        let extend = nanos(extend_by);
        let mut deadlines: Vec<(Mono, LeaseId)> = self
            .leases
            .iter()
            .map(|(id, lease)| (Mono(after(now, lease.restart_ttl()).0.saturating_add(extend)), *id))
            .collect();
        deadlines.sort_unstable();
        self.spread(&mut deadlines, now);
        for (deadline, id) in deadlines {
            self.start(id, deadline);
            self.schedule_checkpoint(id, now);
        }
    }

    /// Ends primacy: deadlines and planned checkpoints are forgotten.
    pub fn demote(&mut self) {
        self.primary = false;
        self.queue.clear();
        self.checkpoints.clear();
        self.renewals.clear();
        for lease in self.leases.values_mut() {
            lease.times = None;
        }
    }

    /// Up to `max` leases past their deadline, soonest first; none unless primary. Each is named once, and again after
    /// the retry interval if it is still here then: the revoke proposed for it may have been lost.
    pub fn expired(&mut self, now: Mono, max: usize) -> Vec<LeaseId> {
        let mut expired = Vec::new();
        let retry = Mono(now.0.saturating_add(nanos(self.config.retry_interval).max(1)));
        while expired.len() < max {
            let Some(&(at, id)) = self.queue.first() else { break };
            if at > now {
                break;
            }
            self.queue.pop_first();
            let times = self
                .leases
                .get_mut(&id)
                .and_then(|lease| lease.times.as_mut())
                .expect("the queue names only leases with a deadline");
            times.queued = match self.renewals.expire(id, now) {
                Some(later) => later,
                None => {
                    expired.push(id);
                    retry
                }
            };
            self.queue.insert((times.queued, id));
        }
        expired
    }

    /// Up to `max` checkpoints to propose (see [`MAX_CHECKPOINT_BATCH`]); none unless primary and enabled. A lease comes
    /// up again one interval later, or one interval after the checkpoint is applied.
    pub fn checkpoints_due(&mut self, now: Mono, max: usize) -> Vec<Checkpoint> {
        let mut due = Vec::new();
        while due.len() < max {
            let Some(&(at, id)) = self.checkpoints.first() else { break };
            if at > now {
                break;
            }
            self.checkpoints.pop_first();
            let lease = self.leases.get_mut(&id).expect("the queue names only leases that exist");
            let times = lease.times.as_mut().expect("the queue names only leases with a deadline");
            times.checkpoint = None;
            // Held first: a renewal in between would make the checkpoint a lie.
            self.renewals.hold(id, true);
            let left = self.renewals.deadline(id).map_or(0, |deadline| deadline.since(now));
            let remaining_ttl = left.div_ceil(SECOND) as i64;
            let wanted = remaining_ttl > 0 && remaining_ttl < lease.ttl && !times.clearing;
            times.proposed += u32::from(wanted);
            self.renewals.hold(id, lease.is_held());
            if remaining_ttl == 0 {
                continue; // past its deadline: it is about to be revoked
            }
            self.schedule_checkpoint(id, now);
            if wanted {
                due.push(Checkpoint { id, remaining_ttl });
            }
        }
        due
    }

    /// A time at or before which nothing is due in [`Lessor::expired`] and [`Lessor::checkpoints_due`]; `None` when
    /// nothing is planned. It may come early (see the crate's page on lazy deadlines), never late.
    pub fn next_deadline(&self) -> Option<Mono> {
        let expiry = self.queue.first().map(|(at, _)| *at);
        let checkpoint = self.checkpoints.first().map(|(at, _)| *at);
        expiry.into_iter().chain(checkpoint).min()
    }

    /// Spreads deadlines (ascending) so that after a change of leaders no second sees more than 3/4 of the revoke rate:
    /// the rest is left for leases that expire by themselves.
    ///
    /// A window opens at the first deadline and lasts a second. Deadlines beyond the share of their window are moved
    /// back in proportion to how many stand before them, and stretch the window by as much.
    fn spread(&self, deadlines: &mut [(Mono, LeaseId)], now: Mono) {
        if deadlines.len() < self.config.revoke_rate {
            return;
        }
        let target = (self.config.revoke_rate as u64 * 3 / 4).max(1);
        let Some(mut base) = deadlines.first().map(|(at, _)| at.since(now)) else { return };
        let mut window = base.saturating_add(SECOND);
        let mut expires = 0u64;
        for (deadline, _) in deadlines {
            let remaining = deadline.since(now);
            if remaining > window {
                base = remaining;
                window = base.saturating_add(SECOND);
                expires = 1;
                continue;
            }
            expires += 1;
            if expires <= target {
                continue;
            }
            // Leases that stand n seconds behind the window's start need n seconds less.
            let share = (u128::from(SECOND) * u128::from(expires) / u128::from(target)) as u64;
            let delay = share.saturating_sub(remaining - base);
            window = base.saturating_add(delay);
            *deadline = Mono(deadline.0.saturating_add(delay));
        }
    }

    /// Gives a lease its deadline and its place in the queue.
    fn start(&mut self, id: LeaseId, deadline: Mono) {
        let lease = self.leases.get_mut(&id).expect("only leases that exist are started");
        if let Some(times) = lease.times {
            self.queue.remove(&(times.queued, id));
        }
        let checkpoint = lease.times.and_then(|times| times.checkpoint);
        let (proposed, clearing) = lease.times.map_or((0, false), |times| (times.proposed, times.clearing));
        lease.times = Some(Times { queued: deadline, checkpoint, proposed, clearing });
        self.renewals.start(id, Deadline { at: deadline, ttl: lease.ttl, held: lease.is_held() });
        self.queue.insert((deadline, id));
    }

    fn schedule_checkpoint(&mut self, id: LeaseId, now: Mono) {
        if !self.config.checkpoints {
            return;
        }
        let interval = self.config.checkpoint_interval;
        let lease = self.leases.get_mut(&id).expect("only leases that exist get checkpoints");
        let restart_ttl = lease.restart_ttl();
        let Some(times) = lease.times.as_mut() else { return };
        if let Some(at) = times.checkpoint.take() {
            self.checkpoints.remove(&(at, id));
        }
        if restart_ttl as u64 > interval.as_secs() {
            let at = Mono(now.0.saturating_add(nanos(interval).max(1)));
            times.checkpoint = Some(at);
            self.checkpoints.insert((at, id));
        }
    }
}

/// `now` plus seconds, which [`MAX_TTL_SECONDS`] bounds.
pub(crate) fn after(now: Mono, seconds: i64) -> Mono {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    Mono(now.0.saturating_add(seconds.saturating_mul(SECOND)))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
