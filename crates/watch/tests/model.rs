//! Random writes, creates, cancels, slow readers, compactions and restores against a client that knows the true history.
//! It holds etcd's promises for each watcher: ordered, unique, reliable, atomic, resumable, bookmarkable.
//!
//! A failure prints its seed: `WATCH_SEED=42 cargo test -p dolmen-watch --test model`.

mod common;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::{Op, Store, decode, settle};
use dolmen_env::{Mono, Rng};
use dolmen_proto::etcdserverpb::WatchResponse;
use dolmen_proto::mvccpb;
use dolmen_types::KeyRange;
use dolmen_watch::{Config, CreateRequest, Event, Hub, Limits, Outbox, Scan, StreamId};
use prost::Message;

/// What a client knows about one watcher.
struct Watch {
    request: CreateRequest,
    /// First revision it may and must see.
    start: i64,
    /// Position in the store's log: everything before it was received or not wanted.
    cursor: usize,
    /// The revision of the last event received.
    last: i64,
    fragmented: bool,
    compacted: bool,
}

impl Watch {
    fn wants(&self, event: &Event) -> bool {
        let filtered = if event.tombstone { self.request.no_delete } else { self.request.no_put };
        event.rev.main >= self.start && self.request.range.contains(&event.key) && !filtered
    }

    /// The next event it has to get, if it happened.
    fn expected<'a>(&mut self, store: &'a Store) -> Option<&'a Event> {
        while let Some(event) = store.log.get(self.cursor) {
            if self.wants(event) {
                return Some(event);
            }
            self.cursor += 1;
        }
        None
    }
}

struct Client {
    outbox: Arc<Outbox>,
    /// Create requests without a reply, each with the revision then current.
    asked: VecDeque<(CreateRequest, i64)>,
    watches: BTreeMap<i64, Watch>,
    /// What the server has to call the next watcher it names.
    next_id: i64,
    progress: u64,
}

impl Client {
    fn receive(&mut self, response: &WatchResponse, store: &Store) {
        let revision = response.header.as_ref().expect("every response has a header").revision;
        let id = response.watch_id;
        if response.created {
            return self.created(response, revision);
        }
        if response.canceled {
            let mut watch = self.watches.remove(&id).expect("only what exists is cancelled");
            assert!(response.events.is_empty() && response.cancel_reason.is_empty());
            if response.compact_revision != 0 {
                assert_eq!(revision, 0);
                assert!(!watch.compacted, "cancelled once");
                assert!(response.compact_revision <= store.compact && watch.last < response.compact_revision);
                watch.compacted = true;
                self.watches.insert(id, watch);
            }
            return;
        }
        if response.events.is_empty() {
            self.progress += 1;
            for (_, watch) in self.watches.iter_mut().filter(|(other, _)| id == -1 || **other == id) {
                assert!(!watch.compacted && watch.request.start_revision <= revision);
                let next = watch.expected(store).map_or(i64::MAX, |event| event.rev.main);
                assert!(next > revision, "progress {revision} before event {next}");
            }
            return;
        }
        let watch = self.watches.get_mut(&id).expect("events come after created and before cancelled");
        assert!(!watch.compacted);
        for event in &response.events {
            let expected = watch.expected(store).expect("no event that did not happen").clone();
            check_event(event, &expected, watch.request.prev_kv, store);
            watch.cursor += 1;
            watch.last = expected.rev.main;
        }
        assert!(revision >= watch.last);
        watch.fragmented = response.fragment;
        assert!(!response.fragment || watch.request.fragment);
        if !response.fragment {
            let last = watch.last;
            let next = watch.expected(store).map(|event| event.rev.main);
            assert_ne!(next, Some(last), "a revision comes whole");
        }
    }

    fn created(&mut self, response: &WatchResponse, revision: i64) {
        let (request, asked_at) = self.asked.pop_front().expect("a reply to each request, no more");
        let empty = matches!(&request.range, KeyRange::Range(start, end) if start >= end);
        let duplicate = self.watches.contains_key(&request.watch_id) && request.watch_id != 0;
        assert!(revision >= asked_at);
        if request.start_revision < 0 || empty || duplicate {
            assert!(response.canceled && response.watch_id == -1 && !response.cancel_reason.is_empty());
            return;
        }
        assert!(!response.canceled && response.cancel_reason.is_empty());
        if request.watch_id == 0 {
            while self.watches.contains_key(&self.next_id) {
                self.next_id += 1;
            }
            assert_eq!(response.watch_id, self.next_id);
            self.next_id += 1;
        } else {
            assert_eq!(response.watch_id, request.watch_id);
        }
        let start = if request.start_revision == 0 { asked_at + 1 } else { request.start_revision };
        let watch = Watch { request, start, cursor: 0, last: 0, fragmented: false, compacted: false };
        assert!(self.watches.insert(response.watch_id, watch).is_none());
    }
}

fn check_event(event: &mvccpb::Event, expected: &Event, prev_kv: bool, store: &Store) {
    let kv = event.kv.as_ref().expect("every event has a key");
    assert_eq!(event.r#type == 1, expected.tombstone);
    assert_eq!((&kv.key, kv.mod_revision), (&expected.key, expected.rev.main));
    if expected.tombstone {
        assert_eq!((kv.create_revision, kv.version, kv.value.len()), (0, 0, 0));
    } else {
        assert_eq!(kv.encode_to_vec(), expected.payload);
    }
    let before = store.true_previous(&expected.key, expected.rev.main);
    match &event.prev_kv {
        Some(got) => {
            assert!(prev_kv && !expected.is_create());
            assert_eq!(Some(Bytes::from(got.encode_to_vec())), before);
        }
        None => {
            let compacted = expected.rev.main <= store.compact;
            assert!(!prev_kv || before.is_none() || expected.is_create() || compacted, "a previous value is missing");
        }
    }
}

struct World {
    rng: Rng,
    store: Store,
    hub: Hub,
    clients: BTreeMap<u64, Client>,
    next_stream: u64,
    /// Committed and visible to readers, not yet notified.
    pending: Vec<Event>,
    /// A revision that readers do not see yet, and how much of it was notified.
    hidden: Option<(Vec<Event>, usize)>,
    /// A slice of history that is being read.
    scan: Option<Scan>,
    now: u64,
    transcript: String,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let config = Config {
            cluster_id: seed | 1,
            member_id: 2,
            max_request_bytes: 100,
            progress_interval: Duration::from_millis(300),
            near_revisions: *rng.pick(&[0, 3, 100]),
            queue_bytes: *rng.pick(&[4_000, 1 << 20, 128 << 20]),
        };
        Self {
            rng,
            store: Store::default(),
            hub: Hub::new(config, 1),
            clients: BTreeMap::new(),
            next_stream: 0,
            pending: Vec::new(),
            hidden: None,
            scan: None,
            now: 0,
            transcript: String::new(),
        }
    }

    fn key(&mut self) -> Bytes {
        let len = self.rng.range(1, 3);
        (0..len).map(|_| b"abcd"[self.rng.below(4) as usize]).collect::<Vec<_>>().into()
    }

    fn range(&mut self) -> KeyRange {
        match self.rng.below(5) {
            0 => KeyRange::From(self.key()),
            1 | 2 => KeyRange::Range(self.key(), self.key()),
            _ => KeyRange::Single(self.key()),
        }
    }

    fn ops(&mut self) -> Vec<Op> {
        let count = match self.rng.below(1000) {
            0..700 => 1,
            700..995 => self.rng.range(2, 6),
            // More than is handed out as it comes.
            _ => self.rng.range(600, 1500),
        };
        let large = count < 6 && self.rng.chance(10);
        (0..count)
            .map(|_| {
                let key = self.key();
                if self.rng.chance(250) {
                    Op::Delete(key)
                } else {
                    // Large enough that a revision of several is cut into fragments.
                    let len = if large { 300_000 } else { self.rng.below(60) };
                    Op::Put(key, vec![b'v'; len as usize].into())
                }
            })
            .collect()
    }

    fn commit(&mut self) -> Vec<Event> {
        let ops = self.ops();
        self.store.commit(ops)
    }

    fn notify(&mut self) {
        let events = std::mem::take(&mut self.pending);
        self.hub.notify(events);
    }

    /// Goes on with a revision that comes in parts, or begins one.
    fn notify_part(&mut self) {
        let Some((events, done)) = self.hidden.take() else {
            self.notify();
            let ops: Vec<Op> = (0..3).flat_map(|_| self.ops()).collect();
            let events = self.store.apply(ops);
            self.hidden = Some((events, 0)).filter(|(events, _)| !events.is_empty());
            return;
        };
        let to = events.len().min(done + self.rng.range(1, 400) as usize);
        self.hub.notify_part(events[done..to].to_vec());
        if to == events.len() {
            self.store.show(&events);
            self.hub.notify_end(self.store.current);
        } else {
            self.hidden = Some((events, to));
        }
    }

    fn work(&mut self) -> bool {
        self.hub.work(&self.store).expect("the model store reads")
    }

    fn any_client(&mut self) -> Option<u64> {
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        if ids.is_empty() { None } else { Some(*self.rng.pick(&ids)) }
    }

    fn open(&mut self) {
        let bytes = *self.rng.pick(&[300, 2_000, 16 << 20]);
        let limits = Limits { bytes, responses: *self.rng.pick(&[1, 3, 128]) };
        let stream = self.next_stream;
        self.next_stream += 1;
        let outbox = Arc::new(Outbox::new(0, stream, limits));
        self.hub.open(StreamId(stream), outbox.clone());
        let client = Client { outbox, asked: VecDeque::new(), watches: BTreeMap::new(), next_id: 0, progress: 0 };
        self.clients.insert(stream, client);
    }

    fn create(&mut self, stream: u64) {
        let current = self.store.current;
        let start_revision = match self.rng.below(10) {
            0..4 => 0,
            4..8 => self.rng.range(1, current as u64 + 1) as i64,
            8 => current + self.rng.below(20) as i64,
            _ if self.rng.chance(100) => -1,
            // What a client does that lost its stream.
            _ => self.clients[&stream].watches.values().map(|watch| watch.last + 1).next().unwrap_or(0),
        };
        let request = CreateRequest {
            range: self.range(),
            start_revision,
            watch_id: if self.rng.chance(200) { self.rng.range(1, 12) as i64 } else { 0 },
            no_put: self.rng.chance(100),
            no_delete: self.rng.chance(100),
            prev_kv: self.rng.chance(300),
            progress_notify: self.rng.chance(300),
            fragment: self.rng.chance(300),
        };
        self.hub.create(StreamId(stream), request.clone(), current, self.store.compact);
        self.clients.get_mut(&stream).expect("picked from the clients").asked.push_back((request, current));
    }

    fn read(&mut self, stream: u64, max: usize) -> usize {
        let client = self.clients.get_mut(&stream).expect("picked from the clients");
        let drained = client.outbox.drain(max);
        if drained.room {
            self.hub.room(StreamId(stream));
        }
        for frame in &drained.frames {
            let response = decode(frame);
            writeln!(
                self.transcript,
                "{stream} {:?} {} events, {:?}",
                response.header, frame.events, response.watch_id
            )
            .expect("a string takes all");
            client.receive(&response, &self.store);
        }
        drained.frames.len()
    }

    fn step(&mut self) {
        let stream = self.any_client();
        match (self.rng.below(100), stream) {
            (0..35 | 95 | 96, _) if self.hidden.is_some() => self.notify_part(),
            (0..34, _) => {
                let events = self.commit();
                self.pending.extend(events);
                if self.rng.chance(800) {
                    self.notify();
                }
            }
            (34, _) => self.notify_part(),
            (35..60, Some(stream)) => {
                let max = self.rng.range(1, 6) as usize;
                self.read(stream, max);
            }
            (60..66, Some(stream)) => self.create(stream),
            (66..73, Some(stream)) => {
                // A client gets rid of what the server cancelled; now and then of something else.
                let watches = &self.clients[&stream].watches;
                let mut ids: Vec<i64> =
                    watches.iter().filter(|(_, watch)| watch.compacted).map(|(id, _)| *id).collect();
                if ids.is_empty() {
                    ids = watches.keys().copied().collect();
                }
                let id = if ids.is_empty() { 99 } else { *self.rng.pick(&ids) };
                self.hub.cancel(StreamId(stream), id);
            }
            (73..79, Some(stream)) => self.hub.progress(StreamId(stream)),
            (79..90, _) => {
                self.work();
                match self.scan.take() {
                    // The store moves on while it is read.
                    Some(scan) if self.rng.chance(700) => {
                        self.hub.scanned(scan.run(&self.store)).expect("the model store reads");
                    }
                    Some(scan) => self.scan = Some(scan),
                    None => self.scan = self.hub.next_scan(),
                }
            }
            (90..95, _) => {
                self.now += self.rng.below(200);
                self.hub.tick(Mono::from_millis(self.now));
            }
            (95, _) => {
                let low = self.store.compact.max(1) as u64;
                self.store.compact = self.rng.range(low, self.store.current as u64 + 1) as i64;
            }
            (96, _) => {
                for _ in 0..self.rng.range(1, 20) {
                    self.commit();
                }
                if self.rng.chance(300) {
                    let low = self.store.compact.max(1) as u64;
                    self.store.compact = self.rng.range(low, self.store.current as u64 + 1) as i64;
                }
                self.pending.clear();
                self.hub.on_restore(self.store.current);
            }
            (97, Some(stream)) if self.clients.len() > 2 => {
                self.clients.remove(&stream).expect("picked from the clients").outbox.abandon();
                self.hub.close(StreamId(stream));
            }
            _ => {
                if self.clients.len() < 5 {
                    self.open();
                }
            }
        }
    }

    /// Every reader reads to the end; then everything that happened has arrived.
    fn finish(&mut self) {
        while self.hidden.is_some() {
            self.notify_part();
        }
        self.notify();
        if let Some(scan) = self.scan.take() {
            self.hub.scanned(scan.run(&self.store)).expect("the model store reads");
        }
        let streams: Vec<u64> = self.clients.keys().copied().collect();
        for round in 0.. {
            assert!(round < 100_000, "the hub does not come to rest");
            self.hub.tick(Mono::from_millis(self.now));
            settle(&mut self.hub, &self.store).expect("the model store reads");
            let read: usize = streams.iter().map(|stream| self.read(*stream, usize::MAX)).sum();
            if read == 0 && self.hub.stats().slow_watchers == 0 {
                break;
            }
        }
        let mut alive = 0;
        for client in self.clients.values_mut() {
            assert!(client.asked.is_empty(), "a request without a reply");
            for watch in client.watches.values_mut().filter(|watch| !watch.compacted) {
                assert_eq!(watch.expected(&self.store), None, "an event is missing");
                assert!(!watch.fragmented, "a last fragment is missing");
                alive += 1;
            }
        }
        let stats = self.hub.stats();
        assert_eq!((stats.watchers, stats.pending_events), (alive, 0));
        // A client that asks now is told, unless one of its watchers waits for the future or was cancelled.
        for stream in streams {
            let revision = self.store.current;
            let client = &self.clients[&stream];
            let waits = |watch: &Watch| watch.compacted || watch.request.start_revision > revision;
            let told = !client.watches.is_empty() && !client.watches.values().any(waits);
            let before = client.progress;
            self.hub.progress(StreamId(stream));
            self.read(stream, usize::MAX);
            assert_eq!(self.clients[&stream].progress > before, told);
        }
    }
}

fn run(seed: u64) -> (String, u64, u64) {
    /// Says which seed failed, whatever panics.
    struct Said(u64);
    impl Drop for Said {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("WATCH_SEED={} cargo test -p dolmen-watch --test model", self.0);
            }
        }
    }
    let _said = Said(seed);
    let mut world = World::new(seed);
    for _ in 0..1500 {
        world.step();
    }
    world.finish();
    let progress = world.clients.values().map(|client| client.progress).sum();
    (world.transcript, world.hub.stats().events_total, progress)
}

#[test]
fn every_watcher_keeps_its_promises() {
    let seeds = match std::env::var("WATCH_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("a number");
            seed..seed + 1
        }
        Err(_) => 0..60,
    };
    let (mut events, mut progress) = (0, 0);
    for seed in seeds {
        let run = run(seed);
        events += run.1;
        progress += run.2;
    }
    println!("{events} events, {progress} progress responses");
    assert!(events > 0 && progress > 0);
}

#[test]
fn one_seed_is_one_run() {
    assert!(run(7).0 == run(7).0);
}
