//! The stored value: an encoded `mvccpb.KeyValue`.
//!
//! The same bytes go into range responses, watch events, snapshots and hashes, so they are encoded once, here, in the one
//! canonical form: fields ascending, zeroes left out. A tombstone's KeyValue has only its key.
//!
//! ```text
//! field  1 key   2 create_revision   3 mod_revision   4 version   5 value   6 lease
//! ```

use bytes::{BufMut, Bytes, BytesMut};

const KEY: u8 = 1 << 3 | 2;
const CREATE_REVISION: u8 = 2 << 3;
const MOD_REVISION: u8 = 3 << 3;
const VERSION: u8 = 4 << 3;
const VALUE: u8 = 5 << 3 | 2;
const LEASE: u8 = 6 << 3;

/// The fields of a `KeyValue`, borrowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyValueRef<'a> {
    pub key: &'a [u8],
    pub create_revision: i64,
    pub mod_revision: i64,
    pub version: i64,
    pub value: &'a [u8],
    pub lease: i64,
}

fn varint_len(value: u64) -> usize {
    // 7 bits a byte; 0 takes one byte.
    (63 - (value | 1).leading_zeros() as usize) / 7 + 1
}

fn put_varint(into: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        into.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    into.put_u8(value as u8);
}

fn bytes_len(bytes: &[u8]) -> usize {
    if bytes.is_empty() { 0 } else { 1 + varint_len(bytes.len() as u64) + bytes.len() }
}

fn int_len(value: i64) -> usize {
    if value == 0 { 0 } else { 1 + varint_len(value as u64) }
}

impl<'a> KeyValueRef<'a> {
    /// Encodes, in one allocation of exactly the right size.
    pub fn encode(&self) -> Bytes {
        let len = bytes_len(self.key)
            + int_len(self.create_revision)
            + int_len(self.mod_revision)
            + int_len(self.version)
            + bytes_len(self.value)
            + int_len(self.lease);
        let mut out = BytesMut::with_capacity(len);
        put_bytes(&mut out, KEY, self.key);
        put_int(&mut out, CREATE_REVISION, self.create_revision);
        put_int(&mut out, MOD_REVISION, self.mod_revision);
        put_int(&mut out, VERSION, self.version);
        put_bytes(&mut out, VALUE, self.value);
        put_int(&mut out, LEASE, self.lease);
        debug_assert_eq!(out.len(), len);
        out.freeze()
    }

    /// Decodes any encoding protobuf allows: fields in any order, the last of a kind rules, unknown ones are skipped.
    /// `None` when the bytes are not a `KeyValue`.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut kv = Self::default();
        let mut rest = Cursor { bytes, at: 0 };
        while rest.at < bytes.len() {
            let tag = rest.varint()?;
            match u8::try_from(tag) {
                Ok(KEY) => kv.key = rest.bytes()?,
                Ok(CREATE_REVISION) => kv.create_revision = rest.varint()? as i64,
                Ok(MOD_REVISION) => kv.mod_revision = rest.varint()? as i64,
                Ok(VERSION) => kv.version = rest.varint()? as i64,
                Ok(VALUE) => kv.value = rest.bytes()?,
                Ok(LEASE) => kv.lease = rest.varint()? as i64,
                _ => rest.skip(tag)?,
            }
        }
        Some(kv)
    }
}

/// The key of an encoded `KeyValue`, sharing its buffer: keep a copy if it is to outlive the payload by long.
pub fn key_of(payload: &Bytes) -> Option<Bytes> {
    let key = KeyValueRef::decode(payload)?.key;
    Some(if key.is_empty() { Bytes::new() } else { payload.slice_ref(key) })
}

/// The key of a payload that [`KeyValueRef::encode`] made for a key of that length, sharing its buffer.
pub(crate) fn leading_key(payload: &Bytes, len: usize) -> Bytes {
    if len == 0 {
        return Bytes::new();
    }
    let start = 1 + varint_len(len as u64);
    payload.slice(start..start + len)
}

/// Appends the payload of a tombstone: a `KeyValue` that has only its key.
pub(crate) fn put_key(out: &mut BytesMut, key: &[u8]) {
    put_bytes(out, KEY, key);
}

fn put_bytes(out: &mut BytesMut, tag: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        out.put_u8(tag);
        put_varint(out, bytes.len() as u64);
        out.put_slice(bytes);
    }
}

fn put_int(out: &mut BytesMut, tag: u8, value: i64) {
    if value != 0 {
        out.put_u8(tag);
        put_varint(out, value as u64);
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let end = self.at.checked_add(usize::try_from(len).ok()?)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.varint()?;
        self.take(len)
    }

    fn skip(&mut self, tag: u64) -> Option<()> {
        if tag >> 3 == 0 || tag > u64::from(u32::MAX) {
            return None;
        }
        match tag & 7 {
            0 => self.varint().map(|_| ()),
            1 => self.take(8).map(|_| ()),
            2 => self.bytes().map(|_| ()),
            5 => self.take(4).map(|_| ()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use dolmen_env::Rng;
    use dolmen_proto::mvccpb::KeyValue;
    use prost::Message;

    use super::*;

    #[test]
    fn encodes_and_decodes_as_prost_does() {
        let mut rng = Rng::new(7);
        let ints = [0, 1, -1, 127, 128, i64::MAX, i64::MIN, 1 << 35];
        for _ in 0..5_000 {
            let mut bytes = || {
                let len = [0, 1, 20, 127, 128, 300, 20_000][rng.below(7) as usize];
                Bytes::from(vec![rng.next_u64() as u8; len])
            };
            let (key, value) = (bytes(), bytes());
            let mut int = || if rng.chance(500) { *rng.pick(&ints) } else { rng.next_u64() as i64 >> rng.below(64) };
            let (create_revision, mod_revision, version, lease) = (int(), int(), int(), int());
            let kv = KeyValueRef { key: &key, create_revision, mod_revision, version, value: &value, lease };
            let message =
                KeyValue { key: key.clone(), create_revision, mod_revision, version, value: value.clone(), lease };
            let encoded = kv.encode();
            assert_eq!(encoded, message.encode_to_vec());
            assert_eq!(KeyValueRef::decode(&encoded), Some(kv));
            assert_eq!(key_of(&encoded), Some(key.clone()));
            assert_eq!(leading_key(&encoded, key.len()), key);
        }
    }

    #[test]
    fn any_bytes_decode_as_prost_says_or_not_at_all() {
        let mut rng = Rng::new(8);
        let whole =
            KeyValueRef { key: b"key", create_revision: 3, mod_revision: -4, version: 2, value: b"v", lease: 9 };
        for _ in 0..20_000 {
            let mut bytes = whole.encode().to_vec();
            for _ in 0..rng.below(4) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
            // Groups, which prost skips, and varints with bits past the 64th, which it refuses, are the two differences.
            if let (Some(ours), Ok(theirs)) = (KeyValueRef::decode(&bytes), KeyValue::decode(&bytes[..])) {
                assert_eq!((ours.key, ours.value), (&theirs.key[..], &theirs.value[..]));
                assert_eq!(
                    (ours.create_revision, ours.mod_revision, ours.version, ours.lease),
                    (theirs.create_revision, theirs.mod_revision, theirs.version, theirs.lease)
                );
            }
        }
    }
}
