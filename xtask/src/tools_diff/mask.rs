//! What differs between two runs of the same thing, named and taken out before comparing.

/// One kind of thing that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// The word that follows this text, wherever it stands: `"took":"` and the like.
    After(&'static str),
    /// A column of comma separated lines, counted from 0.
    Field(usize),
    /// A column of a table, by its heading; its width goes too.
    Column(&'static str),
    /// The order of the lines: answers of several members come as they come.
    Order,
    /// Lines that hold this text.
    Lines(&'static str),
    /// How many blanks there are: ids are padded to a width.
    Blanks,
    /// What follows this text in a line.
    Cut(&'static str),
    /// Date and time of Go's logger at the begin of lines.
    Stamp,
}

const STAMP: &[u8] = b"0000/00/00 00:00:00 ";

/// Ends a word that is masked.
const ENDS: &[char] = &[',', '}', ']', ')', ' ', '\n', '\t', '"', '\u{2502}'];

impl Mask {
    pub fn apply(self, text: &str) -> String {
        match self {
            Mask::After(before) => after(text, before),
            Mask::Field(at) => lines(text, |line| field(line, at)),
            Mask::Column(heading) => column(text, heading),
            Mask::Order => {
                let mut sorted: Vec<&str> = text.split_inclusive('\n').collect();
                sorted.sort_unstable();
                sorted.concat()
            }
            Mask::Stamp => lines(text, |line| {
                let stamped = line.len() > 20
                    && line.as_bytes().iter().zip(STAMP).all(|(byte, form)| match form {
                        b'0' => byte.is_ascii_digit(),
                        other => byte == other,
                    });
                line[if stamped { 20 } else { 0 }..].to_owned()
            }),
            Mask::Blanks => lines(text, |line| {
                let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
                words.join(" ")
            }),
            Mask::Cut(before) => lines(text, |line| match line.split_once(before) {
                Some((kept, _)) => format!("{kept}{before}_"),
                None => line.to_owned(),
            }),
            Mask::Lines(holding) => {
                lines(text, |line| if line.contains(holding) { format!("_{holding}_") } else { line.to_owned() })
            }
        }
    }
}

fn lines(text: &str, change: impl Fn(&str) -> String) -> String {
    let changed = text.split_inclusive('\n').map(|line| match line.strip_suffix('\n') {
        Some(line) => change(line) + "\n",
        None => change(line),
    });
    changed.collect()
}

fn after(text: &str, before: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(before) {
        let (head, tail) = rest.split_at(at + before.len());
        out.push_str(head);
        let end = tail.find(ENDS).unwrap_or(tail.len());
        if end > 0 {
            out.push('_');
        }
        rest = &tail[end..];
    }
    out + rest
}

fn field(line: &str, at: usize) -> String {
    let mut fields: Vec<&str> = line.split(", ").collect();
    if fields.len() > at && fields.len() > 1 {
        fields[at] = "_";
    }
    fields.join(", ")
}

/// Takes the column out of all rows, rules included.
fn column(text: &str, heading: &str) -> String {
    let parts = |line: &str| {
        line.split(['\u{2502}', '\u{253c}', '\u{252c}', '\u{2534}']).map(str::to_owned).collect::<Vec<_>>()
    };
    let heading_row = text.lines().find(|line| line.split('\u{2502}').any(|cell| cell.trim() == heading));
    let Some(at) = heading_row.and_then(|line| line.split('\u{2502}').position(|cell| cell.trim() == heading)) else {
        return text.to_owned();
    };
    lines(text, |line| {
        // A rule begins with its corner, which stands before the first part.
        let rule = !line.starts_with('\u{2502}');
        let between = line.chars().find(|c| "\u{2502}\u{253c}\u{252c}\u{2534}".contains(*c)).unwrap_or('|');
        let mut cells = parts(line);
        let place = if rule { at.saturating_sub(1) } else { at };
        if let Some(cell) = cells.get_mut(place) {
            *cell = "_".to_owned();
        }
        cells.join(&between.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks() {
        let json = r#"{"took":"1.5ms","n":3,"x":"took"}"#;
        assert_eq!(Mask::After("\"took\":\"").apply(json), r#"{"took":"_","n":3,"x":"took"}"#);
        assert_eq!(Mask::After("\"n\":").apply(json), r#"{"took":"1.5ms","n":_,"x":"took"}"#);
        assert_eq!(Mask::Field(1).apply("a, b, c\nd\n"), "a, _, c\nd\n");
        assert_eq!(Mask::Order.apply("b\na\n"), "a\nb\n");
        let table = "┌────┬──────┐\n│ ID │ SIZE │\n├────┼──────┤\n│  1 │ 5 kB │\n└────┴──────┘\n";
        let wide = "┌────┬───────┐\n│ ID │ SIZE  │\n├────┼───────┤\n│  1 │ 25 kB │\n└────┴───────┘\n";
        assert_eq!(Mask::Column("SIZE").apply(table), Mask::Column("SIZE").apply(wide));
        assert_ne!(Mask::Column("ID").apply(table), Mask::Column("ID").apply(wide));
    }
}
