//! Text forms of messages, entries and Ready, as the conformance scripts print them and as logs show them.

use std::fmt::Write;

use dolmen_proto::raftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState, Entry, EntryType, HardState,
    Message, MessageType, Snapshot,
};

use crate::entry::conf_change_of;
use crate::raft::SoftState;
use crate::raw_node::Ready;
use crate::storage::{snapshot_index, snapshot_term};
use crate::{LOCAL_APPEND_THREAD, LOCAL_APPLY_THREAD, NONE};

/// Writing to a string does not fail.
macro_rules! put {
    ($out:expr, $($text:tt)*) => {{
        let _ = write!($out, $($text)*);
    }};
}

pub fn hard_state(state: &HardState) -> String {
    let mut out = format!("Term:{}", state.term);
    if state.vote != 0 {
        put!(out, " Vote:{}", state.vote);
    }
    put!(out, " Commit:{}", state.commit);
    out
}

pub fn soft_state(state: &SoftState) -> String {
    format!("Lead:{} State:{}", state.leader_id, state.role)
}

pub fn conf_state(state: &ConfState) -> String {
    format!(
        "Voters:{} VotersOutgoing:{} Learners:{} LearnersNext:{} AutoLeave:{}",
        list(&state.voters),
        list(&state.voters_outgoing),
        list(&state.learners),
        list(&state.learners_next),
        state.auto_leave
    )
}

pub fn snapshot(snapshot: &Snapshot) -> String {
    let default = ConfState::default();
    let membership = snapshot.metadata.as_ref().and_then(|metadata| metadata.conf_state.as_ref());
    format!(
        "Index:{} Term:{} ConfState:{}",
        snapshot_index(snapshot),
        snapshot_term(snapshot),
        conf_state(membership.unwrap_or(&default))
    )
}

/// One entry: term, index, type, and the payload quoted or the membership change it stands for.
pub fn entry(entry: &Entry) -> String {
    let (name, payload) = match EntryType::try_from(entry.r#type) {
        Ok(EntryType::EntryNormal) => ("EntryNormal", quote(&entry.data)),
        Ok(kind) => (
            kind.as_str_name(),
            match conf_change_of(entry) {
                Ok(change) => change.map(|change| conf_changes(&change.changes)).unwrap_or_default(),
                Err(error) => error.to_string(),
            },
        ),
        Err(_) => ("EntryUnknown", quote(&entry.data)),
    };
    let space = if payload.is_empty() { "" } else { " " };
    format!("{}/{} {name}{space}{payload}", entry.term, entry.index)
}

/// One line an entry, each ended.
pub fn entries<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> String {
    entries.into_iter().fold(String::new(), |mut out, each| {
        put!(out, "{}\n", entry(each));
        out
    })
}

/// Changes in short: `v1 l2 r3 u4` for voter, learner, remove, update.
pub fn conf_changes(changes: &[ConfChangeSingle]) -> String {
    let mut out = String::new();
    for (i, change) in changes.iter().enumerate() {
        let letter = match ConfChangeType::try_from(change.r#type) {
            Ok(ConfChangeType::ConfChangeAddNode) => "v",
            Ok(ConfChangeType::ConfChangeAddLearnerNode) => "l",
            Ok(ConfChangeType::ConfChangeRemoveNode) => "r",
            Ok(ConfChangeType::ConfChangeUpdateNode) => "u",
            Err(_) => "unknown",
        };
        put!(out, "{}{letter}{}", if i > 0 { " " } else { "" }, change.node_id);
    }
    out
}

/// A change in full.
pub fn conf_change(change: &ConfChangeV2) -> String {
    let mut out = match ConfChangeTransition::try_from(change.transition) {
        Ok(transition) => format!("transition:{}", transition.as_str_name()),
        Err(_) => format!("transition:{}", change.transition),
    };
    for single in &change.changes {
        match ConfChangeType::try_from(single.r#type) {
            Ok(kind) => put!(out, " changes:{{type:{} node_id:{}}}", kind.as_str_name(), single.node_id),
            Err(_) => put!(out, " changes:{{type:{} node_id:{}}}", single.r#type, single.node_id),
        }
    }
    if !change.context.is_empty() {
        put!(out, " context:{}", quote(&change.context));
    }
    out
}

pub fn message(message: &Message) -> String {
    indented_message("", message)
}

fn indented_message(indent: &str, message: &Message) -> String {
    let kind = match MessageType::try_from(message.r#type) {
        Ok(kind) => kind.as_str_name().to_owned(),
        Err(_) => message.r#type.to_string(),
    };
    let mut out = format!(
        "{indent}{}->{} {kind} Term:{} Log:{}/{}",
        target(message.from),
        target(message.to),
        message.term,
        message.log_term,
        message.index
    );
    if message.reject {
        put!(out, " Rejected (Hint: {})", message.reject_hint);
    }
    if message.commit != 0 {
        put!(out, " Commit:{}", message.commit);
    }
    if message.vote != 0 {
        put!(out, " Vote:{}", message.vote);
    }
    match message.entries.as_slice() {
        [] => {}
        [only] => put!(out, " Entries:[{}]", entry(only)),
        several => {
            out.push_str(" Entries:[");
            for each in several {
                put!(out, "\n{indent}  {}", entry(each));
            }
            put!(out, "\n{indent}]");
        }
    }
    if let Some(carried) = &message.snapshot
        && snapshot_index(carried) != 0
    {
        put!(out, "\n{indent}  Snapshot: {}", snapshot(carried));
    }
    if !message.responses.is_empty() {
        out.push_str(" Responses:[");
        let deeper = format!("{indent}  ");
        for response in &message.responses {
            put!(out, "\n{}", indented_message(&deeper, response));
        }
        put!(out, "\n{indent}]");
    }
    out
}

fn target(id: u64) -> String {
    match id {
        NONE => "None".to_owned(),
        LOCAL_APPEND_THREAD => "AppendThread".to_owned(),
        LOCAL_APPLY_THREAD => "ApplyThread".to_owned(),
        id => format!("{id:x}"),
    }
}

/// A Ready, a part a line.
pub fn ready(ready: &Ready) -> String {
    let mut out = String::new();
    if let Some(state) = &ready.soft_state {
        put!(out, "{}\n", soft_state(state));
    }
    if let Some(state) = &ready.hard_state {
        put!(out, "HardState {}\n", hard_state(state));
    }
    if !ready.read_states.is_empty() {
        let reads: Vec<_> =
            ready.read_states.iter().map(|read| format!("{{{} {}}}", read.index, list(&read.request_ctx))).collect();
        put!(out, "ReadStates [{}]\n", reads.join(" "));
    }
    if !ready.entries.is_empty() {
        put!(out, "Entries:\n{}", entries(&ready.entries));
    }
    if let Some(carried) = &ready.snapshot {
        put!(out, "Snapshot {}\n", snapshot(carried));
    }
    if !ready.committed_entries.is_empty() {
        put!(out, "CommittedEntries:\n{}", entries(&ready.committed_entries));
    }
    if !ready.messages.is_empty() {
        out.push_str("Messages:\n");
        for each in &ready.messages {
            put!(out, "{}\n", message(each));
        }
    }
    if out.is_empty() {
        return "<empty Ready>".to_owned();
    }
    format!("Ready MustSync={}:\n{out}", ready.must_sync)
}

/// Numbers in brackets, separated by spaces.
fn list<T: ToString>(items: &[T]) -> String {
    let items: Vec<_> = items.iter().map(ToString::to_string).collect();
    format!("[{}]", items.join(" "))
}

/// Bytes as a double-quoted literal; what is not printable is escaped.
pub fn quote(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\x07' => out.push_str("\\a"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x0b' => out.push_str("\\v"),
                c if c < ' ' || c == '\x7f' => put!(out, "\\x{:02x}", c as u32),
                c if c.is_ascii() || !(c.is_control() || c.is_whitespace()) => out.push(c),
                c if (c as u32) < 0x1_0000 => put!(out, "\\u{:04x}", c as u32),
                c => put!(out, "\\U{:08x}", c as u32),
            }
        }
        for byte in chunk.invalid() {
            put!(out, "\\x{byte:02x}");
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_escapes_what_is_not_printable() {
        assert_eq!(quote(b"a\"b\\c\n\x00\x7f\xff"), r#""a\"b\\c\n\x00\x7f\xff""#);
        assert_eq!(quote("é\u{2028}".as_bytes()), "\"é\\u2028\"");
    }
}
