//! What tells members apart that have applied different entries.

use bytes::Bytes;
use dolmen_types::{Index, Term};

/// A running hash over every applied entry since `from`: two members that agree on `from` and the applied index must
/// agree on `value`, or one of them has applied something else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// The index after which the chain began: 0, or that of an installed snapshot.
    pub from: Index,
    pub value: u32,
}

impl Chain {
    pub(crate) fn extend(&mut self, term: Term, data: &[u8]) {
        self.value = crc32c::crc32c_append(self.value, &term.to_le_bytes());
        self.value = crc32c::crc32c_append(self.value, data);
    }

    pub(crate) fn to_bytes(self) -> Bytes {
        let mut bytes = Vec::with_capacity(12);
        bytes.extend_from_slice(&self.from.to_be_bytes());
        bytes.extend_from_slice(&self.value.to_be_bytes());
        bytes.into()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (from, value) = bytes.split_at_checked(8)?;
        Some(Self {
            from: u64::from_be_bytes(from.try_into().ok()?),
            value: u32::from_be_bytes(value.try_into().ok()?),
        })
    }
}

/// Where table `Meta` holds the [`Chain`]; never exported.
pub(crate) const CHAIN: &str = "dolmenChain";
