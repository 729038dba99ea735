//! Words of the command line: numbers and ids as Go's `strconv` reads them, and lines split into words.

use dolmen_cli::{Failure, golang};

/// A lease id in hexadecimal, given as an argument.
///
/// # Errors
/// `bad lease ID arg (strconv.ParseInt: parsing "x": invalid syntax), expecting ID in Hex` (exit 128).
pub fn lease_argument(word: &str) -> Result<i64, Failure> {
    golang::parse_int(word, 16)
        .map_err(|why| Failure::bad_args(format!("bad lease ID arg ({why}), expecting ID in Hex")))
}

/// The end of the range of all keys that begin with `prefix`: the prefix with its last byte that is below 0xff raised by
/// one, and what follows cut off. No such byte: `\0`, the end of all keys.
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    match prefix.iter().rposition(|byte| *byte < 0xff) {
        Some(last) => {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            end
        }
        None => vec![0],
    }
}

/// Splits a line of `txn` or of an interactive `watch` into words.
///
/// A word is `"..."` (Go's escapes), `'...'` (as it stands), or a run without white space. Quotes that are never closed are
/// skipped, and what follows them is split as usual: etcdctl finds words by one regular expression, and this is what it finds.
/// # Errors
/// `invalid syntax` for an escape that Go does not know.
pub fn split_words(line: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut words = Vec::new();
    let mut at = 0;
    while let Some(&first) = line.get(at) {
        let rest = &line[at..];
        match first {
            b'"' => match double_quoted(rest) {
                Some(length) => {
                    words.push(golang::unquote(&rest[..length]).ok_or_else(|| "invalid syntax".to_owned())?);
                    at += length;
                }
                None => at += 1,
            },
            b'\'' => match rest[1..].iter().position(|byte| *byte == b'\'') {
                Some(length) => {
                    words.push(rest[1..=length].to_vec());
                    at += length + 2;
                }
                None => at += 1,
            },
            _ if is_space(first) => at += 1,
            _ => {
                let length = rest.iter().position(|byte| is_space(*byte)).unwrap_or(rest.len());
                words.push(rest[..length].to_vec());
                at += length;
            }
        }
    }
    Ok(words)
}

/// White space of a regular expression.
fn is_space(byte: u8) -> bool {
    matches!(byte, b'\t' | b'\n' | b'\x0c' | b'\r' | b' ')
}

/// The length of the quoted word at the start of `text`, quotes included.
fn double_quoted(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => {
                if *text.get(at + 1)? == b'\n' {
                    return None;
                }
                at += 2;
            }
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix() {
        let table: &[(&[u8], &[u8])] =
            &[(b"a", b"b"), (b"a\xff", b"b"), (b"a\xff\xff", b"b"), (b"\xff\xff", b"\0"), (b"az", b"a{")];
        for (prefix, end) in table {
            assert_eq!(prefix_end(prefix), *end);
        }
    }

    #[test]
    fn lines_are_split_as_etcdctl_splits_them() {
        let table: &[(&str, &[&str])] = &[
            ("put key1 \"overwrote-key1\"", &["put", "key1", "overwrote-key1"]),
            (r#"put foo 'b"a r'"#, &["put", "foo", "b\"a r"]),
            (r#"put "a\tb\"c" x"#, &["put", "a\tb\"c", "x"]),
            // A quote inside a word does not open one, and one that is never closed is skipped.
            (r#"put a"b c"d"#, &["put", "a\"b", "c\"d"]),
            (r#"put "a b"#, &["put", "a", "b"]),
            ("  get\t foo  ", &["get", "foo"]),
            (r#"put k """#, &["put", "k", ""]),
            ("", &[]),
        ];
        for (line, words) in table {
            let found = split_words(line.as_bytes()).expect("no bad escape");
            let found: Vec<String> = found.into_iter().map(|w| String::from_utf8_lossy(&w).into_owned()).collect();
            assert_eq!(found, *words, "{line}");
        }
        assert_eq!(split_words(br#"put "\q" x"#), Err("invalid syntax".to_owned()));
    }
}
