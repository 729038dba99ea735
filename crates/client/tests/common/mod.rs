//! A gRPC server in this process that does what a test tells it to: each call is handed to the test's function, which
//! reads messages and answers as it likes. Connections can be cut and the port closed.

#![allow(dead_code)]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use dolmen_client::{Client, Config};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// One call, as the server sees it.
pub struct Call {
    pub path: String,
    pub headers: http::HeaderMap,
    /// How many calls of this path came before.
    pub number: usize,
    messages: Incoming,
    buffer: BytesMut,
    answers: mpsc::UnboundedSender<Answer>,
    connections: Connections,
}

enum Answer {
    Message(Bytes),
    Status(i32, String),
}

impl Call {
    /// The next message; `None` when the client is done.
    pub async fn next<M: Message + Default>(&mut self) -> Option<M> {
        loop {
            if self.buffer.len() >= 5 {
                let len = u32::from_be_bytes(self.buffer[1..5].try_into().unwrap()) as usize;
                if self.buffer.len() >= 5 + len {
                    self.buffer.advance(5);
                    return Some(M::decode(self.buffer.split_to(len)).unwrap());
                }
            }
            let frame = std::future::poll_fn(|cx| Pin::new(&mut self.messages).poll_frame(cx)).await?;
            if let Ok(data) = frame.ok()?.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }

    pub fn send<M: Message>(&self, message: &M) {
        let mut bytes = vec![0];
        bytes.extend((message.encoded_len() as u32).to_be_bytes());
        message.encode(&mut bytes).unwrap();
        let _ = self.answers.send(Answer::Message(bytes.into()));
    }

    /// The status of the call, which ends it.
    pub fn end(&self, code: i32, text: &str) {
        let _ = self.answers.send(Answer::Status(code, text.to_owned()));
    }

    /// An answer and its good end.
    pub fn reply<M: Message>(&self, message: &M) {
        self.send(message);
        self.end(0, "");
    }

    /// Long enough for what was sent to arrive.
    pub async fn flushed(&self) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    /// Cuts every connection, this one too.
    pub fn cut(&self) {
        self.connections.cut();
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

#[derive(Clone, Default)]
struct Connections(Arc<Mutex<Vec<JoinHandle<()>>>>);

impl Connections {
    fn cut(&self) {
        for connection in self.0.lock().unwrap().drain(..) {
            connection.abort();
        }
    }
}

pub struct Fake {
    pub address: SocketAddr,
    accepting: JoinHandle<()>,
    connections: Connections,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    pub async fn start<F, R>(answer: F) -> Fake
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        Fake::start_with(None, answer).await
    }

    /// With `tls`, connections begin with a handshake.
    pub async fn start_with<F, R>(tls: Option<Arc<rustls::ServerConfig>>, answer: F) -> Fake
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Connections::default();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let answer = Arc::new(answer);
        let accepting = tokio::spawn({
            let (connections, calls) = (connections.clone(), Arc::clone(&calls));
            async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let (all, calls, answer) = (connections.clone(), Arc::clone(&calls), Arc::clone(&answer));
                    let service = hyper::service::service_fn(move |request| {
                        let response = take(request, &calls, all.clone(), &*answer);
                        std::future::ready(Ok::<_, Infallible>(response))
                    });
                    let tls = tls.clone();
                    let connection = tokio::spawn(async move {
                        let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        let Some(tls) = tls else {
                            let _ = http.serve_connection(TokioIo::new(stream), service).await;
                            return;
                        };
                        if let Ok(stream) = tokio_rustls::TlsAcceptor::from(tls).accept(stream).await {
                            let _ = http.serve_connection(TokioIo::new(stream), service).await;
                        }
                    });
                    connections.0.lock().unwrap().push(connection);
                }
            }
        });
        Fake { address, accepting, connections, calls }
    }

    /// Cuts all connections; new ones are accepted.
    pub fn cut(&self) {
        self.connections.cut();
    }

    /// Cuts all connections and closes the port.
    pub async fn stop(&mut self) {
        self.accepting.abort();
        let _ = (&mut self.accepting).await;
        self.cut();
        // The client's side notices in its own time; this is well above it.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    /// How many calls whose path ends so have come.
    pub fn count(&self, method: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|path| path.ends_with(method)).count()
    }

    pub fn config(&self) -> Config {
        Config::new([self.address.to_string()])
    }

    pub async fn client(&self) -> Client {
        bounded(Client::connect(self.config()).await.unwrap())
    }
}

/// No test waits longer.
pub fn bounded(client: Client) -> Client {
    client.with_timeout(Some(Duration::from_secs(10)))
}

fn take<F, R>(
    request: http::Request<Incoming>,
    calls: &Mutex<Vec<String>>,
    connections: Connections,
    answer: &F,
) -> http::Response<Answers>
where
    F: Fn(Call) -> R,
    R: Future<Output = ()> + Send + 'static,
{
    let (head, messages) = request.into_parts();
    let path = head.uri.path().to_owned();
    let mut calls = calls.lock().unwrap();
    let number = calls.iter().filter(|earlier| **earlier == path).count();
    calls.push(path.clone());
    let (answers, frames) = mpsc::unbounded_channel();
    let buffer = BytesMut::new();
    let call = Call { path, headers: head.headers, number, messages, buffer, answers, connections };
    tokio::spawn(answer(call));
    let mut response = http::Response::new(Answers(frames));
    response.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    response
}

struct Answers(mpsc::UnboundedReceiver<Answer>);

impl Body for Answers {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|answer| {
            Some(Ok(match answer? {
                Answer::Message(bytes) => Frame::data(bytes),
                Answer::Status(code, text) => {
                    let mut trailers = http::HeaderMap::new();
                    trailers.insert("grpc-status", code.into());
                    trailers.insert("grpc-message", text.parse().unwrap());
                    Frame::trailers(trailers)
                }
            }))
        })
    }
}
