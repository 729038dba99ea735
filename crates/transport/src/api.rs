//! The seam to the rest of the peer port: endpoints that are not raft's.

use std::pin::Pin;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};

/// A request on the peer port, its body read whole (at most 1 MiB).
#[derive(Clone, Debug)]
pub struct ApiRequest {
    pub method: Method,
    /// Without the query.
    pub path: String,
    /// Empty when there is none.
    pub query: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// The answer; `Content-Length` and `Date` are added on the way out.
#[derive(Clone, Debug)]
pub struct ApiResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A future of an answer.
pub type ApiFuture = Pin<Box<dyn Future<Output = ApiResponse> + Send>>;

/// Serves `/members`, `/members/promote/`, `/members/hashkv`, `/version`, `/leases`, `/leases/internal` and
/// `/downgrade/enabled`, and answers 404 to anything else.
///
/// The future runs on the transport's thread, so it must not block.
pub trait PeerApi: Send + Sync {
    fn handle(&self, request: ApiRequest) -> ApiFuture;

    /// The body of the answer 200 to a renewal (`POST /leases`) with body `request`, when it can be told at once. `None`
    /// leaves the request to [`PeerApi::handle`].
    fn renew_lease(&self, request: &[u8]) -> Option<Bytes> {
        let _ = request;
        None
    }
}
