//! The queue between the hub and one watch stream, bounded in bytes and in responses.
//!
//! The hub pushes on the node's thread, the stream's own thread drains; neither waits for the other. Responses with
//! events are refused when the queue is full, and the hub tries again later from the store. Replies to requests
//! (created, canceled) are always taken: they are as many as the client's requests, which its thread can stop reading
//! (see [`Outbox::replies`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use bytes::{BufMut, Bytes};
use parking_lot::Mutex;

use crate::head::Head;

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

    /// What it weighs in an outbox.
    fn weight(&self) -> usize {
        self.tail.len() + size_of::<Self>()
    }
}

/// What an outbox holds at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all queued responses. One response (or the fragments of one) that is larger passes alone.
    pub bytes: usize,
    /// Queued responses with events.
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

#[derive(Default)]
struct Queue {
    frames: VecDeque<Frame>,
    bytes: usize,
    /// Frames with events.
    responses: usize,
    /// Frames without.
    replies: usize,
    /// Events in all frames.
    events: i64,
    /// The reader was told and has not found the queue empty since.
    woken: bool,
    /// The hub was refused and waits for room.
    starved: bool,
    closed: Option<CloseReason>,
    /// The hub's gauge of events in all outboxes.
    gauge: Option<Arc<AtomicI64>>,
}

/// The responses of one stream on their way to it.
pub struct Outbox {
    runtime: u16,
    slot: u64,
    limits: Limits,
    queue: Mutex<Queue>,
    room: AtomicBool,
}

impl Outbox {
    /// `runtime` and `slot`: where the hub's wake-ups for it go.
    pub fn new(runtime: u16, slot: u64, limits: Limits) -> Self {
        Self { runtime, slot, limits, queue: Mutex::default(), room: AtomicBool::new(false) }
    }

    /// Takes up to `max` responses, oldest first. After fewer than `max` the next push wakes the reader again; after
    /// exactly `max` there may be more and no wake-up comes for it. What is drained is no longer bounded here: take only
    /// what the connection will take.
    pub fn drain(&self, max: usize) -> Vec<Frame> {
        let mut queue = self.queue.lock();
        let taken = if queue.frames.len() <= max {
            // Gives the buffer away as well: an idle outbox holds none.
            Vec::from(std::mem::take(&mut queue.frames))
        } else {
            queue.frames.drain(..max).collect()
        };
        let mut events = 0;
        for frame in &taken {
            queue.bytes -= frame.weight();
            if frame.events > 0 {
                queue.responses -= 1;
                events += i64::from(frame.events);
            } else {
                queue.replies -= 1;
            }
        }
        queue.take_events(events);
        if queue.frames.is_empty() {
            queue.woken = false;
        }
        // Not at the first free place: a watcher that continues from the store should find room for a few responses.
        if queue.starved && queue.responses <= self.limits.responses / 2 && queue.bytes <= self.limits.bytes / 2 {
            queue.starved = false;
            self.room.store(true, Ordering::Release);
        }
        taken
    }

    /// Queued responses without events. They are answers to requests; a reader that stops taking requests while this is
    /// high (a thousand, say) bounds the queue.
    pub fn replies(&self) -> usize {
        self.queue.lock().replies
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
        queue.take_events(events);
        queue.frames = VecDeque::new();
        (queue.bytes, queue.responses, queue.replies) = (0, 0, 0);
    }

    pub(crate) fn address(&self) -> (u16, u64) {
        (self.runtime, self.slot)
    }

    pub(crate) fn attach(&self, gauge: Arc<AtomicI64>) {
        let mut queue = self.queue.lock();
        gauge.fetch_add(queue.events, Ordering::Relaxed);
        queue.gauge = Some(gauge);
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

    /// Queues a reply; always taken. `true`: the reader has to be told.
    pub(crate) fn push_reply(&self, frame: Frame) -> bool {
        let mut queue = self.queue.lock();
        queue.closed.is_none() && queue.push(frame)
    }

    /// Queues a response nobody asked for and nobody misses; dropped when the queue is full.
    pub(crate) fn push_optional(&self, frame: Frame) -> bool {
        let mut queue = self.queue.lock();
        let full = queue.frames.len() >= self.limits.responses || queue.bytes >= self.limits.bytes;
        queue.closed.is_none() && !full && queue.push(frame)
    }

    /// Queues the parts of one response, all or none.
    pub(crate) fn push(&self, parts: impl ExactSizeIterator<Item = Frame> + Clone) -> Pushed {
        let mut queue = self.queue.lock();
        if queue.closed.is_some() {
            return Pushed::Taken { wake: false };
        }
        if queue.responses > 0 {
            let weight: usize = parts.clone().map(|frame| frame.weight()).sum();
            if queue.responses + parts.len() > self.limits.responses || queue.bytes + weight > self.limits.bytes {
                queue.starved = true;
                return Pushed::Full;
            }
        }
        let mut wake = false;
        for frame in parts {
            wake |= queue.push(frame);
        }
        Pushed::Taken { wake }
    }

    /// Whether room came free since the hub was refused; asked once per refusal.
    pub(crate) fn take_room(&self) -> bool {
        self.room.load(Ordering::Relaxed) && self.room.swap(false, Ordering::Acquire)
    }
}

impl Queue {
    fn push(&mut self, frame: Frame) -> bool {
        self.bytes += frame.weight();
        if frame.events > 0 {
            self.responses += 1;
            self.take_events(-i64::from(frame.events));
        } else {
            self.replies += 1;
        }
        self.frames.push_back(frame);
        !std::mem::replace(&mut self.woken, true)
    }

    fn take_events(&mut self, count: i64) {
        if count != 0 {
            self.events -= count;
            if let Some(gauge) = &self.gauge {
                gauge.fetch_sub(count, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        let queue = self.queue.get_mut();
        let events = queue.events;
        queue.take_events(events);
    }
}
