//! A connection in the hands of the test: bytes, HTTP/1 as text, HTTP/2 frame by frame.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dolmen_tls::AnyServer;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::server::{PATIENCE, Port};

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Types and flags of HTTP/2 frames.
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header as HPACK's plain literal; `indexed` ones go into the receiver's table.
pub fn header(name: &str, value: &str, indexed: bool) -> Vec<u8> {
    let mut bytes = vec![if indexed { 0x40 } else { 0 }];
    for text in [name, value] {
        let mut len = text.len();
        if len < 127 {
            bytes.push(len as u8);
        } else {
            bytes.push(127);
            len -= 127;
            while len >= 128 {
                bytes.push(len as u8 | 128);
                len /= 128;
            }
            bytes.push(len as u8);
        }
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// The head of a gRPC call.
pub fn call(path: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "x"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    fields.iter().flat_map(|(name, value)| header(name, value, false)).collect()
}

/// A message with gRPC's prefix.
pub fn message(bytes: &[u8]) -> Vec<u8> {
    let mut framed = vec![0];
    framed.extend((bytes.len() as u32).to_be_bytes());
    framed.extend(bytes);
    framed
}

/// A frame as it came.
#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

trait Both: Read + Write + Send {}
impl<T: Read + Write + Send> Both for T {}

pub struct Wire {
    io: Box<dyn Both>,
    tcp: TcpStream,
    ahead: Vec<u8>,
}

impl Wire {
    pub fn connect(port: Port) -> io::Result<Self> {
        let tcp = TcpStream::connect(port.address)?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        tcp.set_write_timeout(Some(PATIENCE))?;
        let io: Box<dyn Both> = if port.tls {
            let name = ServerName::try_from("localhost").expect("a name");
            let session = ClientConnection::new(trusting(&[]), name).map_err(io::Error::other)?;
            let mut stream = StreamOwned::new(session, tcp.try_clone()?);
            stream.conn.complete_io(&mut stream.sock)?;
            Box::new(stream)
        } else {
            Box::new(tcp.try_clone()?)
        };
        Ok(Self { io, tcp, ahead: Vec::new() })
    }

    /// # Errors
    /// The other side has closed.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.io.write_all(bytes)?;
        self.io.flush()
    }

    /// Nothing more will be sent. (The socket is closed under TLS, as by a client that vanished.)
    pub fn finish(&mut self) {
        let _gone = self.tcp.shutdown(Shutdown::Write);
    }

    /// How long sending may take when the other side does not read.
    pub fn give_up_sending_after(&self, patience: Duration) {
        self.tcp.set_write_timeout(Some(patience)).expect("a socket");
    }

    /// Reads until the other side closes; panics if it does not.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.ahead);
        let mut piece = vec![0; 65536];
        loop {
            match self.io.read(&mut piece) {
                Ok(0) => return bytes,
                Ok(count) => bytes.extend(&piece[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    panic!("the connection stays open after {} bytes", bytes.len())
                }
                // Reset, or cut off without TLS's farewell.
                Err(_) => return bytes,
            }
        }
    }

    /// Sends an HTTP/1 request that closes its connection, and returns the answer.
    pub fn http1(&mut self, request: &str) -> String {
        self.send(request.as_bytes()).expect("it listens");
        String::from_utf8_lossy(&self.read_to_end()).into_owned()
    }

    /// Greets as an HTTP/2 client.
    pub fn greet(&mut self) {
        self.send(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).expect("it listens");
    }

    /// The next frame; `None` when the other side has closed.
    pub fn frame(&mut self) -> Option<Frame> {
        let mut piece = [0; 16384];
        loop {
            if let Some(found) = self.whole_frame() {
                return Some(found);
            }
            match self.io.read(&mut piece) {
                Ok(count) if count > 0 => self.ahead.extend(&piece[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    panic!("no frame, and not closed")
                }
                Ok(_) | Err(_) => return None,
            }
        }
    }

    fn whole_frame(&mut self) -> Option<Frame> {
        let head: [u8; 9] = self.ahead.get(..9)?.try_into().ok()?;
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let payload = self.ahead.get(9..9 + len)?.to_vec();
        self.ahead.drain(..9 + len);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    /// Reads until the connection is closed, and returns the reason that the server gave, if any.
    pub fn farewell(&mut self) -> Option<(u32, String)> {
        let mut reason = None;
        while let Some(frame) = self.frame() {
            if frame.kind == GOAWAY && frame.payload.len() >= 8 {
                let code = u32::from_be_bytes(frame.payload[4..8].try_into().expect("4 bytes"));
                reason = Some((code, String::from_utf8_lossy(&frame.payload[8..]).into_owned()));
            }
        }
        reason
    }

    /// Asks for a key on a new HTTP/2 connection, and panics unless it is answered.
    pub fn range(&mut self, key: &str) {
        let begin = Instant::now();
        self.greet();
        let request = [&[0x0a, key.len() as u8], key.as_bytes()].concat();
        let ask = [
            frame(HEADERS, END_HEADERS, 1, &call("/etcdserverpb.KV/Range")),
            frame(DATA, END_STREAM, 1, &message(&request)),
        ];
        self.send(&ask.concat()).expect("it listens");
        let mut answered = false;
        while let Some(frame) = self.frame() {
            answered |= frame.kind == DATA && frame.stream == 1;
            if frame.stream == 1 && frame.flags & END_STREAM != 0 {
                assert!(answered, "no answer to a good request");
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "no answer");
        }
        panic!("the connection of a good client was closed");
    }
}

/// A client's side of TLS that takes any certificate: it is not what is tested here.
pub fn trusting(protocols: &[&[u8]]) -> Arc<ClientConfig> {
    let provider = Arc::new(dolmen_tls::provider());
    let verifier = Arc::new(AnyServer::new(&provider));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring's versions")
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}
