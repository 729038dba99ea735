//! What the log says of leases: the lessor keeps them, the table beside the revisions makes them last, and a revoke
//! takes their keys along.

use bytes::Bytes;
use dolmen_env::Mono;
use dolmen_lease::{GrantError, LeaseRecord, record_key};
use dolmen_mvcc::{Budget, Change};
use dolmen_proto::etcdserverpb::{
    LeaseCheckpointRequest, LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest, LeaseRevokeResponse,
};
use dolmen_revlog::{Table, TableOp};
use dolmen_types::LeaseId;

use crate::{ApplyError, Machine, Response};

/// Keys of a lease that are deleted in one go.
const REVOKED: usize = 128;
/// What a key costs more than one that is deleted by a range: it is looked up by itself, in three maps.
const REVOKE_COST: usize = 512;

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

    /// Takes a lease away and deletes its keys, all in one revision; the keys first, until the budget is spent. The lease
    /// is there until the last of them is gone.
    pub(crate) fn revoke(
        &mut self,
        request: &LeaseRevokeRequest,
        suspended: bool,
        budget: &mut Budget,
    ) -> Result<(Option<Response>, Vec<Change>), ApplyError> {
        let id = request.id;
        if !self.lessor.contains(id) {
            return Err(ApplyError::LeaseNotFound);
        }
        let mut txn = if suspended { self.store.resume() } else { self.store.begin() };
        loop {
            if budget.is_spent() {
                return Ok((None, txn.suspend()));
            }
            let keys = self.lessor.take_keys(id, REVOKED);
            if keys.is_empty() {
                break;
            }
            txn.delete_keys(&keys);
            keys.iter().for_each(|key| budget.spend(2 * key.len() + REVOKE_COST));
        }
        let changes = txn.finish();
        let _no_keys_left = self.lessor.revoke(id);
        self.touched_leases.push(id);
        self.ops.push(TableOp { table: Table::Lease, key: record_key(id), value: None });
        Ok((Some(Response::LeaseRevoke(LeaseRevokeResponse { header: self.header() })), changes))
    }

    pub(crate) fn checkpoint(&mut self, request: LeaseCheckpointRequest, now: Mono) {
        for checkpoint in request.checkpoints {
            self.lessor.apply_checkpoint(checkpoint.id, checkpoint.remaining_ttl, now);
            self.save_lease(checkpoint.id);
            self.touched_leases.push(checkpoint.id);
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
