//! What one turn does, and what is held in memory, however many watchers there are and however much they are behind.

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::{Op, Store, settle};
use dolmen_types::KeyRange;
use dolmen_watch::{CloseReason, Config, CreateRequest, Drained, Hub, Limits, Outbox, StreamId};

/// No turn touches more watchers than this.
const TURN: u64 = 4096;

fn put(key: &str, len: usize) -> Op {
    Op::Put(Bytes::copy_from_slice(key.as_bytes()), vec![b'x'; len].into())
}

fn single(key: &'static str) -> CreateRequest {
    CreateRequest::new(KeyRange::Single(key.into()))
}

fn all() -> CreateRequest {
    CreateRequest::new(KeyRange::From(Bytes::new()))
}

fn open(hub: &mut Hub, stream: u64) -> Arc<Outbox> {
    let outbox = Arc::new(Outbox::new(0, stream, Limits::default()));
    hub.open(StreamId(stream), outbox.clone());
    outbox
}

/// Reads to the end; how many events there were, and the most bytes that were queued.
fn read(hub: &mut Hub, stream: u64, outbox: &Outbox) -> u64 {
    let mut events = 0;
    loop {
        let Drained { frames, more, room } = outbox.drain(64);
        events += frames.iter().map(|frame| u64::from(frame.events)).sum::<u64>();
        if room {
            hub.room(StreamId(stream));
        }
        if !more {
            return events;
        }
    }
}

#[test]
fn one_event_for_very_many_watchers_takes_several_turns_and_makes_no_victims() {
    const WATCHERS: u64 = 20_000;
    let mut store = Store::default();
    let mut hub = Hub::new(Config::default(), 1);
    let outboxes = [open(&mut hub, 0), open(&mut hub, 1)];
    for watcher in 0..WATCHERS {
        hub.create(StreamId(watcher % 2), single("k"), 1, -1);
    }
    for outbox in &outboxes {
        read(&mut hub, 0, outbox);
    }
    // More than the limit on entries allows if each response were one.
    let revisions = 100;
    for _ in 0..revisions {
        hub.notify(store.commit(vec![put("k", 100)]));
    }
    let (mut turns, mut before) = (0, 0);
    loop {
        let more = hub.work(&store).expect("readable");
        let sent = hub.stats().events_total;
        assert!(sent - before <= TURN, "{} in one turn", sent - before);
        (turns, before) = (turns + 1, sent);
        if !more {
            break;
        }
    }
    assert!(turns > 1);
    assert_eq!(hub.stats().slow_watchers, 0);
    let events: u64 = outboxes.iter().map(|outbox| read(&mut hub, 0, outbox)).sum();
    assert_eq!(events, WATCHERS * revisions);
}

#[test]
fn streams_with_very_many_watchers_go_away_in_several_turns() {
    const WATCHERS: u64 = 30_000;
    let mut store = Store::default();
    let mut hub = Hub::new(Config::default(), 1);
    let outbox = open(&mut hub, 1);
    let other = open(&mut hub, 2);
    for _ in 0..WATCHERS {
        hub.create(StreamId(1), single("k"), 1, -1);
    }
    hub.create(StreamId(2), single("k"), 1, -1);
    read(&mut hub, 2, &other);
    outbox.abandon();
    hub.close_because(StreamId(1), CloseReason::Finished);
    // The stream is gone at once; its watchers, in time. Others hear of what happens meanwhile, and once.
    assert_eq!((hub.stats().streams, hub.stats().watchers), (1, WATCHERS + 1));
    let mut before = hub.stats().watchers;
    for _ in 0..3 {
        hub.notify(store.commit(vec![put("k", 1)]));
    }
    while hub.work(&store).expect("readable") {
        let now = hub.stats().watchers;
        assert!(before - now <= TURN);
        before = now;
    }
    assert_eq!(hub.stats().watchers, 1);
    assert_eq!(read(&mut hub, 2, &other), 3);
}

#[test]
fn a_revision_of_very_many_events_is_read_from_the_store_once_for_all_who_want_the_same() {
    const EVENTS: usize = 60_000;
    let mut store = Store::default();
    let mut hub = Hub::new(Config::default(), 1);
    let outboxes: Vec<_> = (0..20).map(|stream| open(&mut hub, stream)).collect();
    for stream in 0..20 {
        for _ in 0..50 {
            hub.create(StreamId(stream), all(), 1, -1);
        }
    }
    for (stream, outbox) in (0..).zip(&outboxes) {
        read(&mut hub, stream, outbox);
    }
    hub.notify(store.commit((0..EVENTS).map(|at| put(&format!("k{at:08}"), 10)).collect()));
    let (mut turns, mut scans) = (0, 0);
    loop {
        let more = hub.work(&store).expect("readable");
        turns += 1;
        match hub.next_scan() {
            Some(scan) => {
                scans += 1;
                hub.scanned(scan.run(&store)).expect("readable");
            }
            None if !more => break,
            None => {}
        }
    }
    assert_eq!(scans, 1);
    assert!(turns >= EVENTS as u64 / TURN, "{turns} turns");
    let mut tails = std::collections::BTreeSet::new();
    for outbox in &outboxes {
        let mut frames = Vec::new();
        loop {
            let drained = outbox.drain(64);
            frames.extend(drained.frames);
            if !drained.more {
                break;
            }
        }
        assert_eq!(frames.len(), 50, "one response a watcher");
        assert!(frames.iter().all(|frame| frame.events == EVENTS as u32));
        tails.extend(frames.iter().map(|frame| frame.tail.as_ptr()));
    }
    assert_eq!(tails.len(), 1, "one buffer for all");
}

#[test]
fn watchers_that_stand_near_each_other_share_a_slice() {
    const WATCHERS: i64 = 3000;
    let mut store = Store::default();
    let mut hub = Hub::new(Config::default(), 1);
    for _ in 0..WATCHERS {
        hub.notify(store.commit(vec![put("k", 200)]));
    }
    settle(&mut hub, &store).expect("readable");
    let outbox = open(&mut hub, 1);
    for at in 0..WATCHERS {
        hub.create(StreamId(1), CreateRequest { start_revision: 2 + at / 30, ..single("k") }, store.current, -1);
    }
    let mut scans = 0;
    let mut events = 0;
    loop {
        let more = hub.work(&store).expect("readable");
        events += read(&mut hub, 1, &outbox);
        match hub.next_scan() {
            Some(scan) => {
                scans += 1;
                hub.scanned(scan.run(&store)).expect("readable");
            }
            None if !more && hub.stats().slow_watchers == 0 => break,
            None => {}
        }
    }
    // 800 KB of history; what the outbox does not take at once is read again.
    assert!(scans <= 20, "{scans} scans for {WATCHERS} watchers");
    assert_eq!(events, (0..WATCHERS as u64).map(|at| WATCHERS as u64 - at / 30).sum::<u64>());
}

#[test]
fn what_all_streams_hold_is_bounded_together() {
    const TOTAL: usize = 4 << 20;
    const STREAMS: u64 = 100;
    let mut store = Store::default();
    let mut hub = Hub::new(Config { queue_bytes: TOTAL, near_revisions: 0, ..Config::default() }, 1);
    for at in 0..2000 {
        hub.notify(store.commit(vec![put(&format!("k{:02}", at % STREAMS), 10_000)]));
    }
    settle(&mut hub, &store).expect("readable");
    // Streams that share nothing, and read nothing.
    let outboxes: Vec<_> = (0..STREAMS).map(|stream| open(&mut hub, stream)).collect();
    for stream in 0..STREAMS {
        let key = Bytes::from(format!("k{stream:02}"));
        let request = CreateRequest { start_revision: 2, ..CreateRequest::new(KeyRange::Single(key)) };
        hub.create(StreamId(stream), request, store.current, -1);
    }
    for _ in 0..20 {
        hub.notify(store.commit((0..100).map(|at| put(&format!("k{at:02}"), 2000)).collect()));
        settle(&mut hub, &store).expect("readable");
        let held: usize = outboxes.iter().map(|outbox| outbox.bytes()).sum();
        // What is used up when a slice is begun, and that slice.
        assert!(held <= TOTAL + (2 << 20), "{held} bytes");
    }
    // None is shut out by the others, and when they read, everything comes.
    let mut events = vec![0; STREAMS as usize];
    for _ in 0..1000 {
        for stream in 0..STREAMS {
            events[stream as usize] += read(&mut hub, stream, &outboxes[stream as usize]);
        }
        settle(&mut hub, &store).expect("readable");
    }
    assert_eq!(events, vec![40; STREAMS as usize]);
    assert_eq!(hub.stats().slow_watchers, 0);
}
