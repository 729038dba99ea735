//! A start that failed: what the log says, with what to do about it, and the exit code.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::path::Path;

use dolmen_datadir::ImportError;
use dolmen_node::StartError;
use dolmen_types::error_chain;
use dolmen_wal::WalError;

/// Data on disk is damaged or of another kind.
pub const EXIT_DATA: u8 = 65;

/// What to log, and the exit code.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// What was being done, as the message of the log.
    pub what: &'static str,
    pub text: String,
    pub code: u8,
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self { what: "discovery failed", text, code: 1 }
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let of_data = matches!(
            error,
            StartError::Wal(WalError::Corrupt { .. } | WalError::Vanished { .. })
                | StartError::MissingLog { .. }
                | StartError::Machine(_)
        );
        Self { what: "cannot start on the data directory", text: explained(&error), code: code(&error, of_data) }
    }
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Self {
        let of_data = matches!(error, ImportError::Wal(_) | ImportError::Database { .. });
        let text = format!("cannot import the etcd data directory: {}", explained(&error));
        Self { what: "cannot start on the data directory", text, code: code(&error, of_data) }
    }
}

impl Failure {
    /// The data directory itself cannot be made or entered.
    pub fn of_directory(dir: &Path, error: &io::Error) -> Self {
        let text = format!("cannot access data directory {}: {error}{}", dir.display(), remedy(error.kind()));
        Self { what: "cannot start on the data directory", text, code: 1 }
    }

    /// A port cannot be had, or not with the certificates given.
    pub fn of_ports(text: String) -> Self {
        Self { what: "cannot listen", text, code: 1 }
    }
}

/// Files that the operating system keeps from us say nothing about what is in them.
fn code(error: &(dyn Error + 'static), of_data: bool) -> u8 {
    if of_data && refusal(error).is_none() { EXIT_DATA } else { 1 }
}

/// The whole chain, and what to do where the operating system's own words do not tell.
pub fn explained(error: &(dyn Error + 'static)) -> String {
    let remedy = refusal(error).map_or("", |refusal| remedy(refusal.kind()));
    format!("{}{remedy}", error_chain(error))
}

/// The operating system's error at the end of a chain.
fn refusal<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(refusal) = error.downcast_ref::<io::Error>().filter(|error| error.raw_os_error().is_some()) {
            return Some(refusal);
        }
        cause = error.source();
    }
    None
}

fn remedy(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::PermissionDenied => {
            "; let the user that this server runs as read and write everything below the data directory, or choose another \
             --data-dir"
        }
        ErrorKind::ReadOnlyFilesystem => "; make the file system writable, or choose another --data-dir",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; make room on the disk and start again",
        ErrorKind::NotADirectory | ErrorKind::IsADirectory | ErrorKind::AlreadyExists => {
            "; something else lies where the member keeps its files: move it away, or choose another --data-dir"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn store(source: io::Error) -> StartError {
        let error = dolmen_revlog::Error::Io { file: PathBuf::from("/d/MANIFEST"), context: "open", source };
        StartError::Machine(dolmen_machine::OpenError::Log(error))
    }

    #[test]
    fn files_out_of_reach_are_not_called_damaged() {
        let failure = Failure::from(store(io::Error::from_raw_os_error(13)));
        assert_eq!(failure.code, 1);
        assert_eq!(
            failure.text,
            "opening the store: /d/MANIFEST: cannot open; stop this member, check the disk, and start it again: Permission \
             denied (os error 13); let the user that this server runs as read and write everything below the data \
             directory, or choose another --data-dir"
        );
        // The disk's own words need no help.
        let failure = Failure::from(store(io::Error::from_raw_os_error(5)));
        assert!(failure.text.ends_with("(os error 5)"), "{}", failure.text);
    }

    #[test]
    fn damage_has_a_code_of_its_own() {
        let missing = dolmen_revlog::Error::Missing { file: PathBuf::from("/d/MANIFEST") };
        let failure = Failure::from(StartError::Machine(dolmen_machine::OpenError::Log(missing)));
        assert_eq!(failure.code, EXIT_DATA);
        assert_eq!(Failure::from(StartError::Locked { dir: PathBuf::from("/d") }).code, 1);
        assert_eq!(Failure::from(StartError::MissingLog { applied: 9, dir: PathBuf::from("/d") }).code, EXIT_DATA);
    }
}
