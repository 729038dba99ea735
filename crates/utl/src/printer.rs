//! The five formats of `--write-out`.

use dolmen_cli::json::Object;
use dolmen_cli::{Call, Failure, humanize, print, table};

use crate::hashkv::HashKv;
use crate::status::Status;

/// A format that exists. `protobuf` does not get that far: nothing here has a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Simple,
    Fields,
    Json,
    Table,
    Protobuf,
}

impl Format {
    /// From `--write-out`.
    ///
    /// # Errors
    /// Exit code 4 for a word that is none.
    pub(crate) fn of(call: &Call) -> Result<Self, Failure> {
        match call.text("write-out") {
            "simple" => Ok(Self::Simple),
            "fields" => Ok(Self::Fields),
            "json" => Ok(Self::Json),
            "table" => Ok(Self::Table),
            "protobuf" => Ok(Self::Protobuf),
            _ => Err(Failure::bad_feature("unsupported output format")),
        }
    }
}

/// One column of what is printed: heading, name and value in `fields`, value elsewhere.
struct Column {
    heading: &'static str,
    field: &'static str,
    field_value: String,
    value: String,
}

fn render(format: Format, columns: &[Column], json: Object) -> Result<String, Failure> {
    match format {
        Format::Simple => Ok(columns.iter().map(|column| column.value.as_str()).collect::<Vec<_>>().join(", ") + "\n"),
        Format::Fields => {
            Ok(columns.iter().map(|column| format!("\"{}\" : {}\n", column.field, column.field_value)).collect())
        }
        Format::Json => Ok(json.end() + "\n"),
        Format::Table => {
            let headings: Vec<&str> = columns.iter().map(|column| column.heading).collect();
            Ok(table::draw(&headings, &[columns.iter().map(|column| column.value.clone()).collect()]))
        }
        Format::Protobuf => Err(Failure::bad_feature("protobuf not supported as output format")),
    }
}

/// Prints the status of a snapshot.
pub(crate) fn status(format: Format, status: &Status) -> Result<(), Failure> {
    print(render_status(format, status)?);
    Ok(())
}

fn render_status(format: Format, status: &Status) -> Result<String, Failure> {
    let column = |heading, field, field_value: String, value| Column { heading, field, field_value, value };
    let columns = [
        column("hash", "Hash", status.hash.to_string(), format!("{:x}", status.hash)),
        column("revision", "Revision", status.revision.to_string(), status.revision.to_string()),
        column("total keys", "Keys", status.total_key.to_string(), status.total_key.to_string()),
        column("total size", "Size", status.total_size.to_string(), humanize::bytes(status.total_size)),
        column("version", "Version", status.version.clone(), status.version.clone()),
    ];
    let json = Object::new()
        .uint("hash", status.hash.into())
        .int("revision", status.revision)
        .uint("totalKey", status.total_key)
        .uint("totalSize", status.total_size)
        .text("version", &status.version);
    render(format, &columns, json)
}

/// Prints a hash.
pub(crate) fn hash_kv(format: Format, hash: &HashKv) -> Result<(), Failure> {
    print(render_hash_kv(format, hash)?);
    Ok(())
}

fn render_hash_kv(format: Format, hash: &HashKv) -> Result<String, Failure> {
    let column = |heading, field, value: String| Column { heading, field, field_value: value.clone(), value };
    let columns = [
        column("hash", "Hash", hash.hash.to_string()),
        column("hash revision", "Hash revision", hash.hash_revision.to_string()),
        column("compact revision", "Compact revision", hash.compact_revision.to_string()),
    ];
    let json = Object::new()
        .uint("hash", hash.hash.into())
        .int("hashRevision", hash.hash_revision)
        .int("compactRevision", hash.compact_revision);
    render(format, &columns, json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(version: &str) -> Status {
        let version = version.to_owned();
        Status { hash: 1_966_278_092, revision: 45, total_key: 12, total_size: 57_344, version, has_sha: true }
    }

    // What Go's etcdutl 3.7.3 prints for the same numbers.
    #[test]
    fn a_status_in_every_format() {
        let cases = [
            (Format::Simple, "753305cc, 45, 12, 57 kB, 3.7.0\n"),
            (
                Format::Json,
                "{\"hash\":1966278092,\"revision\":45,\"totalKey\":12,\"totalSize\":57344,\"version\":\"3.7.0\"}\n",
            ),
            (
                Format::Fields,
                "\"Hash\" : 1966278092\n\"Revision\" : 45\n\"Keys\" : 12\n\"Size\" : 57344\n\"Version\" : 3.7.0\n",
            ),
            (
                Format::Table,
                "\
┌──────────┬──────────┬────────────┬────────────┬─────────┐
│   HASH   │ REVISION │ TOTAL KEYS │ TOTAL SIZE │ VERSION │
├──────────┼──────────┼────────────┼────────────┼─────────┤
│ 753305cc │       45 │         12 │      57 kB │   3.7.0 │
└──────────┴──────────┴────────────┴────────────┴─────────┘
",
            ),
        ];
        for (format, printed) in cases {
            assert_eq!(render_status(format, &example("3.7.0")).expect("prints"), printed);
        }
        assert_eq!(render_status(Format::Simple, &example("")).expect("prints"), "753305cc, 45, 12, 57 kB, \n");
        let refused = render_status(Format::Protobuf, &example("")).expect_err("no message");
        assert_eq!((refused.code(), refused.text()), (4, Some("protobuf not supported as output format")));
    }

    #[test]
    fn a_hash_in_every_format() {
        let hash = HashKv { hash: 3_031_045_868, hash_revision: 45, compact_revision: 20 };
        let cases = [
            (Format::Simple, "3031045868, 45, 20\n"),
            (Format::Json, "{\"hash\":3031045868,\"hashRevision\":45,\"compactRevision\":20}\n"),
            (Format::Fields, "\"Hash\" : 3031045868\n\"Hash revision\" : 45\n\"Compact revision\" : 20\n"),
            (
                Format::Table,
                "\
┌────────────┬───────────────┬──────────────────┐
│    HASH    │ HASH REVISION │ COMPACT REVISION │
├────────────┼───────────────┼──────────────────┤
│ 3031045868 │            45 │               20 │
└────────────┴───────────────┴──────────────────┘
",
            ),
        ];
        for (format, printed) in cases {
            assert_eq!(render_hash_kv(format, &hash).expect("prints"), printed);
        }
    }
}
