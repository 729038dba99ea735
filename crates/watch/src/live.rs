//! What the store does, handed on to synced watchers: live events, revisions that come in parts, a snapshot put in place.
//!
//! All of it waits in one queue and is done in order, a bounded part a turn. A revision of a few events goes to the
//! watchers at once. One of many, or one that very many ranges want a part of, is not handed out at all: whoever wants any
//! of it falls behind and reads it from the store, where it can be read in peace. Such a revision may come in parts, before
//! readers see it.

use std::collections::{BTreeSet, VecDeque};

use crate::event::{Batch, Event, History, HistoryError};
use crate::hub::Hub;
use crate::index::SetId;

/// Events of a revision that are handed out as they come. Transactions rarely have more.
const MAX_EVENTS: usize = 512;
/// Pairs of event and range, in a revision of more than one event, that are handed out as they come.
const MAX_PAIRS: usize = 1 << 16;
/// Bytes encoded of one revision; watchers that want something else yet fall behind.
const MAX_ENCODED: usize = 4 << 20;
/// Events that wait. With more, the oldest are handed out before the turn ends.
const MAX_WAITING: usize = 1 << 16;
/// Watchers that a step goes through when it is over its turn's budget.
const STEP: usize = 1024;
/// Bytes encoded that count as much as a watcher touched.
const ENCODE_UNIT: usize = 1024;

/// The queue. Nothing else in the hub is told of a revision before it is in here.
#[derive(Default)]
pub(crate) struct Live {
    queue: VecDeque<Work>,
    /// Events in the queue.
    waiting: usize,
    /// The highest revision that came in parts, until the last of them was dealt with; 0: none. A watcher whose next
    /// revision is not above it has perhaps missed some.
    in_parts: i64,
    /// The revision whose parts are being dealt with, and the sets of watchers found so far.
    parts_of: i64,
    seen: BTreeSet<SetId>,
}

enum Work {
    Few(Few),
    Part(Part),
    /// All parts of the revision have come.
    End(i64),
    Restore(Restore),
    /// Held watchers that may not have to be any longer.
    Release(Vec<u32>),
}

/// Revisions of few events.
struct Few {
    events: Vec<Event>,
    at: usize,
    /// The revision at `at` is on its way.
    spread: Option<Spread>,
}

struct Spread {
    /// Where the revision ends.
    to: usize,
    /// Watchers, and which of `positions` they want.
    matches: Vec<(u32, u32)>,
    next: usize,
    positions: Vec<Vec<u32>>,
    /// What watchers with these positions get, by filter and previous values.
    forms: Vec<Option<Form>>,
    batch: Batch,
}

#[derive(Clone, Copy)]
enum Form {
    Nothing,
    TooMuch,
    /// In the batch.
    Made(u32),
}

/// Variants of one audience: no puts, no deletes, previous values.
const FORMS: usize = 8;

struct Part {
    events: Vec<Event>,
    at: usize,
    /// Watchers found and not dealt with.
    found: Vec<u32>,
}

struct Restore {
    revision: i64,
    /// What was notified before.
    missed: Option<i64>,
    slot: usize,
}

impl Live {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn in_parts(&self) -> i64 {
        self.in_parts
    }

    fn push_part(&mut self, events: Vec<Event>) {
        self.in_parts = self.in_parts.max(events[0].rev.main);
        self.waiting += events.len();
        self.queue.push_back(Work::Part(Part { events, at: 0, found: Vec::new() }));
    }

    fn push_few(&mut self, events: Vec<Event>) {
        self.waiting += events.len();
        self.queue.push_back(Work::Few(Few { events, at: 0, spread: None }));
    }
}

impl Hub {
    /// Takes committed events, whole revisions in their order; readers must see them already. [`Hub::work`] hands them to
    /// the synced watchers.
    pub fn notify(&mut self, mut events: Vec<Event>) {
        let Some(last) = events.last() else { return };
        let last = last.rev.main;
        debug_assert!(events[0].rev.main > self.notified, "a revision is notified once");
        while let Some((begin, end)) = first_large(&events) {
            let rest = events.split_off(end);
            let large = events.split_off(begin);
            let main = large[0].rev.main;
            if !events.is_empty() {
                self.live.push_few(events);
            }
            self.live.push_part(large);
            self.live.queue.push_back(Work::End(main));
            events = rest;
        }
        if !events.is_empty() {
            self.live.push_few(events);
        }
        self.see(last);
    }

    /// Takes some events of a revision that is too large for one call. Readers may see it already or not; after the last
    /// part, and when they do, comes [`Hub::notify_end`].
    pub fn notify_part(&mut self, events: Vec<Event>) {
        if let Some(first) = events.first() {
            debug_assert!(events.iter().all(|event| event.rev.main == first.rev.main), "parts are of one revision");
            self.live.push_part(events);
        }
    }

    /// All parts of revision `main` have come, and readers see it.
    pub fn notify_end(&mut self, main: i64) {
        self.live.queue.push_back(Work::End(main));
        self.see(main);
    }

    /// A snapshot replaced the store, which now stands at `revision`: synced watchers catch up from what they have seen.
    /// None goes back: those that want only later revisions stay as they are.
    pub fn on_restore(&mut self, revision: i64) {
        self.see(revision);
        // A revision that was half notified is in the snapshot, or will come again.
        self.live.in_parts = 0;
        self.live.queue.push_back(Work::Restore(Restore { revision, missed: None, slot: 0 }));
    }

    pub(crate) fn work_live(&mut self, source: &dyn History, left: &mut usize) -> Result<(), HistoryError> {
        while *left > 0 || self.live.waiting > MAX_WAITING {
            let Some(work) = self.live.queue.pop_front() else { break };
            let rest = match work {
                Work::Few(few) => self.hand_out(few, source, left)?,
                Work::Part(part) => self.mark(part, left),
                Work::End(main) => self.end(main),
                Work::Restore(restore) => self.restore(restore, left),
                Work::Release(held) => self.release(held, left),
            };
            if let Some(rest) = rest {
                self.live.queue.push_front(rest);
            }
        }
        Ok(())
    }

    /// Hands out the next revision, or a part of its watchers.
    fn hand_out(&mut self, mut few: Few, source: &dyn History, left: &mut usize) -> Result<Option<Work>, HistoryError> {
        let Some(first) = few.events.get(few.at) else { return Ok(None) };
        let main = first.rev.main;
        let mut spread = match few.spread.take() {
            Some(spread) => spread,
            None => match self.find(&few.events[few.at..]) {
                Some(spread) => spread,
                None => return Ok(self.hand_out_in_parts(few)),
            },
        };
        let events = &few.events[few.at..few.at + spread.to];
        self.hand_on(main, events, &mut spread, source, left)?;
        if spread.next < spread.matches.len() {
            few.spread = Some(spread);
        } else {
            few.at += spread.to;
            self.live.waiting -= spread.to;
            self.notified = self.notified.max(main);
            *left = left.saturating_sub(1);
        }
        Ok(Some(Work::Few(few)))
    }

    /// Who wants what of the first revision of `events`. `None`: too many.
    fn find(&self, events: &[Event]) -> Option<Spread> {
        let main = events[0].rev.main;
        let to = events.iter().take_while(|event| event.rev.main == main).count();
        let mut spread = Spread {
            to,
            matches: Vec::new(),
            next: 0,
            positions: Vec::new(),
            forms: Vec::new(),
            batch: Batch::default(),
        };
        let mut pairs: Vec<(SetId, u32)> = Vec::new();
        for (at, event) in events[..to].iter().enumerate() {
            self.index.stab(&event.key, |set| pairs.push((set, at as u32)));
            if to > 1 && pairs.len() > MAX_PAIRS {
                return None;
            }
        }
        if to > 1 {
            pairs.sort_unstable();
        }
        for run in pairs.chunk_by(|a, b| a.0 == b.0) {
            // All ranges that one event has want the same.
            if to > 1 || spread.positions.is_empty() {
                spread.positions.push(run.iter().map(|(_, at)| *at).collect());
            }
            let wanted = spread.positions.len() as u32 - 1;
            spread.matches.extend(self.index.watchers(run[0].0).iter().map(|slot| (*slot, wanted)));
        }
        spread.forms = vec![None; spread.positions.len() * FORMS];
        Some(spread)
    }

    /// The next revision concerns too many ranges: its watchers read it from the store.
    fn hand_out_in_parts(&mut self, mut few: Few) -> Option<Work> {
        let mut events = few.events.split_off(few.at);
        let main = events[0].rev.main;
        let rest = events.split_off(events.iter().take_while(|event| event.rev.main == main).count());
        self.live.in_parts = self.live.in_parts.max(main);
        if !rest.is_empty() {
            self.live.queue.push_front(Work::Few(Few { events: rest, at: 0, spread: None }));
        }
        self.live.queue.push_front(Work::End(main));
        Some(Work::Part(Part { events, at: 0, found: Vec::new() }))
    }

    /// Hands a revision on to the next of its watchers.
    fn hand_on(
        &mut self,
        main: i64,
        events: &[Event],
        spread: &mut Spread,
        source: &dyn History,
        left: &mut usize,
    ) -> Result<(), HistoryError> {
        let to = spread.matches.len().min(spread.next + step(*left));
        let spent = spread.batch.spent;
        *left = left.saturating_sub(to - spread.next);
        let mut deliveries = Vec::with_capacity(to - spread.next);
        for at in spread.next..to {
            let (slot, wanted) = spread.matches[at];
            if !self.awaits(slot, main) {
                continue;
            }
            let watcher = self.watcher(slot);
            let (stream, fragment) = (watcher.stream, watcher.fragment);
            let variant =
                usize::from(watcher.no_put) | usize::from(watcher.no_delete) << 1 | usize::from(watcher.prev_kv) << 2;
            let at = wanted as usize * FORMS + variant;
            let form = match spread.forms[at] {
                Some(form) => form,
                None => {
                    let form = self.form(events, slot, wanted, spread, source)?;
                    *spread.forms[at].insert(form)
                }
            };
            match form {
                Form::Made(made) => deliveries.push((stream, fragment, made, slot)),
                Form::TooMuch => self.fall_behind(slot, main),
                Form::Nothing => {}
            }
        }
        spread.next = to;
        *left = left.saturating_sub((spread.batch.spent - spent) / ENCODE_UNIT);
        deliveries.sort_unstable();
        let mut slots = Vec::new();
        for run in deliveries.chunk_by(|a, b| (a.0, a.1, a.2) == (b.0, b.1, b.2)) {
            slots.clear();
            slots.extend(run.iter().map(|(.., slot)| *slot));
            let taken = self.send(&slots, main, spread.batch.get(run[0].2));
            for slot in &slots {
                self.watcher_mut(*slot).next = main + i64::from(taken);
                if !taken {
                    self.leave_index(*slot);
                    self.make_victim(*slot);
                }
            }
        }
        Ok(())
    }

    fn form(
        &self,
        events: &[Event],
        slot: u32,
        wanted: u32,
        spread: &mut Spread,
        source: &dyn History,
    ) -> Result<Form, HistoryError> {
        let watcher = self.watcher(slot);
        let filtered = |at: &u32| if events[*at as usize].tombstone { watcher.no_delete } else { watcher.no_put };
        let positions: Vec<u32> =
            spread.positions[wanted as usize].iter().copied().filter(|at| !filtered(at)).collect();
        if positions.is_empty() {
            return Ok(Form::Nothing);
        }
        if spread.batch.spent > MAX_ENCODED || self.budget.is_spent() {
            return Ok(Form::TooMuch);
        }
        spread.batch.make(events, &positions, watcher.prev_kv, source, &self.budget).map(Form::Made)
    }

    /// Lets watchers fall behind that want something of a revision.
    fn mark(&mut self, mut part: Part, left: &mut usize) -> Option<Work> {
        let main = part.events[0].rev.main;
        if self.live.parts_of != main {
            self.live.parts_of = main;
            self.live.seen.clear();
        }
        let mut room = step(*left);
        while room > 0 {
            room -= 1;
            if let Some(slot) = part.found.pop() {
                if self.awaits(slot, main) {
                    self.fall_behind(slot, main);
                }
                continue;
            }
            let Some(event) = part.events.get(part.at) else {
                *left = room;
                return None;
            };
            part.at += 1;
            self.live.waiting -= 1;
            let (index, seen, found) = (&self.index, &mut self.live.seen, &mut part.found);
            // A set found before needs no second look: whoever has joined it since waits for a later revision.
            index.stab(&event.key, |set| {
                if seen.insert(set) {
                    found.extend_from_slice(index.watchers(set));
                }
            });
        }
        *left = 0;
        Some(Work::Part(part))
    }

    fn end(&mut self, main: i64) -> Option<Work> {
        self.notified = self.notified.max(main);
        if self.live.in_parts <= main {
            self.live.in_parts = 0;
        }
        self.live.seen.clear();
        self.live.parts_of = 0;
        Some(Work::Release(std::mem::take(&mut self.held).into_iter().collect()))
    }

    fn release(&mut self, mut held: Vec<u32>, left: &mut usize) -> Option<Work> {
        for _ in 0..step(*left) {
            let slot = held.pop()?;
            *left = left.saturating_sub(1);
            if self.watchers[slot as usize].as_ref().is_some_and(|watcher| watcher.state == crate::hub::State::Held) {
                self.slow -= 1;
                self.place(slot);
            }
        }
        Some(Work::Release(held))
    }

    fn restore(&mut self, mut restore: Restore, left: &mut usize) -> Option<Work> {
        let missed = *restore.missed.get_or_insert(self.notified);
        let to = self.watchers.len().min(restore.slot + step(*left));
        *left = left.saturating_sub(to - restore.slot);
        for slot in restore.slot as u32..to as u32 {
            if self.awaits(slot, restore.revision) && missed < restore.revision {
                self.fall_behind(slot, missed + 1);
            }
        }
        restore.slot = to;
        if to < self.watchers.len() {
            return Some(Work::Restore(restore));
        }
        self.notified = self.notified.max(restore.revision);
        Some(Work::Release(std::mem::take(&mut self.held).into_iter().collect()))
    }
}

/// How many watchers a step goes through, with so much left of the turn.
fn step(left: usize) -> usize {
    if left == 0 { STEP } else { left }
}

/// Where the first revision of too many events stands.
fn first_large(events: &[Event]) -> Option<(usize, usize)> {
    let mut begin = 0;
    for revision in events.chunk_by(|a, b| a.rev.main == b.rev.main) {
        let end = begin + revision.len();
        if revision.len() > MAX_EVENTS {
            return Some((begin, end));
        }
        begin = end;
    }
    None
}
