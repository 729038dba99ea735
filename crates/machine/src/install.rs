//! The machine's state as a bbolt file, and back: what a follower that fell behind is sent, what a backup holds, and
//! what an etcd member reads and writes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use dolmen_bolt::BoltReader;
use dolmen_env::{Disk, DiskFile, OpenMode};
use dolmen_mvcc::{RangeError, RestoreError, Restored, SnapshotSource};
use dolmen_revlog::{Builder, Table, TableOp};
use dolmen_types::{Index, Term};

use crate::chain::CHAIN;
use crate::{Machine, OpenError};

/// Why a snapshot cannot be installed. The old state stands untouched.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("reading the snapshot {path}")]
    Snapshot {
        path: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("rebuilding the store from the snapshot {path}")]
    Restore {
        path: PathBuf,
        #[source]
        source: RestoreError,
    },
    #[error("the snapshot {path} ends at index {} of term {}, its message says index {} of term {}", found.0, found.1, wanted.0, wanted.1)]
    Position { path: PathBuf, found: (Index, Term), wanted: (Index, Term) },
}

/// Rebuilds the store from a bbolt file beside the one in use; runs on any thread, takes long for a large file.
pub struct InstallJob {
    disk: Arc<dyn Disk>,
    db: PathBuf,
    position: (Index, Term),
    builder: Builder,
}

/// A store ready to take the place of the old one: [`Machine::finish_install`].
pub struct Installed {
    restored: Restored,
}

impl Machine {
    /// Everything as a replayable source of a bbolt file, pinned at the present applied index. To be called between
    /// runs.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn snapshot_source(&self) -> Result<SnapshotSource, RangeError> {
        assert!(!self.dirty, "a snapshot is taken between runs");
        let mut tables = self.store.log_ref().tables().clone();
        tables.apply(TableOp { table: Table::Meta, key: Bytes::from_static(CHAIN.as_bytes()), value: None });
        self.store.reader().snapshot_source(tables, self.applied, self.applied_term)
    }

    /// The legacy store that a snapshot message carries in its data field.
    pub fn snapshot_message_data(&self) -> Bytes {
        self.membership.to_v2_store_json(self.applied).into()
    }

    /// Prepares the installation of the snapshot file `db`, which a peer sent for this index and its term.
    pub fn begin_install(&mut self, disk: Arc<dyn Disk>, db: &Path, position: (Index, Term)) -> InstallJob {
        InstallJob { disk, db: db.to_owned(), position, builder: self.store.log().replace() }
    }

    /// Puts an installed snapshot in the place of the present state. After a crash either stands whole.
    ///
    /// # Errors
    /// The disk failed (the process must stop), or the file's tables are not etcd's.
    pub fn finish_install(&mut self, installed: Installed) -> Result<(), OpenError> {
        self.ops.clear();
        // What was half done is of the state that goes.
        self.work = None;
        self.dirty = false;
        self.compaction = None;
        let report = self.store.install(installed.restored)?;
        self.load(report.leases)
    }
}

impl InstallJob {
    /// # Errors
    /// The file is no etcd database or is damaged, or the disk failed.
    pub fn run(self) -> Result<Installed, InstallError> {
        let path = self.db.clone();
        let unreadable =
            |source: Box<dyn std::error::Error + Send + Sync>| InstallError::Snapshot { path: path.clone(), source };
        let file = self.disk.open(&self.db, OpenMode::Read).map_err(|e| unreadable(e.into()))?;
        let reader = BoltReader::open(Snapshot { file }).map_err(|e| unreadable(e.into()))?;
        let source = reader.source().map_err(|e| unreadable(e.into()))?;
        let restored = dolmen_mvcc::restore_from(self.builder, &source)
            .map_err(|source| InstallError::Restore { path: path.clone(), source })?;
        // A file may have been taken a little after the index its message names, never before it, nor of another history.
        let (found, wanted) = (restored.position(), self.position);
        if found.0 < wanted.0 || found.1 < wanted.1 || (found.0 == wanted.0 && found.1 != wanted.1) {
            return Err(InstallError::Position { path, found, wanted });
        }
        Ok(Installed { restored })
    }
}

/// A snapshot file as bbolt's reader takes it.
struct Snapshot {
    file: Box<dyn DiskFile>,
}

impl dolmen_bolt::ReadAt for Snapshot {
    fn byte_len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn bytes_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes.into())
    }
}
