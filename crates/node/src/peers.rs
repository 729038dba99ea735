//! The seam between the node and whatever carries messages to the other members.

use std::path::PathBuf;

use dolmen_env::Mono;
use dolmen_proto::raftpb::Message;
use dolmen_types::MemberId;

/// A member as peers need to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    pub id: MemberId,
    /// `http://host:port` or `https://host:port`, at least one.
    pub urls: Vec<String>,
}

/// Carries messages out. Implemented by the transport, and by the simulator.
///
/// Nothing here blocks and nothing is retried: a message that cannot leave at once is dropped and the node is told
/// with [`RaftSink::unreachable`]. Raft repairs what is lost; it would not survive being made to wait.
pub trait PeerSender: Send + Sync {
    /// Sends to each message's `to`, in order for one receiver.
    fn send(&self, messages: Vec<Message>);
    /// Streams a snapshot: the `MsgSnap` message, then the bbolt file built from `source`. The end is told with
    /// [`RaftSink::snapshot_status`].
    fn send_snapshot(&self, message: Message, source: Box<dyn dolmen_bolt::Source + Send>);
    /// The other members as configured now: connections to members not listed are closed, new ones are dialled.
    fn set_peers(&self, peers: Vec<PeerAddress>, removed: Vec<MemberId>);
    /// Since when a member has been connected without a break; `None` when it is not.
    fn active_since(&self, id: MemberId) -> Option<Mono>;
}

/// Takes messages in. Implemented by [`crate::Handle`].
pub trait RaftSink: Send + Sync {
    /// One message for this member; sender, cluster and addressee have been checked.
    fn receive(&self, message: Message);
    /// A snapshot whose bbolt file lies whole and synced at `db`.
    fn receive_snapshot(&self, message: Message, db: PathBuf);
    /// Whether the process behind a member is a Dolmen. Told before the first message that comes from it.
    fn peer_is_dolmen(&self, id: MemberId, dolmen: bool);
    /// Everything says that the member's process has died, which only Dolmens are said of: all its streams were closed, and
    /// a dial since was refused at each of its URLs. A hint, not a proof: a firewall that rejects looks the same.
    fn peer_gone(&self, id: MemberId);
    /// The member could not be reached, or its queue was full.
    fn unreachable(&self, id: MemberId);
    /// A snapshot sent by [`PeerSender::send_snapshot`] arrived (or did not).
    fn snapshot_status(&self, id: MemberId, arrived: bool);
    /// The source of a snapshot could not be read to its end, for the reason given: this member's store is damaged.
    fn store_damaged(&self, what: String);
    /// A peer says that this member has been removed from the cluster: it stops.
    fn removed_from_cluster(&self);
}
