//! A few changes to a large file, without writing it anew: the way bbolt itself commits, done once.
//!
//! Pages are never changed in place. What changes goes into new pages behind the last one in use, down to a new root, and
//! a meta with a higher transaction number names that root. The pages replaced are free from then on; since a patched file
//! has no free list, whoever opens it finds them free by walking the tree.
//!
//! ```text
//! meta 0 | meta 1 | pages as they were ... | new leaf | new leaf | new root        the patch is the last three, and a meta
//! ```
//!
//! Every changed bucket gets one leaf with as much overflow as it takes, which suits etcd's small buckets; one pair more
//! than a large bucket holds costs its rightmost leaf and the branches above it.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes};

use crate::layout::{ELEMENT_LEN, HEADER_LEN, Item, Kind};
use crate::page::{FLAG_BUCKET, Page};
use crate::reader::BoltReader;
use crate::writer::{meta_page, put_element, put_header};
use crate::{Error, Fault, MAX_KEY_LEN, ReadAt};

/// Levels of a tree no real file reaches.
const MAX_DEPTH: usize = 48;

/// Changes to one file, collected. [`Edit::finish`] makes them a [`Patch`].
pub struct Edit<'r, R> {
    reader: &'r BoltReader<R>,
    /// Of every bucket: what its element in the root holds.
    buckets: BTreeMap<Bytes, Bytes>,
    first: u64,
    pages: Vec<u8>,
}

/// What has to be written, and where.
#[derive(Clone, Debug)]
pub struct Patch {
    /// Where `pages` go: the end of the pages in use.
    pub offset: u64,
    /// The new pages.
    pub pages: Bytes,
    /// Length of the patched file.
    pub len: u64,
    page_size: u32,
    root: u64,
    high_water: u64,
    txid: u64,
}

/// Key, value, and the word that is a branch's child or a leaf's flags.
type Element = (Bytes, Bytes, u64);

impl<R: ReadAt> BoltReader<R> {
    /// Begins to change the file.
    ///
    /// # Errors
    /// Any fault in the pages of the root bucket.
    pub fn edit(&self) -> Result<Edit<'_, R>, Error> {
        let buckets = self.root_elements()?.into_iter().collect();
        Ok(Edit { reader: self, buckets, first: self.meta.high_water, pages: Vec::new() })
    }
}

impl<R: ReadAt> Edit<'_, R> {
    /// Gives the bucket `name`, made if absent, exactly these pairs.
    ///
    /// # Errors
    /// `Count` or `KeyLen` when they do not fit one page with its overflow.
    pub fn replace(&mut self, name: &[u8], pairs: &BTreeMap<Bytes, Bytes>) -> Result<(), Error> {
        let elements = pairs.iter().map(|(key, value)| (key.clone(), value.clone(), 0)).collect();
        let root = self.put(Kind::Leaf, elements)?;
        self.set_root(name, root);
        Ok(())
    }

    /// Adds one pair behind the last one of the bucket `name`, made if absent.
    ///
    /// # Errors
    /// `Order` when `key` is not above the bucket's last key, and any fault on the way to it.
    pub fn append(&mut self, name: &[u8], key: Bytes, value: Bytes) -> Result<(), Error> {
        let mut path = self.right_edge(name)?;
        let mut elements = path.pop().map_or_else(Vec::new, |leaf| elements_of(&leaf));
        if elements.last().is_some_and(|(last, _, _)| *last >= key) {
            return Err(Error::Page { id: 0, fault: Fault::Order });
        }
        elements.push((key, value, 0));
        let mut child = self.put(Kind::Leaf, elements)?;
        while let Some(branch) = path.pop() {
            let mut elements = elements_of(&branch);
            if let Some(last) = elements.last_mut() {
                last.2 = child;
            }
            child = self.put(Kind::Branch, elements)?;
        }
        self.set_root(name, child);
        Ok(())
    }

    /// The last key of a bucket that this edit has not changed; `None` when it is empty or absent.
    ///
    /// # Errors
    /// Any fault on the way to it.
    pub fn last_key(&self, name: &[u8]) -> Result<Option<Bytes>, Error> {
        let path = self.right_edge(name)?;
        Ok(path.last().and_then(|leaf| leaf.len().checked_sub(1).map(|last| leaf.key_bytes(last))))
    }

    /// The pages from a bucket's root to its last leaf.
    fn right_edge(&self, name: &[u8]) -> Result<Vec<Page>, Error> {
        let mut path: Vec<Page> = Vec::new();
        let Some(header) = self.buckets.get(name) else { return Ok(path) };
        let mut page = self.reader.root_page(header)?;
        while page.kind == Kind::Branch {
            let last = page.len().checked_sub(1).ok_or(Error::Page { id: page.id, fault: Fault::Empty })?;
            let child = page.word(last);
            path.push(page);
            if path.len() > MAX_DEPTH {
                return Err(Error::Page { id: child, fault: Fault::Depth });
            }
            page = self.reader.tree_page(child)?;
        }
        path.push(page);
        Ok(path)
    }

    /// All changes, down to the new root.
    ///
    /// # Errors
    /// As [`Edit::replace`].
    pub fn finish(mut self) -> Result<Patch, Error> {
        let buckets = std::mem::take(&mut self.buckets);
        let elements = buckets.into_iter().map(|(name, header)| (name, header, u64::from(FLAG_BUCKET))).collect();
        let root = self.put(Kind::Leaf, elements)?;
        let meta = &self.reader.meta;
        let page_size = u64::from(meta.page_size);
        let high_water = self.first + self.pages.len() as u64 / page_size;
        Ok(Patch {
            offset: self.first * page_size,
            pages: self.pages.into(),
            len: high_water * page_size,
            page_size: meta.page_size,
            root,
            high_water,
            txid: meta.txid.checked_add(1).ok_or(Error::Page { id: meta.txid % 2, fault: Fault::OutOfRange })?,
        })
    }

    fn set_root(&mut self, name: &[u8], root: u64) {
        let mut header = [0; 16];
        header[..8].copy_from_slice(&root.to_le_bytes());
        self.buckets.insert(Bytes::copy_from_slice(name), Bytes::copy_from_slice(&header));
    }

    fn put(&mut self, kind: Kind, elements: Vec<Element>) -> Result<u64, Error> {
        let page_size = self.reader.meta.page_size as usize;
        let id = self.first + (self.pages.len() / page_size) as u64;
        let fault = |fault| Error::Page { id, fault };
        if elements.len() >= usize::from(u16::MAX) {
            return Err(fault(Fault::Count));
        }
        if elements.iter().any(|(key, _, _)| key.is_empty() || key.len() > MAX_KEY_LEN) {
            return Err(fault(Fault::KeyLen));
        }
        let data: usize = elements.iter().map(|(key, value, _)| key.len() + value.len()).sum();
        let len = HEADER_LEN + elements.len() * ELEMENT_LEN + data;
        if len > u32::MAX as usize {
            return Err(fault(Fault::TooLarge));
        }
        let pages = len.div_ceil(page_size);
        let end = self.pages.len() + pages * page_size;
        put_header(&mut self.pages, id, kind, elements.len(), pages as u64 - 1);
        let mut position = elements.len() * ELEMENT_LEN;
        for (key, value, word) in &elements {
            let item = Item { key_len: key.len(), value_len: value.len(), word: *word };
            put_element(&mut self.pages, kind, &item, position);
            position += key.len() + value.len();
            position -= ELEMENT_LEN;
        }
        for (key, value, _) in &elements {
            self.pages.put_slice(key);
            self.pages.put_slice(value);
        }
        self.pages.resize(end, 0);
        Ok(id)
    }
}

fn elements_of(page: &Page) -> Vec<Element> {
    (0..page.len()).map(|at| (page.key_bytes(at), page.value_bytes(at), page.word(at))).collect()
}

impl Patch {
    /// Both metas, for a file that nobody uses: offset and bytes. The older one says the same, so that losing one loses
    /// nothing.
    pub fn metas(&self) -> [(u64, Bytes); 2] {
        let newest = self.txid % 2;
        [self.meta(newest, self.txid), self.meta(1 - newest, self.txid - 1)]
    }

    /// The meta that commits the patch; to be written when the pages are durable. The other one still names the old tree,
    /// whole, so a write that is torn changes nothing.
    pub fn commit(&self) -> (u64, Bytes) {
        self.meta(self.txid % 2, self.txid)
    }

    fn meta(&self, id: u64, txid: u64) -> (u64, Bytes) {
        let page = meta_page(id, txid, self.page_size, self.root, self.high_water);
        (id * u64::from(self.page_size), page.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BoltWriter, MemorySource, Plan, Source};

    fn file(source: &MemorySource) -> Vec<u8> {
        let plan = Plan::new(source).expect("a plan");
        BoltWriter::new(Vec::new()).write(&plan, source).expect("a file")
    }

    fn patched(mut file: Vec<u8>, patch: &Patch, metas: &[(u64, Bytes)]) -> Vec<u8> {
        file.truncate(patch.offset as usize);
        file.extend_from_slice(&patch.pages);
        for (offset, meta) in metas {
            file[*offset as usize..][..meta.len()].copy_from_slice(meta);
        }
        assert_eq!(file.len() as u64, patch.len);
        file
    }

    fn content(file: &[u8]) -> MemorySource {
        let reader = BoltReader::open(Bytes::copy_from_slice(file)).expect("opens");
        reader.check().expect("sound");
        let source = reader.source().expect("a source");
        let mut all = MemorySource::new();
        for name in source.buckets() {
            let pairs = all.entry(name.clone()).or_default();
            let mut put = |key: &[u8], value: &[u8]| {
                pairs.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
                Ok(())
            };
            source.for_each(&name, &mut put).expect("pairs");
        }
        all
    }

    #[test]
    fn a_patched_file_holds_the_changes_and_all_the_rest() {
        for pairs in [0_u64, 1, 3, 200, 5_000, 60_000] {
            let mut wanted = MemorySource::new();
            let value = |at: u64| Bytes::from(vec![at as u8; (at % 97) as usize * 7]);
            let large = (1..=pairs).map(|at| (Bytes::copy_from_slice(&at.to_be_bytes()), value(at))).collect();
            wanted.insert("key".into(), large);
            wanted.insert("meta".into(), [("a".into(), "b".into())].into());
            wanted.insert("alarm".into(), BTreeMap::new());
            let before = file(&wanted);
            let reader = BoltReader::open(Bytes::from(before.clone())).expect("opens");
            let mut edit = reader.edit().expect("an edit");
            let members: BTreeMap<Bytes, Bytes> = [("m".into(), Bytes::from(vec![7; 9_000]))].into();
            assert_eq!(edit.last_key(b"key").expect("sound").is_none(), pairs == 0);
            edit.replace(b"members", &members).expect("fits");
            edit.replace(b"meta", &BTreeMap::new()).expect("fits");
            let key = Bytes::copy_from_slice(&(pairs + 1).to_be_bytes());
            if pairs > 0 {
                let low = Bytes::copy_from_slice(&pairs.to_be_bytes());
                assert!(edit.append(b"key", low, Bytes::new()).is_err(), "not above the last");
            }
            edit.append(b"key", key.clone(), Bytes::new()).expect("above the last");
            assert!(edit.append(b"meta", "a".into(), Bytes::new()).is_err(), "its pages are not in the file yet");
            let patch = edit.finish().expect("a patch");
            let unchanged = content(&before);
            wanted.insert("members".into(), members);
            wanted.insert("meta".into(), BTreeMap::new());
            wanted.get_mut(&b"key"[..]).expect("there").insert(key, Bytes::new());
            assert_eq!(content(&patched(before.clone(), &patch, &patch.metas())), wanted, "{pairs} pairs");
            assert_eq!(content(&patched(before.clone(), &patch, &[patch.commit()])), wanted, "{pairs} pairs");
            // Pages without their meta change nothing.
            assert_eq!(content(&patched(before, &patch, &[])), unchanged);
        }
    }
}
