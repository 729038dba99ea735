//! Whose certificate is believed: rustls' own verification, and around it what etcd does besides.
//!
//! * A certificate that is itself among the trusted ones is believed, even one marked as a CA: a self-signed
//!   certificate used for everything is a common setup, Go takes it, and webpki does not.
//! * `allowed-cn`, `allowed-hostname`: names that a certificate must have.
//! * A revocation list: serial numbers refused, from a file that is read anew each time.
//! * No verification at all, between members with `peer-auto-tls`.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::x509::{CLIENT_AUTH, Certificate, SERVER_AUTH, revoked_serials};

/// Which of the verified certificates pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    All,
    CommonNames(Vec<String>),
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

/// Certificates trusted, in both forms needed.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) certificates: Vec<CertificateDer<'static>>,
}

impl Trust {
    /// Whether this very certificate is trusted, now and for `usage`.
    fn holds(&self, certificate: &CertificateDer<'_>, usage: &[u8], now: UnixTime) -> bool {
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        self.certificates.iter().any(|trusted| trusted.as_ref() == certificate.as_ref())
            && Certificate::parse(certificate)
                .is_some_and(|parsed| (parsed.not_before..=parsed.not_after).contains(&now) && parsed.allows(usage))
    }
}

/// Verifies clients.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    trust: Trust,
    allowed: Allowed,
    crl_file: Option<PathBuf>,
}

impl ClientVerifier {
    pub(crate) fn new(
        trust: Trust,
        provider: Arc<CryptoProvider>,
        allowed: Allowed,
        crl_file: Option<PathBuf>,
    ) -> Result<Self, String> {
        let inner = WebPkiClientVerifier::builder_with_provider(Arc::clone(&trust.roots), provider)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { inner, trust, allowed, crl_file })
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
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Err(error) = self.inner.verify_client_cert(end_entity, intermediates, now)
            && !self.trust.holds(end_entity, CLIENT_AUTH, now)
        {
            return Err(error);
        }
        self.allowed.check(end_entity)?;
        let presented: Vec<&CertificateDer<'_>> = std::iter::once(end_entity).chain(intermediates).collect();
        self.check_revoked(&presented)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Verifies servers.
#[derive(Debug)]
pub(crate) struct ServerVerifier {
    inner: Arc<dyn ServerCertVerifier>,
    trust: Trust,
    allowed: Allowed,
}

impl ServerVerifier {
    pub(crate) fn new(trust: Trust, provider: Arc<CryptoProvider>, allowed: Allowed) -> Result<Self, String> {
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::clone(&trust.roots), provider)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { inner, trust, allowed })
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
        if let Err(error) = self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            if !self.trust.holds(end_entity, SERVER_AUTH, now) {
                return Err(error);
            }
            verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        }
        self.allowed.check(end_entity)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Believes any server: traffic is encrypted, and that is all.
///
/// etcd's own automatic certificates have keys on P-521, whose signatures our provider cannot verify. Where nobody asks
/// whose the certificate is, it also proves nothing that its bearer has the key, so those signatures pass unseen; all
/// others are verified.
#[derive(Debug)]
pub(crate) struct AnyServer(WebPkiSupportedAlgorithms);

impl AnyServer {
    pub(crate) fn new(provider: &CryptoProvider) -> Self {
        Self(provider.signature_verification_algorithms)
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

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if dss.scheme == SignatureScheme::ECDSA_NISTP521_SHA512 {
            return Ok(HandshakeSignatureValid::assertion());
        }
        verify_tls12_signature(message, cert, dss, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if dss.scheme == SignatureScheme::ECDSA_NISTP521_SHA512 {
            return Ok(HandshakeSignatureValid::assertion());
        }
        verify_tls13_signature(message, cert, dss, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = self.0.supported_schemes();
        schemes.push(SignatureScheme::ECDSA_NISTP521_SHA512);
        schemes
    }
}
