//! etcd's peer protocol (`rafthttp`): how members of a cluster reach each other, byte for byte as etcd 3.6 and 3.7 do it,
//! so that they may be members of the same cluster.
//!
//! # The protocol, for a newcomer
//!
//! Each member listens on its peer URLs for HTTP/1.1, plain or TLS. To *receive* messages from another member it opens
//! two streams there, `GET /raft/stream/message/<own id>` and `.../msgapp/<own id>`, whose answers never end: the other
//! side writes messages into them as they come. So the connections that carry our messages are those that others have
//! opened to us.
//!
//! ```text
//!   member a                                             member b
//!   reader  --- GET /raft/stream/msgapp/a ------------>  |
//!           <-- MsgApp, MsgApp, (heartbeat), MsgApp ---  slot for a
//!   slot for b  <------------ GET /raft/stream/msgapp/b  reader
//!           -- MsgApp ... ---------------------------->
//! ```
//!
//! Three ways lead to a peer, and each message takes the first that is open. A `MsgApp` goes to the msgapp stream, whose
//! compact form leaves out what both ends know; anything to the message stream; and anything to the
//! *pipeline*, `POST /raft` with one message each, four at a time. A snapshot goes by itself, `POST /raft/snapshot`: the
//! message and then a bbolt file, built from the store while it is sent.
//!
//! Nothing is retried and nothing blocks the sender. Every queue has an end, and a message that meets it is dropped and
//! reported, for raft to send anew. A connection on which nothing moves for five seconds is closed; quiet streams carry a
//! heartbeat of their own so that quiet and dead can be told apart.
//!
//! # The threads
//!
//! All of it runs on one thread ([`Transport`]) with a tokio runtime of its own, reached through one queue: a batch of
//! messages costs its sender one push. Messages queued for one peer leave as one write. Only snapshots use other threads,
//! since they read and write files.
//!
//! # What is not here
//!
//! The requests that are not raft's (`/members`, `/version`, leases, hashes) are answered by a [`PeerApi`]; the other
//! direction of those is [`PeerClient`]. Which members there are is told by the node ([`PeerSender::set_peers`]); the
//! transport knows others only as far as they introduce themselves, to be able to answer them.

#![forbid(unsafe_code)]
// At the edge the clock and the file system are real.
#![allow(clippy::disallowed_methods)]

mod api;
mod client;
mod codec;
mod config;
mod http1;
mod leases;
mod lobby;
mod metrics;
mod net;
mod peer;
mod presence;
mod probe;
mod server;
mod shared;
mod snapshot;
mod stream;
mod transport;
mod url;
mod version;

pub use api::{ApiFuture, ApiRequest, ApiResponse, PeerApi};
pub use client::{PeerClient, RemoteMembers};
pub use config::{Config, PeerListener};
pub use dolmen_node::{PeerAddress, PeerSender, RaftSink};
pub use http1::{PeerResponse, RequestError};
pub use leases::{LeasePipes, Pending, PipeAnswer};
pub use lobby::{Lobby, MEMBER_PATH};
pub use metrics::{Histogram, NetworkStats, PeerStats, SnapshotCounts};
pub use transport::Transport;
pub use url::{PeerUrl, UrlError};
