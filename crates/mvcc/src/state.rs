//! What the index knows of one key: its revisions, oldest first, and for each run of them the create revision and the
//! version the run starts from.
//!
//! Nearly every key has one life and one or two revisions between compactions, so those sit inline in 32 bytes; a key with
//! more moves to the heap and comes back when compaction has thinned it out.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use dolmen_types::Revision;

/// A revision and its tombstone mark in 12 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    high: u32,
    low: u32,
    /// `(sub << 1 | tombstone) + 1`: never 0, which gives the enclosing types their discriminant for free.
    tag: NonZeroU32,
}

/// The highest sub revision a slot can hold. A request with more changes than this would not fit in memory.
pub(crate) const MAX_SUB: i64 = (u32::MAX >> 1) as i64 - 1;

impl Slot {
    /// `None` when the sub revision is out of bounds, which only bytes from outside can bring about.
    pub(crate) fn new(rev: Revision, tombstone: bool) -> Option<Self> {
        if !(0..=MAX_SUB).contains(&rev.sub) {
            return None;
        }
        let main = rev.main as u64;
        let tag = NonZeroU32::new(((rev.sub as u32) << 1 | u32::from(tombstone)) + 1)?;
        Some(Self { high: (main >> 32) as u32, low: main as u32, tag })
    }

    pub(crate) fn main(self) -> i64 {
        (u64::from(self.high) << 32 | u64::from(self.low)) as i64
    }

    pub(crate) fn tombstone(self) -> bool {
        (self.tag.get() - 1) & 1 == 1
    }

    pub(crate) fn rev(self) -> Revision {
        Revision::new(self.main(), i64::from((self.tag.get() - 1) >> 1))
    }
}

impl PartialOrd for Slot {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Slot {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.rev(), self.tombstone()).cmp(&(other.rev(), other.tombstone()))
    }
}

/// A key as it stood at some revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The revision of its last change.
    pub modified: Revision,
    /// Main revision that began this life of the key.
    pub create: i64,
    /// Changes since then, from 1.
    pub version: i64,
}

/// What a compaction leaves of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compacted {
    Stays,
    /// Nothing is left: the key leaves the index.
    Goes,
    /// Only the oldest went; there are more to take away.
    Unfinished,
}

#[derive(Clone, Debug)]
pub(crate) enum State {
    /// One life, at most two revisions. `prev`, when there, is the put before `last`.
    Few {
        /// Main revision of `last` less the one that began the life.
        age: u32,
        /// The one of `last`.
        version: u32,
        last: Slot,
        prev: Option<Slot>,
    },
    /// Also a key whose numbers are too large for the other form.
    Many(Box<Many>),
}

#[derive(Clone, Debug)]
pub(crate) struct Many {
    /// All revisions, oldest first; never empty.
    slots: VecDeque<Slot>,
    /// Ascending by `start`; the first starts at 0.
    runs: Vec<Run>,
}

/// Revisions that share a create revision and count versions up by one. A new life begins a new run.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u32,
    create: i64,
    /// Version of the slot at `start`.
    version: i64,
}

impl Many {
    fn found(&self, at: usize) -> Option<Found> {
        let slot = *self.slots.get(at)?;
        if slot.tombstone() {
            return None;
        }
        let run = self.runs[self.runs.partition_point(|run| run.start as usize <= at) - 1];
        let version = run.version + (at - run.start as usize) as i64;
        Some(Found { modified: slot.rev(), create: run.create, version })
    }

    /// Position of the newest revision at or below `at`.
    fn position(&self, at: i64) -> Option<usize> {
        self.slots.partition_point(|slot| slot.main() <= at).checked_sub(1)
    }
}

impl State {
    pub(crate) fn first(slot: Slot, create: i64, version: i64) -> Self {
        Self::few(create, version, slot, None).unwrap_or_else(|| {
            Self::Many(Box::new(Many { slots: VecDeque::from([slot]), runs: vec![Run { start: 0, create, version }] }))
        })
    }

    /// Stands for a moment where a state was taken out.
    pub(crate) fn hole(slot: Slot) -> Self {
        Self::Few { age: 0, version: 0, last: slot, prev: None }
    }

    /// The inline form, `None` when a number is too large for it.
    fn few(create: i64, version: i64, last: Slot, prev: Option<Slot>) -> Option<Self> {
        let age = u32::try_from(last.main().checked_sub(create)?).ok()?;
        Some(Self::Few { age, version: u32::try_from(version).ok()?, last, prev })
    }

    pub(crate) fn last(&self) -> Slot {
        match self {
            Self::Few { last, .. } => *last,
            Self::Many(many) => *many.slots.back().expect("a key in the index has a revision"),
        }
    }

    pub(crate) fn live(&self) -> bool {
        !self.last().tombstone()
    }

    /// Whether some later compaction could take something away from this key.
    pub(crate) fn dirty(&self) -> bool {
        match self {
            Self::Few { last, prev, .. } => prev.is_some() || last.tombstone(),
            Self::Many(many) => many.slots.len() > 1 || self.last().tombstone(),
        }
    }

    /// The key as it stood at main revision `at`, `None` when it did not exist then.
    pub(crate) fn at(&self, at: i64) -> Option<Found> {
        match self {
            Self::Few { age, version, last, prev } => {
                let (create, version) = (last.main() - i64::from(*age), i64::from(*version));
                if last.main() <= at {
                    (!last.tombstone()).then(|| Found { modified: last.rev(), create, version })
                } else {
                    let prev = prev.filter(|prev| prev.main() <= at && !prev.tombstone())?;
                    Some(Found { modified: prev.rev(), create, version: version - 1 })
                }
            }
            Self::Many(many) => many.found(many.position(at)?),
        }
    }

    /// The newest revision at or below `at`, a tombstone too.
    pub(crate) fn last_at(&self, at: i64) -> Option<Slot> {
        match self {
            Self::Few { last, prev, .. } => {
                if last.main() <= at {
                    Some(*last)
                } else {
                    prev.filter(|prev| prev.main() <= at)
                }
            }
            Self::Many(many) => many.position(at).map(|position| many.slots[position]),
        }
    }

    /// Whether this key changed at `rev`.
    pub(crate) fn holds(&self, rev: Revision) -> bool {
        match self {
            Self::Few { last, prev, .. } => last.rev() == rev || prev.is_some_and(|prev| prev.rev() == rev),
            Self::Many(many) => many.slots.binary_search_by_key(&rev, |slot| slot.rev()).is_ok(),
        }
    }

    /// Adds a put of this store's own; it must come after every revision the key has.
    pub(crate) fn put(&mut self, slot: Slot) -> Found {
        let (create, version) = match self.at(i64::MAX) {
            Some(found) => (found.create, found.version + 1),
            None => (slot.main(), 1),
        };
        self.push(slot, create, version);
        Found { modified: slot.rev(), create, version }
    }

    /// Adds a tombstone to a living key.
    pub(crate) fn tombstone(&mut self, slot: Slot) {
        let (create, version) = self.at(i64::MAX).map_or((0, 0), |found| (found.create, found.version));
        self.push(slot, create, version + 1);
    }

    /// Adds a record read back from the log. Records that compaction had let go of may be missing before it, so the
    /// record's own create revision and version count, not the ones that follow from what is here.
    pub(crate) fn replay(&mut self, slot: Slot, create: i64, version: i64) {
        if slot.tombstone() {
            self.tombstone(slot);
        } else {
            self.push(slot, create, version);
        }
    }

    fn push(&mut self, slot: Slot, create: i64, version: i64) {
        debug_assert!(self.last().rev() < slot.rev(), "revisions of a key ascend");
        match self {
            Self::Few { age, version: old_version, last, prev } => {
                let (old_create, old_version) = (last.main() - i64::from(*age), i64::from(*old_version));
                let follows = !last.tombstone() && old_create == create && old_version + 1 == version;
                if follows
                    && prev.is_none()
                    && let Some(few) = Self::few(create, version, slot, Some(*last))
                {
                    *self = few;
                    return;
                }
                let mut slots = VecDeque::with_capacity(4);
                slots.extend(*prev);
                slots.push_back(*last);
                let start = slots.len() as u32;
                let first = Run { start: 0, create: old_create, version: old_version - i64::from(start) + 1 };
                let mut runs = vec![first];
                if !follows {
                    runs.push(Run { start, create, version });
                }
                slots.push_back(slot);
                *self = Self::Many(Box::new(Many { slots, runs }));
            }
            Self::Many(many) => {
                let at = many.slots.len();
                let run = *many.runs.last().expect("a key in the index has a run");
                let alive = !many.slots[at - 1].tombstone();
                if !(alive && run.create == create && run.version + (at - run.start as usize) as i64 == version) {
                    many.runs.push(Run { start: at as u32, create, version });
                }
                many.slots.push_back(slot);
            }
        }
    }

    /// Takes away what a compaction at `at` supersedes: all but the newest revision at or below it, and that one too when
    /// it is a tombstone from before `at`. (A tombstone at exactly `at` stays, for watchers that start there.) Reports
    /// them to `dead`, oldest first; of many at most `budget` in one call.
    pub(crate) fn compact(&mut self, at: i64, budget: usize, dead: &mut Vec<Revision>) -> Compacted {
        match self {
            Self::Few { last, prev, .. } => {
                if last.main() > at {
                    return Compacted::Stays;
                }
                dead.extend(prev.take().map(Slot::rev));
                let gone = last.tombstone() && last.main() < at;
                if gone {
                    dead.push(last.rev());
                }
                if gone { Compacted::Goes } else { Compacted::Stays }
            }
            Self::Many(many) => {
                let Some(newest) = many.position(at) else { return Compacted::Stays };
                let slot = many.slots[newest];
                let cut = newest + usize::from(slot.tombstone() && slot.main() < at);
                if cut == 0 {
                    return Compacted::Stays;
                }
                let some = cut.min(budget);
                dead.extend(many.slots.range(..some).map(|slot| slot.rev()));
                if some == many.slots.len() {
                    return Compacted::Goes;
                }
                many.cut(some);
                if some < cut {
                    return Compacted::Unfinished;
                }
                if let Some(few) = many.few() {
                    *self = few;
                }
                Compacted::Stays
            }
        }
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Few { .. } => 0,
            Self::Many(many) => {
                size_of::<Many>() + many.slots.capacity() * size_of::<Slot>() + many.runs.capacity() * size_of::<Run>()
            }
        }
    }
}

impl Many {
    fn cut(&mut self, cut: usize) {
        self.slots.drain(..cut);
        let first = self.runs.partition_point(|run| run.start as usize <= cut) - 1;
        self.runs.drain(..first);
        let run = &mut self.runs[0];
        run.version += (cut - run.start as usize) as i64;
        run.start = 0;
        for run in &mut self.runs[1..] {
            run.start -= cut as u32;
        }
        // A copy of what is left, which is little next to what went since the last one.
        if self.slots.capacity() > 4 * self.slots.len() {
            self.slots.shrink_to_fit();
        }
    }

    /// The inline form, when one run of at most two revisions is left.
    fn few(&self) -> Option<State> {
        let [run] = self.runs[..] else { return None };
        match (self.slots.len(), self.slots.front(), self.slots.back()) {
            (1, _, Some(last)) => State::few(run.create, run.version, *last, None),
            (2, prev, Some(last)) => State::few(run.create, run.version + 1, *last, prev.copied()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(main: i64) -> Slot {
        Slot::new(Revision::new(main, 0), false).expect("in bounds")
    }

    #[test]
    fn a_state_is_thirty_two_bytes_and_slots_keep_what_they_are_given() {
        assert_eq!((size_of::<Slot>(), size_of::<State>()), (12, 32));
        for (main, sub, tombstone) in [(1, 0, false), (i64::MAX, MAX_SUB, true), (1 << 40, 3, true)] {
            let slot = Slot::new(Revision::new(main, sub), tombstone).expect("in bounds");
            assert_eq!((slot.rev(), slot.tombstone()), (Revision::new(main, sub), tombstone));
        }
        assert_eq!(Slot::new(Revision::new(1, MAX_SUB + 1), false), None);
        assert_eq!(Slot::new(Revision::new(1, -1), false), None);
    }

    #[test]
    fn the_example_of_etcds_key_index_compacts_as_there() {
        // put 1, put 2, tombstone 3, put 4, tombstone 5.
        let mut state = State::first(put(1), 1, 1);
        state.put(put(2));
        state.tombstone(Slot::new(Revision::new(3, 0), true).expect("in bounds"));
        state.put(put(4));
        state.tombstone(Slot::new(Revision::new(5, 0), true).expect("in bounds"));
        assert_eq!(state.at(2), Some(Found { modified: Revision::new(2, 0), create: 1, version: 2 }));
        assert_eq!((state.at(3), state.at(5)), (None, None));
        assert_eq!(state.at(4), Some(Found { modified: Revision::new(4, 0), create: 4, version: 1 }));
        let mut compact = |at| {
            let mut dead = Vec::new();
            let left = state.compact(at, usize::MAX, &mut dead) == Compacted::Stays;
            (left, dead.iter().map(|rev| rev.main).collect::<Vec<_>>())
        };
        assert_eq!(compact(2), (true, vec![1]));
        assert_eq!(compact(3), (true, vec![2]));
        assert_eq!(compact(4), (true, vec![3]));
        assert_eq!(compact(5), (true, vec![4]));
        assert_eq!(compact(6), (false, vec![5]));
    }

    #[test]
    fn numbers_too_large_for_the_inline_form_are_kept_all_the_same() {
        let far = 1 << 40;
        for (create, version) in [(1, 1), (far - 5, far), (i64::MIN, 3), (far + 1, 2), (far, -7)] {
            let mut state = State::first(put(far), create, version);
            let found = Found { modified: Revision::new(far, 0), create, version };
            assert_eq!((state.at(far), state.dirty()), (Some(found), false));
            assert_eq!(state.put(put(far + 2)).version, version + 1);
            assert!(state.dirty());
            assert_eq!(state.at(far + 1), Some(found));
            let mut dead = Vec::new();
            assert_eq!(state.compact(far + 2, usize::MAX, &mut dead), Compacted::Stays);
            assert_eq!((dead, state.dirty()), (vec![Revision::new(far, 0)], false));
            assert_eq!(state.at(far + 2).map(|found| (found.create, found.version)), Some((create, version + 1)));
        }
        // A life that grows out of the inline form.
        let mut state = State::first(put(1), 1, 1);
        assert_eq!(state.put(put(far)), Found { modified: Revision::new(far, 0), create: 1, version: 2 });
        assert!(matches!(state, State::Many(_)));
        assert_eq!(state.at(2).map(|found| found.version), Some(1));
    }

    #[test]
    fn a_replayed_record_brings_its_own_version() {
        let mut state = State::first(put(3), 3, 1);
        state.replay(put(9), 3, 5);
        assert_eq!(state.at(9).map(|found| (found.create, found.version)), Some((3, 5)));
        assert_eq!(state.put(put(10)).version, 6);
        let mut dead = Vec::new();
        assert_eq!(state.compact(9, usize::MAX, &mut dead), Compacted::Stays);
        assert_eq!(state.at(9).map(|found| found.version), Some(5));
        assert!(matches!(state, State::Few { .. }));
    }
}
