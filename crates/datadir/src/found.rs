//! What lies in a member's directory that an etcd wrote, read without changing anything, and whether it can be taken over.
//!
//! The log decides where things stand. Its last snapshot record names the database that belongs to it: `snap/db`, or one
//! that was received from a leader and not yet put there. The database says up to which entry it is applied; entries
//! behind that are applied by the member that comes after. What raft's configuration was at that point follows from the
//! snapshot record and the changes between; the database has a copy of it, but one that a restore leaves as it was in
//! another cluster, and that 3.5 could leave behind.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use dolmen_bolt::{BoltReader, Source};
use dolmen_env::{Disk, OpenMode};
use dolmen_machine::{ConfChangeContext, Member, decode_request, parse_conf_state};
use dolmen_node::Layout;
use dolmen_proto::etcdserverpb::InternalRaftRequest;
use dolmen_proto::raftpb::{self, ConfChange, ConfChangeType, ConfState, EntryType};
use dolmen_proto::walpb;
use dolmen_types::{Index, MemberId, hex_id};
use dolmen_wal::{Recovered, Wal};
use prost::Message;

use crate::files::{Doing, FileReader, Overlay, bucket};
use crate::import::ImportError;
use crate::migrate::{Version, version_of};
use crate::restore::member_json;
use crate::snap;

/// An etcd member's directory that can be taken over.
pub(crate) struct Found {
    pub reader: BoltReader<FileReader>,
    pub version: Version,
    /// Raft index and term that the database is applied to.
    pub applied: Index,
    /// The snapshot record that the entries of `log` follow.
    pub base: walpb::Snapshot,
    pub log: Recovered,
    /// Buckets that the database says wrongly.
    pub replaced: BTreeMap<Bytes, BTreeMap<Bytes, Bytes>>,
    /// What was put right, for the log.
    pub mended: Vec<String>,
}

impl Found {
    pub(crate) fn overlay<'a>(&self, under: &'a dyn Source) -> Overlay<'a> {
        Overlay { under, replaced: self.replaced.clone() }
    }
}

/// Reads an etcd's directory.
///
/// # Errors
/// What keeps it from being taken over.
pub(crate) fn inspect(disk: &dyn Disk, layout: &Layout) -> Result<Found, ImportError> {
    let (last_mark, log) = Wal::read_etcds(disk, &layout.wal)?;
    let (path, reader, meta) = database(disk, layout, &last_mark)?;
    let number = |key: &'static str| -> Result<u64, ImportError> {
        let Some(value) = meta.get(key.as_bytes()) else { return Ok(0) };
        let bytes = value[..].try_into().map_err(|_| ImportError::Meta { path: path.clone(), key })?;
        Ok(u64::from_be_bytes(bytes))
    };
    let (applied, term) = (number("consistent_index")?, number("term")?);
    let version = match version_of(&meta) {
        Some(version) if version > Version::V3_7 => return Err(ImportError::Newer { path, version }),
        Some(version) if version < Version::V3_5 => return Err(ImportError::Older { path }),
        Some(version) => version,
        // A member that was killed before it first committed: all it has stands in the log.
        None if applied == 0 => Version::V3_5,
        None => return Err(ImportError::Older { path }),
    };
    if last_mark.index > applied {
        return Err(ImportError::Behind { path, applied, mark: last_mark.index });
    }
    let last = log.entries.last().map_or(last_mark.index, |entry| entry.index);
    if applied > last {
        return Err(ImportError::Ahead { path, applied, last });
    }
    let told = term_at(&log, &last_mark, applied);
    if applied > 0 && term > 0 && told != term {
        return Err(ImportError::Terms { path, applied, term, told });
    }
    let mut found =
        Found { reader, version, applied, base: last_mark, log, replaced: BTreeMap::new(), mended: Vec::new() };
    refuse_unsupported(&found, &path)?;
    settle_members(disk, layout, &mut found, &meta, &path)?;
    if term == 0 && told > 0 {
        // etcd 3.5 leaves the term out until the first entry that it applies; store and log are to agree by it.
        let meta = found.replaced.entry("meta".into()).or_insert(meta);
        meta.insert("term".into(), Bytes::copy_from_slice(&told.to_be_bytes()));
    }
    Ok(found)
}

/// The database the log's last snapshot record asks for, open, with its bucket `meta`.
#[allow(clippy::type_complexity, reason = "three values that one caller takes apart at once")]
fn database(
    disk: &dyn Disk,
    layout: &Layout,
    mark: &walpb::Snapshot,
) -> Result<(PathBuf, BoltReader<FileReader>, BTreeMap<Bytes, Bytes>), ImportError> {
    let open = |path: PathBuf| {
        let unsound = |source| ImportError::Database { path: path.clone(), source };
        let file = disk.open(&path, OpenMode::Read).doing("open", &path)?;
        let reader = BoltReader::open(FileReader(file)).map_err(unsound)?;
        let source = reader.source().map_err(unsound)?;
        let meta = bucket(&source, b"meta").map_err(|error| unsound(error.into()))?;
        drop(source);
        Ok::<_, ImportError>((path, reader, meta))
    };
    let current = open(layout.snap().join("db"))?;
    let applied = current.2.get(&b"consistent_index"[..]).and_then(|value| value[..].try_into().ok());
    if applied.map_or(0, u64::from_be_bytes) >= mark.index {
        return Ok(current);
    }
    let received = layout.snap().join(format!("{:016x}.snap.db", mark.index));
    if disk.exists(&received).doing("look at", &received)? { open(received) } else { Ok(current) }
}

fn term_at(log: &Recovered, base: &walpb::Snapshot, index: Index) -> u64 {
    if index == base.index {
        return base.term;
    }
    log.entries.iter().find(|entry| entry.index == index).map_or(0, |entry| entry.term)
}

/// Names everything that this release would not carry out as etcd does.
fn refuse_unsupported(found: &Found, path: &Path) -> Result<(), ImportError> {
    let unsound = |source| ImportError::Database { path: path.to_owned(), source };
    let source = found.reader.source().map_err(unsound)?;
    let pairs = |name: &str| bucket(&source, name.as_bytes()).map_err(|error| unsound(error.into()));
    let downgrade = pairs("cluster")?.remove(&b"downgrade"[..]);
    let downgrade: serde_json::Value =
        downgrade.and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default();
    if downgrade["enabled"] == true {
        let target = downgrade["target-version"].as_str().unwrap_or_default().to_owned();
        return Err(ImportError::Downgrade { target });
    }
    for entry in found.log.entries.iter().filter(|entry| entry.index > found.applied) {
        let index = entry.index;
        match EntryType::try_from(entry.r#type) {
            Ok(EntryType::EntryNormal) if entry.data.is_empty() => {}
            Ok(EntryType::EntryNormal) => {
                let request = decode_request(&entry.data).map_err(|what| ImportError::Entry { index, what })?;
                if let Some(kind) = unsupported(&request) {
                    return Err(ImportError::Kind { index, kind });
                }
            }
            Ok(EntryType::EntryConfChange) => {
                let change = ConfChange::decode(entry.data.clone());
                change.map_err(|error| ImportError::Entry { index, what: error.to_string() })?;
            }
            Ok(EntryType::EntryConfChangeV2) => {
                return Err(ImportError::Kind { index, kind: "joint configuration change" });
            }
            Err(_) => {
                return Err(ImportError::Entry { index, what: format!("unknown type {}", entry.r#type) });
            }
        }
    }
    Ok(())
}

/// The name of what a request asks for, when this release does not do it.
fn unsupported(request: &InternalRaftRequest) -> Option<&'static str> {
    request.downgrade_info_set.as_ref().is_some_and(|set| set.enabled).then_some("downgrade_info_set")
}

/// Works out the configuration as of what is applied, and makes the database's members agree with it.
fn settle_members(
    disk: &dyn Disk,
    layout: &Layout,
    found: &mut Found,
    meta: &BTreeMap<Bytes, Bytes>,
    path: &Path,
) -> Result<(), ImportError> {
    let unsound = |source| ImportError::Database { path: path.to_owned(), source };
    let source = found.reader.source().map_err(unsound)?;
    let pairs = |name: &str| bucket(&source, name.as_bytes()).map_err(|error| unsound(error.into()));
    let mut members = BTreeMap::new();
    for (_, json) in pairs("members")? {
        let member: Member =
            serde_json::from_slice(&json).map_err(|_| ImportError::Meta { path: path.to_owned(), key: "members" })?;
        members.insert(member.id, member);
    }
    let mut removed = pairs("members_removed")?;
    drop(source);

    let stored = meta.get(&b"confState"[..]).and_then(|json| parse_conf_state(json).ok());
    let state = match stored {
        Some(state) if agrees(&state, &members) => state,
        _ => conf_state_at(found),
    };
    if found.applied == 0 {
        return Ok(());
    }
    if agrees(&state, &members) {
        if meta.get(&b"confState"[..]).and_then(|json| parse_conf_state(json).ok()).as_ref() != Some(&state) {
            put_conf_state(found, meta, &state);
        }
        return Ok(());
    }
    let legacy = legacy_members(disk, layout, found)?;
    let wanted: Vec<MemberId> = state.voters.iter().chain(&state.learners).copied().collect();
    for id in members.keys().copied().filter(|id| !wanted.contains(id)).collect::<Vec<_>>() {
        members.remove(&id);
        removed.insert(hex_id(id).into(), Bytes::from_static(b"removed"));
        found.mended.push(format!("member {} was removed, and the database still had it", hex_id(id)));
    }
    for id in wanted {
        let member = match members.entry(id) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(absent) => {
                found.mended.push(format!("member {} was missing in the database", hex_id(id)));
                absent.insert(legacy.get(&id).cloned().ok_or(ImportError::UnknownMember { id })?)
            }
        };
        let learner = state.learners.contains(&id);
        if member.is_learner != learner {
            member.is_learner = learner;
            let role = if learner { "a learner" } else { "a voter" };
            found.mended.push(format!("member {} is {role}, and the database said otherwise", hex_id(id)));
        }
    }
    let rows = members.values().map(|member| (Bytes::from(hex_id(member.id)), member_json(member))).collect();
    found.replaced.insert(Bytes::from_static(b"members"), rows);
    found.replaced.insert(Bytes::from_static(b"members_removed"), removed);
    put_conf_state(found, meta, &state);
    Ok(())
}

fn put_conf_state(found: &mut Found, meta: &BTreeMap<Bytes, Bytes>, state: &ConfState) {
    let mut meta = meta.clone();
    meta.insert(Bytes::from_static(b"confState"), dolmen_machine::conf_state_json(state).into());
    found.replaced.insert(Bytes::from_static(b"meta"), meta);
}

/// Whether the configuration and the members are the same people in the same roles.
fn agrees(state: &ConfState, members: &BTreeMap<MemberId, Member>) -> bool {
    state.voters.len() + state.learners.len() == members.len()
        && state.voters.iter().all(|id| members.get(id).is_some_and(|member| !member.is_learner))
        && state.learners.iter().all(|id| members.get(id).is_some_and(|member| member.is_learner))
}

/// Raft's configuration at the entry that the database is applied to.
fn conf_state_at(found: &Found) -> ConfState {
    let mut state = found.base.conf_state.clone().unwrap_or_default();
    for entry in found.log.entries.iter().take_while(|entry| entry.index <= found.applied) {
        apply_conf_change(&mut state, entry);
    }
    state
}

/// What one entry does to the configuration. A change that was refused when it was applied does nothing: a member that
/// is there already is not added, one that is not a learner is not promoted.
pub(crate) fn apply_conf_change(state: &mut ConfState, entry: &raftpb::Entry) {
    if entry.r#type != EntryType::EntryConfChange as i32 {
        return;
    }
    let Ok(change) = ConfChange::decode(entry.data.clone()) else { return };
    let context = serde_json::from_slice::<ConfChangeContext>(&change.context).unwrap_or_default();
    let id = change.node_id;
    let (voter, learner) = (state.voters.contains(&id), state.learners.contains(&id));
    match ConfChangeType::try_from(change.r#type) {
        Ok(ConfChangeType::ConfChangeAddNode) if context.is_promote && learner => {
            state.learners.retain(|known| *known != id);
            state.voters.push(id);
        }
        Ok(ConfChangeType::ConfChangeAddNode) if !context.is_promote && !voter && !learner => state.voters.push(id),
        Ok(ConfChangeType::ConfChangeAddLearnerNode) if !voter && !learner => state.learners.push(id),
        Ok(ConfChangeType::ConfChangeRemoveNode) => {
            state.voters.retain(|known| *known != id);
            state.learners.retain(|known| *known != id);
        }
        _ => {}
    }
    state.voters.sort_unstable();
    state.learners.sort_unstable();
}

/// Members as the snapshot file has them, with those added since: where 3.5 looks for them.
fn legacy_members(disk: &dyn Disk, layout: &Layout, found: &Found) -> Result<BTreeMap<MemberId, Member>, ImportError> {
    let dir = layout.snap();
    let file = snap::read(disk, &dir, found.base.term, found.base.index).doing("read", &dir)?;
    let mut members = file.and_then(|snapshot| snap::members(&snapshot.data)).unwrap_or_default();
    for entry in found.log.entries.iter().take_while(|entry| entry.index <= found.applied) {
        if entry.r#type == EntryType::EntryConfChange as i32
            && let Ok(change) = ConfChange::decode(entry.data.clone())
            && let Ok(context) = serde_json::from_slice::<ConfChangeContext>(&change.context)
        {
            let mut member = context.member;
            member.id = change.node_id;
            if !context.is_promote {
                members.insert(change.node_id, member);
            }
        }
    }
    Ok(members)
}
