//! The rows of the table: command lines, and the scenarios they stand in.

use super::mask::Mask;
use crate::run::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    Ctl,
    Utl,
    Defrag,
}

impl Tool {
    pub fn name(self) -> &'static str {
        match self {
            Tool::Ctl => "etcdctl",
            Tool::Utl => "etcdutl",
            Tool::Defrag => "etcd-defrag",
        }
    }
}

/// When a command that does not end by itself is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It ends by itself.
    Never,
    /// SIGINT once so many lines stand on stdout.
    Lines(usize),
    /// SIGINT after so many milliseconds.
    Millis(u64),
}

/// One command line.
///
/// In `words`, `{e}` is all endpoints, `{e0}` the first, `{id0}` the first member's id in hexadecimal, `{cluster}` the
/// cluster's, `{peer0}` a member's peer address, `{X}` what an earlier line captured as `X`; quotes are as in a shell.
#[derive(Clone, Debug)]
pub struct Line {
    pub tool: Tool,
    pub words: String,
    pub stdin: &'static str,
    /// Stdin stays open behind the text.
    pub holds: bool,
    pub env: &'static [(&'static str, &'static str)],
    pub stop: Stop,
    pub masks: &'static [Mask],
    /// Name, and what stands before it on stdout; what begins with `, ` stands behind it.
    pub capture: Option<(&'static str, &'static str)>,
    /// Why ours may differ.
    pub reason: Option<&'static str>,
    /// All of stderr counts.
    pub stderr: bool,
    /// Not one of the lines that are counted: sets the stage, with Go's tool on both sides.
    pub compared: bool,
    /// The name under which it runs on beside the following lines, until [`Scenario`] reaches its end line.
    pub begins: Option<&'static str>,
    /// Ends the one that runs under this name; it is that one's output that is compared here.
    pub ends: Option<&'static str>,
}

fn line(tool: Tool, words: &str) -> Line {
    Line {
        tool,
        words: words.to_owned(),
        stdin: "",
        holds: false,
        env: &[],
        stop: Stop::Never,
        masks: &[],
        capture: None,
        reason: None,
        stderr: false,
        compared: true,
        begins: None,
        ends: None,
    }
}

/// A line of etcdctl.
pub fn ctl(words: &str) -> Line {
    line(Tool::Ctl, words)
}

/// A line of etcdutl.
pub fn utl(words: &str) -> Line {
    line(Tool::Utl, words)
}

/// A line of etcd-defrag.
pub fn defrag(words: &str) -> Line {
    line(Tool::Defrag, words)
}

/// A line that sets the stage: Go's etcdctl on both sides, and it has to succeed.
pub fn set(words: &str) -> Line {
    Line { compared: false, ..line(Tool::Ctl, words) }
}

/// Ends what runs under `name` by SIGINT, or waits for its end, and compares all it said.
pub fn end(name: &'static str, stop: Stop) -> Line {
    Line { ends: Some(name), stop, ..line(Tool::Ctl, &format!("(end of {name})")) }
}

/// Every format, and bytes in hexadecimal.
pub const FORMATS: [&str; 6] = ["", " -w json", " -w fields", " -w table", " -w protobuf", " --hex -w json"];

/// Characters of a line that are shown.
const LONGEST: usize = 300;

impl Line {
    pub fn stdin(mut self, text: &'static str) -> Line {
        self.stdin = text;
        self
    }

    /// As [`Line::stdin`], and stdin stays open until the command is stopped.
    pub fn typed(mut self, text: &'static str) -> Line {
        self.stdin = text;
        self.holds = true;
        self
    }

    pub fn env(mut self, env: &'static [(&'static str, &'static str)]) -> Line {
        self.env = env;
        self
    }

    pub fn until(mut self, stop: Stop) -> Line {
        self.stop = stop;
        self
    }

    pub fn mask(mut self, masks: &'static [Mask]) -> Line {
        self.masks = masks;
        self
    }

    pub fn capture(mut self, name: &'static str, before: &'static str) -> Line {
        self.capture = Some((name, before));
        self
    }

    pub fn kept(mut self, reason: &'static str) -> Line {
        self.reason = Some(reason);
        self
    }

    pub fn stderr(mut self) -> Line {
        self.stderr = true;
        self
    }

    pub fn begin(mut self, name: &'static str) -> Line {
        self.begins = Some(name);
        self.compared = false;
        self
    }

    /// The line in each of the [`FORMATS`].
    pub fn formats(self) -> Vec<Line> {
        self.with(&FORMATS)
    }

    /// The line with each of `ends` after it.
    pub fn with(self, ends: &[&str]) -> Vec<Line> {
        ends.iter().map(|end| Line { words: format!("{}{end}", self.words), ..self.clone() }).collect()
    }

    /// As a person would type it.
    pub fn shown(&self) -> String {
        let mut text: String = self.env.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        text.push_str(&format!("{} {}", self.tool.name(), self.words));
        if !self.stdin.is_empty() {
            text.push_str(&format!(" <<< {:?}", self.stdin));
        }
        if let Some((at, _)) = text.char_indices().nth(LONGEST) {
            text.truncate(at);
            text.push_str("...");
        }
        text
    }

    /// The words, with their quotes taken off.
    ///
    /// # Errors
    /// A quote is open.
    pub fn split(&self) -> Result<Vec<String>> {
        let mut words = Vec::new();
        let mut word: Option<String> = None;
        let mut chars = self.words.chars();
        while let Some(c) = chars.next() {
            match c {
                ' ' => words.extend(word.take()),
                '\'' | '"' => {
                    let inside: String = chars.by_ref().take_while(|inside| *inside != c).collect();
                    if self.words.matches(c).count() % 2 == 1 {
                        return Err("a quote is open".to_owned());
                    }
                    word.get_or_insert_default().push_str(&inside);
                }
                c => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        Ok(words)
    }
}

/// Where the lines are played.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// Servers; 0: none are needed.
    pub members: usize,
    /// Client ports want certificates.
    pub tls: bool,
    /// Further flags of the servers.
    pub flags: &'static [&'static str],
    pub lines: Vec<Line>,
    /// Masks for all lines.
    pub masks: &'static [Mask],
}

impl Scenario {
    /// With one plain member.
    pub fn one(name: &'static str, lines: Vec<Vec<Line>>) -> Scenario {
        let lines = lines.into_iter().flatten().collect();
        Scenario { name, members: 1, tls: false, flags: &[], lines, masks: &[] }
    }

    /// Without a server; all of stderr counts.
    pub fn offline(name: &'static str, lines: Vec<Line>) -> Scenario {
        let lines = lines.into_iter().map(Line::stderr).collect();
        Scenario { members: 0, lines, ..Scenario::one(name, Vec::new()) }
    }
}

/// Many lines of etcdctl, one a line of text; empty lines and what follows `#` at their begin are for the reader.
pub fn ctls(text: &str) -> Vec<Line> {
    many(text, ctl)
}

/// As [`ctls`], to set the stage.
pub fn sets(text: &str) -> Vec<Line> {
    many(text, set)
}

/// As [`ctls`], of any tool.
pub fn many(text: &str, make: fn(&str) -> Line) -> Vec<Line> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    // `''` stands for no words at all.
    lines.map(|line| make(if line == "(nothing)" { "" } else { line })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_in_a_shell() {
        let split = |text: &str| ctl(text).split();
        let expected = ["put", "a b", "", "x'y", "--a=b c"].map(str::to_owned).to_vec();
        assert_eq!(split(r#"put 'a b' ''  "x'y" --a="b c""#), Err("a quote is open".to_owned()));
        assert_eq!(split(r#"put 'a b' ''  "xy" --a="b c""#).map(|words| words.len()), Ok(5));
        assert_eq!(split("put 'a b' ''"), Ok(expected[..3].to_vec()));
    }
}
