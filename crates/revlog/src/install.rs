//! A whole new content: what a follower far behind receives as a snapshot.

use std::sync::Arc;

use bytes::Bytes;
use dolmen_types::{Index, Revision, Term};

use crate::Error;
use crate::frame::{self, Kind, Stamp};
use crate::jobs::{Tail, begin_file};
use crate::record::{Head, MAX_RECORD, NewRecord, fits, put_record};
use crate::segment::{FILE_HEADER, Segment, SegmentWriter};
use crate::store::Store;
use crate::tables::Tables;

/// Writes the new content beside the old one, in bounded memory, on whatever thread has it. Nothing of it counts
/// before [`crate::Log::install`]; dropped, it leaves only files that the next unlink job removes.
#[must_use = "a builder does nothing before its replacement is installed"]
pub struct Builder {
    store: Arc<Store>,
    epoch: u64,
    writer: Option<SegmentWriter>,
    segments: Vec<Arc<Segment>>,
    last: Option<Revision>,
    record: Vec<u8>,
}

/// A finished new content, durable, waiting for [`crate::Log::install`].
#[must_use = "a replacement does nothing before it is installed"]
pub struct Replacement {
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) id: u64,
    pub(crate) tail: Tail,
    pub(crate) checkpoint: Bytes,
    pub(crate) tables: Tables,
    pub(crate) index: Index,
    pub(crate) term: Term,
    pub(crate) compact: i64,
    pub(crate) last: Option<Revision>,
    pub(crate) installed: bool,
    store: Arc<Store>,
}

impl Builder {
    pub(crate) fn new(store: Arc<Store>, epoch: u64) -> Self {
        Self { store, epoch, writer: None, segments: Vec::new(), last: None, record: Vec::new() }
    }

    /// Adds the next record.
    ///
    /// # Errors
    /// [`Error::Order`] when it does not come after the one before, [`Error::TooLarge`], and [`Error::Io`]. After any
    /// of them the builder is of no more use; drop it.
    pub fn push(&mut self, record: NewRecord) -> Result<(), Error> {
        if let Some(last) = self.last
            && record.rev <= last
        {
            return Err(Error::Order { last, next: record.rev });
        }
        if !fits(&record) {
            let bytes = record.key.len().saturating_add(record.payload.len());
            return Err(Error::TooLarge { revision: record.rev, bytes, max: MAX_RECORD });
        }
        self.last = Some(record.rev);
        let mut bytes = std::mem::take(&mut self.record);
        bytes.clear();
        put_record(&mut bytes, &record, 0);
        let head = Head::parse(&bytes).expect("a record just encoded decodes");
        if self.writer.is_none() {
            let id = self.store.new_id();
            let trash = Arc::clone(&self.store.trash);
            self.writer = Some(SegmentWriter::create(&*self.store.disk, &self.store.dir, id, 0, trash)?);
        }
        let writer = self.writer.as_mut().expect("made above");
        writer.push(&head, &bytes)?;
        self.record = bytes;
        if writer.len() >= self.store.options.segment_bytes { self.end_segment() } else { Ok(()) }
    }

    fn end_segment(&mut self) -> Result<(), Error> {
        if let Some(writer) = self.writer.take() {
            let segment = writer.finish()?;
            self.segments.push(Arc::new(segment));
        }
        Ok(())
    }

    /// Ends the content with its tables and the point of the raft log it stands for. Everything is durable on return.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(
        mut self,
        tables: Tables,
        index: Index,
        term: Term,
        compact_revision: i64,
    ) -> Result<Replacement, Error> {
        self.end_segment()?;
        let id = self.store.new_id();
        let stamp = Stamp {
            kind: Kind::Checkpoint,
            seq: FIRST_SEQ,
            epoch: self.epoch,
            index,
            term,
            compact: compact_revision,
            durable_seq: 0,
            begun: 0,
        };
        let checkpoint = checkpoint(&stamp, &tables);
        let tail = begin_file(&self.store, id, &checkpoint)?;
        self.store.sync_dir()?;
        Ok(Replacement {
            segments: std::mem::take(&mut self.segments),
            id,
            tail,
            checkpoint,
            tables,
            index,
            term,
            compact: compact_revision,
            last: self.last,
            installed: false,
            store: Arc::clone(&self.store),
        })
    }
}

/// The number of the first frame of a new content.
pub(crate) const FIRST_SEQ: u64 = 1;

/// The frame that begins a file.
pub(crate) fn checkpoint(stamp: &Stamp, tables: &Tables) -> Bytes {
    let rows: Vec<_> = tables.all().map(|(table, key, value)| (table, key, Some(value))).collect();
    frame::encode(stamp, &[], rows.into_iter(), FILE_HEADER as u32).bytes
}

impl Drop for Builder {
    fn drop(&mut self) {
        self.segments.iter().for_each(|segment| segment.retire());
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.installed {
            self.segments.iter().for_each(|segment| segment.retire());
            self.store.trash.push(self.tail.path.clone());
        }
    }
}
