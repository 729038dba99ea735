//! The words every layer shares. A [`Revision`] counts changes of the key space, an index counts raft log entries, a
//! term counts leaderships: three different clocks, never mixed.

#![forbid(unsafe_code)]

use bytes::Bytes;

/// 1-based position in the raft log; 0 means none.
pub type Index = u64;
/// Raft's leadership counter; 0 before the first election.
pub type Term = u64;
/// A configured server: the first 8 bytes of a SHA-1, printed in hexadecimal without leading zeroes.
pub type MemberId = u64;
/// Checked between peers, printed as a [`MemberId`] is.
pub type ClusterId = u64;
/// 0 means no lease. etcd's field is signed and so is this.
pub type LeaseId = i64;

/// One change of the key space. `main` counts changing requests, `sub` the changes inside one request, from 0.
///
/// An empty store stands at main revision 1; the first change is revision 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    pub main: i64,
    pub sub: i64,
}

impl Revision {
    pub const fn new(main: i64, sub: i64) -> Self {
        Self { main, sub }
    }

    /// etcd's key in bucket `key`: main big-endian, `_`, sub big-endian, and `t` for a tombstone (17 or 18 bytes).
    pub fn to_bolt_key(self, tombstone: bool) -> ([u8; 18], usize) {
        let mut key = [0u8; 18];
        key[..8].copy_from_slice(&self.main.to_be_bytes());
        key[8] = b'_';
        key[9..17].copy_from_slice(&self.sub.to_be_bytes());
        if tombstone {
            key[17] = b't';
        }
        (key, if tombstone { 18 } else { 17 })
    }

    /// Reads what [`Revision::to_bolt_key`] writes; the flag tells a tombstone. `None` when the shape is another.
    pub fn from_bolt_key(key: &[u8]) -> Option<(Self, bool)> {
        let tombstone = match key.len() {
            17 => false,
            18 if key[17] == b't' => true,
            _ => return None,
        };
        if key[8] != b'_' {
            return None;
        }
        let main = i64::from_be_bytes(key[..8].try_into().ok()?);
        let sub = i64::from_be_bytes(key[9..17].try_into().ok()?);
        Some((Self { main, sub }, tombstone))
    }
}

/// A set of keys as requests name it, parsed once at the edge from `key` and `range_end`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyRange {
    /// `range_end` empty.
    Single(Bytes),
    /// `[start, end)`; holds nothing when `end <= start`.
    Range(Bytes, Bytes),
    /// `range_end` is one zero byte: every key at or above. `From("\0")` and `From("")` are everything.
    From(Bytes),
}

impl KeyRange {
    /// Parses a request's pair. Never fails: an inverted range is a range that holds nothing.
    pub fn parse(key: Bytes, range_end: Bytes) -> Self {
        if range_end.is_empty() {
            Self::Single(key)
        } else if range_end.as_ref() == [0] {
            Self::From(key)
        } else {
            Self::Range(key, range_end)
        }
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::Single(single) => single.as_ref() == key,
            Self::Range(start, end) => start.as_ref() <= key && key < end.as_ref(),
            Self::From(start) => start.as_ref() <= key,
        }
    }

    /// The lowest key the range may hold.
    pub fn start(&self) -> &Bytes {
        match self {
            Self::Single(start) | Self::Range(start, _) | Self::From(start) => start,
        }
    }

    /// The first key above the range, `None` when it is open-ended. For a single key that is the key and a zero byte.
    pub fn end(&self) -> Option<Bytes> {
        match self {
            Self::Single(key) => {
                let mut end = Vec::with_capacity(key.len() + 1);
                end.extend_from_slice(key);
                end.push(0);
                Some(end.into())
            }
            Self::Range(_, end) => Some(end.clone()),
            Self::From(_) => None,
        }
    }
}

/// Formats an id as etcd prints it: hexadecimal, no leading zeroes.
pub fn hex_id(id: u64) -> String {
    format!("{id:x}")
}

/// An error and its causes on one line, as logs and refusals show them.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bolt_keys_round_trip_and_refuse_other_shapes() {
        for (rev, tombstone) in [(Revision::new(2, 0), false), (Revision::new(i64::MAX, 7), true)] {
            let (key, len) = rev.to_bolt_key(tombstone);
            assert_eq!(Revision::from_bolt_key(&key[..len]), Some((rev, tombstone)));
        }
        assert_eq!(Revision::from_bolt_key(b"short"), None);
        assert_eq!(Revision::from_bolt_key(b"12345678x12345678"), None);
        assert_eq!(Revision::from_bolt_key(b"12345678_12345678x"), None);
    }

    #[test]
    fn ranges_hold_what_their_request_names() {
        let parse = |key: &'static [u8], end: &'static [u8]| KeyRange::parse(key.into(), end.into());
        assert!(parse(b"a", b"").contains(b"a") && !parse(b"a", b"").contains(b"a\0"));
        assert!(parse(b"a", b"c").contains(b"b") && !parse(b"a", b"c").contains(b"c"));
        assert!(parse(b"b", b"\0").contains(b"\xff") && !parse(b"b", b"\0").contains(b"a"));
        assert!(!parse(b"c", b"a").contains(b"b"));
        assert_eq!(parse(b"a", b"").end().as_deref(), Some(&b"a\0"[..]));
    }
}
