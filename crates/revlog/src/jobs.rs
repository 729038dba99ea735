//! Disk work as values: made by the writer, run on a background thread, handed back to [`crate::Log::finish_job`].

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use dolmen_env::{DiskFile, OpenMode};
use dolmen_types::Index;

use crate::Error;
use crate::active::Active;
use crate::manifest::SegmentEntry;
use crate::reclaim::{Outcome, Task};
use crate::record::Head;
use crate::segment::{Content, FILE_HEADER, FooterBuilder, Segment, file_header};
use crate::store::{Store, unlink};

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobKind {
    /// Writes and syncs what was appended.
    Write,
    /// Ends the active file with a footer and begins the next one.
    Seal,
    /// Rewrites one slice of a segment with garbage, or drops one that is nothing else.
    Reclaim,
    /// Removes files nobody needs.
    Unlink,
    /// Sets the spare file aside.
    Spare,
}

/// One piece of disk work. Jobs may run on one thread or several, in any order.
#[must_use = "the log waits for the result of every job"]
pub struct Job(pub(crate) Work);

pub(crate) enum Work {
    Write(WriteJob),
    Seal(Box<SealJob>),
    Reclaim(Box<Task>),
    /// Also lets go of segments whose last holder this is: unmapping tens of megabytes takes a while.
    Unlink(Arc<Store>, Vec<Arc<Segment>>),
    Spare(Arc<Store>, u64),
}

/// The result of a job, for [`crate::Log::finish_job`].
#[must_use = "the log waits for the result of every job"]
pub struct JobDone(pub(crate) Done);

pub(crate) enum Done {
    Write(WriteDone),
    Seal(Box<SealDone>),
    Reclaim(Box<Outcome>),
    Unlink,
    Spare,
}

impl Job {
    /// What the job does.
    pub fn kind(&self) -> JobKind {
        match &self.0 {
            Work::Write(_) => JobKind::Write,
            Work::Seal(_) => JobKind::Seal,
            Work::Reclaim(_) => JobKind::Reclaim,
            Work::Unlink(..) => JobKind::Unlink,
            Work::Spare(..) => JobKind::Spare,
        }
    }

    /// Does the work.
    ///
    /// # Errors
    /// Any error is fatal: what the disk holds is then unknown, and nothing may be tried again before a new
    /// [`crate::Log::open`] has read it. A full disk is an error only after the spare file was given up.
    pub fn run(self) -> Result<JobDone, Error> {
        Ok(JobDone(match self.0 {
            Work::Write(job) => Done::Write(job.run()?),
            Work::Seal(job) => Done::Seal(Box::new(job.run()?)),
            Work::Reclaim(task) => Done::Reclaim(Box::new(task.run()?)),
            Work::Unlink(store, segments) => {
                drop(segments);
                unlink(&*store.disk, &store.trash.take())?;
                Done::Unlink
            }
            Work::Spare(store, bytes) => {
                store.make_spare(bytes)?;
                Done::Spare
            }
        }))
    }
}

impl JobDone {
    /// What the job did.
    pub fn kind(&self) -> JobKind {
        match &self.0 {
            Done::Write(_) => JobKind::Write,
            Done::Seal(_) => JobKind::Seal,
            Done::Reclaim(_) => JobKind::Reclaim,
            Done::Unlink => JobKind::Unlink,
            Done::Spare => JobKind::Spare,
        }
    }
}

/// A growing file and how much of it is there.
#[derive(Clone)]
pub(crate) struct Tail {
    pub path: PathBuf,
    pub file: Arc<dyn DiskFile>,
    /// Bytes written and synced.
    pub written: u64,
    /// Bytes the disk has promised.
    pub reserved: u64,
}

const COALESCE: usize = 1 << 20;
/// Bytes on disk that stay in memory as well, before the file is mapped anew.
const SETTLE: u64 = 1 << 20;
/// How far ahead of the writing space is reserved.
const STEP_MIN: u64 = 256 << 10;
const STEP_MAX: u64 = 4 << 20;

impl Tail {
    /// Appends frames; not synced.
    fn write(&mut self, store: &Store, frames: &[Bytes]) -> Result<(), Error> {
        let total: usize = frames.iter().map(Bytes::len).sum();
        self.reserve(store, self.written + total as u64)?;
        let mut buffer = Vec::new();
        for frame in frames {
            if !buffer.is_empty() && buffer.len() + frame.len() > COALESCE {
                self.put(&buffer)?;
                buffer.clear();
            }
            if frame.len() > COALESCE {
                self.put(frame)?;
            } else {
                buffer.extend_from_slice(frame);
            }
        }
        if buffer.is_empty() { Ok(()) } else { self.put(&buffer) }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all_at(bytes, self.written).map_err(Error::io(&self.path, "write"))?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Lets readers take what is written from the file instead of memory.
    pub fn settle(&self, active: &Active) -> Result<(), Error> {
        active.settle(self.file.map(self.written).map_err(Error::io(&self.path, "map"))?);
        Ok(())
    }

    fn sync(&self) -> Result<(), Error> {
        self.file.sync_data().map_err(Error::io(&self.path, "sync"))
    }

    /// Takes the space before writing, some steps ahead: a full disk then shows before a byte is written, while
    /// giving up the spare file can still help.
    fn reserve(&mut self, store: &Store, need: u64) -> Result<(), Error> {
        if need <= self.reserved {
            return Ok(());
        }
        // Few calls for a large file, little waste for a small one.
        let ahead = need + (need / 8).clamp(STEP_MIN, STEP_MAX).min(store.options.segment_bytes / 16);
        let full = |result: &io::Result<()>| matches!(result, Err(e) if e.kind() == io::ErrorKind::StorageFull);
        let mut want = ahead;
        let mut result = self.file.allocate(want);
        if full(&result) && store.give_up_spare()? {
            result = self.file.allocate(want);
        }
        if full(&result) {
            want = need;
            result = self.file.allocate(want);
        }
        result.map_err(Error::io(&self.path, "reserve space"))?;
        self.reserved = want;
        Ok(())
    }
}

pub(crate) struct WriteJob {
    pub store: Arc<Store>,
    pub generation: u64,
    pub tail: Tail,
    /// The segment of the file.
    pub active: Arc<Active>,
    pub frames: Vec<Bytes>,
    pub seq: u64,
    pub index: Index,
}

pub(crate) struct WriteDone {
    pub generation: u64,
    pub tail: Tail,
    /// Sequence number and raft index of the last frame that is now durable.
    pub seq: u64,
    pub index: Index,
}

impl WriteJob {
    fn run(mut self) -> Result<WriteDone, Error> {
        self.tail.write(&self.store, &self.frames)?;
        self.tail.sync()?;
        self.frames = Vec::new();
        if self.tail.written - self.active.settled() >= SETTLE.min(self.store.options.segment_bytes / 4) {
            self.tail.settle(&self.active)?;
        }
        Ok(WriteDone { generation: self.generation, tail: self.tail, seq: self.seq, index: self.index })
    }
}

pub(crate) struct SealJob {
    pub store: Arc<Store>,
    pub generation: u64,
    /// The file to end, the frames still to write to it, and all its records.
    pub tail: Tail,
    pub frames: Vec<Bytes>,
    pub active: Arc<Active>,
    /// The file to begin and its first frame.
    pub next: u64,
    pub checkpoint: Bytes,
    pub seq: u64,
    pub index: Index,
}

pub(crate) struct SealDone {
    pub generation: u64,
    /// `None` when the file held no record and was dropped.
    pub segment: Option<Arc<Segment>>,
    pub tail: Tail,
    pub seq: u64,
    pub index: Index,
}

impl SealJob {
    /// The order makes each step harmless alone: footer behind the frames (recovery stops before it), next file
    /// (nobody names it), MANIFEST (the commit point).
    fn run(mut self) -> Result<SealDone, Error> {
        let sealed = if self.active.len() == 0 { None } else { Some(self.write_footer()?) };
        let tail = begin_file(&self.store, self.next, &self.checkpoint)?;
        self.store.sync_dir()?;
        let entry = sealed.as_ref().map(|segment| SegmentEntry::of(segment, Vec::new()));
        let committed = self.store.commit(self.generation, |manifest| {
            manifest.segments.extend(entry);
            (manifest.active, manifest.durable_seq) = (self.next, self.seq);
        })?;
        if !committed {
            self.store.trash.push(tail.path.clone());
        } else if sealed.is_none() {
            self.store.trash.push(self.tail.path);
        }
        let segment = sealed.map(Arc::new);
        Ok(SealDone { generation: self.generation, segment, tail, seq: self.seq, index: self.index })
    }

    fn write_footer(&mut self) -> Result<Segment, Error> {
        self.tail.write(&self.store, &self.frames)?;
        let mut footer = FooterBuilder::default();
        let mut at = 0;
        loop {
            let records = self.active.read(at, usize::MAX, 4096);
            if records.is_empty() {
                break;
            }
            at += records.len();
            for (slot, record) in records {
                let bad = || Error::Record {
                    file: self.tail.path.clone(),
                    offset: u64::from(slot.offset),
                    revision: slot.rev(),
                };
                let record = record.ok_or_else(bad)?;
                let head = Head::parse(&record).ok_or_else(bad)?;
                footer.push(&head, &record, slot.offset);
            }
        }
        let (bytes, parts) = footer.finish(self.active.id, self.tail.written);
        self.tail.write(&self.store, &[bytes.into()])?;
        let len = self.tail.written;
        self.tail.file.set_len(len).map_err(Error::io(&self.tail.path, "cut"))?;
        self.tail.sync()?;
        let map = self.tail.file.map(len).map_err(Error::io(&self.tail.path, "map"))?;
        Ok(Segment::new(self.active.id, self.tail.path.clone(), map, parts, Arc::clone(&self.store.trash)))
    }
}

/// Makes the file of a new active segment with its first frame. Its bytes are durable on return, its name is not.
pub(crate) fn begin_file(store: &Store, id: u64, checkpoint: &Bytes) -> Result<Tail, Error> {
    let path = store.path(id);
    let file = match open_new(store, &path) {
        Err(e) if e.kind() == io::ErrorKind::StorageFull && store.give_up_spare()? => open_new(store, &path),
        result => result,
    };
    let file: Arc<dyn DiskFile> = file.map_err(Error::io(&path, "create"))?.into();
    let mut tail = Tail { path, file, written: 0, reserved: 0 };
    let header = Bytes::copy_from_slice(&file_header(id, Content::Frames));
    debug_assert_eq!(header.len(), FILE_HEADER);
    tail.write(store, &[header, checkpoint.clone()])?;
    tail.sync()?;
    Ok(tail)
}

fn open_new(store: &Store, path: &Path) -> io::Result<Box<dyn DiskFile>> {
    store.disk.open(path, OpenMode::Truncate)
}
