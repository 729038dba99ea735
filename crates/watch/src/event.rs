//! Events as the hub takes them, the store as the hub reads it, and the wire form both end in.

use std::collections::BTreeMap;

use bytes::Bytes;
use dolmen_types::Revision;

use crate::head::{bytes_field_len, put_bytes, put_varint, varint_len};

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub rev: Revision,
    /// The key was deleted.
    pub tombstone: bool,
    pub key: Bytes,
    /// The encoded `mvccpb.KeyValue` as stored. Not read for a tombstone: on the wire a delete event carries key and
    /// mod revision, and the hub writes those.
    pub payload: Bytes,
    /// The key's create revision; equal to `rev.main` when this put created it. Not read for a tombstone.
    pub create: i64,
}

impl Event {
    /// A put of a key that did not exist. Such an event never has a previous key-value.
    pub fn is_create(&self) -> bool {
        !self.tombstone && self.create == self.rev.main
    }
}

/// Why the store did not give its history.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The revision asked for is below the compact revision, although [`History::compact_revision`] did not say so.
    #[error("revision {from} is compacted")]
    Compacted { from: i64 },
    /// The store could not be read; fatal for the member.
    #[error("the store's history cannot be read")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// As `Failed`, of one value that a watcher wants to see beside the one that replaced it.
    #[error("what key {key:?} held before revision {revision} cannot be read")]
    Previous {
        key: Bytes,
        revision: i64,
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The store, as far as watchers need it.
pub trait History {
    /// The main revision readers see.
    fn current(&self) -> i64;

    /// The lowest revision that may still be asked for; 0 or below when nothing was compacted.
    fn compact_revision(&self) -> i64;

    /// Events from main revision `from` on, in revision order, whole revisions only. Stops at the first revision
    /// boundary at or after `max_bytes` of keys and payloads, so it holds at least one revision unless there is none left
    /// up to [`History::current`]. `from` is never below the compact revision; the event *at* the compact revision is
    /// part of the history, also when it is a tombstone.
    ///
    /// # Errors
    /// See [`HistoryError`].
    fn history(&self, from: i64, max_bytes: usize) -> Result<Vec<Event>, HistoryError>;

    /// The encoded `mvccpb.KeyValue` the key had at main revision `mod_revision - 1`; `None` when it had none, or when
    /// that revision is compacted.
    ///
    /// # Errors
    /// [`HistoryError::Previous`] when the store cannot be read.
    fn previous(&self, key: &Bytes, mod_revision: i64) -> Result<Option<Bytes>, HistoryError>;
}

/// Field number of `WatchResponse.events`.
const EVENTS: u8 = 11;

/// Encodes one element of `WatchResponse.events`, tag and length included.
fn encode(event: &Event, previous: Option<&[u8]>) -> Bytes {
    let delete_kv;
    let kv: &[u8] = if event.tombstone {
        let mut kv = Vec::with_capacity(event.key.len() + 16);
        if !event.key.is_empty() {
            put_bytes(&mut kv, 1, &event.key);
        }
        kv.push(3 << 3);
        put_varint(&mut kv, event.rev.main as u64);
        delete_kv = kv;
        &delete_kv
    } else {
        &event.payload
    };
    let type_len = if event.tombstone { 2 } else { 0 };
    let body = type_len + bytes_field_len(kv.len()) + previous.map_or(0, |kv| bytes_field_len(kv.len()));
    let mut out = Vec::with_capacity(1 + varint_len(body as u64) + body);
    out.push(EVENTS << 3 | 2);
    put_varint(&mut out, body as u64);
    if event.tombstone {
        out.extend_from_slice(&[1 << 3, 1]);
    }
    put_bytes(&mut out, 2, kv);
    if let Some(previous) = previous {
        put_bytes(&mut out, 3, previous);
    }
    out.into()
}

/// Some of a batch's events, encoded one after the other: what all watchers share that get exactly these.
#[derive(Clone)]
pub(crate) struct Encoded {
    pub bytes: Bytes,
    /// Where each event ends in `bytes`.
    pub ends: std::sync::Arc<[usize]>,
}

/// A run of events and the wire forms made of it so far. Each event is encoded at most once without and once with its
/// previous key-value, each set of events joined at most once, however many watchers get it.
pub(crate) struct Batch<'a> {
    events: &'a [Event],
    source: &'a dyn History,
    plain: Vec<Option<Bytes>>,
    with_previous: Vec<Option<Bytes>>,
    /// Sets of event positions, each with and without previous key-values.
    sets: BTreeMap<(bool, Vec<u32>), Encoded>,
    /// Bytes encoded or joined so far: the work done, for budgets.
    pub spent: usize,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(events: &'a [Event], source: &'a dyn History) -> Self {
        Self {
            events,
            source,
            plain: vec![None; events.len()],
            with_previous: Vec::new(),
            sets: BTreeMap::new(),
            spent: 0,
        }
    }

    /// The main revision of the event at `position`.
    pub(crate) fn revision_of(&self, position: u32) -> i64 {
        self.events[position as usize].rev.main
    }

    /// The wire form of the events at `positions` (ascending, not empty).
    ///
    /// # Errors
    /// A previous key-value that cannot be read: better none of the events than one that looks like a creation.
    pub(crate) fn encoded(&mut self, positions: &[u32], previous: bool) -> Result<Encoded, HistoryError> {
        // Only creations: the previous key-values are absent, and the other form can be shared.
        let previous = previous && positions.iter().any(|at| !self.events[*at as usize].is_create());
        let key = (previous, positions.to_vec());
        if let Some(encoded) = self.sets.get(&key) {
            return Ok(encoded.clone());
        }
        let encoded = if let [only] = positions {
            let bytes = self.event(*only as usize, previous)?;
            Encoded { ends: [bytes.len()].into(), bytes }
        } else {
            let parts: Vec<Bytes> =
                positions.iter().map(|at| self.event(*at as usize, previous)).collect::<Result<_, _>>()?;
            let mut joined = Vec::with_capacity(parts.iter().map(Bytes::len).sum());
            let mut ends = Vec::with_capacity(parts.len());
            for part in &parts {
                joined.extend_from_slice(part);
                ends.push(joined.len());
            }
            self.spent += joined.len();
            Encoded { bytes: joined.into(), ends: ends.into() }
        };
        self.sets.insert(key, encoded.clone());
        Ok(encoded)
    }

    fn event(&mut self, at: usize, previous: bool) -> Result<Bytes, HistoryError> {
        let event = &self.events[at];
        let previous = previous && !event.is_create();
        if previous && self.with_previous.is_empty() {
            self.with_previous = vec![None; self.events.len()];
        }
        let slot = if previous { &mut self.with_previous[at] } else { &mut self.plain[at] };
        if let Some(bytes) = slot {
            return Ok(bytes.clone());
        }
        let bytes = if previous {
            let before = self.source.previous(&event.key, event.rev.main)?;
            encode(event, before.as_deref())
        } else {
            encode(event, None)
        };
        self.spent += bytes.len();
        *slot = Some(bytes.clone());
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use dolmen_proto::etcdserverpb::WatchResponse;
    use dolmen_proto::mvccpb::{self, KeyValue, event::EventType};
    use prost::Message;

    use super::*;

    #[test]
    fn events_are_what_prost_writes() {
        let kv = KeyValue { key: "k".into(), create_revision: 2, mod_revision: 5, version: 3, ..Default::default() };
        let before = KeyValue { value: vec![9; 200].into(), mod_revision: 4, ..kv.clone() };
        let put = Event {
            rev: Revision::new(5, 0),
            tombstone: false,
            key: "k".into(),
            payload: kv.encode_to_vec().into(),
            create: 2,
        };
        let delete = Event { tombstone: true, payload: Bytes::new(), create: 0, ..put.clone() };
        let delete_kv = KeyValue { key: "k".into(), mod_revision: 5, ..Default::default() };
        for (event, previous, r#type, kv) in [
            (&put, None, EventType::Put, &kv),
            (&put, Some(&before), EventType::Put, &kv),
            (&delete, None, EventType::Delete, &delete_kv),
            (&delete, Some(&before), EventType::Delete, &delete_kv),
        ] {
            let expected = WatchResponse {
                events: vec![mvccpb::Event { r#type: r#type as i32, kv: Some(kv.clone()), prev_kv: previous.cloned() }],
                ..Default::default()
            };
            let previous = previous.map(KeyValue::encode_to_vec);
            assert_eq!(encode(event, previous.as_deref()), expected.encode_to_vec());
        }
    }
}
