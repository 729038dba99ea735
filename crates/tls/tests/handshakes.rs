//! Handshakes with certificates of each kind of key, made by Go (`fixtures/make.go`), and who is believed in them.

use std::sync::Arc;

use dolmen_tls::{Allowed, AnyServer, ClientVerifier, LEGACY_COMMON_NAME, ServerVerifier, Trust, provider};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::client::danger::ServerCertVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::{CertifiedKey, Signer, SigningKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Error, ServerConfig, ServerConnection, SignatureAlgorithm,
    SignatureScheme, SupportedProtocolVersion, version,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer, PrivateSec1KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};

const KINDS: [(&str, &[u8]); 7] = [
    ("rsa2048", include_bytes!("fixtures/rsa2048.pem")),
    ("rsa3072", include_bytes!("fixtures/rsa3072.pem")),
    ("rsa4096", include_bytes!("fixtures/rsa4096.pem")),
    ("ed25519", include_bytes!("fixtures/ed25519.pem")),
    ("p256", include_bytes!("fixtures/p256.pem")),
    ("p384", include_bytes!("fixtures/p384.pem")),
    ("p521", include_bytes!("fixtures/p521.pem")),
];

/// An authority, a certificate it has signed, and that one's key.
struct Identity {
    authority: CertificateDer<'static>,
    leaf: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    fn read(pem: &[u8]) -> Self {
        let mut certificates = CertificateDer::pem_slice_iter(pem).map(|one| one.expect("certificate"));
        let (authority, leaf) = (certificates.next().expect("authority"), certificates.next().expect("leaf"));
        Self { authority, leaf, key: PrivateKeyDer::from_pem_slice(pem).expect("key") }
    }
}

/// Trusts one certificate.
fn trust(certificate: &CertificateDer<'static>) -> Trust {
    Trust::strict(vec![certificate.clone()]).expect("certificate")
}

fn server_verifier(trusted: &CertificateDer<'static>) -> Arc<dyn ServerCertVerifier> {
    Arc::new(ServerVerifier::new(trust(trusted), &Arc::new(provider()), Allowed::All))
}

fn client_verifier(trusted: &CertificateDer<'static>) -> Arc<dyn ClientCertVerifier> {
    let verifier = ClientVerifier::new(trust(trusted), &Arc::new(provider()), Allowed::All, None);
    Arc::new(verifier.expect("somebody is trusted"))
}

/// Both sides show the certificate of `identity`.
fn shake(
    version: &'static SupportedProtocolVersion,
    identity: &Identity,
    of_server: Arc<dyn ServerCertVerifier>,
    of_client: Arc<dyn ClientCertVerifier>,
) -> Result<(), Error> {
    let chain = vec![identity.leaf.clone()];
    let server = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[version])?
        .with_client_cert_verifier(of_client)
        .with_single_cert(chain.clone(), identity.key.clone_key())?;
    let client = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[version])?
        .dangerous()
        .with_custom_certificate_verifier(of_server)
        .with_client_auth_cert(chain, identity.key.clone_key())?;
    converse(client, server)
}

/// A handshake in memory, to its end or to the first error of either side.
fn converse(client: ClientConfig, server: ServerConfig) -> Result<(), Error> {
    let name = ServerName::try_from("127.0.0.1").expect("name");
    let mut client = ClientConnection::new(Arc::new(client), name)?;
    let mut server = ServerConnection::new(Arc::new(server))?;
    for _ in 0..10 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).expect("memory");
        }
        server.read_tls(&mut bytes.as_slice()).expect("memory");
        server.process_new_packets()?;
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).expect("memory");
        }
        client.read_tls(&mut bytes.as_slice()).expect("memory");
        client.process_new_packets()?;
        if !client.is_handshaking() && !server.is_handshaking() {
            return Ok(());
        }
    }
    Err(Error::HandshakeNotComplete)
}

#[test]
fn each_kind_of_key_serves_and_is_believed() {
    for (kind, pem) in KINDS {
        let identity = Identity::read(pem);
        for version in [&version::TLS12, &version::TLS13] {
            let at = format!("{kind} {version:?}");
            // By its authority, and by itself although it is none.
            for trusted in [&identity.authority, &identity.leaf] {
                let shaken = shake(version, &identity, server_verifier(trusted), client_verifier(trusted));
                assert_eq!(shaken, Ok(()), "{at}");
            }
            let any = Arc::new(AnyServer::new(&provider()));
            assert_eq!(shake(version, &identity, any, client_verifier(&identity.authority)), Ok(()), "{at}");
            let (_, other) = KINDS[usize::from(kind == KINDS[0].0)];
            let other = Identity::read(other);
            let refused = shake(version, &identity, server_verifier(&other.authority), client_verifier(&identity.leaf));
            assert_eq!(refused, Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)), "{at}");
            let refused = shake(version, &identity, server_verifier(&identity.leaf), client_verifier(&other.authority));
            assert_eq!(refused, Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)), "{at}");
        }
    }
}

/// Signs something else than it is asked to, as somebody does who has not the key.
#[derive(Debug)]
struct Forger(Arc<dyn SigningKey>);

impl SigningKey for Forger {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        Some(Box::new(Forged(self.0.choose_scheme(offered)?)))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.0.public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.algorithm()
    }
}

#[derive(Debug)]
struct Forged(Box<dyn Signer>);

impl Signer for Forged {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.0.sign(&[message, b"!"].concat())
    }

    fn scheme(&self) -> SignatureScheme {
        self.0.scheme()
    }
}

#[test]
fn a_bearer_without_the_key_is_refused_by_all() {
    for (kind, pem) in KINDS {
        let identity = Identity::read(pem);
        for version in [&version::TLS12, &version::TLS13] {
            let verifiers: [Arc<dyn ServerCertVerifier>; 2] =
                [Arc::new(AnyServer::new(&provider())), server_verifier(&identity.leaf)];
            for verifier in verifiers {
                let key = provider().key_provider.load_private_key(identity.key.clone_key()).expect("key");
                let forged = CertifiedKey::new(vec![identity.leaf.clone()], Arc::new(Forger(key)));
                let server = ServerConfig::builder_with_provider(Arc::new(provider()))
                    .with_protocol_versions(&[version])
                    .expect("version")
                    .with_no_client_auth()
                    .with_cert_resolver(Arc::new(SingleCertAndKey::from(forged)));
                let client = ClientConfig::builder_with_provider(Arc::new(provider()))
                    .with_protocol_versions(&[version])
                    .expect("version")
                    .dangerous()
                    .with_custom_certificate_verifier(verifier)
                    .with_no_client_auth();
                let refused = Err(Error::InvalidCertificate(CertificateError::BadSignature));
                assert_eq!(converse(client, server), refused, "{kind} {version:?}");
            }
        }
    }
}

#[test]
fn a_key_reads_the_same_in_both_forms() {
    for (kind, pem) in KINDS.iter().filter(|(kind, _)| kind.starts_with('p')) {
        let sec1 = PrivateSec1KeyDer::from_pem_slice(pem).expect("key");
        let [sec1, pkcs8] =
            [sec1.into(), Identity::read(pem).key].map(|key| provider().key_provider.load_private_key(key));
        let (sec1, pkcs8) = (sec1.expect("key"), pkcs8.expect("key"));
        assert!(sec1.public_key().is_some() && sec1.public_key() == pkcs8.public_key(), "{kind}");
        assert!(sec1.choose_scheme(&[SignatureScheme::ED25519]).is_none(), "{kind}");
    }
}

#[test]
fn signatures_of_go_are_verified_and_others_are_not() {
    let text = include_str!("fixtures/p521-signatures.txt");
    let bytes = |hex: &str| -> Vec<u8> {
        let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
        (0..hex.len()).step_by(2).map(digit).collect()
    };
    let mut lines = text.lines().map(|line| line.split_once(' ').expect("two words"));
    let key = bytes(lines.next().expect("key").1);
    let all = provider().signature_verification_algorithms.all;
    let p521 = rustls_pki_types::alg_id::ECDSA_P521;
    let by_hash = ["sha256", "sha384", "sha512"].map(|name| {
        let id = match name {
            "sha256" => rustls_pki_types::alg_id::ECDSA_SHA256,
            "sha384" => rustls_pki_types::alg_id::ECDSA_SHA384,
            _ => rustls_pki_types::alg_id::ECDSA_SHA512,
        };
        let found = all.iter().find(|one| one.public_key_alg_id() == p521 && one.signature_alg_id() == id);
        (name, *found.expect("algorithm"))
    });
    let mut count = 0;
    for (hash, signature) in lines {
        let signature = bytes(signature);
        for (name, algorithm) in by_hash {
            let verdict = algorithm.verify_signature(&key, b"signed by Go", &signature);
            assert_eq!(verdict.is_ok(), name == hash, "{name} of {signature:02x?}");
        }
        let (_, algorithm) = by_hash.into_iter().find(|(name, _)| *name == hash).expect("hash");
        assert!(algorithm.verify_signature(&key, b"signed by go", &signature).is_err());
        let at = count * 7 % 130;
        let mut damaged = signature.clone();
        damaged[at] ^= 1;
        assert!(algorithm.verify_signature(&key, b"signed by Go", &damaged).is_err(), "damaged at {at}");
        assert!(algorithm.verify_signature(&key, b"signed by Go", &signature[..at]).is_err(), "cut at {at}");
        let mut other = key.clone();
        other[1 + at] ^= 1;
        assert!(algorithm.verify_signature(&other, b"signed by Go", &signature).is_err(), "key damaged at {at}");
        assert!(algorithm.verify_signature(&key[..at], b"signed by Go", &signature).is_err(), "key cut at {at}");
        count += 1;
    }
    assert_eq!(count, 60);
}

/// What is said of a self-signed certificate made by `change`, trusted itself, shown by 127.0.0.1.
fn verdict(change: impl FnOnce(&mut CertificateParams)) -> Result<(), Error> {
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("names");
    change(&mut params);
    let der = params.self_signed(&KeyPair::generate().expect("key")).expect("certificate").der().clone();
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_800_000_000));
    let name = ServerName::try_from("127.0.0.1").expect("name");
    server_verifier(&der).verify_server_cert(&der, &[], &name, &[], now).map(|_| ())
}

#[test]
fn a_trusted_certificate_still_has_a_name_a_time_and_a_purpose() {
    let plain = |_: &mut CertificateParams| {};
    assert_eq!(verdict(plain), Ok(()));
    assert_eq!(verdict(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)), Ok(()));
    assert_eq!(verdict(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Any]), Ok(()));
    let invalid = |result: Result<(), Error>| match result {
        Err(Error::InvalidCertificate(why)) => why,
        other => panic!("{other:?}"),
    };
    let [own, other] = [(); 2].map(|()| {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.self_signed(&KeyPair::generate().expect("key")).expect("certificate").der().clone()
    });
    let name = ServerName::try_from("127.0.0.1").expect("name");
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_800_000_000));
    let why = invalid(server_verifier(&own).verify_server_cert(&other, &[], &name, &[], now).map(|_| ()));
    assert_eq!(why, CertificateError::UnknownIssuer, "an authority that nobody trusts");
    let why = invalid(verdict(|params| params.not_after = rcgen::date_time_ymd(2025, 1, 1)));
    assert!(matches!(why, CertificateError::ExpiredContext { .. }), "{why:?}");
    let why = invalid(verdict(|params| params.not_before = rcgen::date_time_ymd(2099, 1, 1)));
    assert!(matches!(why, CertificateError::NotValidYetContext { .. }), "{why:?}");
    let why = invalid(verdict(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]));
    assert_eq!(why, CertificateError::InvalidPurpose);
    let other = |params: &mut CertificateParams| {
        params.subject_alt_names = vec![rcgen::SanType::DnsName("a.example".try_into().expect("name"))];
        // The dates come before the name, as Go has it.
        params.distinguished_name.push(DnType::CommonName, "127.0.0.1");
    };
    let why = invalid(verdict(other));
    assert!(matches!(why, CertificateError::NotValidForNameContext { .. }), "{why:?}");
    let why = invalid(verdict(|params| {
        other(params);
        params.not_after = rcgen::date_time_ymd(2025, 1, 1);
    }));
    assert!(matches!(why, CertificateError::ExpiredContext { .. }), "{why:?}");
    let why = invalid(verdict(|params| {
        params.subject_alt_names.clear();
        params.distinguished_name.push(DnType::CommonName, "127.0.0.1");
    }));
    match why {
        CertificateError::Other(why) => assert_eq!(why.0.to_string(), LEGACY_COMMON_NAME),
        why => panic!("{why:?}"),
    }
}

#[test]
fn a_trusted_certificate_that_is_no_authoritys_signs_for_nobody() {
    let named = || CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("names");
    let (key, other_key) = (KeyPair::generate().expect("key"), KeyPair::generate().expect("key"));
    for (is_ca, believed) in
        [(IsCa::Ca(BasicConstraints::Unconstrained), true), (IsCa::ExplicitNoCa, false), (IsCa::NoCa, false)]
    {
        let at = format!("{is_ca:?}");
        let mut params = named();
        params.is_ca = is_ca;
        params.distinguished_name.push(DnType::CommonName, "trusted");
        let trusted = params.self_signed(&key).expect("certificate").der().clone();
        let issuer = Issuer::from_params(&params, &key);
        let signed = named().signed_by(&other_key, &issuer).expect("certificate").der().clone();
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_800_000_000));
        let name = ServerName::try_from("127.0.0.1").expect("name");
        let expected = if believed { Ok(()) } else { Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)) };
        let of_server = server_verifier(&trusted).verify_server_cert(&signed, &[], &name, &[], now).map(|_| ());
        assert_eq!(of_server, expected, "server, {at}");
        let verifier = client_verifier(&trusted);
        assert_eq!(verifier.verify_client_cert(&signed, &[], now).map(|_| ()), expected, "client, {at}");
        // Clients are told whose certificates are believed, those that sign for nobody among them.
        assert_eq!(verifier.root_hint_subjects().len(), 1, "{at}");
        // As a chain it ends in itself, and as a middle it is nobody's.
        let of_server = server_verifier(&trusted)
            .verify_server_cert(&signed, std::slice::from_ref(&trusted), &name, &[], now)
            .map(|_| ());
        assert_eq!(of_server, expected, "server that sends both, {at}");
    }
}
