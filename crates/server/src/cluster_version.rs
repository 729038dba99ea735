//! The cluster version: the lowest version of all members, which the leader finds out and sets through the log.

use std::time::Duration;

use dolmen_node::{Completion, Handle, ProposeKind, Request};
use dolmen_proto::etcdserverpb::{InternalRaftRequest, RequestHeader};
use dolmen_proto::membershippb::ClusterVersionSetRequest;
use dolmen_transport::{PeerClient, PeerUrl};
use prost::Message;

use crate::version;

/// How often the leader looks at the versions of the members, as in etcd.
const INTERVAL: Duration = Duration::from_secs(4);
/// How often a member looks whether the first version is due.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// On the leader: sets the cluster version to the lowest of the members' versions, and raises it when they have all
/// moved on. Works as long as the runtime lasts.
pub async fn keep(node: Handle, client: PeerClient, election: Duration) {
    loop {
        let undecided = node.members().cluster_version.is_none();
        if node.status().is_leader() && !node.members().members.is_empty() {
            let lowest = lowest_version(&node, &client).await;
            if let Some(version) = decide(node.members().cluster_version.as_deref(), lowest) {
                tracing::info!(version, "setting the cluster version");
                propose(&node, version);
                tokio::time::sleep(election).await;
                continue;
            }
        }
        tokio::time::sleep(if undecided { POLL_INTERVAL } else { INTERVAL }).await;
    }
}

/// The lowest major.minor of all members, `None` while one of them does not tell.
async fn lowest_version(node: &Handle, client: &PeerClient) -> Option<(u64, u64)> {
    let mut lowest = parse_version(version::ETCD)?;
    let own = node.status().member_id;
    for member in node.members().members.values().filter(|member| member.id != own) {
        let mut told = None;
        for url in &member.peer_urls {
            let Ok(url) = PeerUrl::parse(url) else { continue };
            if let Ok(json) = client.get_version(&url, Duration::from_secs(2)).await {
                let json: serde_json::Value = serde_json::from_slice(&json).unwrap_or_default();
                told = json["etcdserver"].as_str().and_then(parse_version);
                break;
            }
        }
        lowest = lowest.min(told?);
    }
    Some(lowest)
}

fn parse_version(text: &str) -> Option<(u64, u64)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The version to set, if it has to change.
fn decide(current: Option<&str>, lowest: Option<(u64, u64)>) -> Option<String> {
    let shown = |(major, minor): (u64, u64)| format!("{major}.{minor}.0");
    match (current.and_then(parse_version), lowest) {
        (None, lowest) => Some(lowest.map_or_else(|| dolmen_machine::MIN_CLUSTER_VERSION.to_owned(), shown)),
        (Some(current), Some(lowest)) if current < lowest => Some(shown(lowest)),
        _ => None,
    }
}

fn propose(node: &Handle, ver: String) {
    let id = node.next_id();
    let request = InternalRaftRequest {
        header: Some(RequestHeader { id, ..RequestHeader::default() }),
        cluster_version_set: Some(ClusterVersionSetRequest { ver }),
        ..InternalRaftRequest::default()
    };
    let request = Request::Propose { id, data: request.encode_to_vec().into(), kind: ProposeKind::Normal };
    // No runtime has this number: whoever set the version reads it from the members.
    node.submit(request, Completion { runtime: u16::MAX, slot: 0 });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_version_is_the_lowest_and_never_falls() {
        assert_eq!(decide(None, None).as_deref(), Some("3.0.0"));
        assert_eq!(decide(None, Some((3, 6))).as_deref(), Some("3.6.0"));
        assert_eq!(decide(Some("3.0.0"), Some((3, 7))).as_deref(), Some("3.7.0"));
        assert_eq!(decide(Some("3.7.0"), Some((3, 6))), None);
        assert_eq!(decide(Some("3.6.0"), None), None);
    }
}
