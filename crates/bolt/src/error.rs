//! What can be wrong with a file, or with what a caller asks to be written.

use std::fmt;
use std::io;

/// Why a bbolt file could not be read.
#[derive(Debug)]
pub enum Error {
    /// The file could not be read at all.
    Io(io::Error),
    /// Neither meta page is whole: not a bbolt file, or its head is lost.
    NoMeta {
        /// What is wrong with the meta at page 0.
        first: Fault,
        /// What is wrong with the meta at page 1.
        second: Fault,
    },
    /// The file ends before the last page its meta speaks of.
    Truncated {
        /// Bytes there are.
        len: u64,
        /// Bytes there should be.
        needed: u64,
    },
    /// A page breaks a rule.
    Page {
        /// Page number; 0 for the page inside an inline bucket.
        id: u64,
        /// The rule it breaks.
        fault: Fault,
    },
    /// A snapshot's trailer is not the SHA-256 of what stands before it.
    TrailerMismatch,
    /// The length of the file says that it has no trailer.
    NoTrailer,
}

/// One broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The meta's magic number is another.
    Magic,
    /// The meta's format version is not 2.
    Version,
    /// The meta's checksum does not match.
    Checksum,
    /// The page size is no power of two from 1 KiB to 1 MiB.
    PageSize,
    /// The page lies beyond the end of the file.
    BeyondFile,
    /// The page number, or the run of pages it starts, is not below the high water mark or is a meta page.
    OutOfRange,
    /// The page's header carries another page's number.
    WrongId,
    /// The page is of another kind than its place asks for.
    WrongKind,
    /// The table of elements does not fit in the page.
    Count,
    /// An element's key or value lies outside the page, or over another element.
    Bounds,
    /// A key is empty or longer than bbolt allows.
    KeyLen,
    /// A value has flags that no version of bbolt writes.
    Flags,
    /// Keys are not strictly ascending, or not within the bounds the parent page gives.
    Order,
    /// A page other than a root has no elements.
    Empty,
    /// A value that should describe a bucket does not.
    BucketHeader,
    /// A bucket stands where a plain value is expected.
    NestedBucket,
    /// The tree, or the nesting of buckets, is deeper than any real one.
    Depth,
    /// The page holds more bytes than any real one.
    TooLarge,
    /// The page is used twice.
    UsedTwice,
    /// The page is in the free list and in use.
    FreeInUse,
    /// The page is neither in the free list nor in use.
    Unreachable,
    /// The free list is not strictly ascending.
    FreeList,
    /// Keys and values do not lie one behind the other.
    Gap,
    /// A plain value stands among the buckets of the root.
    NotABucket,
}

impl Fault {
    fn text(self) -> &'static str {
        match self {
            Self::Magic => "wrong magic number",
            Self::Version => "unknown format version",
            Self::Checksum => "checksum mismatch",
            Self::PageSize => "impossible page size",
            Self::BeyondFile => "beyond the end of the file",
            Self::OutOfRange => "page number out of range",
            Self::WrongId => "header carries another page number",
            Self::WrongKind => "wrong kind of page",
            Self::Count => "element table does not fit",
            Self::Bounds => "element lies outside the page or over another",
            Self::KeyLen => "impossible key length",
            Self::Flags => "unknown element flags",
            Self::Order => "keys out of order",
            Self::Empty => "page without elements",
            Self::BucketHeader => "broken bucket header",
            Self::NestedBucket => "unexpected bucket inside a bucket",
            Self::Depth => "tree too deep",
            Self::TooLarge => "page too large",
            Self::UsedTwice => "page used twice",
            Self::FreeInUse => "page both free and in use",
            Self::Unreachable => "page neither free nor in use",
            Self::FreeList => "free list out of order",
            Self::Gap => "gap between elements",
            Self::NotABucket => "plain value where a bucket should be",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "reading the file: {error}"),
            Self::NoMeta { first, second } => {
                write!(f, "no usable meta page (page 0: {first}; page 1: {second})")
            }
            Self::Truncated { len, needed } => write!(f, "file of {len} bytes should have {needed}"),
            Self::Page { id, fault } => write!(f, "page {id}: {fault}"),
            Self::TrailerMismatch => f.write_str("the SHA-256 at the end does not match the file"),
            Self::NoTrailer => f.write_str("the file has no SHA-256 at its end"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Io(error) => error,
            other => Self::new(io::ErrorKind::InvalidData, other),
        }
    }
}

/// Why a bbolt file could not be written.
#[derive(Debug)]
pub enum WriteError {
    /// The source could not be read or the sink not written.
    Io(io::Error),
    /// A key or bucket name is empty or longer than [`MAX_KEY_LEN`](crate::MAX_KEY_LEN).
    KeyLen(usize),
    /// A value is longer than [`MAX_VALUE_LEN`](crate::MAX_VALUE_LEN).
    ValueLen(usize),
    /// The source gave a key not above the one before it, or a bucket name twice.
    Order,
    /// The source gave other lengths, or another number of pairs, than when the plan was made.
    SourceChanged,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "writing the file: {error}"),
            Self::KeyLen(len) => write!(f, "a key of {len} bytes cannot be stored"),
            Self::ValueLen(len) => write!(f, "a value of {len} bytes cannot be stored"),
            Self::Order => f.write_str("the source's keys are not strictly ascending"),
            Self::SourceChanged => f.write_str("the source changed after the plan was made"),
        }
    }
}

impl std::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for WriteError {
    /// An error that crossed the source's `io::Error` comes out as what it was.
    fn from(error: io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(inner) => inner,
            Err(error) => Self::Io(error),
        }
    }
}

impl From<WriteError> for io::Error {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Io(error) => error,
            other => Self::new(io::ErrorKind::InvalidData, other),
        }
    }
}
