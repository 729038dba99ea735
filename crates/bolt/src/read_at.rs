//! Where a file's bytes come from.

use std::fs::File;
use std::io;

use bytes::Bytes;

/// Bytes that can be read at any place.
pub trait ReadAt {
    /// Length in bytes.
    fn byte_len(&self) -> io::Result<u64>;

    /// Exactly `len` bytes from `offset`; `UnexpectedEof` when there are fewer.
    fn bytes_at(&self, offset: u64, len: usize) -> io::Result<Bytes>;
}

/// The range as indices into `whole` bytes, when it lies within.
fn range_within(whole: usize, offset: u64, len: usize) -> io::Result<std::ops::Range<usize>> {
    usize::try_from(offset)
        .ok()
        .and_then(|start| Some(start..start.checked_add(len)?))
        .filter(|range| range.end <= whole)
        .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

impl ReadAt for Bytes {
    fn byte_len(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    /// Shares the bytes, copies nothing.
    fn bytes_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        Ok(self.slice(range_within(self.len(), offset, len)?))
    }
}

impl ReadAt for &[u8] {
    fn byte_len(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn bytes_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        Ok(Bytes::copy_from_slice(&self[range_within(self.len(), offset, len)?]))
    }
}

impl ReadAt for File {
    fn byte_len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    #[cfg(unix)]
    fn bytes_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let mut buffer = vec![0; len];
        std::os::unix::fs::FileExt::read_exact_at(self, &mut buffer, offset)?;
        Ok(buffer.into())
    }

    #[cfg(not(unix))]
    fn bytes_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        use std::io::{Read, Seek, SeekFrom};
        let mut file = self.try_clone()?;
        file.seek(SeekFrom::Start(offset))?;
        let mut buffer = vec![0; len];
        file.read_exact(&mut buffer)?;
        Ok(buffer.into())
    }
}

impl<T: ReadAt + ?Sized> ReadAt for &T {
    fn byte_len(&self) -> io::Result<u64> {
        (**self).byte_len()
    }

    fn bytes_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        (**self).bytes_at(offset, len)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for Box<T> {
    fn byte_len(&self) -> io::Result<u64> {
        (**self).byte_len()
    }

    fn bytes_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        (**self).bytes_at(offset, len)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for std::sync::Arc<T> {
    fn byte_len(&self) -> io::Result<u64> {
        (**self).byte_len()
    }

    fn bytes_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        (**self).bytes_at(offset, len)
    }
}
