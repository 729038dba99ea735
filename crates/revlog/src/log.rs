//! The writer: appends to memory, hands out disk work, takes its results.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use dolmen_env::{Disk, Mono};
use dolmen_types::{Index, Revision, Term};

use crate::active::Active;
use crate::bits::Bits;
use crate::frame::{self, Kind, Stamp};
use crate::install::{Builder, FIRST_SEQ, Replacement, checkpoint};
use crate::jobs::{Done, Job, JobDone, SealDone, SealJob, Tail, Work, WriteDone, WriteJob};
use crate::reader::{Published, Reader, RecordMetas, Sizes, State};
use crate::reclaim::{Outcome, Task};
use crate::record::{NewRecord, Slot, fits};
use crate::recovery;
use crate::segment::{FILE_HEADER, MAX_FILE, Segment};
use crate::store::Store;
use crate::tables::Tables;
use crate::{Batch, Error, Hint, Options};

/// What [`Log::open`] and [`Log::install`] found.
pub struct Recovered {
    /// Raft index and term of the last batch; 0 in an empty store.
    pub index: Index,
    pub term: Term,
    /// -1 when nothing was ever compacted.
    pub compact_revision: i64,
    /// In revision order. Dead records may be among them: mark them again.
    pub records: RecordMetas,
}

/// The log's only writer. It does no file I/O itself, [`Log::open`] and [`Log::install`] excepted.
///
/// Invariants: revisions grow over the whole log, `durable_index <= index`, `durable_seq <= seq`, and there is one
/// growing file that the MANIFEST names, to which at most one job writes.
pub struct Log {
    pub(crate) store: Arc<Store>,
    pub(crate) published: Arc<Published>,
    generation: u64,
    epoch: u64,
    tables: Tables,
    index: Index,
    term: Term,
    pub(crate) compact: i64,
    /// Number of the last frame appended, of the last that is durable, and of the one that last moved `compact`.
    seq: u64,
    pub(crate) durable_seq: u64,
    pub(crate) compact_seq: u64,
    /// The last frame that ended a batch: parts behind it may yet be dropped.
    whole_seq: u64,
    /// Main revision of the first record of the batch under way, of which parts were appended; 0 between batches.
    begun: i64,
    durable_index: Index,
    last: Option<Revision>,
    pub(crate) active: Growing,
    /// The file before, until a job has sealed it.
    pub(crate) sealing: Option<Growing>,
    /// A write or seal job is out.
    log_job_out: bool,
    pending_since: Option<Mono>,
    pub(crate) marks: BTreeMap<u64, Marks>,
    pub(crate) totals: Totals,
    /// Marked before the compact revision that covers them was appended.
    early: Vec<Revision>,
    /// Dead records kept as history, in the order they died, and their bytes.
    history: VecDeque<(Revision, u64)>,
    history_bytes: u64,
    pub(crate) reclaim: ReclaimState,
    unlink_out: bool,
    /// No longer part of the store; kept here so that no reader is the one to unmap them.
    retired: Vec<Arc<Segment>>,
    spare_out: bool,
    spare_retry: Mono,
    /// End of the active file when a job was last asked for, and since when it stands there.
    seen_end: u64,
    pub(crate) quiet_since: Mono,
}

/// A segment in memory and the part of it that is not on disk.
pub(crate) struct Growing {
    pub active: Arc<Active>,
    /// `None` until the seal of the segment before has made the file, and while a job has it.
    pub tail: Option<Tail>,
    /// Where the next frame goes.
    pub end: u64,
    pending: VecDeque<Pending>,
    pending_bytes: usize,
}

struct Pending {
    frame: Bytes,
    seq: u64,
    index: Index,
}

/// What is known of the records of one segment, by position.
#[derive(Default)]
pub(crate) struct Marks {
    /// Superseded and below the compact revision.
    pub dead: Bits,
    /// Dead and past the history window: reclaim drops it.
    pub gone: Bits,
    pub record_bytes: u64,
    pub dead_bytes: u64,
    pub gone_bytes: u64,
}

/// Sums over all segments.
#[derive(Clone, Copy, Default)]
pub(crate) struct Totals {
    sealed_bytes: u64,
    pub record_bytes: u64,
    pub dead_bytes: u64,
    pub gone_bytes: u64,
}

#[derive(Default)]
pub(crate) struct ReclaimState {
    /// A slice is out.
    pub out: bool,
    pub parked: Option<Box<Task>>,
    /// Segments being rewritten, and what was marked in them since: (revision, gone).
    pub sources: Vec<u64>,
    pub late: Vec<(Revision, bool)>,
    /// The budget allows the next slice from here on.
    pub not_before: Mono,
    /// Somebody asked for a pass: floors do not count.
    pub pass: bool,
    /// The disk was full: the smallest result first.
    pub tight: bool,
    /// Never touched again: a record in it is damaged.
    pub damaged: BTreeMap<u64, Error>,
}

/// The smallest spare file, unless the options ask for less.
const SPARE_MIN: u64 = 1 << 20;
/// How long to wait after the disk was too full for a reclaim or a spare file.
const FULL_PAUSE: u64 = 10_000_000_000;

impl Log {
    /// Opens the store in a directory (`<member>/store`), or makes an empty one. Reads MANIFEST, footers, and the
    /// active file; no sealed value.
    ///
    /// # Errors
    /// Everything that keeps this process from serving the store exactly as it was made durable; see [`Error`].
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: Options) -> Result<(Self, Recovered), Error> {
        let opened = recovery::open(disk, dir, options)?;
        let tip = opened.tip;
        let mut marks = BTreeMap::new();
        let mut died = Vec::new();
        for (segment, entry) in opened.sealed.iter().zip(&opened.manifest.segments) {
            marks.insert(segment.id, Marks { record_bytes: segment.parts.record_bytes, ..Marks::default() });
            let dead = Bits::from_words(entry.dead.clone());
            died.extend(dead.iter().filter_map(|at| segment.slots().get(at)).map(Slot::rev));
        }
        marks.insert(tip.active.id, Marks { record_bytes: tip.record_bytes, ..Marks::default() });
        let state = State { sealed: opened.sealed, sealing: None, active: Arc::clone(&tip.active) };
        let end = tip.tail.written;
        let mut log = Self {
            store: opened.store,
            published: Arc::new(Published::new(state)),
            generation: 0,
            epoch: opened.manifest.epoch,
            tables: tip.tables,
            index: tip.index,
            term: tip.term,
            compact: tip.compact,
            seq: tip.seq,
            durable_seq: tip.seq,
            compact_seq: tip.seq,
            whole_seq: tip.seq,
            begun: 0,
            durable_index: tip.index,
            last: tip.last,
            active: Growing::new(tip.active, Some(tip.tail), end),
            sealing: None,
            log_job_out: false,
            pending_since: None,
            marks,
            totals: Totals::default(),
            early: Vec::new(),
            history: VecDeque::new(),
            history_bytes: 0,
            reclaim: ReclaimState::default(),
            unlink_out: false,
            retired: Vec::new(),
            spare_out: false,
            spare_retry: Mono(0),
            seen_end: end,
            quiet_since: Mono(0),
        };
        log.recount();
        for rev in died {
            log.mark(rev);
        }
        let recovered = log.recovered();
        log.publish_sizes();
        Ok((log, recovered))
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    fn recovered(&self) -> Recovered {
        let state = self.published.state();
        let dead = |segment: &Arc<Segment>| self.marks.get(&segment.id).map(|marks| marks.dead.clone());
        let sealed = state.sealed.iter().map(|segment| (Arc::clone(segment), dead(segment).unwrap_or_default()));
        let records = RecordMetas::new(sealed.collect(), Arc::clone(&state.active));
        Recovered { index: self.index, term: self.term, compact_revision: self.compact, records }
    }

    /// Adds a batch; readable at once, durable after a job. Memory grows by its size until then: a caller that
    /// appends faster than jobs write watches [`Log::backlog_bytes`].
    ///
    /// # Panics
    /// When the caller breaks the log's order (revisions grow, indexes do not fall), or lets 4 GiB wait for jobs.
    pub fn append(&mut self, batch: Batch) {
        assert!(batch.index >= self.index, "batches come in raft order");
        let mut records = &batch.records[..];
        while let Some((part, rest)) = self.cut_part(records) {
            self.append_part(part);
            records = rest;
        }
        self.make_room(records);
        self.seq += 1;
        self.whole_seq = self.seq;
        (self.index, self.term) = (batch.index, batch.term);
        if let Some(compact) = batch.compact
            && compact > self.compact
        {
            (self.compact, self.compact_seq) = (compact, self.seq);
        }
        self.append_frame(Kind::Batch, records, &batch.tables);
        self.begun = 0;
        for op in batch.tables {
            self.tables.apply(op);
        }
        if batch.compact.is_some() && !self.early.is_empty() {
            let early = std::mem::take(&mut self.early);
            self.mark_dead(&early);
        }
        self.publish_sizes();
    }

    /// Adds the first records of a batch that is still being made, so that they need not be kept until it ends with
    /// [`Log::append`]. Readable at once for whoever knows their revisions; after a crash there, or not at all, with the
    /// rest of the batch.
    ///
    /// # Panics
    /// As [`Log::append`].
    pub fn append_part(&mut self, records: &[NewRecord]) {
        let Some(first) = records.first() else { return };
        self.make_room(records);
        if self.begun == 0 {
            self.begun = first.rev.main;
        }
        self.seq += 1;
        self.append_frame(Kind::Part, records, &[]);
        self.publish_sizes();
    }

    /// The records that fill a frame and those behind them, `None` when one frame takes them all.
    fn cut_part<'r>(&self, records: &'r [NewRecord]) -> Option<(&'r [NewRecord], &'r [NewRecord])> {
        let mut bytes = 0;
        let fits = |record: &NewRecord| {
            bytes += record.payload.len();
            bytes <= self.store.options.part_bytes
        };
        // At least one in each, however large.
        let at = records.iter().map(fits).position(|fits| !fits)?.max(1);
        (at < records.len()).then(|| records.split_at(at))
    }

    /// Checks the records of the next frame, and begins a new file for it when this one is full.
    fn make_room(&mut self, records: &[NewRecord]) {
        if self.active.end >= self.store.options.segment_bytes {
            self.roll();
        }
        for record in records {
            assert!(fits(record), "a record is below 1 GiB and its revision positive");
            assert!(self.last.is_none_or(|last| last < record.rev), "records come in revision order");
            self.last = Some(record.rev);
        }
    }

    fn append_frame(&mut self, kind: Kind, records: &[NewRecord], tables: &[crate::TableOp]) {
        let stamp = self.stamp(kind);
        let offset = u32::try_from(self.active.end).expect("backlog_bytes keeps a file far below 4 GiB");
        let ops = tables.iter().map(|op| (op.table, &op.key, op.value.as_ref()));
        let encoded = frame::encode(&stamp, records, ops, offset);
        assert!(self.active.end + encoded.bytes.len() as u64 <= MAX_FILE, "a file stays below 4 GiB");
        self.active.active.push(offset, encoded.bytes.clone(), &encoded.slots);
        self.active.queue(encoded.bytes, self.seq, self.index);
        let bytes: u64 = encoded.slots.iter().map(Slot::weight).sum();
        self.marks.entry(self.active.active.id).or_default().record_bytes += bytes;
        self.totals.record_bytes += bytes;
    }

    fn stamp(&self, kind: Kind) -> Stamp {
        Stamp {
            kind,
            seq: self.seq,
            epoch: self.epoch,
            index: self.index,
            term: self.term,
            compact: self.compact,
            durable_seq: self.claimed_seq(),
            begun: self.begun,
        }
    }

    /// Frames up to this number are durable and will not be dropped: not those of a batch that may never end.
    pub(crate) fn claimed_seq(&self) -> u64 {
        self.durable_seq.min(self.whole_seq)
    }

    /// Begins a new growing segment; a job seals the old one. Nothing happens while an earlier one is being sealed.
    pub(crate) fn roll(&mut self) -> bool {
        if self.sealing.is_some() {
            return false;
        }
        let id = self.store.new_id();
        self.seq += 1;
        let frame = checkpoint(&self.stamp(Kind::Checkpoint), &self.tables);
        let active = Arc::new(Active::new(id, self.store.path(id)));
        active.push(FILE_HEADER as u32, frame.clone(), &[]);
        let mut next = Growing::new(Arc::clone(&active), None, FILE_HEADER as u64);
        next.queue(frame, self.seq, self.index);
        let old = std::mem::replace(&mut self.active, next);
        self.marks.insert(id, Marks::default());
        let state = self.published.state();
        self.published.publish(State { sealed: state.sealed.clone(), sealing: Some(Arc::clone(&old.active)), active });
        self.sealing = Some(old);
        true
    }

    /// Says that records are superseded and below the compact revision, so their space may be taken. Of one key, the
    /// older ones come in the same call or an earlier one than a tombstone. Idempotent, and volatile: marks are made
    /// again after a start, from what [`Recovered::records`] shows.
    ///
    /// Marks above the compact revision wait for the batch that moves it; nothing is dropped on disk before that
    /// batch is durable.
    pub fn mark_dead(&mut self, revs: &[Revision]) {
        for rev in revs {
            if rev.main > self.compact {
                self.early.push(*rev);
            } else {
                self.mark(*rev);
            }
        }
        self.publish_sizes();
    }

    fn mark(&mut self, rev: Revision) {
        let Some((id, at, slot)) = self.locate(rev) else { return };
        let Some(marks) = self.marks.get_mut(&id) else { return };
        if !marks.dead.insert(at) {
            return;
        }
        marks.dead_bytes += slot.weight();
        self.totals.dead_bytes += slot.weight();
        if self.reclaim.sources.contains(&id) {
            self.reclaim.late.push((rev, false));
        }
        self.history.push_back((rev, slot.weight()));
        self.history_bytes += slot.weight();
        self.trim_history();
    }

    fn trim_history(&mut self) {
        while self.history_bytes > self.store.options.history_bytes {
            let Some((rev, bytes)) = self.history.pop_front() else { break };
            self.history_bytes -= bytes;
            self.mark_gone(rev);
        }
    }

    fn mark_gone(&mut self, rev: Revision) {
        let Some((id, at, slot)) = self.locate(rev) else { return };
        let Some(marks) = self.marks.get_mut(&id) else { return };
        if marks.gone.insert(at) {
            marks.gone_bytes += slot.weight();
            self.totals.gone_bytes += slot.weight();
            if self.reclaim.sources.contains(&id) {
                self.reclaim.late.push((rev, true));
            }
        }
    }

    /// Segment, position and slot of a revision.
    fn locate(&self, rev: Revision) -> Option<(u64, usize, Slot)> {
        let state = self.published.state();
        if let Some(growing) = state.growing_at(rev) {
            return growing.find(rev, usize::MAX).map(|(at, slot)| (growing.id, at, slot));
        }
        let segment = state.sealed_at(rev)?;
        segment.find(rev).map(|at| (segment.id, at, segment.slots()[at]))
    }

    /// The next piece of disk work, `None` when nothing is due. Ask until then: write before seal before the rest.
    /// Of each kind at most one is out; a write is due `sync_interval` after the first batch that waits, or at
    /// `sync_bytes`.
    pub fn next_job(&mut self, now: Mono, hint: Hint) -> Option<Job> {
        self.reclaim.pass |= hint == Hint::Reclaim;
        if self.seen_end != self.active.end {
            (self.seen_end, self.quiet_since) = (self.active.end, now);
        }
        if !self.active.pending.is_empty() && self.pending_since.is_none() {
            self.pending_since = Some(now);
        }
        if !self.log_job_out && self.sealing.is_none() && self.wants_early_roll(now) {
            self.roll();
        }
        let work = self.log_job(now, hint).or_else(|| self.unlink_job()).or_else(|| self.reclaim_job(now));
        work.or_else(|| self.spare_job(now)).map(Job)
    }

    /// When [`Log::next_job`] may next have something to do, if nothing is appended or finished before; in the past
    /// when it has now. `None`: only then.
    pub fn next_due(&self) -> Option<Mono> {
        let mut due = Vec::new();
        if !self.log_job_out {
            if self.sealing.is_some() || self.active.pending_bytes as u64 >= self.store.options.sync_bytes {
                due.push(Mono(0));
            } else if !self.active.pending.is_empty() {
                due.push(self.pending_since.map_or(Mono(0), |since| Mono(since.0 + self.store.options.sync_interval)));
            }
            due.extend(self.early_roll_due());
        }
        if !self.unlink_out && self.has_rubbish() {
            due.push(Mono(0));
        }
        if !self.reclaim.out && (self.reclaim.parked.is_some() || self.has_candidate()) {
            due.push(self.reclaim.not_before);
        }
        if self.wants_spare() {
            due.push(self.spare_retry);
        }
        due.into_iter().min()
    }

    fn log_job(&mut self, now: Mono, hint: Hint) -> Option<Work> {
        if self.log_job_out {
            return None;
        }
        if self.sealing.is_some() {
            return self.seal_job();
        }
        if self.active.pending.is_empty() {
            return None;
        }
        let options = &self.store.options;
        let waited = now.since(self.pending_since.unwrap_or(now)) >= options.sync_interval;
        if !waited && hint != Hint::Sync && (self.active.pending_bytes as u64) < options.sync_bytes {
            return None;
        }
        let tail = self.active.tail.take()?;
        let (frames, seq, index) = self.active.take_pending()?;
        self.log_job_out = true;
        self.pending_since = None;
        let (store, generation) = (Arc::clone(&self.store), self.generation);
        let active = Arc::clone(&self.active.active);
        Some(Work::Write(WriteJob { store, generation, tail, active, frames, seq, index }))
    }

    fn seal_job(&mut self) -> Option<Work> {
        let sealing = self.sealing.as_mut()?;
        let tail = sealing.tail.take()?;
        let frames = sealing.take_pending().map(|(frames, ..)| frames).unwrap_or_default();
        let active = Arc::clone(&sealing.active);
        let first = self.active.pending.pop_front()?;
        self.active.pending_bytes -= first.frame.len();
        self.log_job_out = true;
        Some(Work::Seal(Box::new(SealJob {
            store: Arc::clone(&self.store),
            generation: self.generation,
            tail,
            frames,
            active,
            next: self.active.active.id,
            checkpoint: first.frame,
            seq: first.seq,
            index: first.index,
        })))
    }

    fn unlink_job(&mut self) -> Option<Work> {
        if self.unlink_out || !self.has_rubbish() {
            return None;
        }
        self.unlink_out = true;
        let unheld = self.retired.extract_if(.., |segment| Arc::strong_count(segment) == 1).collect();
        Some(Work::Unlink(Arc::clone(&self.store), unheld))
    }

    fn has_rubbish(&self) -> bool {
        !self.store.trash.is_empty() || self.retired.iter().any(|segment| Arc::strong_count(segment) == 1)
    }

    fn wants_spare(&self) -> bool {
        let (present, target) = (self.store.spare.load(Ordering::Relaxed), self.spare_target());
        !self.spare_out && target > 0 && (present == 0 || present > target * 2)
    }

    /// A reserve in proportion: enough to rewrite the emptiest segment of a store of this size.
    fn spare_target(&self) -> u64 {
        let live = self.totals.record_bytes - self.totals.dead_bytes;
        self.store.options.spare_bytes.min((live / 16).max(SPARE_MIN))
    }

    fn spare_job(&mut self, now: Mono) -> Option<Work> {
        if !self.wants_spare() || now < self.spare_retry {
            return None;
        }
        self.spare_out = true;
        self.spare_retry = Mono(now.0 + FULL_PAUSE);
        Some(Work::Spare(Arc::clone(&self.store), self.spare_target()))
    }

    /// Takes the result of a job.
    pub fn finish_job(&mut self, done: JobDone) {
        match done.0 {
            Done::Write(done) => self.written(done),
            Done::Seal(done) => self.sealed(*done),
            Done::Reclaim(outcome) => self.reclaimed(*outcome),
            Done::Unlink => self.unlink_out = false,
            Done::Spare => self.spare_out = false,
        }
        self.publish_sizes();
    }

    fn written(&mut self, done: WriteDone) {
        if done.generation != self.generation {
            return;
        }
        self.log_job_out = false;
        // The file may have become too large while the job was out: then it is the one waiting to be sealed.
        self.sealing.as_mut().unwrap_or(&mut self.active).tail = Some(done.tail);
        self.now_durable(done.seq, done.index);
    }

    fn now_durable(&mut self, seq: u64, index: Index) {
        debug_assert!(seq >= self.durable_seq && seq <= self.seq && index >= self.durable_index);
        (self.durable_seq, self.durable_index) = (seq, index);
    }

    fn sealed(&mut self, done: SealDone) {
        if done.generation != self.generation {
            return;
        }
        self.log_job_out = false;
        self.active.tail = Some(done.tail);
        self.now_durable(done.seq, done.index);
        let old = self.sealing.take();
        let state = self.published.state();
        let mut sealed = state.sealed.clone();
        match (done.segment, old) {
            (Some(segment), _) => sealed.push(segment),
            (None, Some(old)) => drop(self.marks.remove(&old.active.id)),
            (None, None) => {}
        }
        self.published.publish(State { sealed, sealing: None, active: Arc::clone(&state.active) });
        self.recount();
    }

    fn reclaimed(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Paused(task) if task.generation == self.generation => {
                self.reclaim.out = false;
                self.reclaim.parked = Some(task);
            }
            Outcome::Swapped { generation, sources, output, dead } if generation == self.generation => {
                self.reclaim.tight = false;
                self.swap(&sources, output, dead);
            }
            Outcome::Abandoned { generation, error, source } if generation == self.generation => {
                match source {
                    Some(id) => drop(self.reclaim.damaged.insert(id, error)),
                    None => {
                        self.reclaim.tight = true;
                        self.reclaim.not_before = Mono(self.reclaim.not_before.0 + FULL_PAUSE);
                    }
                }
                self.reclaim.end();
            }
            // Of a life before the last install; that reset everything.
            Outcome::Paused(_) | Outcome::Swapped { .. } | Outcome::Abandoned { .. } | Outcome::Superseded => {}
        }
    }

    fn swap(&mut self, sources: &[u64], output: Option<Arc<Segment>>, dead: Bits) {
        let state = self.published.state();
        let mut sealed = Vec::with_capacity(state.sealed.len());
        let mut output_at = output.clone();
        for segment in &state.sealed {
            if sources.contains(&segment.id) {
                sealed.extend(output_at.take());
                segment.retire();
                self.retired.push(Arc::clone(segment));
                self.marks.remove(&segment.id);
            } else {
                sealed.push(Arc::clone(segment));
            }
        }
        if let Some(output) = output {
            let weight = |at: usize| output.slots().get(at).map_or(0, Slot::weight);
            let dead_bytes = dead.iter().map(weight).sum();
            let record_bytes = output.parts.record_bytes;
            self.marks.insert(output.id, Marks { dead, record_bytes, dead_bytes, ..Marks::default() });
        }
        let (sealing, active) = (state.sealing.clone(), Arc::clone(&state.active));
        self.published.publish(State { sealed, sealing, active });
        let late = self.reclaim.end();
        for (rev, gone) in late {
            let Some((id, at, slot)) = self.locate(rev) else { continue };
            let Some(marks) = self.marks.get_mut(&id) else { continue };
            if gone && marks.gone.insert(at) {
                marks.gone_bytes += slot.weight();
            }
            if !gone && marks.dead.insert(at) {
                marks.dead_bytes += slot.weight();
            }
        }
        self.recount();
    }

    /// Sums up anew, after segments came or went.
    fn recount(&mut self) {
        let sum = |field: fn(&Marks) -> u64| self.marks.values().map(field).sum::<u64>();
        self.totals = Totals {
            sealed_bytes: self.published.state().sealed.iter().map(|segment| segment.len()).sum(),
            record_bytes: sum(|marks| marks.record_bytes),
            dead_bytes: sum(|marks| marks.dead_bytes),
            gone_bytes: sum(|marks| marks.gone_bytes),
        };
        self.publish_sizes();
    }

    fn publish_sizes(&self) {
        let sealing = self.sealing.as_ref().map_or(0, |sealing| sealing.end);
        self.published.set_sizes(Sizes {
            total_bytes: self.totals.sealed_bytes + sealing + self.active.end,
            live_bytes: self.totals.record_bytes - self.totals.dead_bytes,
            history_bytes: self.totals.dead_bytes - self.totals.gone_bytes,
        });
    }

    /// Raft index of the last batch appended.
    pub fn index(&self) -> Index {
        self.index
    }

    /// Raft term of the last batch appended.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Everything up to this raft index survives a power loss; the raft log may be released up to it.
    pub fn durable_index(&self) -> Index {
        self.durable_index
    }

    /// Bytes appended that no job has taken yet.
    pub fn backlog_bytes(&self) -> usize {
        self.active.pending_bytes + self.sealing.as_ref().map_or(0, |sealing| sealing.pending_bytes)
    }

    /// The tables after the last batch appended.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The compact revision after the last batch appended; -1 when there never was one.
    pub fn compact_revision(&self) -> i64 {
        self.compact
    }

    /// The options the log was opened with.
    pub fn options(&self) -> &Options {
        &self.store.options
    }

    /// What other threads read through.
    pub fn reader(&self) -> Reader {
        Reader { published: Arc::clone(&self.published) }
    }

    /// How much the store holds.
    pub fn sizes(&self) -> Sizes {
        self.published.sizes()
    }

    /// Damaged records that reclaim came across; it leaves their segments alone.
    pub fn damaged(&self) -> impl Iterator<Item = &Error> {
        self.reclaim.damaged.values()
    }

    /// Ends the log in an orderly way, after the last job was handed in: says in the MANIFEST how far the active file is
    /// durable, so that the next start need not copy what may not be. Does I/O. A process may as well just end.
    ///
    /// # Errors
    /// [`Error::Io`]; nothing is lost by it.
    pub fn close(self) -> Result<(), Error> {
        if self.sealing.is_some() || self.log_job_out {
            return Ok(());
        }
        self.store.commit(self.generation, |manifest| manifest.durable_seq = self.claimed_seq()).map(|_| ())
    }

    /// Begins a new content beside the present one, as a snapshot is received.
    pub fn replace(&mut self) -> Builder {
        Builder::new(Arc::clone(&self.store), self.epoch)
    }

    /// Puts a new content in the place of everything, appended batches included. The commit point is one rename, done
    /// here; a crash leaves the old content or the new. Jobs that are out become void: their results may be handed in
    /// or dropped. Views keep reading what they saw.
    ///
    /// # Errors
    /// [`Error::Io`], fatal as that of a job.
    pub fn install(&mut self, mut replacement: Replacement) -> Result<Recovered, Error> {
        let sealed = std::mem::take(&mut replacement.segments);
        self.store.install(&sealed, replacement.id)?;
        replacement.installed = true;
        self.generation = self.store.current.lock().generation;
        let state = self.published.state();
        state.sealed.iter().for_each(|segment| segment.retire());
        self.retired.extend(state.sealed.iter().cloned());
        self.store.trash.push(state.active.path.clone());
        self.store.trash.extend(state.sealing.iter().map(|sealing| sealing.path.clone()));
        let active = Arc::new(Active::new(replacement.id, replacement.tail.path.clone()));
        active.push(FILE_HEADER as u32, replacement.checkpoint.clone(), &[]);
        let end = replacement.tail.written;
        self.active = Growing::new(Arc::clone(&active), Some(replacement.tail.clone()), end);
        self.sealing = None;
        let mark = |segment: &Arc<Segment>| {
            (segment.id, Marks { record_bytes: segment.parts.record_bytes, ..Marks::default() })
        };
        self.marks = sealed.iter().map(mark).chain([(replacement.id, Marks::default())]).collect();
        self.published.publish(State { sealed, sealing: None, active });
        self.tables = std::mem::take(&mut replacement.tables);
        (self.index, self.term, self.compact) = (replacement.index, replacement.term, replacement.compact);
        (self.seq, self.durable_seq, self.compact_seq) = (FIRST_SEQ, FIRST_SEQ, FIRST_SEQ);
        (self.whole_seq, self.begun) = (FIRST_SEQ, 0);
        self.durable_index = self.index;
        self.last = replacement.last;
        (self.log_job_out, self.pending_since) = (false, None);
        self.early.clear();
        self.history.clear();
        self.history_bytes = 0;
        self.reclaim = ReclaimState { not_before: self.reclaim.not_before, ..ReclaimState::default() };
        self.recount();
        Ok(self.recovered())
    }
}

impl Growing {
    fn new(active: Arc<Active>, tail: Option<Tail>, end: u64) -> Self {
        Self { active, tail, end, pending: VecDeque::new(), pending_bytes: 0 }
    }

    fn queue(&mut self, frame: Bytes, seq: u64, index: Index) {
        self.end += frame.len() as u64;
        self.pending_bytes += frame.len();
        self.pending.push_back(Pending { frame, seq, index });
    }

    /// All pending frames, and sequence number and index of the last.
    fn take_pending(&mut self) -> Option<(Vec<Bytes>, u64, Index)> {
        let (seq, index) = self.pending.back().map(|last| (last.seq, last.index))?;
        self.pending_bytes = 0;
        Some((self.pending.drain(..).map(|pending| pending.frame).collect(), seq, index))
    }
}

impl ReclaimState {
    /// Forgets the task; answers what was marked meanwhile.
    fn end(&mut self) -> Vec<(Revision, bool)> {
        self.out = false;
        self.parked = None;
        self.sources.clear();
        std::mem::take(&mut self.late)
    }
}
