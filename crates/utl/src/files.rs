//! Opening and locking database files, and errors in Go's words.

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dolmen_bolt::ReadAt;

/// How often a lock that is held is tried again; bbolt's number.
const LOCK_RETRY: Duration = Duration::from_millis(50);

/// An error of the system as Go prints it: `no such file or directory`.
pub(crate) fn go_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}

/// Go's `PathError`: `stat FILE: no such file or directory`.
pub(crate) fn path_error(act: &str, path: &str, error: &io::Error) -> String {
    format!("{act} {path}: {}", go_text(error))
}

/// Fails when there is no such file, or it cannot be looked at.
pub(crate) fn must_exist(path: &str) -> Result<std::fs::Metadata, String> {
    std::fs::metadata(path).map_err(|error| path_error("stat", path, &error))
}

/// Who else may have the file meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    /// Others who read.
    Shared,
    /// Nobody.
    Exclusive,
}

/// Opens a database, and locks it as bbolt does, so that no server writes to it meanwhile.
///
/// `timeout_ns`: how long to wait for the lock; 0 for ever. On expiry the text is bbolt's `timeout`.
pub(crate) fn open(path: &str, lock: Lock, timeout_ns: i64) -> Result<File, String> {
    let mut options = OpenOptions::new();
    options.read(true).write(lock == Lock::Exclusive);
    let file = options.open(path).map_err(|error| path_error("open", path, &error))?;
    if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Err(format!("read {path}: is a directory"));
    }
    take_lock(&file, lock, timeout_ns).map_err(|error| match error {
        None => "timeout".to_owned(),
        Some(error) => path_error("flock", path, &error),
    })?;
    Ok(file)
}

fn take_lock(file: &File, lock: Lock, timeout_ns: i64) -> Result<(), Option<io::Error>> {
    let timeout = Duration::from_nanos(timeout_ns.unsigned_abs());
    let start = Instant::now();
    loop {
        let outcome = match lock {
            Lock::Shared => file.try_lock_shared(),
            Lock::Exclusive => file.try_lock(),
        };
        match outcome {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(Some(error)),
            Err(TryLockError::WouldBlock) if timeout_ns != 0 && start.elapsed() + LOCK_RETRY > timeout => {
                return Err(None);
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_RETRY),
        }
    }
}

/// The first `len` bytes of a file: a snapshot without its trailer.
#[derive(Clone, Copy)]
pub(crate) struct Body<'f> {
    pub file: &'f File,
    pub len: u64,
}

impl ReadAt for Body<'_> {
    fn byte_len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn bytes_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.file.bytes_at(offset, len)
    }
}

/// A body that reads ahead where it is read in order: pages of a tree mostly lie one behind the other.
pub(crate) struct Ahead<'f> {
    body: Body<'f>,
    /// Bytes read last, and where they begin.
    window: RefCell<(u64, Bytes)>,
    /// Where the last request ended.
    next: Cell<u64>,
}

/// Bytes read ahead.
const WINDOW: u64 = 128 << 10;

impl<'f> Ahead<'f> {
    pub(crate) fn new(body: Body<'f>) -> Self {
        Self { body, window: RefCell::new((0, Bytes::new())), next: Cell::new(u64::MAX) }
    }
}

impl ReadAt for Ahead<'_> {
    fn byte_len(&self) -> io::Result<u64> {
        Ok(self.body.len)
    }

    fn bytes_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let (start, bytes) = self.window.borrow().clone();
        let end = start + bytes.len() as u64;
        let wanted_end = offset.saturating_add(len as u64);
        let expected = self.next.replace(wanted_end);
        if start <= offset && wanted_end <= end {
            let from = (offset - start) as usize;
            return Ok(bytes.slice(from..from + len));
        }
        let in_order = offset == expected || offset == end;
        if !in_order || wanted_end > self.body.len || len as u64 >= WINDOW {
            return self.body.bytes_at(offset, len);
        }
        let window = self.body.bytes_at(offset, WINDOW.min(self.body.len - offset) as usize)?;
        let wanted = window.slice(..len);
        self.window.replace((offset, window));
        Ok(wanted)
    }
}

/// `<data-dir>/member/snap/db`, as Go joins paths.
pub(crate) fn database_of(data_dir: &str) -> String {
    let joined: std::path::PathBuf = Path::new(data_dir).join("member").join("snap").join("db");
    // Go's Join also takes out `.` and doubled slashes.
    let kept = joined.components().filter(|part| *part != std::path::Component::CurDir);
    kept.collect::<std::path::PathBuf>().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_ahead_gives_the_same_bytes() {
        let path = std::env::temp_dir().join(format!("dolmen-utl-{}-ahead", std::process::id()));
        let bytes: Vec<u8> = (0..400_000_u32).map(|at| (at.wrapping_mul(at) >> 5) as u8).collect();
        std::fs::write(&path, &bytes).expect("a file");
        let file = File::open(&path).expect("is there");
        let ahead = Ahead::new(Body { file: &file, len: 399_000 });
        let mut random: u64 = 3;
        let mut at = 0;
        for round in 0..3_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let len = (random >> 40) as usize % [10, 5_000, 200_000][round % 3];
            // Mostly in order, sometimes elsewhere.
            if random >> 61 == 0 || at >= 399_000 {
                at = (random >> 20) as usize % 399_000;
            }
            match ahead.bytes_at(at as u64, len) {
                Ok(found) => assert_eq!(found[..], bytes[at..at + len]),
                Err(error) => {
                    assert!(at + len > 399_000, "{error}");
                    at = 0;
                }
            }
            at += len;
        }
        std::fs::remove_file(&path).expect("was there");
    }

    #[test]
    fn errors_read_as_in_go() {
        let error = std::fs::metadata("/no/such/file").expect_err("is not there");
        assert_eq!(path_error("stat", "/no/such/file", &error), "stat /no/such/file: no such file or directory");
        assert!(must_exist("/no/such/file").is_err());
        assert_eq!(database_of("./a//b/"), "a/b/member/snap/db");
    }
}
