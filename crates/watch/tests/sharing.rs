//! One key, ten thousand watchers: each event exists once. And a reader that never reads costs no more than its limit.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use common::{Op, Store, decode, settle};
use dolmen_env::Mono;
use dolmen_types::KeyRange;
use dolmen_watch::{CloseReason, Config, CreateRequest, Drained, History, Hub, Limits, Outbox, StreamId};

fn put(key: &str, len: usize) -> Vec<Op> {
    vec![Op::Put(Bytes::copy_from_slice(key.as_bytes()), vec![b'x'; len].into())]
}

fn single(key: &'static str) -> CreateRequest {
    CreateRequest::new(KeyRange::Single(key.into()))
}

fn open(hub: &mut Hub, stream: u64, limits: Limits) -> Arc<Outbox> {
    let outbox = Arc::new(Outbox::new((stream % 2) as u16, stream, limits));
    hub.open(StreamId(stream), outbox.clone());
    outbox
}

#[test]
fn watchers_of_one_key_share_the_bytes_of_an_event() {
    const STREAMS: u64 = 100;
    const EACH: usize = 100;
    let mut store = Store::default();
    let mut hub = Hub::new(Config::default(), 1);
    let outboxes: Vec<_> = (0..STREAMS).map(|stream| open(&mut hub, stream, Limits::default())).collect();
    for stream in 0..STREAMS {
        for watcher in 0..EACH {
            let range = if watcher % 2 == 0 { single("k").range } else { KeyRange::Range("a".into(), "z".into()) };
            hub.create(StreamId(stream), CreateRequest::new(range), store.current(), store.compact_revision());
        }
    }
    assert_eq!(hub.take_wakeups().len(), STREAMS as usize, "one wake-up a stream, not a response");
    for outbox in &outboxes {
        assert_eq!(outbox.drain(usize::MAX).frames.len(), EACH);
    }
    let two = [put("k", 100), put("k", 200)].concat();
    for ops in [put("k", 1000), two] {
        hub.notify(store.commit(ops));
        settle(&mut hub, &store).expect("readable");
        assert_eq!(hub.take_wakeups().len(), STREAMS as usize);
        let frames: Vec<_> = outboxes.iter().flat_map(|outbox| outbox.drain(usize::MAX).frames).collect();
        assert_eq!(frames.len(), STREAMS as usize * EACH);
        let buffers: BTreeSet<*const u8> = frames.iter().map(|frame| frame.tail.as_ptr()).collect();
        assert_eq!(buffers.len(), 1, "one buffer for all");
        assert_eq!(decode(&frames[0]).header.map(|header| header.revision), Some(store.current()));
    }
    assert_eq!(hub.stats().pending_events, 0);
    assert_eq!(hub.stats().events_total, STREAMS * EACH as u64 * 3);

    // A replay shares as well.
    let late: Vec<_> = (0..10).map(|stream| open(&mut hub, STREAMS + stream, Limits::default())).collect();
    for stream in 0..10 {
        let request = CreateRequest { start_revision: 2, ..single("k") };
        hub.create(StreamId(STREAMS + stream), request, store.current(), store.compact_revision());
    }
    settle(&mut hub, &store).expect("readable");
    let buffers: BTreeSet<*const u8> =
        late.iter().map(|outbox| outbox.drain(usize::MAX).frames[1].tail.as_ptr()).collect();
    assert_eq!(buffers.len(), 1);
}

#[test]
fn a_reader_that_never_reads_holds_its_limit_and_no_more() {
    let mut store = Store::default();
    let mut hub = Hub::new(Config::default(), 1);
    let by_bytes = open(&mut hub, 1, Limits { bytes: 100_000, responses: 1_000_000 });
    let by_count = open(&mut hub, 2, Limits { bytes: usize::MAX, responses: 50 });
    for stream in [1, 2] {
        hub.create(StreamId(stream), single("k"), 1, -1);
        hub.create(StreamId(stream), CreateRequest::new(KeyRange::From("a".into())), 1, -1);
    }
    for round in 0..2000 {
        hub.notify(store.commit(put("k", 1000)));
        settle(&mut hub, &store).expect("readable");
        hub.tick(Mono::from_millis(round * 10));
        assert!(by_bytes.bytes() <= 100_000, "{}", by_bytes.bytes());
    }
    assert_eq!(hub.stats().slow_watchers, 4);
    // Nobody was woken for what is still unread.
    assert_eq!(hub.take_wakeups().len(), 2);

    // There is work again when the reader has read half, and it says so itself: nothing waits for a tick.
    assert!(!hub.has_unsynced());
    assert!(!by_count.drain(25).room);
    let Drained { frames, room, .. } = by_count.drain(27);
    assert_eq!((frames.len(), room), (27, true));
    assert!(!by_count.drain(1).room, "said once a refusal");
    hub.room(StreamId(2));
    assert!(hub.work(&store).is_ok());

    // Everything comes once the reader reads.
    for (stream, outbox, before) in [(1, &by_bytes, 0), (2, &by_count, 51)] {
        let mut events = before;
        loop {
            let Drained { frames, room, .. } = outbox.drain(10);
            assert!(frames.len() <= 10);
            events += frames.iter().map(|frame| frame.events).sum::<u32>();
            if room {
                hub.room(StreamId(stream));
            }
            settle(&mut hub, &store).expect("readable");
            if frames.is_empty() {
                break;
            }
        }
        assert_eq!(events, 4000, "two watchers of 2,000 events each");
    }
    assert_eq!((hub.stats().slow_watchers, hub.stats().pending_events), (0, 0));
}

#[test]
fn a_closed_stream_says_why_and_an_abandoned_one_is_dropped() {
    let mut store = Store::default();
    let mut hub = Hub::new(Config::default(), 1);
    let outboxes: Vec<_> = (0..3).map(|stream| open(&mut hub, stream, Limits::default())).collect();
    for stream in 0..3 {
        hub.create(StreamId(stream), single("k"), 1, -1);
    }
    hub.notify(store.commit(put("k", 10)));
    settle(&mut hub, &store).expect("readable");
    assert_eq!(hub.take_wakeups(), [(0, 0), (1, 1), (0, 2)]);
    outboxes[1].abandon();
    assert_eq!(hub.stats().pending_events, 2);
    hub.notify(store.commit(put("k", 10)));
    settle(&mut hub, &store).expect("readable");
    assert_eq!(
        (outboxes[1].bytes(), outboxes[1].drain(9).frames.len()),
        (0, 0),
        "what comes for an ended stream is dropped"
    );
    hub.close(StreamId(1));
    hub.close_because(StreamId(0), CloseReason::NoLeader);
    hub.close_all(CloseReason::Stopping);
    assert_eq!(hub.take_wakeups(), [(0, 0), (0, 2)]);
    let reasons: Vec<_> = outboxes.iter().map(|outbox| outbox.closed()).collect();
    assert_eq!(reasons, [Some(CloseReason::NoLeader), Some(CloseReason::Finished), Some(CloseReason::Stopping)]);
    assert_eq!(outboxes[2].drain(9).frames.len(), 3, "what was queued is still there");
    drop(outboxes);
    settle(&mut hub, &store).expect("readable");
    assert_eq!((hub.stats().streams, hub.stats().watchers, hub.stats().pending_events), (0, 0, 0));
}

#[test]
fn ten_thousand_creates_and_cancels_leave_nothing_behind() {
    let mut store = Store::default();
    let mut hub = Hub::new(Config::default(), 1);
    let outbox = open(&mut hub, 1, Limits::default());
    for round in 0..10_000i64 {
        let request = CreateRequest { start_revision: round % 3, progress_notify: round % 2 == 0, ..single("k") };
        hub.create(StreamId(1), request, store.current(), store.compact_revision());
        if round % 5 == 0 {
            let ops = if round % 2 == 0 { put("k", 1) } else { vec![Op::Delete("k".into())] };
            hub.notify(store.commit(ops));
            settle(&mut hub, &store).expect("readable");
        }
        if round % 7 == 0 {
            settle(&mut hub, &store).expect("readable");
        }
        hub.cancel(StreamId(1), round);
        outbox.drain(usize::MAX);
    }
    let stats = hub.stats();
    assert_eq!((stats.watchers, stats.slow_watchers, stats.pending_events), (0, 0, 0));
    assert!(!hub.has_unsynced());
}

#[test]
fn a_previous_value_that_cannot_be_read_is_an_error_and_no_creation() {
    let mut store = Store::default();
    let mut hub = Hub::new(Config::default(), 1);
    let outbox = open(&mut hub, 1, Limits::default());
    let plain = open(&mut hub, 2, Limits::default());
    hub.create(StreamId(1), CreateRequest { prev_kv: true, ..single("k") }, store.current(), store.compact_revision());
    hub.create(StreamId(2), single("k"), store.current(), store.compact_revision());
    hub.notify(store.commit(put("k", 1)));
    settle(&mut hub, &store).expect("readable");
    assert_eq!((outbox.drain(9).frames.len(), plain.drain(9).frames.len()), (2, 2), "the created reply and an event");
    store.damaged = true;
    hub.notify(store.commit(put("k", 2)));
    let error = hub.work(&store).expect_err("damaged");
    assert_eq!(error.to_string(), "what key b\"k\" held before revision 3 cannot be read");
    assert!(outbox.drain(9).frames.is_empty());

    // The same for one that catches up; one that does not ask for previous values does.
    let mut hub = Hub::new(Config::default(), store.current());
    let outbox = open(&mut hub, 1, Limits::default());
    hub.create(
        StreamId(1),
        CreateRequest { prev_kv: true, start_revision: 3, ..single("k") },
        store.current(),
        store.compact_revision(),
    );
    assert!(settle(&mut hub, &store).is_err() && hub.has_unsynced());
    assert_eq!(outbox.drain(9).frames.len(), 1, "the created reply alone");
    store.damaged = false;
    assert!(settle(&mut hub, &store).is_ok() && !hub.has_unsynced());
    let frames = outbox.drain(9).frames;
    assert!(decode(&frames[0]).events[0].prev_kv.is_some());
}
