//! gRPC over HTTP/2, as little of it as a load generator needs: unary calls, streams, and honest failures.
//!
//! A message travels behind five bytes: a flag for compression, never set here, and its length. A call has failed when
//! its `grpc-status`, in the trailers or in headers that stand alone, is not 0.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version, header};
use prost::Message;
use tokio::net::TcpStream;

/// Bytes before a message.
pub const PREFIX: usize = 5;

/// Windows so wide that flow control never waits: the server's sending is to be measured, not our permission.
const STREAM_WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 256 << 20;

/// Why a call has no answer.
#[derive(Debug)]
pub enum Failure {
    /// The server said so.
    Status(u32, String),
    /// The connection or the protocol.
    Transport(String),
    /// An answer that cannot be right.
    Answer(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(code, text) => write!(f, "grpc-status {code}: {text}"),
            Self::Transport(why) => write!(f, "transport: {why}"),
            Self::Answer(why) => write!(f, "wrong answer: {why}"),
        }
    }
}

impl From<h2::Error> for Failure {
    fn from(error: h2::Error) -> Self {
        Self::Transport(error.to_string())
    }
}

/// A message behind its prefix.
pub fn framed(message: &impl Message) -> BytesMut {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX + length);
    frame.put_u8(0);
    // No message here comes near 4 GiB.
    frame.put_u32(length as u32);
    message.encode_raw(&mut frame);
    frame
}

/// One method at one address, ready to be called.
#[derive(Clone)]
pub struct Endpoint {
    uri: Uri,
    headers: HeaderMap,
}

/// A connection; clones share it.
#[derive(Clone)]
pub struct Connection {
    send: SendRequest<Bytes>,
    address: String,
}

impl Connection {
    /// # Errors
    /// Nobody listens there, or not for HTTP/2.
    pub async fn open(address: &str) -> Result<Self, Failure> {
        let failed = |error: &dyn fmt::Display| Failure::Transport(format!("{address}: {error}"));
        let socket = TcpStream::connect(address).await.map_err(|error| failed(&error))?;
        socket.set_nodelay(true).map_err(|error| failed(&error))?;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
        let (send, connection) = builder.handshake::<_, Bytes>(socket).await.map_err(|error| failed(&error))?;
        tokio::task::spawn_local(async move {
            // Its streams see the same error and report it.
            let _ended = connection.await;
        });
        Ok(Self { send, address: address.to_owned() })
    }

    /// Prepares a method, such as `/etcdserverpb.KV/Put`.
    ///
    /// # Errors
    /// The address or the path is none.
    pub fn method(&self, path: &str) -> Result<Endpoint, Failure> {
        let uri = format!("http://{}{path}", self.address);
        let uri = uri.parse().map_err(|error| Failure::Transport(format!("{uri}: {error}")))?;
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        Ok(Endpoint { uri, headers })
    }

    async fn begin(&mut self, method: &Endpoint) -> Result<(h2::client::ResponseFuture, SendStream<Bytes>), Failure> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = method.uri.clone();
        *request.headers_mut() = method.headers.clone();
        std::future::poll_fn(|context| self.send.poll_ready(context)).await?;
        Ok(self.send.send_request(request, false)?)
    }

    /// Calls with a framed message and returns the length of the answer, without its prefix. `answer`, when given,
    /// receives the answer itself.
    ///
    /// # Errors
    /// Any but exactly one message and status 0.
    pub async fn unary(
        &mut self,
        method: &Endpoint,
        message: Bytes,
        mut answer: Option<&mut BytesMut>,
    ) -> Result<usize, Failure> {
        let (response, mut send) = self.begin(method).await?;
        send.send_data(message, true)?;
        let (head, mut body) = response.await?.into_parts();
        status(&head.headers, true)?;
        let (mut promised, mut received) = (None, 0);
        while let Some(chunk) = body.data().await {
            let mut chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            if promised.is_none() {
                let Some(length) = chunk.get(1..PREFIX).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()) else {
                    return Err(Failure::Answer("a message prefix in pieces".into()));
                };
                promised = Some(u32::from_be_bytes(length) as usize);
                chunk.advance(PREFIX);
            }
            received += chunk.len();
            if let Some(answer) = &mut answer {
                answer.extend_from_slice(&chunk);
            }
        }
        let trailers = body.trailers().await?;
        status(trailers.as_ref().unwrap_or(&head.headers), false)?;
        match promised {
            Some(promised) if promised == received => Ok(received),
            promised => Err(Failure::Answer(format!("{received} bytes of {promised:?}"))),
        }
    }

    /// Opens a stream with its first message, and waits for the server to answer at all.
    ///
    /// # Errors
    /// The connection is gone, or the server refuses.
    pub async fn stream(&mut self, method: &Endpoint, first: Bytes) -> Result<(SendStream<Bytes>, Messages), Failure> {
        let (response, mut send) = self.begin(method).await?;
        send.send_data(first, false)?;
        let (head, body) = response.await?.into_parts();
        status(&head.headers, true)?;
        Ok((send, Messages { body, waiting: BytesMut::new() }))
    }
}

/// `early`: these are headers, which carry a status only when nothing follows.
fn status(headers: &HeaderMap, early: bool) -> Result<(), Failure> {
    let Some(code) = headers.get("grpc-status") else {
        return if early { Ok(()) } else { Err(Failure::Answer("no grpc-status".into())) };
    };
    match code.to_str().ok().and_then(|code| code.parse().ok()) {
        Some(0) => Ok(()),
        Some(code) => {
            let text = headers.get("grpc-message").map(|text| String::from_utf8_lossy(text.as_bytes()).into_owned());
            Err(Failure::Status(code, text.unwrap_or_default()))
        }
        None => Err(Failure::Answer(format!("grpc-status {code:?}"))),
    }
}

/// The messages of a stream, one after another.
pub struct Messages {
    body: RecvStream,
    waiting: BytesMut,
}

impl Messages {
    /// The next message, without its prefix.
    ///
    /// # Errors
    /// The stream has ended, in whatever way: here streams live until their client is done with them.
    pub async fn next(&mut self) -> Result<Bytes, Failure> {
        loop {
            if let Some(message) = take(&mut self.waiting) {
                return Ok(message);
            }
            match self.body.data().await {
                Some(chunk) => {
                    let chunk = chunk?;
                    self.body.flow_control().release_capacity(chunk.len())?;
                    self.waiting.extend_from_slice(&chunk);
                }
                None => {
                    let trailers = self.body.trailers().await?;
                    status(&trailers.unwrap_or_default(), false)?;
                    return Err(Failure::Answer("the server ended the stream".into()));
                }
            }
        }
    }
}

/// Takes a message off the front, when it is whole.
fn take(waiting: &mut BytesMut) -> Option<Bytes> {
    let length = waiting.get(1..PREFIX).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok())?;
    let end = PREFIX + u32::from_be_bytes(length) as usize;
    if waiting.len() < end {
        return None;
    }
    let mut message = waiting.split_to(end).freeze();
    message.advance(PREFIX);
    Some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_where_they_end() {
        let mut waiting = BytesMut::new();
        for byte in [0u8, 0, 0, 0, 2, 7, 8, 0, 0, 0, 0] {
            assert!(take(&mut waiting).is_none());
            waiting.put_u8(byte);
            if waiting.len() == PREFIX + 2 {
                assert_eq!(take(&mut waiting).as_deref(), Some(&[7u8, 8][..]));
            }
        }
        waiting.put_slice(&[0, 9]);
        assert_eq!(take(&mut waiting).as_deref(), Some(&[][..]));
        assert_eq!(&waiting[..], [9]);
    }

    #[test]
    fn a_status_is_believed_only_when_it_is_0() {
        let mut headers = HeaderMap::new();
        assert!(status(&headers, true).is_ok() && status(&headers, false).is_err());
        headers.insert("grpc-status", HeaderValue::from_static("0"));
        assert!(status(&headers, false).is_ok());
        headers.insert("grpc-status", HeaderValue::from_static("8"));
        headers.insert("grpc-message", HeaderValue::from_static("full"));
        assert!(matches!(status(&headers, true), Err(Failure::Status(8, text)) if text == "full"));
    }
}
