//! Sockets: dialling, write timeouts, and bodies read as bytes on demand.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use dolmen_net::{ClientTls, HANDSHAKE_TIMEOUT, Stream};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UnixStream, lookup_host};
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsConnector;

use crate::codec::{ByteSource, DecodeError};
use crate::url::PeerUrl;

/// How long a peer connection may bring nothing while something is due, and how long a write may wait. Streams carry a
/// heartbeat every third of it.
pub(crate) const IO_TIMEOUT: Duration = Duration::from_secs(5);

/// A connected socket, plain or not.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Fails a write or flush that has waited for [`IO_TIMEOUT`]: the other side has stopped reading.
pub(crate) struct WriteTimeout<T> {
    inner: T,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<T> WriteTimeout<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self { inner, waiting: None }
    }

    fn watch<R>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if result.is_ready() {
            self.waiting = None;
            return result;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(IO_TIMEOUT)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "write timed out")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WriteTimeout<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.watch(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.watch(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_flush(cx);
        self.watch(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.watch(cx, result)
    }
}

/// A stream of which some bytes have been read already.
pub(crate) struct Prefixed<T> {
    ahead: Bytes,
    inner: T,
}

impl<T> Prefixed<T> {
    pub(crate) fn new(ahead: Vec<u8>, inner: T) -> Self {
        Self { ahead: ahead.into(), inner }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Prefixed<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buf);
        }
        let len = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead.split_to(len));
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Prefixed<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Connects to peer URLs.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub(crate) timeout: Duration,
    /// For `https` and `unixs`; without it those URLs cannot be dialled.
    pub(crate) tls: Option<ClientTls>,
    /// Dial from this address.
    pub(crate) local_addr: Option<IpAddr>,
}

impl Dialer {
    /// A connection with TCP_NODELAY and, where the URL asks, TLS on it.
    pub(crate) async fn dial(&self, url: &PeerUrl) -> io::Result<Box<dyn Io>> {
        let timed_out = |what| move |_| io::Error::new(io::ErrorKind::TimedOut, what);
        let plain = timeout(self.timeout, self.connect(url)).await.map_err(timed_out("dial timed out"))??;
        if !url.tls {
            return Ok(Box::new(WriteTimeout::new(plain)));
        }
        let Some(tls) = &self.tls else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no TLS configuration for an https peer URL"));
        };
        let name = tls.server_name.as_deref().unwrap_or(&url.host).to_owned();
        let name = ServerName::try_from(name).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let connecting = TlsConnector::from(Arc::clone(&tls.config)).connect(name, plain);
        let secured = timeout(HANDSHAKE_TIMEOUT, connecting).await.map_err(timed_out("TLS handshake timed out"))??;
        Ok(Box::new(WriteTimeout::new(secured)))
    }

    async fn connect(&self, url: &PeerUrl) -> io::Result<Stream> {
        if url.unix {
            return Ok(Stream::Unix(UnixStream::connect(&url.address).await?));
        }
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in lookup_host(&url.address).await? {
            let connected = match self.local_addr {
                None => TcpStream::connect(address).await,
                Some(local) if local.is_ipv4() == address.is_ipv4() => {
                    let socket = if local.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
                    socket.bind((local, 0).into())?;
                    socket.connect(address).await
                }
                Some(_) => continue,
            };
            match connected {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Stream::Tcp(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// A body as a [`ByteSource`]. Every wait for more is bounded by [`IO_TIMEOUT`].
pub(crate) struct BodyReader {
    body: Incoming,
    current: Bytes,
    /// Bytes that came from the connection so far.
    pub(crate) received: u64,
}

/// How long the rest of a refused body is read.
const DISCARD_TIME: Duration = Duration::from_secs(1);
/// Memory set aside before any byte has come; more only as bytes come.
const FIRST_RESERVE: usize = 64 << 10;

impl BodyReader {
    pub(crate) fn new(body: Incoming) -> Self {
        Self { body, current: Bytes::new(), received: 0 }
    }

    /// The next bytes of the body, whatever comes; `None` at its end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, DecodeError> {
        if !self.current.is_empty() {
            return Ok(Some(std::mem::take(&mut self.current)));
        }
        loop {
            let frame = timeout(IO_TIMEOUT, self.body.frame()).await.map_err(|_| DecodeError::TimedOut(IO_TIMEOUT))?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|error| DecodeError::Read(error.into()))?;
            if let Ok(data) = frame.into_data()
                && !data.is_empty()
            {
                self.received += data.len() as u64;
                return Ok(Some(data));
            }
        }
    }

    /// Everything to the end.
    ///
    /// # Errors
    /// `TooLong` once more than `limit` bytes have come.
    pub(crate) async fn read_to_end(&mut self, limit: u64) -> Result<Bytes, DecodeError> {
        let Some(mut first) = self.chunk().await? else { return Ok(Bytes::new()) };
        let mut more = match self.chunk().await? {
            None if first.len() as u64 <= limit => return Ok(first),
            None => return Err(DecodeError::TooLong(first.len() as u64)),
            Some(more) => more,
        };
        let mut all = BytesMut::with_capacity(FIRST_RESERVE.max(first.len() + more.len()));
        all.extend_from_slice(&std::mem::take(&mut first));
        loop {
            all.extend_from_slice(&more);
            if all.len() as u64 > limit {
                return Err(DecodeError::TooLong(all.len() as u64));
            }
            match self.chunk().await? {
                Some(next) => more = next,
                None => return Ok(all.freeze()),
            }
        }
    }

    /// Reads on without keeping anything, up to `limit` more bytes and not for long: a sender whose connection breaks while it
    /// still writes does not read the answer that says why.
    pub(crate) async fn discard(&mut self, limit: u64) {
        let until = self.received.saturating_add(limit);
        let rest = async { while self.received < until && matches!(self.chunk().await, Ok(Some(_))) {} };
        // Who is too slow reads no answer; that was its own doing.
        let _late = timeout(DISCARD_TIME, rest).await;
    }
}

impl ByteSource for BodyReader {
    async fn u64(&mut self) -> Result<u64, DecodeError> {
        if self.current.len() >= 8 {
            return Ok(self.current.get_u64());
        }
        Ok(self.take(8).await?.get_u64())
    }

    async fn take(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        if self.current.is_empty() && len > 0 {
            self.current = self.chunk().await?.ok_or(DecodeError::Ended)?;
        }
        if self.current.len() >= len {
            return Ok(self.current.split_to(len));
        }
        let mut gathered = BytesMut::with_capacity(len.min(FIRST_RESERVE.max(2 * self.current.len())));
        gathered.extend_from_slice(&std::mem::take(&mut self.current));
        while gathered.len() < len {
            let mut more = self.chunk().await?.ok_or(DecodeError::Ended)?;
            let part = more.split_to(more.len().min(len - gathered.len()));
            gathered.extend_from_slice(&part);
            self.current = more;
        }
        Ok(gathered.freeze())
    }
}
