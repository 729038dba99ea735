//! Go's way of writing and reading values: quotes, durations, numbers, CSV.

use std::fmt::Write;

use crate::words;

// ---- quotes ----

/// `strconv.Quote` of a string: what is not printable is escaped, bytes that are not UTF-8 as `\xff`.
pub fn quote(text: &str) -> String {
    quote_bytes(&words::bytes(text))
}

/// [`quote`] of bytes: `%q`.
pub fn quote_bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        chunk.valid().chars().for_each(|c| push_escaped(&mut out, c, '"'));
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out.push('"');
    out
}

/// `strconv.QuoteRune`: `'x'`.
pub fn quote_char(c: char) -> String {
    let mut out = String::from("'");
    push_escaped(&mut out, c, '\'');
    out.push('\'');
    out
}

fn push_escaped(out: &mut String, c: char, quote: char) {
    let short = match c {
        '\u{7}' => "\\a",
        '\u{8}' => "\\b",
        '\u{c}' => "\\f",
        '\n' => "\\n",
        '\r' => "\\r",
        '\t' => "\\t",
        '\u{b}' => "\\v",
        '\\' => "\\\\",
        _ => "",
    };
    let _ = match c {
        _ if !short.is_empty() => {
            out.push_str(short);
            Ok(())
        }
        _ if c == quote => write!(out, "\\{c}"),
        _ if printable(c) => write!(out, "{c}"),
        '\0'..='\x1f' | '\x7f' => write!(out, "\\x{:02x}", u32::from(c)),
        '\0'..='\u{ffff}' => write!(out, "\\u{:04x}", u32::from(c)),
        _ => write!(out, "\\U{:08x}", u32::from(c)),
    };
}

/// `strconv.IsPrint`: letters, marks, numbers, punctuation, symbols and the ASCII space.
pub fn printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    // The standard library escapes the same classes in a `str`, but for marks that open it; hence the letter before.
    let mut space = [0; 8];
    space[0] = b'a';
    let length = 1 + c.encode_utf8(&mut space[1..]).len();
    std::str::from_utf8(&space[..length]).is_ok_and(|text| text.escape_debug().count() == 2)
}

/// `strconv.CanBackquote`: may stand between back quotes as it is.
pub fn can_backquote(text: &str) -> bool {
    let fits = |c: char| c != '\u{feff}' && !(c < ' ' && c != '\t') && c != '`' && c != '\u{7f}';
    std::str::from_utf8(&words::bytes(text)).is_ok_and(|text| text.chars().all(fits))
}

/// `%#q`: in back quotes when that is possible.
pub fn quote_raw(text: &str) -> String {
    if can_backquote(text) { format!("`{text}`") } else { quote(text) }
}

/// `strconv.Unquote`: of a text in `"`, `` ` `` or `'`. The bytes need not be UTF-8.
///
/// # Errors
/// `invalid syntax`
pub fn unquote(text: &str) -> Result<Vec<u8>, String> {
    unquote_bytes(&words::bytes(text)).ok_or_else(|| "invalid syntax".to_owned())
}

fn unquote_bytes(text: &[u8]) -> Option<Vec<u8>> {
    let (quote, inside) = match text {
        [first, inside @ .., end] if first == end => (*first, inside),
        _ => return None,
    };
    match quote {
        b'`' => {
            let ok = !inside.contains(&b'`');
            ok.then(|| inside.iter().copied().filter(|byte| *byte != b'\r').collect())
        }
        b'"' | b'\'' => {
            let mut out = Vec::with_capacity(inside.len());
            let mut rest = inside;
            let mut count = 0;
            while !rest.is_empty() {
                rest = unquote_one(rest, quote, &mut out)?;
                count += 1;
            }
            (quote == b'"' || count <= 1).then_some(out)
        }
        _ => None,
    }
}

/// One character or escape of a quoted text; answers what follows it. `strconv.UnquoteChar`.
fn unquote_one<'a>(text: &'a [u8], quote: u8, out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let (first, rest) = text.split_first()?;
    match *first {
        b'\n' => return None,
        c if c == quote => return None,
        b'\\' => {}
        c if c < 0x80 => {
            out.push(c);
            return Some(rest);
        }
        _ => {
            let chunk = text.utf8_chunks().next()?;
            match chunk.valid().chars().next() {
                Some(c) => {
                    out.extend_from_slice(&text[..c.len_utf8()]);
                    return Some(&text[c.len_utf8()..]);
                }
                None => out.extend_from_slice("\u{fffd}".as_bytes()),
            }
            return Some(rest);
        }
    }
    let (escape, rest) = rest.split_first()?;
    let simple = match escape {
        b'a' => 7,
        b'b' => 8,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 11,
        b'\\' => b'\\',
        b'\'' | b'"' if *escape == quote => quote,
        b'x' => return numbered(rest, 2, 16, true, out),
        b'u' => return numbered(rest, 4, 16, false, out),
        b'U' => return numbered(rest, 8, 16, false, out),
        b'0'..=b'7' => return numbered(&text[1..], 3, 8, true, out),
        _ => return None,
    };
    out.push(simple);
    Some(rest)
}

/// `digits` digits of an escape: a byte, or a character.
fn numbered<'a>(text: &'a [u8], digits: usize, base: u32, byte: bool, out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let (number, rest) = text.split_at_checked(digits)?;
    let mut value = 0u32;
    for digit in number {
        value = value.checked_mul(base)?.checked_add(char::from(*digit).to_digit(base)?)?;
    }
    if byte {
        out.push(u8::try_from(value).ok()?);
    } else {
        let mut space = [0; 4];
        out.extend_from_slice(char::from_u32(value)?.encode_utf8(&mut space).as_bytes());
    }
    Some(rest)
}

/// `%v` of a byte slice: `[1 2 3]`.
pub fn byte_list(bytes: &[u8]) -> String {
    let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!("[{}]", numbers.join(" "))
}

// ---- durations ----

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// `Duration.String`: `1h2m3.5s`, `1.5ms`, `0s`. `ns`: nanoseconds.
pub fn format_duration(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    let ns = ns.unsigned_abs();
    if ns == 0 {
        return "0s".to_owned();
    }
    let (whole, unit) = match ns {
        0..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "\u{b5}s"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => {
            let (hours, minutes) = (ns / 3_600_000_000_000, ns / 60_000_000_000 % 60);
            let seconds = fraction(ns % 60_000_000_000, 1_000_000_000);
            return match (hours, minutes) {
                (0, 0) => format!("{sign}{seconds}s"),
                (0, _) => format!("{sign}{minutes}m{seconds}s"),
                _ => format!("{sign}{hours}h{minutes}m{seconds}s"),
            };
        }
    };
    format!("{sign}{}{unit}", fraction(ns, whole))
}

/// `value / unit` with as many decimals as it takes.
fn fraction(value: u64, unit: u64) -> String {
    let digits = unit.ilog10() as usize;
    let text = format!("{}.{:0digits$}", value / unit, value % unit);
    if unit == 1 { value.to_string() } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

/// `time.ParseDuration`, in nanoseconds.
///
/// # Errors
/// Go's texts: `time: invalid duration "x"`, `time: missing unit in duration "5"`, `time: unknown unit "y" in duration "5y"`.
pub fn parse_duration(text: &str) -> Result<i64, String> {
    let shown = time_quote(text);
    let invalid = || format!("time: invalid duration {shown}");
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = 0u64;
    while !rest.is_empty() {
        let (whole, after) = leading_digits(rest);
        let mut value = 0u64;
        for digit in whole.bytes() {
            value = value
                .checked_mul(10)
                .and_then(|value| value.checked_add(u64::from(digit - b'0')))
                .ok_or_else(invalid)?;
            if value > 1 << 63 {
                return Err(invalid());
            }
        }
        let (part, after) = match after.strip_prefix('.') {
            Some(after) => leading_digits(after),
            None => ("", after),
        };
        if whole.is_empty() && part.is_empty() {
            return Err(invalid());
        }
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {shown}"));
        }
        let Some((_, scale)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("time: unknown unit {} in duration {shown}", time_quote(unit)));
        };
        value = value.checked_mul(*scale).filter(|value| *value <= 1 << 63).ok_or_else(invalid)?;
        // Digits beyond what a u64 holds are dropped, as Go drops them.
        let (mut numerator, mut denominator) = (0u64, 1f64);
        for digit in part.bytes() {
            let Some(larger) = numerator
                .checked_mul(10)
                .and_then(|value| value.checked_add(u64::from(digit - b'0')))
                .filter(|value| *value <= 1 << 63)
            else {
                break;
            };
            numerator = larger;
            denominator *= 10.0;
        }
        value += (numerator as f64 * (*scale as f64 / denominator)) as u64;
        total = total.checked_add(value).filter(|total| *total <= 1 << 63).ok_or_else(invalid)?;
        rest = next;
    }
    match (negative, total) {
        (true, _) => Ok((total as i64).wrapping_neg()),
        (false, total) => i64::try_from(total).map_err(|_| invalid()),
    }
}

fn leading_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Package time's own quote: everything beyond ASCII, and control characters, as `\xNN`.
fn time_quote(text: &str) -> String {
    let mut out = String::from("\"");
    for byte in words::bytes(text) {
        let _ = match byte {
            b'"' | b'\\' => write!(out, "\\{}", char::from(byte)),
            b' '..=b'\x7f' => write!(out, "{}", char::from(byte)),
            _ => write!(out, "\\x{byte:02x}"),
        };
    }
    out.push('"');
    out
}

// ---- numbers ----

/// `strconv.ParseBool`.
///
/// # Errors
/// `strconv.ParseBool: parsing "x": invalid syntax`
pub fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(number_error("ParseBool", text, "invalid syntax")),
    }
}

fn number_error(function: &str, text: &str, why: &str) -> String {
    format!("strconv.{function}: parsing {}: {why}", quote(text))
}

/// `strconv.ParseInt` of 64 bits. `base` 0: decimal, or as `0x`, `0o`, `0`, `0b` say, with `_` between digits.
///
/// # Errors
/// `strconv.ParseInt: parsing "x": invalid syntax` or `: value out of range`
pub fn parse_int(text: &str, base: u32) -> Result<i64, String> {
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let value = parse_digits(digits, base).map_err(|why| number_error("ParseInt", text, why))?;
    let out_of_range = || number_error("ParseInt", text, "value out of range");
    match (negative, value) {
        (true, value) => 0i64.checked_sub_unsigned(value).ok_or_else(out_of_range),
        (false, value) => i64::try_from(value).map_err(|_| out_of_range()),
    }
}

/// `strconv.ParseUint` of 64 bits; `base` as for [`parse_int`].
///
/// # Errors
/// `strconv.ParseUint: parsing "x": invalid syntax` or `: value out of range`
pub fn parse_uint(text: &str, base: u32) -> Result<u64, String> {
    parse_digits(text, base).map_err(|why| number_error("ParseUint", text, why))
}

fn parse_digits(text: &str, base: u32) -> Result<u64, &'static str> {
    const SYNTAX: &str = "invalid syntax";
    let lower = text.to_ascii_lowercase();
    let any_base = base == 0;
    let (base, digits) = match (base, lower.as_bytes()) {
        (0, [b'0', b'x', _, ..]) => (16, &lower[2..]),
        (0, [b'0', b'o', _, ..]) => (8, &lower[2..]),
        (0, [b'0', b'b', _, ..]) => (2, &lower[2..]),
        (0, [b'0', _, ..]) => (8, &lower[1..]),
        (0, _) => (10, lower.as_str()),
        (base, _) => (base, lower.as_str()),
    };
    // An underscore stands between digits, or between the prefix and a digit; only where the prefix is looked for.
    let prefixed = digits.len() < lower.len();
    let digits = if text.contains('_') {
        let parts_well = digits.split('_').enumerate().all(|(at, part)| !part.is_empty() || (at == 0 && prefixed));
        if !any_base || !parts_well || (!prefixed && lower.starts_with('0')) {
            return Err(SYNTAX);
        }
        digits.replace('_', "")
    } else {
        digits.to_owned()
    };
    if digits.is_empty() {
        return Err(SYNTAX);
    }
    let mut value = Some(0u64);
    for c in digits.chars() {
        let digit = c.to_digit(base).ok_or(SYNTAX)?;
        value = value.and_then(|value| value.checked_mul(u64::from(base))?.checked_add(u64::from(digit)));
    }
    value.ok_or("value out of range")
}

/// `strconv.ParseFloat` of 64 bits.
///
/// # Errors
/// `strconv.ParseFloat: parsing "x": invalid syntax` or `: value out of range`
pub fn parse_float(text: &str) -> Result<f64, String> {
    let syntax = || number_error("ParseFloat", text, "invalid syntax");
    let lower = text.to_ascii_lowercase();
    let unsigned = lower.strip_prefix(['+', '-']).unwrap_or(&lower);
    if ["inf", "infinity"].contains(&unsigned) {
        return Ok(if lower.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY });
    }
    if lower == "nan" {
        return Ok(f64::NAN);
    }
    // An underscore stands between digits.
    let between = |(at, _): (usize, &str)| {
        let digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
        at > 0 && digit(lower.as_bytes().get(at - 1)) && digit(lower.as_bytes().get(at + 1))
    };
    if !lower.match_indices('_').all(between) {
        return Err(syntax());
    }
    let plain = lower.replace('_', "");
    let value = match plain.strip_prefix("0x") {
        Some(rest) => hexadecimal_float(rest).ok_or_else(syntax)?,
        None if plain.contains(['n', 'i']) => return Err(syntax()),
        None => plain.parse::<f64>().map_err(|_| syntax())?,
    };
    if value.is_infinite() {
        return Err(number_error("ParseFloat", text, "value out of range"));
    }
    Ok(value)
}

/// `1p-2` of `0x1p-2`: whole hexadecimal numbers below 2^53 with an exponent of two.
fn hexadecimal_float(text: &str) -> Option<f64> {
    let (number, exponent) = text.split_once('p')?;
    let number = u64::from_str_radix(number, 16).ok()?;
    Some(number as f64 * 2f64.powi(exponent.parse().ok()?))
}

/// `%v` of a float: as short as it reads back, with an exponent below 1e-4 and from 1e6 on.
pub fn format_float(value: f64) -> String {
    float(value, -4, 6, false)
}

pub(crate) fn json_float(value: f64) -> String {
    float(value, -6, 21, true)
}

/// `low` and `high`: decimal exponents from which on `e` notation is used.
fn float(value: f64, low: i32, high: i32, one_digit_exponent: bool) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    if value == 0.0 {
        return if value.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (low..high).contains(&exponent) {
        return format!("{value}");
    }
    let (sign, size) = (if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs());
    if one_digit_exponent { format!("{digits}e{sign}{size}") } else { format!("{digits}e{sign}{size:02}") }
}

// ---- CSV ----

/// One record, as pflag reads a list.
///
/// # Errors
/// `parse error on line 1, column 2: bare " in non-quoted-field` and the like; `EOF` when there is no record.
pub fn csv_read(text: &str) -> Result<Vec<String>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    // Empty lines before the record are passed over, and a carriage return at the very end.
    let mut skipped = 0;
    let mut text = text.strip_suffix('\r').unwrap_or(text);
    while let Some(rest) = text.strip_prefix('\n').or_else(|| text.strip_prefix("\r\n")) {
        skipped += 1;
        text = rest;
    }
    if text.is_empty() {
        return Err("EOF".to_owned());
    }
    let first = skipped + 1;
    let mut fields = Vec::new();
    let mut line = first;
    let mut line_start = 0;
    let mut at = 0;
    loop {
        let rest = &text[at..];
        if !rest.starts_with('"') {
            let end = rest.find([',', '\n']).unwrap_or(rest.len());
            let field =
                rest[..end].strip_suffix('\r').filter(|_| rest[end..].starts_with('\n')).unwrap_or(&rest[..end]);
            if let Some(quote) = field.find('"') {
                let column = at + quote - line_start + 1;
                return Err(csv_error(first, line, column, "bare \" in non-quoted-field"));
            }
            fields.push(field.to_owned());
            if !rest[end..].starts_with(',') {
                return Ok(fields);
            }
            at += end + 1;
            continue;
        }
        let mut field = String::new();
        at += 1;
        loop {
            let rest = &text[at..];
            let Some(end) = rest.find('"') else {
                let lines = text.strip_suffix('\n').unwrap_or(text);
                let column = text.len() - lines.rfind('\n').map_or(0, |feed| feed + 1) + 1;
                let line = first + lines.matches('\n').count();
                return Err(csv_error(first, line, column, "extraneous or missing \" in quoted-field"));
            };
            for (feed, _) in rest[..end].match_indices('\n') {
                line += 1;
                line_start = at + feed + 1;
            }
            field.push_str(&rest[..end].replace("\r\n", "\n"));
            at += end + 1;
            let after = &text[at..];
            if let Some(rest) = after.strip_prefix('"') {
                field.push('"');
                at = text.len() - rest.len();
            } else if after.starts_with(',') {
                at += 1;
                break;
            } else if after.is_empty() || after.starts_with('\n') || after.starts_with("\r\n") {
                fields.push(field);
                return Ok(fields);
            } else {
                return Err(csv_error(first, line, at - line_start, "extraneous or missing \" in quoted-field"));
            }
        }
        fields.push(field);
    }
}

fn csv_error(first: usize, line: usize, column: usize, why: &str) -> String {
    if first == line {
        format!("parse error on line {line}, column {column}: {why}")
    } else {
        format!("record on line {first}; parse error on line {line}, column {column}: {why}")
    }
}

/// One record, as Go's CSV writer writes it.
pub fn csv_write(fields: &[String]) -> String {
    let quoted = fields.iter().map(|field| {
        let special =
            field == "\\." || field.contains(['"', ',', '\n', '\r']) || field.starts_with(char::is_whitespace);
        if special { format!("\"{}\"", field.replace('"', "\"\"")) } else { field.clone() }
    });
    quoted.collect::<Vec<_>>().join(",")
}
