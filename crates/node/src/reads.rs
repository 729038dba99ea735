//! Linearizable reads: confirm leadership once for everybody who waits, then wait until what was committed by then is
//! applied here.
//!
//! One question is asked for everybody who waits; those who come meanwhile share the next one. One that stays unanswered
//! (no leader, a lost message, an election, or just a long way) is followed by another, under a context of its own. All
//! of them stay good: the answer to a question, however late it comes, confirms those who waited when it was asked, and
//! nobody else. Were only the newest one's answer taken, a confirmation that takes longer than [`RETRY_NANOS`] would
//! never come. A context is never used twice, so no answer can be taken for that of another question (etcd issue 20418).

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
    /// Those who came since the last question.
    waiting: VecDeque<Waiting<T>>,
    /// Unanswered questions, oldest first. No more than are asked within a request's timeout: one whose readers have all
    /// given up is forgotten.
    asked: VecDeque<Question<T>>,
    /// When the newest of them was asked; `None` when the next one is due at once.
    asked_at: Option<Mono>,
    /// Confirmed, by the index that has to be applied first.
    confirmed: BTreeMap<Index, Vec<Waiting<T>>>,
    next_context: u64,
}

/// A question and those who came before it and after the one before. Its answer is good for earlier ones' too.
#[derive(Debug)]
struct Question<T> {
    context: u64,
    readers: VecDeque<Waiting<T>>,
}

/// How long an unanswered question is waited for until it is asked again, as in etcd.
const RETRY_NANOS: u64 = 500_000_000;

impl<T> Reads<T> {
    /// `first_context` must differ between members, whose questions meet at the leader, and between starts of one; see
    /// [`crate::identity::first_id`].
    pub(crate) fn new(first_context: u64) -> Self {
        Self {
            waiting: VecDeque::new(),
            asked: VecDeque::new(),
            asked_at: None,
            confirmed: BTreeMap::new(),
            next_context: first_context,
        }
    }

    pub(crate) fn push(&mut self, what: T, since: Mono) {
        self.waiting.push_back(Waiting { what, since });
    }

    /// The context to ask raft for now, if it is time to ask.
    pub(crate) fn ask(&mut self, now: Mono) -> Option<Bytes> {
        let under_way = !self.asked.is_empty() && self.asked_at.is_some_and(|at| now.since(at) < RETRY_NANOS);
        if under_way || (self.asked.is_empty() && self.waiting.is_empty()) {
            return None;
        }
        self.next_context += 1;
        let readers = std::mem::take(&mut self.waiting);
        self.asked.push_back(Question { context: self.next_context, readers });
        self.asked_at = Some(now);
        Some(Bytes::copy_from_slice(&self.next_context.to_be_bytes()))
    }

    /// Forgets when the last question was asked, so that it is asked of a new leader at once.
    pub(crate) fn ask_again(&mut self) {
        self.asked_at = None;
    }

    /// Takes raft's answer to a question: everybody who waited when it was asked is confirmed.
    pub(crate) fn answered(&mut self, context: &[u8], index: Index) {
        let Ok(context) = context.try_into().map(u64::from_be_bytes) else { return };
        let Some(at) = self.asked.iter().position(|question| question.context == context) else { return };
        let confirmed = self.confirmed.entry(index).or_default();
        for question in self.asked.drain(..=at) {
            confirmed.extend(question.readers);
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
        self.asked.iter_mut().for_each(|question| sweep(&mut question.readers));
        // Of questions that nobody waits for only the newest is worth an answer, and not even that when all have gone.
        while self.asked.front().is_some_and(|question| question.readers.is_empty()) {
            self.asked.pop_front();
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

    /// Who is ready once `applied` is.
    fn ready(reads: &mut Reads<&'static str>, applied: Index) -> Vec<&'static str> {
        reads.ready(applied).into_iter().map(|waiting| waiting.what).collect()
    }

    #[test]
    fn a_late_answer_confirms_those_who_waited_for_it() {
        let mut reads = Reads::new(7);
        reads.push("a", Mono::from_millis(1));
        let first = reads.ask(Mono::from_millis(1)).expect("asked");
        reads.push("b", Mono::from_millis(2));
        assert!(reads.ask(Mono::from_millis(2)).is_none(), "one question at a time");
        let second = reads.ask(Mono::from_millis(600)).expect("asked again");
        assert_ne!(first, second);
        reads.push("c", Mono::from_millis(601));
        reads.answered(&first, 5);
        assert!(ready(&mut reads, 4).is_empty(), "not applied yet");
        assert_eq!(ready(&mut reads, 5), ["a"], "whoever came later was not asked for");
        reads.answered(&first, 5);
        reads.answered(b"junk", 5);
        assert!(ready(&mut reads, 9).is_empty(), "an answer counts once");
        reads.answered(&second, 6);
        assert_eq!(ready(&mut reads, 6), ["b"]);
        assert!(reads.ask(Mono::from_millis(602)).is_some(), "nothing is under way");
    }

    #[test]
    fn a_question_covers_those_before_it() {
        let mut reads = Reads::new(7);
        reads.push("a", Mono::from_millis(1));
        let _lost = reads.ask(Mono::from_millis(1)).expect("asked");
        reads.push("b", Mono::from_millis(2));
        let second = reads.ask(Mono::from_millis(600)).expect("asked again");
        reads.answered(&second, 5);
        assert_eq!(ready(&mut reads, 5), ["a", "b"]);
    }

    #[test]
    fn confirmations_that_take_longer_than_the_retry_arrive() {
        // The way there and back takes 1.3 s, and somebody comes each 100 ms.
        let mut reads = Reads::new(7);
        let mut travelling = VecDeque::new();
        let mut answered = 0;
        for now in (0..20_000).step_by(100) {
            reads.push("a", Mono::from_millis(now));
            if let Some(context) = reads.ask(Mono::from_millis(now)) {
                travelling.push_back((now + 1300, context));
            }
            while let Some((_, context)) = travelling.pop_front_if(|(at, _)| *at <= now) {
                reads.answered(&context, 1);
            }
            for waiting in reads.ready(1) {
                assert!(Mono::from_millis(now).since(waiting.since) <= 1_900_000_000, "at {now}");
                answered += 1;
            }
            assert!(reads.asked.len() <= 3);
        }
        assert!(answered > 170, "{answered}");
    }

    #[test]
    fn questions_that_nobody_waits_for_are_forgotten() {
        let mut reads = Reads::new(0);
        reads.push("a", Mono::from_millis(0));
        for now in (0..20_000).step_by(100) {
            let _unanswered = reads.ask(Mono::from_millis(now));
            reads.expired(Mono::from_millis(now.saturating_sub(7_000)));
            assert!(reads.asked.len() <= 15);
        }
        assert!(reads.asked.is_empty());
        assert!(reads.ask(Mono::from_millis(30_000)).is_none());
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
