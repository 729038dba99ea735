//! Checking: may this identity do that? Asked at the door and again when the entry is applied.
//!
//! What one check costs is a binary search in the user's merged ranges for each key or range that the request names. A put
//! under a lease looks at each key of that lease, each lease once a request: who may not write a key must not be able to
//! make it die.

use dolmen_proto::etcdserverpb as pb;
use dolmen_proto::etcdserverpb::request_op::Request as Op;
use dolmen_types::LeaseId;

use crate::permission::Access;
use crate::store::Auth;
use crate::{AuthError, Identity};

/// The keys that hang on leases.
pub trait Keys {
    /// Whether `look` is true of every key attached to the lease; of an unknown lease it is.
    fn all(&self, lease: LeaseId, look: &mut dyn FnMut(&[u8]) -> bool) -> bool;
}

/// No lease at all: for requests that put nothing.
pub struct NoKeys;

impl Keys for NoKeys {
    fn all(&self, _: LeaseId, _: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        true
    }
}

impl Auth {
    /// For what only root may do.
    ///
    /// # Errors
    /// Nobody asks; no such user; another user. Revisions do not matter here, as in etcd.
    pub fn check_admin(&self, who: Option<&Identity>) -> Result<(), AuthError> {
        if !self.is_enabled() {
            return Ok(());
        }
        let who = who.filter(|who| !who.user.is_empty()).ok_or(AuthError::UserEmpty)?;
        match self.user(&who.user) {
            None => Err(AuthError::UserNotFound),
            Some(user) if !user.root => Err(AuthError::PermissionDenied),
            Some(_) => Ok(()),
        }
    }

    /// For what any user may do: somebody must ask.
    ///
    /// # Errors
    /// Nobody asks.
    pub fn check_known(&self, who: Option<&Identity>) -> Result<(), AuthError> {
        if self.is_enabled() && who.is_none_or(|who| who.user.is_empty()) {
            return Err(AuthError::UserEmpty);
        }
        Ok(())
    }

    /// What a user may look at of users: root everybody, others themselves.
    ///
    /// # Errors
    /// As [`Auth::check_admin`].
    pub fn check_user_get(&self, who: Option<&Identity>, name: &str) -> Result<(), AuthError> {
        self.check_admin(who).or_else(|refused| match who {
            Some(who) if who.user == name => Ok(()),
            _ => Err(refused),
        })
    }

    /// What a user may look at of roles: root all, others those they hold.
    ///
    /// # Errors
    /// As [`Auth::check_admin`].
    pub fn check_role_get(&self, who: Option<&Identity>, role: &str) -> Result<(), AuthError> {
        self.check_admin(who).or_else(|refused| {
            let user = who.and_then(|who| self.user(&who.user));
            let holds = user.is_some_and(|user| user.stored.roles.iter().any(|held| held == role));
            if holds { Ok(()) } else { Err(refused) }
        })
    }

    /// Whether all keys of `key..range_end` may be read or written.
    ///
    /// # Errors
    /// Nobody asks; an identity of an older auth revision; not permitted.
    pub fn check_range(
        &self,
        who: Option<&Identity>,
        key: &[u8],
        range_end: &[u8],
        access: Access,
    ) -> Result<(), AuthError> {
        if !self.is_enabled() {
            return Ok(());
        }
        let who = who.filter(|who| who.revision != 0).ok_or(AuthError::UserEmpty)?;
        if who.revision < self.revision() {
            return Err(AuthError::OldRevision);
        }
        let user = self.user(&who.user).ok_or(AuthError::PermissionDenied)?;
        if user.root || user.permissions.allow(key, range_end, access) {
            Ok(())
        } else {
            Err(AuthError::PermissionDenied)
        }
    }

    /// # Errors
    /// As [`Auth::check_range`], for the key, for its previous value, and for every key of the lease.
    pub fn check_put(&self, who: Option<&Identity>, put: &pb::PutRequest, leases: &dyn Keys) -> Result<(), AuthError> {
        if !self.is_enabled() {
            return Ok(());
        }
        Checking { auth: self, who, leases, looked_at: Vec::new() }.put(put)
    }

    /// # Errors
    /// As [`Auth::check_range`], for deleting and for the previous values.
    pub fn check_delete(&self, who: Option<&Identity>, delete: &pb::DeleteRangeRequest) -> Result<(), AuthError> {
        self.check_range(who, &delete.key, &delete.range_end, Access::Write)?;
        if delete.prev_kv {
            self.check_range(who, &delete.key, &delete.range_end, Access::Read)?;
        }
        Ok(())
    }

    /// Both branches, whatever the comparisons will say, and inner transactions.
    ///
    /// # Errors
    /// As [`Auth::check_range`], for everything that is compared, read, put or deleted.
    pub fn check_txn(&self, who: Option<&Identity>, txn: &pb::TxnRequest, leases: &dyn Keys) -> Result<(), AuthError> {
        if !self.is_enabled() {
            return Ok(());
        }
        Checking { auth: self, who, leases, looked_at: Vec::new() }.txn(txn)
    }

    /// Whether all keys of a lease may be written (to revoke or renew it) or read (to list them). Root may.
    ///
    /// # Errors
    /// As [`Auth::check_range`].
    pub fn check_lease(
        &self,
        who: Option<&Identity>,
        lease: LeaseId,
        access: Access,
        leases: &dyn Keys,
    ) -> Result<(), AuthError> {
        if self.check_admin(who).is_ok() {
            return Ok(());
        }
        let mut outcome = Ok(());
        leases.all(lease, &mut |key| {
            outcome = self.check_range(who, key, &[], access);
            outcome.is_ok()
        });
        outcome
    }
}

/// One request under way.
struct Checking<'a> {
    auth: &'a Auth,
    who: Option<&'a Identity>,
    leases: &'a dyn Keys,
    /// Leases whose keys have all been found writable. At most one a put.
    looked_at: Vec<LeaseId>,
}

impl Checking<'_> {
    fn put(&mut self, put: &pb::PutRequest) -> Result<(), AuthError> {
        self.auth.check_range(self.who, &put.key, &[], Access::Write)?;
        if put.lease != 0 && !self.looked_at.contains(&put.lease) {
            self.auth.check_lease(self.who, put.lease, Access::Write, self.leases)?;
            self.looked_at.push(put.lease);
        }
        if put.prev_kv {
            self.auth.check_range(self.who, &put.key, &[], Access::Read)?;
        }
        Ok(())
    }

    fn txn(&mut self, txn: &pb::TxnRequest) -> Result<(), AuthError> {
        for compare in &txn.compare {
            self.auth.check_range(self.who, &compare.key, &compare.range_end, Access::Read)?;
        }
        for operation in txn.success.iter().chain(&txn.failure) {
            match &operation.request {
                None => {}
                Some(Op::RequestRange(range)) => {
                    self.auth.check_range(self.who, &range.key, &range.range_end, Access::Read)?;
                }
                Some(Op::RequestPut(put)) => self.put(put)?,
                Some(Op::RequestDeleteRange(delete)) => {
                    // In etcd's order: which of the two is told matters to nobody but its tests.
                    if delete.prev_kv {
                        self.auth.check_range(self.who, &delete.key, &delete.range_end, Access::Read)?;
                    }
                    self.auth.check_range(self.who, &delete.key, &delete.range_end, Access::Write)?;
                }
                Some(Op::RequestTxn(inner)) => self.txn(inner)?,
            }
        }
        Ok(())
    }
}
