//! Reads that wait for proof that the leader still leads (thesis 6.4).
//!
//! Reads queue in order of arrival and are numbered from 1, for as long as one leader leads. Each heartbeat carries the
//! number of the newest read as its context, 8 bytes little-endian, and followers echo it: an echo of `n` proves that
//! the leader led after read `n` arrived, so it confirms reads `1..=n`. Once a quorum echoed `n` or more, they are
//! answered.
//!
//! The number is ours, never the caller's context, so a caller that repeats a context cannot have a late echo of its
//! earlier request answer the later one. An echo from another term is dropped with its message.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use dolmen_proto::raftpb::Message;

use crate::config::ReadOnlyOption;
use crate::quorum::JointConfig;

/// A read as it arrived, and the commit index it may be answered with.
#[derive(Clone, Debug)]
pub(crate) struct PendingRead {
    pub request: Message,
    pub index: u64,
}

#[derive(Debug)]
pub(crate) struct ReadOnly {
    option: ReadOnlyOption,
    /// Per member, the highest number it echoed.
    acks: BTreeMap<u64, u64>,
    /// Oldest first; the first one's number is `confirmed + 1`.
    unconfirmed: VecDeque<PendingRead>,
    confirmed: u64,
}

/// Why an echo was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadEcho(pub &'static str);

impl ReadOnly {
    pub(crate) const fn new(option: ReadOnlyOption) -> Self {
        Self { option, acks: BTreeMap::new(), unconfirmed: VecDeque::new(), confirmed: 0 }
    }

    pub(crate) const fn option(&self) -> ReadOnlyOption {
        self.option
    }

    /// Forgets everything: the leader stepped down or a new one took over.
    pub(crate) fn reset(&mut self) {
        self.acks.clear();
        self.unconfirmed.clear();
        self.confirmed = 0;
    }

    /// Queues a read and counts the leader's own vote for it.
    pub(crate) fn add(&mut self, leader: u64, index: u64, request: Message) {
        self.unconfirmed.push_back(PendingRead { request, index });
        self.acks.insert(leader, self.newest());
    }

    /// How many reads wait.
    pub(crate) fn waiting(&self) -> usize {
        self.unconfirmed.len()
    }

    /// The number of the newest read.
    fn newest(&self) -> u64 {
        self.confirmed + self.unconfirmed.len() as u64
    }

    /// The context for the next heartbeats; empty when no read waits.
    pub(crate) fn heartbeat_context(&self) -> Bytes {
        if self.unconfirmed.is_empty() {
            return Bytes::new();
        }
        Bytes::copy_from_slice(&self.newest().to_le_bytes())
    }

    /// Takes an echoed context. Only the first 8 bytes count.
    ///
    /// # Errors
    /// `BadEcho` for fewer bytes, or for a number that was never sent.
    pub(crate) fn receive_ack(&mut self, from: u64, context: &[u8]) -> Result<(), BadEcho> {
        let number = context.first_chunk().ok_or(BadEcho("heartbeat context is shorter than 8 bytes"))?;
        let number = u64::from_le_bytes(*number);
        if number > self.newest() {
            return Err(BadEcho("heartbeat context was never sent"));
        }
        let ack = self.acks.entry(from).or_default();
        *ack = number.max(*ack);
        Ok(())
    }

    /// Takes out the reads that a quorum has confirmed, oldest first.
    pub(crate) fn take_confirmed(&mut self, voters: &JointConfig) -> Vec<PendingRead> {
        // Without voters everything counts as acknowledged; no more can be confirmed than there is.
        let confirmed = voters.committed_index(|id| self.acks.get(&id).copied()).min(self.newest());
        if confirmed <= self.confirmed {
            return Vec::new();
        }
        let count = (confirmed - self.confirmed) as usize;
        self.confirmed = confirmed;
        self.unconfirmed.drain(..count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voters() -> JointConfig {
        JointConfig { incoming: [1, 2, 3].into_iter().collect(), ..JointConfig::default() }
    }

    fn indexes(reads: &[PendingRead]) -> Vec<u64> {
        reads.iter().map(|read| read.index).collect()
    }

    #[test]
    fn an_echo_confirms_all_reads_before_it() {
        let mut reads = ReadOnly::new(ReadOnlyOption::Safe);
        assert!(reads.heartbeat_context().is_empty());
        reads.add(1, 10, Message::default());
        let first = reads.heartbeat_context();
        assert_eq!(&first[..], 1u64.to_le_bytes());
        reads.add(1, 11, Message::default());
        reads.add(1, 12, Message::default());
        let third = reads.heartbeat_context();
        assert!(reads.take_confirmed(&voters()).is_empty());
        reads.receive_ack(2, &first).unwrap();
        assert_eq!(indexes(&reads.take_confirmed(&voters())), [10]);
        reads.receive_ack(3, &third).unwrap();
        // A late echo of the first round changes nothing.
        reads.receive_ack(3, &first).unwrap();
        assert_eq!(indexes(&reads.take_confirmed(&voters())), [11, 12]);
        assert!(reads.heartbeat_context().is_empty());
        reads.add(1, 13, Message::default());
        reads.receive_ack(2, &third).unwrap();
        assert!(reads.take_confirmed(&voters()).is_empty());
    }

    #[test]
    fn lying_echoes_are_refused() {
        let mut reads = ReadOnly::new(ReadOnlyOption::Safe);
        reads.add(1, 10, Message::default());
        assert!(reads.receive_ack(2, b"short").is_err());
        assert!(reads.receive_ack(2, &2u64.to_le_bytes()).is_err());
        assert!(reads.receive_ack(2, &u64::MAX.to_le_bytes()).is_err());
        assert!(reads.take_confirmed(&voters()).is_empty());
        assert!(ReadOnly::new(ReadOnlyOption::Safe).take_confirmed(&JointConfig::default()).is_empty());
    }
}
