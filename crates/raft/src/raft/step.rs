//! Terms, votes, and dispatch by role.

use std::cmp::Ordering;

use dolmen_proto::raftpb::{Message, MessageType};

use super::elect::{CAMPAIGN_TRANSFER, Campaign, response_to_vote};
use super::{Raft, Role, message, message_type};
use crate::NONE;
use crate::config::ReadOnlyOption;
use crate::entry::{EntryId, encoded_sizes, payload_sizes};
use crate::error::Error;
use crate::logger::log;
use crate::storage::{Storage, snapshot_index};

use MessageType::*;

impl<S: Storage> Raft<S> {
    /// Takes one checked message; see [`RawNode::step`](crate::RawNode::step) for the door. Term 0 marks what belongs
    /// to no term: local commands, and what followers pass on to the leader.
    pub(crate) fn step(&mut self, message: Message) -> Result<(), Error> {
        let kind = message_type(&message);
        if message.term != 0 {
            let go_on = match message.term.cmp(&self.term) {
                Ordering::Greater => self.meet_later_term(kind, &message),
                Ordering::Less => {
                    self.meet_earlier_term(kind, &message)?;
                    false
                }
                Ordering::Equal => true,
            };
            if !go_on {
                return Ok(());
            }
        }
        match kind {
            MsgHup => self.hup_by_config(),
            MsgStorageAppendResp => return self.handle_storage_appended(&message),
            MsgStorageApplyResp => return self.handle_storage_applied(&message),
            MsgVote | MsgPreVote => self.handle_vote_request(kind, &message),
            _ => match self.role {
                Role::Leader => return self.step_leader(kind, message),
                Role::Candidate | Role::PreCandidate => return self.step_candidate(kind, message),
                Role::Follower => return self.step_follower(kind, message),
            },
        }
        Ok(())
    }

    /// False: the message ends here.
    fn meet_later_term(&mut self, kind: MessageType, message: &Message) -> bool {
        if matches!(kind, MsgVote | MsgPreVote) {
            let by_leader = message.context == CAMPAIGN_TRANSFER;
            let in_lease = self.check_quorum && self.leader_id != NONE && self.election_elapsed < self.election_timeout;
            if in_lease && !by_leader {
                // It hears from a leader: a candidate that does not must not disrupt the term (thesis 6.2.3).
                let last = self.log.last_id();
                log!(
                    self.logger,
                    Info,
                    "{:x} [logterm: {}, index: {}, vote: {:x}] ignored {} from {:x} [logterm: {}, index: {}] at term \
                     {}: lease is not expired (remaining ticks: {})",
                    self.id,
                    last.term,
                    last.index,
                    self.vote,
                    kind.as_str_name(),
                    message.from,
                    message.log_term,
                    message.index,
                    self.term,
                    self.election_timeout - self.election_elapsed
                );
                return false;
            }
        }
        match kind {
            // Asking does not raise anybody's term, and being granted it does not either; a rejection does, because its
            // term is the rejecting member's own.
            MsgPreVote => {}
            MsgPreVoteResp if !message.reject => {}
            _ => {
                log!(
                    self.logger,
                    Info,
                    "{:x} [term: {}] received a {} message with higher term from {:x} [term: {}]",
                    self.id,
                    self.term,
                    kind.as_str_name(),
                    message.from,
                    message.term
                );
                let from_leader = matches!(kind, MsgApp | MsgHeartbeat | MsgSnap);
                self.become_follower(message.term, if from_leader { message.from } else { NONE });
            }
        }
        true
    }

    fn meet_earlier_term(&mut self, kind: MessageType, request: &Message) -> Result<(), Error> {
        match kind {
            MsgHeartbeat | MsgApp if self.check_quorum || self.pre_vote => {
                // A leader of an earlier term that does not know of this one. With these options this member's vote
                // requests are ignored by those in touch with that leader, so without an answer it could never rejoin:
                // tell the leader the term.
                self.send(message(MsgAppResp, request.from));
            }
            MsgPreVote => {
                // Candidates from before pre-vote was switched on may have a higher term and a shorter log; without an
                // answer both sides could wait for ever.
                self.log_vote("rejected", kind, request);
                self.send(Message { term: self.term, reject: true, ..message(MsgPreVoteResp, request.from) });
            }
            MsgStorageAppendResp => {
                if request.index != 0 {
                    // The entries may have been replaced since, with that write still under way; a later response will
                    // speak for them.
                    log!(
                        self.logger,
                        Info,
                        "{:x} [term: {}] ignored entry appends from a {} message with lower term [term: {}]",
                        self.id,
                        self.term,
                        kind.as_str_name(),
                        request.term
                    );
                }
                // A snapshot is committed state: good in any term.
                self.snapshot_stored(request)?;
            }
            _ => log!(
                self.logger,
                Info,
                "{:x} [term: {}] ignored a {} message with lower term from {:x} [term: {}]",
                self.id,
                self.term,
                kind.as_str_name(),
                request.from,
                request.term
            ),
        }
        Ok(())
    }

    fn handle_storage_appended(&mut self, response: &Message) -> Result<(), Error> {
        if response.index != 0 {
            // Storage answers carry the epoch of the write in `reject_hint`, which means nothing else there.
            let id = EntryId { term: response.log_term, index: response.index };
            self.log.unstable.stable_to(id, response.reject_hint);
        }
        self.snapshot_stored(response)
    }

    fn snapshot_stored(&mut self, response: &Message) -> Result<(), Error> {
        let Some(snapshot) = &response.snapshot else {
            return Ok(());
        };
        let index = snapshot_index(snapshot);
        if index > self.log.committed {
            return Err(self.invalid(response, "a snapshot above the commit index was never handed out"));
        }
        self.log.unstable.stable_snapshot_to(index);
        self.applied_to(index, 0);
        Ok(())
    }

    fn handle_storage_applied(&mut self, response: &Message) -> Result<(), Error> {
        let Some(last) = response.entries.last() else {
            return Ok(());
        };
        if last.index > self.log.applying() {
            return Err(self.invalid(response, "entries that were never handed out"));
        }
        self.applied(last.index, encoded_sizes(&response.entries), payload_sizes(&response.entries));
        Ok(())
    }

    /// The state machine has applied entries up to `index`.
    pub(crate) fn applied(&mut self, index: u64, encoded_size: u64, payload_size: u64) {
        self.applied_to(index, encoded_size);
        self.uncommitted_size = self.uncommitted_size.saturating_sub(payload_size);
    }

    fn handle_vote_request(&mut self, kind: MessageType, request: &Message) {
        // A repeated request; or a free vote and no leader in this term; or a mere question about a later one.
        let can_vote = self.vote == request.from
            || (self.vote == NONE && self.leader_id == NONE)
            || (kind == MsgPreVote && request.term > self.term);
        let candidate = EntryId { term: request.log_term, index: request.index };
        // Learners vote too: one that was promoted may not have heard of it, and its vote may be needed for a leader
        // that can tell it.
        if can_vote && self.log.is_up_to_date(candidate) {
            self.log_vote("cast", kind, request);
            // The answer carries the candidate's term, or the candidate would drop it as stale.
            self.send(Message { term: request.term, ..message(response_to_vote(kind), request.from) });
            if kind == MsgVote {
                self.election_elapsed = 0;
                self.vote = request.from;
            }
        } else {
            self.log_vote("rejected", kind, request);
            // A rejection carries this member's term. One that begins with a log and without a term has none to tell
            // yet; silence rejects as well.
            if self.term != 0 {
                self.send(Message { term: self.term, reject: true, ..message(response_to_vote(kind), request.from) });
            }
        }
    }

    fn log_vote(&self, verdict: &str, kind: MessageType, request: &Message) {
        let last = self.log.last_id();
        log!(
            self.logger,
            Info,
            "{:x} [logterm: {}, index: {}, vote: {:x}] {verdict} {} {} {:x} [logterm: {}, index: {}] at term {}",
            self.id,
            last.term,
            last.index,
            self.vote,
            kind.as_str_name(),
            if verdict == "cast" { "for" } else { "from" },
            request.from,
            request.log_term,
            request.index,
            self.term
        );
    }

    fn step_leader(&mut self, kind: MessageType, message: Message) -> Result<(), Error> {
        match kind {
            MsgBeat => self.broadcast_heartbeat(),
            MsgCheckQuorum => self.check_quorum_active(),
            MsgProp => return self.handle_proposal(message),
            MsgReadIndex => return self.handle_read_index(message),
            MsgForgetLeader => {}
            _ if !self.tracker.progress.contains(message.from) => {
                log!(self.logger, Debug, "{:x} no progress available for {:x}", self.id, message.from);
            }
            MsgAppResp => return self.handle_append_response(&message),
            MsgHeartbeatResp => return self.handle_heartbeat_response(&message),
            MsgSnapStatus => self.handle_snapshot_status(&message),
            MsgUnreachable => self.handle_unreachable(message.from),
            MsgTransferLeader => self.handle_transfer_leader(message.from),
            _ => {}
        }
        Ok(())
    }

    fn step_candidate(&mut self, kind: MessageType, message: Message) -> Result<(), Error> {
        match kind {
            MsgProp => {
                log!(self.logger, Info, "{:x} no leader at term {}; dropping proposal", self.id, self.term);
                return Err(Error::ProposalDropped);
            }
            // Somebody else won this term.
            MsgApp | MsgHeartbeat | MsgSnap => {
                self.become_follower(message.term, message.from);
                return self.step_follower(kind, message);
            }
            // Answers to the question it asks now; stale ones to the other question are dropped.
            MsgPreVoteResp if self.role == Role::PreCandidate => self.handle_vote_response(kind, &message),
            MsgVoteResp if self.role == Role::Candidate => self.handle_vote_response(kind, &message),
            MsgTimeoutNow => log!(
                self.logger,
                Debug,
                "{:x} [term {} state {}] ignored MsgTimeoutNow from {:x}",
                self.id,
                self.term,
                self.role,
                message.from
            ),
            _ => {}
        }
        Ok(())
    }

    fn step_follower(&mut self, kind: MessageType, message: Message) -> Result<(), Error> {
        match kind {
            MsgProp => {
                if self.leader_id == NONE {
                    log!(self.logger, Info, "{:x} no leader at term {}; dropping proposal", self.id, self.term);
                    return Err(Error::ProposalDropped);
                }
                if self.disable_proposal_forwarding {
                    log!(
                        self.logger,
                        Info,
                        "{:x} not forwarding to leader {:x} at term {}; dropping proposal",
                        self.id,
                        self.leader_id,
                        self.term
                    );
                    return Err(Error::ProposalDropped);
                }
                if message.to != NONE {
                    // Whoever passed it on counts on the member it chose, in the term that it named.
                    log!(
                        self.logger,
                        Debug,
                        "{:x} does not pass on what {:x} passed on; dropping proposal",
                        self.id,
                        message.from
                    );
                    return Err(Error::ProposalDropped);
                }
                self.pass_to_leader(Message { sent_term: self.term, ..message });
            }
            MsgApp => {
                self.hear_leader(message.from);
                self.handle_append(message);
            }
            MsgHeartbeat => {
                self.hear_leader(message.from);
                return self.handle_heartbeat(message);
            }
            MsgSnap => {
                self.hear_leader(message.from);
                return self.handle_snapshot(message);
            }
            MsgTransferLeader => {
                if self.leader_id == NONE {
                    log!(
                        self.logger,
                        Info,
                        "{:x} no leader at term {}; dropping leader transfer msg",
                        self.id,
                        self.term
                    );
                    return Ok(());
                }
                self.pass_to_leader(message);
            }
            MsgForgetLeader => self.handle_forget_leader(),
            MsgTimeoutNow => {
                log!(
                    self.logger,
                    Info,
                    "{:x} [term {}] received MsgTimeoutNow from {:x} and starts an election to get leadership.",
                    self.id,
                    self.term,
                    message.from
                );
                // The leader itself asks for it, so there is no partition to ask about first.
                self.hup(Campaign::Transfer);
            }
            MsgReadIndex => {
                if self.leader_id == NONE {
                    log!(
                        self.logger,
                        Info,
                        "{:x} no leader at term {}; dropping index reading msg",
                        self.id,
                        self.term
                    );
                    return Ok(());
                }
                self.pass_to_leader(message);
            }
            MsgReadIndexResp => self.handle_read_index_response(message),
            _ => {}
        }
        Ok(())
    }

    fn hear_leader(&mut self, leader_id: u64) {
        self.election_elapsed = 0;
        self.leader_id = leader_id;
    }

    fn pass_to_leader(&mut self, mut message: Message) {
        message.to = self.leader_id;
        self.send(message);
    }

    fn handle_forget_leader(&mut self) {
        if self.read_only.option() == ReadOnlyOption::LeaseBased {
            // The leader counts on being followed for the length of its lease.
            log!(self.logger, Error, "ignoring MsgForgetLeader due to ReadOnlyLeaseBased");
            return;
        }
        if self.leader_id != NONE {
            log!(self.logger, Info, "{:x} forgetting leader {:x} at term {}", self.id, self.leader_id, self.term);
            self.leader_id = NONE;
        }
    }

    pub(super) fn invalid(&self, message: &Message, reason: &'static str) -> Error {
        Error::InvalidMessage { message_type: message_type(message), from: message.from, reason }
    }
}
