//! `pages`, `page`, `page-item` and `dump`: pages one by one.

use std::fmt::Write;

use dolmen_bolt::raw::{RawMeta, RawPage};
use dolmen_cli::{Call, Failure, golang};

use super::check::free_pages;
use super::file::{self, Db, Loose, outside};
use super::text::{format_bytes, hex, is_printable};
use super::{Output, print_bytes, returned};

pub(super) const PAGES_LONG: &str = "\
Pages prints a table of pages with their type (meta, leaf, branch, freelist).
Leaf and branch pages will show a key count in the \"items\" column while the
freelist will show the number of free pages in the \"items\" column.

The \"overflow\" column shows the number of blocks that the page spills over
into. Normally there is no overflow but large keys and values can cause
a single page to take up multiple blocks.
";

const SEPARATOR: &[u8] = b"===============================================";
/// Bytes in a line of a dump.
const DUMP_LINE: usize = 16;

pub(super) fn pages(call: &Call) -> Result<(), Failure> {
    let db = Db::open(&call.args()[0], call).map_err(returned)?;
    let free = free_pages(&db).map_err(returned)?;
    let mut output = Output::default();
    output.line(b"ID       TYPE       ITEMS  OVRFLW");
    output.line(b"======== ========== ====== ======");
    let mut id = 0;
    while id < db.high_water() {
        let (kind, count, overflow) = if free.contains(id) {
            ("free".to_owned(), String::new(), 0)
        } else {
            let head = db.head(id).map_err(|why| {
                output.flush();
                returned(format_args!("page error: id={id}, err={why}"))
            })?;
            (head.kind(), head.count.to_string(), head.overflow)
        };
        let more = if overflow > 0 { overflow.to_string() } else { String::new() };
        output.line(format!("{id:<8} {kind:<10} {count:<6} {more:<6}").as_bytes());
        id = id.saturating_add(1 + u64::from(overflow));
    }
    output.flush();
    Ok(())
}

/// Page numbers as Go's `ParseUint` takes them; empty words are passed over.
fn numbers(call: &Call) -> Result<Vec<u64>, Failure> {
    let words = call.args().iter().skip(1).filter(|word| !word.is_empty());
    words.map(|word| golang::parse_uint(word, 10).map_err(returned)).collect()
}

pub(super) fn page(call: &Call) -> Result<(), Failure> {
    let ids = numbers(call)?;
    let all = call.boolean("all");
    if ids.is_empty() && !all {
        return Err(returned("page id required"));
    }
    if !ids.is_empty() && all {
        return Err(returned("invalid args: either use '--all' or 'pageid...'"));
    }
    let path = &call.args()[0];
    file::source(path).map_err(returned)?;
    let loose = Loose::open(path);
    let format = call.text("format-value");
    let mut output = Output::default();
    if all {
        match &loose {
            Err(why) => print_bytes(format!("cannot read number of pages: {why}").into_bytes()),
            Ok(loose) => print_all(loose, format, &mut output),
        }
    }
    for (at, id) in ids.iter().enumerate() {
        if at > 0 {
            output.line(SEPARATOR);
        }
        let outcome = match &loose {
            Ok(loose) => print_page(loose, *id, format, &mut output).map(|_| ()),
            Err(why) => Err(format!("read Page size: {why}")),
        };
        if let Err(why) = outcome {
            output.line(format!("Prining page {id} failed: {why}. Continuing...").as_bytes());
        }
    }
    output.flush();
    Ok(())
}

fn print_all(loose: &Loose, format: &str, output: &mut Output) {
    let mut id = 0;
    while id < loose.high_water {
        if id > 0 {
            output.line(SEPARATOR);
        }
        match print_page(loose, id, format, output) {
            Ok(overflow) => id += u64::from(overflow) + 1,
            Err(why) => {
                output.line(format!("Prining page {id} failed: {why}. Continuing...").as_bytes());
                // Beyond the end of the file no page will be there.
                if why == "EOF" {
                    return;
                }
                id += 1;
            }
        }
    }
}

/// Prints one page and returns its overflow.
fn print_page(loose: &Loose, id: u64, format: &str, output: &mut Output) -> Result<u32, String> {
    let page = loose.page(id)?;
    output.line(format!("Page ID:    {id}").as_bytes());
    output.line(format!("Page Type:  {}", page.kind()).as_bytes());
    output.line(format!("Total Size: {} bytes", page.bytes().len()).as_bytes());
    output.line(format!("Overflow pages: {}", page.overflow).as_bytes());
    if page.is_meta() {
        output.line(meta_text(&page.meta().ok_or("EOF")?).as_bytes());
    } else if page.is_leaf() {
        print_leaf(&page, format, output)?;
    } else if page.is_branch() {
        print_branch(&page, output)?;
    } else if page.is_freelist() {
        let (count, ids) = page.free_ids();
        output.line(format!("Item Count: {count}").as_bytes());
        output.line(format!("Overflow: {}\n", page.overflow).as_bytes());
        for id in ids {
            output.line(id.to_string().as_bytes());
        }
        output.line(b"");
    }
    Ok(page.overflow)
}

fn meta_text(meta: &RawMeta) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "Version:    {}", meta.version);
    let _ = writeln!(text, "Page Size:  {} bytes", meta.page_size);
    let _ = writeln!(text, "Flags:      {:08x}", meta.flags);
    let _ = writeln!(text, "Root:       <pgid={}>", meta.root);
    let _ = writeln!(text, "Freelist:   <pgid={}>", meta.freelist);
    let _ = writeln!(text, "HWM:        <pgid={}>", meta.high_water);
    let _ = writeln!(text, "Txn ID:     {}", meta.txid);
    let _ = writeln!(text, "Checksum:   {:016x}", meta.checksum);
    text
}

fn key_text(key: &[u8]) -> String {
    if is_printable(key) { golang::quote_bytes(key) } else { hex(key) }
}

fn print_leaf(page: &RawPage, format: &str, output: &mut Output) -> Result<(), String> {
    output.line(format!("Item Count: {}\n", page.count).as_bytes());
    for index in 0..usize::from(page.count) {
        let leaf = page.leaf(index).ok_or_else(|| outside(page.id, index))?;
        let value = if leaf.is_bucket() {
            let (root, sequence) = leaf.bucket().ok_or("broken bucket header")?;
            format!("<pgid={root},seq={sequence}>").into_bytes()
        } else {
            format_bytes(leaf.value, format)?
        };
        output.line(&[key_text(leaf.key).as_bytes(), b": ", &value].concat());
    }
    output.line(b"");
    Ok(())
}

fn print_branch(page: &RawPage, output: &mut Output) -> Result<(), String> {
    output.line(format!("Item Count: {}\n", page.count).as_bytes());
    for index in 0..usize::from(page.count) {
        let branch = page.branch(index).ok_or_else(|| outside(page.id, index))?;
        output.line(format!("{}: <pgid={}>", key_text(branch.key), branch.child).as_bytes());
    }
    output.line(b"");
    Ok(())
}

pub(super) fn item(call: &Call) -> Result<(), Failure> {
    let number = |at: usize| golang::parse_uint(&call.args()[at], 10).map_err(returned);
    let (id, index) = (number(1)?, number(2)?);
    let (key_only, value_only) = (call.boolean("key-only"), call.boolean("value-only"));
    if key_only && value_only {
        return Err(returned("the --key-only or --value-only flag may be set, but not both"));
    }
    let path = &call.args()[0];
    file::source(path).map_err(returned)?;
    let loose = Loose::open(path).map_err(|why| returned(format_args!("read Page size: {why}")))?;
    let page = loose.page(id).map_err(returned)?;
    // Go's tool cuts the number to 16 bits, and shows another element than the one asked for.
    if index >= u64::from(page.count) {
        let count = page.count;
        return Err(returned(format_args!("leafPageElement: expected item index less than {count}, but got {index}")));
    }
    if !page.is_leaf() {
        let kind = page.kind();
        return Err(returned(format_args!("leafPageElement: expected page type of 'leaf', but got '{kind}'")));
    }
    let leaf = usize::try_from(index).ok().and_then(|index| page.leaf(index));
    let leaf = leaf.ok_or_else(|| returned(format_args!("page {id}: element {index} lies outside the page")))?;
    for (bytes, shown) in [(leaf.key, !value_only), (leaf.value, !key_only)] {
        if shown {
            let mut line = format_bytes(bytes, call.text("format")).map_err(returned)?;
            line.push(b'\n');
            print_bytes(line);
        }
    }
    Ok(())
}

pub(super) fn dump(call: &Call) -> Result<(), Failure> {
    let ids = numbers(call)?;
    if ids.is_empty() {
        return Err(returned("page id required"));
    }
    let path = &call.args()[0];
    file::source(path).map_err(returned)?;
    let loose = Loose::open(path).map_err(returned)?;
    let mut output = Output::default();
    for (at, id) in ids.iter().enumerate() {
        if at > 0 {
            output.line(SEPARATOR);
        }
        let bytes = loose.bytes(*id, 1).map_err(|why| {
            output.flush();
            returned(why)
        })?;
        dump_page(&bytes, id * loose.page_size, &mut output);
    }
    output.flush();
    Ok(())
}

/// Sixteen bytes a line; a line as the one before it is left out, and the first such shown by a star.
fn dump_page(bytes: &[u8], start: u64, output: &mut Output) {
    let mut previous: &[u8] = &[];
    let mut skipped = false;
    for (at, line) in bytes.chunks(DUMP_LINE).enumerate() {
        let offset = at * DUMP_LINE;
        let address = start + offset as u64;
        let is_last = offset + DUMP_LINE >= bytes.len();
        if line == previous && !is_last {
            if !skipped {
                output.line(format!("{address:07x} *").as_bytes());
                skipped = true;
            }
        } else {
            let pairs: Vec<String> = line.chunks(2).map(hex).collect();
            output.line(format!("{address:07x} {}", pairs.join(" ")).as_bytes());
            skipped = false;
        }
        previous = line;
    }
    output.line(b"");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_leaves_out_lines_that_repeat() {
        let mut bytes = vec![0_u8; 80];
        bytes[0] = 0xab;
        let mut output = Output::default();
        dump_page(&bytes, 4096, &mut output);
        let expected = "\
0001000 ab00 0000 0000 0000 0000 0000 0000 0000
0001010 0000 0000 0000 0000 0000 0000 0000 0000
0001020 *
0001040 0000 0000 0000 0000 0000 0000 0000 0000

";
        assert_eq!(String::from_utf8(output.0).expect("text"), expected);
    }
}
