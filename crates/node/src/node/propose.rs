//! Proposals: from a caller, or from this node itself, to an entry of raft's log.
//!
//! They queue while nobody leads or leadership is being handed over, and go to raft together, as few messages as it
//! allows ([`Node::propose_queued`]). What is refused at the door, and above which bounds, stands in [`Node::propose`].
//! Nothing is proposed twice: one that raft drops is answered by its timeout.

use bytes::Bytes;
use dolmen_env::Mono;
use dolmen_proto::etcdserverpb::{InternalRaftRequest, RequestHeader};
use dolmen_proto::membershippb::{Attributes, ClusterMemberAttrSetRequest};
use dolmen_proto::raftpb::Entry;
use dolmen_types::Term;
use prost::Message as _;

use super::Node;
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

/// Who waits for a proposal's outcome.
pub(super) struct Pending {
    pub(super) completion: Completion,
}

/// A proposal on its way to raft.
pub(super) struct Queued {
    id: u64,
    data: Bytes,
    origin: Origin,
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

impl Node {
    pub(super) fn propose(&mut self, id: u64, data: Bytes, kind: ProposeKind, completion: Completion, since: Mono) {
        let gap = self.hard_state.commit.saturating_sub(self.machine.applied());
        let allowed = match kind {
            ProposeKind::LeaseRevoke if self.config.priority_request => MAX_APPLY_GAP_PRIORITY,
            _ => MAX_APPLY_GAP,
        };
        let full = self.pending.len() >= MAX_PENDING
            || self.pending_bytes + data.len() > MAX_PENDING_BYTES
            || self.machine.store().log_ref().backlog_bytes() > MAX_STORE_BACKLOG;
        if gap > allowed || full {
            self.shared.metrics.proposals_failed.add(1);
            self.reply(completion, Reply::Applied(Err(RequestError::TooManyRequests)));
            return;
        }
        self.pending.insert(id, Pending { completion });
        self.deadlines.push_back((since, id));
        self.pending_bytes += data.len();
        self.queued.push_back(Queued { id, data, origin: Origin::Caller });
    }

    /// Proposes a request of the node's own, under the returned id; nobody waits for it.
    pub(super) fn propose_own(&mut self, origin: Origin, request: InternalRaftRequest) -> u64 {
        let id = self.shared.next_id();
        let header = RequestHeader { id, ..RequestHeader::default() };
        let data: Bytes = InternalRaftRequest { header: Some(header), ..request }.encode_to_vec().into();
        self.pending_bytes += data.len();
        self.queued.push_back(Queued { id, data, origin });
        id
    }

    /// Hands everything queued to raft in as few messages as it allows, once somebody leads and does not hand over.
    pub(super) fn propose_queued(&mut self) {
        if self.leader == 0 || self.raft_status().transferee != 0 || self.damage.is_some() {
            return;
        }
        let led = self.leads().then_some(self.raft_status().term);
        while !self.queued.is_empty() {
            let mut bytes = 0;
            let mut entries = Vec::with_capacity(self.queued.len().min(1024));
            let pending = &self.pending;
            while let Some(next) =
                self.queued.pop_front_if(|next| bytes == 0 || bytes + next.data.len() <= MAX_PROPOSAL_BYTES)
            {
                bytes += next.data.len();
                let wanted = match next.origin {
                    // One whose caller has been told of a timeout while nobody led must not happen later.
                    Origin::Caller => pending.contains_key(&next.id),
                    Origin::Member => true,
                    Origin::Leader(term) => led == Some(term),
                };
                if wanted {
                    entries.push(Entry { data: next.data, ..Entry::default() });
                }
            }
            self.pending_bytes = self.pending_bytes.saturating_sub(bytes);
            if entries.is_empty() {
                continue;
            }
            // Dropped proposals (raft is between leaders) are answered by their timeout: whether a forwarded one
            // arrived cannot be known, and nothing is ever proposed twice.
            let _dropped = self.raft.propose_entries(entries);
        }
    }

    /// Proposes this member's name and client URLs until the log says them.
    pub(super) fn publish_self(&mut self) {
        if self.published || self.leader == 0 || self.stopping.is_some() {
            return;
        }
        let known = self.machine.membership().members.get(&self.config.member_id);
        if self.publish_id == 0
            && known.is_some_and(|m| m.name == self.config.name && m.client_urls == self.config.client_urls)
        {
            self.published = true;
            self.shared.set_published();
            return;
        }
        if known.is_none() || self.now < self.publish_at {
            return;
        }
        self.publish_at = Mono(self.now.0 + self.config.request_timeout_nanos());
        let member_attributes =
            Attributes { name: self.config.name.clone(), client_urls: self.config.client_urls.clone() };
        let request = InternalRaftRequest {
            cluster_member_attr_set: Some(ClusterMemberAttrSetRequest {
                member_id: self.config.member_id,
                member_attributes: Some(member_attributes),
            }),
            ..InternalRaftRequest::default()
        };
        self.publish_id = self.propose_own(Origin::Member, request);
    }
}
