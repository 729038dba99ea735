//! Peer URLs, and which of a peer's several to try.

use parking_lot::Mutex;

/// One address to dial: `http`, `https`, `unix` or `unixs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerUrl {
    pub tls: bool,
    pub unix: bool,
    /// `host:port`, or the path of a socket.
    pub address: String,
    /// The host alone, without brackets; what a certificate is checked against.
    pub host: String,
    text: String,
}

impl PeerUrl {
    /// Parses `scheme://host:port`. A path after it is refused, as etcd refuses it.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let wrong = |what| UrlError { url: text.into(), what };
        let (scheme, rest) = text.split_once("://").ok_or(wrong("has no scheme"))?;
        let (tls, unix) = match scheme {
            "http" => (false, false),
            "https" => (true, false),
            "unix" => (false, true),
            "unixs" => (true, true),
            _ => return Err(wrong("scheme must be http, https, unix, or unixs")),
        };
        if unix {
            if rest.is_empty() {
                return Err(wrong("has no path"));
            }
            let host = rest.split([':', '/']).next().unwrap_or_default().to_owned();
            return Ok(Self { tls, unix, address: rest.into(), host, text: text.into() });
        }
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#', '@']) || authority.bytes().any(|byte| byte <= b' ' || byte >= 127) {
            return Err(wrong("must not contain a path, a query or a user"));
        }
        let (host, port) = authority.rsplit_once(':').ok_or(wrong("has no port"))?;
        if port.parse::<u16>().is_err() {
            return Err(wrong("has no valid port"));
        }
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').ok_or(wrong("has an unclosed bracket"))?,
            None if host.contains(':') => return Err(wrong("has an IPv6 address without brackets")),
            None => host,
        };
        if host.is_empty() {
            return Err(wrong("has no host"));
        }
        Ok(Self { tls, unix, address: authority.into(), host: host.into(), text: text.into() })
    }

    /// The URL as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// What goes into a `Host` header.
    pub(crate) fn host_header(&self) -> &str {
        if self.unix { "localhost" } else { &self.address }
    }
}

/// A text that is no peer URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("URL {url:?} {what}")]
pub struct UrlError {
    pub url: String,
    pub what: &'static str,
}

/// The URLs of one peer; one is in use until it fails.
#[derive(Debug)]
pub(crate) struct UrlPicker(Mutex<(Vec<PeerUrl>, usize)>);

impl UrlPicker {
    /// `urls` must not be empty.
    pub(crate) fn new(urls: Vec<PeerUrl>) -> Self {
        assert!(!urls.is_empty());
        Self(Mutex::new((urls, 0)))
    }

    pub(crate) fn update(&self, urls: Vec<PeerUrl>) {
        assert!(!urls.is_empty());
        *self.0.lock() = (urls, 0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().0.len()
    }

    pub(crate) fn pick(&self) -> PeerUrl {
        let state = self.0.lock();
        state.0[state.1].clone()
    }

    /// Moves on from `url`, unless somebody did already.
    pub(crate) fn unreachable(&self, url: &PeerUrl) {
        let mut state = self.0.lock();
        if state.0[state.1] == *url {
            state.1 = (state.1 + 1) % state.0.len();
        }
    }

    pub(crate) fn is(&self, urls: &[PeerUrl]) -> bool {
        self.0.lock().0 == urls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_parse() {
        let url = PeerUrl::parse("https://[::1]:2380").expect("parses");
        assert_eq!((url.tls, url.host.as_str(), url.address.as_str()), (true, "::1", "[::1]:2380"));
        let url = PeerUrl::parse("http://m1.example:2380/").expect("parses");
        assert_eq!((url.tls, url.host.as_str(), url.address.as_str()), (false, "m1.example", "m1.example:2380"));
        assert_eq!(PeerUrl::parse("unix://localhost:12").expect("parses").address, "localhost:12");
        for bad in ["", "m1:2380", "ftp://a:1", "http://a", "http://:1", "http://a:x", "http://a:1/b", "http://::1:2"] {
            assert!(PeerUrl::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_picker_moves_on_once_a_failure() {
        let [a, b] = ["http://a:1", "http://b:1"].map(|url| PeerUrl::parse(url).expect("parses"));
        let picker = UrlPicker::new(vec![a.clone(), b.clone()]);
        picker.unreachable(&a);
        picker.unreachable(&a);
        assert_eq!(picker.pick(), b);
        picker.unreachable(&b);
        assert_eq!(picker.pick(), a);
    }
}
