//! The client: one handle, cheap to clone, and every unary call of etcd as a method.

use dolmen_proto::{etcdserverpb as pb, v3electionpb, v3lockpb};

use crate::call::{Core, Retry};
use crate::config::Config;
use crate::error::Error;
use crate::range::{KeyValues, RangeIntake};
use crate::streaming::Streaming;

use std::time::Duration;

/// A handle on a cluster. Clones share connections and token.
///
/// # Which calls are made again
///
/// A call that certainly reached no server is sent to another one, whatever it does; a call that only reads, too, when the
/// answer is `Unavailable`: a lost connection, no leader, a member that stops. A *write* that was on its way when the
/// connection broke is never made again, since nobody knows whether it happened: the caller gets `Unavailable`, or
/// `context deadline exceeded` when its time was up first, and has to look. Granting and revoking leases, alarms and moves
/// of the leader count as reads here, because doing them twice does no harm.
///
/// A token that the server does not take any more is renewed, and the call made again: it was refused, not done.
#[derive(Clone)]
pub struct Client {
    pub(crate) core: Core,
}

/// The unary calls: name, path, messages, and whether a repetition is harmless, as etcd's own client has it.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident $path:literal $request:ty => $response:ty, $retry:ident;)*) => {
        impl Client {
            $(
                $(#[$doc])*
                #[doc = concat!("\n\ngRPC: `", $path, "`.")]
                pub async fn $name(&self, request: $request) -> Result<$response, Error> {
                    self.core.unary($path, &request, Retry::$retry).await
                }
            )*
        }
    };
}

calls! {
    /// Key-values of a range.
    range "/etcdserverpb.KV/Range" pb::RangeRequest => pb::RangeResponse, Repeatable;
    /// Sets a key.
    put "/etcdserverpb.KV/Put" pb::PutRequest => pb::PutResponse, Once;
    /// Deletes a range.
    delete_range "/etcdserverpb.KV/DeleteRange" pb::DeleteRangeRequest => pb::DeleteRangeResponse, Once;
    /// Compares, then does one of two lists of operations.
    txn "/etcdserverpb.KV/Txn" pb::TxnRequest => pb::TxnResponse, Once;
    /// Drops the history up to a revision.
    compact "/etcdserverpb.KV/Compact" pb::CompactionRequest => pb::CompactionResponse, Once;

    /// Makes a lease. Repeated after a lost answer, the first one is left to expire.
    lease_grant "/etcdserverpb.Lease/LeaseGrant" pb::LeaseGrantRequest => pb::LeaseGrantResponse, Repeatable;
    /// Ends a lease and deletes its keys.
    lease_revoke "/etcdserverpb.Lease/LeaseRevoke" pb::LeaseRevokeRequest => pb::LeaseRevokeResponse, Repeatable;
    /// Remaining and granted seconds of a lease, and its keys. A TTL of -1: no such lease.
    lease_time_to_live "/etcdserverpb.Lease/LeaseTimeToLive" pb::LeaseTimeToLiveRequest => pb::LeaseTimeToLiveResponse, Repeatable;
    /// All leases.
    lease_leases "/etcdserverpb.Lease/LeaseLeases" pb::LeaseLeasesRequest => pb::LeaseLeasesResponse, Repeatable;

    /// Adds a member, or a learner.
    member_add "/etcdserverpb.Cluster/MemberAdd" pb::MemberAddRequest => pb::MemberAddResponse, Once;
    /// Removes a member.
    member_remove "/etcdserverpb.Cluster/MemberRemove" pb::MemberRemoveRequest => pb::MemberRemoveResponse, Once;
    /// Changes a member's peer URLs.
    member_update "/etcdserverpb.Cluster/MemberUpdate" pb::MemberUpdateRequest => pb::MemberUpdateResponse, Once;
    /// The members.
    member_list "/etcdserverpb.Cluster/MemberList" pb::MemberListRequest => pb::MemberListResponse, Repeatable;
    /// Makes a learner a voter.
    member_promote "/etcdserverpb.Cluster/MemberPromote" pb::MemberPromoteRequest => pb::MemberPromoteResponse, Once;

    /// Lists, raises or clears alarms.
    alarm "/etcdserverpb.Maintenance/Alarm" pb::AlarmRequest => pb::AlarmResponse, Repeatable;
    /// State of one member: use [`Client::at`].
    status "/etcdserverpb.Maintenance/Status" pb::StatusRequest => pb::StatusResponse, Repeatable;
    /// Gives free space of one member back: use [`Client::at`].
    defragment "/etcdserverpb.Maintenance/Defragment" pb::DefragmentRequest => pb::DefragmentResponse, Once;
    /// Hash of one member's whole store: use [`Client::at`].
    hash "/etcdserverpb.Maintenance/Hash" pb::HashRequest => pb::HashResponse, Repeatable;
    /// Hash of one member's key-values up to a revision: use [`Client::at`].
    hash_kv "/etcdserverpb.Maintenance/HashKV" pb::HashKvRequest => pb::HashKvResponse, Repeatable;
    /// Hands leadership over. Asked of the leader: use [`Client::at`].
    move_leader "/etcdserverpb.Maintenance/MoveLeader" pb::MoveLeaderRequest => pb::MoveLeaderResponse, Repeatable;
    /// Checks, begins or cancels a downgrade.
    downgrade "/etcdserverpb.Maintenance/Downgrade" pb::DowngradeRequest => pb::DowngradeResponse, Once;

    /// Switches authentication on.
    auth_enable "/etcdserverpb.Auth/AuthEnable" pb::AuthEnableRequest => pb::AuthEnableResponse, Once;
    /// Switches authentication off.
    auth_disable "/etcdserverpb.Auth/AuthDisable" pb::AuthDisableRequest => pb::AuthDisableResponse, Once;
    /// Is authentication on, and at which revision?
    auth_status "/etcdserverpb.Auth/AuthStatus" pb::AuthStatusRequest => pb::AuthStatusResponse, Once;
    /// A token for name and password. The client does this by itself for [`Config::user`].
    authenticate "/etcdserverpb.Auth/Authenticate" pb::AuthenticateRequest => pb::AuthenticateResponse, Once;
    /// Adds a user.
    user_add "/etcdserverpb.Auth/UserAdd" pb::AuthUserAddRequest => pb::AuthUserAddResponse, Once;
    /// Roles of a user.
    user_get "/etcdserverpb.Auth/UserGet" pb::AuthUserGetRequest => pb::AuthUserGetResponse, Repeatable;
    /// All users.
    user_list "/etcdserverpb.Auth/UserList" pb::AuthUserListRequest => pb::AuthUserListResponse, Repeatable;
    /// Deletes a user.
    user_delete "/etcdserverpb.Auth/UserDelete" pb::AuthUserDeleteRequest => pb::AuthUserDeleteResponse, Once;
    /// Changes a password.
    user_change_password "/etcdserverpb.Auth/UserChangePassword" pb::AuthUserChangePasswordRequest => pb::AuthUserChangePasswordResponse, Once;
    /// Grants a role to a user.
    user_grant_role "/etcdserverpb.Auth/UserGrantRole" pb::AuthUserGrantRoleRequest => pb::AuthUserGrantRoleResponse, Once;
    /// Takes a role from a user.
    user_revoke_role "/etcdserverpb.Auth/UserRevokeRole" pb::AuthUserRevokeRoleRequest => pb::AuthUserRevokeRoleResponse, Once;
    /// Adds a role.
    role_add "/etcdserverpb.Auth/RoleAdd" pb::AuthRoleAddRequest => pb::AuthRoleAddResponse, Once;
    /// Permissions of a role.
    role_get "/etcdserverpb.Auth/RoleGet" pb::AuthRoleGetRequest => pb::AuthRoleGetResponse, Repeatable;
    /// All roles.
    role_list "/etcdserverpb.Auth/RoleList" pb::AuthRoleListRequest => pb::AuthRoleListResponse, Repeatable;
    /// Deletes a role.
    role_delete "/etcdserverpb.Auth/RoleDelete" pb::AuthRoleDeleteRequest => pb::AuthRoleDeleteResponse, Once;
    /// Grants a range of keys to a role.
    role_grant_permission "/etcdserverpb.Auth/RoleGrantPermission" pb::AuthRoleGrantPermissionRequest => pb::AuthRoleGrantPermissionResponse, Once;
    /// Takes a range of keys from a role.
    role_revoke_permission "/etcdserverpb.Auth/RoleRevokePermission" pb::AuthRoleRevokePermissionRequest => pb::AuthRoleRevokePermissionResponse, Once;

    /// The server's own lock service; [`crate::Mutex`] does the same from this side.
    lock "/v3lockpb.Lock/Lock" v3lockpb::LockRequest => v3lockpb::LockResponse, Once;
    unlock "/v3lockpb.Lock/Unlock" v3lockpb::UnlockRequest => v3lockpb::UnlockResponse, Once;
    /// The server's own election service; [`crate::Election`] does the same from this side.
    campaign "/v3electionpb.Election/Campaign" v3electionpb::CampaignRequest => v3electionpb::CampaignResponse, Once;
    proclaim "/v3electionpb.Election/Proclaim" v3electionpb::ProclaimRequest => v3electionpb::ProclaimResponse, Once;
    leader "/v3electionpb.Election/Leader" v3electionpb::LeaderRequest => v3electionpb::LeaderResponse, Repeatable;
    resign "/v3electionpb.Election/Resign" v3electionpb::ResignRequest => v3electionpb::ResignResponse, Once;
}

impl Client {
    /// A client of these endpoints. No connection is made yet, but for a user: its token is asked for at once, within
    /// [`Config::dial_timeout`].
    ///
    /// # Errors
    /// No endpoint; `user` and `token` together; limits that contradict each other; and the login's own errors, of which
    /// `context deadline exceeded` means that no endpoint answered in time.
    pub async fn connect(config: Config) -> Result<Client, Error> {
        Ok(Client { core: Core::connect(config).await? })
    }

    /// The endpoints, as configured.
    pub fn endpoints(&self) -> &[String] {
        self.core.endpoints()
    }

    /// The same client, speaking to this endpoint alone: for calls that ask one member about itself. It has a connection of
    /// its own, and the token in common.
    ///
    /// # Errors
    /// An empty endpoint. One that makes no sense is told when it is dialed.
    pub fn at(&self, endpoint: &str) -> Result<Client, Error> {
        Ok(Client { core: self.core.at(endpoint)? })
    }

    /// The same client, each of its calls bounded in time, with all attempts together. `None`: unbounded. Streams of answers
    /// are bounded as a whole; watches and keep-alives never.
    pub fn with_timeout(&self, limit: Option<Duration>) -> Client {
        Client { core: self.core.with_timeout(limit) }
    }

    /// The same client, whose calls are refused by a member that sees no leader (`etcdserver: no leader`) rather than left
    /// waiting. For watches and keep-alives: they end when the leader is lost for a while.
    pub fn with_require_leader(&self) -> Client {
        Client { core: self.core.with_require_leader() }
    }

    /// Key-values of a range, handed to `to` one by one while they come: for large ranges, which then never lie in memory as a
    /// whole. They count only once this has returned, without an error; the answer returned has the rest, and no `kvs`.
    ///
    /// gRPC: `/etcdserverpb.KV/Range`, as [`Client::range`].
    ///
    /// # Errors
    /// As those of [`Client::range`], also after some key-values: a status comes last.
    pub async fn range_into(
        &self,
        request: pb::RangeRequest,
        to: &mut (dyn KeyValues + Send),
    ) -> Result<pb::RangeResponse, Error> {
        let mut intake = RangeIntake::new(to);
        self.core.unary_into("/etcdserverpb.KV/Range", &request, Retry::Repeatable, &mut intake).await?;
        intake.finish()
    }

    /// A range in pieces, for answers too large for one message.
    ///
    /// # Errors
    /// Those told before the first piece; later ones come from [`Streaming::next`].
    pub async fn range_stream(&self, request: pb::RangeRequest) -> Result<Streaming<pb::RangeStreamResponse>, Error> {
        self.core.server_stream("/etcdserverpb.KV/RangeStream", &request).await
    }

    /// A copy of one member's store, in chunks: use [`Client::at`]. Its last 32 bytes are the SHA-256 of all before.
    ///
    /// # Errors
    /// Those told before the first chunk; later ones come from [`Streaming::next`].
    pub async fn snapshot(&self) -> Result<Streaming<pb::SnapshotResponse>, Error> {
        self.core.server_stream("/etcdserverpb.Maintenance/Snapshot", &pb::SnapshotRequest {}).await
    }

    /// What leaders of the server's own election service announce.
    ///
    /// # Errors
    /// Those told before the first announcement.
    pub async fn observe(
        &self,
        request: v3electionpb::LeaderRequest,
    ) -> Result<Streaming<v3electionpb::LeaderResponse>, Error> {
        self.core.server_stream("/v3electionpb.Election/Observe", &request).await
    }
}
