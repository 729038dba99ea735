//! Users, roles and logins.
//!
//! Changes go through the log, where root's right is checked; reads are answered here, once a quorum has confirmed that
//! nothing is missing. A password is hashed and compared on a thread that nobody else waits for, a few at a time.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dolmen_auth::{Auth, AuthError, Outcome, Password, TOKEN_LETTERS, TOKEN_PREFIX_BYTES, hash_password};
use dolmen_machine::Response;
use dolmen_proto::etcdserverpb::{
    AuthRoleGetRequest, AuthRoleGetResponse, AuthRoleListRequest, AuthRoleListResponse, AuthStatusRequest,
    AuthStatusResponse, AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserGetRequest, AuthUserGetResponse,
    AuthUserListRequest, AuthUserListResponse, AuthenticateRequest, AuthenticateResponse, InternalAuthenticateRequest,
};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::answer::Answer;
use crate::call::Call;
use crate::encode::Command;
use crate::frame::decode;
use crate::propose::agree;
use crate::server::unexpected_reply;
use crate::status::{self, Code, Status};

/// Passwords hashed or compared at a time, each a tenth of a second of one core at etcd's default cost.
const AT_ONCE: usize = 2;
/// Callers that may wait for that; more are refused.
const WAITING: usize = 1_000;
/// Failed logins remembered; beyond, the oldest tenth is forgotten.
const REMEMBERED: usize = 10_000;
/// The first failed login of a user or an address delays the next by this, each further one doubles it, up to the last.
const DELAY: Duration = Duration::from_millis(50);
const LONGEST_DELAY: Duration = Duration::from_secs(3);
/// Failures older than this no longer count.
const FORGIVEN: Duration = Duration::from_secs(60);

/// What logins share.
pub struct Logins {
    hashing: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    failures: Mutex<HashMap<Failed, (u32, Instant)>>,
    pub failed: crate::stats::Counter,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Failed {
    User(String),
    Address(IpAddr),
}

impl Default for Logins {
    fn default() -> Self {
        Self {
            hashing: Arc::new(Semaphore::new(AT_ONCE)),
            waiting: Arc::new(Semaphore::new(WAITING)),
            failures: Mutex::default(),
            failed: Default::default(),
        }
    }
}

impl Logins {
    /// Runs slow work on a password when its turn comes.
    ///
    /// # Errors
    /// Too many wait already.
    async fn slowly<T: Send + 'static>(
        &self,
        call: &Call,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        let _waiting = self.waiting.try_acquire().map_err(|_| status::TOO_MANY_REQUESTS)?;
        let _turn = self.hashing.acquire().await.map_err(|_| status::STOPPED)?;
        call.local.blocking(work).await
    }

    fn delay(&self, of: &Failed) -> Duration {
        match self.failures.lock().get(of) {
            Some((count, last)) if last.elapsed() < FORGIVEN => {
                DELAY.saturating_mul(1 << count.saturating_sub(1).min(10)).min(LONGEST_DELAY)
            }
            _ => Duration::ZERO,
        }
    }

    fn note(&self, of: Failed, failed: bool) {
        let mut failures = self.failures.lock();
        if !failed {
            failures.remove(&of);
            return;
        }
        if failures.len() >= REMEMBERED {
            failures.retain(|_, (_, last)| last.elapsed() < FORGIVEN);
        }
        if failures.len() >= REMEMBERED {
            let mut times: Vec<Instant> = failures.values().map(|(_, last)| *last).collect();
            let (_, tenth, _) = times.select_nth_unstable(REMEMBERED / 10);
            let tenth = *tenth;
            failures.retain(|_, (_, last)| *last > tenth);
        }
        let entry = failures.entry(of).or_insert((0, Instant::now()));
        let count = if entry.1.elapsed() < FORGIVEN { entry.0.saturating_add(1) } else { 1 };
        *entry = (count, Instant::now());
    }
}

/// # Errors
/// A request that cannot be decoded.
pub async fn auth_status(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let _: AuthStatusRequest = decode(message)?;
    let auth = confirmed(call).await?;
    let header = Some(call.local.header(0));
    Ok(Answer::new(&AuthStatusResponse { header, enabled: auth.is_enabled(), auth_revision: auth.revision() }))
}

/// Users and roles as everybody agreed on before this call.
async fn confirmed(call: &Call) -> Result<Arc<Auth>, Status> {
    call.local.read_index(call.deadline).await?;
    Ok(call.local.node().auth())
}

/// # Errors
/// Not root, and not the user itself; no such user.
pub async fn user_get(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let request: AuthUserGetRequest = decode(message)?;
    let auth = confirmed(call).await?;
    auth.check_user_get(call.identify().await?.as_ref(), &request.name)?;
    let roles = auth.roles_of(&request.name)?;
    Ok(Answer::new(&AuthUserGetResponse { header: Some(call.local.header(0)), roles }))
}

/// # Errors
/// Not root.
pub async fn user_list(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let _: AuthUserListRequest = decode(message)?;
    let auth = confirmed(call).await?;
    auth.check_admin(call.identify().await?.as_ref())?;
    Ok(Answer::new(&AuthUserListResponse { header: Some(call.local.header(0)), users: auth.users() }))
}

/// # Errors
/// Neither root nor a holder of the role; no such role.
pub async fn role_get(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let request: AuthRoleGetRequest = decode(message)?;
    let auth = confirmed(call).await?;
    auth.check_role_get(call.identify().await?.as_ref(), &request.role)?;
    let perm = auth.permissions_of(&request.role)?;
    Ok(Answer::new(&AuthRoleGetResponse { header: Some(call.local.header(0)), perm }))
}

/// # Errors
/// Not root.
pub async fn role_list(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let _: AuthRoleListRequest = decode(message)?;
    let auth = confirmed(call).await?;
    auth.check_admin(call.identify().await?.as_ref())?;
    Ok(Answer::new(&AuthRoleListResponse { header: Some(call.local.header(0)), roles: auth.roles() }))
}

/// # Errors
/// A password too long; the outcome of the log.
pub async fn user_add(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let mut request: AuthUserAddRequest = decode(message)?;
    if !request.options.is_some_and(|options| options.no_password) {
        request.hashed_password = hashed(call, std::mem::take(&mut request.password)).await?;
    }
    agree::<AuthUserAddRequest>(call, &request.encode_to_vec()).await
}

/// # Errors
/// A password too long; the outcome of the log.
pub async fn user_change_password(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let mut request: AuthUserChangePasswordRequest = decode(message)?;
    // As in etcd, a user without a password is told apart when the change is applied.
    request.hashed_password = hashed(call, std::mem::take(&mut request.password)).await?;
    agree::<AuthUserChangePasswordRequest>(call, &request.encode_to_vec()).await
}

/// The password as the log carries it: never as it is.
async fn hashed(call: &Call, password: String) -> Result<String, Status> {
    let cost = call.local.config().bcrypt_cost;
    let hash = call.local.server.logins.slowly(call, move || hash_password(&password, cost)).await?;
    hash.map_err(|error| Status::owned(Code::Unknown, error.to_string()))
}

/// Compares the password here, has the log assign a token, and does both again if users changed in between: a password changed
/// meanwhile must not give a token.
///
/// # Errors
/// Authentication is off; a wrong name or password; the outcome of the log.
pub async fn authenticate(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let request: AuthenticateRequest = decode(message)?;
    call.local.read_index(call.deadline).await?;
    loop {
        let checked = login(call, &request).await?;
        let (name, simple_token) = (request.name.clone(), token_prefix()?);
        let logged = InternalAuthenticateRequest { name, simple_token, ..Default::default() };
        let applied = call.local.propose(Command::Authenticate, &logged.encode_to_vec(), None, call.deadline).await?;
        let Response::Users(Outcome::Token(token)) = applied else { return Err(unexpected_reply()) };
        if call.local.node().auth().revision() == checked {
            return Ok(Answer::new(&AuthenticateResponse { header: Some(call.local.header(0)), token }));
        }
    }
}

/// The auth revision at which the password was right.
async fn login(call: &Call, request: &AuthenticateRequest) -> Result<u64, Status> {
    let logins = &call.local.server.logins;
    let auth = call.local.node().auth();
    if !auth.is_enabled() {
        return Err(AuthError::NotEnabled.into());
    }
    let user = Failed::User(request.name.clone());
    let address = call.transport.peer.map(|peer| Failed::Address(peer.ip()));
    let delay = address.iter().chain([&user]).map(|of| logins.delay(of)).max().unwrap_or_default();
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    let found = auth.password_of(&request.name);
    drop(auth);
    let outcome = match found {
        Ok(stored) => {
            let revision = stored.revision;
            if compare(call, stored, request.password.clone()).await? {
                Ok(revision)
            } else {
                Err(AuthError::AuthFailed)
            }
        }
        Err(AuthError::AuthFailed) => {
            // As slow as a wrong password, so that nobody learns which names exist.
            hashed(call, String::new()).await?;
            Err(AuthError::AuthFailed)
        }
        Err(refused) => Err(refused),
    };
    let failed = outcome.is_err();
    if failed {
        logins.failed.add(1);
    }
    logins.note(user, failed);
    if let Some(address) = address {
        logins.note(address, failed);
    }
    outcome.map_err(Status::from)
}

async fn compare(call: &Call, stored: Password, given: String) -> Result<bool, Status> {
    call.local.server.logins.slowly(call, move || stored.is(&given)).await
}

/// Random letters that nobody can guess.
fn token_prefix() -> Result<String, Status> {
    let mut prefix = String::with_capacity(TOKEN_PREFIX_BYTES);
    while prefix.len() < TOKEN_PREFIX_BYTES {
        let mut drawn = [0; TOKEN_PREFIX_BYTES];
        getrandom::fill(&mut drawn).map_err(|error| Status::owned(Code::Unknown, error.to_string()))?;
        // Bytes beyond the last whole round of letters would favour the first ones.
        let rounds = 256 / TOKEN_LETTERS.len() * TOKEN_LETTERS.len();
        for byte in drawn.into_iter().filter(|byte| usize::from(*byte) < rounds) {
            if prefix.len() < TOKEN_PREFIX_BYTES {
                prefix.push(char::from(TOKEN_LETTERS[usize::from(byte) % TOKEN_LETTERS.len()]));
            }
        }
    }
    Ok(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_logins_delay_the_next_and_a_good_one_forgives() {
        let logins = Logins::default();
        let user = Failed::User("alice".into());
        assert_eq!(logins.delay(&user), Duration::ZERO);
        for expected in [50, 100, 200, 400, 800, 1600, 3000, 3000] {
            logins.note(user.clone(), true);
            assert_eq!(logins.delay(&user), Duration::from_millis(expected));
        }
        assert_eq!(logins.delay(&Failed::User("bob".into())), Duration::ZERO);
        logins.note(user.clone(), false);
        assert_eq!(logins.delay(&user), Duration::ZERO);
    }

    #[test]
    fn what_is_remembered_of_failures_has_an_end() {
        let logins = Logins::default();
        for n in 0..REMEMBERED * 2 {
            logins.note(Failed::User(n.to_string()), true);
        }
        assert!(logins.failures.lock().len() <= REMEMBERED);
    }

    #[test]
    fn prefixes_are_letters_and_differ() {
        let (one, other) = (token_prefix().unwrap(), token_prefix().unwrap());
        assert!(one.len() == TOKEN_PREFIX_BYTES && one.bytes().all(|byte| TOKEN_LETTERS.contains(&byte)));
        assert_ne!(one, other);
    }
}
