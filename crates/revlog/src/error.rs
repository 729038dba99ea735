use std::io;
use std::path::{Path, PathBuf};

use dolmen_types::Revision;

/// What can go wrong with the store. Every message names the file and says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused. After a write, sync, rename or remove this is fatal: nothing is tried again.
    #[error("{}: cannot {context}; stop this member, check the disk, and start it again", file.display())]
    Io { file: PathBuf, context: &'static str, source: io::Error },

    /// Bytes that were once made durable are no longer what was written.
    #[error(
        "{}: damaged at byte {offset}: {what}; do not start this member on these files: restore the directory from a \
         backup, or remove the member from its cluster and add it again with an empty directory",
        file.display()
    )]
    Corrupt { file: PathBuf, offset: u64, what: String },

    /// A record whose bytes no longer match its checksum.
    #[error(
        "{}: the record of revision {}.{} at byte {offset} does not match its checksum; the member must fetch it again \
         from a peer, or be removed from its cluster and added with an empty directory",
        file.display(), revision.main, revision.sub
    )]
    Record { file: PathBuf, offset: u64, revision: Revision },

    /// Written by a version that stores things another way.
    #[error(
        "{}: store format version {found}, but this program reads version {supported}; start the version that wrote it, \
         or restore a snapshot",
        file.display()
    )]
    Version { file: PathBuf, found: u32, supported: u32 },

    /// Not a file of ours.
    #[error("{}: not a file of this store ({what}); move it out of the directory", file.display())]
    Foreign { file: PathBuf, what: &'static str },

    /// Named in MANIFEST, or MANIFEST itself, and not there.
    #[error("{}: missing; restore the directory from a backup, or add the member again with an empty one", file.display())]
    Missing { file: PathBuf },

    /// Another process holds the store.
    #[error("{}: locked by another process; only one may serve a directory", dir.display())]
    Locked { dir: PathBuf },

    /// The caller's records break the order the log lives by.
    #[error("revision {}.{} does not come after {}.{}; a snapshot must be pushed in revision order", next.main, next.sub, last.main, last.sub)]
    Order { last: Revision, next: Revision },

    /// A key or value longer than the format can say.
    #[error("the record of revision {}.{} is {bytes} bytes long; the store holds at most {max}", revision.main, revision.sub)]
    TooLarge { revision: Revision, bytes: usize, max: usize },
}

impl Error {
    pub(crate) fn io(file: &Path, context: &'static str) -> impl FnOnce(io::Error) -> Self {
        let file = file.to_owned();
        move |source| Self::Io { file, context, source }
    }

    pub(crate) fn corrupt(file: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Corrupt { file: file.to_owned(), offset, what: what.into() }
    }
}
