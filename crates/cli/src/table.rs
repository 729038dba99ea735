//! The tables of `-w table`, drawn with light lines as etcd's tools draw them since 3.7.

/// `endpoint hashkv` and its like: headings in capitals and centred, cells to the right, no lines between rows.
///
/// ```
/// let rows = vec![vec!["127.0.0.1:2379".to_owned(), "7".to_owned()]];
/// let drawn = "\
/// ┌────────────────┬──────┐
/// │    ENDPOINT    │ HASH │
/// ├────────────────┼──────┤
/// │ 127.0.0.1:2379 │    7 │
/// └────────────────┴──────┘
/// ";
/// assert_eq!(dolmen_cli::table::draw(&["endpoint", "hash"], &rows), drawn);
/// ```
pub fn draw(headings: &[&str], rows: &[Vec<String>]) -> String {
    let headings: Vec<String> = headings.iter().map(|heading| heading.to_uppercase().replace('_', " ")).collect();
    // Blanks around a cell's text are not kept.
    let cell = |row: &Vec<String>, at: usize| row.get(at).map(|cell| cell.trim().to_owned()).unwrap_or_default();
    let widths: Vec<usize> = (0..headings.len())
        .map(|at| {
            let cells = rows.iter().map(|row| width(&cell(row, at)));
            cells.chain([width(&headings[at])]).max().unwrap_or(0)
        })
        .collect();
    let rule = |left: char, middle: &str, right: char| {
        let dashes: Vec<String> = widths.iter().map(|width| "─".repeat(width + 2)).collect();
        format!("{left}{}{right}\n", dashes.join(middle))
    };
    let mut out = rule('┌', "┬", '┐');
    let centred = headings.iter().zip(&widths).map(|(heading, widest)| {
        let space = widest - width(heading);
        format!(" {}{heading}{} ", " ".repeat(space / 2), " ".repeat(space - space / 2))
    });
    out.push_str(&format!("│{}│\n", centred.collect::<Vec<_>>().join("│")));
    if !rows.is_empty() {
        out.push_str(&rule('├', "┼", '┤'));
    }
    for row in rows {
        let cells = widths.iter().enumerate().map(|(at, widest)| {
            let cell = cell(row, at);
            format!(" {}{cell} ", " ".repeat(widest - width(&cell)))
        });
        out.push_str(&format!("│{}│\n", cells.collect::<Vec<_>>().join("│")));
    }
    out.push_str(&rule('└', "┴", '┘'));
    out
}

/// Columns on a terminal.
fn width(text: &str) -> usize {
    unicode_width::UnicodeWidthStr::width(text)
}

#[cfg(test)]
mod tests {
    /// As etcdctl 3.7.3 drew it.
    const MEMBERS: &str = "\
┌──────────────────┬─────────┬───────┬────────────────────────┬────────────────────────┬────────────┐
│        ID        │ STATUS  │ NAME  │       PEER ADDRS       │      CLIENT ADDRS      │ IS LEARNER │
├──────────────────┼─────────┼───────┼────────────────────────┼────────────────────────┼────────────┤
│ a9fcd7a3efa7ece2 │ started │ größe │ http://127.0.0.1:34001 │ http://127.0.0.1:34000 │      false │
└──────────────────┴─────────┴───────┴────────────────────────┴────────────────────────┴────────────┘
";

    #[test]
    fn members() {
        let headings = ["ID", "Status", "Name", "Peer Addrs", "Client Addrs", "Is Learner"];
        let row = ["a9fcd7a3efa7ece2", "started", "größe", "http://127.0.0.1:34001", "http://127.0.0.1:34000", "false"];
        assert_eq!(super::draw(&headings, &[row.map(str::to_owned).to_vec()]), MEMBERS);
    }

    #[test]
    fn headings_alone_are_closed_by_one_line() {
        let drawn = "\
            ┌──────────┬──────┬───────────────┐\n\
            │ ENDPOINT │ HASH │ HASH REVISION │\n\
            └──────────┴──────┴───────────────┘\n";
        assert_eq!(super::draw(&["endpoint", "hash", "hash_revision"], &[]), drawn);
    }
}
