//! What the first bytes of a connection say about it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use dolmen_http2::PREFACE;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// The first byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;
/// How long a connection may stay without saying what it is.
const SNIFF_TIMEOUT: Duration = Duration::from_secs(120);

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tls,
    Http2,
    /// HTTP/1, or something that is nothing: its parser will say.
    Http1,
}

/// Tells the protocol from the first bytes, `None` when more are needed.
fn recognize(bytes: &[u8]) -> Option<Protocol> {
    if *bytes.first()? == TLS_HANDSHAKE {
        return Some(Protocol::Tls);
    }
    let compared = bytes.len().min(PREFACE.len());
    if bytes[..compared] != PREFACE[..compared] {
        Some(Protocol::Http1)
    } else if compared == PREFACE.len() {
        Some(Protocol::Http2)
    } else {
        None
    }
}

/// A stream some of whose bytes have been read ahead.
pub struct Rewind<S> {
    inner: S,
    /// Bytes to be read again, from `at` on.
    ahead: Vec<u8>,
    at: usize,
}

impl<S> Rewind<S> {
    pub fn new(inner: S) -> Self {
        Self::ahead(inner, Vec::new())
    }

    /// A stream whose first bytes were read from it before.
    pub fn ahead(inner: S, ahead: Vec<u8>) -> Self {
        Self { inner, ahead, at: 0 }
    }

    /// Undoes [`Rewind::ahead`], before anything was read but by [`Rewind::sniff`].
    pub fn into_parts(self) -> (S, Vec<u8>) {
        (self.inner, self.ahead)
    }
}

impl<S: AsyncRead + Unpin> Rewind<S> {
    /// Reads until the protocol is known; what was read will be read again.
    ///
    /// # Errors
    /// The connection breaks, ends, or keeps silent for too long.
    pub async fn sniff(&mut self) -> io::Result<Protocol> {
        let sniffing = async {
            let mut buf = [0; PREFACE.len()];
            loop {
                if let Some(protocol) = recognize(&self.ahead) {
                    return Ok(protocol);
                }
                let wanted = PREFACE.len() - self.ahead.len();
                let read = self.inner.read(&mut buf[..wanted]).await?;
                if read == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.ahead.extend_from_slice(&buf[..read]);
            }
        };
        tokio::time::timeout(SNIFF_TIMEOUT, sniffing).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewind<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let ahead = &this.ahead[this.at..];
        if ahead.is_empty() {
            return Pin::new(&mut this.inner).poll_read(cx, buf);
        }
        let count = ahead.len().min(buf.remaining());
        buf.put_slice(&ahead[..count]);
        this.at += count;
        if this.at == this.ahead.len() {
            this.ahead = Vec::new();
            this.at = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewind<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_told_by_as_few_bytes_as_possible() {
        assert_eq!(recognize(b""), None);
        assert_eq!(recognize(&[0x16]), Some(Protocol::Tls));
        assert_eq!(recognize(b"P"), None);
        assert_eq!(recognize(b"PRI * HTTP/2.0\r\n"), None);
        assert_eq!(recognize(PREFACE), Some(Protocol::Http2));
        assert_eq!(recognize(b"PUT"), Some(Protocol::Http1));
        assert_eq!(recognize(b"G"), Some(Protocol::Http1));
        assert_eq!(recognize(&[0xff, 0x00]), Some(Protocol::Http1));
    }

    #[tokio::test]
    async fn what_was_sniffed_is_read_again() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut rewind = Rewind::new(server);
        tokio::io::AsyncWriteExt::write_all(&mut client, b"POST / HTTP/1.1\r\n").await.unwrap();
        assert_eq!(rewind.sniff().await.unwrap(), Protocol::Http1);
        let mut text = [0; 17];
        rewind.read_exact(&mut text).await.unwrap();
        assert_eq!(&text, b"POST / HTTP/1.1\r\n");
        drop(client);
        let mut rest = Vec::new();
        assert_eq!(rewind.read_to_end(&mut rest).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_connection_that_ends_before_it_begins_is_an_error() {
        let (client, server) = tokio::io::duplex(64);
        drop(client);
        assert!(Rewind::new(server).sniff().await.is_err());
    }
}
