use dolmen_proto::raftpb::MessageType;

use crate::confchange::ConfChangeError;

/// Why a call into the core was refused. State is as if the call had not been made, except where a variant says
/// otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The proposal was not taken: no leader is known, a leadership transfer is under way, this node was removed, or
    /// the bound on uncommitted bytes is reached. Nothing of it is in any log through this node.
    #[error("raft proposal dropped")]
    ProposalDropped,
    /// A message type that never travels between members, or one that only the other door takes.
    #[error("raft: cannot step raft local message")]
    LocalMessage,
    /// A response from somebody who is no member (any more).
    #[error("raft: cannot step as peer not found")]
    PeerNotFound,
    /// A message type this version does not know.
    #[error("unknown message type {0}")]
    UnknownMessageType(i32),
    /// A message whose fields no correct member would have sent together.
    #[error("invalid {} from {from:x}: {reason}", message_type.as_str_name())]
    InvalidMessage { message_type: MessageType, from: u64, reason: &'static str },
    /// The leader says this member acknowledged entries it does not have: its log was lost, cut or swapped since. The
    /// member must not go on. Term and leader have been taken over from the message.
    #[error("commit {commit} is above the last index {last_index}: was the log lost or truncated?")]
    CommitOutOfRange { commit: u64, last_index: u64 },
    /// The start-up state in storage does not hold together.
    #[error("stored state: {0}")]
    StoredState(String),
    /// A configuration that cannot work.
    #[error("config: {0}")]
    Config(&'static str),
    /// A membership change that cannot be applied. Every member refuses it alike.
    #[error(transparent)]
    ConfChange(#[from] ConfChangeError),
}
