//! Every method of the client port: its path, who answers it, how, who may call it, and where the JSON gateway has it.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use dolmen_proto::etcdserverpb::{
    AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest, AuthRoleGrantPermissionRequest,
    AuthRoleRevokePermissionRequest, AuthUserDeleteRequest, AuthUserGrantRoleRequest, AuthUserRevokeRoleRequest,
    CompactionRequest, DeleteRangeRequest, LeaseRevokeRequest, PutRequest,
};

use crate::answer::{Answer, Answers};
use crate::call::Call;
use crate::dispatch::{absent, absent_stream, wrong_kind};
use crate::frame::MessageReader;
use crate::propose::propose;
use crate::status::Status;
use crate::{cluster, health, kv, lease, maintenance, users, watch};

/// How many messages go which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Unary,
    ServerStream,
    BidiStream,
}

impl Kind {
    /// As metrics label it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Unary => "unary",
            Kind::ServerStream => "server_stream",
            Kind::BidiStream => "bidi_stream",
        }
    }
}

/// Who may call a method when the cluster has users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Anybody.
    Anyone,
    /// Whoever has a name.
    User,
    /// Whoever has a name, for what the keys that the request names allow: its handler looks.
    Keys,
    /// The role `root`.
    Root,
}

/// What is known of a method before it is called.
#[derive(Debug)]
pub struct Info {
    pub path: &'static str,
    pub service: &'static str,
    pub name: &'static str,
    pub kind: Kind,
    pub access: Access,
    /// Paths of the JSON gateway; the first is the usual one.
    pub routes: &'static [&'static str],
}

impl Info {
    /// More than one message goes one of the ways.
    pub fn is_stream(&self) -> bool {
        self.kind != Kind::Unary
    }
}

/// The future of a call that is rare: boxed, so that the future of a hot call stays small.
type Rare<'a, T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send + 'a>>;

/// By how a row of the table names its handler.
///
/// * `hot`: unary, called as it is.
/// * `rare`: unary, boxed.
/// * `answers`: one message in, a stream out.
/// * `talks`: streams both ways.
macro_rules! by_form {
    (kind hot) => {
        Kind::Unary
    };
    (kind rare) => {
        Kind::Unary
    };
    (kind answers) => {
        Kind::ServerStream
    };
    (kind talks) => {
        Kind::BidiStream
    };
    (unary hot $handler:path, $call:ident, $message:ident) => {
        $handler($call, $message).await
    };
    (unary rare $handler:path, $call:ident, $message:ident) => {{
        let rare: Rare<'_, Answer> = Box::pin($handler($call, $message));
        rare.await
    }};
    (unary $stream:ident $handler:path, $call:ident, $message:ident) => {{
        drop($message);
        Err(wrong_kind())
    }};
    (stream answers $handler:path, $call:ident, $requests:ident, $answers:ident) => {{
        let (message, received) = $requests.only().await;
        $answers.received(received);
        let rare: Rare<'_, ()> = Box::pin($handler($call, message?, $answers));
        rare.await
    }};
    (stream talks $handler:path, $call:ident, $requests:ident, $answers:ident) => {{
        let rare: Rare<'_, ()> = Box::pin($handler($call, $requests, $answers));
        rare.await
    }};
    (stream $unary:ident $handler:path, $call:ident, $requests:ident, $answers:ident) => {{
        drop($requests);
        Err(wrong_kind())
    }};
}

macro_rules! methods {
    ($($service:literal {
        $($method:ident $name:literal = $form:ident $handler:path, $access:ident, [$($route:literal),*];)*
    })*) => {
        /// A method of the client port.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Method { $($($method,)*)* }

        /// In the order of [`Method`]'s variants.
        pub static METHODS: &[Info] = &[$($(Info {
            path: concat!("/", $service, "/", $name),
            service: $service,
            name: $name,
            kind: by_form!(kind $form),
            access: Access::$access,
            routes: &[$($route),*],
        },)*)*];

        impl Method {
            /// Finds a method by its request path.
            pub fn find(path: &str) -> Option<Self> {
                match path {
                    $($(concat!("/", $service, "/", $name) => Some(Method::$method),)*)*
                    _ => None,
                }
            }

            /// Answers a unary call: message in, message out.
            ///
            /// # Errors
            /// The handler's.
            pub(crate) async fn unary(call: &Call, message: Bytes) -> Result<Answer, Status> {
                match call.method {
                    $($(Method::$method => by_form!(unary $form $handler, call, message),)*)*
                }
            }

            /// Answers a streaming call.
            ///
            /// # Errors
            /// The handler's.
            pub(crate) async fn stream(call: &Call, mut requests: MessageReader, answers: &Answers) -> Result<(), Status> {
                match call.method {
                    $($(Method::$method => by_form!(stream $form $handler, call, requests, answers),)*)*
                }
            }
        }
    };
}

methods! {
    "etcdserverpb.KV" {
        Range "Range" = hot kv::range, Keys, ["/v3/kv/range"];
        Put "Put" = hot propose::<PutRequest>, Keys, ["/v3/kv/put"];
        Txn "Txn" = hot kv::txn, Keys, ["/v3/kv/txn"];
        DeleteRange "DeleteRange" = hot propose::<DeleteRangeRequest>, Keys, ["/v3/kv/deleterange"];
        Compact "Compact" = rare propose::<CompactionRequest>, Root, ["/v3/kv/compaction"];
        RangeStream "RangeStream" = answers kv::range_stream, Keys, [];
    }
    "etcdserverpb.Watch" {
        Watch "Watch" = talks watch::watch, Keys, ["/v3/watch"];
    }
    "etcdserverpb.Lease" {
        LeaseGrant "LeaseGrant" = rare lease::grant, User, ["/v3/lease/grant"];
        LeaseRevoke "LeaseRevoke" = rare propose::<LeaseRevokeRequest>, User,
            ["/v3/lease/revoke", "/v3/kv/lease/revoke"];
        LeaseKeepAlive "LeaseKeepAlive" = talks lease::keep_alive, Keys, ["/v3/lease/keepalive"];
        LeaseTimeToLive "LeaseTimeToLive" = rare lease::time_to_live, User,
            ["/v3/lease/timetolive", "/v3/kv/lease/timetolive"];
        LeaseLeases "LeaseLeases" = rare lease::leases, Keys, ["/v3/lease/leases", "/v3/kv/lease/leases"];
    }
    "etcdserverpb.Cluster" {
        MemberAdd "MemberAdd" = rare absent, Root, ["/v3/cluster/member/add"];
        MemberRemove "MemberRemove" = rare absent, Root, ["/v3/cluster/member/remove"];
        MemberUpdate "MemberUpdate" = rare absent, Root, ["/v3/cluster/member/update"];
        MemberList "MemberList" = rare cluster::member_list, User, ["/v3/cluster/member/list"];
        MemberPromote "MemberPromote" = rare absent, Root, ["/v3/cluster/member/promote"];
    }
    "etcdserverpb.Maintenance" {
        Alarm "Alarm" = rare maintenance::alarm, User, ["/v3/maintenance/alarm"];
        Status "Status" = rare maintenance::status, User, ["/v3/maintenance/status"];
        Defragment "Defragment" = rare maintenance::defragment, Root, ["/v3/maintenance/defragment"];
        Hash "Hash" = rare maintenance::hash, Root, ["/v3/maintenance/hash"];
        HashKv "HashKV" = rare maintenance::hash_kv, Root, ["/v3/maintenance/hashkv"];
        Snapshot "Snapshot" = answers maintenance::snapshot, Root, ["/v3/maintenance/snapshot"];
        MoveLeader "MoveLeader" = rare maintenance::move_leader, Root, ["/v3/maintenance/transfer-leadership"];
        Downgrade "Downgrade" = rare absent, Root, ["/v3/maintenance/downgrade"];
    }
    "etcdserverpb.Auth" {
        AuthEnable "AuthEnable" = rare propose::<AuthEnableRequest>, Root, ["/v3/auth/enable"];
        AuthDisable "AuthDisable" = rare propose::<AuthDisableRequest>, Root, ["/v3/auth/disable"];
        AuthStatus "AuthStatus" = rare users::auth_status, Anyone, ["/v3/auth/status"];
        Authenticate "Authenticate" = rare users::authenticate, Anyone, ["/v3/auth/authenticate"];
        UserAdd "UserAdd" = rare users::user_add, Root, ["/v3/auth/user/add"];
        UserGet "UserGet" = rare users::user_get, User, ["/v3/auth/user/get"];
        UserList "UserList" = rare users::user_list, Root, ["/v3/auth/user/list"];
        UserDelete "UserDelete" = rare propose::<AuthUserDeleteRequest>, Root, ["/v3/auth/user/delete"];
        UserChangePassword "UserChangePassword" = rare users::user_change_password, Root, ["/v3/auth/user/changepw"];
        UserGrantRole "UserGrantRole" = rare propose::<AuthUserGrantRoleRequest>, Root, ["/v3/auth/user/grant"];
        UserRevokeRole "UserRevokeRole" = rare propose::<AuthUserRevokeRoleRequest>, Root, ["/v3/auth/user/revoke"];
        RoleAdd "RoleAdd" = rare propose::<AuthRoleAddRequest>, Root, ["/v3/auth/role/add"];
        RoleGet "RoleGet" = rare users::role_get, User, ["/v3/auth/role/get"];
        RoleList "RoleList" = rare users::role_list, Root, ["/v3/auth/role/list"];
        RoleDelete "RoleDelete" = rare propose::<AuthRoleDeleteRequest>, Root, ["/v3/auth/role/delete"];
        RoleGrantPermission "RoleGrantPermission" = rare propose::<AuthRoleGrantPermissionRequest>, Root, ["/v3/auth/role/grant"];
        RoleRevokePermission "RoleRevokePermission" = rare propose::<AuthRoleRevokePermissionRequest>, Root, ["/v3/auth/role/revoke"];
    }
    "v3lockpb.Lock" {
        Lock "Lock" = rare absent, Keys, ["/v3/lock/lock"];
        Unlock "Unlock" = rare absent, Keys, ["/v3/lock/unlock"];
    }
    "v3electionpb.Election" {
        Campaign "Campaign" = rare absent, Keys, ["/v3/election/campaign"];
        Proclaim "Proclaim" = rare absent, Keys, ["/v3/election/proclaim"];
        Leader "Leader" = rare absent, Keys, ["/v3/election/leader"];
        Observe "Observe" = answers absent_stream, Keys, ["/v3/election/observe"];
        Resign "Resign" = rare absent, Keys, ["/v3/election/resign"];
    }
    "grpc.health.v1.Health" {
        HealthCheck "Check" = rare health::check, Anyone, [];
        HealthWatch "Watch" = answers health::watch, Anyone, [];
    }
}

impl Method {
    pub fn info(self) -> &'static Info {
        &METHODS[self as usize]
    }

    /// It says how the member and its cluster are, or changes that, and answers nothing out of the key space.
    pub fn is_for_inspection(self) -> bool {
        !matches!(
            self.info().service,
            "etcdserverpb.KV" | "etcdserverpb.Watch" | "etcdserverpb.Lease" | "v3lockpb.Lock" | "v3electionpb.Election"
        )
    }
}

/// Whether the JSON gateway has a method at `path`.
pub fn is_route(path: &str) -> bool {
    METHODS.iter().any(|info| info.routes.contains(&path))
}

/// Whether any method belongs to `service`.
pub fn is_service(service: &str) -> bool {
    METHODS.iter().any(|info| info.service == service)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_finds_its_own_method() {
        for (index, info) in METHODS.iter().enumerate() {
            let method = Method::find(info.path).unwrap();
            assert_eq!(method as usize, index);
            assert!(std::ptr::eq(method.info(), info));
        }
        assert_eq!(Method::find("/etcdserverpb.KV/Nope"), None);
        assert_eq!(METHODS.len(), 49 + 2);
    }

    #[test]
    fn the_gateway_has_each_method_but_health_and_streamed_ranges_once() {
        let mut routes: Vec<&str> = METHODS.iter().flat_map(|info| info.routes).copied().collect();
        let all = routes.len();
        routes.sort_unstable();
        routes.dedup();
        assert_eq!(routes.len(), all);
        for info in METHODS {
            let none = info.service == "grpc.health.v1.Health" || info.name == "RangeStream";
            assert_eq!(info.routes.is_empty(), none, "{}", info.path);
        }
        assert!(is_route("/v3/kv/lease/revoke") && !is_route("/v3/kv/nope"));
    }

    #[test]
    fn who_changes_the_cluster_is_root() {
        for method in [Method::MemberAdd, Method::UserAdd, Method::Snapshot, Method::Compact, Method::Downgrade] {
            assert_eq!(method.info().access, Access::Root);
        }
        assert_eq!(Method::Authenticate.info().access, Access::Anyone);
    }
}
