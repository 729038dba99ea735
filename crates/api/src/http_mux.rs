//! The plain HTTP side of the client port: version, health, metrics, and what etcd answers to anything else.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HOST, HeaderName, HeaderValue, ORIGIN, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};
use serde_json::json;

use crate::body::Body;
use crate::health::{self, Check, Probe};
use crate::server::Local;
use crate::{methods, prometheus, status};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Which pages a listener has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// All, behind the host and CORS checks.
    Client,
    /// Health and metrics only, unchecked (`--listen-metrics-urls`).
    Metrics,
}

/// Answers one plain request. `secure`: it came over TLS.
pub async fn serve(local: Arc<Local>, head: Parts, pages: Pages, secure: bool) -> Response<Body> {
    if pages == Pages::Metrics {
        return health_and_metrics(&local, &head).await.unwrap_or_else(not_found);
    }
    if !secure && let Some(refused) = check_host(&local, &head) {
        return refused;
    }
    let mut response = if head.method == Method::OPTIONS {
        Response::new(Body::Empty)
    } else {
        match health_and_metrics(&local, &head).await {
            Some(response) => response,
            None => other_pages(&local, &head),
        }
    };
    add_cors(&local, &head.headers, response.headers_mut());
    response
}

async fn health_and_metrics(local: &Arc<Local>, head: &Parts) -> Option<Response<Body>> {
    let query = Query::parse(head.uri.query().unwrap_or_default());
    Some(match head.uri.path() {
        "/health" => match get_only(head) {
            Some(refused) => refused,
            None => health_page(local, &query).await,
        },
        "/metrics" => metrics_page(local).await,
        path => {
            let (probe, check) = find_probe(path)?;
            match get_only(head) {
                Some(refused) => refused,
                None => probe_page(local, probe, check, &query).await,
            }
        }
    })
}

fn find_probe(path: &str) -> Option<(Probe, Option<Check>)> {
    let path = path.strip_prefix('/')?;
    let (name, check) = match path.split_once('/') {
        Some((name, check)) => (name, Some(check)),
        None => (path, None),
    };
    let probe = Probe::ALL.into_iter().find(|probe| probe.name() == name)?;
    let check = match check {
        None => None,
        Some(wanted) => Some(*probe.checks().iter().find(|check| check.name() == wanted)?),
    };
    Some((probe, check))
}

async fn health_page(local: &Local, query: &Query) -> Response<Body> {
    let serializable = query.first("serializable").is_some_and(|value| value == "true");
    match health::health(local, &query.set("exclude"), serializable).await {
        None => page(TEXT, "{\"health\":\"true\",\"reason\":\"\"}"),
        Some(reason) => {
            let body = format!("{{\"health\":\"false\",\"reason\":{}}}", json!(reason));
            error(StatusCode::SERVICE_UNAVAILABLE, &body)
        }
    }
}

async fn probe_page(local: &Local, probe: Probe, check: Option<Check>, query: &Query) -> Response<Body> {
    let report = health::probe(local, probe, check, &query.set("exclude")).await;
    if !report.well {
        return error(StatusCode::SERVICE_UNAVAILABLE, &report.lines);
    }
    let text = if query.first("verbose").is_some() { report.lines + "ok\n" } else { "ok\n".into() };
    let mut response = page(TEXT, text);
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

async fn metrics_page(local: &Arc<Local>) -> Response<Body> {
    let server = local.server.clone();
    // Reading /proc and adding up counters takes a while: not on a thread that serves requests or probes.
    match tokio::task::spawn_blocking(move || prometheus::render(&server)).await {
        Ok(text) => page(HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"), text),
        Err(_) => error(StatusCode::SERVICE_UNAVAILABLE, &status::STOPPED.message),
    }
}

fn other_pages(local: &Local, head: &Parts) -> Response<Body> {
    match head.uri.path() {
        "/version" => get_only(head).unwrap_or_else(|| page(JSON, version_json(local))),
        "/debug/vars" => get_only(head)
            .unwrap_or_else(|| page(HeaderValue::from_static("application/json; charset=utf-8"), debug_vars(local))),
        path => match gateway_route(path) {
            Some(route) => gateway(&route, &head.method),
            None => not_found(),
        },
    }
}

/// The path of the JSON gateway that a request means, whether or not there is one by that name.
fn gateway_route(path: &str) -> Option<Cow<'_, str>> {
    if path.starts_with("/v3/") {
        return Some(path.into());
    }
    path.strip_prefix("/v3beta/").map(|rest| format!("/v3/{rest}").into())
}

fn gateway(route: &str, method: &Method) -> Response<Body> {
    let (status, text) = if !methods::is_route(route) {
        (StatusCode::NOT_FOUND, "{\"code\":5,\"message\":\"Not Found\"}")
    } else if method != Method::POST {
        (StatusCode::NOT_IMPLEMENTED, "{\"code\":12,\"message\":\"Method Not Allowed\"}")
    } else {
        (StatusCode::NOT_IMPLEMENTED, "{\"code\":12,\"message\":\"not yet supported: the JSON gateway\"}")
    };
    let mut response = page(JSON, text);
    *response.status_mut() = status;
    response
}

/// The body of `/version`, here and on the peer port.
pub fn version_json(local: &Local) -> String {
    let members = local.node().members();
    format!(
        "{{\"etcdserver\":{},\"etcdcluster\":{},\"storage\":{}}}",
        json!(local.config().server_version),
        json!(members.cluster_version.as_deref().unwrap_or("not_decided")),
        json!(members.storage_version.as_deref().unwrap_or("unknown")),
    )
}

fn debug_vars(local: &Local) -> String {
    let status = local.node().status();
    let role = if status.is_leader() {
        "StateLeader"
    } else if status.is_learner {
        "StateLearner"
    } else {
        "StateFollower"
    };
    let raft = json!({
        "id": dolmen_types::hex_id(status.member_id),
        "term": status.term,
        "commit": status.committed,
        "lead": dolmen_types::hex_id(status.leader),
        "raftState": role,
        "applied": status.applied,
    });
    let fds = prometheus::fd_limit();
    let args: Vec<String> = std::env::args().collect();
    format!(
        "{{\n\"cmdline\": {},\n\"file_descriptor_limit\": {},\n\"memstats\": {},\n\"raft.status\": {}\n}}\n",
        json!(args),
        fds,
        json!({ "Sys": prometheus::resident_bytes() }),
        raft
    )
}

/// etcd's check against DNS rebinding: a plain request must name a host that is expected here.
fn check_host(local: &Local, head: &Parts) -> Option<Response<Body>> {
    let allowed = &local.config().host_whitelist;
    let host = head.headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| head.uri.authority().map(|authority| authority.as_str())).unwrap_or_default();
    let host = strip_port(host);
    if allowed.is_empty() || allowed.contains("*") || allowed.contains(host) {
        return None;
    }
    let text = format!(
        "\netcd received your request, but the Host header was unrecognized.\n\n\
         To fix this, choose one of the following options:\n\
         - Enable TLS, then any HTTPS request will be allowed.\n\
         - Add the hostname you want to use to the whitelist in settings.\n  - e.g. etcd --host-whitelist {host:?}\n\n\
         This requirement has been added to help prevent \"DNS Rebinding\" attacks (CVE-2018-5702).\n"
    );
    Some(error(StatusCode::MISDIRECTED_REQUEST, &text))
}

fn strip_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // An IPv6 address in brackets may have no port.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            name.trim_start_matches('[').trim_end_matches(']')
        }
        _ => host.trim_start_matches('[').trim_end_matches(']'),
    }
}

fn add_cors(local: &Local, request: &HeaderMap, response: &mut HeaderMap) {
    let allowed = &local.config().cors;
    let origin = if allowed.contains("*") {
        HeaderValue::from_static("*")
    } else {
        match request.get(ORIGIN) {
            Some(origin) if origin.to_str().is_ok_and(|origin| allowed.contains(origin)) => origin.clone(),
            _ => return,
        }
    };
    let put = |headers: &mut HeaderMap, name: &'static str, value| {
        headers.insert(HeaderName::from_static(name), value);
    };
    put(response, "access-control-allow-methods", HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE"));
    put(response, "access-control-allow-origin", origin);
    put(response, "access-control-allow-headers", HeaderValue::from_static("accept, content-type, authorization"));
}

fn get_only(head: &Parts) -> Option<Response<Body>> {
    (head.method != Method::GET).then(|| method_not_allowed("GET"))
}

fn method_not_allowed(allowed: &'static str) -> Response<Body> {
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

fn not_found() -> Response<Body> {
    error(StatusCode::NOT_FOUND, "404 page not found")
}

fn page(content_type: HeaderValue, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::plain(text));
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// An error as Go's `http.Error` writes it.
pub fn error(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = page(TEXT, format!("{text}\n"));
    *response.status_mut() = status;
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A parsed query string: pairs in order.
struct Query(Vec<(String, String)>);

impl Query {
    fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (unescape(name), unescape(value))
                })
                .collect(),
        )
    }

    fn first(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn set(&self, name: &str) -> BTreeSet<String> {
        self.0.iter().filter(|(known, value)| known == name && !value.is_empty()).map(|(_, v)| v.clone()).collect()
    }
}

/// Undoes form encoding; what is no valid escape stays as it is.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        let escaped = if first == b'%' { tail.first_chunk::<2>() } else { None };
        let digits = escaped.and_then(|pair| {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8)
        });
        match digits {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => bytes.push(if first == b'+' { b' ' } else { first }),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_have_exactly_etcds_paths() {
        assert_eq!(find_probe("/livez"), Some((Probe::Livez, None)));
        assert_eq!(find_probe("/readyz/linearizable_read"), Some((Probe::Readyz, Some(Check::LinearizableRead))));
        assert_eq!(find_probe("/livez/serializable_read"), Some((Probe::Livez, Some(Check::SerializableRead))));
        for path in ["/livez/linearizable_read", "/readyz/", "/readyz/x", "/healthz", "readyz", "/"] {
            assert_eq!(find_probe(path), None, "{path}");
        }
    }

    #[test]
    fn the_gateways_paths_are_known_by_the_table_of_methods() {
        let status = |path: &str, method: Method| gateway_route(path).map(|route| gateway(&route, &method).status());
        assert_eq!(status("/v3/kv/range", Method::POST), Some(StatusCode::NOT_IMPLEMENTED));
        assert_eq!(status("/v3beta/kv/range", Method::GET), Some(StatusCode::NOT_IMPLEMENTED));
        assert_eq!(status("/v3/kv/nope", Method::POST), Some(StatusCode::NOT_FOUND));
        assert_eq!(status("/v3alpha/kv/range", Method::POST), None);
    }

    #[test]
    fn queries_are_read_as_forms() {
        let query = Query::parse("exclude=NOSPACE&exclude=a%2Bb+c&verbose&exclude=&x=%zz%4");
        assert_eq!(query.set("exclude"), BTreeSet::from(["NOSPACE".into(), "a+b c".into()]));
        assert_eq!(query.first("verbose"), Some(""));
        assert_eq!(query.first("x"), Some("%zz%4"));
        assert_eq!(query.first("none"), None);
    }

    #[test]
    fn a_host_is_told_from_its_port() {
        for (text, host) in [
            ("example.com:2379", "example.com"),
            ("example.com", "example.com"),
            ("[::1]:2379", "::1"),
            ("[::1]", "::1"),
            ("", ""),
        ] {
            assert_eq!(strip_port(text), host);
        }
    }
}
