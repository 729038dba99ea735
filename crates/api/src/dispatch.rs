//! From an HTTP/2 request with a gRPC content type to a handler and back.
//!
//! Hot methods are one `async` path from the collected message to the framed answer; there is no service object, no
//! codec and no boxed future in between (measured: 2 us of 12 a request). Which handler serves which method is in
//! `methods`; here its answer gets its frame.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_http2::Head;
use dolmen_node::Agreement;
use http::{Response, StatusCode};

use crate::answer::{Answer, Answers};
use crate::body::{Body, RequestBody};
use crate::call::{Call, Transport};
use crate::frame::{self, MessageReader};
use crate::methods::{self, Method};
use crate::server::{Deadline, Local};
use crate::stats::CallGuard;
use crate::status::{self, Code, Status};

/// Answers one call. Every failure is a gRPC status in an HTTP 200.
pub async fn call(local: Arc<Local>, transport: Arc<Transport>, head: Head, body: RequestBody) -> Response<Body> {
    if head.get(":method") != Some(b"POST") {
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        return response;
    }
    let path = String::from_utf8_lossy(head.get(":path").unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let Some(method) = Method::find(path) else { return frame::error_response(&unknown(path)) };
    let guard = CallGuard::start(local.stats.clone(), method);
    let call = match Call::admit(local, transport, method, &frame::headers(&head)) {
        Ok(call) => call,
        Err(status) => {
            guard.end(status.code);
            return frame::error_response(&status);
        }
    };
    drop(head);
    let budget = call.local.server.budget.clone();
    let mut requests = MessageReader::new(body, call.local.config().max_message_bytes(), budget.hold());
    if method.info().is_stream() {
        return stream(call, requests, guard);
    }
    let (message, received) = requests.only().await;
    guard.received(received);
    let result = match message {
        Ok(message) => match call.authorise().await {
            Ok(()) => Method::unary(&call, message).await,
            Err(status) => Err(status),
        },
        Err(status) => Err(status),
    };
    match result.and_then(|answer| Ok((answer.len(), budget.keep(answer.frame())?))) {
        Ok((len, pieces)) => {
            guard.sent(1, (frame::PREFIX + len) as u64);
            guard.end(Code::Ok);
            Response::new(ok_body(pieces))
        }
        Err(status) => {
            guard.end(status.code);
            frame::error_response(&status)
        }
    }
}

fn ok_body((head, mut pieces): (Bytes, Vec<Bytes>)) -> Body {
    if pieces.is_empty() {
        return Body::ok_one(head);
    }
    pieces.insert(0, head);
    Body::ok(pieces)
}

/// Serves a method that this release leaves out.
///
/// # Errors
/// Always.
pub async fn absent(call: &Call, _message: Bytes) -> Result<Answer, Status> {
    Err(not_yet_supported(call.method))
}

/// As [`absent`], of a stream.
///
/// # Errors
/// Always.
pub async fn absent_stream(call: &Call, _message: Bytes, _answers: &Answers) -> Result<(), Status> {
    Err(not_yet_supported(call.method))
}

fn not_yet_supported(method: Method) -> Status {
    let info = method.info();
    Status::not_yet_supported(&format!("{}/{}", info.service, info.name))
}

/// A stream was asked for one answer, or the other way round: a fault of ours, as [`call`] tells them apart.
pub fn wrong_kind() -> Status {
    Status::new(Code::Internal, "etcdserver: unexpected kind of call")
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

/// Answers a streaming call: the work goes on inside the response's body.
fn stream(call: Call, requests: MessageReader, guard: CallGuard) -> Response<Body> {
    Response::new(Body::stream(move |emitter| async move {
        let answers = Answers::new(emitter, guard, call.local.server.budget.clone());
        let served = async {
            call.authorise().await?;
            Method::stream(&call, requests, &answers).await
        };
        let result = while_allowed(&call, served).await;
        answers.end(result.as_ref().err().map_or(Code::Ok, |status| status.code));
        result
    }))
}

/// Runs a stream until it ends, its client's time is up, the member has been without the leader that the client wants,
/// or the server stops.
async fn while_allowed(call: &Call, work: impl Future<Output = Result<(), Status>>) -> Result<(), Status> {
    let mut stopping = call.local.server.stopping.clone();
    tokio::select! {
        biased;
        result = work => result,
        status = unfit(call) => Err(status),
        _ = stopping.wait_for(|stopping| *stopping) => Err(status::STOPPED),
        () = sleep_until(call.deadline) => Err(status::DEADLINE_EXCEEDED),
    }
}

/// Waits until the member is no longer one for this call.
async fn unfit(call: &Call) -> Status {
    let mut leader_lost = call.local.server.leader_lost.clone();
    leader_lost.mark_unchanged();
    loop {
        if leader_lost.changed().await.is_err() {
            // The server ends, which is told apart from this.
            return std::future::pending().await;
        }
        // The same word is given for both.
        let outvoted = call.local.node().agreement() == Agreement::Outvoted;
        if outvoted && !call.method.is_for_inspection() {
            return status::CORRUPT;
        }
        if call.caller.wants_leader && !outvoted {
            return status::NO_LEADER;
        }
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
