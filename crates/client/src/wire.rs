//! gRPC over HTTP/2: frames of a message each, statuses in trailers.
//!
//! A message is preceded by five bytes: compressed or not (never, here), and its length. The status of a call stands in
//! headers after the last message (`grpc-status`, `grpc-message`), or among the first ones if there is no message at all.

use std::convert::Infallible;
use std::error::Error as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use prost::Message;
use tokio::sync::mpsc;

use crate::error::{Error, code};

const PREFIX_LEN: usize = 5;

/// A message with its prefix.
///
/// # Errors
/// Larger than `limit` bytes.
pub(crate) fn frame<M: Message>(message: &M, limit: usize) -> Result<Bytes, Error> {
    let len = message.encoded_len();
    match u32::try_from(len) {
        Ok(prefix) if len <= limit => {
            let mut out = BytesMut::with_capacity(PREFIX_LEN + len);
            out.put_u8(0);
            out.put_u32(prefix);
            message.encode(&mut out).map_err(|error| Error::status(code::INTERNAL, error.to_string()))?;
            Ok(out.freeze())
        }
        _ => {
            let text = format!("trying to send message larger than max ({len} vs. {limit})");
            Err(Error::status(code::RESOURCE_EXHAUSTED, text))
        }
    }
}

/// What goes out: one frame, or frames as they come.
pub(crate) enum Outgoing {
    One(Option<Bytes>),
    Many(mpsc::UnboundedReceiver<Bytes>),
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let next = match &mut *self {
            Outgoing::One(frame) => Poll::Ready(frame.take()),
            Outgoing::Many(frames) => frames.poll_recv(cx),
        };
        next.map(|frame| frame.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Outgoing::One(None))
    }
}

/// What comes in, taken apart into messages.
pub(crate) struct Frames {
    body: Incoming,
    buffer: BytesMut,
    /// Bytes of a message.
    limit: usize,
    /// The status, if it came with the first headers.
    status: Option<Result<(), Error>>,
}

impl Frames {
    /// # Errors
    /// The answer is none of gRPC.
    pub fn new(response: http::Response<Incoming>, limit: usize) -> Result<Frames, Error> {
        let (head, body) = response.into_parts();
        let status = status_of(&head.headers);
        if status.is_none() {
            no_grpc(head.status, &head.headers)?;
        }
        Ok(Frames { body, buffer: BytesMut::new(), limit, status })
    }

    /// The next message; `None` after the last, when the call ended well. May be dropped at any await and called again.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            if let Some(message) = self.message()? {
                return Ok(Some(message));
            }
            match self.data().await? {
                Some(data) => self.buffer.extend_from_slice(&data),
                None => return Ok(None),
            }
        }
    }

    /// As [`Frames::next`], but the message goes into `intake` while it comes. What went there counts for nothing unless this
    /// returns `Some`. Not to be dropped and called again.
    pub async fn next_into(&mut self, intake: &mut (dyn Intake + Send)) -> Result<Option<()>, Error> {
        let mut missing = loop {
            if let Some(len) = self.prefix()? {
                self.buffer.advance(PREFIX_LEN);
                break len;
            }
            match self.data().await? {
                Some(data) => self.buffer.extend_from_slice(&data),
                None => return Ok(None),
            }
        };
        intake.begin(missing);
        let early = self.buffer.split_to(missing.min(self.buffer.len()));
        intake.piece(&early);
        missing -= early.len();
        while missing > 0 {
            let Some(mut data) = self.data().await? else { return Ok(None) };
            let piece = data.split_to(missing.min(data.len()));
            intake.piece(&piece);
            missing -= piece.len();
            self.buffer.extend_from_slice(&data);
        }
        Ok(Some(()))
    }

    /// The next bytes; `None` after the last, when the call ended well.
    async fn data(&mut self) -> Result<Option<Bytes>, Error> {
        if let Some(status) = self.status.clone() {
            return status.map(|()| None);
        }
        match std::future::poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => Ok(Some(data)),
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    let status = status_of(&trailers).unwrap_or_else(|| Err(no_status()));
                    self.status = Some(status.clone());
                    status.map(|()| None)
                }
            },
            Some(Err(error)) => Err(transport_error(&error)),
            None => Err(no_status()),
        }
    }

    /// Bytes of the message that comes next, once its prefix is there.
    fn prefix(&self) -> Result<Option<usize>, Error> {
        let Some(mut prefix) = self.buffer.get(..PREFIX_LEN) else { return Ok(None) };
        let compressed = prefix.get_u8();
        let len = prefix.get_u32() as usize;
        if compressed != 0 {
            let text = "grpc: compressed flag set with identity or empty encoding";
            return Err(Error::status(code::INTERNAL, text));
        }
        if len > self.limit {
            let text = format!("grpc: received message larger than max ({len} vs. {})", self.limit);
            return Err(Error::status(code::RESOURCE_EXHAUSTED, text));
        }
        Ok(Some(len))
    }

    fn message(&mut self) -> Result<Option<Bytes>, Error> {
        let Some(len) = self.prefix()? else { return Ok(None) };
        // Nothing is reserved for what is announced: the buffer grows with what comes.
        if self.buffer.len() - PREFIX_LEN < len {
            return Ok(None);
        }
        self.buffer.advance(PREFIX_LEN);
        Ok(Some(self.buffer.split_to(len).freeze()))
    }
}

/// Takes a message in pieces.
pub(crate) trait Intake {
    /// A message of `len` bytes begins; what came before is void.
    fn begin(&mut self, len: usize);

    /// Its next bytes.
    fn piece(&mut self, bytes: &[u8]);
}

/// Decodes a message; its `bytes` fields share the buffer.
pub(crate) fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, Error> {
    M::decode(bytes).map_err(|error| {
        Error::status(code::INTERNAL, format!("grpc: failed to unmarshal the received message: {error}"))
    })
}

fn no_status() -> Error {
    Error::status(code::INTERNAL, "server closed the stream without sending trailers")
}

/// The status among these headers, if there is one.
fn status_of(headers: &HeaderMap) -> Option<Result<(), Error>> {
    let status = headers.get("grpc-status")?;
    let Some(status) = status.to_str().ok().and_then(|text| text.parse::<i32>().ok()) else {
        return Some(Err(Error::status(code::UNKNOWN, format!("transport: malformed grpc-status: {status:?}"))));
    };
    if status == code::OK {
        return Some(Ok(()));
    }
    let message = headers.get("grpc-message").map(|text| percent_decoded(text.as_bytes())).unwrap_or_default();
    Some(Err(Error::status(status, message)))
}

/// Refuses an answer that no gRPC server gave: a proxy's page, say.
fn no_grpc(status: StatusCode, headers: &HeaderMap) -> Result<(), Error> {
    let content_type = headers.get(http::header::CONTENT_TYPE);
    let is_grpc = content_type.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if status == StatusCode::OK && is_grpc {
        return Ok(());
    }
    let code = match status.as_u16() {
        400 => code::INTERNAL,
        401 => code::UNAUTHENTICATED,
        403 => code::PERMISSION_DENIED,
        404 => code::UNIMPLEMENTED,
        429 | 502 | 503 | 504 => code::UNAVAILABLE,
        _ => code::UNKNOWN,
    };
    let reason = status.canonical_reason().unwrap_or("");
    let mut text = format!("unexpected HTTP status code received from server: {} ({reason})", status.as_u16());
    match content_type {
        None => text.push_str("; malformed header: missing HTTP content-type"),
        Some(kind) if !is_grpc => text.push_str(&format!("; transport: received unexpected content-type {kind:?}")),
        Some(_) => {}
    }
    Err(Error::status(code, text))
}

/// `%41` is `A`; a sequence that is none stands for itself.
fn percent_decoded(text: &[u8]) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let hex = |at: usize| text.get(at).and_then(|digit| (*digit as char).to_digit(16));
        if byte == b'%'
            && let (Some(high), Some(low)) = (hex(at + 1), hex(at + 2))
        {
            // Two hexadecimal digits fit a byte.
            out.push((high * 16 + low) as u8);
            at += 3;
        } else {
            out.push(byte);
            at += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// A call that the connection, or the server below gRPC, broke off.
pub(crate) fn transport_error(error: &hyper::Error) -> Error {
    if let Some(cause) = h2_cause(error) {
        if let (true, Some(reason)) = (cause.is_reset() && cause.is_remote(), cause.reason()) {
            let code = match reason {
                h2::Reason::REFUSED_STREAM => code::UNAVAILABLE,
                h2::Reason::CANCEL => code::CANCELED,
                h2::Reason::FLOW_CONTROL_ERROR | h2::Reason::ENHANCE_YOUR_CALM => code::RESOURCE_EXHAUSTED,
                h2::Reason::INADEQUATE_SECURITY => code::PERMISSION_DENIED,
                _ => code::INTERNAL,
            };
            let name = format!("{reason:?}");
            return Error::status(code, format!("stream terminated by RST_STREAM with error code: {name}"));
        }
        if let Some(error) = cause.get_io().filter(|error| error.raw_os_error().is_some()) {
            let text = format!("error reading from server: read: {}", crate::dial::os_text(error));
            return Error::status(code::UNAVAILABLE, text);
        }
    }
    if error.is_timeout() {
        return Error::status(code::UNAVAILABLE, "keepalive ping failed to receive ACK within timeout");
    }
    Error::status(code::UNAVAILABLE, "error reading from server: EOF")
}

/// True if the server says that it has not looked at the request: it may be sent again, whatever it does.
pub(crate) fn is_unprocessed(error: &hyper::Error) -> bool {
    h2_cause(error).is_some_and(|cause| {
        let refused = cause.is_reset() && cause.reason() == Some(h2::Reason::REFUSED_STREAM);
        // A server that shuts down in good order names the last stream it took; ours came after.
        let after_last = cause.is_go_away() && cause.reason() == Some(h2::Reason::NO_ERROR);
        cause.is_remote() && (refused || after_last)
    })
}

fn h2_cause(error: &hyper::Error) -> Option<&h2::Error> {
    let mut cause = error.source();
    while let Some(one) = cause {
        if let Some(found) = one.downcast_ref::<h2::Error>() {
            return Some(found);
        }
        cause = one.source();
    }
    None
}

/// Remaining time as the header `grpc-timeout`: at most eight digits and a unit, never less than there is.
pub(crate) fn timeout_text(left: Duration) -> String {
    const MOST: u128 = 99_999_999;
    let nanos = left.as_nanos();
    for (unit, size) in [('n', 1), ('u', 1_000), ('m', 1_000_000), ('S', 1_000_000_000), ('M', 60_000_000_000)] {
        let count = nanos.div_ceil(size);
        if count <= MOST {
            return format!("{count}{unit}");
        }
    }
    format!("{}H", nanos.div_ceil(3_600_000_000_000).min(MOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_keep_their_digits() {
        let table = [
            (Duration::ZERO, "0n"),
            (Duration::from_nanos(1_500), "1500n"),
            (Duration::from_secs(5), "5000000u"),
            (Duration::from_secs(3600), "3600000m"),
            (Duration::MAX, "99999999H"),
        ];
        for (left, text) in table {
            assert_eq!(timeout_text(left), text);
        }
    }

    #[test]
    fn messages_of_statuses() {
        let table: [(&[u8], &str); 4] =
            [(b"a%20b", "a b"), (b"100%", "100%"), (b"%zz%41", "%zzA"), (b"%e4%bd%a0", "\u{4f60}")];
        for (text, decoded) in table {
            assert_eq!(percent_decoded(text), decoded);
        }
    }

    #[test]
    fn a_message_too_large_is_not_sent() {
        let message = dolmen_proto::etcdserverpb::PutRequest { value: vec![0; 100].into(), ..Default::default() };
        let error = frame(&message, 50).unwrap_err();
        let text = "rpc error: code = ResourceExhausted desc = trying to send message larger than max (102 vs. 50)";
        assert_eq!(error.to_string(), text);
        assert_eq!(frame(&message, 102).unwrap().len(), 107);
    }
}
