//! The TLS of a client for what is not gRPC.

use std::sync::Arc;

use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::Tls;
use crate::error::Error;
use crate::tls;

impl Tls {
    /// Reads the files that are named, for a caller who wants to know of a mistake before it connects.
    ///
    /// # Errors
    /// A file that cannot be read or holds no certificate or key, in the words of Go.
    pub fn check(&self) -> Result<(), Error> {
        tls::check(self)
    }

    /// A connection to `host:port` for HTTP/1.1, such as members offer beside gRPC on the same port.
    ///
    /// # Errors
    /// Those of [`Tls::check`]; nobody listens; the handshake fails.
    pub async fn connect(&self, address: &str) -> Result<TlsStream<TcpStream>, Error> {
        let mut config = Arc::unwrap_or_clone(tls::client_config(self)?);
        config.alpn_protocols.clear();
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = self.server_name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name).map_err(|error| Error::client(error.to_string()))?;
        let refused = |error: std::io::Error| Error::client(crate::dial::os_text(&error));
        let stream = TcpStream::connect(address).await.map_err(refused)?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(refused)
    }
}
