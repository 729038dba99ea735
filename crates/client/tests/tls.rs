//! Who is believed, and who believes us.

// Certificates are read from files, so there must be some.
#![allow(clippy::disallowed_methods)]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use common::{Call, Fake};
use dolmen_client::{Client, Config, ConnectionReason, Error, Tls, pb};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

async fn answer(mut call: Call) {
    let _: pb::PutRequest = call.next().await.unwrap();
    call.reply(&pb::PutResponse::default());
}

/// An authority, and certificates in files of a folder.
struct Authority {
    dir: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

struct Identity {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Authority { dir: tempfile::tempdir().unwrap(), issuer };
        authority.write("ca.pem", &authority.issuer.pem());
        authority
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.dir.path().join(name))
    }

    fn sign(&self, names: &[&str]) -> Identity {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        Identity { certificate, key }
    }

    /// `clients`: they must show a certificate of this authority.
    fn server(&self, names: &[&str], clients: bool) -> Arc<rustls::ServerConfig> {
        let identity = self.sign(names);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = if clients {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(self.issuer.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::try_from(identity.key.serialize_der()).unwrap();
        let mut config = builder.with_single_cert(vec![identity.certificate.der().clone()], key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }
}

async fn put(endpoint: String, tls: Option<Tls>) -> Result<(), Error> {
    let client = Client::connect(Config { tls, ..Config::new([endpoint]) }).await?;
    let request = pb::PutRequest { key: "a".into(), ..Default::default() };
    client.with_timeout(Some(Duration::from_millis(500))).put(request).await.map(|_| ())
}

fn refusal(result: Result<(), Error>) -> (ConnectionReason, String) {
    let error = result.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    let connection = error.connection().unwrap();
    (connection.reason, connection.text.clone())
}

fn ca(path: Option<PathBuf>) -> Option<Tls> {
    Some(Tls { ca_file: path, ..Default::default() })
}

#[tokio::test]
async fn a_server_of_the_authority_is_believed() {
    let authority = Authority::new();
    let fake = Fake::start_with(Some(authority.server(&["127.0.0.1"], false)), answer).await;
    put(format!("https://{}", fake.address), ca(authority.path("ca.pem"))).await.unwrap();
    // Without a scheme the configuration decides.
    put(fake.address.to_string(), ca(authority.path("ca.pem"))).await.unwrap();
}

#[tokio::test]
async fn others_are_not_but_by_request() {
    let (authority, other) = (Authority::new(), Authority::new());
    let fake = Fake::start_with(Some(other.server(&["127.0.0.1"], false)), answer).await;
    let endpoint = format!("https://{}", fake.address);
    let unknown = (
        ConnectionReason::ServerCertificate,
        "transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority"
            .to_owned(),
    );
    assert_eq!(refusal(put(endpoint.clone(), ca(authority.path("ca.pem"))).await), unknown);
    assert_eq!(refusal(put(endpoint.clone(), None).await), unknown);
    put(endpoint, Some(Tls { skip_verify: true, ..Default::default() })).await.unwrap();
}

#[tokio::test]
async fn the_name_must_be_in_the_certificate() {
    let authority = Authority::new();
    let fake = Fake::start_with(Some(authority.server(&["a.example", "b.example"], false)), answer).await;
    let endpoint = format!("https://{}", fake.address);
    let (reason, text) = refusal(put(endpoint.clone(), ca(authority.path("ca.pem"))).await);
    assert_eq!(reason, ConnectionReason::ServerCertificate);
    assert!(
        text.ends_with("cannot validate certificate for 127.0.0.1 because it doesn't contain any IP SANs"),
        "{text}"
    );
    let named = |name: &str| Some(Tls { server_name: Some(name.to_owned()), ..ca(authority.path("ca.pem")).unwrap() });
    put(endpoint.clone(), named("b.example")).await.unwrap();
    let (_, text) = refusal(put(endpoint, named("c.example")).await);
    assert!(text.ends_with("certificate is valid for a.example, b.example, not c.example"), "{text}");
}

/// A server with this certificate and key.
fn serving(certificate: CertificateDer<'static>, key: PrivateKeyDer<'static>) -> Option<Arc<rustls::ServerConfig>> {
    let builder = rustls::ServerConfig::builder_with_provider(Arc::new(dolmen_tls::provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let mut config = builder.with_single_cert(vec![certificate], key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Some(Arc::new(config))
}

#[tokio::test]
async fn a_servers_own_certificate_is_believed_as_authority() {
    let authority = Authority::new();
    let own = |params: CertificateParams| {
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap(), key)
    };
    let mut of_authority = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let plain = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let signed = authority.sign(&["127.0.0.1"]);
    for (certificate, key) in [own(of_authority), own(plain), (signed.certificate, signed.key)] {
        let path = authority.write("server.pem", &certificate.pem());
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let fake = Fake::start_with(serving(certificate.der().clone(), key), answer).await;
        put(format!("https://{}", fake.address), ca(Some(path))).await.unwrap();
    }
}

#[tokio::test]
async fn certificates_as_etcd_makes_them_are_verified() {
    let pem = include_bytes!("../../tls/tests/fixtures/p521.pem");
    let (dir, key) = (tempfile::tempdir().unwrap(), PrivateKeyDer::from_pem_slice(pem).unwrap());
    let certificate = CertificateDer::pem_slice_iter(pem).nth(1).unwrap().unwrap();
    let fake = Fake::start_with(serving(certificate, key), answer).await;
    let endpoint = format!("https://{}", fake.address);
    let path = dir.path().join("p521.pem");
    // What may be trusted is certificates, and in this file are keys as well.
    std::fs::write(&path, pem).unwrap();
    let error = put(endpoint.clone(), ca(Some(path.clone()))).await.unwrap_err();
    assert_eq!(error.to_string(), "x509: malformed tbs certificate");
    let text = std::str::from_utf8(pem).unwrap();
    std::fs::write(&path, text.split_once("-----BEGIN PRIVATE").unwrap().0).unwrap();
    put(endpoint, ca(Some(path))).await.unwrap();
    put(format!("https://{}", fake.address), Some(Tls { skip_verify: true, ..Default::default() })).await.unwrap();
}

#[tokio::test]
async fn a_certificate_out_of_its_time_is_refused_with_the_times() {
    let authority = Authority::new();
    let dates = [
        (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2021, 2, 3), " is after 2021-02-03T00:00:00Z"),
        (rcgen::date_time_ymd(2120, 4, 5), rcgen::date_time_ymd(2121, 1, 1), " is before 2120-04-05T00:00:00Z"),
    ];
    for (not_before, not_after, end) in dates {
        let (mut params, key) = (CertificateParams::new(Vec::new()).unwrap(), KeyPair::generate().unwrap());
        (params.not_before, params.not_after) = (not_before, not_after);
        let certificate = params.signed_by(&key, &authority.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let fake = Fake::start_with(serving(certificate.der().clone(), key), answer).await;
        let (_, text) = refusal(put(format!("https://{}", fake.address), ca(authority.path("ca.pem"))).await);
        let begin = "x509: certificate has expired or is not yet valid: current time 2";
        assert!(text.contains(begin) && text.ends_with(end), "{text}");
    }
}

#[tokio::test]
async fn a_server_may_want_to_know_us() {
    let authority = Authority::new();
    let fake = Fake::start_with(Some(authority.server(&["127.0.0.1"], true)), answer).await;
    let endpoint = format!("https://{}", fake.address);
    let (reason, text) = refusal(put(endpoint.clone(), ca(authority.path("ca.pem"))).await);
    assert_eq!(reason, ConnectionReason::ClientCertificate);
    assert!(text.ends_with("remote error: tls: certificate required"), "{text}");

    let identity = authority.sign(&["client"]);
    let with = |cert: &Path, key: &Path| {
        let (cert_file, key_file) = (Some(cert.to_owned()), Some(key.to_owned()));
        Some(Tls { cert_file, key_file, ..ca(authority.path("ca.pem")).unwrap() })
    };
    let cert = authority.write("client.pem", &identity.certificate.pem());
    let key = authority.write("client.key", &identity.key.serialize_pem());
    put(endpoint.clone(), with(&cert, &key)).await.unwrap();

    let other = authority.write("other.key", &KeyPair::generate().unwrap().serialize_pem());
    let empty = authority.write("empty", "");
    let switched = "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched";
    let table = [
        (&key, &cert, switched),
        (&cert, &cert, "tls: found a certificate rather than a key in the PEM for the private key"),
        (&cert, &other, "tls: private key does not match public key"),
        (&cert, &empty, "tls: failed to find any PEM data in key input"),
        (&empty, &key, "tls: failed to find any PEM data in certificate input"),
    ];
    for (cert, key, text) in table {
        assert_eq!(put(endpoint.clone(), with(cert, key)).await.unwrap_err().to_string(), text);
    }
}

#[tokio::test]
async fn both_sides_must_mean_tls() {
    let authority = Authority::new();
    let secure = Fake::start_with(Some(authority.server(&["127.0.0.1"], false)), answer).await;
    let (_, text) = refusal(put(format!("http://{}", secure.address), None).await);
    assert!(text.starts_with("error reading server preface: "), "{text}");
    let plain = Fake::start(answer).await;
    let (_, text) = refusal(put(format!("https://{}", plain.address), ca(authority.path("ca.pem"))).await);
    assert!(text.starts_with("transport: authentication handshake failed: "), "{text}");
    // Nothing was taken for a call.
    assert_eq!((secure.count("/Put"), plain.count("/Put")), (0, 0));
}
