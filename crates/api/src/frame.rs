//! gRPC on top of HTTP/2 streams: messages with a 5-byte prefix, trailers with a status, a timeout in a header.
//!
//! ```text
//! message   1 byte: compressed or not   4 bytes, big-endian: length   the protobuf
//! ```

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use dolmen_http2::{Field, Head, Trailers};
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Response};
use prost::Message;

use crate::body::{Body, RequestBody};
use crate::budget::Hold;
use crate::status::{Code, Status};

/// Bytes before each message.
pub const PREFIX: usize = 5;

/// Fields of a request that say how it is sent, which its call does not ask for.
const OF_TRANSPORT: &[&str] = &["content-type", "te", "user-agent", "grpc-accept-encoding", "accept-encoding"];

/// The prefix of a message of `len` bytes.
pub fn prefix(len: usize) -> [u8; PREFIX] {
    // etcd's own limit on what it sends is 2^31 - 1 bytes; a store's snapshot is cut far below it.
    let [a, b, c, d] = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
    [0, a, b, c, d]
}

/// Writes the prefix of a message of `len` bytes.
pub fn put_prefix(buf: &mut BytesMut, len: usize) {
    buf.put_slice(&prefix(len));
}

/// Takes messages out of a request body as they arrive.
pub struct MessageReader {
    body: RequestBody,
    buf: BytesMut,
    max: usize,
    /// What has come of a message, and what is done with it until the next one is asked for.
    hold: Hold,
    /// Bytes taken from the body so far, prefixes included.
    received: u64,
}

impl MessageReader {
    /// `max`: bytes allowed in one message.
    pub fn new(body: RequestBody, max: usize, hold: Hold) -> Self {
        Self { body, buf: BytesMut::new(), max, hold, received: 0 }
    }

    /// The next message; `None` when the caller has closed its side after a whole number of them.
    ///
    /// # Errors
    /// A message too large, compressed, or cut off.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            // Nothing is reserved for what is announced: the buffer grows with what comes.
            if let Some(len) = parse_prefix(&self.buf, self.max)?
                && self.buf.len() >= PREFIX + len
            {
                self.buf.advance(PREFIX);
                return Ok(Some(self.buf.split_to(len).freeze()));
            }
            match self.data().await {
                Some(data) if self.buf.is_empty() => {
                    self.hold.set(data.len())?;
                    self.buf = data;
                }
                Some(data) => {
                    self.hold.set(self.buf.len() + data.len())?;
                    self.buf.extend_from_slice(&data);
                }
                None if self.buf.is_empty() => return Ok(None),
                None => return Err(unexpected_eof()),
            }
        }
    }

    /// The only message of a unary call. Usually it came in one piece, which is then handed on without a copy.
    ///
    /// # Errors
    /// As [`MessageReader::next`]; no message at all, or a second one.
    pub async fn only(&mut self) -> (Result<Bytes, Status>, u64) {
        let result = self.read_only_message().await;
        (result, self.received)
    }

    async fn read_only_message(&mut self) -> Result<Bytes, Status> {
        let message = self.next().await?.ok_or_else(unexpected_eof)?;
        if !self.buf.is_empty() || !self.body.is_over() && self.data().await.is_some() {
            return Err(Status::new(Code::Internal, "grpc: more than one message in the request of a unary call"));
        }
        Ok(message)
    }

    async fn data(&mut self) -> Option<BytesMut> {
        let data = std::future::poll_fn(|cx| self.body.poll_data(cx)).await?;
        self.received += data.len() as u64;
        Some(data)
    }
}

fn unexpected_eof() -> Status {
    Status::new(Code::Internal, "unexpected EOF")
}

/// The length of the message at the front of `buf`, `None` when its prefix is not whole yet.
fn parse_prefix(buf: &[u8], max: usize) -> Result<Option<usize>, Status> {
    let Some(prefix) = buf.first_chunk::<PREFIX>() else { return Ok(None) };
    let [flag, a, b, c, d] = *prefix;
    let len = u32::from_be_bytes([a, b, c, d]) as usize;
    match flag {
        0 => {}
        // Another encoding was refused by its header; see `encoding`.
        1 => return Err(Status::new(Code::Internal, "grpc: compressed flag set with identity or empty encoding")),
        flag => return Err(Status::owned(Code::Internal, format!("grpc: received unexpected payload format {flag}"))),
    }
    if len > max {
        let text = format!("grpc: received message larger than max ({len} vs. {max})");
        return Err(Status::owned(Code::ResourceExhausted, text));
    }
    Ok(Some(len))
}

/// Decodes a request.
///
/// # Errors
/// `Internal`, as grpc-go has it, when the bytes are not such a message. Transactions nested deeper than the decoder goes have
/// too many operations by any count.
pub fn decode<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|error| {
        let text = error.to_string();
        // The text names the fields on the way: deep groups that nobody knows have no operations.
        if text.contains("recursion limit reached") && text.contains("RequestOp.") {
            return crate::status::TOO_MANY_OPS;
        }
        Status::owned(Code::Internal, format!("grpc: error unmarshalling request: {text}"))
    })
}

/// An answer that is nothing but a status: headers and trailers in one block.
pub fn error_response(status: &Status) -> Response<Body> {
    Response::new(Body::Refused(status.clone()))
}

/// What ends an answer; `None` is OK.
pub fn trailers(status: Option<&Status>) -> Trailers {
    let code = status.map_or(Code::Ok, |status| status.code);
    let message = status.map(|status| Field {
        name: "grpc-message",
        value: match percent_encode(&status.message) {
            Cow::Borrowed(_) => status.message.clone(),
            Cow::Owned(encoded) => encoded.into(),
        },
    });
    [Some(Field { name: "grpc-status", value: code.digits().into() }), message]
}

/// The fields of a request that a call may look at. What is no field by HTTP's rules is left out; HTTP/2 has refused it.
pub fn headers(head: &Head) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in head.iter() {
        if name.starts_with(b":") || OF_TRANSPORT.iter().any(|known| known.as_bytes() == name) {
            continue;
        }
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    headers
}

/// Encodes a status text for a header: printable ASCII but `%` stays, each other byte becomes `%XX`.
pub fn percent_encode(text: &str) -> Cow<'_, str> {
    let plain = |byte: u8| (0x20..=0x7e).contains(&byte) && byte != b'%';
    if text.bytes().all(plain) {
        return text.into();
    }
    let mut encoded = String::with_capacity(text.len() + 16);
    for byte in text.bytes() {
        if plain(byte) {
            encoded.push(byte.into());
        } else {
            write!(encoded, "%{byte:02X}").expect("writing to a string cannot fail");
        }
    }
    encoded.into()
}

/// Refuses a call whose header `grpc-encoding` says that its messages are compressed.
///
/// # Errors
/// `Unimplemented`, as grpc-go has it.
pub fn encoding(headers: &HeaderMap) -> Result<(), Status> {
    match headers.get("grpc-encoding").map(|value| String::from_utf8_lossy(value.as_bytes())) {
        Some(name) if !name.is_empty() && name != "identity" => {
            let text = format!("grpc: Decompressor is not installed for grpc-encoding {name:?}");
            Err(Status::owned(Code::Unimplemented, text))
        }
        _ => Ok(()),
    }
}

/// Reads header `grpc-timeout`: up to 8 digits and a unit.
///
/// # Errors
/// `Internal` when it is there and is not that.
pub fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let malformed = || Status::new(Code::Internal, "malformed grpc-timeout");
    let (unit, digits) = value.as_bytes().split_last().ok_or_else(malformed)?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(malformed());
    }
    let count = digits.iter().fold(0u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    Ok(Some(match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return Err(malformed()),
    }))
}

/// The content types that mean gRPC: `application/grpc`, alone or followed by `+` or `;`.
pub fn is_grpc(content_type: &[u8]) -> bool {
    let rest = content_type.strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::body::Inbox;
    use crate::budget::Budget;

    #[test]
    fn prefixes_are_believed_only_within_the_limit() {
        assert_eq!(parse_prefix(&[0, 0, 0, 0], 10), Ok(None));
        assert_eq!(parse_prefix(&[0, 0, 0, 0, 10, 1], 10), Ok(Some(10)));
        let error = parse_prefix(&[0, 0, 0x20, 0, 1], 2_097_152).unwrap_err();
        assert_eq!(error.code, Code::ResourceExhausted);
        assert_eq!(error.message, "grpc: received message larger than max (2097153 vs. 2097152)");
        assert_eq!(parse_prefix(&[1, 0, 0, 0, 1], 10).unwrap_err().code, Code::Internal);
        assert_eq!(parse_prefix(&[7, 0, 0, 0, 1], 10).unwrap_err().code, Code::Internal);
    }

    #[test]
    fn status_texts_survive_a_header() {
        assert_eq!(percent_encode("etcdserver: no leader"), "etcdserver: no leader");
        assert_eq!(percent_encode("50% \n\u{e9}"), "50%25 %0A%C3%A9");
        let values =
            |status: Option<&Status>| trailers(status).map(|field| field.map(|field| field.value.into_owned()));
        let refused = Status::new(Code::Unavailable, "a\nb");
        assert_eq!(values(Some(&refused)), [Some("14".into()), Some("a%0Ab".into())]);
        assert_eq!(values(None), [Some("0".into()), None]);
    }

    #[test]
    fn timeouts_have_digits_and_a_unit() {
        let parse = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", HeaderValue::from_str(text).unwrap());
            timeout(&headers)
        };
        assert_eq!(parse("5S"), Ok(Some(Duration::from_secs(5))));
        assert_eq!(parse("4999993u"), Ok(Some(Duration::from_micros(4_999_993))));
        assert_eq!(parse("99999999H"), Ok(Some(Duration::from_secs(99_999_999 * 3600))));
        for bad in ["", "S", "5", "5s", "123456789S", "-1S", "1.5S"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(timeout(&HeaderMap::new()), Ok(None));
    }

    #[test]
    fn grpc_is_told_by_its_content_type() {
        assert!(is_grpc(b"application/grpc") && is_grpc(b"application/grpc+proto"));
        assert!(!is_grpc(b"application/grpc-web") && !is_grpc(b"application/json") && !is_grpc(b""));
    }

    fn poll<T>(future: impl Future<Output = T>) -> Poll<T> {
        std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn messages_are_found_however_they_are_cut() {
        let bytes = b"\0\0\0\0\x01a\0\0\0\0\x02bc";
        for cut in 0..bytes.len() {
            let inbox = Arc::new(Inbox::default());
            let mut reader = MessageReader::new(RequestBody::Coming(inbox.clone()), 10, Budget::new(0).hold());
            inbox.put(BytesMut::from(&bytes[..cut]), false);
            let mut seen = Vec::new();
            while let Poll::Ready(message) = poll(reader.next()) {
                seen.push(message.unwrap().unwrap());
            }
            inbox.put(BytesMut::from(&bytes[cut..]), true);
            while let Poll::Ready(Ok(Some(message))) = poll(reader.next()) {
                seen.push(message);
            }
            assert_eq!(seen, ["a", "bc"], "cut at {cut}");
            assert_eq!(reader.received, bytes.len() as u64);
        }
    }

    #[test]
    fn an_announced_message_takes_the_room_of_what_has_come() {
        let inbox = Arc::new(Inbox::default());
        let mut reader = MessageReader::new(RequestBody::Coming(inbox.clone()), 2 << 20, Budget::new(0).hold());
        inbox.put(BytesMut::from(&[0, 0, 0x20, 0, 0][..]), false);
        assert!(poll(reader.next()).is_pending());
        inbox.put(BytesMut::from(&[7; 100][..]), false);
        assert!(poll(reader.next()).is_pending());
        assert!(reader.buf.capacity() < 1024, "{} bytes for a message of which 100 have come", reader.buf.capacity());
    }
}
