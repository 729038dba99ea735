//! What the commands about members, endpoints, alarms and authentication print: which format can show which answer.

use dolmen_cli::Failure;
use dolmen_proto::etcdserverpb as pb;

use super::{Format, Printer, fields, fields_cluster, json, json_cluster, simple_cluster, table_cluster};

/// How one endpoint fared in `endpoint health`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointHealth {
    pub endpoint: String,
    pub health: bool,
    /// How long the trial read took, as Go spells durations; empty when no client could be made.
    pub took: String,
    /// Why it is unhealthy; empty: healthy.
    pub error: String,
}

/// An endpoint's own account of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointStatus {
    pub endpoint: String,
    pub status: pb::StatusResponse,
}

/// The hash of an endpoint's key-values.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointHash {
    pub endpoint: String,
    pub hash: pb::HashKvResponse,
}

/// The header of an answer that consists of one.
macro_rules! header_only {
    ($printer:expr, $response:expr, $simple:expr) => {{
        let (printer, r) = ($printer, $response);
        match printer.format() {
            Format::Simple => printer.show($simple),
            Format::Fields => printer.show(|out| fields::header(out, printer.hex(), r.header.as_ref())),
            Format::Json => printer.show(|out| json::line(out, json::header_only(r.header.as_ref()))),
            Format::Protobuf => printer.protobuf(r),
            Format::Table => Err(printer.unsupported()),
        }
    }};
}

/// # Errors
///
/// Every method: the format cannot show the answer, or stdout cannot be written.
impl Printer {
    /// `member add`.
    pub fn member_add(&self, r: &pb::MemberAddResponse) -> Result<(), Failure> {
        match self.format() {
            Format::Simple => self.show(|out| simple_cluster::member_add(out, r)),
            Format::Json => self.show(|out| json::line(out, json_cluster::member_add(self.hex(), r))),
            Format::Protobuf => self.protobuf(r),
            Format::Fields | Format::Table => Err(self.unsupported()),
        }
    }

    /// `member remove`; `id`: who was removed.
    pub fn member_remove(&self, id: u64, r: &pb::MemberRemoveResponse) -> Result<(), Failure> {
        let changed = || simple_cluster::member_changed(id, "removed from", r.header.as_ref());
        self.members(r, changed, r.header.as_ref(), &r.members)
    }

    /// `member update`; `id`: who was updated.
    pub fn member_update(&self, id: u64, r: &pb::MemberUpdateResponse) -> Result<(), Failure> {
        let changed = || simple_cluster::member_changed(id, "updated in", r.header.as_ref());
        self.members(r, changed, r.header.as_ref(), &r.members)
    }

    /// `member promote`; `id`: who was promoted.
    pub fn member_promote(&self, id: u64, r: &pb::MemberPromoteResponse) -> Result<(), Failure> {
        let changed = || simple_cluster::member_changed(id, "promoted in", r.header.as_ref());
        self.members(r, changed, r.header.as_ref(), &r.members)
    }

    fn members(
        &self,
        message: &impl prost::Message,
        simple: impl FnOnce() -> String,
        header: Option<&pb::ResponseHeader>,
        members: &[pb::Member],
    ) -> Result<(), Failure> {
        match self.format() {
            Format::Simple => self.show(|out| out.extend_from_slice(simple().as_bytes())),
            Format::Json => self.show(|out| json::line(out, json_cluster::members(self.hex(), header, members))),
            Format::Protobuf => self.protobuf(message),
            Format::Fields | Format::Table => Err(self.unsupported()),
        }
    }

    /// `member list`.
    pub fn member_list(&self, r: &pb::MemberListResponse) -> Result<(), Failure> {
        match self.format() {
            Format::Simple => self.show(|out| simple_cluster::rows(out, &table_cluster::member_rows(&r.members))),
            Format::Fields => self.show(|out| fields_cluster::member_list(out, self.hex(), r)),
            Format::Json => {
                self.show(|out| json::line(out, json_cluster::members(self.hex(), r.header.as_ref(), &r.members)))
            }
            Format::Protobuf => self.protobuf(r),
            Format::Table => self.show(|out| table_cluster::member_list(out, &r.members)),
        }
    }

    /// `endpoint health`: the healthy ones on stdout; in `simple` the others on stderr, in their places.
    pub fn endpoint_health(&self, list: &[EndpointHealth]) -> Result<(), Failure> {
        match self.format() {
            Format::Simple => simple_cluster::endpoint_health(list),
            Format::Fields => self.show(|out| fields_cluster::endpoint_health(out, list)),
            Format::Json => self.show(|out| json_cluster::endpoint_health(out, list)),
            Format::Table => self.show(|out| table_cluster::endpoint_health(out, list)),
            Format::Protobuf => Err(self.unsupported()),
        }
    }

    /// `endpoint status`.
    pub fn endpoint_status(&self, list: &[EndpointStatus]) -> Result<(), Failure> {
        match self.format() {
            Format::Simple => self.show(|out| simple_cluster::rows(out, &table_cluster::status_rows(list))),
            Format::Fields => self.show(|out| fields_cluster::endpoint_status(out, self.hex(), list)),
            Format::Json => self.show(|out| json_cluster::endpoint_status(out, list)),
            Format::Table => self.show(|out| table_cluster::endpoint_status(out, list)),
            Format::Protobuf => Err(self.unsupported()),
        }
    }

    /// `endpoint hashkv`.
    pub fn endpoint_hashkv(&self, list: &[EndpointHash]) -> Result<(), Failure> {
        match self.format() {
            Format::Simple => self.show(|out| simple_cluster::rows(out, &table_cluster::hash_rows(list))),
            Format::Fields => self.show(|out| fields_cluster::endpoint_hashkv(out, self.hex(), list)),
            Format::Json => self.show(|out| json_cluster::endpoint_hashkv(out, list)),
            Format::Table => self.show(|out| table_cluster::endpoint_hashkv(out, list)),
            Format::Protobuf => Err(self.unsupported()),
        }
    }

    /// `move-leader`; `from`, `to`: member ids.
    pub fn move_leader(&self, from: u64, to: u64, r: &pb::MoveLeaderResponse) -> Result<(), Failure> {
        match self.format() {
            Format::Simple => self.show(|out| simple_cluster::move_leader(out, from, to)),
            Format::Json => self.show(|out| json::line(out, json::header_only(r.header.as_ref()))),
            Format::Protobuf => self.protobuf(r),
            Format::Fields | Format::Table => Err(self.unsupported()),
        }
    }

    /// `downgrade validate`, `enable` and `cancel`; `verb`: which of them.
    pub fn downgrade(&self, verb: &str, r: &pb::DowngradeResponse) -> Result<(), Failure> {
        match self.format() {
            Format::Simple => self.show(|out| simple_cluster::downgrade(out, verb, r)),
            Format::Json => self.show(|out| json::line(out, json_cluster::downgrade(r))),
            Format::Protobuf => self.protobuf(r),
            Format::Fields | Format::Table => Err(self.unsupported()),
        }
    }

    /// `alarm list` and `alarm disarm`.
    pub fn alarm(&self, r: &pb::AlarmResponse) -> Result<(), Failure> {
        match self.format() {
            Format::Simple => self.show(|out| simple_cluster::alarms(out, &r.alarms)),
            Format::Fields => self.show(|out| fields_cluster::alarm(out, self.hex(), r)),
            Format::Json => self.show(|out| json::line(out, json_cluster::alarm(r))),
            Format::Protobuf => self.protobuf(r),
            Format::Table => Err(self.unsupported()),
        }
    }

    /// `auth status`.
    pub fn auth_status(&self, r: &pb::AuthStatusResponse) -> Result<(), Failure> {
        match self.format() {
            Format::Simple => self.show(|out| simple_cluster::auth_status(out, r)),
            Format::Json => self.show(|out| json::line(out, json_cluster::auth_status(r))),
            Format::Protobuf => self.protobuf(r),
            Format::Fields | Format::Table => Err(self.unsupported()),
        }
    }

    /// `role add`.
    pub fn role_add(&self, role: &[u8], r: &pb::AuthRoleAddResponse) -> Result<(), Failure> {
        header_only!(self, r, |out| simple_cluster::sentence(out, &[b"Role ", role, b" created"]))
    }

    /// `role delete`.
    pub fn role_delete(&self, role: &[u8], r: &pb::AuthRoleDeleteResponse) -> Result<(), Failure> {
        header_only!(self, r, |out| simple_cluster::sentence(out, &[b"Role ", role, b" deleted"]))
    }

    /// `role grant-permission`.
    pub fn role_grant_permission(&self, role: &[u8], r: &pb::AuthRoleGrantPermissionResponse) -> Result<(), Failure> {
        header_only!(self, r, |out| simple_cluster::sentence(out, &[b"Role ", role, b" updated"]))
    }

    /// `role revoke-permission`; `key` as typed, `end` as sent.
    pub fn role_revoke_permission(
        &self,
        role: &[u8],
        key: &[u8],
        end: &[u8],
        r: &pb::AuthRoleRevokePermissionResponse,
    ) -> Result<(), Failure> {
        header_only!(self, r, |out| simple_cluster::role_revoke_permission(out, role, key, end))
    }

    /// `role get`.
    pub fn role_get(&self, role: &[u8], r: &pb::AuthRoleGetResponse) -> Result<(), Failure> {
        match self.format() {
            Format::Simple => self.show(|out| simple_cluster::role_get(out, role, r)),
            Format::Fields => self.show(|out| fields_cluster::role_get(out, self.hex(), r)),
            Format::Json => self.show(|out| json::line(out, json_cluster::role_get(r))),
            Format::Protobuf => self.protobuf(r),
            Format::Table => Err(self.unsupported()),
        }
    }

    /// `role list`.
    pub fn role_list(&self, r: &pb::AuthRoleListResponse) -> Result<(), Failure> {
        match self.format() {
            Format::Simple => self.show(|out| simple_cluster::names(out, &r.roles)),
            Format::Fields => self.show(|out| fields_cluster::role_list(out, self.hex(), r)),
            Format::Json => self.show(|out| json::line(out, json_cluster::names("roles", r.header.as_ref(), &r.roles))),
            Format::Protobuf => self.protobuf(r),
            Format::Table => Err(self.unsupported()),
        }
    }

    /// `user add`.
    pub fn user_add(&self, user: &[u8], r: &pb::AuthUserAddResponse) -> Result<(), Failure> {
        header_only!(self, r, |out| simple_cluster::sentence(out, &[b"User ", user, b" created"]))
    }

    /// `user delete`.
    pub fn user_delete(&self, user: &[u8], r: &pb::AuthUserDeleteResponse) -> Result<(), Failure> {
        header_only!(self, r, |out| simple_cluster::sentence(out, &[b"User ", user, b" deleted"]))
    }

    /// `user passwd`.
    pub fn user_change_password(&self, r: &pb::AuthUserChangePasswordResponse) -> Result<(), Failure> {
        header_only!(self, r, |out| simple_cluster::sentence(out, &[b"Password updated"]))
    }

    /// `user grant-role`.
    pub fn user_grant_role(&self, user: &[u8], role: &[u8], r: &pb::AuthUserGrantRoleResponse) -> Result<(), Failure> {
        header_only!(self, r, |out| simple_cluster::sentence(out, &[b"Role ", role, b" is granted to user ", user]))
    }

    /// `user revoke-role`.
    pub fn user_revoke_role(
        &self,
        user: &[u8],
        role: &[u8],
        r: &pb::AuthUserRevokeRoleResponse,
    ) -> Result<(), Failure> {
        header_only!(self, r, |out| simple_cluster::sentence(out, &[b"Role ", role, b" is revoked from user ", user]))
    }

    /// `user get`.
    pub fn user_get(&self, user: &[u8], r: &pb::AuthUserGetResponse) -> Result<(), Failure> {
        match self.format() {
            Format::Simple => self.show(|out| simple_cluster::user_get(out, user, r)),
            Format::Json => self.show(|out| json::line(out, json_cluster::names("roles", r.header.as_ref(), &r.roles))),
            Format::Protobuf => self.protobuf(r),
            Format::Fields | Format::Table => Err(self.unsupported()),
        }
    }

    /// `user list`.
    pub fn user_list(&self, r: &pb::AuthUserListResponse) -> Result<(), Failure> {
        match self.format() {
            Format::Simple => self.show(|out| simple_cluster::names(out, &r.users)),
            Format::Json => self.show(|out| json::line(out, json_cluster::names("users", r.header.as_ref(), &r.users))),
            Format::Protobuf => self.protobuf(r),
            Format::Fields | Format::Table => Err(self.unsupported()),
        }
    }
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
