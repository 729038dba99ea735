//! Cluster and Auth: what of them is there.

use bytes::Bytes;
use dolmen_machine::Member as Configured;
use dolmen_proto::etcdserverpb::{
    AuthStatusResponse, AuthenticateRequest, Member, MemberListRequest, MemberListResponse,
};

use crate::frame::{decode, frame};
use crate::server::{Deadline, Local};
use crate::status::{self, Status};

/// Where a store without users stands.
const FIRST_AUTH_REVISION: u64 = 1;

/// # Errors
/// No confirmation in time, if one was asked for.
pub async fn member_list(local: &Local, message: Bytes, deadline: Deadline) -> Result<Vec<Bytes>, Status> {
    let request: MemberListRequest = decode(message)?;
    if request.linearizable {
        local.read_index(deadline).await?;
    }
    let members = local.node().members().members.values().map(member).collect();
    Ok(vec![frame(&MemberListResponse { header: Some(local.header_without_revision()), members })])
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

pub fn auth_status(local: &Local) -> Vec<Bytes> {
    vec![frame(&AuthStatusResponse {
        header: Some(local.header(0)),
        enabled: false,
        auth_revision: FIRST_AUTH_REVISION,
    })]
}

/// # Errors
/// Always: there is nothing to log in to.
pub fn authenticate(message: Bytes) -> Result<Vec<Bytes>, Status> {
    let _: AuthenticateRequest = decode(message)?;
    Err(status::AUTH_NOT_ENABLED)
}
