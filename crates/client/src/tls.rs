//! TLS out of files: whom to trust, and who we are.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dolmen_tls::{Allowed, AnyServer, Certificate, ServerVerifier, Trust};
use rustls::client::ResolvesClientCert;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, InconsistentKeys, SignatureScheme};
use rustls_pki_types::pem::{PemObject, SectionKind};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::Tls;
use crate::error::{ConnectionReason, Error};

/// Reads the files of `tls` and builds what a handshake needs. The system's roots are read only if no CA file is given
/// and somebody checks certificates at all.
///
/// # Errors
/// A file that cannot be read or holds no certificate or key, in the words of Go.
pub(crate) fn client_config(tls: &Tls) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(dolmen_tls::provider());
    let identity = identity(tls, &provider)?;
    let verifier: Arc<dyn ServerCertVerifier> = if tls.skip_verify {
        Arc::new(AnyServer::new(&provider))
    } else {
        Arc::new(ServerVerifier::new(Trust::lenient(trusted(tls.ca_file.as_deref())?), &provider, Allowed::All))
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::client(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => builder.with_client_cert_resolver(Arc::new(identity)),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// Reads the files of `tls`, and nothing else.
///
/// # Errors
/// As [`client_config`].
pub(crate) fn check(tls: &Tls) -> Result<(), Error> {
    identity(tls, &dolmen_tls::provider())?;
    match &tls.ca_file {
        Some(path) => trusted(Some(path)).map(|_| ()),
        None => Ok(()),
    }
}

/// The client's own certificate. It is presented as it is, even one so old in form that rustls would not read it: judging
/// it is the server's business.
#[derive(Debug)]
struct Identity(Arc<CertifiedKey>);

impl ResolvesClientCert for Identity {
    fn resolve(&self, _hints: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.key.choose_scheme(schemes).is_some().then(|| Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn identity(tls: &Tls, provider: &CryptoProvider) -> Result<Option<Identity>, Error> {
    let (cert, key) = match (&tls.cert_file, &tls.key_file) {
        (None, None) => return Ok(None),
        (Some(cert), Some(key)) => (cert, key),
        (cert, key) => {
            let show =
                |path: &Option<PathBuf>| path.as_ref().map_or_else(String::new, |path| path.display().to_string());
            let (key, cert) = (show(key), show(cert));
            let text = format!("KeyFile and CertFile must both be present[key: {key}, cert: {cert}]");
            return Err(Error::client(text));
        }
    };
    let (cert_pem, key_pem) = (read(cert)?, read(key)?);
    let chain = certificates(&cert_pem);
    if chain.is_empty() {
        return Err(Error::client(no_certificate(&sections(&cert_pem))));
    }
    let key = PrivateKeyDer::from_pem_slice(&key_pem).map_err(|_| Error::client(no_key(&sections(&key_pem))))?;
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(|error| Error::client(format!("tls: failed to parse private key: {error}")))?;
    let pair = CertifiedKey::new(chain, key);
    if pair.keys_match() == Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) {
        return Err(Error::client(mismatch(&pair)));
    }
    Ok(Some(Identity(Arc::new(pair))))
}

/// Kinds of the sections of a PEM file.
fn sections(pem: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(pem);
    let kinds = text.lines().filter_map(|line| line.trim().strip_prefix("-----BEGIN ")?.strip_suffix("-----"));
    kinds.map(str::to_owned).collect()
}

fn no_certificate(found: &[String]) -> String {
    match found {
        [] => "tls: failed to find any PEM data in certificate input".to_owned(),
        [only] if only.ends_with("PRIVATE KEY") => {
            "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched"
                .to_owned()
        }
        kinds => format!(
            "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: [{}]",
            kinds.join(" ")
        ),
    }
}

fn no_key(found: &[String]) -> String {
    match found {
        [] => "tls: failed to find any PEM data in key input".to_owned(),
        [only] if only == "CERTIFICATE" => {
            "tls: found a certificate rather than a key in the PEM for the private key".to_owned()
        }
        kinds => format!(
            "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: [{}]",
            kinds.join(" ")
        ),
    }
}

fn mismatch(pair: &CertifiedKey) -> String {
    // Object identifiers of RSA and of elliptic curves, as they stand in a public key.
    let kinds: [&[u8]; 2] = [&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1], &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1]];
    let kind = |public: &[u8]| kinds.iter().position(|kind| public.windows(kind.len()).any(|part| part == *kind));
    let of_certificate = pair.end_entity_cert().ok().and_then(|end_entity| {
        let parsed = ParsedCertificate::try_from(end_entity).ok()?;
        Some(kind(&parsed.subject_public_key_info()))
    });
    let of_key = pair.key.public_key().map(|public| kind(&public));
    if of_certificate == of_key {
        "tls: private key does not match public key".to_owned()
    } else {
        "tls: private key type does not match public key type".to_owned()
    }
}

fn trusted(ca_file: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, Error> {
    match ca_file {
        Some(path) => {
            let pem = read(path)?;
            let sections = <(SectionKind, Vec<u8>)>::pem_slice_iter(&pem).filter_map(Result::ok);
            // Each section must be a certificate, whatever it calls itself, as etcd's client has it.
            sections.map(|(_, der)| certificate(der)).collect()
        }
        // Roots that cannot be read are missing ones: the handshake will say what it could not verify.
        None => Ok(rustls_native_certs::load_native_certs().certs),
    }
}

/// `der` as a certificate that can be trusted.
fn certificate(der: Vec<u8>) -> Result<CertificateDer<'static>, Error> {
    /// How a `SEQUENCE` of DER begins, which a certificate is and a key as well.
    const SEQUENCE: u8 = 0x30;
    match Certificate::parse(&der) {
        Some(_) => Ok(der.into()),
        None if der.first() == Some(&SEQUENCE) => Err(Error::client("x509: malformed tbs certificate")),
        None => Err(Error::client("x509: malformed certificate")),
    }
}

/// All readable certificates of a PEM file; other sections are passed over, as Go does with a chain.
fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect()
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| {
        // A directory can be opened, and not read.
        let act = if error.kind() == std::io::ErrorKind::IsADirectory { "read" } else { "open" };
        Error::client(format!("{act} {}: {}", path.display(), crate::dial::os_text(&error)))
    })
}

/// What a failed handshake means, and Go's words for it.
pub(crate) fn handshake_text(error: &rustls::Error, name: &str) -> (ConnectionReason, String) {
    use rustls::AlertDescription as Alert;
    let reason = match error {
        rustls::Error::InvalidCertificate(_) => ConnectionReason::ServerCertificate,
        rustls::Error::AlertReceived(
            Alert::BadCertificate
            | Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::CertificateExpired
            | Alert::CertificateUnknown,
        ) => ConnectionReason::ClientCertificate,
        rustls::Error::AlertReceived(
            Alert::HandshakeFailure | Alert::ProtocolVersion | Alert::NoApplicationProtocol,
        )
        | rustls::Error::InvalidMessage(_) => ConnectionReason::Protocol,
        _ => ConnectionReason::Other,
    };
    (reason, dolmen_tls::handshake_text(error, name))
}
