//! Users: which of their requests an entry may carry out, and the changes of users, roles and permissions themselves.

use dolmen_auth::{Access, Auth, AuthError, Change, Identity, Keys, Outcome, Record, RecordTable};
use dolmen_env::Mono;
use dolmen_lease::Lessor;
use dolmen_proto::etcdserverpb::{InternalRaftRequest, RequestHeader};
use dolmen_revlog::{Table, TableOp, Tables};
use dolmen_types::{Index, LeaseId};

use crate::apply::Command;
use crate::{ApplyError, Machine};

/// Takes the change of users, roles or permissions out of a request, if it asks for one.
pub(crate) fn change_of(request: &mut InternalRaftRequest) -> Option<Change> {
    if let Some(login) = request.authenticate.take() {
        return Some(Change::Authenticate(login));
    }
    if request.auth_enable.take().is_some() {
        return Some(Change::Enable);
    }
    if request.auth_disable.take().is_some() {
        return Some(Change::Disable);
    }
    (request.auth_user_add.take().map(Change::UserAdd))
        .or_else(|| request.auth_user_delete.take().map(Change::UserDelete))
        .or_else(|| request.auth_user_change_password.take().map(Change::UserChangePassword))
        .or_else(|| request.auth_user_grant_role.take().map(Change::UserGrantRole))
        .or_else(|| request.auth_user_revoke_role.take().map(Change::UserRevokeRole))
        .or_else(|| request.auth_role_add.take().map(Change::RoleAdd))
        .or_else(|| request.auth_role_delete.take().map(Change::RoleDelete))
        .or_else(|| request.auth_role_grant_permission.take().map(Change::RoleGrantPermission))
        .or_else(|| request.auth_role_revoke_permission.take().map(Change::RoleRevokePermission))
}

/// What etcd's members send through the log to read users and roles, and what changes nothing on any member.
pub(crate) fn only_reads(request: &InternalRaftRequest) -> bool {
    request.auth_status.is_some()
        || request.auth_user_get.is_some()
        || request.auth_user_list.is_some()
        || request.auth_role_get.is_some()
        || request.auth_role_list.is_some()
}

/// Reads users, roles and whether they count from the store's tables.
pub(crate) fn load(tables: &Tables) -> Result<Auth, dolmen_auth::LoadError> {
    let values = |table| tables.iter(table).map(|(_, value)| value);
    Auth::load(tables.iter(Table::Auth), values(Table::AuthUsers), values(Table::AuthRoles))
}

/// Whose an entry is, as its header says.
pub(crate) fn identity(header: RequestHeader) -> Option<Identity> {
    let someone = !header.username.is_empty() || header.auth_revision != 0;
    someone.then_some(Identity { user: header.username, revision: header.auth_revision })
}

struct LeaseKeys<'a>(&'a Lessor);

impl Keys for LeaseKeys<'_> {
    fn all(&self, lease: LeaseId, look: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.all_keys(lease, look)
    }
}

impl Machine {
    /// Whether all keys of a lease, or of all leases for `None`, may be read or written; for the door, which does not know
    /// which keys hang on which lease. Looks at each of these keys.
    ///
    /// # Errors
    /// Nobody asks; not permitted.
    pub fn check_lease(&self, who: Option<&Identity>, lease: Option<LeaseId>, access: Access) -> Result<(), AuthError> {
        self.auth.check_known(who)?;
        if self.auth.check_admin(who).is_ok() {
            return Ok(());
        }
        let leases = LeaseKeys(&self.lessor);
        match lease {
            Some(lease) => self.auth.check_lease(who, lease, access, &leases),
            None => {
                self.lessor.list().into_iter().try_for_each(|lease| self.auth.check_lease(who, lease, access, &leases))
            }
        }
    }

    /// Whether the user whom the header names may do this, by the users and permissions of this moment: what the door
    /// permitted may have been revoked by an entry in between.
    pub(crate) fn authorise(&self, who: Option<&Identity>, command: &Command) -> Result<(), ApplyError> {
        let (auth, leases) = (&self.auth, LeaseKeys(&self.lessor));
        match command {
            Command::Put(put) => auth.check_put(who, put, &leases)?,
            Command::DeleteRange(delete) => auth.check_delete(who, delete)?,
            Command::Txn(txn) => auth.check_txn(who, txn, &leases)?,
            Command::LeaseRevoke(revoke) => auth.check_lease(who, revoke.id, Access::Write, &leases)?,
            // Changes of users check by themselves. What else there is, the door alone decides, as in etcd: grants and
            // compactions there, and the rest is members' own.
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn change_users(
        &mut self,
        who: Option<&Identity>,
        change: Change,
        index: Index,
        now: Mono,
    ) -> Result<Outcome, ApplyError> {
        let mut records = Vec::new();
        let outcome = self.auth.apply(who, change, index, now, &self.tokens, &mut records)?;
        self.ops.extend(records.into_iter().map(|Record { table, key, value }: Record| {
            let table = match table {
                RecordTable::Auth => Table::Auth,
                RecordTable::Users => Table::AuthUsers,
                RecordTable::Roles => Table::AuthRoles,
            };
            TableOp { table, key, value }
        }));
        Ok(outcome)
    }
}
