//! How answers come back from the node: one batch and one wake-up for each runtime, whatever the number of callers.
//!
//! Each runtime owns a [`Mailbox`]. A caller takes a slot in it, sends a request to the node with the slot's number, and
//! awaits. The node thread answers many requests in one loop and puts the whole batch into the mailbox ([`Letterbox`]);
//! that wakes one task of the runtime, the [`Pump`], which hands the answers to the slots and wakes their tasks on their
//! own thread, where waking costs a push to a local queue. Waking each task from the node thread would cost a system call
//! each (measured: 2.5 system calls a put instead of 0.65).
//!
//! A slot's number holds a generation: a caller that gave up (deadline, cancelled call) frees its slot at once, and the
//! answer that comes late finds nobody.
//!
//! Linearizable reads share rounds: whoever asks between two runs of the pump waits for the same `ReadIndex`. It is sent
//! after all of them have arrived, so it confirms leadership for each.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use dolmen_node::{Completion, Handle, Reply, Request, RequestError, Sink};
use parking_lot::Mutex;
use slab::Slab;

/// One runtime's slots and letter box.
pub struct Mailbox {
    runtime: u16,
    slots: Mutex<Slots>,
    inbox: Mutex<Inbox>,
    /// Somebody waits for a read round that has not been asked for yet.
    reads_wanted: AtomicBool,
}

#[derive(Default)]
struct Inbox {
    batches: Vec<Vec<(u64, Reply)>>,
    /// The pump, when it sleeps.
    pump: Option<Waker>,
}

#[derive(Default)]
struct Slots {
    slots: Slab<Slot>,
    /// Bumped with each slot taken; the high half of a slot's number.
    generation: u32,
    /// Slots that wait for the next read round.
    next_round: Vec<u64>,
}

struct Slot {
    generation: u32,
    state: State,
}

enum State {
    Waiting(Option<Waker>),
    Answered(Reply),
    /// A read round: the slots that share it.
    Round(Vec<u64>),
    /// Rung any number of times ([`Bell`]).
    Bell {
        rung: bool,
        waker: Option<Waker>,
    },
}

impl Slots {
    fn insert(&mut self, state: State) -> u64 {
        self.generation = self.generation.wrapping_add(1);
        let index = self.slots.insert(Slot { generation: self.generation, state });
        u64::from(self.generation) << 32 | index as u64
    }

    fn get(&mut self, id: u64) -> Option<&mut Slot> {
        let slot = self.slots.get_mut((id & 0xffff_ffff) as usize)?;
        (slot.generation == (id >> 32) as u32).then_some(slot)
    }

    fn remove(&mut self, id: u64) -> Option<State> {
        self.get(id)?;
        Some(self.slots.remove((id & 0xffff_ffff) as usize).state)
    }

    /// Stores an answer; wakers to call once the lock is gone are pushed to `wake`.
    fn answer(&mut self, id: u64, reply: Reply, wake: &mut Vec<Waker>) {
        let Some(slot) = self.get(id) else { return };
        match &mut slot.state {
            State::Waiting(waker) => {
                wake.extend(waker.take());
                slot.state = State::Answered(reply);
            }
            State::Bell { rung, waker } => {
                *rung = true;
                wake.extend(waker.take());
            }
            State::Round(_) => {
                let Some(State::Round(waiting)) = self.remove(id) else { return };
                let result = match reply {
                    Reply::ReadReady(result) => result,
                    _ => return,
                };
                for id in waiting {
                    self.answer(id, Reply::ReadReady(result.clone()), wake);
                }
            }
            // The node answers each request once.
            State::Answered(_) => {}
        }
    }
}

impl Mailbox {
    pub fn new(runtime: u16) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            slots: Mutex::default(),
            inbox: Mutex::default(),
            reads_wanted: AtomicBool::new(false),
        })
    }

    /// The number of the runtime.
    pub fn runtime(&self) -> u16 {
        self.runtime
    }

    /// The node's end.
    pub fn letterbox(self: &Arc<Self>) -> Box<dyn Sink> {
        Box::new(Letterbox(self.clone()))
    }

    /// Sends a request; the answer arrives at the future. Dropping the future gives the answer up, not the request.
    pub fn call(self: &Arc<Self>, node: &Handle, request: Request) -> Answer {
        let slot = self.slots.lock().insert(State::Waiting(None));
        node.submit(request, Completion { runtime: self.runtime, slot });
        Answer { mailbox: self.clone(), slot }
    }

    /// Waits until everything committed before this call is applied here, and leadership confirmed.
    ///
    /// # Errors
    /// No leader in time, an election, or a stopping server.
    pub async fn read_index(self: &Arc<Self>) -> Result<(), RequestError> {
        let answer = {
            let mut slots = self.slots.lock();
            let slot = slots.insert(State::Waiting(None));
            slots.next_round.push(slot);
            Answer { mailbox: self.clone(), slot }
        };
        if !self.reads_wanted.swap(true, Ordering::AcqRel) {
            self.wake_pump();
        }
        match answer.await {
            Reply::ReadReady(result) => result,
            _ => Err(RequestError::Stopped),
        }
    }

    /// A slot that is rung again and again, for as long as the returned value lives.
    pub fn bell(self: &Arc<Self>) -> Bell {
        let slot = self.slots.lock().insert(State::Bell { rung: false, waker: None });
        Bell { mailbox: self.clone(), slot }
    }

    /// Hands out answers and asks for read rounds until the runtime ends.
    pub fn pump(self: &Arc<Self>, node: Handle) -> Pump {
        Pump { mailbox: self.clone(), node, wake: Vec::new() }
    }

    fn wake_pump(&self) {
        let pump = self.inbox.lock().pump.take();
        if let Some(pump) = pump {
            pump.wake();
        }
    }
}

struct Letterbox(Arc<Mailbox>);

impl Sink for Letterbox {
    fn complete(&mut self, batch: Vec<(u64, Reply)>) {
        let pump = {
            let mut inbox = self.0.inbox.lock();
            inbox.batches.push(batch);
            inbox.pump.take()
        };
        if let Some(pump) = pump {
            pump.wake();
        }
    }
}

/// See [`Mailbox::pump`].
pub struct Pump {
    mailbox: Arc<Mailbox>,
    node: Handle,
    /// Kept to reuse its memory.
    wake: Vec<Waker>,
}

impl Future for Pump {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { mailbox, node, wake } = &mut *self;
        let batches = {
            let mut inbox = mailbox.inbox.lock();
            // Before the wish for reads is looked at: whoever wishes after that finds somebody to wake.
            inbox.pump = Some(cx.waker().clone());
            std::mem::take(&mut inbox.batches)
        };
        if !batches.is_empty() {
            let mut slots = mailbox.slots.lock();
            for (slot, reply) in batches.into_iter().flatten() {
                slots.answer(slot, reply, wake);
            }
        }
        for waker in wake.drain(..) {
            waker.wake();
        }
        if mailbox.reads_wanted.swap(false, Ordering::AcqRel) {
            let round = {
                let mut slots = mailbox.slots.lock();
                let waiting = std::mem::take(&mut slots.next_round);
                (!waiting.is_empty()).then(|| slots.insert(State::Round(waiting)))
            };
            if let Some(slot) = round {
                node.submit(Request::ReadIndex, Completion { runtime: mailbox.runtime, slot });
            }
        }
        Poll::Pending
    }
}

/// The answer to one request, to come.
pub struct Answer {
    mailbox: Arc<Mailbox>,
    slot: u64,
}

impl Future for Answer {
    type Output = Reply;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Reply> {
        let mut slots = self.mailbox.slots.lock();
        let slot = slots.get(self.slot).expect("an awaited slot is freed by its own future only");
        match &mut slot.state {
            State::Waiting(waker) => {
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            State::Answered(_) => match slots.remove(self.slot) {
                Some(State::Answered(reply)) => Poll::Ready(reply),
                _ => unreachable!("looked at under the same lock"),
            },
            State::Round(_) | State::Bell { .. } => unreachable!("an answer's slot is one or the other of the above"),
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // After an answer the slot is gone already, and its number is never used again.
        let state = self.mailbox.slots.lock().remove(self.slot);
        drop(state);
    }
}

/// A slot for wake-ups that repeat. See [`Mailbox::bell`].
pub struct Bell {
    mailbox: Arc<Mailbox>,
    slot: u64,
}

impl Bell {
    /// The address to give to whoever rings.
    pub fn completion(&self) -> Completion {
        Completion { runtime: self.mailbox.runtime, slot: self.slot }
    }

    /// Ready when the bell has rung since the last time this was ready.
    pub fn poll_rung(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut slots = self.mailbox.slots.lock();
        let slot = slots.get(self.slot).expect("a bell's slot lives as long as the bell");
        let State::Bell { rung, waker } = &mut slot.state else {
            unreachable!("a bell's slot is a bell");
        };
        if std::mem::take(rung) {
            return Poll::Ready(());
        }
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        let state = self.mailbox.slots.lock().remove(self.slot);
        drop(state);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn waiting(mailbox: &Arc<Mailbox>) -> Answer {
        Answer { mailbox: mailbox.clone(), slot: mailbox.slots.lock().insert(State::Waiting(None)) }
    }

    fn deliver(mailbox: &Arc<Mailbox>) -> usize {
        let batches = std::mem::take(&mut mailbox.inbox.lock().batches);
        let mut wake = Vec::new();
        for (slot, reply) in batches.into_iter().flatten() {
            mailbox.slots.lock().answer(slot, reply, &mut wake);
        }
        let woken = wake.len();
        wake.into_iter().for_each(Waker::wake);
        woken
    }

    fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_batch_wakes_the_pump_once() {
        let mailbox = Mailbox::new(0);
        let counter = Arc::new(Counter(AtomicUsize::new(0)));
        mailbox.inbox.lock().pump = Some(Waker::from(counter.clone()));
        let mut sink = mailbox.letterbox();
        sink.complete(vec![(1, Reply::WatchReady), (2, Reply::WatchReady)]);
        sink.complete(vec![(3, Reply::WatchReady)]);
        assert_eq!(counter.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_late_answer_finds_nobody_even_when_the_place_is_taken_again() {
        let mailbox = Mailbox::new(0);
        let gone = waiting(&mailbox);
        let old = gone.slot;
        drop(gone);
        let mut other = waiting(&mailbox);
        assert_eq!(old & 0xffff_ffff, other.slot & 0xffff_ffff);
        mailbox.letterbox().complete(vec![(old, Reply::Done(Ok(())))]);
        deliver(&mailbox);
        assert!(poll(&mut other).is_pending());
        mailbox.letterbox().complete(vec![(other.slot, Reply::Done(Ok(())))]);
        deliver(&mailbox);
        assert!(matches!(poll(&mut other), Poll::Ready(Reply::Done(Ok(())))));
        drop(other);
        assert!(mailbox.slots.lock().slots.is_empty());
    }

    #[test]
    fn one_read_round_answers_all_who_share_it_and_skips_who_left() {
        let mailbox = Mailbox::new(0);
        let mut first = waiting(&mailbox);
        let left = waiting(&mailbox);
        let mut last = waiting(&mailbox);
        let shared = vec![first.slot, left.slot, last.slot];
        drop(left);
        let round = mailbox.slots.lock().insert(State::Round(shared));
        assert!(poll(&mut first).is_pending() && poll(&mut last).is_pending());
        mailbox.letterbox().complete(vec![(round, Reply::ReadReady(Err(RequestError::LeaderChanged)))]);
        assert_eq!(deliver(&mailbox), 2);
        for answer in [&mut first, &mut last] {
            assert!(matches!(poll(answer), Poll::Ready(Reply::ReadReady(Err(RequestError::LeaderChanged)))));
        }
    }

    #[test]
    fn a_bell_rings_again_and_rings_made_together_are_one() {
        let mailbox = Mailbox::new(3);
        let bell = mailbox.bell();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(bell.poll_rung(&mut cx).is_pending());
        for _ in 0..2 {
            let slot = bell.completion().slot;
            mailbox.letterbox().complete(vec![(slot, Reply::WatchReady), (slot, Reply::WatchReady)]);
            deliver(&mailbox);
            assert!(bell.poll_rung(&mut cx).is_ready());
            assert!(bell.poll_rung(&mut cx).is_pending());
        }
    }
}
