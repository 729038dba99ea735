//! Watchers that are behind, served from the store's history in bounded passes.
//!
//! One pass serves the watcher whose turn it is and up to 511 others that stand at or after its next revision: they
//! share one slice of history, read once. Turns go round, so none starves; whoever is further along than the slice
//! reaches simply waits for a later pass.

use crate::event::{Batch, Event, History, HistoryError};
use crate::hub::Hub;
use crate::index::Index;

/// Watchers one pass serves.
const MAX_WATCHERS: usize = 512;
/// Revisions one response of a replay spans.
const MAX_REVISIONS: u32 = 1000;
/// History one pass reads, unless a single revision is larger.
const MAX_SLICE_BYTES: usize = 1 << 20;
/// What an event costs a budget at least.
const EVENT_COST: usize = 64;

/// A watcher's share of a slice: the positions of its events, one list a response.
#[derive(Default)]
struct Share {
    responses: Vec<Vec<u32>>,
    /// Revisions in the last response.
    revisions: u32,
    /// The last revision of the last response.
    last: i64,
}

impl Share {
    fn add(&mut self, main: i64, position: u32) {
        if self.last != main {
            self.last = main;
            self.revisions += 1;
            if self.responses.is_empty() || self.revisions > MAX_REVISIONS {
                self.responses.push(Vec::new());
                self.revisions = 1;
            }
        }
        self.responses.last_mut().expect("the first revision opened a response").push(position);
    }
}

impl Hub {
    /// Serves watchers that are behind until about `budget_bytes` have been read and encoded, at least one of them
    /// whatever the budget. `true`: there is more to do, call again soon.
    ///
    /// Responses name the store's current revision. A watcher that reaches it is synced; one whose outbox is full
    /// becomes a victim; one whose next revision is compacted is cancelled.
    ///
    /// # Errors
    /// What `source` fails with. No watcher has moved past what it was sent.
    pub fn catch_up(&mut self, source: &dyn History, budget_bytes: usize) -> Result<bool, HistoryError> {
        self.retry_victims();
        let mut spent = 0;
        while let Some((_, leader)) = self.turns.first_key_value() {
            let leader = *leader;
            spent += self.pass(leader, source, budget_bytes.saturating_sub(spent))?.max(EVENT_COST);
            if spent >= budget_bytes {
                break;
            }
        }
        Ok(!self.unsynced.is_empty())
    }

    /// One slice for the leader and those near it; returns what it cost. The leader leaves the head of the line.
    fn pass(&mut self, leader: u32, source: &dyn History, budget: usize) -> Result<usize, HistoryError> {
        let current = source.current();
        let compact = source.compact_revision();
        self.see(current);
        let from = self.watcher(leader).next;
        if from < compact {
            self.leave_unsynced(leader);
            self.cancel_compacted(leader, compact);
            return Ok(0);
        }
        if from > current {
            // Only after a restore to an older store than the watcher has seen, which raft does not do. Wait for it.
            self.leave_unsynced(leader);
            self.make_synced(leader);
            return Ok(0);
        }
        let mut events = source.history(from, budget.clamp(1, MAX_SLICE_BYTES))?;
        // A store that moves on while it is read may know more than it said; what was said decides who is synced.
        events.truncate(events.partition_point(|event| event.rev.main <= current));
        // The slice covers everything up to here; without any event left, everything there is.
        let through = events.last().map_or(current, |event| event.rev.main);
        let mut cost: usize = events.iter().map(|event| EVENT_COST + event.key.len() + event.payload.len()).sum();

        let mut group = vec![leader];
        let near = self.unsynced.range((from, 0)..=(through, u32::MAX)).map(|(_, slot)| *slot);
        group.extend(near.filter(|slot| *slot != leader).take(MAX_WATCHERS - 1));

        let shares = self.shares(&group, &events);
        let mut batch = Batch::new(&events, source);
        for (slot, share) in group.into_iter().zip(shares) {
            // Joining large sets for many watchers is the one part that is not bounded by the slice.
            if slot != leader && batch.spent > budget.max(MAX_SLICE_BYTES) {
                break;
            }
            self.serve(slot, &share, &mut batch, through, current)?;
        }
        cost += batch.spent;
        Ok(cost)
    }

    /// Which events of the slice each watcher of the group gets.
    fn shares(&self, group: &[u32], events: &[Event]) -> Vec<Share> {
        let mut index = Index::default();
        for (at, slot) in group.iter().enumerate() {
            index.insert(&self.watcher(*slot).range, at as u32);
        }
        let mut shares: Vec<Share> = group.iter().map(|_| Share::default()).collect();
        for (position, event) in events.iter().enumerate() {
            index.stab(&event.key, |set| {
                for at in set {
                    if self.watcher(group[*at as usize]).wants(event) {
                        shares[*at as usize].add(event.rev.main, position as u32);
                    }
                }
            });
        }
        shares
    }

    /// Sends a watcher its share and moves it to where that leaves it.
    ///
    /// # Errors
    /// A previous value cannot be read; the watcher stands behind what it was sent.
    fn serve(
        &mut self,
        slot: u32,
        share: &Share,
        batch: &mut Batch<'_>,
        through: i64,
        current: i64,
    ) -> Result<(), HistoryError> {
        self.leave_unsynced(slot);
        for positions in &share.responses {
            let encoded = match batch.encoded(positions, self.watcher(slot).prev_kv) {
                Ok(encoded) => encoded,
                Err(error) => {
                    self.watcher_mut(slot).next = batch.revision_of(positions[0]);
                    self.make_unsynced(slot);
                    return Err(error);
                }
            };
            if !self.send(slot, current, &encoded) {
                self.watcher_mut(slot).next = batch.revision_of(positions[0]);
                self.make_victim(slot);
                return Ok(());
            }
        }
        let watcher = self.watcher_mut(slot);
        watcher.next = watcher.next.max(through + 1);
        if watcher.next > current {
            self.make_synced(slot);
        } else {
            self.make_unsynced(slot);
        }
        Ok(())
    }
}
