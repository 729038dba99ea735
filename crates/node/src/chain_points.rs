//! Where the running hash over applied entries stood at indexes that other members will have passed too.

use std::collections::VecDeque;

use dolmen_types::{Index, Term};

/// The hash over every entry from behind `from` up to `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainPoint {
    pub index: Index,
    pub term: Term,
    pub from: Index,
    pub value: u32,
}

/// Kept of indexes that divide by these. Members compare every few seconds: the first serve them when little is written,
/// the second reach back over a quarter of a million entries.
const FINE: Index = 64;
const COARSE: Index = 4096;
/// Of each.
const KEPT: usize = 64;

/// The points that this member still knows.
#[derive(Debug, Default)]
pub(crate) struct ChainPoints {
    fine: VecDeque<ChainPoint>,
    coarse: VecDeque<ChainPoint>,
    last: Option<ChainPoint>,
}

impl ChainPoints {
    pub(crate) fn is_round(index: Index) -> bool {
        index.is_multiple_of(FINE)
    }

    /// Notes where the chain stands. One that begins anew, with an installed snapshot, leaves nothing of the one before.
    pub(crate) fn note(&mut self, point: ChainPoint) {
        if self.last.is_some_and(|last| last.from != point.from) {
            *self = Self::default();
        }
        for (every, kept) in [(FINE, &mut self.fine), (COARSE, &mut self.coarse)] {
            if point.index.is_multiple_of(every) && kept.back().is_none_or(|last| last.index < point.index) {
                kept.push_back(point);
                if kept.len() > KEPT {
                    kept.pop_front();
                }
            }
        }
        self.last = Some(point);
    }

    /// Newest first.
    pub(crate) fn known(&self) -> Vec<ChainPoint> {
        let mut known: Vec<ChainPoint> = self.coarse.iter().chain(&self.fine).copied().chain(self.last).collect();
        known.sort_unstable_by_key(|point| std::cmp::Reverse(point.index));
        known.dedup_by_key(|point| point.index);
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(index: Index, from: Index) -> ChainPoint {
        ChainPoint { index, term: 2, from, value: index as u32 }
    }

    #[test]
    fn points_are_at_the_same_indexes_on_every_member_and_bounded() {
        let mut points = ChainPoints::default();
        (1..=1_000_000).for_each(|index| points.note(point(index, 0)));
        let known: Vec<Index> = points.known().iter().map(|point| point.index).collect();
        assert_eq!(known[..3], [1_000_000, 999_936, 999_872]);
        assert!(known.len() <= 2 * KEPT + 1 && known.last().is_some_and(|oldest| *oldest < 750_000), "{known:?}");
        assert!(known.iter().skip(1).all(|index| ChainPoints::is_round(*index)));
        points.note(point(1_000_001, 1_000_000));
        assert_eq!(points.known(), [point(1_000_001, 1_000_000)]);
    }
}
