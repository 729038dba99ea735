//! The one table of what clients are told when something fails.
//!
//! etcd's clients decide by the *text* of a gRPC status, not by its code, so both are fixed here, word for word.
//! What can go wrong below this crate ([`RequestError`], [`ApplyError`]) and in it (a bad request, a deadline) becomes a
//! [`Status`] through this module; a read that failed does in `damage`, where damage is noted as well.
//!
//! Two of etcd's errors reach its clients with another code than its own list says, because the server's map answers
//! with a value that is not a status: "too many requests" and "not enough started members" arrive as `Unknown`.
//! Clients have seen nothing else for years; so it is here.

use std::borrow::Cow;

use dolmen_auth::AuthError;
use dolmen_machine::ApplyError;
use dolmen_node::RequestError;

/// A gRPC status code, by its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Code {
    Ok = 0,
    Canceled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    /// All codes, in the order of their numbers.
    pub const ALL: [Code; 17] = [
        Code::Ok,
        Code::Canceled,
        Code::Unknown,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Aborted,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
    ];

    /// The name as metrics and Go's status strings spell it.
    pub fn name(self) -> &'static str {
        match self {
            Code::Ok => "OK",
            Code::Canceled => "Canceled",
            Code::Unknown => "Unknown",
            Code::InvalidArgument => "InvalidArgument",
            Code::DeadlineExceeded => "DeadlineExceeded",
            Code::NotFound => "NotFound",
            Code::AlreadyExists => "AlreadyExists",
            Code::PermissionDenied => "PermissionDenied",
            Code::ResourceExhausted => "ResourceExhausted",
            Code::FailedPrecondition => "FailedPrecondition",
            Code::Aborted => "Aborted",
            Code::OutOfRange => "OutOfRange",
            Code::Unimplemented => "Unimplemented",
            Code::Internal => "Internal",
            Code::Unavailable => "Unavailable",
            Code::DataLoss => "DataLoss",
            Code::Unauthenticated => "Unauthenticated",
        }
    }

    /// The `grpc-status` header's value.
    pub fn digits(self) -> &'static str {
        const DIGITS: [&str; 17] =
            ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16"];
        DIGITS[self as usize]
    }
}

/// How a call ended badly: a code, and the text that clients match on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub code: Code,
    pub message: Cow<'static, str>,
}

impl Status {
    pub const fn new(code: Code, message: &'static str) -> Self {
        Self { code, message: Cow::Borrowed(message) }
    }

    pub fn owned(code: Code, message: String) -> Self {
        Self { code, message: Cow::Owned(message) }
    }

    /// A feature that this release leaves out.
    pub fn not_yet_supported(what: &str) -> Self {
        Self::owned(Code::Unimplemented, format!("not yet supported: {what}"))
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

macro_rules! table {
    ($($code:ident { $($name:ident = $text:literal;)* })*) => {
        $($(pub const $name: Status = Status::new(Code::$code, concat!("etcdserver: ", $text));)*)*
        /// Every status etcd's clients know, grouped by code.
        pub const ALL: &[Status] = &[$($($name,)*)*];
    };
}

table! {
    Canceled {
        WATCH_CANCELED = "watch canceled";
        CANCELED = "request canceled";
    }
    InvalidArgument {
        EMPTY_KEY = "key is not provided";
        KEY_NOT_FOUND = "key not found";
        VALUE_PROVIDED = "value is provided";
        LEASE_PROVIDED = "lease is provided";
        TOO_MANY_OPS = "too many operations in txn request";
        DUPLICATE_KEY = "duplicate key given in txn request";
        INVALID_CLIENT_API_VERSION = "invalid client api version";
        INVALID_SORT_OPTION = "invalid sort option";
        MEMBER_BAD_URLS = "given member URLs are invalid";
        REQUEST_TOO_LARGE = "request is too large";
        USER_EMPTY = "user name is empty";
        ROLE_EMPTY = "role name is empty";
        AUTH_FAILED = "authentication failed, invalid user ID or password";
        PERMISSION_NOT_GIVEN = "permission not given";
        INVALID_AUTH_MGMT = "invalid auth management";
        AUTH_OLD_REVISION = "revision of auth store is old";
        WRONG_DOWNGRADE_VERSION_FORMAT = "wrong downgrade target version format";
        INVALID_DOWNGRADE_TARGET_VERSION = "invalid downgrade target version";
    }
    DeadlineExceeded {
        ETCD_DEADLINE_EXCEEDED = "context deadline exceeded";
    }
    NotFound {
        LEASE_NOT_FOUND = "requested lease not found";
        MEMBER_NOT_FOUND = "member not found";
    }
    PermissionDenied {
        PERMISSION_DENIED = "permission denied";
    }
    ResourceExhausted {
        NO_SPACE = "mvcc: database space exceeded";
        TOO_MANY_REQUESTS_LISTED = "too many requests";
    }
    FailedPrecondition {
        LEASE_EXISTS = "lease already exists";
        MEMBER_EXISTS = "member ID already exist";
        PEER_URL_EXISTS = "Peer URLs already exists";
        MEMBER_NOT_ENOUGH_STARTED_LISTED = "re-configuration failed due to not enough started members";
        MEMBER_NOT_LEARNER = "can only promote a learner member";
        LEARNER_NOT_READY = "can only promote a learner member which is in sync with leader";
        TOO_MANY_LEARNERS = "too many learner members in cluster";
        CLUSTER_ID_MISMATCH = "cluster ID mismatch";
        ROOT_USER_NOT_EXIST = "root user does not exist";
        ROOT_ROLE_NOT_EXIST = "root user does not have root role";
        USER_ALREADY_EXIST = "user name already exists";
        USER_NOT_FOUND = "user name not found";
        ROLE_ALREADY_EXIST = "role name already exists";
        ROLE_NOT_FOUND = "role name not found";
        ROLE_NOT_GRANTED = "role is not granted to the user";
        PERMISSION_NOT_GRANTED = "permission is not granted to the role";
        AUTH_NOT_ENABLED = "authentication is not enabled";
        NOT_LEADER = "not leader";
        NOT_CAPABLE = "not capable";
        NOT_SUPPORTED_FOR_LEARNER = "rpc not supported for learner";
        BAD_LEADER_TRANSFEREE = "bad leader transferee";
        CLUSTER_VERSION_UNAVAILABLE = "cluster version not found during downgrade";
        DOWNGRADE_IN_PROCESS = "cluster has a downgrade job in progress";
        NO_INFLIGHT_DOWNGRADE = "no inflight downgrade job";
    }
    OutOfRange {
        COMPACTED = "mvcc: required revision has been compacted";
        FUTURE_REVISION = "mvcc: required revision is a future revision";
        LEASE_TTL_TOO_LARGE = "too large lease TTL";
    }
    Unavailable {
        NO_LEADER = "no leader";
        LEADER_CHANGED = "leader changed";
        STOPPED = "server stopped";
        TIMEOUT = "request timed out";
        TIMEOUT_LEADER_FAIL = "request timed out, possibly due to previous leader failure";
        TIMEOUT_CONNECTION_LOST = "request timed out, possibly due to connection lost";
        TIMEOUT_WAIT_APPLIED_INDEX = "request timed out, waiting for the applied index took too long";
        UNHEALTHY = "unhealthy cluster";
    }
    DataLoss {
        CORRUPT = "corrupt cluster";
    }
    Unauthenticated {
        INVALID_AUTH_TOKEN = "invalid auth token";
    }
}

/// "too many requests" as it leaves the server; see the module's page.
pub const TOO_MANY_REQUESTS: Status = Status::new(Code::Unknown, "etcdserver: too many requests");
/// As [`TOO_MANY_REQUESTS`].
pub const MEMBER_NOT_ENOUGH_STARTED: Status =
    Status::new(Code::Unknown, "etcdserver: re-configuration failed due to not enough started members");
/// Leaves etcd unmapped.
pub const TIMEOUT_LEADER_TRANSFER: Status =
    Status::new(Code::Unknown, "etcdserver: request timed out, leader transfer took too long");
/// The caller's own deadline, in gRPC's words (etcd's list has it with a prefix that no server sends).
pub const DEADLINE_EXCEEDED: Status = Status::new(Code::DeadlineExceeded, "context deadline exceeded");
pub const RANGE_STREAM_SORT: Status =
    Status::new(Code::Unimplemented, "RangeStream does not support custom sort orders");
pub const RANGE_STREAM_FILTER: Status =
    Status::new(Code::Unimplemented, "RangeStream does not support revision filters");
/// Ours; see `budget`.
pub const IN_FLIGHT_EXHAUSTED: Status = Status::new(
    Code::ResourceExhausted,
    "etcdserver: requests and answers in flight hold all the memory they may; try again later, or ask for less",
);
pub const LEASE_NOT_PRIMARY: Status = Status::new(Code::Unknown, "not a primary lessor");

impl From<ApplyError> for Status {
    fn from(error: ApplyError) -> Self {
        match error {
            ApplyError::Compacted => COMPACTED,
            ApplyError::FutureRevision => FUTURE_REVISION,
            ApplyError::LeaseNotFound => LEASE_NOT_FOUND,
            ApplyError::LeaseExists => LEASE_EXISTS,
            ApplyError::LeaseTtlTooLarge => LEASE_TTL_TOO_LARGE,
            ApplyError::KeyNotFound => KEY_NOT_FOUND,
            ApplyError::Corrupt => CORRUPT,
            ApplyError::NoSpace => NO_SPACE,
            ApplyError::MemberExists => MEMBER_EXISTS,
            ApplyError::MemberNotFound => MEMBER_NOT_FOUND,
            ApplyError::PeerUrlExists => PEER_URL_EXISTS,
            ApplyError::MemberNotLearner => MEMBER_NOT_LEARNER,
            ApplyError::Auth(error) => error.into(),
            ApplyError::NotSupported => Status::not_yet_supported("this kind of request"),
        }
    }
}

/// etcd has neither a code nor its prefix for it.
pub const NO_PASSWORD_USER: Status =
    Status::new(Code::Unknown, "auth: authentication failed, password was given for no password user");

impl From<AuthError> for Status {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::RootUserNotExist => ROOT_USER_NOT_EXIST,
            AuthError::RootRoleNotExist => ROOT_ROLE_NOT_EXIST,
            AuthError::UserExists => USER_ALREADY_EXIST,
            AuthError::UserEmpty => USER_EMPTY,
            AuthError::UserNotFound => USER_NOT_FOUND,
            AuthError::RoleExists => ROLE_ALREADY_EXIST,
            AuthError::RoleNotFound => ROLE_NOT_FOUND,
            AuthError::RoleEmpty => ROLE_EMPTY,
            AuthError::AuthFailed => AUTH_FAILED,
            AuthError::PermissionNotGiven => PERMISSION_NOT_GIVEN,
            AuthError::PermissionDenied => PERMISSION_DENIED,
            AuthError::RoleNotGranted => ROLE_NOT_GRANTED,
            AuthError::PermissionNotGranted => PERMISSION_NOT_GRANTED,
            AuthError::NotEnabled => AUTH_NOT_ENABLED,
            AuthError::InvalidToken => INVALID_AUTH_TOKEN,
            AuthError::InvalidManagement => INVALID_AUTH_MGMT,
            AuthError::OldRevision => AUTH_OLD_REVISION,
            AuthError::NoPasswordUser => NO_PASSWORD_USER,
        }
    }
}

impl From<RequestError> for Status {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Apply(error) => error.into(),
            RequestError::TooManyRequests => TOO_MANY_REQUESTS,
            RequestError::NoLeader => NO_LEADER,
            RequestError::NotLeader { .. } => NOT_LEADER,
            RequestError::LeaderChanged => LEADER_CHANGED,
            RequestError::Timeout => TIMEOUT,
            RequestError::TimeoutLeaderFailure => TIMEOUT_LEADER_FAIL,
            RequestError::TimeoutConnectionLost => TIMEOUT_CONNECTION_LOST,
            RequestError::Stopped => STOPPED,
            RequestError::BadTransferee => BAD_LEADER_TRANSFEREE,
            RequestError::TransferTimeout => TIMEOUT_LEADER_TRANSFER,
            RequestError::Learner => NOT_SUPPORTED_FOR_LEARNER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The client library's own list (`api/v3rpc/rpctypes`), typed in apart from the table above.
    const EXPECTED: &[(u8, &[&str])] = &[
        (
            3,
            &[
                "key is not provided",
                "key not found",
                "value is provided",
                "lease is provided",
                "too many operations in txn request",
                "duplicate key given in txn request",
                "invalid client api version",
                "invalid sort option",
                "given member URLs are invalid",
                "request is too large",
                "user name is empty",
                "role name is empty",
                "authentication failed, invalid user ID or password",
                "permission not given",
                "invalid auth management",
                "revision of auth store is old",
                "wrong downgrade target version format",
                "invalid downgrade target version",
            ],
        ),
        (4, &["context deadline exceeded"]),
        (5, &["requested lease not found", "member not found"]),
        (7, &["permission denied"]),
        (8, &["mvcc: database space exceeded", "too many requests"]),
        (
            9,
            &[
                "lease already exists",
                "member ID already exist",
                "Peer URLs already exists",
                "re-configuration failed due to not enough started members",
                "can only promote a learner member",
                "can only promote a learner member which is in sync with leader",
                "too many learner members in cluster",
                "cluster ID mismatch",
                "root user does not exist",
                "root user does not have root role",
                "user name already exists",
                "user name not found",
                "role name already exists",
                "role name not found",
                "role is not granted to the user",
                "permission is not granted to the role",
                "authentication is not enabled",
                "not leader",
                "not capable",
                "rpc not supported for learner",
                "bad leader transferee",
                "cluster version not found during downgrade",
                "cluster has a downgrade job in progress",
                "no inflight downgrade job",
            ],
        ),
        (
            11,
            &[
                "mvcc: required revision has been compacted",
                "mvcc: required revision is a future revision",
                "too large lease TTL",
            ],
        ),
        (
            14,
            &[
                "no leader",
                "leader changed",
                "server stopped",
                "request timed out",
                "request timed out, possibly due to previous leader failure",
                "request timed out, possibly due to connection lost",
                "request timed out, waiting for the applied index took too long",
                "unhealthy cluster",
            ],
        ),
        (15, &["corrupt cluster"]),
        (16, &["invalid auth token"]),
        (1, &["watch canceled", "request canceled"]),
    ];

    #[test]
    fn the_table_is_etcds_list_word_for_word() {
        let mut expected: Vec<(u8, String)> = EXPECTED
            .iter()
            .flat_map(|(code, texts)| texts.iter().map(|text| (*code, format!("etcdserver: {text}"))))
            .collect();
        let mut got: Vec<(u8, String)> =
            ALL.iter().map(|status| (status.code as u8, status.message.to_string())).collect();
        expected.sort();
        got.sort();
        assert_eq!(expected.len(), 63);
        assert_eq!(got, expected);
    }

    #[test]
    fn two_errors_leave_the_server_with_another_code_than_listed() {
        for (sent, listed) in [
            (TOO_MANY_REQUESTS, TOO_MANY_REQUESTS_LISTED),
            (MEMBER_NOT_ENOUGH_STARTED, MEMBER_NOT_ENOUGH_STARTED_LISTED),
        ] {
            assert_eq!(sent.code, Code::Unknown);
            assert_eq!(sent.message, listed.message);
        }
        assert_eq!(Status::from(RequestError::TooManyRequests), TOO_MANY_REQUESTS);
    }

    #[test]
    fn every_error_from_below_keeps_its_words() {
        // Each Display below names its layer only; the prefix is the edge's.
        for error in [
            ApplyError::Compacted,
            ApplyError::FutureRevision,
            ApplyError::LeaseNotFound,
            ApplyError::LeaseExists,
            ApplyError::LeaseTtlTooLarge,
            ApplyError::KeyNotFound,
            ApplyError::Corrupt,
            ApplyError::NoSpace,
            ApplyError::MemberExists,
            ApplyError::MemberNotFound,
            ApplyError::PeerUrlExists,
            ApplyError::MemberNotLearner,
            AuthError::RootUserNotExist.into(),
            AuthError::RootRoleNotExist.into(),
            AuthError::UserExists.into(),
            AuthError::UserEmpty.into(),
            AuthError::UserNotFound.into(),
            AuthError::RoleExists.into(),
            AuthError::RoleNotFound.into(),
            AuthError::RoleEmpty.into(),
            AuthError::AuthFailed.into(),
            AuthError::PermissionNotGiven.into(),
            AuthError::PermissionDenied.into(),
            AuthError::RoleNotGranted.into(),
            AuthError::PermissionNotGranted.into(),
            AuthError::NotEnabled.into(),
            AuthError::InvalidToken.into(),
            AuthError::InvalidManagement.into(),
            AuthError::OldRevision.into(),
        ] {
            assert_eq!(Status::from(error).message, format!("etcdserver: {error}"));
        }
        for error in [
            RequestError::TooManyRequests,
            RequestError::NoLeader,
            RequestError::NotLeader { leader: 7 },
            RequestError::LeaderChanged,
            RequestError::Timeout,
            RequestError::TimeoutLeaderFailure,
            RequestError::TimeoutConnectionLost,
            RequestError::BadTransferee,
            RequestError::TransferTimeout,
            RequestError::Learner,
            RequestError::Stopped,
        ] {
            let text = format!("etcdserver: {error}");
            assert_eq!(Status::from(error).message, text);
        }
    }

    #[test]
    fn digits_are_the_codes_numbers() {
        for (number, code) in Code::ALL.iter().enumerate() {
            assert_eq!(*code as usize, number);
            assert_eq!(code.digits(), number.to_string());
        }
    }
}
