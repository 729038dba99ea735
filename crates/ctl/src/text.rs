//! Words of the command line: numbers and ids as Go's `strconv` reads them, and lines split into words.

use dolmen_cli::{Failure, golang, words};

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
pub fn split_words(line: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let mut length = first.len_utf8();
        match first {
            '"' => {
                if let Some(quoted) = double_quoted(rest) {
                    found.push(words::from_bytes(golang::unquote(quoted)?));
                    length = quoted.len();
                }
            }
            '\'' => {
                if let Some(inside) = rest[1..].find('\'') {
                    found.push(rest[1..=inside].to_owned());
                    length = inside + 2;
                }
            }
            _ if is_space(first) => {}
            _ => {
                length = rest.find(is_space).unwrap_or(rest.len());
                found.push(rest[..length].to_owned());
            }
        }
        rest = &rest[length..];
    }
    Ok(found)
}

/// White space of a regular expression.
fn is_space(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\x0c' | '\r' | ' ')
}

/// The quoted word at the start of `text`, with its quotes.
fn double_quoted(text: &str) -> Option<&str> {
    let mut chars = text.char_indices().skip(1);
    loop {
        match chars.next()? {
            (at, '"') => return Some(&text[..=at]),
            // Both a back slash and what it escapes; a line feed it cannot.
            (_, '\\') if chars.next()?.1 == '\n' => return None,
            _ => {}
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
            ("put ä 'ö ü'", &["put", "ä", "ö ü"]),
            ("", &[]),
        ];
        for (line, words) in table {
            assert_eq!(
                split_words(line).as_deref(),
                Ok(words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>().as_slice()),
                "{line}"
            );
        }
        assert_eq!(split_words(r#"put "\q" x"#), Err("invalid syntax".to_owned()));
    }
}
