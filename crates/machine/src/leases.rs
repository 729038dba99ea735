//! What the log says of leases: the lessor keeps them, the table beside the revisions makes them last, and a revoke
//! takes their keys along.

use bytes::Bytes;
use dolmen_env::Mono;
use dolmen_lease::{GrantError, LeaseRecord, record_key};
use dolmen_mvcc::Change;
use dolmen_proto::etcdserverpb::{
    LeaseCheckpointRequest, LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest, LeaseRevokeResponse,
};
use dolmen_revlog::{Table, TableOp};
use dolmen_types::{KeyRange, LeaseId};

use crate::{ApplyError, Machine};

impl Machine {
    pub(crate) fn grant(&mut self, request: &LeaseGrantRequest, now: Mono) -> Result<LeaseGrantResponse, ApplyError> {
        match self.lessor.grant(request.id, request.ttl, now) {
            Ok(ttl) => {
                self.save_lease(request.id);
                Ok(LeaseGrantResponse { header: self.header(), id: request.id, ttl, error: String::new() })
            }
            Err(GrantError::Exists) => Err(ApplyError::LeaseExists),
            Err(GrantError::TooLarge) => Err(ApplyError::LeaseTtlTooLarge),
            Err(GrantError::NoId) => Err(ApplyError::LeaseNotFound),
        }
    }

    /// Takes a lease away and deletes its keys, all in one revision.
    pub(crate) fn revoke(
        &mut self,
        request: &LeaseRevokeRequest,
        changes: &mut Vec<Change>,
    ) -> Result<LeaseRevokeResponse, ApplyError> {
        let keys = self.lessor.revoke(request.id).ok_or(ApplyError::LeaseNotFound)?;
        self.ops.push(TableOp { table: Table::Lease, key: record_key(request.id), value: None });
        let mut txn = self.store.begin();
        for key in keys {
            txn.delete_range(&KeyRange::Single(key));
        }
        *changes = txn.finish();
        Ok(LeaseRevokeResponse { header: self.header() })
    }

    pub(crate) fn checkpoint(&mut self, request: LeaseCheckpointRequest, now: Mono) {
        for checkpoint in request.checkpoints {
            self.lessor.apply_checkpoint(checkpoint.id, checkpoint.remaining_ttl, now);
            self.save_lease(checkpoint.id);
        }
    }

    fn save_lease(&mut self, id: LeaseId) {
        let value = self.lessor.record(id).as_ref().map(LeaseRecord::encode);
        if value.is_some() {
            self.ops.push(TableOp { table: Table::Lease, key: record_key(id), value });
        }
    }

    /// Moves the keys of applied changes between leases.
    pub(crate) fn attach(&mut self, changes: &[Change]) {
        for change in changes {
            if change.prev_lease != change.lease && change.prev_lease != 0 {
                self.lessor.detach(change.prev_lease, &change.key);
            }
            if change.lease != 0 {
                // Copied: the lessor keeps it, and must not keep the whole value with it. Unknown leases were refused.
                let _known = self.lessor.attach(change.lease, Bytes::copy_from_slice(&change.key));
            }
        }
    }
}
