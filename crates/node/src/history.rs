//! The store as the watch hub reads it.

use std::ops::ControlFlow;

use bytes::Bytes;
use dolmen_watch::{Event, HistoryError, Scan, Scanned};

/// A slice of history to be read for watchers that are far behind, away from the node's thread: it may be on the disk only.
pub struct HistoryJob {
    scan: Scan,
    history: History,
}

impl HistoryJob {
    pub(crate) fn new(scan: Scan, history: History) -> Self {
        Self { scan, history }
    }

    /// Reads it; the node takes the outcome as [`crate::Input::Scanned`].
    pub fn run(self) -> Scanned {
        self.scan.run(&self.history)
    }
}

/// Reads history for watchers that are behind, and previous values for those that ask.
#[derive(Clone)]
pub(crate) struct History {
    reader: dolmen_mvcc::Reader,
}

impl History {
    pub(crate) fn new(reader: dolmen_mvcc::Reader) -> Self {
        Self { reader }
    }
}

/// A change of the key space as watchers see it.
pub(crate) fn event(change: dolmen_mvcc::Change) -> Event {
    Event {
        rev: change.rev,
        tombstone: change.tombstone,
        key: change.key,
        payload: change.payload,
        create: change.create,
    }
}

impl dolmen_watch::History for History {
    fn current(&self) -> i64 {
        self.reader.revision()
    }

    fn compact_revision(&self) -> i64 {
        self.reader.compact_revision()
    }

    fn scan(&self, from: i64, to: i64, visit: &mut dyn FnMut(Event) -> ControlFlow<()>) -> Result<(), HistoryError> {
        let event = |e: dolmen_mvcc::Event| Event {
            rev: e.rev,
            tombstone: e.tombstone,
            key: e.key,
            payload: e.payload,
            create: e.create,
        };
        self.reader.history(from, to, |change| visit(event(change))).map_err(|error| match error {
            dolmen_mvcc::RangeError::Compacted => HistoryError::Compacted { from },
            other => HistoryError::Failed(Box::new(other)),
        })
    }

    fn previous(&self, key: &Bytes, mod_revision: i64) -> Result<Option<Bytes>, HistoryError> {
        self.reader.prev_payload(key, mod_revision).map_err(|error| HistoryError::Previous {
            key: key.clone(),
            revision: mod_revision,
            cause: Box::new(error),
        })
    }
}
