//! The few facts of a certificate that rustls does not tell: names, serial number, validity, usages; and the serial
//! numbers of a revocation list. Read straight from DER; anything odd is `None`, never a panic.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const INTEGER: u8 = 0x02;
const BOOLEAN: u8 = 0x01;
const OBJECT_ID: u8 = 0x06;
const OCTET_STRING: u8 = 0x04;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const BMP_STRING: u8 = 0x1e;

const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
const EXT_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
/// Usages, as they stand in the extension.
pub(crate) const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
pub(crate) const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];
const ANY_USAGE: &[u8] = &[0x55, 0x1d, 0x25, 0];

/// What stands in a certificate. Nothing is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Big-endian, without leading zeroes.
    pub serial: Vec<u8>,
    /// Seconds since 1970.
    pub not_before: i64,
    pub not_after: i64,
    /// The last one, when there are several.
    pub common_name: Option<String>,
    pub dns_names: Vec<String>,
    pub ip_names: Vec<IpAddr>,
    /// Whether it says that it is an authority's.
    pub is_authority: bool,
    /// Whether others may be signed with its key. Before version 3, certificates could not say, and may.
    pub(crate) may_sign: bool,
    /// Whether there is a list of alternative names, be it of other kinds than the two above.
    pub has_alternative_names: bool,
    /// `None` when the certificate does not limit its use.
    usages: Option<Vec<Vec<u8>>>,
}

impl Certificate {
    /// Reads a DER certificate; `None` for bytes that are none.
    pub fn parse(der: &[u8]) -> Option<Self> {
        let mut certificate = Reader(Reader(der).expect(SEQUENCE)?);
        let mut body = Reader(certificate.expect(SEQUENCE)?);
        let version = body.expect(0xa0);
        let serial = unsigned(body.expect(INTEGER)?);
        let _algorithm = body.expect(SEQUENCE)?;
        let _issuer = body.expect(SEQUENCE)?;
        let mut validity = Reader(body.expect(SEQUENCE)?);
        let (not_before, not_after) = (validity.time()?, validity.time()?);
        let common_name = common_name(body.expect(SEQUENCE)?)?;
        let _public_key = body.expect(SEQUENCE)?;
        body.skip_if(0x81);
        body.skip_if(0x82);
        let mut parsed = Self {
            serial,
            not_before,
            not_after,
            common_name,
            dns_names: Vec::new(),
            ip_names: Vec::new(),
            is_authority: false,
            may_sign: false,
            has_alternative_names: false,
            usages: None,
        };
        if let Some((0xa3, extensions)) = body.next() {
            parsed.read_extensions(Reader(extensions).expect(SEQUENCE)?)?;
        }
        // Counted from 0.
        let third = version.is_some_and(|version| Reader(version).expect(INTEGER).is_some_and(|at| at == [2]));
        parsed.may_sign = parsed.is_authority || !third;
        Some(parsed)
    }

    fn read_extensions(&mut self, extensions: &[u8]) -> Option<()> {
        let mut extensions = Reader(extensions);
        while let Some((SEQUENCE, extension)) = extensions.next() {
            let mut extension = Reader(extension);
            let id = extension.expect(OBJECT_ID)?;
            extension.skip_if(BOOLEAN);
            let value = extension.expect(OCTET_STRING)?;
            match id {
                SUBJECT_ALT_NAME => self.read_names(Reader(value).expect(SEQUENCE)?)?,
                BASIC_CONSTRAINTS => {
                    let authority = Reader(Reader(value).expect(SEQUENCE)?).expect(BOOLEAN);
                    self.is_authority = authority.is_some_and(|byte| byte != [0]);
                }
                EXT_KEY_USAGE => {
                    let mut list = Reader(Reader(value).expect(SEQUENCE)?);
                    let usages = std::iter::from_fn(|| list.expect(OBJECT_ID)).map(<[u8]>::to_vec);
                    self.usages = Some(usages.collect());
                }
                _ => {}
            }
        }
        extensions.0.is_empty().then_some(())
    }

    fn read_names(&mut self, names: &[u8]) -> Option<()> {
        self.has_alternative_names = true;
        let mut names = Reader(names);
        while let Some((tag, name)) = names.next() {
            match tag {
                0x82 => self.dns_names.push(std::str::from_utf8(name).ok()?.to_owned()),
                0x87 => self.ip_names.push(match name.len() {
                    4 => Ipv4Addr::from(<[u8; 4]>::try_from(name).ok()?).into(),
                    16 => Ipv6Addr::from(<[u8; 16]>::try_from(name).ok()?).into(),
                    _ => return None,
                }),
                _ => {}
            }
        }
        names.0.is_empty().then_some(())
    }

    /// Whether the certificate may be used as `usage` says.
    pub(crate) fn allows(&self, usage: &[u8]) -> bool {
        self.usages.as_ref().is_none_or(|usages| usages.iter().any(|listed| listed == usage || listed == ANY_USAGE))
    }
}

/// The common name in a subject, the last one when there are several; the outer `None` is bytes that are no subject.
fn common_name(subject: &[u8]) -> Option<Option<String>> {
    let mut found = None;
    let mut sets = Reader(subject);
    while let Some((SET, set)) = sets.next() {
        let mut set = Reader(set);
        while let Some((SEQUENCE, attribute)) = set.next() {
            let mut attribute = Reader(attribute);
            if attribute.expect(OBJECT_ID)? != COMMON_NAME {
                continue;
            }
            let (tag, text) = attribute.next()?;
            found = Some(if tag == BMP_STRING {
                let units: Vec<u16> = text.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
                String::from_utf16_lossy(&units)
            } else {
                String::from_utf8_lossy(text).into_owned()
            });
        }
    }
    Some(found.filter(|name: &String| !name.is_empty()))
}

/// The serial numbers on a DER revocation list, in the form of [`Certificate::serial`].
pub(crate) fn revoked_serials(der: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut list = Reader(Reader(der).expect(SEQUENCE)?);
    let mut body = Reader(list.expect(SEQUENCE)?);
    body.skip_if(INTEGER);
    let _algorithm = body.expect(SEQUENCE)?;
    let _issuer = body.expect(SEQUENCE)?;
    body.time()?;
    body.skip_if(UTC_TIME);
    body.skip_if(GENERALIZED_TIME);
    let mut serials = Vec::new();
    if let Some((SEQUENCE, revoked)) = body.next() {
        let mut revoked = Reader(revoked);
        while !revoked.0.is_empty() {
            serials.push(unsigned(Reader(revoked.expect(SEQUENCE)?).expect(INTEGER)?));
        }
    }
    Some(serials)
}

fn unsigned(integer: &[u8]) -> Vec<u8> {
    let zeroes = integer.iter().take_while(|byte| **byte == 0).count();
    integer[zeroes..].to_vec()
}

/// What is left of a run of DER values.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Tag and content of the next value; `None` at the end and for what is no value.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let len = if first < 0x80 {
            usize::from(first)
        } else {
            let count = usize::from(first & 0x7f);
            if count == 0 || count > 4 || rest.len() < count {
                return None;
            }
            let (bytes, after) = rest.split_at(count);
            rest = after;
            bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte))
        };
        let content = rest.get(..len)?;
        self.0 = &rest[len..];
        Some((tag, content))
    }

    /// The next value when it has this tag.
    fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        let before = self.0;
        match self.next() {
            Some((found, content)) if found == tag => Some(content),
            _ => {
                self.0 = before;
                None
            }
        }
    }

    fn skip_if(&mut self, tag: u8) {
        self.expect(tag);
    }

    /// A time in seconds since 1970.
    fn time(&mut self) -> Option<i64> {
        let (tag, text) = self.next()?;
        let text = std::str::from_utf8(text).ok()?;
        let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
        let (year, rest) = match tag {
            UTC_TIME => {
                let year = number(0, 2)?;
                (if year < 50 { 2000 + year } else { 1900 + year }, 2)
            }
            GENERALIZED_TIME => (number(0, 4)?, 4),
            _ => return None,
        };
        let field = |index: usize| number(rest + 2 * index, rest + 2 * index + 2);
        let days = crate::date::days(year, field(0)?, field(1)?);
        Some(days * 86_400 + field(2)? * 3600 + field(3)? * 60 + field(4)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_cut_bytes_are_refused() {
        let mut params = rcgen::CertificateParams::new(vec!["m1.example".into(), "10.0.0.1".into()]).expect("params");
        params.distinguished_name.push(rcgen::DnType::CommonName, "ann");
        params.serial_number = Some(rcgen::SerialNumber::from(vec![0x7f, 1, 2]));
        params.not_before = rcgen::date_time_ymd(2020, 1, 2);
        params.not_after = rcgen::date_time_ymd(2060, 1, 2);
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = rcgen::KeyPair::generate().expect("key");
        let der = params.self_signed(&key).expect("certificate").der().to_vec();
        let parsed = Certificate::parse(&der).expect("parses");
        assert_eq!(parsed.common_name.as_deref(), Some("ann"));
        assert_eq!(parsed.serial, [0x7f, 1, 2]);
        assert_eq!((parsed.dns_names, parsed.ip_names), (vec!["m1.example".into()], vec![[10, 0, 0, 1].into()]));
        assert_eq!((parsed.not_before, parsed.not_after), (1_577_923_200, 2_840_227_200));
        assert!(Certificate::parse(&der).is_some_and(|parsed| parsed.allows(CLIENT_AUTH)));
        assert!(Certificate::parse(&der).is_some_and(|parsed| !parsed.allows(SERVER_AUTH)));
        for len in 0..der.len() {
            assert_eq!(Certificate::parse(&der[..len]), None, "cut at {len}");
        }
        // A flipped byte may be read or refused; it must not end the process.
        for at in 0..der.len() {
            let mut bad = der.clone();
            bad[at] ^= 0xff;
            let _ = Certificate::parse(&bad);
            let _ = revoked_serials(&bad);
        }
    }
}
