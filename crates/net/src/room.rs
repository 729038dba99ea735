//! How many connections a port holds, and who has to go when it is full.
//!
//! Descriptors are what a server has fewest of, and its storage and its peers need them too: a client that may take the last
//! one takes the member with it. So [`Shares`] divides what the system gives, and each port has a [`Room`] of its share. When
//! a room is full, connections without an open stream are asked to leave, those idle for longest first; a client of
//! theirs just connects again. When every connection has a stream, new ones are refused.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::Notify;

/// More descriptors than this are of no use.
const MOST_DESCRIPTORS: u64 = 1 << 20;
/// Client connections at most, whatever the system gives: each takes memory too.
const MOST_CLIENTS: u64 = 100_000;
/// Peer connections at most. A member has three or four from each of the others.
const MOST_PEERS: u64 = 4096;
/// Descriptors kept for files and for what the member dials itself, at most.
const MOST_RESERVED: u64 = 4096;
/// Of a full room, this part is asked to leave at once, so that looking for them costs little a connection.
const LEAVING_PART: usize = 16;
/// How long a connection that was asked to leave may take while it has no stream; then it is dropped.
pub const LEAVING_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a new connection waits for those to be gone.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(2);
/// After a search of a full room that found nobody idle, there is none for this long.
const SEARCH_INTERVAL_MILLIS: u64 = 100;

/// Raises the limit of open files as far as the system lets it, and returns what it is then.
pub fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let (soft, hard) = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
    let wanted = hard.min(MOST_DESCRIPTORS);
    if soft < wanted && setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum }).is_ok() {
        return wanted;
    }
    soft
}

/// What each may take of the descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    pub clients: usize,
    pub peers: usize,
}

impl Shares {
    /// Divides `descriptors`; what is left over is for storage and for connections that the member opens.
    pub fn of(descriptors: u64) -> Self {
        let reserved = (descriptors / 4).clamp(128, MOST_RESERVED).min(descriptors / 2);
        let peers = (descriptors / 8).clamp(16, MOST_PEERS);
        let clients = descriptors.saturating_sub(reserved + peers).clamp(16, MOST_CLIENTS);
        let size = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        Self { clients: size(clients), peers: size(peers) }
    }
}

/// The connections of one port, or of several that share.
pub struct Room {
    capacity: usize,
    made: Instant,
    state: Mutex<State>,
    /// Somebody has left.
    freed: Notify,
    asked_to_leave: AtomicU64,
    refused: AtomicU64,
}

#[derive(Default)]
struct State {
    occupants: HashMap<u64, Arc<Occupant>>,
    next: u64,
    /// Until then a search would find nobody idle, in the room's milliseconds.
    searched_until: u64,
}

struct Occupant {
    /// The room's, so that a stream does not have to reach for what all cores share.
    made: Instant,
    /// Streams that are open.
    open: AtomicU32,
    /// Since when there is none, in the room's milliseconds.
    idle_since: AtomicU64,
    leaving: AtomicBool,
    /// It has had a stream.
    used: AtomicBool,
    leave: Notify,
}

impl Room {
    /// A room for `capacity` connections, at least one.
    pub fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            capacity: capacity.max(1),
            made: Instant::now(),
            state: Mutex::default(),
            freed: Notify::new(),
            asked_to_leave: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// Connections in it.
    pub fn len(&self) -> usize {
        self.state.lock().occupants.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Idle connections that had to go so far.
    pub fn asked_to_leave(&self) -> u64 {
        self.asked_to_leave.load(Ordering::Relaxed)
    }

    /// New connections that were closed so far, as none was idle.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// A seat for a new connection. In a full room it waits for idle ones to go; `None` when there are none.
    pub async fn admit(self: &Arc<Self>) -> Option<Seat> {
        if let Some(seat) = self.take() {
            return Some(seat);
        }
        if !self.make_room() {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let seat = tokio::time::timeout(ADMISSION_TIMEOUT, async {
            loop {
                let freed = self.freed.notified();
                if let Some(seat) = self.take() {
                    return seat;
                }
                freed.await;
            }
        });
        let seat = seat.await.ok();
        if seat.is_none() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        seat
    }

    fn take(self: &Arc<Self>) -> Option<Seat> {
        let mut state = self.state.lock();
        if state.occupants.len() >= self.capacity {
            return None;
        }
        let occupant = Arc::new(Occupant {
            made: self.made,
            open: AtomicU32::new(0),
            idle_since: AtomicU64::new(millis_since(self.made)),
            leaving: AtomicBool::new(false),
            used: AtomicBool::new(false),
            leave: Notify::new(),
        });
        let id = state.next;
        state.next += 1;
        state.occupants.insert(id, Arc::clone(&occupant));
        Some(Seat { room: Arc::clone(self), id, occupant })
    }

    /// Asks those to leave that have been idle for longest. False when there are none, or when they were looked for a moment
    /// ago in vain.
    pub(crate) fn make_room(&self) -> bool {
        let now = millis_since(self.made);
        let mut state = self.state.lock();
        if now < state.searched_until {
            return false;
        }
        let mut idle = Vec::new();
        for occupant in state.occupants.values().filter(|occupant| occupant.open.load(Ordering::Relaxed) == 0) {
            // Those on their way out make room as well.
            if occupant.leaving.load(Ordering::Relaxed) {
                return true;
            }
            idle.push((occupant.idle_since.load(Ordering::Relaxed), occupant));
        }
        let count = (self.capacity / LEAVING_PART).max(1).min(idle.len());
        if count == 0 {
            state.searched_until = now + SEARCH_INTERVAL_MILLIS;
            return false;
        }
        idle.select_nth_unstable_by_key(count - 1, |(since, _)| *since);
        for (_, occupant) in &idle[..count] {
            occupant.leaving.store(true, Ordering::Relaxed);
            occupant.leave.notify_one();
        }
        self.asked_to_leave.fetch_add(count as u64, Ordering::Relaxed);
        true
    }
}

fn millis_since(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Occupant {
    fn touch(&self) {
        self.idle_since.store(millis_since(self.made), Ordering::Relaxed);
    }
}

/// One connection's place in its room, until dropped.
pub struct Seat {
    room: Arc<Room>,
    id: u64,
    occupant: Arc<Occupant>,
}

impl Seat {
    /// Counts a stream as open until what is returned is dropped.
    pub fn open(&self) -> OpenStream {
        self.occupant.open.fetch_add(1, Ordering::Relaxed);
        if !self.occupant.used.load(Ordering::Relaxed) {
            self.occupant.used.store(true, Ordering::Relaxed);
        }
        OpenStream(Arc::clone(&self.occupant))
    }

    /// Whether no stream is open.
    pub fn is_idle(&self) -> bool {
        self.occupant.open.load(Ordering::Relaxed) == 0
    }

    /// Counts as used just now.
    pub fn touch(&self) {
        self.occupant.touch();
    }

    /// Returns when the connection is asked to leave. What it has begun it may finish.
    pub async fn asked_to_leave(&self) {
        self.occupant.leave.notified().await;
    }

    /// For a connection that was asked to leave: returns when it has been without a stream for a while, and still is. One
    /// that never had any is not waited for: thousands of those may stand before one who wants something.
    pub async fn overstayed(&self) {
        if !self.occupant.used.load(Ordering::Relaxed) {
            return;
        }
        loop {
            tokio::time::sleep(LEAVING_TIMEOUT).await;
            if self.is_idle() {
                return;
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.room.state.lock().occupants.remove(&self.id);
        self.room.freed.notify_one();
    }
}

/// See [`Seat::open`].
pub struct OpenStream(Arc<Occupant>);

impl OpenStream {
    /// Keeps it open as long as a response is on its way.
    pub fn during<B>(self, body: B) -> Held<B> {
        Held { body, _open: self }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.touch();
        }
    }
}

/// A response body whose stream counts as open until it has gone.
pub struct Held<B> {
    body: B,
    _open: OpenStream,
}

impl<B: Body + Unpin> Body for Held<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_and_peers_keep_their_share_of_any_limit() {
        for limit in [64, 100, 256, 1024, 4096, 20_000, 1 << 20] {
            let Shares { clients, peers } = Shares::of(limit);
            assert!(clients >= 16 && peers >= 16, "{limit}");
            let left = limit - (clients + peers) as u64;
            assert!(left >= (limit / 4).min(MOST_RESERVED), "{limit} leaves {left}");
        }
        assert_eq!(Shares::of(1024), Shares { clients: 640, peers: 128 });
        assert_eq!(Shares::of(1 << 20), Shares { clients: 100_000, peers: 4096 });
    }

    #[tokio::test]
    async fn the_idle_make_room_and_those_with_streams_stay() {
        let room = Room::new(2);
        let (busy, idle) = (room.admit().await.expect("room"), room.admit().await.expect("room"));
        let stream = busy.open();
        let leaves = tokio::spawn(async move { idle.asked_to_leave().await });
        let third = room.admit().await.expect("the idle one left");
        leaves.await.expect("left");
        assert_eq!((room.len(), room.asked_to_leave(), room.refused()), (2, 1, 0));

        let other = third.open();
        assert!(room.admit().await.is_none(), "all have streams");
        assert_eq!(room.refused(), 1);
        drop((stream, other));
        drop(third);
        assert!(room.admit().await.is_some());
    }

    #[tokio::test]
    async fn strangers_go_at_once_and_clients_are_given_time() {
        let room = Room::new(2);
        let (stranger, client) = (room.take().expect("room"), room.take().expect("room"));
        drop(client.open());
        stranger.overstayed().await;
        let left = tokio::time::timeout(LEAVING_TIMEOUT / 4, client.overstayed()).await;
        assert!(left.is_err(), "it may be about to ask for something");
    }

    #[tokio::test]
    async fn those_idle_for_longest_go_first() {
        let room = Room::new(3);
        let seats = [room.take().expect("room"), room.take().expect("room"), room.take().expect("room")];
        for (at, since) in [30, 10, 20].into_iter().enumerate() {
            seats[at].occupant.idle_since.store(since, Ordering::Relaxed);
        }
        assert!(room.make_room());
        let leaving = seats.each_ref().map(|seat| seat.occupant.leaving.load(Ordering::Relaxed));
        assert_eq!(leaving, [false, true, false]);
        assert!(room.make_room(), "one is on its way out");
        assert_eq!(room.asked_to_leave(), 1);
        let _stream = seats[1].open();
        assert!(room.make_room(), "it has begun something and stays: another has to go");
        assert_eq!(room.asked_to_leave(), 2);
    }

    #[tokio::test]
    async fn a_room_of_busy_ones_is_not_searched_for_each_newcomer() {
        let room = Room::new(1);
        let seat = room.take().expect("room");
        let stream = seat.open();
        assert!(!room.make_room());
        drop(stream);
        assert!(!room.make_room(), "looked for a moment ago");
        room.state.lock().searched_until = 0;
        assert!(room.make_room());
    }
}
