//! A client of an etcd v3 cluster.
//!
//! ```no_run
//! use dolmen_client::{Client, Config, pb};
//!
//! # async fn example() -> Result<(), dolmen_client::Error> {
//! let client = Client::connect(Config::new(["http://127.0.0.1:2379"])).await?;
//! client.put(pb::PutRequest { key: "greeting".into(), value: "hello".into(), ..Default::default() }).await?;
//! let found = client.range(pb::RangeRequest { key: "greeting".into(), ..Default::default() }).await?;
//! assert_eq!(&found.kvs[0].value[..], b"hello");
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
// The edge: it reads files of TLS.
#![allow(clippy::disallowed_methods)]

mod call;
mod client;
mod concurrency;
mod config;
mod dial;
pub mod discovery;
mod endpoint;
mod error;
mod https;
mod lease;
mod pool;
mod range;
mod streaming;
mod tls;
mod watch;
mod wire;

pub use client::Client;
pub use concurrency::{
    DEFAULT_SESSION_TTL, Election, LOCK_RELEASED, LOCKED, Mutex, NO_LEADER, NOT_LEADER, Observer, SESSION_EXPIRED,
    Session, prefix_range_end,
};
pub use config::{Config, Field, Level, Log, Notice, Tls};
pub use dolmen_proto::etcdserverpb as pb;
pub use dolmen_proto::{authpb, mvccpb, v3electionpb, v3lockpb};
pub use error::{ConnectionError, ConnectionReason, Error, code, text};
pub use lease::KeepAlive;
pub use range::{KeyValueRef, KeyValues};
pub use streaming::Streaming;
pub use watch::{WatchHandle, Watcher, watch_error};
