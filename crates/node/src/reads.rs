//! Linearizable reads: confirm leadership once for everybody who waits, then wait until what was committed by then is
//! applied here.
//!
//! One confirmation is under way at a time; those who come meanwhile share the next one. A confirmation that stays
//! unanswered (no leader, lost message, election) is asked again under a new context: a context is never used twice, so a
//! late answer to an old one confirms nothing (etcd issue 20418).

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use dolmen_env::Mono;
use dolmen_types::Index;

/// What waits for a confirmed read.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    pub(crate) what: T,
    pub(crate) since: Mono,
}

#[derive(Debug)]
pub(crate) struct Reads<T> {
    waiting: VecDeque<Waiting<T>>,
    asked: Option<Asked<T>>,
    /// Confirmed, by the index that has to be applied first.
    confirmed: BTreeMap<Index, Vec<Waiting<T>>>,
    next_context: u64,
}

#[derive(Debug)]
struct Asked<T> {
    context: u64,
    at: Mono,
    readers: VecDeque<Waiting<T>>,
}

/// How long an unanswered confirmation is waited for, as in etcd.
const RETRY_NANOS: u64 = 500_000_000;

impl<T> Reads<T> {
    /// `first_context` must differ between members, whose questions meet at the leader, and between starts of one; see
    /// [`crate::identity::first_id`].
    pub(crate) fn new(first_context: u64) -> Self {
        Self { waiting: VecDeque::new(), asked: None, confirmed: BTreeMap::new(), next_context: first_context }
    }

    pub(crate) fn push(&mut self, what: T, since: Mono) {
        self.waiting.push_back(Waiting { what, since });
    }

    /// The context to ask raft for now, if it is time to ask.
    pub(crate) fn ask(&mut self, now: Mono) -> Option<Bytes> {
        match &mut self.asked {
            Some(asked) if now.since(asked.at) < RETRY_NANOS => return None,
            // Those whose question went unanswered ask again, together with whoever came meanwhile.
            Some(_) => {
                let mut readers = self.asked.take().map(|asked| asked.readers).unwrap_or_default();
                readers.append(&mut self.waiting);
                self.waiting = readers;
            }
            None => {}
        }
        if self.waiting.is_empty() {
            return None;
        }
        self.next_context += 1;
        let readers = std::mem::take(&mut self.waiting);
        self.asked = Some(Asked { context: self.next_context, at: now, readers });
        Some(Bytes::copy_from_slice(&self.next_context.to_be_bytes()))
    }

    /// Forgets when the last question was asked, so that it is asked of a new leader at once.
    pub(crate) fn ask_again(&mut self) {
        if let Some(asked) = &mut self.asked {
            asked.at = Mono(0);
        }
    }

    /// Takes raft's answer. An answer to any other question than the present one is ignored.
    pub(crate) fn answered(&mut self, context: &[u8], index: Index) {
        let Ok(context) = context.try_into().map(u64::from_be_bytes) else { return };
        if let Some(asked) = self.asked.take_if(|asked| asked.context == context) {
            self.confirmed.entry(index).or_default().extend(asked.readers);
        }
    }

    /// Those whose index has been applied.
    pub(crate) fn ready(&mut self, applied: Index) -> Vec<Waiting<T>> {
        let mut ready = Vec::new();
        while let Some(entry) = self.confirmed.first_entry() {
            if *entry.key() > applied {
                break;
            }
            ready.append(&mut entry.remove());
        }
        ready
    }

    /// Those who began before `deadline` and are still waiting.
    pub(crate) fn expired(&mut self, deadline: Mono) -> Vec<Waiting<T>> {
        let mut expired = Vec::new();
        let mut sweep = |readers: &mut VecDeque<Waiting<T>>| {
            while readers.front().is_some_and(|reader| reader.since < deadline) {
                expired.extend(readers.pop_front());
            }
        };
        sweep(&mut self.waiting);
        if let Some(asked) = &mut self.asked {
            sweep(&mut asked.readers);
        }
        self.confirmed.retain(|_, readers| {
            let (old, new) = std::mem::take(readers).into_iter().partition(|reader| reader.since < deadline);
            expired.extend::<Vec<_>>(old);
            *readers = new;
            !readers.is_empty()
        });
        expired
    }

    /// Everybody, on the way out.
    pub(crate) fn drain(&mut self) -> Vec<Waiting<T>> {
        self.expired(Mono(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_answer_confirms_nothing() {
        let mut reads = Reads::new(7);
        reads.push("a", Mono::from_millis(1));
        let first = reads.ask(Mono::from_millis(1)).expect("asked");
        assert!(reads.ask(Mono::from_millis(2)).is_none(), "one question at a time");
        let second = reads.ask(Mono::from_millis(600)).expect("asked again");
        assert_ne!(first, second);
        reads.answered(&first, 5);
        assert!(reads.ready(9).is_empty(), "the old question's answer is late");
        reads.answered(&second, 5);
        assert!(reads.ready(4).is_empty(), "not applied yet");
        assert_eq!(reads.ready(5).len(), 1);
        reads.answered(b"junk", 5);
    }

    #[test]
    fn everybody_is_answered_or_expires() {
        let mut reads = Reads::new(0);
        for i in 0..3 {
            reads.push(i, Mono::from_millis(i));
        }
        let context = reads.ask(Mono::from_millis(3)).expect("asked");
        reads.push(3, Mono::from_millis(3));
        reads.answered(&context, 10);
        let expired: Vec<_> = reads.expired(Mono::from_millis(2)).into_iter().map(|r| r.what).collect();
        assert_eq!(expired, [0, 1]);
        assert_eq!(reads.drain().len(), 2);
    }
}
