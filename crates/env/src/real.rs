#![allow(clippy::disallowed_methods, reason = "this is where the file system enters")]

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

use bytes::Bytes;
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;

use crate::disk::{Disk, DiskFile, DiskLock, OpenMode, copy_through};
use crate::shortage::patiently;

/// The operating system's file system: files with mode 0600, directories with mode 0700, every descriptor closed on
/// exec (what std opens with).
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

struct RealFile {
    file: File,
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).mode(0o600);
        match mode {
            OpenMode::Read => {}
            OpenMode::ReadWrite => {
                options.write(true);
            }
            OpenMode::CreateNew => {
                options.write(true).create_new(true);
            }
            OpenMode::Truncate => {
                options.write(true).create(true).truncate(true);
            }
        }
        Ok(Box::new(RealFile { file: patiently(|| options.open(path))? }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        let parent = parent_of(path);
        if parent != path {
            self.create_dir_all(parent)?;
        }
        match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => self.sync_dir(parent),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in patiently(|| fs::read_dir(path))? {
            // A name that is not UTF-8 is none of ours; nobody could ask for it by the string.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        fs::exists(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        patiently(|| File::open(path))?.sync_all()
    }

    /// Two locks, because two kinds of rivals exist. `flock` keeps out another Dolmen, and another `lock` of this
    /// process. The record lock keeps out an etcd written in Go, which takes open-file-description locks: those see
    /// record locks and not `flock`. POSIX drops a process's record lock as soon as it closes *any* descriptor of the
    /// file, so against Go the lock holds only while the process closes no other handle of this file; `flock` always
    /// holds.
    fn lock(&self, path: &Path) -> io::Result<DiskLock> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = patiently(|| options.open(path))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            // POSIX lets the kernel choose between the two names of "somebody else holds it".
            Err(Errno::ACCESS | Errno::AGAIN) => return Err(io::ErrorKind::WouldBlock.into()),
            // Some network file systems have no record locks.
            Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(DiskLock { _held: Box::new(file) })
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

impl DiskFile for RealFile {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        // fdatasync: also writes the length, because data past the old length could not be read back without it.
        Ok(rustix::fs::fdatasync(&self.file)?)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        loop {
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, len) {
                Err(Errno::INTR) => {}
                // A file system without fallocate: the length is there, the space is not promised.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    return if self.len()? < len { self.set_len(len) } else { Ok(()) };
                }
                result => return Ok(result?),
            }
        }
    }

    fn copy_from(&self, source: &dyn DiskFile, offset: u64, len: u64) -> io::Result<()> {
        let (Some(from), end) = (source.descriptor(), offset + len) else {
            return copy_through(self, source, offset, len);
        };
        let (mut read_at, mut write_at) = (offset, offset);
        while read_at < end {
            // The kernel takes no more in one call.
            let left = (end - read_at).min(1 << 30) as usize;
            match rustix::fs::copy_file_range(from, Some(&mut read_at), &self.file, Some(&mut write_at), left) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(Errno::INTR) => {}
                // Another file system, or one that cannot.
                Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::PERM) => {
                    return copy_through(self, source, read_at, end - read_at);
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn map(&self, len: u64) -> io::Result<Bytes> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        // Touching a page past the end of the file would kill the process.
        if self.len()? < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: a mapping is sound while nobody changes or cuts the file below it. Only bytes that are final are
        // mapped: no code writes to a segment after its seal, or to what it has written and synced of a growing one,
        // and an unlink leaves the mapped inode alone. Another process could break this only by writing into the data
        // directory, which is mode 0700 and locked; see docs/adr/0001-mmap-sealed-segments.md.
        #[allow(unsafe_code)]
        let map = patiently(|| unsafe { memmap2::MmapOptions::new().len(len).map(&self.file) })?;
        Ok(Bytes::from_owner(map))
    }
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;

    /// A directory of its own under the temporary directory, removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("dolmen-env-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            RealDisk.create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_and_directories_are_private() {
        let dir = Scratch::new("modes");
        let nested = dir.0.join("a/b");
        RealDisk.create_dir_all(&nested).unwrap();
        RealDisk.create_dir_all(&nested).unwrap();
        RealDisk.write_atomic(&nested.join("f"), b"x").unwrap();
        assert_eq!(fs::metadata(dir.0.join("a")).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(nested.join("f")).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(RealDisk.read_dir(&nested).unwrap(), ["f"]);
        assert_eq!(RealDisk.read(&nested.join("f")).unwrap(), b"x");
        assert!(RealDisk.free_bytes(&nested).unwrap() > 0);
    }

    #[test]
    fn open_modes_say_what_must_exist() {
        let dir = Scratch::new("open");
        let path = dir.0.join("f");
        let kind = |mode| RealDisk.open(&path, mode).map(drop).map_err(|e| e.kind());
        assert_eq!(kind(OpenMode::Read), Err(io::ErrorKind::NotFound));
        assert_eq!(kind(OpenMode::ReadWrite), Err(io::ErrorKind::NotFound));
        assert_eq!(kind(OpenMode::CreateNew), Ok(()));
        assert_eq!(kind(OpenMode::CreateNew), Err(io::ErrorKind::AlreadyExists));
        RealDisk.open(&path, OpenMode::ReadWrite).unwrap().write_all_at(b"abc", 0).unwrap();
        assert_eq!(RealDisk.open(&path, OpenMode::Truncate).unwrap().len().unwrap(), 0);
    }

    #[test]
    fn allocation_extends_with_zeroes_and_never_cuts() {
        let dir = Scratch::new("allocate");
        let file = RealDisk.open(&dir.0.join("f"), OpenMode::CreateNew).unwrap();
        file.write_all_at(b"abc", 0).unwrap();
        file.allocate(10_000).unwrap();
        assert_eq!(file.len().unwrap(), 10_000);
        file.allocate(10).unwrap();
        assert_eq!(file.len().unwrap(), 10_000);
        let mut bytes = [9; 4];
        file.read_exact_at(&mut bytes, 2).unwrap();
        assert_eq!(&bytes, b"c\0\0\0");
        file.sync_data().unwrap();
        assert_eq!(file.read_exact_at(&mut bytes, 9_998).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_mapping_outlives_its_file_and_refuses_to_run_past_it() {
        let dir = Scratch::new("map");
        let path = dir.0.join("f");
        let file = RealDisk.open(&path, OpenMode::CreateNew).unwrap();
        file.write_all_at(b"sealed", 0).unwrap();
        assert_eq!(file.map(7).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let map = file.map(6).unwrap();
        assert_eq!(file.map(0).unwrap().len(), 0);
        drop(file);
        RealDisk.remove_file(&path).unwrap();
        assert_eq!(map.slice(2..), &b"aled"[..]);
    }

    #[test]
    fn a_copy_is_one_to_the_byte() {
        let dir = Scratch::new("copy");
        let from = RealDisk.open(&dir.0.join("from"), OpenMode::CreateNew).unwrap();
        let bytes: Vec<u8> = (0..1_000_003_u32).map(|at| (at % 251) as u8).collect();
        from.write_all_at(&bytes, 0).unwrap();
        let to = RealDisk.open(&dir.0.join("to"), OpenMode::CreateNew).unwrap();
        to.copy_from(&*from, 0, 4_097).unwrap();
        to.copy_from(&*from, 4_097, 995_906).unwrap();
        assert_eq!(RealDisk.read(&dir.0.join("to")).unwrap(), bytes);
        let beyond = to.copy_from(&*from, 1_000_000, 4).unwrap_err();
        assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
        let simulated = crate::SimDisk::new(1).open(Path::new("/to"), OpenMode::CreateNew).unwrap();
        simulated.copy_from(&*from, 0, 1_000_003).unwrap();
        let mut copied = vec![0; bytes.len()];
        simulated.read_exact_at(&mut copied, 0).unwrap();
        assert_eq!(copied, bytes);
    }

    #[test]
    fn a_lock_has_one_holder() {
        let dir = Scratch::new("lock");
        let path = dir.0.join("LOCK");
        let held = RealDisk.lock(&path).unwrap();
        assert_eq!(RealDisk.lock(&path).map(drop).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(held);
        RealDisk.lock(&path).unwrap();
    }
}
