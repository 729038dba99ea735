//! Endpoints as users write them, and what they mean.

use std::path::PathBuf;

/// Where to connect to, and how.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Endpoint {
    /// As it was given.
    pub text: String,
    pub address: Address,
    /// Host and port, or the last part of a path: sent as `:authority`, and without its port the name that the server's
    /// certificate must have.
    pub authority: String,
    pub tls: bool,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Address {
    /// `host:port`, not checked yet.
    Tcp(String),
    Unix(PathBuf),
}

impl Endpoint {
    /// Never fails: what makes no sense is told when it is dialed, as Go's client does.
    /// `tls_given`: there is a TLS configuration, which decides where the scheme does not.
    pub fn parse(text: &str, tls_given: bool) -> Endpoint {
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (scheme, rest),
            None => match text.split_once(':') {
                Some((scheme @ ("unix" | "unixs"), rest)) => (scheme, rest),
                _ => ("", text),
            },
        };
        let tls = match scheme {
            "https" | "unixs" => true,
            "http" => false,
            _ => tls_given,
        };
        let (address, authority) = match scheme {
            "unix" | "unixs" => {
                (Address::Unix(PathBuf::from(rest)), rest.rsplit('/').next().unwrap_or(rest).to_owned())
            }
            "http" | "https" => {
                let host = rest.split(['/', '?', '#']).next().unwrap_or(rest);
                // Of a URL, the host stands after a user's name.
                let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
                (Address::Tcp(host.to_owned()), host.to_owned())
            }
            _ => (Address::Tcp(text.to_owned()), rest.to_owned()),
        };
        Endpoint { text: text.to_owned(), address, authority, tls }
    }

    /// The name to check a certificate against.
    pub fn host(&self) -> &str {
        match split_host_port(&self.authority) {
            Ok((host, _)) => host,
            Err(_) => &self.authority,
        }
    }

    /// What Go's client appends to its target: all after the scheme.
    pub fn after_scheme(text: &str) -> &str {
        match text.split_once("://") {
            Some((_, rest)) => rest,
            None => text.strip_prefix("unix:").or_else(|| text.strip_prefix("unixs:")).unwrap_or(text),
        }
    }

    /// `tcp` or `unix`.
    pub fn network(&self) -> &'static str {
        match self.address {
            Address::Tcp(_) => "tcp",
            Address::Unix(_) => "unix",
        }
    }
}

/// Host (without brackets) and port, or what Go says of it.
pub(crate) fn split_host_port(text: &str) -> Result<(&str, &str), &'static str> {
    const MISSING: &str = "missing port in address";
    const TOO_MANY: &str = "too many colons in address";
    let Some((host, port)) = text.rsplit_once(':') else { return Err(MISSING) };
    if let Some(inner) = text.strip_prefix('[') {
        let Some((inner, after)) = inner.split_once(']') else { return Err("missing ']' in address") };
        return match after.strip_prefix(':') {
            Some(port) if !port.contains(':') => Ok((inner, port)),
            Some(_) => Err(TOO_MANY),
            None => Err(MISSING),
        };
    }
    if host.contains(':') { Err(TOO_MANY) } else { Ok((host, port)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_endpoints_mean() {
        let tcp = |host: &str| Address::Tcp(host.to_owned());
        let unix = |path: &str| Address::Unix(PathBuf::from(path));
        // text, TLS configured, address, authority, TLS
        let table = [
            ("127.0.0.1:2379", false, tcp("127.0.0.1:2379"), "127.0.0.1:2379", false),
            ("127.0.0.1:2379", true, tcp("127.0.0.1:2379"), "127.0.0.1:2379", true),
            ("http://a:1", true, tcp("a:1"), "a:1", false),
            ("https://a:1/path", false, tcp("a:1"), "a:1", true),
            ("unix:local/sock", false, unix("local/sock"), "sock", false),
            ("unix://localhost:m1", false, unix("localhost:m1"), "localhost:m1", false),
            ("unixs:///run/a:1", false, unix("/run/a:1"), "a:1", true),
            ("ftp://a:1", false, tcp("ftp://a:1"), "a:1", false),
        ];
        for (text, given, address, authority, tls) in table {
            let endpoint = Endpoint::parse(text, given);
            let expected = Endpoint { text: text.to_owned(), address, authority: authority.to_owned(), tls };
            assert_eq!(endpoint, expected);
        }
    }

    #[test]
    fn hosts_and_ports() {
        let table = [
            ("a:1", Ok(("a", "1"))),
            ("[::1]:1", Ok(("::1", "1"))),
            ("a", Err("missing port in address")),
            ("::1:1", Err("too many colons in address")),
            ("[::1]", Err("missing port in address")),
            ("[::1:1", Err("missing ']' in address")),
        ];
        for (text, parts) in table {
            assert_eq!(split_host_port(text), parts, "{text}");
        }
        assert_eq!(Endpoint::parse("https://[::1]:2379", false).host(), "::1");
    }
}
