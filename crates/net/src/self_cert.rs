//! Certificates made by the server itself (`auto-tls`, `peer-auto-tls`): encryption without anybody to trust.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};

use crate::tls::{KeyFiles, TlsError, TlsInfo};

const DAY: Duration = Duration::from_secs(86_400);

impl TlsInfo {
    /// A self-signed certificate in `dir` (`<data-dir>/fixtures/client` or `.../peer`): the one there, or a new one.
    ///
    /// `hosts`: `host:port` of each listener; the certificate names their hosts. `validity_years`: etcd's
    /// `self-signed-cert-validity`. One that etcd has made there is as good as our own; a pair that cannot be
    /// used is set aside.
    ///
    /// # Errors
    /// When files cannot be read or written, or `validity_years` is 0.
    pub fn self_signed(dir: &Path, hosts: &[String], validity_years: u32) -> Result<Self, TlsError> {
        if validity_years == 0 {
            return Err(TlsError::Validity);
        }
        let in_dir = |source| TlsError::Write { path: dir.into(), source };
        fs::create_dir_all(dir).map_err(in_dir)?;
        let dir = dir.canonicalize().map_err(in_dir)?;
        let pair = (dir.join("cert.pem"), dir.join("key.pem"));
        if pair.0.exists() && pair.1.exists() {
            let provider = Arc::new(dolmen_tls::provider());
            match KeyFiles::load(pair.clone(), provider) {
                Ok(_) => return Ok(Self::of_pair(pair)),
                Err(error) => set_aside(&pair, &error)?,
            }
        }
        generate(&pair, hosts, validity_years)?;
        Ok(Self::of_pair(pair))
    }

    fn of_pair((cert, key): (PathBuf, PathBuf)) -> Self {
        Self {
            cert_file: Some(cert.clone()),
            key_file: Some(key.clone()),
            client_cert_file: Some(cert),
            client_key_file: Some(key),
            self_signed: true,
            ..Self::default()
        }
    }
}

fn set_aside(pair: &(PathBuf, PathBuf), error: &TlsError) -> Result<(), TlsError> {
    tracing::warn!(path = %pair.0.display(), %error, "cannot use the certificate that is there; making another");
    for path in [&pair.0, &pair.1] {
        let mut aside = path.clone().into_os_string();
        aside.push(".unused");
        fs::rename(path, aside).map_err(|source| TlsError::Write { path: path.clone(), source })?;
    }
    Ok(())
}

fn generate(pair: &(PathBuf, PathBuf), hosts: &[String], validity_years: u32) -> Result<(), TlsError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut params = CertificateParams::new(Vec::new())?;
    params.not_before = date_time_ymd(1970, 1, 1) + now;
    params.not_after = params.not_before + 365 * DAY * validity_years;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "etcd");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::CrlSign];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    for host in hosts {
        let host = host.rsplit_once(':').map_or(host.as_str(), |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        match host.parse::<IpAddr>() {
            Ok(ip) => params.subject_alt_names.push(SanType::IpAddress(ip)),
            Err(_) if host.is_empty() => {}
            Err(_) => params.subject_alt_names.push(SanType::DnsName(host.try_into()?)),
        }
    }
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    tracing::warn!(
        certificate_validity_bound_not_after = %params.not_after,
        "automatically generate certificates"
    );
    write(&pair.1, key.serialize_pem().as_bytes(), 0o600)?;
    tracing::info!(path = %pair.1.display(), "created key file");
    write(&pair.0, certificate.pem().as_bytes(), 0o644)?;
    tracing::info!(path = %pair.0.display(), "created cert file");
    Ok(())
}

/// The certificate is written last and both at once or not, so a pair that exists is a whole one.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), TlsError> {
    let failed = |source| TlsError::Write { path: path.into(), source };
    let unfinished = path.with_extension("tmp");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&unfinished).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&unfinished, path).map_err(failed)
}
