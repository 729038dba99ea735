//! Members that speak TLS, with certificates of their own and of an authority.

#![allow(clippy::disallowed_methods, reason = "a test has the real clock and real files")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use bytes::Bytes;
use common::{Member, Tls, append, bind, connect, heartbeat, wait};
use dolmen_net::{Port, TlsError, TlsInfo, TlsVersion};
use dolmen_transport::{PeerClient, PeerSender, PeerUrl, RequestError};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// A directory with an authority and what it has signed.
struct Authority {
    dir: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).expect("params");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("key")).expect("authority");
        let dir = tempfile::tempdir().expect("directory");
        // Files of `openssl x509 -text` and of cfssl begin with text.
        let text = format!("Certificate:\n    Data:\n        Version: 3 (0x2)\n{}", issuer.pem());
        std::fs::write(dir.path().join("ca.crt"), text).expect("file");
        Self { dir, issuer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Signs a certificate and stores it as `name.crt` and `name.key`.
    fn sign(&self, name: &str, sans: &[&str], usages: &[ExtendedKeyUsagePurpose]) {
        let mut params =
            CertificateParams::new(sans.iter().map(|san| (*san).to_owned()).collect::<Vec<_>>()).expect("params");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = usages.to_vec();
        params.serial_number = Some(rcgen::SerialNumber::from(name.as_bytes().to_vec()));
        let key = KeyPair::generate().expect("key");
        let certificate = params.signed_by(&key, &self.issuer).expect("certificate");
        std::fs::write(self.path(&format!("{name}.crt")), certificate.pem()).expect("file");
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).expect("file");
    }

    fn info(&self, name: &str) -> TlsInfo {
        TlsInfo {
            cert_file: Some(self.path(&format!("{name}.crt"))),
            key_file: Some(self.path(&format!("{name}.key"))),
            trusted_ca_file: Some(self.path("ca.crt")),
            client_cert_auth: true,
            ..TlsInfo::default()
        }
    }
}

const BOTH: [ExtendedKeyUsagePurpose; 2] = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];

fn tls(info: &TlsInfo) -> Tls {
    Tls { server: Some(info.server(Port::Peer).expect("server")), client: Some(info.client().expect("client")) }
}

fn talk(a: &Member, b: &Member) {
    connect(a, b);
    let data = Bytes::from(vec![b'x'; 100_000]);
    a.transport.send(vec![heartbeat(1, 2, 1), append(1, 2, 0, &[data.clone(), data.clone()])]);
    b.transport.send(vec![heartbeat(2, 1, 1)]);
    wait("messages arrive", || b.sink.received.load(SeqCst) == 2 && a.sink.received.load(SeqCst) == 1);
}

/// One request to a member as a client would.
fn ask(member: &Member, info: &TlsInfo) -> Result<Bytes, RequestError> {
    ask_url(&member.url, info)
}

fn ask_url(url: &str, info: &TlsInfo) -> Result<Bytes, RequestError> {
    let client = PeerClient::new(Some(info.client().expect("client")), Duration::from_secs(2));
    let url = PeerUrl::parse(url).expect("parses");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(client.get_version(&url, Duration::from_secs(5)))
}

fn alone(info: &TlsInfo) -> Member {
    Member::start_on(1, bind(), Tls { server: Some(info.server(Port::Peer).expect("server")), client: None })
}

fn file(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("file")
}

#[test]
fn members_with_automatic_certificates_talk() {
    let dir = tempfile::tempdir().expect("directory");
    let make = |name: &str| {
        let hosts = ["127.0.0.1:2380".to_owned(), "localhost:2380".into(), "[::1]:2380".into()];
        TlsInfo::self_signed(&dir.path().join(name), &hosts, 1).expect("certificate")
    };
    let (first, second) = (make("a"), make("b"));
    let a = Member::start_on(1, bind(), tls(&first));
    let b = Member::start_on(2, bind(), tls(&second));
    talk(&a, &b);

    // Kept from start to start, and private.
    let cert = dir.path().join("a/cert.pem");
    let before = file(&cert);
    make("a");
    assert_eq!(file(&cert), before);
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(dir.path().join("a/key.pem")).expect("key").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // A client that is given the certificate as its authority verifies it by name.
    let pinned = TlsInfo { trusted_ca_file: Some(cert), ..TlsInfo::default() };
    assert!(ask(&a, &pinned).is_ok());
    assert!(ask(&a, &TlsInfo { server_name: Some("localhost".into()), ..pinned.clone() }).is_ok());
    assert!(ask(&a, &TlsInfo { server_name: Some("elsewhere".into()), ..pinned.clone() }).is_err());
    assert!(ask(&b, &pinned).is_err(), "another self-signed certificate is not believed");

    // A pair that cannot be read is set aside.
    std::fs::write(dir.path().join("a/key.pem"), b"junk").expect("file");
    make("a");
    assert!(file(&dir.path().join("a/key.pem.unused")) == b"junk");
    assert!(matches!(TlsInfo::self_signed(dir.path(), &[], 0), Err(TlsError::Validity)));
}

#[test]
fn automatic_certificates_of_etcd_are_kept_and_used() {
    let dir = tempfile::tempdir().expect("directory");
    // An authority, a certificate of it with a key on P-521, and that key: the second is the one that counts here.
    let text = include_str!("../../tls/tests/fixtures/p521.pem");
    let mut sections = text.split_inclusive("-----END CERTIFICATE-----\n");
    let (authority, certificate) = (sections.next().expect("authority"), sections.next().expect("certificate"));
    let keys = sections.next().expect("keys");
    for (name, text) in [("cert.pem", certificate), ("key.pem", keys), ("ca.pem", authority)] {
        std::fs::write(dir.path().join(name), text).expect("file");
    }
    let theirs = TlsInfo::self_signed(dir.path(), &["127.0.0.1:2380".to_owned()], 1).expect("certificate");
    assert_eq!(file(&dir.path().join("cert.pem")), certificate.as_bytes());
    let ours = TlsInfo::self_signed(&dir.path().join("ours"), &["127.0.0.1:2380".to_owned()], 1).expect("certificate");
    let a = Member::start_on(1, bind(), tls(&theirs));
    let b = Member::start_on(2, bind(), tls(&ours));
    talk(&a, &b);
    // As a client's and as a server's, with either as the authority.
    for trusted in ["ca.pem", "cert.pem"] {
        let info = TlsInfo { trusted_ca_file: Some(dir.path().join(trusted)), self_signed: false, ..theirs.clone() };
        assert!(ask(&alone(&info), &info).is_ok(), "{trusted}");
    }
    let strict = alone(&TlsInfo { trusted_ca_file: Some(dir.path().join("ca.pem")), ..theirs.clone() });
    assert!(ask(&strict, &ours).is_err(), "a client of nobody");
}

#[test]
fn members_of_one_authority_talk_and_others_do_not() {
    let authority = Authority::new();
    authority.sign("member", &["127.0.0.1", "localhost"], &BOTH);
    let a = Member::start_on(1, bind(), tls(&authority.info("member")));
    let b = Member::start_on(2, bind(), tls(&authority.info("member")));
    talk(&a, &b);

    assert!(ask(&a, &authority.info("member")).is_ok());
    let anonymous = TlsInfo { trusted_ca_file: Some(authority.path("ca.crt")), ..TlsInfo::default() };
    assert!(ask(&a, &anonymous).is_err(), "no client certificate");
    let other = Authority::new();
    other.sign("member", &["127.0.0.1"], &BOTH);
    let stranger = TlsInfo { trusted_ca_file: Some(authority.path("ca.crt")), ..other.info("member") };
    assert!(ask(&a, &stranger).is_err(), "a client of another authority");
    assert!(ask(&a, &TlsInfo { trusted_ca_file: Some(other.path("ca.crt")), ..authority.info("member") }).is_err());
    authority.sign("server-only", &["127.0.0.1"], &[ExtendedKeyUsagePurpose::ServerAuth]);
    assert!(ask(&a, &authority.info("server-only")).is_err(), "a certificate that is not for clients");
}

#[test]
fn a_clients_certificate_must_belong_to_its_address() {
    let authority = Authority::new();
    authority.sign("member", &["127.0.0.1"], &BOTH);
    let server = alone(&authority.info("member"));
    for (name, sans, passes) in [
        ("here", &["127.0.0.1"][..], true),
        ("by-name", &["localhost"], true),
        ("nameless", &[], true),
        ("elsewhere", &["192.0.2.7"], false),
        ("nowhere", &["m1.invalid"], false),
        ("one-of-both", &["192.0.2.7", "localhost"], true),
    ] {
        authority.sign(name, sans, &BOTH);
        assert_eq!(ask(&server, &authority.info(name)).is_ok(), passes, "{name}");
    }
    let lenient = alone(&TlsInfo { skip_client_san_verify: true, ..authority.info("member") });
    assert!(ask(&lenient, &authority.info("elsewhere")).is_ok());
}

#[test]
fn names_and_revocations_restrict_clients() {
    let authority = Authority::new();
    for name in ["ann", "bob"] {
        authority.sign(name, &["127.0.0.1"], &BOTH);
    }
    let by_name = alone(&TlsInfo { allowed_cns: vec!["ann".into()], ..authority.info("ann") });
    assert!(ask(&by_name, &authority.info("ann")).is_ok());
    assert!(ask(&by_name, &authority.info("bob")).is_err());
    let by_host = alone(&TlsInfo { allowed_hostnames: vec!["192.0.2.1".into()], ..authority.info("ann") });
    assert!(ask(&by_host, &authority.info("ann")).is_err());
    let by_host = alone(&TlsInfo { allowed_hostnames: vec!["127.0.0.1".into()], ..authority.info("ann") });
    assert!(ask(&by_host, &authority.info("ann")).is_ok());

    let revoked = rcgen::RevokedCertParams {
        serial_number: rcgen::SerialNumber::from(b"bob".to_vec()),
        revocation_time: rcgen::date_time_ymd(2020, 1, 1),
        reason_code: None,
        invalidity_date: None,
    };
    let list = rcgen::CertificateRevocationListParams {
        this_update: rcgen::date_time_ymd(2020, 1, 1),
        next_update: rcgen::date_time_ymd(2060, 1, 1),
        crl_number: rcgen::SerialNumber::from(1u64),
        issuing_distribution_point: None,
        revoked_certs: vec![revoked],
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    let list = list.signed_by(&authority.issuer).expect("list");
    std::fs::write(authority.path("revoked.crl"), list.der()).expect("file");
    let strict = alone(&TlsInfo { crl_file: Some(authority.path("revoked.crl")), ..authority.info("ann") });
    assert!(ask(&strict, &authority.info("ann")).is_ok());
    assert!(ask(&strict, &authority.info("bob")).is_err());
}

#[test]
fn renewed_files_are_taken_up_and_bad_ones_are_not() {
    let authority = Authority::new();
    authority.sign("member", &["192.0.2.1"], &BOTH);
    let server = alone(&TlsInfo { skip_client_san_verify: true, ..authority.info("member") });
    authority.sign("client", &[], &BOTH);
    let client = authority.info("client");
    assert!(ask(&server, &client).is_err(), "the certificate is for another address");
    authority.sign("member", &["127.0.0.1"], &BOTH);
    assert!(ask(&server, &client).is_ok());
    std::fs::write(authority.path("member.key"), b"junk").expect("file");
    assert!(ask(&server, &client).is_ok());
}

#[test]
fn flags_that_contradict_are_refused() {
    let authority = Authority::new();
    authority.sign("a", &["127.0.0.1"], &BOTH);
    authority.sign("b", &["127.0.0.1"], &BOTH);
    let info = authority.info("a");
    let refused = |info: TlsInfo| info.server(Port::Client).expect_err("refused").to_string();
    let text = refused(TlsInfo { key_file: None, ..info.clone() });
    assert!(text.starts_with("KeyFile and CertFile must both be present[key: , cert: "), "{text}");
    refused(TlsInfo { client_key_file: info.key_file.clone(), ..info.clone() });
    let text = refused(TlsInfo { key_file: Some(authority.path("b.key")), ..info.clone() });
    assert!(text.ends_with("private key does not match public key"), "{text}");
    refused(TlsInfo { cert_file: Some(authority.path("none.crt")), ..info.clone() });
    refused(TlsInfo { trusted_ca_file: Some(authority.path("a.key")), ..info.clone() });
    refused(TlsInfo { allowed_cns: vec!["a".into()], allowed_hostnames: vec!["b".into()], ..info.clone() });
    let text = refused(TlsInfo { cipher_suites: vec!["TLS_NONE".into()], ..info.clone() });
    assert_eq!(text, "unexpected TLS cipher suite \"TLS_NONE\"");
    refused(TlsInfo { min_version: Some(TlsVersion::Tls13), max_version: Some(TlsVersion::Tls12), ..info.clone() });
}

#[test]
fn versions_and_suites_are_kept_to() {
    let authority = Authority::new();
    authority.sign("a", &["127.0.0.1"], &BOTH);
    let info = authority.info("a");
    let old = TlsInfo { max_version: Some(TlsVersion::Tls12), ..info.clone() };
    let new = TlsInfo { min_version: Some(TlsVersion::Tls13), ..info.clone() };
    let server = alone(&new);
    assert!(ask(&server, &info).is_ok());
    assert!(ask(&server, &old).is_err());
    let suite = |name: &str| TlsInfo { cipher_suites: vec![name.into()], ..old.clone() };
    let server = alone(&suite("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"));
    assert!(ask(&server, &info).is_ok());
    assert!(ask(&server, &suite("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305")).is_err());
}
