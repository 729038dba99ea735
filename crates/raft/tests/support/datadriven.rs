//! The script format: a command line, optional input lines, `----`, the expected output up to a blank line. Lines that
//! start with `#` between directives are comments. Output that contains blank lines stands between doubled `----`.

use std::fmt;

/// `key`, `key=value` or `key=(value, value)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arg {
    pub key: String,
    /// Empty for a bare key.
    pub values: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    pub command: String,
    pub args: Vec<Arg>,
    /// Lines between the command and `----`, trimmed at both ends.
    pub input: String,
}

impl Directive {
    /// The first value of an argument.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.args.iter().find(|arg| arg.key == key)?.values.first().map(String::as_str)
    }

    /// The bare arguments, as numbers.
    pub fn numbers(&self) -> Vec<u64> {
        self.args.iter().filter(|arg| arg.values.is_empty()).map(|arg| number(&arg.key)).collect()
    }
}

pub fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text}"))
}

/// Where output and expectation part.
#[derive(Debug)]
pub struct Difference {
    line: usize,
    command: String,
    expected: String,
    found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.command)?;
        let (expected, found): (Vec<_>, Vec<_>) = (self.expected.lines().collect(), self.found.lines().collect());
        for i in 0..expected.len().max(found.len()) {
            let (want, got) = (expected.get(i), found.get(i));
            if want == got {
                write!(f, "\n  {}", want.unwrap_or(&""))?;
                continue;
            }
            if let Some(want) = want {
                write!(f, "\n- {want}")?;
            }
            if let Some(got) = got {
                write!(f, "\n+ {got}")?;
            }
        }
        Ok(())
    }
}

/// Runs a script to its end or to the first difference.
pub fn run(text: &str, handle: &mut dyn FnMut(&Directive) -> String) -> Result<(), Difference> {
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let mut line = line.trim().to_owned();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        while line.ends_with('\\') {
            line.pop();
            let Some((_, next)) = lines.next() else { break };
            line = format!("{line} {}", next.trim());
        }
        let (command, args) = parse_line(&line);
        let mut input = String::new();
        let mut expected = String::new();
        let separated = loop {
            match lines.next() {
                Some((_, "----")) => break true,
                Some((_, more)) => input = input + more + "\n",
                None => break false,
            }
        };
        if separated {
            expected = read_expected(&mut lines.by_ref().map(|(_, line)| line));
        }
        let directive = Directive { command, args, input: input.trim().to_owned() };
        let mut found = handle(&directive);
        if !found.is_empty() && !found.ends_with('\n') {
            found.push('\n');
        }
        if found != expected {
            return Err(Difference { line: at + 1, command: line, expected, found });
        }
    }
    Ok(())
}

fn read_expected<'a>(lines: &mut impl Iterator<Item = &'a str>) -> String {
    let mut expected = String::new();
    let Some(first) = lines.next() else { return expected };
    if first == "----" {
        let mut previous_was_separator = false;
        for line in lines.by_ref() {
            match (line == "----", previous_was_separator) {
                (true, true) => {
                    assert_eq!(lines.next().unwrap_or(""), "", "a blank line follows a doubled separator");
                    return expected;
                }
                (true, false) => previous_was_separator = true,
                (false, held) => {
                    if held {
                        expected.push_str("----\n");
                    }
                    previous_was_separator = false;
                    expected = expected + line + "\n";
                }
            }
        }
        return expected;
    }
    let mut line = first;
    while !line.trim().is_empty() {
        expected = expected + line + "\n";
        match lines.next() {
            Some(next) => line = next,
            None => break,
        }
    }
    expected
}

fn parse_line(line: &str) -> (String, Vec<Arg>) {
    let (command, mut rest) = line.split_once(' ').unwrap_or((line, ""));
    let mut args = Vec::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return (command.to_owned(), args);
        }
        let end = rest.find([' ', '=']).unwrap_or(rest.len());
        assert_ne!(end, 0, "an argument without a name: {line}");
        let key = rest[..end].to_owned();
        rest = &rest[end..];
        let mut values = Vec::new();
        if let Some(after) = rest.strip_prefix('=') {
            if let Some(inner) = after.strip_prefix('(') {
                let close = inner.find(')').unwrap_or_else(|| panic!("unclosed parenthesis: {line}"));
                values = inner[..close].split(',').map(|value| value.trim_start().to_owned()).collect();
                rest = &inner[close + 1..];
            } else {
                let end = after.find(' ').unwrap_or(after.len());
                values.push(after[..end].to_owned());
                rest = &after[end..];
            }
        }
        args.push(Arg { key, values });
    }
}

#[test]
fn lines_parse() {
    let (command, args) = parse_line("cmd 1 a=b c=(d, e) f=(g) h=");
    let arg = |key: &str, values: &[&str]| Arg {
        key: key.to_owned(),
        values: values.iter().map(|&value| value.to_owned()).collect(),
    };
    assert_eq!(command, "cmd");
    assert_eq!(args, [arg("1", &[]), arg("a", &["b"]), arg("c", &["d", "e"]), arg("f", &["g"]), arg("h", &[""])]);
}

#[test]
fn a_difference_is_found() {
    let script = "# comment\necho\nhello\n----\nhello\n\nblank\n----\n----\na\n\nb\n----\n----\n\nlast\n----\nwrong\n";
    let mut seen = Vec::new();
    let outcome = run(script, &mut |directive| {
        seen.push(directive.command.clone());
        match directive.command.as_str() {
            "echo" => directive.input.clone(),
            "blank" => "a\n\nb\n".to_owned(),
            _ => "right".to_owned(),
        }
    });
    assert_eq!(seen, ["echo", "blank", "last"]);
    assert_eq!(outcome.unwrap_err().to_string(), "16: last\n- wrong\n+ right");
}
