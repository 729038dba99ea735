//! Linearizable reads: at which index may a read that arrived now be answered? See [`read_only`](crate::read_only).

use dolmen_proto::raftpb::{Message, MessageType};

use super::{Raft, ReadState, message};
use crate::NONE;
use crate::config::ReadOnlyOption;
use crate::error::Error;
use crate::logger::log;
use crate::storage::Storage;

/// Reads that may wait at a leader; more are dropped, and whoever asked asks again.
const MAX_WAITING_READS: usize = 1 << 16;

impl<S: Storage> Raft<S> {
    /// A leader is asked.
    pub(super) fn handle_read_index(&mut self, request: Message) -> Result<(), Error> {
        if request.entries.len() != 1 {
            return Err(self.invalid(&request, "a read carries one context"));
        }
        if self.postponed_reads.len() + self.read_only.waiting() >= MAX_WAITING_READS {
            log!(self.logger, Warning, "{:x} has too many waiting reads; dropping index reading msg", self.id);
        } else if !self.committed_in_own_term() {
            // It may not know yet what earlier leaders committed (thesis 6.4). Neither does the only voter after a restart:
            // its commit index is written with the next entries, later than the answers that rest on it.
            self.postponed_reads.push(request);
        } else {
            self.confirm_read(request);
        }
        Ok(())
    }

    fn committed_in_own_term(&self) -> bool {
        self.log.term_or_zero(self.log.committed) == self.term
    }

    pub(super) fn release_postponed_reads(&mut self) {
        if self.postponed_reads.is_empty() || !self.committed_in_own_term() {
            return;
        }
        for request in std::mem::take(&mut self.postponed_reads) {
            self.confirm_read(request);
        }
    }

    fn confirm_read(&mut self, request: Message) {
        // Nobody else could have been elected. A removed leader that leads on is another matter: the one voter left may
        // have elected itself.
        let alone = self.tracker.is_singleton() && self.tracker.config.voters.contains(self.id);
        match self.read_only.option() {
            _ if alone => self.answer_read(request, self.log.committed),
            ReadOnlyOption::Safe => {
                self.read_only.add(self.id, self.log.committed, request);
                self.broadcast_heartbeat();
            }
            ReadOnlyOption::LeaseBased => self.answer_read(request, self.log.committed),
        }
    }

    pub(super) fn answer_confirmed_reads(&mut self) {
        for read in self.read_only.take_confirmed(&self.tracker.config.voters) {
            self.answer_read(read.request, read.index);
        }
    }

    /// Answers whoever asked: this member's own caller, or a follower that passed the read on.
    fn answer_read(&mut self, request: Message, index: u64) {
        if request.from == NONE || request.from == self.id {
            self.take_read_state(request, index);
        } else {
            let entries = request.entries;
            self.send(Message { index, entries, ..message(MessageType::MsgReadIndexResp, request.from) });
        }
    }

    fn take_read_state(&mut self, message: Message, index: u64) {
        if let Some(entry) = message.entries.into_iter().next() {
            self.read_states.push(ReadState { index, request_ctx: entry.data });
        }
    }

    /// The leader answered a read that was passed on.
    pub(super) fn handle_read_index_response(&mut self, response: Message) {
        if response.entries.len() != 1 {
            log!(
                self.logger,
                Error,
                "{:x} invalid format of MsgReadIndexResp from {:x}, entries count: {}",
                self.id,
                response.from,
                response.entries.len()
            );
            return;
        }
        let index = response.index;
        self.take_read_state(response, index);
    }
}
