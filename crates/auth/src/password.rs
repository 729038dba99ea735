//! Passwords, as bcrypt keeps them. All of this is slow by intent: never on a thread that others wait for.

use bytes::Bytes;

/// bcrypt looks at no more; a longer one is refused rather than cut.
pub const MAX_PASSWORD_BYTES: usize = 72;

/// Why a password cannot be hashed. The text is that of Go's bcrypt, which etcd hands through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    #[error("bcrypt: password length exceeds 72 bytes")]
    TooLong,
    #[error("bcrypt: no randomness for a salt")]
    NoRandomness,
}

/// The hash that `UserAdd` and `UserChangePassword` carry through the log, in base64 as etcd has it. `cost`: 4 to 31, each
/// step twice the work of the one before.
///
/// # Errors
/// A password of more than [`MAX_PASSWORD_BYTES`].
pub fn hash_password(password: &str, cost: u32) -> Result<String, PasswordError> {
    if password.len() > MAX_PASSWORD_BYTES {
        return Err(PasswordError::TooLong);
    }
    let parts = bcrypt::hash_with_result(password, cost).map_err(|_| PasswordError::NoRandomness)?;
    Ok(encode(&parts.format_for_version(bcrypt::Version::TwoA)))
}

fn encode(hash: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(hash)
}

pub(crate) fn decode(hashed: &str) -> Option<Bytes> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(hashed).ok().map(Bytes::from)
}

/// What etcd before 3.5 left to apply: a password in the entry itself. Those hashed it with a salt of their own on each
/// member; here the salt comes from the entry, so that members agree.
pub(crate) fn hash_of_old_entry(name: &str, password: &str) -> Option<Bytes> {
    const COST: u32 = 10;
    let mut salt = [0u8; 16];
    for (at, byte) in name.bytes().chain([0]).chain(password.bytes()).enumerate() {
        let place = at % salt.len();
        salt[place] = salt[place].rotate_left(3) ^ byte;
    }
    let parts = bcrypt::hash_with_salt(password, COST, salt).ok()?;
    Some(parts.format_for_version(bcrypt::Version::TwoA).into_bytes().into())
}

/// A user's stored hash and the auth revision it was read at: taken off the store, compared elsewhere.
#[derive(Clone)]
pub struct Password {
    pub(crate) hash: Bytes,
    /// A login counts only if this is still the auth revision once it is applied.
    pub revision: u64,
}

impl Password {
    /// Whether this is the password. Takes as long for a wrong one as for the right one.
    pub fn is(&self, password: &str) -> bool {
        str::from_utf8(&self.hash).is_ok_and(|hash| bcrypt::verify(password, hash).unwrap_or(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_that_of_its_password_alone() {
        let hash = decode(&hash_password("secret", 4).expect("short enough")).expect("base64");
        assert!(hash.starts_with(b"$2a$04$"), "as Go's bcrypt writes it");
        let stored = Password { hash, revision: 1 };
        assert!(stored.is("secret") && !stored.is("Secret") && !stored.is(""));
        assert!(!Password { hash: "no hash".into(), revision: 1 }.is("secret"));
        assert_eq!(hash_password(&"x".repeat(73), 4), Err(PasswordError::TooLong));
    }

    #[test]
    fn a_hash_of_go_is_taken() {
        // bcrypt's own published vector, as golang.org/x/crypto has it too.
        let hash = "$2a$10$XajjQvNhvvRt5GSeFk1xFeyqRrsxkhBkUiQeg0dt.wU1qD4aFDcga";
        let stored = Password { hash: hash.into(), revision: 1 };
        assert!(stored.is("allmine") && !stored.is("all"));
    }

    #[test]
    fn members_agree_on_an_old_entry() {
        let hash = hash_of_old_entry("alice", "secret").expect("hashed");
        assert_eq!(hash_of_old_entry("alice", "secret"), Some(hash.clone()));
        assert_ne!(hash_of_old_entry("bob", "secret"), Some(hash.clone()));
        assert!(Password { hash, revision: 1 }.is("secret"));
    }
}
