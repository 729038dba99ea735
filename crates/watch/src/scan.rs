//! One slice of history for watchers that are behind: read, sorted and encoded, on whatever thread.
//!
//! Watchers that want the same (range, filters, previous values) are one **audience**. The slice is read once for all
//! audiences, and encoded once for each; a watcher of an audience that is further along than another gets the rest of the
//! same bytes. What a slice costs is bounded by [`Bounds`], whatever the history holds, but for one thing: a revision is
//! never split between responses, so where a single one is larger than the bounds, a single audience gets it.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_types::KeyRange;

use crate::budget::Budget;
use crate::event::{Event, History, HistoryError, PREVIOUS_COST, encode};
use crate::index::Index;

/// Revisions one response of a replay spans, as in etcd.
const MAX_REVISIONS: usize = 1000;
/// What an event costs at least.
const EVENT_COST: usize = 64;
/// The largest message that gRPC carries, less what a head takes.
pub(crate) const MAX_RESPONSE: usize = i32::MAX as usize - 128;

/// What one slice may take; twice that to finish its last revision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Keys and payloads read, and what previous values cost.
    pub read: usize,
    /// Bytes encoded for all audiences.
    pub encoded: usize,
    /// Where the first revision alone is larger: whether to give up, for somebody with more time, or to serve whom it can.
    pub give_up: bool,
}

/// What watchers have in common that get the same events of a revision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Audience {
    pub range: KeyRange,
    pub no_put: bool,
    pub no_delete: bool,
    pub prev_kv: bool,
}

impl Audience {
    fn wants(&self, event: &Event) -> bool {
        !(if event.tombstone { self.no_delete } else { self.no_put })
    }
}

/// A watcher to be served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub slot: u32,
    /// It is still the same watcher, and nobody else has served it, while it has this ticket.
    pub ticket: u64,
    pub next: i64,
    pub audience: u32,
}

/// A slice of history to be read, away from the node's thread: see [`Scan::run`].
#[derive(Debug)]
pub struct Scan {
    from: i64,
    audiences: Vec<Audience>,
    known: HashMap<Audience, u32>,
    members: Vec<Member>,
    bounds: Bounds,
    budget: Arc<Budget>,
}

/// One response of an audience.
#[derive(Debug)]
pub(crate) struct Response {
    bytes: Bytes,
    events: u32,
    marks: Vec<Mark>,
}

/// Where a revision begins in a response, and the events before it.
#[derive(Clone, Copy, Debug)]
struct Mark {
    main: i64,
    at: usize,
    before: u32,
}

impl Response {
    /// What a watcher gets whose next revision is `next`: bytes, events and the first revision. `None`: nothing.
    pub(crate) fn from(&self, next: i64) -> Option<(Bytes, u32, i64)> {
        let mark = self.marks.get(self.marks.partition_point(|mark| mark.main < next))?;
        Some((self.bytes.slice(mark.at..), self.events - mark.before, mark.main))
    }
}

/// What there is for an audience.
#[derive(Debug)]
pub(crate) enum Share {
    Responses(Vec<Response>),
    /// It did not fit beside the others. Its watchers stay where they are.
    Later,
    /// A single revision is larger than a message can be.
    TooLarge(usize),
}

/// What a scan has found.
#[derive(Debug)]
pub struct Scanned {
    pub(crate) result: Result<Slice, HistoryError>,
    pub(crate) members: Vec<Member>,
}

#[derive(Debug)]
pub(crate) struct Slice {
    /// What readers saw when it was read.
    pub current: i64,
    /// Covered up to here.
    pub through: i64,
    /// By audience.
    pub shares: Vec<Share>,
    /// The first revision is this one and too large for the bounds: there is nothing in here.
    pub gave_up: Option<i64>,
}

impl Scan {
    pub(crate) fn new(from: i64, bounds: Bounds, budget: Arc<Budget>) -> Self {
        Self { from, audiences: Vec::new(), known: HashMap::new(), members: Vec::new(), bounds, budget }
    }

    pub(crate) fn add(&mut self, slot: u32, ticket: u64, next: i64, audience: Audience) {
        let new = self.audiences.len() as u32;
        let audience = *self.known.entry(audience).or_insert_with_key(|audience| {
            self.audiences.push(audience.clone());
            new
        });
        self.members.push(Member { slot, ticket, next, audience });
    }

    /// Reads the slice. May take as long as reading a few MiB from the disk does.
    pub fn run(self, source: &dyn History) -> Scanned {
        let Self { from, audiences, members, bounds, budget, .. } = self;
        let mut work = Work::new(&audiences, bounds, source);
        let result = match work.read(from) {
            // The store moves on while it is read: the hub will notice who is affected.
            Err(HistoryError::Compacted { .. }) if from < source.compact_revision() => {
                Ok(Slice { current: from - 1, through: from - 1, shares: Vec::new(), gave_up: None })
            }
            Err(error) => Err(error),
            Ok((current, through)) => Ok(Slice {
                current,
                through,
                shares: work.piles.into_iter().map(|pile| pile.share(&budget)).collect(),
                gave_up: work.gave_up,
            }),
        };
        Scanned { result, members }
    }
}

/// What is gathered for one audience.
#[derive(Default)]
struct Pile {
    done: Vec<(Vec<u8>, u32, Vec<Mark>)>,
    bytes: Vec<u8>,
    events: u32,
    marks: Vec<Mark>,
    /// Left out of the slice, or of its reach.
    out: Option<Share>,
}

impl Pile {
    fn begin(&mut self, main: i64) {
        if self.marks.last().is_some_and(|mark| mark.main == main) {
            return;
        }
        if self.marks.len() == MAX_REVISIONS {
            let (bytes, marks) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.marks));
            self.done.push((bytes, std::mem::take(&mut self.events), marks));
        }
        self.marks.push(Mark { main, at: self.bytes.len(), before: self.events });
    }

    /// Forgets the last revision, when it is `main`; returns the bytes it took.
    fn drop_revision(&mut self, main: i64) -> usize {
        let Some(mark) = self.marks.pop_if(|mark| mark.main == main) else { return 0 };
        let gone = self.bytes.len() - mark.at;
        self.bytes.truncate(mark.at);
        self.events = mark.before;
        gone
    }

    fn share(self, budget: &Arc<Budget>) -> Share {
        let Self { mut done, bytes, events, marks, out } = self;
        if let Some(out) = out {
            return out;
        }
        if events > 0 {
            done.push((bytes, events, marks));
        }
        Share::Responses(
            done.into_iter()
                .map(|(bytes, events, marks)| Response { bytes: budget.keep(bytes), events, marks })
                .collect(),
        )
    }
}

struct Work<'a> {
    audiences: &'a [Audience],
    bounds: Bounds,
    source: &'a dyn History,
    index: Index,
    piles: Vec<Pile>,
    /// Audiences still served, from the first on.
    serving: usize,
    read: usize,
    encoded: usize,
    gave_up: Option<i64>,
    plain: Vec<u8>,
    with_previous: Vec<u8>,
    wanted: Vec<u32>,
}

impl<'a> Work<'a> {
    fn new(audiences: &'a [Audience], bounds: Bounds, source: &'a dyn History) -> Self {
        let mut index = Index::default();
        for (at, audience) in audiences.iter().enumerate() {
            index.insert(&audience.range, at as u32);
        }
        Self {
            audiences,
            bounds,
            source,
            index,
            piles: audiences.iter().map(|_| Pile::default()).collect(),
            serving: audiences.len(),
            read: 0,
            encoded: 0,
            gave_up: None,
            plain: Vec::new(),
            with_previous: Vec::new(),
            wanted: Vec::new(),
        }
    }

    /// Reads from `from` on; returns what readers see, and how far the slice reaches.
    fn read(&mut self, from: i64) -> Result<(i64, i64), HistoryError> {
        let source = self.source;
        let current = source.current();
        // The revision being read, and the last one before it that is complete.
        let (mut main, mut through) = (from - 1, from - 1);
        let mut cut = false;
        let mut failed = None;
        source.scan(from, current, &mut |event| {
            if event.rev.main != main {
                through = event.rev.main - 1;
                main = event.rev.main;
                if through >= from && self.is_full() {
                    cut = true;
                    return ControlFlow::Break(());
                }
            }
            if let Err(error) = self.add(&event) {
                failed = Some(error);
                return ControlFlow::Break(());
            }
            if !self.is_over() {
                return ControlFlow::Continue(());
            }
            if through >= from {
                // The next slice begins with this revision.
                cut = true;
                return ControlFlow::Break(());
            }
            if self.bounds.give_up {
                self.gave_up = Some(main);
                return ControlFlow::Break(());
            }
            self.thin_out(main);
            ControlFlow::Continue(())
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        if self.gave_up.is_some() {
            return Ok((current, from - 1));
        }
        if cut {
            for pile in &mut self.piles {
                pile.drop_revision(main);
            }
            return Ok((current, through));
        }
        Ok((current, current))
    }

    /// No further revision is begun.
    fn is_full(&self) -> bool {
        self.read >= self.bounds.read || self.encoded >= self.bounds.encoded
    }

    /// Not even the revision at hand is finished.
    fn is_over(&self) -> bool {
        self.read >= 2 * self.bounds.read || self.encoded >= 2 * self.bounds.encoded
    }

    fn add(&mut self, event: &Event) -> Result<(), HistoryError> {
        self.read += EVENT_COST + event.key.len() + event.payload.len();
        self.wanted.clear();
        let (index, wanted) = (&self.index, &mut self.wanted);
        index.stab(&event.key, |set| wanted.extend_from_slice(index.watchers(set)));
        self.plain.clear();
        self.with_previous.clear();
        for at in 0..self.wanted.len() {
            let at = self.wanted[at] as usize;
            let audience = &self.audiences[at];
            if at >= self.serving || !audience.wants(event) || self.piles[at].out.is_some() {
                continue;
            }
            let encoded = if audience.prev_kv && !event.is_create() {
                if self.with_previous.is_empty() {
                    let before = self.source.previous(&event.key, event.rev.main)?;
                    self.read += PREVIOUS_COST + before.as_ref().map_or(0, Bytes::len);
                    encode(&mut self.with_previous, event, before.as_deref());
                }
                &self.with_previous
            } else {
                if self.plain.is_empty() {
                    encode(&mut self.plain, event, None);
                }
                &self.plain
            };
            let pile = &mut self.piles[at];
            pile.begin(event.rev.main);
            pile.bytes.extend_from_slice(encoded);
            pile.events += 1;
            self.encoded += encoded.len();
            if pile.bytes.len() > MAX_RESPONSE {
                let bytes = pile.bytes.len();
                self.encoded -= bytes;
                *pile = Pile { out: Some(Share::TooLarge(bytes)), ..Pile::default() };
            }
        }
        Ok(())
    }

    /// A single revision is too large for everybody: serves fewer. The first audience always stays.
    fn thin_out(&mut self, main: i64) {
        while self.encoded >= 2 * self.bounds.encoded && self.serving > 1 {
            self.serving -= 1;
            let pile = &mut self.piles[self.serving];
            self.encoded -= pile.drop_revision(main);
            *pile = Pile { out: Some(Share::Later), ..Pile::default() };
        }
    }
}
