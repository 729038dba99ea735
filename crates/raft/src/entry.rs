//! Entries: identity and the two sizes that bounds are counted in.

use dolmen_proto::raftpb::{ConfChange, ConfChangeV2, Entry, EntryType};
use prost::Message as _;

use crate::confchange::into_v2;

/// Names one entry: a leader writes one entry at an index in its term, so equal ids mean equal entries, and equal logs
/// up to there (log matching).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryId {
    pub term: u64,
    pub index: u64,
}

impl EntryId {
    pub(crate) const fn of(entry: &Entry) -> Self {
        Self { term: entry.term, index: entry.index }
    }
}

/// Bytes of one entry on the wire: what `max_size_per_msg` and `max_committed_size_per_ready` count.
pub(crate) fn encoded_size(entry: &Entry) -> u64 {
    entry.encoded_len() as u64
}

pub(crate) fn encoded_sizes<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> u64 {
    entries.into_iter().map(encoded_size).sum()
}

/// Bytes of the payloads alone: what `max_uncommitted_entries_size` and `max_inflight_bytes` count. The empty entry of
/// a new leader weighs nothing, so it can always be appended.
pub(crate) fn payload_sizes<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> u64 {
    entries.into_iter().map(|entry| entry.data.len() as u64).sum()
}

/// Clones entries until the next one would exceed `max_size` bytes; at least one when there is any.
pub(crate) fn take_within<'a>(entries: impl ExactSizeIterator<Item = &'a Entry>, max_size: u64) -> Vec<Entry> {
    if max_size == u64::MAX {
        return entries.cloned().collect();
    }
    let mut taken = Vec::with_capacity(entries.len());
    let mut size = 0u64;
    for entry in entries {
        size = size.saturating_add(encoded_size(entry));
        if size > max_size && !taken.is_empty() {
            break;
        }
        taken.push(entry.clone());
    }
    taken
}

/// The membership change an entry carries: `None` for a normal entry, an error for bytes that are none.
pub(crate) fn conf_change_of(entry: &Entry) -> Result<Option<ConfChangeV2>, prost::DecodeError> {
    Ok(match EntryType::try_from(entry.r#type) {
        Ok(EntryType::EntryConfChange) => Some(into_v2(&ConfChange::decode(entry.data.clone())?)),
        Ok(EntryType::EntryConfChangeV2) => Some(ConfChangeV2::decode(entry.data.clone())?),
        _ => None,
    })
}
