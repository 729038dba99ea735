//! Every method of the client port, by path.

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

/// What is known of a method before it is called.
#[derive(Debug)]
pub struct Info {
    pub path: &'static str,
    pub service: &'static str,
    pub name: &'static str,
    pub kind: Kind,
}

macro_rules! methods {
    ($($method:ident = $kind:ident $service:literal $name:literal;)*) => {
        /// A method of the client port.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Method { $($method,)* }

        /// In the order of [`Method`]'s variants.
        pub static METHODS: &[Info] = &[$(Info {
            path: concat!("/", $service, "/", $name),
            service: $service,
            name: $name,
            kind: Kind::$kind,
        },)*];

        impl Method {
            /// Finds a method by its request path.
            pub fn find(path: &str) -> Option<Self> {
                match path {
                    $(concat!("/", $service, "/", $name) => Some(Method::$method),)*
                    _ => None,
                }
            }
        }
    };
}

methods! {
    Range = Unary "etcdserverpb.KV" "Range";
    Put = Unary "etcdserverpb.KV" "Put";
    Txn = Unary "etcdserverpb.KV" "Txn";
    DeleteRange = Unary "etcdserverpb.KV" "DeleteRange";
    Compact = Unary "etcdserverpb.KV" "Compact";
    RangeStream = ServerStream "etcdserverpb.KV" "RangeStream";
    Watch = BidiStream "etcdserverpb.Watch" "Watch";
    LeaseGrant = Unary "etcdserverpb.Lease" "LeaseGrant";
    LeaseRevoke = Unary "etcdserverpb.Lease" "LeaseRevoke";
    LeaseKeepAlive = BidiStream "etcdserverpb.Lease" "LeaseKeepAlive";
    LeaseTimeToLive = Unary "etcdserverpb.Lease" "LeaseTimeToLive";
    LeaseLeases = Unary "etcdserverpb.Lease" "LeaseLeases";
    MemberAdd = Unary "etcdserverpb.Cluster" "MemberAdd";
    MemberRemove = Unary "etcdserverpb.Cluster" "MemberRemove";
    MemberUpdate = Unary "etcdserverpb.Cluster" "MemberUpdate";
    MemberList = Unary "etcdserverpb.Cluster" "MemberList";
    MemberPromote = Unary "etcdserverpb.Cluster" "MemberPromote";
    Alarm = Unary "etcdserverpb.Maintenance" "Alarm";
    Status = Unary "etcdserverpb.Maintenance" "Status";
    Defragment = Unary "etcdserverpb.Maintenance" "Defragment";
    Hash = Unary "etcdserverpb.Maintenance" "Hash";
    HashKv = Unary "etcdserverpb.Maintenance" "HashKV";
    Snapshot = ServerStream "etcdserverpb.Maintenance" "Snapshot";
    MoveLeader = Unary "etcdserverpb.Maintenance" "MoveLeader";
    Downgrade = Unary "etcdserverpb.Maintenance" "Downgrade";
    AuthEnable = Unary "etcdserverpb.Auth" "AuthEnable";
    AuthDisable = Unary "etcdserverpb.Auth" "AuthDisable";
    AuthStatus = Unary "etcdserverpb.Auth" "AuthStatus";
    Authenticate = Unary "etcdserverpb.Auth" "Authenticate";
    UserAdd = Unary "etcdserverpb.Auth" "UserAdd";
    UserGet = Unary "etcdserverpb.Auth" "UserGet";
    UserList = Unary "etcdserverpb.Auth" "UserList";
    UserDelete = Unary "etcdserverpb.Auth" "UserDelete";
    UserChangePassword = Unary "etcdserverpb.Auth" "UserChangePassword";
    UserGrantRole = Unary "etcdserverpb.Auth" "UserGrantRole";
    UserRevokeRole = Unary "etcdserverpb.Auth" "UserRevokeRole";
    RoleAdd = Unary "etcdserverpb.Auth" "RoleAdd";
    RoleGet = Unary "etcdserverpb.Auth" "RoleGet";
    RoleList = Unary "etcdserverpb.Auth" "RoleList";
    RoleDelete = Unary "etcdserverpb.Auth" "RoleDelete";
    RoleGrantPermission = Unary "etcdserverpb.Auth" "RoleGrantPermission";
    RoleRevokePermission = Unary "etcdserverpb.Auth" "RoleRevokePermission";
    Lock = Unary "v3lockpb.Lock" "Lock";
    Unlock = Unary "v3lockpb.Lock" "Unlock";
    Campaign = Unary "v3electionpb.Election" "Campaign";
    Proclaim = Unary "v3electionpb.Election" "Proclaim";
    Leader = Unary "v3electionpb.Election" "Leader";
    Observe = ServerStream "v3electionpb.Election" "Observe";
    Resign = Unary "v3electionpb.Election" "Resign";
    HealthCheck = Unary "grpc.health.v1.Health" "Check";
    HealthWatch = ServerStream "grpc.health.v1.Health" "Watch";
}

impl Method {
    pub fn info(self) -> &'static Info {
        &METHODS[self as usize]
    }
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
}
