//! A copy of the node's seam.

use std::path::PathBuf;

use dolmen_env::Mono;
use dolmen_proto::raftpb::Message;
use dolmen_types::MemberId;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    pub id: MemberId,
    pub urls: Vec<String>,
}

pub trait PeerSender: Send + Sync {
    fn send(&self, messages: Vec<Message>);
    fn send_snapshot(&self, message: Message, source: Box<dyn dolmen_bolt::Source + Send>);
    fn set_peers(&self, peers: Vec<PeerAddress>, removed: Vec<MemberId>);
    fn active_since(&self, id: MemberId) -> Option<Mono>;
}

pub trait RaftSink: Send + Sync {
    fn receive(&self, message: Message);
    fn receive_snapshot(&self, message: Message, db: PathBuf);
    fn unreachable(&self, id: MemberId);
    fn snapshot_status(&self, id: MemberId, arrived: bool);
    fn removed_from_cluster(&self);
}
