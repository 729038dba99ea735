//! The headers members greet each other with, and the check of them.

use http::{HeaderMap, HeaderName, HeaderValue};

pub(crate) const SERVER_FROM: HeaderName = HeaderName::from_static("x-server-from");
pub(crate) const SERVER_VERSION: HeaderName = HeaderName::from_static("x-server-version");
pub(crate) const MIN_CLUSTER_VERSION: HeaderName = HeaderName::from_static("x-min-cluster-version");
pub(crate) const CLUSTER_ID: HeaderName = HeaderName::from_static("x-etcd-cluster-id");
pub(crate) const RAFT_TO: HeaderName = HeaderName::from_static("x-raft-to");
pub(crate) const PEER_URLS: HeaderName = HeaderName::from_static("x-peerurls");
/// Ours, on requests to `/raft` and on answers to stream requests: the sender is a Dolmen. Its value is not looked at.
pub(crate) const DOLMEN: HeaderName = HeaderName::from_static("x-dolmen");
pub(crate) const DOLMEN_VERSION: HeaderValue = HeaderValue::from_static(env!("CARGO_PKG_VERSION"));

/// The body of a 412 for a version too far off.
pub(crate) const INCOMPATIBLE_VERSION: &str = "incompatible version";
/// The body of a 412 for another cluster.
pub(crate) const CLUSTER_ID_MISMATCH: &str = "cluster ID mismatch";
/// What the log says to that, on either side.
pub(crate) const TWO_CLUSTERS: &str = "one of the two has another cluster's data directory, or was first started with another \
     --initial-cluster or --initial-cluster-token: stop it, and start it on the directory that belongs here";

/// Major and minor: versions count no further between peers.
pub(crate) type MajorMinor = (u64, u64);

/// Parses `major.minor.patch` with anything after it; `None` when it is not that.
pub(crate) fn parse_version(text: &str) -> Option<MajorMinor> {
    let core = text.split(['-', '+']).next()?;
    let mut parts = core.split('.').map(|part| part.parse::<u64>().ok());
    let (major, minor, _patch) = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some((major, minor))
}

/// A header as text, empty when it is absent or not text.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// A version header. Members before 2.1 sent none, so none means 2.0.0; `None` is text that is no version.
pub(crate) fn version_of(headers: &HeaderMap, name: &HeaderName) -> Option<MajorMinor> {
    match text(headers, name) {
        "" => Some((2, 0)),
        version => parse_version(version),
    }
}

/// Whether a member of `version` serves both streams.
pub(crate) fn serves_streams(version: MajorMinor) -> bool {
    version >= (2, 1)
}

/// Parses a member or cluster id as printed: hexadecimal.
pub(crate) fn parse_id(text: &str) -> Option<u64> {
    // `from_str_radix` takes a sign, which ids have not.
    text.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u64::from_str_radix(text, 16).ok())?
}

/// A header value of text known to be printable.
pub(crate) fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Checks a request of another member: versions first, then the cluster id.
///
/// # Errors
/// The body of the 412 to answer with.
pub(crate) fn check_request(
    headers: &HeaderMap,
    local: MajorMinor,
    local_min: MajorMinor,
    cluster_id: &str,
) -> Result<(), &'static str> {
    let compatible = match (version_of(headers, &SERVER_VERSION), version_of(headers, &MIN_CLUSTER_VERSION)) {
        (Some(remote), Some(remote_min)) => remote >= local_min && remote_min <= local,
        _ => false,
    };
    if !compatible {
        tracing::warn!(
            remote_peer_server_name = text(headers, &SERVER_FROM),
            remote_peer_server_version = text(headers, &SERVER_VERSION),
            remote_peer_server_minimum_cluster_version = text(headers, &MIN_CLUSTER_VERSION),
            "failed version compatibility check"
        );
        return Err(INCOMPATIBLE_VERSION);
    }
    let remote_cluster = text(headers, &CLUSTER_ID);
    if remote_cluster != cluster_id {
        tracing::warn!(
            local_member_cluster_id = cluster_id,
            remote_peer_cluster_id = remote_cluster,
            remote_peer_server_name = text(headers, &SERVER_FROM),
            remedy = TWO_CLUSTERS,
            "request cluster ID mismatch"
        );
        return Err(CLUSTER_ID_MISMATCH);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_parse_as_semver() {
        assert_eq!(parse_version("3.7.3"), Some((3, 7)));
        assert_eq!(parse_version("3.8.0-alpha.0"), Some((3, 8)));
        for bad in ["", "3", "3.7", "3.7.x", "3.7.3.1", "v3.7.3"] {
            assert_eq!(parse_version(bad), None, "{bad}");
        }
    }

    #[test]
    fn ids_are_hexadecimal_without_sign() {
        assert_eq!(parse_id("8e9e05c52164694d"), Some(0x8e9e_05c5_2164_694d));
        for bad in ["", "+1", "xyz", "11112222333344445"] {
            assert_eq!(parse_id(bad), None, "{bad}");
        }
    }

    #[test]
    fn requests_of_other_versions_and_clusters_are_refused() {
        let check = |version: &str, min: &str, cluster: &str| {
            let mut headers = HeaderMap::new();
            for (name, text) in [(SERVER_VERSION, version), (MIN_CLUSTER_VERSION, min), (CLUSTER_ID, cluster)] {
                if !text.is_empty() {
                    headers.insert(name, value(text));
                }
            }
            check_request(&headers, (3, 7), (3, 0), "abc")
        };
        assert_eq!(check("3.6.8", "3.0.0", "abc"), Ok(()));
        assert_eq!(check("3.9.0", "3.7.9", "abc"), Ok(()));
        assert_eq!(check("2.3.0", "2.3.0", "abc"), Err(INCOMPATIBLE_VERSION));
        assert_eq!(check("3.9.0", "3.8.0", "abc"), Err(INCOMPATIBLE_VERSION));
        assert_eq!(check("", "", "abc"), Err(INCOMPATIBLE_VERSION));
        assert_eq!(check("junk", "3.0.0", "abc"), Err(INCOMPATIBLE_VERSION));
        assert_eq!(check("3.7.0", "3.0.0", "abd"), Err(CLUSTER_ID_MISMATCH));
    }
}
