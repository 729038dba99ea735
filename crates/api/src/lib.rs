//! The client edge: everything between accepted sockets and the node.
//!
//! etcd's clients speak gRPC; probes, scrapers and operators speak HTTP on the same port. A request is checked here,
//! then either read from the store on the spot or handed to the node, which answers when the log has decided.
//!
//! ```text
//! edge        sockets, TLS, HTTP/2 or HTTP/1, one runtime for each core
//! http2       one connection of gRPC: reads, polls its calls, writes
//!  dispatch   message in, framed answer out       call   who calls, until when; is there a leader
//!   methods    which handler serves which method, and who may call it
//!   kv, lease, watch, maintenance, cluster, health      the services; propose, what of them goes through the log
//!    validate     what a request must be           status    what failures are called
//!    budget       what is in flight may hold so much
//!    damage       what is said of records that cannot be read
//!    helpers      what takes long is done there    pipe      what a client may be slow to take
//!    completion   how answers come back            answer, encode, frame, body   how answers go out
//!  http_mux   version, health, metrics             peer_http  what other members ask over HTTP
//! ```
//!
//! # One get
//!
//! `edge` has the connection on runtime 2. `http2` reads the request, whole, and gives it a slot; `dispatch` takes its one
//! message and calls `kv::range`. The request is linearizable: `completion` joins it to the runtime's next read round, one
//! `ReadIndex` for all who ask in the same loop. The node answers runtime 2 with a batch; the pump wakes the call. The store
//! is read on this thread, and `encode` puts the stored bytes into a response without decoding them.
//!
//! # Not here
//!
//! Authentication, membership changes, downgrade, locks, elections and the JSON gateway: refused as not yet supported.
//! Enforcement of a minimum time between a client's pings (`--grpc-keepalive-min-time`): pings are answered, never
//! punished.

#![forbid(unsafe_code)]
// At the edge the clock and the file system are real.
#![allow(clippy::disallowed_methods)]

mod answer;
mod body;
mod budget;
mod call;
mod cluster;
mod completion;
mod damage;
mod dispatch;
mod edge;
mod encode;
mod frame;
mod health;
mod helpers;
mod http2;
mod http_mux;
mod identity;
mod io;
mod kv;
mod lease;
mod maintenance;
mod methods;
mod peer_http;
mod pipe;
pub mod prometheus;
mod propose;
mod server;
mod stats;
pub mod status;
mod users;
mod validate;
mod watch;

pub use call::{Caller, Transport};
pub use edge::{Edge, Listener, Mode, Options, Runtimes, give_back, serve};
pub use methods::{Access, Info, Kind, METHODS};
pub use peer_http::{PeerHttp, PeerRequest, PeerResponse};
pub use server::{Config, ExtraMetrics, LeaseForwarder, PeerAnswer};
