//! Descriptors and memory that the system has run out of: that passes, and no disk is broken.
//!
//! A call that takes a descriptor and gets none has done nothing, so it may be made again. Clients come and go, and take
//! most of the descriptors; so it is, for a while, and then the error says what to change.

#![allow(clippy::disallowed_methods, reason = "only the real disk waits, on the thread of whoever called it")]

use std::io;
use std::time::Duration;

use rustix::io::Errno;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);
/// Five seconds of them: nothing else is written meanwhile, and a member that waits longer is no use to its cluster.
const TRIES: u32 = 100;

/// Whether this is about descriptors or memory, rather than about a disk.
pub fn is_shortage(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Shortage>())
        || errno(error).is_some_and(|errno| remedy(errno).is_some())
}

fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}

fn remedy(errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::MFILE => {
            Some("raise this process's limit of open files (ulimit -n, LimitNOFILE=), or have fewer clients connect")
        }
        Errno::NFILE => Some("raise the system's limit of open files (sysctl fs.file-max)"),
        Errno::NOMEM => Some("give this process more memory, or mappings (sysctl vm.max_map_count)"),
        _ => None,
    }
}

/// What a call ends with when there was none to be had.
#[derive(Debug)]
struct Shortage {
    source: io::Error,
    remedy: &'static str,
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waited = PAUSE * TRIES;
        write!(f, "{}, for {} s; the disk is not to blame: {}", self.source, waited.as_secs(), self.remedy)
    }
}

impl std::error::Error for Shortage {}

/// Makes a call that takes a descriptor or memory, again and again while there is none.
pub(crate) fn patiently<T>(call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    patiently_with(call, std::thread::sleep)
}

fn patiently_with<T>(mut call: impl FnMut() -> io::Result<T>, mut pause: impl FnMut(Duration)) -> io::Result<T> {
    for _ in 0..TRIES {
        match call() {
            Err(error) if is_shortage(&error) => pause(PAUSE),
            result => return result,
        }
    }
    call().map_err(|source| match errno(&source).and_then(remedy) {
        Some(remedy) => io::Error::new(source.kind(), Shortage { source, remedy }),
        None => source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_waited_for_and_then_named_and_nothing_else_is_tried_twice() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            let failure = || Err::<u32, _>(io::Error::from(errno));
            let (mut left, mut pauses) = (3, 0);
            let done = patiently_with(
                || {
                    left -= 1;
                    if left > 0 { failure() } else { Ok(7) }
                },
                |_| pauses += 1,
            );
            assert_eq!((done.unwrap(), pauses), (7, 2));
            let mut waited = Duration::ZERO;
            let error = patiently_with(failure, |pause| waited += pause).unwrap_err();
            assert_eq!(waited, Duration::from_secs(5));
            assert!(is_shortage(&error) && error.to_string().contains("the disk is not to blame"), "{error}");
        }
        for errno in [Errno::IO, Errno::NOSPC, Errno::ACCESS, Errno::NOENT] {
            let mut calls = 0;
            let error = patiently_with(
                || {
                    calls += 1;
                    Err::<(), _>(io::Error::from(errno))
                },
                |_| panic!("it does not pass"),
            );
            assert!(calls == 1 && !is_shortage(&error.unwrap_err()));
        }
    }
}
