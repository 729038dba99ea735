//! The deadlines of leases, which any thread may move.
//!
//! The lessor belongs to one thread, and going through it costs a renewal two changes of threads, several times the
//! work itself. But a renewal that is in order only moves a deadline. So deadlines live here, behind a lock that nobody
//! holds for longer than one lookup, and [`Renewals::renew`] moves one when everything about it is plain: the owner has
//! opened the table until a time that has not passed, the lease is known, not over, and carries no checkpoint. In every
//! other case it declines, and the owner is asked, who knows the reason.
//!
//! Two threads' clocks are read in some order, and decisions are made in another. A lease named as expired must not be
//! renewed by a thread that looked at its clock a little earlier; so the table remembers the latest time that anybody came
//! with, and for nobody it is earlier than that.

use std::collections::HashMap;
use std::sync::Arc;

use dolmen_env::Mono;
use dolmen_types::LeaseId;
use parking_lot::Mutex;

use crate::lessor::after;

/// When a lease ends unless it is renewed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) at: Mono,
    /// Seconds that a renewal gives.
    pub(crate) ttl: i64,
    /// A checkpoint has to be cleared first.
    pub(crate) held: bool,
}

/// The deadlines of a primary's leases. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Renewals(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    /// Only the owner renews from here on; 0 while closed.
    open_until: Mono,
    /// The latest time seen.
    latest: Mono,
    /// Looked up, never iterated.
    deadlines: HashMap<LeaseId, Deadline>,
}

impl Table {
    fn pass(&mut self, now: Mono) -> Mono {
        self.latest = self.latest.max(now);
        self.latest
    }
}

impl Renewals {
    /// Starts a lease over and returns its TTL in seconds. `None`: only the lessor's owner can tell what to answer.
    pub fn renew(&self, id: LeaseId, now: Mono) -> Option<i64> {
        let mut table = self.0.lock();
        let now = table.pass(now);
        if now >= table.open_until {
            return None;
        }
        let deadline = table.deadlines.get_mut(&id)?;
        let renewed = after(now, deadline.ttl);
        // One that is brought forward (it was put off when this member was elected) has to be moved in the owner's queue.
        if deadline.held || deadline.at <= now || renewed < deadline.at {
            return None;
        }
        deadline.at = renewed;
        Some(deadline.ttl)
    }

    /// The owner vouches that it is primary until `until` (excluded). A time that has passed closes the table.
    pub fn open(&self, until: Mono) {
        self.0.lock().open_until = until;
    }

    pub(crate) fn start(&self, id: LeaseId, deadline: Deadline) {
        self.0.lock().deadlines.insert(id, deadline);
    }

    pub(crate) fn remove(&self, id: LeaseId) {
        self.0.lock().deadlines.remove(&id);
    }

    /// Forgets all deadlines, and that it was opened.
    pub(crate) fn clear(&self) {
        let mut table = self.0.lock();
        table.open_until = Mono(0);
        // The memory too: a member may have led for a large application once.
        table.deadlines = HashMap::new();
    }

    pub(crate) fn hold(&self, id: LeaseId, held: bool) {
        if let Some(deadline) = self.0.lock().deadlines.get_mut(&id) {
            deadline.held = held;
        }
    }

    pub(crate) fn deadline(&self, id: LeaseId) -> Option<Mono> {
        self.0.lock().deadlines.get(&id).map(|deadline| deadline.at)
    }

    /// Whether the deadline has passed.
    pub(crate) fn is_over(&self, id: LeaseId, now: Mono) -> bool {
        let mut table = self.0.lock();
        let now = table.pass(now);
        table.deadlines.get(&id).is_none_or(|deadline| deadline.at <= now)
    }

    /// The owner's renewal, of a lease that is not over: the new deadline.
    pub(crate) fn extend(&self, id: LeaseId, now: Mono) -> Mono {
        let mut table = self.0.lock();
        let now = table.pass(now);
        let deadline = table.deadlines.get_mut(&id).expect("a primary's leases have deadlines");
        deadline.at = after(now, deadline.ttl);
        deadline.at
    }

    /// The deadline if it is still to come. `None` ends the lease: no renewal comes after that.
    pub(crate) fn expire(&self, id: LeaseId, now: Mono) -> Option<Mono> {
        let mut table = self.0.lock();
        // Here the owner's time counts, not the latest: it is `now` that the owner's queue is compared with. A renewal
        // made since then has left a deadline beyond it.
        table.pass(now);
        table.deadlines.get(&id).map(|deadline| deadline.at).filter(|at| *at > now)
    }
}
