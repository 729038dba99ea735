//! The store as the watch hub reads it.

use bytes::Bytes;
use dolmen_watch::{Event, HistoryError};

/// Reads history for watchers that are behind, and previous values for those that ask.
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

    fn history(&self, from: i64, max_bytes: usize) -> Result<Vec<Event>, HistoryError> {
        let events = self.reader.history(from, self.reader.revision(), max_bytes).map_err(|error| match error {
            dolmen_mvcc::RangeError::Compacted => HistoryError::Compacted { from },
            other => HistoryError::Failed(Box::new(other)),
        })?;
        Ok(events
            .into_iter()
            .map(|e| Event { rev: e.rev, tombstone: e.tombstone, key: e.key, payload: e.payload, create: e.create })
            .collect())
    }

    fn previous(&self, key: &Bytes, mod_revision: i64) -> Result<Option<Bytes>, HistoryError> {
        self.reader.prev_payload(key, mod_revision).map_err(|error| HistoryError::Previous {
            key: key.clone(),
            revision: mod_revision,
            cause: Box::new(error),
        })
    }
}
