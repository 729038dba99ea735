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
    records_of(&resolver, &server_text(), domain, service_name).await
}

/// As [`client_records`], from the servers of `resolver`, which the errors name by `server`.
async fn records_of(
    resolver: &TokioResolver,
    server: &str,
    domain: &str,
    service_name: &str,
) -> Result<Vec<Record>, Error> {
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
    use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
    use hickory_resolver::net::runtime::TokioRuntimeProvider;

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

    /// An answer's code; 0: well.
    const SERVFAIL: u8 = 2;
    const NXDOMAIN: u8 = 3;

    /// What the zone says of a name.
    enum Says {
        /// Priority, weight, port and target of each record.
        Srv(&'static [(u16, u16, u16, &'static str)]),
        Fails(u8),
    }

    /// A name server for as long as the test runs.
    async fn serve(zone: &'static [(&'static str, Says)]) -> (TokioResolver, String) {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 1500];
            loop {
                let (len, from) = socket.recv_from(&mut buffer).await.unwrap();
                socket.send_to(&reply(zone, &buffer[..len]), from).await.unwrap();
            }
        });
        let mut connection = ConnectionConfig::udp();
        connection.port = address.port();
        let server = NameServerConfig::new(address.ip(), true, vec![connection]);
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        let resolver = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()).build().unwrap();
        (resolver, format!(" on {address}"))
    }

    /// A message of RFC 1035: twelve bytes of head, the question, the answers.
    fn reply(zone: &[(&str, Says)], query: &[u8]) -> Vec<u8> {
        let mut labels = Vec::new();
        let mut at = 12;
        while query[at] > 0 {
            let next = at + 1 + usize::from(query[at]);
            labels.push(String::from_utf8(query[at + 1..next].to_vec()).unwrap().to_lowercase());
            at = next;
        }
        // Behind the name, two bytes of type and two of class.
        let question = &query[12..at + 5];
        let name = labels.join(".");
        let says = zone.iter().find(|(known, _)| *known == name).map(|(_, says)| says);
        let (code, records) = match says {
            Some(Says::Srv(records)) => (0, *records),
            Some(Says::Fails(code)) => (*code, &[][..]),
            None => (NXDOMAIN, &[][..]),
        };
        let mut out =
            [&query[..2], &[0x85, 0x80 | code, 0, 1, 0, u8::try_from(records.len()).unwrap(), 0, 0, 0, 0]].concat();
        out.extend(question);
        for (priority, weight, port, target) in records {
            let mut data = [priority, weight, port].map(|number| number.to_be_bytes()).concat();
            for label in target.split('.') {
                data.push(u8::try_from(label.len()).unwrap());
                data.extend(label.as_bytes());
            }
            // The root's label, which ends a name; the answer's name is the question's: type SRV, class IN, a minute.
            data.push(0);
            out.extend([0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60, 0, u8::try_from(data.len()).unwrap()]);
            out.extend(data);
        }
        out
    }

    static ZONE: &[(&str, Says)] = &[
        ("_etcd-client-ssl._tcp.both.test", Says::Srv(&[(0, 0, 1, "tls.test")])),
        (
            "_etcd-client._tcp.both.test",
            Says::Srv(&[(20, 5, 4, "d.test"), (10, 0, 2, "b.test"), (10, 50, 3, "c.test"), (30, 0, 5, "e.test")]),
        ),
        ("_etcd-client-ssl-blue._tcp.both.test", Says::Srv(&[(0, 0, 6, "blue.test")])),
        ("_etcd-client._tcp.plain.test", Says::Srv(&[(0, 0, 7, "plain.test")])),
        ("_etcd-client-ssl._tcp.empty.test", Says::Srv(&[])),
        ("_etcd-client._tcp.empty.test", Says::Srv(&[])),
        ("_etcd-client-ssl._tcp.ill.test", Says::Fails(SERVFAIL)),
        ("_etcd-client._tcp.ill.test", Says::Fails(SERVFAIL)),
    ];

    #[tokio::test]
    async fn records_of_a_zone_are_endpoints() {
        let (resolver, server) = serve(ZONE).await;
        let endpoints = async |domain: &str, name: &str| {
            let found = records_of(&resolver, &server, domain, name).await.unwrap();
            found.iter().map(Record::endpoint).collect::<Vec<_>>()
        };
        let first: [&str; 1] = ["https://tls.test.:1"];
        let last = ["http://d.test.:4", "http://e.test.:5"];
        for _ in 0..20 {
            let found = endpoints("both.test", "").await;
            assert_eq!((&found[..1], &found[3..]), (&first.map(str::to_owned)[..], &last.map(str::to_owned)[..]));
            let mut drawn = found[1..3].to_vec();
            drawn.sort();
            assert_eq!(drawn, ["http://b.test.:2", "http://c.test.:3"]);
        }
        // One of the two services is enough, and a name makes others of them.
        assert_eq!(endpoints("plain.test", "").await, ["http://plain.test.:7"]);
        assert_eq!(endpoints("both.test", "blue").await, ["https://blue.test.:6"]);
    }

    #[tokio::test]
    async fn a_zone_without_records_is_told_in_gos_words() {
        let (resolver, server) = serve(ZONE).await;
        for (domain, why) in
            [("empty.test", "no such host"), ("none.test", "no such host"), ("ill.test", "server misbehaving")]
        {
            let error = records_of(&resolver, &server, domain, "").await.unwrap_err();
            let one = |service: &str| format!("lookup {service}._tcp.{domain}{server}: {why}");
            let text = format!("dns lookup errors: {} and {}", one("_etcd-client-ssl"), one("_etcd-client"));
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn a_record_is_an_endpoint() {
        assert_eq!(record(0, 0).endpoint(), "http://a.:1");
    }
}
