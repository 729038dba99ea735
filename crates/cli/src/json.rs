//! JSON spelled as Go's `encoding/json` spells it: no spaces, `<`, `>` and `&` escaped, bytes in base64, numbers of any
//! size as digits.
//!
//! ```
//! use dolmen_cli::json::{self, Object};
//!
//! let header = Object::new().uint("cluster_id", 14841639068965178418).uint_or_none("revision", 0);
//! let kv = Object::new().bytes("key", b"foo").text_or_none("value", "");
//! let all = Object::new().object("header", header).list("kvs", [kv.end()]).end();
//! assert_eq!(all, r#"{"header":{"cluster_id":14841639068965178418},"kvs":[{"key":"Zm9v"}]}"#);
//! assert_eq!(json::text("a<b"), r#""a\u003cb""#);
//! ```
//!
//! The methods ending in `_or_none` are fields with `omitempty`: they write nothing for zero, false and empty.

use std::fmt::Write;

use crate::{golang, words};

/// An object being written; fields stand in the order of the calls.
#[derive(Debug, Default, Clone)]
pub struct Object {
    text: String,
}

impl Object {
    pub fn new() -> Object {
        Object::default()
    }

    /// A field whose value is JSON already.
    pub fn raw(mut self, name: &str, value: &str) -> Object {
        self.text.push(if self.text.is_empty() { '{' } else { ',' });
        push_text(&mut self.text, name);
        self.text.push(':');
        self.text.push_str(value);
        self
    }

    pub fn uint(self, name: &str, value: u64) -> Object {
        self.raw(name, &value.to_string())
    }

    pub fn uint_or_none(self, name: &str, value: u64) -> Object {
        if value == 0 { self } else { self.uint(name, value) }
    }

    pub fn int(self, name: &str, value: i64) -> Object {
        self.raw(name, &value.to_string())
    }

    pub fn int_or_none(self, name: &str, value: i64) -> Object {
        if value == 0 { self } else { self.int(name, value) }
    }

    pub fn float(self, name: &str, value: f64) -> Object {
        self.raw(name, &float(value))
    }

    pub fn boolean(self, name: &str, value: bool) -> Object {
        self.raw(name, if value { "true" } else { "false" })
    }

    pub fn boolean_or_none(self, name: &str, value: bool) -> Object {
        if value { self.boolean(name, value) } else { self }
    }

    pub fn text(self, name: &str, value: &str) -> Object {
        self.raw(name, &text(value))
    }

    pub fn text_or_none(self, name: &str, value: &str) -> Object {
        if value.is_empty() { self } else { self.text(name, value) }
    }

    /// Bytes in base64; empty ones as `""`.
    pub fn bytes(self, name: &str, value: &[u8]) -> Object {
        self.raw(name, &bytes(value))
    }

    pub fn bytes_or_none(self, name: &str, value: &[u8]) -> Object {
        if value.is_empty() { self } else { self.bytes(name, value) }
    }

    pub fn null(self, name: &str) -> Object {
        self.raw(name, "null")
    }

    pub fn object(self, name: &str, value: Object) -> Object {
        self.raw(name, &value.end())
    }

    /// An array of values that are JSON already; `[]` when empty.
    pub fn list(self, name: &str, values: impl IntoIterator<Item = impl AsRef<str>>) -> Object {
        self.raw(name, &list(values))
    }

    pub fn list_or_none(self, name: &str, values: impl IntoIterator<Item = impl AsRef<str>>) -> Object {
        let values = list(values);
        if values == "[]" { self } else { self.raw(name, &values) }
    }

    /// A nil slice of Go: `null` when empty.
    pub fn list_or_null(self, name: &str, values: impl IntoIterator<Item = impl AsRef<str>>) -> Object {
        let values = list(values);
        self.raw(name, if values == "[]" { "null" } else { &values })
    }

    pub fn texts(self, name: &str, values: &[String]) -> Object {
        self.list(name, values.iter().map(|value| text(value)))
    }

    pub fn texts_or_none(self, name: &str, values: &[String]) -> Object {
        if values.is_empty() { self } else { self.texts(name, values) }
    }

    /// The object as JSON.
    pub fn end(mut self) -> String {
        if self.text.is_empty() {
            self.text.push('{');
        }
        self.text.push('}');
        self.text
    }
}

/// An array of values that are JSON already.
pub fn list(values: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let mut all = String::from("[");
    for (at, value) in values.into_iter().enumerate() {
        if at > 0 {
            all.push(',');
        }
        all.push_str(value.as_ref());
    }
    all.push(']');
    all
}

/// A string. Characters that stand for bytes (see [`crate::words`]) become U+FFFD, as Go writes invalid UTF-8.
pub fn text(value: &str) -> String {
    if words::holds_bytes(value) {
        return text_of_bytes(&words::bytes(value));
    }
    let mut out = String::with_capacity(value.len() + 2);
    push_text(&mut out, value);
    out
}

fn push_text(out: &mut String, value: &str) {
    out.push('"');
    push_escaped(out, value);
    out.push('"');
}

fn push_escaped(out: &mut String, value: &str) {
    let mut plain = 0;
    for (at, c) in value.char_indices() {
        let escaped = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            '\u{0}'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => "",
            _ => continue,
        };
        out.push_str(&value[plain..at]);
        plain = at + c.len_utf8();
        if escaped.is_empty() {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push_str(escaped);
        }
    }
    out.push_str(&value[plain..]);
}

/// A string from bytes that may not be UTF-8: each bad byte becomes `\ufffd`.
pub fn text_of_bytes(value: &[u8]) -> String {
    let mut out = String::from("\"");
    for chunk in value.utf8_chunks() {
        push_escaped(&mut out, chunk.valid());
        chunk.invalid().iter().for_each(|_| out.push_str("\\ufffd"));
    }
    out.push('"');
    // Characters that would be taken for bytes when this is printed.
    if words::holds_bytes(&out) { words::from_bytes(out.into_bytes()) } else { out }
}

/// Bytes: standard base64 in quotes.
pub fn bytes(value: &[u8]) -> String {
    let mut out = String::with_capacity(value.len() / 3 * 4 + 6);
    out.push('"');
    push_base64(&mut out, value);
    out.push('"');
    out
}

/// Standard base64 with padding.
pub fn push_base64(out: &mut String, value: &[u8]) {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for chunk in value.chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at)) as usize & 63];
            out.push(if at <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
}

/// A number: as short as it reads back, with an exponent below 1e-6 and from 1e21 on.
pub fn float(value: f64) -> String {
    golang::json_float(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelled_as_go_does() {
        assert_eq!(
            text("a\u{0}\u{8}\u{c}\u{1f}\u{7f}<>&\"\\\n\u{2028}é"),
            r#""a\u0000\b\f\u001f"#.to_owned() + "\u{7f}" + r#"\u003c\u003e\u0026\"\\\n\u2028é""#
        );
        assert_eq!(text_of_bytes(b"a\xff<"), r#""a\ufffd\u003c""#);
        assert_eq!(bytes(b""), r#""""#);
        assert_eq!(
            [bytes(b"f"), bytes(b"fo"), bytes(b"foo"), bytes(&[0xff, 0xfe])].join(" "),
            r#""Zg==" "Zm8=" "Zm9v" "//4=""#
        );
        assert_eq!(Object::new().end(), "{}");
        assert_eq!(
            Object::new().list_or_null("a", Vec::<String>::new()).list("b", [1.to_string()]).end(),
            r#"{"a":null,"b":[1]}"#
        );
        assert_eq!(
            [float(0.0), float(1e21), float(1e-7), float(123456789.5), float(100.0)].join(" "),
            "0 1e+21 1e-7 123456789.5 100"
        );
    }
}
