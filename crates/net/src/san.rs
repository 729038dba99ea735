//! Whether a client's certificate belongs to the address it calls from.
//!
//! etcd asks this of members that dial in: a certificate stolen from one machine must not work from another. The address
//! must be among the certificate's IP names, or one of its DNS names must lead to it or from it.

use std::net::IpAddr;

use dolmen_tls::Certificate;
use rustls_pki_types::CertificateDer;
use tokio::task::spawn_blocking;

/// Checks a certificate against the address of its bearer. One without IP and DNS names passes.
///
/// # Errors
/// What does not fit, in Go's words.
pub async fn check_client_address(certificate: CertificateDer<'static>, remote: IpAddr) -> Result<(), String> {
    let remote = remote.to_canonical();
    let certificate = Certificate::parse(&certificate).ok_or("tls: cannot parse the client certificate")?;
    if certificate.ip_names.contains(&remote) || certificate.ip_names.is_empty() && certificate.dns_names.is_empty() {
        return Ok(());
    }
    if certificate.dns_names.is_empty() {
        let names: Vec<String> = certificate.ip_names.iter().map(IpAddr::to_string).collect();
        return Err(format!("x509: certificate is valid for {}, not {remote}", names.join(", ")));
    }
    let names = certificate.dns_names;
    let listed = format!("{names:?}").replace("\", \"", "\" \"");
    let matches = spawn_blocking(move || dns_leads_to(&names, remote)).await.unwrap_or(false);
    if matches { Ok(()) } else { Err(format!("tls: \"{remote}\" does not match any of DNSNames {listed}")) }
}

/// Asks the resolver, so it may block. Where an address has several names, only one is known here.
fn dns_leads_to(names: &[String], remote: IpAddr) -> bool {
    if let Ok(found) = dns_lookup::lookup_addr(&remote)
        && names.iter().any(|name| matches(name, found.trim_end_matches('.')))
    {
        return true;
    }
    names
        .iter()
        .filter(|name| !name.starts_with("*."))
        .any(|name| dns_lookup::lookup_host(name).is_ok_and(|mut found| found.any(|ip| ip.to_canonical() == remote)))
}

/// A wildcard stands for any number of labels, as etcd has it.
fn matches(name: &str, found: &str) -> bool {
    match name.strip_prefix('*') {
        Some(suffix) if suffix.starts_with('.') => found.ends_with(suffix),
        _ => name == found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_by_suffix() {
        assert!(matches("*.etcd.local", "m1.etcd.local"));
        assert!(matches("*.etcd.local", "a.b.etcd.local"));
        assert!(!matches("*.etcd.local", "etcd.local"));
        assert!(!matches("m1.etcd.local", "m2.etcd.local"));
    }

    #[test]
    fn forward_lookups_count() {
        assert!(dns_leads_to(&["localhost".into()], "127.0.0.1".parse().expect("address")));
        assert!(!dns_leads_to(&["localhost".into()], "192.0.2.1".parse().expect("address")));
    }
}
