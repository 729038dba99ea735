//! `txn`: one transaction, read from stdin line by line.
//!
//! Three lists, each ended by an empty line: comparisons, what to do when all hold, what to do otherwise.
//!
//! ```text
//! mod("key1") > "0"
//!
//! put key1 "overwrote-key1"
//!
//! put key1 "created-key1"
//!
//! ```

use std::io::{BufRead, BufReader, Read};

use dolmen_cli::{Call, Command, Failure, Flag, golang, parse, print, words};
use dolmen_proto::etcdserverpb as pb;
use dolmen_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use dolmen_proto::etcdserverpb::request_op::Request;

use super::{del, get, put};
use crate::connect::{self, Limit};
use crate::hints;
use crate::process::Unbuffered;
use crate::text::split_words;
use crate::tool::KV;

/// `txn`
pub static COMMAND: Command = Command {
    usage: "txn [options]",
    short: "Txn processes all the requests in one transaction",
    long: r#"Txn reads multiple etcd requests from standard input and applies them as a single atomic transaction.

A transaction consists of three components:
1) a list of conditions,
2) a list of requests to apply if all the conditions are true,
3) a list of requests to apply if any condition is false.

Example interactive stdin usage:

---
etcdctl txn -i
# compares:
mod("key1") > "0"

# success requests (get, put, delete):
put key1 "overwrote-key1"

# failure requests (get, put, delete):
put key1 "created-key1"
put key2 "some extra key"
---

Refer to https://github.com/etcd-io/etcd/blob/main/etcdctl/README.md#txn-options."#,
    group: KV,
    flags: &[Flag::boolean("interactive", "Input transaction in interactive mode").short('i')],
    run: Some(run),
    ..Command::NEW
};

/// As much as a line reader takes from stdin at once: a `put` without a value reads on behind it.
const READ_AHEAD: usize = 4096;

fn run(call: &Call) -> Result<(), Failure> {
    if !call.args().is_empty() {
        return Err(Failure::bad_args("txn command does not accept argument"));
    }
    let prompt = |text: &str| {
        if call.boolean("interactive") {
            print(format!("{text}\n"));
        }
    };
    connect::run(call, Limit::None, async |link| {
        let mut lines = BufReader::with_capacity(READ_AHEAD, Unbuffered::stdin()?);
        prompt("compares:");
        let compare = read_list(&mut lines, |line, _| parse_compare(line).map_err(Failure::bad_input))?;
        prompt("success requests (get, put, del):");
        let success = read_list(&mut lines, parse_operation)?;
        prompt("failure requests (get, put, del):");
        let failure = read_list(&mut lines, parse_operation)?;
        let request = pb::TxnRequest { compare, success, failure };
        let response = link.client.txn(request).await.map_err(|e| hints::failure(&e))?;
        link.printer.txn(&response)
    })
}

/// Lines up to an empty one, each parsed; `parse` may read on behind what the lines' reader has taken.
fn read_list<R: Read, T>(
    lines: &mut BufReader<R>,
    parse: impl Fn(&str, &mut R) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    let mut list = Vec::new();
    loop {
        let mut line = Vec::new();
        lines.read_until(b'\n', &mut line).map_err(Failure::bad_input)?;
        if line.pop() != Some(b'\n') {
            return Err(Failure::bad_input("EOF"));
        }
        let line = words::from_bytes(line);
        match line.trim() {
            "" => return Ok(list),
            line => list.push(parse(line, lines.get_mut())?),
        }
    }
}

/// One line of the second or third list: a `get`, `put` or `del` with the flags of those commands.
///
/// # Errors
/// `invalid txn compare request: LINE` for a single word, `invalid txn request: LINE` for what cannot be parsed (exit
/// 3); mistakes in arguments and flags as the command itself tells them.
pub fn parse_operation(line: &str, stdin: &mut impl Read) -> Result<pb::RequestOp, Failure> {
    let mut words = split_words(line).map_err(Failure::bad_input)?;
    if words.len() < 2 {
        return Err(Failure::bad_input(format!("invalid txn compare request: {line}")));
    }
    let invalid = || Failure::bad_input(format!("invalid txn request: {line}"));
    // Flags with their value in one word may stand before the command.
    let at = words.iter().position(|word| !(word.starts_with("--") && word.contains('='))).ok_or_else(invalid)?;
    let command = find(&words.remove(at)).ok_or_else(invalid)?;
    let call = parse(command, &words).map_err(|_| invalid())?;
    let request = match command.name() {
        "get" => Request::RequestRange(get::request(&call)?),
        "put" => Request::RequestPut(put::request(&call, stdin)?),
        _ => Request::RequestDeleteRange(del::request(&call)?),
    };
    Ok(pb::RequestOp { request: Some(request) })
}

/// The command that `word` names, or begins to name.
fn find(word: &str) -> Option<&'static Command> {
    [&get::COMMAND, &put::COMMAND, &del::COMMAND]
        .into_iter()
        .find(|one| !word.is_empty() && one.name().starts_with(word))
}

/// A line of the first list: `mod("key") > "0"`.
///
/// Targets: `ver`, `version`, `c`, `create`, `m`, `mod` with decimal numbers, `val`, `value` with text, `lease` with a
/// hexadecimal id. Operators: `=`, `!=`, `<`, `>`. Key and value are quoted as in Go.
/// # Errors
/// The sentence for the `Error:` line.
pub fn parse_compare(line: &str) -> Result<pb::Compare, String> {
    let malformed = || format!("malformed comparison: {line}");
    let (target, rest) = line.split_once('(').ok_or_else(malformed)?;
    let mut scan = Scan { rest };
    let (mut key, mut operator, mut value) = (None, "", None);
    // `"key") op "value"`, as far as it goes: the error shows what was found.
    if let Some(found) = scan.quoted() {
        key = Some(found);
        if scan.literal(')') && scan.spaces() {
            operator = scan.word();
            if !operator.is_empty() && scan.spaces() {
                value = scan.quoted();
            }
        }
    }
    let shown = |text: &Option<Vec<u8>>| golang::quote_bytes(text.as_deref().unwrap_or_default());
    let (Some(key), Some(value)) = (&key, &value) else {
        let (key, value) = (shown(&key), shown(&value));
        return Err(format!("malformed comparison: {line}; got {target}({key}) {operator} {value}"));
    };
    let number = |base| {
        golang::parse_int(&words::from_bytes(value.clone()), base)
            .map_err(|_| format!("invalid txn compare request: {line}"))
    };
    let (target, union) = match target {
        "ver" | "version" => (CompareTarget::Version, TargetUnion::Version(number(10)?)),
        "c" | "create" => (CompareTarget::Create, TargetUnion::CreateRevision(number(10)?)),
        "m" | "mod" => (CompareTarget::Mod, TargetUnion::ModRevision(number(10)?)),
        "val" | "value" => (CompareTarget::Value, TargetUnion::Value(value.clone().into())),
        "lease" => (CompareTarget::Lease, TargetUnion::Lease(number(16)?)),
        _ => return Err(format!("malformed comparison: {line} (unknown target {target})")),
    };
    let result = match operator {
        "=" => CompareResult::Equal,
        "!=" => CompareResult::NotEqual,
        ">" => CompareResult::Greater,
        "<" => CompareResult::Less,
        _ => return Err(format!("malformed comparison: {line} (unknown operator {operator})")),
    };
    Ok(pb::Compare {
        result: result.into(),
        target: target.into(),
        key: key.clone().into(),
        range_end: Default::default(),
        target_union: Some(union),
    })
}

/// Reads a line as Go's `fmt.Sscanf` does.
struct Scan<'a> {
    rest: &'a str,
}

impl<'a> Scan<'a> {
    /// A text in double quotes or back quotes, after any white space.
    fn quoted(&mut self) -> Option<Vec<u8>> {
        let text = self.rest.trim_start();
        let quote = text.chars().next().filter(|c| matches!(c, '"' | '`'))?;
        let mut escaped = false;
        let inside = text[1..].find(|c: char| {
            let ends = c == quote && !escaped;
            escaped = quote == '"' && c == '\\' && !escaped;
            ends
        })?;
        let (quoted, rest) = text.split_at(inside + 2);
        self.rest = rest;
        golang::unquote(quoted).ok()
    }

    fn literal(&mut self, c: char) -> bool {
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// White space, at least one; the end of the line counts.
    fn spaces(&mut self) -> bool {
        let rest = self.rest.trim_start();
        let some = rest.len() < self.rest.len() || rest.is_empty();
        self.rest = rest;
        some
    }

    fn word(&mut self) -> &'a str {
        let (word, rest) = self.rest.split_at(self.rest.find(char::is_whitespace).unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons() {
        let table: &[(&str, CompareResult, CompareTarget, &[u8], TargetUnion)] = &[
            (r#"mod("key1") > "0""#, CompareResult::Greater, CompareTarget::Mod, b"key1", TargetUnion::ModRevision(0)),
            (
                r#"ver("k")  !=  "-3" x"#,
                CompareResult::NotEqual,
                CompareTarget::Version,
                b"k",
                TargetUnion::Version(-3),
            ),
            (
                r#"c( "a\"\xff") < "7""#,
                CompareResult::Less,
                CompareTarget::Create,
                b"a\"\xff",
                TargetUnion::CreateRevision(7),
            ),
            (
                r#"val(`a\n`) = "b\n""#,
                CompareResult::Equal,
                CompareTarget::Value,
                b"a\\n",
                TargetUnion::Value("b\n".into()),
            ),
            (r#"lease("k") = "1f""#, CompareResult::Equal, CompareTarget::Lease, b"k", TargetUnion::Lease(0x1f)),
        ];
        for (line, result, target, key, union) in table {
            let found = parse_compare(line).unwrap_or_else(|why| panic!("{line}: {why}"));
            assert_eq!((found.result, found.target), ((*result).into(), (*target).into()), "{line}");
            assert_eq!(found.key.as_ref(), *key, "{line}");
            assert_eq!(found.target_union.as_ref(), Some(union), "{line}");
        }
    }

    #[test]
    fn comparisons_that_are_none() {
        let table = [
            ("foo", "malformed comparison: foo"),
            (r#"mod(key) > "0""#, r#"malformed comparison: mod(key) > "0"; got mod("")  """#),
            (r#"mod("k")="0""#, r#"malformed comparison: mod("k")="0"; got mod("k")  """#),
            (r#"mod("k") ="0""#, r#"malformed comparison: mod("k") ="0"; got mod("k") ="0" """#),
            (r#"mod("k") = 0"#, r#"malformed comparison: mod("k") = 0; got mod("k") = """#),
            (r#"mod("k" ) = "0""#, r#"malformed comparison: mod("k" ) = "0"; got mod("k")  """#),
            (r#"mod("k") = "x""#, r#"invalid txn compare request: mod("k") = "x""#),
            (r#"bogus("k") = "x""#, r#"malformed comparison: bogus("k") = "x" (unknown target bogus)"#),
            (r#"mod("k") == "1""#, r#"malformed comparison: mod("k") == "1" (unknown operator ==)"#),
        ];
        for (line, why) in table {
            assert_eq!(parse_compare(line).err().as_deref(), Some(why), "{line}");
        }
    }

    #[test]
    fn operations() {
        let parsed = |line: &str| parse_operation(line, &mut &b"from stdin"[..]).map(|op| op.request);
        let Ok(Some(Request::RequestPut(put))) = parsed(r#"put --prev-kv foo "b\tr" "#) else { panic!("no put") };
        assert_eq!((put.key.as_ref(), put.value.as_ref(), put.prev_kv), (&b"foo"[..], &b"b\tr"[..], true));
        let Ok(Some(Request::RequestPut(put))) = parsed("p foo") else { panic!("no put") };
        assert_eq!(put.value.as_ref(), b"from stdin");
        let Ok(Some(Request::RequestRange(get))) = parsed("--limit=3 get a b --order=DESCEND") else {
            panic!("no get")
        };
        assert_eq!((get.limit, get.range_end.as_ref(), get.sort_order), (3, &b"b"[..], 2));
        let Ok(Some(Request::RequestDeleteRange(del))) = parsed("del --prefix a") else { panic!("no del") };
        assert_eq!((del.key.as_ref(), del.range_end.as_ref()), (&b"a"[..], &b"b"[..]));
        let failed = |line: &str| parsed(line).err().map(|e| (e.code(), e.text().unwrap_or_default().to_owned()));
        let table: &[(&str, u8, &str)] = &[
            ("get", 3, "invalid txn compare request: get"),
            ("bogus x", 3, "invalid txn request: bogus x"),
            ("get --bogus x", 3, "invalid txn request: get --bogus x"),
            ("get -w json x", 3, "invalid txn request: get -w json x"),
            (
                "put a --lease=zz b",
                128,
                "bad lease ID (strconv.ParseInt: parsing \"zz\": invalid syntax), expecting ID in Hex",
            ),
            ("get a --order=up", 4, "bad sort order up"),
        ];
        for (line, code, text) in table {
            assert_eq!(failed(line), Some((*code, (*text).to_owned())), "{line}");
        }
    }

    #[test]
    fn lists_end_at_an_empty_line_and_nowhere_else() {
        let read = |text: &str| {
            let mut lines = BufReader::new(text.as_bytes());
            read_list(&mut lines, |line, _| Ok(line.to_owned())).map_err(|e| e.text().unwrap_or_default().to_owned())
        };
        assert_eq!(read("a\n b\r\n\nc\n"), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(read("a\nb"), Err("EOF".to_owned()));
        assert_eq!(read(""), Err("EOF".to_owned()));
    }
}
