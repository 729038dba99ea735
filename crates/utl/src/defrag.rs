//! Rewriting a database without its free pages, so that it is never half there.
//!
//! ```text
//! lock db exclusively -> write db.tmp.N beside it -> sync it -> lock it -> rename it over db -> sync the folder
//! ```
//!
//! Killed before the rename, the old file stands as it was, and a `db.tmp.*` that a server removes when it starts. A
//! server that waits for the lock finds the new file locked too, until its folder is synced.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use dolmen_bolt::{BoltReader, BoltWriter, Plan, ReadAt, WriteError};

/// Bytes collected before they are written.
const BUFFER: usize = 1 << 20;

/// Numbers of a database, before or after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Bytes of all pages.
    pub size: u64,
    /// Bytes of those in use.
    pub in_use: u64,
}

/// What there is to write, and from where.
pub(crate) struct Rewrite<'r, R> {
    pub reader: &'r BoltReader<R>,
    /// The file's mode, as `chmod` takes it.
    pub mode: u32,
    /// Whether it is made durable.
    pub sync: bool,
}

/// Counts bytes as they pass.
struct Counted<'p, W> {
    sink: W,
    done: u64,
    total: u64,
    progress: &'p dyn Fn(u64, u64),
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.sink.write(bytes)?;
        self.done += taken as u64;
        (self.progress)(self.done, self.total);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

impl<R: ReadAt> Rewrite<'_, R> {
    /// Writes all buckets to `temporary`, which must not exist, and renames it to `target`. Returns the bytes written.
    ///
    /// # Errors
    /// Those of the files, and of the pages read. `temporary` is removed then.
    pub(crate) fn run(&self, temporary: &Path, target: &Path, progress: &dyn Fn(u64, u64)) -> io::Result<u64> {
        let outcome = self.write_and_rename(temporary, target, progress);
        if outcome.is_err() {
            // The first error is the one to tell.
            let _ = std::fs::remove_file(temporary);
        }
        outcome
    }

    fn write_and_rename(&self, temporary: &Path, target: &Path, progress: &dyn Fn(u64, u64)) -> io::Result<u64> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, self.mode);
        let file = options.open(temporary)?;
        // Nobody knows the name yet.
        file.lock()?;
        let source = self.reader.source()?;
        let plan = Plan::new(&source).map_err(told)?;
        let total = plan.file_len();
        let counted = Counted { sink: &file, done: 0, total, progress };
        BoltWriter::new(BufWriter::with_capacity(BUFFER, counted)).write(&plan, &source).map_err(told)?;
        if self.sync {
            file.sync_all()?;
        }
        std::fs::rename(temporary, target)?;
        if self.sync {
            File::open(folder_of(target))?.sync_all()?;
        }
        Ok(total)
    }
}

fn told(error: WriteError) -> io::Error {
    error.into()
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// A name beside `path` that no other process takes.
pub(crate) fn temporary_beside(path: &Path) -> PathBuf {
    let nanos =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    folder_of(path).join(format!("{name}.tmp.{}{nanos:09}", std::process::id()))
}

/// Sizes of a sound database.
pub(crate) fn sizes<R: ReadAt>(reader: &BoltReader<R>) -> Result<Sizes, dolmen_bolt::Error> {
    let report = reader.check()?;
    let size = reader.file_len();
    Ok(Sizes { size, in_use: size - report.pages_free * u64::from(reader.page_size()) })
}
