//! TLS handshakes on a listening port: bounded in time, and a line in the log for each that fails, with etcd's message and
//! fields, which operators look for.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dolmen_tls::Certificate;
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::field::debug;

use crate::san;
use crate::tls::Port;

/// How long a TLS handshake may take.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Lines about rejected connections of one port a second; the next one says how many were left out.
const LINES_A_SECOND: u32 = 20;

/// The listening side of TLS on one port.
#[derive(Clone, Debug)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    port: Port,
    /// Whether a client's certificate is checked against its address.
    check_client_san: bool,
    complaints: Arc<Mutex<Complaints>>,
}

impl ServerTls {
    pub(crate) fn new(config: ServerConfig, port: Port, check_client_san: bool) -> Self {
        Self { config: Arc::new(config), port, check_client_san, complaints: Arc::default() }
    }

    /// A client port with a configuration from elsewhere. Its ALPN protocols should be `h2` and `http/1.1`.
    pub fn from_config(config: ServerConfig) -> Self {
        Self::new(config, Port::Client, false)
    }

    /// Takes a connection through its handshake. `None`: it was rejected, and the log says why.
    pub async fn accept<S>(&self, io: S, remote: Option<SocketAddr>) -> Option<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut hello = None;
        let outcome = match timeout(HANDSHAKE_TIMEOUT, self.shake_hands(io, &mut hello)).await {
            Ok(Ok(stream)) => self.check(stream, remote).await,
            Ok(Err(error)) => Err(Rejection { why: words(&error), certificate: None }),
            Err(_) => Err(Rejection { why: "i/o timeout".into(), certificate: None }),
        };
        outcome.map_err(|rejection| self.complain(remote, hello.as_deref().unwrap_or_default(), &rejection)).ok()
    }

    /// Says in the log that a connection was not taken, for a reason found before any handshake.
    pub fn reject(&self, remote: Option<SocketAddr>, why: &str) {
        self.complain(remote, "", &Rejection { why: why.into(), certificate: None });
    }

    /// `server_name` is set to what the client calls us, once that is known.
    async fn shake_hands<S>(&self, io: S, server_name: &mut Option<String>) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let start = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), io).await?;
        *server_name = start.client_hello().server_name().map(str::to_owned);
        start.into_stream(Arc::clone(&self.config)).await
    }

    async fn check<S>(&self, stream: TlsStream<S>, remote: Option<SocketAddr>) -> Result<TlsStream<S>, Rejection> {
        let presented = stream.get_ref().1.peer_certificates().and_then(|list| list.first());
        if let (true, Some(remote), Some(presented)) = (self.check_client_san, remote, presented) {
            let presented = presented.clone().into_owned();
            san::check_client_address(presented.clone(), remote.ip())
                .await
                .map_err(|why| Rejection { why, certificate: Certificate::parse(&presented) })?;
        }
        Ok(stream)
    }

    fn complain(&self, remote: Option<SocketAddr>, server_name: &str, rejection: &Rejection) {
        let Some(left_out) = self.complaints.lock().next(Instant::now()) else { return };
        let remote_addr = remote.map(|remote| remote.to_string()).unwrap_or_default();
        let error = rejection.why.as_str();
        let names = rejection.certificate.as_ref().map(|certificate| {
            let ips: Vec<String> = certificate.ip_names.iter().map(ToString::to_string).collect();
            (ips, certificate.dns_names.clone())
        });
        let (ip_addresses, dns_names) = names.unzip();
        let (ip_addresses, dns_names) = (ip_addresses.as_ref().map(debug), dns_names.as_ref().map(debug));
        let left_out = (left_out > 0).then_some(left_out);
        // The text of an event is fixed where it stands.
        match self.port {
            Port::Client => tracing::warn!(
                remote_addr,
                server_name,
                ip_addresses,
                dns_names,
                error,
                left_out,
                "rejected connection on client endpoint"
            ),
            Port::Peer => tracing::warn!(
                remote_addr,
                server_name,
                ip_addresses,
                dns_names,
                error,
                left_out,
                "rejected connection on peer endpoint"
            ),
        }
    }
}

/// Why a connection was not taken.
struct Rejection {
    why: String,
    /// Of one that was believed, but must not be used from where it was.
    certificate: Option<Certificate>,
}

/// Go's words for what went wrong in a handshake.
fn words(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(error) => dolmen_tls::handshake_text(error, ""),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        None => error.to_string(),
    }
}

/// How many lines were written in the present second, and how many were not.
#[derive(Debug, Default)]
struct Complaints {
    second: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl Complaints {
    /// How many were left out before this one, or `None` if it is to be left out as well.
    fn next(&mut self, now: Instant) -> Option<u64> {
        if self.second.is_none_or(|began| now.duration_since(began) >= Duration::from_secs(1)) {
            self.second = Some(now);
            self.written = 0;
        }
        if self.written == LINES_A_SECOND {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_rejections_does_not_flood_the_log() {
        let mut complaints = Complaints::default();
        let begin = Instant::now();
        let written = (0..1000).filter_map(|_| complaints.next(begin)).count();
        assert_eq!(written, LINES_A_SECOND as usize);
        assert_eq!(complaints.next(begin + Duration::from_secs(1)), Some(980), "the next line tells of the others");
        assert_eq!(complaints.next(begin + Duration::from_secs(1)), Some(0));
    }
}
