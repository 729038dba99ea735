//! The values of the rule language and what its operators do with them.
//!
//! A number is an integer of 64 bits or a float, and stays an integer as long as all operands are: `7/2` is 3, `7.0/2`
//! is 3.5. Sizes come in as floats. Integers wrap. Nothing is converted to or from a bool. The errors are sentences
//! that etcd-defrag prints; each has a class before the colon: `type error`, `math error`, `var error`, ...

use std::collections::BTreeMap;

use dolmen_cli::golang;

/// What a rule, or a part of it, comes to.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// A string: bytes, since a slice may cut a character.
    Text(Vec<u8>),
    Array(Vec<Value>),
    Object(BTreeMap<Vec<u8>, Value>),
}

/// An operation's result, or the sentence that says why there is none.
pub(super) type Outcome = Result<Value, String>;

/// A float as Go converts it to an integer: what does not fit becomes the lowest integer.
fn truncated(f: f64) -> i64 {
    let fits = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&f);
    if fits { f as i64 } else { i64::MIN }
}

impl Value {
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::Float(_) => "number",
            Self::Text(_) => "string",
            Self::Array(_) => "array",
            Self::Object(_) => "object",
        }
    }

    /// This value as a bool; nothing else is taken for one.
    pub fn as_bool(&self) -> Result<bool, String> {
        match self {
            Self::Bool(b) => Ok(*b),
            other => Err(format!("type error: required bool, but was {}", other.type_name())),
        }
    }

    /// This value as an integer; a float must be whole.
    pub fn as_integer(&self) -> Result<i64, String> {
        match self {
            Self::Int(n) => Ok(*n),
            Self::Float(f) if truncated(*f) as f64 == *f => Ok(truncated(*f)),
            Self::Float(_) => {
                Err("type error: cannot cast floating point number to integer without losing precision".to_owned())
            }
            other => Err(format!("type error: required number of type integer, but was {}", other.type_name())),
        }
    }

    fn as_float(&self) -> Option<f64> {
        match self {
            Self::Int(n) => Some(*n as f64),
            Self::Float(f) => Some(*f),
            _ => None,
        }
    }

    /// This value as it is written into a string that it is added to.
    fn spelled(&self) -> Option<Vec<u8>> {
        match self {
            Self::Nil => Some(b"nil".to_vec()),
            Self::Bool(b) => Some(b.to_string().into_bytes()),
            Self::Text(text) => Some(text.clone()),
            Self::Int(_) | Self::Float(_) => {
                let f = self.as_float()?;
                let text = if f.is_nan() {
                    "NaN".to_owned()
                } else if f.is_infinite() {
                    if f > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() }
                } else {
                    f.to_string()
                };
                Some(text.into_bytes())
            }
            Self::Array(_) | Self::Object(_) => None,
        }
    }

    /// This value as the key of an object's member.
    pub fn as_object_key(&self) -> Result<&[u8], String> {
        match self {
            Self::Text(key) => Ok(key),
            other => Err(format!("type error: object key must be string, but was {}", other.type_name())),
        }
    }
}

fn mismatch(verb: &str, a: &Value, b: &Value) -> String {
    format!("type error: cannot {verb} type {} and {}", a.type_name(), b.type_name())
}

pub(super) fn add(a: Value, b: Value) -> Outcome {
    if let (Some(x), Some(y)) = (a.as_float(), b.as_float()) {
        return Ok(match (&a, &b) {
            (Value::Int(x), Value::Int(y)) => Value::Int(x.wrapping_add(*y)),
            _ => Value::Float(x + y),
        });
    }
    match (a, b) {
        (Value::Array(mut x), Value::Array(y)) => {
            x.extend(y);
            Ok(Value::Array(x))
        }
        (Value::Object(mut x), Value::Object(y)) => {
            x.extend(y);
            Ok(Value::Object(x))
        }
        (a, b) => {
            if (matches!(a, Value::Text(_)) || matches!(b, Value::Text(_)))
                && let (Some(mut x), Some(y)) = (a.spelled(), b.spelled())
            {
                x.extend(y);
                return Ok(Value::Text(x));
            }
            Err(mismatch("add or concatenate", &a, &b))
        }
    }
}

/// `-`, `*`, `/`, `%`: integers among themselves, floats otherwise.
pub(super) fn arithmetic(sign: &str, a: &Value, b: &Value) -> Outcome {
    const BY_ZERO: &str = "math error: cannot divide by zero";
    if let (Value::Int(x), Value::Int(y)) = (a, b) {
        return Ok(Value::Int(match sign {
            "-" => x.wrapping_sub(*y),
            "*" => x.wrapping_mul(*y),
            _ if *y == 0 => return Err(BY_ZERO.to_owned()),
            "/" => x.wrapping_div(*y),
            _ => x.wrapping_rem(*y),
        }));
    }
    let (Some(x), Some(y)) = (a.as_float(), b.as_float()) else {
        return Err(match sign {
            "-" => mismatch("subtract", a, b),
            "*" => mismatch("multiply", a, b),
            "/" => mismatch("divide", a, b),
            _ => format!("type error: cannot perform modulo on type {} and {}", a.type_name(), b.type_name()),
        });
    };
    Ok(Value::Float(match sign {
        "-" => x - y,
        "*" => x * y,
        "/" if y == 0.0 => return Err(BY_ZERO.to_owned()),
        "/" => x / y,
        _ => x % y,
    }))
}

pub(super) fn power(a: &Value, b: &Value) -> Outcome {
    let (Some(x), Some(y)) = (a.as_float(), b.as_float()) else { return Err(mismatch("multiply", a, b)) };
    let power = x.powf(y);
    let whole = truncated(power);
    let integers = matches!((a, b), (Value::Int(_), Value::Int(_)));
    Ok(if integers && whole as f64 == power { Value::Int(whole) } else { Value::Float(power) })
}

pub(super) fn negative(a: &Value) -> Outcome {
    match a {
        Value::Int(n) => Ok(Value::Int(n.wrapping_neg())),
        Value::Float(f) => Ok(Value::Float(-f)),
        other => Err(format!("type error: unary minus requires number, but was {}", other.type_name())),
    }
}

/// Equality through arrays and objects; 1 and 1.0 are equal.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| equal(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            // A member that is missing on the other side counts as nil.
            x.len() == y.len() && x.iter().all(|(k, x)| equal(x, y.get(k).unwrap_or(&Value::Nil)))
        }
        (Value::Int(_), Value::Float(_)) | (Value::Float(_), Value::Int(_)) => a.as_float() == b.as_float(),
        _ => a == b,
    }
}

/// `<`, `<=`, `>`, `>=` of two numbers.
pub(super) fn compare(sign: &str, a: &Value, b: &Value) -> Outcome {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = match (a, b) {
        (Value::Int(x), Value::Int(y)) => Some(x.cmp(y)),
        _ => match (a.as_float(), b.as_float()) {
            (Some(x), Some(y)) => x.partial_cmp(&y),
            _ => return Err(mismatch("compare", a, b)),
        },
    };
    Ok(Value::Bool(match sign {
        "<" => order == Some(Less),
        "<=" => matches!(order, Some(Less | Equal)),
        ">" => order == Some(Greater),
        _ => matches!(order, Some(Greater | Equal)),
    }))
}

/// `|`, `&`, `^`, `<<`, `>>` of two integers. A shift by a negative count goes the other way.
pub(super) fn bits(sign: &str, a: &Value, b: &Value) -> Outcome {
    let (x, y) = (a.as_integer()?, b.as_integer()?);
    let left = |count: u64| if count < 64 { x << count } else { 0 };
    let right = |count: u64| x >> count.min(63);
    Ok(Value::Int(match sign {
        "|" => x | y,
        "&" => x & y,
        "^" => x ^ y,
        "<<" if y >= 0 => left(y.unsigned_abs()),
        "<<" => right(y.unsigned_abs()),
        _ if y >= 0 => right(y.unsigned_abs()),
        _ => left(y.unsigned_abs()),
    }))
}

/// `of.field` or `of[field]`.
pub(super) fn field(of: &Value, field: &Value) -> Outcome {
    match of {
        Value::Object(members) => {
            let Value::Text(key) = field else {
                return Err(format!("syntax error: object key must be string, but was {}", field.type_name()));
            };
            let missing = || format!("var error: object has no member {}", golang::quote_bytes(key));
            members.get(key).cloned().ok_or_else(missing)
        }
        Value::Array(items) => {
            let index = match field {
                Value::Int(n) => *n,
                Value::Float(f) if truncated(*f) as f64 == *f => truncated(*f),
                Value::Float(f) => {
                    return Err(format!("eval error: array index must be whole number, but was {f:.6}"));
                }
                other => {
                    return Err(format!("syntax error: array index must be number, but was {}", other.type_name()));
                }
            };
            let item = usize::try_from(index).ok().and_then(|n| items.get(n)).cloned();
            item.ok_or_else(|| format!("var error: array index {index} is out of range [0, {}]", items.len()))
        }
        other => Err(format!("syntax error: cannot access fields on type {}", other.type_name())),
    }
}

/// `of[from:to]` of a string or an array; `None` is the respective end.
pub(super) fn slice(of: &Value, from: Option<&Value>, to: Option<&Value>) -> Outcome {
    let length = match of {
        Value::Text(text) => text.len(),
        Value::Array(items) => items.len(),
        other => {
            return Err(format!("syntax error: slicing requires an array or string, but was {}", other.type_name()));
        }
    };
    let from = from.map_or(Ok(0), Value::as_integer)?;
    let to = to.map_or(Ok(length as i64), Value::as_integer)?;
    let Ok(start) = usize::try_from(from) else {
        return Err(format!("range error: start-index {from} is negative"));
    };
    let end = match usize::try_from(to) {
        Ok(end) if end <= length => end,
        _ => return Err(format!("range error: end-index {to} is out of range [0, {length}]")),
    };
    if start > end {
        return Err(format!("range error: start-index {from} is greater than end-index {to}"));
    }
    Ok(match of {
        Value::Text(text) => Value::Text(text[start..end].to_vec()),
        Value::Array(items) => Value::Array(items[start..end].to_vec()),
        _ => Value::Nil,
    })
}

/// `item in array`.
pub(super) fn contains(array: &Value, item: &Value) -> Outcome {
    match array {
        Value::Array(items) => Ok(Value::Bool(items.iter().any(|i| equal(i, item)))),
        other => Err(format!("syntax error: in-operator requires array, but was {}", other.type_name())),
    }
}
