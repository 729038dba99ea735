//! TLS of a port, from the same flags as etcd's.
//!
//! A [`TlsInfo`] is one port's flags. [`TlsInfo::server`] makes the listening side, [`TlsInfo::client`] the dialling
//! side; both check the files at once, so that a start fails rather than a handshake later. Certificates and keys are
//! looked at again on each handshake and read again when their files have changed, so a renewed certificate needs no
//! restart; while the files are bad, the last good pair stays in use. The trusted CAs are read once.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use dolmen_tls::{Allowed, AnyServer, ClientVerifier, ServerVerifier, Trust};
use parking_lot::Mutex;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ServerConfig, SignatureScheme, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::handshake::ServerTls;

/// Where Linux systems keep the CAs they trust; the first that exists counts.
const SYSTEM_ROOTS: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Cipher suites that etcd's flag takes and that do not exist here, all of them without forward secrecy or with CBC.
const SUITES_NOT_OFFERED: [&str; 16] = [
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
];

/// A version of the protocol; there are no older ones here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    Tls12,
    Tls13,
}

/// Which port a server side is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// HTTP/2 and HTTP/1.1.
    Client,
    /// HTTP/1.1; a client certificate must belong to the address it comes from.
    Peer,
}

/// The TLS flags of one port. `None` and empty are flags not given.
#[derive(Clone, Debug, Default)]
pub struct TlsInfo {
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// For dialling, in place of the pair above.
    pub client_cert_file: Option<PathBuf>,
    pub client_key_file: Option<PathBuf>,
    pub trusted_ca_file: Option<PathBuf>,
    /// Demand client certificates. A trusted CA demands them too.
    pub client_cert_auth: bool,
    pub crl_file: Option<PathBuf>,
    pub allowed_cns: Vec<String>,
    pub allowed_hostnames: Vec<String>,
    /// Do not check that a peer's certificate belongs to its address.
    pub skip_client_san_verify: bool,
    /// Believe any server when dialling.
    pub insecure_skip_verify: bool,
    /// Check servers against this name in place of the one dialled.
    pub server_name: Option<String>,
    pub min_version: Option<TlsVersion>,
    pub max_version: Option<TlsVersion>,
    /// Go's names, for TLS 1.2; those of 1.3 are always on.
    pub cipher_suites: Vec<String>,
    /// The certificate was made by [`TlsInfo::self_signed`]: whoever has one like it does not verify others.
    pub self_signed: bool,
}

/// The dialling side.
#[derive(Clone, Debug)]
pub struct ClientTls {
    pub config: Arc<ClientConfig>,
    /// See [`TlsInfo::server_name`].
    pub server_name: Option<String>,
}

/// Why there is no TLS to be had from the flags.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("KeyFile and CertFile must both be present[key: {key}, cert: {cert}]")]
    Pair { key: String, cert: String },
    #[error("ClientKeyFile and ClientCertFile must both be present or both absent: key: {key}, cert: {cert}]")]
    ClientPair { key: String, cert: String },
    #[error("AllowedCNs and AllowedHostnames are mutually exclusive (cns={cns:?}, hostnames={hostnames:?})")]
    Exclusive { cns: Vec<String>, hostnames: Vec<String> },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{}: {what}", path.display())]
    File { path: PathBuf, what: String },
    #[error("unexpected TLS cipher suite {0:?}")]
    CipherSuite(String),
    #[error("none of the TLS cipher suites {0:?} is offered here")]
    NoCipherSuite(Vec<String>),
    #[error("min version is above max version")]
    Versions,
    #[error("selfSignedCertValidity is invalid,it should be greater than 0")]
    Validity,
    #[error("cannot generate a certificate")]
    Generate(#[from] rcgen::Error),
    #[error("{0}")]
    Config(String),
}

impl TlsInfo {
    /// Whether no certificate is given.
    pub fn is_empty(&self) -> bool {
        self.cert_file.is_none() && self.key_file.is_none()
    }

    /// The listening side of a port.
    ///
    /// # Errors
    /// When a flag contradicts another or a file cannot be used.
    pub fn server(&self, port: Port) -> Result<ServerTls, TlsError> {
        let pair = self.pair()?;
        self.client_pair()?;
        let allowed = self.allowed()?;
        let provider = Arc::new(self.provider()?);
        let resolver = Arc::new(KeyFiles::load(pair, Arc::clone(&provider))?);
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&self.versions()?)
            .map_err(config_error)?;
        let builder = if self.client_cert_auth || self.trusted_ca_file.is_some() {
            let verifier = ClientVerifier::new(self.trust()?, &provider, allowed, self.crl_file.clone());
            builder.with_client_cert_verifier(Arc::new(verifier.map_err(TlsError::Config)?))
        } else {
            builder.with_no_client_auth()
        };
        let mut config = builder.with_cert_resolver(resolver);
        config.alpn_protocols = match port {
            Port::Client => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Port::Peer => vec![b"http/1.1".to_vec()],
        };
        // A resumed session would carry the verdict on a certificate past its revocation.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let check_client_san = port == Port::Peer && !self.skip_client_san_verify;
        Ok(ServerTls::new(config, port, check_client_san))
    }

    /// The dialling side. Without a CA the system's are trusted.
    ///
    /// # Errors
    /// As [`TlsInfo::server`].
    pub fn client(&self) -> Result<ClientTls, TlsError> {
        let provider = Arc::new(self.provider()?);
        let allowed = self.allowed()?;
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&self.versions()?)
            .map_err(config_error)?
            .dangerous();
        let builder = if self.insecure_skip_verify || self.self_signed {
            builder.with_custom_certificate_verifier(Arc::new(AnyServer::new(&provider)))
        } else {
            let verifier = ServerVerifier::new(self.trust()?, &provider, allowed);
            builder.with_custom_certificate_verifier(Arc::new(verifier))
        };
        let mut config = if self.is_empty() {
            builder.with_no_client_auth()
        } else {
            let pair = match self.client_pair()? {
                Some(pair) => pair,
                None => self.pair()?,
            };
            builder.with_client_cert_resolver(Arc::new(KeyFiles::load(pair, provider)?))
        };
        config.resumption = Resumption::disabled();
        Ok(ClientTls { config: Arc::new(config), server_name: self.server_name.clone() })
    }

    fn pair(&self) -> Result<(PathBuf, PathBuf), TlsError> {
        match (&self.cert_file, &self.key_file) {
            (Some(cert), Some(key)) => Ok((cert.clone(), key.clone())),
            (cert, key) => Err(TlsError::Pair { key: shown(key), cert: shown(cert) }),
        }
    }

    fn client_pair(&self) -> Result<Option<(PathBuf, PathBuf)>, TlsError> {
        match (&self.client_cert_file, &self.client_key_file) {
            (Some(cert), Some(key)) => {
                let pair = (cert.clone(), key.clone());
                read_pair(&pair, &dolmen_tls::provider())?;
                Ok(Some(pair))
            }
            (None, None) => Ok(None),
            (cert, key) => Err(TlsError::ClientPair { key: shown(key), cert: shown(cert) }),
        }
    }

    fn allowed(&self) -> Result<Allowed, TlsError> {
        match (self.allowed_cns.is_empty(), self.allowed_hostnames.is_empty()) {
            (true, true) => Ok(Allowed::All),
            (false, true) => Ok(Allowed::CommonNames(self.allowed_cns.clone())),
            (true, false) => Ok(Allowed::Hostnames(self.allowed_hostnames.clone())),
            (false, false) => {
                Err(TlsError::Exclusive { cns: self.allowed_cns.clone(), hostnames: self.allowed_hostnames.clone() })
            }
        }
    }

    fn versions(&self) -> Result<Vec<&'static SupportedProtocolVersion>, TlsError> {
        let min = self.min_version.unwrap_or(TlsVersion::Tls12);
        let max = self.max_version.unwrap_or(TlsVersion::Tls13);
        let all = [(TlsVersion::Tls12, &rustls::version::TLS12), (TlsVersion::Tls13, &rustls::version::TLS13)];
        let chosen: Vec<_> =
            all.into_iter().filter(|(version, _)| (min..=max).contains(version)).map(|(_, version)| version).collect();
        if chosen.is_empty() { Err(TlsError::Versions) } else { Ok(chosen) }
    }

    /// Checks the names of cipher suites, and says which of them are left out.
    ///
    /// # Errors
    /// One is unknown, or none is left that this server has.
    pub fn check_cipher_suites(&self) -> Result<(), TlsError> {
        self.provider()?;
        for name in self.cipher_suites.iter().filter(|name| SUITES_NOT_OFFERED.contains(&name.as_str())) {
            tracing::warn!(cipher_suite = name, "a TLS cipher suite is not offered here; it is left out");
        }
        Ok(())
    }

    fn provider(&self) -> Result<CryptoProvider, TlsError> {
        let mut provider = dolmen_tls::provider();
        if self.cipher_suites.is_empty() {
            return Ok(provider);
        }
        let tls12 = |suite: &rustls::SupportedCipherSuite| suite.tls13().is_none();
        let mut wanted = Vec::new();
        for name in &self.cipher_suites {
            // Go has two old names without the hash.
            let full = if name.ends_with("CHACHA20_POLY1305") { format!("{name}_SHA256") } else { name.clone() };
            match provider.cipher_suites.iter().find(|suite| go_name(suite) == full) {
                Some(suite) => wanted.push(*suite),
                None if SUITES_NOT_OFFERED.contains(&name.as_str()) => {}
                None => return Err(TlsError::CipherSuite(name.clone())),
            }
        }
        let has_tls12 = wanted.iter().any(tls12);
        if !has_tls12 && self.max_version == Some(TlsVersion::Tls12) {
            return Err(TlsError::NoCipherSuite(self.cipher_suites.clone()));
        }
        wanted.retain(tls12);
        wanted.splice(0..0, provider.cipher_suites.iter().copied().filter(|suite| !tls12(suite)));
        provider.cipher_suites = wanted;
        Ok(provider)
    }

    fn trust(&self) -> Result<Trust, TlsError> {
        let path = match &self.trusted_ca_file {
            Some(path) => path.clone(),
            None => system_roots()?,
        };
        let certificates = read_certificates(&path)?;
        // One bad certificate in a system's bundle must not disable the others; in a file named by a flag it must.
        match &self.trusted_ca_file {
            None => Ok(Trust::lenient(certificates)),
            Some(_) => Trust::strict(certificates).map_err(|error| TlsError::File { path, what: error.to_string() }),
        }
    }
}

fn shown(path: &Option<PathBuf>) -> String {
    path.as_ref().map_or_else(String::new, |path| path.display().to_string())
}

fn config_error(error: rustls::Error) -> TlsError {
    TlsError::Config(error.to_string())
}

/// rustls names its suites with a version in front; Go does so for 1.3 only without the `13`.
fn go_name(suite: &rustls::SupportedCipherSuite) -> String {
    format!("{:?}", suite.suite()).replace("TLS13_", "TLS_")
}

fn system_roots() -> Result<PathBuf, TlsError> {
    if let Some(path) = std::env::var_os("SSL_CERT_FILE") {
        return Ok(path.into());
    }
    let found = SYSTEM_ROOTS.iter().map(Path::new).find(|path| path.exists());
    found.map(Path::to_path_buf).ok_or_else(|| TlsError::Config("the system has no trusted certificates".into()))
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read { path: path.into(), source })
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(path)?;
    let wrong = |what: String| TlsError::File { path: path.into(), what };
    let list: Vec<_> =
        CertificateDer::pem_slice_iter(&bytes).collect::<Result<_, _>>().map_err(|error| wrong(error.to_string()))?;
    if list.is_empty() { Err(wrong("holds no certificate".into())) } else { Ok(list) }
}

fn read_pair((cert, key): &(PathBuf, PathBuf), provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
    let wrong = |what: String| TlsError::File { path: key.clone(), what };
    let chain = read_certificates(cert)?;
    let der = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| wrong(error.to_string()))?;
    let signer = provider.key_provider.load_private_key(der).map_err(|error| wrong(error.to_string()))?;
    let certified = CertifiedKey::new(chain, signer);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(certified),
        Err(rustls::Error::InconsistentKeys(_)) => Err(wrong("private key does not match public key".into())),
        Err(error) => Err(TlsError::File { path: cert.clone(), what: error.to_string() }),
    }
}

/// A certificate and its key, read again when their files change.
pub(crate) struct KeyFiles {
    pair: (PathBuf, PathBuf),
    provider: Arc<CryptoProvider>,
    current: Mutex<(Stamp, Arc<CertifiedKey>)>,
}

/// Tells that a file is another: both files' time and length.
type Stamp = [Option<(SystemTime, u64)>; 2];

fn stamp(pair: &(PathBuf, PathBuf)) -> Stamp {
    [&pair.0, &pair.1].map(|path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    })
}

impl KeyFiles {
    pub(crate) fn load(pair: (PathBuf, PathBuf), provider: Arc<CryptoProvider>) -> Result<Self, TlsError> {
        let stamp = stamp(&pair);
        let key = read_pair(&pair, &provider)?;
        Ok(Self { pair, provider, current: Mutex::new((stamp, Arc::new(key))) })
    }

    fn current(&self) -> Arc<CertifiedKey> {
        let mut current = self.current.lock();
        let now = stamp(&self.pair);
        if now != current.0 {
            match read_pair(&self.pair, &self.provider) {
                Ok(key) => *current = (now, Arc::new(key)),
                // The stamp stays, so the next handshake tries again: the other file may be under way.
                Err(error) => tracing::warn!(
                    cert_file = %self.pair.0.display(),
                    key_file = %self.pair.1.display(),
                    %error,
                    "failed to create peer certificate; the one read before stays in use"
                ),
            }
        }
        Arc::clone(&current.1)
    }
}

impl fmt::Debug for KeyFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFiles").field("pair", &self.pair).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for KeyFiles {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl ResolvesClientCert for KeyFiles {
    fn resolve(&self, _root_hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
