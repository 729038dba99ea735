//! What callers may ask of the node, and what it answers: two closed lists.
//!
//! A caller hands over a [`Request`] with the address of its own waiting slot ([`Completion`]). The node answers every
//! request exactly once, in batches: one [`Sink::complete`] call a runtime and loop, so that a thousand answers cost one
//! wake-up.

use std::sync::Arc;

use bytes::Bytes;
use dolmen_auth::{Access, Identity};
use dolmen_env::Mono;
use dolmen_machine::{ApplyError, Response};
use dolmen_proto::etcdserverpb::{AlarmMember, LeaseTimeToLiveResponse};
use dolmen_proto::raftpb::ConfChange;
use dolmen_types::{LeaseId, MemberId};
use dolmen_watch::{CreateRequest, Outbox, StreamId};

/// Where an answer goes: which runtime, and which of its waiting slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Completion {
    pub runtime: u16,
    pub slot: u64,
}

/// One runtime's letter box. `complete` must not block and must not call back into the node.
pub trait Sink: Send {
    fn complete(&mut self, batch: Vec<(u64, Reply)>);
}

/// A request of a caller on this member. Times are the driver's monotonic clock.
pub enum Request {
    /// Replicate and apply a command: `data` is an encoded `InternalRaftRequest` whose header carries `id`
    /// (from [`crate::Handle::next_id`]; never used twice). Answered by [`Reply::Applied`].
    Propose {
        id: u64,
        data: Bytes,
        kind: ProposeKind,
    },
    /// Replicate and apply a change of the membership, whose `id` is such an id too. Answered by [`Reply::Applied`].
    ChangeMembers {
        change: ConfChange,
    },
    /// Confirm leadership, and wait until everything committed before is applied here. Answered by
    /// [`Reply::ReadReady`].
    ReadIndex,
    /// Extend a lease. Only the leader can; elsewhere the answer is [`RequestError::NotLeader`] and the caller forwards
    /// to the leader's peer URL. Answered by [`Reply::LeaseRenewed`].
    LeaseRenew {
        id: LeaseId,
    },
    /// As `LeaseRenew`: only the leader knows deadlines. Answered by [`Reply::LeaseTimeToLive`].
    LeaseTimeToLive {
        id: LeaseId,
        keys: bool,
    },
    /// The local list, ordered by expiry. Answered by [`Reply::Leases`].
    Leases,
    /// May this user read or write all keys of a lease, or of every lease? Answered by [`Reply::Done`].
    LeaseCheck {
        who: Option<Identity>,
        lease: Option<LeaseId>,
        access: Access,
    },
    /// Answered by [`Reply::Alarms`].
    Alarms,
    /// Answered by [`Reply::Done`] when the target leads.
    MoveLeader {
        target: MemberId,
    },
    /// Ask for a pass of space reclaim and return; never blocks reads or writes. Answered by [`Reply::Done`].
    Defragment,
    /// A pinned view of everything, to be streamed as a bbolt file. Answered by [`Reply::Snapshot`].
    Snapshot,
    /// Open, use and close one watch stream. Responses come through the outbox; only a wake-up
    /// ([`Reply::WatchReady`]) comes here, to the completion that the outbox was made with.
    WatchOpen {
        stream: StreamId,
        outbox: Arc<Outbox>,
    },
    WatchCreate {
        stream: StreamId,
        create: CreateRequest,
    },
    /// A watcher that may not be: the reason is told as etcd tells it.
    WatchRefuse {
        stream: StreamId,
        reason: String,
    },
    WatchCancel {
        stream: StreamId,
        watch_id: i64,
    },
    WatchProgress {
        stream: StreamId,
    },
    /// The stream's reader has made room for what its outbox had refused.
    WatchRoom {
        stream: StreamId,
    },
    WatchClose {
        stream: StreamId,
    },
}

/// What back-pressure and quota rules need to know of a proposal without decoding it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProposeKind {
    Normal,
    /// Allowed a larger backlog when the gate `PriorityRequest` is on.
    LeaseRevoke,
}

/// The answer to one [`Request`].
pub enum Reply {
    Applied(Result<Response, RequestError>),
    ReadReady(Result<(), RequestError>),
    /// Remaining TTL in seconds; 0 for a lease that is unknown or has expired.
    LeaseRenewed(Result<i64, RequestError>),
    /// The header is left for the caller to fill.
    LeaseTimeToLive(Result<LeaseTimeToLiveResponse, RequestError>),
    Leases(Vec<LeaseId>),
    Alarms(Vec<AlarmMember>),
    Done(Result<(), RequestError>),
    Snapshot(Box<dyn dolmen_bolt::Source + Send>),
    WatchReady,
}

/// Why a request has no result. The comment tells whether a write may have happened all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The log's own outcome; see [`ApplyError`].
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// Not proposed: the apply backlog is over etcd's 5,000 entries, or the queue is full.
    #[error("too many requests")]
    TooManyRequests,
    /// Not proposed: nobody leads, and nobody did within the time allowed.
    #[error("no leader")]
    NoLeader,
    /// Not done: only the leader can, and it is this one (0 for unknown).
    #[error("not leader")]
    NotLeader { leader: MemberId },
    /// A read was cut off by an election; a write may still be applied.
    #[error("leader changed")]
    LeaderChanged,
    /// May still be applied.
    #[error("request timed out")]
    Timeout,
    /// May still be applied: the request began within two election timeouts before the present leader's election.
    #[error("request timed out, possibly due to previous leader failure")]
    TimeoutLeaderFailure,
    /// May still be applied: the leader, or a quorum of followers, has not been reachable since.
    #[error("request timed out, possibly due to connection lost")]
    TimeoutConnectionLost,
    /// The server is stopping; a write may still be applied.
    #[error("server stopped")]
    Stopped,
    /// The asked transferee is unknown or a learner.
    #[error("bad leader transferee")]
    BadTransferee,
    #[error("request timed out, leader transfer took too long")]
    TransferTimeout,
    /// This member is a learner, which does not serve this.
    #[error("rpc not supported for learner")]
    Learner,
}

impl RequestError {
    pub(crate) fn not_leader(leader: Option<MemberId>) -> Self {
        Self::NotLeader { leader: leader.unwrap_or(0) }
    }
}

/// A request on its way into the node.
pub struct Submission {
    pub request: Request,
    pub completion: Completion,
    /// When the caller took it up; timeouts count from here.
    pub since: Mono,
}
