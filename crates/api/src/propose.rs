//! Requests that go through the log: decode, check, replicate the bytes as they came, answer what applying them gave.

use bytes::Bytes;
use dolmen_auth::Outcome;
use dolmen_machine::Response;
use dolmen_proto::etcdserverpb::{
    AlarmRequest, AlarmResponse, AuthDisableRequest, AuthDisableResponse, AuthEnableRequest, AuthEnableResponse,
    AuthRoleAddRequest, AuthRoleAddResponse, AuthRoleDeleteRequest, AuthRoleDeleteResponse,
    AuthRoleGrantPermissionRequest, AuthRoleGrantPermissionResponse, AuthRoleRevokePermissionRequest,
    AuthRoleRevokePermissionResponse, AuthUserAddRequest, AuthUserAddResponse, AuthUserChangePasswordRequest,
    AuthUserChangePasswordResponse, AuthUserDeleteRequest, AuthUserDeleteResponse, AuthUserGrantRoleRequest,
    AuthUserGrantRoleResponse, AuthUserRevokeRoleRequest, AuthUserRevokeRoleResponse, CompactionRequest,
    CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, LeaseGrantRequest, LeaseGrantResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, PutRequest, PutResponse, ResponseHeader, TxnRequest, TxnResponse,
};
use prost::Message;

use crate::answer::Answer;
use crate::call::Call;
use crate::encode::Command;
use crate::frame::decode;
use crate::kv::check_quota;
use crate::server::unexpected_reply;
use crate::stats::{RequestType, Timed};
use crate::status::Status;
use crate::validate;

/// A request that the log replicates.
pub trait Logged: Message + Default {
    /// Which field of a log entry it is.
    const COMMAND: Command;
    /// As whose duration it is counted.
    const TYPE: RequestType;
    type Response: Message;

    /// Takes the answer out of what applying gave, `None` when it is another request's; and its header.
    fn response(applied: Response) -> Option<Self::Response>;
    fn header(response: &mut Self::Response) -> &mut Option<ResponseHeader>;

    /// What is refused before anything is replicated.
    ///
    /// # Errors
    /// etcd's, in etcd's order.
    fn check(&self, call: &Call) -> Result<(), Status> {
        let _ = call;
        Ok(())
    }
}

macro_rules! logged {
    ($($request:ident => $response:ident, $variant:ident { $($check:item)? })*) => {
        $(impl Logged for $request {
            const COMMAND: Command = Command::$variant;
            const TYPE: RequestType = RequestType::$variant;
            type Response = $response;

            fn response(applied: Response) -> Option<$response> {
                if let Response::$variant(response) = applied { Some(response) } else { None }
            }

            fn header(response: &mut $response) -> &mut Option<ResponseHeader> {
                &mut response.header
            }

            $($check)?
        })*
    };
}

logged! {
    PutRequest => PutResponse, Put {
        fn check(&self, call: &Call) -> Result<(), Status> {
            check_quota(&call.local, || validate::put_cost(self))?;
            validate::put(self)
        }
    }
    DeleteRangeRequest => DeleteRangeResponse, DeleteRange {
        fn check(&self, _: &Call) -> Result<(), Status> {
            validate::delete_range(self)
        }
    }
    TxnRequest => TxnResponse, Txn {
        fn check(&self, call: &Call) -> Result<(), Status> {
            check_quota(&call.local, || validate::txn_cost(self))?;
            validate::txn(self, call.local.config().max_txn_ops)
        }
    }
    LeaseGrantRequest => LeaseGrantResponse, LeaseGrant {
        fn check(&self, call: &Call) -> Result<(), Status> {
            check_quota(&call.local, || validate::LEASE_GRANT_COST)
        }
    }
    CompactionRequest => CompactionResponse, Compaction {}
    LeaseRevokeRequest => LeaseRevokeResponse, LeaseRevoke {}
    AlarmRequest => AlarmResponse, Alarm {}
}

macro_rules! of_users {
    ($($request:ident => $response:ident, $variant:ident;)*) => {
        $(impl Logged for $request {
            const COMMAND: Command = Command::$variant;
            const TYPE: RequestType = RequestType::$variant;
            type Response = $response;

            fn response(applied: Response) -> Option<$response> {
                matches!(applied, Response::Users(Outcome::Done)).then($response::default)
            }

            fn header(response: &mut $response) -> &mut Option<ResponseHeader> {
                &mut response.header
            }
        })*
    };
}

of_users! {
    AuthEnableRequest => AuthEnableResponse, AuthEnable;
    AuthDisableRequest => AuthDisableResponse, AuthDisable;
    AuthUserAddRequest => AuthUserAddResponse, UserAdd;
    AuthUserDeleteRequest => AuthUserDeleteResponse, UserDelete;
    AuthUserChangePasswordRequest => AuthUserChangePasswordResponse, UserChangePassword;
    AuthUserGrantRoleRequest => AuthUserGrantRoleResponse, UserGrantRole;
    AuthUserRevokeRoleRequest => AuthUserRevokeRoleResponse, UserRevokeRole;
    AuthRoleAddRequest => AuthRoleAddResponse, RoleAdd;
    AuthRoleDeleteRequest => AuthRoleDeleteResponse, RoleDelete;
    AuthRoleGrantPermissionRequest => AuthRoleGrantPermissionResponse, RoleGrantPermission;
    AuthRoleRevokePermissionRequest => AuthRoleRevokePermissionResponse, RoleRevokePermission;
}

/// Serves a request that is nothing but proposed.
///
/// # Errors
/// Those of [`Logged::check`] and of [`agree`].
pub async fn propose<R: Logged>(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let request: R = decode(message.clone())?;
    request.check(call)?;
    // Not kept while the log decides.
    drop(request);
    agree::<R>(call, &message).await
}

/// Replicates a checked request, whose encoded form is `message`.
///
/// # Errors
/// The outcome of the log.
pub async fn agree<R: Logged>(call: &Call, message: &[u8]) -> Result<Answer, Status> {
    let who = call.identify().await?;
    let timed = Timed::start(&call.local.stats, R::TYPE);
    let result = call.local.propose(R::COMMAND, message, who.as_ref(), call.deadline).await;
    timed.end(&result);
    let mut response = R::response(result?).ok_or_else(unexpected_reply)?;
    call.local.fill(R::header(&mut response));
    Ok(Answer::new(&response))
}
