//! Keys and values as text.

use dolmen_cli::golang;
use sha2::{Digest, Sha256};

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether all of it is UTF-8 that Go prints.
pub(super) fn is_printable(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| text.chars().all(golang::printable))
}

/// Text as it is, anything else in hexadecimal.
pub(super) fn text_or_hex(bytes: &[u8]) -> Vec<u8> {
    if is_printable(bytes) { bytes.to_vec() } else { hex(bytes).into_bytes() }
}

/// As `--format` asks.
pub(super) fn format_bytes(bytes: &[u8], format: &str) -> Result<Vec<u8>, String> {
    match format {
        "ascii-encoded" => Ok(golang::quote_bytes(bytes).into_bytes()),
        "hex" => Ok(hex(bytes).into_bytes()),
        "bytes" => Ok(bytes.to_vec()),
        "auto" => Ok(text_or_hex(bytes)),
        "redacted" => {
            let digest = hex(&Sha256::digest(bytes));
            Ok(format!("<redacted len:{} sha256:{digest}>", bytes.len()).into_bytes())
        }
        other => Err(format!("formatBytes: unsupported format: {other}")),
    }
}

/// As `--parse-format` says; Go's texts for hexadecimal that is none.
pub(super) fn parse_bytes(word: &[u8], format: &str) -> Result<Vec<u8>, String> {
    match format {
        "ascii-encoded" => Ok(word.to_vec()),
        "hex" => {
            let mut bytes = Vec::with_capacity(word.len() / 2);
            for pair in word.chunks(2) {
                let mut byte = 0;
                for digit in pair {
                    let value = char::from(*digit).to_digit(16).ok_or_else(|| invalid_hex(*digit))?;
                    byte = byte << 4 | value as u8;
                }
                if pair.len() == 1 {
                    return Err("encoding/hex: odd length hex string".into());
                }
                bytes.push(byte);
            }
            Ok(bytes)
        }
        other => Err(format!("parseBytes: unsupported format: {other}")),
    }
}

fn invalid_hex(byte: u8) -> String {
    // Go shows the byte as the character of that number.
    let shown = char::from(byte);
    let quoted = golang::quote_char(shown);
    format!("encoding/hex: invalid byte: U+{:04X} {quoted}", u32::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_every_format() {
        let cases: [(&[u8], &str, &str); 7] = [
            (b"term", "auto", "term"),
            (b"a\x00", "auto", "6100"),
            ("köln".as_bytes(), "auto", "köln"),
            (b"a\x00\"", "ascii-encoded", "\"a\\x00\\\"\""),
            (b"az", "hex", "617a"),
            (b"az", "bytes", "az"),
            (
                b"",
                "redacted",
                "<redacted len:0 sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855>",
            ),
        ];
        for (bytes, format, text) in cases {
            assert_eq!(format_bytes(bytes, format), Ok(text.as_bytes().to_vec()), "{format}");
        }
        assert_eq!(format_bytes(b"", "x"), Err("formatBytes: unsupported format: x".into()));
    }

    #[test]
    fn hexadecimal_is_parsed_as_in_go() {
        assert_eq!(parse_bytes(b"617A", "hex"), Ok(b"az".to_vec()));
        assert_eq!(parse_bytes(b"617", "hex"), Err("encoding/hex: odd length hex string".into()));
        assert_eq!(parse_bytes(b"6x", "hex"), Err("encoding/hex: invalid byte: U+0078 'x'".into()));
    }
}
