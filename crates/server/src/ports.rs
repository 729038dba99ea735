//! The ports of a member: bound before anything else is touched, served once there is somebody to answer.

use std::io::ErrorKind;
use std::sync::Arc;

use dolmen_api::{Edge, Listener, Mode};
use dolmen_net::{Bound, ClientTls, Port, Room, ServerTls, Shares, TlsInfo, bind_tcp, bind_unix, raise_descriptors};
use dolmen_transport::PeerListener;
use dolmen_types::error_chain;

use crate::config::{Config, Url};
use crate::failure::explained;

/// All that a member listens on, and what it dials its peers with.
pub struct Ports {
    pub peer: Vec<PeerListener>,
    pub client: Vec<ClientPort>,
    /// For members with `https` URLs.
    pub peer_client: Option<ClientTls>,
    pub rooms: Rooms,
}

/// How many connections there may be.
#[derive(Clone)]
pub struct Rooms {
    pub clients: Arc<Room>,
    pub peers: Arc<Room>,
}

impl Rooms {
    /// Shares out what the system lets this process open, once it has let it open as much as it will.
    fn of_system() -> Self {
        let open_files_limit = raise_descriptors();
        let Shares { clients, peers } = Shares::of(open_files_limit);
        tracing::info!(
            open_files_limit,
            max_client_connections = clients,
            max_peer_connections = peers,
            "shared out the open files"
        );
        Self { clients: Room::new(clients), peers: Room::new(peers) }
    }
}

/// A port for clients or scrapers.
pub struct ClientPort {
    url: Url,
    listener: Listener,
}

impl Ports {
    /// Reads the certificates that the flags name, and binds.
    ///
    /// # Errors
    /// What is wrong with a certificate or a port.
    pub fn open(config: &Config) -> Result<Self, String> {
        let secrets = secrets(config)?;
        let rooms = Rooms::of_system();
        if secrets.peer_server.is_none() && !config.peer_tls.is_empty() {
            tracing::warn!(
                "scheme is HTTP while key and cert files are present; ignoring key and cert files for peers"
            );
        }
        tracing::info!(listen_peer_urls = ?shown(&config.listen_peer), "configuring peer listeners");
        let mut peer = Vec::new();
        for url in &config.listen_peer {
            let tls = secrets.peer_server.clone().filter(|_| url.scheme.is_tls());
            peer.push(PeerListener { socket: bind(url)?, tls, room: rooms.peers.clone() });
        }
        tracing::info!(listen_client_urls = ?shown(&config.listen_client), "configuring client listeners");
        let clients = if config.listen_client_http.is_empty() { Mode::GrpcAndHttp } else { Mode::Grpc };
        let groups = [
            (&config.listen_client, clients),
            (&config.listen_client_http, Mode::Http),
            (&config.listen_metrics, Mode::Metrics),
        ];
        let mut client = Vec::new();
        for (urls, mode) in groups {
            for url in urls {
                let plain = !url.scheme.is_tls();
                let tls = secrets.client_server.clone().filter(|_| !plain);
                let listener = Listener { socket: bind(url)?, mode, plain, tls, room: rooms.clients.clone() };
                client.push(ClientPort { url: url.clone(), listener });
            }
        }
        Ok(Self { peer, client, peer_client: secrets.peer_client, rooms })
    }
}

/// Serves clients from now on.
pub fn serve(edge: &Edge, ports: Vec<ClientPort>) {
    for ClientPort { url, listener } in ports {
        let traffic = match listener.mode {
            Mode::GrpcAndHttp => "grpc+http",
            Mode::Grpc => "grpc",
            Mode::Http => "http",
            Mode::Metrics => "metrics",
        };
        let address = url.address;
        if listener.plain {
            tracing::info!(traffic, address, "serving client traffic insecurely; this is strongly discouraged!");
        } else {
            tracing::info!(traffic, address, "serving client traffic securely");
        }
        edge.listen(listener);
    }
}

pub fn shown(urls: &[Url]) -> Vec<String> {
    urls.iter().map(ToString::to_string).collect()
}

/// etcd's text when a port cannot be had, and what to do.
fn bind(url: &Url) -> Result<Bound, String> {
    let (network, bound) = if url.scheme.is_unix() {
        ("unix", bind_unix(&url.address))
    } else {
        let (host, port) = url.host_port().ok_or_else(|| format!("listen {url}: missing port in address"))?;
        ("tcp", bind_tcp(host, port))
    };
    bound.map_err(|error| {
        let (what, remedy) = match error.kind() {
            ErrorKind::AddrInUse => (
                "address already in use".to_owned(),
                "; another process listens there, perhaps this member itself: stop it, or choose another port",
            ),
            ErrorKind::AddrNotAvailable => (
                "cannot assign requested address".to_owned(),
                "; this machine has no such address: listen on one it has, or on 0.0.0.0",
            ),
            ErrorKind::PermissionDenied => {
                ("permission denied".to_owned(), "; choose a place where this server's user may listen")
            }
            _ => (error.to_string(), ""),
        };
        format!("listen {network} {}: bind: {what}{remedy}", url.address)
    })
}

/// The TLS of both ports; `None` where no URL wants it.
struct Secrets {
    client_server: Option<ServerTls>,
    peer_server: Option<ServerTls>,
    peer_client: Option<ClientTls>,
}

fn secrets(config: &Config) -> Result<Secrets, String> {
    let hosts = |urls: &[Url]| urls.iter().map(|url| url.address.clone()).collect::<Vec<_>>();
    let secured = |urls: &[Url]| urls.iter().any(|url| url.scheme.is_tls());
    let fixtures = config.data_dir.join("fixtures");
    let prepare = |info: &TlsInfo, auto: bool, folder: &str, urls: &[Url]| {
        if auto && info.is_empty() && secured(urls) {
            TlsInfo::self_signed(&fixtures.join(folder), &hosts(urls), config.self_signed_years)
                .map_err(|error| format!("error creating self-signed {folder} certificates: {}", explained(&error)))
        } else {
            Ok(info.clone())
        }
    };
    let clients: Vec<Url> = [&config.listen_client, &config.listen_client_http, &config.listen_metrics]
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    let client = prepare(&config.client_tls, config.auto_tls, "client", &clients)?;
    let peer = prepare(&config.peer_tls, config.peer_auto_tls, "peer", &config.listen_peer)?;
    for url in clients.iter().filter(|url| url.scheme.is_tls()) {
        if client.is_empty() {
            return Err(if config.listen_metrics.contains(url) {
                "client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url".into()
            } else {
                format!(
                    "TLS key/cert (--cert-file, --key-file) must be provided for client url {url} with HTTPS scheme"
                )
            });
        }
    }
    for url in config.listen_peer.iter().filter(|url| url.scheme.is_tls()) {
        if peer.is_empty() {
            return Err(format!(
                "TLS key/cert (--peer-cert-file, --peer-key-file) must be provided for peer url {url} with HTTPS scheme"
            ));
        }
    }
    let server = |info: &TlsInfo, port, urls: &[Url]| {
        secured(urls).then(|| info.server(port)).transpose().map_err(|error| error_chain(&error))
    };
    let dials_tls = secured(&config.advertise_peer)
        || config.initial_cluster.values().flatten().any(|url| url.starts_with("https"));
    Ok(Secrets {
        client_server: server(&client, Port::Client, &clients)?,
        peer_server: server(&peer, Port::Peer, &config.listen_peer)?,
        peer_client: dials_tls.then(|| peer.client()).transpose().map_err(|error| error_chain(&error))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_urls;

    #[test]
    fn a_port_in_use_is_told_as_etcd_tells_it_and_what_to_do() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = taken.local_addr().expect("bound");
        let url = parse_urls(&format!("http://{address}")).expect("a URL").remove(0);
        let refused = bind(&url).expect_err("in use");
        assert!(
            refused.starts_with(&format!("listen tcp {address}: bind: address already in use; another process")),
            "{refused}"
        );
    }
}
