use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use bytes::Bytes;

/// How [`Disk::open`] treats what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Must exist; reading only.
    Read,
    /// Must exist; reading and writing.
    ReadWrite,
    /// Must not exist; made with mode 0600, for reading and writing.
    CreateNew,
    /// Made if absent, emptied if present, mode 0600.
    Truncate,
}

/// A file system as the log and the store use it.
///
/// What survives a power loss: file bytes covered by a returned [`DiskFile::sync_data`], and directory entries (names
/// made, renamed or removed) covered by a returned [`Disk::sync_dir`] of their directory. Nothing else is promised:
/// unsynced bytes may be lost, kept, torn at any byte, or lost by whole 512-byte sectors, in any order.
///
/// After a write, sync, rename or remove returned an error the caller stops: nothing is retried.
pub trait Disk: Send + Sync {
    /// Opens one file. `NotFound` and `AlreadyExists` as the mode says.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>>;
    /// Makes the directory and its parents with mode 0700, durable on return; fine when it exists.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Names (not paths) of files and directories in a directory, sorted.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Whether a file or directory of that name is there.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Atomic replacement of `to`; durable after `sync_dir`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Durable after `sync_dir` of its directory; open handles and mappings go on working.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory and all in it, in no order a crash could rely on.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Makes the entries of a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Takes an exclusive advisory lock on a file, made if absent; `WouldBlock` when another process holds it.
    fn lock(&self, path: &Path) -> io::Result<DiskLock>;
    /// Bytes free on the file system that holds `path`.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;

    /// Reads a whole file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.open(path, OpenMode::Read)?;
        let mut bytes = vec![0; file.len()? as usize];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Replaces `path` by `bytes`, whole or not at all, durable on return: temporary file, sync, rename, sync of the
    /// directory.
    fn write_atomic(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        let file = self.open(&temporary, OpenMode::Truncate)?;
        file.write_all_at(bytes, 0)?;
        file.sync_data()?;
        drop(file);
        self.rename(&temporary, path)?;
        self.sync_dir(path.parent().unwrap_or(Path::new(".")))
    }
}

/// Bytes that a copy through memory takes at a time.
const COPY_BYTES: u64 = 256 << 10;

/// One open file. All calls take an offset, so a handle can be shared between threads.
pub trait DiskFile: Send + Sync {
    /// Reads exactly `buffer.len()` bytes; `UnexpectedEof` when the file ends before.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `bytes`, growing the file as needed.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes everything written so far, and the length, durable.
    fn sync_data(&self) -> io::Result<()>;
    /// Bytes in the file, allocated ones included.
    fn len(&self) -> io::Result<u64>;
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Cuts or extends (with zeroes).
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves `len` bytes of space from the start and extends the file to it, reading as zeroes. `StorageFull` when
    /// the disk cannot hold it.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Copies `len` bytes at `offset` of `source` to the same place here: inside the kernel, or by sharing blocks, where
    /// the platform can. `UnexpectedEof` when the source ends before.
    fn copy_from(&self, source: &dyn DiskFile, offset: u64, len: u64) -> io::Result<()> {
        copy_through(self, source, offset, len)
    }
    /// What the operating system knows the file by, if it does.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// The first `len` bytes of the file, without copying where the platform can. The caller promises that nobody
    /// writes to or cuts these bytes while the result lives: they are written and synced, and final.
    fn map(&self, len: u64) -> io::Result<Bytes>;
}

/// Copies through memory.
pub(crate) fn copy_through<F: DiskFile + ?Sized>(to: &F, from: &dyn DiskFile, offset: u64, len: u64) -> io::Result<()> {
    let mut buffer = vec![0; len.min(COPY_BYTES) as usize];
    let mut done = 0;
    while done < len {
        let piece = &mut buffer[..(len - done).min(COPY_BYTES) as usize];
        from.read_exact_at(piece, offset + done)?;
        to.write_all_at(piece, offset + done)?;
        done += piece.len() as u64;
    }
    Ok(())
}

/// Releases the lock when dropped.
pub struct DiskLock {
    pub(crate) _held: Box<dyn std::any::Any + Send + Sync>,
}
