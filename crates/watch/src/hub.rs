//! The hub: requests, and the states of watchers. Live events are in `live`, catching up is in `catch_up`.

use std::collections::btree_map::IntoIter;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use dolmen_env::Mono;
use dolmen_types::KeyRange;

use crate::budget::Budget;
use crate::catch_up::Lanes;
use crate::event::{Encoded, History, HistoryError, ends};
use crate::head::{HeadFields, put_bytes};
use crate::index::{Index, Place};
use crate::live::Live;
use crate::outbox::{Attached, CloseReason, Cut, Frame, Outbox, Pushed, Shared};
use crate::scan::{Audience, MAX_RESPONSE};

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
    /// A watcher that is fewer revisions behind is served on the caller's thread, one that is further by [`Hub::next_scan`]:
    /// what was written lately is in memory.
    pub near_revisions: i64,
    /// What the responses that wait in all outboxes, or are being sent, may take of memory.
    pub queue_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster_id: 0,
            member_id: 0,
            max_request_bytes: 1_572_864,
            progress_interval: Duration::from_secs(600),
            near_revisions: 256,
            queue_bytes: 128 << 20,
        }
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
    /// In `held`: it waits for a revision that readers do not see yet.
    Held,
    /// Cancelled by compaction. Only its id lives on.
    Compacted,
}

pub(crate) struct Watcher {
    /// Position in `streams`.
    pub stream: u32,
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
    pub(crate) fn audience(&self) -> Audience {
        Audience { range: self.range.clone(), no_put: self.no_put, no_delete: self.no_delete, prev_kv: self.prev_kv }
    }

    fn is_synced(&self) -> bool {
        matches!(self.state, State::Synced(_))
    }
}

struct Stream {
    id: StreamId,
    outbox: Arc<Outbox>,
    /// By watch id.
    watchers: BTreeMap<i64, u32>,
    next_id: i64,
    victims: BTreeSet<u32>,
    /// Watchers that are not synced.
    behind: usize,
    /// Watchers whose start was not notified yet, by start revision: those that hold progress back. Some of them may have
    /// been since.
    early: BTreeSet<(i64, u32)>,
    progress_at: Mono,
    /// Watchers that asked for progress responses.
    progress_watchers: usize,
}

/// Watchers that one call of [`Hub::work`] touches, about, or events that it looks at. One takes a microsecond at most, so
/// that what waits for the node's thread waits a few milliseconds.
const TURN: usize = 4096;

/// All watchers of a member. See the crate's page.
///
/// What may concern many watchers is only noted by the call that asks for it; [`Hub::work`] does it, a bounded part a call.
pub struct Hub {
    pub(crate) config: Config,
    raft_term: u64,
    now: Mono,
    /// The highest main revision that readers are known to see: what replies name.
    pub(crate) revision: i64,
    /// The highest main revision whose events were handed to the synced watchers: what progress may name.
    pub(crate) notified: i64,
    ids: BTreeMap<StreamId, u32>,
    /// By position; a stream that is closed keeps its place until its watchers are gone.
    streams: Vec<Option<Stream>>,
    free_streams: Vec<u32>,
    pub(crate) watchers: Vec<Option<Watcher>>,
    free: Vec<u32>,
    pub(crate) index: Index,
    /// Unsynced watchers by next revision: who can share a slice of history.
    pub(crate) unsynced: BTreeSet<(i64, u32)>,
    /// Unsynced watchers in the order they are served.
    pub(crate) turns: BTreeMap<u64, u32>,
    next_ticket: u64,
    pub(crate) held: BTreeSet<u32>,
    pub(crate) live: Live,
    pub(crate) lanes: Lanes,
    /// Watchers of closed streams, each with the stream's position.
    closing: VecDeque<(u32, IntoIter<i64, u32>)>,
    /// Streams whose victims may go on.
    roomy: VecDeque<StreamId>,
    /// Streams with watchers that asked for progress, by when it is due.
    progress: BTreeSet<(Mono, StreamId)>,
    /// Streams whose watchers are being told of progress, each with the lowest watch id that has not been.
    telling: VecDeque<(StreamId, i64)>,
    pub(crate) budget: Arc<Budget>,
    wakeups: Vec<(u16, u64)>,
    alive: u64,
    pub(crate) slow: u64,
    events_total: u64,
    pending_events: Arc<AtomicI64>,
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
            ids: BTreeMap::new(),
            streams: Vec::new(),
            free_streams: Vec::new(),
            watchers: Vec::new(),
            free: Vec::new(),
            index: Index::default(),
            unsynced: BTreeSet::new(),
            turns: BTreeMap::new(),
            next_ticket: 0,
            held: BTreeSet::new(),
            live: Live::default(),
            lanes: Lanes::default(),
            closing: VecDeque::new(),
            roomy: VecDeque::new(),
            progress: BTreeSet::new(),
            telling: VecDeque::new(),
            budget: Budget::new(config.queue_bytes),
            wakeups: Vec::new(),
            alive: 0,
            slow: 0,
            events_total: 0,
            pending_events: Arc::default(),
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
        outbox.attach(Attached { budget: self.budget.clone(), events: self.pending_events.clone() });
        let new = Stream {
            id: stream,
            outbox,
            watchers: BTreeMap::new(),
            next_id: 0,
            victims: BTreeSet::new(),
            behind: 0,
            early: BTreeSet::new(),
            progress_at: self.after_interval(),
            progress_watchers: 0,
        };
        let at = self.free_streams.pop().unwrap_or_else(|| {
            self.streams.push(None);
            self.streams.len() as u32 - 1
        });
        self.streams[at as usize] = Some(new);
        self.ids.insert(stream, at);
    }

    /// Adds a watcher and replies: created, or created and cancelled with a reason. `current_revision`: what readers
    /// see now. One that starts below `compact_revision` is created and cancelled at once.
    ///
    /// Refused are, in this order: a negative start revision, an empty range, an id in use on this stream.
    pub fn create(&mut self, stream: StreamId, request: CreateRequest, current_revision: i64, compact_revision: i64) {
        self.see(current_revision);
        let Some(&at) = self.ids.get(&stream) else { return };
        if request.start_revision < 0 {
            return self.refuse(stream, COMPACTED);
        }
        let range = own(request.range);
        if matches!(&range, KeyRange::Range(start, end) if start >= end) {
            return self.refuse(stream, EMPTY_RANGE);
        }
        let state = self.stream_mut(at);
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
            stream: at,
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
            let due = (state.progress_at, stream);
            self.progress.insert(due);
        }
        let slot = self.allocate(watcher);
        let notified = self.notified;
        let state = self.stream_mut(at);
        state.watchers.insert(id, slot);
        state.behind += 1;
        if request.start_revision > notified {
            state.early.insert((request.start_revision, slot));
        }
        self.alive += 1;
        let head = HeadFields { revision: self.revision, watch_id: id, created: true, ..self.head() };
        self.reply(at, head, Bytes::new());
        if behind && request.start_revision < compact_revision {
            self.cancel_compacted(slot, compact_revision);
        } else {
            self.place(slot);
        }
        self.answered(stream);
    }

    /// Refuses a create request, with a reason as the client is to read it: created and cancelled, watch id -1.
    pub fn refuse(&mut self, stream: StreamId, reason: &str) {
        let Some(&at) = self.ids.get(&stream) else { return };
        let mut tail = Vec::with_capacity(reason.len() + 4);
        put_bytes(&mut tail, 6, reason.as_bytes());
        let head =
            HeadFields { revision: self.revision, watch_id: NO_WATCHER, created: true, canceled: true, ..self.head() };
        self.reply(at, head, tail.into());
        self.answered(stream);
    }

    /// Removes a watcher and replies. An unknown id is ignored.
    pub fn cancel(&mut self, stream: StreamId, watch_id: i64) {
        let Some(&at) = self.ids.get(&stream) else { return };
        if let Some(slot) = self.stream_mut(at).watchers.remove(&watch_id) {
            let head = HeadFields { revision: self.revision, watch_id, canceled: true, ..self.head() };
            self.reply(at, head, Bytes::new());
            let watcher = self.forget(slot);
            if watcher.progress_notify {
                let state = self.stream_mut(at);
                state.progress_watchers -= 1;
                if state.progress_watchers == 0 {
                    let due = (state.progress_at, stream);
                    self.progress.remove(&due);
                }
            }
        }
        self.answered(stream);
    }

    /// Answers a progress request if every watcher of the stream is synced and wants the current revision; otherwise,
    /// without watchers, or into a full outbox, says nothing: clients ask again.
    pub fn progress(&mut self, stream: StreamId) {
        let Some(&at) = self.ids.get(&stream) else { return };
        let notified = self.notified;
        let state = self.stream_mut(at);
        while state.early.first().is_some_and(|(start, _)| *start <= notified) {
            state.early.pop_first();
        }
        if !state.watchers.is_empty() && state.behind == 0 && state.early.is_empty() {
            self.tell_progress(at, vec![NO_WATCHER]);
        }
        self.answered(stream);
    }

    /// The reader of the stream has made room in its outbox: those whose events it had refused go on.
    pub fn room(&mut self, stream: StreamId) {
        self.roomy.push_back(stream);
    }

    /// Removes a stream, and in time its watchers. Unknown ones are ignored.
    pub fn close(&mut self, stream: StreamId) {
        self.close_because(stream, CloseReason::Finished);
    }

    /// Closes a stream and tells its reader why.
    pub fn close_because(&mut self, stream: StreamId, reason: CloseReason) {
        let Some(at) = self.ids.remove(&stream) else { return };
        let state = self.stream_mut(at);
        let watchers = std::mem::take(&mut state.watchers);
        let due = (state.progress_at, stream);
        let wake = state.outbox.close(reason).then(|| state.outbox.address());
        self.progress.remove(&due);
        self.wakeups.extend(wake);
        self.closing.push_back((at, watchers.into_iter()));
    }

    /// Closes all streams.
    pub fn close_all(&mut self, reason: CloseReason) {
        while let Some((stream, _)) = self.ids.first_key_value() {
            self.close_because(*stream, reason);
        }
    }

    // ---- what the store did ----

    /// Time passes: progress responses may be due. Nothing else waits for this call, so it may come as seldom as that
    /// interval is exact.
    pub fn tick(&mut self, now: Mono) {
        self.now = self.now.max(now);
        while let Some(&(at, stream)) = self.progress.first().filter(|(at, _)| *at <= self.now) {
            self.progress.remove(&(at, stream));
            let again = self.after_interval();
            let Some(&at) = self.ids.get(&stream) else { continue };
            self.stream_mut(at).progress_at = again;
            self.progress.insert((again, stream));
            self.telling.push_back((stream, i64::MIN));
        }
    }

    /// Does a bounded part of what there is to do: about [`TURN`] watchers and a few MiB. `true`: there is more, call again
    /// soon. What is to be read at length comes out of [`Hub::next_scan`] instead.
    ///
    /// # Errors
    /// What `source` fails with. The member is ill: some watchers have had these events and some have not.
    pub fn work(&mut self, source: &dyn History) -> Result<bool, HistoryError> {
        self.see(source.current());
        let mut left = TURN;
        self.work_live(source, &mut left)?;
        while left > 0 && self.close_some(&mut left) {}
        while left > 0 && self.resume_some(&mut left) {}
        while left > 0 && self.tell_some(&mut left) {}
        let behind = self.work_lanes(source, &mut left)?;
        let idle = self.live.is_empty()
            && self.closing.is_empty()
            && self.roomy.is_empty()
            && self.telling.is_empty()
            && !behind;
        Ok(!idle)
    }

    /// Whose outboxes became non-empty or were closed since the last call, in the order it happened: runtime and slot.
    pub fn take_wakeups(&mut self) -> Vec<(u16, u64)> {
        std::mem::take(&mut self.wakeups)
    }

    /// The metrics' counters.
    pub fn stats(&self) -> Stats {
        Stats {
            streams: self.ids.len() as u64,
            watchers: self.alive,
            slow_watchers: self.slow,
            pending_events: self.pending_events.load(Ordering::Relaxed).max(0) as u64,
            events_total: self.events_total,
        }
    }

    // ---- inside ----

    /// Puts one response with events into the outbox that the watchers share, once for all of them and in fragments if it
    /// has to be. `false`: full.
    pub(crate) fn send(&mut self, slots: &[u32], revision: i64, encoded: &Encoded) -> bool {
        let first = self.watcher(slots[0]);
        let (stream, fragment) = (first.stream, first.fragment);
        let head = HeadFields { revision, ..self.head() };
        let limit = self.config.max_request_bytes.saturating_add(FRAGMENT_SLACK);
        let mut ids = Vec::with_capacity(slots.len());
        for slot in slots {
            let watcher = self.watcher_mut(*slot);
            debug_assert!((watcher.stream, watcher.fragment) == (stream, fragment), "these watchers share responses");
            watcher.quiet = false;
            ids.push(watcher.id);
        }
        let cuts = if fragment && encoded.events > 1 { cuts(head, encoded, limit) } else { Vec::new() };
        if cuts.is_empty() && encoded.bytes.len() > MAX_RESPONSE {
            self.too_large(stream, encoded.bytes.len());
            return true;
        }
        let events = u64::from(encoded.events) * ids.len() as u64;
        let shared = Shared { head, tail: encoded.bytes.clone(), events: encoded.events, cuts, ids };
        let outbox = &self.stream(stream).outbox;
        let Pushed::Taken { wake } = outbox.push(shared) else { return false };
        let address = outbox.address();
        if wake {
            self.wakeups.push(address);
        }
        self.events_total += events;
        true
    }

    /// Ends a stream that would have to carry a message no client takes.
    pub(crate) fn too_large(&mut self, stream: u32, bytes: usize) {
        let id = self.stream(stream).id;
        if self.ids.get(&id) == Some(&stream) {
            self.close_because(id, CloseReason::TooLarge { bytes });
        }
    }

    /// Cancels a watcher whose next revision is gone, and which is in no structure. Its id stays taken.
    pub(crate) fn cancel_compacted(&mut self, slot: u32, compact_revision: i64) {
        let watcher = self.watcher_mut(slot);
        watcher.state = State::Compacted;
        let (stream, watch_id) = (watcher.stream, watcher.id);
        let head = HeadFields { watch_id, canceled: true, compact_revision, ..self.head() };
        self.reply(stream, head, Bytes::new());
        self.alive -= 1;
    }

    /// Forgets some watchers of closed streams. `false`: there are none.
    fn close_some(&mut self, left: &mut usize) -> bool {
        let Some((at, mut watchers)) = self.closing.pop_front() else { return false };
        for (_, slot) in watchers.by_ref().take(*left) {
            *left -= 1;
            self.forget(slot);
        }
        if watchers.len() > 0 {
            self.closing.push_front((at, watchers));
        } else {
            self.streams[at as usize] = None;
            self.free_streams.push(at);
        }
        true
    }

    /// Lets some victims go on. `false`: there are none that may.
    fn resume_some(&mut self, left: &mut usize) -> bool {
        let Some(stream) = self.roomy.pop_front() else { return false };
        let Some(&at) = self.ids.get(&stream) else { return true };
        while let Some(slot) = self.stream_mut(at).victims.pop_first() {
            self.slow -= 1;
            self.place(slot);
            *left -= 1;
            if *left == 0 {
                self.roomy.push_front(stream);
                break;
            }
        }
        true
    }

    /// Tells some watchers of progress that asked to be told. `false`: there are none.
    fn tell_some(&mut self, left: &mut usize) -> bool {
        let Some((stream, from)) = self.telling.pop_front() else { return false };
        let Some(&at) = self.ids.get(&stream) else { return true };
        let some: Vec<(i64, u32)> =
            self.stream(at).watchers.range(from..).take(*left).map(|(id, slot)| (*id, *slot)).collect();
        if let Some((last, _)) = some.last()
            && some.len() == *left
            && *last < i64::MAX
        {
            self.telling.push_front((stream, last + 1));
        }
        *left -= some.len();
        let notified = self.notified;
        let mut told = Vec::new();
        for (id, slot) in some {
            let watcher = self.watcher_mut(slot);
            let quiet = std::mem::replace(&mut watcher.quiet, true);
            // Everything up to the notified revision was sent, and some of it was wanted.
            let due = watcher.is_synced() && watcher.start_revision <= notified;
            if watcher.progress_notify && quiet && due {
                told.push(id);
            }
        }
        if !told.is_empty() {
            self.tell_progress(at, told);
        }
        true
    }

    fn tell_progress(&mut self, at: u32, ids: Vec<i64>) {
        let head = HeadFields { revision: self.notified, ..self.head() };
        let outbox = &self.stream(at).outbox;
        if outbox.push_optional(Shared { head, tail: Bytes::new(), events: 0, cuts: Vec::new(), ids }) {
            let address = outbox.address();
            self.wakeups.push(address);
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

    fn reply(&mut self, stream: u32, head: HeadFields, tail: Bytes) {
        let outbox = &self.stream(stream).outbox;
        if outbox.push_reply(Frame { head: head.encode(), tail, events: 0 }) {
            let address = outbox.address();
            self.wakeups.push(address);
        }
    }

    /// A request of the stream has been dealt with, with or without a reply.
    fn answered(&mut self, stream: StreamId) {
        let Some(&at) = self.ids.get(&stream) else { return };
        let outbox = &self.stream(at).outbox;
        if outbox.answered() {
            let address = outbox.address();
            self.wakeups.push(address);
        }
    }

    fn stream(&self, at: u32) -> &Stream {
        self.streams[at as usize].as_ref().expect("streams outlive their watchers")
    }

    fn stream_mut(&mut self, at: u32) -> &mut Stream {
        self.streams[at as usize].as_mut().expect("streams outlive their watchers")
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
            State::Victim => {
                let stream = self.watcher(slot).stream;
                self.stream_mut(stream).victims.remove(&slot);
                self.slow -= 1;
            }
            State::Held => {
                self.held.remove(&slot);
                self.slow -= 1;
            }
            State::Compacted => self.alive += 1,
        }
        self.alive -= 1;
        self.free.push(slot);
        let watcher = self.watchers[slot as usize].take().expect("slots in use hold a watcher");
        let state = self.stream_mut(watcher.stream);
        state.behind -= 1;
        state.early.remove(&(watcher.start_revision, slot));
        watcher
    }

    /// Puts a watcher that is in no structure where its next revision says: readers see it, so there is something to catch
    /// up with; it is being notified in parts, of which this watcher may have missed some; or it has yet to come.
    pub(crate) fn place(&mut self, slot: u32) {
        let next = self.watcher(slot).next;
        if next <= self.revision {
            self.make_unsynced(slot);
        } else if next <= self.live.in_parts() {
            self.watcher_mut(slot).state = State::Held;
            self.held.insert(slot);
            self.slow += 1;
        } else {
            self.make_synced(slot);
        }
    }

    /// Whether a synced watcher has still to get the events of a revision.
    pub(crate) fn awaits(&self, slot: u32, main: i64) -> bool {
        let watcher = self.watchers.get(slot as usize).and_then(Option::as_ref);
        watcher.is_some_and(|watcher| watcher.is_synced() && watcher.next <= main)
    }

    /// A synced watcher is to get `main`, and what follows, from the store.
    pub(crate) fn fall_behind(&mut self, slot: u32, main: i64) {
        let watcher = self.watcher_mut(slot);
        watcher.next = watcher.next.max(main);
        self.leave_index(slot);
        self.place(slot);
    }

    fn make_synced(&mut self, slot: u32) {
        let watcher = self.watchers[slot as usize].as_mut().expect("slots in use hold a watcher");
        watcher.state = State::Synced(self.index.insert(&watcher.range, slot));
        let stream = watcher.stream;
        self.stream_mut(stream).behind -= 1;
    }

    pub(crate) fn leave_index(&mut self, slot: u32) {
        let watcher = self.watchers[slot as usize].as_ref().expect("slots in use hold a watcher");
        let State::Synced(place) = watcher.state else { unreachable!("only synced watchers are in the index") };
        let stream = watcher.stream;
        if let Some(moved) = self.index.remove(&watcher.range, place) {
            self.watcher_mut(moved).state = State::Synced(place);
        }
        self.stream_mut(stream).behind += 1;
    }

    fn make_unsynced(&mut self, slot: u32) {
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

    /// Leaves a watcher that is in no structure alone until its outbox has room.
    pub(crate) fn make_victim(&mut self, slot: u32) {
        let watcher = self.watcher_mut(slot);
        watcher.state = State::Victim;
        let stream = watcher.stream;
        self.stream_mut(stream).victims.insert(slot);
        self.slow += 1;
    }
}

/// Cuts a response so that each part stays below `limit` or holds a single event; none when it fits whole.
fn cuts(head: HeadFields, encoded: &Encoded, limit: usize) -> Vec<Cut> {
    // As long as any watcher's.
    let head = HeadFields { watch_id: i64::MIN, fragment: true, ..head }.encode().len();
    let mut cuts: Vec<Cut> = Vec::new();
    if head + encoded.bytes.len() < limit {
        return cuts;
    }
    let (mut begin, mut last) = (0, Cut { end: 0, events: 0 });
    for end in ends(&encoded.bytes) {
        if last.events > 0 && head + end - begin >= limit {
            begin = last.end;
            cuts.push(last);
            last.events = 0;
        }
        last = Cut { end, events: last.events + 1 };
    }
    cuts.push(last);
    cuts
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
