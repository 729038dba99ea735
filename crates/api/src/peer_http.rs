//! The endpoints of the peer port that are not raft's: members, versions, hashes, and leases asked of their leader.
//!
//! Functions of a request; whoever owns the peer port calls [`PeerHttp::handle`] from any runtime.

use std::sync::Arc;

use bytes::Bytes;
use dolmen_machine::ApplyError;
use dolmen_mvcc::RangeError;
use dolmen_node::{Reply, Request, RequestError};
use dolmen_proto::etcdserverpb::{HashKvResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use dolmen_proto::leasepb::{LeaseInternalRequest, LeaseInternalResponse};
use dolmen_types::hex_id;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, Method, StatusCode};
use prost::Message;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::http_mux::version_json;
use crate::maintenance;
use crate::server::Local;

/// Bytes of body of a lease request; a real one holds an id and a flag.
const MAX_LEASE_BODY: usize = 64 * 1024;
const CLUSTER_ID: HeaderName = HeaderName::from_static("x-etcd-cluster-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const LEASE_NOT_FOUND: &str = "lease not found";
const NOT_PRIMARY: &str = "not a primary lessor";
const BEHIND: &str = "waiting for node to catch up its applied index has timed out";

/// A request on the peer port, its body read whole.
#[derive(Clone, Debug)]
pub struct PeerRequest {
    pub method: Method,
    /// Without the query.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// The answer to a [`PeerRequest`].
#[derive(Clone, Debug)]
pub struct PeerResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl PeerResponse {
    fn new(content_type: HeaderValue, body: impl Into<Bytes>) -> Self {
        Self {
            status: StatusCode::OK,
            headers: HeaderMap::from_iter([(CONTENT_TYPE, content_type)]),
            body: body.into(),
        }
    }

    /// An error as Go's `http.Error` writes it.
    fn error(status: StatusCode, text: impl std::fmt::Display) -> Self {
        let mut response = Self::new(TEXT, format!("{text}\n"));
        response.status = status;
        response.headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }

    fn method_not_allowed(allowed: &'static str) -> Self {
        let mut response = Self::error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        response.headers.insert(ALLOW, HeaderValue::from_static(allowed));
        response
    }
}

/// Answers other members. Cheap to clone.
#[derive(Clone)]
pub struct PeerHttp {
    pub(crate) local: Arc<Local>,
}

impl PeerHttp {
    /// Answers one request; 404 for every path that is not one of ours.
    pub async fn handle(&self, request: PeerRequest) -> PeerResponse {
        match request.path.as_str() {
            "/members" => self.get(&request).unwrap_or_else(|| self.members()),
            "/members/hashkv" => match self.get(&request) {
                Some(refused) => refused,
                None => self.hash_kv(&request).await,
            },
            "/version" => self.get(&request).unwrap_or_else(|| PeerResponse::new(JSON, version_json(&self.local))),
            "/downgrade/enabled" => match self.get(&request) {
                Some(refused) => refused,
                None => self.downgrade_enabled().await,
            },
            "/leases" => match post(&request) {
                Some(refused) => refused,
                None => self.renew(request.body).await,
            },
            "/leases/internal" => match post(&request) {
                Some(refused) => refused,
                None => self.time_to_live(request.body).await,
            },
            path if path.starts_with("/members/promote/") => {
                PeerResponse::error(StatusCode::NOT_IMPLEMENTED, "not yet supported: promoting a learner")
            }
            _ => PeerResponse::error(StatusCode::NOT_FOUND, "404 page not found"),
        }
    }

    /// The body of the answer to a renewal (`POST /leases`) that only moves a deadline here. `None`: see
    /// [`PeerHttp::handle`].
    pub fn renew_at_once(&self, body: &[u8]) -> Option<Bytes> {
        let request = LeaseKeepAliveRequest::decode(body).ok()?;
        let ttl = self.local.node().renew_lease(request.id)?;
        Some(LeaseKeepAliveResponse { header: None, id: request.id, ttl }.encode_to_vec().into())
    }

    fn get(&self, request: &PeerRequest) -> Option<PeerResponse> {
        (request.method != Method::GET).then(|| PeerResponse::method_not_allowed("GET"))
    }

    fn with_cluster_id(&self, mut response: PeerResponse) -> PeerResponse {
        let id = hex_id(self.local.node().status().cluster_id);
        if let Ok(value) = HeaderValue::from_str(&id) {
            response.headers.insert(CLUSTER_ID, value);
        }
        response
    }

    fn members(&self) -> PeerResponse {
        let members = self.local.node().members();
        let members: Vec<_> = members.members.values().collect();
        let response = match serde_json::to_string(&members) {
            Ok(json) => PeerResponse::new(JSON, json + "\n"),
            Err(error) => PeerResponse::error(StatusCode::INTERNAL_SERVER_ERROR, error),
        };
        self.with_cluster_id(response)
    }

    async fn hash_kv(&self, request: &PeerRequest) -> PeerResponse {
        let ours = hex_id(self.local.node().status().cluster_id);
        if request.headers.get(CLUSTER_ID).is_some_and(|theirs| !theirs.is_empty() && theirs != ours.as_str()) {
            return self.with_cluster_id(PeerResponse::error(StatusCode::PRECONDITION_FAILED, "cluster ID mismatch"));
        }
        let Some(revision) = hash_revision(&request.body) else {
            return PeerResponse::error(StatusCode::BAD_REQUEST, "error unmarshalling request");
        };
        let response = match maintenance::hash_at(&self.local, revision).await {
            Ok(Ok(hash)) => PeerResponse::new(JSON, hash_json(&hash)),
            Ok(Err(RangeError::Compacted)) => {
                PeerResponse::error(StatusCode::BAD_REQUEST, "mvcc: required revision has been compacted")
            }
            Ok(Err(RangeError::FutureRevision)) => {
                PeerResponse::error(StatusCode::BAD_REQUEST, "mvcc: required revision is a future revision")
            }
            Ok(Err(error)) => PeerResponse::error(StatusCode::INTERNAL_SERVER_ERROR, error),
            Err(status) => PeerResponse::error(StatusCode::INTERNAL_SERVER_ERROR, status),
        };
        self.with_cluster_id(response)
    }

    async fn downgrade_enabled(&self) -> PeerResponse {
        let deadline = Some(Instant::now() + self.local.config().request_timeout);
        let response = match self.local.read_index(deadline).await {
            Ok(()) => PeerResponse::new(TEXT, "false"),
            Err(status) => {
                PeerResponse::error(StatusCode::INTERNAL_SERVER_ERROR, format!("failed linearized read: {status}"))
            }
        };
        self.with_cluster_id(response)
    }

    async fn renew(&self, body: Bytes) -> PeerResponse {
        let Ok(request) = LeaseKeepAliveRequest::decode(body) else {
            return PeerResponse::error(StatusCode::BAD_REQUEST, "error unmarshalling request");
        };
        match self.local.mailbox.call(self.local.node(), Request::LeaseRenew { id: request.id }).await {
            Reply::LeaseRenewed(Ok(ttl)) if ttl > 0 => {
                protobuf(&LeaseKeepAliveResponse { header: None, id: request.id, ttl })
            }
            Reply::LeaseRenewed(Ok(_)) => PeerResponse::error(StatusCode::NOT_FOUND, LEASE_NOT_FOUND),
            Reply::LeaseRenewed(Err(error)) => lease_error(error, StatusCode::BAD_REQUEST),
            _ => PeerResponse::error(StatusCode::INTERNAL_SERVER_ERROR, "unexpected answer"),
        }
    }

    async fn time_to_live(&self, body: Bytes) -> PeerResponse {
        let Ok(request) = LeaseInternalRequest::decode(body) else {
            return PeerResponse::error(StatusCode::BAD_REQUEST, "error unmarshalling request");
        };
        let ask = request.lease_time_to_live_request.unwrap_or_default();
        let ask = Request::LeaseTimeToLive { id: ask.id, keys: ask.keys };
        match self.local.mailbox.call(self.local.node(), ask).await {
            Reply::LeaseTimeToLive(Ok(response)) if response.ttl < 0 => {
                PeerResponse::error(StatusCode::NOT_FOUND, LEASE_NOT_FOUND)
            }
            Reply::LeaseTimeToLive(Ok(mut response)) => {
                response.header = Some(Default::default());
                protobuf(&LeaseInternalResponse { lease_time_to_live_response: Some(response) })
            }
            Reply::LeaseTimeToLive(Err(error)) => lease_error(error, StatusCode::INTERNAL_SERVER_ERROR),
            _ => PeerResponse::error(StatusCode::INTERNAL_SERVER_ERROR, "unexpected answer"),
        }
    }
}

fn post(request: &PeerRequest) -> Option<PeerResponse> {
    if request.method != Method::POST {
        // etcd names no allowed method here.
        return Some(PeerResponse::error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"));
    }
    (request.body.len() > MAX_LEASE_BODY)
        .then(|| PeerResponse::error(StatusCode::PAYLOAD_TOO_LARGE, "request body too large"))
}

fn protobuf(message: &impl Message) -> PeerResponse {
    PeerResponse::new(HeaderValue::from_static("application/protobuf"), message.encode_to_vec())
}

fn lease_error(error: RequestError, not_primary: StatusCode) -> PeerResponse {
    match error {
        RequestError::Apply(ApplyError::LeaseNotFound) => PeerResponse::error(StatusCode::NOT_FOUND, LEASE_NOT_FOUND),
        RequestError::NotLeader { .. } | RequestError::LeaderChanged => PeerResponse::error(not_primary, NOT_PRIMARY),
        RequestError::Timeout => PeerResponse::error(StatusCode::REQUEST_TIMEOUT, BEHIND),
        error => PeerResponse::error(StatusCode::INTERNAL_SERVER_ERROR, error),
    }
}

/// The revision that a JSON `HashKVRequest` asks for, 0 when it names none.
fn hash_revision(body: &[u8]) -> Option<i64> {
    match serde_json::from_slice(body).ok()? {
        Value::Object(fields) => fields.get("revision").map_or(Some(0), Value::as_i64),
        _ => None,
    }
}

/// A `HashKVResponse` as Go's plain JSON encoder writes it: zeroes left out, numbers as numbers.
fn hash_json(hash: &HashKvResponse) -> String {
    let mut fields = Map::new();
    let revision = hash.header.as_ref().map_or(0, |header| header.revision);
    fields.insert("header".into(), if revision == 0 { json!({}) } else { json!({ "revision": revision }) });
    for (name, value) in [
        ("hash", i64::from(hash.hash)),
        ("compact_revision", hash.compact_revision),
        ("hash_revision", hash.hash_revision),
    ] {
        if value != 0 {
            fields.insert(name.into(), value.into());
        }
    }
    Value::Object(fields).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_requests_and_answers_are_plain_json() {
        assert_eq!(hash_revision(b"{\"revision\":5}"), Some(5));
        assert_eq!(hash_revision(b"{}"), Some(0));
        assert_eq!(hash_revision(b"{\"revision\":\"5\"}"), None);
        assert_eq!(hash_revision(b""), None);
        assert_eq!(hash_revision(b"[]"), None);
        let header = Some(dolmen_proto::etcdserverpb::ResponseHeader { revision: 5, ..Default::default() });
        let hash = HashKvResponse { header, hash: 123, compact_revision: -1, hash_revision: 5 };
        let parsed: Value = serde_json::from_str(&hash_json(&hash)).unwrap();
        let expected = json!({"header": {"revision": 5}, "hash": 123, "compact_revision": -1, "hash_revision": 5});
        assert_eq!(parsed, expected);
    }

    #[test]
    fn a_lease_asked_of_the_wrong_member_says_so() {
        let answer = |error| lease_error(error, StatusCode::BAD_REQUEST);
        let wrong = answer(RequestError::NotLeader { leader: 1 });
        assert_eq!((wrong.status, wrong.body.as_ref()), (StatusCode::BAD_REQUEST, &b"not a primary lessor\n"[..]));
        let unknown = answer(RequestError::Apply(ApplyError::LeaseNotFound));
        assert_eq!((unknown.status, unknown.body.as_ref()), (StatusCode::NOT_FOUND, &b"lease not found\n"[..]));
        assert_eq!(answer(RequestError::Timeout).status, StatusCode::REQUEST_TIMEOUT);
    }
}
