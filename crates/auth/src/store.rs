//! The state: users, roles, whether anybody is checked, and the auth revision.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_proto::authpb;
use prost::Message;

use crate::permission::Permissions;
use crate::{AuthError, Password};

/// The user that authentication needs, and the role that may do everything.
pub const ROOT: &str = "root";

const ENABLED: &[u8] = b"authEnabled";
const REVISION: &[u8] = b"authRevision";

/// Who asks, as the door found out, and the auth revision it looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub user: String,
    pub revision: u64,
}

/// The tables that hold the state; each is one of etcd's buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordTable {
    /// `auth`
    Auth,
    /// `authUsers`
    Users,
    /// `authRoles`
    Roles,
}

/// One change of a table; `None` deletes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub table: RecordTable,
    pub key: Bytes,
    pub value: Option<Bytes>,
}

/// A table that holds what no release writes.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("user {0:?} cannot be read")]
    User(Bytes),
    #[error("role {0:?} cannot be read")]
    Role(Bytes),
    #[error("the auth revision has {0} bytes instead of 8")]
    Revision(usize),
}

#[derive(Debug)]
pub(crate) struct User {
    pub(crate) stored: authpb::User,
    /// Merged over `stored.roles`; made anew whenever one of these changes.
    pub(crate) permissions: Permissions,
    pub(crate) root: bool,
}

/// Users, roles and permissions. A copy shares all of them, so publishing one costs two counters; the first change after that
/// copies the two maps, one pointer an entry.
///
/// Invariant: each user's `permissions` are those of its roles as they are in `roles`.
#[derive(Clone, Debug)]
pub struct Auth {
    enabled: bool,
    /// From 1; one more for each change of a user, a role or a permission, and for switching off.
    revision: u64,
    users: Arc<BTreeMap<String, Arc<User>>>,
    roles: Arc<BTreeMap<String, Arc<authpb::Role>>>,
}

impl Default for Auth {
    fn default() -> Self {
        Self { enabled: false, revision: 1, users: Arc::default(), roles: Arc::default() }
    }
}

impl Auth {
    /// Reads the three tables.
    ///
    /// # Errors
    /// One holds what no release writes.
    pub fn load<'a>(
        auth: impl IntoIterator<Item = (&'a Bytes, &'a Bytes)>,
        users: impl IntoIterator<Item = &'a Bytes>,
        roles: impl IntoIterator<Item = &'a Bytes>,
    ) -> Result<Self, LoadError> {
        let mut loaded = Self::default();
        for (key, value) in auth {
            match key.as_ref() {
                ENABLED => loaded.enabled = value.as_ref() == [1],
                REVISION => {
                    let bytes = value.as_ref().try_into().map_err(|_| LoadError::Revision(value.len()))?;
                    // 0 stands in directories of etcd that never had a user; it makes a 1 of it at its start, too.
                    loaded.revision = u64::from_be_bytes(bytes).max(1);
                }
                _ => {}
            }
        }
        let mut by_name = BTreeMap::new();
        for bytes in roles {
            let role = authpb::Role::decode(bytes.clone()).map_err(|_| LoadError::Role(bytes.clone()))?;
            let name = str::from_utf8(&role.name).map_err(|_| LoadError::Role(role.name.clone()))?.to_owned();
            by_name.insert(name, Arc::new(role));
        }
        loaded.roles = Arc::new(by_name);
        let mut by_name = BTreeMap::new();
        for bytes in users {
            let user = authpb::User::decode(bytes.clone()).map_err(|_| LoadError::User(bytes.clone()))?;
            let name = str::from_utf8(&user.name).map_err(|_| LoadError::User(user.name.clone()))?.to_owned();
            by_name.insert(name, Arc::new(loaded.merged(user)));
        }
        loaded.users = Arc::new(by_name);
        Ok(loaded)
    }

    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Names of all users, in order.
    pub fn users(&self) -> Vec<String> {
        self.users.keys().cloned().collect()
    }

    /// Names of all roles, in order.
    pub fn roles(&self) -> Vec<String> {
        self.roles.keys().cloned().collect()
    }

    /// The roles of a user, in order.
    ///
    /// # Errors
    /// No such user.
    pub fn roles_of(&self, user: &str) -> Result<Vec<String>, AuthError> {
        self.user(user).map(|user| user.stored.roles.clone()).ok_or(AuthError::UserNotFound)
    }

    /// What a role permits, in order of its keys. That of `root` is everything, whatever it was granted.
    ///
    /// # Errors
    /// No such role.
    pub fn permissions_of(&self, role: &str) -> Result<Vec<authpb::Permission>, AuthError> {
        let stored = self.role(role).ok_or(AuthError::RoleNotFound)?;
        if role == ROOT {
            return Ok(vec![authpb::Permission {
                perm_type: authpb::permission::Type::Readwrite as i32,
                key: Bytes::new(),
                range_end: Bytes::from_static(&[0]),
            }]);
        }
        Ok(stored.key_permission.clone())
    }

    /// What a login has to be compared with, which is slow: do it elsewhere, then propose the login.
    ///
    /// # Errors
    /// Nobody is checked; no such user; a user that has no password.
    pub fn password_of(&self, user: &str) -> Result<Password, AuthError> {
        if !self.enabled {
            return Err(AuthError::NotEnabled);
        }
        let user = self.user(user).ok_or(AuthError::AuthFailed)?;
        if user.has_no_password() {
            return Err(AuthError::NoPasswordUser);
        }
        Ok(Password { hash: user.stored.password.clone(), revision: self.revision })
    }

    pub(crate) fn user(&self, name: &str) -> Option<&User> {
        self.users.get(name).map(Arc::as_ref)
    }

    pub(crate) fn role(&self, name: &str) -> Option<&authpb::Role> {
        self.roles.get(name).map(Arc::as_ref)
    }

    /// Users that hold this role.
    pub(crate) fn holders(&self, role: &str) -> Vec<authpb::User> {
        let holds = |user: &&Arc<User>| user.stored.roles.iter().any(|held| held == role);
        self.users.values().filter(holds).map(|user| user.stored.clone()).collect()
    }

    pub(crate) fn set_enabled(&mut self, enabled: bool, records: &mut Vec<Record>) {
        self.enabled = enabled;
        records.push(Record {
            table: RecordTable::Auth,
            key: Bytes::from_static(ENABLED),
            value: Some(Bytes::from_static(if enabled { &[1] } else { &[0] })),
        });
    }

    /// Ends a change: one more revision.
    pub(crate) fn bump(&mut self, records: &mut Vec<Record>) {
        self.revision += 1;
        records.push(Record {
            table: RecordTable::Auth,
            key: Bytes::from_static(REVISION),
            value: Some(Bytes::copy_from_slice(&self.revision.to_be_bytes())),
        });
    }

    pub(crate) fn put_user(&mut self, name: &str, stored: authpb::User, records: &mut Vec<Record>) {
        let value = Some(stored.encode_to_vec().into());
        let user = Arc::new(self.merged(stored));
        Arc::make_mut(&mut self.users).insert(name.to_owned(), user);
        records.push(Record { table: RecordTable::Users, key: Bytes::copy_from_slice(name.as_bytes()), value });
    }

    pub(crate) fn delete_user(&mut self, name: &str, records: &mut Vec<Record>) {
        Arc::make_mut(&mut self.users).remove(name);
        records.push(Record { table: RecordTable::Users, key: Bytes::copy_from_slice(name.as_bytes()), value: None });
    }

    /// Sets or (`None`) deletes a role, and makes the permissions of its holders anew.
    pub(crate) fn put_role(&mut self, name: &str, role: Option<authpb::Role>, records: &mut Vec<Record>) {
        let value = role.as_ref().map(|role| role.encode_to_vec().into());
        let roles = Arc::make_mut(&mut self.roles);
        match role {
            Some(role) => roles.insert(name.to_owned(), Arc::new(role)),
            None => roles.remove(name),
        };
        records.push(Record { table: RecordTable::Roles, key: Bytes::copy_from_slice(name.as_bytes()), value });
        for stored in self.holders(name) {
            let name = String::from_utf8_lossy(&stored.name).into_owned();
            let user = Arc::new(self.merged(stored));
            Arc::make_mut(&mut self.users).insert(name, user);
        }
    }

    fn merged(&self, stored: authpb::User) -> User {
        let granted = stored.roles.iter().filter_map(|role| self.role(role)).flat_map(|role| &role.key_permission);
        let permissions = Permissions::merge(granted);
        let root = stored.roles.iter().any(|role| role == ROOT);
        User { stored, permissions, root }
    }
}

impl User {
    pub(crate) fn has_no_password(&self) -> bool {
        self.stored.options.is_some_and(|options| options.no_password)
    }
}
