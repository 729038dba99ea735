//! Pages as they stand in the file, believed in nothing: for tools that show a file to a person.

use bytes::{Buf, Bytes};

use crate::page::{FLAG_BRANCH, FLAG_BUCKET, FLAG_FREELIST, FLAG_LEAF, FLAG_META, HEADER_LEN, MAGIC, VERSION, fnv1a};

/// Bytes of an element, of either kind.
const ELEMENT_LEN: usize = 16;
/// Bytes of a meta.
const META_LEN: usize = 64;

/// One page with its overflow. Elements that lie outside of its bytes are `None`.
#[derive(Clone, Debug)]
pub struct RawPage {
    /// The number its header carries.
    pub id: u64,
    /// What kind it says it is.
    pub flags: u16,
    /// Elements; of a free list 0xffff when the first word is the count.
    pub count: u16,
    /// Pages that follow and belong to it.
    pub overflow: u32,
    bytes: Bytes,
}

/// An element of a leaf.
#[derive(Clone, Copy, Debug)]
pub struct RawLeaf<'p> {
    /// 1: the value describes a bucket.
    pub flags: u32,
    /// Where the key starts, counted from the element.
    pub position: u32,
    pub key: &'p [u8],
    pub value: &'p [u8],
}

impl RawLeaf<'_> {
    /// Whether the value describes a bucket.
    pub fn is_bucket(&self) -> bool {
        self.flags & FLAG_BUCKET != 0
    }

    /// Root page (0: inline) and sequence of the bucket that the value describes.
    pub fn bucket(&self) -> Option<(u64, u64)> {
        let mut value = self.value.get(..16)?;
        Some((value.get_u64_le(), value.get_u64_le()))
    }
}

/// An element of a branch.
#[derive(Clone, Copy, Debug)]
pub struct RawBranch<'p> {
    /// Where the key starts, counted from the element.
    pub position: u32,
    pub key: &'p [u8],
    /// The child page.
    pub child: u64,
}

/// What a meta page says, checked or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawMeta {
    pub magic: u32,
    pub version: u32,
    pub page_size: u32,
    pub flags: u32,
    pub root: u64,
    pub sequence: u64,
    pub freelist: u64,
    pub high_water: u64,
    pub txid: u64,
    pub checksum: u64,
    /// The checksum it should have.
    pub sum: u64,
}

impl RawMeta {
    /// Whether magic, version and checksum are right.
    pub fn is_valid(&self) -> bool {
        self.magic == MAGIC && self.version == VERSION && self.checksum == self.sum
    }

    /// Whether the magic number is right.
    pub fn has_magic(&self) -> bool {
        self.magic == MAGIC
    }
}

impl RawPage {
    /// A page from its bytes; `None` when they are fewer than a header's.
    pub fn parse(bytes: Bytes) -> Option<Self> {
        let mut head = bytes.get(..HEADER_LEN)?;
        let (id, flags, count, overflow) = (head.get_u64_le(), head.get_u16_le(), head.get_u16_le(), head.get_u32_le());
        Some(Self { id, flags, count, overflow, bytes })
    }

    pub fn is_branch(&self) -> bool {
        self.flags == FLAG_BRANCH
    }

    pub fn is_leaf(&self) -> bool {
        self.flags == FLAG_LEAF
    }

    pub fn is_meta(&self) -> bool {
        self.flags == FLAG_META
    }

    pub fn is_freelist(&self) -> bool {
        self.flags == FLAG_FREELIST
    }

    /// Its kind in a word.
    pub fn kind(&self) -> String {
        match self.flags {
            FLAG_BRANCH => "branch".to_owned(),
            FLAG_LEAF => "leaf".to_owned(),
            FLAG_META => "meta".to_owned(),
            FLAG_FREELIST => "freelist".to_owned(),
            other => format!("unknown<{other:02x}>"),
        }
    }

    /// All its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The element at `index` as a leaf's.
    pub fn leaf(&self, index: usize) -> Option<RawLeaf<'_>> {
        let at = HEADER_LEN + index * ELEMENT_LEN;
        let mut raw = self.bytes.get(at..at + ELEMENT_LEN)?;
        let (flags, position, key_len, value_len) =
            (raw.get_u32_le(), raw.get_u32_le(), raw.get_u32_le(), raw.get_u32_le());
        let start = at.checked_add(position as usize)?;
        let end = start.checked_add(key_len as usize)?;
        let key = self.bytes.get(start..end)?;
        let value = self.bytes.get(end..end.checked_add(value_len as usize)?)?;
        Some(RawLeaf { flags, position, key, value })
    }

    /// The element at `index` as a branch's.
    pub fn branch(&self, index: usize) -> Option<RawBranch<'_>> {
        let at = HEADER_LEN + index * ELEMENT_LEN;
        let mut raw = self.bytes.get(at..at + ELEMENT_LEN)?;
        let (position, key_len, child) = (raw.get_u32_le(), raw.get_u32_le(), raw.get_u64_le());
        let start = at.checked_add(position as usize)?;
        let key = self.bytes.get(start..start.checked_add(key_len as usize)?)?;
        Some(RawBranch { position, key, child })
    }

    /// The key of the element at `index`, whichever kind the page is.
    pub fn key(&self, index: usize) -> Option<&[u8]> {
        if self.is_branch() { self.branch(index).map(|one| one.key) } else { self.leaf(index).map(|one| one.key) }
    }

    /// The meta in the page; `None` when the bytes are too few.
    pub fn meta(&self) -> Option<RawMeta> {
        let mut body = self.bytes.get(HEADER_LEN..HEADER_LEN + META_LEN)?;
        let sum = fnv1a(&body[..META_LEN - 8]);
        Some(RawMeta {
            magic: body.get_u32_le(),
            version: body.get_u32_le(),
            page_size: body.get_u32_le(),
            flags: body.get_u32_le(),
            root: body.get_u64_le(),
            sequence: body.get_u64_le(),
            freelist: body.get_u64_le(),
            high_water: body.get_u64_le(),
            txid: body.get_u64_le(),
            checksum: body.get_u64_le(),
            sum,
        })
    }

    /// The numbers in a free list, and how many it says it has. The two differ when it is broken.
    pub fn free_ids(&self) -> (u64, Vec<u64>) {
        let mut rest = self.bytes.get(HEADER_LEN..).unwrap_or_default();
        let count = match self.count {
            u16::MAX if rest.len() >= 8 => rest.get_u64_le(),
            count => u64::from(count),
        };
        let there = usize::try_from(count).unwrap_or(usize::MAX).min(rest.len() / 8);
        (count, (0..there).map(|_| rest.get_u64_le()).collect())
    }
}
