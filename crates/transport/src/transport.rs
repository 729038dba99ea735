//! The transport's outside: a queue into its thread, and that thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;

use dolmen_env::Mono;
use dolmen_proto::raftpb::Message;
use dolmen_types::MemberId;
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::api::PeerApi;
use crate::config::Config;
use crate::lobby::Lobby;
use crate::metrics::NetworkStats;
use crate::shared::Shared;
use crate::snapshot;
use dolmen_node::{PeerAddress, PeerSender, RaftSink};

/// Messages on their way to the transport's thread at most. Only a thread that has stopped running lets it fill.
const MAX_QUEUED: usize = 1 << 16;

enum Command {
    Messages(Vec<Message>),
    Snapshot(Box<Message>, Box<dyn dolmen_bolt::Source + Send>),
    Peers(Vec<PeerAddress>, Vec<MemberId>),
    Stop,
}

/// etcd's peer protocol on a thread of its own. See the crate's page.
///
/// Made in two steps, since the node wants its sender before there is anybody to receive: [`Transport::new`], then
/// [`Transport::start`]. What is sent in between waits.
pub struct Transport {
    config: Config,
    stats: Arc<NetworkStats>,
    commands: UnboundedSender<Command>,
    queued: Arc<AtomicUsize>,
    receiver: Mutex<Option<UnboundedReceiver<Command>>>,
    sink: Mutex<Option<Arc<dyn RaftSink>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Transport {
    /// A transport that does not run yet.
    pub fn new(config: Config) -> Arc<Self> {
        let (commands, receiver) = unbounded_channel();
        Arc::new(Self {
            config,
            stats: Arc::default(),
            commands,
            queued: Arc::default(),
            receiver: Mutex::new(Some(receiver)),
            sink: Mutex::default(),
            thread: Mutex::default(),
        })
    }

    /// Serves whoever comes through the lobby and dials peers from now on. Messages go to `sink`, requests that are not
    /// raft's to `api`.
    ///
    /// # Errors
    /// When the folder for snapshots cannot be read, or when it has been started before.
    pub fn start(&self, lobby: Lobby, sink: Arc<dyn RaftSink>, api: Arc<dyn PeerApi>) -> io::Result<()> {
        snapshot::remove_leftovers(&self.config.snap_dir)?;
        let Some(receiver) = self.receiver.lock().take() else {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the transport was started before"));
        };
        *self.sink.lock() = Some(Arc::clone(&sink));
        let shared = Shared::new(self.config.clone(), Arc::clone(&self.stats), sink, api);
        let queued = Arc::clone(&self.queued);
        let work = run(Arc::clone(&shared), receiver, queued);
        let thread = lobby.open(shared, Box::pin(work));
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Ends all connections and the thread, and waits for it. Must not be called from the sink or the api.
    pub fn stop(&self) {
        // Nobody listens when it was stopped before.
        let _ = self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.lock().take() {
            // A panic there has been printed; there is nothing left to stop.
            let _ = thread.join();
        }
    }

    /// Counts of what went over the wire.
    pub fn stats(&self) -> &Arc<NetworkStats> {
        &self.stats
    }

    fn report_unreachable(&self, id: MemberId) {
        if let Some(sink) = &*self.sink.lock() {
            sink.unreachable(id);
        }
    }
}

impl PeerSender for Transport {
    fn send(&self, messages: Vec<Message>) {
        if messages.is_empty() {
            return;
        }
        let count = messages.len();
        if self.queued.fetch_add(count, Relaxed) + count > MAX_QUEUED {
            self.queued.fetch_sub(count, Relaxed);
            let receivers: std::collections::BTreeSet<MemberId> =
                messages.iter().map(|message| message.to).filter(|to| *to != 0).collect();
            receivers.into_iter().for_each(|id| self.report_unreachable(id));
            return;
        }
        // After a stop there is nobody to send to.
        let _ = self.commands.send(Command::Messages(messages));
    }

    fn send_snapshot(&self, message: Message, source: Box<dyn dolmen_bolt::Source + Send>) {
        let _ = self.commands.send(Command::Snapshot(Box::new(message), source));
    }

    fn set_peers(&self, peers: Vec<PeerAddress>, removed: Vec<MemberId>) {
        let _ = self.commands.send(Command::Peers(peers, removed));
    }

    fn active_since(&self, id: MemberId) -> Option<Mono> {
        self.stats.get(id)?.active_since()
    }
}

async fn run(shared: Arc<Shared>, mut receiver: UnboundedReceiver<Command>, queued: Arc<AtomicUsize>) {
    let mut commands = Vec::new();
    while receiver.recv_many(&mut commands, 256).await > 0 {
        for command in commands.drain(..) {
            match command {
                Command::Messages(messages) => {
                    queued.fetch_sub(messages.len(), Relaxed);
                    shared.send(messages);
                }
                Command::Snapshot(message, source) => match shared.peer(message.to) {
                    Some(peer) => peer.send_snapshot(*message, source),
                    None => shared.sink.snapshot_status(message.to, false),
                },
                Command::Peers(peers, removed) => shared.set_peers(peers, removed),
                Command::Stop => {
                    shared.stop();
                    return;
                }
            }
        }
    }
    shared.stop();
}
