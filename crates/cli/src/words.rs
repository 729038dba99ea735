//! Arguments that are not UTF-8, kept without loss in a `String`.
//!
//! An argument of a process is bytes; almost always they are UTF-8. Bytes that are not stand as one character each from
//! the end of Unicode's last private plane: byte 0x80 is U+10FF80, byte 0xff is U+10FFFF. Should such a character
//! itself be typed, its four bytes are kept the same way, so that [`bytes`] always gives back what was typed.

use std::ffi::OsString;

const FIRST: u32 = 0x10ff80;
const LAST: u32 = 0x10ffff;

/// The arguments of this process, without the program's name.
pub fn of_process() -> Vec<String> {
    std::env::args_os().skip(1).map(from_os).collect()
}

/// One argument or environment variable.
pub fn from_os(word: OsString) -> String {
    from_bytes(word.into_encoded_bytes())
}

/// Any bytes.
pub fn from_bytes(bytes: Vec<u8>) -> String {
    let bytes = match String::from_utf8(bytes) {
        Ok(text) if !holds_bytes(&text) => return text,
        Ok(text) => text.into_bytes(),
        Err(error) => error.into_bytes(),
    };
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if stands_for_a_byte(c) {
                let mut space = [0; 4];
                c.encode_utf8(&mut space).bytes().for_each(|byte| push_byte(&mut out, byte));
            } else {
                out.push(c);
            }
        }
        chunk.invalid().iter().for_each(|byte| push_byte(&mut out, *byte));
    }
    out
}

/// What was typed.
pub fn bytes(word: &str) -> Vec<u8> {
    if !holds_bytes(word) {
        return word.as_bytes().to_vec();
    }
    let mut out = Vec::with_capacity(word.len());
    for c in word.chars() {
        if stands_for_a_byte(c) {
            out.push((u32::from(c) & 0xff) as u8);
        } else {
            let mut space = [0; 4];
            out.extend_from_slice(c.encode_utf8(&mut space).as_bytes());
        }
    }
    out
}

/// Some of its characters stand for bytes.
pub fn holds_bytes(word: &str) -> bool {
    // All of them begin with this byte.
    word.as_bytes().contains(&0xf4) && word.chars().any(stands_for_a_byte)
}

fn stands_for_a_byte(c: char) -> bool {
    (FIRST..=LAST).contains(&u32::from(c))
}

/// `byte`: 0x80 or above; a part of well-formed UTF-8 below that never gets here.
fn push_byte(out: &mut String, byte: u8) {
    match char::from_u32(0x10ff00 | u32::from(byte)) {
        Some(c) => out.push(c),
        None => out.push(char::REPLACEMENT_CHARACTER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_comes_back() {
        let words: [&[u8]; 6] = [
            b"plain",
            "täglich".as_bytes(),
            b"a\xffb",
            b"\xc3",
            "\u{10ff80}x".as_bytes(),
            "\u{10ffff}\u{fffd}".as_bytes(),
        ];
        for word in words {
            assert_eq!(bytes(&from_bytes(word.to_vec())), word);
        }
        assert_eq!(from_bytes(b"a\xffb".to_vec()), "a\u{10ffff}b");
        assert_eq!(from_bytes("täglich".into()), "täglich");
    }
}
