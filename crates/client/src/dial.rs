//! One connection: TCP or a Unix socket, TLS if wanted, HTTP/2.
//!
//! A connection counts only once the server's first HTTP/2 frame is there. Before, a server that wants TLS, or refuses our
//! certificate after a TLS 1.3 handshake, would look like one that took a request and died with it; the outcome of a
//! write would be unknown for no reason.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;

use crate::endpoint::{Address, Endpoint, split_host_port};
use crate::error::{ConnectionError, ConnectionReason};
use crate::tls::handshake_text;
use crate::wire::Outgoing;

/// Bytes of one answer, and of all on a connection, that may be under way unread.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Largest frame we let a server send.
const MAX_FRAME: u32 = 256 << 10;
/// A connection attempt takes no longer.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
/// No pings more often: servers hang up on clients that ping too much.
const MIN_PING_INTERVAL: Duration = Duration::from_secs(10);

/// A connection in use. Clones send over the same one.
#[derive(Clone)]
pub(crate) struct Connection {
    pub sender: http2::SendRequest<Outgoing>,
    /// `http` or `https`, and what is sent as `:authority`.
    pub scheme: &'static str,
    pub authority: Arc<str>,
    /// Both addresses and the kind of security, as Go prints them.
    pub peer: Arc<str>,
}

/// Pings on connections in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pings {
    pub interval: Duration,
    pub timeout: Duration,
}

/// What a handshake needs: the configuration, and the server's name if it is not the endpoint's host.
#[derive(Clone, Debug)]
pub(crate) struct Security {
    pub config: Arc<ClientConfig>,
    pub server_name: Option<String>,
}

struct Failure(ConnectionReason, String);

/// Connects. `security` is given exactly when the endpoint speaks TLS.
pub(crate) async fn dial(
    endpoint: &Endpoint,
    security: Option<Security>,
    pings: Pings,
) -> Result<Connection, ConnectionError> {
    let attempt = tokio::time::timeout(CONNECT_LIMIT, connect(endpoint, security, pings));
    let result = attempt.await.unwrap_or_else(|_| {
        let text = format!("transport: Error while dialing: dial {}: i/o timeout", endpoint.network());
        Err(Failure(ConnectionReason::Timeout, text))
    });
    result.map_err(|Failure(reason, text)| ConnectionError { endpoint: endpoint.text.clone(), reason, text })
}

async fn connect(endpoint: &Endpoint, security: Option<Security>, pings: Pings) -> Result<Connection, Failure> {
    match &endpoint.address {
        Address::Tcp(address) => {
            let stream = connect_tcp(address).await?;
            let addresses = match (stream.peer_addr(), stream.local_addr()) {
                (Ok(peer), Ok(local)) => format!("Addr: '{peer}', LocalAddr: '{local}'"),
                _ => "Addr: <nil>, LocalAddr: <nil>".to_owned(),
            };
            secure(endpoint, stream, addresses, security, pings).await
        }
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(|error| {
                let text = format!("dial unix {}: connect: {}", path.display(), os_text(&error));
                dialing(&error, text)
            })?;
            let addresses = format!("Addr: '{}', LocalAddr: '@'", path.display());
            secure(endpoint, stream, addresses, security, pings).await
        }
    }
}

async fn connect_tcp(address: &str) -> Result<TcpStream, Failure> {
    let plain = |reason, text: String| Failure(reason, format!("transport: Error while dialing: dial tcp: {text}"));
    let (host, port) = split_host_port(address)
        .map_err(|what| plain(ConnectionReason::Configuration, format!("address {address}: {what}")))?;
    let port: u16 =
        port.parse().map_err(|_| plain(ConnectionReason::Configuration, format!("lookup tcp/{port}: unknown port")))?;
    let found: Vec<_> = match tokio::net::lookup_host((host, port)).await {
        Ok(found) => found.collect(),
        Err(_) => return Err(plain(ConnectionReason::UnknownHost, format!("lookup {host}: no such host"))),
    };
    let mut last = plain(ConnectionReason::UnknownHost, format!("lookup {host}: no such host"));
    for one in found {
        match TcpStream::connect(one).await {
            Ok(stream) => {
                // A socket that will not have it is slower, not wrong.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => last = dialing(&error, format!("dial tcp {one}: connect: {}", os_text(&error))),
        }
    }
    Err(last)
}

fn dialing(error: &io::Error, text: String) -> Failure {
    let reason = match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => ConnectionReason::Refused,
        io::ErrorKind::TimedOut => ConnectionReason::Timeout,
        _ => ConnectionReason::Other,
    };
    Failure(reason, format!("transport: Error while dialing: {text}"))
}

async fn secure<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    endpoint: &Endpoint,
    stream: S,
    addresses: String,
    security: Option<Security>,
    pings: Pings,
) -> Result<Connection, Failure> {
    let Some(security) = security else {
        let peer = format!("Peer{{{addresses}, AuthInfo: 'insecure'}}");
        return speak(endpoint, stream, "http", peer, pings).await;
    };
    let handshake =
        |reason, text: String| Failure(reason, format!("transport: authentication handshake failed: {text}"));
    let name = security.server_name.as_deref().unwrap_or(endpoint.host()).to_owned();
    let server_name = ServerName::try_from(name.clone())
        .map_err(|_| handshake(ConnectionReason::Configuration, format!("{name:?} is no name of a server")))?;
    let stream = TlsConnector::from(security.config).connect(server_name, stream).await.map_err(|error| {
        let (reason, text) = tls_text(&error, &name);
        handshake(reason, text)
    })?;
    let peer = format!("Peer{{{addresses}, AuthInfo: 'tls'}}");
    speak(endpoint, stream, "https", peer, pings).await
}

fn tls_text(error: &io::Error, name: &str) -> (ConnectionReason, String) {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(error) => handshake_text(error, name),
        None if error.kind() == io::ErrorKind::UnexpectedEof => (ConnectionReason::Other, "EOF".to_owned()),
        None => (ConnectionReason::Other, os_text(error)),
    }
}

async fn speak<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    endpoint: &Endpoint,
    stream: S,
    scheme: &'static str,
    peer: String,
    pings: Pings,
) -> Result<Connection, Failure> {
    let (greeted, greeting) = oneshot::channel();
    let stream = Greeted { stream, head: Vec::with_capacity(HEAD_LEN), greeted: Some(greeted) };
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME);
    if !pings.interval.is_zero() {
        builder.keep_alive_interval(pings.interval.max(MIN_PING_INTERVAL)).keep_alive_timeout(pings.timeout);
    }
    let preface = |reason, text: String| Failure(reason, format!("error reading server preface: {text}"));
    let (sender, connection) = builder
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| preface(ConnectionReason::Other, error.to_string()))?;
    // Its errors reach the calls on it one by one.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    match greeting.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let (reason, text) = tls_text(&error, endpoint.host());
            return Err(preface(reason, text));
        }
        Err(_) => return Err(preface(ConnectionReason::Other, "EOF".to_owned())),
    }
    Ok(Connection { sender, scheme, authority: endpoint.authority.as_str().into(), peer: peer.into() })
}

/// A stream that tells when the server has begun its first frame, SETTINGS, or sent something else instead.
struct Greeted<S> {
    stream: S,
    /// The first bytes read.
    head: Vec<u8>,
    greeted: Option<oneshot::Sender<io::Result<()>>>,
}

/// Bytes of the head of a frame up to its type, which comes last of them.
const HEAD_LEN: usize = 4;
const SETTINGS: u8 = 4;

impl<S> Greeted<S> {
    /// What the server's first bytes, together with these, say; `None`: too few to tell.
    fn verdict(&mut self, read: &[u8]) -> Option<io::Result<()>> {
        if read.is_empty() {
            return Some(Err(io::Error::from(io::ErrorKind::UnexpectedEof)));
        }
        let missing = HEAD_LEN - self.head.len();
        self.head.extend(read.iter().take(missing));
        match self.head.get(HEAD_LEN - 1)? {
            &SETTINGS => Some(Ok(())),
            _ => Some(Err(io::Error::new(io::ErrorKind::InvalidData, "not an HTTP/2 server"))),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Greeted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if self.greeted.is_none() {
            return polled;
        }
        let news = match &polled {
            Poll::Pending => None,
            Poll::Ready(Err(error)) => Some(Err(copy_error(error))),
            Poll::Ready(Ok(())) => self.verdict(buf.filled().get(before..).unwrap_or_default()),
        };
        if let Some(news) = news
            && let Some(greeted) = self.greeted.take()
        {
            // Nobody waits any more: the attempt took too long.
            let _ = greeted.send(news);
        }
        polled
    }
}

/// An error of the same meaning: the original goes on to HTTP/2.
fn copy_error(error: &io::Error) -> io::Error {
    if let Some(code) = error.raw_os_error() {
        return io::Error::from_raw_os_error(code);
    }
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(inner) => io::Error::new(error.kind(), inner.clone()),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Greeted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// An error of the system as Go spells it: `connection refused`, not `Connection refused (os error 111)`.
pub(crate) fn os_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = text.chars();
    match letters.next() {
        Some(first) if error.raw_os_error().is_some() => first.to_lowercase().chain(letters).collect(),
        _ => text.to_owned(),
    }
}
