//! What a failed handshake is called: Go's words, which people look for in logs and scripts compare.

use rustls::{AlertDescription as Alert, CertificateError, Error, PeerIncompatible};
use rustls_pki_types::UnixTime;

use crate::date;

/// Of a client that speaks something else.
pub const NOT_TLS: &str = "tls: first record does not look like a TLS handshake";

/// Go's text for a failed handshake, on either side. `name`: of the server, as the client wanted it; empty on the server's
/// side, which looks for none.
pub fn handshake_text(error: &Error, name: &str) -> String {
    match error {
        Error::InvalidCertificate(certificate) => {
            format!("tls: failed to verify certificate: x509: {}", certificate_text(certificate, name))
        }
        Error::AlertReceived(received) => match received {
            Alert::BadCertificate => "remote error: tls: bad certificate".to_owned(),
            Alert::CertificateRequired => "remote error: tls: certificate required".to_owned(),
            Alert::UnknownCA => "remote error: tls: unknown certificate authority".to_owned(),
            Alert::CertificateExpired => "remote error: tls: expired certificate".to_owned(),
            Alert::CertificateUnknown => "remote error: tls: unknown certificate".to_owned(),
            Alert::HandshakeFailure => "remote error: tls: handshake failure".to_owned(),
            Alert::ProtocolVersion => "remote error: tls: protocol version not supported".to_owned(),
            Alert::NoApplicationProtocol => "remote error: tls: no application protocol".to_owned(),
            other => format!("remote error: tls: {other:?}"),
        },
        Error::InvalidMessage(_) => NOT_TLS.to_owned(),
        Error::NoCertificatesPresented => "tls: client didn't provide a certificate".to_owned(),
        Error::PeerIncompatible(
            PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::Tls13RequiredForQuic,
        ) => "tls: client offered only unsupported versions".to_owned(),
        Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon) => {
            "tls: no cipher suite supported by both client and server".to_owned()
        }
        other => other.to_string(),
    }
}

fn certificate_text(error: &CertificateError, name: &str) -> String {
    match error {
        // The other one: an authority of the same name, with another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "certificate signed by unknown authority".to_owned()
        }
        CertificateError::ExpiredContext { time, not_after } => dates_text(*time, "after", *not_after),
        CertificateError::NotValidYetContext { time, not_before } => dates_text(*time, "before", *not_before),
        CertificateError::Expired | CertificateError::NotValidYet => EXPIRED.to_owned(),
        CertificateError::NotValidForName => format!("certificate is not valid for {name}"),
        CertificateError::NotValidForNameContext { presented, .. } => names_text(presented, name),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "certificate specifies an incompatible key usage".to_owned()
        }
        // Our own verifier's words among them.
        CertificateError::Other(other) => other.0.to_string(),
        other => other.to_string(),
    }
}

const EXPIRED: &str = "certificate has expired or is not yet valid";

/// `relation`: of the present `time` to the `bound`.
fn dates_text(time: UnixTime, relation: &str, bound: UnixTime) -> String {
    let [time, bound] = [time, bound].map(|time| date::rfc3339(time.as_secs()));
    format!("{EXPIRED}: current time {time} is {relation} {bound}")
}

/// `presented`: as rustls shows the alternative names, `DnsName("a")` and `IpAddress(10.0.0.1)`.
fn names_text(presented: &[String], name: &str) -> String {
    let wants_ip = name.parse::<std::net::IpAddr>().is_ok();
    let inner = |shown: &String, kind: &str| {
        let shown = shown.strip_prefix(kind)?.strip_prefix('(')?.strip_suffix(')')?;
        Some(shown.trim_matches('"').to_owned())
    };
    let kind = if wants_ip { "IpAddress" } else { "DnsName" };
    let names: Vec<String> = presented.iter().filter_map(|shown| inner(shown, kind)).collect();
    match (wants_ip, names.is_empty()) {
        (true, true) => format!("cannot validate certificate for {name} because it doesn't contain any IP SANs"),
        (false, true) => format!("certificate is not valid for any names, but wanted to match {name}"),
        (_, false) => format!("certificate is valid for {}, not {name}", names.join(", ")),
    }
}
