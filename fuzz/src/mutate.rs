//! Damage to bytes.

use dolmen_env::Rng;

/// Lengths, counts and offsets live at such values when things go wrong.
const NUMBERS: [u64; 12] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 40, i64::MAX as u64, u64::MAX];

/// Damages `bytes` in one to four places.
pub fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..=rng.below(4) {
        once(rng, bytes);
    }
}

fn once(rng: &mut Rng, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        bytes.push(rng.next_u64() as u8);
        return;
    }
    let at = rng.below(bytes.len() as u64) as usize;
    let run = (1 + rng.below(64) as usize).min(bytes.len() - at);
    match rng.below(9) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = rng.next_u64() as u8,
        2 => bytes.truncate(at),
        3 => bytes[at..at + run].fill(0),
        4 => drop(bytes.drain(at..at + run)),
        5 => {
            let copy = bytes[at..at + run].to_vec();
            let to = rng.below(bytes.len() as u64 + 1) as usize;
            bytes.splice(to..to, copy);
        }
        6 => {
            let to = rng.below(bytes.len() as u64 - run as u64 + 1) as usize;
            bytes.copy_within(at..at + run, to);
        }
        7 => number(rng, &mut bytes[at..]),
        _ => varint(rng, bytes, at),
    }
}

/// A number of 1, 2, 4 or 8 bytes, in either order.
fn number(rng: &mut Rng, at: &mut [u8]) {
    let value = *rng.pick(&NUMBERS);
    let width = (1 << rng.below(4)).min(at.len());
    let bytes = if rng.chance(500) { value.to_le_bytes() } else { value.to_be_bytes() };
    let from = if bytes[0] == 0 && bytes[7] != 0 { 8 - width } else { 0 };
    at[..width].copy_from_slice(&bytes[from..from + width]);
}

/// A varint in place of the one that seems to be there.
fn varint(rng: &mut Rng, bytes: &mut Vec<u8>, at: usize) {
    let end = bytes[at..].iter().position(|byte| byte & 0x80 == 0).map_or(bytes.len(), |len| at + len + 1);
    let mut value = *rng.pick(&NUMBERS);
    let mut fresh = Vec::new();
    while value >= 0x80 {
        fresh.push(value as u8 | 0x80);
        value >>= 7;
    }
    fresh.push(value as u8);
    bytes.splice(at..end, fresh);
}
