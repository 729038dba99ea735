//! What went wrong, in the words of etcd's Go client.
//!
//! Scripts match on these words, so [`Error`]'s `Display` is exact:
//!
//! * an error that etcd itself names prints as etcd's text alone: `etcdserver: permission denied`;
//! * any other gRPC status prints as `rpc error: code = Unavailable desc = ...`;
//! * a call that ran out of its own time prints as `context deadline exceeded`;
//! * a mistake found before anything was sent prints as its sentence.

use std::fmt;
use std::sync::Arc;

/// Codes of gRPC, as numbers on the wire.
pub mod code {
    pub const OK: i32 = 0;
    pub const CANCELED: i32 = 1;
    pub const UNKNOWN: i32 = 2;
    pub const INVALID_ARGUMENT: i32 = 3;
    pub const DEADLINE_EXCEEDED: i32 = 4;
    pub const NOT_FOUND: i32 = 5;
    pub const ALREADY_EXISTS: i32 = 6;
    pub const PERMISSION_DENIED: i32 = 7;
    pub const RESOURCE_EXHAUSTED: i32 = 8;
    pub const FAILED_PRECONDITION: i32 = 9;
    pub const ABORTED: i32 = 10;
    pub const OUT_OF_RANGE: i32 = 11;
    pub const UNIMPLEMENTED: i32 = 12;
    pub const INTERNAL: i32 = 13;
    pub const UNAVAILABLE: i32 = 14;
    pub const DATA_LOSS: i32 = 15;
    pub const UNAUTHENTICATED: i32 = 16;
}

const CODE_NAMES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// Texts of etcd's errors that this client, or its caller, acts upon.
pub mod text {
    pub const AUTH_NOT_ENABLED: &str = "etcdserver: authentication is not enabled";
    pub const AUTH_OLD_REVISION: &str = "etcdserver: revision of auth store is old";
    pub const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
    pub const FUTURE_REVISION: &str = "etcdserver: mvcc: required revision is a future revision";
    pub const INVALID_AUTH_TOKEN: &str = "etcdserver: invalid auth token";
    pub const LEASE_NOT_FOUND: &str = "etcdserver: requested lease not found";
    pub const NO_LEADER: &str = "etcdserver: no leader";
    pub const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";
    pub const NOT_LEADER: &str = "etcdserver: not leader";
    pub const NOT_SUPPORTED_FOR_LEARNER: &str = "etcdserver: rpc not supported for learner";
    pub const PERMISSION_DENIED: &str = "etcdserver: permission denied";
    pub const USER_EMPTY: &str = "etcdserver: user name is empty";
}

/// Errors etcd's client knows by name: these print without code. Three that the server has are missing, since the Go
/// client misses them too: the `client api version` one, `... applied index took too long` and those of a `Watch`.
/// Source: etcd `api/v3rpc/rpctypes/error.go` (`errStringToError`).
const KNOWN: &[(i32, &str)] = &[
    (code::INVALID_ARGUMENT, "etcdserver: key is not provided"),
    (code::INVALID_ARGUMENT, "etcdserver: key not found"),
    (code::INVALID_ARGUMENT, "etcdserver: value is provided"),
    (code::INVALID_ARGUMENT, "etcdserver: lease is provided"),
    (code::INVALID_ARGUMENT, "etcdserver: too many operations in txn request"),
    (code::INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request"),
    (code::INVALID_ARGUMENT, "etcdserver: invalid sort option"),
    (code::OUT_OF_RANGE, text::COMPACTED),
    (code::OUT_OF_RANGE, text::FUTURE_REVISION),
    (code::RESOURCE_EXHAUSTED, text::NO_SPACE),
    (code::NOT_FOUND, text::LEASE_NOT_FOUND),
    (code::FAILED_PRECONDITION, "etcdserver: lease already exists"),
    (code::OUT_OF_RANGE, "etcdserver: too large lease TTL"),
    (code::FAILED_PRECONDITION, "etcdserver: member ID already exist"),
    (code::FAILED_PRECONDITION, "etcdserver: Peer URLs already exists"),
    (code::FAILED_PRECONDITION, "etcdserver: re-configuration failed due to not enough started members"),
    (code::INVALID_ARGUMENT, "etcdserver: given member URLs are invalid"),
    (code::NOT_FOUND, "etcdserver: member not found"),
    (code::FAILED_PRECONDITION, "etcdserver: can only promote a learner member"),
    (code::FAILED_PRECONDITION, "etcdserver: can only promote a learner member which is in sync with leader"),
    (code::FAILED_PRECONDITION, "etcdserver: too many learner members in cluster"),
    (code::FAILED_PRECONDITION, "etcdserver: cluster ID mismatch"),
    (code::INVALID_ARGUMENT, "etcdserver: request is too large"),
    (code::RESOURCE_EXHAUSTED, "etcdserver: too many requests"),
    (code::FAILED_PRECONDITION, "etcdserver: root user does not exist"),
    (code::FAILED_PRECONDITION, "etcdserver: root user does not have root role"),
    (code::FAILED_PRECONDITION, "etcdserver: user name already exists"),
    (code::INVALID_ARGUMENT, text::USER_EMPTY),
    (code::FAILED_PRECONDITION, "etcdserver: user name not found"),
    (code::FAILED_PRECONDITION, "etcdserver: role name already exists"),
    (code::FAILED_PRECONDITION, "etcdserver: role name not found"),
    (code::INVALID_ARGUMENT, "etcdserver: role name is empty"),
    (code::INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password"),
    (code::PERMISSION_DENIED, text::PERMISSION_DENIED),
    (code::FAILED_PRECONDITION, "etcdserver: role is not granted to the user"),
    (code::FAILED_PRECONDITION, "etcdserver: permission is not granted to the role"),
    (code::FAILED_PRECONDITION, text::AUTH_NOT_ENABLED),
    (code::UNAUTHENTICATED, text::INVALID_AUTH_TOKEN),
    (code::INVALID_ARGUMENT, "etcdserver: invalid auth management"),
    (code::INVALID_ARGUMENT, text::AUTH_OLD_REVISION),
    (code::UNAVAILABLE, text::NO_LEADER),
    (code::FAILED_PRECONDITION, text::NOT_LEADER),
    (code::UNAVAILABLE, "etcdserver: leader changed"),
    (code::FAILED_PRECONDITION, "etcdserver: not capable"),
    (code::UNAVAILABLE, "etcdserver: server stopped"),
    (code::UNAVAILABLE, "etcdserver: request timed out"),
    (code::UNAVAILABLE, "etcdserver: request timed out, possibly due to previous leader failure"),
    (code::UNAVAILABLE, "etcdserver: request timed out, possibly due to connection lost"),
    (code::UNAVAILABLE, "etcdserver: unhealthy cluster"),
    (code::DATA_LOSS, "etcdserver: corrupt cluster"),
    (code::FAILED_PRECONDITION, text::NOT_SUPPORTED_FOR_LEARNER),
    (code::FAILED_PRECONDITION, "etcdserver: bad leader transferee"),
    (code::FAILED_PRECONDITION, "etcdserver: cluster version not found during downgrade"),
    (code::INVALID_ARGUMENT, "etcdserver: wrong downgrade target version format"),
    (code::INVALID_ARGUMENT, "etcdserver: invalid downgrade target version"),
    (code::FAILED_PRECONDITION, "etcdserver: cluster has a downgrade job in progress"),
    (code::FAILED_PRECONDITION, "etcdserver: no inflight downgrade job"),
];

/// Why a call failed.
///
/// ```
/// use dolmen_client::{Error, code};
///
/// let denied = Error::status(code::PERMISSION_DENIED, "etcdserver: permission denied");
/// assert_eq!(denied.to_string(), "etcdserver: permission denied");
/// assert!(denied.is_known());
///
/// let lost = Error::status(code::UNAVAILABLE, "error reading from server: EOF");
/// assert_eq!(lost.to_string(), "rpc error: code = Unavailable desc = error reading from server: EOF");
/// ```
#[derive(Clone, Debug)]
pub struct Error {
    kind: Kind,
    connection: Option<Arc<ConnectionError>>,
}

#[derive(Clone, Debug)]
enum Kind {
    /// One of [`KNOWN`].
    Etcd(i32, &'static str),
    /// Any other status.
    Status(i32, String),
    /// The call's own time was up.
    Deadline,
    /// The caller, or the end of the client, stopped the call.
    Canceled,
    /// Found by the client itself; no status stands behind it.
    Client(String),
}

impl Error {
    /// An error with a gRPC code and a message, as a server sends them.
    pub fn status(code: i32, message: impl Into<String>) -> Error {
        let message = message.into();
        let kind = match KNOWN.iter().find(|(_, text)| *text == message) {
            Some((code, text)) => Kind::Etcd(*code, text),
            None => Kind::Status(code, message),
        };
        Error { kind, connection: None }
    }

    /// A mistake of the caller, or of the outside, that no server was asked about.
    pub fn client(text: impl Into<String>) -> Error {
        Error { kind: Kind::Client(text.into()), connection: None }
    }

    /// The call's own time is up: `context deadline exceeded`.
    pub fn deadline() -> Error {
        Error { kind: Kind::Deadline, connection: None }
    }

    /// The call was given up by its caller: `context canceled`.
    pub fn canceled() -> Error {
        Error { kind: Kind::Canceled, connection: None }
    }

    pub(crate) fn with_connection(mut self, last: Option<Arc<ConnectionError>>) -> Error {
        self.connection = self.connection.or(last);
        self
    }

    /// The gRPC code, see [`code`]; `UNKNOWN` for a mistake found on this side.
    pub fn code(&self) -> i32 {
        match &self.kind {
            Kind::Etcd(code, _) | Kind::Status(code, _) => *code,
            Kind::Deadline => code::DEADLINE_EXCEEDED,
            Kind::Canceled => code::CANCELED,
            Kind::Client(_) => code::UNKNOWN,
        }
    }

    /// The message without any code.
    pub fn message(&self) -> &str {
        match &self.kind {
            Kind::Etcd(_, text) => text,
            Kind::Status(_, text) | Kind::Client(text) => text,
            Kind::Deadline => "context deadline exceeded",
            Kind::Canceled => "context canceled",
        }
    }

    /// The error with its gRPC code, also where etcd names it: how Go's client prints what a stream ends with.
    ///
    /// ```
    /// use dolmen_client::{Error, code};
    ///
    /// let denied = Error::status(code::PERMISSION_DENIED, "etcdserver: permission denied");
    /// assert_eq!(denied.with_code(), "rpc error: code = PermissionDenied desc = etcdserver: permission denied");
    /// ```
    pub fn with_code(&self) -> String {
        match &self.kind {
            Kind::Etcd(code, message) => format!("rpc error: code = {} desc = {message}", CodeName(*code)),
            _ => self.to_string(),
        }
    }

    /// True for an error that etcd itself names (`etcdserver: ...`).
    pub fn is_known(&self) -> bool {
        matches!(self.kind, Kind::Etcd(..))
    }

    /// True when the call's own time was up. Whether a write happened is then unknown.
    pub fn is_timeout(&self) -> bool {
        matches!(self.kind, Kind::Deadline)
    }

    /// True when this is etcd's error of that text, one of [`text`].
    pub fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Etcd(_, own) if own == text)
    }

    /// The last failed attempt to connect, when no endpoint could be reached: where, and why.
    pub fn connection(&self) -> Option<&ConnectionError> {
        self.connection.as_deref()
    }

    /// As a gRPC status, code and all, whether etcd knows it by name or not: what Go's client writes into its log.
    pub(crate) fn status_text(&self) -> String {
        format!("rpc error: code = {} desc = {}", CodeName(self.code()), self.message())
    }

    /// True for failures after which another attempt on a stream makes no sense: all but `Unavailable` and `Internal`.
    pub(crate) fn is_halt(&self) -> bool {
        !matches!(self.code(), code::UNAVAILABLE | code::INTERNAL)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Status(code, message) => write!(out, "rpc error: code = {} desc = {message}", CodeName(*code)),
            _ => out.write_str(self.message()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.connection.as_deref().map(|cause| cause as &(dyn std::error::Error + 'static))
    }
}

struct CodeName(i32);

impl fmt::Display for CodeName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match usize::try_from(self.0).ok().and_then(|at| CODE_NAMES.get(at)) {
            Some(name) => out.write_str(name),
            None => write!(out, "Code({})", self.0),
        }
    }
}

/// Why an endpoint could not be reached.
#[derive(Clone, Debug)]
pub struct ConnectionError {
    /// As given in the configuration.
    pub endpoint: String,
    pub reason: ConnectionReason,
    /// What Go's client says: `transport: Error while dialing: dial tcp 127.0.0.1:2379: connect: connection refused`.
    pub text: String,
}

/// Kinds of [`ConnectionError`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectionReason {
    /// Nobody listens there.
    Refused,
    /// The name has no address.
    UnknownHost,
    /// No answer in time.
    Timeout,
    /// The server's certificate was not accepted.
    ServerCertificate,
    /// The server did not accept this client's certificate, or wanted one and got none.
    ClientCertificate,
    /// What answers does not speak TLS, or no HTTP/2.
    Protocol,
    /// A file of the TLS configuration is missing or wrong.
    Configuration,
    Other,
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "connection error: desc = \"{}\"", self.text)
    }
}

impl std::error::Error for ConnectionError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_what_the_go_client_prints() {
        let table = [
            (Error::status(code::UNAVAILABLE, "etcdserver: no leader"), "etcdserver: no leader"),
            // A text the Go client has no name for keeps its code.
            (
                Error::status(code::INVALID_ARGUMENT, "etcdserver: permission not given"),
                "rpc error: code = InvalidArgument desc = etcdserver: permission not given",
            ),
            (Error::status(99, "odd"), "rpc error: code = Code(99) desc = odd"),
            (Error::deadline(), "context deadline exceeded"),
            (Error::canceled(), "context canceled"),
            (Error::client("etcdclient: no available endpoints"), "etcdclient: no available endpoints"),
        ];
        for (error, text) in table {
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn a_known_text_brings_its_own_code() {
        let error = Error::status(code::UNKNOWN, text::LEASE_NOT_FOUND);
        assert_eq!(error.code(), code::NOT_FOUND);
        assert!(error.is(text::LEASE_NOT_FOUND) && !error.is(text::NO_LEADER));
    }
}
