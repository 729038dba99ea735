//! A gRPC client in a page, so that what is on the wire can be looked at.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// What a call ended with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    pub code: u32,
    pub message: String,
}

/// Messages to send; the call's sending side closes when the sender is dropped.
pub struct Requests(mpsc::UnboundedReceiver<Bytes>);

impl http_body::Body for Requests {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|data| data.map(|data| Ok(Frame::data(data))))
    }
}

#[derive(Clone)]
pub struct Client(http2::SendRequest<Requests>);

pub fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.len() as u32);
    frame.extend_from_slice(message);
    frame.freeze()
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap()).await
    }

    /// One that takes no more of an answer than a few bytes unless it is asked to.
    pub async fn connect_narrow(address: SocketAddr) -> Self {
        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let narrow = http2::Builder::new(TokioExecutor::new()).initial_stream_window_size(1000).handshake(stream).await;
        let (sender, connection) = narrow.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    pub async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    /// Sends raw pieces of body and returns the response.
    pub async fn raw(&self, path: &str, headers: &[(&str, &str)], pieces: Vec<Bytes>) -> Response<Incoming> {
        let (sender, receiver) = mpsc::unbounded_channel();
        for piece in pieces {
            sender.send(piece).unwrap();
        }
        drop(sender);
        self.send(path, headers, receiver).await
    }

    async fn send(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        receiver: mpsc::UnboundedReceiver<Bytes>,
    ) -> Response<Incoming> {
        let mut request = Request::post(format!("http://localhost{path}"));
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/grpc");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Requests(receiver)).unwrap();
        let mut sender = self.0.clone();
        sender.ready().await.unwrap();
        sender.send_request(request).await.unwrap()
    }

    pub async fn unary<A: Message + Default>(&self, path: &str, request: &impl Message) -> Result<A, Failed> {
        self.unary_with(path, &[], request).await
    }

    pub async fn unary_with<A: Message + Default>(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        request: &impl Message,
    ) -> Result<A, Failed> {
        let response = self.raw(path, headers, vec![framed(&request.encode_to_vec())]).await;
        assert_eq!(response.status(), 200);
        let mut answers = Answers::new(response);
        let answer = answers.next::<A>().await;
        answers.end().await?;
        Ok(answer.expect("an answer before an OK"))
    }

    pub async fn stream(&self, path: &str, headers: &[(&str, &str)]) -> (mpsc::UnboundedSender<Bytes>, Answers) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let response = self.send(path, headers, receiver).await;
        assert_eq!(response.status(), 200);
        (sender, Answers::new(response))
    }
}

/// The answers of a call and what it ended with.
pub struct Answers {
    head: HeaderMap,
    body: Incoming,
    buf: BytesMut,
    trailers: Option<HeaderMap>,
}

impl Answers {
    pub fn new(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        assert_eq!(head.headers["content-type"], "application/grpc");
        Self { head: head.headers, body, buf: BytesMut::new(), trailers: None }
    }

    pub async fn next<A: Message + Default>(&mut self) -> Option<A> {
        loop {
            if self.buf.len() >= 5 {
                assert_eq!(self.buf[0], 0);
                let len = u32::from_be_bytes(self.buf[1..5].try_into().unwrap()) as usize;
                if self.buf.len() >= 5 + len {
                    self.buf.advance(5);
                    return Some(A::decode(self.buf.split_to(len)).unwrap());
                }
            }
            match self.frame().await? {
                Ok(data) => self.buf.extend_from_slice(&data),
                Err(trailers) => {
                    self.trailers = Some(trailers);
                    return None;
                }
            }
        }
    }

    async fn frame(&mut self) -> Option<Result<Bytes, HeaderMap>> {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await?;
        Some(frame.unwrap().into_data().map_err(|frame| frame.into_trailers().unwrap()))
    }

    /// Waits for the end, without further answers.
    pub async fn end(mut self) -> Result<(), Failed> {
        while self.trailers.is_none() {
            match self.frame().await {
                Some(Ok(data)) => panic!("an answer too many: {data:?}"),
                Some(Err(trailers)) => self.trailers = Some(trailers),
                None => break,
            }
        }
        // A call that fails at once has its status in the head.
        let trailers = self.trailers.as_ref().unwrap_or(&self.head);
        let code = trailers["grpc-status"].to_str().unwrap().parse().unwrap();
        if code == 0 {
            return Ok(());
        }
        let message = trailers.get("grpc-message").map_or("", |text| text.to_str().unwrap());
        Err(Failed { code, message: message.into() })
    }
}

/// A plain HTTP/1 request.
pub async fn http1(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> (u16, HeaderMap, String) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", "localhost");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(String::new()).unwrap();
    let (head, mut body) = sender.send_request(request).await.unwrap().into_parts();
    let mut text = Vec::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        if let Ok(data) = frame.unwrap().into_data() {
            text.extend_from_slice(&data);
        }
    }
    (head.status.as_u16(), head.headers, String::from_utf8(text).unwrap())
}
