//! The hub: requests, live events, progress. Catching up is in `catch_up`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use dolmen_env::Mono;
use dolmen_types::KeyRange;

use crate::event::{Batch, Encoded, Event, History, HistoryError};
use crate::head::{HeadFields, put_bytes};
use crate::index::{Index, Place};
use crate::outbox::{CloseReason, Frame, Outbox, Pushed};

/// Names a stream; unique over the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// The watch id of responses that speak for no watcher.
const NO_WATCHER: i64 = -1;
/// A response grows to the request limit plus this before it is cut into fragments.
const FRAGMENT_SLACK: usize = 512 * 1024;

const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const EMPTY_RANGE: &str = "mvcc: watcher range is empty";
const DUPLICATE_ID: &str = "mvcc: duplicate watch ID provided on the WatchStream";

/// What a hub is built with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub cluster_id: u64,
    pub member_id: u64,
    /// `--max-request-bytes`; decides where responses are cut for watchers that asked for fragments.
    pub max_request_bytes: usize,
    /// Time between two progress responses of a watcher that asked for them, jitter included.
    pub progress_interval: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { cluster_id: 0, member_id: 0, max_request_bytes: 1_572_864, progress_interval: Duration::from_secs(600) }
    }
}

/// A `WatchCreateRequest`, its range parsed.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    pub range: KeyRange,
    /// First revision wanted; 0 for everything after now.
    pub start_revision: i64,
    /// 0: the hub picks.
    pub watch_id: i64,
    /// Filter NOPUT.
    pub no_put: bool,
    /// Filter NODELETE.
    pub no_delete: bool,
    pub prev_kv: bool,
    pub progress_notify: bool,
    pub fragment: bool,
}

impl CreateRequest {
    /// Events of `range` after now, no options.
    pub fn new(range: KeyRange) -> Self {
        Self {
            range,
            start_revision: 0,
            watch_id: 0,
            no_put: false,
            no_delete: false,
            prev_kv: false,
            progress_notify: false,
            fragment: false,
        }
    }
}

/// Counters for the metrics page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub streams: u64,
    /// Watchers that are not cancelled.
    pub watchers: u64,
    /// Of these, the unsynced ones and the victims.
    pub slow_watchers: u64,
    /// Events in outboxes.
    pub pending_events: u64,
    /// Events ever put into an outbox.
    pub events_total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// In the index. Everything notified so far that is at or after `next` was put into the outbox.
    Synced(Place),
    /// In `unsynced` and, under this ticket, in `turns`.
    Unsynced { ticket: u64 },
    /// In its stream's `victims`.
    Victim,
    /// Cancelled by compaction. Only its id lives on.
    Compacted,
}

pub(crate) struct Watcher {
    pub stream: StreamId,
    pub outbox: Arc<Outbox>,
    pub id: i64,
    pub range: KeyRange,
    start_revision: i64,
    /// No event below this main revision may be sent; all below it that were wanted have been. For a synced watcher
    /// it may lag behind what was notified, because only those that match are touched.
    pub next: i64,
    pub state: State,
    pub no_put: bool,
    pub no_delete: bool,
    pub prev_kv: bool,
    progress_notify: bool,
    pub fragment: bool,
    /// No event was sent since the last progress tick.
    quiet: bool,
}

impl Watcher {
    pub(crate) fn wants(&self, event: &Event) -> bool {
        event.rev.main >= self.next && !(if event.tombstone { self.no_delete } else { self.no_put })
    }
}

struct Stream {
    outbox: Arc<Outbox>,
    /// By watch id.
    watchers: BTreeMap<i64, u32>,
    next_id: i64,
    victims: BTreeSet<u32>,
    progress_at: Mono,
    /// Watchers that asked for progress responses.
    progress_watchers: usize,
}

/// All watchers of a member. See the crate's page.
pub struct Hub {
    config: Config,
    raft_term: u64,
    now: Mono,
    /// The highest main revision seen in any call: what replies name.
    revision: i64,
    /// The highest main revision whose events were handed to the synced watchers: what progress may name.
    notified: i64,
    streams: BTreeMap<StreamId, Stream>,
    pub(crate) watchers: Vec<Option<Watcher>>,
    free: Vec<u32>,
    index: Index,
    /// Unsynced watchers by next revision: who can share a slice of history.
    pub(crate) unsynced: BTreeSet<(i64, u32)>,
    /// Unsynced watchers in the order they are served.
    pub(crate) turns: BTreeMap<u64, u32>,
    next_ticket: u64,
    /// Streams with victims.
    starved: BTreeSet<StreamId>,
    /// Streams with watchers that asked for progress, by when it is due.
    progress: BTreeSet<(Mono, StreamId)>,
    wakeups: Vec<(u16, u64)>,
    live: u64,
    slow: u64,
    events_total: u64,
    pending_events: Arc<AtomicI64>,
    /// Kept between calls for its memory.
    matches: Vec<(u32, u32)>,
}

impl Hub {
    /// A hub without streams on a store whose readers see `revision`.
    pub fn new(config: Config, revision: i64) -> Self {
        Self {
            config,
            raft_term: 0,
            now: Mono::default(),
            revision,
            notified: revision,
            streams: BTreeMap::new(),
            watchers: Vec::new(),
            free: Vec::new(),
            index: Index::default(),
            unsynced: BTreeSet::new(),
            turns: BTreeMap::new(),
            next_ticket: 0,
            starved: BTreeSet::new(),
            progress: BTreeSet::new(),
            wakeups: Vec::new(),
            live: 0,
            slow: 0,
            events_total: 0,
            pending_events: Arc::default(),
            matches: Vec::new(),
        }
    }

    /// The term that response headers name from now on.
    pub fn set_term(&mut self, raft_term: u64) {
        self.raft_term = raft_term;
    }

    // ---- requests of a stream ----

    /// Adds a stream without watchers. A stream that is open already is closed first.
    pub fn open(&mut self, stream: StreamId, outbox: Arc<Outbox>) {
        self.close(stream);
        outbox.attach(self.pending_events.clone());
        let progress_at = self.after_interval();
        self.streams.insert(
            stream,
            Stream {
                outbox,
                watchers: BTreeMap::new(),
                next_id: 0,
                victims: BTreeSet::new(),
                progress_at,
                progress_watchers: 0,
            },
        );
    }

    /// Adds a watcher and replies: created, or created and cancelled with a reason. `current_revision`: what readers
    /// see now. One that starts below `compact_revision` is created and cancelled at once.
    ///
    /// Refused are, in this order: a negative start revision, an empty range, an id in use on this stream.
    pub fn create(&mut self, stream: StreamId, request: CreateRequest, current_revision: i64, compact_revision: i64) {
        self.see(current_revision);
        let Some(state) = self.streams.get_mut(&stream) else { return };
        if request.start_revision < 0 {
            return self.refuse(stream, COMPACTED);
        }
        let range = own(request.range);
        if matches!(&range, KeyRange::Range(start, end) if start >= end) {
            return self.refuse(stream, EMPTY_RANGE);
        }
        let id = if request.watch_id == 0 {
            while state.watchers.contains_key(&state.next_id) {
                state.next_id += 1;
            }
            state.next_id += 1;
            state.next_id - 1
        } else if state.watchers.contains_key(&request.watch_id) {
            return self.refuse(stream, DUPLICATE_ID);
        } else {
            request.watch_id
        };
        let behind = request.start_revision != 0 && request.start_revision <= current_revision;
        let watcher = Watcher {
            stream,
            outbox: state.outbox.clone(),
            id,
            range,
            start_revision: request.start_revision,
            next: if behind { request.start_revision } else { request.start_revision.max(current_revision + 1) },
            state: State::Compacted,
            no_put: request.no_put,
            no_delete: request.no_delete,
            prev_kv: request.prev_kv,
            progress_notify: request.progress_notify,
            fragment: request.fragment,
            quiet: true,
        };
        if request.progress_notify {
            state.progress_watchers += 1;
            self.progress.insert((state.progress_at, stream));
        }
        let slot = self.allocate(watcher);
        if let Some(state) = self.streams.get_mut(&stream) {
            state.watchers.insert(id, slot);
        }
        self.live += 1;
        let head = HeadFields { revision: self.revision, watch_id: id, created: true, ..self.head() };
        self.reply(slot, head);
        if !behind {
            self.make_synced(slot);
        } else if request.start_revision < compact_revision {
            self.cancel_compacted(slot, compact_revision);
        } else {
            self.make_unsynced(slot);
        }
    }

    /// Refuses a create request, with a reason as the client is to read it: created and cancelled, watch id -1.
    pub fn refuse(&mut self, stream: StreamId, reason: &str) {
        let Some(state) = self.streams.get(&stream) else { return };
        let mut tail = Vec::with_capacity(reason.len() + 4);
        put_bytes(&mut tail, 6, reason.as_bytes());
        let head =
            HeadFields { revision: self.revision, watch_id: NO_WATCHER, created: true, canceled: true, ..self.head() };
        if state.outbox.push_reply(Frame { head: head.encode(), tail: tail.into(), events: 0 }) {
            self.wakeups.push(state.outbox.address());
        }
    }

    /// Removes a watcher and replies. An unknown id is ignored.
    pub fn cancel(&mut self, stream: StreamId, watch_id: i64) {
        let Some(slot) = self.streams.get_mut(&stream).and_then(|state| state.watchers.remove(&watch_id)) else {
            return;
        };
        let head = HeadFields { revision: self.revision, watch_id, canceled: true, ..self.head() };
        self.reply(slot, head);
        let watcher = self.forget(slot);
        if watcher.progress_notify
            && let Some(state) = self.streams.get_mut(&stream)
        {
            state.progress_watchers -= 1;
            if state.progress_watchers == 0 {
                self.progress.remove(&(state.progress_at, stream));
            }
        }
    }

    /// Answers a progress request if every watcher of the stream is synced and wants the current revision; otherwise,
    /// without watchers, or into a full outbox, says nothing: clients ask again.
    pub fn progress(&mut self, stream: StreamId) {
        let Some(state) = self.streams.get(&stream) else { return };
        if state.watchers.is_empty() || !state.watchers.values().all(|slot| self.has_progress(*slot)) {
            return;
        }
        let head = HeadFields { revision: self.notified, watch_id: NO_WATCHER, ..self.head() };
        let frame = Frame { head: head.encode(), tail: Bytes::new(), events: 0 };
        if state.outbox.push_optional(frame) {
            self.wakeups.push(state.outbox.address());
        }
    }

    /// Removes a stream and its watchers. Unknown ones are ignored.
    pub fn close(&mut self, stream: StreamId) {
        self.close_because(stream, CloseReason::Finished);
    }

    /// Closes a stream and tells its reader why.
    pub fn close_because(&mut self, stream: StreamId, reason: CloseReason) {
        let Some(state) = self.streams.remove(&stream) else { return };
        self.progress.remove(&(state.progress_at, stream));
        self.starved.remove(&stream);
        for slot in state.watchers.into_values() {
            self.forget(slot);
        }
        if state.outbox.close(reason) {
            self.wakeups.push(state.outbox.address());
        }
    }

    /// Closes all streams.
    pub fn close_all(&mut self, reason: CloseReason) {
        while let Some((stream, _)) = self.streams.first_key_value() {
            self.close_because(*stream, reason);
        }
    }

    // ---- what the store did ----

    /// Hands committed events, in revision order, to the synced watchers. Readers of `source` must see them already.
    /// All events of a revision come in one call.
    ///
    /// # Errors
    /// A previous value that a watcher wants cannot be read. The member is ill: some watchers have had these events and
    /// some have not.
    pub fn notify(&mut self, events: &[Event], source: &dyn History) -> Result<(), HistoryError> {
        for revision in events.chunk_by(|a, b| a.rev.main == b.rev.main) {
            let main = revision[0].rev.main;
            debug_assert!(main > self.notified, "revision {main} was notified before");
            self.notify_revision(main, revision, source)?;
            self.notified = self.notified.max(main);
            self.see(main);
        }
        Ok(())
    }

    /// A snapshot replaced the store, which now stands at `current_revision`: synced watchers catch up from what they
    /// have seen. None goes back: those that want only later revisions stay as they are.
    pub fn on_restore(&mut self, current_revision: i64) {
        let notified = self.notified;
        self.see(current_revision);
        self.notified = notified.max(current_revision);
        for slot in 0..self.watchers.len() {
            let Some(watcher) = &mut self.watchers[slot] else { continue };
            if let State::Synced(_) = watcher.state {
                watcher.next = watcher.next.max(notified + 1);
                if watcher.next <= current_revision {
                    self.leave_index(slot as u32);
                    self.make_unsynced(slot as u32);
                }
            }
        }
    }

    /// Time passes: sends due progress responses, and makes victims whose outboxes have room again unsynced. Cheap when
    /// nothing is due; to be called every 10 ms or so.
    pub fn tick(&mut self, now: Mono) {
        self.now = self.now.max(now);
        self.retry_victims();
        while let Some(&(at, stream)) = self.progress.first().filter(|(at, _)| *at <= self.now) {
            self.progress.remove(&(at, stream));
            let again = self.after_interval();
            let Some(state) = self.streams.get_mut(&stream) else { continue };
            state.progress_at = again;
            self.progress.insert((again, stream));
            self.tick_stream(stream);
        }
    }

    /// Whose outboxes became non-empty or were closed since the last call, in the order it happened: runtime and slot.
    pub fn take_wakeups(&mut self) -> Vec<(u16, u64)> {
        std::mem::take(&mut self.wakeups)
    }

    /// Whether [`Hub::catch_up`] has work.
    pub fn has_unsynced(&self) -> bool {
        !self.unsynced.is_empty()
    }

    /// The metrics' counters.
    pub fn stats(&self) -> Stats {
        Stats {
            streams: self.streams.len() as u64,
            watchers: self.live,
            slow_watchers: self.slow,
            pending_events: self.pending_events.load(Ordering::Relaxed).max(0) as u64,
            events_total: self.events_total,
        }
    }

    // ---- inside ----

    fn notify_revision(&mut self, main: i64, events: &[Event], source: &dyn History) -> Result<(), HistoryError> {
        let mut matches = std::mem::take(&mut self.matches);
        matches.clear();
        for (at, event) in events.iter().enumerate() {
            self.index.stab(&event.key, |set| matches.extend(set.iter().map(|slot| (*slot, at as u32))));
        }
        if events.len() > 1 {
            matches.sort_unstable();
        }
        let mut batch = Batch::new(events, source);
        let mut positions = Vec::new();
        let mut last: Option<(Vec<u32>, bool, Encoded)> = None;
        for run in matches.chunk_by(|a, b| a.0 == b.0) {
            let slot = run[0].0;
            let watcher = self.watcher(slot);
            positions.clear();
            positions.extend(run.iter().map(|(_, at)| *at).filter(|at| watcher.wants(&events[*at as usize])));
            if positions.is_empty() {
                continue;
            }
            // Neighbours usually want the same: the last answer saves the look-up.
            let encoded = match &last {
                Some((set, prev_kv, encoded)) if *set == positions && *prev_kv == watcher.prev_kv => encoded,
                _ => {
                    let encoded = batch.encoded(&positions, watcher.prev_kv)?;
                    &last.insert((positions.clone(), watcher.prev_kv, encoded)).2
                }
            };
            if self.send(slot, main, encoded) {
                self.watcher_mut(slot).next = main + 1;
            } else {
                self.watcher_mut(slot).next = main;
                self.leave_index(slot);
                self.make_victim(slot);
            }
        }
        self.matches = matches;
        Ok(())
    }

    /// Puts one response with events into the watcher's outbox, in fragments if it has to be. `false`: full.
    pub(crate) fn send(&mut self, slot: u32, revision: i64, encoded: &Encoded) -> bool {
        let head = self.head();
        let watcher = self.watchers[slot as usize].as_mut().expect("only watchers that exist are sent to");
        let head = HeadFields { revision, watch_id: watcher.id, ..head };
        let limit = self.config.max_request_bytes.saturating_add(FRAGMENT_SLACK);
        let whole = head.encode();
        let count = encoded.ends.len();
        let pushed = if watcher.fragment && count > 1 && whole.len() + encoded.bytes.len() >= limit {
            watcher.outbox.push(fragments(head, encoded, limit).into_iter())
        } else {
            let frame = Frame { head: whole, tail: encoded.bytes.clone(), events: count as u32 };
            watcher.outbox.push(std::iter::once(frame))
        };
        let Pushed::Taken { wake } = pushed else { return false };
        watcher.quiet = false;
        if wake {
            self.wakeups.push(watcher.outbox.address());
        }
        self.events_total += count as u64;
        true
    }

    /// Cancels a watcher whose next revision is gone. Its id stays taken.
    pub(crate) fn cancel_compacted(&mut self, slot: u32, compact_revision: i64) {
        let watch_id = self.watcher(slot).id;
        let head = HeadFields { watch_id, canceled: true, compact_revision, ..self.head() };
        self.reply(slot, head);
        self.watcher_mut(slot).state = State::Compacted;
        self.live -= 1;
    }

    fn tick_stream(&mut self, stream: StreamId) {
        let Some(state) = self.streams.get(&stream) else { return };
        let outbox = state.outbox.clone();
        let slots: Vec<u32> = state.watchers.values().copied().collect();
        for slot in slots {
            let due = self.has_progress(slot);
            let head = HeadFields { revision: self.notified, ..self.head() };
            let watcher = self.watcher_mut(slot);
            let quiet = std::mem::replace(&mut watcher.quiet, true);
            if !(watcher.progress_notify && quiet && due) {
                continue;
            }
            let head = HeadFields { watch_id: watcher.id, ..head };
            if outbox.push_optional(Frame { head: head.encode(), tail: Bytes::new(), events: 0 }) {
                self.wakeups.push(outbox.address());
            }
        }
    }

    /// Whether everything up to the notified revision was sent, and some of it was wanted.
    fn has_progress(&self, slot: u32) -> bool {
        let watcher = self.watcher(slot);
        matches!(watcher.state, State::Synced(_)) && watcher.start_revision <= self.notified
    }

    pub(crate) fn retry_victims(&mut self) {
        if self.starved.is_empty() {
            return;
        }
        let ready: Vec<StreamId> = self
            .starved
            .iter()
            .copied()
            .filter(|stream| self.streams.get(stream).is_some_and(|state| state.outbox.take_room()))
            .collect();
        for stream in ready {
            self.starved.remove(&stream);
            let victims = self.streams.get_mut(&stream).map(|state| std::mem::take(&mut state.victims));
            for slot in victims.unwrap_or_default() {
                self.slow -= 1;
                self.make_unsynced(slot);
            }
        }
    }

    fn head(&self) -> HeadFields {
        HeadFields {
            cluster_id: self.config.cluster_id,
            member_id: self.config.member_id,
            raft_term: self.raft_term,
            ..HeadFields::default()
        }
    }

    fn reply(&mut self, slot: u32, head: HeadFields) {
        let outbox = &self.watcher(slot).outbox;
        if outbox.push_reply(Frame { head: head.encode(), tail: Bytes::new(), events: 0 }) {
            let address = outbox.address();
            self.wakeups.push(address);
        }
    }

    pub(crate) fn see(&mut self, revision: i64) {
        self.revision = self.revision.max(revision);
    }

    fn after_interval(&self) -> Mono {
        let interval = u64::try_from(self.config.progress_interval.as_nanos()).unwrap_or(u64::MAX);
        Mono(self.now.0.saturating_add(interval.max(1)))
    }

    pub(crate) fn watcher(&self, slot: u32) -> &Watcher {
        self.watchers[slot as usize].as_ref().expect("slots in use hold a watcher")
    }

    pub(crate) fn watcher_mut(&mut self, slot: u32) -> &mut Watcher {
        self.watchers[slot as usize].as_mut().expect("slots in use hold a watcher")
    }

    // ---- states; each watcher is in the structure its state names, and in no other ----

    fn allocate(&mut self, watcher: Watcher) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.watchers[slot as usize] = Some(watcher);
            slot
        } else {
            self.watchers.push(Some(watcher));
            self.watchers.len() as u32 - 1
        }
    }

    /// Takes a watcher out of all structures but its stream's map of ids.
    fn forget(&mut self, slot: u32) -> Watcher {
        match self.watcher(slot).state {
            State::Synced(_) => self.leave_index(slot),
            State::Unsynced { .. } => self.leave_unsynced(slot),
            State::Victim => self.leave_victims(slot),
            State::Compacted => self.live += 1,
        }
        self.live -= 1;
        self.free.push(slot);
        self.watchers[slot as usize].take().expect("slots in use hold a watcher")
    }

    pub(crate) fn make_synced(&mut self, slot: u32) {
        let watcher = self.watchers[slot as usize].as_mut().expect("slots in use hold a watcher");
        watcher.state = State::Synced(self.index.insert(&watcher.range, slot));
    }

    fn leave_index(&mut self, slot: u32) {
        let watcher = self.watchers[slot as usize].as_ref().expect("slots in use hold a watcher");
        let State::Synced(place) = watcher.state else { unreachable!("only synced watchers are in the index") };
        if let Some(moved) = self.index.remove(&watcher.range, place) {
            self.watcher_mut(moved).state = State::Synced(place);
        }
    }

    pub(crate) fn make_unsynced(&mut self, slot: u32) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let watcher = self.watcher_mut(slot);
        watcher.state = State::Unsynced { ticket };
        let next = watcher.next;
        self.unsynced.insert((next, slot));
        self.turns.insert(ticket, slot);
        self.slow += 1;
    }

    pub(crate) fn leave_unsynced(&mut self, slot: u32) {
        let watcher = self.watcher(slot);
        let State::Unsynced { ticket } = watcher.state else { unreachable!("only unsynced watchers have a turn") };
        let next = watcher.next;
        self.unsynced.remove(&(next, slot));
        self.turns.remove(&ticket);
        self.slow -= 1;
    }

    pub(crate) fn make_victim(&mut self, slot: u32) {
        self.watcher_mut(slot).state = State::Victim;
        let stream = self.watcher(slot).stream;
        if let Some(state) = self.streams.get_mut(&stream) {
            state.victims.insert(slot);
        }
        self.starved.insert(stream);
        self.slow += 1;
    }

    fn leave_victims(&mut self, slot: u32) {
        let stream = self.watcher(slot).stream;
        if let Some(state) = self.streams.get_mut(&stream) {
            state.victims.remove(&slot);
            if state.victims.is_empty() {
                self.starved.remove(&stream);
            }
        }
        self.slow -= 1;
    }
}

/// Cuts a response so that each part stays below `limit` or holds a single event; all parts but the last say so.
fn fragments(head: HeadFields, encoded: &Encoded, limit: usize) -> Vec<Frame> {
    let more = HeadFields { fragment: true, ..head }.encode();
    let mut parts = Vec::new();
    let mut from = 0;
    while from < encoded.ends.len() {
        let begin = if from == 0 { 0 } else { encoded.ends[from - 1] };
        let mut to = from + 1;
        while to < encoded.ends.len() && more.len() + encoded.ends[to] - begin < limit {
            to += 1;
        }
        let last = to == encoded.ends.len();
        parts.push(Frame {
            head: if last { head.encode() } else { more },
            tail: encoded.bytes.slice(begin..encoded.ends[to - 1]),
            events: (to - from) as u32,
        });
        from = to;
    }
    parts
}

/// Copies a range's keys out of the request's buffer, which a watcher would keep alive. An empty key means the lowest.
fn own(range: KeyRange) -> KeyRange {
    let copy = |key: Bytes| if key.is_empty() { Bytes::from_static(b"\0") } else { Bytes::copy_from_slice(&key) };
    match range {
        KeyRange::Single(key) => KeyRange::Single(copy(key)),
        KeyRange::Range(start, end) => KeyRange::Range(copy(start), Bytes::copy_from_slice(&end)),
        KeyRange::From(start) => KeyRange::From(copy(start)),
    }
}
