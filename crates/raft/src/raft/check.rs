//! The doors: which messages are let in.
//!
//! What comes off the wire may be from a newer version, from a member that was removed, damaged, or made up. Everything
//! that the state machine takes for granted about a message is checked here, before anything changes: that its type is
//! known and travels between members, that it names a sender and a term, that numbers are small enough to count on
//! from, that entries are consecutive. What needs the log to judge (acknowledging entries that do not exist, committing
//! beyond the last one) is refused where it is handled.

use dolmen_proto::raftpb::{EntryType, Message, MessageType};

use super::Raft;
use crate::entry::conf_change_of;
use crate::error::Error;
use crate::storage::{Storage, snapshot_index, snapshot_term};
use crate::{LOCAL_APPEND_THREAD, LOCAL_APPLY_THREAD, NONE};

use MessageType::*;

/// Terms and indexes above this are refused, so that adding to one never overflows. At a million a second it is reached
/// after 146,000 years.
const MAX_COUNTER: u64 = 1 << 62;

/// True for messages that never travel between members: commands to oneself, and storage's work and answers.
pub const fn is_local(kind: MessageType) -> bool {
    matches!(
        kind,
        MsgHup
            | MsgBeat
            | MsgUnreachable
            | MsgSnapStatus
            | MsgCheckQuorum
            | MsgStorageAppend
            | MsgStorageAppendResp
            | MsgStorageApply
            | MsgStorageApplyResp
            | MsgForgetLeader
    )
}

/// True for the two ids that stand for this member's own storage.
pub const fn is_local_target(id: u64) -> bool {
    matches!(id, LOCAL_APPEND_THREAD | LOCAL_APPLY_THREAD)
}

const fn is_response(kind: MessageType) -> bool {
    matches!(kind, MsgAppResp | MsgVoteResp | MsgHeartbeatResp | MsgReadIndexResp | MsgPreVoteResp)
}

/// What a follower passes on to the leader under its original sender's name, which may be the leader's own.
const fn is_forwarded(kind: MessageType) -> bool {
    matches!(kind, MsgProp | MsgReadIndex | MsgTransferLeader)
}

impl<S: Storage> Raft<S> {
    /// The door for what comes off the wire.
    pub(crate) fn check_remote(&self, message: &Message) -> Result<(), Error> {
        let kind = MessageType::try_from(message.r#type).map_err(|_| Error::UnknownMessageType(message.r#type))?;
        if is_local(kind) {
            return Err(Error::LocalMessage);
        }
        let refuse = |reason| Err(Error::InvalidMessage { message_type: kind, from: message.from, reason });
        if message.from == NONE || is_local_target(message.from) {
            return refuse("the sender is no member");
        }
        if message.from == self.id && !is_forwarded(kind) {
            return refuse("the sender is this member");
        }
        if message.to != self.id && message.to != NONE {
            return refuse("it is for another member");
        }
        if is_response(kind) && !self.tracker.progress.contains(message.from) {
            return Err(Error::PeerNotFound);
        }
        if message.term > MAX_COUNTER {
            return refuse("the term is out of bounds");
        }
        match kind {
            MsgProp | MsgReadIndex if message.term != 0 => return refuse("what is passed on belongs to no term"),
            MsgProp | MsgReadIndex | MsgTransferLeader => {}
            _ if message.term == 0 => return refuse("the term is missing"),
            _ => {}
        }
        if message.index > MAX_COUNTER || message.commit > MAX_COUNTER {
            return refuse("an index is out of bounds");
        }
        if !message.responses.is_empty() {
            return refuse("responses do not travel");
        }
        match kind {
            MsgApp => self.check_append(message),
            MsgProp => {
                if message.entries.is_empty() {
                    return refuse("a proposal without entries");
                }
                self.conf_changes_in(message).map(drop)
            }
            MsgReadIndex if message.entries.len() != 1 => refuse("a read carries one context"),
            MsgSnap => {
                let Some(snapshot) = &message.snapshot else {
                    return refuse("the snapshot is missing");
                };
                if snapshot_index(snapshot) > MAX_COUNTER || snapshot_term(snapshot) > message.term {
                    return refuse("the snapshot is from the future");
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Entries follow on the previous one and on each other, their terms only grow, up to the leader's, and membership
    /// changes decode.
    fn check_append(&self, append: &Message) -> Result<(), Error> {
        let refuse = |reason| Err(self.invalid(append, reason));
        let (mut index, mut term) = (append.index, append.log_term);
        for entry in &append.entries {
            match EntryType::try_from(entry.r#type) {
                Ok(EntryType::EntryNormal) => {}
                Ok(_) if conf_change_of(entry).is_err() => return refuse("a membership change does not decode"),
                Ok(_) => {}
                Err(_) => return refuse("an entry of unknown type"),
            }
            index += 1;
            if entry.index != index || entry.term < term {
                return refuse("entries do not follow on each other");
            }
            term = entry.term;
        }
        if term > append.term || index > MAX_COUNTER {
            return refuse("an entry is from the future");
        }
        Ok(())
    }

    /// The door for what storage answers, and for promises to oneself that waited for it.
    pub(crate) fn check_local(&self, message: &Message) -> Result<(), Error> {
        let kind = MessageType::try_from(message.r#type).map_err(|_| Error::UnknownMessageType(message.r#type))?;
        if message.term > self.term.saturating_add(1) {
            // No promise speaks about a later term than a pre-candidate's.
            return Err(self.invalid(message, "the term is out of bounds"));
        }
        match kind {
            MsgStorageAppendResp if message.from == LOCAL_APPEND_THREAD && message.term <= self.term => Ok(()),
            MsgStorageApplyResp if message.from == LOCAL_APPLY_THREAD => Ok(()),
            MsgAppResp | MsgVoteResp | MsgPreVoteResp if message.from == self.id && message.to == self.id => {
                if self.tracker.progress.contains(self.id) { Ok(()) } else { Err(Error::PeerNotFound) }
            }
            _ => Err(Error::LocalMessage),
        }
    }
}
