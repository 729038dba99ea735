//! How a call is made: connection, token, deadline, and when it is made again.

use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dolmen_proto::etcdserverpb as pb;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE, USER_AGENT};
use hyper::body::Incoming;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::config::{Config, Field, Level, Notice};
use crate::dial::Connection;
use crate::endpoint::Endpoint;
use crate::error::{Error, code, text};
use crate::pool::{Pool, SharedTls};
use crate::streaming::{Opening, Requests, Streaming};
use crate::wire::{Frames, Intake, Outgoing, decode, frame, is_unprocessed, timeout_text, transport_error};

const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
/// Attempts of one call.
const MAX_ATTEMPTS: u32 = 100;
/// Pause after a round of attempts, plus or minus a tenth.
const PAUSE: Duration = Duration::from_millis(25);
const CLIENT_API_VERSION: HeaderValue = HeaderValue::from_static("3.7");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("dolmen-client/", env!("CARGO_PKG_VERSION")));

/// May a call that failed on the way be made again?
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Retry {
    /// It changes nothing, or nothing the second time.
    Repeatable,
    /// Only when it certainly was not done.
    Once,
}

/// Everything behind a [`crate::Client`].
#[derive(Clone)]
pub(crate) struct Core {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    endpoints: Arc<[String]>,
    timeout: Option<Duration>,
    require_leader: bool,
}

struct Shared {
    config: Config,
    tls: SharedTls,
    token: Mutex<Option<HeaderValue>>,
    /// Held while a new token is fetched, so that many refused calls ask for one.
    refreshing: tokio::sync::Mutex<()>,
}

/// A failed attempt.
struct Failure {
    error: Error,
    /// As the attempt itself would print: what the log shows.
    text: String,
    peer: Option<Arc<str>>,
}

impl Core {
    pub async fn connect(config: Config) -> Result<Core, Error> {
        if config.endpoints.is_empty() || config.endpoints.iter().all(String::is_empty) {
            return Err(Error::client("etcdclient: no available endpoints"));
        }
        if config.token.is_some() && config.user.is_some() {
            return Err(Error::client("Username/Password and Token configurations are mutually exclusive"));
        }
        // A limit that nobody set contradicts nothing.
        let send_is_set = config.max_request_bytes != crate::config::DEFAULT_MAX_REQUEST_BYTES;
        if send_is_set && config.max_request_bytes > config.max_recv_bytes {
            let (recv, send) = (config.max_recv_bytes, config.max_request_bytes);
            let text = format!("gRPC message recv limit ({recv} bytes) must be greater than send limit ({send} bytes)");
            return Err(Error::client(text));
        }
        let token = match &config.token {
            Some(token) => Some(header(token)?),
            None => None,
        };
        let tls = SharedTls::new(config.tls.clone());
        tls.check()?;
        let pool = Pool::new(&config.endpoints, tls.clone(), &config);
        let endpoints = config.endpoints.clone().into();
        let dial_timeout = config.dial_timeout;
        let refreshing = tokio::sync::Mutex::new(());
        let shared = Arc::new(Shared { config, tls, token: Mutex::new(token), refreshing });
        let core = Core { shared, pool, endpoints, timeout: None, require_leader: false };
        if core.credentials().is_some() {
            let limit = Some(dial_timeout).filter(|limit| !limit.is_zero());
            core.with_timeout(limit).refresh_token().await?;
        }
        Ok(core)
    }

    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    pub fn dial_timeout(&self) -> Duration {
        self.shared.config.dial_timeout
    }

    pub fn at(&self, endpoint: &str) -> Result<Core, Error> {
        if endpoint.is_empty() {
            return Err(Error::client("etcdclient: no available endpoints"));
        }
        let endpoints = vec![endpoint.to_owned()];
        let pool = Pool::new(&endpoints, self.shared.tls.clone(), &self.shared.config);
        Ok(Core { pool, endpoints: endpoints.into(), ..self.clone() })
    }

    pub fn with_timeout(&self, timeout: Option<Duration>) -> Core {
        Core { timeout, ..self.clone() }
    }

    pub fn with_require_leader(&self) -> Core {
        Core { require_leader: true, ..self.clone() }
    }

    /// One request, one answer.
    pub async fn unary<Q, R>(&self, path: &'static str, request: &Q, retry: Retry) -> Result<R, Error>
    where
        Q: Message,
        R: Message + Default,
    {
        let frame = frame(request, self.shared.config.max_request_bytes)
            .inspect_err(|error| self.warn_of(path, 0, &Failure::new(error.clone(), None)))?;
        let answer = self.call(path, frame, retry, true, None).await?;
        decode(answer)
    }

    /// As [`Core::unary`], but the answer goes into `intake` while it comes. Nothing of it counts unless this returns `Ok`.
    pub async fn unary_into<Q: Message>(
        &self,
        path: &'static str,
        request: &Q,
        retry: Retry,
        intake: &mut (dyn Intake + Send),
    ) -> Result<(), Error> {
        let frame = frame(request, self.shared.config.max_request_bytes)
            .inspect_err(|error| self.warn_of(path, 0, &Failure::new(error.clone(), None)))?;
        self.call(path, frame, retry, true, Some(intake)).await.map(|_| ())
    }

    /// Makes a call until it is answered, or may not be made again. `renew`: a refused token is renewed. With an `intake`,
    /// which takes the answer, none is returned.
    async fn call<'i>(
        &self,
        path: &'static str,
        frame: Bytes,
        retry: Retry,
        renew: bool,
        mut intake: Option<&mut (dyn Intake + Send + 'i)>,
    ) -> Result<Bytes, Error> {
        let deadline = self.deadline();
        let mut attempt = 0;
        loop {
            let failure = match self.attempt(path, frame.clone(), deadline, renew, intake.as_deref_mut()).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            self.warn_of(path, attempt, &failure);
            let Failure { error, .. } = failure;
            attempt += 1;
            if attempt >= MAX_ATTEMPTS || error.is_timeout() {
                return Err(error);
            }
            if renew && self.renews_token_for(&error) {
                // Boxed, since a login is a call itself.
                let login = Box::pin(self.refresh_token());
                within(deadline, login).await.unwrap_or_else(|| Err(Error::deadline()))?;
            } else if !self.may_repeat(&error, retry) {
                return Err(error);
            }
            self.pause(attempt, deadline).await?;
        }
    }

    /// Is another attempt harmless, and may it help?
    fn may_repeat(&self, error: &Error, retry: Retry) -> bool {
        // Refused by a learner: a voter may be among the others.
        if error.is(text::NOT_SUPPORTED_FOR_LEARNER) && self.endpoints.len() > 1 {
            return true;
        }
        retry == Retry::Repeatable && error.code() == code::UNAVAILABLE
    }

    /// Waits a little after each round through a majority of the endpoints.
    async fn pause(&self, attempt: u32, deadline: Option<Instant>) -> Result<(), Error> {
        let majority = u32::try_from(self.endpoints.len() / 2 + 1).unwrap_or(u32::MAX);
        if !attempt.is_multiple_of(majority) {
            return Ok(());
        }
        let random = std::hash::RandomState::new().build_hasher().finish();
        let pause = PAUSE * 9 / 10 + PAUSE * u32::try_from(random % 200).unwrap_or(0) / 1000;
        let wake = Instant::now() + pause;
        match deadline.filter(|deadline| *deadline < wake) {
            None => {
                tokio::time::sleep_until(wake).await;
                Ok(())
            }
            Some(deadline) => {
                tokio::time::sleep_until(deadline).await;
                Err(Error::deadline())
            }
        }
    }

    async fn attempt<'i>(
        &self,
        path: &'static str,
        frame: Bytes,
        deadline: Option<Instant>,
        authorized: bool,
        mut intake: Option<&mut (dyn Intake + Send + 'i)>,
    ) -> Result<Bytes, Failure> {
        let mut unprocessed = 0;
        loop {
            let connection = self.pick(deadline).await?;
            let failed = |error| Failure::new(error, Some(&connection));
            let headers = self.headers(deadline, authorized);
            let exchange = async {
                let body = Outgoing::One(Some(frame.clone()));
                let sent = send(&connection, path, headers, body).await.map_err(|lost| match lost {
                    Lost::Unprocessed => None,
                    Lost::Unknown(error) => Some(error),
                })?;
                let mut frames = Frames::new(sent, self.shared.config.max_recv_bytes).map_err(Some)?;
                let answer = match intake.as_deref_mut() {
                    None => frames.next().await,
                    Some(intake) => frames.next_into(intake).await.map(|taken| taken.map(|()| Bytes::new())),
                };
                let answer = answer.map_err(Some)?.ok_or_else(|| Some(Error::status(code::INTERNAL, NO_MESSAGE)))?;
                // The status comes after the message, and may still be an error.
                match frames.next().await.map_err(Some)? {
                    None => Ok(answer),
                    Some(_) => Err(Some(Error::status(code::INTERNAL, TWO_MESSAGES))),
                }
            };
            return match within(deadline, exchange).await {
                Some(Ok(answer)) => Ok(answer),
                // Nobody has seen it: again, to whoever is up.
                Some(Err(None)) => {
                    unprocessed += 1;
                    // Once is a connection lost in the meantime; more often, a server that is not well.
                    if unprocessed > 1 {
                        self.pause(0, deadline).await.map_err(failed)?;
                    }
                    continue;
                }
                Some(Err(Some(error))) => Err(failed(self.own_deadline(error, deadline))),
                None => Err(Failure {
                    text: "rpc error: code = DeadlineExceeded desc = context deadline exceeded".to_owned(),
                    ..failed(Error::deadline())
                }),
            };
        }
    }

    /// A server that counted our time down sooner than we did means the same.
    fn own_deadline(&self, error: Error, deadline: Option<Instant>) -> Error {
        if deadline.is_some() && !error.is_known() && error.code() == code::DEADLINE_EXCEEDED {
            Error::deadline()
        } else {
            error
        }
    }

    async fn pick(&self, deadline: Option<Instant>) -> Result<Connection, Failure> {
        match within(deadline, self.pool.pick()).await {
            Some(connection) => Ok(connection),
            None => {
                let last = self.pool.last_error();
                let why = match &last {
                    Some(last) => format!("latest balancer error: {last}"),
                    None => "received context error while waiting for new LB policy update: context deadline exceeded"
                        .to_owned(),
                };
                let text = format!("rpc error: code = DeadlineExceeded desc = {why}");
                Err(Failure { error: Error::deadline().with_connection(last), text, peer: None })
            }
        }
    }

    /// One request, many answers. Made again until the first answer is there, as a read.
    pub async fn server_stream<Q, R>(&self, path: &'static str, request: &Q) -> Result<Streaming<R>, Error>
    where
        Q: Message,
        R: Message + Default,
    {
        let frame = frame(request, self.shared.config.max_request_bytes)?;
        let deadline = self.deadline();
        let mut attempt = 0;
        loop {
            let connection = self.pick(deadline).await.map_err(|failure| failure.error)?;
            let body = Outgoing::One(Some(frame.clone()));
            let mut streaming = self.streaming(&connection, path, body, deadline);
            let Err(error) = streaming.begin().await else { return Ok(streaming) };
            let error = self.own_deadline(error, deadline);
            attempt += 1;
            if attempt >= MAX_ATTEMPTS || error.is_timeout() {
                return Err(error);
            }
            if self.renews_token_for(&error) {
                self.refresh_token().await?;
            } else if !self.may_repeat(&error, Retry::Repeatable) {
                return Err(error);
            }
            self.pause(attempt, deadline).await?;
        }
    }

    /// Many requests, many answers, as long as either side likes; no time limit. Returns as soon as there is a connection,
    /// before any answer: a server may say nothing until it is asked.
    pub async fn duplex<Q, R>(&self, path: &'static str) -> Result<(Requests<Q>, Streaming<R>), Error>
    where
        Q: Message,
        R: Message + Default,
    {
        let connection = self.pool.pick().await;
        let (frames, body) = mpsc::unbounded_channel();
        let streaming = self.streaming(&connection, path, Outgoing::Many(body), None);
        Ok((Requests::new(frames, self.shared.config.max_request_bytes), streaming))
    }

    fn streaming<R: Message + Default>(
        &self,
        connection: &Connection,
        path: &'static str,
        body: Outgoing,
        deadline: Option<Instant>,
    ) -> Streaming<R> {
        let connection = connection.clone();
        let headers = self.headers(deadline, true);
        let opening: Opening = Box::pin(async move {
            send(&connection, path, headers, body).await.map_err(|lost| match lost {
                Lost::Unprocessed => Error::status(code::UNAVAILABLE, "transport is closing"),
                Lost::Unknown(error) => error,
            })
        });
        Streaming::new(Arc::clone(&self.pool), opening, self.shared.config.max_recv_bytes, deadline)
    }

    fn headers(&self, deadline: Option<Instant>, authorized: bool) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(USER_AGENT, AGENT);
        headers.insert("client-api-version", CLIENT_API_VERSION);
        if self.require_leader {
            headers.insert("hasleader", HeaderValue::from_static("true"));
        }
        if let Some(token) = self.token().filter(|_| authorized) {
            headers.insert("token", token);
        }
        if let Some(deadline) = deadline {
            let left = timeout_text(deadline - Instant::now());
            if let Ok(value) = HeaderValue::from_str(&left) {
                headers.insert("grpc-timeout", value);
            }
        }
        headers
    }

    fn deadline(&self) -> Option<Instant> {
        self.timeout.and_then(|limit| Instant::now().checked_add(limit))
    }

    /// Bounds something that consists of several calls by this client's time limit.
    pub async fn within_limit<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        match within(self.deadline(), call).await {
            Some(done) => done,
            None => Err(Error::deadline().with_connection(self.pool.last_error())),
        }
    }

    // ---- tokens ----

    fn credentials(&self) -> Option<(&str, &str)> {
        let (name, password) = self.shared.config.user.as_ref()?;
        (!name.is_empty() && !password.is_empty()).then_some((name, password))
    }

    fn token(&self) -> Option<HeaderValue> {
        self.shared.token.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Was the call refused for a reason that a new token, or just a second look, removes? A token that was given is used
    /// as it is.
    pub fn renews_token_for(&self, error: &Error) -> bool {
        if self.shared.config.token.is_some() {
            return false;
        }
        if error.is(text::USER_EMPTY) {
            return self.credentials().is_some();
        }
        error.is(text::INVALID_AUTH_TOKEN) || error.is(text::AUTH_OLD_REVISION)
    }

    /// Fetches a new token, unless somebody else did meanwhile. False: there is no user to fetch one for.
    pub async fn refresh_token(&self) -> Result<bool, Error> {
        let Some((name, password)) = self.credentials() else { return Ok(false) };
        let refused = self.token();
        let _refreshing = self.shared.refreshing.lock().await;
        if self.token() != refused {
            return Ok(true);
        }
        let request = pb::AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
        let frame = frame(&request, self.shared.config.max_request_bytes)?;
        let token = match self.call(AUTHENTICATE, frame, Retry::Repeatable, false, None).await {
            Ok(answer) => Some(header(&decode::<pb::AuthenticateResponse>(answer)?.token)?),
            Err(error) if error.is(text::AUTH_NOT_ENABLED) => None,
            Err(error) => return Err(error),
        };
        *self.shared.token.lock().unwrap_or_else(PoisonError::into_inner) = token;
        Ok(true)
    }

    // ---- log ----

    fn warn_of(&self, method: &'static str, attempt: u32, failure: &Failure) {
        let Some(log) = &self.shared.config.log else { return };
        let text = |text: &str| Field::Text(text.to_owned());
        let first = self.endpoints.first().map_or("", |first| Endpoint::after_scheme(first));
        let target = format!("etcd-endpoints://{:p}/{first}", Arc::as_ptr(&self.pool));
        log(&Notice {
            level: Level::Warn,
            message: "retrying of unary invoker failed",
            fields: vec![
                ("target", Field::Text(target)),
                ("peer", text(failure.peer.as_deref().unwrap_or(NO_PEER))),
                ("method", text(method)),
                ("attempt", Field::Number(attempt.into())),
                ("error", text(&failure.text)),
            ],
        });
    }
}

const NO_PEER: &str = "Peer{Addr: <nil>, LocalAddr: <nil>, AuthInfo: <nil>}";
const NO_MESSAGE: &str = "cardinality violation: received no response message from non-server-streaming RPC";
const TWO_MESSAGES: &str = "cardinality violation: received multiple response messages for non-server-streaming RPC";

impl Failure {
    fn new(error: Error, connection: Option<&Connection>) -> Failure {
        let text = error.status_text();
        Failure { error, text, peer: connection.map(|connection| Arc::clone(&connection.peer)) }
    }
}

/// A request without answer.
enum Lost {
    /// No server has looked at it.
    Unprocessed,
    Unknown(Error),
}

async fn send(
    connection: &Connection,
    path: &'static str,
    headers: HeaderMap,
    body: Outgoing,
) -> Result<http::Response<Incoming>, Lost> {
    let uri = http::Uri::builder().scheme(connection.scheme).authority(&*connection.authority).path_and_query(path);
    // An authority that no URI can have, from the name of a socket, say, is replaced as Go does for such names.
    let uri = uri.build().or_else(|_| {
        http::Uri::builder().scheme(connection.scheme).authority("localhost").path_and_query(path).build()
    });
    let uri = uri.map_err(|error| Lost::Unknown(Error::client(error.to_string())))?;
    let mut request = http::Request::new(body);
    *request.method_mut() = http::Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    let mut sender = connection.sender.clone();
    sender.try_send_request(request).await.map_err(|error| {
        if error.message().is_some() || is_unprocessed(error.error()) {
            Lost::Unprocessed
        } else {
            Lost::Unknown(transport_error(error.error()))
        }
    })
}

/// `None`: the time was up first.
async fn within<T>(deadline: Option<Instant>, call: impl Future<Output = T>) -> Option<T> {
    match deadline {
        None => Some(call.await),
        Some(deadline) => tokio::time::timeout_at(deadline, call).await.ok(),
    }
}

fn header(token: &str) -> Result<HeaderValue, Error> {
    HeaderValue::from_str(token).map_err(|_| Error::client("the auth token cannot be sent: it has odd characters"))
}
