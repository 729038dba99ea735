//! What all tasks of the transport share: who we are, whom we know, and where messages go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dolmen_proto::raftpb::Message;
use dolmen_types::{MemberId, hex_id};
use http::HeaderMap;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use crate::api::PeerApi;
use crate::codec::{Refusal, check_type};
use crate::config::Config;
use crate::http1::HttpClient;
use crate::metrics::NetworkStats;
use crate::net::Dialer;
use crate::peer::Peer;
use crate::url::PeerUrl;
use crate::version::{self, MajorMinor};
use dolmen_node::{PeerAddress, RaftSink};

/// Members known by their own word only, at most.
const MAX_REMOTES: usize = 64;

pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) version: MajorMinor,
    pub(crate) min_version: MajorMinor,
    pub(crate) member_hex: String,
    pub(crate) cluster_hex: String,
    /// What every request of ours carries.
    pub(crate) headers: HeaderMap,
    pub(crate) http: Arc<HttpClient>,
    pub(crate) stats: Arc<NetworkStats>,
    pub(crate) sink: Arc<dyn RaftSink>,
    pub(crate) api: Arc<dyn PeerApi>,
    /// Who is sending us a snapshot: one at a time from each peer, and one from all whom we do not know.
    uploads: Mutex<BTreeMap<Option<MemberId>, AbortHandle>>,
    peers: Mutex<BTreeMap<MemberId, Arc<Peer>>>,
    remotes: Mutex<BTreeMap<MemberId, Arc<Peer>>>,
    removed: Mutex<BTreeSet<MemberId>>,
}

impl Shared {
    pub(crate) fn new(
        config: Config,
        stats: Arc<NetworkStats>,
        sink: Arc<dyn RaftSink>,
        api: Arc<dyn PeerApi>,
    ) -> Arc<Self> {
        let member_hex = hex_id(config.member_id);
        let cluster_hex = hex_id(config.cluster_id);
        let mut headers = HeaderMap::new();
        headers.insert(version::SERVER_FROM, version::value(&member_hex));
        headers.insert(version::SERVER_VERSION, version::value(&config.server_version));
        headers.insert(version::MIN_CLUSTER_VERSION, version::value(&config.min_cluster_version));
        headers.insert(version::CLUSTER_ID, version::value(&cluster_hex));
        headers.insert(version::DOLMEN, version::DOLMEN_VERSION);
        headers.insert(version::PEER_URLS, version::value(&config.peer_urls.join(",")));
        let dialer = Dialer { timeout: config.dial_timeout, tls: config.tls.clone(), local_addr: config.local_addr };
        Arc::new(Self {
            version: version::parse_version(&config.server_version).unwrap_or((3, 0)),
            min_version: version::parse_version(&config.min_cluster_version).unwrap_or((3, 0)),
            member_hex,
            cluster_hex,
            headers,
            http: HttpClient::new(dialer),
            stats,
            sink,
            api,
            uploads: Mutex::default(),
            peers: Mutex::default(),
            remotes: Mutex::default(),
            removed: Mutex::default(),
            config,
        })
    }

    pub(crate) fn peer(&self, id: MemberId) -> Option<Arc<Peer>> {
        self.peers.lock().get(&id).cloned()
    }

    /// Notes who uploads a snapshot. One that the same sender had begun before ends: it has given that up, or it hangs.
    pub(crate) fn begin_upload(&self, from: MemberId, upload: AbortHandle) {
        let sender = self.peer(from).map(|peer| peer.id);
        if let Some(before) = self.uploads.lock().insert(sender, upload) {
            before.abort();
        }
    }

    pub(crate) fn is_removed(&self, id: MemberId) -> bool {
        self.removed.lock().contains(&id)
    }

    /// Checks a message that came in and hands it to raft.
    pub(crate) fn deliver(&self, message: Message) -> Result<(), Refusal> {
        self.check(&message)?;
        check_type(&message)?;
        self.sink.receive(message);
        Ok(())
    }

    /// Checks the sender and the addressee of a message.
    pub(crate) fn check(&self, message: &Message) -> Result<(), Refusal> {
        if self.is_removed(message.from) {
            return Err(Refusal::RemovedSender);
        }
        if message.to != self.config.member_id {
            return Err(Refusal::WrongAddressee);
        }
        Ok(())
    }

    /// Queues messages for their receivers. Those that nobody receives are dropped; a receiver with a full queue is
    /// reported once.
    pub(crate) fn send(&self, messages: Vec<Message>) {
        let mut full = BTreeMap::new();
        {
            let peers = self.peers.lock();
            for message in messages {
                let to = message.to;
                match peers.get(&to) {
                    Some(peer) => {
                        if !peer.send(message) {
                            full.insert(to, Arc::clone(peer));
                        }
                    }
                    // Raft's way to say that a message is not to be sent.
                    None if to == 0 => {}
                    None => self.send_to_remote(message),
                }
            }
        }
        for (id, peer) in full {
            tracing::warn!(
                remote_peer_id = hex_id(id),
                remote_peer_active = peer.stats.is_active(),
                "dropped internal Raft message since sending buffer is full"
            );
            peer.report_unreachable();
        }
    }

    fn send_to_remote(&self, message: Message) {
        let to = message.to;
        match self.remotes.lock().get(&to) {
            Some(remote) => {
                if !remote.send(message) {
                    remote.stats.sent_failures.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            }
            None => tracing::debug!(
                unknown_target_peer_id = hex_id(to),
                "ignored message send request; unknown remote peer target"
            ),
        }
    }

    /// Makes the set of peers what `peers` says: new ones are started, changed ones told, others stopped.
    pub(crate) fn set_peers(self: &Arc<Self>, addresses: Vec<PeerAddress>, removed: Vec<MemberId>) {
        *self.removed.lock() = removed.into_iter().collect();
        let mut wanted = BTreeMap::new();
        for address in addresses {
            if address.id == self.config.member_id {
                continue;
            }
            if let Some(urls) = parse_urls(address.id, address.urls.iter().map(String::as_str)) {
                wanted.insert(address.id, urls);
            }
        }
        let mut peers = self.peers.lock();
        peers.retain(|id, peer| {
            let keep = wanted.contains_key(id);
            if !keep {
                peer.stop();
                tracing::info!(
                    local_member_id = self.member_hex,
                    removed_remote_peer_id = hex_id(*id),
                    "removed remote peer"
                );
            }
            keep
        });
        for (id, urls) in wanted {
            match peers.get(&id) {
                Some(peer) if peer.picker.is(&urls) => {}
                Some(peer) => {
                    peer.picker.update(urls);
                    tracing::info!(
                        local_member_id = self.member_hex,
                        updated_remote_peer_id = hex_id(id),
                        "updated remote peer"
                    );
                }
                None => {
                    peers.insert(id, Peer::start(self, id, urls));
                    tracing::info!(local_member_id = self.member_hex, remote_peer_id = hex_id(id), "added remote peer");
                }
            }
        }
        let known: Vec<MemberId> = peers.keys().copied().collect();
        drop(peers);
        self.forget_remotes(&known);
    }

    /// Remotes that have become peers, or were removed, are no remotes any longer.
    fn forget_remotes(&self, known: &[MemberId]) {
        self.remotes.lock().retain(|id, remote| {
            let keep = !known.contains(id) && !self.is_removed(*id);
            if !keep {
                remote.stop();
            }
            keep
        });
    }

    /// Remembers where a sender that we do not know can be reached, from the headers of its request. It may have joined
    /// after what our log tells.
    pub(crate) fn add_remote(self: &Arc<Self>, id: MemberId, urls: &str) {
        if urls.is_empty() || id == self.config.member_id || self.is_removed(id) || self.peer(id).is_some() {
            return;
        }
        let mut remotes = self.remotes.lock();
        if remotes.contains_key(&id) || remotes.len() >= MAX_REMOTES {
            return;
        }
        if let Some(parsed) = parse_urls(id, urls.split(',')) {
            remotes.insert(id, Peer::start_remote(self, id, parsed));
            tracing::info!(
                local_member_id = self.member_hex,
                remote_peer_id = hex_id(id),
                remote_peer_urls = urls,
                "added new remote peer"
            );
        }
    }

    /// Ends everything that was started for peers, which also undoes the circle of references.
    pub(crate) fn stop(&self) {
        let peers = std::mem::take(&mut *self.peers.lock());
        let remotes = std::mem::take(&mut *self.remotes.lock());
        for peer in peers.into_values().chain(remotes.into_values()) {
            peer.stop();
        }
    }
}

/// All URLs, sorted as etcd keeps them; `None` when there is none or one is wrong.
fn parse_urls<'a>(id: MemberId, urls: impl Iterator<Item = &'a str>) -> Option<Vec<PeerUrl>> {
    let mut parsed = Vec::new();
    for url in urls {
        match PeerUrl::parse(url.trim()) {
            Ok(url) => parsed.push(url),
            Err(error) => {
                tracing::warn!(remote_peer_id = hex_id(id), %error, "ignored a member with a bad peer URL");
                return None;
            }
        }
    }
    parsed.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    (!parsed.is_empty()).then_some(parsed)
}
