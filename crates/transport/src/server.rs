//! The peer port.
//!
//! ```text
//! POST /raft                          one message            204, 403, 412
//! GET  /raft/stream/{message,msgapp}/<id>   a stream          200, 404, 410, 412
//! POST /raft/snapshot                 a message and a database   204, 412
//! GET  /raft/probing                  the time
//! anything else                       the api's
//! ```
//!
//! Before the member has started, [`lobby`] answers.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use dolmen_net::{Accepted, Listener, Seat, ServerTls};
use dolmen_proto::raftpb::Message;
use dolmen_types::{error_chain, hex_id};
use http::header::{ALLOW, CONNECTION, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prost::Message as _;
use tokio::sync::watch;

use crate::api::ApiRequest;
use crate::codec::{DecodeError, MESSAGE_LIMIT, Refusal, SNAPSHOT_MESSAGE_LIMIT, decode_framed};
use crate::config::PeerListener;
use crate::http1::{Outgoing, answer, error, no_content};
use crate::leases::{self, Left};
use crate::lobby::{self, Door};
use crate::net::{BodyReader, Io, Prefixed, WriteTimeout};
use crate::shared::Shared;
use crate::stream::{StreamBody, StreamKind};
use crate::version::{self, CLUSTER_ID, PEER_URLS, RAFT_TO, SERVER_FROM, SERVER_VERSION};
use crate::{probe, snapshot};

/// How long a connection may take to bring the head of a request, the first as well as later ones.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of body an api request may have.
const API_BODY_LIMIT: u64 = 1 << 20;

/// Accepts connections for as long as the runtime lives.
pub(crate) async fn listen(door: watch::Receiver<Door>, listener: PeerListener) -> io::Result<()> {
    let socket = Listener::new(listener.socket)?;
    loop {
        let (accepted, seat) = socket.accept(&listener.room).await;
        tokio::spawn(serve(door.clone(), accepted, seat, listener.tls.clone()));
    }
}

/// Serves one connection to its end. One without a request in hand may be asked to leave for the sake of others; a raft
/// stream is such a request for as long as it lasts.
async fn serve(mut door: watch::Receiver<Door>, accepted: Accepted, seat: Seat, tls: Option<ServerTls>) {
    let remote = accepted.remote();
    let beginning = async {
        let io = accepted.adopt().ok()?;
        let secured: Box<dyn Io> = match tls {
            None => Box::new(io),
            Some(tls) => Box::new(tls.accept(io, remote).await?),
        };
        let mut io = WriteTimeout::new(secured);
        let (shared, ahead) = lobby::enter(&mut door, &mut io, HEAD_TIMEOUT).await?;
        let mut io = Prefixed::new(ahead, io);
        match leases::serve(&*shared.api, &mut io, HEAD_TIMEOUT, || seat.touch()).await {
            Left::Nothing => None,
            Left::Other(ahead) => Some((shared, Prefixed::new(ahead, io))),
        }
    };
    let begun = tokio::select! {
        begun = beginning => begun,
        () = seat.asked_to_leave() => None,
    };
    let Some((shared, io)) = begun else { return };
    let seat = &seat;
    let service = service_fn(|request| {
        let (shared, open) = (Arc::clone(&shared), seat.open());
        async move { Ok::<_, Infallible>(route(&shared, request).await.map(|body| open.during(body))) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = seat.asked_to_leave() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                served = connection => served,
                () = seat.overstayed() => return,
            }
        }
    };
    if let Err(error) = served {
        tracing::debug!(?remote, error = %error_chain(&error), "a peer connection ended with an error");
    }
}

async fn route(shared: &Arc<Shared>, request: Request<Incoming>) -> Response<Outgoing> {
    match request.uri().path() {
        "/raft" => raft(shared, request).await,
        "/raft/snapshot" => take_snapshot(shared, request).await,
        "/raft/probing" => answer(StatusCode::OK, "text/plain; charset=utf-8", probe::answer_body()),
        path if path.starts_with("/raft/stream/") => stream(shared, &request),
        path if path.starts_with("/raft/") => error(StatusCode::NOT_FOUND, "404 page not found"),
        _ => api(shared, request).await,
    }
}

fn method_not_allowed(allow: &'static str) -> Response<Outgoing> {
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

/// Checks what every raft request must have: versions and cluster.
fn check<T>(shared: &Shared, request: &Request<T>) -> Result<(), Box<Response<Outgoing>>> {
    version::check_request(request.headers(), shared.version, shared.min_version, &shared.cluster_hex)
        .map_err(|reason| Box::new(error(StatusCode::PRECONDITION_FAILED, reason)))
}

fn with_cluster_id(shared: &Shared, mut response: Response<Outgoing>) -> Response<Outgoing> {
    response.headers_mut().insert(CLUSTER_ID, version::value(&shared.cluster_hex));
    response
}

fn add_remote<T>(shared: &Arc<Shared>, request: &Request<T>) {
    if let Some(from) = version::parse_id(version::text(request.headers(), &SERVER_FROM)) {
        if let Some(peer) = shared.peer(from) {
            peer.greeted(request.headers());
        }
        shared.add_remote(from, version::text(request.headers(), &PEER_URLS));
    }
}

/// A refusal as raft's endpoints say it: 403 and a JSON message.
fn refused(refusal: Refusal) -> Response<Outgoing> {
    let status = match refusal {
        Refusal::Type => return error(StatusCode::BAD_REQUEST, "wrong raft message type"),
        Refusal::RemovedSender | Refusal::WrongAddressee => StatusCode::FORBIDDEN,
    };
    answer(status, "application/json", format!("{{\"message\":\"{refusal}\"}}"))
}

async fn raft(shared: &Arc<Shared>, request: Request<Incoming>) -> Response<Outgoing> {
    if request.method() != Method::POST {
        return method_not_allowed("POST");
    }
    let response = match check(shared, &request) {
        Err(response) => *response,
        Ok(()) => {
            add_remote(shared, &request);
            raft_message(shared, request).await
        }
    };
    with_cluster_id(shared, response)
}

async fn raft_message(shared: &Shared, request: Request<Incoming>) -> Response<Outgoing> {
    let failed = |what: &'static str, cause: &dyn std::error::Error, response: &str| {
        shared.stats.unknown_received_failures.fetch_add(1, Relaxed);
        tracing::warn!(local_member_id = shared.member_hex, error = %error_chain(cause), "{what}");
        error(StatusCode::BAD_REQUEST, response)
    };
    let bytes = match BodyReader::new(request.into_body()).read_to_end(MESSAGE_LIMIT).await {
        Ok(bytes) => bytes,
        Err(cause) => return failed("failed to read Raft message", &cause, "error reading raft message"),
    };
    let len = bytes.len() as u64;
    let message = match Message::decode(bytes) {
        Ok(message) => message,
        Err(cause) => return failed("failed to unmarshal Raft message", &cause, "error unmarshalling raft message"),
    };
    if let Some(stats) = shared.stats.get(message.from) {
        stats.received_bytes.fetch_add(len, Relaxed);
    }
    match shared.deliver(message) {
        Ok(()) => no_content(),
        Err(refusal) => refused(refusal),
    }
}

fn stream(shared: &Arc<Shared>, request: &Request<Incoming>) -> Response<Outgoing> {
    if request.method() != Method::GET {
        return method_not_allowed("GET");
    }
    let mut response = match check(shared, request) {
        Ok(()) => attach(shared, request),
        Err(response) => *response,
    };
    response.headers_mut().insert(SERVER_VERSION, version::value(&shared.config.server_version));
    response.headers_mut().insert(version::DOLMEN, version::DOLMEN_VERSION);
    with_cluster_id(shared, response)
}

fn attach(shared: &Arc<Shared>, request: &Request<Incoming>) -> Response<Outgoing> {
    let path = request.uri().path();
    let (kind, from) = match path.strip_prefix("/raft/stream/").and_then(|rest| rest.split_once('/')) {
        Some(("message", from)) => (StreamKind::Message, from),
        Some(("msgapp", from)) => (StreamKind::MsgApp, from),
        _ => return error(StatusCode::NOT_FOUND, "invalid path"),
    };
    let Some(from) = version::parse_id(from) else {
        tracing::warn!(local_member_id = shared.member_hex, path = from, "failed to parse path into ID");
        return error(StatusCode::NOT_FOUND, "invalid from");
    };
    let remote_peer_id_from = hex_id(from);
    if shared.is_removed(from) {
        tracing::warn!(remote_peer_id_from, "rejected stream from remote peer because it was removed");
        return error(StatusCode::GONE, "removed member");
    }
    let Some(peer) = shared.peer(from) else {
        shared.add_remote(from, version::text(request.headers(), &PEER_URLS));
        tracing::warn!(remote_peer_id_from, cluster_id = shared.cluster_hex, "failed to find remote peer in cluster");
        return error(StatusCode::NOT_FOUND, "error sender not found");
    };
    let to = version::text(request.headers(), &RAFT_TO);
    if to != shared.member_hex {
        tracing::warn!(
            remote_peer_id_from,
            remote_peer_id_header = to,
            cluster_id = shared.cluster_hex,
            "ignored streaming request; ID mismatch"
        );
        return error(StatusCode::PRECONDITION_FAILED, "to field mismatch");
    }
    peer.greeted(request.headers());
    let mut response = Response::new(Outgoing::Stream(StreamBody::attach(peer, kind)));
    // The body ends when a newer connection takes over; nothing should follow it on this one.
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn take_snapshot(shared: &Arc<Shared>, request: Request<Incoming>) -> Response<Outgoing> {
    let response = if request.method() != Method::POST {
        method_not_allowed("POST")
    } else if let Err(response) = check(shared, &request) {
        with_cluster_id(shared, *response)
    } else {
        add_remote(shared, &request);
        with_cluster_id(shared, snapshot_body(shared, request).await)
    };
    if !response.status().is_success() {
        shared.stats.unknown_snapshot_failures.fetch_add(1, Relaxed);
    }
    response
}

async fn snapshot_body(shared: &Arc<Shared>, request: Request<Incoming>) -> Response<Outgoing> {
    let mut body = BodyReader::new(request.into_body());
    let message = match decode_framed(&mut body, SNAPSHOT_MESSAGE_LIMIT).await {
        Ok(message) => message,
        Err(cause) => {
            let text = match &cause {
                DecodeError::TooLong(_) => "rafthttp: error limit exceeded".to_owned(),
                _ => error_chain(&cause),
            };
            tracing::warn!(local_member_id = shared.member_hex, error = text, "failed to decode Raft message");
            return error(StatusCode::BAD_REQUEST, &format!("failed to decode raft message ({text})"));
        }
    };
    let from = message.from;
    let upload = {
        let shared = Arc::clone(shared);
        tokio::spawn(async move { snapshot::receive(&shared, message, body).await })
    };
    shared.begin_upload(from, upload.abort_handle());
    let Ok(received) = upload.await else {
        return error(StatusCode::SERVICE_UNAVAILABLE, "a later snapshot of the same sender took its place");
    };
    match received {
        Ok(()) => no_content(),
        Err(snapshot::ReceiveError::Type) => error(StatusCode::BAD_REQUEST, "wrong raft message type"),
        Err(snapshot::ReceiveError::Refused(refusal)) => refused(refusal),
        Err(snapshot::ReceiveError::Save(cause)) => {
            error(StatusCode::INTERNAL_SERVER_ERROR, &format!("failed to save KV snapshot ({cause})"))
        }
    }
}

async fn api(shared: &Shared, request: Request<Incoming>) -> Response<Outgoing> {
    let (head, body) = request.into_parts();
    let mut body = BodyReader::new(body);
    let body = match body.read_to_end(API_BODY_LIMIT).await {
        Ok(body) => body,
        Err(DecodeError::TooLong(_)) => {
            body.discard(API_BODY_LIMIT).await;
            return error(StatusCode::PAYLOAD_TOO_LARGE, "request body is too large");
        }
        Err(_) => return error(StatusCode::BAD_REQUEST, "error reading body"),
    };
    let request = ApiRequest {
        method: head.method,
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: head.headers,
        body,
    };
    let given = shared.api.handle(request).await;
    let mut response = Response::new(Outgoing::Full(given.body));
    *response.status_mut() = given.status;
    *response.headers_mut() = given.headers;
    response
}
