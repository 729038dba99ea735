//! Simple tokens: random letters and the index of the entry that assigned them. Every member knows them from the log; none of
//! it is on disk, so a restart forgets them and clients log in again.

use std::collections::HashMap;
use std::sync::Arc;

use dolmen_env::Mono;
use parking_lot::Mutex;

/// Bytes of a token before its point: random letters of [`TOKEN_LETTERS`], which the door draws.
pub const TOKEN_PREFIX_BYTES: usize = 16;
pub const TOKEN_LETTERS: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Tokens kept at most, about 15 MB. Beyond, the tenth that would end soonest is forgotten: its clients log in again.
pub const MAX_TOKENS: usize = 100_000;

/// The simple tokens that this process knows. Each ends when it was not used for the time it lives.
#[derive(Debug)]
pub struct Tokens {
    ttl_nanos: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    enabled: bool,
    tokens: HashMap<String, Token>,
    /// When those that have ended are looked for next.
    sweep_at: Mono,
}

#[derive(Debug)]
struct Token {
    user: Arc<str>,
    ends: Mono,
}

impl Tokens {
    /// `ttl_seconds`: how long an unused token lives, `--auth-token-ttl`; 0 is etcd's default of 300.
    pub fn new(ttl_seconds: u64) -> Self {
        let seconds = if ttl_seconds == 0 { 300 } else { ttl_seconds };
        Self { ttl_nanos: seconds.saturating_mul(1_000_000_000), state: Mutex::default() }
    }

    /// Whose token this is; using it lets it live on. `None`: not known here, or ended.
    pub fn user_of(&self, token: &str, now: Mono) -> Option<Arc<str>> {
        let mut state = self.state.lock();
        let found = state.tokens.get_mut(token).filter(|token| now < token.ends)?;
        found.ends = Mono(now.0.saturating_add(self.ttl_nanos));
        Some(found.user.clone())
    }

    /// The index of the entry that assigned a token; a member that has not applied it yet may still learn of the token.
    pub fn index_of(token: &str) -> Option<u64> {
        let (prefix, index) = token.split_once('.')?;
        if prefix.is_empty() { None } else { index.parse().ok() }
    }

    pub(crate) fn enable(&self) {
        self.state.lock().enabled = true;
    }

    pub(crate) fn disable(&self) {
        let mut state = self.state.lock();
        state.enabled = false;
        state.tokens.clear();
    }

    /// For a start or an installed snapshot, which bring authentication with them.
    pub fn set_enabled(&self, enabled: bool) {
        if enabled { self.enable() } else { self.disable() }
    }

    pub(crate) fn assign(&self, user: &str, token: &str, now: Mono) {
        let mut state = self.state.lock();
        if !state.enabled {
            return;
        }
        if now >= state.sweep_at || state.tokens.len() >= MAX_TOKENS {
            state.tokens.retain(|_, token| now < token.ends);
            state.sweep_at = Mono(now.0.saturating_add(self.ttl_nanos));
        }
        if state.tokens.len() >= MAX_TOKENS {
            let mut ends: Vec<Mono> = state.tokens.values().map(|token| token.ends).collect();
            let (_, tenth, _) = ends.select_nth_unstable(MAX_TOKENS / 10);
            let tenth = *tenth;
            state.tokens.retain(|_, token| token.ends > tenth);
        }
        let ends = Mono(now.0.saturating_add(self.ttl_nanos));
        state.tokens.insert(token.to_owned(), Token { user: user.into(), ends });
    }

    pub(crate) fn forget_user(&self, user: &str) {
        self.state.lock().tokens.retain(|_, token| token.user.as_ref() != user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    #[test]
    fn a_token_lives_as_long_as_it_is_used() {
        let tokens = Tokens::new(10);
        tokens.assign("alice", "early.1", at(0));
        assert_eq!(tokens.user_of("early.1", at(0)), None, "nobody is checked yet");
        tokens.enable();
        tokens.assign("alice", "abc.5", at(0));
        assert_eq!(tokens.user_of("abc.5", at(9)).as_deref(), Some("alice"));
        assert_eq!(tokens.user_of("abc.5", at(18)).as_deref(), Some("alice"));
        assert_eq!(tokens.user_of("abc.5", at(28)), None);
        assert_eq!(tokens.user_of("abd.5", at(1)), None);
    }

    #[test]
    fn users_and_switching_off_take_tokens_with_them() {
        let tokens = Tokens::new(0);
        tokens.enable();
        tokens.assign("alice", "a.1", at(0));
        tokens.assign("alice", "b.2", at(0));
        tokens.assign("bob", "c.3", at(0));
        tokens.forget_user("alice");
        assert_eq!(tokens.user_of("a.1", at(1)).or(tokens.user_of("b.2", at(1))), None);
        assert!(tokens.user_of("c.3", at(1)).is_some());
        tokens.disable();
        tokens.enable();
        assert_eq!(tokens.user_of("c.3", at(1)), None);
    }

    #[test]
    fn their_number_has_an_end() {
        let tokens = Tokens::new(1_000_000);
        tokens.enable();
        for n in 0..=MAX_TOKENS as u64 {
            tokens.assign("alice", &format!("t.{n}"), at(n));
        }
        let kept = tokens.state.lock().tokens.len();
        assert!(kept <= MAX_TOKENS, "{kept}");
        assert_eq!(tokens.user_of("t.0", at(MAX_TOKENS as u64)), None, "the one that would end soonest went first");
        assert!(tokens.user_of(&format!("t.{MAX_TOKENS}"), at(MAX_TOKENS as u64)).is_some());
    }

    #[test]
    fn ended_tokens_are_forgotten() {
        let tokens = Tokens::new(10);
        tokens.enable();
        for n in 0..100 {
            tokens.assign("alice", &format!("t.{n}"), at(n));
        }
        assert!(tokens.state.lock().tokens.len() <= 21);
    }

    #[test]
    fn a_token_names_its_entry() {
        assert_eq!(Tokens::index_of("abc.17"), Some(17));
        for junk in ["", "abc", ".1", "abc.", "abc.x", "abc.1.2"] {
            assert_eq!(Tokens::index_of(junk), None, "{junk:?}");
        }
    }
}
