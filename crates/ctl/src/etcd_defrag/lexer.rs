//! The words of the rule language: a rule's text becomes a lazy stream of tokens.
//!
//! The language takes its words from Go: Go's number and string literals, Go's maximal munch for operators, comments
//! and all. An operator that Go knows and the rule language does not (`+=`, `:=`, `...`) is an error which names it. A
//! token is read only when the parser looks at it: a rule that is wrong twice must be told the first of its mistakes,
//! and which is first depends on that.

use dolmen_cli::golang;

use super::value::Value;

/// A rule's mistake: what is wrong and the byte offset in the rule at which it was noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleError {
    /// The sentence, as etcd-defrag prints it.
    pub text: String,
    /// Byte offset into the rule; its length when the rule ends too early.
    pub at: usize,
}

impl RuleError {
    pub(super) fn new(at: usize, text: impl Into<String>) -> Self {
        Self { text: text.into(), at }
    }
}

/// The kinds of tokens. Operators and brackets go by their spelling.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// The rule is over.
    End,
    /// `nil`, `true`, `false`, a number or a string.
    Literal(Value),
    /// A name.
    Name(String),
    /// An operator or a bracket; `in` is one of them.
    Sign(&'static str),
}

/// A token and the byte offset at which it starts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub kind: Kind,
    pub at: usize,
}

impl Token {
    /// The token as a syntax error names it.
    pub fn described(&self) -> String {
        match &self.kind {
            Kind::End => "$end".to_owned(),
            Kind::Name(_) => "IDENT".to_owned(),
            Kind::Literal(value) => match value {
                Value::Nil => "LITERAL_NIL",
                Value::Bool(_) => "LITERAL_BOOL",
                Value::Text(_) => "LITERAL_STRING",
                _ => "LITERAL_NUMBER",
            }
            .to_owned(),
            Kind::Sign(sign) => match NAMED_SIGNS.iter().find(|(s, _)| s == sign) {
                Some((_, name)) => (*name).to_owned(),
                None => format!("'{sign}'"),
            },
        }
    }
}

/// Signs which a syntax error calls by a name.
const NAMED_SIGNS: [(&str, &str); 12] = [
    ("&&", "AND"),
    ("||", "OR"),
    ("==", "EQL"),
    ("!=", "NEQ"),
    ("<", "LSS"),
    (">", "GTR"),
    ("<=", "LEQ"),
    (">=", "GEQ"),
    ("<<", "SHL"),
    (">>", "SHR"),
    ("~", "BIT_NOT"),
    ("in", "IN"),
];

/// Go's operators, longest first, and whether the rule language knows them.
const SIGNS: [(&str, bool); 48] = [
    ("<<=", false),
    (">>=", false),
    ("&^=", false),
    ("...", false),
    ("&&", true),
    ("||", true),
    ("==", true),
    ("!=", true),
    ("<=", true),
    (">=", true),
    ("<<", true),
    (">>", true),
    ("&^", false),
    ("++", false),
    ("--", false),
    ("+=", false),
    ("-=", false),
    ("*=", false),
    ("/=", false),
    ("%=", false),
    ("&=", false),
    ("|=", false),
    ("^=", false),
    (":=", false),
    ("+", true),
    ("-", true),
    ("*", true),
    ("/", true),
    ("%", true),
    ("!", true),
    ("<", true),
    (">", true),
    ("&", true),
    ("|", true),
    ("^", true),
    ("~", true),
    ("?", true),
    (":", true),
    (".", true),
    (",", true),
    ("[", true),
    ("]", true),
    ("{", true),
    ("}", true),
    ("(", true),
    (")", true),
    (";", false),
    ("=", false),
];

/// Reads tokens from a rule, one at a time.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    ahead: Option<Token>,
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a str) -> Self {
        // A byte order mark at the very beginning is no part of the text.
        let at = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        Self { text, at, ahead: None }
    }

    /// The next token, left where it is.
    pub fn peek(&mut self) -> Result<&Token, RuleError> {
        if self.ahead.is_none() {
            self.ahead = Some(self.scan()?);
        }
        Ok(self.ahead.as_ref().expect("filled just above"))
    }

    /// The next token, taken.
    pub fn next(&mut self) -> Result<Token, RuleError> {
        match self.ahead.take() {
            Some(token) => Ok(token),
            None => self.scan(),
        }
    }

    /// Whether the next token is the sign `sign`; it stays.
    pub fn sees(&mut self, sign: &str) -> Result<bool, RuleError> {
        Ok(matches!(self.peek()?.kind, Kind::Sign(s) if s == sign))
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    /// Blanks and comments carry no meaning.
    fn skip(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start_matches([' ', '\t', '\n', '\r']);
            self.at += rest.len() - trimmed.len();
            let comment = if trimmed.starts_with("//") {
                trimmed.find('\n').unwrap_or(trimmed.len())
            } else if let Some(body) = trimmed.strip_prefix("/*") {
                body.find("*/").map_or(trimmed.len(), |n| n + 4)
            } else {
                return;
            };
            self.at += comment;
        }
    }

    fn scan(&mut self) -> Result<Token, RuleError> {
        self.skip();
        let at = self.at;
        let rest = self.rest();
        let mut chars = rest.chars();
        let Some(first) = chars.next() else {
            return Ok(Token { kind: Kind::End, at });
        };
        let second = chars.next();
        let kind = if first.is_ascii_digit() || (first == '.' && second.is_some_and(|c| c.is_ascii_digit())) {
            self.number()?
        } else if first == '_' || first.is_alphabetic() {
            let end = rest.find(|c: char| c != '_' && !c.is_alphabetic() && !c.is_numeric()).unwrap_or(rest.len());
            self.at += end;
            word(&rest[..end])
        } else if first == '"' || first == '`' {
            let length = quoted_length(rest, first);
            self.at += length;
            // Go's scanner drops carriage returns from a raw string.
            let literal = if first == '`' { rest[..length].replace('\r', "") } else { rest[..length].to_owned() };
            match golang::unquote(&literal) {
                Ok(bytes) => Kind::Literal(Value::Text(bytes)),
                Err(_) => return Err(positioned(at, "parse error: cannot unquote string literal")),
            }
        } else if first == '\'' {
            let length = quoted_length(rest, first);
            return Err(unknown(at, "CHAR", &rest[..length]));
        } else if let Some((sign, known)) = SIGNS.iter().find(|(sign, _)| rest.starts_with(sign)) {
            self.at += sign.len();
            if !known {
                // Go's scanner gives a semicolon, alone of all operators, its own spelling as literal.
                return Err(unknown(at, sign, if *sign == ";" { ";" } else { "" }));
            }
            Kind::Sign(sign)
        } else {
            return Err(unknown(at, "ILLEGAL", &rest[..first.len_utf8()]));
        };
        Ok(Token { kind, at })
    }

    /// A number of Go: decimal, octal, hexadecimal or binary, `_` between digits, fraction and exponent.
    fn number(&mut self) -> Result<Kind, RuleError> {
        let at = self.at;
        let rest = self.rest();
        let bytes = rest.as_bytes();
        let peek = |n: usize| bytes.get(n).copied().unwrap_or(0).to_ascii_lowercase();
        let digits = |from: usize, hex: bool| {
            let is_digit = |b: &u8| b.is_ascii_digit() || *b == b'_' || (hex && b.is_ascii_hexdigit());
            from + bytes.get(from..).unwrap_or(&[]).iter().take_while(|b| is_digit(b)).count()
        };
        let (mut end, mut float) = (0, false);
        let prefix = if peek(0) == b'0' && matches!(peek(1), b'x' | b'o' | b'b') { peek(1) } else { b' ' };
        if bytes[0] != b'.' {
            end = digits(if prefix == b' ' { 0 } else { 2 }, prefix == b'x');
        }
        if peek(end) == b'.' {
            float = true;
            end = digits(end + 1, prefix == b'x');
        }
        if matches!(peek(end), b'e' | b'p') {
            float = true;
            end += 1;
            if matches!(peek(end), b'+' | b'-') {
                end += 1;
            }
            end = digits(end, false);
        }
        if bytes.get(end) == Some(&b'i') {
            self.at += end + 1;
            return Err(unknown(at, "IMAG", &rest[..end + 1]));
        }
        self.at += end;
        let literal = &rest[..end];
        let value = if float {
            parse_float(literal).map(Value::Float).ok_or("parse error: cannot parse float")
        } else {
            parse_integer(literal).map(Value::Int).ok_or("parse error: cannot parse integer")
        };
        value.map(Kind::Literal).map_err(|text| positioned(at, text))
    }
}

fn word(name: &str) -> Kind {
    match name {
        "nil" => Kind::Literal(Value::Nil),
        "true" => Kind::Literal(Value::Bool(true)),
        "false" => Kind::Literal(Value::Bool(false)),
        "in" | "IN" => Kind::Sign("in"),
        _ => Kind::Name(name.to_owned()),
    }
}

/// The length of a quoted literal at the start of `text`, closing quote included; an unclosed one ends with its line.
fn quoted_length(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (n, c) in text.char_indices().skip(1) {
        if quote != '`' && c == '\n' {
            return n;
        }
        if !escaped && c == quote {
            return n + c.len_utf8();
        }
        escaped = !escaped && quote != '`' && c == '\\';
    }
    text.len()
}

fn positioned(at: usize, text: &str) -> RuleError {
    RuleError::new(at, format!("{text} at position {}", at + 1))
}

fn unknown(at: usize, token: &str, literal: &str) -> RuleError {
    let (token, literal) = (golang::quote(token), golang::quote(literal));
    positioned(at, &format!("unknown token {token} ({literal})"))
}

/// Whether every `_` stands between two digits, or between a base prefix and a digit.
fn underscores_well_placed(literal: &str) -> bool {
    let mut before = b' ';
    let bytes = literal.as_bytes();
    let prefixed = bytes.len() >= 2 && bytes[0] == b'0' && matches!(bytes[1] | 0x20, b'x' | b'o' | b'b');
    for (n, &b) in bytes.iter().enumerate() {
        let digit = b.is_ascii_digit() || (prefixed && (n == 1 || b.is_ascii_hexdigit()));
        let class = if digit {
            b'0'
        } else if b == b'_' {
            b'_'
        } else {
            b'!'
        };
        if (class == b'_' && before != b'0') || (before == b'_' && class != b'0') {
            return false;
        }
        before = class;
    }
    before != b'_'
}

fn parse_integer(literal: &str) -> Option<i64> {
    if !underscores_well_placed(literal) {
        return None;
    }
    let plain = literal.replace('_', "");
    let lower = plain.to_ascii_lowercase();
    if let Some(hex) = lower.strip_prefix("0x") {
        let value = u64::from_str_radix(hex, 16).ok()?;
        // Only the small x reads all 64 bits, wrapping into the sign.
        return if plain.starts_with("0x") { Some(value as i64) } else { i64::try_from(value).ok() };
    }
    for (prefix, radix) in [("0o", 8), ("0b", 2)] {
        if let Some(digits) = lower.strip_prefix(prefix) {
            return i64::from_str_radix(digits, radix).ok();
        }
    }
    match lower.strip_prefix('0') {
        Some(octal) if !octal.is_empty() => i64::from_str_radix(octal, 8).ok(),
        _ => lower.parse().ok(),
    }
}

fn parse_float(literal: &str) -> Option<f64> {
    if !underscores_well_placed(literal) {
        return None;
    }
    let plain = literal.to_ascii_lowercase().replace('_', "");
    let value = match plain.strip_prefix("0x") {
        Some(hex) => parse_hex_float(hex),
        None => plain.parse::<f64>().ok(),
    };
    value.filter(|v| v.is_finite())
}

/// `1.8p3` as Go reads `0x1.8p3`; a mantissa of more than 64 bits loses its lowest ones.
fn parse_hex_float(text: &str) -> Option<f64> {
    let (mantissa, exponent) = text.split_once('p')?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut exponent: i64 = exponent.parse().ok()?;
    exponent -= 4 * i64::try_from(fraction.len()).ok()?;
    let mut value: u64 = 0;
    for digit in whole.chars().chain(fraction.chars()) {
        let digit = u64::from(digit.to_digit(16)?);
        if value >> 60 == 0 {
            value = value << 4 | digit;
        } else {
            exponent += 4;
        }
    }
    // Two steps, so that a subnormal result does not pass through zero.
    let exponent = exponent.clamp(-4000, 4000);
    let half = exponent / 2;
    Some(value as f64 * 2f64.powi(half as i32) * 2f64.powi((exponent - half) as i32))
}
