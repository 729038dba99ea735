//! Standing for election.

use bytes::Bytes;
use dolmen_proto::raftpb::{EntryType, Message, MessageType};

use super::{Raft, message};
use crate::logger::log;
use crate::quorum::VoteResult;
use crate::raft::Role;
use crate::storage::Storage;

/// The context of a vote request made on behalf of the leader itself; members grant it although they hear from a
/// leader.
pub(super) const CAMPAIGN_TRANSFER: &[u8] = b"CampaignTransfer";

/// Why this member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Campaign {
    /// To find out whether it could win.
    PreElection,
    Election,
    /// The leader told it to.
    Transfer,
}

impl<S: Storage> Raft<S> {
    /// True when it may stand: a voter, with nothing to be restored.
    pub(crate) fn promotable(&self) -> bool {
        self.tracker.progress.get(self.id).is_some_and(|own| !own.is_learner) && self.log.unstable.snapshot.is_none()
    }

    pub(super) fn hup_by_config(&mut self) {
        self.hup(if self.pre_vote { Campaign::PreElection } else { Campaign::Election });
    }

    /// Stands for election, unless it leads already or must not.
    pub(super) fn hup(&mut self, campaign: Campaign) {
        if self.role == Role::Leader {
            log!(self.logger, Debug, "{:x} ignoring MsgHup because already leader", self.id);
            return;
        }
        if !self.promotable() {
            log!(self.logger, Warning, "{:x} is unpromotable and can not campaign", self.id);
            return;
        }
        if self.has_unapplied_conf_changes() {
            // It would count votes by a membership that is no longer in force.
            log!(
                self.logger,
                Warning,
                "{:x} cannot campaign at term {} since there are still pending configuration changes to apply",
                self.id,
                self.term
            );
            return;
        }
        log!(self.logger, Info, "{:x} is starting a new election at term {}", self.id, self.term);
        self.campaign(campaign);
    }

    fn has_unapplied_conf_changes(&self) -> bool {
        let (low, high) = (self.log.applied() + 1, self.log.committed + 1);
        let is_change = |kind: i32| {
            matches!(EntryType::try_from(kind), Ok(EntryType::EntryConfChange | EntryType::EntryConfChangeV2))
        };
        self.log
            .any(low, high, self.log.max_applying_size(), |entry| is_change(entry.r#type))
            .expect("entries above the applied index are not compacted")
    }

    fn campaign(&mut self, campaign: Campaign) {
        let (request, term) = if campaign == Campaign::PreElection {
            self.become_pre_candidate();
            (MessageType::MsgPreVote, self.term + 1)
        } else {
            self.become_candidate();
            (MessageType::MsgVote, self.term)
        };
        let last = self.log.last_id();
        for id in self.tracker.config.voters.ids().iter() {
            if id == self.id {
                // Its own vote counts once it is durable, like anybody else's.
                self.send(Message { term, ..message(response_to_vote(request), id) });
                continue;
            }
            log!(
                self.logger,
                Info,
                "{:x} [logterm: {}, index: {}] sent {} request to {id:x} at term {}",
                self.id,
                last.term,
                last.index,
                request.as_str_name(),
                self.term
            );
            let context = match campaign {
                Campaign::Transfer => Bytes::from_static(CAMPAIGN_TRANSFER),
                Campaign::PreElection | Campaign::Election => Bytes::new(),
            };
            self.send(Message { term, index: last.index, log_term: last.term, context, ..message(request, id) });
        }
    }

    /// Counts a vote and draws the consequence.
    pub(super) fn handle_vote_response(&mut self, kind: MessageType, message: &Message) {
        log!(
            self.logger,
            Info,
            "{:x} received {}{} from {:x} at term {}",
            self.id,
            kind.as_str_name(),
            if message.reject { " rejection" } else { "" },
            message.from,
            self.term
        );
        self.tracker.record_vote(message.from, !message.reject);
        let (granted, rejected, result) = self.tracker.tally_votes();
        log!(
            self.logger,
            Info,
            "{:x} has received {granted} {} votes and {rejected} vote rejections",
            self.id,
            kind.as_str_name()
        );
        match result {
            VoteResult::Won if self.role == Role::PreCandidate => self.campaign(Campaign::Election),
            VoteResult::Won => {
                self.become_leader();
                self.broadcast_append();
            }
            // A pre-vote rejection may carry a later term; this member stays in its own.
            VoteResult::Lost => self.become_follower(self.term, crate::NONE),
            VoteResult::Pending => {}
        }
    }
}

pub(super) const fn response_to_vote(request: MessageType) -> MessageType {
    match request {
        MessageType::MsgPreVote => MessageType::MsgPreVoteResp,
        _ => MessageType::MsgVoteResp,
    }
}
