//! Listening sockets from URLs.

use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::unix::net::UnixListener;

use crate::config::Url;

pub enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Binds the address of a URL. A socket file left by a server that is gone is replaced.
///
/// # Errors
/// The address is in use or cannot be bound; the text names it.
pub fn bind(url: &Url) -> Result<Socket, String> {
    let failed = |error: io::Error| format!("listen {url}: {error}");
    if url.scheme.is_unix() {
        if UnixListener::bind(&url.address).is_err() && std::os::unix::net::UnixStream::connect(&url.address).is_err() {
            // Nobody answers there: the file is a left-over.
            std::fs::remove_file(&url.address).map_err(failed)?;
        } else {
            // The probe above has bound the path and let go of it.
            let _ = std::fs::remove_file(&url.address);
        }
        return Ok(Socket::Unix(UnixListener::bind(&url.address).map_err(failed)?));
    }
    let (host, port) = url.host_port().ok_or_else(|| format!("listen {url}: missing port in address"))?;
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for address in (host, port).to_socket_addrs().map_err(failed)? {
        match TcpListener::bind(address) {
            Ok(listener) => {
                listener.set_nonblocking(true).map_err(failed)?;
                return Ok(Socket::Tcp(listener));
            }
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}
