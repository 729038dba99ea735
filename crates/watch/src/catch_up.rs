//! Watchers that are behind, served from the store's history in two lanes.
//!
//! The **near** lane serves those that are a few revisions behind, on the node's thread: what they need is in memory, and
//! they would never reach a head that moves on while a slice is read elsewhere. The **far** lane serves the others from
//! slices that are read on another thread ([`Hub::next_scan`], [`Hub::scanned`]), one at a time. Turns go round, so none
//! starves, and all watchers from the one whose turn it is on share the slice.
//!
//! Both wait while responses take most of the memory they may ([`Budget::is_short`]): what is sent makes room, and the
//! next turn of the node, a tick's at the latest, goes on.
//!
//! [`Budget::is_short`]: crate::budget::Budget::is_short

use crate::event::{Encoded, History, HistoryError};
use crate::hub::{Hub, State};
use crate::scan::{Bounds, Member, Scan, Scanned, Share, Slice};

/// Watchers that one slice serves.
const MAX_GROUP: usize = 4096;
/// Watchers at the head of the line that are looked at for one that is far.
const MAX_LOOK: usize = 64;
/// A slice read elsewhere. Encoded, it may become this many times as large before it is cut short.
const FAR: Bounds = Bounds { read: 1 << 20, encoded: 16 << 20, give_up: false };

/// Watchers, and a slice, of the near lane.
const MAX_NEAR: usize = 1024;
const NEAR: Bounds = Bounds { read: 256 << 10, encoded: 1 << 20, give_up: true };
/// What a near slice costs a turn, in watchers touched.
const NEAR_COST: usize = 512;

#[derive(Default)]
pub(crate) struct Lanes {
    /// A slice is being read elsewhere.
    in_flight: bool,
    /// One that was read, and the members that were served.
    serving: Option<(Slice, Vec<Member>, usize)>,
    /// The highest revision that is known to be too large for the near lane.
    heavy: i64,
}

/// Watchers that can be served by one push.
type Run = (u32, bool, u32, i64);

impl Hub {
    /// The next slice of history to be read, if there is one: run it on any thread and bring what comes out to
    /// [`Hub::scanned`]. There is one at a time.
    pub fn next_scan(&mut self) -> Option<Scan> {
        if self.lanes.in_flight || self.lanes.serving.is_some() || self.budget.is_short() {
            return None;
        }
        let near = self.near();
        let leader = self.turns.values().take(MAX_LOOK).copied().find(|slot| self.watcher(*slot).next < near)?;
        let from = self.watcher(leader).next;
        let mut scan = Scan::new(from, FAR, self.budget.clone());
        self.join(&mut scan, leader);
        for (_, slot) in self.unsynced.range((from, 0)..).take(MAX_GROUP - 1) {
            if *slot != leader {
                self.join(&mut scan, *slot);
            }
        }
        self.lanes.in_flight = true;
        Some(scan)
    }

    /// Takes what a scan has found. [`Hub::work`] hands it to the watchers.
    ///
    /// # Errors
    /// What the store failed with. No watcher has moved.
    pub fn scanned(&mut self, scanned: Scanned) -> Result<(), HistoryError> {
        self.lanes.in_flight = false;
        self.lanes.serving = Some((scanned.result?, scanned.members, 0));
        Ok(())
    }

    /// Whether any watcher is to be served from the store.
    pub fn has_unsynced(&self) -> bool {
        !self.unsynced.is_empty()
    }

    /// `true`: there is more to do right now.
    pub(crate) fn work_lanes(&mut self, source: &dyn History, left: &mut usize) -> Result<bool, HistoryError> {
        if self.unsynced.is_empty() && self.lanes.serving.is_none() {
            return Ok(false);
        }
        let compact = source.compact_revision();
        while let Some((_, slot)) = self.unsynced.first().copied().filter(|(next, _)| *next < compact) {
            if *left == 0 {
                return Ok(true);
            }
            self.leave_unsynced(slot);
            self.cancel_compacted(slot, compact);
            *left -= 1;
        }
        if let Some((slice, members, at)) = self.lanes.serving.take() {
            let to = members.len().min(at + *left);
            *left -= to - at;
            self.serve(&slice, &members[at..to]);
            if to < members.len() {
                self.lanes.serving = Some((slice, members, to));
            }
        }
        while *left > 0 && !self.budget.is_short() {
            let Some((from, _)) = self.unsynced.range((self.near(), 0)..).next().copied() else { break };
            let mut scan = Scan::new(from, NEAR, self.budget.clone());
            let group: Vec<u32> = self.unsynced.range((from, 0)..).take(MAX_NEAR).map(|(_, slot)| *slot).collect();
            *left = left.saturating_sub(NEAR_COST + group.len());
            for slot in group {
                self.join(&mut scan, slot);
            }
            let Scanned { result, members } = scan.run(source);
            let slice = result?;
            match slice.gave_up {
                Some(main) => self.lanes.heavy = self.lanes.heavy.max(main),
                None => self.serve(&slice, &members),
            }
        }
        let near = !self.budget.is_short() && self.unsynced.range((self.near(), 0)..).next().is_some();
        Ok(near || self.lanes.serving.is_some())
    }

    /// The lowest next revision of the near lane.
    fn near(&self) -> i64 {
        (self.revision - self.config.near_revisions).max(self.lanes.heavy) + 1
    }

    fn join(&self, scan: &mut Scan, slot: u32) {
        let watcher = self.watcher(slot);
        let State::Unsynced { ticket } = watcher.state else { unreachable!("only unsynced watchers have a turn") };
        scan.add(slot, ticket, watcher.next, watcher.audience());
    }

    /// Gives members their share of a slice, and moves them to where that leaves them.
    fn serve(&mut self, slice: &Slice, members: &[Member]) {
        let mut runs: Vec<(Run, u32)> = Vec::with_capacity(members.len());
        for member in members {
            let Some(watcher) = self.watchers.get(member.slot as usize).and_then(Option::as_ref) else { continue };
            // Gone, or served by the other lane meanwhile, or beyond the slice.
            if watcher.state != (State::Unsynced { ticket: member.ticket }) || member.next > slice.through {
                continue;
            }
            runs.push(((watcher.stream, watcher.fragment, member.audience, member.next), member.slot));
        }
        runs.sort_unstable();
        let mut slots = Vec::new();
        for run in runs.chunk_by(|a, b| a.0 == b.0) {
            slots.clear();
            slots.extend(run.iter().map(|(_, slot)| *slot));
            self.serve_run(slice, run[0].0, &slots);
        }
    }

    fn serve_run(&mut self, slice: &Slice, run: Run, slots: &[u32]) {
        let (stream, _, audience, next) = run;
        let responses = match &slice.shares[audience as usize] {
            Share::Responses(responses) => responses,
            Share::Later => return,
            Share::TooLarge(bytes) => return self.too_large(stream, *bytes),
        };
        for slot in slots {
            self.leave_unsynced(*slot);
        }
        for response in responses {
            let Some((bytes, events, first)) = response.from(next) else { continue };
            if !self.send(slots, slice.current, &Encoded { bytes, events }) {
                for slot in slots {
                    self.watcher_mut(*slot).next = first;
                    self.make_victim(*slot);
                }
                return;
            }
        }
        for slot in slots {
            self.watcher_mut(*slot).next = slice.through + 1;
            self.place(*slot);
        }
    }
}
