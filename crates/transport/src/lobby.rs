//! The peer port from before this member knows who it is.
//!
//! A first start asks the others whether it may happen (see `dolmen_node::first_start`), and they may be asking as well: so
//! the port answers while nobody serves behind it. It says what [`Lobby::answer`] was told; a request of raft's is kept until
//! the [`Transport`](crate::Transport) starts, and is then served as if it had just come; to anything else it answers 503.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use dolmen_env::Memory;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::config::PeerListener;
use crate::server;
use crate::shared::Shared;

/// Where a member says who it is, in JSON. A Go member answers 404.
pub const MEMBER_PATH: &str = "/dolmen/v1/member";

/// Bytes of a request that are read while nobody can serve it.
const MAX_AHEAD: usize = 16 << 10;

/// What becomes of a connection.
#[derive(Clone)]
pub(crate) enum Door {
    /// Nobody serves yet; the answer to [`MEMBER_PATH`], once it is known.
    Closed(Option<Bytes>),
    Open(Arc<Shared>),
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Listeners that run, and the thread they run on.
pub struct Lobby {
    door: watch::Sender<Door>,
    begin: oneshot::Sender<Work>,
    thread: JoinHandle<()>,
}

impl Lobby {
    /// Accepts connections from now on.
    ///
    /// # Errors
    /// When the thread cannot be had.
    pub fn listen(listeners: Vec<PeerListener>, memory: Memory) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (door, visitors) = watch::channel(Door::Closed(None));
        let (begin, begun) = oneshot::channel::<Work>();
        let thread = std::thread::Builder::new().name("peers".into()).spawn(move || {
            runtime.block_on(async {
                tokio::spawn(give_back(memory));
                for listener in listeners {
                    let visitors = visitors.clone();
                    tokio::spawn(async move {
                        if let Err(error) = server::listen(visitors, listener).await {
                            tracing::error!(%error, "peer listener failed");
                        }
                    });
                }
                // A lobby that is dropped ends here.
                if let Ok(work) = begun.await {
                    work.await;
                }
            });
            // A blocking job may still read the store for a snapshot whose connection is gone; it ends at its next write.
            runtime.shutdown_background();
        })?;
        Ok(Self { door, begin, thread })
    }

    /// What is said at [`MEMBER_PATH`] until the transport starts: JSON.
    pub fn answer(&self, json: String) {
        self.door.send_replace(Door::Closed(Some(json.into())));
    }

    /// From now on connections are served; `work` is done on the thread.
    pub(crate) fn open(self, shared: Arc<Shared>, work: Work) -> JoinHandle<()> {
        // It waits for nothing else.
        let _ = self.begin.send(work);
        self.door.send_replace(Door::Open(shared));
        self.thread
    }
}

/// Gives back what messages and snapshots left, as long as the runtime lasts.
async fn give_back(memory: Memory) {
    loop {
        tokio::time::sleep(Duration::from_nanos(Memory::INTERVAL)).await;
        memory.give_back();
    }
}

/// Waits with a connection until it can be served, and returns what of its first request was read meanwhile. `None`: it has
/// been answered, or is gone. `patience`: within it the head of the request has to come.
pub(crate) async fn enter<S>(
    door: &mut watch::Receiver<Door>,
    io: &mut S,
    patience: Duration,
) -> Option<(Arc<Shared>, Vec<u8>)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut ahead = Vec::new();
    let deadline = Instant::now() + patience;
    loop {
        let answer = match &*door.borrow_and_update() {
            Door::Open(shared) => return Some((Arc::clone(shared), ahead)),
            Door::Closed(answer) => answer.clone(),
        };
        let path = path(&ahead);
        let head = ahead.windows(4).any(|end| end == b"\r\n\r\n");
        if head && !path.starts_with(b"/raft") {
            let bytes = match answer.filter(|_| path == MEMBER_PATH.as_bytes()) {
                Some(json) => response("200 OK", "application/json", &json),
                None => response("503 Service Unavailable", "text/plain", b"this member has not started yet\n"),
            };
            // Whoever left needs no answer.
            let _ = io.write_all(&bytes).await;
            let _ = io.flush().await;
            let _ = io.shutdown().await;
            return None;
        }
        let room = MAX_AHEAD - ahead.len();
        let mut chunk = [0; 1024];
        let len = room.min(chunk.len());
        tokio::select! {
            changed = door.changed() => changed.ok()?,
            read = io.read(&mut chunk[..len]), if room > 0 => match read {
                Ok(read) if read > 0 => ahead.extend_from_slice(&chunk[..read]),
                _ => return None,
            },
            () = sleep_until(deadline), if !head => return None,
        }
    }
}

/// The path of a request that begins with these bytes.
fn path(head: &[u8]) -> &[u8] {
    let target = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    target.split(|byte| *byte == b'?').next().unwrap_or_default()
}

fn response(status: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let len = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}
