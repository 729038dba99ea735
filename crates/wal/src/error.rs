use std::io;
use std::path::{Path, PathBuf};

use dolmen_types::{Index, Term};

/// Why the log cannot be opened or written. Each is final for this process.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// The disk refused. The state of the file is unknown; stop the process, the next start reads what is there.
    #[error("{context}")]
    Io { context: String, source: io::Error },
    /// Durable records are damaged or missing. `index` is the first log index that can no longer be vouched for.
    #[error(
        "the log is damaged: {} at offset {offset}: {what}; entries from index {index} on were durable and may have been \
         acknowledged, so this member must not vote or serve from what is left; keep the file for inspection, then remove \
         the member from the cluster and add it again with an empty data directory, or restore its data directory from a \
         backup if no other member holds the data",
        file.display()
    )]
    Corrupt { file: PathBuf, offset: u64, index: Index, what: String },
    /// Another process has the log open.
    #[error("{} is locked: another process uses this data directory; stop it first", file.display())]
    Locked { file: PathBuf },
    /// No snapshot record says that the log may be read from there.
    #[error(
        "the log records no snapshot of index {index}, term {term}: the store and the log do not belong together, or the \
         log has been cut above it; restore both from the same backup"
    )]
    NoSnapshot { index: Index, term: Term },
    /// There is no log to open.
    #[error("no log segment in {}", dir.display())]
    Missing { dir: PathBuf },
    /// There is a log already.
    #[error("{} already holds a log", dir.display())]
    AlreadyExists { dir: PathBuf },
    /// The slots remember a log that is no longer there.
    #[error(
        "{} is gone, but this member had a durable log up to index {index}: a new log here would forget its votes and \
         acknowledged writes; bring the directory back, or remove the member from the cluster and start it again with \
         an empty data directory",
        dir.display()
    )]
    Vanished { dir: PathBuf, index: Index },
    /// An earlier write or sync failed; nothing is retried.
    #[error("an earlier write to the log failed; the process has to restart")]
    Failed,
}

/// Puts words to an I/O error.
pub(crate) trait Context<T> {
    fn context(self, doing: &str, path: &Path) -> Result<T, WalError>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, doing: &str, path: &Path) -> Result<T, WalError> {
        self.map_err(|source| WalError::Io { context: format!("cannot {doing} {}", path.display()), source })
    }
}
