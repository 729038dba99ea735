//! gRPC on top of HTTP/2 streams: messages with a 5-byte prefix, trailers with a status, a timeout in a header.
//!
//! ```text
//! message   1 byte: compressed or not   4 bytes, big-endian: length   the protobuf
//! ```

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response};
use http_body::Body as _;
use hyper::body::Incoming;
use prost::Message;

use crate::body::Body;
use crate::status::{Code, Status};

/// Bytes before each message.
pub const PREFIX: usize = 5;

static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
static APPLICATION_GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

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
    body: Incoming,
    buf: BytesMut,
    max: usize,
    ended: bool,
    /// Bytes taken from the body so far, prefixes included.
    pub received: u64,
}

impl MessageReader {
    /// `max`: bytes allowed in one message.
    pub fn new(body: Incoming, max: usize) -> Self {
        Self { body, buf: BytesMut::new(), max, ended: false, received: 0 }
    }

    /// The next message; `None` when the caller has closed its side after a whole number of them.
    ///
    /// # Errors
    /// A message too large, compressed, or cut off; a broken stream.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            // Nothing is reserved for what is announced: the buffer grows with what comes.
            if let Some(len) = parse_prefix(&self.buf, self.max)?
                && self.buf.len() >= PREFIX + len
            {
                self.buf.advance(PREFIX);
                return Ok(Some(self.buf.split_to(len).freeze()));
            }
            if self.ended {
                return if self.buf.is_empty() { Ok(None) } else { Err(unexpected_eof()) };
            }
            match self.data().await? {
                Some(data) => self.buf.extend_from_slice(&data),
                None => self.ended = true,
            }
        }
    }

    /// The only message of a unary call. Usually it came in one piece, which is then handed on without a copy.
    ///
    /// # Errors
    /// As [`MessageReader::next`]; no message at all, or a second one.
    pub async fn only(mut self) -> (Result<Bytes, Status>, u64) {
        let result = self.read_only_message().await;
        (result, self.received)
    }

    async fn read_only_message(&mut self) -> Result<Bytes, Status> {
        let Some(mut first) = self.data().await? else { return Err(unexpected_eof()) };
        let message = match parse_prefix(&first, self.max)? {
            Some(len) if first.len() == PREFIX + len => {
                first.advance(PREFIX);
                first
            }
            _ => {
                self.buf = BytesMut::from(first);
                self.next().await?.ok_or_else(unexpected_eof)?
            }
        };
        if !self.buf.is_empty() || !self.end_of_body().await? {
            return Err(Status::new(Code::Internal, "grpc: more than one message in the request of a unary call"));
        }
        Ok(message)
    }

    /// Whether nothing but an end follows.
    async fn end_of_body(&mut self) -> Result<bool, Status> {
        if self.ended || self.body.is_end_stream() {
            return Ok(true);
        }
        Ok(self.data().await?.is_none())
    }

    /// The next piece of the body, empty ones and trailers skipped.
    async fn data(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            let frame = std::future::poll_fn(|cx| std::pin::Pin::new(&mut self.body).poll_frame(cx)).await;
            match frame {
                None => return Ok(None),
                Some(Err(_)) => return Err(Status::new(Code::Canceled, "context canceled")),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => {
                        self.received += data.len() as u64;
                        return Ok(Some(data));
                    }
                    Err(_trailers) => {}
                },
            }
        }
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
/// `Internal`, as grpc-go has it, when the bytes are not such a message. A message nested deeper than the decoder goes
/// can only be a transaction, and has too many operations by any count.
pub fn decode<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|error| {
        let text = error.to_string();
        if text.contains("recursion limit reached") {
            return crate::status::TOO_MANY_OPS;
        }
        Status::owned(Code::Internal, format!("grpc: error unmarshalling request: {text}"))
    })
}

/// The head of every gRPC answer, to which a body is attached.
pub fn response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, APPLICATION_GRPC.clone());
    response
}

/// An answer that is nothing but a status: headers and trailers in one block.
pub fn error_response(status: &Status) -> Response<Body> {
    let mut response = response(Body::Empty);
    put_status(response.headers_mut(), Some(status));
    response
}

/// What ends a stream; `None` is OK.
pub fn trailers(status: Option<&Status>) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    put_status(&mut trailers, status);
    trailers
}

fn put_status(headers: &mut HeaderMap, status: Option<&Status>) {
    let code = status.map_or(Code::Ok, |status| status.code);
    headers.insert(GRPC_STATUS.clone(), HeaderValue::from_static(code.digits()));
    if let Some(status) = status
        && let Ok(value) = HeaderValue::from_str(&percent_encode(&status.message))
    {
        headers.insert(GRPC_MESSAGE.clone(), value);
    }
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
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| {
        value
            .as_bytes()
            .strip_prefix(b"application/grpc")
            .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let trailers = trailers(Some(&Status::new(Code::Unavailable, "a\nb")));
        assert_eq!(trailers["grpc-status"], "14");
        assert_eq!(trailers["grpc-message"], "a%0Ab");
        assert_eq!(super::trailers(None)["grpc-status"], "0");
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
        let of = |text: &'static str| HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(text))]);
        assert!(is_grpc(&of("application/grpc")) && is_grpc(&of("application/grpc+proto")));
        assert!(!is_grpc(&of("application/grpc-web")) && !is_grpc(&of("application/json")));
        assert!(!is_grpc(&HeaderMap::new()));
    }
}
