//! Rules: the boolean expressions which say whether a member needs defragmentation.
//!
//! ```text
//! dbQuotaUsage > 0.8 || dbSize - dbSizeInUse > 200*1024*1024
//! ```
//!
//! The variables are `dbSize`, `dbSizeInUse`, `dbSizeFree`, `dbQuota` (bytes) and `dbQuotaUsage` (a ratio). The
//! operators, from the loosest to the tightest:
//!
//! | operators | |
//! |---|---|
//! | `a ? b : c` | right to left; both branches are evaluated |
//! | `\|\|`, then `&&` | both sides are evaluated |
//! | `\|`, then `^`, then `&` | of whole numbers |
//! | `== !=` | of anything, arrays and objects too |
//! | `< <= > >=` | of numbers |
//! | `<< >>` | of whole numbers |
//! | `+ -` | `+` joins strings, arrays and objects as well |
//! | `* / % **` | `**` stands with `*` and goes left to right |
//! | `! ~ -` | in front of an operand |
//! | `in` | `1 in [1, 2]` |
//! | `.name [index] [from:to]` | fields, items, slices |
//!
//! Parsing and evaluating are one pass, as in the expression library of etcd-defrag: a rule whose first half does not
//! type-check and whose second half does not parse is told of the first half. An operation takes place when the token
//! behind its last operand has been seen, no earlier and no later.

use std::collections::BTreeMap;

use dolmen_cli::golang;

use super::lexer::{Kind, Lexer, RuleError, Token};
use super::value::{self, Value};

/// How deep brackets and prefixes may nest.
const MAX_DEPTH: usize = 500;

/// The numbers of one member that a rule may speak of, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    pub quota: i64,
    pub db_size: i64,
    pub db_size_in_use: i64,
}

impl Sizes {
    /// A member of ordinary sizes, at which a rule is tried before any member is asked.
    pub const TRIAL: Self = Self { quota: 2 << 30, db_size: 100 << 20, db_size_in_use: 60 << 20 };

    fn variable(&self, name: &str) -> Option<Value> {
        Some(Value::Float(match name {
            "dbQuota" => self.quota as f64,
            "dbSize" => self.db_size as f64,
            "dbSizeInUse" => self.db_size_in_use as f64,
            "dbQuotaUsage" => self.db_size as f64 / self.quota as f64,
            "dbSizeFree" => self.db_size.wrapping_sub(self.db_size_in_use) as f64,
            _ => return None,
        }))
    }
}

/// What `rule` says about a member of these sizes. The empty rule is true of every member.
///
/// # Errors
/// The rule does not parse, does not type-check, or is no boolean expression.
pub fn holds(rule: &str, sizes: &Sizes) -> Result<bool, RuleError> {
    if rule.is_empty() {
        return Ok(true);
    }
    match evaluate(rule, sizes)? {
        Value::Bool(b) => Ok(b),
        _ => Err(RuleError::new(0, "the rule isn't a boolean expression")),
    }
}

/// The value of an expression, of whatever type.
///
/// # Errors
/// It does not parse or does not type-check.
pub fn evaluate(expression: &str, sizes: &Sizes) -> Result<Value, RuleError> {
    let mut parser = Parser { lexer: Lexer::new(expression), sizes, depth: 0 };
    let value = parser.expression(TERNARY)?;
    match parser.lexer.next()? {
        Token { kind: Kind::End, .. } => Ok(value),
        token => Err(unexpected(&token, "")),
    }
}

/// Two lines that show where in `rule` an error lies: the rule on one line, and a caret under the place.
pub fn pointed_out(rule: &str, error: &RuleError) -> String {
    let at = (0..=error.at.min(rule.len())).rev().find(|n| rule.is_char_boundary(*n)).unwrap_or(0);
    // One column a character: what would break the line or move the column is shown as a blank.
    let shown: String = rule.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let column = rule[..at].chars().count();
    format!("  {shown}\n  {}^", " ".repeat(column))
}

const TERNARY: u8 = 1;
const PREFIX: u8 = 12;
const IN: u8 = 13;
const POSTFIX: u8 = 14;

/// How tightly an operator between two operands binds.
fn binding(sign: &str) -> Option<u8> {
    Some(match sign {
        "?" => TERNARY,
        "||" => 2,
        "&&" => 3,
        "|" => 4,
        "^" => 5,
        "&" => 6,
        "==" | "!=" => 7,
        "<" | "<=" | ">" | ">=" => 8,
        "<<" | ">>" => 9,
        "+" | "-" => 10,
        "*" | "/" | "%" => 11,
        "in" => IN,
        "." | "[" => POSTFIX,
        _ => return None,
    })
}

fn unexpected(token: &Token, expecting: &str) -> RuleError {
    let also = if expecting.is_empty() { String::new() } else { format!(", expecting {expecting}") };
    RuleError::new(token.at, format!("syntax error: unexpected {}{also}", token.described()))
}

fn at<T>(position: usize, outcome: Result<T, String>) -> Result<T, RuleError> {
    outcome.map_err(|text| RuleError::new(position, text))
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    sizes: &'a Sizes,
    depth: usize,
}

impl Parser<'_> {
    /// An operand and all operators behind it that bind at least as tightly as `least`.
    fn expression(&mut self, least: u8) -> Result<Value, RuleError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let token = self.lexer.next()?;
            return Err(RuleError::new(token.at, "syntax error: expression is nested too deeply"));
        }
        let mut left = self.operand()?;
        loop {
            let token = self.lexer.peek()?;
            let (Kind::Sign(sign), position) = (&token.kind, token.at) else { break };
            let sign = *sign;
            let Some(tightness) = binding(sign).filter(|t| *t >= least) else { break };
            self.lexer.next()?;
            left = match sign {
                "?" => self.ternary(position, left)?,
                "." => self.member(position, &left)?,
                "[" => self.index(position, &left)?,
                _ => self.binary(sign, tightness, position, left)?,
            };
        }
        self.depth -= 1;
        Ok(left)
    }

    fn binary(&mut self, sign: &'static str, tightness: u8, position: usize, left: Value) -> Result<Value, RuleError> {
        if sign == "*" && self.lexer.sees("*")? {
            self.lexer.next()?;
            let right = self.expression(tightness + 1)?;
            return at(position, value::power(&left, &right));
        }
        let right = self.expression(tightness + 1)?;
        let outcome = match sign {
            "+" => value::add(left, right),
            "-" | "*" | "/" | "%" => value::arithmetic(sign, &left, &right),
            "==" => Ok(Value::Bool(value::equal(&left, &right))),
            "!=" => Ok(Value::Bool(!value::equal(&left, &right))),
            "&&" => left.as_bool().and_then(|l| right.as_bool().map(|r| Value::Bool(l && r))),
            "||" => left.as_bool().and_then(|l| right.as_bool().map(|r| Value::Bool(l || r))),
            "in" => value::contains(&right, &left),
            "|" | "&" | "^" | "<<" | ">>" => value::bits(sign, &left, &right),
            _ => value::compare(sign, &left, &right),
        };
        at(position, outcome)
    }

    fn ternary(&mut self, position: usize, condition: Value) -> Result<Value, RuleError> {
        let yes = self.expression(TERNARY)?;
        self.expect(":", "")?;
        let no = self.expression(TERNARY)?;
        Ok(if at(position, condition.as_bool())? { yes } else { no })
    }

    fn member(&mut self, position: usize, of: &Value) -> Result<Value, RuleError> {
        match self.lexer.next()? {
            Token { kind: Kind::Name(name), .. } => at(position, value::field(of, &Value::Text(name.into_bytes()))),
            token => Err(unexpected(&token, "IDENT")),
        }
    }

    /// Behind `of[`: an index, or a slice with either end left out.
    fn index(&mut self, position: usize, of: &Value) -> Result<Value, RuleError> {
        let from = if self.lexer.sees(":")? { None } else { Some(self.expression(TERNARY)?) };
        if let Some(index) = &from
            && self.lexer.sees("]")?
        {
            self.lexer.next()?;
            return at(position, value::field(of, index));
        }
        self.expect(":", "")?;
        let to = if self.lexer.sees("]")? { None } else { Some(self.expression(TERNARY)?) };
        self.expect("]", "")?;
        at(position, value::slice(of, from.as_ref(), to.as_ref()))
    }

    fn expect(&mut self, sign: &str, expecting: &str) -> Result<(), RuleError> {
        if self.lexer.sees(sign)? {
            self.lexer.next()?;
            return Ok(());
        }
        let token = self.lexer.next()?;
        Err(unexpected(&token, expecting))
    }

    fn operand(&mut self) -> Result<Value, RuleError> {
        let token = self.lexer.next()?;
        let position = token.at;
        match token.kind {
            Kind::Literal(value) => Ok(value),
            Kind::Name(name) => {
                if self.lexer.sees("(")? {
                    self.lexer.next()?;
                    // No function exists, but its arguments' mistakes come first.
                    self.list(")", "')' or ','")?;
                    let text = format!("syntax error: no such function {}", golang::quote(&name));
                    return Err(RuleError::new(position, text));
                }
                let variable = self.sizes.variable(&name);
                let missing = || format!("var error: variable {} does not exist", golang::quote(&name));
                at(position, variable.ok_or_else(missing))
            }
            Kind::Sign("(") => {
                let value = self.expression(TERNARY)?;
                self.expect(")", "")?;
                Ok(value)
            }
            Kind::Sign("[") => Ok(Value::Array(self.list("]", "']' or ','")?)),
            Kind::Sign("{") => self.object(),
            Kind::Sign("-") => {
                let operand = self.expression(PREFIX)?;
                at(position, value::negative(&operand))
            }
            Kind::Sign("!") => {
                let operand = self.expression(PREFIX)?;
                at(position, operand.as_bool().map(|b| Value::Bool(!b)))
            }
            Kind::Sign("~") => {
                let operand = self.expression(PREFIX)?;
                at(position, operand.as_integer().map(|n| Value::Int(!n)))
            }
            _ => Err(unexpected(&token, "")),
        }
    }

    /// Expressions up to `close`, separated by commas; the opening bracket is behind us.
    fn list(&mut self, close: &str, expecting: &str) -> Result<Vec<Value>, RuleError> {
        let mut items = Vec::new();
        if self.lexer.sees(close)? {
            self.lexer.next()?;
            return Ok(items);
        }
        loop {
            items.push(self.expression(TERNARY)?);
            if !self.lexer.sees(",")? {
                self.expect(close, expecting)?;
                return Ok(items);
            }
            self.lexer.next()?;
        }
    }

    /// The members of an object, `{` being behind us.
    fn object(&mut self) -> Result<Value, RuleError> {
        let mut members = BTreeMap::new();
        if self.lexer.sees("}")? {
            self.lexer.next()?;
            return Ok(Value::Object(members));
        }
        loop {
            let position = self.lexer.peek()?.at;
            let key = self.expression(TERNARY)?;
            self.expect(":", "")?;
            let member = self.expression(TERNARY)?;
            let key = at(position, key.as_object_key())?;
            if members.insert(key.to_vec(), member).is_some() {
                let text = format!("syntax error: duplicate object key {}", golang::quote_bytes(key));
                return Err(RuleError::new(position, text));
            }
            if !self.lexer.sees(",")? {
                self.expect("}", "'}' or ','")?;
                return Ok(Value::Object(members));
            }
            self.lexer.next()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each line: an expression, a tab, and what etcd-defrag's expression library makes of it: `int 3`, `ERR ...`.
    const GOLDEN: &str = include_str!("testdata/rules.golden");

    /// Whether `found` is what the golden line says.
    fn agrees(expected: &str, found: &Result<Value, RuleError>) -> bool {
        let (kind, text) = expected.split_once(' ').unwrap_or((expected, ""));
        match (kind, found) {
            ("ERR", Err(e)) => e.text == text,
            // The library crashes on `5 % 0`; here it is a mistake like `5 / 0`.
            ("PANIC", Err(e)) => e.text == "math error: cannot divide by zero",
            ("bool", Ok(Value::Bool(b))) => text == b.to_string(),
            ("int", Ok(Value::Int(n))) => text == n.to_string(),
            ("float64", Ok(Value::Float(f))) => text.parse() == Ok(*f),
            ("string", Ok(Value::Text(bytes))) => text.as_bytes() == bytes,
            ("<nil>", Ok(Value::Nil)) => true,
            _ => false,
        }
    }

    #[test]
    fn expressions_mean_what_they_mean_to_etcd_defrag() {
        let mut wrong = Vec::new();
        for line in GOLDEN.lines() {
            let (expression, expected) = line.split_once('\t').expect("every line has a tab");
            let found = evaluate(expression, &Sizes::TRIAL);
            if !agrees(expected, &found) {
                wrong.push(format!("{expression}\n  expected {expected}\n  found    {found:?}"));
            }
        }
        assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), GOLDEN.lines().count(), wrong.join("\n"));
    }

    #[test]
    fn a_rule_is_a_bool_or_empty() {
        let sizes = Sizes { quota: 100, db_size: 80, db_size_in_use: 30 };
        assert_eq!(holds("", &sizes), Ok(true));
        assert_eq!(holds("dbQuotaUsage > 0.7 && dbSizeFree == 50", &sizes), Ok(true));
        assert_eq!(holds("dbQuotaUsage > 0.8", &sizes), Ok(false));
        assert_eq!(holds("dbSize", &sizes).map_err(|e| e.text), Err("the rule isn't a boolean expression".to_owned()));
    }

    #[test]
    fn a_caret_shows_the_place() {
        let table = [
            ("dbSize > 1 &&", "  dbSize > 1 &&\n               ^"),
            ("\"é\" == dbSiz", "  \"é\" == dbSiz\n         ^"),
            ("1 + true", "  1 + true\n    ^"),
            ("\t@", "   @\n   ^"),
        ];
        for (rule, shown) in table {
            let error = holds(rule, &Sizes::TRIAL).expect_err(rule);
            assert_eq!(pointed_out(rule, &error), shown);
        }
    }

    #[test]
    fn depth_has_a_bound() {
        for rule in ["(".repeat(100_000), "-".repeat(2).replace("--", "- ").repeat(100_000), "[".repeat(100_000)] {
            let error = evaluate(&rule, &Sizes::TRIAL).expect_err("too deep");
            assert_eq!(error.text, "syntax error: expression is nested too deeply");
        }
        let wide = "1 + ".repeat(10_000) + "1";
        assert_eq!(evaluate(&wide, &Sizes::TRIAL), Ok(Value::Int(10_001)));
    }
}
