//! Proposals: from a caller, or from this node itself, to an entry of raft's log, and back to whoever waits.
//!
//! They queue while nobody leads or leadership is being handed over, and go to raft together, as few messages as it
//! allows ([`Node::propose_queued`]). What is refused at the door, and above which bounds, stands in [`Node::propose`].
//! Nothing is proposed twice: one that raft drops is answered by its timeout.

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
/// The store's backlog of unwritten batches above which proposals are refused rather than memory grown.
const MAX_STORE_BACKLOG: usize = 256 << 20;

/// What is to stand in the log, and the id under which its outcome comes back.
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

/// Everything proposed here that has no outcome yet.
#[derive(Default)]
pub(super) struct Proposals {
    /// What waits for a leader, or for the end of a transfer.
    queued: VecDeque<Queued>,
    queued_bytes: usize,
    /// Who waits for which outcome.
    waiting: HashMap<u64, Completion>,
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
        self.waiting.len() < MAX_PENDING && self.queued_bytes + bytes <= MAX_PENDING_BYTES
    }

    /// Takes a caller's proposal. The caller hears of it once: [`Proposals::answered`], [`Proposals::expired`] or
    /// [`Proposals::drain`].
    fn take(&mut self, proposal: Proposal, completion: Completion, since: Mono) {
        self.waiting.insert(proposal.id(), completion);
        self.deadlines.push_back((since, proposal.id()));
        self.queue(proposal, Origin::Caller);
    }

    fn queue(&mut self, proposal: Proposal, origin: Origin) {
        self.queued_bytes += proposal.len();
        self.queued.push_back(Queued { proposal, origin });
    }

    /// The next entries that go to raft as one message; empty when nothing is queued any more. `led`: the term in which
    /// this member leads.
    fn next_run(&mut self, led: Option<Term>) -> Vec<Entry> {
        let mut entries = Vec::with_capacity(self.queued.len().min(1024));
        while entries.is_empty() && !self.queued.is_empty() {
            let mut bytes = 0;
            while let Some(Queued { proposal, origin }) =
                self.queued.pop_front_if(|next| bytes == 0 || bytes + next.proposal.len() <= MAX_PROPOSAL_BYTES)
            {
                bytes += proposal.len();
                let wanted = match origin {
                    // One whose caller has been told of a timeout while nobody led must not happen later.
                    Origin::Caller => self.waiting.contains_key(&proposal.id()),
                    Origin::Member => true,
                    Origin::Leader(term) => led == Some(term),
                };
                if wanted {
                    entries.push(proposal.into_entry());
                }
            }
            self.queued_bytes = self.queued_bytes.saturating_sub(bytes);
        }
        entries
    }

    /// Who waits for the outcome that is now known.
    pub(super) fn answered(&mut self, id: u64) -> Option<Completion> {
        self.waiting.remove(&id)
    }

    /// The next of those who began before `deadline` and still wait, and when it began.
    pub(super) fn expired(&mut self, deadline: Mono) -> Option<(Mono, Completion)> {
        while let Some((since, id)) = self.deadlines.pop_front_if(|(since, _)| *since < deadline) {
            if let Some(completion) = self.waiting.remove(&id) {
                return Some((since, completion));
            }
        }
        None
    }

    /// Everybody, on the way out, in the order of their ids.
    pub(super) fn drain(&mut self) -> Vec<Completion> {
        let mut waiting: Vec<(u64, Completion)> = self.waiting.drain().collect();
        waiting.sort_unstable_by_key(|(id, _)| *id);
        waiting.into_iter().map(|(_, completion)| completion).collect()
    }

    /// Proposes a request of the node's own; nobody waits for it.
    pub(super) fn own(&mut self, cx: &Context, origin: Origin, request: InternalRaftRequest) {
        let id = cx.shared.next_id();
        let header = RequestHeader { id, ..request.header.clone().unwrap_or_default() };
        let data = InternalRaftRequest { header: Some(header), ..request }.encode_to_vec().into();
        self.queue(Proposal::Normal { id, data }, origin);
    }
}

impl Node {
    pub(super) fn propose(&mut self, proposal: Proposal, kind: ProposeKind, completion: Completion, since: Mono) {
        let gap = self.log.committed().saturating_sub(self.machine.applied());
        let allowed = match kind {
            ProposeKind::LeaseRevoke if self.cx.config.priority_request => MAX_APPLY_GAP_PRIORITY,
            _ => MAX_APPLY_GAP,
        };
        let full = !self.proposals.has_room(proposal.len())
            || self.machine.store().log_ref().backlog_bytes() > MAX_STORE_BACKLOG;
        if gap > allowed || full {
            self.cx.shared.metrics.proposals_failed.add(1);
            self.cx.reply(completion, Reply::Applied(Err(RequestError::TooManyRequests)));
            return;
        }
        self.proposals.take(proposal, completion, since);
    }

    /// Hands everything queued to raft in as few messages as it allows, once somebody leads and does not hand over.
    pub(super) fn propose_queued(&mut self) {
        let status = self.raft_status();
        if self.leadership.leader().is_none() || status.transferee != 0 || self.ending.damage().is_some() {
            return;
        }
        let led = self.leads().then_some(status.term);
        loop {
            let entries = self.proposals.next_run(led);
            if entries.is_empty() {
                break;
            }
            // Dropped proposals (raft is between leaders) are answered by their timeout: whether a forwarded one
            // arrived cannot be known, and nothing is ever proposed twice.
            let _dropped = self.raft.propose_entries(entries);
        }
    }
}
