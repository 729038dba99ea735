//! A store in memory, simple enough to be right, for the hub to read and the tests to compare with.

#![allow(dead_code, reason = "each test uses what it needs")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use dolmen_proto::etcdserverpb::WatchResponse;
use dolmen_proto::mvccpb::KeyValue;
use dolmen_types::Revision;
use dolmen_watch::{Event, Frame, History, HistoryError, Hub};
use prost::Message;

/// One change a test asks for.
#[derive(Clone, Debug)]
pub enum Op {
    Put(Bytes, Bytes),
    Delete(Bytes),
}

#[derive(Clone)]
pub struct Store {
    pub current: i64,
    pub compact: i64,
    /// Every event there ever was, compacted or not.
    pub log: Vec<Event>,
    live: BTreeMap<Bytes, KeyValue>,
    /// Previous values cannot be read.
    pub damaged: bool,
}

impl Default for Store {
    fn default() -> Self {
        Self { current: 1, compact: -1, log: Vec::new(), live: BTreeMap::new(), damaged: false }
    }
}

impl Store {
    /// Applies changes as one revision and returns its events; none when nothing changed.
    pub fn commit(&mut self, ops: Vec<Op>) -> Vec<Event> {
        let events = self.apply(ops);
        self.show(&events);
        events
    }

    /// Lets readers see what was applied last.
    pub fn show(&mut self, events: &[Event]) {
        self.current = events.last().map_or(self.current, |event| event.rev.main);
    }

    /// As `commit`, but readers see nothing of it yet.
    pub fn apply(&mut self, ops: Vec<Op>) -> Vec<Event> {
        let main = self.current + 1;
        let mut events = Vec::new();
        for op in ops {
            let rev = Revision::new(main, events.len() as i64);
            match op {
                Op::Put(key, value) => {
                    let before = self.live.get(&key);
                    let kv = KeyValue {
                        key: key.clone(),
                        value,
                        create_revision: before.map_or(main, |kv| kv.create_revision),
                        mod_revision: main,
                        version: before.map_or(1, |kv| kv.version + 1),
                        lease: 0,
                    };
                    let (payload, create) = (kv.encode_to_vec().into(), kv.create_revision);
                    self.live.insert(key.clone(), kv);
                    events.push(Event { rev, tombstone: false, key, payload, create });
                }
                Op::Delete(key) => {
                    if self.live.remove(&key).is_some() {
                        let payload = KeyValue { key: key.clone(), ..Default::default() }.encode_to_vec().into();
                        events.push(Event { rev, tombstone: true, key, payload, create: 0 });
                    }
                }
            }
        }
        self.log.extend(events.iter().cloned());
        events
    }

    /// What `previous` answers if nothing is compacted.
    pub fn true_previous(&self, key: &[u8], mod_revision: i64) -> Option<Bytes> {
        let end = self.log.partition_point(|event| event.rev.main < mod_revision);
        let last = self.log[..end].iter().rev().find(|event| event.key == key)?;
        (!last.tombstone).then(|| last.payload.clone())
    }
}

impl History for Store {
    fn current(&self) -> i64 {
        self.current
    }

    fn compact_revision(&self) -> i64 {
        self.compact
    }

    fn scan(&self, from: i64, to: i64, visit: &mut dyn FnMut(Event) -> ControlFlow<()>) -> Result<(), HistoryError> {
        if from < self.compact {
            return Err(HistoryError::Compacted { from });
        }
        let start = self.log.partition_point(|event| event.rev.main < from);
        for event in self.log[start..].iter().take_while(|event| event.rev.main <= to) {
            if visit(event.clone()).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn previous(&self, key: &Bytes, mod_revision: i64) -> Result<Option<Bytes>, HistoryError> {
        if self.damaged {
            return Err(HistoryError::Previous { key: key.clone(), revision: mod_revision, cause: "bit rot".into() });
        }
        Ok(if mod_revision > self.compact { self.true_previous(key, mod_revision) } else { None })
    }
}

/// Decodes a frame, and checks on the way that it is encoded as a protobuf library encodes it.
pub fn decode(frame: &Frame) -> WatchResponse {
    let mut bytes = Vec::new();
    frame.write_to(&mut bytes);
    assert_eq!(bytes.len(), frame.len());
    let response = WatchResponse::decode(&bytes[..]).expect("a frame is a WatchResponse");
    assert_eq!(response.encode_to_vec(), bytes, "canonical protobuf");
    assert_eq!(response.events.len(), frame.events as usize);
    response
}

/// Lets the hub do all there is to do, reads elsewhere included.
pub fn settle(hub: &mut Hub, store: &Store) -> Result<(), HistoryError> {
    for _ in 0..100_000 {
        let more = hub.work(store)?;
        match hub.next_scan() {
            Some(scan) => hub.scanned(scan.run(store))?,
            None if !more => return Ok(()),
            None => {}
        }
    }
    panic!("the hub does not come to rest");
}
