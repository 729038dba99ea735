//! A range's answer, taken apart while it comes.
//!
//! A server sends a whole range in one message, `RangeResponse`. Read as other messages are, a range of some megabytes lies
//! in memory twice, as bytes and as key-values, and nothing can be done with it before its last byte is there. Here each
//! key-value is handed on as soon as it is complete, straight from the bytes received; what is kept is the beginning of
//! one that is not.
//!
//! ```text
//! pieces   [header|kv|kv|k] [v|kv|kv|kv|k] [v|count]
//! handed on         kv kv      kv kv kv kv    kv         and the rest at the end: header, count
//! ```

use dolmen_proto::etcdserverpb as pb;
use prost::Message;

use crate::error::{Error, code};
use crate::wire::Intake;

/// A key-value as it stands in an answer; fields as in `mvccpb.KeyValue`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyValueRef<'a> {
    pub key: &'a [u8],
    pub create_revision: i64,
    pub mod_revision: i64,
    pub version: i64,
    pub value: &'a [u8],
    pub lease: i64,
}

/// Takes the key-values of a range one by one.
///
/// They are no answer yet: whether there is one is known only after the last of them.
pub trait KeyValues {
    /// An answer begins, of so many bytes in all. What came before, from an attempt that failed, counts for nothing.
    fn begin(&mut self, len: usize);

    /// The next key-value.
    fn key_value(&mut self, kv: KeyValueRef<'_>);
}

const KVS: u32 = 2;

/// Why bytes are no `RangeResponse`.
type Malformed = &'static str;

/// The state between two pieces.
pub(crate) struct RangeIntake<'a> {
    to: &'a mut (dyn KeyValues + Send),
    /// The beginning of a field whose end is still to come.
    begun: Vec<u8>,
    /// All but the key-values.
    rest: pb::RangeResponse,
    failed: Option<String>,
}

impl<'a> RangeIntake<'a> {
    pub fn new(to: &'a mut (dyn KeyValues + Send)) -> Self {
        Self { to, begun: Vec::new(), rest: pb::RangeResponse::default(), failed: None }
    }

    /// The answer without its key-values, which have been handed on.
    ///
    /// # Errors
    /// The message was none.
    pub fn finish(self) -> Result<pb::RangeResponse, Error> {
        let cut = || (!self.begun.is_empty()).then(|| "unexpected EOF".to_owned());
        match self.failed.clone().or_else(cut) {
            None => Ok(self.rest),
            Some(why) => {
                Err(Error::status(code::INTERNAL, format!("grpc: failed to unmarshal the received message: {why}")))
            }
        }
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Malformed> {
        // The field that the piece before has begun, and not a byte more.
        while let (false, Some((first, others))) = (self.begun.is_empty(), bytes.split_first()) {
            match field_len(&self.begun)? {
                Some(len) => {
                    let missing = len.saturating_sub(self.begun.len()).min(bytes.len());
                    let (taken, left) = bytes.split_at(missing);
                    self.begun.extend_from_slice(taken);
                    bytes = left;
                }
                None => {
                    self.begun.push(*first);
                    bytes = others;
                }
            }
            if field_len(&self.begun)? == Some(self.begun.len()) {
                let mut whole = std::mem::take(&mut self.begun);
                self.field(&whole)?;
                whole.clear();
                self.begun = whole;
            }
        }
        while let Some(len) = field_len(bytes)? {
            let Some((field, left)) = bytes.split_at_checked(len) else { break };
            self.field(field)?;
            bytes = left;
        }
        self.begun.extend_from_slice(bytes);
        Ok(())
    }

    /// A field of the answer, whole.
    fn field(&mut self, field: &[u8]) -> Result<(), Malformed> {
        let mut bytes = field;
        match next_field(&mut bytes)? {
            (KVS, Value::Bytes(kv)) => self.to.key_value(key_value(kv)?),
            (KVS, Value::Number(_)) => return Err("kvs are no messages"),
            _ => self.rest.merge(field).map_err(|_| "invalid field")?,
        }
        Ok(())
    }
}

impl Intake for RangeIntake<'_> {
    fn begin(&mut self, len: usize) {
        self.begun.clear();
        self.rest.clear();
        self.failed = None;
        self.to.begin(len);
    }

    fn piece(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.take(bytes).err().map(str::to_owned);
        }
    }
}

/// What a field holds.
enum Value<'a> {
    /// A varint, or of a fixed length.
    Number(u64),
    Bytes(&'a [u8]),
}

/// Wire types of protobuf; there are no others in etcd's messages.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;
const TYPE_BITS: u32 = 3;
const TYPE_MASK: u64 = (1 << TYPE_BITS) - 1;

const SHORT: Malformed = "unexpected EOF";

/// Bytes of the field that these bytes begin with, tag and all; `None`: too few to tell.
fn field_len(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    let mut rest = bytes;
    let Some(tag) = varint(&mut rest)? else { return Ok(None) };
    let value = match tag & TYPE_MASK {
        VARINT => {
            let mut after = rest;
            match varint(&mut after)? {
                Some(_) => rest.len() - after.len(),
                None => return Ok(None),
            }
        }
        FIXED64 => 8,
        FIXED32 => 4,
        BYTES => match varint(&mut rest)? {
            Some(len) => usize::try_from(len).map_err(|_| "invalid length")?,
            None => return Ok(None),
        },
        _ => return Err("invalid wire type"),
    };
    (bytes.len() - rest.len()).checked_add(value).map(Some).ok_or("invalid length")
}

/// Takes the next field off `bytes`: its number and what it holds.
fn next_field<'a>(bytes: &mut &'a [u8]) -> Result<(u32, Value<'a>), Malformed> {
    let tag = varint(bytes)?.ok_or(SHORT)?;
    let number =
        u32::try_from(tag).ok().map(|tag| tag >> TYPE_BITS).filter(|number| *number > 0).ok_or("invalid tag")?;
    let value = match tag & TYPE_MASK {
        VARINT => Value::Number(varint(bytes)?.ok_or(SHORT)?),
        FIXED64 => Value::Number(u64::from_le_bytes(*fixed(bytes)?)),
        FIXED32 => Value::Number(u32::from_le_bytes(*fixed(bytes)?).into()),
        BYTES => {
            let len = varint(bytes)?.and_then(|len| usize::try_from(len).ok()).ok_or(SHORT)?;
            let (value, rest) = bytes.split_at_checked(len).ok_or(SHORT)?;
            *bytes = rest;
            Value::Bytes(value)
        }
        _ => return Err("invalid wire type"),
    };
    Ok((number, value))
}

fn fixed<'a, const LEN: usize>(bytes: &mut &'a [u8]) -> Result<&'a [u8; LEN], Malformed> {
    let (value, rest) = bytes.split_first_chunk().ok_or(SHORT)?;
    *bytes = rest;
    Ok(value)
}

/// `None`: it goes on beyond the bytes, of which nothing is taken then.
fn varint(bytes: &mut &[u8]) -> Result<Option<u64>, Malformed> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().enumerate() {
        // The tenth byte has room for one bit.
        if at > 9 || at == 9 && *byte > 1 {
            return Err("invalid varint");
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            *bytes = bytes.get(at + 1..).unwrap_or_default();
            return Ok(Some(value));
        }
    }
    Ok(None)
}

fn key_value(mut bytes: &[u8]) -> Result<KeyValueRef<'_>, Malformed> {
    let mut kv = KeyValueRef::default();
    while !bytes.is_empty() {
        match next_field(&mut bytes)? {
            (1, Value::Bytes(key)) => kv.key = key,
            (2, Value::Number(revision)) => kv.create_revision = revision.cast_signed(),
            (3, Value::Number(revision)) => kv.mod_revision = revision.cast_signed(),
            (4, Value::Number(version)) => kv.version = version.cast_signed(),
            (5, Value::Bytes(value)) => kv.value = value,
            (6, Value::Number(lease)) => kv.lease = lease.cast_signed(),
            (1..=6, _) => return Err("a field of a key-value has the wrong type"),
            // Of a later version.
            _ => {}
        }
    }
    Ok(kv)
}

#[cfg(test)]
mod tests {
    use dolmen_proto::mvccpb::KeyValue;

    use super::*;

    /// What is handed on, as it would be decoded.
    #[derive(Default)]
    struct Kept(Vec<KeyValue>, Vec<usize>);

    impl KeyValues for Kept {
        fn begin(&mut self, len: usize) {
            self.0.clear();
            self.1.push(len);
        }

        fn key_value(&mut self, kv: KeyValueRef<'_>) {
            let KeyValueRef { create_revision, mod_revision, version, lease, .. } = kv;
            let (key, value) = (kv.key.to_vec().into(), kv.value.to_vec().into());
            self.0.push(KeyValue { key, create_revision, mod_revision, version, value, lease });
        }
    }

    fn answer() -> pb::RangeResponse {
        let kv = |at: i64| KeyValue {
            key: format!("key{at}").into(),
            create_revision: at,
            mod_revision: i64::MAX - at,
            version: at % 3,
            value: vec![b'v'; usize::try_from(at * at * 7 % 400).unwrap()].into(),
            lease: if at % 2 == 0 { 0 } else { -at },
        };
        let header = pb::ResponseHeader { cluster_id: u64::MAX, member_id: 2, revision: 300, raft_term: 4 };
        pb::RangeResponse { header: Some(header), kvs: (0..40).map(kv).collect(), more: true, count: 1 << 40 }
    }

    /// The answer in pieces of `size` bytes, as it comes out again.
    fn through(bytes: &[u8], size: usize) -> Result<pb::RangeResponse, Error> {
        let mut kept = Kept::default();
        let mut intake = RangeIntake::new(&mut kept);
        intake.begin(bytes.len());
        bytes.chunks(size).for_each(|piece| intake.piece(piece));
        let rest = intake.finish()?;
        Ok(pb::RangeResponse { kvs: kept.0, ..rest })
    }

    #[test]
    fn pieces_of_any_size_are_one_answer() {
        let bytes = answer().encode_to_vec();
        for size in (1..200).chain([1000, bytes.len()]) {
            assert_eq!(through(&bytes, size).unwrap(), answer(), "{size}");
        }
        assert_eq!(through(&[], 1).unwrap(), pb::RangeResponse::default());
    }

    #[test]
    fn an_attempt_that_failed_leaves_nothing() {
        let bytes = answer().encode_to_vec();
        let mut kept = Kept::default();
        let mut intake = RangeIntake::new(&mut kept);
        for len in [0, 1, 77, bytes.len()] {
            intake.begin(bytes.len());
            intake.piece(&bytes[..len]);
        }
        let rest = intake.finish().unwrap();
        assert_eq!(pb::RangeResponse { kvs: kept.0, ..rest }, answer());
        assert_eq!(kept.1, [bytes.len(); 4]);
    }

    #[test]
    fn damaged_bytes_are_judged_as_by_decoding_them_whole() {
        let bytes = answer().encode_to_vec();
        for len in 0..bytes.len() {
            assert_eq!(through(&bytes[..len], 50).ok(), pb::RangeResponse::decode(&bytes[..len]).ok(), "cut at {len}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            let whole = pb::RangeResponse::decode(&damaged[..]);
            match through(&damaged, 50) {
                Ok(pieces) => assert_eq!(Some(pieces), whole.ok(), "damaged at {at}"),
                // Groups and tags of zero length are refused here at once.
                Err(error) => assert!(error.to_string().contains("failed to unmarshal"), "{error}"),
            }
        }
        let error = through(&[0xff; 20], 3).unwrap_err().to_string();
        assert!(error.ends_with("grpc: failed to unmarshal the received message: invalid varint"), "{error}");
    }
}
