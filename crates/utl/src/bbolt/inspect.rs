//! `inspect`: buckets within buckets, and how many keys each has, as JSON.

use std::collections::BTreeSet;

use dolmen_cli::{Call, Failure, json, print};

use super::file::{Db, Root};
use super::returned;

/// Buckets in each other, at most: a file in which one contains itself has no end.
const MAX_NESTED: usize = 64;
const INDENT: &str = "    ";

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let db = Db::open(&call.args()[0], call).map_err(returned)?;
    print(structure(&db).map_err(returned)?);
    Ok(())
}

fn structure(db: &Db) -> Result<String, String> {
    let mut inspect = Inspect { db, seen: BTreeSet::new(), text: String::new() };
    inspect.bucket(b"root", &db.root(), 0)?;
    inspect.text.push('\n');
    Ok(inspect.text)
}

struct Inspect<'a> {
    db: &'a Db,
    /// Root pages of the buckets so far. Two buckets with one would be counted for ever in the worst case.
    seen: BTreeSet<u64>,
    text: String,
}

impl Inspect<'_> {
    /// Writes a bucket, with those in it, as an object that begins where the text stands.
    fn bucket(&mut self, name: &[u8], root: &Root, depth: usize) -> Result<(), String> {
        if depth > MAX_NESTED {
            return Err(format!("more than {MAX_NESTED} buckets in each other"));
        }
        if let Root::Page(id) = root
            && !self.seen.insert(*id)
        {
            return Err(format!("page {id}: root of two buckets"));
        }
        let mut keys: u64 = 0;
        let mut children = Vec::new();
        self.db.for_each(root, &mut |leaf| {
            if leaf.is_bucket() {
                children.push((leaf.key.to_vec(), self.db.bucket_in(leaf.value)?));
            } else {
                keys += 1;
            }
            Ok(())
        })?;
        // An object in a list stands two steps further in than the list's own object.
        let outer = INDENT.repeat(2 * depth);
        let name = json::text_of_bytes(name);
        self.text.push_str(&format!("{{\n{outer}{INDENT}\"name\": {name},\n{outer}{INDENT}\"keyN\": {keys}"));
        for (at, (name, root)) in children.iter().enumerate() {
            let before = if at == 0 { format!(",\n{outer}{INDENT}\"buckets\": [") } else { ",".to_owned() };
            self.text.push_str(&format!("{before}\n{outer}{INDENT}{INDENT}"));
            self.bucket(name, root, depth + 1)?;
        }
        if !children.is_empty() {
            self.text.push_str(&format!("\n{outer}{INDENT}]"));
        }
        self.text.push_str(&format!("\n{outer}}}"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_ETCD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/etcd-3.6.16-snapshot.db");

    #[test]
    fn a_snapshot_of_etcd_has_the_structure_that_bbolt_shows() {
        let text = structure(&Db::open_within(OF_ETCD, 0).expect("opens")).expect("sound");
        let begins = "{\n    \"name\": \"root\",\n    \"keyN\": 0,\n    \"buckets\": [\n        {\n            \"name\": \
                      \"alarm\",\n            \"keyN\": 0\n        },\n        {\n            \"name\": \"auth\",\n            \
                      \"keyN\": 1\n        },\n";
        assert!(text.starts_with(begins), "{text}");
        let ends = "        {\n            \"name\": \"meta\",\n            \"keyN\": 6\n        }\n    ]\n}\n";
        assert!(text.ends_with(ends), "{text}");
        let counts: Vec<&str> = text.lines().filter(|line| line.contains("keyN")).map(str::trim).collect();
        let numbers: Vec<&str> = counts.iter().filter_map(|line| line.strip_prefix("\"keyN\": ")).collect();
        assert_eq!(numbers, ["0,", "0", "1", "0", "1", "1", "38", "1", "1", "0", "6"]);
    }

    #[test]
    fn a_bucket_within_itself_is_an_error() {
        let mut bytes = std::fs::read(OF_ETCD).expect("reads");
        let db = Db::open_within(OF_ETCD, 0).expect("opens");
        let (root, size) = (db.root_page(), db.page_size());
        let mut at = None;
        db.for_each(&db.root(), &mut |leaf| {
            if leaf.key == b"key" {
                at = Some(leaf.value[..8].to_vec());
            }
            Ok(())
        })
        .expect("sound");
        let page = (root * size) as usize..((root + 1) * size) as usize;
        let header = at.expect("a bucket of pages");
        let found = bytes[page.clone()].windows(8).position(|window| window == header).expect("is in its page");
        let place = page.start + found;
        bytes[place..place + 8].copy_from_slice(&root.to_le_bytes());
        let path = std::env::temp_dir().join(format!("dolmen-utl-inspect-{}", std::process::id()));
        std::fs::write(&path, bytes).expect("writes");
        let outcome = structure(&Db::open_within(&path.display().to_string(), 0).expect("opens"));
        std::fs::remove_file(&path).expect("removes");
        assert_eq!(outcome, Err(format!("page {root}: root of two buckets")));
    }
}
