//! Measures the hub alone: what one event costs with N watchers of its key, and what a look-up costs among N ranges.
//!
//! `cargo run --release -p dolmen-watch --example fanout`

#![allow(clippy::disallowed_methods, reason = "a measurement needs a clock")]

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use dolmen_types::{KeyRange, Revision};
use dolmen_watch::{Config, CreateRequest, Event, History, HistoryError, Hub, Limits, Outbox, StreamId};

struct Nothing(i64);

impl History for Nothing {
    fn current(&self) -> i64 {
        self.0
    }
    fn compact_revision(&self) -> i64 {
        -1
    }
    fn scan(&self, _from: i64, _to: i64, _visit: &mut dyn FnMut(Event) -> ControlFlow<()>) -> Result<(), HistoryError> {
        Ok(())
    }
    fn previous(&self, _key: &Bytes, _mod_revision: i64) -> Result<Option<Bytes>, HistoryError> {
        Ok(None)
    }
}

fn measure(name: &str, streams: u64, each: u64, range: impl Fn(u64) -> KeyRange) {
    let mut hub = Hub::new(Config { cluster_id: u64::MAX, member_id: u64::MAX, ..Config::default() }, 1);
    hub.set_term(3);
    let outboxes: Vec<_> = (0..streams)
        .map(|stream| {
            let outbox = Arc::new(Outbox::new(0, stream, Limits { bytes: usize::MAX, responses: usize::MAX }));
            hub.open(StreamId(stream), outbox.clone());
            for watcher in 0..each {
                hub.create(StreamId(stream), CreateRequest::new(range(stream * each + watcher)), 1, -1);
            }
            outbox.drain(usize::MAX);
            outbox
        })
        .collect();
    let rounds = 200;
    let (mut notify, mut drain) = (0, 0);
    for round in 0..rounds {
        let event = Event {
            rev: Revision::new(round + 2, 0),
            tombstone: false,
            key: format!("key{:08}", round * 37).into(),
            payload: vec![0; 256].into(),
            create: 1,
        };
        let start = Instant::now();
        hub.notify(vec![event]);
        while hub.work(&Nothing(round + 2)).expect("this store can be read") {}
        hub.take_wakeups();
        notify += start.elapsed().as_nanos();
        let start = Instant::now();
        for outbox in &outboxes {
            outbox.drain(usize::MAX);
        }
        drain += start.elapsed().as_nanos();
    }
    let sent = hub.stats().events_total;
    println!(
        "{name}: {} us an event, {} ns a response sent, {} ns drained, {sent} responses",
        notify / rounds as u128 / 1000,
        notify / u128::from(sent.max(1)),
        drain / u128::from(sent.max(1)),
    );
}

fn main() {
    let all = |_| KeyRange::Range("key".into(), "kez".into());
    measure("10,000 streams with one watcher of everything", 10_000, 1, all);
    measure("one stream with 10,000 watchers of everything", 1, 10_000, all);
    measure("10,000 watchers of a key each", 100, 100, |at| KeyRange::Single(format!("key{at:08}").into()));
    measure("10,000 watchers of a range each", 100, 100, |at| {
        KeyRange::Range(format!("key{at:08}").into(), format!("key{:08}", at + 3).into())
    });
}
