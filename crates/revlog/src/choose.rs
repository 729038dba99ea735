//! Which garbage to take next, and when.

use std::sync::Arc;

use dolmen_env::Mono;

use crate::jobs::Work;
use crate::log::{Log, Marks};
use crate::reclaim::{Progress, Source, Task};
use crate::segment::Segment;

/// A segment with less garbage than this, in percent, is left alone unless a pass was asked for.
const FLOOR_PERCENT: u64 = 10;
/// One with more is taken whatever the rest looks like.
const ALWAYS_PERCENT: u64 = 50;
/// The active segment is sealed early when it is mostly garbage and was quiet so long (nanoseconds).
const QUIET: u64 = 2_000_000_000;

impl Log {
    pub(crate) fn reclaim_job(&mut self, now: Mono) -> Option<Work> {
        if self.reclaim.out || now < self.reclaim.not_before {
            return None;
        }
        let task = match self.reclaim.parked.take() {
            Some(task) => task,
            None => Box::new(self.begin_reclaim()?),
        };
        self.reclaim.out = true;
        let options = &self.store.options;
        let slice = options.reclaim_slice_bytes.saturating_mul(1_000_000_000);
        self.reclaim.not_before = Mono(now.0 + slice / options.reclaim_bytes_per_second.max(1));
        Some(Work::Reclaim(task))
    }

    /// Whether [`Self::begin_reclaim`] would find something.
    pub(crate) fn has_candidate(&self) -> bool {
        let state = self.published.state();
        self.marks_are_durable() && state.sealed.iter().any(|segment| self.eligible(segment, self.over_garbage_limit()))
    }

    /// Marks come from compactions. One that a power loss can still undo must not cost a record.
    fn marks_are_durable(&self) -> bool {
        self.durable_seq >= self.compact_seq
    }

    fn begin_reclaim(&mut self) -> Option<Task> {
        if !self.marks_are_durable() {
            return None;
        }
        let state = self.published.state();
        let over = self.over_garbage_limit();
        let candidates = state.sealed.iter().enumerate().filter(|(_, segment)| self.eligible(segment, over));
        let rank = |segment: &Arc<Segment>| {
            let kept = self.kept(segment);
            // Nothing to write first, then the most garbage for what is written; on a full disk the least writing.
            if self.reclaim.tight { kept } else { kept * 1000 / segment.len().max(1) }
        };
        let Some((at, _)) = candidates.min_by_key(|(at, segment)| (rank(segment), *at)) else {
            // A pass ends when the active file, too, has nothing left to give.
            self.reclaim.pass &= self.sealing.is_some() || self.garbage_of(self.active.active.id) > 0;
            return None;
        };
        let (from, to) = self.widen(&state.sealed, at, over);
        let sources: Vec<Source> = state.sealed[from..to]
            .iter()
            .map(|segment| {
                let marks = self.marks.get(&segment.id);
                let (gone, dead) = marks.map(|marks| (marks.gone.clone(), marks.dead.clone())).unwrap_or_default();
                Source { segment: Arc::clone(segment), gone, dead }
            })
            .collect();
        let ids: Vec<u64> = sources.iter().map(|source| source.segment.id).collect();
        let others = state.sealed.iter().filter(|segment| !ids.contains(&segment.id));
        let dead = others.filter_map(|segment| Some((segment.id, self.marks.get(&segment.id)?.dead.words().to_vec())));
        let dead = dead.collect();
        let kept = sources.iter().map(|source| self.kept(&source.segment)).sum();
        self.reclaim.sources = ids;
        self.reclaim.late.clear();
        let (store, generation) = (Arc::clone(&self.store), self.generation());
        let durable_seq = self.claimed_seq();
        Some(Task { store, generation, durable_seq, sources, dead, kept, progress: Progress::default() })
    }

    /// Neighbours that are worth it, or too small to stay alone, as long as the result is one segment.
    fn widen(&self, sealed: &[Arc<Segment>], at: usize, over: bool) -> (usize, usize) {
        let limit = self.store.options.segment_bytes;
        let (mut from, mut to) = (at, at + 1);
        if self.reclaim.tight {
            return (from, to);
        }
        let mut kept = self.kept(&sealed[at]);
        let mut joins = |segment: &Arc<Segment>| {
            let size = self.kept(segment);
            let small = size < limit / 4 && !self.reclaim.damaged.contains_key(&segment.id);
            let fits = kept + size <= limit && (small || self.eligible(segment, over));
            kept += if fits { size } else { 0 };
            fits
        };
        while to < sealed.len() && joins(&sealed[to]) {
            to += 1;
        }
        while from > 0 && joins(&sealed[from - 1]) {
            from -= 1;
        }
        (from, to)
    }

    fn eligible(&self, segment: &Segment, over: bool) -> bool {
        let Some(marks) = self.marks.get(&segment.id) else { return false };
        if marks.gone.count() == 0 || self.reclaim.damaged.contains_key(&segment.id) {
            return false;
        }
        if marks.gone.count() == segment.slots().len() || self.reclaim.pass {
            return true;
        }
        let percent = marks.garbage_percent();
        let worth = marks.gone_bytes >= self.floor_bytes();
        worth && (percent >= ALWAYS_PERCENT || over && percent >= FLOOR_PERCENT)
    }

    /// Less garbage than this is not worth a rewrite by itself: small against what lives, and against a segment.
    fn floor_bytes(&self) -> u64 {
        let segment = self.store.options.segment_bytes;
        ((self.totals.record_bytes - self.totals.dead_bytes) / 64).clamp(segment / 1024, segment / 64)
    }

    /// Whether garbage takes more of the whole store than it may.
    fn over_garbage_limit(&self) -> bool {
        self.totals.gone_bytes * 100 > self.totals.record_bytes * self.store.options.garbage_percent
    }

    /// Bytes a segment's file would have without its garbage, about.
    fn kept(&self, segment: &Segment) -> u64 {
        let Some(marks) = self.marks.get(&segment.id) else { return segment.len() };
        let share = u128::from(segment.len()) * u128::from(marks.record_bytes - marks.gone_bytes);
        if marks.gone.count() == segment.slots().len() {
            0
        } else {
            (share / u128::from(marks.record_bytes.max(1))) as u64
        }
    }

    fn garbage_of(&self, id: u64) -> u64 {
        self.marks.get(&id).map_or(0, |marks| marks.gone_bytes)
    }

    /// Whether the active segment should be sealed before it is full, so that its garbage can be taken.
    pub(crate) fn wants_early_roll(&self, now: Mono) -> bool {
        if self.reclaim.pass && self.garbage_of(self.active.active.id) > 0 {
            return true;
        }
        self.early_roll_due().is_some_and(|due| due <= now)
    }

    pub(crate) fn early_roll_due(&self) -> Option<Mono> {
        let marks = self.marks.get(&self.active.active.id)?;
        let worth = marks.gone_bytes >= self.floor_bytes();
        let ready = self.sealing.is_none() && worth && marks.garbage_percent() >= ALWAYS_PERCENT;
        ready.then_some(Mono(self.quiet_since.0 + QUIET))
    }
}

impl Marks {
    pub(crate) fn garbage_percent(&self) -> u64 {
        self.gone_bytes * 100 / self.record_bytes.max(1)
    }
}
