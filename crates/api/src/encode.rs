//! Answers encoded by hand, because the store keeps each key-value as the very bytes that the answer holds.
//!
//! A range answers with stored bytes: decoding and encoding them again would be most of a get's work. Small ones are
//! copied together, large ones go out as they lie. Every function here must write what prost would (tested below).

use bytes::{BufMut, Bytes, BytesMut};
use dolmen_auth::Identity;
use dolmen_proto::etcdserverpb::ResponseHeader;
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};

use crate::answer::Answer;
use crate::frame::PREFIX;

/// Stored bytes at least this long are sent from where they lie.
const ZERO_COPY: usize = 8 * 1024;
/// Copied pieces are at most about this long: a large answer is not one allocation.
const CHUNK: usize = 256 * 1024;

/// Field numbers with wire types of `RangeResponse`.
const HEADER: u8 = 1 << 3 | 2;
const KVS: u8 = 2 << 3 | 2;
const MORE: u8 = 3 << 3;
const COUNT: u8 = 4 << 3;

/// Bytes of a length-delimited field whose tag takes one byte.
fn field_len(len: usize) -> usize {
    1 + encoded_len_varint(len as u64) + len
}

/// A `RangeResponse`.
pub struct RangeBody<'a> {
    /// Left out by all but the last message of a stream.
    pub header: Option<ResponseHeader>,
    /// Encoded `KeyValue`s.
    pub kvs: &'a [Bytes],
    pub more: bool,
    pub count: i64,
}

impl RangeBody<'_> {
    /// Bytes of the encoded message.
    pub fn encoded_len(&self) -> usize {
        let header = self.header.as_ref().map_or(0, |header| field_len(header.encoded_len()));
        let kvs: usize = self.kvs.iter().map(|kv| field_len(kv.len())).sum();
        let more = if self.more { 2 } else { 0 };
        let count = if self.count == 0 { 0 } else { 1 + encoded_len_varint(self.count as u64) };
        header + kvs + more + count
    }

    /// Bytes that are sent from where they lie.
    fn shared_len(&self) -> usize {
        self.kvs.iter().map(Bytes::len).filter(|len| *len >= ZERO_COPY).sum()
    }

    /// A unary answer, in one or several pieces.
    pub fn answer(&self) -> Answer {
        let mut pieces = Pieces::new(self.encoded_len() - self.shared_len());
        self.write(&mut pieces);
        pieces.finish()
    }

    /// One message of `RangeStream`: the same inside a `RangeStreamResponse`.
    pub fn stream_answer(&self) -> Answer {
        let len = self.encoded_len();
        let mut pieces = Pieces::new(field_len(len) - self.shared_len());
        pieces.buf.put_u8(HEADER);
        encode_varint(len as u64, &mut pieces.buf);
        self.write(&mut pieces);
        pieces.finish()
    }

    fn write(&self, pieces: &mut Pieces) {
        if let Some(header) = &self.header {
            pieces.buf.put_u8(HEADER);
            encode_varint(header.encoded_len() as u64, &mut pieces.buf);
            header.encode_raw(&mut pieces.buf);
        }
        for kv in self.kvs {
            pieces.buf.put_u8(KVS);
            encode_varint(kv.len() as u64, &mut pieces.buf);
            pieces.put(kv);
        }
        if self.more {
            pieces.buf.put_slice(&[MORE, 1]);
        }
        if self.count != 0 {
            pieces.buf.put_u8(COUNT);
            encode_varint(self.count as u64, &mut pieces.buf);
        }
    }
}

/// Bytes put together from copied small parts and shared large ones.
struct Pieces {
    /// The first piece, which has room for a prefix, once it is full.
    head: Option<BytesMut>,
    done: Vec<Bytes>,
    buf: BytesMut,
    /// Bytes still to be copied. Buffers have room for those only: an answer that waits for its reader holds all of them.
    left: usize,
}

impl Pieces {
    fn new(copied: usize) -> Self {
        Self { head: None, done: Vec::new(), buf: Answer::room(copied.min(CHUNK)), left: PREFIX + copied }
    }

    fn put(&mut self, bytes: &Bytes) {
        if bytes.len() >= ZERO_COPY {
            self.cut();
            self.done.push(bytes.clone());
        } else {
            if self.buf.len() + bytes.len() > CHUNK {
                self.cut();
            }
            self.buf.put_slice(bytes);
        }
    }

    fn cut(&mut self) {
        self.left = self.left.saturating_sub(self.buf.len());
        let next = BytesMut::with_capacity(self.left.min(CHUNK));
        let full = std::mem::replace(&mut self.buf, next);
        if self.head.is_none() {
            self.head = Some(full);
        } else if !full.is_empty() {
            self.done.push(full.freeze());
        }
    }

    fn finish(mut self) -> Answer {
        let Some(head) = self.head else { return Answer::of(self.buf, self.done) };
        if !self.buf.is_empty() {
            self.done.push(self.buf.freeze());
        }
        Answer::of(head, self.done)
    }
}

/// Which field of `InternalRaftRequest` a client's message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    Put = 4,
    DeleteRange = 5,
    Txn = 6,
    Compaction = 7,
    LeaseGrant = 8,
    LeaseRevoke = 9,
    Alarm = 10,
    AuthEnable = 1000,
    AuthDisable = 1011,
    Authenticate = 1012,
    UserAdd = 1100,
    UserDelete = 1101,
    UserChangePassword = 1103,
    UserGrantRole = 1104,
    UserRevokeRole = 1105,
    RoleAdd = 1200,
    RoleDelete = 1201,
    RoleGrantPermission = 1203,
    RoleRevokePermission = 1204,
}

/// Wraps a client's encoded message in an `InternalRaftRequest` with request id `id`. The message is copied as it came:
/// once, and with whatever fields a newer client put there. `who`: whose request it is, where users are asked.
pub fn raft_request(id: u64, command: Command, message: &[u8], who: Option<&Identity>) -> Bytes {
    // Field 100, length-delimited: 802 as a varint.
    const HEADER_TAG: [u8; 2] = [0xa2, 0x06];
    let tag = u64::from(command as u16) << 3 | 2;
    let id_len = 1 + encoded_len_varint(id);
    let who_len = who.map_or(0, |who| field_len(who.user.len()) + 1 + encoded_len_varint(who.revision));
    let header = id_len + who_len;
    let len = encoded_len_varint(tag) + encoded_len_varint(message.len() as u64) + message.len();
    let mut buf = BytesMut::with_capacity(len + HEADER_TAG.len() + encoded_len_varint(header as u64) + header);
    // In the order of field numbers, though any would do.
    let before = tag < 100 << 3;
    if before {
        encode_varint(tag, &mut buf);
        encode_varint(message.len() as u64, &mut buf);
        buf.put_slice(message);
    }
    buf.put_slice(&HEADER_TAG);
    encode_varint(header as u64, &mut buf);
    buf.put_u8(1 << 3);
    encode_varint(id, &mut buf);
    if let Some(who) = who {
        buf.put_u8(2 << 3 | 2);
        encode_varint(who.user.len() as u64, &mut buf);
        buf.put_slice(who.user.as_bytes());
        buf.put_u8(3 << 3);
        encode_varint(who.revision, &mut buf);
    }
    if !before {
        encode_varint(tag, &mut buf);
        encode_varint(message.len() as u64, &mut buf);
        buf.put_slice(message);
    }
    buf.freeze()
}

#[cfg(test)]
mod tests {
    use dolmen_proto::etcdserverpb::{
        AuthUserGrantRoleRequest, InternalRaftRequest, PutRequest, RangeResponse, RangeStreamResponse, RequestHeader,
    };
    use dolmen_proto::mvccpb::KeyValue;

    use super::*;

    fn kv(value: usize) -> KeyValue {
        KeyValue {
            key: Bytes::from(format!("key{value}")),
            create_revision: 2,
            mod_revision: 300,
            version: 7,
            value: vec![0x5a; value].into(),
            lease: -1,
        }
    }

    #[test]
    fn ranges_are_encoded_as_prost_does() {
        let header = ResponseHeader { cluster_id: u64::MAX, member_id: 3, revision: 9, raft_term: 2 };
        let sizes: [&[usize]; 5] = [&[], &[0], &[1, 100, 200], &[ZERO_COPY, 1, ZERO_COPY * 3], &[5000; 200]];
        for sizes in sizes {
            for (header, more, count) in
                [(Some(header), true, 300), (None, false, 0), (Some(Default::default()), false, -1)]
            {
                let kvs: Vec<KeyValue> = sizes.iter().map(|size| kv(*size)).collect();
                let encoded: Vec<Bytes> = kvs.iter().map(|kv| kv.encode_to_vec().into()).collect();
                let expected = RangeResponse { header, kvs, more, count };
                let body = RangeBody { header, kvs: &encoded, more, count };
                assert_eq!(body.answer().message(), expected.encode_to_vec());
                let expected = RangeStreamResponse { range_response: Some(expected) };
                assert_eq!(body.stream_answer().message(), expected.encode_to_vec());
            }
        }
    }

    #[test]
    fn large_values_are_shared_and_small_ones_gathered() {
        let small: Vec<Bytes> = (0..100).map(|_| kv(100).encode_to_vec().into()).collect();
        let of = |kvs: &[Bytes]| RangeBody { header: None, kvs, more: false, count: 1 }.answer();
        assert!(of(&small).rest().is_empty());
        let large: Bytes = kv(ZERO_COPY).encode_to_vec().into();
        let answer = of(std::slice::from_ref(&large));
        assert_eq!(answer.rest().len(), 2);
        assert_eq!(answer.rest()[0].as_ptr(), large.as_ptr());
        // Beside shared bytes there is room for what is copied, and no more.
        let (head, rest) = answer.frame();
        for piece in [head].into_iter().chain(rest) {
            let len = piece.len();
            let room = piece.try_into_mut().map_or(len, |piece| piece.capacity());
            assert!(room <= len.max(64), "{room} bytes for {len}");
        }
    }

    #[test]
    fn a_wrapped_request_decodes_to_the_same() {
        let put = PutRequest { key: "k".into(), value: vec![7; 300].into(), lease: 5, ..Default::default() };
        for id in [1, 0x8e9e_05c5_2164_694d] {
            let wrapped = raft_request(id, Command::Put, &put.encode_to_vec(), None);
            let expected = InternalRaftRequest {
                header: Some(RequestHeader { id, ..Default::default() }),
                put: Some(put.clone()),
                ..Default::default()
            };
            assert_eq!(InternalRaftRequest::decode(wrapped.clone()).unwrap(), expected);
            assert_eq!(wrapped, expected.encode_to_vec());
            let who = Identity { user: "u".repeat(200), revision: 300 };
            let grant = AuthUserGrantRoleRequest { user: "alice".into(), role: "r".into() };
            let wrapped = raft_request(id, Command::UserGrantRole, &grant.encode_to_vec(), Some(&who));
            let expected = InternalRaftRequest {
                header: Some(RequestHeader { id, username: who.user, auth_revision: who.revision }),
                auth_user_grant_role: Some(grant),
                ..Default::default()
            };
            assert_eq!(wrapped, expected.encode_to_vec());
        }
    }
}
