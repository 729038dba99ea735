//! Whose certificate is believed: webpki's chains, and around them what Go does besides and what etcd's flags ask for.
//!
//! A certificate is judged in Go's order, which decides what is said of one with several faults: its dates, then its name
//! (of servers), then whether it is trusted. It is trusted
//!
//! * if it stands among the trusted ones itself, be it an authority's or not, and may be used for this end; or
//! * if webpki finds a chain from it to one of them that may sign.
//!
//! Then come `allowed-cn` and `allowed-hostname`, names that a certificate must have, and a revocation list: serial
//! numbers refused, from a file that is read anew each time. Or nobody looks at all: [`AnyServer`].

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::x509::{CLIENT_AUTH, Certificate, SERVER_AUTH, revoked_serials};

/// What is said of a certificate that has the right name where nobody has looked for it since 2020.
pub const LEGACY_COMMON_NAME: &str = "certificate relies on legacy Common Name field, use SANs instead";

/// Which of the certificates that are trusted pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    All,
    /// Those with one of these common names.
    CommonNames(Vec<String>),
    /// Those valid for one of these hosts.
    Hostnames(Vec<String>),
}

impl Allowed {
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let passes = match self {
            Self::All => true,
            Self::CommonNames(names) => Certificate::parse(certificate)
                .and_then(|parsed| parsed.common_name)
                .is_some_and(|name| names.contains(&name)),
            Self::Hostnames(names) => {
                let parsed = ParsedCertificate::try_from(certificate)?;
                names.iter().any(|name| {
                    ServerName::try_from(name.as_str()).is_ok_and(|name| verify_server_name(&parsed, &name).is_ok())
                })
            }
        };
        passes.then_some(()).ok_or_else(|| Error::General("client certificate authentication failed".into()))
    }
}

/// The certificates somebody trusts: all of them as themselves, and those that may sign others as ends of chains.
#[derive(Clone, Debug)]
pub struct Trust {
    /// Those that may sign. webpki takes each for an authority: with all of them here, whoever has the key of a server
    /// whose own certificate is trusted could make certificates for any name.
    signers: Arc<RootCertStore>,
    subjects: Vec<DistinguishedName>,
    certificates: Vec<CertificateDer<'static>>,
}

impl Trust {
    /// Trusts `certificates`, and passes over those that are none: one bad certificate in a system's bundle must not
    /// disable the others.
    pub fn lenient(certificates: Vec<CertificateDer<'static>>) -> Self {
        let mut all = RootCertStore::empty();
        all.add_parsable_certificates(certificates.iter().cloned());
        Self::new(&all, certificates)
    }

    /// Trusts `certificates`, all of them.
    ///
    /// # Errors
    /// What is wrong with the first that is no certificate.
    pub fn strict(certificates: Vec<CertificateDer<'static>>) -> Result<Self, Error> {
        let mut all = RootCertStore::empty();
        certificates.iter().try_for_each(|certificate| all.add(certificate.clone()))?;
        Ok(Self::new(&all, certificates))
    }

    fn new(all: &RootCertStore, certificates: Vec<CertificateDer<'static>>) -> Self {
        let may_sign = |der: &&CertificateDer<'_>| Certificate::parse(der).is_some_and(|parsed| parsed.may_sign);
        let mut signers = RootCertStore::empty();
        signers.add_parsable_certificates(certificates.iter().filter(may_sign).cloned());
        Self { signers: Arc::new(signers), subjects: all.subjects(), certificates }
    }

    /// Whether this very certificate is trusted.
    fn holds(&self, certificate: &CertificateDer<'_>) -> bool {
        self.certificates.iter().any(|trusted| trusted.as_ref() == certificate.as_ref())
    }
}

fn parse(certificate: &CertificateDer<'_>) -> Result<Certificate, Error> {
    Certificate::parse(certificate).ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))
}

fn check_time(certificate: &Certificate, now: UnixTime) -> Result<(), Error> {
    let at = |seconds: i64| UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds.max(0).unsigned_abs()));
    let (not_before, not_after) = (at(certificate.not_before), at(certificate.not_after));
    Err(Error::InvalidCertificate(if now < not_before {
        CertificateError::NotValidYetContext { time: now, not_before }
    } else if now > not_after {
        CertificateError::ExpiredContext { time: now, not_after }
    } else {
        return Ok(());
    }))
}

fn check_usage(certificate: &Certificate, usage: &[u8]) -> Result<(), Error> {
    if certificate.allows(usage) { Ok(()) } else { Err(Error::InvalidCertificate(CertificateError::InvalidPurpose)) }
}

fn check_name(certificate: &Certificate, der: &CertificateDer<'_>, name: &ServerName<'_>) -> Result<(), Error> {
    let wrong = match verify_server_name(&ParsedCertificate::try_from(der)?, name) {
        Ok(()) => return Ok(()),
        Err(wrong) => wrong,
    };
    let common = certificate.common_name.as_deref().filter(|_| !certificate.has_alternative_names);
    if common.is_some_and(|common| common.eq_ignore_ascii_case(&name.to_str())) {
        return Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(Legacy)))));
    }
    Err(wrong)
}

/// webpki looks for no chain from an authority's certificate, and says that it has none of the usual names for. Most are
/// self-signed: nobody trusted has signed them.
fn of_authority(certificate: &Certificate, error: Error) -> Error {
    match error {
        Error::InvalidCertificate(CertificateError::Other(_)) if certificate.is_authority => {
            Error::InvalidCertificate(CertificateError::UnknownIssuer)
        }
        other => other,
    }
}

/// [`LEGACY_COMMON_NAME`], as an error.
#[derive(Debug)]
struct Legacy;

impl std::fmt::Display for Legacy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(LEGACY_COMMON_NAME)
    }
}

impl std::error::Error for Legacy {}

/// What verifiers of clients and of servers are asked alike: that the bearer of a certificate has its key. `self.algorithms`
/// answers.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, cert, dss, &self.algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, cert, dss, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}

/// Verifies clients.
#[derive(Debug)]
pub struct ClientVerifier {
    /// `None`: there is nothing a chain could end in.
    chains: Option<Arc<dyn ClientCertVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
    trust: Trust,
    allowed: Allowed,
    crl_file: Option<PathBuf>,
}

impl ClientVerifier {
    /// `crl_file`: the DER revocation list, read on each handshake; one that cannot be read refuses everybody.
    ///
    /// # Errors
    /// Nobody is trusted.
    pub fn new(
        trust: Trust,
        provider: &Arc<CryptoProvider>,
        allowed: Allowed,
        crl_file: Option<PathBuf>,
    ) -> Result<Self, String> {
        if trust.certificates.is_empty() {
            return Err("no certificates are trusted".into());
        }
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(&trust.signers), Arc::clone(provider));
        // It fails for one reason only, which is that nothing may sign.
        let chains = builder.build().ok();
        let algorithms = provider.signature_verification_algorithms;
        Ok(Self { chains, algorithms, trust, allowed, crl_file })
    }

    fn check_revoked(&self, presented: &[&CertificateDer<'_>]) -> Result<(), Error> {
        let Some(path) = &self.crl_file else { return Ok(()) };
        let unreadable = |what: String| Error::General(format!("revocation list {}: {what}", path.display()));
        let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
        let revoked = revoked_serials(&bytes).ok_or_else(|| unreadable("not a DER revocation list".into()))?;
        for certificate in presented {
            let Some(parsed) = Certificate::parse(certificate) else {
                return Err(Error::General("cannot parse a client certificate".into()));
            };
            if revoked.contains(&parsed.serial) {
                let serial: String = parsed.serial.iter().map(|byte| format!("{byte:02x}")).collect();
                return Err(Error::General(format!("transport: certificate serial {serial} revoked")));
            }
        }
        Ok(())
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.trust.subjects
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let certificate = parse(end_entity)?;
        check_time(&certificate, now)?;
        if self.trust.holds(end_entity) {
            check_usage(&certificate, CLIENT_AUTH)?;
        } else if let Some(chains) = &self.chains {
            chains
                .verify_client_cert(end_entity, intermediates, now)
                .map_err(|error| of_authority(&certificate, error))?;
        } else {
            return Err(Error::InvalidCertificate(CertificateError::UnknownIssuer));
        }
        self.allowed.check(end_entity)?;
        let presented: Vec<&CertificateDer<'_>> = std::iter::once(end_entity).chain(intermediates).collect();
        self.check_revoked(&presented)?;
        Ok(ClientCertVerified::assertion())
    }

    signatures!();
}

/// Verifies servers.
#[derive(Debug)]
pub struct ServerVerifier {
    /// `None`: there is nothing a chain could end in.
    chains: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
    trust: Trust,
    allowed: Allowed,
}

impl ServerVerifier {
    pub fn new(trust: Trust, provider: &Arc<CryptoProvider>, allowed: Allowed) -> Self {
        let builder = WebPkiServerVerifier::builder_with_provider(Arc::clone(&trust.signers), Arc::clone(provider));
        // It fails for one reason only, which is that nothing may sign.
        let chains = builder.build().ok();
        Self { chains, algorithms: provider.signature_verification_algorithms, trust, allowed }
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = parse(end_entity)?;
        check_time(&certificate, now)?;
        check_name(&certificate, end_entity, server_name)?;
        if self.trust.holds(end_entity) {
            check_usage(&certificate, SERVER_AUTH)?;
        } else if let Some(chains) = &self.chains {
            chains
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
                .map_err(|error| of_authority(&certificate, error))?;
        } else {
            return Err(Error::InvalidCertificate(CertificateError::UnknownIssuer));
        }
        self.allowed.check(end_entity)?;
        Ok(ServerCertVerified::assertion())
    }

    signatures!();
}

/// Believes any server that has the key of the certificate it shows: traffic is encrypted, and that is all.
#[derive(Debug)]
pub struct AnyServer {
    algorithms: WebPkiSupportedAlgorithms,
}

impl AnyServer {
    pub fn new(provider: &CryptoProvider) -> Self {
        Self { algorithms: provider.signature_verification_algorithms }
    }
}

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    signatures!();
}
