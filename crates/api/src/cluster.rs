//! Cluster and Auth: what of them is there.

use bytes::Bytes;
use dolmen_machine::Member as Configured;
use dolmen_proto::etcdserverpb::{
    AuthStatusRequest, AuthStatusResponse, AuthenticateRequest, Member, MemberListRequest, MemberListResponse,
};

use crate::answer::Answer;
use crate::call::Call;
use crate::frame::decode;
use crate::status::{self, Status};

/// Where a store without users stands.
const FIRST_AUTH_REVISION: u64 = 1;

/// # Errors
/// No confirmation in time, if one was asked for.
pub async fn member_list(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let local = &*call.local;
    let request: MemberListRequest = decode(message)?;
    if request.linearizable {
        local.read_index(call.deadline).await?;
    }
    let members = local.node().members().members.values().map(member).collect();
    Ok(Answer::new(&MemberListResponse { header: Some(local.header_without_revision()), members }))
}

fn member(member: &Configured) -> Member {
    Member {
        id: member.id,
        name: member.name.clone(),
        peer_ur_ls: member.peer_urls.clone(),
        client_ur_ls: member.client_urls.clone(),
        is_learner: member.is_learner,
    }
}

/// # Errors
/// A request that cannot be decoded.
pub async fn auth_status(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let _: AuthStatusRequest = decode(message)?;
    let header = Some(call.local.header(0));
    Ok(Answer::new(&AuthStatusResponse { header, enabled: false, auth_revision: FIRST_AUTH_REVISION }))
}

/// # Errors
/// Always: there is nothing to log in to.
pub async fn authenticate(_: &Call, message: Bytes) -> Result<Answer, Status> {
    let _: AuthenticateRequest = decode(message)?;
    Err(status::AUTH_NOT_ENABLED)
}
