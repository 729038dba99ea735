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
    let mut stdout = std::io::stdout().lock();
    let outcome = stdout.write_all(&bytes).and_then(|()| stdout.flush());
    if outcome.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        std::process::exit(BROKEN_PIPE);
    }
}

/// Writes to stderr, as [`print`] to stdout; errors are ignored, since there is nowhere to tell them.
pub fn complain(text: impl AsRef<str>) {
    let _ = std::io::stderr().lock().write_all(&words::bytes(text.as_ref()));
}
