//! The SHA-256 that a saved snapshot carries after its last page.
//!
//! A bbolt file is a whole number of pages, so a length of 32 modulo 512 says that a trailer is there. etcd's tools go by
//! the same sign.

use std::io::{self, Write};

use sha2::{Digest, Sha256};

use crate::{Error, ReadAt};

/// Bytes of the trailer.
pub const TRAILER_LEN: u64 = 32;
/// Bytes hashed per read.
const CHUNK: u64 = 1 << 20;

/// Whether a file of this length ends with a trailer.
pub fn has_trailer(len: u64) -> bool {
    len % 512 == TRAILER_LEN
}

/// Proves the trailer of a snapshot and returns the length of the bbolt file before it.
///
/// # Errors
/// [`Error::NoTrailer`] when the length says there is none, [`Error::TrailerMismatch`] when it does not match.
pub fn verify_trailer(file: &dyn ReadAt) -> Result<u64, Error> {
    let len = file.byte_len()?;
    if !has_trailer(len) {
        return Err(Error::NoTrailer);
    }
    let body = len - TRAILER_LEN;
    let mut hasher = Sha256::new();
    let mut offset = 0;
    while offset < body {
        let step = CHUNK.min(body - offset);
        hasher.update(file.bytes_at(offset, step as usize)?);
        offset += step;
    }
    let told = file.bytes_at(body, TRAILER_LEN as usize)?;
    if hasher.finalize().as_slice() != &told[..] {
        return Err(Error::TrailerMismatch);
    }
    Ok(body)
}

/// Passes bytes on and remembers their SHA-256.
pub struct HashingWriter<W> {
    sink: W,
    hasher: Sha256,
}

impl<W: Write> HashingWriter<W> {
    /// Starts with nothing written.
    pub fn new(sink: W) -> Self {
        Self { sink, hasher: Sha256::new() }
    }

    /// Appends the digest as trailer, flushes, and returns the sink with the digest.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn finish(mut self) -> io::Result<(W, [u8; 32])> {
        let digest: [u8; 32] = self.hasher.finalize().into();
        self.sink.write_all(&digest)?;
        self.sink.flush()?;
        Ok((self.sink, digest))
    }

    /// The digest of what was written so far, and the sink, with no trailer appended.
    pub fn into_parts(self) -> (W, [u8; 32]) {
        (self.sink, self.hasher.finalize().into())
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.sink.write(bytes)?;
        self.hasher.update(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
