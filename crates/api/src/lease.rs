//! Leases. Granting and revoking go through the log; only the leader knows what time is left, so the rest is asked of
//! it: by this node when it leads, by its peer URL otherwise.

use std::time::Duration;

use bytes::Bytes;
use dolmen_auth::Access;
use dolmen_machine::ApplyError;
use dolmen_node::{Reply, Request, RequestError};
use dolmen_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest, LeaseLeasesResponse,
    LeaseStatus, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use dolmen_proto::leasepb::{LeaseInternalRequest, LeaseInternalResponse};
use dolmen_types::{LeaseId, MemberId};
use prost::Message;
use tokio::time::Instant;

use crate::answer::{Answer, Answers};
use crate::call::Call;
use crate::frame::{MessageReader, decode};
use crate::propose::{Logged, agree};
use crate::server::{Local, refusal, within};
use crate::status::{self, Status};

/// Between two tries to reach a leader.
const RETRY: Duration = Duration::from_millis(50);

/// # Errors
/// No space left, or the outcome of the log.
pub async fn grant(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let mut request: LeaseGrantRequest = decode(message)?;
    request.check(call)?;
    while request.id == 0 {
        // Positive, as clients print it in hexadecimal and expect.
        request.id = (call.local.node().next_id() & i64::MAX as u64) as i64;
    }
    agree::<LeaseGrantRequest>(call, &request.encode_to_vec()).await
}

/// The leases known here, without asking anybody.
///
/// # Errors
/// When the server stops.
pub async fn leases(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let _: LeaseLeasesRequest = decode(message)?;
    call.may_on_lease(None, Access::Read).await?;
    let local = &*call.local;
    let answer = local.mailbox.call(local.node(), Request::Leases);
    let ids = match within(call.deadline, status::DEADLINE_EXCEEDED, answer).await? {
        Reply::Leases(ids) => ids,
        other => return Err(refusal(other)),
    };
    let leases = ids.into_iter().map(|id| LeaseStatus { id }).collect();
    Ok(Answer::new(&LeaseLeasesResponse { header: Some(local.header(0)), leases }))
}

/// An unknown lease is no error: its TTL is -1.
///
/// # Errors
/// No leader reached in time.
pub async fn time_to_live(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let local = &*call.local;
    let request: LeaseTimeToLiveRequest = decode(message)?;
    if request.keys {
        call.may_on_lease(Some(request.id), Access::Read).await?;
    }
    let late = status::DEADLINE_EXCEEDED;
    let mut response = match within(call.deadline, late, ask_time_to_live(local, request)).await? {
        Ok(response) => response,
        Err(RequestError::Apply(ApplyError::LeaseNotFound)) => {
            LeaseTimeToLiveResponse { id: request.id, ttl: -1, ..Default::default() }
        }
        Err(error) => return Err(error.into()),
    };
    // A forwarded answer comes with no header of its own, or an empty one.
    response.header = Some(local.header(0));
    Ok(Answer::new(&response))
}

async fn ask_time_to_live(
    local: &Local,
    request: LeaseTimeToLiveRequest,
) -> Result<LeaseTimeToLiveResponse, RequestError> {
    let give_up = Instant::now() + local.config().request_timeout;
    loop {
        let ask = Request::LeaseTimeToLive { id: request.id, keys: request.keys };
        let leader = match local.mailbox.call(local.node(), ask).await {
            Reply::LeaseTimeToLive(Err(RequestError::NotLeader { leader })) => leader,
            Reply::LeaseTimeToLive(result) => return result,
            _ => return Err(RequestError::Stopped),
        };
        let body = LeaseInternalRequest { lease_time_to_live_request: Some(request) }.encode_to_vec().into();
        match forward(local, leader, "/leases/internal", body, give_up).await {
            Forwarded::Answer(body) => {
                let answer = LeaseInternalResponse::decode(body).ok().and_then(|a| a.lease_time_to_live_response);
                if let Some(answer) = answer.filter(|answer| answer.id == request.id) {
                    return Ok(answer);
                }
            }
            Forwarded::NotFound => return Err(ApplyError::LeaseNotFound.into()),
            Forwarded::Nothing => {}
        }
        retry(give_up).await?;
    }
}

/// Extends a lease, here or at the leader. 0 when it is unknown or has expired.
///
/// # Errors
/// No leader reached in time.
pub async fn renew(local: &Local, id: LeaseId) -> Result<i64, RequestError> {
    // On the leader most renewals only move a deadline, which takes nobody else.
    if let Some(ttl) = local.node().renew_lease(id) {
        return Ok(ttl);
    }
    let give_up = Instant::now() + local.config().request_timeout;
    loop {
        let status = local.node().status();
        let leader = if status.leader != 0 && !status.is_leader() {
            status.leader
        } else {
            match local.mailbox.call(local.node(), Request::LeaseRenew { id }).await {
                Reply::LeaseRenewed(Err(RequestError::NotLeader { leader })) => leader,
                Reply::LeaseRenewed(Err(RequestError::Apply(ApplyError::LeaseNotFound))) => return Ok(0),
                Reply::LeaseRenewed(result) => return result,
                _ => return Err(RequestError::Stopped),
            }
        };
        let body = LeaseKeepAliveRequest { id }.encode_to_vec().into();
        match forward(local, leader, "/leases", body, give_up).await {
            Forwarded::Answer(body) => {
                let answer = LeaseKeepAliveResponse::decode(body).ok();
                if let Some(answer) = answer.filter(|answer| answer.id == id) {
                    return Ok(answer.ttl);
                }
            }
            Forwarded::NotFound => return Ok(0),
            Forwarded::Nothing => {}
        }
        retry(give_up).await?;
    }
}

enum Forwarded {
    Answer(Bytes),
    NotFound,
    /// No leader, no connection, or one that does not lead: worth another try.
    Nothing,
}

async fn forward(local: &Local, leader: MemberId, path: &'static str, body: Bytes, give_up: Instant) -> Forwarded {
    // Just elected, this member leads but does not count time yet.
    if leader == local.node().status().member_id {
        return Forwarded::Nothing;
    }
    let members = local.node().members();
    let Some(member) = members.members.get(&leader) else { return Forwarded::Nothing };
    let forwarder = &local.server.forwarder;
    let post = match path {
        "/leases" => forwarder.renew(local.mailbox.runtime(), leader, &member.peer_urls, body),
        path => forwarder.post(leader, &member.peer_urls, path, body),
    };
    match tokio::time::timeout_at(give_up, post).await {
        Ok(Ok((200, body))) => Forwarded::Answer(body),
        Ok(Ok((404, _))) => Forwarded::NotFound,
        _ => Forwarded::Nothing,
    }
}

async fn retry(give_up: Instant) -> Result<(), RequestError> {
    if Instant::now() + RETRY >= give_up {
        return Err(RequestError::Timeout);
    }
    tokio::time::sleep(RETRY).await;
    Ok(())
}

/// One answer for each request on the stream, in order.
///
/// # Errors
/// A broken stream, or no leader reached in time.
pub async fn keep_alive(call: &Call, mut requests: MessageReader, answers: &Answers) -> Result<(), Status> {
    let local = &*call.local;
    while let Some(message) = requests.next().await? {
        answers.received(message.len() as u64);
        let request: LeaseKeepAliveRequest = decode(message)?;
        call.may_on_lease(Some(request.id), Access::Write).await?;
        // Before the renewal: a revision told afterwards could be one at which the lease is gone already.
        let header = Some(local.header(0));
        let ttl = renew(local, request.id).await?;
        answers.send(Answer::new(&LeaseKeepAliveResponse { header, id: request.id, ttl })).await?;
    }
    Ok(())
}
