//! How to reach a cluster.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Largest message sent unless told otherwise, as etcd's Go client has it.
pub(crate) const DEFAULT_MAX_REQUEST_BYTES: usize = 2 * 1024 * 1024;

/// How to reach a cluster, and within which limits.
///
/// ```
/// use dolmen_client::Config;
///
/// let config = Config { user: Some(("root".into(), "secret".into())), ..Config::new(["127.0.0.1:2379"]) };
/// assert_eq!(config.endpoints, ["127.0.0.1:2379"]);
/// ```
#[derive(Clone)]
pub struct Config {
    /// `http://host:port`, `https://host:port`, `unix://path`, `unixs://path` or `host:port`. The last one speaks TLS when
    /// [`Config::tls`] is given; `http` never does, `https` always does.
    pub endpoints: Vec<String>,
    /// `None`: `https` endpoints are checked against the roots of the system.
    pub tls: Option<Tls>,
    /// Name and password: the client asks for a token when it connects, and for a new one when that is refused.
    pub user: Option<(String, String)>,
    /// A token made elsewhere (JWT), sent as it is and never renewed. Excludes `user`.
    pub token: Option<String>,
    /// Bounds the login of [`crate::Client::connect`]; zero: no bound. Connecting itself is lazy.
    pub dial_timeout: Duration,
    /// A ping after so much silence on a connection in use; zero: no pings.
    pub keepalive_time: Duration,
    /// A connection whose ping stays unanswered so long is dropped.
    pub keepalive_timeout: Duration,
    /// Largest message sent, bytes.
    pub max_request_bytes: usize,
    /// Largest message accepted, bytes.
    pub max_recv_bytes: usize,
    /// Receives warnings, above all of failed attempts that are tried again.
    pub log: Option<Log>,
}

impl Config {
    /// The limits of etcd's Go client, no TLS, no user. `dial_timeout` is 2 s, as etcdctl has it.
    pub fn new<T: Into<String>>(endpoints: impl IntoIterator<Item = T>) -> Config {
        Config {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            tls: None,
            user: None,
            token: None,
            dial_timeout: Duration::from_secs(2),
            keepalive_time: Duration::from_secs(2),
            keepalive_timeout: Duration::from_secs(6),
            max_request_bytes: DEFAULT_MAX_REQUEST_BYTES,
            max_recv_bytes: i32::MAX as usize,
            log: None,
        }
    }
}

/// Files and rules of TLS. Nothing is read before the first connection that needs it.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// PEM of the authorities to trust; `None`: those of the system.
    pub ca_file: Option<PathBuf>,
    /// PEM of the client's certificate chain; with `key_file`.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// The name to check the server's certificate against; `None`: the endpoint's host.
    pub server_name: Option<String>,
    /// Accepts any certificate. The connection is encrypted, but with whom is unknown.
    pub skip_verify: bool,
}

/// Where the client's warnings go. Called from the client's tasks: it must not block.
pub type Log = Arc<dyn Fn(&Notice) + Send + Sync>;

/// One line of the client's log, for the caller to print: the shape and the order of Go's client.
#[derive(Clone, Debug)]
pub struct Notice {
    pub level: Level,
    /// `retrying of unary invoker failed`, and the like.
    pub message: &'static str,
    /// In the order in which they are printed.
    pub fields: Vec<(&'static str, Field)>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// A value in a [`Notice`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Field {
    Text(String),
    Number(u64),
}
