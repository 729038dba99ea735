//! One page, taken apart and checked.

use std::ops::Range;

use bytes::{Buf, Bytes};

pub(crate) use crate::layout::HEADER_LEN;
use crate::layout::{ELEMENT_LEN, Kind};
use crate::{Fault, MAX_KEY_LEN};

pub(crate) const FLAG_BRANCH: u16 = 0x01;
pub(crate) const FLAG_LEAF: u16 = 0x02;
pub(crate) const FLAG_META: u16 = 0x04;
pub(crate) const FLAG_FREELIST: u16 = 0x10;
/// Flag of a leaf element whose value is a bucket.
pub(crate) const FLAG_BUCKET: u32 = 0x01;
pub(crate) const MAGIC: u32 = 0xED0C_DAED;
pub(crate) const VERSION: u32 = 2;
/// The free list page of a file that has none.
pub(crate) const NO_FREELIST: u64 = u64::MAX;
/// Bytes of a meta after the page header, checksum and all.
const META_LEN: usize = 64;
/// Bytes of the head that a meta can be read from.
pub(crate) const META_PAGE_LEN: usize = HEADER_LEN + META_LEN;

/// FNV-1a, 64 bits: the checksum of a meta.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The 16 bytes every page starts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub id: u64,
    pub flags: u16,
    pub count: u16,
    pub overflow: u32,
}

impl Header {
    /// `None` when there are fewer than 16 bytes.
    pub(crate) fn parse(mut bytes: &[u8]) -> Option<Self> {
        (bytes.len() >= HEADER_LEN).then(|| Self {
            id: bytes.get_u64_le(),
            flags: bytes.get_u16_le(),
            count: bytes.get_u16_le(),
            overflow: bytes.get_u32_le(),
        })
    }

    /// The kind of a page that belongs to a tree.
    pub(crate) fn kind(self) -> Result<Kind, Fault> {
        match self.flags {
            FLAG_BRANCH => Ok(Kind::Branch),
            FLAG_LEAF => Ok(Kind::Leaf),
            _ => Err(Fault::WrongKind),
        }
    }

    /// Bytes of header and element table.
    pub(crate) fn table_end(self) -> usize {
        HEADER_LEN + usize::from(self.count) * ELEMENT_LEN
    }
}

/// What a meta page says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    pub page_size: u32,
    pub root: u64,
    pub freelist: u64,
    pub high_water: u64,
    pub txid: u64,
}

impl Meta {
    /// Reads the meta from the first bytes of its page.
    pub(crate) fn parse(page: &[u8], id: u64) -> Result<Self, Fault> {
        let header = Header::parse(page).ok_or(Fault::BeyondFile)?;
        let mut body = page.get(HEADER_LEN..META_PAGE_LEN).ok_or(Fault::BeyondFile)?;
        let sum = fnv1a(&body[..META_LEN - 8]);
        if body.get_u32_le() != MAGIC {
            return Err(Fault::Magic);
        }
        if body.get_u32_le() != VERSION {
            return Err(Fault::Version);
        }
        let page_size = body.get_u32_le();
        let _flags = body.get_u32_le();
        let root = body.get_u64_le();
        let _root_sequence = body.get_u64_le();
        let meta = Self {
            page_size,
            root,
            freelist: body.get_u64_le(),
            high_water: body.get_u64_le(),
            txid: body.get_u64_le(),
        };
        if body.get_u64_le() != sum {
            return Err(Fault::Checksum);
        }
        if header.id != id {
            return Err(Fault::WrongId);
        }
        if header.flags != FLAG_META {
            return Err(Fault::WrongKind);
        }
        if !page_size.is_power_of_two() || !(1 << 10..=1 << 20).contains(&page_size) {
            return Err(Fault::PageSize);
        }
        Ok(meta)
    }
}

/// One element of a page whose bounds have been checked.
#[derive(Clone, Debug)]
pub(crate) struct Element {
    key: Range<usize>,
    value: Range<usize>,
    /// A branch's child page, or a leaf's flags.
    pub word: u64,
}

/// A page of a tree. Keys ascend, and every element lies within `bytes`, after the table and after the one before it.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub id: u64,
    pub kind: Kind,
    pub bytes: Bytes,
    elements: Vec<Element>,
    /// Keys and values lie one behind the other, from the end of the table on.
    packed: bool,
}

impl Page {
    /// Where the elements of a page end, from header and table alone, so that a reader knows how much to read.
    /// `run_len` bytes are the page's with its overflow; `table` holds at least the table.
    pub(crate) fn elements(header: Header, table: &[u8], run_len: u64) -> Result<Vec<Element>, Fault> {
        let kind = header.kind()?;
        let table = table.get(HEADER_LEN..header.table_end()).ok_or(Fault::Count)?;
        let mut elements = Vec::with_capacity(usize::from(header.count));
        let mut end = header.table_end() as u64;
        for (index, mut raw) in table.chunks_exact(ELEMENT_LEN).enumerate() {
            let at = (HEADER_LEN + index * ELEMENT_LEN) as u64;
            let (word, position, key_len, value_len) = match kind {
                Kind::Branch => {
                    let (position, key_len) = (raw.get_u32_le(), raw.get_u32_le());
                    (raw.get_u64_le(), position, key_len, 0)
                }
                Kind::Leaf => {
                    let word = u64::from(raw.get_u32_le());
                    if word > u64::from(FLAG_BUCKET) {
                        return Err(Fault::Flags);
                    }
                    (word, raw.get_u32_le(), raw.get_u32_le(), raw.get_u32_le())
                }
            };
            if key_len == 0 || key_len as usize > MAX_KEY_LEN {
                return Err(Fault::KeyLen);
            }
            // Sums of four 32-bit numbers: no overflow in 64 bits.
            let key_start = at + u64::from(position);
            let key_end = key_start + u64::from(key_len);
            let value_end = key_end + u64::from(value_len);
            if key_start < end || value_end > run_len {
                return Err(Fault::Bounds);
            }
            end = value_end;
            let index = |offset: u64| usize::try_from(offset).map_err(|_| Fault::TooLarge);
            elements.push(Element {
                key: index(key_start)?..index(key_end)?,
                value: index(key_end)?..index(value_end)?,
                word,
            });
        }
        Ok(elements)
    }

    /// Bytes from the page's start to the end of its last element.
    pub(crate) fn used_len(header: Header, elements: &[Element]) -> usize {
        elements.last().map_or(header.table_end(), |last| last.value.end)
    }

    /// A page from its elements and at least [`Page::used_len`] bytes.
    pub(crate) fn new(id: u64, kind: Kind, elements: Vec<Element>, bytes: Bytes) -> Result<Self, Fault> {
        let ascending = elements.windows(2).all(|pair| bytes[pair[0].key.clone()] < bytes[pair[1].key.clone()]);
        if !ascending {
            return Err(Fault::Order);
        }
        let mut end = HEADER_LEN + elements.len() * ELEMENT_LEN;
        let mut packed = true;
        for element in &elements {
            packed &= element.key.start == end;
            end = element.value.end;
        }
        Ok(Self { id, kind, bytes, elements, packed })
    }

    /// The page inside the value of an inline bucket.
    pub(crate) fn inline(bytes: Bytes) -> Result<Self, Fault> {
        let header = Header::parse(&bytes).ok_or(Fault::BucketHeader)?;
        if header.kind()? != Kind::Leaf || header.overflow != 0 {
            return Err(Fault::WrongKind);
        }
        let elements = Self::elements(header, &bytes, bytes.len() as u64)?;
        Self::new(0, Kind::Leaf, elements, bytes)
    }

    pub(crate) fn len(&self) -> usize {
        self.elements.len()
    }

    pub(crate) fn is_packed(&self) -> bool {
        self.packed
    }

    /// Where the last element ends, counted from the start of the page.
    pub(crate) fn end(&self) -> usize {
        self.elements.last().map_or(HEADER_LEN, |last| last.value.end)
    }

    /// From the first key to the end of the last value; what lies between elements of a page that is not packed, too.
    pub(crate) fn data(&self) -> &[u8] {
        let start = self.elements.first().map_or(self.end(), |first| first.key.start);
        &self.bytes[start..self.end()]
    }

    pub(crate) fn value(&self, index: usize) -> &[u8] {
        &self.bytes[self.elements[index].value.clone()]
    }

    pub(crate) fn key(&self, index: usize) -> &[u8] {
        &self.bytes[self.elements[index].key.clone()]
    }

    pub(crate) fn key_bytes(&self, index: usize) -> Bytes {
        self.bytes.slice(self.elements[index].key.clone())
    }

    pub(crate) fn value_bytes(&self, index: usize) -> Bytes {
        self.bytes.slice(self.elements[index].value.clone())
    }

    pub(crate) fn word(&self, index: usize) -> u64 {
        self.elements[index].word
    }

    /// Elements whose key is below `key`.
    pub(crate) fn below(&self, key: &[u8]) -> usize {
        self.elements.partition_point(|element| self.bytes[element.key.clone()] < *key)
    }

    /// The element of a branch whose child may hold `key`: the last one not above it, or the first.
    pub(crate) fn child_for(&self, key: &[u8]) -> usize {
        self.elements.partition_point(|element| self.bytes[element.key.clone()] <= *key).saturating_sub(1)
    }
}
