//! The queue between the hub and one watch stream, bounded in bytes and in responses.
//!
//! The hub pushes on the node's thread, the stream's own thread drains; neither waits for the other. What many watchers
//! of the stream get is queued once, with a list of their ids, and becomes one response each when it is drained. Events
//! are refused when the queue is full; the drain that makes room says so, and the hub tries again from the store. Replies
//! to requests (created, canceled) are always taken: they are as many as the client's requests, which its thread stops
//! reading while too many are unanswered (see [`Outbox::waiting`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::{BufMut, Bytes};
use parking_lot::Mutex;

use crate::budget::{Budget, Charge};
use crate::head::{Head, HeadFields};

/// The share of the hub's free memory that one stream may fill: many slow streams leave some of it free for the next.
const SHARE: usize = 8;

/// Bytes of events after which a drain takes no further response.
const MAX_DRAIN: usize = 256 << 10;

/// One complete `WatchResponse`: the encoded message is `head` followed by `tail`.
#[derive(Clone, Debug)]
pub struct Frame {
    /// What is this watcher's own.
    pub head: Head,
    /// Its events, shared by all watchers that get the same ones; in a refusal, the encoded reason.
    pub tail: Bytes,
    /// How many events `tail` holds.
    pub events: u32,
}

impl Frame {
    /// Length of the encoded message.
    #[expect(clippy::len_without_is_empty, reason = "a response has a header, so it is never empty")]
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Appends the encoded message.
    pub fn write_to(&self, out: &mut impl BufMut) {
        out.put_slice(&self.head);
        out.put_slice(&self.tail);
    }
}

/// What an outbox holds at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all that is queued. An entry with events that is larger passes alone.
    pub bytes: usize,
    /// Queued entries with events: what any number of watchers share is one of them, with all its fragments.
    pub responses: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 16 << 20, responses: 128 }
    }
}

/// Why no more responses will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The stream asked for it.
    Finished,
    /// The member lost its leader and the stream wants one.
    NoLeader,
    /// The member stops.
    Stopping,
    /// A response is larger than gRPC can carry, and its watcher did not ask for fragments.
    TooLarge { bytes: usize },
}

/// What a drain took.
#[derive(Debug, Default)]
pub struct Drained {
    /// Oldest first.
    pub frames: Vec<Frame>,
    /// There are more, for which no wake-up comes. Otherwise the next push wakes the reader.
    pub more: bool,
    /// The hub was refused, and there is room now: it has to be told, with `Hub::room`. Said once a refusal.
    pub room: bool,
}

/// Where a response is cut into fragments: the end of a part in the tail, and the events of the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub end: usize,
    pub events: u32,
}

/// The same for each of some watchers of the stream: events, or, without any, word of progress.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Without watch id.
    pub head: HeadFields,
    pub tail: Bytes,
    pub events: u32,
    /// Empty: sent whole.
    pub cuts: Vec<Cut>,
    pub ids: Vec<i64>,
}

impl Shared {
    fn weight(&self) -> usize {
        self.tail.len() + size_of::<Entry>() + self.ids.len() * size_of::<i64>() + self.cuts.len() * size_of::<Cut>()
    }

    /// The same response, for further watchers: a very large crowd is served over several turns.
    fn joins(&self, last: &Self) -> bool {
        let same = self.tail.as_ptr() == last.tail.as_ptr() && self.tail.len() == last.tail.len();
        same && self.events > 0 && self.head == last.head && self.cuts == last.cuts
    }

    fn parts(&self) -> usize {
        self.cuts.len().max(1)
    }

    /// The frame at a position: all parts of the first watcher, then all of the second.
    fn frame(&self, at: usize) -> Frame {
        let (watcher, part) = (at / self.parts(), at % self.parts());
        let head = HeadFields { watch_id: self.ids[watcher], fragment: part + 1 < self.parts(), ..self.head };
        match self.cuts.get(part) {
            None => Frame { head: head.encode(), tail: self.tail.clone(), events: self.events },
            Some(cut) => {
                let begin = part.checked_sub(1).map_or(0, |before| self.cuts[before].end);
                Frame { head: head.encode(), tail: self.tail.slice(begin..cut.end), events: cut.events }
            }
        }
    }
}

/// Whether the hub's responses were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// Queued, or dropped because the outbox is closed. `wake`: the reader has to be told.
    Taken {
        wake: bool,
    },
    Full,
}

#[derive(Debug)]
enum Entry {
    Reply(Frame),
    Shared {
        shared: Shared,
        /// Frames that were drained.
        taken: usize,
        charge: Option<Charge>,
    },
}

impl Entry {
    fn takes(&self, shared: &Shared) -> bool {
        matches!(self, Self::Shared { shared: last, .. } if shared.joins(last))
    }
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Entries with events.
    responses: usize,
    replies: usize,
    /// Requests that the stream made and the hub has not dealt with.
    asked: usize,
    /// Events in all frames.
    events: i64,
    /// The reader was told and has not found the queue empty since.
    woken: bool,
    /// The hub was refused and waits for room.
    starved: bool,
    closed: Option<CloseReason>,
    hub: Option<Attached>,
}

/// What all outboxes of a hub share.
#[derive(Clone)]
pub(crate) struct Attached {
    pub budget: Arc<Budget>,
    /// Events in all outboxes.
    pub events: Arc<AtomicI64>,
}

/// The responses of one stream on their way to it.
pub struct Outbox {
    runtime: u16,
    slot: u64,
    limits: Limits,
    queue: Mutex<Queue>,
}

impl Outbox {
    /// `runtime` and `slot`: where the hub's wake-ups for it go.
    pub fn new(runtime: u16, slot: u64, limits: Limits) -> Self {
        Self { runtime, slot, limits, queue: Mutex::default() }
    }

    /// Takes up to `max` responses, fewer when they are large. What is drained is no longer bounded here: take only what the
    /// connection will take.
    pub fn drain(&self, max: usize) -> Drained {
        let mut queue = self.queue.lock();
        let mut frames = Vec::new();
        let mut bytes = 0;
        while frames.len() < max && bytes < MAX_DRAIN && queue.take(max, &mut bytes, &mut frames) {}
        let more = !queue.entries.is_empty();
        if !more {
            queue.woken = false;
            // An idle outbox holds no buffer.
            queue.entries = VecDeque::new();
        }
        // Not at the first free place: a watcher that continues from the store should find room for a few responses.
        let room = queue.starved
            && queue.responses <= self.limits.responses / 2
            && queue.bytes <= queue.limit(self.limits.bytes) / 2;
        queue.starved &= !room;
        Drained { frames, more, room }
    }

    /// Counts a request that the stream is about to make of the hub.
    pub fn ask(&self) {
        self.queue.lock().asked += 1;
    }

    /// Requests without an answer, and answers that were not drained. A reader that takes no more requests while this is
    /// high bounds both queues; it is woken when there are fewer.
    pub fn waiting(&self) -> usize {
        let queue = self.queue.lock();
        queue.asked + queue.replies
    }

    /// Bytes queued, as the limit counts them.
    pub fn bytes(&self) -> usize {
        self.queue.lock().bytes
    }

    /// Why no more responses will come, `None` while they may. What is queued can still be drained.
    pub fn closed(&self) -> Option<CloseReason> {
        self.queue.lock().closed
    }

    /// The stream has ended: drops what is queued and everything pushed from now on. The hub still has to be told, with
    /// `Hub::close`, and names the outbox in a wake-up no more, but for those it has taken down already.
    pub fn abandon(&self) {
        let mut queue = self.queue.lock();
        queue.closed.get_or_insert(CloseReason::Finished);
        let events = queue.events;
        queue.count_events(-events);
        let entries = std::mem::take(&mut queue.entries);
        (queue.bytes, queue.responses, queue.replies, queue.starved) = (0, 0, 0, false);
        drop(queue);
        drop(entries);
    }

    pub(crate) fn address(&self) -> (u16, u64) {
        (self.runtime, self.slot)
    }

    pub(crate) fn attach(&self, hub: Attached) {
        let mut queue = self.queue.lock();
        hub.events.fetch_add(queue.events, Ordering::Relaxed);
        queue.hub = Some(hub);
    }

    /// Ends the stream from the hub's side. `true`: the reader has to be told.
    pub(crate) fn close(&self, reason: CloseReason) -> bool {
        let mut queue = self.queue.lock();
        if queue.closed.is_some() {
            return false;
        }
        queue.closed = Some(reason);
        true
    }

    /// A request of the stream has been dealt with. `true`: the reader has to be told.
    pub(crate) fn answered(&self) -> bool {
        let mut queue = self.queue.lock();
        let last = queue.asked == 1;
        queue.asked = queue.asked.saturating_sub(1);
        last && queue.closed.is_none() && queue.wake()
    }

    /// Queues a reply; always taken. `true`: the reader has to be told.
    pub(crate) fn push_reply(&self, frame: Frame) -> bool {
        let mut queue = self.queue.lock();
        if queue.closed.is_some() {
            return false;
        }
        queue.bytes += reply_weight(&frame);
        queue.replies += 1;
        queue.entries.push_back(Entry::Reply(frame));
        queue.wake()
    }

    /// Queues what nobody asked for and nobody misses; dropped when the queue is full. `true`: the reader has to be told.
    pub(crate) fn push_optional(&self, shared: Shared) -> bool {
        let mut queue = self.queue.lock();
        let full = queue.entries.len() >= self.limits.responses || queue.bytes >= self.limits.bytes;
        queue.closed.is_none() && !full && queue.push(shared)
    }

    /// Queues events: for all watchers named, or for none.
    pub(crate) fn push(&self, shared: Shared) -> Pushed {
        let mut queue = self.queue.lock();
        if queue.closed.is_some() {
            return Pushed::Taken { wake: false };
        }
        let joins = queue.entries.back().is_some_and(|last| last.takes(&shared));
        let (entries, bytes) = if joins { (0, shared.ids.len() * size_of::<i64>()) } else { (1, shared.weight()) };
        if queue.responses > 0
            && (queue.responses + entries > self.limits.responses
                || queue.bytes + bytes > queue.limit(self.limits.bytes))
        {
            queue.starved = true;
            return Pushed::Full;
        }
        Pushed::Taken { wake: queue.push(shared) }
    }
}

fn reply_weight(frame: &Frame) -> usize {
    frame.tail.len() + size_of::<Entry>()
}

impl Queue {
    /// How many bytes may be queued now.
    fn limit(&self, own: usize) -> usize {
        self.hub.as_ref().map_or(own, |hub| own.min(hub.budget.free() / SHARE))
    }

    fn push(&mut self, shared: Shared) -> bool {
        self.count_events(i64::from(shared.events) * shared.ids.len() as i64);
        match self.entries.back_mut() {
            Some(Entry::Shared { shared: last, charge, .. }) if shared.joins(last) => {
                let more = shared.ids.len() * size_of::<i64>();
                self.bytes += more;
                if let Some(charge) = charge {
                    charge.grow(more);
                }
                last.ids.extend(shared.ids);
            }
            _ => {
                self.bytes += shared.weight();
                self.responses += usize::from(shared.events > 0);
                let own = shared.weight() - shared.tail.len();
                let charge = self.hub.as_ref().map(|hub| hub.budget.charge(own));
                self.entries.push_back(Entry::Shared { shared, taken: 0, charge });
            }
        }
        self.wake()
    }

    /// Whether a reader has to be told now; it is until it has found the queue empty.
    fn wake(&mut self) -> bool {
        !std::mem::replace(&mut self.woken, true)
    }

    /// Takes frames of the first entry until there are `max`, or `MAX_DRAIN` bytes. `false`: the queue is empty.
    fn take(&mut self, max: usize, bytes: &mut usize, frames: &mut Vec<Frame>) -> bool {
        let Some(Entry::Shared { shared, taken, .. }) = self.entries.front_mut() else {
            let Some(Entry::Reply(frame)) = self.entries.pop_front() else { return false };
            self.bytes -= reply_weight(&frame);
            self.replies -= 1;
            frames.push(frame);
            return true;
        };
        let all = shared.ids.len() * shared.parts();
        let mut events = 0;
        while *taken < all && frames.len() < max && *bytes < MAX_DRAIN {
            let frame = shared.frame(*taken);
            *taken += 1;
            *bytes += frame.tail.len();
            events += i64::from(frame.events);
            frames.push(frame);
        }
        if *taken == all {
            self.bytes -= shared.weight();
            self.responses -= usize::from(shared.events > 0);
            self.entries.pop_front();
        }
        self.count_events(-events);
        true
    }

    fn count_events(&mut self, more: i64) {
        if more != 0 {
            self.events += more;
            if let Some(hub) = &self.hub {
                hub.events.fetch_add(more, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        let queue = self.queue.get_mut();
        let events = queue.events;
        queue.count_events(-events);
    }
}
