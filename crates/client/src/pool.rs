//! Which endpoint takes the next call.
//!
//! Connections are made when a call needs one. The first call dials an endpoint drawn by lot, so that tools which scripts
//! call in loops load all members, and the next endpoint as soon as that fails or lets it wait; so a tool that makes one
//! call makes one connection. From the second call on all endpoints are brought up, and calls go to those that are up in
//! turn. An endpoint that cannot be reached is left alone for a pause that grows; a connection that was lost is dialed
//! again at the next call. If nothing is up, a call waits: how long is its own business, and [`Pool::last_error`] says why
//! it waited in vain.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustls::ClientConfig;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::{Config, Tls};
use crate::dial::{Connection, Pings, Security, dial};
use crate::endpoint::Endpoint;
use crate::error::{ConnectionError, ConnectionReason, Error};
use crate::tls::client_config;

/// A dial may take so long before the next endpoint is dialed as well.
const STAGGER: Duration = Duration::from_millis(200);
/// Pauses after failed dials of an endpoint: doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// The endpoints and their connections.
pub(crate) struct Pool {
    endpoints: Vec<Endpoint>,
    tls: SharedTls,
    pings: Pings,
    state: Mutex<State>,
    /// Some slot has changed.
    changed: Notify,
}

struct State {
    slots: Vec<Slot>,
    /// The slot to look at first.
    next: usize,
    /// Calls that were given a connection so far.
    picks: u64,
    last_error: Option<Arc<ConnectionError>>,
}

enum Slot {
    Idle,
    Dialing { since: Instant },
    Ready(Connection),
    Failed { until: Instant, pause: Duration },
}

/// TLS as configured; built once, when the first handshake needs it, and shared by all pools of a client.
#[derive(Clone)]
pub(crate) struct SharedTls {
    tls: Option<Tls>,
    built: Arc<OnceLock<Result<Arc<ClientConfig>, Error>>>,
}

impl SharedTls {
    pub fn new(tls: Option<Tls>) -> SharedTls {
        SharedTls { tls, built: Arc::new(OnceLock::new()) }
    }

    /// Files that were named are read at once, so that a wrong one is told as such.
    pub fn check(&self) -> Result<(), Error> {
        let named = self
            .tls
            .as_ref()
            .is_some_and(|tls| tls.ca_file.is_some() || tls.cert_file.is_some() || tls.key_file.is_some());
        if named { self.config().map(|_| ()) } else { Ok(()) }
    }

    fn config(&self) -> Result<Arc<ClientConfig>, Error> {
        self.built.get_or_init(|| client_config(&self.tls.clone().unwrap_or_default())).clone()
    }

    fn security(&self) -> Result<Security, Error> {
        let server_name = self.tls.as_ref().and_then(|tls| tls.server_name.clone()).filter(|name| !name.is_empty());
        Ok(Security { config: self.config()?, server_name })
    }
}

/// A number below `count`, another one each time; 0 when there is no choice.
fn lot(count: usize) -> usize {
    // The standard library seeds its hashers at random.
    let drawn = RandomState::new().build_hasher().finish();
    usize::try_from(drawn % count.max(1) as u64).unwrap_or(0)
}

impl Pool {
    pub fn new(endpoints: &[String], tls: SharedTls, config: &Config) -> Arc<Pool> {
        let endpoints: Vec<Endpoint> = endpoints.iter().map(|text| Endpoint::parse(text, tls.tls.is_some())).collect();
        let slots = endpoints.iter().map(|_| Slot::Idle).collect();
        let pings = Pings { interval: config.keepalive_time, timeout: config.keepalive_timeout };
        let next = lot(endpoints.len());
        let state = Mutex::new(State { slots, next, picks: 0, last_error: None });
        Arc::new(Pool { endpoints, tls, pings, state, changed: Notify::new() })
    }

    /// The last dial that failed, if no connection was made since.
    pub fn last_error(&self) -> Option<Arc<ConnectionError>> {
        self.lock().last_error.clone()
    }

    /// A connection that is up, the next in turn. Waits as long as there is none.
    pub async fn pick(self: &Arc<Self>) -> Connection {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            let look_again = match self.try_pick(Instant::now()) {
                Ok(connection) => return connection,
                Err(look_again) => look_again,
            };
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(look_again) => {}
            }
        }
    }

    /// A connection, or when to look again; dials what is due.
    fn try_pick(self: &Arc<Self>, now: Instant) -> Result<Connection, Instant> {
        let mut state = self.lock();
        state.forget_lost();
        let count = state.slots.len();
        let turn: Vec<usize> = (0..count).map(|step| (state.next + step) % count).collect();
        let found = turn.iter().find_map(|at| match &state.slots[*at] {
            Slot::Ready(connection) => Some((*at, connection.clone())),
            _ => None,
        });
        let Some((at, connection)) = found else {
            return Err(self.dial_one(&mut state, &turn, now));
        };
        state.next = (at + 1) % count;
        if state.picks > 0 {
            for at in 0..count {
                if state.slots[at].is_due(now) {
                    self.dial(&mut state, at, now);
                }
            }
        }
        state.picks += 1;
        Ok(connection)
    }

    /// Nothing is up: dials the next endpoint, unless another one was dialed just now. Returns when to look again.
    fn dial_one(self: &Arc<Self>, state: &mut State, turn: &[usize], now: Instant) -> Instant {
        let last_dial = state.slots.iter().filter_map(|slot| match slot {
            Slot::Dialing { since } => Some(*since),
            _ => None,
        });
        let may_dial = last_dial.max().map_or(now, |since| since + STAGGER);
        if may_dial > now {
            return may_dial;
        }
        if let Some(at) = turn.iter().copied().find(|at| state.slots[*at].is_due(now)) {
            self.dial(state, at, now);
            return now + STAGGER;
        }
        let retries = state.slots.iter().filter_map(|slot| match slot {
            Slot::Failed { until, .. } => Some(*until),
            _ => None,
        });
        retries.min().unwrap_or(now + LAST_PAUSE)
    }

    fn dial(self: &Arc<Self>, state: &mut State, at: usize, now: Instant) {
        let pause = match state.slots[at] {
            Slot::Failed { pause, .. } => (pause * 2).min(LAST_PAUSE),
            _ => FIRST_PAUSE,
        };
        state.slots[at] = Slot::Dialing { since: now };
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            let result = pool.connect(&pool.endpoints[at]).await;
            let mut state = pool.lock();
            match result {
                Ok(connection) => {
                    state.slots[at] = Slot::Ready(connection);
                    state.last_error = None;
                }
                Err(error) => {
                    state.slots[at] = Slot::Failed { until: Instant::now() + pause, pause };
                    state.last_error = Some(Arc::new(error));
                }
            }
            drop(state);
            pool.changed.notify_waiters();
        });
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Connection, ConnectionError> {
        let security = match endpoint.tls.then(|| self.tls.security()).transpose() {
            Ok(security) => security,
            Err(error) => {
                let reason = ConnectionReason::Configuration;
                return Err(ConnectionError { endpoint: endpoint.text.clone(), reason, text: error.to_string() });
            }
        };
        dial(endpoint, security, self.pings).await
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds it can leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn forget_lost(&mut self) {
        for slot in &mut self.slots {
            if matches!(slot, Slot::Ready(connection) if connection.sender.is_closed()) {
                *slot = Slot::Idle;
            }
        }
    }
}

impl Slot {
    fn is_due(&self, now: Instant) -> bool {
        match self {
            Slot::Idle => true,
            Slot::Failed { until, .. } => *until <= now,
            Slot::Dialing { .. } | Slot::Ready(_) => false,
        }
    }
}
