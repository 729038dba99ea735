//! The key index: which revisions each key has, in key order, in memory.
//!
//! A B+ tree. A leaf holds up to 64 keys in one buffer, what they all begin with stored once, and a [`State`] for each. An
//! inner node keeps, for each child, three numbers about the keys under it:
//!
//! * `live`: keys that exist at the newest revision, so that counting a range adds up a few children instead of visiting
//!   keys;
//! * `newest`: the highest main revision under it (or a little more, never less), so that a count at an older revision uses
//!   the same sums wherever nothing has changed since;
//! * `dirty`: keys that a compaction could take something from, so that pruning skips the rest of the tree.
//!
//! ```text
//!                 [ ..g | g..p | p.. ]          separators: the lowest key a child may hold
//!      live 40      /      |      \   live 12
//!      dirty 2  leaf     leaf     leaf  dirty 0
//! ```
//!
//! The index never reads values and knows nothing of the log.

use std::ops::ControlFlow;

use bytes::Bytes;
use dolmen_types::Revision;

use crate::keys::{GROWTH, Keys, grow};
use crate::state::{Compacted, Found, Slot, State};

/// Keys in a leaf and children in an inner node, at most.
pub(crate) const FANOUT: usize = 64;
/// Below this a node is merged with a neighbour if the two fit into one with room to grow.
const SPARSE: usize = FANOUT / 4;
/// Bytes of keys at which a leaf is split however few they are, so that long keys do not make insertion slow.
const LEAF_BYTES: usize = 16 << 10;

/// The ordered map from keys to their revisions.
#[derive(Debug, Default)]
pub struct Index {
    root: Node,
    totals: Totals,
}

/// What a tree holds. See the module page for `live`, `dirty` and `newest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    live: u64,
    dirty: u64,
    newest: i64,
}

#[derive(Debug)]
enum Node {
    Leaf(Leaf),
    Inner(Inner),
}

impl Default for Node {
    fn default() -> Self {
        Self::Leaf(Leaf::default())
    }
}

#[derive(Debug, Default)]
struct Leaf {
    keys: Keys,
    states: Vec<State>,
}

#[derive(Debug, Default)]
struct Inner {
    /// One fewer than children: `separators[i]` is at most every key of child `i + 1` and above every key of child `i`.
    separators: Keys,
    children: Vec<Child>,
}

#[derive(Debug)]
struct Child {
    node: Box<Node>,
    totals: Totals,
}

impl Leaf {
    fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for state in &self.states {
            totals.live += u64::from(state.live());
            totals.dirty += u64::from(state.dirty());
            totals.newest = totals.newest.max(state.last().main());
        }
        totals
    }

    fn full(&self) -> bool {
        self.states.len() > FANOUT || (self.keys.byte_len() > LEAF_BYTES && self.states.len() > 1)
    }
}

impl Inner {
    fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for child in &self.children {
            totals.live += child.totals.live;
            totals.dirty += child.totals.dirty;
            totals.newest = totals.newest.max(child.totals.newest);
        }
        totals
    }

    fn child(&self, key: &[u8]) -> usize {
        self.separators.up_to(key)
    }

    /// Removes an empty child, or merges a sparse one with a neighbour.
    fn tidy(&mut self, at: usize) {
        let len = self.children[at].node.len();
        if len == 0 {
            self.children.remove(at);
            if self.separators.len() > 0 {
                self.separators.remove(at.saturating_sub(1));
            }
            return;
        }
        if len >= SPARSE || self.children.len() < 2 {
            return;
        }
        let left = if at + 1 < self.children.len() { at } else { at - 1 };
        if self.children[left].node.len() + self.children[left + 1].node.len() > FANOUT * 3 / 4 {
            return;
        }
        let right = self.children.remove(left + 1);
        let into = &mut self.children[left];
        match (&mut *into.node, *right.node) {
            (Node::Leaf(into), Node::Leaf(right)) => {
                into.keys.append(&right.keys);
                into.states.reserve_exact(right.states.len());
                into.states.extend(right.states);
            }
            (Node::Inner(into), Node::Inner(right)) => {
                into.separators.insert(into.separators.len(), &self.separators.get(left));
                into.separators.append(&right.separators);
                into.children.extend(right.children);
            }
            _ => unreachable!("all leaves stand at one depth"),
        }
        into.totals = into.node.totals();
        self.separators.remove(left);
    }
}

/// The upper half of a node that grew too large, and the lowest key it may hold.
struct Split {
    separator: Vec<u8>,
    right: Node,
}

impl Node {
    fn len(&self) -> usize {
        match self {
            Self::Leaf(leaf) => leaf.states.len(),
            Self::Inner(inner) => inner.children.len(),
        }
    }

    fn totals(&self) -> Totals {
        match self {
            Self::Leaf(leaf) => leaf.totals(),
            Self::Inner(inner) => inner.totals(),
        }
    }

    /// Changes the state of one key and keeps the numbers above it true. `edit` sees the state there is (none: the key is
    /// new) and leaves the one there shall be (none: the key goes).
    fn edit<R>(
        &mut self,
        key: &[u8],
        totals: &mut Totals,
        edit: impl FnOnce(&mut Option<State>) -> R,
    ) -> (R, Option<Split>) {
        match self {
            Self::Leaf(leaf) => leaf.edit(key, totals, edit),
            Self::Inner(inner) => {
                let at = inner.child(key);
                let child = &mut inner.children[at];
                let before = child.totals;
                let (result, split) = child.node.edit(key, &mut child.totals, edit);
                totals.live = totals.live + child.totals.live - before.live;
                totals.dirty = totals.dirty + child.totals.dirty - before.dirty;
                totals.newest = totals.newest.max(child.totals.newest);
                if let Some(split) = split {
                    child.totals = child.node.totals();
                    let right = Child { totals: split.right.totals(), node: Box::new(split.right) };
                    inner.separators.insert(at, &split.separator);
                    grow(&mut inner.children);
                    inner.children.insert(at + 1, right);
                } else if child.node.len() < SPARSE && child.node.shrank() {
                    inner.tidy(at);
                }
                (result, inner.split(at))
            }
        }
    }

    /// Whether it is worth looking for a neighbour to merge with. A leaf of few but long keys is not.
    fn shrank(&self) -> bool {
        match self {
            Self::Leaf(leaf) => leaf.keys.byte_len() < LEAF_BYTES / 4,
            Self::Inner(_) => true,
        }
    }

    /// Visits states from `low` up to `high` (exclusive, open when none), each with its key, which is put together in `key`.
    fn visit(
        &self,
        low: Option<&[u8]>,
        high: Option<&[u8]>,
        skip: &impl Fn(&Totals) -> bool,
        key: &mut Vec<u8>,
        visit: &mut impl FnMut(&[u8], &State) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match self {
            Self::Leaf(leaf) => {
                let from = low.map_or(0, |low| leaf.keys.below(low));
                let to = high.map_or(leaf.keys.len(), |high| leaf.keys.below(high));
                for at in from..to {
                    leaf.keys.write(at, key);
                    visit(key, &leaf.states[at])?;
                }
            }
            Self::Inner(inner) => {
                let Some((from, to)) = inner.span(low, high) else { return ControlFlow::Continue(()) };
                for at in from..=to {
                    let child = &inner.children[at];
                    if !skip(&child.totals) {
                        let (low, high) = (low.filter(|_| at == from), high.filter(|_| at == to));
                        child.node.visit(low, high, skip, key, visit)?;
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn count(&self, totals: &Totals, low: Option<&[u8]>, high: Option<&[u8]>, at: i64) -> u64 {
        if low.is_none() && high.is_none() && totals.newest <= at {
            return totals.live;
        }
        match self {
            Self::Leaf(leaf) => {
                let from = low.map_or(0, |low| leaf.keys.below(low));
                let to = high.map_or(leaf.keys.len(), |high| leaf.keys.below(high)).max(from);
                leaf.states[from..to].iter().filter(|state| state.at(at).is_some()).count() as u64
            }
            Self::Inner(inner) => {
                let Some((from, to)) = inner.span(low, high) else { return 0 };
                let mut count = 0;
                for (i, child) in inner.children[from..=to].iter().enumerate() {
                    let (low, high) = (low.filter(|_| i == 0), high.filter(|_| from + i == to));
                    count += child.node.count(&child.totals, low, high, at);
                }
                count
            }
        }
    }

    /// Counts as [`Node::count`], looking at about `left` keys one by one. Breaks with the key to go on from; `upper` is the
    /// first key behind this node.
    fn count_some(
        &self,
        totals: &Totals,
        (low, high): (Option<&[u8]>, Option<&[u8]>),
        upper: Option<&[u8]>,
        at: i64,
        left: &mut usize,
        count: &mut u64,
    ) -> ControlFlow<Vec<u8>> {
        match self {
            Self::Inner(inner) if low.is_some() || high.is_some() || totals.newest > at => {
                let Some((from, to)) = inner.span(low, high) else { return ControlFlow::Continue(()) };
                for i in from..=to {
                    let (low, high) = (low.filter(|_| i == from), high.filter(|_| i == to));
                    let separator = (i < inner.separators.len()).then(|| inner.separators.get(i));
                    let child = &inner.children[i];
                    let upper = separator.as_deref().or(upper);
                    child.node.count_some(&child.totals, (low, high), upper, at, left, count)?;
                }
            }
            _ => {
                *count += self.count(totals, low, high, at);
                if totals.newest > at {
                    *left = left.saturating_sub(self.len());
                }
                // At the end of the range there is nothing to go on with.
                if let Some(upper) = upper.filter(|_| *left == 0 && high.is_none()) {
                    return ControlFlow::Break(upper.to_vec());
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Adds a tombstone to every living key of a range, with the revision that `visit` gives for it. Breaks with the key to
    /// go on from where `visit` gives none.
    fn tombstones(
        &mut self,
        totals: &mut Totals,
        low: Option<&[u8]>,
        high: Option<&[u8]>,
        key: &mut Vec<u8>,
        visit: &mut impl FnMut(&[u8], Found) -> Option<Slot>,
    ) -> ControlFlow<Vec<u8>> {
        let mut flow = ControlFlow::Continue(());
        match self {
            Self::Leaf(leaf) => {
                let from = low.map_or(0, |low| leaf.keys.below(low));
                let to = high.map_or(leaf.keys.len(), |high| leaf.keys.below(high));
                for at in from..to {
                    let Some(before) = leaf.states[at].at(i64::MAX) else { continue };
                    leaf.keys.write(at, key);
                    let Some(slot) = visit(key, before) else {
                        flow = ControlFlow::Break(key.clone());
                        break;
                    };
                    leaf.states[at].tombstone(slot);
                }
                *totals = leaf.totals();
            }
            Self::Inner(inner) => {
                let Some((from, to)) = inner.span(low, high) else { return flow };
                for at in from..=to {
                    let child = &mut inner.children[at];
                    if child.totals.live > 0 {
                        let (low, high) = (low.filter(|_| at == from), high.filter(|_| at == to));
                        flow = child.node.tombstones(&mut child.totals, low, high, key, visit);
                        if flow.is_break() {
                            break;
                        }
                    }
                }
                // What is known of the newest revision may be a little more than there is, and stays so.
                *totals = Totals { newest: totals.newest.max(inner.totals().newest), ..inner.totals() };
            }
        }
        flow
    }

    /// Compacts dirty keys from `from` on. Breaks with the key to go on from once `budget` is used up; `upper` is the first
    /// key behind this node.
    fn prune(
        &mut self,
        totals: &mut Totals,
        from: Option<&[u8]>,
        upper: Option<&[u8]>,
        at: i64,
        budget: &mut usize,
        dead: &mut Vec<Revision>,
    ) -> ControlFlow<Vec<u8>> {
        match self {
            Self::Leaf(leaf) => {
                let first = from.map_or(0, |from| leaf.keys.below(from));
                let stopped = leaf.prune(first, at, budget, dead);
                totals.dirty = leaf.states.iter().filter(|state| state.dirty()).count() as u64;
                match (stopped, upper) {
                    (Some(key), _) => ControlFlow::Break(key),
                    (None, Some(upper)) if *budget == 0 => ControlFlow::Break(upper.to_vec()),
                    (None, _) => ControlFlow::Continue(()),
                }
            }
            Self::Inner(inner) => {
                let first = from.map_or(0, |from| inner.child(from));
                let mut flow = ControlFlow::Continue(());
                let mut reached = inner.children.len();
                for i in first..inner.children.len() {
                    let child = &mut inner.children[i];
                    if child.totals.dirty == 0 {
                        continue;
                    }
                    let separator = (i < inner.separators.len()).then(|| inner.separators.get(i));
                    let upper = separator.as_deref().or(upper);
                    let from = from.filter(|_| i == first);
                    flow = child.node.prune(&mut child.totals, from, upper, at, budget, dead);
                    if flow.is_break() {
                        reached = i + 1;
                        break;
                    }
                }
                for i in (first..reached).rev() {
                    if inner.children[i].node.len() < SPARSE {
                        inner.tidy(i.min(inner.children.len() - 1));
                    }
                }
                totals.dirty = inner.children.iter().map(|child| child.totals.dirty).sum();
                flow
            }
        }
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Self::Leaf(leaf) => {
                let states: usize = leaf.states.iter().map(State::heap_bytes).sum();
                leaf.keys.heap_bytes() + leaf.states.capacity() * size_of::<State>() + states
            }
            Self::Inner(inner) => {
                let below: usize = inner.children.iter().map(|child| size_of::<Node>() + child.node.heap_bytes()).sum();
                inner.separators.heap_bytes() + inner.children.capacity() * size_of::<Child>() + below
            }
        }
    }
}

impl Leaf {
    fn edit<R>(
        &mut self,
        key: &[u8],
        totals: &mut Totals,
        edit: impl FnOnce(&mut Option<State>) -> R,
    ) -> (R, Option<Split>) {
        let place = self.keys.place(key);
        let mut state = place.ok().map(|at| {
            let hole = State::hole(self.states[at].last());
            std::mem::replace(&mut self.states[at], hole)
        });
        if let Some(state) = &state {
            totals.live -= u64::from(state.live());
            totals.dirty -= u64::from(state.dirty());
        }
        let result = edit(&mut state);
        if let Some(state) = &state {
            totals.live += u64::from(state.live());
            totals.dirty += u64::from(state.dirty());
            totals.newest = totals.newest.max(state.last().main());
        }
        match (place, state) {
            (Ok(at), Some(state)) => self.states[at] = state,
            (Ok(at), None) => {
                self.keys.remove(at);
                self.states.remove(at);
            }
            (Err(at), Some(state)) => {
                self.keys.insert(at, key);
                grow(&mut self.states);
                self.states.insert(at, state);
                let split = self.full().then(|| self.split(at));
                return (result, split);
            }
            (Err(_), None) => {}
        }
        (result, None)
    }

    /// Splits in the middle, or, when the newest key is the last one, before it: keys that come in order fill their leaves.
    fn split(&mut self, inserted: usize) -> Split {
        let len = self.states.len();
        let at = if inserted + 1 == len { len - 1 } else { len / 2 };
        let right = Self { keys: self.keys.split_off(at), states: self.states.split_off(at) };
        self.states.shrink_to(at + GROWTH * usize::from(at == len / 2));
        Split { separator: right.keys.get(0), right: Node::Leaf(right) }
    }

    /// Compacts the keys from `first` on; a key costs the budget one, and one for each of its revisions that goes. Returns
    /// the key that was not done with.
    fn prune(&mut self, first: usize, at: i64, budget: &mut usize, dead: &mut Vec<Revision>) -> Option<Vec<u8>> {
        let mut keep = vec![true; self.states.len()];
        let mut all = true;
        let mut stopped = None;
        for (i, state) in self.states.iter_mut().enumerate().skip(first) {
            *budget = budget.saturating_sub(1);
            if !state.dirty() {
                continue;
            }
            let before = dead.len();
            let left = state.compact(at, (*budget).max(1), dead);
            *budget = budget.saturating_sub(dead.len() - before);
            match left {
                Compacted::Stays => {}
                Compacted::Goes => {
                    keep[i] = false;
                    all = false;
                }
                Compacted::Unfinished => {
                    stopped = Some(self.keys.get(i));
                    break;
                }
            }
        }
        if all {
            return stopped;
        }
        self.keys.retain(&keep);
        let mut kept = keep.iter();
        self.states.retain(|_| *kept.next().unwrap_or(&true));
        self.states.shrink_to(self.states.len() + GROWTH);
        stopped
    }
}

impl Inner {
    /// First and last child that can hold keys of `[low, high)`; `None` when no key can be in it.
    fn span(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> Option<(usize, usize)> {
        let from = low.map_or(0, |low| self.child(low));
        let to = high.map_or(self.children.len().checked_sub(1)?, |high| self.child(high));
        (from <= to && to < self.children.len()).then_some((from, to))
    }

    fn split(&mut self, touched: usize) -> Option<Split> {
        let len = self.children.len();
        if len <= FANOUT {
            return None;
        }
        let at = if touched + 2 >= len { len - 2 } else { len / 2 };
        let mut separators = self.separators.split_off(at - 1);
        let separator = separators.get(0);
        separators.remove(0);
        let right = Self { separators, children: self.children.split_off(at) };
        self.children.shrink_to(at);
        Some(Split { separator, right: Node::Inner(right) })
    }
}

impl Index {
    pub fn new() -> Self {
        Self::default()
    }

    /// Keys that exist at the newest revision.
    pub fn live(&self) -> u64 {
        self.totals.live
    }

    /// Keys that a compaction could take something from.
    pub fn dirty(&self) -> u64 {
        self.totals.dirty
    }

    /// Bytes of memory, the allocator's own overhead aside.
    pub fn heap_bytes(&self) -> usize {
        self.root.heap_bytes()
    }

    fn edit<R>(&mut self, key: &[u8], edit: impl FnOnce(&mut Option<State>) -> R) -> R {
        let (result, split) = self.root.edit(key, &mut self.totals, edit);
        if let Some(split) = split {
            let left = std::mem::take(&mut self.root);
            let child = |node: Node| Child { totals: node.totals(), node: Box::new(node) };
            let mut separators = Keys::default();
            separators.insert(0, &split.separator);
            self.root = Node::Inner(Inner { separators, children: vec![child(left), child(split.right)] });
        }
        self.lower_root();
        result
    }

    /// Takes away levels that hold a single child.
    fn lower_root(&mut self) {
        while let Node::Inner(inner) = &mut self.root {
            match inner.children.len() {
                0 => self.root = Node::default(),
                1 => {
                    let only = inner.children.pop().expect("there is one");
                    self.root = *only.node;
                }
                _ => return,
            }
        }
    }

    /// Records a put at `rev`, which is above every revision here. Returns the key as it stands now, and as it stood
    /// before if it existed.
    pub(crate) fn put(&mut self, key: &[u8], slot: Slot) -> (Found, Option<Found>) {
        self.edit(key, |state| match state {
            Some(state) => {
                let before = state.at(i64::MAX);
                (state.put(slot), before)
            }
            None => {
                let found = Found { modified: slot.rev(), create: slot.main(), version: 1 };
                *state = Some(State::first(slot, found.create, 1));
                (found, None)
            }
        })
    }

    /// Records that the key was deleted. Returns it as it stood before; `None`, and nothing is recorded, when it does not
    /// exist.
    pub(crate) fn tombstone(&mut self, key: &[u8], slot: Slot) -> Option<Found> {
        self.edit(key, |state| {
            let state = state.as_mut()?;
            let before = state.at(i64::MAX)?;
            state.tombstone(slot);
            Some(before)
        })
    }

    /// Adds a record read back from a log that was compacted at `compact` (-1: never), in revision order. What `compact`
    /// supersedes goes to `dead` at once, so a whole log of superseded records never stands in memory. Returns whether the
    /// record came after all others of its key; nothing is recorded when not.
    pub(crate) fn replay(
        &mut self,
        key: &[u8],
        slot: Slot,
        create: i64,
        version: i64,
        compact: i64,
        dead: &mut Vec<Revision>,
    ) -> bool {
        self.edit(key, |place| {
            match place {
                Some(state) if state.last().rev() >= slot.rev() => return false,
                Some(state) => state.replay(slot, create, version),
                None => *place = Some(State::first(slot, create, version)),
            }
            if slot.main() <= compact
                && place.as_mut().is_some_and(|state| state.compact(compact, usize::MAX, dead) == Compacted::Goes)
            {
                *place = None;
            }
            true
        })
    }

    fn state(&self, key: &[u8]) -> Option<&State> {
        let mut node = &self.root;
        loop {
            match node {
                Node::Leaf(leaf) => return leaf.keys.find(key).map(|at| &leaf.states[at]),
                Node::Inner(inner) => node = &inner.children[inner.child(key)].node,
            }
        }
    }

    /// The key as it stood at main revision `at`.
    pub fn get(&self, key: &[u8], at: i64) -> Option<Found> {
        self.state(key)?.at(at)
    }

    /// Visits the keys of `[low, high)` (open end: `None`) that existed at `at`, in key order, until `visit` breaks.
    pub fn range(
        &self,
        low: &[u8],
        high: Option<&[u8]>,
        at: i64,
        mut visit: impl FnMut(&[u8], Found) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if high.is_some_and(|high| high <= low) {
            return ControlFlow::Continue(());
        }
        let skip = |totals: &Totals| totals.live == 0 && totals.newest <= at;
        self.root.visit(Some(low), high, &skip, &mut Vec::new(), &mut |key, state| match state.at(at) {
            Some(found) => visit(key, found),
            None => ControlFlow::Continue(()),
        })
    }

    /// Visits, in key order from `low` on, the newest revision at or below `at` of every key that has one, tombstones
    /// included.
    pub(crate) fn last_at(
        &self,
        low: &[u8],
        at: i64,
        mut visit: impl FnMut(&[u8], Slot) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.root.visit(Some(low), None, &|_| false, &mut Vec::new(), &mut |key, state| match state.last_at(at) {
            Some(slot) => visit(key, slot),
            None => ControlFlow::Continue(()),
        })
    }

    /// The key that changed at `rev`, looking from `low` on at about `budget` keys. Otherwise the key to go on from, `None` at
    /// the end.
    pub(crate) fn key_of(&self, rev: Revision, low: &[u8], mut budget: usize) -> Result<Vec<u8>, Option<Vec<u8>>> {
        let mut found = Err(None);
        let skip = |totals: &Totals| totals.newest < rev.main;
        let _ = self.root.visit(Some(low), None, &skip, &mut Vec::new(), &mut |key, state| {
            if budget == 0 {
                found = Err(Some(key.to_vec()));
            } else if state.holds(rev) {
                found = Ok(key.to_vec());
            } else {
                budget -= 1;
                return ControlFlow::Continue(());
            }
            ControlFlow::Break(())
        });
        found
    }

    /// Keys of `[low, high)` that existed at `at`. O(log n) when `at` is the newest revision, or where nothing has changed
    /// since it.
    pub fn count(&self, low: &[u8], high: Option<&[u8]>, at: i64) -> u64 {
        if high.is_some_and(|high| high <= low) {
            return 0;
        }
        // The empty key is below every other, so the whole tree need not be split at its lower edge.
        self.root.count(&self.totals, Some(low).filter(|low| !low.is_empty()), high, at)
    }

    /// Counts as [`Index::count`], from `low` on until about `left` keys were looked at one by one. Returns the count, and
    /// the key to go on from, `None` at the end.
    pub(crate) fn count_some(&self, low: &[u8], high: Option<&[u8]>, at: i64, left: usize) -> (u64, Option<Bytes>) {
        if high.is_some_and(|high| high <= low) {
            return (0, None);
        }
        let (mut left, mut count) = (left.max(1), 0);
        let low = Some(low).filter(|low| !low.is_empty());
        let flow = self.root.count_some(&self.totals, (low, high), None, at, &mut left, &mut count);
        (count, flow.break_value().map(Bytes::from))
    }

    /// Adds a tombstone to every living key of `[low, high)`, in key order, with the revision that `visit` gives for it; it
    /// sees the key as it stood before. Returns the key for which it gave none, `None` at the end.
    pub(crate) fn tombstones(
        &mut self,
        low: &[u8],
        high: Option<&[u8]>,
        mut visit: impl FnMut(&[u8], Found) -> Option<Slot>,
    ) -> Option<Bytes> {
        if high.is_some_and(|high| high <= low) {
            return None;
        }
        let flow = self.root.tombstones(&mut self.totals, Some(low), high, &mut Vec::new(), &mut visit);
        flow.break_value().map(Bytes::from)
    }

    /// Compacts at `at`, beginning with key `from` (none: the first), looking at about `budget` keys. Superseded revisions
    /// are added to `dead`. Returns the key to go on from, `None` when the end is reached.
    pub(crate) fn prune(
        &mut self,
        from: Option<&[u8]>,
        at: i64,
        budget: usize,
        dead: &mut Vec<Revision>,
    ) -> Option<Vec<u8>> {
        let mut budget = budget.max(1);
        let flow = self.root.prune(&mut self.totals, from, None, at, &mut budget, dead);
        self.lower_root();
        flow.break_value()
    }

    /// Checks every invariant of the tree; for tests.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        fn walk(node: &Node, totals: &Totals, low: Option<&[u8]>, high: Option<&[u8]>, depth: usize) -> usize {
            let real = node.totals();
            assert_eq!((real.live, real.dirty), (totals.live, totals.dirty));
            assert!(real.newest <= totals.newest);
            match node {
                Node::Leaf(leaf) => {
                    assert_eq!(leaf.keys.len(), leaf.states.len());
                    let keys: Vec<Vec<u8>> = (0..leaf.keys.len()).map(|at| leaf.keys.get(at)).collect();
                    assert!(keys.is_sorted() && keys.len() <= FANOUT);
                    leaf.keys.check();
                    assert!(keys.first().is_none_or(|key| low.is_none_or(|low| low <= key.as_slice())));
                    assert!(keys.last().is_none_or(|key| high.is_none_or(|high| key.as_slice() < high)));
                    depth
                }
                Node::Inner(inner) => {
                    assert_eq!(inner.separators.len() + 1, inner.children.len());
                    assert!(inner.children.len() <= FANOUT);
                    let depths: Vec<usize> = (0..inner.children.len())
                        .map(|at| {
                            let above = at.checked_sub(1).map(|at| inner.separators.get(at));
                            let below = (at < inner.separators.len()).then(|| inner.separators.get(at));
                            let (low, high) = (above.as_deref().or(low), below.as_deref().or(high));
                            walk(&inner.children[at].node, &inner.children[at].totals, low, high, depth + 1)
                        })
                        .collect();
                    assert!(depths.iter().all(|depth| *depth == depths[0]));
                    depths[0]
                }
            }
        }
        walk(&self.root, &self.totals, None, None, 0);
    }
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
