//! Which watchers want a key: single keys in a map, ranges in an interval tree.
//!
//! The tree is a treap over distinct ranges, ordered by start and then end, each node knowing the furthest end below
//! it. A stab for one key leaves out every subtree that ends too early and everything that starts too late, so it costs
//! the depth plus the matches. Priorities come from a fixed seed: the same calls build the same tree. Watchers of one
//! range share a node, and ten thousand watchers of one key or range cost one look-up.

use std::cmp::Ordering;
use std::collections::HashMap;

use bytes::Bytes;
use dolmen_env::Rng;
use dolmen_types::KeyRange;

/// Names the watchers of one key or range, as long as there are any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SetId {
    Key(u32),
    Range(u32),
}

/// Where a watcher stands, to take it out again without a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    set: SetId,
    /// Position in that set.
    at: u32,
}

const NONE: u32 = u32::MAX;

#[derive(Default)]
pub(crate) struct Index {
    /// Looked up, never iterated.
    keys: HashMap<Bytes, u32>,
    key_sets: Vec<Vec<u32>>,
    free: Vec<u32>,
    ranges: RangeTree,
}

impl Index {
    pub(crate) fn insert(&mut self, range: &KeyRange, watcher: u32) -> Place {
        let id = match range {
            KeyRange::Single(key) => SetId::Key(self.key_set(key)),
            KeyRange::Range(start, end) => SetId::Range(self.ranges.entry(start, Some(end))),
            KeyRange::From(start) => SetId::Range(self.ranges.entry(start, None)),
        };
        let set = self.set_mut(id);
        set.push(watcher);
        Place { set: id, at: set.len() as u32 - 1 }
    }

    /// Takes the watcher at `place` out. Another may move into its place: it is returned, and stands at `place` now.
    pub(crate) fn remove(&mut self, range: &KeyRange, place: Place) -> Option<u32> {
        let set = self.set_mut(place.set);
        let moved = take(set, place.at);
        if set.is_empty() {
            match place.set {
                SetId::Range(node) => self.ranges.remove(node),
                SetId::Key(at) => {
                    // The free set holds on to no memory.
                    *set = Vec::new();
                    self.free.push(at);
                    self.keys.remove(range.start());
                }
            }
        }
        moved
    }

    /// The watchers of a set.
    pub(crate) fn watchers(&self, id: SetId) -> &[u32] {
        match id {
            SetId::Key(at) => &self.key_sets[at as usize],
            SetId::Range(node) => &self.ranges.node(node).watchers,
        }
    }

    /// Calls `found` for each set of watchers that want `key`.
    pub(crate) fn stab(&self, key: &[u8], mut found: impl FnMut(SetId)) {
        if let Some(at) = self.keys.get(key) {
            found(SetId::Key(*at));
        }
        self.ranges.stab(self.ranges.root, key, &mut found);
    }

    fn set_mut(&mut self, id: SetId) -> &mut Vec<u32> {
        match id {
            SetId::Key(at) => &mut self.key_sets[at as usize],
            SetId::Range(node) => &mut self.ranges.nodes[node as usize].watchers,
        }
    }

    /// The set of a key, made when absent.
    fn key_set(&mut self, key: &Bytes) -> u32 {
        if let Some(at) = self.keys.get(key) {
            return *at;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.key_sets.push(Vec::new());
            self.key_sets.len() as u32 - 1
        });
        self.keys.insert(key.clone(), at);
        at
    }
}

fn take(set: &mut Vec<u32>, at: u32) -> Option<u32> {
    set.swap_remove(at as usize);
    set.get(at as usize).copied()
}

struct Node {
    start: Bytes,
    /// `None`: open-ended.
    end: Option<Bytes>,
    priority: u64,
    left: u32,
    right: u32,
    /// The node of this subtree with the furthest end.
    furthest: u32,
    watchers: Vec<u32>,
}

struct RangeTree {
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: u32,
    rng: Rng,
}

impl Default for RangeTree {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), root: NONE, rng: Rng::new(0x7265_6970) }
    }
}

/// Order of ends: open ends come last.
fn compare_ends(a: Option<&Bytes>, b: Option<&Bytes>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => a.cmp(b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    }
}

impl RangeTree {
    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    fn compare(&self, start: &Bytes, end: Option<&Bytes>, at: u32) -> Ordering {
        let node = self.node(at);
        start.cmp(&node.start).then_with(|| compare_ends(end, node.end.as_ref()))
    }

    /// The node of a range, made when absent.
    fn entry(&mut self, start: &Bytes, end: Option<&Bytes>) -> u32 {
        let mut at = self.root;
        while at != NONE {
            match self.compare(start, end, at) {
                Ordering::Less => at = self.node(at).left,
                Ordering::Greater => at = self.node(at).right,
                Ordering::Equal => break,
            }
        }
        if at == NONE {
            let priority = self.rng.next_u64();
            let node = Node {
                start: start.clone(),
                end: end.cloned(),
                priority,
                left: NONE,
                right: NONE,
                furthest: NONE,
                watchers: Vec::new(),
            };
            at = if let Some(at) = self.free.pop() {
                self.nodes[at as usize] = node;
                at
            } else {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            };
            self.root = self.insert(self.root, at);
        }
        at
    }

    /// Puts node `new` into the subtree `at` and returns the subtree's new root.
    fn insert(&mut self, at: u32, new: u32) -> u32 {
        if at == NONE {
            self.update(new);
            return new;
        }
        let (start, end) = (self.node(new).start.clone(), self.node(new).end.clone());
        if self.node(new).priority > self.node(at).priority {
            let (left, right) = self.split(at, &start, end.as_ref());
            let node = &mut self.nodes[new as usize];
            (node.left, node.right) = (left, right);
            self.update(new);
            return new;
        }
        if self.compare(&start, end.as_ref(), at).is_lt() {
            let left = self.insert(self.node(at).left, new);
            self.nodes[at as usize].left = left;
        } else {
            let right = self.insert(self.node(at).right, new);
            self.nodes[at as usize].right = right;
        }
        self.update(at);
        at
    }

    /// Splits a subtree into what stands before and after a range that is not in it.
    fn split(&mut self, at: u32, start: &Bytes, end: Option<&Bytes>) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        if self.compare(start, end, at).is_lt() {
            let (before, after) = self.split(self.node(at).left, start, end);
            self.nodes[at as usize].left = after;
            self.update(at);
            (before, at)
        } else {
            let (before, after) = self.split(self.node(at).right, start, end);
            self.nodes[at as usize].right = before;
            self.update(at);
            (at, after)
        }
    }

    fn remove(&mut self, gone: u32) {
        let node = self.node(gone);
        let (start, end) = (node.start.clone(), node.end.clone());
        self.root = self.remove_below(self.root, gone, &start, end.as_ref());
        let node = &mut self.nodes[gone as usize];
        // The free slot holds on to no memory.
        (node.start, node.end, node.watchers) = (Bytes::new(), None, Vec::new());
        self.free.push(gone);
    }

    fn remove_below(&mut self, at: u32, gone: u32, start: &Bytes, end: Option<&Bytes>) -> u32 {
        if at == gone {
            let node = self.node(gone);
            return self.merge(node.left, node.right);
        }
        if self.compare(start, end, at).is_lt() {
            let left = self.remove_below(self.node(at).left, gone, start, end);
            self.nodes[at as usize].left = left;
        } else {
            let right = self.remove_below(self.node(at).right, gone, start, end);
            self.nodes[at as usize].right = right;
        }
        self.update(at);
        at
    }

    /// Joins two subtrees, all of `left` before all of `right`.
    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == NONE || right == NONE {
            return if left == NONE { right } else { left };
        }
        if self.node(left).priority > self.node(right).priority {
            let below = self.merge(self.node(left).right, right);
            self.nodes[left as usize].right = below;
            self.update(left);
            left
        } else {
            let below = self.merge(left, self.node(right).left);
            self.nodes[right as usize].left = below;
            self.update(right);
            right
        }
    }

    /// Recomputes `furthest` from the children.
    fn update(&mut self, at: u32) {
        let mut furthest = at;
        for child in [self.node(at).left, self.node(at).right] {
            if child != NONE {
                let below = self.node(child).furthest;
                if compare_ends(self.node(below).end.as_ref(), self.node(furthest).end.as_ref()).is_gt() {
                    furthest = below;
                }
            }
        }
        self.nodes[at as usize].furthest = furthest;
    }

    fn stab(&self, at: u32, key: &[u8], found: &mut impl FnMut(SetId)) {
        if at == NONE {
            return;
        }
        let node = self.node(at);
        if self.node(node.furthest).end.as_ref().is_some_and(|end| end.as_ref() <= key) {
            return;
        }
        self.stab(node.left, key, found);
        if node.start.as_ref() <= key {
            if node.end.as_ref().is_none_or(|end| key < end.as_ref()) {
                found(SetId::Range(at));
            }
            self.stab(node.right, key, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn key(rng: &mut Rng) -> Bytes {
        let len = rng.below(4);
        (0..len).map(|_| b"abc"[rng.below(3) as usize]).collect::<Vec<_>>().into()
    }

    fn range(rng: &mut Rng) -> KeyRange {
        match rng.below(4) {
            0 => KeyRange::Single(key(rng)),
            1 => KeyRange::From(key(rng)),
            _ => KeyRange::Range(key(rng), key(rng)),
        }
    }

    #[test]
    fn the_index_finds_what_a_scan_finds() {
        for seed in 0..30 {
            let mut rng = Rng::new(seed);
            let mut index = Index::default();
            let mut model: BTreeMap<u32, (KeyRange, Place)> = BTreeMap::new();
            let mut next = 0;
            for _ in 0..600 {
                if rng.chance(550) || model.is_empty() {
                    let range = range(&mut rng);
                    let place = index.insert(&range, next);
                    model.insert(next, (range, place));
                    next += 1;
                } else {
                    let ids: Vec<u32> = model.keys().copied().collect();
                    let (range, place) = model.remove(rng.pick(&ids)).expect("picked from the model");
                    if let Some(moved) = index.remove(&range, place) {
                        model.get_mut(&moved).expect("only placed watchers move").1 = place;
                    }
                }
                let key = key(&mut rng);
                let mut found = Vec::new();
                index.stab(&key, |set| found.extend_from_slice(index.watchers(set)));
                found.sort_unstable();
                let expected: Vec<u32> =
                    model.iter().filter(|(_, (range, _))| range.contains(&key)).map(|(id, _)| *id).collect();
                assert_eq!(found, expected, "seed {seed} key {key:?}");
            }
            for (id, (range, place)) in std::mem::take(&mut model) {
                let mut found = Vec::new();
                index.stab(range.start(), |set| found.extend_from_slice(index.watchers(set)));
                assert_eq!(found.contains(&id), range.contains(range.start()), "seed {seed} {range:?} {place:?}");
            }
        }
    }

    #[test]
    fn an_emptied_index_keeps_nothing() {
        let mut index = Index::default();
        let ranges: Vec<KeyRange> =
            (0..1000u32).map(|n| KeyRange::From(Bytes::copy_from_slice(&n.to_be_bytes()))).collect();
        for _ in 0..3 {
            let places: Vec<Place> = ranges.iter().map(|range| index.insert(range, 1)).collect();
            for (range, place) in ranges.iter().zip(places) {
                assert_eq!(index.remove(range, place), None);
            }
            assert_eq!((index.ranges.root, index.ranges.nodes.len()), (NONE, 1000));
        }
    }
}
