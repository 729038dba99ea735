//! Planted bugs: what the simulator must find. All live in the simulated driver and disk; the product is not touched.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use dolmen_env::{Disk, DiskFile, DiskLock, OpenMode, SimDisk};
use parking_lot::Mutex;

/// A bug to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The WAL reports entries as durable before they are synced.
    AckBeforeSync,
    /// The disk says that it synced and did not.
    SyncLies,
    /// A linearizable read asks nobody.
    StaleRead,
    /// A write is answered when it is proposed.
    AckOnPropose,
    /// The log goes on behind a torn tail instead of cutting it.
    TornTailKept,
    /// A restart applies the last put a second time.
    ReapplyOne,
    /// A log with a rotten record is cut there instead of refused.
    CutAtRot,
    /// A rotten member is wiped and comes back under its id.
    WipeAndRejoin,
    /// The vote is not written.
    VoteNotPersisted,
    /// A proposal is passed on to the next leader although the last one may have done it.
    ProposeTooSoon,
    /// A leader never gets to tell another to take over.
    HandOverLost,
}

impl Mutant {
    pub const ALL: [Self; 11] = [
        Self::AckBeforeSync,
        Self::SyncLies,
        Self::StaleRead,
        Self::AckOnPropose,
        Self::TornTailKept,
        Self::ReapplyOne,
        Self::CutAtRot,
        Self::WipeAndRejoin,
        Self::VoteNotPersisted,
        Self::ProposeTooSoon,
        Self::HandOverLost,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AckBeforeSync => "ack-before-sync",
            Self::SyncLies => "sync-lies",
            Self::StaleRead => "stale-read",
            Self::AckOnPropose => "ack-on-propose",
            Self::TornTailKept => "torn-tail-kept",
            Self::ReapplyOne => "reapply-one",
            Self::CutAtRot => "cut-at-rot",
            Self::WipeAndRejoin => "wipe-and-rejoin",
            Self::VoteNotPersisted => "vote-not-persisted",
            Self::ProposeTooSoon => "propose-too-soon",
            Self::HandOverLost => "hand-over-lost",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mutant| mutant.name() == name)
    }
}

/// A disk that can be told to write what comes next further behind: [`Mutant::TornTailKept`].
#[derive(Clone)]
pub(crate) struct ShiftingDisk {
    inner: SimDisk,
    open: Arc<Mutex<Vec<Weak<Shift>>>>,
}

/// From which offset on writes of one handle land how much later.
#[derive(Default)]
struct Shift {
    from: AtomicU64,
    by: AtomicU64,
}

struct ShiftingFile {
    inner: Box<dyn DiskFile>,
    shift: Arc<Shift>,
}

impl ShiftingDisk {
    pub fn new(inner: SimDisk) -> Self {
        Self { inner, open: Arc::default() }
    }

    /// All log segments open now take further writes `by` bytes behind where they are meant, from `from` on.
    pub fn shift(&self, from: u64, by: u64) {
        for shift in self.open.lock().iter().filter_map(Weak::upgrade) {
            shift.from.store(from, Ordering::Relaxed);
            shift.by.store(by, Ordering::Relaxed);
        }
    }
}

impl Disk for ShiftingDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let inner = self.inner.open(path, mode)?;
        let shift = Arc::new(Shift::default());
        if path.components().any(|part| part.as_os_str() == "wal") {
            self.open.lock().push(Arc::downgrade(&shift));
        }
        Ok(Box::new(ShiftingFile { inner, shift }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        self.inner.read_dir(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_dir(path)
    }

    fn lock(&self, path: &Path) -> io::Result<DiskLock> {
        self.inner.lock(path)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.inner.free_bytes(path)
    }
}

impl DiskFile for ShiftingFile {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_exact_at(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (from, by) = (self.shift.from.load(Ordering::Relaxed), self.shift.by.load(Ordering::Relaxed));
        self.inner.write_all_at(bytes, if offset >= from { offset + by } else { offset })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let by = self.shift.by.load(Ordering::Relaxed);
        self.inner.set_len(len + by)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.inner.allocate(len)
    }

    fn map(&self, len: u64) -> io::Result<Bytes> {
        self.inner.map(len)
    }
}

/// The torn tail that the coming start will cut: file, offset and the bytes there.
pub(crate) fn torn_tail(disk: &SimDisk, wal: &Path) -> Option<(PathBuf, u64, Vec<u8>)> {
    let torn = dolmen_wal::inspect(disk, wal, &mut |_| {}).ok()??;
    let bytes = disk.read(&torn.file).ok()?;
    let end = torn.offset as usize + torn.bytes as usize;
    Some((torn.file, torn.offset, bytes.get(torn.offset as usize..end)?.to_vec()))
}

/// Undoes the cut of a torn tail and has the log go on behind it.
pub(crate) fn keep_torn_tail(disk: &SimDisk, shifting: &ShiftingDisk, torn: &(PathBuf, u64, Vec<u8>)) {
    let (file, offset, bytes) = torn;
    let Ok(handle) = disk.open(file, OpenMode::ReadWrite) else { return };
    if handle.write_all_at(bytes, *offset).is_ok() && handle.sync_data().is_ok() {
        shifting.shift(*offset, (bytes.len() as u64).next_multiple_of(8));
    }
}

/// Cuts a damaged log at the damage, as if it were a torn tail.
pub(crate) fn cut_at_rot(disk: &SimDisk, member: &Path, file: &Path, offset: u64) -> io::Result<()> {
    let wal = member.join("wal");
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let damaged = name(file);
    for later in disk.read_dir(&wal)?.into_iter().filter(|other| other.ends_with(".wal") && *other > damaged) {
        disk.remove_file(&wal.join(later))?;
    }
    let handle = disk.open(file, OpenMode::ReadWrite)?;
    let len = handle.len()?;
    if offset < len {
        handle.write_all_at(&vec![0; (len - offset) as usize], offset)?;
    }
    handle.sync_data()?;
    disk.sync_dir(&wal)?;
    for slot in ["acked-0", "acked-1"] {
        let path = member.join(slot);
        if disk.exists(&path)? {
            disk.remove_file(&path)?;
        }
    }
    disk.sync_dir(member)
}
