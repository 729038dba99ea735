//! How raft messages look on a stream: the two codecs of etcd's `rafthttp`, and the check that a message may come from
//! outside at all.
//!
//! All numbers are big-endian.
//!
//! ```text
//! message stream    u64 length, Message
//! msgapp stream     0                                            link heartbeat
//!                   1, u64 count, count x (u64 length, Entry), u64 commit     entries that continue the last message
//!                   2, u64 length, Message                       any other MsgApp; sets the state of both ends
//! ```
//!
//! The msgapp stream leaves out what both ends know: its state is the term and the index of the last entry sent. Form 1
//! is used when a message starts at that index, in that term, and its sender is of that term still.
//!
//! Encoded bytes leave as [`Segments`]: small things are gathered, payloads of some size are passed on by reference.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use dolmen_proto::raftpb::{Entry, Message, MessageType};
use dolmen_types::{Index, MemberId, Term};
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

/// The largest message or entry read from a stream, in bytes.
pub(crate) const MESSAGE_LIMIT: u64 = 512 << 20;
/// The largest message part of a snapshot transfer, in bytes. The database that follows has no limit.
pub(crate) const SNAPSHOT_MESSAGE_LIMIT: u64 = 64 << 20;
/// Payloads from this size on are not copied. Below it a copy costs less than one more part in the write call.
const BY_REFERENCE: usize = 4096;

const LINK_HEARTBEAT: u8 = 0;
const APP_ENTRIES: u8 = 1;
const APP: u8 = 2;

/// Bytes to write, as parts in order.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    tail: BytesMut,
    parts: VecDeque<Bytes>,
    len: u64,
}

impl Segments {
    /// Bytes put and not taken yet.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes the next part.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        let part = match self.parts.pop_front() {
            Some(part) => part,
            None if self.tail.is_empty() => return None,
            None => self.tail.split().freeze(),
        };
        self.len -= part.len() as u64;
        Some(part)
    }

    fn put_u8(&mut self, value: u8) {
        self.tail.put_u8(value);
        self.len += 1;
    }

    fn put_u64(&mut self, value: u64) {
        self.tail.put_u64(value);
        self.len += 8;
    }

    fn put_with(&mut self, put: impl FnOnce(&mut BytesMut)) {
        let before = self.tail.len();
        put(&mut self.tail);
        self.len += (self.tail.len() - before) as u64;
    }

    fn put_payload(&mut self, payload: Bytes) {
        self.len += payload.len() as u64;
        if payload.len() < BY_REFERENCE {
            self.tail.extend_from_slice(&payload);
            return;
        }
        if !self.tail.is_empty() {
            self.parts.push_back(self.tail.split().freeze());
        }
        self.parts.push_back(payload);
    }

    /// One Entry, field by field, so that its data need not be copied.
    fn put_entry(&mut self, entry: Entry) {
        self.put_with(|tail| {
            for (tag, value) in [(1, entry.r#type as i64 as u64), (2, entry.term), (3, entry.index)] {
                if value != 0 {
                    encode_key(tag, WireType::Varint, tail);
                    encode_varint(value, tail);
                }
            }
            if !entry.data.is_empty() {
                encode_key(4, WireType::LengthDelimited, tail);
                encode_varint(entry.data.len() as u64, tail);
            }
        });
        self.put_payload(entry.data);
    }

    /// A length, and the Message. Its entries come last (field order is free), so that their data need not be copied.
    fn put_message(&mut self, mut message: Message) {
        let entries = std::mem::take(&mut message.entries);
        let entries_len: usize = entries
            .iter()
            .map(|entry| {
                let len = entry.encoded_len();
                1 + encoded_len_varint(len as u64) + len
            })
            .sum();
        self.put_u64((message.encoded_len() + entries_len) as u64);
        self.put_with(|tail| message.encode_raw(tail));
        for entry in entries {
            self.put_with(|tail| {
                encode_key(7, WireType::LengthDelimited, tail);
                encode_varint(entry.encoded_len() as u64, tail);
            });
            self.put_entry(entry);
        }
    }
}

/// A MsgHeartbeat of nobody to nobody: keeps a quiet stream from its read timeout.
pub(crate) fn is_link_heartbeat(message: &Message) -> bool {
    message.r#type == MessageType::MsgHeartbeat as i32 && message.from == 0 && message.to == 0
}

pub(crate) fn link_heartbeat() -> Message {
    Message { r#type: MessageType::MsgHeartbeat as i32, ..Default::default() }
}

/// A length and a message: the frame of the message stream, and the head of a snapshot transfer.
pub(crate) fn encode_framed(message: Message, out: &mut Segments) {
    out.put_message(message);
}

/// The writing end of one stream.
#[derive(Debug)]
pub(crate) enum Encoder {
    Message,
    /// Term and index of the last entry sent.
    MsgApp {
        term: Term,
        index: Index,
    },
}

impl Encoder {
    /// Appends `message` to `out`.
    pub(crate) fn encode(&mut self, message: Message, out: &mut Segments) {
        match self {
            Self::Message => out.put_message(message),
            Self::MsgApp { .. } if is_link_heartbeat(&message) => out.put_u8(LINK_HEARTBEAT),
            Self::MsgApp { term, index }
                if *index == message.index && *term == message.log_term && message.log_term == message.term =>
            {
                out.put_u8(APP_ENTRIES);
                out.put_u64(message.entries.len() as u64);
                for entry in message.entries {
                    out.put_u64(entry.encoded_len() as u64);
                    out.put_entry(entry);
                    *index += 1;
                }
                out.put_u64(message.commit);
            }
            Self::MsgApp { term, index } => {
                *term = message.term;
                *index = message.entries.last().map_or(message.index, |entry| entry.index);
                out.put_u8(APP);
                out.put_message(message);
            }
        }
    }
}

/// Why a stream cannot be read on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("the stream ended")]
    Ended,
    #[error("nothing came for {0:?}")]
    TimedOut(std::time::Duration),
    #[error("length {0} is over the limit")]
    TooLong(u64),
    #[error("type {0} is unknown in a msgappv2 stream")]
    UnknownForm(u8),
    #[error("cannot parse a message")]
    Protobuf(#[from] prost::DecodeError),
    #[error("cannot read")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Where a decoder takes its bytes. Both methods wait for them.
pub(crate) trait ByteSource {
    async fn u64(&mut self) -> Result<u64, DecodeError>;
    /// Exactly `len` bytes. Memory grows as bytes arrive, whatever `len` promises.
    async fn take(&mut self, len: usize) -> Result<Bytes, DecodeError>;
}

async fn take_limited(source: &mut impl ByteSource, limit: u64) -> Result<Bytes, DecodeError> {
    let len = source.u64().await?;
    if len > limit {
        return Err(DecodeError::TooLong(len));
    }
    source.take(usize::try_from(len).map_err(|_| DecodeError::TooLong(len))?).await
}

/// Reads a length and a message.
pub(crate) async fn decode_framed(source: &mut impl ByteSource, limit: u64) -> Result<Message, DecodeError> {
    Ok(Message::decode(take_limited(source, limit).await?)?)
}

/// The reading end of one stream.
#[derive(Debug)]
pub(crate) enum Decoder {
    Message,
    MsgApp { local: MemberId, remote: MemberId, term: Term, index: Index },
}

impl Decoder {
    pub(crate) fn msgapp(local: MemberId, remote: MemberId) -> Self {
        Self::MsgApp { local, remote, term: 0, index: 0 }
    }

    /// The next message; a link heartbeat is one too.
    pub(crate) async fn decode(&mut self, source: &mut impl ByteSource) -> Result<Message, DecodeError> {
        let Self::MsgApp { local, remote, term, index } = self else {
            return decode_framed(source, MESSAGE_LIMIT).await;
        };
        let form = source.take(1).await?[0];
        match form {
            LINK_HEARTBEAT => Ok(link_heartbeat()),
            APP_ENTRIES => {
                let mut message = Message {
                    r#type: MessageType::MsgApp as i32,
                    from: *remote,
                    to: *local,
                    term: *term,
                    log_term: *term,
                    index: *index,
                    ..Default::default()
                };
                let mut left = MESSAGE_LIMIT;
                for _ in 0..source.u64().await? {
                    let bytes = take_limited(source, left).await?;
                    // The length itself counts, so that a count of empty entries ends too.
                    left = left.saturating_sub(bytes.len() as u64 + 8);
                    if left == 0 {
                        return Err(DecodeError::TooLong(MESSAGE_LIMIT));
                    }
                    message.entries.push(Entry::decode(bytes)?);
                    *index = index.wrapping_add(1);
                }
                message.commit = source.u64().await?;
                Ok(message)
            }
            APP => {
                let message = decode_framed(source, MESSAGE_LIMIT).await?;
                *term = message.term;
                *index = message.entries.last().map_or(message.index, |entry| entry.index);
                Ok(message)
            }
            other => Err(DecodeError::UnknownForm(other)),
        }
    }
}

/// Why a message is not handed to raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("cannot process message from removed member")]
    RemovedSender,
    #[error("cannot process message to mismatch member")]
    WrongAddressee,
    #[error("message type is not one that members send each other")]
    Type,
}

/// Checks what raft need not know how to survive: a type that exists and may come from another member.
///
/// A `MsgSnap` passes with the database it speaks of only, so never through here.
pub(crate) fn check_type(message: &Message) -> Result<(), Refusal> {
    use MessageType::*;
    match MessageType::try_from(message.r#type) {
        Ok(
            MsgProp | MsgApp | MsgAppResp | MsgVote | MsgVoteResp | MsgHeartbeat | MsgHeartbeatResp | MsgTransferLeader
            | MsgTimeoutNow | MsgReadIndex | MsgReadIndexResp | MsgPreVote | MsgPreVoteResp,
        ) => Ok(()),
        _ => Err(Refusal::Type),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that are all there; running out is the end.
    impl ByteSource for Bytes {
        async fn u64(&mut self) -> Result<u64, DecodeError> {
            Ok(u64::from_be_bytes(self.take(8).await?[..].try_into().expect("8 bytes")))
        }

        async fn take(&mut self, len: usize) -> Result<Bytes, DecodeError> {
            if self.len() < len {
                return Err(DecodeError::Ended);
            }
            Ok(self.split_to(len))
        }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().expect("runtime").block_on(future)
    }

    fn app(term: Term, log_term: Term, index: Index, entries: &[(Term, &[u8])], commit: Index) -> Message {
        let entries = entries.iter().zip(index + 1..).map(|((term, data), index)| Entry {
            term: *term,
            index,
            r#type: 0,
            data: Bytes::copy_from_slice(data),
        });
        Message {
            r#type: MessageType::MsgApp as i32,
            from: 1,
            to: 2,
            term,
            log_term,
            index,
            entries: entries.collect(),
            commit,
            ..Default::default()
        }
    }

    fn bytes_of(mut segments: Segments) -> Bytes {
        let mut all = BytesMut::new();
        let promised = segments.len();
        while let Some(part) = segments.pop() {
            all.extend_from_slice(&part);
        }
        assert_eq!(all.len() as u64, promised);
        assert!(segments.is_empty());
        all.freeze()
    }

    #[test]
    fn msgapp_frames_have_these_bytes() {
        let mut encoder = Encoder::MsgApp { term: 0, index: 0 };
        let mut out = Segments::default();
        encoder.encode(link_heartbeat(), &mut out);
        assert_eq!(bytes_of(std::mem::take(&mut out)), [0][..]);

        // The first message of a stream is a whole one.
        encoder.encode(app(5, 5, 10, &[(5, b"ab")], 9), &mut out);
        let whole = bytes_of(std::mem::take(&mut out));
        let body =
            [8, 3, 16, 2, 24, 1, 32, 5, 40, 5, 48, 10, 64, 9, /* entry */ 58, 8, 16, 5, 24, 11, 34, 2, b'a', b'b'];
        assert_eq!(whole[..9], [2, 0, 0, 0, 0, 0, 0, 0, 24]);
        assert_eq!(whole[9..], body);

        // What continues it leaves out everything but entries and commit.
        encoder.encode(app(5, 5, 11, &[(5, b"c"), (5, b"")], 11), &mut out);
        #[rustfmt::skip]
        let golden = [
            1, 0, 0, 0, 0, 0, 0, 0, 2,
            0, 0, 0, 0, 0, 0, 0, 7, 16, 5, 24, 12, 34, 1, b'c',
            0, 0, 0, 0, 0, 0, 0, 4, 16, 5, 24, 13,
            0, 0, 0, 0, 0, 0, 0, 11,
        ];
        assert_eq!(bytes_of(std::mem::take(&mut out)), golden[..]);

        // So does an empty one, which carries a commit.
        encoder.encode(app(5, 5, 13, &[], 13), &mut out);
        assert_eq!(bytes_of(std::mem::take(&mut out)), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 13][..]);

        // Another term, or a step back, is a whole message again.
        encoder.encode(app(6, 5, 13, &[(6, b"d")], 13), &mut out);
        assert_eq!(bytes_of(std::mem::take(&mut out))[0], 2);
        encoder.encode(app(6, 6, 14, &[(6, b"e")], 13), &mut out);
        assert_eq!(bytes_of(std::mem::take(&mut out))[0], 1);
        encoder.encode(app(6, 6, 14, &[(6, b"e")], 13), &mut out);
        assert_eq!(bytes_of(std::mem::take(&mut out))[0], 2);
    }

    #[test]
    fn message_frames_have_these_bytes() {
        let mut out = Segments::default();
        Encoder::Message.encode(link_heartbeat(), &mut out);
        assert_eq!(bytes_of(out), [0, 0, 0, 0, 0, 0, 0, 2, 8, 8][..]);
    }

    #[test]
    fn streams_decode_to_what_was_encoded() {
        let big = vec![7u8; 3 * BY_REFERENCE];
        let messages = [
            link_heartbeat(),
            app(1, 1, 0, &[(1, b"x"), (1, &big), (1, b"")], 0),
            app(1, 1, 3, &[(1, &big), (1, b"y")], 4),
            link_heartbeat(),
            app(1, 1, 5, &[], 5),
            app(3, 1, 5, &[(3, b"z")], 5),
            app(3, 2, 6, &[(3, &big)], 5),
            app(3, 3, 7, &[(3, &big)], 6),
        ];
        for (mut encoder, mut decoder) in
            [(Encoder::Message, Decoder::Message), (Encoder::MsgApp { term: 0, index: 0 }, Decoder::msgapp(2, 1))]
        {
            let mut out = Segments::default();
            for message in &messages {
                encoder.encode(message.clone(), &mut out);
            }
            let mut bytes = bytes_of(out);
            for message in &messages {
                assert_eq!(&block_on(decoder.decode(&mut bytes)).expect("decodes"), message);
            }
            assert!(matches!(block_on(decoder.decode(&mut bytes)), Err(DecodeError::Ended)));
        }
    }

    #[test]
    fn large_payloads_are_not_copied() {
        let big = Bytes::from(vec![7u8; 3 * BY_REFERENCE]);
        let mut message = app(1, 1, 0, &[(1, b"x")], 0);
        message.entries[0].data = big.clone();
        let mut out = Segments::default();
        Encoder::MsgApp { term: 0, index: 0 }.encode(message, &mut out);
        let parts: Vec<Bytes> = std::iter::from_fn(|| out.pop()).collect();
        assert!(parts.iter().any(|part| part.as_ptr() == big.as_ptr()));
    }

    #[test]
    fn bytes_that_promise_too_much_are_refused() {
        let frame = |form: u8, numbers: &[u64]| {
            let mut bytes = BytesMut::new();
            bytes.put_u8(form);
            numbers.iter().for_each(|number| bytes.put_u64(*number));
            bytes.freeze()
        };
        let decode = |mut bytes: Bytes| block_on(Decoder::msgapp(2, 1).decode(&mut bytes)).map(|_| ());
        assert!(matches!(decode(frame(2, &[u64::MAX])), Err(DecodeError::TooLong(_))));
        assert!(matches!(decode(frame(1, &[u64::MAX, MESSAGE_LIMIT + 1])), Err(DecodeError::TooLong(_))));
        assert!(matches!(decode(frame(1, &[u64::MAX, 0, 0])), Err(DecodeError::Ended)));
        assert!(matches!(decode(frame(9, &[])), Err(DecodeError::UnknownForm(9))));
        assert!(matches!(decode(frame(2, &[1, 1 << 56])), Err(DecodeError::Protobuf(_))));
    }

    #[test]
    fn local_and_unknown_types_are_refused() {
        for (kind, accepted) in [(3, true), (8, true), (18, true), (0, false), (7, false), (10, false), (21, false)] {
            let message = Message { r#type: kind, ..Default::default() };
            assert_eq!(check_type(&message).is_ok(), accepted, "type {kind}");
        }
        assert!(check_type(&Message { r#type: 99, ..Default::default() }).is_err());
        assert!(check_type(&Message { r#type: -1, ..Default::default() }).is_err());
    }
}
