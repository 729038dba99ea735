//! The cluster a restore is for: the flags of a first start, checked as the server checks them and in its words.

use std::collections::{BTreeMap, BTreeSet};
use std::net::ToSocketAddrs;

use dolmen_machine::Member;
use dolmen_node::{cluster_id, member_id};
use dolmen_types::{ClusterId, MemberId};

/// Why the flags describe no cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    #[error("parse {url:?}: {what}")]
    Parse { url: String, what: String },
    #[error("URL address does not have the form \"host:port\": {url}")]
    HostPort { url: String },
    #[error("URL must not contain a path: {url}")]
    Path { url: String },
    #[error("URL scheme must be http, https, unix, or unixs: {url}")]
    Scheme { url: String },
    #[error("couldn't find local name {name:?} in the initial cluster configuration")]
    NoLocalName { name: String },
    #[error("--initial-cluster has {missing} but missing from --initial-advertise-peer-urls={advertised} ({why})")]
    NotAdvertised { missing: String, advertised: String, why: String },
    #[error("--initial-advertise-peer-urls has {missing} but missing from --initial-cluster={cluster}")]
    NotInCluster { missing: String, cluster: String },
    #[error("failed to resolve {advertised} to match --initial-cluster={cluster} ({why})")]
    Unequal { advertised: String, cluster: String, why: String },
    #[error("initial cluster {cluster} has duplicate url")]
    DuplicateUrl { cluster: String },
}

/// A cluster of founders, the same on each of them, and which of them this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bootstrap {
    pub cluster_id: ClusterId,
    pub own: MemberId,
    /// By id, which is the order their entries come in.
    pub members: BTreeMap<MemberId, Member>,
}

impl Bootstrap {
    pub(crate) fn new(name: &str, advertised: &[String], cluster: &str, token: &str) -> Result<Self, BootstrapError> {
        let advertised = parse_urls(advertised)?;
        let mut listed: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for part in cluster.split(',').filter(|part| !part.is_empty()) {
            let (name, url) = part.split_once('=').unwrap_or((part, ""));
            listed.entry(name.to_owned()).or_default().push(url.to_owned());
        }
        let mut urls_of = BTreeMap::new();
        for (name, urls) in listed {
            urls_of.insert(name, parse_urls(&urls)?);
        }
        let own = urls_of.get(name).ok_or_else(|| BootstrapError::NoLocalName { name: name.to_owned() })?;
        check_advertised(name, &advertised, own)?;
        let mut seen = BTreeSet::new();
        if urls_of.values().flatten().any(|url| !seen.insert(url)) {
            return Err(BootstrapError::DuplicateUrl { cluster: show(&urls_of) });
        }
        let members: BTreeMap<MemberId, Member> = urls_of
            .iter()
            .map(|(name, urls)| {
                let id = member_id(urls, token);
                (id, Member { id, peer_urls: urls.clone(), name: name.clone(), ..Member::default() })
            })
            .collect();
        let ids: Vec<MemberId> = members.keys().copied().collect();
        Ok(Self { cluster_id: cluster_id(&ids), own: member_id(own, token), members })
    }
}

fn show(urls_of: &BTreeMap<String, Vec<String>>) -> String {
    let pairs = urls_of.iter().flat_map(|(name, urls)| urls.iter().map(move |url| format!("{name}={url}")));
    let mut pairs: Vec<String> = pairs.collect();
    pairs.sort();
    pairs.join(",")
}

/// Checks URLs and gives them back in their plain form, sorted.
fn parse_urls(texts: &[String]) -> Result<Vec<String>, BootstrapError> {
    let mut urls = texts.iter().map(|text| parse_url(text.trim())).collect::<Result<Vec<_>, _>>()?;
    urls.sort();
    Ok(urls)
}

fn parse_url(text: &str) -> Result<String, BootstrapError> {
    let failed = |what: &str| BootstrapError::Parse { url: text.to_owned(), what: what.to_owned() };
    let url = || text.to_owned();
    if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err(failed("net/url: invalid control character in URL"));
    }
    let (scheme, rest) = split_scheme(text).ok_or_else(|| failed("missing protocol scheme"))?;
    if scheme.is_empty() && rest.split('/').next().unwrap_or_default().contains(':') {
        return Err(failed("first path segment in URL cannot contain colon"));
    }
    let scheme = scheme.to_ascii_lowercase();
    if matches!(scheme.as_str(), "unix" | "unixs") {
        return Ok(format!("{scheme}:{rest}"));
    }
    if !matches!(scheme.as_str(), "http" | "https") {
        return Err(BootstrapError::Scheme { url: url() });
    }
    let Some(authority) = rest.strip_prefix("//") else { return Err(BootstrapError::HostPort { url: url() }) };
    let end = authority.find(['/', '?', '#']).unwrap_or(authority.len());
    let (host, path) = authority.split_at(end);
    if let Some(what) = bad_host(host) {
        return Err(failed(&what));
    }
    if !has_port(host) {
        return Err(BootstrapError::HostPort { url: url() });
    }
    if path.starts_with('/') {
        return Err(BootstrapError::Path { url: url() });
    }
    Ok(format!("{scheme}://{host}{path}"))
}

/// Scheme and what follows its colon; an empty scheme when the text has none, `None` when it has only the colon.
fn split_scheme(text: &str) -> Option<(&str, &str)> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return None,
            ':' => return Some((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Some(("", text))
}

/// What Go's parser has against an authority.
fn bad_host(host: &str) -> Option<String> {
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let port = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((_, port)) => port,
            None => return Some("missing ']' in host".into()),
        },
        None => host.find(':').map_or("", |at| &host[host.rfind(':').unwrap_or(at)..]),
    };
    let plain = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    if !plain {
        return Some(format!("invalid port {port:?} after host"));
    }
    let bad =
        host.chars().find(|c| c.is_ascii() && !c.is_ascii_alphanumeric() && !"-_.~!$&'()*+,;=:[]%<>\"".contains(*c));
    bad.map(|c| format!("invalid character {:?} in host name", c.to_string()))
}

/// Whether Go would split the authority into host and port.
fn has_port(host: &str) -> bool {
    match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').is_some_and(|(_, port)| port.starts_with(':')),
        None => host.matches(':').count() == 1,
    }
}

fn check_advertised(name: &str, advertised: &[String], own: &[String]) -> Result<(), BootstrapError> {
    let Err(why) = urls_equal(advertised, own) else { return Ok(()) };
    let joined = advertised.join(",");
    let pairs = |urls: &[&String]| urls.iter().map(|url| format!("{name}={url}")).collect::<Vec<_>>().join(",");
    let all: Vec<&String> = advertised.iter().collect();
    let missing: Vec<&String> = own.iter().filter(|url| !advertised.contains(url)).collect();
    if !missing.is_empty() {
        return Err(BootstrapError::NotAdvertised { missing: pairs(&missing), advertised: joined, why });
    }
    let missing: Vec<&str> = advertised.iter().filter(|url| !own.contains(url)).map(String::as_str).collect();
    if !missing.is_empty() {
        return Err(BootstrapError::NotInCluster { missing: missing.join(","), cluster: pairs(&all) });
    }
    Err(BootstrapError::Unequal { advertised: joined, cluster: pairs(&all), why })
}

/// Equal as they are written, or once their hosts are resolved. The error says why not, as Go says it.
fn urls_equal(a: &[String], b: &[String]) -> Result<(), String> {
    if a == b {
        return Ok(());
    }
    if a.len() != b.len() {
        let list = |urls: &[String]| urls.iter().map(|url| format!("{url:?}")).collect::<Vec<_>>().join(" ");
        return Err(format!("len([{}]) != len([{}])", list(a), list(b)));
    }
    let mut resolved = [Vec::new(), Vec::new()];
    for (urls, resolved) in [a, b].into_iter().zip(&mut resolved) {
        for url in urls {
            resolved.push(resolve(url)?);
        }
        resolved.sort();
    }
    match resolved[0].iter().zip(&resolved[1]).find(|(a, b)| a != b) {
        Some((a, b)) => Err(format!("resolved urls: {a:?} != {b:?}")),
        None => Ok(()),
    }
}

fn resolve(url: &str) -> Result<String, String> {
    let Some((scheme @ ("http" | "https"), address)) = url.split_once("://") else { return Ok(url.to_owned()) };
    if address.starts_with("localhost:") {
        return Ok(url.to_owned());
    }
    let failed = |what: String| format!("failed to resolve {url:?} ({what})");
    let mut found = address.to_socket_addrs().map_err(|error| failed(error.to_string()))?;
    let found = found.next().ok_or_else(|| failed("no such host".into()))?;
    Ok(format!("{scheme}://{found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bootstrap(name: &str, advertised: &str, cluster: &str) -> Result<Bootstrap, String> {
        let advertised: Vec<String> = advertised.split(',').map(str::to_owned).collect();
        Bootstrap::new(name, &advertised, cluster, "etcd-cluster").map_err(|error| error.to_string())
    }

    #[test]
    fn ids_are_those_of_a_first_start() {
        let found = bootstrap("default", "http://localhost:2380", "default=http://localhost:2380").unwrap();
        assert_eq!((found.own, found.cluster_id), (0x8e9e_05c5_2164_694d, 0xcdf8_1819_4e3a_8c32));
        let three = "c=http://c:3,a=http://a:1,b=http://b:2,a=http://a:11";
        let found = bootstrap("a", "http://a:11,http://a:1", three).unwrap();
        assert_eq!(found.members.len(), 3);
        assert_eq!(found.members[&found.own].peer_urls, ["http://a:1", "http://a:11"]);
    }

    #[test]
    fn what_is_wrong_is_said_in_the_servers_words() {
        let dup = "a=http://127.0.0.1:1,b=http://127.0.0.1:1";
        for (name, advertised, cluster, wanted) in [
            ("x", "http://a:1", "a=http://a:1", r#"couldn't find local name "x" in the initial cluster configuration"#),
            (
                "a",
                "http://127.0.0.1:1",
                dup,
                "initial cluster a=http://127.0.0.1:1,b=http://127.0.0.1:1 has duplicate url",
            ),
            ("a", "", "a=http://a:1", "URL scheme must be http, https, unix, or unixs: "),
            ("a", "localhost:1", "a=http://a:1", "URL scheme must be http, https, unix, or unixs: localhost:1"),
            (
                "a",
                "127.0.0.1:1",
                "a=http://a:1",
                r#"parse "127.0.0.1:1": first path segment in URL cannot contain colon"#,
            ),
            ("a", ":1", "a=http://a:1", r#"parse ":1": missing protocol scheme"#),
            ("a", "http://a", "a=http://a:1", r#"URL address does not have the form "host:port": http://a"#),
            ("a", "http://a:x", "a=http://a:1", r#"parse "http://a:x": invalid port ":x" after host"#),
            ("a", "http://a:1/b", "a=http://a:1", "URL must not contain a path: http://a:1/b"),
            ("a", "http://a:1", "a", "URL scheme must be http, https, unix, or unixs: "),
            (
                "a",
                "http://127.0.0.1:1",
                "a=http://127.0.0.1:2",
                "--initial-cluster has a=http://127.0.0.1:2 but missing from \
                 --initial-advertise-peer-urls=http://127.0.0.1:1 \
                 (resolved urls: \"http://127.0.0.1:1\" != \"http://127.0.0.1:2\")",
            ),
            (
                "a",
                "http://127.0.0.1:1,http://127.0.0.1:2",
                "a=http://127.0.0.1:1",
                "--initial-advertise-peer-urls has http://127.0.0.1:2 but missing from \
                 --initial-cluster=a=http://127.0.0.1:1,a=http://127.0.0.1:2",
            ),
        ] {
            assert_eq!(bootstrap(name, advertised, cluster), Err(wanted.to_owned()), "{name} {advertised} {cluster}");
        }
    }
}
