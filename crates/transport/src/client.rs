//! Requests that a server makes of its peers outside raft: who is there, what they run, leases of the leader.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dolmen_net::ClientTls;
use dolmen_types::{ClusterId, MemberId};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use crate::http1::{Call, HttpClient, PeerResponse, RequestError};
use crate::net::Dialer;
use crate::url::PeerUrl;
use crate::version::{self, CLUSTER_ID};

/// Bytes of answer at most: lease queries may list many keys.
const ANSWER_LIMIT: u64 = 100 << 20;
const PROTOBUF: &str = "application/protobuf";

/// `GET /members` of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteMembers {
    pub cluster_id: ClusterId,
    /// A JSON array of members.
    pub json: Bytes,
}

/// Asks peers by URL (`http://host:port`). Every call is bounded by its `timeout`, and keeps its connection for the
/// next. Must be used inside a tokio runtime; a clone shares the connections.
#[derive(Clone)]
pub struct PeerClient(Arc<HttpClient>);

impl PeerClient {
    /// `tls` is for `https` URLs, `dial_timeout` for one connect.
    pub fn new(tls: Option<ClientTls>, dial_timeout: Duration) -> Self {
        Self(HttpClient::new(Dialer { timeout: dial_timeout, tls, local_addr: None }))
    }

    /// The JSON of `GET /version`: `etcdserver`, `etcdcluster` and, from 3.6, `storage`.
    pub async fn get_version(&self, url: &PeerUrl, timeout: Duration) -> Result<Bytes, RequestError> {
        Ok(self.get_ok(url, "/version", timeout).await?.body)
    }

    /// The members and the cluster id.
    pub async fn get_members(&self, url: &PeerUrl, timeout: Duration) -> Result<RemoteMembers, RequestError> {
        let response = self.get_ok(url, "/members", timeout).await?;
        match version::parse_id(version::text(&response.headers, &CLUSTER_ID)) {
            Some(cluster_id) => Ok(RemoteMembers { cluster_id, json: response.body }),
            None => Err(unexpected(url, &response)),
        }
    }

    /// Whether a downgrade is under way, as the peer's cluster sees it.
    pub async fn get_downgrade_enabled(&self, url: &PeerUrl, timeout: Duration) -> Result<bool, RequestError> {
        let response = self.get_ok(url, "/downgrade/enabled", timeout).await?;
        match response.body.trim_ascii() {
            b"true" => Ok(true),
            b"false" => Ok(false),
            _ => Err(unexpected(url, &response)),
        }
    }

    /// Forwards an encoded `LeaseKeepAliveRequest`. 200 carries a `LeaseKeepAliveResponse`; 404 an unknown lease, 408 a
    /// leader that is behind.
    pub async fn post_leases(
        &self,
        url: &PeerUrl,
        body: Bytes,
        timeout: Duration,
    ) -> Result<PeerResponse, RequestError> {
        self.send(url, Method::POST, "/leases", content_type(PROTOBUF), body, timeout).await
    }

    /// Forwards an encoded `LeaseInternalRequest`. Statuses are those of [`PeerClient::post_leases`].
    pub async fn post_leases_internal(
        &self,
        url: &PeerUrl,
        body: Bytes,
        timeout: Duration,
    ) -> Result<PeerResponse, RequestError> {
        self.send(url, Method::POST, "/leases/internal", content_type(PROTOBUF), body, timeout).await
    }

    /// Asks for the hash of the key space at a revision. The cluster id goes with it; 412 is another cluster, 400 a
    /// revision that cannot be read, with etcd's text.
    pub async fn get_hashkv(
        &self,
        url: &PeerUrl,
        cluster_id: ClusterId,
        revision: i64,
        timeout: Duration,
    ) -> Result<PeerResponse, RequestError> {
        let mut headers = content_type("application/json");
        headers.insert(CLUSTER_ID, version::value(&dolmen_types::hex_id(cluster_id)));
        let body = if revision == 0 { "{}".to_owned() } else { format!("{{\"revision\":{revision}}}") };
        self.send(url, Method::GET, "/members/hashkv", headers, body.into(), timeout).await
    }

    /// Asks the leader to promote a learner. 200 carries the JSON members; 404 an unknown id, 412 no learner or one that
    /// is behind, with etcd's text. `token` is the caller's auth token.
    pub async fn promote(
        &self,
        url: &PeerUrl,
        id: MemberId,
        token: Option<&str>,
        timeout: Duration,
    ) -> Result<PeerResponse, RequestError> {
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            headers.insert(AUTHORIZATION, version::value(token));
        }
        self.send(url, Method::POST, &format!("/members/promote/{id}"), headers, Bytes::new(), timeout).await
    }

    /// What a member says of itself under a path of Dolmen's own, `/dolmen/v1/...`; `None` from a Go member.
    pub async fn get_own(&self, url: &PeerUrl, path: &str, timeout: Duration) -> Result<Option<Bytes>, RequestError> {
        let response = self.send(url, Method::GET, path, HeaderMap::new(), Bytes::new(), timeout).await?;
        match response.status {
            StatusCode::OK => Ok(Some(response.body)),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(unexpected(url, &response)),
        }
    }

    pub(crate) fn dialer(&self) -> &Dialer {
        self.0.dialer()
    }

    async fn get_ok(&self, url: &PeerUrl, path: &str, timeout: Duration) -> Result<PeerResponse, RequestError> {
        let response = self.send(url, Method::GET, path, HeaderMap::new(), Bytes::new(), timeout).await?;
        if response.status == StatusCode::OK { Ok(response) } else { Err(unexpected(url, &response)) }
    }

    async fn send(
        &self,
        url: &PeerUrl,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
        timeout: Duration,
    ) -> Result<PeerResponse, RequestError> {
        self.0.call(url, Call { method, path, headers, body, limit: ANSWER_LIMIT, timeout }).await
    }
}

fn content_type(value: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))])
}

fn unexpected(url: &PeerUrl, response: &PeerResponse) -> RequestError {
    let body = String::from_utf8_lossy(&response.body[..response.body.len().min(512)]).into_owned();
    RequestError::Unexpected { url: url.as_str().into(), status: response.status.as_u16(), body }
}
