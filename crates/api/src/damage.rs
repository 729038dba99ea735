//! Records that a read found damaged: what is said of them, to whom.
//!
//! The client is told `DataLoss`, and that other members may well have what it wants. Whoever runs the member is told once a
//! record, in the log: file, offset, revision and key. `/health` names the first of them for as long as it cannot be read; one
//! that was repaired, or that compaction has let go of, is forgotten when it is looked at next.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use dolmen_mvcc::{RangeError, Reader};
use dolmen_types::{Revision, error_chain};
use parking_lot::Mutex;

use crate::stats::Counter;
use crate::status::{Code, Status};

/// Records remembered. Damage beyond that is counted, and told to clients; the disk is what has to be looked at.
const MAX_RECORDS: usize = 64;

/// See the module page.
#[derive(Default)]
pub struct Damage {
    /// Reads that met a damaged record.
    pub reads: Counter,
    /// By revision, what was wrong.
    records: Arc<Mutex<BTreeMap<Revision, String>>>,
}

impl Damage {
    /// What a client is told of a failed read; damage is noted.
    pub fn status(&self, reader: &Reader, error: RangeError) -> Status {
        let revision = match &error {
            RangeError::Compacted => return crate::status::COMPACTED,
            RangeError::FutureRevision => return crate::status::FUTURE_REVISION,
            RangeError::Lost(revision) => Some(*revision),
            RangeError::Log(error) => record(error),
        };
        self.note(reader, revision, error_chain(&error))
    }

    /// As [`Damage::status`], of a read whose error lies below others.
    pub fn status_below(&self, reader: &Reader, error: &(dyn Error + 'static)) -> Option<Status> {
        let mut below = Some(error);
        while let Some(error) = below {
            // An I/O error shows what it was made of, and not as its source.
            let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
            let inner = inner.map(|inner| inner as &(dyn Error + 'static));
            let revision = match error.downcast_ref::<RangeError>() {
                Some(RangeError::Lost(revision)) => Some(*revision),
                _ => error.downcast_ref::<dolmen_revlog::Error>().and_then(record),
            };
            if revision.is_some() {
                return Some(self.note(reader, revision, error_chain(error)));
            }
            below = inner.or_else(|| error.source());
        }
        None
    }

    fn note(&self, reader: &Reader, revision: Option<Revision>, what: String) -> Status {
        self.reads.add(1);
        let Some(revision) = revision else {
            tracing::error!(error = what.as_str(), "the store cannot be read");
            return Status::new(
                Code::DataLoss,
                "etcdserver: the store of this member cannot be read; ask another member",
            );
        };
        let text = format!(
            "etcdserver: the record of revision {}.{} is damaged on this member; ask another member",
            revision.main, revision.sub
        );
        let mut records = self.records.lock();
        if records.len() < MAX_RECORDS && !records.contains_key(&revision) {
            records.insert(revision, what.clone());
            drop(records);
            report(reader.clone(), revision, what);
        }
        Status::owned(Code::DataLoss, text)
    }

    /// Why this member is not well, if it is not.
    pub fn reason(&self, reader: &Reader) -> Option<String> {
        loop {
            let (revision, what) = self.records.lock().first_key_value().map(|(at, what)| (*at, what.clone()))?;
            match reader.payload(revision) {
                Ok(_) => {
                    tracing::info!(main = revision.main, sub = revision.sub, "a damaged record is well again, or gone");
                    self.records.lock().remove(&revision);
                }
                Err(_) => return Some(format!("DATA LOSS: {what}")),
            }
        }
    }

    /// Damaged records that are known of.
    pub fn known(&self) -> usize {
        self.records.lock().len()
    }
}

fn record(error: &dolmen_revlog::Error) -> Option<Revision> {
    if let dolmen_revlog::Error::Record { revision, .. } = error { Some(*revision) } else { None }
}

/// Says which record it is. Finding its key takes a walk through the index, which the caller need not wait for.
fn report(reader: Reader, revision: Revision, what: String) {
    let say = move || {
        let key = reader.key_of(revision).map(|key| key.escape_ascii().to_string());
        let (main, sub) = (revision.main, revision.sub);
        tracing::error!(key, main, sub, error = what.as_str(), "a record of the store is damaged");
    };
    if let Err(error) = std::thread::Builder::new().name("damage".into()).spawn(say) {
        tracing::error!(error = %error, main = revision.main, sub = revision.sub, "a record of the store is damaged");
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use dolmen_env::SimDisk;
    use dolmen_mvcc::Store;
    use dolmen_revlog::{Log, Options};

    use super::*;

    fn damaged(main: i64) -> RangeError {
        RangeError::Log(dolmen_revlog::Error::Record {
            file: PathBuf::from("7.seg"),
            offset: 99,
            revision: Revision::new(main, 0),
        })
    }

    #[test]
    fn damage_is_told_remembered_and_forgotten_once_it_can_be_read() {
        let disk = Arc::new(SimDisk::new(1));
        let options = Options { segment_bytes: 1 << 20, spare_bytes: 0, ..Options::default() };
        let (log, recovered) = Log::open(disk, &PathBuf::from("/store"), options).unwrap();
        let (store, _) = Store::open(log, recovered).unwrap();
        let (reader, damage) = (store.reader(), Damage::default());
        let status = damage.status(&reader, damaged(5));
        assert_eq!((status.code, damage.known(), damage.reads.get()), (Code::DataLoss, 1, 1));
        assert!(status.message.contains("revision 5.0"), "{status}");
        assert_eq!(damage.status(&reader, RangeError::Compacted), crate::status::COMPACTED);

        // As a snapshot meets it: below an I/O error, below what the writer makes of that.
        let below = std::io::Error::other(std::io::Error::other(damaged(6)));
        assert_eq!(damage.status_below(&reader, &below).map(|status| status.code), Some(Code::DataLoss));
        assert_eq!(damage.status_below(&reader, &std::io::Error::other("the caller has gone")), None);
        assert_eq!((damage.known(), damage.reads.get()), (2, 2));

        // This store has neither: they were let go of.
        assert_eq!((damage.reason(&reader), damage.known()), (None, 0));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let disk = Arc::new(SimDisk::new(1));
        let options = Options { segment_bytes: 1 << 20, spare_bytes: 0, ..Options::default() };
        let (log, recovered) = Log::open(disk, &PathBuf::from("/store"), options).unwrap();
        let (store, _) = Store::open(log, recovered).unwrap();
        let (reader, damage) = (store.reader(), Damage::default());
        for main in 0..1000 {
            assert_eq!(damage.status(&reader, damaged(main)).code, Code::DataLoss);
        }
        assert_eq!((damage.known(), damage.reads.get()), (MAX_RECORDS, 1000));
    }
}
