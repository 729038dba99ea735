//! Before a node: what lies in the data directory, who this member is, and whom it begins with.

use std::sync::Arc;
use std::time::Duration;

use dolmen_datadir::{ImportOptions, Level, Report};
use dolmen_env::Disk;
use dolmen_machine::Member;
use dolmen_net::ClientTls;
use dolmen_node::{Bootstrap, Layout, PeerAddress, cluster_id, member_id};
use dolmen_transport::{PeerClient, PeerUrl};
use dolmen_types::{MemberId, error_chain};

use crate::config::{Config, check_own_urls};
use crate::failure::Failure;
use crate::serve::DIAL_TIMEOUT;

/// Takes over what an etcd has left in the data directory, if anything.
pub fn import(disk: &Arc<dyn Disk>, layout: &Layout) -> Result<(), Failure> {
    let imported = dolmen_datadir::import(disk, &ImportOptions::new(layout.clone()), &mut Logged);
    Ok(imported.map(|_| ())?)
}

/// Removes the files of an etcd that was taken over, now that the member serves without them.
pub fn forget_imported(disk: &Arc<dyn Disk>, layout: &Layout) {
    match dolmen_datadir::remove_imported(&**disk, layout) {
        Ok(gone) => {
            for path in gone {
                tracing::info!(path = %path.display(), "removed the files of the etcd that was imported");
            }
        }
        Err(error) => {
            tracing::warn!(error = error_chain(&error), "cannot remove the files of the etcd that was imported");
        }
    }
}

/// An import's report as lines of the log.
struct Logged;

impl Report for Logged {
    fn log(&mut self, level: Level, message: &str, fields: &[(&str, serde_json::Value)]) {
        let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let fields = fields.join(" ");
        match level {
            Level::Info => tracing::info!(fields, "{message}"),
            Level::Warn => tracing::warn!(fields, "{message}"),
            Level::Error => tracing::error!(fields, "{message}"),
        }
    }
}

/// Who this member is, and whom it begins with.
pub struct Identity {
    pub member_id: MemberId,
    pub cluster_id: u64,
    pub bootstrap: Bootstrap,
    /// The other members as configured; what the log says replaces them.
    pub peers: Vec<PeerAddress>,
    pub initialized: bool,
}

pub async fn identify(
    config: &Config,
    disk: &Arc<dyn Disk>,
    layout: &Layout,
    tls: Option<ClientTls>,
) -> Result<Identity, Failure> {
    if dolmen_node::is_initialized(&**disk, layout)? {
        tracing::info!(member_dir = %layout.member.display(), "server has already been initialized");
        let found = dolmen_node::identity(&**disk, layout)?;
        return Ok(Identity {
            member_id: found.member_id,
            cluster_id: found.cluster_id,
            // Of use only when the first start was cut off before its first sync.
            bootstrap: if config.existing { Bootstrap::Join } else { Bootstrap::New { members: founders(config) } },
            peers: peers_of(&founders(config), found.member_id),
            initialized: true,
        });
    }
    if config.existing {
        return join(config, tls).await;
    }
    check_own_urls(config)?;
    let members = founders(config);
    let ids: Vec<MemberId> = members.iter().map(|member| member.id).collect();
    let own = members.iter().find(|member| member.name == config.name).map_or(0, |member| member.id);
    Ok(Identity {
        member_id: own,
        cluster_id: cluster_id(&ids),
        peers: peers_of(&members, own),
        bootstrap: Bootstrap::New { members },
        initialized: false,
    })
}

fn founders(config: &Config) -> Vec<Member> {
    let member = |(name, urls): (&String, &Vec<String>)| Member {
        id: member_id(urls, &config.initial_cluster_token),
        peer_urls: urls.clone(),
        name: name.clone(),
        ..Member::default()
    };
    config.initial_cluster.iter().map(member).collect()
}

fn peers_of(members: &[Member], own: MemberId) -> Vec<PeerAddress> {
    let others = members.iter().filter(|member| member.id != own);
    others.map(|member| PeerAddress { id: member.id, urls: member.peer_urls.clone() }).collect()
}

/// Asks the running cluster who this member is: its ids were given when it was added.
async fn join(config: &Config, tls: Option<ClientTls>) -> Result<Identity, Failure> {
    check_own_urls(config)?;
    let client = PeerClient::new(tls, DIAL_TIMEOUT);
    let others = config.initial_cluster.iter().filter(|(name, _)| **name != config.name);
    for url in others.flat_map(|(_, urls)| urls) {
        let Ok(peer) = PeerUrl::parse(url) else { continue };
        let Ok(remote) = client.get_members(&peer, Duration::from_secs(5)).await else { continue };
        let members: Vec<Member> = serde_json::from_slice(&remote.json)
            .map_err(|error| format!("cannot fetch cluster info from peer urls: {error}"))?;
        if members.len() != config.initial_cluster.len() {
            return Err(format!(
                "error validating peerURLs {:?}: member count is unequal",
                members.iter().flat_map(|member| &member.peer_urls).collect::<Vec<_>>()
            )
            .into());
        }
        let own_urls = &config.initial_cluster[&config.name];
        let own = members.iter().find(|member| {
            let mut urls = member.peer_urls.clone();
            urls.sort();
            urls == *own_urls
        });
        let Some(own) = own else {
            return Err(format!("PeerURLs: no match found for existing member ({own_urls:?})").into());
        };
        return Ok(Identity {
            member_id: own.id,
            cluster_id: remote.cluster_id,
            bootstrap: Bootstrap::Join,
            peers: peers_of(&members, own.id),
            initialized: false,
        });
    }
    Err("cannot fetch cluster info from peer urls: could not retrieve cluster information from the given URLs"
        .to_owned()
        .into())
}
