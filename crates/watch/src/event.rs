//! Events as the hub takes them, the store as the hub reads it, and the wire form both end in.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_types::Revision;

use crate::budget::Budget;
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

    /// Shows the events of main revisions `from..=to` in order, until `visit` breaks. `from` is never below the compact
    /// revision; the event *at* the compact revision is part of the history, also when it is a tombstone. Nothing is
    /// gathered: a revision may be larger than memory allows.
    ///
    /// # Errors
    /// See [`HistoryError`].
    fn scan(&self, from: i64, to: i64, visit: &mut dyn FnMut(Event) -> ControlFlow<()>) -> Result<(), HistoryError>;

    /// The encoded `mvccpb.KeyValue` the key had at main revision `mod_revision - 1`; `None` when it had none, or when
    /// that revision is compacted.
    ///
    /// # Errors
    /// [`HistoryError::Previous`] when the store cannot be read.
    fn previous(&self, key: &Bytes, mod_revision: i64) -> Result<Option<Bytes>, HistoryError>;
}

/// What reading a previous value costs a budget besides its bytes: it may be a page that is not in memory.
pub(crate) const PREVIOUS_COST: usize = 4096;

/// Field number of `WatchResponse.events`.
const EVENTS: u8 = 11;

/// Appends one element of `WatchResponse.events`, tag and length included.
pub(crate) fn encode(out: &mut Vec<u8>, event: &Event, previous: Option<&[u8]>) {
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
    out.reserve(1 + varint_len(body as u64) + body);
    out.push(EVENTS << 3 | 2);
    put_varint(out, body as u64);
    if event.tombstone {
        out.extend_from_slice(&[1 << 3, 1]);
    }
    put_bytes(out, 2, kv);
    if let Some(previous) = previous {
        put_bytes(out, 3, previous);
    }
}

/// Where each element of encoded events ends, and how many there are up to there.
pub(crate) fn ends(events: &[u8]) -> impl Iterator<Item = usize> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = events.get(at + 1..).filter(|rest| !rest.is_empty())?;
        let (mut len, mut shift, mut prefix) = (0, 0, 1);
        for byte in rest {
            prefix += 1;
            len |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        at += prefix + len;
        Some(at)
    })
}

/// Some events encoded one after the other: what all watchers share that get exactly these.
#[derive(Clone, Debug)]
pub(crate) struct Encoded {
    pub bytes: Bytes,
    pub events: u32,
}

/// The wire forms made so far of one revision's events. Each event is encoded at most once without and once with its
/// previous key-value, each set of events joined at most once, however many watchers get it.
#[derive(Default)]
pub(crate) struct Batch {
    plain: Vec<Option<Bytes>>,
    with_previous: Vec<Option<Bytes>>,
    /// What was made.
    encoded: Vec<Encoded>,
    /// Of which sets of event positions, with and without previous key-values.
    sets: BTreeMap<(bool, Vec<u32>), u32>,
    /// Bytes encoded, joined or read so far: the work done, for budgets.
    pub spent: usize,
}

impl Batch {
    /// Makes the wire form of those of the `events` that stand at `positions` (ascending, not empty), unless it was made
    /// before. What is returned stands for it in [`Batch::get`].
    ///
    /// # Errors
    /// A previous key-value that cannot be read: better none of the events than one that looks like a creation.
    pub(crate) fn make(
        &mut self,
        events: &[Event],
        positions: &[u32],
        previous: bool,
        source: &dyn History,
        budget: &Arc<Budget>,
    ) -> Result<u32, HistoryError> {
        // Only creations: the previous key-values are absent, and the other form can be shared.
        let previous = previous && positions.iter().any(|at| !events[*at as usize].is_create());
        let key = (previous, positions.to_vec());
        if let Some(made) = self.sets.get(&key) {
            return Ok(*made);
        }
        let mut joined = Vec::new();
        match positions {
            [only] => self.encode(&mut joined, &events[*only as usize], previous, source)?,
            _ => {
                for at in positions {
                    joined.extend_from_slice(&self.part(events, *at as usize, previous, source)?);
                }
                self.spent += joined.len();
            }
        }
        let made = self.encoded.len() as u32;
        self.encoded.push(Encoded { bytes: budget.keep(joined), events: positions.len() as u32 });
        self.sets.insert(key, made);
        Ok(made)
    }

    pub(crate) fn get(&self, made: u32) -> &Encoded {
        &self.encoded[made as usize]
    }

    /// An event on its own, for the sets that it is joined into.
    fn part(
        &mut self,
        events: &[Event],
        at: usize,
        previous: bool,
        source: &dyn History,
    ) -> Result<Bytes, HistoryError> {
        let previous = previous && !events[at].is_create();
        let known = if previous { &mut self.with_previous } else { &mut self.plain };
        known.resize(events.len(), None);
        if let Some(bytes) = &known[at] {
            return Ok(bytes.clone());
        }
        let mut bytes = Vec::new();
        self.encode(&mut bytes, &events[at], previous, source)?;
        let bytes = Bytes::from(bytes);
        let known = if previous { &mut self.with_previous } else { &mut self.plain };
        known[at] = Some(bytes.clone());
        Ok(bytes)
    }

    fn encode(
        &mut self,
        out: &mut Vec<u8>,
        event: &Event,
        previous: bool,
        source: &dyn History,
    ) -> Result<(), HistoryError> {
        let before = if previous && !event.is_create() {
            self.spent += PREVIOUS_COST;
            source.previous(&event.key, event.rev.main)?
        } else {
            None
        };
        encode(out, event, before.as_deref());
        self.spent += out.len();
        Ok(())
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
            let mut encoded = Vec::new();
            encode(&mut encoded, event, previous.as_deref());
            assert_eq!(encoded, expected.encode_to_vec());
            encode(&mut encoded, event, None);
            let ends: Vec<usize> = ends(&encoded).collect();
            assert_eq!((ends.len(), ends[0], ends[1]), (2, expected.encoded_len(), encoded.len()));
        }
    }
}
