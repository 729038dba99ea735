//! The streams of a connection, by their numbers.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};

use bytes::{Bytes, BytesMut};

use crate::head::Head;

/// Identifies a stream within its connection.
pub type StreamId = i32;

/// A field of an answer whose name is known beforehand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: &'static str,
    pub value: Cow<'static, str>,
}

/// The trailers of an answer.
pub type Trailers = [Option<Field>; 2];

/// A stream that is open.
#[derive(Default)]
pub struct Stream {
    /// What the caller calls it; see [`crate::Session::accept`].
    pub tag: Option<usize>,
    /// The request's fields, until taken.
    pub head: Option<Head>,
    /// What has come of the body and was not taken.
    pub inbox: BytesMut,
    /// The peer has sent all.
    pub ended: bool,
    /// An event about more of the body is under way.
    pub announced: bool,
    /// The answer's body, and its bytes.
    pub outbox: VecDeque<Bytes>,
    pub queued: usize,
    /// Nothing more will be pushed.
    pub finished: bool,
    pub trailers: Trailers,
    /// nghttp2 asked for more of the answer when there was none.
    pub deferred: bool,
}

pub type Streams = HashMap<StreamId, Stream, Key>;

/// Hashes numbers of streams. The peer chooses them, but not the key: numbers that share a place in the table cannot be
/// prepared.
#[derive(Clone)]
pub struct Key(u64);

impl Default for Key {
    fn default() -> Self {
        // One key for all connections of a thread would do; what is random here costs no system call.
        Self(RandomState::new().hash_one(0) | 1)
    }
}

impl BuildHasher for Key {
    type Hasher = Multiplied;

    fn build_hasher(&self) -> Multiplied {
        Multiplied { key: self.0, hash: 0 }
    }
}

pub struct Multiplied {
    key: u64,
    hash: u64,
}

impl Hasher for Multiplied {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_i32((*byte).into());
        }
    }

    fn write_i32(&mut self, number: i32) {
        let product = u128::from(self.hash ^ number as u64 ^ self.key) * u128::from(self.key);
        self.hash = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}
