//! Endpoints from DNS: `SRV` records of `_etcd-client-ssl._tcp` (TLS) and `_etcd-client._tcp` (plain) under a domain.

use std::hash::{BuildHasher, Hasher};

use hickory_resolver::TokioResolver;
use hickory_resolver::net::NetError;
use hickory_resolver::proto::rr::RData;

use crate::error::Error;

/// One record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Record {
    /// `http` or `https`.
    pub scheme: &'static str,
    /// As it stands in the record, with its trailing dot.
    pub target: String,
    pub port: u16,
    /// Lower ones first.
    pub priority: u16,
    /// Share among records of the same priority.
    pub weight: u16,
}

impl Record {
    /// As an endpoint of a [`crate::Config`].
    pub fn endpoint(&self) -> String {
        format!("{}://{}:{}", self.scheme, self.target, self.port)
    }
}

/// Looks up the client records of a domain: those for TLS first, by priority, and within one priority drawn by weight.
/// `service_name` is appended to the service (`_etcd-client-ssl-NAME._tcp`) unless empty.
///
/// # Errors
/// Neither service is found: both reasons, in the words of Go's resolver. One of the two is enough.
pub async fn client_records(domain: &str, service_name: &str) -> Result<Vec<Record>, Error> {
    let builder = TokioResolver::builder_tokio().map_err(|error| Error::client(error.to_string()))?;
    let resolver = builder.build().map_err(|error| Error::client(error.to_string()))?;
    let server = server_text();
    let mut found = Vec::new();
    let mut faults = Vec::new();
    for (scheme, service) in [("https", "_etcd-client-ssl"), ("http", "_etcd-client")] {
        let suffix = if service_name.is_empty() { String::new() } else { format!("-{service_name}") };
        let name = format!("{service}{suffix}._tcp.{domain}");
        match resolver.srv_lookup(name.as_str()).await {
            Ok(lookup) => {
                let records = lookup.answers().iter().filter_map(|record| match &record.data {
                    RData::SRV(srv) => Some(Record {
                        scheme,
                        target: srv.target.to_string(),
                        port: srv.port,
                        priority: srv.priority,
                        weight: srv.weight,
                    }),
                    _ => None,
                });
                found.extend(in_order(records.collect(), random));
            }
            Err(error) => faults.push(format!("lookup {name}{server}: {}", reason(&error))),
        }
    }
    match faults.as_slice() {
        [tls, plain] => Err(Error::client(format!("dns lookup errors: {tls} and {plain}"))),
        _ => Ok(found),
    }
}

/// By priority; within one priority each next one is drawn, with a chance in proportion to its weight (RFC 2782).
/// `draw`: a number below its argument.
fn in_order(mut records: Vec<Record>, mut draw: impl FnMut(u64) -> u64) -> Vec<Record> {
    records.sort_by_key(|record| (record.priority, record.weight));
    let mut ordered = Vec::with_capacity(records.len());
    while let Some(priority) = records.first().map(|record| record.priority) {
        let group = records.iter().take_while(|record| record.priority == priority);
        let total: u64 = group.clone().map(|record| u64::from(record.weight)).sum();
        let drawn = draw(total + 1);
        let mut sum = 0;
        let at = group.clone().position(|record| {
            sum += u64::from(record.weight);
            sum >= drawn
        });
        ordered.push(records.remove(at.unwrap_or(0)));
    }
    ordered
}

fn random(below: u64) -> u64 {
    std::hash::RandomState::new().build_hasher().finish() % below.max(1)
}

/// ` on SERVER:53`, the first server of the system.
fn server_text() -> String {
    let config = hickory_resolver::system_conf::read_system_conf();
    let first = config.ok().and_then(|(config, _)| config.name_servers().first().map(|server| server.ip));
    first.map_or_else(String::new, |ip| format!(" on {}", std::net::SocketAddr::new(ip, 53)))
}

fn reason(error: &NetError) -> String {
    match error {
        _ if error.is_no_records_found() => "no such host".to_owned(),
        NetError::Timeout => "i/o timeout".to_owned(),
        NetError::Dns(_) => "server misbehaving".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(priority: u16, weight: u16) -> Record {
        Record { scheme: "http", target: "a.".to_owned(), port: 1, priority, weight }
    }

    #[test]
    fn order_is_by_priority_and_drawn_by_weight() {
        let records = vec![record(2, 0), record(1, 10), record(1, 30), record(1, 0)];
        let shown = |draw: fn(u64) -> u64| {
            let ordered = in_order(records.clone(), draw);
            ordered.iter().map(|record| (record.priority, record.weight)).collect::<Vec<_>>()
        };
        // The lowest draw takes even a record without weight, the highest the heaviest.
        assert_eq!(shown(|_| 0), [(1, 0), (1, 10), (1, 30), (2, 0)]);
        assert_eq!(shown(|below| below - 1), [(1, 30), (1, 10), (1, 0), (2, 0)]);
    }

    #[test]
    fn a_record_is_an_endpoint() {
        assert_eq!(record(0, 0).endpoint(), "http://a.:1");
    }
}
