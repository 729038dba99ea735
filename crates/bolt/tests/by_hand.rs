//! What bbolt writes and the writer here does not: inline buckets, buckets in buckets, and a free list.

mod common;

use common::Seeded;
use dolmen_bolt::{BoltReader, Error, Fault};

const PAGE: usize = 1024;

fn page(id: u64, flags: u16, count: u16, body: &[u8]) -> Vec<u8> {
    let mut page = id.to_le_bytes().to_vec();
    page.extend(flags.to_le_bytes());
    page.extend(count.to_le_bytes());
    page.extend(0u32.to_le_bytes());
    page.extend(body);
    page
}

/// A leaf's elements and bytes: flags, key, value.
fn leaf_body(elements: &[(u32, &[u8], &[u8])]) -> Vec<u8> {
    let (mut table, mut data) = (Vec::new(), Vec::new());
    for (index, (flags, key, value)) in elements.iter().enumerate() {
        let position = (elements.len() - index) * 16 + data.len();
        for word in [*flags, position as u32, key.len() as u32, value.len() as u32] {
            table.extend(word.to_le_bytes());
        }
        data.extend(*key);
        data.extend(*value);
    }
    [table, data].concat()
}

fn inline_bucket(sequence: u64, elements: &[(u32, &[u8], &[u8])]) -> Vec<u8> {
    let mut value = 0u64.to_le_bytes().to_vec();
    value.extend(sequence.to_le_bytes());
    value.extend(page(0, 2, elements.len() as u16, &leaf_body(elements)));
    value
}

fn meta(id: u64, txid: u64, root: u64, freelist: u64, high_water: u64) -> Vec<u8> {
    let mut body = 0xED0C_DAEDu32.to_le_bytes().to_vec();
    body.extend(2u32.to_le_bytes());
    body.extend((PAGE as u32).to_le_bytes());
    body.extend(0u32.to_le_bytes());
    for number in [root, 0, freelist, high_water, txid] {
        body.extend(number.to_le_bytes());
    }
    let sum =
        body.iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    body.extend(sum.to_le_bytes());
    page(id, 4, 0, &body)
}

/// Pages: 2 the root bucket with an inline bucket `b` that holds a pair and an inline bucket, 3 the free list, and as many
/// more as `free` says, of which the list names `listed`.
fn file(free: u64, listed: &[u64]) -> Vec<u8> {
    let nested = inline_bucket(0, &[(0, b"deep", b"er")]);
    let bucket = inline_bucket(7, &[(0, b"key", b"value"), (1, b"nested", &nested)]);
    let list: Vec<u8> = listed.iter().flat_map(|id| id.to_le_bytes()).collect();
    let high_water = 4 + free;
    let pages = [
        meta(0, 4, 2, 3, high_water),
        meta(1, 5, 2, 3, high_water),
        page(2, 2, 1, &leaf_body(&[(1, b"b", &bucket)])),
        page(3, 0x10, listed.len() as u16, &list),
    ];
    let mut file = Vec::new();
    for page in pages {
        file.extend(page);
        file.resize(file.len().next_multiple_of(PAGE), 0);
    }
    file.resize(high_water as usize * PAGE, 0);
    file
}

fn fault_of(file: &[u8]) -> (u64, Fault) {
    match BoltReader::open(file).unwrap().check() {
        Err(Error::Page { id, fault }) => (id, fault),
        other => panic!("{other:?}"),
    }
}

#[test]
fn inline_buckets_are_read() {
    let file = file(0, &[]);
    let reader = BoltReader::open(&file[..]).unwrap();
    assert_eq!((reader.txid(), reader.page_size()), (5, 1024));
    let bucket = reader.bucket(b"b").unwrap().unwrap();
    assert_eq!(bucket.sequence(), 7);
    assert_eq!(bucket.get(b"key").unwrap().unwrap(), "value");
    assert_eq!(bucket.get(b"nested").unwrap(), None, "a bucket is no value");
    let mut pairs = bucket.pairs().unwrap();
    assert_eq!(pairs.next().unwrap().unwrap(), ("key".into(), "value".into()));
    assert!(matches!(pairs.next(), Some(Err(Error::Page { fault: Fault::NestedBucket, .. }))));
    assert!(pairs.next().is_none());
    let report = reader.check().unwrap();
    assert_eq!(report.buckets[0].pairs, 2);
}

#[test]
fn free_lists_are_checked() {
    let free = |file: &[u8]| BoltReader::open(file).unwrap().check().unwrap().pages_free;
    assert_eq!(free(&file(0, &[])), 0);
    assert_eq!(free(&file(3, &[4, 5, 6])), 3);
    assert_eq!(fault_of(&file(3, &[4, 6])), (5, Fault::Unreachable));
    assert_eq!(fault_of(&file(2, &[4, 4])), (3, Fault::FreeList));
    assert_eq!(fault_of(&file(2, &[5, 4])), (3, Fault::FreeList));
    assert_eq!(fault_of(&file(1, &[2, 4])), (2, Fault::FreeInUse));
    assert_eq!(fault_of(&file(1, &[4, 5])), (5, Fault::OutOfRange));
    assert_eq!(fault_of(&file(1, &[1, 4])), (1, Fault::OutOfRange));
    let mut long = file(1, &[4]);
    long[3 * PAGE + 10..3 * PAGE + 12].copy_from_slice(&0xffffu16.to_le_bytes());
    // The count stands in the first number now: 4, of which there is room for, and which are zeroes.
    assert_eq!(fault_of(&long), (3, Fault::FreeList));
    long[3 * PAGE + 16..3 * PAGE + 24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(fault_of(&long), (3, Fault::Count));
}

#[test]
fn flips_in_a_hand_made_file_never_panic() {
    let file = file(3, &[4, 5, 6]);
    let mut random = Seeded(9);
    for _ in 0..20_000 {
        let mut damaged = file.clone();
        for _ in 0..1 + random.below(2) {
            let at = random.below(4 * PAGE);
            damaged[at] = random.next() as u8;
        }
        if let Ok(reader) = BoltReader::open(&damaged[..]) {
            let _ = reader.check();
            for name in reader.buckets().unwrap_or_default() {
                if let Ok(Some(bucket)) = reader.bucket(&name) {
                    let _ = bucket.pairs().map(|pairs| pairs.count());
                    let _ = bucket.get(b"key");
                }
            }
        }
    }
}
