//! Watches: many on one stream, kept alive over lost connections.
//!
//! A [`Watcher`] owns one gRPC stream and a task that serves it. Each watch on it has a number of its own, given in the
//! order of addition from 0, which stays the same when the stream has to be opened anew; the server's numbers change then
//! and are never shown.
//!
//! For each watch the task keeps the *next revision*: one above the last event handed out, or above the revision at which
//! the server said that there was nothing more (its answer to the creation, and progress answers). After a lost
//! connection every watch is created again from its next revision, so the caller sees neither a gap nor a repetition:
//!
//! ```text
//! server   created@7  put@8  put@9  | lost |            created   put@10
//! next     8          9      10     |      | start=10             11
//! caller   created    put@8  put@9                                put@10
//! ```
//!
//! Fragments of one large answer are joined before they are handed out, and forgotten with the connection: the next
//! revision moves only when the last one is there. If the history from the next revision on was compacted in between,
//! the watch ends with that reason, and [`watch_error`] says so.
//!
//! Events wait in a short queue for the caller; when it is full, the stream is not read, and the server is held back by
//! HTTP/2 until the caller reads on.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use dolmen_proto::etcdserverpb as pb;
use tokio::sync::mpsc;

use crate::client::Client;
use crate::error::{Error, code, text};
use crate::streaming::{Requests, Streaming};

const PATH: &str = "/etcdserverpb.Watch/Watch";

/// Answers that wait for the caller; beyond, the stream is not read.
const MAX_WAITING: usize = 16;
/// Pauses between attempts to open a stream that keeps failing: they grow to the last.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(1), Duration::from_millis(10), Duration::from_millis(40), Duration::from_millis(100)];
/// What the server puts as number of a watch into answers that are about all watches of the stream.
const ALL_WATCHES: i64 = -1;

/// Answers of the watches on one stream. Dropping it ends them.
///
/// ```no_run
/// use dolmen_client::{Client, Config, Error, pb, watch_error};
///
/// # async fn example(client: Client) -> Result<(), Error> {
/// let request = pb::WatchCreateRequest { key: "job/".into(), range_end: "job0".into(), ..Default::default() };
/// let mut watcher = client.watch([request]).await?;
/// while let Some(response) = watcher.next().await {
///     let response = response?;
///     if let Some(reason) = watch_error(&response) {
///         return Err(reason);
///     }
///     for event in &response.events {
///         println!("{event:?}");
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct Watcher {
    answers: mpsc::Receiver<Result<pb::WatchResponse, Error>>,
    handle: WatchHandle,
}

impl Watcher {
    /// The next answer. Its `watch_id` is the number that [`WatchHandle::add`] gave; `created` comes once a watch;
    /// `canceled` is the last answer of a watch; an answer without events, neither `created` nor `canceled`, is progress.
    /// An error ends all watches of the stream; `None` follows it.
    pub async fn next(&mut self) -> Option<Result<pb::WatchResponse, Error>> {
        self.answers.recv().await
    }

    /// Changes the watches from elsewhere while [`Watcher::next`] waits.
    pub fn handle(&self) -> WatchHandle {
        self.handle.clone()
    }
}

/// Adds watches to a stream, ends them, asks for progress. Cheap to clone; outliving the [`Watcher`] it does nothing.
#[derive(Clone)]
pub struct WatchHandle {
    commands: mpsc::UnboundedSender<Command>,
    next_id: Arc<AtomicI64>,
}

enum Command {
    Add(i64, pb::WatchCreateRequest),
    Cancel(i64),
    Progress,
}

impl WatchHandle {
    /// Adds a watch and returns its number. `watch_id` of the request is ignored.
    pub fn add(&self, request: pb::WatchCreateRequest) -> i64 {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.send(Command::Add(id, request));
        id
    }

    /// Ends a watch: but for what waits in the queue already, nothing more comes of it.
    pub fn cancel(&self, id: i64) {
        self.send(Command::Cancel(id));
    }

    /// Asks the server up to which revision all watches of this stream are served. The answer comes once for each watch.
    /// A server with watches behind the head gives none.
    pub fn request_progress(&self) {
        self.send(Command::Progress);
    }

    fn send(&self, command: Command) {
        // The task has ended together with the watcher, or after an error that `next` tells.
        let _ = self.commands.send(command);
    }
}

/// Why a watch ended, if this answer ends it: history compacted, permission missing, or what the server says.
pub fn watch_error(response: &pb::WatchResponse) -> Option<Error> {
    if response.compact_revision != 0 {
        return Some(Error::status(code::OUT_OF_RANGE, text::COMPACTED));
    }
    if !response.canceled {
        return None;
    }
    if response.cancel_reason.is_empty() {
        return Some(Error::status(code::OUT_OF_RANGE, text::FUTURE_REVISION));
    }
    let named = Error::status(code::FAILED_PRECONDITION, response.cancel_reason.as_str());
    // A refusal at creation has no status of its own in the Go client, and prints as it is.
    Some(if response.created && !named.is_known() { Error::client(response.cancel_reason.as_str()) } else { named })
}

impl Client {
    /// Opens a stream with these watches, numbered from 0. Returns at once; everything else is told by [`Watcher::next`].
    /// A time limit of this client does not bound it.
    ///
    /// # Errors
    /// None at present: a refused watch is told as its own answer.
    pub async fn watch(&self, requests: impl IntoIterator<Item = pb::WatchCreateRequest>) -> Result<Watcher, Error> {
        let (commands, inbox) = mpsc::unbounded_channel();
        let (outbox, answers) = mpsc::channel(MAX_WAITING);
        let handle = WatchHandle { commands, next_id: Arc::new(AtomicI64::new(0)) };
        for request in requests {
            handle.add(request);
        }
        let task = Task { client: self.with_timeout(None), inbox, outbox, watches: BTreeMap::new(), refreshed: false };
        tokio::spawn(task.run());
        Ok(Watcher { answers, handle })
    }
}

/// One watch, as long as it lives.
struct Watch {
    /// With `start_revision` moved to the next revision.
    request: pb::WatchCreateRequest,
    /// Its creation was told to the caller.
    told: bool,
    /// The server's number on the present stream.
    server_id: Option<i64>,
    /// Fragments that came so far.
    parts: Option<pb::WatchResponse>,
}

/// The stream as it is now; what the server knows of us goes with it.
struct Stream {
    requests: Requests<pb::WatchRequest>,
    answers: Streaming<pb::WatchResponse>,
    /// Creations under way, in the order in which the server answers. `None`: given up by the caller meanwhile.
    pending: VecDeque<Option<i64>>,
    by_server_id: HashMap<i64, i64>,
}

struct Task {
    client: Client,
    inbox: mpsc::UnboundedReceiver<Command>,
    outbox: mpsc::Sender<Result<pb::WatchResponse, Error>>,
    watches: BTreeMap<i64, Watch>,
    /// A new token was fetched, and no watch was created since.
    refreshed: bool,
}

/// Why the task leaves a stream.
enum Leave {
    /// Open another one.
    Lost(Error),
    /// The caller is gone.
    Done,
}

impl Task {
    async fn run(mut self) {
        let mut failures = 0;
        loop {
            let left = match self.open().await {
                Ok(mut stream) => self.serve(&mut stream, &mut failures).await,
                Err(left) => left,
            };
            let error = match left {
                Leave::Done => return,
                Leave::Lost(error) => error,
            };
            if !self.survives(&error).await {
                let _ = self.outbox.send(Err(error)).await;
                return;
            }
            let pause = PAUSES[failures.min(PAUSES.len() - 1)];
            failures += 1;
            tokio::time::sleep(pause).await;
        }
    }

    /// Can another stream help? A refused token is renewed on the way.
    async fn survives(&mut self, error: &Error) -> bool {
        if error.is(text::INVALID_AUTH_TOKEN) && !self.refreshed {
            self.refreshed = true;
            return self.client.core.refresh_token().await.is_ok_and(|renewed| renewed);
        }
        !error.is_halt() && !error.is(text::NO_LEADER)
    }

    /// A new stream, with every watch on its way to it.
    async fn open(&mut self) -> Result<Stream, Leave> {
        let (requests, answers) = tokio::select! {
            opened = self.client.core.duplex(PATH) => opened.map_err(Leave::Lost)?,
            () = self.outbox.closed() => return Err(Leave::Done),
        };
        let mut stream = Stream { requests, answers, pending: VecDeque::new(), by_server_id: HashMap::new() };
        for (id, watch) in &mut self.watches {
            watch.server_id = None;
            watch.parts = None;
            stream.create(*id, watch);
        }
        Ok(stream)
    }

    async fn serve(&mut self, stream: &mut Stream, failures: &mut usize) -> Leave {
        loop {
            tokio::select! {
                command = self.inbox.recv() => match command {
                    Some(command) => self.command(stream, command),
                    // Handles live in the watcher too: it is gone.
                    None => return Leave::Done,
                },
                answer = stream.answers.next() => match answer {
                    Some(Ok(response)) => {
                        *failures = 0;
                        if let Err(left) = self.answer(stream, response).await {
                            return left;
                        }
                    }
                    Some(Err(error)) => return Leave::Lost(error),
                    // The server ended the stream in good order, as it does when it stops.
                    None => return Leave::Lost(Error::status(code::UNAVAILABLE, "the watch stream has ended")),
                },
                () = self.outbox.closed() => return Leave::Done,
            }
        }
    }

    fn command(&mut self, stream: &mut Stream, command: Command) {
        match command {
            Command::Add(id, request) => {
                let mut watch = Watch { request, told: false, server_id: None, parts: None };
                watch.request.watch_id = 0;
                stream.create(id, &watch);
                self.watches.insert(id, watch);
            }
            Command::Cancel(id) => {
                let Some(watch) = self.watches.remove(&id) else { return };
                match watch.server_id {
                    Some(server_id) => stream.cancel(server_id),
                    None => {
                        for waiting in stream.pending.iter_mut().filter(|waiting| **waiting == Some(id)) {
                            *waiting = None;
                        }
                    }
                }
            }
            Command::Progress => {
                stream.send(pb::watch_request::RequestUnion::ProgressRequest(pb::WatchProgressRequest {}));
            }
        }
    }

    async fn answer(&mut self, stream: &mut Stream, response: pb::WatchResponse) -> Result<(), Leave> {
        if response.created {
            return self.created(stream, response).await;
        }
        if response.canceled {
            let Some(id) = stream.by_server_id.remove(&response.watch_id) else { return Ok(()) };
            return match self.watches.remove(&id) {
                Some(_) => self.tell(id, response).await,
                None => Ok(()),
            };
        }
        if response.watch_id == ALL_WATCHES {
            return self.progress_of_all(response).await;
        }
        let Some(&id) = stream.by_server_id.get(&response.watch_id) else { return Ok(()) };
        // Ended by the caller; the server's last answers are still coming.
        let Some(watch) = self.watches.get_mut(&id) else { return Ok(()) };
        let more = response.fragment;
        let whole = match watch.parts.take() {
            None => response,
            Some(mut parts) => {
                parts.header = response.header.or(parts.header);
                parts.events.extend(response.events);
                parts
            }
        };
        if more {
            watch.parts = Some(whole);
            return Ok(());
        }
        watch.advance(&whole);
        self.tell(id, pb::WatchResponse { fragment: false, ..whole }).await
    }

    async fn created(&mut self, stream: &mut Stream, response: pb::WatchResponse) -> Result<(), Leave> {
        let id = stream.pending.pop_front().flatten();
        let watch = id.and_then(|id| self.watches.get_mut(&id).map(|watch| (id, watch)));
        if response.canceled {
            // Refused. A stale token is no reason to end the watch.
            if response.cancel_reason.contains(text::INVALID_AUTH_TOKEN) && !self.refreshed {
                return Err(Leave::Lost(Error::status(code::UNAUTHENTICATED, text::INVALID_AUTH_TOKEN)));
            }
            let Some((id, _)) = watch else { return Ok(()) };
            self.watches.remove(&id);
            return self.tell(id, response).await;
        }
        self.refreshed = false;
        let Some((id, watch)) = watch else {
            stream.cancel(response.watch_id);
            return Ok(());
        };
        watch.server_id = Some(response.watch_id);
        stream.by_server_id.insert(response.watch_id, id);
        if watch.request.start_revision == 0 {
            watch.request.start_revision = revision(&response) + 1;
        }
        if std::mem::replace(&mut watch.told, true) { Ok(()) } else { self.tell(id, response).await }
    }

    /// The server has nothing more for any watch up to this revision.
    async fn progress_of_all(&mut self, response: pb::WatchResponse) -> Result<(), Leave> {
        let mut open = Vec::new();
        for (id, watch) in self.watches.iter_mut().filter(|(_, watch)| watch.server_id.is_some()) {
            watch.advance(&response);
            open.push(*id);
        }
        for id in open {
            self.tell(id, response.clone()).await?;
        }
        Ok(())
    }

    async fn tell(&mut self, id: i64, response: pb::WatchResponse) -> Result<(), Leave> {
        let told = self.outbox.send(Ok(pb::WatchResponse { watch_id: id, ..response })).await;
        told.map_err(|_| Leave::Done)
    }
}

impl Watch {
    /// Moves the next revision past what this answer brings.
    fn advance(&mut self, response: &pb::WatchResponse) {
        let last = response.events.last().and_then(|event| event.kv.as_ref()).map(|kv| kv.mod_revision);
        self.request.start_revision = self.request.start_revision.max(last.unwrap_or_else(|| revision(response)) + 1);
    }
}

impl Stream {
    fn create(&mut self, id: i64, watch: &Watch) {
        self.pending.push_back(Some(id));
        self.send(pb::watch_request::RequestUnion::CreateRequest(watch.request.clone()));
    }

    fn cancel(&mut self, server_id: i64) {
        self.send(pb::watch_request::RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id: server_id }));
    }

    fn send(&mut self, request: pb::watch_request::RequestUnion) {
        // A stream that takes nothing more says so to whoever reads from it.
        let _ = self.requests.send(&pb::WatchRequest { request_union: Some(request) });
    }
}

fn revision(response: &pb::WatchResponse) -> i64 {
    response.header.as_ref().map_or(0, |header| header.revision)
}
