//! From the global flags to a client: what is asked for, in which order mistakes are told, and how long a call may
//! take.
//!
//! Nothing here happens before a command has checked its own arguments. Then, in this order: the environment (a
//! variable and its flag together are a mistake), discovery, certificates, the user and the password prompt, the output
//! format, the files of TLS, and the client itself, which logs in.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dolmen_cli::zap::{self, Logger};
use dolmen_cli::{Call, Failure, complain, golang};
use dolmen_client::{Client, Config, Error, Field, Level, Notice, Tls, discovery};

use crate::hints;
use crate::output::Printer;
use crate::process::ask_password;

/// How long each call of a command may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `--command-timeout`, also from `ETCDCTL_COMMAND_TIMEOUT`: etcdctl overlooks the variable in the commands that
    /// start their clock before they read it (`get`, `put`, `del`, `lease grant`, `lease revoke`).
    Command,
    /// `--command-timeout` when it was given, otherwise no limit.
    IfGiven,
    /// As long as it takes.
    None,
}

/// What a connected command works with.
pub struct Link {
    /// Bounded by the command's [`Limit`].
    pub client: Client,
    /// For the answers.
    pub printer: Printer,
    /// The limit the client was given; `None`: none.
    pub limit: Option<Duration>,
    /// The global flags, for commands that need further clients.
    pub options: Options,
}

/// The global flags, read.
#[derive(Clone)]
pub struct Options {
    /// Where the members are.
    pub endpoints: Vec<String>,
    pub dial_timeout: Duration,
    /// For calls of commands that have a limit.
    pub command_timeout: Duration,
    /// `--command-timeout` was given, by flag or environment.
    pub command_timeout_given: bool,
    pub keepalive_time: Duration,
    pub keepalive_timeout: Duration,
    /// 0: the default.
    pub max_request_bytes: i64,
    /// 0: the default.
    pub max_recv_bytes: i64,
    pub secure: Secure,
    pub auth: Option<Auth>,
    pub printer: Printer,
}

/// Files and rules of TLS, as flags name them; empty: not given.
#[derive(Clone, Debug, Default)]
pub struct Secure {
    pub cert: String,
    pub key: String,
    pub cacert: String,
    pub server_name: String,
    pub insecure_transport: bool,
    pub insecure_skip_verify: bool,
}

/// Who asks.
#[derive(Clone, Debug)]
pub enum Auth {
    /// Name and password.
    User(String, String),
    /// A token made elsewhere.
    Token(String),
}

/// Reads the global flags, connects, and runs `work`; the whole middle of most commands.
///
/// # Errors
/// Those of [`Options::read`], [`Options::connect`] and `work`.
pub fn run(call: &Call, limit: Limit, work: impl AsyncFnOnce(Link) -> Result<(), Failure>) -> Result<(), Failure> {
    block_on(async {
        let options = Options::read(call).await?;
        let link = options.link(limit).await?;
        work(link).await
    })
}

/// Runs a future to its end on this thread.
///
/// # Errors
/// Its own, or that the kernel gives no poller.
pub fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(work);
    // A child process that is still waited for, or a reader of stdin, does not hold up the end.
    runtime.shutdown_background();
    outcome
}

impl Options {
    /// The global flags and the environment; asks for a password where one is missing.
    ///
    /// # Errors
    /// Conflicting variables, discovery (both exit 1), empty file names (128), an output format that does not exist
    /// (4).
    pub async fn read(call: &Call) -> Result<Options, Failure> {
        // The two variables of `watch` belong to no flag.
        let silent: &[&str] =
            if call.command().usage.starts_with("watch") { &["watch-key", "watch-range-end"] } else { &[] };
        let call = &call.environment(silent)?;
        if call.boolean("debug") {
            for (name, value) in call.inherited() {
                complain(format!("ETCDCTL_{}={value}\n", name.to_uppercase().replace('-', "_")));
            }
        }
        let endpoints = endpoints(call).await?;
        let mut secure = Secure::read(call)?;
        if !call.boolean("insecure-discovery") {
            secure.server_name = call.text("discovery-srv").to_owned();
        }
        let token = call.text("auth-jwt-token");
        let auth = if token.is_empty() {
            user(call.text("user"), call.text("password"), "Password: ")?
        } else {
            Some(Auth::Token(token.to_owned()))
        };
        Ok(Options {
            endpoints,
            dial_timeout: duration(call, "dial-timeout"),
            command_timeout: duration(call, "command-timeout"),
            command_timeout_given: call.changed("command-timeout"),
            keepalive_time: duration(call, "keepalive-time"),
            keepalive_timeout: duration(call, "keepalive-timeout"),
            max_request_bytes: call.int("max-request-bytes"),
            max_recv_bytes: call.int("max-recv-bytes"),
            secure,
            auth,
            printer: Printer::new(call.text("write-out"), call.boolean("hex"))?,
        })
    }

    /// A client of the endpoints, and what goes with it.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn link(self, limit: Limit) -> Result<Link, Failure> {
        let limit = match limit {
            Limit::Command => Some(self.command_timeout),
            Limit::IfGiven => self.command_timeout_given.then_some(self.command_timeout),
            Limit::None => None,
        };
        let client = self.connect().await?.with_timeout(limit);
        Ok(Link { client, printer: self.printer, limit, options: self })
    }

    /// A client of the endpoints, without a limit on its calls.
    ///
    /// # Errors
    /// Files of TLS (exit 128); limits that contradict each other, no endpoints, a failed login (exit 2).
    pub async fn connect(&self) -> Result<Client, Failure> {
        Client::connect(self.config()?).await.map_err(|e| no_client(&e))
    }

    /// What a client is made from.
    ///
    /// # Errors
    /// Files of TLS (exit 128); limits that contradict each other (exit 2).
    pub fn config(&self) -> Result<Config, Failure> {
        let tls = self.secure.tls()?;
        let (send, receive) = (self.max_request_bytes, self.max_recv_bytes);
        if receive > 0 && send > receive {
            return Err(Failure::bad_connection(format!(
                "gRPC message recv limit ({receive} bytes) must be greater than send limit ({send} bytes)"
            )));
        }
        let standard = Config::new(self.endpoints.iter().cloned());
        let (user, token) = match &self.auth {
            // Go's client logs in only with both.
            Some(Auth::User(name, password)) if !name.is_empty() && !password.is_empty() => {
                (Some((name.clone(), password.clone())), None)
            }
            Some(Auth::Token(token)) => (None, Some(token.clone())),
            _ => (None, None),
        };
        Ok(Config {
            tls,
            user,
            token,
            dial_timeout: self.dial_timeout,
            keepalive_time: self.keepalive_time,
            keepalive_timeout: self.keepalive_timeout,
            max_request_bytes: positive(send).unwrap_or(standard.max_request_bytes),
            max_recv_bytes: positive(receive).unwrap_or(standard.max_recv_bytes),
            log: Some(Arc::new(log)),
            ..standard
        })
    }
}

fn positive(limit: i64) -> Option<usize> {
    usize::try_from(limit).ok().filter(|limit| *limit > 0)
}

/// A client that could not be made.
fn no_client(error: &Error) -> Failure {
    hints::failure_with(2, error, "")
}

/// A flag's duration; what is below zero is over at once.
pub fn duration(call: &Call, name: &str) -> Duration {
    Duration::from_nanos(call.duration(name).max(0).unsigned_abs())
}

/// `--user` and `--password`: the password from the second, or behind the first `:` of the first, or asked for.
///
/// # Errors
/// The password cannot be read.
pub fn user(user: &str, password: &str, prompt: &str) -> Result<Option<Auth>, Failure> {
    if user.is_empty() {
        return Ok(None);
    }
    let (name, password) = if !password.is_empty() {
        (user.to_owned(), password.to_owned())
    } else if let Some((name, password)) = user.split_once(':') {
        (name.to_owned(), password.to_owned())
    } else {
        (user.to_owned(), ask_password(prompt)?)
    };
    Ok(Some(Auth::User(name, password)))
}

/// The endpoints of `--discovery-srv`, or else of `--endpoints`.
///
/// # Errors
/// The lookup's (exit 1).
async fn endpoints(call: &Call) -> Result<Vec<String>, Failure> {
    let domain = call.text("discovery-srv");
    if !domain.is_empty() {
        let found =
            discovery::client_records(domain, call.text("discovery-srv-name")).await.map_err(|e| hints::failure(&e))?;
        let found: Vec<String> = found.iter().map(|record| record.endpoint()).collect();
        let found = if call.boolean("insecure-discovery") { found } else { only_secure(found) };
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(call.list("endpoints").iter().map(|endpoint| endpoint.trim().to_owned()).collect())
}

fn only_secure(endpoints: Vec<String>) -> Vec<String> {
    let (insecure, secure): (Vec<_>, Vec<_>) = endpoints.into_iter().partition(|one| one.starts_with("http://"));
    for endpoint in insecure {
        complain(format!("ignoring discovered insecure endpoint {}\n", golang::quote(&endpoint)));
    }
    secure
}

impl Secure {
    fn read(call: &Call) -> Result<Secure, Failure> {
        let file = |name: &str| {
            let path = call.text(name);
            if path.is_empty() && call.changed(name) {
                return Err(Failure::bad_args(format!("empty string is passed to --{name} option")));
            }
            Ok(path.to_owned())
        };
        Ok(Secure {
            cert: file("cert")?,
            key: file("key")?,
            cacert: file("cacert")?,
            server_name: String::new(),
            insecure_transport: call.boolean("insecure-transport"),
            insecure_skip_verify: call.boolean("insecure-skip-tls-verify"),
        })
    }

    /// What the client is told; `None` when nothing asks for TLS but, perhaps, an endpoint.
    ///
    /// # Errors
    /// Files that are missing, unreadable or no certificates (exit 128).
    pub fn tls(&self) -> Result<Option<Tls>, Failure> {
        let Secure { cert, key, cacert, server_name, .. } = self;
        let named = [cert, key, cacert, server_name].iter().any(|text| !text.is_empty());
        if !named && self.insecure_transport && !self.insecure_skip_verify {
            return Ok(None);
        }
        if cert.is_empty() != key.is_empty() {
            return Err(Failure::bad_args(format!(
                "KeyFile and CertFile must both be present[key: {key}, cert: {cert}]"
            )));
        }
        let path = |text: &String| (!text.is_empty()).then(|| PathBuf::from(text));
        let tls = Tls {
            ca_file: path(cacert),
            cert_file: path(cert),
            key_file: path(key),
            server_name: (!server_name.is_empty()).then(|| server_name.clone()),
            skip_verify: self.insecure_skip_verify,
        };
        tls.check().map_err(Failure::bad_args)?;
        Ok(Some(tls))
    }
}

/// The client's warnings, as Go's client writes them.
fn log(notice: &Notice) {
    let level = match notice.level {
        Level::Debug | Level::Info => return,
        Level::Warn => zap::Level::Warn,
        Level::Error => zap::Level::Error,
    };
    let fields: Vec<(&str, zap::Field)> = notice
        .fields
        .iter()
        .map(|(name, value)| {
            let value = match value {
                Field::Text(text) => zap::Field::text(text),
                Field::Number(number) => zap::Field::uint(*number),
            };
            (*name, value)
        })
        .collect();
    Logger::json().named("etcd-client").log(level, "v3@v3.7.3/retry_interceptor.go:68", notice.message, &fields);
}
