//! One call: who makes it, over what connection, until when, and what of the server it is answered with.

use std::net::SocketAddr;
use std::sync::Arc;

use dolmen_node::Agreement;
use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;

use crate::frame;
use crate::methods::Method;
use crate::server::{Deadline, Local};
use crate::status::{self, Status};

/// What handlers are given beside the message.
pub struct Call {
    pub local: Arc<Local>,
    pub method: Method,
    /// When the caller stops waiting.
    pub deadline: Deadline,
    pub caller: Caller,
    pub transport: Arc<Transport>,
}

/// What a caller says of itself in the headers of one call. Nothing is verified.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// The value of `token`, or else of `authorization`, as it came.
    pub token: Option<HeaderValue>,
    /// It would rather fail than talk to a member that has no leader.
    pub wants_leader: bool,
}

/// What is known of a connection; all its calls share it.
#[derive(Clone, Debug, Default)]
pub struct Transport {
    /// The other end; `None` on a Unix socket.
    pub peer: Option<SocketAddr>,
    /// It runs over TLS.
    pub secure: bool,
    /// The common name of the client's certificate, which the handshake has verified.
    pub common_name: Option<String>,
}

impl Call {
    /// Lets a call in, in etcd's order: is the member a learner, which client is it, does it want a leader. And before the
    /// client: does a majority hold this member's state for wrong.
    ///
    /// # Errors
    /// Malformed headers; what of the four says no.
    pub fn admit(
        local: Arc<Local>,
        transport: Arc<Transport>,
        method: Method,
        headers: &HeaderMap,
    ) -> Result<Self, Status> {
        frame::encoding(headers)?;
        // A timeout beyond what a clock can hold is none.
        let deadline = frame::timeout(headers)?.and_then(|timeout| Instant::now().checked_add(timeout));
        let now = local.node().status();
        // A serializable range is allowed, which its handler knows once the request is decoded.
        if now.is_learner && !matches!(method, Method::Status | Method::Range | Method::Snapshot) {
            return Err(status::NOT_SUPPORTED_FOR_LEARNER);
        }
        // Only who looks for what is wrong is served by a member whose state is known to be.
        if local.node().agreement() == Agreement::Outvoted && !method.is_for_inspection() {
            return Err(status::CORRUPT);
        }
        let version = match headers.get("client-api-version") {
            None => "unknown",
            Some(version) => std::str::from_utf8(version.as_bytes()).map_err(|_| status::INVALID_CLIENT_API_VERSION)?,
        };
        local.stats.client_version(version, method.info().is_stream());
        let caller = Caller::read(headers);
        if caller.wants_leader && now.leader == 0 {
            return Err(status::NO_LEADER);
        }
        Ok(Self { local, method, deadline, caller, transport })
    }
}

impl Caller {
    fn read(headers: &HeaderMap) -> Self {
        Self {
            // The header's bytes are shared, not copied.
            token: headers.get("token").or_else(|| headers.get("authorization")).cloned(),
            wants_leader: headers.get("hasleader").is_some_and(|value| value == "true"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_under_two_names() {
        let token = |headers: &[(&'static str, &'static str)]| {
            let headers = headers
                .iter()
                .map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)));
            Caller::read(&headers.collect()).token
        };
        assert_eq!(token(&[]), None);
        assert_eq!(token(&[("authorization", "a.1")]).unwrap(), "a.1");
        assert_eq!(token(&[("authorization", "a.1"), ("token", "b.2")]).unwrap(), "b.2");
    }
}
