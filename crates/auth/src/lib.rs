//! Users, roles and permissions: who may do what.
//!
//! A **user** has a password and **roles**; a **role** holds **permissions**, each a range of keys that may be read,
//! written, or both. The role `root` may do everything. Nothing is checked until authentication is **enabled**, which
//! needs a user `root` with the role `root`.
//!
//! ```text
//! door      token or certificate -> Identity {user, revision} -> Auth::check_...      refused early, and reads
//! log       entry with the identity in its header -> Auth::check_... again -> change  a permission revoked meanwhile counts
//! ```
//!
//! Each change of users, roles or permissions makes one **auth revision**. An identity carries the revision at which its
//! token or certificate was looked at; when the entry is applied at a later one, the check is refused as old, and the
//! caller comes again. So what was permitted at the door cannot slip past a revocation in the log.
//!
//! [`Auth`] is a value: the machine owns it and changes it through [`Auth::apply`], whose effects on the tables come back
//! as [`Record`]s; the door looks at a published copy, which shares all users and roles with it. [`Tokens`] holds the
//! simple tokens of this process. They are assigned by the log, so every member knows them, and each forgets those that it
//! does not see used.
//!
//! Not here: hashing on the way of a request (slow by intent; [`hash_password`] and [`Auth::password_of`] are for a thread
//! of the door's), signed tokens, headers of requests.

#![forbid(unsafe_code)]

mod change;
mod check;
mod error;
mod password;
mod permission;
mod store;
mod tokens;

pub use change::{Change, Outcome};
pub use check::{Keys, NoKeys};
pub use error::AuthError;
pub use password::{MAX_PASSWORD_BYTES, Password, PasswordError, hash_password};
pub use permission::{Access, Permissions};
pub use store::{Auth, Identity, LoadError, ROOT, Record, RecordTable};
pub use tokens::{MAX_TOKENS, TOKEN_LETTERS, TOKEN_PREFIX_BYTES, Tokens};
