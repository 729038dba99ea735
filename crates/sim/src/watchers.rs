//! Watch clients: each follows a range over members and restarts, and checks what comes against the committed history.
//!
//! Checked as it arrives: order, no repeat, no gap, no revision split, previous values, bookmarks never ahead of events.
//! At the end: everything has arrived.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use dolmen_node::{Completion, Input, Request, Submission};
use dolmen_proto::etcdserverpb::WatchResponse;
use dolmen_proto::mvccpb::{self, event::EventType};
use dolmen_types::KeyRange;
use dolmen_watch::{CreateRequest, Drained, Limits, Outbox, StreamId};
use prost::Message;

use crate::model::Change;
use crate::plan::{MS, US};
use crate::world::{Event, Phase, World};

/// The runtime of watch streams.
pub(crate) const WATCHES: u16 = 1;

pub(crate) struct Watcher {
    range: KeyRange,
    prev_kv: bool,
    no_put: bool,
    no_delete: bool,
    progress_notify: bool,
    /// Drains late.
    slow: bool,
    limits: Limits,
    /// The first revision not seen yet; 0: whatever comes after the created reply.
    next: i64,
    created: bool,
    canceling: bool,
    connected: Option<(usize, u64)>,
    stream: StreamId,
    outbox: Arc<Outbox>,
    parts: Vec<mvccpb::Event>,
}

impl World {
    pub(crate) fn new_watcher(&mut self) -> Watcher {
        let range = if self.rng.chance(400) {
            KeyRange::From(Bytes::from_static(b"\0"))
        } else {
            let low = self.rng.below(self.plan.keys);
            let high = low + 1 + self.rng.below(self.plan.keys);
            KeyRange::Range(format!("k{low:02}").into(), format!("k{high:02}").into())
        };
        let limits =
            Limits { bytes: self.rng.range(1 << 10, 64 << 10) as usize, responses: self.rng.range(2, 64) as usize };
        Watcher {
            range,
            prev_kv: self.rng.chance(500),
            no_put: self.rng.chance(50),
            no_delete: self.rng.chance(50),
            progress_notify: self.rng.chance(500),
            slow: self.rng.chance(300),
            limits,
            next: 0,
            created: false,
            canceling: false,
            connected: None,
            stream: StreamId(0),
            outbox: Arc::new(Outbox::new(WATCHES, 0, limits)),
            parts: Vec::new(),
        }
    }

    fn submit_watch(&mut self, node: usize, watcher: usize, request: Request) {
        let now = self.queue.now;
        let member = &mut self.members[node];
        let since = member.clock(now);
        if let Some(running) = &mut member.running {
            let completion = Completion { runtime: WATCHES, slot: watcher as u64 };
            running.inbox.push_back(Input::Submit(Submission { request, completion, since }));
            self.wake(node);
        }
    }

    /// Opens a stream on some member and goes on from where the watcher stands.
    pub(crate) fn watch(&mut self, at: usize) {
        if self.watchers[at].connected.is_some() {
            return;
        }
        let node = self.rng.below(self.plan.nodes as u64) as usize;
        let member = &self.members[node];
        if member.running.is_none() || self.queue.now < member.paused_until {
            let pause = self.rng.range(MS, 30 * MS);
            self.queue.after(pause, Event::Watch(at));
            return;
        }
        self.streams += 1;
        let stream = StreamId(self.streams);
        let epoch = member.epoch;
        let (current, draw) = (self.model.revision(), self.rng.below(10));
        let somewhere = self.rng.below(current as u64 + 1) as i64;
        let soon = current + self.rng.range(1, 20) as i64;
        let watcher = &mut self.watchers[at];
        let start_revision = match (watcher.next, draw) {
            (0, 0..=3) => 0,
            (0, 4..=7) => somewhere.max(1),
            (0, _) => soon,
            (next, _) => next,
        };
        watcher.next = start_revision;
        watcher.connected = Some((node, epoch));
        watcher.created = false;
        watcher.canceling = false;
        watcher.parts.clear();
        watcher.stream = stream;
        watcher.outbox = Arc::new(Outbox::new(WATCHES, at as u64, watcher.limits));
        let outbox = watcher.outbox.clone();
        let create = CreateRequest {
            range: watcher.range.clone(),
            start_revision,
            watch_id: 0,
            no_put: watcher.no_put,
            no_delete: watcher.no_delete,
            prev_kv: watcher.prev_kv,
            progress_notify: watcher.progress_notify,
            fragment: false,
        };
        self.trace.note(self.queue.now, node as u8, "watch", at as u64, start_revision as u64);
        self.submit_watch(node, at, Request::WatchOpen { stream, outbox });
        self.submit_watch(node, at, Request::WatchCreate { stream, create });
    }

    /// Something a client does with its watch now and then.
    pub(crate) fn act_on_watch(&mut self, at: usize) {
        if self.phase != Phase::Faults {
            return;
        }
        let pause = self.rng.range(20 * MS, 600 * MS);
        self.queue.after(pause, Event::WatchAct(at));
        let Some((node, epoch)) = self.watchers[at].connected else { return };
        if self.members[node].epoch != epoch || self.queue.now < self.members[node].paused_until {
            return;
        }
        let stream = self.watchers[at].stream;
        match self.rng.below(10) {
            0 => {
                self.submit_watch(node, at, Request::WatchClose { stream });
                self.disconnect(at);
            }
            1 => {
                // A new watch altogether.
                self.submit_watch(node, at, Request::WatchClose { stream });
                self.watchers[at].next = 0;
                self.disconnect(at);
            }
            2 if self.watchers[at].created => {
                self.watchers[at].canceling = true;
                self.submit_watch(node, at, Request::WatchCancel { stream, watch_id: 0 });
            }
            3..=6 => self.submit_watch(node, at, Request::WatchProgress { stream }),
            _ => {}
        }
    }

    fn disconnect(&mut self, at: usize) {
        self.watchers[at].outbox.abandon();
        self.watchers[at].connected = None;
        let pause = self.rng.range(MS, 30 * MS);
        self.queue.after(pause, Event::Watch(at));
    }

    /// The process that served these streams is gone.
    pub(crate) fn drop_watches(&mut self, node: usize) {
        for at in 0..self.watchers.len() {
            if self.watchers[at].connected.is_some_and(|(on, _)| on == node) {
                self.disconnect(at);
            }
        }
    }

    /// The hub says that there is something to read.
    pub(crate) fn watch_ready(&mut self, node: usize, at: usize) {
        let epoch = self.members[node].epoch;
        let delay =
            if self.watchers[at].slow { self.rng.range(MS, 100 * MS) } else { self.rng.range(10 * US, 500 * US) };
        self.queue.after(delay, Event::Drain { watcher: at, node, epoch });
    }

    pub(crate) fn drain(&mut self, at: usize, node: usize, epoch: u64) -> Result<(), String> {
        if self.watchers[at].connected != Some((node, epoch)) {
            return Ok(());
        }
        let max = self.rng.range(1, 12) as usize;
        let Drained { frames, more, room } = self.watchers[at].outbox.drain(max);
        if room {
            let stream = self.watchers[at].stream;
            self.submit_watch(node, at, Request::WatchRoom { stream });
        }
        for frame in frames {
            let mut bytes = BytesMut::with_capacity(frame.len());
            frame.write_to(&mut bytes);
            let response = WatchResponse::decode(bytes.freeze()).map_err(|e| format!("a watch response: {e}"))?;
            self.watched(at, node, response)?;
            if self.watchers[at].connected.is_none() {
                return Ok(());
            }
        }
        if more {
            self.watch_ready(node, at);
        } else if self.watchers[at].outbox.closed().is_some() {
            self.disconnect(at);
        }
        Ok(())
    }

    fn watched(&mut self, at: usize, node: usize, response: WatchResponse) -> Result<(), String> {
        let revision = response.header.as_ref().map_or(0, |header| header.revision);
        let watcher = &mut self.watchers[at];
        let next = watcher.next;
        self.trace.note(self.queue.now, node as u8, "watch response", at as u64, response.events.len() as u64);
        if response.canceled {
            if response.compact_revision > 0 {
                if next >= response.compact_revision || response.compact_revision > self.model.compact_revision() {
                    return Err(format!(
                        "watcher {at} at revision {next} was cancelled on n{node} with compact revision {}; the log \
                         compacted at {}",
                        response.compact_revision,
                        self.model.compact_revision()
                    ));
                }
                watcher.next = response.compact_revision;
            } else if !watcher.canceling {
                return Err(format!("watcher {at} was cancelled on n{node}: {}", response.cancel_reason));
            }
            let stream = watcher.stream;
            self.submit_watch(node, at, Request::WatchClose { stream });
            self.disconnect(at);
            return Ok(());
        }
        if response.created {
            watcher.created = true;
            if next == 0 {
                watcher.next = revision + 1;
            }
            return Ok(());
        }
        if !watcher.created {
            return Err(format!("watcher {at} heard something before it was created"));
        }
        if response.events.is_empty() && !response.fragment {
            for missed in next..=revision {
                if !self.wanted(at, missed).is_empty() {
                    return Err(format!("watcher {at} was told of progress to {revision} and has not seen {missed}"));
                }
            }
            let watcher = &mut self.watchers[at];
            watcher.next = watcher.next.max(revision + 1);
            return Ok(());
        }
        let fragment = response.fragment;
        watcher.parts.extend(response.events);
        if fragment {
            return Ok(());
        }
        let events = std::mem::take(&mut watcher.parts);
        self.stats.watched += events.len() as u64;
        self.check_events(at, node, &events)
    }

    fn check_events(&mut self, at: usize, node: usize, events: &[mvccpb::Event]) -> Result<(), String> {
        let mut next = self.watchers[at].next;
        let mut rest = events;
        while let Some(first) = rest.first() {
            let revision = first.kv.as_ref().map_or(0, |kv| kv.mod_revision);
            if revision < next {
                return Err(format!(
                    "watcher {at} on n{node} got revision {revision} again: it had asked for {next} on"
                ));
            }
            if let Some(missed) = (next..revision).find(|missed| !self.wanted(at, *missed).is_empty()) {
                return Err(format!("watcher {at} on n{node} got revision {revision} and never {missed}"));
            }
            let wanted = self.wanted(at, revision);
            let count = rest.iter().take_while(|e| e.kv.as_ref().is_some_and(|kv| kv.mod_revision == revision)).count();
            if count != wanted.len() {
                return Err(format!(
                    "watcher {at} on n{node} got {count} of {} events of revision {revision} in one response",
                    wanted.len()
                ));
            }
            let (now, later) = rest.split_at(count);
            for (event, change) in now.iter().zip(&wanted) {
                self.check_event(at, event, change, revision)?;
            }
            rest = later;
            next = revision + 1;
        }
        self.watchers[at].next = next;
        Ok(())
    }

    fn check_event(&self, at: usize, event: &mvccpb::Event, change: &Change, revision: i64) -> Result<(), String> {
        let kv = event.kv.as_ref().ok_or("an event without a key")?;
        let same = match &change.kv {
            Some(put) => event.r#type == EventType::Put as i32 && kv == put,
            None => {
                let gone = mvccpb::KeyValue { key: change.key.clone(), mod_revision: revision, ..Default::default() };
                event.r#type == EventType::Delete as i32 && *kv == gone
            }
        };
        if !same {
            return Err(format!("watcher {at} got {event:?} for revision {revision}, the log says {change:?}"));
        }
        let expected = change.previous.as_ref().filter(|_| self.watchers[at].prev_kv);
        let may_be_missing = revision - 1 < self.model.compact_revision();
        match (&event.prev_kv, expected) {
            (None, None) => Ok(()),
            (Some(given), Some(wanted)) if given == wanted => Ok(()),
            (None, Some(_)) if may_be_missing => Ok(()),
            (given, wanted) => Err(format!(
                "watcher {at} got previous value {given:?} at revision {revision}, the log says {wanted:?}"
            )),
        }
    }

    /// What this watcher has to see of a revision.
    fn wanted(&self, at: usize, revision: i64) -> Vec<Change> {
        let watcher = &self.watchers[at];
        self.model
            .changes(revision)
            .iter()
            .filter(|change| watcher.range.contains(&change.key))
            .filter(|change| !if change.kv.is_some() { watcher.no_put } else { watcher.no_delete })
            .cloned()
            .collect()
    }

    /// A watcher that has not seen everything yet.
    pub(crate) fn behind(&self) -> Option<String> {
        (0..self.watchers.len()).find_map(|at| {
            let watcher = &self.watchers[at];
            let next = watcher.next;
            if watcher.connected.is_none() || !watcher.created {
                return Some(format!("watcher {at} is not connected"));
            }
            let missing = (next..=self.model.revision()).find(|revision| !self.wanted(at, *revision).is_empty());
            missing.map(|revision| format!("watcher {at} has not seen revision {revision}"))
        })
    }
}
