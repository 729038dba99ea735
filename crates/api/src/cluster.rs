//! Cluster: what of it is there.

use bytes::Bytes;
use dolmen_machine::Member as Configured;
use dolmen_proto::etcdserverpb::{Member, MemberListRequest, MemberListResponse};

use crate::answer::Answer;
use crate::call::Call;
use crate::frame::decode;
use crate::status::Status;

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
