//! Giving space back: one run of neighbouring sealed segments is rewritten without its garbage, slice by slice.

use std::sync::Arc;

use crate::Error;
use crate::bits::Bits;
use crate::manifest::SegmentEntry;
use crate::record::Head;
use crate::segment::{Segment, SegmentWriter};
use crate::store::{Store, is_full};

/// A segment to rewrite, with what was known of its records when the task began. Marks that come later wait for the
/// next time.
pub(crate) struct Source {
    pub segment: Arc<Segment>,
    /// Not to be copied.
    pub gone: Bits,
    /// Dead, whether copied (history) or not.
    pub dead: Bits,
}

/// A rewrite in progress. It travels: the writer hands it out as a job, gets it back after each slice, and hands it
/// out again when the budget allows.
pub(crate) struct Task {
    pub store: Arc<Store>,
    pub generation: u64,
    /// What was durable when the task began: what it drops is dead by a batch that must not be missed after it.
    pub durable_seq: u64,
    pub sources: Vec<Source>,
    /// The dead records of every sealed segment when the task began. They go into the MANIFEST together with the
    /// rewrite: a reclaimed tombstone must not leave an older put looking alive.
    pub dead: Vec<(u64, Vec<u64>)>,
    /// Bytes that will be kept, about.
    pub kept: u64,
    pub progress: Progress,
}

#[derive(Default)]
pub(crate) struct Progress {
    source: usize,
    record: usize,
    writer: Option<SegmentWriter>,
    out_dead: Bits,
    copied: usize,
}

/// How a slice ended.
pub(crate) enum Outcome {
    /// More to do.
    Paused(Box<Task>),
    /// The MANIFEST names the result instead of the sources; `None` when nothing was kept.
    Swapped { generation: u64, sources: Vec<u64>, output: Option<Arc<Segment>>, dead: Bits },
    /// A snapshot was installed meanwhile; nothing changed.
    Superseded,
    /// Nothing changed, because a record is damaged or the disk is full.
    Abandoned { generation: u64, error: Error, source: Option<u64> },
}

/// What skipping a dead record counts for in a slice, next to the bytes of those copied.
const SKIP_COST: u64 = 16;

impl Task {
    pub fn run(mut self) -> Result<Outcome, Error> {
        if self.store.current.lock().generation != self.generation {
            return Ok(Outcome::Superseded);
        }
        let mut budget = self.store.options.reclaim_slice_bytes.max(1);
        while let Some(source) = self.sources.get(self.progress.source) {
            let at = self.progress.record;
            let Some(slot) = source.segment.slots().get(at) else {
                (self.progress.source, self.progress.record) = (self.progress.source + 1, 0);
                continue;
            };
            if budget == 0 {
                return Ok(Outcome::Paused(Box::new(self)));
            }
            self.progress.record += 1;
            if source.gone.contains(at) {
                budget = budget.saturating_sub(SKIP_COST);
                continue;
            }
            budget = budget.saturating_sub(slot.weight());
            let (head, record) = match source.segment.record(slot) {
                Ok(found) => found,
                Err(error) => {
                    let source = Some(source.segment.id);
                    return Ok(Outcome::Abandoned { generation: self.generation, error, source });
                }
            };
            if source.dead.contains(at) {
                self.progress.out_dead.insert(self.progress.copied);
            }
            self.progress.copied += 1;
            let copied = self.copy(&head, &record);
            if let Err(error) = copied {
                return self.give_up_if_full(error);
            }
        }
        self.swap()
    }

    fn copy(&mut self, head: &Head, record: &[u8]) -> Result<(), Error> {
        if self.progress.writer.is_none() {
            self.progress.writer = Some(self.begin_output()?);
        }
        self.progress.writer.as_mut().map_or(Ok(()), |writer| writer.push(head, record))
    }

    /// A full disk costs only the result, a file that nobody names yet and that is removed; anything else is fatal.
    fn give_up_if_full(&self, error: Error) -> Result<Outcome, Error> {
        if is_full(&error) {
            Ok(Outcome::Abandoned { generation: self.generation, error, source: None })
        } else {
            Err(error)
        }
    }

    /// Takes all the space at once; on a full disk the spare file is what makes it possible.
    fn begin_output(&self) -> Result<SegmentWriter, Error> {
        let create = || {
            // A new one each time: the file of a failed attempt is in the trash under its name.
            let id = self.store.new_id();
            let trash = Arc::clone(&self.store.trash);
            SegmentWriter::create(&*self.store.disk, &self.store.dir, id, self.kept + self.kept / 16, trash)
        };
        match create() {
            Err(error) if is_full(&error) && self.store.give_up_spare()? => create(),
            result => result,
        }
    }

    fn swap(mut self) -> Result<Outcome, Error> {
        let output = match self.progress.writer.take().map(SegmentWriter::finish).transpose() {
            Ok(output) => output,
            Err(error) => return self.give_up_if_full(error),
        };
        if output.is_some() {
            self.store.sync_dir()?;
        }
        let ids: Vec<u64> = self.sources.iter().map(|source| source.segment.id).collect();
        let entry = output.as_ref().map(|output| SegmentEntry::of(output, self.progress.out_dead.words().to_vec()));
        let committed = self.store.commit(self.generation, |manifest| {
            manifest.durable_seq = manifest.durable_seq.max(self.durable_seq);
            let at = manifest.segments.iter().position(|segment| ids.contains(&segment.id));
            manifest.segments.retain(|segment| !ids.contains(&segment.id));
            if let (Some(at), Some(entry)) = (at, entry) {
                manifest.segments.insert(at, entry);
            }
            for (id, dead) in std::mem::take(&mut self.dead) {
                if let Some(segment) = manifest.segments.iter_mut().find(|segment| segment.id == id) {
                    segment.dead = dead;
                }
            }
        })?;
        if !committed {
            if let Some(output) = output {
                output.retire();
            }
            return Ok(Outcome::Superseded);
        }
        let dead = self.progress.out_dead;
        Ok(Outcome::Swapped { generation: self.generation, sources: ids, output: output.map(Arc::new), dead })
    }
}
