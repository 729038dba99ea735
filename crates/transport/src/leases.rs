//! Renewals of leases between members: `POST /leases`, the one request outside raft that comes thousands of times a
//! second, as every renewal that a client hands to a follower becomes one.
//!
//! The bytes are etcd's: HTTP/1.1 with a protobuf for a body, one request and one answer a renewal. What is special is how
//! they travel. On the follower all renewals of one runtime share a connection ([`LeasePipe`]): those that come together
//! are written together, without waiting for the answers of others (HTTP/1.1's pipelining), and answers come back in the
//! order of the requests. On the leader [`serve`] answers all requests that have arrived with one write. So a hundred
//! renewals cost a few system calls, where one exchange each costs four hundred. A Go server knows no difference: it
//! reads a connection's requests one after the other, however they arrive.
//!
//! ```text
//!   follower   edge-0 ── request request request ──>  peers   leader
//!                     <── answer answer answer ──────
//! ```
//!
//! In such a row one slow answer delays those behind it. So a connection on which nothing moves for [`STUCK`] is given up:
//! who waits there asks again by the other way, [`crate::PeerClient::post_leases`], alone on a connection.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep, sleep, timeout_at};

use crate::api::{ApiRequest, ApiResponse, PeerApi};
use crate::client::PeerClient;
use crate::net::{Dialer, Io};
use crate::url::PeerUrl;

/// The first line of a renewal.
const REQUEST_LINE: &[u8] = b"POST /leases HTTP/1.1\r\n";
const PROTOBUF: &str = "application/protobuf";
/// Bytes of body of a renewal at most, as in etcd; a real one holds one number.
const MAX_BODY: usize = 64 << 10;
/// Bytes of head at most, of a request and of an answer.
const MAX_HEAD: usize = 16 << 10;
const MAX_HEADERS: usize = 32;
/// Bytes read at once.
const CHUNK: usize = 16 << 10;
const FIRST_CHUNK: usize = 256;

// ---- the leader's side ----

/// What [`serve`] has left of a connection.
pub(crate) enum Left {
    /// Nothing: it has ended.
    Nothing,
    /// A request that is no plain renewal begins with these bytes, and the rest of the connection.
    Other(Vec<u8>),
}

/// Answers renewals for as long as nothing else comes. `patience`: within it each request has to be whole. `used` is called
/// after each batch.
pub(crate) async fn serve<S>(api: &dyn PeerApi, io: &mut S, patience: Duration, used: impl Fn()) -> Left
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut buffer = Vec::new();
    // Small until a renewal has come: most connections bring none, and may be idle for long.
    let mut chunk = vec![0; FIRST_CHUNK];
    let mut out = Vec::new();
    let mut deadline = Instant::now() + patience;
    loop {
        let mut at = 0;
        let mut answers = Vec::new();
        let other = loop {
            match Renewal::parse(&buffer[at..]) {
                Parsed::Partial => break false,
                Parsed::Other => break true,
                Parsed::Whole(renewal) => {
                    answers.push(match api.renew_lease(renewal.body) {
                        Some(body) => Answer::Now(body),
                        // These take a while, and take it together.
                        None => Answer::Later(tokio::spawn(api.handle(renewal.request()))),
                    });
                    at += renewal.len;
                }
            }
        };
        if !answers.is_empty() {
            chunk.resize(CHUNK, 0);
            for answer in answers {
                match answer {
                    Answer::Now(body) => put_answer(&mut out, &body),
                    Answer::Later(answer) => {
                        // Those before it need not wait.
                        if write(io, &mut out).await.is_err() {
                            return Left::Nothing;
                        }
                        let Ok(answer) = answer.await else { return Left::Nothing };
                        put_response(&mut out, &answer);
                    }
                }
            }
            if write(io, &mut out).await.is_err() {
                return Left::Nothing;
            }
            deadline = Instant::now() + patience;
            used();
        }
        buffer.drain(..at);
        if other {
            return Left::Other(buffer);
        }
        match timeout_at(deadline, io.read(&mut chunk)).await {
            Ok(Ok(read)) if read > 0 => buffer.extend_from_slice(&chunk[..read]),
            _ => return Left::Nothing,
        }
    }
}

enum Answer {
    Now(Bytes),
    Later(JoinHandle<ApiResponse>),
}

async fn write(io: &mut (impl AsyncWrite + Unpin), out: &mut Vec<u8>) -> std::io::Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    io.write_all(out).await?;
    io.flush().await?;
    out.clear();
    Ok(())
}

enum Parsed<'a> {
    /// More bytes are needed to tell.
    Partial,
    /// Not a renewal, or not a plain one.
    Other,
    Whole(Renewal<'a>),
}

struct Renewal<'a> {
    body: &'a [u8],
    /// Bytes of head and body.
    len: usize,
}

impl<'a> Renewal<'a> {
    fn parse(bytes: &'a [u8]) -> Parsed<'a> {
        let compared = bytes.len().min(REQUEST_LINE.len());
        if bytes[..compared] != REQUEST_LINE[..compared] {
            return Parsed::Other;
        }
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let head = match request.parse(bytes) {
            Ok(httparse::Status::Complete(head)) => head,
            Ok(httparse::Status::Partial) if bytes.len() <= MAX_HEAD => return Parsed::Partial,
            _ => return Parsed::Other,
        };
        let Some(Framing { length: Some(length), keep: true }) = Framing::of(request.headers) else {
            return Parsed::Other;
        };
        if length > MAX_BODY {
            return Parsed::Other;
        }
        match bytes.get(head..head + length) {
            Some(body) => Parsed::Whole(Self { body, len: head + length }),
            None => Parsed::Partial,
        }
    }

    /// As the other requests of the peer port come.
    fn request(&self) -> ApiRequest {
        ApiRequest {
            method: Method::POST,
            path: "/leases".to_owned(),
            query: String::new(),
            headers: HeaderMap::from_iter([(http::header::CONTENT_TYPE, HeaderValue::from_static(PROTOBUF))]),
            body: Bytes::copy_from_slice(self.body),
        }
    }
}

/// Where a body ends, and whether another message follows.
struct Framing {
    length: Option<usize>,
    keep: bool,
}

impl Framing {
    /// `None` when the headers ask for anything but a body of known length: another coding, an expectation, an upgrade.
    fn of(headers: &[httparse::Header<'_>]) -> Option<Self> {
        let mut framing = Self { length: None, keep: true };
        for header in headers {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            if is("content-length") {
                let length = std::str::from_utf8(header.value).ok()?.trim();
                if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) || framing.length.is_some() {
                    return None;
                }
                framing.length = Some(length.parse().ok()?);
            } else if is("connection") {
                framing.keep = header.value.eq_ignore_ascii_case(b"keep-alive");
            } else if is("transfer-encoding") || is("expect") || is("upgrade") || is("content-encoding") {
                return None;
            }
        }
        Some(framing)
    }
}

fn put_answer(out: &mut Vec<u8>, body: &[u8]) {
    out.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Type: application/protobuf\r\n");
    put_end(out, body);
}

fn put_response(out: &mut Vec<u8>, response: &ApiResponse) {
    let status = response.status;
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
    for (name, value) in &response.headers {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    put_end(out, &response.body);
}

fn put_end(out: &mut Vec<u8>, body: &[u8]) {
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(b"Date: ");
    put_date(out);
    out.extend_from_slice(b"\r\nContent-Length: ");
    out.extend_from_slice(digits.format(body.len()).as_bytes());
    out.extend_from_slice(b"\r\n\r\n");
    out.extend_from_slice(body);
}

/// The time as headers tell it, made once a second.
fn put_date(out: &mut Vec<u8>) {
    thread_local! {
        static DATE: std::cell::RefCell<(u64, String)> = const { std::cell::RefCell::new((u64::MAX, String::new())) };
    }
    let now = SystemTime::now();
    let second = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    DATE.with_borrow_mut(|(made, text)| {
        if *made != second {
            (*made, *text) = (second, httpdate::fmt_http_date(now));
        }
        out.extend_from_slice(text.as_bytes());
    });
}

// ---- the follower's side ----

/// Requests on one connection that have no answer yet, at most; more go another way.
const MAX_WAITING: usize = 4096;
/// How long the first answer may stay out before a connection is given up. Twice as long for the one after it, so that a
/// peer far away is not given up again and again just before it answers, until one answers that soon after all. At most
/// [`MOST_PATIENCE`], which leaves time for the other way within a request's timeout.
const STUCK: Duration = Duration::from_millis(500);
const MOST_PATIENCE: Duration = Duration::from_secs(4);
/// A connection that has failed is not tried again before.
const REOPEN: Duration = Duration::from_secs(1);

/// What a pipe answers: status and body.
pub type PipeAnswer = (u16, Bytes);

/// The pipes of a server's runtimes to the member that leads, one for each runtime: a renewal stays on its thread.
pub struct LeasePipes {
    client: PeerClient,
    slots: Vec<Mutex<Option<Arc<LeasePipe>>>>,
}

impl LeasePipes {
    pub fn new(client: PeerClient, runtimes: usize) -> Self {
        Self { client, slots: (0..runtimes).map(|_| Mutex::default()).collect() }
    }

    /// Sends an encoded `LeaseKeepAliveRequest` to `url`, from the thread of runtime `runtime`, and returns with what will
    /// be the answer. `None` when there is no pipe: the last one failed just now, or too many wait.
    pub fn post(&self, runtime: usize, url: &str, body: &[u8]) -> Option<Pending> {
        let mut slot = self.slots.get(runtime)?.lock();
        let mut patience = STUCK;
        if let Some(pipe) = &*slot {
            if pipe.url.as_str() == url {
                patience = pipe.next_patience();
            }
            match pipe.state() {
                PipeState::Open if pipe.url.as_str() == url => return pipe.post(body),
                PipeState::Failed(at) if pipe.url.as_str() == url && at.elapsed() < REOPEN => return None,
                _ => {}
            }
        }
        let pipe = LeasePipe::open(self.client.dialer(), PeerUrl::parse(url).ok()?, patience);
        let pending = pipe.post(body);
        *slot = Some(pipe);
        pending
    }
}

#[derive(Clone, Copy)]
enum PipeState {
    Open,
    /// The other side closed it, as servers do after a while without requests.
    Ended,
    /// It could not be opened, gave no answer at all, or too late.
    Failed(Instant),
}

/// One connection to a peer, on which renewals are sent without waiting for the answers before.
struct LeasePipe {
    url: PeerUrl,
    /// How long the first answer may stay out.
    patience: Duration,
    /// A request up to the length of its body.
    head: Vec<u8>,
    shared: Mutex<PipeShared>,
}

struct PipeShared {
    state: PipeState,
    /// Requests that are not written yet.
    outgoing: Vec<u8>,
    /// Who waits, in the order of the requests.
    waiting: VecDeque<Waiting>,
    /// The connection's task.
    driver: Option<Waker>,
    /// When the last answer came.
    answered: Option<Instant>,
    /// An answer came within [`STUCK`].
    near: bool,
}

struct Waiting {
    since: Instant,
    answer: oneshot::Sender<PipeAnswer>,
}

/// An answer to come. `None`: it will not, and the request may or may not have been heard.
pub struct Pending(oneshot::Receiver<PipeAnswer>);

impl Future for Pending {
    type Output = Option<PipeAnswer>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<PipeAnswer>> {
        Pin::new(&mut self.0).poll(cx).map(Result::ok)
    }
}

impl LeasePipe {
    fn open(dialer: &Dialer, url: PeerUrl, patience: Duration) -> Arc<Self> {
        let head = format!(
            "POST /leases HTTP/1.1\r\nHost: {}\r\nContent-Type: {PROTOBUF}\r\nContent-Length: ",
            url.host_header()
        );
        let shared = PipeShared {
            state: PipeState::Open,
            outgoing: Vec::new(),
            waiting: VecDeque::new(),
            driver: None,
            answered: None,
            near: false,
        };
        let pipe = Arc::new(Self { url, patience, head: head.into_bytes(), shared: Mutex::new(shared) });
        let (driven, dialer) = (Arc::clone(&pipe), dialer.clone());
        tokio::spawn(async move {
            let late = match dialer.dial(&driven.url).await {
                Ok(io) => Driver::new(&driven, io).await,
                Err(_) => false,
            };
            driven.end(late);
        });
        pipe
    }

    fn state(&self) -> PipeState {
        self.shared.lock().state
    }

    /// What the connection after this one is given.
    fn next_patience(&self) -> Duration {
        let shared = self.shared.lock();
        match shared.state {
            _ if shared.near => STUCK,
            PipeState::Failed(_) if shared.answered.is_none() => (2 * self.patience).min(MOST_PATIENCE),
            _ => self.patience,
        }
    }

    fn post(&self, body: &[u8]) -> Option<Pending> {
        let mut shared = self.shared.lock();
        if !matches!(shared.state, PipeState::Open) || shared.waiting.len() >= MAX_WAITING {
            return None;
        }
        let mut digits = itoa::Buffer::new();
        shared.outgoing.extend_from_slice(&self.head);
        shared.outgoing.extend_from_slice(digits.format(body.len()).as_bytes());
        shared.outgoing.extend_from_slice(b"\r\n\r\n");
        shared.outgoing.extend_from_slice(body);
        let (answer, pending) = oneshot::channel();
        shared.waiting.push_back(Waiting { since: Instant::now(), answer });
        let driver = shared.driver.take();
        drop(shared);
        if let Some(driver) = driver {
            driver.wake();
        }
        Some(Pending(pending))
    }

    /// Everybody who still waits hears that there is no answer. `late`: it is the peer that does not answer.
    fn end(&self, late: bool) {
        let mut shared = self.shared.lock();
        let waiting = std::mem::take(&mut shared.waiting);
        let ended = shared.answered.is_some() && !late;
        shared.state = if ended { PipeState::Ended } else { PipeState::Failed(Instant::now()) };
        shared.outgoing = Vec::new();
        drop(shared);
        drop(waiting);
    }
}

/// Moves bytes between a pipe and its connection; done when the connection is.
struct Driver<'p> {
    pipe: &'p LeasePipe,
    io: Box<dyn Io>,
    writing: Vec<u8>,
    written: usize,
    unflushed: bool,
    chunk: Vec<u8>,
    reading: Vec<u8>,
    /// When to look whether the first answer is late.
    check: Pin<Box<Sleep>>,
}

/// The connection is of no use any longer.
struct Broken;

impl<'p> Driver<'p> {
    fn new(pipe: &'p LeasePipe, io: Box<dyn Io>) -> Self {
        Self {
            pipe,
            io,
            writing: Vec::new(),
            written: 0,
            unflushed: false,
            chunk: vec![0; CHUNK],
            reading: Vec::new(),
            check: Box::pin(sleep(pipe.patience)),
        }
    }

    /// Writes what is queued; pending when the socket takes no more, or there is nothing.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Broken> {
        loop {
            if self.written == self.writing.len() {
                self.writing.clear();
                self.written = 0;
                let mut shared = self.pipe.shared.lock();
                std::mem::swap(&mut self.writing, &mut shared.outgoing);
                if self.writing.is_empty() {
                    shared.driver = Some(cx.waker().clone());
                    break;
                }
            }
            match ready!(Pin::new(&mut self.io).poll_write(cx, &self.writing[self.written..])) {
                Ok(count) if count > 0 => self.written += count,
                _ => return Poll::Ready(Broken),
            }
            self.unflushed = true;
        }
        if self.unflushed {
            if ready!(Pin::new(&mut self.io).poll_flush(cx)).is_err() {
                return Poll::Ready(Broken);
            }
            self.unflushed = false;
        }
        Poll::Pending
    }

    /// Reads answers and hands them out; pending when there are no more.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Broken> {
        loop {
            let mut chunk = ReadBuf::new(&mut self.chunk);
            match ready!(Pin::new(&mut self.io).poll_read(cx, &mut chunk)) {
                Ok(()) if !chunk.filled().is_empty() => self.reading.extend_from_slice(chunk.filled()),
                _ => return Poll::Ready(Broken),
            }
            if self.hand_out().is_err() {
                return Poll::Ready(Broken);
            }
        }
    }

    fn hand_out(&mut self) -> Result<(), Broken> {
        let mut at = 0;
        let now = Instant::now();
        while let Some((answer, len)) = parse_answer(&self.reading[at..])? {
            at += len;
            let waiting = {
                let mut shared = self.pipe.shared.lock();
                shared.answered = Some(now);
                let waiting = shared.waiting.pop_front();
                shared.near |= waiting.as_ref().is_some_and(|waiting| now - waiting.since < STUCK);
                waiting
            };
            // One who gave up has left an empty place; an answer that nobody asked for is no answer.
            let _gave_up = waiting.ok_or(Broken)?.answer.send(answer);
        }
        self.reading.drain(..at);
        Ok(())
    }

    fn poll_stuck(&mut self, cx: &mut Context<'_>) -> Poll<Broken> {
        loop {
            ready!(self.check.as_mut().poll(cx));
            let since = {
                let shared = self.pipe.shared.lock();
                // A long row that moves is not stuck.
                shared.waiting.front().map(|first| shared.answered.map_or(first.since, |last| last.max(first.since)))
            };
            let due = since.unwrap_or_else(Instant::now) + self.pipe.patience;
            if due <= Instant::now() {
                return Poll::Ready(Broken);
            }
            self.check.as_mut().reset(due);
        }
    }
}

impl Future for Driver<'_> {
    /// Whether it ends because the first answer is late.
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        if self.poll_read(cx).is_ready() || self.poll_write(cx).is_ready() {
            return Poll::Ready(false);
        }
        self.poll_stuck(cx).map(|Broken| true)
    }
}

/// The answer at the front of `bytes` and its length; `None` when it is not whole yet.
fn parse_answer(bytes: &[u8]) -> Result<Option<(PipeAnswer, usize)>, Broken> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let head = match response.parse(bytes) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) if bytes.len() <= MAX_HEAD => return Ok(None),
        _ => return Err(Broken),
    };
    let (Some(status @ 200..), Some(framing)) = (response.code, Framing::of(response.headers)) else {
        return Err(Broken);
    };
    // A server that closes after this answer still has given it; reading on finds the end.
    let length = framing.length.filter(|length| *length <= MAX_BODY).ok_or(Broken)?;
    Ok(bytes.get(head..head + length).map(|body| ((status, Bytes::copy_from_slice(body)), head + length)))
}
