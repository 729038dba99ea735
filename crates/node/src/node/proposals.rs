//! Proposals: from a caller, or from this node itself, to an entry of raft's log, and back to whoever waits.
//!
//! They queue while nobody leads or leadership is being handed over, and go to raft together, as few messages as it
//! allows ([`Node::propose_queued`]). What is refused at the door, and above which bounds, stands in [`Node::propose`].
//!
//! Nothing is done twice. What was sent to a leader and has no outcome yet is left alone until it can have none any more,
//! and only then proposed again: a proposal carries the term it was sent in, a leader takes it in that term only and nobody
//! passes it on; so once an entry of a later term has been applied here, everything that the earlier term left to be done
//! has been applied too. That takes a leader that keeps to it: with a member that is no Dolmen, or after a snapshot that
//! may have held the outcome, a proposal without one ends with its timeout, and its caller does not know
//! (`docs/adr/0006-leader-hints.md`).

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use dolmen_env::Mono;
use dolmen_proto::etcdserverpb::{InternalRaftRequest, RequestHeader};
use dolmen_proto::raftpb::{ConfChange, Entry, EntryType};
use dolmen_types::Term;
use prost::Message as _;

use super::Node;
use super::context::Context;
use crate::request::{Completion, ProposeKind, Reply, RequestError};

/// Refused above this gap between commit and apply, as in etcd.
const MAX_APPLY_GAP: u64 = 5_000;
const MAX_APPLY_GAP_PRIORITY: u64 = 10_000;
/// Refused above so much proposed and not yet applied: what a member may hold in memory for callers who wait.
const MAX_PENDING_BYTES: usize = 512 << 20;
const MAX_PENDING: usize = 200_000;
/// Entries forwarded or proposed in one message.
const MAX_PROPOSAL_BYTES: usize = 1 << 20;
/// The store's backlog of unwritten batches above which proposals are refused, and entries of the leader not taken, rather
/// than memory grown.
const MAX_STORE_BACKLOG: usize = 256 << 20;

/// What is to stand in the log, and the id under which its outcome comes back.
#[derive(Clone)]
pub(super) enum Proposal {
    /// An encoded request whose header carries the id.
    Normal { id: u64, data: Bytes },
    /// A change of the membership, encoded, which carries the id as well.
    ConfChange { id: u64, data: Bytes },
}

impl Proposal {
    pub(super) fn conf_change(change: &ConfChange) -> Self {
        Self::ConfChange { id: change.id, data: change.encode_to_vec().into() }
    }

    fn id(&self) -> u64 {
        match self {
            Self::Normal { id, .. } | Self::ConfChange { id, .. } => *id,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Normal { data, .. } | Self::ConfChange { data, .. } => data.len(),
        }
    }

    fn into_entry(self) -> Entry {
        match self {
            Self::Normal { data, .. } => Entry { data, ..Entry::default() },
            Self::ConfChange { data, .. } => {
                Entry { r#type: EntryType::EntryConfChange as i32, data, ..Entry::default() }
            }
        }
    }
}

/// Who wants a proposal.
#[derive(Clone, Copy)]
pub(super) enum Origin {
    Caller,
    /// The node itself; nobody waits for it.
    Member,
    /// The node as leader of this term. Never forwarded: a later leader knows the leases' deadlines better.
    Leader(Term),
}

/// A proposal on its way to raft.
struct Queued {
    proposal: Proposal,
    origin: Origin,
}

/// A caller whose proposal has no outcome yet.
struct Waiting {
    completion: Completion,
    proposal: Proposal,
    sent: Sent,
}

/// A caller who has waited long enough.
pub(super) struct Expired {
    pub(super) since: Mono,
    pub(super) completion: Completion,
    /// In which term the proposal was given to a leader, if it was.
    pub(super) sent_term: Option<Term>,
}

/// Where a proposal has got to.
#[derive(Clone, Copy)]
enum Sent {
    /// It is queued here.
    No,
    /// Given to a leader that takes it in this term or never: itself, or a Dolmen.
    In(Term),
    /// Given to the leader of this term; it may be done at any time.
    Somewhere(Term),
    /// It is done, and its answer waits for what follows from it.
    Done,
}

/// Everything proposed here that has no outcome yet.
#[derive(Default)]
pub(super) struct Proposals {
    /// What waits for a leader, or for the end of a transfer.
    queued: VecDeque<Queued>,
    /// Who waits for which outcome.
    waiting: HashMap<u64, Waiting>,
    /// Of those, the bytes of what they proposed, and of what the node itself has queued.
    bytes: usize,
    /// The term of the newest entry that was applied.
    applied_term: Term,
    /// Ids in the order they came, for timeouts; those already answered are skipped.
    deadlines: VecDeque<(Mono, u64)>,
}

impl Proposals {
    /// Callers who wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_waiting(&self, id: u64) -> bool {
        self.waiting.contains_key(&id)
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.waiting.len() < MAX_PENDING && self.bytes + bytes <= MAX_PENDING_BYTES
    }

    /// Takes a caller's proposal. The caller hears of it once: [`Proposals::answered`], [`Proposals::expired`] or
    /// [`Proposals::drain`].
    fn take(&mut self, proposal: Proposal, completion: Completion, since: Mono) {
        self.deadlines.push_back((since, proposal.id()));
        self.queued.push_back(Queued { proposal: proposal.clone(), origin: Origin::Caller });
        self.bytes += proposal.len();
        self.waiting.insert(proposal.id(), Waiting { completion, proposal, sent: Sent::No });
    }

    /// The next entries that go to raft as one message, and the callers' ids among them; empty when nothing is queued any
    /// more. `led`: the term in which this member leads. `sent`: what becomes of them.
    fn next_run(&mut self, led: Option<Term>, sent: Sent) -> (Vec<Entry>, Vec<u64>) {
        let mut entries = Vec::with_capacity(self.queued.len().min(1024));
        let mut ids = Vec::new();
        while entries.is_empty() && !self.queued.is_empty() {
            let mut bytes = 0;
            while let Some(Queued { proposal, origin }) =
                self.queued.pop_front_if(|next| bytes == 0 || bytes + next.proposal.len() <= MAX_PROPOSAL_BYTES)
            {
                bytes += proposal.len();
                let wanted = match origin {
                    // One whose caller has been told of a timeout while nobody led must not happen later.
                    Origin::Caller => self.waiting.get_mut(&proposal.id()).is_some_and(|waiting| {
                        waiting.sent = sent;
                        ids.push(proposal.id());
                        true
                    }),
                    Origin::Member | Origin::Leader(_) => {
                        self.bytes -= proposal.len();
                        !matches!(origin, Origin::Leader(term) if led != Some(term))
                    }
                };
                if wanted {
                    entries.push(proposal.into_entry());
                }
            }
        }
        (entries, ids)
    }

    /// Raft did not take these: they go back to where they were.
    fn put_back(&mut self, ids: &[u64]) {
        for id in ids.iter().rev() {
            if let Some(waiting) = self.waiting.get_mut(id) {
                waiting.sent = Sent::No;
                self.queued.push_front(Queued { proposal: waiting.proposal.clone(), origin: Origin::Caller });
            }
        }
    }

    /// An entry of `term` has been applied: what was sent in an earlier one and has no outcome will have none, and goes
    /// back to the queue.
    fn put_back_lost(&mut self, term: Term) {
        let mut lost: Vec<u64> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| matches!(waiting.sent, Sent::In(sent) if sent < term))
            .map(|(id, _)| *id)
            .collect();
        // In the order they were asked in.
        lost.sort_unstable();
        self.put_back(&lost);
    }

    /// A proposal has been applied, and its answer comes later.
    pub(super) fn applied(&mut self, id: u64) {
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.sent = Sent::Done;
        }
    }

    /// Outcomes may have passed by unseen: nothing that was sent is proposed again.
    pub(super) fn lost_track(&mut self) {
        for waiting in self.waiting.values_mut() {
            if let Sent::In(term) = waiting.sent {
                waiting.sent = Sent::Somewhere(term);
            }
        }
    }

    /// Who waits for the outcome that is now known.
    pub(super) fn answered(&mut self, id: u64) -> Option<Completion> {
        let waiting = self.waiting.remove(&id)?;
        self.bytes -= waiting.proposal.len();
        Some(waiting.completion)
    }

    /// The next of those who began before `deadline` and still wait.
    pub(super) fn expired(&mut self, deadline: Mono) -> Option<Expired> {
        while let Some((since, id)) = self.deadlines.pop_front_if(|(since, _)| *since < deadline) {
            let sent = self.waiting.get(&id).map(|waiting| waiting.sent);
            if let (Some(sent), Some(completion)) = (sent, self.answered(id)) {
                let sent_term = match sent {
                    Sent::In(term) | Sent::Somewhere(term) => Some(term),
                    Sent::No | Sent::Done => None,
                };
                return Some(Expired { since, completion, sent_term });
            }
        }
        None
    }

    /// Everybody, on the way out, in the order of their ids.
    pub(super) fn drain(&mut self) -> Vec<Completion> {
        let mut waiting: Vec<(u64, Waiting)> = self.waiting.drain().collect();
        waiting.sort_unstable_by_key(|(id, _)| *id);
        self.bytes = 0;
        self.queued.clear();
        waiting.into_iter().map(|(_, waiting)| waiting.completion).collect()
    }

    /// Proposes a request of the node's own; nobody waits for it.
    pub(super) fn own(&mut self, cx: &Context, origin: Origin, request: InternalRaftRequest) {
        let id = cx.shared.next_id();
        let header = RequestHeader { id, ..request.header.clone().unwrap_or_default() };
        let data = InternalRaftRequest { header: Some(header), ..request }.encode_to_vec().into();
        let proposal = Proposal::Normal { id, data };
        self.bytes += proposal.len();
        self.queued.push_back(Queued { proposal, origin });
    }
}

impl Node {
    pub(super) fn propose(&mut self, proposal: Proposal, kind: ProposeKind, completion: Completion, since: Mono) {
        let gap = self.log.committed().saturating_sub(self.machine.applied());
        let allowed = match kind {
            ProposeKind::LeaseRevoke if self.cx.config.priority_request => MAX_APPLY_GAP_PRIORITY,
            _ => MAX_APPLY_GAP,
        };
        let full = !self.proposals.has_room(proposal.len()) || self.is_behind();
        if gap > allowed || full {
            self.cx.shared.metrics.proposals_failed.add(1);
            self.cx.reply(completion, Reply::Applied(Err(RequestError::TooManyRequests)));
            return;
        }
        self.proposals.take(proposal, completion, since);
    }

    /// Whether a disk of this member is so far behind that it takes nothing more: the log's or the store's.
    pub(super) fn is_behind(&self) -> bool {
        self.log.is_full() || self.machine.store().log_ref().backlog_bytes() > MAX_STORE_BACKLOG
    }

    /// Hands everything queued to raft in as few messages as it allows, once somebody leads and does not hand over.
    pub(super) fn propose_queued(&mut self) {
        let status = self.raft_status();
        if self.leadership.leader().is_none() || status.transferee != 0 || self.ending.damage().is_some() {
            return;
        }
        let led = self.leads().then_some(status.term);
        let kept = led.is_some() || self.leadership.is_dolmen(status.leader_id);
        let sent = if kept { Sent::In(status.term) } else { Sent::Somewhere(status.term) };
        loop {
            let (entries, ids) = self.proposals.next_run(led, sent);
            if entries.is_empty() {
                break;
            }
            if let Err(dolmen_raft::Error::ProposalDropped) = self.raft.propose_entries(entries) {
                // Raft is between leaders.
                self.proposals.put_back(&ids);
                break;
            }
        }
    }

    /// What has been applied says that an earlier leader's time is over: what it left undone is proposed again.
    pub(super) fn propose_lost(&mut self) {
        let term = self.machine.applied_term();
        if std::mem::replace(&mut self.proposals.applied_term, term) == term {
            return;
        }
        let mut members = self.machine.membership().members.keys();
        let own = self.cx.config.member_id;
        if members.all(|id| *id == own || self.leadership.is_dolmen(*id)) {
            self.proposals.put_back_lost(term);
        }
    }
}
