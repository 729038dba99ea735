//! ECDSA on the curve P-521, which ring does not have: verified with any hash that etcd's side may choose, and signed
//! with SHA-512, as TLS 1.3 demands.
//!
//! The arithmetic is RustCrypto's and takes about a millisecond a signature: one or two a connection.

use std::fmt;
use std::sync::Arc;

use p521::ecdsa::signature::Signer as _;
use p521::ecdsa::signature::hazmat::PrehashVerifier;
use p521::ecdsa::{DerSignature, Signature, SigningKey, VerifyingKey};
use p521::pkcs8::DecodePrivateKey;
use rustls::crypto::KeyProvider;
use rustls::sign::{self, public_key_to_spki};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};
use rustls_pki_types::{
    AlgorithmIdentifier, InvalidSignature, PrivateKeyDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer,
    alg_id,
};
use sha2::{Digest, Sha256, Sha384, Sha512};

/// What each scheme of a handshake may mean with a key on P-521. Only the last is one of TLS 1.3; in 1.2 a scheme names
/// the hash, and the key may be on any curve.
pub(crate) static SCHEMES: [(SignatureScheme, &dyn SignatureVerificationAlgorithm); 3] = [
    (SignatureScheme::ECDSA_NISTP256_SHA256, &Ecdsa { hash: Hash::Sha256 }),
    (SignatureScheme::ECDSA_NISTP384_SHA384, &Ecdsa { hash: Hash::Sha384 }),
    (SignatureScheme::ECDSA_NISTP521_SHA512, &Ecdsa { hash: Hash::Sha512 }),
];

#[derive(Clone, Copy, Debug)]
enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

/// Verifies signatures with keys on P-521 over one kind of hash.
#[derive(Debug)]
struct Ecdsa {
    hash: Hash,
}

impl SignatureVerificationAlgorithm for Ecdsa {
    fn verify_signature(&self, public_key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        let key = VerifyingKey::from_sec1_bytes(public_key).map_err(|_| InvalidSignature)?;
        let signature = Signature::from_der(signature).map_err(|_| InvalidSignature)?;
        let verdict = match self.hash {
            Hash::Sha256 => key.verify_prehash(&Sha256::digest(message), &signature),
            Hash::Sha384 => key.verify_prehash(&Sha384::digest(message), &signature),
            Hash::Sha512 => key.verify_prehash(&Sha512::digest(message), &signature),
        };
        verdict.map_err(|_| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P521
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        match self.hash {
            Hash::Sha256 => alg_id::ECDSA_SHA256,
            Hash::Sha384 => alg_id::ECDSA_SHA384,
            Hash::Sha512 => alg_id::ECDSA_SHA512,
        }
    }
}

/// Reads private keys: those on P-521 here, all others by ring.
#[derive(Debug)]
pub(crate) struct Keys;

impl KeyProvider for Keys {
    fn load_private_key(&self, der: PrivateKeyDer<'static>) -> Result<Arc<dyn sign::SigningKey>, Error> {
        let ours = match &der {
            PrivateKeyDer::Pkcs8(pkcs8) => p521::SecretKey::from_pkcs8_der(pkcs8.secret_pkcs8_der()).ok(),
            PrivateKeyDer::Sec1(sec1) => p521::SecretKey::from_sec1_der(sec1.secret_sec1_der()).ok(),
            _ => None,
        };
        match ours {
            Some(key) => Ok(Arc::new(Key(Arc::new(key.into())))),
            None => rustls::crypto::ring::default_provider().key_provider.load_private_key(der),
        }
    }
}

/// A private key.
#[derive(Clone)]
struct Key(Arc<SigningKey>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").finish_non_exhaustive()
    }
}

impl sign::SigningKey for Key {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn sign::Signer>> {
        offered.contains(&sign::Signer::scheme(self)).then(|| Box::new(self.clone()) as Box<dyn sign::Signer>)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(public_key_to_spki(&alg_id::ECDSA_P521, self.0.verifying_key().to_sec1_point(false)))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

impl sign::Signer for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let signed: Result<DerSignature, _> = self.0.try_sign(message);
        signed.map(|signature| signature.as_bytes().to_vec()).map_err(|error| Error::General(error.to_string()))
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ECDSA_NISTP521_SHA512
    }
}
