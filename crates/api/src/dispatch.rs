//! From an HTTP/2 request with a gRPC content type to a handler and back.
//!
//! Hot methods are one `async` path from the collected message to the framed answer; there is no service object, no
//! codec and no boxed future in between (measured: 2 us of 12 a request). What all calls share, in etcd's order: is the
//! member a learner, which client is it, does it want a leader.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_proto::etcdserverpb::StatusRequest;
use http::{HeaderMap, Method as HttpMethod, Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::body::{Body, Emitter};
use crate::frame::{self, MessageReader};
use crate::methods::{self, Kind, Method};
use crate::server::{Deadline, Local};
use crate::stats::CallGuard;
use crate::status::{self, Code, Status};
use crate::{cluster, health, kv, lease, maintenance, watch};

/// Answers one call. Every failure is a gRPC status in an HTTP 200.
pub async fn call(local: Arc<Local>, request: Request<Incoming>) -> Response<Body> {
    if request.method() != HttpMethod::POST {
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        return response;
    }
    let Some(method) = Method::find(request.uri().path()) else {
        return frame::error_response(&unknown(request.uri().path()));
    };
    let guard = CallGuard::start(local.stats.clone(), method);
    let (head, body) = request.into_parts();
    let admitted = match admit(&local, method, &head.headers) {
        Ok(admitted) => admitted,
        Err(status) => {
            guard.end(status.code);
            return frame::error_response(&status);
        }
    };
    let requests = MessageReader::new(body, local.config().max_message_bytes());
    if method.info().kind != Kind::Unary {
        return stream(local, method, requests, guard, admitted);
    }
    let (message, received) = requests.only().await;
    guard.received(received);
    let result = match message {
        Ok(message) => unary(&local, method, message, admitted.deadline).await,
        Err(status) => Err(status),
    };
    match result {
        Ok(pieces) => {
            guard.sent(1, pieces.iter().map(|piece| piece.len() as u64).sum());
            guard.end(Code::Ok);
            frame::response(ok_body(pieces))
        }
        Err(status) => {
            guard.end(status.code);
            frame::error_response(&status)
        }
    }
}

fn ok_body(mut pieces: Vec<Bytes>) -> Body {
    if pieces.len() == 1
        && let Some(piece) = pieces.pop()
    {
        return Body::ok_one(piece);
    }
    Body::ok(pieces)
}

fn unknown(path: &str) -> Status {
    let text = match path.strip_prefix('/').and_then(|path| path.rsplit_once('/')) {
        None => format!("malformed method name: \"{path}\""),
        Some((service, method)) if methods::is_service(service) => {
            format!("unknown method {method} for service {service}")
        }
        Some((service, _)) => format!("unknown service {service}"),
    };
    Status::owned(Code::Unimplemented, text)
}

/// What a call's headers ask for.
struct Admitted {
    deadline: Deadline,
    wants_leader: bool,
}

fn admit(local: &Local, method: Method, headers: &HeaderMap) -> Result<Admitted, Status> {
    frame::encoding(headers)?;
    let deadline = frame::timeout(headers)?.map(|timeout| {
        // A timeout beyond what a clock can hold is none.
        Instant::now().checked_add(timeout)
    });
    let now = local.node().status();
    // A serializable range is allowed, which its handler knows once the request is decoded.
    if now.is_learner && !matches!(method, Method::Status | Method::Range | Method::Snapshot) {
        return Err(status::NOT_SUPPORTED_FOR_LEARNER);
    }
    let version = match headers.get("client-api-version") {
        None => "unknown",
        Some(version) => std::str::from_utf8(version.as_bytes()).map_err(|_| status::INVALID_CLIENT_API_VERSION)?,
    };
    local.stats.client_version(version, method.info().kind != Kind::Unary);
    let wants_leader = headers.get("hasleader").is_some_and(|value| value == "true");
    if wants_leader && now.leader == 0 {
        return Err(status::NO_LEADER);
    }
    Ok(Admitted { deadline: deadline.flatten(), wants_leader })
}

/// Path and bytes in, framed bytes out.
async fn unary(local: &Local, method: Method, message: Bytes, deadline: Deadline) -> Result<Vec<Bytes>, Status> {
    match method {
        Method::Range => kv::range(local, message, deadline).await,
        Method::Put => kv::put(local, message, deadline).await,
        Method::Txn => kv::txn(local, message, deadline).await,
        Method::DeleteRange => kv::delete_range(local, message, deadline).await,
        // The rest is rare: boxed, so that the future of a hot call stays small.
        method => rare(local, method, message, deadline).await,
    }
}

type Rare<'a> = Pin<Box<dyn Future<Output = Result<Vec<Bytes>, Status>> + Send + 'a>>;

fn rare(local: &Local, method: Method, message: Bytes, deadline: Deadline) -> Rare<'_> {
    Box::pin(async move {
        // These take nothing, but what they are sent has to be a message.
        if matches!(
            method,
            Method::LeaseLeases | Method::Status | Method::Defragment | Method::Hash | Method::AuthStatus
        ) {
            nothing(&message)?;
        }
        match method {
            Method::Compact => kv::compact(local, message, deadline).await,
            Method::LeaseGrant => lease::grant(local, message, deadline).await,
            Method::LeaseRevoke => lease::revoke(local, message, deadline).await,
            Method::LeaseTimeToLive => lease::time_to_live(local, message, deadline).await,
            Method::LeaseLeases => lease::leases(local, deadline).await,
            Method::MemberList => cluster::member_list(local, message, deadline).await,
            Method::Status => Ok(maintenance::status(local)),
            Method::Alarm => maintenance::alarm(local, message, deadline).await,
            Method::Defragment => maintenance::defragment(local, deadline).await,
            Method::Hash => maintenance::hash(local).await,
            Method::HashKv => maintenance::hash_kv(local, message).await,
            Method::MoveLeader => maintenance::move_leader(local, message, deadline).await,
            Method::AuthStatus => Ok(cluster::auth_status(local)),
            Method::Authenticate => cluster::authenticate(message),
            Method::HealthCheck => health::check(message),
            other => {
                let info = other.info();
                Err(Status::not_yet_supported(&format!("{}/{}", info.service, info.name)))
            }
        }
    })
}

/// Checks the message of a method whose request has no fields (of another release, it may).
fn nothing(message: &Bytes) -> Result<(), Status> {
    frame::decode::<StatusRequest>(message.clone()).map(|_| ())
}

/// Answers a streaming call: the work goes on inside the response's body.
fn stream(
    local: Arc<Local>,
    method: Method,
    requests: MessageReader,
    guard: CallGuard,
    admitted: Admitted,
) -> Response<Body> {
    frame::response(Body::stream(move |emitter| async move {
        let work = run_stream(&local, method, requests, &emitter, &guard, admitted.deadline);
        let result = while_allowed(&local, &admitted, work).await;
        guard.end(result.as_ref().err().map_or(Code::Ok, |status| status.code));
        result
    }))
}

async fn run_stream(
    local: &Local,
    method: Method,
    requests: MessageReader,
    emitter: &Emitter,
    guard: &CallGuard,
    deadline: Deadline,
) -> Result<(), Status> {
    match method {
        Method::Watch => watch::watch(local, requests, emitter, guard).await,
        Method::LeaseKeepAlive => lease::keep_alive(local, requests, emitter, guard).await,
        method => {
            let (message, received) = requests.only().await;
            guard.received(received);
            let message = message?;
            match method {
                Method::RangeStream => kv::range_stream(local, message, deadline, emitter, guard).await,
                Method::Snapshot => {
                    nothing(&message)?;
                    maintenance::snapshot(local, emitter, guard).await
                }
                Method::HealthWatch => health::watch(message, emitter).await,
                other => {
                    let info = other.info();
                    Err(Status::not_yet_supported(&format!("{}/{}", info.service, info.name)))
                }
            }
        }
    }
}

/// Runs a stream until it ends, its client's time is up, the member has been without the leader that the client wants,
/// or the server stops.
async fn while_allowed(
    local: &Local,
    admitted: &Admitted,
    work: impl Future<Output = Result<(), Status>>,
) -> Result<(), Status> {
    let mut leader_lost = local.server.leader_lost.clone();
    leader_lost.mark_unchanged();
    let mut stopping = local.server.stopping.clone();
    tokio::select! {
        biased;
        result = work => result,
        _ = leader_lost.changed(), if admitted.wants_leader => Err(status::NO_LEADER),
        _ = stopping.wait_for(|stopping| *stopping) => Err(status::STOPPED),
        () = sleep_until(admitted.deadline) => Err(status::DEADLINE_EXCEEDED),
    }
}

async fn sleep_until(deadline: Deadline) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_methods_are_refused_in_grpcs_words() {
        for (path, text) in [
            ("/etcdserverpb.KV/Nope", "unknown method Nope for service etcdserverpb.KV"),
            ("/nope.Nope/Range", "unknown service nope.Nope"),
            ("/nope", "malformed method name: \"/nope\""),
        ] {
            assert_eq!(unknown(path), Status::owned(Code::Unimplemented, text.into()));
        }
    }
}
