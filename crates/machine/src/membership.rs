//! Who belongs to the cluster, as the log has decided: members, removed members, and the cluster version.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use dolmen_proto::raftpb::{ConfChange, ConfChangeType, ConfState};
use dolmen_revlog::{Table, TableOp, Tables};
use dolmen_types::{Index, MemberId, Term, hex_id};
use serde::{Deserialize, Serialize};

use crate::ApplyError;

/// One configured server. The JSON form is etcd's: in bucket `members`, in a conf change's context and at `/members`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub id: MemberId,
    #[serde(rename = "peerURLs", default, deserialize_with = "null_as_empty")]
    pub peer_urls: Vec<String>,
    #[serde(rename = "isLearner", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_learner: bool,
    /// Empty until the member has started and published its attributes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(rename = "clientURLs", default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_empty")]
    pub client_urls: Vec<String>,
}

/// Go writes a nil slice as `null`.
fn null_as_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::<Vec<String>>::deserialize(deserializer)?.unwrap_or_default())
}

/// What a conf change carries in its context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfChangeContext {
    #[serde(flatten)]
    pub member: Member,
    #[serde(rename = "isPromote", default)]
    pub is_promote: bool,
}

impl ConfChangeContext {
    pub fn to_json(&self) -> Bytes {
        serde_json::to_vec(self).expect("a member is plain strings and numbers").into()
    }
}

/// The configuration that the log has decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    pub members: BTreeMap<MemberId, Member>,
    /// Ids that may never come back.
    pub removed: BTreeSet<MemberId>,
    /// `3.7.0`; `None` until decided.
    pub cluster_version: Option<String>,
    /// Major.minor.0 of the storage schema; follows the cluster version.
    pub storage_version: Option<String>,
}

impl Membership {
    /// Reads what [`Membership`]'s own table operations, or an imported etcd database, hold.
    pub(crate) fn load(tables: &Tables) -> Result<Self, serde_json::Error> {
        let mut loaded = Self::default();
        for (_, json) in tables.iter(Table::Members) {
            let member: Member = serde_json::from_slice(json)?;
            loaded.members.insert(member.id, member);
        }
        for (key, _) in tables.iter(Table::MembersRemoved) {
            if let Some(id) = std::str::from_utf8(key).ok().and_then(|hex| u64::from_str_radix(hex, 16).ok()) {
                loaded.removed.insert(id);
            }
        }
        let text = |table, key: &str| {
            tables.get(table, key.as_bytes()).map(|value| String::from_utf8_lossy(value).into_owned())
        };
        loaded.cluster_version = text(Table::Cluster, CLUSTER_VERSION);
        loaded.storage_version = text(Table::Meta, STORAGE_VERSION);
        Ok(loaded)
    }

    /// Checks a conf change against the configuration as it stands, with etcd's outcomes.
    pub(crate) fn validate(&self, change: &ConfChange, context: &ConfChangeContext) -> Result<(), ApplyError> {
        if self.removed.contains(&change.node_id) {
            return Err(ApplyError::MemberNotFound);
        }
        let known = self.members.get(&change.node_id);
        let urls_taken = || {
            self.members
                .values()
                .filter(|m| m.id != change.node_id)
                .flat_map(|m| &m.peer_urls)
                .any(|url| context.member.peer_urls.contains(url))
        };
        match ConfChangeType::try_from(change.r#type) {
            Ok(ConfChangeType::ConfChangeAddNode | ConfChangeType::ConfChangeAddLearnerNode) if context.is_promote => {
                match known {
                    None => Err(ApplyError::MemberNotFound),
                    Some(member) if !member.is_learner => Err(ApplyError::MemberNotLearner),
                    Some(_) => Ok(()),
                }
            }
            Ok(ConfChangeType::ConfChangeAddNode | ConfChangeType::ConfChangeAddLearnerNode) => {
                if known.is_some() {
                    Err(ApplyError::MemberExists)
                } else if urls_taken() {
                    Err(ApplyError::PeerUrlExists)
                } else {
                    Ok(())
                }
            }
            Ok(ConfChangeType::ConfChangeRemoveNode) => known.map(|_| ()).ok_or(ApplyError::MemberNotFound),
            Ok(ConfChangeType::ConfChangeUpdateNode) => {
                if known.is_none() {
                    Err(ApplyError::MemberNotFound)
                } else if urls_taken() {
                    Err(ApplyError::PeerUrlExists)
                } else {
                    Ok(())
                }
            }
            Err(_) => Err(ApplyError::NotSupported),
        }
    }

    /// Carries out a validated conf change.
    pub(crate) fn change(&mut self, change: &ConfChange, context: ConfChangeContext, ops: &mut Vec<TableOp>) {
        let id = change.node_id;
        match ConfChangeType::try_from(change.r#type) {
            Ok(ConfChangeType::ConfChangeRemoveNode) => {
                self.members.remove(&id);
                self.removed.insert(id);
                ops.push(TableOp { table: Table::Members, key: hex_id(id).into(), value: None });
                ops.push(TableOp {
                    table: Table::MembersRemoved,
                    key: hex_id(id).into(),
                    value: Some(Bytes::from_static(b"removed")),
                });
                return;
            }
            Ok(ConfChangeType::ConfChangeUpdateNode) => {
                if let Some(member) = self.members.get_mut(&id) {
                    member.peer_urls = context.member.peer_urls;
                }
            }
            _ if context.is_promote => {
                if let Some(member) = self.members.get_mut(&id) {
                    member.is_learner = false;
                }
            }
            Ok(kind) => {
                let mut member = context.member;
                member.id = id;
                member.is_learner = kind == ConfChangeType::ConfChangeAddLearnerNode;
                self.members.insert(id, member);
            }
            Err(_) => return,
        }
        self.save_member(id, ops);
    }

    /// A member's published name and client URLs; ignored for a member that is not (or no longer) known.
    pub(crate) fn set_attributes(
        &mut self,
        id: MemberId,
        name: String,
        client_urls: Vec<String>,
        ops: &mut Vec<TableOp>,
    ) {
        if let Some(member) = self.members.get_mut(&id) {
            member.name = name;
            member.client_urls = client_urls;
            self.save_member(id, ops);
        }
    }

    fn save_member(&self, id: MemberId, ops: &mut Vec<TableOp>) {
        if let Some(member) = self.members.get(&id) {
            let json = serde_json::to_vec(member).expect("a member is plain strings and numbers");
            ops.push(TableOp { table: Table::Members, key: hex_id(id).into(), value: Some(json.into()) });
        }
    }

    /// Sets the cluster version, and the storage version that follows it: both reach every member by the log, so the
    /// file a member exports says the same everywhere.
    pub(crate) fn set_cluster_version(&mut self, version: &str, ops: &mut Vec<TableOp>) {
        let put = |table, key: &'static str, value: &str| TableOp {
            table,
            key: Bytes::from_static(key.as_bytes()),
            value: Some(Bytes::copy_from_slice(value.as_bytes())),
        };
        ops.push(put(Table::Cluster, CLUSTER_VERSION, version));
        self.cluster_version = Some(version.to_owned());
        if version != MIN_CLUSTER_VERSION {
            ops.push(put(Table::Meta, STORAGE_VERSION, version));
            self.storage_version = Some(version.to_owned());
        }
    }

    /// The configuration as raft's snapshot message carries it for etcd 3.5 and 3.6: their legacy store as JSON.
    pub fn to_v2_store_json(&self, index: Index) -> Vec<u8> {
        use serde_json::{Map, Value, json};
        let node = |path: &str, value: &str, children: Option<Map<String, Value>>| {
            json!({
                "Path": path, "CreatedIndex": 0, "ModifiedIndex": 0, "ExpireTime": "0001-01-01T00:00:00Z",
                "Value": value, "Children": children.map_or(Value::Null, Value::Object),
            })
        };
        let mut members = Map::new();
        for member in self.members.values() {
            let hex = hex_id(member.id);
            let base = format!("/0/members/{hex}");
            let mut raft = json!({ "peerURLs": member.peer_urls });
            if member.is_learner {
                raft["isLearner"] = json!(true);
            }
            let mut files = Map::new();
            files.insert("raftAttributes".into(), node(&format!("{base}/raftAttributes"), &raft.to_string(), None));
            if !member.name.is_empty() {
                let attributes = json!({ "name": member.name, "clientURLs": member.client_urls }).to_string();
                files.insert("attributes".into(), node(&format!("{base}/attributes"), &attributes, None));
            }
            members.insert(hex, node(&base, "", Some(files)));
        }
        let mut removed = Map::new();
        for id in &self.removed {
            let hex = hex_id(*id);
            removed.insert(hex.clone(), node(&format!("/0/removed_members/{hex}"), "removed", None));
        }
        let mut root = Map::new();
        root.insert("members".into(), node("/0/members", "", Some(members)));
        if !removed.is_empty() {
            root.insert("removed_members".into(), node("/0/removed_members", "", Some(removed)));
        }
        if let Some(version) = &self.cluster_version {
            root.insert("version".into(), node("/0/version", version, None));
        }
        let mut top = Map::new();
        top.insert("0".into(), node("/0", "", Some(root)));
        top.insert("1".into(), node("/1", "", Some(Map::new())));
        let store = json!({
            "Root": node("/", "", Some(top)), "CurrentIndex": index, "CurrentVersion": 2,
        });
        store.to_string().into_bytes()
    }
}

/// Go's `json.Marshal(raftpb.ConfState)`, as bucket `meta` holds it under `confState`.
pub fn conf_state_json(state: &ConfState) -> Vec<u8> {
    use serde_json::{Map, Value};
    let mut map = Map::new();
    let mut list = |name: &str, ids: &[u64]| {
        if !ids.is_empty() {
            map.insert(name.into(), ids.iter().copied().map(Value::from).collect());
        }
    };
    list("voters", &state.voters);
    list("learners", &state.learners);
    list("voters_outgoing", &state.voters_outgoing);
    list("learners_next", &state.learners_next);
    map.insert("auto_leave".into(), state.auto_leave.into());
    Value::Object(map).to_string().into_bytes()
}

/// Reads what [`conf_state_json`], or any Go release, wrote.
pub fn parse_conf_state(json: &[u8]) -> Result<ConfState, serde_json::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Json {
        voters: Option<Vec<u64>>,
        learners: Option<Vec<u64>>,
        voters_outgoing: Option<Vec<u64>>,
        learners_next: Option<Vec<u64>>,
        auto_leave: Option<bool>,
    }
    let json: Json = serde_json::from_slice(json)?;
    Ok(ConfState {
        voters: json.voters.unwrap_or_default(),
        learners: json.learners.unwrap_or_default(),
        voters_outgoing: json.voters_outgoing.unwrap_or_default(),
        learners_next: json.learners_next.unwrap_or_default(),
        auto_leave: json.auto_leave.unwrap_or_default(),
    })
}

pub(crate) const CLUSTER_VERSION: &str = "clusterVersion";
pub(crate) const STORAGE_VERSION: &str = "storageVersion";
pub(crate) const CONF_STATE: &str = "confState";
/// What a new cluster starts with, before its members have told each other theirs.
pub const MIN_CLUSTER_VERSION: &str = "3.0.0";

/// Which entry a snapshot or a restart continues from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub index: Index,
    pub term: Term,
    pub conf_state: ConfState,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, url: &str) -> Member {
        Member { id, peer_urls: vec![url.into()], ..Member::default() }
    }

    fn add(id: u64, url: &str) -> (ConfChange, ConfChangeContext) {
        let change = ConfChange { node_id: id, ..ConfChange::default() };
        (change, ConfChangeContext { member: member(id, url), is_promote: false })
    }

    #[test]
    fn json_is_gos() {
        let mut m = member(7, "http://a:1");
        assert_eq!(serde_json::to_string(&m).expect("json"), r#"{"id":7,"peerURLs":["http://a:1"]}"#);
        m.is_learner = true;
        m.name = "n".into();
        m.client_urls = vec!["http://a:2".into()];
        let json = r#"{"id":7,"peerURLs":["http://a:1"],"isLearner":true,"name":"n","clientURLs":["http://a:2"]}"#;
        assert_eq!(serde_json::to_string(&m).expect("json"), json);
        assert_eq!(serde_json::from_str::<Member>(json).expect("json"), m);
        let context: ConfChangeContext =
            serde_json::from_str(r#"{"id":7,"peerURLs":null,"isPromote":true}"#).expect("json");
        assert!(context.is_promote && context.member.id == 7);
        let state = ConfState { voters: vec![1, 2], learners: vec![3], ..ConfState::default() };
        assert_eq!(parse_conf_state(&conf_state_json(&state)).expect("json"), state);
    }

    #[test]
    fn changes_are_refused_as_etcd_refuses_them() {
        let mut membership = Membership::default();
        let mut ops = Vec::new();
        let (change, context) = add(1, "http://a:1");
        assert_eq!(membership.validate(&change, &context), Ok(()));
        membership.change(&change, context.clone(), &mut ops);
        assert_eq!(membership.validate(&change, &context), Err(ApplyError::MemberExists));
        let (change, context) = add(2, "http://a:1");
        assert_eq!(membership.validate(&change, &context), Err(ApplyError::PeerUrlExists));
        let (mut change, context) = add(1, "");
        change.r#type = ConfChangeType::ConfChangeRemoveNode as i32;
        assert_eq!(membership.validate(&change, &context), Ok(()));
        membership.change(&change, context, &mut ops);
        assert!(membership.members.is_empty() && membership.removed.contains(&1));
        let (change, context) = add(1, "http://b:1");
        assert_eq!(membership.validate(&change, &context), Err(ApplyError::MemberNotFound));
    }

    #[test]
    fn legacy_store_names_every_member() {
        let mut membership = Membership::default();
        let (change, context) = add(0xab, "http://a:1");
        membership.change(&change, context, &mut Vec::new());
        membership.set_cluster_version("3.6.0", &mut Vec::new());
        let json: serde_json::Value = serde_json::from_slice(&membership.to_v2_store_json(9)).expect("valid JSON");
        let attributes = &json["Root"]["Children"]["0"]["Children"]["members"]["Children"]["ab"]["Children"];
        assert_eq!(attributes["raftAttributes"]["Value"], r#"{"peerURLs":["http://a:1"]}"#);
        assert_eq!(json["CurrentVersion"], 2);
    }
}
