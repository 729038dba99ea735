//! What the writer, its jobs and a snapshot's builder share: the directory, the MANIFEST, and the files to remove.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dolmen_env::{Disk, DiskLock, OpenMode};
use parking_lot::Mutex;

use crate::install::FIRST_SEQ;
use crate::manifest::{Manifest, SegmentEntry};
use crate::segment::{self, Segment};
use crate::{Error, Options};

pub(crate) const MANIFEST: &str = "MANIFEST";
pub(crate) const LOCK: &str = "LOCK";
pub(crate) const SPARE: &str = "spare";

/// Files that nobody needs any more, to be unlinked by a job.
#[derive(Default)]
pub(crate) struct Trash {
    files: Mutex<Vec<PathBuf>>,
}

impl Trash {
    pub fn push(&self, file: PathBuf) {
        self.files.lock().push(file);
    }

    pub fn extend(&self, files: impl Iterator<Item = PathBuf>) {
        self.files.lock().extend(files);
    }

    pub fn is_empty(&self) -> bool {
        self.files.lock().is_empty()
    }

    pub fn take(&self) -> Vec<PathBuf> {
        std::mem::take(&mut *self.files.lock())
    }
}

/// The MANIFEST as it is on disk, and which life of the log it belongs to.
pub(crate) struct Current {
    pub manifest: Manifest,
    /// Grows with every installed snapshot; a job of an earlier life changes nothing any more.
    pub generation: u64,
}

pub(crate) struct Store {
    pub disk: Arc<dyn Disk>,
    pub dir: PathBuf,
    pub options: Options,
    pub trash: Arc<Trash>,
    pub next_id: AtomicU64,
    /// Bytes of the spare file, 0 when it is not there.
    pub spare: AtomicU64,
    /// Held while the MANIFEST is written, so that two jobs cannot lose each other's change.
    pub current: Mutex<Current>,
    pub _lock: DiskLock,
}

impl Store {
    pub fn path(&self, id: u64) -> PathBuf {
        self.dir.join(segment::file_name(id))
    }

    pub fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Changes the MANIFEST: the commit point of everything that changes which files count. `false`, and nothing
    /// done, when a snapshot was installed since the caller began.
    pub fn commit(&self, generation: u64, edit: impl FnOnce(&mut Manifest)) -> Result<bool, Error> {
        let mut current = self.current.lock();
        if current.generation != generation {
            return Ok(false);
        }
        let mut next = current.manifest.clone();
        edit(&mut next);
        next.next_id = self.next_id.load(Ordering::Relaxed);
        self.write_manifest(&next)?;
        current.manifest = next;
        Ok(true)
    }

    /// Switches to a new content, and voids every job of the old one.
    pub fn install(&self, segments: &[Arc<Segment>], active: u64) -> Result<(), Error> {
        let mut current = self.current.lock();
        let next = Manifest {
            epoch: current.manifest.epoch,
            next_id: self.next_id.load(Ordering::Relaxed),
            active,
            durable_seq: FIRST_SEQ,
            segments: segments.iter().map(|segment| SegmentEntry::of(segment, Vec::new())).collect(),
        };
        self.write_manifest(&next)?;
        current.manifest = next;
        current.generation += 1;
        Ok(())
    }

    pub fn write_manifest(&self, manifest: &Manifest) -> Result<(), Error> {
        let path = self.dir.join(MANIFEST);
        let bytes = manifest.encode();
        match self.disk.write_atomic(&path, &bytes) {
            // The temporary file did not fit; nothing that counts was touched.
            Err(e) if e.kind() == io::ErrorKind::StorageFull && self.give_up_spare()? => {
                self.disk.write_atomic(&path, &bytes).map_err(Error::io(&path, "write"))
            }
            result => result.map_err(Error::io(&path, "write")),
        }
    }

    /// Removes the spare file, when the disk is full. Whether there was one.
    pub fn give_up_spare(&self) -> Result<bool, Error> {
        let path = self.dir.join(SPARE);
        self.spare.store(0, Ordering::Relaxed);
        match self.disk.remove_file(&path) {
            Ok(()) => {
                self.disk.sync_dir(&self.dir).map_err(Error::io(&self.dir, "sync the directory"))?;
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::io(&path, "remove")(e)),
        }
    }

    /// Reserves the spare file, unless that would fill the disk.
    pub fn make_spare(&self, bytes: u64) -> Result<(), Error> {
        let path = self.dir.join(SPARE);
        let free = self.disk.free_bytes(&self.dir).map_err(Error::io(&self.dir, "ask for free space"))?;
        // A reserve is no use when making it fills the disk.
        if free < bytes.saturating_mul(4) {
            return Ok(());
        }
        let file = match self.disk.open(&path, OpenMode::Truncate) {
            Err(e) if e.kind() == io::ErrorKind::StorageFull => return Ok(()),
            result => result.map_err(Error::io(&path, "create"))?,
        };
        match file.allocate(bytes) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::StorageFull => {
                drop(file);
                self.disk.remove_file(&path).map_err(Error::io(&path, "remove"))?;
                return Ok(());
            }
            Err(e) => return Err(Error::io(&path, "reserve space")(e)),
        }
        file.sync_data().map_err(Error::io(&path, "sync"))?;
        self.disk.sync_dir(&self.dir).map_err(Error::io(&self.dir, "sync the directory"))?;
        self.spare.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    pub fn sync_dir(&self) -> Result<(), Error> {
        self.disk.sync_dir(&self.dir).map_err(Error::io(&self.dir, "sync the directory"))
    }

    pub fn open_segment(&self, entry: &SegmentEntry) -> Result<Segment, Error> {
        Segment::open(&*self.disk, &self.dir, entry, Arc::clone(&self.trash))
    }
}

/// Removes files; one that is gone already is fine.
pub(crate) fn unlink(disk: &dyn Disk, files: &[PathBuf]) -> Result<(), Error> {
    for file in files {
        match disk.remove_file(file) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Error::io(file, "remove")(e)),
            _ => {}
        }
    }
    Ok(())
}

/// Whether an error is a full disk, met before anything that counts was written.
pub(crate) fn is_full(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull)
}
