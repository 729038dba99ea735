//! Files of a [`Disk`] as the other crates want them: read at any place, written in a row, looked at as buckets.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use dolmen_bolt::{ReadAt, Source};
use dolmen_env::{Disk, DiskFile, DiskLock, OpenMode};

/// The disk refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}", path.display())]
pub struct DiskError {
    pub doing: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

/// Puts words to an I/O error.
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, DiskError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, DiskError> {
        self.map_err(|source| DiskError { doing, path: path.to_owned(), source })
    }
}

/// A rename that is durable on return.
pub(crate) fn rename(disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), DiskError> {
    disk.rename(from, to).doing("rename", from)?;
    sync_parent(disk, to)
}

pub(crate) fn sync_parent(disk: &dyn Disk, path: &Path) -> Result<(), DiskError> {
    let parent = parent_of(path);
    disk.sync_dir(parent).doing("sync", parent)
}

/// Removes a directory if it is there.
pub(crate) fn remove_dir(disk: &dyn Disk, path: &Path) -> Result<(), DiskError> {
    if disk.exists(path).doing("look at", path)? {
        disk.remove_dir_all(path).doing("remove", path)?;
    }
    Ok(())
}

/// At the end of names of what is being built.
const IN_THE_MAKING: &str = ".restoring";

/// A directory is given to the name it is meant for only when it is whole. Until then it has this one.
pub(crate) fn in_the_making(target: &Path) -> PathBuf {
    // Without a slash at its end, behind which the suffix would be a name of its own.
    let mut name = target.components().collect::<PathBuf>().into_os_string();
    name.push(IN_THE_MAKING);
    name.into()
}

pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

/// Whether `path` is there and has something in it, other than what a process that was killed has begun there; or is no
/// directory that can be looked into.
pub(crate) fn is_taken(disk: &dyn Disk, path: &Path) -> bool {
    match disk.exists(path) {
        Ok(false) => false,
        Ok(true) => disk.read_dir(path).map_or(true, |names| names.iter().any(|name| !name.contains(IN_THE_MAKING))),
        Err(_) => true,
    }
}

/// Where a data directory is built and where it goes when every byte of it is durable.
///
/// A target that exists and is empty may be a mount point, so there `member` alone is built inside and renamed.
pub(crate) struct Place {
    /// What is renamed at the end.
    pub from: PathBuf,
    pub to: PathBuf,
    /// `member` while it is built.
    pub member: PathBuf,
    lock: Option<DiskLock>,
}

/// Why nothing can be built for a target.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error("another process is building {}", dir.display())]
    Busy { dir: PathBuf },
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Held by the process that builds in a directory.
const LOCK: &str = "building.lock";

impl Place {
    /// What a process that was killed has left is removed. `data_dir` is empty or not there.
    pub(crate) fn prepare(disk: &dyn Disk, data_dir: &Path) -> Result<Self, PlaceError> {
        let there = disk.exists(data_dir).doing("look at", data_dir)?;
        let to = if there { data_dir.join("member") } else { data_dir.to_owned() };
        let from = in_the_making(&to);
        let member = if there { from.clone() } else { from.join("member") };
        let held = |from: &Path| match disk.lock(&from.join(LOCK)) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(PlaceError::Busy { dir: to.clone() }),
            held => Ok(held.doing("lock", from)?),
        };
        if disk.exists(&from).doing("look at", &from)? {
            drop(held(&from)?);
            disk.remove_dir_all(&from).doing("remove", &from)?;
        }
        disk.create_dir_all(&member.join("snap")).doing("create", &member)?;
        let lock = Some(held(&from)?);
        Ok(Self { from, to, member, lock })
    }

    /// Where something is built that is to be at `path`, if it gets there with all the rest.
    pub(crate) fn within(&self, path: &Path) -> Option<PathBuf> {
        path.strip_prefix(&self.to).ok().map(|rest| self.from.join(rest))
    }

    /// Gives what was built its name. All files in it are durable already; their names become so here.
    pub(crate) fn finish(mut self, disk: &dyn Disk) -> Result<(), DiskError> {
        self.lock = None;
        let lock = self.from.join(LOCK);
        disk.remove_file(&lock).doing("remove", &lock)?;
        for dir in [&self.member.join("snap"), &self.member, &self.from] {
            disk.sync_dir(dir).doing("sync", dir)?;
        }
        rename(disk, &self.from, &self.to)
    }

    /// Gives up. That a part stays would be no worse than a crash.
    pub(crate) fn clean(&self, disk: &dyn Disk) {
        let _best_effort = disk.remove_dir_all(&self.from);
    }
}

/// Writes a database to a new file, durable but for its name.
///
/// # Errors
/// The source's, the disk's.
pub(crate) fn write_db(
    disk: &dyn Disk,
    path: &Path,
    source: &dyn Source,
    report: &mut dyn crate::Report,
) -> Result<(), dolmen_bolt::WriteError> {
    let plan = dolmen_bolt::Plan::new(source)?;
    let file = disk.open(path, OpenMode::CreateNew)?;
    let mut written = |done| report.progress(done, plan.file_len());
    let writer = FileWriter::new(&*file, &mut written);
    dolmen_bolt::BoltWriter::new(writer).write(&plan, source)?;
    Ok(file.sync_data()?)
}

/// A file as bbolt's reader takes it.
pub(crate) struct FileReader(pub Box<dyn DiskFile>);

impl ReadAt for FileReader {
    fn byte_len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn bytes_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let mut bytes = vec![0; len];
        self.0.read_exact_at(&mut bytes, offset)?;
        Ok(bytes.into())
    }
}

/// A file written from its first byte to its last, a MiB at a time.
pub(crate) struct FileWriter<'a> {
    file: &'a dyn DiskFile,
    offset: u64,
    buffer: Vec<u8>,
    written: &'a mut dyn FnMut(u64),
}

const BUFFER: usize = 1 << 20;

impl<'a> FileWriter<'a> {
    /// `written` is told the bytes written so far.
    pub(crate) fn new(file: &'a dyn DiskFile, written: &'a mut dyn FnMut(u64)) -> Self {
        Self { file, offset: 0, buffer: Vec::with_capacity(BUFFER), written }
    }
}

impl Write for FileWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() + bytes.len() > BUFFER {
            self.flush()?;
        }
        if bytes.len() >= BUFFER {
            self.file.write_all_at(bytes, self.offset)?;
            self.offset += bytes.len() as u64;
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.buffer, self.offset)?;
        self.offset += self.buffer.len() as u64;
        self.buffer.clear();
        (self.written)(self.offset);
        Ok(())
    }
}

/// A source with some of its small buckets replaced.
pub(crate) struct Overlay<'a> {
    pub under: &'a dyn Source,
    pub replaced: BTreeMap<Bytes, BTreeMap<Bytes, Bytes>>,
}

impl Source for Overlay<'_> {
    fn buckets(&self) -> Vec<Bytes> {
        let mut names = self.under.buckets();
        names.extend(self.replaced.keys().cloned());
        names.sort_unstable();
        names.dedup();
        names
    }

    fn for_each(&self, bucket: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> io::Result<()>) -> io::Result<()> {
        match self.replaced.get(bucket) {
            Some(pairs) => pairs.iter().try_for_each(|(key, value)| visit(key, value)),
            None => self.under.for_each(bucket, visit),
        }
    }

    fn sizes(&self, bucket: &[u8], visit: &mut dyn FnMut(usize, usize) -> io::Result<()>) -> io::Result<()> {
        match self.replaced.get(bucket) {
            Some(pairs) => pairs.iter().try_for_each(|(key, value)| visit(key.len(), value.len())),
            None => self.under.sizes(bucket, visit),
        }
    }
}

/// All pairs of a small bucket; none when there is no such bucket.
pub(crate) fn bucket(source: &dyn Source, name: &[u8]) -> io::Result<BTreeMap<Bytes, Bytes>> {
    let mut pairs = BTreeMap::new();
    if source.buckets().iter().any(|found| found == name) {
        source.for_each(name, &mut |key, value| {
            pairs.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
            Ok(())
        })?;
    }
    Ok(pairs)
}
