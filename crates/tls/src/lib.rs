//! TLS as etcd's programs speak it: which keys and signatures there are, and whose certificate is believed.
//!
//! rustls speaks the protocol, ring computes, webpki builds chains. Two things are missing there that Go has, and they
//! are what this crate adds, for the ports of a server, for members among themselves and for clients:
//!
//! * **P-521.** The certificates that etcd makes by itself (`--auto-tls`, `--peer-auto-tls`) have keys on this curve.
//!   [`provider`] is ring's provider that also verifies ECDSA on it, in handshakes and in chains, and signs with such
//!   keys.
//! * **Certificates that are trusted themselves.** Go believes whoever presents a certificate that stands in the file of
//!   trusted ones, whether or not it is marked as an authority's. [`Trust`] knows these, and [`ServerVerifier`] and
//!   [`ClientVerifier`] ask it before they look for a chain.
//!
//! ```
//! use dolmen_tls::{Allowed, ServerVerifier, Trust};
//!
//! // Trusts nobody, so believes nobody.
//! let provider = std::sync::Arc::new(dolmen_tls::provider());
//! let verifier = ServerVerifier::new(Trust::lenient(Vec::new()), &provider, Allowed::All);
//! let config = rustls::ClientConfig::builder_with_provider(provider)
//!     .with_safe_default_protocol_versions()?
//!     .dangerous()
//!     .with_custom_certificate_verifier(std::sync::Arc::new(verifier))
//!     .with_no_client_auth();
//! # let _ = config;
//! # Ok::<(), rustls::Error>(())
//! ```
//!
//! And [`handshake_text`] says in Go's words what went wrong.
//!
//! Left out: files and flags, which belong to those who have them.

#![forbid(unsafe_code)]
// The edge: a list of revoked certificates is a file.
#![allow(clippy::disallowed_methods)]

pub mod date;
mod p521;
mod verify;
mod words;
mod x509;

use std::sync::LazyLock;

use rustls::SignatureScheme;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls_pki_types::SignatureVerificationAlgorithm;

pub use verify::{Allowed, AnyServer, ClientVerifier, LEGACY_COMMON_NAME, ServerVerifier, Trust};
pub use words::{NOT_TLS, handshake_text};
pub use x509::Certificate;

/// ring's provider, and P-521.
pub fn provider() -> CryptoProvider {
    CryptoProvider {
        signature_verification_algorithms: *ALGORITHMS,
        key_provider: &p521::Keys,
        ..rustls::crypto::ring::default_provider()
    }
}

type Algorithms = &'static [&'static dyn SignatureVerificationAlgorithm];

/// ring's, each scheme with what P-521 adds to it. rustls wants them for ever, so they are made once and kept.
static ALGORITHMS: LazyLock<WebPkiSupportedAlgorithms> = LazyLock::new(|| {
    let ring = rustls::crypto::ring::default_provider().signature_verification_algorithms;
    let mut mapping: Vec<(SignatureScheme, Algorithms)> = ring.mapping.to_vec();
    for (scheme, added) in p521::SCHEMES {
        match mapping.iter_mut().find(|(known, _)| *known == scheme) {
            // The first of a scheme is the one of TLS 1.3, which ties the hash to the curve; 1.2 tries each.
            Some((_, algorithms)) => *algorithms = [*algorithms, &[added]].concat().leak(),
            None => mapping.push((scheme, vec![added].leak())),
        }
    }
    let all = ring.all.iter().copied().chain(p521::SCHEMES.map(|(_, algorithm)| algorithm));
    WebPkiSupportedAlgorithms { all: all.collect::<Vec<_>>().leak(), mapping: mapping.leak() }
});
