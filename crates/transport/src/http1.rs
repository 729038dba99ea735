//! Bodies and answers as etcd's HTTP server writes them, and a client that keeps a few connections.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::codec::{DecodeError, Segments};
use crate::net::{BodyReader, Dialer};
use crate::stream::StreamBody;
use crate::url::PeerUrl;

/// What we send: as an answer or as a request.
pub(crate) enum Outgoing {
    Full(Bytes),
    /// `head`, then what the channel brings; `left` bytes in all.
    Channel {
        head: Segments,
        receiver: mpsc::Receiver<io::Result<Bytes>>,
        left: u64,
    },
    /// The endless body of one of our streams.
    Stream(StreamBody),
}

impl Outgoing {
    pub(crate) fn empty() -> Self {
        Self::Full(Bytes::new())
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match &mut *self {
            Self::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Channel { head, receiver, left } => {
                let part = match head.pop() {
                    Some(part) => Some(Ok(part)),
                    None => std::task::ready!(receiver.poll_recv(cx)),
                };
                Poll::Ready(match part {
                    Some(Ok(part)) => {
                        // hyper checks the sum against the content length; here it only counts down to the end.
                        *left = left.saturating_sub(part.len() as u64);
                        Some(Ok(Frame::data(part)))
                    }
                    Some(Err(error)) => Some(Err(error)),
                    None if *left > 0 => {
                        Some(Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the body ended early")))
                    }
                    None => None,
                })
            }
            Self::Stream(stream) => stream.poll_part(cx).map(|part| part.map(|part| Ok(Frame::data(part)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_empty(),
            Self::Channel { .. } | Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Channel { left, .. } => SizeHint::with_exact(*left),
            Self::Stream(_) => SizeHint::new(),
        }
    }
}

/// An answer with a body of `content_type`.
pub(crate) fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Outgoing> {
    let mut response = Response::new(Outgoing::Full(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// An error as Go's `http.Error` writes it: the text, a line feed, and two headers.
pub(crate) fn error(status: StatusCode, text: &str) -> Response<Outgoing> {
    let mut response = answer(status, "text/plain; charset=utf-8", format!("{text}\n"));
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    response
}

/// An answer without a body.
pub(crate) fn no_content() -> Response<Outgoing> {
    let mut response = Response::new(Outgoing::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// Why a request to a peer has no answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("cannot reach {url}")]
    Dial { url: String, source: io::Error },
    #[error("request to {url} failed")]
    Http { url: String, source: hyper::Error },
    #[error("request to {url} timed out")]
    TimedOut { url: String },
    #[error("cannot read the answer of {url}")]
    Body { url: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// The answer is not what the endpoint gives.
    #[error("unexpected answer {status} of {url}: {body}")]
    Unexpected { url: String, status: u16, body: String },
}

impl RequestError {
    /// Whether nobody listens where it was sent.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Dial { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
    }
}

/// An answer read to its end.
#[derive(Clone, Debug)]
pub struct PeerResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// One request, as often as it must be sent.
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Bytes of answer read at most.
    pub(crate) limit: u64,
    /// For the whole of it, a dial included.
    pub(crate) timeout: Duration,
}

/// Idle connections kept for one address. More than are used at once would only age.
const MAX_IDLE: usize = 4;

/// An HTTP/1.1 client.
pub(crate) struct HttpClient {
    dialer: Dialer,
    idle: Mutex<BTreeMap<String, Vec<SendRequest<Outgoing>>>>,
}

impl HttpClient {
    pub(crate) fn new(dialer: Dialer) -> Arc<Self> {
        Arc::new(Self { dialer, idle: Mutex::new(BTreeMap::new()) })
    }

    pub(crate) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// Sends a request over a connection of its own and returns with the head of the answer.
    pub(crate) async fn open(
        &self,
        url: &PeerUrl,
        request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, RequestError> {
        let mut sender = self.connect(url).await?;
        let sent = sender.send_request(request).await;
        sent.map_err(|source| RequestError::Http { url: url.as_str().into(), source })
    }

    /// Sends a request and reads the whole answer.
    pub(crate) async fn call(&self, url: &PeerUrl, call: Call<'_>) -> Result<PeerResponse, RequestError> {
        let limit = call.timeout;
        let timed_out = |_| RequestError::TimedOut { url: url.as_str().into() };
        timeout(limit, self.call_within(url, call)).await.map_err(timed_out)?
    }

    async fn call_within(&self, url: &PeerUrl, call: Call<'_>) -> Result<PeerResponse, RequestError> {
        // A kept connection may have been closed on the other side; that says nothing about the peer. But what was sent
        // may have been heard, and a proposal heard twice is done twice.
        while let Some(mut sender) = self.take_idle(url) {
            match sender.try_send_request(build(url, &call)).await {
                Ok(response) => return self.finish(url, sender, response, call.limit).await,
                Err(mut error) => {
                    if error.take_message().is_none() && call.method != Method::GET {
                        return Err(RequestError::Http { url: url.as_str().into(), source: error.into_error() });
                    }
                }
            }
        }
        let mut sender = self.connect(url).await?;
        let sent = sender.send_request(build(url, &call)).await;
        let response = sent.map_err(|source| RequestError::Http { url: url.as_str().into(), source })?;
        self.finish(url, sender, response, call.limit).await
    }

    async fn finish(
        &self,
        url: &PeerUrl,
        sender: SendRequest<Outgoing>,
        response: Response<Incoming>,
        limit: u64,
    ) -> Result<PeerResponse, RequestError> {
        let (head, body) = response.into_parts();
        let read = BodyReader::new(body).read_to_end(limit).await;
        let body =
            read.map_err(|source: DecodeError| RequestError::Body { url: url.as_str().into(), source: source.into() })?;
        let mut idle = self.idle.lock();
        let idle = idle.entry(url.as_str().into()).or_default();
        if !sender.is_closed() && idle.len() < MAX_IDLE {
            idle.push(sender);
        }
        Ok(PeerResponse { status: head.status, headers: head.headers, body })
    }

    fn take_idle(&self, url: &PeerUrl) -> Option<SendRequest<Outgoing>> {
        let mut idle = self.idle.lock();
        let list = idle.get_mut(url.as_str())?;
        while let Some(sender) = list.pop() {
            if sender.is_ready() {
                return Some(sender);
            }
        }
        idle.remove(url.as_str());
        None
    }

    async fn connect(&self, url: &PeerUrl) -> Result<SendRequest<Outgoing>, RequestError> {
        let dialled = self.dialer.dial(url).await;
        let io = dialled.map_err(|source| RequestError::Dial { url: url.as_str().into(), source })?;
        let (sender, connection) = http1::handshake(TokioIo::new(io))
            .await
            .map_err(|source| RequestError::Http { url: url.as_str().into(), source })?;
        tokio::spawn(async move {
            // Whoever holds the sender or the body sees the same error.
            let _ = connection.await;
        });
        Ok(sender)
    }
}

fn build(url: &PeerUrl, call: &Call<'_>) -> Request<Outgoing> {
    request(url, call.method.clone(), call.path, call.headers.clone(), Outgoing::Full(call.body.clone()))
}

/// A request for `path`, which must be a valid one.
pub(crate) fn request(
    url: &PeerUrl,
    method: Method,
    path: &str,
    headers: HeaderMap,
    body: Outgoing,
) -> Request<Outgoing> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().unwrap_or_default();
    *request.headers_mut() = headers;
    request.headers_mut().insert(HOST, crate::version::value(url.host_header()));
    request
}
