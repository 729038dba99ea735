//! What every handler shares: the node, the configuration, the runtime's mailbox and counters.

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dolmen_auth::Identity;
use dolmen_machine::Response;
use dolmen_mvcc::RangeError;
use dolmen_node::{Handle, ProposeKind, Reply, Request};
use dolmen_proto::etcdserverpb::ResponseHeader;
use dolmen_types::MemberId;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::budget::Budget;
use crate::completion::Mailbox;
use crate::damage::Damage;
use crate::encode::{self, Command};
use crate::helpers::Helpers;
use crate::stats::Stats;
use crate::status::{self, Code, Status};
use crate::users::Logins;

/// What the edge is started with. Defaults are etcd's.
#[derive(Clone, Debug)]
pub struct Config {
    /// The version told to clients and members.
    pub server_version: String,
    /// Bytes of an encoded `InternalRaftRequest` allowed; a gRPC message may have 512 KiB more.
    pub max_request_bytes: usize,
    /// Operations of a transaction allowed, by etcd's way of counting.
    pub max_txn_ops: usize,
    /// Live bytes beyond which nothing is written; 0 stands for etcd's 2 GiB, below 0 for no limit.
    pub quota_bytes: i64,
    /// Bytes that requests and answers in flight may hold; 0 stands for a quarter of the memory there is.
    pub max_in_flight_bytes: u64,
    /// Streams of one HTTP/2 connection allowed at a time.
    pub max_concurrent_streams: u32,
    /// After three of these without a leader, streams that asked for one end.
    pub election_timeout: Duration,
    /// How long a request may take when its client sets no limit.
    pub request_timeout: Duration,
    /// Between two HTTP/2 pings on an idle connection.
    pub keepalive_interval: Duration,
    /// How long a ping may stay unanswered.
    pub keepalive_timeout: Duration,
    /// How long open requests may go on after the stop was asked for.
    pub drain_timeout: Duration,
    /// Hosts that plain HTTP requests may name. Empty, or holding `*`: any.
    pub host_whitelist: BTreeSet<String>,
    /// Origins allowed by CORS. Empty: none are told so; `*`: any.
    pub cors: BTreeSet<String>,
    /// A client's certificate says who it is, where no token does.
    pub client_cert_auth: bool,
    /// Steps of work to hash a password, 4 to 31.
    pub bcrypt_cost: u32,
}

impl Default for Config {
    fn default() -> Self {
        let election_timeout = Duration::from_millis(1000);
        Self {
            server_version: "3.7.3".into(),
            max_request_bytes: 1_572_864,
            max_txn_ops: 128,
            quota_bytes: 0,
            max_in_flight_bytes: 0,
            max_concurrent_streams: u32::MAX,
            election_timeout,
            request_timeout: Duration::from_secs(5) + 2 * election_timeout,
            keepalive_interval: Duration::from_secs(2 * 3600),
            keepalive_timeout: Duration::from_secs(20),
            drain_timeout: Duration::from_secs(2),
            host_whitelist: BTreeSet::from(["*".into()]),
            cors: BTreeSet::from(["*".into()]),
            client_cert_auth: false,
            bcrypt_cost: 10,
        }
    }
}

impl Config {
    /// Bytes allowed in one gRPC message.
    pub fn max_message_bytes(&self) -> usize {
        self.max_request_bytes + 512 * 1024
    }
}

/// What a peer answered: status and body.
pub type PeerAnswer = io::Result<(u16, Bytes)>;

/// Reaches the leader's peer URL for what only a leader can do with leases.
pub trait LeaseForwarder: Send + Sync {
    /// POSTs `body` (protobuf) to `path` (`/leases` or `/leases/internal`) of `member`, whose peer URLs are `urls`:
    /// the first that answers at all.
    fn post<'a>(
        &'a self,
        member: MemberId,
        urls: &'a [String],
        path: &'static str,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = PeerAnswer> + Send + 'a>>;

    /// POSTs a renewal (to `/leases`), from the thread of runtime `runtime`. It comes thousands of times a second; an
    /// implementation may have a quicker way for it.
    fn renew<'a>(
        &'a self,
        runtime: u16,
        member: MemberId,
        urls: &'a [String],
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = PeerAnswer> + Send + 'a>> {
        let _ = runtime;
        self.post(member, urls, "/leases", body)
    }
}

/// More lines for the metrics page, from parts of the server that this crate does not know.
pub type ExtraMetrics = Box<dyn Fn(&mut crate::prometheus::Page) + Send + Sync>;

/// Shared by all runtimes.
pub struct Server {
    pub config: Config,
    pub node: Handle,
    pub forwarder: Arc<dyn LeaseForwarder>,
    pub logins: Logins,
    /// One for each runtime.
    pub stats: Vec<Arc<Stats>>,
    pub health: crate::health::HealthStats,
    pub extra_metrics: Vec<ExtraMetrics>,
    pub helpers: Helpers,
    pub budget: Arc<Budget>,
    pub damage: Damage,
    /// A permit for each snapshot that is being sent.
    pub snapshots: Arc<Semaphore>,
    /// Counts the times that the leader was missed for too long; streams that need one watch it.
    pub leader_lost: watch::Receiver<u64>,
    /// True once the server stops.
    pub stopping: watch::Receiver<bool>,
}

/// One runtime's view of the server.
pub struct Local {
    pub server: Arc<Server>,
    pub mailbox: Arc<Mailbox>,
    pub stats: Arc<Stats>,
}

/// When a caller stops waiting; `None` leaves it to the node.
pub type Deadline = Option<Instant>;

/// Waits no longer than the caller does.
///
/// # Errors
/// `late` when time is up.
pub async fn within<T>(deadline: Deadline, late: Status, future: impl Future<Output = T>) -> Result<T, Status> {
    match deadline {
        None => Ok(future.await),
        // Not begun at all: the timer would let through what is ready before it first looks.
        Some(deadline) if deadline <= Instant::now() => Err(late),
        Some(deadline) => tokio::time::timeout_at(deadline, future).await.map_err(|_| late),
    }
}

impl Local {
    pub fn config(&self) -> &Config {
        &self.server.config
    }

    pub fn node(&self) -> &Handle {
        &self.server.node
    }

    /// A response header; revision 0 stands for the current one.
    pub fn header(&self, revision: i64) -> ResponseHeader {
        let revision = if revision == 0 { self.node().reader().revision() } else { revision };
        ResponseHeader { revision, ..self.header_without_revision() }
    }

    /// The header of answers that tell no revision.
    pub fn header_without_revision(&self) -> ResponseHeader {
        let status = self.node().status();
        ResponseHeader {
            cluster_id: status.cluster_id,
            member_id: status.member_id,
            revision: 0,
            raft_term: status.term,
        }
    }

    /// Completes a header that the machine made: it knows only the revision.
    pub fn fill(&self, header: &mut Option<ResponseHeader>) {
        *header = Some(self.header(header.as_ref().map_or(0, |header| header.revision)));
    }

    /// What a client is told of a read that failed.
    pub fn read_failed(&self, error: RangeError) -> Status {
        self.server.damage.status(&self.node().reader(), error)
    }

    /// Confirms that reads here see everything committed before this call.
    ///
    /// # Errors
    /// No leader in time, an election, the caller's deadline.
    pub async fn read_index(&self, deadline: Deadline) -> Result<(), Status> {
        let result = within(deadline, status::DEADLINE_EXCEEDED, self.mailbox.read_index()).await;
        let result = result.and_then(|result| result.map_err(Status::from));
        if result.is_err() {
            self.stats.read_index_failures.add(1);
        }
        result
    }

    /// Replicates a client's encoded message, as `who`'s, and returns what applying it gave.
    ///
    /// # Errors
    /// A message too large; the log's own outcome; or not knowing whether it was applied.
    pub async fn propose(
        &self,
        command: Command,
        message: &[u8],
        who: Option<&Identity>,
        deadline: Deadline,
    ) -> Result<Response, Status> {
        let id = self.node().next_id();
        let data = encode::raft_request(id, command, message, who);
        if data.len() > self.config().max_request_bytes {
            return Err(status::REQUEST_TOO_LARGE);
        }
        let kind = if command == Command::LeaseRevoke { ProposeKind::LeaseRevoke } else { ProposeKind::Normal };
        let answer = self.mailbox.call(self.node(), Request::Propose { id, data, kind });
        // As etcd has it, a caller's deadline met while waiting for the log reads like the server's own.
        match within(deadline, status::TIMEOUT, answer).await? {
            Reply::Applied(result) => result.map_err(Status::from),
            other => Err(refusal(other)),
        }
    }

    /// Sends a request that is answered by [`Reply::Done`].
    ///
    /// # Errors
    /// The node's, or `late`.
    pub async fn done(&self, request: Request, deadline: Deadline, late: Status) -> Result<(), Status> {
        match within(deadline, late, self.mailbox.call(self.node(), request)).await? {
            Reply::Done(result) => result.map_err(Status::from),
            _ => Err(unexpected_reply()),
        }
    }

    /// Computes for tens of milliseconds on a thread of the runtime's own: passwords, which should not wait for what reads the
    /// whole store ([`Helpers`]).
    ///
    /// # Errors
    /// When the server stops meanwhile.
    pub async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
        tokio::task::spawn_blocking(work).await.map_err(|_| status::STOPPED)
    }
}

/// What a reply of another kind than the request calls for means: a refusal, in the form all requests share.
pub fn refusal(reply: Reply) -> Status {
    match reply {
        Reply::Done(Err(error)) => error.into(),
        _ => unexpected_reply(),
    }
}

/// The node answered with another kind of reply than the request calls for.
pub fn unexpected_reply() -> Status {
    Status::new(Code::Internal, "etcdserver: unexpected answer")
}
