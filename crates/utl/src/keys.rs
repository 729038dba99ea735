//! A table of keys that remembers no key: 8 bytes of a hash for each.
//!
//! To count the distinct keys of a database of many gigabytes one has to know which have been seen. Go's etcdutl keeps
//! every key in a map, some 100 bytes a key. Here a key is 76 bits of a hash: 12 choose one of 4096 small tables, 64
//! stand in it. Tables have open addressing and grow by half, one at a time, so about 12 bytes are held for each key
//! with nothing beside: 12 MB for a million keys. Two keys fall together, and a count is wrong by one, once in 10^9
//! databases of ten million keys.

/// Tables, a power of two.
const TABLES: usize = 1 << 12;
/// Slots of a table that is not empty.
const FIRST_SLOTS: usize = 16;
/// Slots that say they are empty. A hash of this value is counted as the next one.
const EMPTY: u64 = 0;

/// Keys and a value for each.
pub struct KeyTable<V> {
    tables: Vec<Table<V>>,
    count: usize,
}

struct Table<V> {
    slots: Vec<(u64, V)>,
    used: usize,
}

/// 76 bits of a key, in two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hashed {
    table: usize,
    word: u64,
}

/// Multiplies and folds: the mixing step of the wyhash family.
fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    (product as u64) ^ (product >> 64) as u64
}

fn hash(key: &[u8]) -> Hashed {
    const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
    const SECOND: u64 = 0xd1b5_4a32_d192_ed03;
    const THIRD: u64 = 0x8bb8_4b93_962e_acc9;
    let mut one = FIRST ^ key.len() as u64;
    let mut two = SECOND;
    for chunk in key.chunks(16) {
        let mut words = [0; 16];
        words[..chunk.len()].copy_from_slice(chunk);
        let low = u64::from_le_bytes([words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]]);
        let high =
            u64::from_le_bytes([words[8], words[9], words[10], words[11], words[12], words[13], words[14], words[15]]);
        one = fold(one ^ low ^ THIRD, high ^ SECOND).wrapping_add(one.rotate_left(23));
        two = fold(two ^ high ^ FIRST, low ^ THIRD).wrapping_add(two.rotate_left(41));
    }
    let word = fold(one ^ FIRST, two ^ THIRD);
    let table = fold(two ^ SECOND, one ^ THIRD).wrapping_add(one) >> 52;
    Hashed { table: table as usize, word: if word == EMPTY { 1 } else { word } }
}

impl<V: Copy + Default> KeyTable<V> {
    /// An empty table.
    pub fn new() -> Self {
        Self { tables: (0..TABLES).map(|_| Table { slots: Vec::new(), used: 0 }).collect(), count: 0 }
    }

    /// Keys in it.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Puts a key, and returns the value it had.
    pub fn insert(&mut self, key: &[u8], value: V) -> Option<V> {
        let hashed = hash(key);
        let before = self.tables[hashed.table].insert(hashed.word, value);
        self.count += usize::from(before.is_none());
        before
    }

    /// Takes a key out, and returns the value it had.
    pub fn remove(&mut self, key: &[u8]) -> Option<V> {
        let hashed = hash(key);
        let before = self.tables[hashed.table].remove(hashed.word);
        self.count -= usize::from(before.is_some());
        before
    }
}

impl<V: Copy + Default> Default for KeyTable<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: Copy + Default> Table<V> {
    /// Where a word belongs: the hash as a fraction of the slots, since their number is no power of two.
    fn home(&self, word: u64) -> usize {
        ((u128::from(word) * self.slots.len() as u128) >> 64) as usize
    }

    fn next(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() { 0 } else { slot + 1 }
    }

    /// The slot of a word, or the empty one where it would go.
    fn find(&self, word: u64) -> usize {
        let mut slot = self.home(word);
        while self.slots[slot].0 != EMPTY && self.slots[slot].0 != word {
            slot = self.next(slot);
        }
        slot
    }

    fn insert(&mut self, word: u64, value: V) -> Option<V> {
        // At most 7 of 8 slots are taken.
        if (self.used + 1) * 8 > self.slots.len() * 7 {
            self.grow();
        }
        let slot = self.find(word);
        let taken = self.slots[slot].0 == word;
        let before = taken.then_some(self.slots[slot].1);
        self.slots[slot] = (word, value);
        self.used += usize::from(!taken);
        before
    }

    fn grow(&mut self) {
        let len = (self.slots.len() + self.slots.len() / 2).max(FIRST_SLOTS);
        let old = std::mem::replace(&mut self.slots, vec![(EMPTY, V::default()); len]);
        for (word, value) in old {
            if word != EMPTY {
                let slot = self.find(word);
                self.slots[slot] = (word, value);
            }
        }
    }

    fn remove(&mut self, word: u64) -> Option<V> {
        if self.used == 0 {
            return None;
        }
        let mut hole = self.find(word);
        if self.slots[hole].0 == EMPTY {
            return None;
        }
        let before = self.slots[hole].1;
        self.used -= 1;
        // What comes after moves up, unless that would put it before its home.
        let mut slot = self.next(hole);
        while self.slots[slot].0 != EMPTY {
            let home = self.home(self.slots[slot].0);
            let stays = if hole <= slot { hole < home && home <= slot } else { hole < home || home <= slot };
            if !stays {
                self.slots[hole] = self.slots[slot];
                hole = slot;
            }
            slot = self.next(slot);
        }
        self.slots[hole] = (EMPTY, V::default());
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn agrees_with_a_map() {
        let mut random: u64 = 7;
        let mut next = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        let (mut table, mut map) = (KeyTable::new(), BTreeMap::new());
        for round in 0..400_000_u64 {
            let key = format!("/registry/{}", next(60_000)).into_bytes();
            if next(3) == 0 {
                assert_eq!(table.remove(&key), map.remove(&key));
            } else {
                assert_eq!(table.insert(&key, round), map.insert(key, round));
            }
            assert_eq!(table.len(), map.len());
        }
        for key in map.keys() {
            assert!(table.remove(key).is_some());
        }
        assert!(table.is_empty());
    }

    #[test]
    fn like_keys_have_unlike_hashes() {
        let mut seen = BTreeMap::new();
        for at in 0..200_000_u32 {
            for key in [at.to_be_bytes().to_vec(), format!("/a/{at:032}").into_bytes(), vec![0; at as usize % 500]] {
                let hashed = hash(&key);
                let other = seen.insert((hashed.table, hashed.word), key.clone());
                assert!(other.is_none_or(|other| other == key));
            }
        }
    }

    #[test]
    fn holds_about_twelve_bytes_a_key() {
        let mut table = KeyTable::<()>::new();
        for at in 0..1_000_000_u32 {
            table.insert(&at.to_be_bytes(), ());
        }
        let bytes: usize = table.tables.iter().map(|table| table.slots.capacity() * 8).sum();
        assert!((8_000_000..14_000_000).contains(&bytes), "{bytes} bytes");
    }
}
