//! One HTTP/2 connection: a task that reads, polls the calls of its streams, and writes.
//!
//! ```text
//! socket ── read ──> session ── requests ──> calls ── answers ──> session ── write ──> socket
//! ```
//!
//! Everything of a connection happens in this one task. Calls are futures in its slots; whoever wakes some of them wakes the
//! task once, and all answers that are there by then leave in one write. (A task for each call costs an allocation, a turn of
//! the scheduler and, too often, a write of its own.) The protocol itself is `dolmen_http2`'s.
//!
//! # Bounds
//!
//! * While something could not be written nothing is read: a client that does not read cannot ask for more.
//! * A stream's function is not polled while [`AHEAD`] bytes of it wait to be sent.
//! * A call is dropped with its stream, whoever ended that.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use dolmen_http2::{Error, Event, Head, Limits, SEND_AT_ONCE, Session, StreamId};
use dolmen_net::{OpenStream, Seat};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use parking_lot::Mutex;
use slab::Slab;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::body::{Body, Inbox, Next, RequestBody, StreamBody};
use crate::call::Transport;
use crate::edge::{self, Mode};
use crate::server::{Config, Local};
use crate::status::Status;
use crate::{dispatch, frame, http_mux};

/// Bytes of fields allowed in one request: room for large tokens.
const MAX_HEADER_BYTES: u32 = 64 * 1024;
/// Bytes a client may send ahead on one stream, and on one connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Bytes of a stream that wait to be sent before it has to pause.
const AHEAD: usize = 32 * 1024;
/// Bytes read at a time, and before the calls that they brought are polled and their answers written.
const READ: usize = 64 * 1024;
/// Rounds of that before other connections have their turn.
const ROUNDS: usize = 16;
/// As gRPC has it where neither is set: silence before a ping, and how long its answer may take.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(2 * 3600), Duration::from_secs(20));
/// How long the end of a connection may take.
const PARTING: Duration = Duration::from_secs(1);
/// The head of every gRPC answer.
const GRPC: &[(&str, &str)] = &[("content-type", "application/grpc")];

thread_local! {
    // Of the thread, not the connection: one that rests holds neither.
    static INPUT: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ].into());
    static OUTPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What the requests of a connection are answered with.
pub struct Service {
    pub local: Arc<Local>,
    pub transport: Arc<Transport>,
    pub mode: Mode,
}

/// Serves a connection until its client leaves, or is told to go and the open calls are done.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(io: S, service: Service, seat: &Seat) {
    let mut stopping = service.local.server.stopping.clone();
    let mut connection = Connection::new(io, service, seat);
    let has_to_go = tokio::select! {
        biased;
        () = &mut connection => false,
        _ = stopping.wait_for(|stopping| *stopping) => true,
        () = seat.asked_to_leave() => true,
    };
    if has_to_go {
        connection.shut_down();
        tokio::select! {
            () = &mut connection => {}
            // A client that does not answer to the announcement.
            () = seat.overstayed() => {}
        }
    }
    // The calls that were open are given up first. Then TLS says its farewell, if the client listens.
    let _gone = tokio::time::timeout(PARTING, connection.into_io().shutdown()).await;
}

/// One call, in its slot from its request to the end of its stream.
struct Call {
    stream: StreamId,
    /// Where the rest of the request goes, if it did not come whole.
    inbox: Option<Arc<Inbox>>,
    work: Work,
    /// Keeps the connection its seat.
    _open: OpenStream,
}

enum Work {
    Answering(Pin<Box<dyn Future<Output = Response<Body>> + Send>>),
    Streaming {
        body: Box<StreamBody>,
        /// Enough of it waits to be sent.
        paused: bool,
    },
    /// All of the answer is the session's.
    Answered,
}

/// Calls that were woken, by whatever thread.
#[derive(Default)]
struct Woken {
    slots: Vec<usize>,
    /// The connection's task, while it sleeps.
    task: Option<Waker>,
}

/// Wakes the call in one slot.
struct CallWaker {
    slot: usize,
    /// It is among the woken.
    is_woken: AtomicBool,
    woken: Arc<Mutex<Woken>>,
}

impl Wake for CallWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_woken.swap(true, Ordering::AcqRel) {
            return;
        }
        let task = {
            let mut woken = self.woken.lock();
            woken.slots.push(self.slot);
            woken.task.take()
        };
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// A client that says nothing is asked whether it is there.
struct Keepalive {
    interval: Duration,
    timeout: Duration,
    heard: Instant,
    /// A ping is unanswered.
    asked: bool,
    timer: Pin<Box<Sleep>>,
}

impl Keepalive {
    fn new(config: &Config) -> Self {
        let (interval, timeout) = match (config.keepalive_interval, config.keepalive_timeout) {
            (Duration::ZERO, _) | (_, Duration::ZERO) => KEEPALIVE,
            set => set,
        };
        Self { interval, timeout, heard: Instant::now(), asked: false, timer: Box::pin(tokio::time::sleep(interval)) }
    }

    fn hear(&mut self) {
        self.heard = Instant::now();
        self.asked = false;
    }

    /// Whether to ping now.
    ///
    /// # Errors
    /// The last ping was not answered in time.
    fn poll(&mut self, cx: &mut Context<'_>) -> Result<bool, Over> {
        let mut ask = false;
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let silent_until = self.heard + self.interval;
            let next = if silent_until > now {
                silent_until
            } else if self.asked {
                return Err(Over);
            } else {
                (self.asked, ask) = (true, true);
                now + self.timeout
            };
            self.timer.as_mut().reset(next);
        }
        Ok(ask)
    }
}

/// The connection has ended.
struct Over;

struct Connection<'a, S> {
    io: S,
    seat: &'a Seat,
    service: Arc<Service>,
    session: Session,
    calls: Slab<Call>,
    /// By slot.
    wakers: Vec<(Arc<CallWaker>, Waker)>,
    woken: Arc<Mutex<Woken>>,
    /// Calls to be polled.
    turn: Vec<usize>,
    /// Kept to reuse its memory.
    events: Vec<Event>,
    /// Bytes that the socket did not take, from `sent` on.
    unsent: Vec<u8>,
    sent: usize,
    /// What was written may wait inside a TLS session.
    unflushed: bool,
    keepalive: Keepalive,
    stopping: Stopping,
}

/// How far the end of a connection has come that the server wants.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stopping {
    No,
    Announced,
    /// A ping went out behind the announcement: its answer says that the client knows, and that what it had sent by then is
    /// here.
    Asked,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Connection<'a, S> {
    fn new(io: S, service: Service, seat: &'a Seat) -> Self {
        let config = service.local.config();
        let session = Session::new(Limits {
            streams: config.max_concurrent_streams,
            header_bytes: MAX_HEADER_BYTES,
            stream_window: STREAM_WINDOW,
            connection_window: CONNECTION_WINDOW,
        });
        let keepalive = Keepalive::new(config);
        Self {
            io,
            seat,
            service: Arc::new(service),
            session,
            calls: Slab::new(),
            wakers: Vec::new(),
            woken: Arc::default(),
            turn: Vec::new(),
            events: Vec::new(),
            unsent: Vec::new(),
            sent: 0,
            unflushed: false,
            keepalive,
            stopping: Stopping::No,
        }
    }

    fn into_io(self) -> S {
        self.io
    }

    /// Tells the client to go elsewhere.
    fn shut_down(&mut self) {
        self.stopping = Stopping::Announced;
        self.session.announce_shutdown();
    }

    /// Reads what is there, some of it at least; whether there may be more.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, Over> {
        INPUT.with_borrow_mut(|input| {
            let mut taken = 0;
            while taken < READ {
                if !self.unsent.is_empty() {
                    return Ok(false);
                }
                let mut buf = ReadBuf::new(input);
                match Pin::new(&mut self.io).poll_read(cx, &mut buf) {
                    Poll::Pending => return Ok(false),
                    Poll::Ready(Ok(())) if !buf.filled().is_empty() => {}
                    // It has ended, one way or the other; what is made already may still find its reader.
                    Poll::Ready(_) => {
                        let _unsent = self.write(cx);
                        return Err(Over);
                    }
                }
                self.keepalive.hear();
                taken += buf.filled().len();
                let received = self.session.receive(buf.filled());
                received.map_err(|error| self.part(error, cx))?;
                self.take_events();
            }
            Ok(true)
        })
    }

    fn take_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        self.session.events(&mut events);
        for event in events.drain(..) {
            match event {
                Event::Request(stream) => self.begin(stream),
                Event::Data(slot) => self.hand_on(slot),
                Event::Room(slot) => {
                    if let Some(Call { work: Work::Streaming { paused, .. }, .. }) = self.calls.get_mut(slot)
                        && std::mem::take(paused)
                    {
                        self.turn.push(slot);
                    }
                }
                Event::Closed(slot) => {
                    if let Some(Call { stream, inbox: Some(inbox), .. }) = self.calls.try_remove(slot) {
                        self.session.consume(stream, inbox.abandon());
                    }
                }
                Event::Pong if self.stopping == Stopping::Asked => self.session.shut_down(),
                Event::Pong => {}
            }
        }
        self.events = events;
    }

    /// Takes a slot for a request.
    fn begin(&mut self, stream: StreamId) {
        let Some((head, whole)) = self.session.take_request(stream) else { return };
        let (body, inbox) = match whole {
            Some(bytes) => (RequestBody::Whole(bytes), None),
            None => {
                let inbox = Arc::new(Inbox::default());
                (RequestBody::Coming(inbox.clone()), Some(inbox))
            }
        };
        let is_coming = inbox.is_some();
        let work = Work::Answering(Box::pin(answer(self.service.clone(), head, body)));
        let slot = self.calls.insert(Call { stream, inbox, work, _open: self.seat.open() });
        self.session.accept(stream, slot);
        if slot == self.wakers.len() {
            let waker = CallWaker { slot, is_woken: AtomicBool::new(false), woken: self.woken.clone() };
            let waker = Arc::new(waker);
            self.wakers.push((waker.clone(), waker.into()));
        }
        if is_coming {
            self.hand_on(slot);
        }
        self.turn.push(slot);
    }

    /// Gives a call what has come of its request.
    fn hand_on(&mut self, slot: usize) {
        if let Some(Call { stream, inbox: Some(inbox), .. }) = self.calls.get(slot) {
            let (more, ended) = self.session.take_body(*stream);
            inbox.put(more, ended);
        }
    }

    /// Polls the calls that can go on.
    fn poll_calls(&mut self) {
        self.turn.append(&mut self.woken.lock().slots);
        let mut turn = std::mem::take(&mut self.turn);
        for slot in turn.drain(..) {
            let (waker, task) = &self.wakers[slot];
            // Before the poll: what wakes it from here on makes another one.
            waker.is_woken.store(false, Ordering::Release);
            if let Some(call) = self.calls.get_mut(slot) {
                poll_call(&mut self.session, call, &mut Context::from_waker(task));
            }
        }
        self.turn = turn;
    }

    /// Writes as much as the socket takes.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), Over> {
        if !self.write_unsent(cx)? {
            return Ok(());
        }
        OUTPUT.with_borrow_mut(|output| {
            loop {
                output.clear();
                let made = self.session.send(output);
                made.map_err(|error| self.part(error, cx))?;
                let mut sent = 0;
                while sent < output.len() {
                    match self.poll_write(cx, &output[sent..])? {
                        Some(count) => sent += count,
                        None => {
                            self.unsent.extend_from_slice(&output[sent..]);
                            return Ok(());
                        }
                    }
                }
                if output.len() < SEND_AT_ONCE {
                    return Ok(());
                }
            }
        })?;
        if self.unflushed {
            match Pin::new(&mut self.io).poll_flush(cx) {
                Poll::Ready(Ok(())) => self.unflushed = false,
                Poll::Ready(Err(_)) => return Err(Over),
                Poll::Pending => {}
            }
        }
        Ok(())
    }

    /// Whether nothing is left of what the socket did not take before.
    fn write_unsent(&mut self, cx: &mut Context<'_>) -> Result<bool, Over> {
        let unsent = std::mem::take(&mut self.unsent);
        while self.sent < unsent.len() {
            match self.poll_write(cx, &unsent[self.sent..])? {
                Some(count) => self.sent += count,
                None => {
                    self.unsent = unsent;
                    return Ok(false);
                }
            }
        }
        self.sent = 0;
        Ok(true)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<Option<usize>, Over> {
        match Pin::new(&mut self.io).poll_write(cx, bytes) {
            Poll::Pending => Ok(None),
            Poll::Ready(Ok(count)) if count > 0 => {
                self.unflushed = true;
                Ok(Some(count))
            }
            Poll::Ready(_) => Err(Over),
        }
    }

    /// Tells the client why its connection ends, if the socket takes it.
    fn part(&mut self, error: Error, cx: &mut Context<'_>) -> Over {
        if let Ok(true) = self.write_unsent(cx)
            && self.poll_write(cx, &error.farewell()).is_ok()
        {
            let _unsent = Pin::new(&mut self.io).poll_flush(cx);
        }
        Over
    }

    /// Goes on until there is nothing to do but wait.
    fn go_on(&mut self, cx: &mut Context<'_>) -> Result<(), Over> {
        self.woken.lock().task = None;
        if self.keepalive.poll(cx)? {
            self.session.ping();
        }
        for _ in 0..ROUNDS {
            let more = self.read(cx)?;
            self.poll_calls();
            let could_not_read = !self.unsent.is_empty();
            self.write(cx)?;
            self.take_events();
            if self.unsent.is_empty() && self.session.status() == dolmen_http2::Status::Over {
                return Err(Over);
            }
            if self.stopping == Stopping::Announced && self.unsent.is_empty() {
                self.stopping = Stopping::Asked;
                self.session.ping();
                continue;
            }
            let can_read = could_not_read && self.unsent.is_empty();
            if more || can_read || !self.turn.is_empty() {
                continue;
            }
            let mut woken = self.woken.lock();
            if woken.slots.is_empty() {
                woken.task = Some(cx.waker().clone());
                return Ok(());
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Connection<'_, S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.get_mut().go_on(cx) {
            Ok(()) => Poll::Pending,
            Err(Over) => Poll::Ready(()),
        }
    }
}

/// Goes on with a call and gives the session what comes of it.
fn poll_call(session: &mut Session, call: &mut Call, cx: &mut Context<'_>) {
    if let Work::Answering(answering) = &mut call.work
        && let Poll::Ready(response) = answering.as_mut().poll(cx)
    {
        call.work = respond(session, call.stream, response);
    }
    if let Work::Streaming { body, paused } = &mut call.work {
        while !*paused {
            match body.poll_next(cx) {
                Poll::Ready(Next::Piece(piece)) => *paused = session.push(call.stream, piece) >= AHEAD,
                Poll::Ready(Next::End(status)) => {
                    session.finish(call.stream, frame::trailers(status.as_ref()));
                    call.work = Work::Answered;
                    break;
                }
                Poll::Pending => break,
            }
        }
    }
    if let Some(inbox) = &call.inbox {
        let is_answered = matches!(call.work, Work::Answered);
        session.consume(call.stream, if is_answered { inbox.abandon() } else { inbox.taken() });
        if is_answered {
            call.inbox = None;
        }
    }
}

fn respond(session: &mut Session, stream: StreamId, response: Response<Body>) -> Work {
    let (head, body) = response.into_parts();
    match body {
        Body::One(piece) => session.answer(stream, GRPC, [piece], frame::trailers(None)),
        Body::Many(pieces) => session.answer(stream, GRPC, pieces, frame::trailers(None)),
        Body::Refused(status) => refuse(session, stream, &status),
        Body::Stream(body) => {
            session.respond_static(stream, GRPC, true);
            return Work::Streaming { body, paused: false };
        }
        Body::Empty => page(session, stream, &head, Bytes::new()),
        Body::Plain(bytes) => page(session, stream, &head, bytes),
    }
    Work::Answered
}

/// Answers with a status only: fields and trailers in one block.
fn refuse(session: &mut Session, stream: StreamId, status: &Status) {
    let trailers = frame::trailers(Some(status));
    let trailers = trailers.iter().flatten().map(|field| (field.name.as_bytes(), field.value.as_bytes()));
    let fields = GRPC.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).chain(trailers);
    session.respond(stream, "200", fields, false);
}

fn page(session: &mut Session, stream: StreamId, head: &http::response::Parts, bytes: Bytes) {
    let len = bytes.len().to_string();
    let fields = head.headers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
    let fields = fields.chain([(&b"content-length"[..], len.as_bytes())]);
    session.respond(stream, head.status.as_str(), fields, !bytes.is_empty());
    session.push(stream, bytes);
    session.finish(stream, [None, None]);
}

async fn answer(service: Arc<Service>, head: Head, body: RequestBody) -> Response<Body> {
    let Service { local, transport, mode } = &*service;
    let speaks_grpc = matches!(mode, Mode::GrpcAndHttp | Mode::Grpc);
    if speaks_grpc && frame::is_grpc(head.get("content-type").unwrap_or_default()) {
        return dispatch::call(local.clone(), transport.clone(), head, body).await;
    }
    let Some(parts) = parts(&head) else { return http_mux::error(StatusCode::BAD_REQUEST, "400 Bad Request") };
    edge::page(local.clone(), parts, *mode, transport.secure).await
}

/// A request's head as pages want it; `None` when it is none that HTTP knows.
fn parts(head: &Head) -> Option<Parts> {
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(head.get(":method")?).ok()?;
    let mut uri = Uri::builder().path_and_query(head.get(":path")?);
    if let (Some(scheme), Some(authority)) = (head.get(":scheme"), head.get(":authority")) {
        uri = uri.scheme(scheme).authority(authority);
    }
    *request.uri_mut() = uri.build().ok()?;
    for (name, value) in head.iter().filter(|(name, _)| !name.starts_with(b":")) {
        let name = HeaderName::from_bytes(name).ok()?;
        request.headers_mut().append(name, HeaderValue::from_bytes(value).ok()?);
    }
    Some(request.into_parts().0)
}
