//! TCP and Unix sockets: bound, listening, accepted, in use.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::room::{Room, Seat};

/// Connections that the kernel holds until they are accepted; what `net.core.somaxconn` allows of it. A thousand clients
/// that come at once must not wait for a second attempt of their SYN.
const BACKLOG: i32 = 4096;
/// Go's default for accepted connections.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);
/// After an accept that failed for want of something: the shortest pause and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Between two lines about connections refused.
const SILENCE: Duration = Duration::from_secs(10);

/// A socket that is bound and listens, registered with no runtime yet.
#[derive(Debug)]
pub enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Binds the first address of a host that will have it, IPv4 first. An unspecified host (`0.0.0.0`, `::`) is all addresses of
/// both families.
///
/// # Errors
/// The name has no address, or the last one refuses.
pub fn bind_tcp(host: &str, port: u16) -> io::Result<Bound> {
    let mut addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for address in addresses {
        match listen_on(address) {
            Ok(fd) => return Ok(Bound::Tcp(fd.into())),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

fn listen_on(address: SocketAddr) -> Result<OwnedFd, Errno> {
    if !address.ip().is_unspecified() {
        return open(address, None);
    }
    match open(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), address.port()), Some(false)) {
        // A machine without IPv6.
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL | Errno::PROTONOSUPPORT) => {
            open(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port()), None)
        }
        outcome => outcome,
    }
}

fn open(address: SocketAddr, v6_only: Option<bool>) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if let Some(only) = v6_only {
        sockopt::set_ipv6_v6only(&socket, only)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Binds a path. A socket file left by a server that is gone is replaced.
///
/// # Errors
/// Somebody answers there, or the path cannot be bound.
pub fn bind_unix(path: &str) -> io::Result<Bound> {
    let bound = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        outcome => outcome?,
    };
    bound.set_nonblocking(true)?;
    // A second call replaces the backlog of the first.
    rustix::net::listen(&bound, BACKLOG)?;
    Ok(Bound::Unix(bound))
}

enum Registered {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

/// A listening socket in a runtime.
pub struct Listener(Registered);

impl Listener {
    /// Registers `bound` with the present runtime.
    ///
    /// # Errors
    /// The runtime cannot watch it.
    pub fn new(bound: Bound) -> io::Result<Self> {
        Ok(Self(match bound {
            Bound::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Registered::Tcp(tokio::net::TcpListener::from_std(listener)?)
            }
            Bound::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Registered::Unix(tokio::net::UnixListener::from_std(listener)?)
            }
        }))
    }

    /// The next connection that `room` has a seat for; those it has none for are closed. Want of descriptors or memory is
    /// waited out, while the kernel holds those that come.
    pub async fn accept(&self, room: &Arc<Room>) -> (Accepted, Seat) {
        let mut pause = PAUSE.0;
        let mut said = None;
        loop {
            match self.accept_once().await {
                Ok(accepted) => {
                    pause = PAUSE.0;
                    if let Some(seat) = room.admit().await {
                        return (accepted, seat);
                    }
                    let now = Instant::now();
                    if said.is_none_or(|said| now.duration_since(said) >= SILENCE) {
                        said = Some(now);
                        let (remote, capacity, refused) = (accepted.remote(), room.capacity(), room.refused());
                        tracing::warn!(
                            ?remote,
                            capacity,
                            refused,
                            "refused a connection: all that are open are in use"
                        );
                    }
                }
                // One that has gone before it was accepted: the next one is there already.
                Err(error) if is_of_connection(&error) => {}
                Err(error) => {
                    room.make_room();
                    tracing::warn!(%error, retry_in = ?pause, "cannot accept a connection");
                    tokio::time::sleep(pause).await;
                    pause = (2 * pause).min(PAUSE.1);
                }
            }
        }
    }

    async fn accept_once(&self) -> io::Result<Accepted> {
        Ok(match &self.0 {
            Registered::Tcp(listener) => {
                let (stream, remote) = listener.accept().await?;
                let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
                // These fail on a connection that is gone already, which shows soon enough.
                let _gone = stream.set_nodelay(true).and_then(|()| Ok(keep_alive(&stream)?));
                Accepted { socket: Socket::Tcp(stream.into_std()?), remote: Some(remote) }
            }
            Registered::Unix(listener) => {
                Accepted { socket: Socket::Unix(listener.accept().await?.0.into_std()?), remote: None }
            }
        })
    }
}

/// Whether an accept failed because of the connection alone; accept(2) hands such errors on.
fn is_of_connection(error: &io::Error) -> bool {
    let of_connection = [
        Errno::CONNABORTED,
        Errno::CONNRESET,
        Errno::NETDOWN,
        Errno::PROTO,
        Errno::NOPROTOOPT,
        Errno::HOSTDOWN,
        Errno::NONET,
        Errno::HOSTUNREACH,
        Errno::OPNOTSUPP,
        Errno::NETUNREACH,
        Errno::INTR,
    ];
    error.raw_os_error().is_some_and(|code| of_connection.iter().any(|errno| errno.raw_os_error() == code))
}

fn keep_alive(stream: &TcpStream) -> Result<(), Errno> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, TCP_KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, TCP_KEEPALIVE)
}

#[derive(Debug)]
enum Socket {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

/// An accepted connection on its way to the runtime that will serve it: nonblocking, registered nowhere.
#[derive(Debug)]
pub struct Accepted {
    socket: Socket,
    /// `None` of a Unix socket.
    remote: Option<SocketAddr>,
}

impl Accepted {
    /// Who called: IPv4 in its own form, whatever the socket it came through.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.remote
    }

    /// Moves it into the present runtime.
    ///
    /// # Errors
    /// The socket is broken already.
    pub fn adopt(self) -> io::Result<Stream> {
        Ok(match self.socket {
            Socket::Tcp(stream) => Stream::Tcp(TcpStream::from_std(stream)?),
            Socket::Unix(stream) => Stream::Unix(UnixStream::from_std(stream)?),
        })
    }
}

/// A connection of either family, accepted or dialled.
#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Takes it out of its runtime, for another to adopt. `remote`: as [`Accepted::remote`] said.
    ///
    /// # Errors
    /// The socket is broken already.
    pub fn leave(self, remote: Option<SocketAddr>) -> io::Result<Accepted> {
        let socket = match self {
            Stream::Tcp(stream) => Socket::Tcp(stream.into_std()?),
            Stream::Unix(stream) => Socket::Unix(stream.into_std()?),
        };
        Ok(Accepted { socket, remote })
    }
}

macro_rules! each {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Stream::Tcp($stream) => $call,
            Stream::Unix($stream) => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(bound: &Bound) -> u16 {
        match bound {
            Bound::Tcp(listener) => listener.local_addr().expect("bound").port(),
            Bound::Unix(_) => unreachable!("a TCP socket"),
        }
    }

    #[test]
    fn the_unspecified_address_is_both_families() {
        for host in ["0.0.0.0", "::"] {
            let bound = bind_tcp(host, 0).expect("binds");
            let port = port(&bound);
            std::net::TcpStream::connect(("127.0.0.1", port)).expect("IPv4");
            if std::net::TcpListener::bind("[::1]:0").is_ok() {
                std::net::TcpStream::connect(("::1", port)).expect("IPv6");
            }
        }
    }

    #[test]
    fn a_name_of_both_families_is_bound_as_ipv4() {
        let Bound::Tcp(listener) = bind_tcp("localhost", 0).expect("binds") else { unreachable!("a TCP socket") };
        assert!(listener.local_addr().expect("bound").is_ipv4());
    }

    #[test]
    fn a_port_in_use_is_refused() {
        let first = bind_tcp("127.0.0.1", 0).expect("binds");
        let error = bind_tcp("127.0.0.1", port(&first)).expect_err("in use");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_socket_file_is_replaced_when_nobody_answers() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("s").display().to_string();
        let first = bind_unix(&path).expect("binds");
        assert_eq!(bind_unix(&path).expect_err("answers").kind(), io::ErrorKind::AddrInUse);
        drop(first);
        let _second = bind_unix(&path).expect("the file is a left-over");
    }

    #[test]
    fn many_may_wait_to_be_accepted() {
        let bound = bind_tcp("127.0.0.1", 0).expect("binds");
        let port = port(&bound);
        // More than the 128 that the standard library asks for. Nobody accepts: what finds no room never connects.
        let waiting: Vec<_> = (0..400)
            .map(|_| {
                std::net::TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), Duration::from_secs(30))
                    .expect("room in the backlog")
            })
            .collect();
        assert_eq!(waiting.len(), 400);
    }

    #[tokio::test]
    async fn callers_through_a_socket_of_both_families_keep_their_form() {
        let bound = bind_tcp("0.0.0.0", 0).expect("binds");
        let port = port(&bound);
        let listener = Listener::new(bound).expect("registers");
        let client = TcpStream::connect(("127.0.0.1", port)).await.expect("connects");
        let (accepted, _seat) = listener.accept(&Room::new(1)).await;
        assert_eq!(accepted.remote(), Some(client.local_addr().expect("connected")));
    }
}
