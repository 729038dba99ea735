//! Writing to stdout and stderr as a Go program does.

use std::io::{ErrorKind, Write};

use crate::words;

/// The exit code a shell shows for a program that SIGPIPE ended, which is how a Go program ends when its reader has gone.
const BROKEN_PIPE: i32 = 128 + 13;

/// Writes to stdout, at once. Characters that stand for bytes are written as those bytes.
///
/// When nobody reads any more the process ends; other errors are ignored, as Go's tools ignore them.
pub fn print(text: impl AsRef<str>) {
    let bytes = words::bytes(text.as_ref());
    #[cfg(test)]
    if tests::keep(0, &bytes) {
        return;
    }
    let mut stdout = std::io::stdout().lock();
    let outcome = stdout.write_all(&bytes).and_then(|()| stdout.flush());
    if outcome.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        std::process::exit(BROKEN_PIPE);
    }
}

/// Writes to stderr, as [`print`] to stdout; errors are ignored, since there is nowhere to tell them.
pub fn complain(text: impl AsRef<str>) {
    let bytes = words::bytes(text.as_ref());
    #[cfg(test)]
    if tests::keep(1, &bytes) {
        return;
    }
    let _ = std::io::stderr().lock().write_all(&bytes);
}

#[cfg(test)]
pub(crate) use tests::captured;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    thread_local! {
        /// What this thread would have written to stdout and stderr, while something is captured.
        static KEPT: RefCell<Option<[Vec<u8>; 2]>> = const { RefCell::new(None) };
    }

    pub(super) fn keep(stream: usize, bytes: &[u8]) -> bool {
        KEPT.with_borrow_mut(|kept| kept.as_mut().map(|kept| kept[stream].extend_from_slice(bytes)).is_some())
    }

    /// What `act` answers, and what it writes to stdout and stderr.
    pub(crate) fn captured<T>(act: impl FnOnce() -> T) -> (T, String, String) {
        KEPT.set(Some([Vec::new(), Vec::new()]));
        let answer = act();
        let [out, err] = KEPT.take().expect("was set above").map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (answer, out, err)
    }
}
