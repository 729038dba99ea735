//! Applying: what an entry of the log does to users, roles and permissions.

use bytes::Bytes;
use dolmen_env::Mono;
use dolmen_proto::authpb;
use dolmen_proto::etcdserverpb as pb;
use dolmen_types::Index;

use crate::password;
use crate::store::{Auth, ROOT, Record};
use crate::tokens::Tokens;
use crate::{AuthError, Identity};

/// A request of service `Auth` that changes something.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Enable,
    Disable,
    UserAdd(pb::AuthUserAddRequest),
    UserDelete(pb::AuthUserDeleteRequest),
    UserChangePassword(pb::AuthUserChangePasswordRequest),
    UserGrantRole(pb::AuthUserGrantRoleRequest),
    UserRevokeRole(pb::AuthUserRevokeRoleRequest),
    RoleAdd(pb::AuthRoleAddRequest),
    RoleDelete(pb::AuthRoleDeleteRequest),
    RoleGrantPermission(pb::AuthRoleGrantPermissionRequest),
    RoleRevokePermission(pb::AuthRoleRevokePermissionRequest),
    /// A login whose password the door has compared.
    Authenticate(pb::InternalAuthenticateRequest),
}

/// What a change answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// A login's simple token. Where tokens are signed, the door makes one of its own.
    Token(String),
}

impl Auth {
    /// Applies one change. `who` proposed it; `index` of its entry names a token. `now` decides only when `tokens` forgets.
    ///
    /// # Errors
    /// Refused; nothing has changed.
    pub fn apply(
        &mut self,
        who: Option<&Identity>,
        change: Change,
        index: Index,
        now: Mono,
        tokens: &Tokens,
        records: &mut Vec<Record>,
    ) -> Result<Outcome, AuthError> {
        if !matches!(change, Change::Authenticate(_)) {
            self.check_admin(who)?;
        }
        match change {
            Change::Enable => self.enable(tokens, records)?,
            Change::Disable => self.disable(tokens, records),
            Change::UserAdd(request) => self.user_add(request, records)?,
            Change::UserDelete(request) => {
                self.user_delete(&request.name, records)?;
                tokens.forget_user(&request.name);
            }
            Change::UserChangePassword(request) => {
                self.user_change_password(&request, records)?;
                tokens.forget_user(&request.name);
            }
            Change::UserGrantRole(request) => self.user_grant_role(&request, records)?,
            Change::UserRevokeRole(request) => self.user_revoke_role(&request, records)?,
            Change::RoleAdd(request) => self.role_add(&request.name, records)?,
            Change::RoleDelete(request) => self.role_delete(&request.role, records)?,
            Change::RoleGrantPermission(request) => self.role_grant(request, records)?,
            Change::RoleRevokePermission(request) => self.role_revoke(&request, records)?,
            Change::Authenticate(request) => return self.authenticate(&request, index, now, tokens),
        }
        Ok(Outcome::Done)
    }

    fn enable(&mut self, tokens: &Tokens, records: &mut Vec<Record>) -> Result<(), AuthError> {
        if self.is_enabled() {
            return Ok(());
        }
        let root = self.user(ROOT).ok_or(AuthError::RootUserNotExist)?;
        if !root.root {
            return Err(AuthError::RootRoleNotExist);
        }
        // Not a revision of its own, as in etcd: identities found while nobody was checked stay good.
        self.set_enabled(true, records);
        tokens.enable();
        Ok(())
    }

    fn disable(&mut self, tokens: &Tokens, records: &mut Vec<Record>) {
        if self.is_enabled() {
            self.set_enabled(false, records);
            self.bump(records);
            tokens.disable();
        }
    }

    fn user_add(&mut self, request: pb::AuthUserAddRequest, records: &mut Vec<Record>) -> Result<(), AuthError> {
        if request.name.is_empty() {
            return Err(AuthError::UserEmpty);
        }
        if self.user(&request.name).is_some() {
            return Err(AuthError::UserExists);
        }
        let options = request.options.unwrap_or_default();
        let password = if options.no_password {
            Bytes::new()
        } else {
            stored_password(&request.name, &request.password, &request.hashed_password)?
        };
        let name = Bytes::copy_from_slice(request.name.as_bytes());
        let user = authpb::User { name, password, roles: Vec::new(), options: Some(options) };
        self.put_user(&request.name, user, records);
        self.bump(records);
        Ok(())
    }

    fn user_delete(&mut self, name: &str, records: &mut Vec<Record>) -> Result<(), AuthError> {
        if self.is_enabled() && name == ROOT {
            return Err(AuthError::InvalidManagement);
        }
        if self.user(name).is_none() {
            return Err(AuthError::UserNotFound);
        }
        self.delete_user(name, records);
        self.bump(records);
        Ok(())
    }

    fn user_change_password(
        &mut self,
        request: &pb::AuthUserChangePasswordRequest,
        records: &mut Vec<Record>,
    ) -> Result<(), AuthError> {
        let user = self.user(&request.name).ok_or(AuthError::UserNotFound)?;
        let mut stored = user.stored.clone();
        stored.password = if user.has_no_password() {
            Bytes::new()
        } else {
            stored_password(&request.name, &request.password, &request.hashed_password)?
        };
        self.put_user(&request.name, stored, records);
        self.bump(records);
        Ok(())
    }

    fn user_grant_role(
        &mut self,
        request: &pb::AuthUserGrantRoleRequest,
        records: &mut Vec<Record>,
    ) -> Result<(), AuthError> {
        let mut stored = self.user(&request.user).ok_or(AuthError::UserNotFound)?.stored.clone();
        if request.role != ROOT && self.role(&request.role).is_none() {
            return Err(AuthError::RoleNotFound);
        }
        // A grant that changes nothing makes no revision.
        if let Err(at) = stored.roles.binary_search(&request.role) {
            stored.roles.insert(at, request.role.clone());
            self.put_user(&request.user, stored, records);
            self.bump(records);
        }
        Ok(())
    }

    fn user_revoke_role(
        &mut self,
        request: &pb::AuthUserRevokeRoleRequest,
        records: &mut Vec<Record>,
    ) -> Result<(), AuthError> {
        if self.is_enabled() && request.name == ROOT && request.role == ROOT {
            return Err(AuthError::InvalidManagement);
        }
        let mut stored = self.user(&request.name).ok_or(AuthError::UserNotFound)?.stored.clone();
        let had = stored.roles.len();
        stored.roles.retain(|role| *role != request.role);
        if stored.roles.len() == had {
            return Err(AuthError::RoleNotGranted);
        }
        self.put_user(&request.name, stored, records);
        self.bump(records);
        Ok(())
    }

    fn role_add(&mut self, name: &str, records: &mut Vec<Record>) -> Result<(), AuthError> {
        if name.is_empty() {
            return Err(AuthError::RoleEmpty);
        }
        if self.role(name).is_some() {
            return Err(AuthError::RoleExists);
        }
        let role = authpb::Role { name: Bytes::copy_from_slice(name.as_bytes()), key_permission: Vec::new() };
        self.put_role(name, Some(role), records);
        self.bump(records);
        Ok(())
    }

    fn role_delete(&mut self, name: &str, records: &mut Vec<Record>) -> Result<(), AuthError> {
        if self.is_enabled() && name == ROOT {
            return Err(AuthError::InvalidManagement);
        }
        if self.role(name).is_none() {
            return Err(AuthError::RoleNotFound);
        }
        let holders = self.holders(name);
        self.put_role(name, None, records);
        for mut stored in holders {
            stored.roles.retain(|role| role != name);
            let user = String::from_utf8_lossy(&stored.name).into_owned();
            self.put_user(&user, stored, records);
        }
        self.bump(records);
        Ok(())
    }

    fn role_grant(
        &mut self,
        request: pb::AuthRoleGrantPermissionRequest,
        records: &mut Vec<Record>,
    ) -> Result<(), AuthError> {
        let granted = request.perm.ok_or(AuthError::PermissionNotGiven)?;
        if !names_keys(&granted) {
            return Err(AuthError::InvalidManagement);
        }
        let mut role = self.role(&request.name).ok_or(AuthError::RoleNotFound)?.clone();
        let permissions = &mut role.key_permission;
        let same = |held: &authpb::Permission| held.key == granted.key && held.range_end == granted.range_end;
        // Looked at is the first of the key alone, as in etcd, whose members must agree with us on what is stored.
        let at = permissions.partition_point(|held| held.key < granted.key);
        match permissions.get_mut(at).filter(|held| same(held)) {
            Some(held) => held.perm_type = granted.perm_type,
            None => {
                permissions.push(granted);
                permissions.sort_by(|a, b| a.key.cmp(&b.key));
            }
        }
        self.put_role(&request.name, Some(role), records);
        self.bump(records);
        Ok(())
    }

    fn role_revoke(
        &mut self,
        request: &pb::AuthRoleRevokePermissionRequest,
        records: &mut Vec<Record>,
    ) -> Result<(), AuthError> {
        let mut role = self.role(&request.role).ok_or(AuthError::RoleNotFound)?.clone();
        let had = role.key_permission.len();
        role.key_permission.retain(|held| held.key != request.key || held.range_end != request.range_end);
        if role.key_permission.len() == had {
            return Err(AuthError::PermissionNotGranted);
        }
        self.put_role(&request.role, Some(role), records);
        self.bump(records);
        Ok(())
    }

    fn authenticate(
        &self,
        request: &pb::InternalAuthenticateRequest,
        index: Index,
        now: Mono,
        tokens: &Tokens,
    ) -> Result<Outcome, AuthError> {
        if !self.is_enabled() {
            return Err(AuthError::NotEnabled);
        }
        let user = self.user(&request.name).ok_or(AuthError::AuthFailed)?;
        if user.has_no_password() {
            return Err(AuthError::AuthFailed);
        }
        let token = format!("{}.{index}", request.simple_token);
        // A member that signs its tokens sends no prefix.
        if !request.simple_token.is_empty() {
            tokens.assign(&request.name, &token, now);
        }
        Ok(Outcome::Token(token))
    }
}

fn stored_password(name: &str, password: &str, hashed: &str) -> Result<Bytes, AuthError> {
    if !password.is_empty() && hashed.is_empty() {
        return password::hash_of_old_entry(name, password).ok_or(AuthError::NoPasswordUser);
    }
    password::decode(hashed).ok_or(AuthError::NoPasswordUser)
}

/// Whether a permission names keys at all: not the empty one, and not a range without any.
fn names_keys(permission: &authpb::Permission) -> bool {
    let (key, end) = (&permission.key, permission.range_end.as_ref());
    !key.is_empty() && (end.is_empty() || end == [0] || key.as_ref() < end)
}
