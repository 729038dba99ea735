//! The part of a `WatchResponse` that differs between watchers, and the few lines of protobuf it takes to write it.
//!
//! ```text
//! WatchResponse   header 1, watch_id 2, created 3, canceled 4, compact_revision 5, fragment 7   <- Head
//!                 events 11 (or, in a refusal, cancel_reason 6)                                  <- Frame::tail
//! ```
//!
//! Fields ascend and zeroes are omitted, as every protobuf library writes them; a refusal's reason (6) follows the head
//! because it never comes together with `fragment` (7) or events.

use std::ops::Deref;

/// No head is longer: 46 bytes of header, 11 of watch id, three flags of 2, 11 of compact revision.
const CAPACITY: usize = 79;

/// The encoded fields 1 to 5 and 7 of one response. Held inline: ten thousand watchers of one event cost no allocation
/// each, and share no reference count but that of the event.
#[derive(Clone, Copy)]
pub struct Head {
    len: u8,
    bytes: [u8; CAPACITY],
}

impl Head {
    const EMPTY: Self = Self { len: 0, bytes: [0; CAPACITY] };

    fn push(&mut self, byte: u8) {
        self.bytes[usize::from(self.len)] = byte;
        self.len += 1;
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }

    fn field(&mut self, tag: u8, value: u64) {
        if value != 0 {
            self.push(tag << 3);
            self.varint(value);
        }
    }
}

impl Deref for Head {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl AsRef<[u8]> for Head {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Head({:02x?})", &**self)
    }
}

/// What goes into a [`Head`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeadFields {
    pub cluster_id: u64,
    pub member_id: u64,
    pub revision: i64,
    pub raft_term: u64,
    pub watch_id: i64,
    pub created: bool,
    pub canceled: bool,
    pub compact_revision: i64,
    pub fragment: bool,
}

impl HeadFields {
    pub(crate) fn encode(&self) -> Head {
        let mut header = Head::EMPTY;
        header.field(1, self.cluster_id);
        header.field(2, self.member_id);
        header.field(3, self.revision as u64);
        header.field(4, self.raft_term);
        let mut head = Head::EMPTY;
        head.push(1 << 3 | 2);
        head.push(header.len);
        for byte in &*header {
            head.push(*byte);
        }
        head.field(2, self.watch_id as u64);
        head.field(3, u64::from(self.created));
        head.field(4, u64::from(self.canceled));
        head.field(5, self.compact_revision as u64);
        head.field(7, u64::from(self.fragment));
        head
    }
}

/// Bytes a varint takes.
pub(crate) fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a length-delimited field; `tag` below 16.
pub(crate) fn put_bytes(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Bytes [`put_bytes`] appends.
pub(crate) fn bytes_field_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

#[cfg(test)]
mod tests {
    use dolmen_proto::etcdserverpb::{ResponseHeader, WatchResponse};
    use prost::Message;

    use super::*;

    #[test]
    fn heads_are_what_prost_writes() {
        for (number, flag) in [(0u64, false), (1, true), (127, false), (128, true), (u64::MAX, true)] {
            let fields = HeadFields {
                cluster_id: number,
                member_id: number,
                revision: number as i64,
                raft_term: number,
                watch_id: number as i64,
                created: flag,
                canceled: flag,
                compact_revision: number as i64,
                fragment: flag,
            };
            let expected = WatchResponse {
                header: Some(ResponseHeader {
                    cluster_id: number,
                    member_id: number,
                    revision: number as i64,
                    raft_term: number,
                }),
                watch_id: number as i64,
                created: flag,
                canceled: flag,
                compact_revision: number as i64,
                fragment: flag,
                ..Default::default()
            };
            assert_eq!(&*fields.encode(), expected.encode_to_vec(), "{fields:?}");
        }
    }

    #[test]
    fn lengths_are_those_written() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX >> 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out.len(), varint_len(value), "{value}");
        }
        let mut out = Vec::new();
        put_bytes(&mut out, 11, &[7; 300]);
        assert_eq!(out.len(), bytes_field_len(300));
    }
}
