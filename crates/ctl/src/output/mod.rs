//! What the commands print, in the five formats of `--write-out`.
//!
//! A command hands its answer to the [`Printer`], which knows the format. Each format is a module of plain functions that
//! append to a buffer, one function for each kind of answer:
//!
//! | format | key-values, leases, watches | members, endpoints, alarms, auth |
//! |---|---|---|
//! | `simple` | [`simple`] | [`simple_cluster`] |
//! | `fields` | [`fields`] | [`fields_cluster`] |
//! | `json` | [`json`] | [`json_cluster`] |
//! | `table` | unsupported | [`table_cluster`] |
//! | `protobuf` | the message as it came: [`Printer::protobuf`] | likewise |
//!
//! A format that cannot show an answer ends the command with [`Printer::unsupported`], after the call was made, as
//! etcdctl does: the change has happened by then.

pub mod cluster;
pub mod fields;
pub mod fields_cluster;
pub mod json;
pub mod json_cluster;
pub mod simple;
pub mod simple_cluster;
pub mod table_cluster;
#[cfg(test)]
mod tests;

use std::io::Write;

use dolmen_cli::Failure;
use dolmen_proto::etcdserverpb as pb;
use dolmen_proto::mvccpb::{self, Event};
use prost::Message;

use simple::Style;

/// The formats of `--write-out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Lines for people: the default.
    Simple,
    /// `"Name" : value` lines.
    Fields,
    /// One JSON value a line, spelled as Go spells it.
    Json,
    /// The raw message.
    Protobuf,
    /// A drawn table; only for members and endpoints.
    Table,
}

impl Format {
    /// The value of `--write-out`.
    pub fn name(self) -> &'static str {
        match self {
            Format::Simple => "simple",
            Format::Fields => "fields",
            Format::Json => "json",
            Format::Protobuf => "protobuf",
            Format::Table => "table",
        }
    }
}

/// One answer about watched keys: what the stream delivered, or how it ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct WatchView<'a> {
    pub header: Option<&'a pb::ResponseHeader>,
    pub events: &'a [Event],
    pub compact_revision: i64,
    pub canceled: bool,
    pub created: bool,
    pub cancel_reason: &'a str,
}

/// Writes answers to stdout in the format that was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Printer {
    format: Format,
    hex: bool,
    value_only: bool,
}

impl Printer {
    /// A printer for the value of `--write-out` and of `--hex`.
    ///
    /// # Errors
    /// `unsupported output format` (exit 4) for a name that is none of the five.
    pub fn new(format: &str, hex: bool) -> Result<Printer, Failure> {
        let format = match format {
            "simple" => Format::Simple,
            "fields" => Format::Fields,
            "json" => Format::Json,
            "protobuf" => Format::Protobuf,
            "table" => Format::Table,
            _ => return Err(Failure::bad_feature("unsupported output format")),
        };
        Ok(Printer { format, hex, value_only: false })
    }

    /// The same printer without key lines (`simple` only).
    pub fn with_value_only(self) -> Printer {
        Printer { value_only: true, ..self }
    }

    /// The format asked for.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether ids and byte strings are wanted in hexadecimal.
    pub fn hex(&self) -> bool {
        self.hex
    }

    /// How `simple` shows keys and values.
    pub fn style(&self) -> Style {
        Style { hex: self.hex, value_only: self.value_only }
    }

    /// The end of a command whose answer this format cannot show (exit 4).
    pub fn unsupported(&self) -> Failure {
        Failure::bad_feature(format!("{} not supported as output format", self.format.name()))
    }

    /// Fills a buffer and writes it to stdout in one piece.
    ///
    /// # Errors
    /// A reader that has gone away ends the command silently, as the signal of a broken pipe would.
    pub fn show(&self, fill: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure> {
        let mut out = Vec::new();
        fill(&mut out);
        write_stdout(&out)
    }

    /// The message as the server encoded it, without a line feed.
    ///
    /// # Errors
    /// As [`show`](Self::show).
    pub fn protobuf(&self, message: &impl Message) -> Result<(), Failure> {
        write_stdout(&message.encode_to_vec())
    }

    /// `get`, `lock` and `elect`.
    pub fn get(&self, r: &pb::RangeResponse) -> Result<(), Failure> {
        match self.format {
            Format::Simple => self.show(|out| simple::get(out, self.style(), r)),
            Format::Fields => self.show(|out| fields::get(out, self.hex, r)),
            Format::Json => self.show(|out| json::line(out, json::range(r))),
            Format::Protobuf => self.protobuf(r),
            Format::Table => Err(self.unsupported()),
        }
    }

    /// `put`.
    pub fn put(&self, r: &pb::PutResponse) -> Result<(), Failure> {
        match self.format {
            Format::Simple => self.show(|out| simple::put(out, self.style(), r)),
            Format::Fields => self.show(|out| fields::put(out, self.hex, r)),
            Format::Json => self.show(|out| json::line(out, json::put(r))),
            Format::Protobuf => self.protobuf(r),
            Format::Table => Err(self.unsupported()),
        }
    }

    /// `del`.
    pub fn del(&self, r: &pb::DeleteRangeResponse) -> Result<(), Failure> {
        match self.format {
            Format::Simple => self.show(|out| simple::del(out, self.style(), r)),
            Format::Fields => self.show(|out| fields::del(out, self.hex, r)),
            Format::Json => self.show(|out| json::line(out, json::delete_range(r))),
            Format::Protobuf => self.protobuf(r),
            Format::Table => Err(self.unsupported()),
        }
    }

    /// `txn`.
    pub fn txn(&self, r: &pb::TxnResponse) -> Result<(), Failure> {
        match self.format {
            Format::Simple => self.show(|out| simple::txn(out, self.style(), r)),
            Format::Fields => self.show(|out| fields::txn(out, self.hex, r)),
            Format::Json => self.show(|out| json::line(out, json::txn(r))),
            Format::Protobuf => self.protobuf(r),
            Format::Table => Err(self.unsupported()),
        }
    }

    /// `watch`.
    pub fn watch(&self, r: &WatchView<'_>) -> Result<(), Failure> {
        match self.format {
            Format::Simple => self.show(|out| simple::watch(out, self.style(), r)),
            Format::Fields => self.show(|out| fields::watch(out, self.hex, r)),
            Format::Json => self.show(|out| json::line(out, json::watch(r))),
            // Encoded anew without the watch's id and its cancel reason.
            Format::Protobuf => self.protobuf(&pb::WatchResponse {
                header: r.header.copied(),
                events: r.events.to_vec(),
                compact_revision: r.compact_revision,
                canceled: r.canceled,
                created: r.created,
                ..Default::default()
            }),
            Format::Table => Err(self.unsupported()),
        }
    }

    /// `lease grant`. In `protobuf` only the header: that is all Go's type for this answer encodes.
    pub fn lease_grant(&self, r: &pb::LeaseGrantResponse) -> Result<(), Failure> {
        match self.format {
            Format::Simple => self.show(|out| simple::lease_grant(out, r)),
            Format::Fields => self.show(|out| fields::lease_grant(out, self.hex, r)),
            Format::Json => self.show(|out| json::line(out, json::lease_grant(r))),
            Format::Protobuf => self.protobuf(&r.header.unwrap_or_default()),
            Format::Table => Err(self.unsupported()),
        }
    }

    /// `lease revoke`; `id`: what was revoked.
    pub fn lease_revoke(&self, id: i64, r: &pb::LeaseRevokeResponse) -> Result<(), Failure> {
        match self.format {
            Format::Simple => self.show(|out| simple::lease_revoke(out, id)),
            Format::Fields => self.show(|out| fields::header(out, self.hex, r.header.as_ref())),
            Format::Json => self.show(|out| json::line(out, json::header_only(r.header.as_ref()))),
            Format::Protobuf => self.protobuf(r),
            Format::Table => Err(self.unsupported()),
        }
    }

    /// `lease keep-alive`. In `protobuf` only the header.
    pub fn lease_keep_alive(&self, r: &pb::LeaseKeepAliveResponse) -> Result<(), Failure> {
        match self.format {
            Format::Simple => self.show(|out| simple::lease_keep_alive(out, r)),
            Format::Fields => self.show(|out| fields::lease_keep_alive(out, self.hex, r)),
            Format::Json => self.show(|out| json::line(out, json::lease_keep_alive(r))),
            Format::Protobuf => self.protobuf(&r.header.unwrap_or_default()),
            Format::Table => Err(self.unsupported()),
        }
    }

    /// `lease timetolive`; `keys`: whether the attached keys were asked for. In `protobuf` only the header.
    pub fn lease_time_to_live(&self, r: &pb::LeaseTimeToLiveResponse, keys: bool) -> Result<(), Failure> {
        match self.format {
            Format::Simple => self.show(|out| simple::lease_time_to_live(out, r, keys)),
            Format::Fields => self.show(|out| fields::lease_time_to_live(out, self.hex, r)),
            Format::Json => self.show(|out| json::line(out, json::lease_time_to_live(r))),
            Format::Protobuf => self.protobuf(&r.header.unwrap_or_default()),
            Format::Table => Err(self.unsupported()),
        }
    }

    /// `lease list`. In `protobuf` only the header.
    pub fn lease_leases(&self, r: &pb::LeaseLeasesResponse) -> Result<(), Failure> {
        match self.format {
            Format::Simple => self.show(|out| simple::lease_leases(out, r)),
            Format::Fields => self.show(|out| fields::lease_leases(out, self.hex, r)),
            Format::Json => self.show(|out| json::line(out, json::lease_leases(r))),
            Format::Protobuf => self.protobuf(&r.header.unwrap_or_default()),
            Format::Table => Err(self.unsupported()),
        }
    }
}

/// The name of an event's type; a number that etcd has no name for stays a number.
pub fn event_type(kind: i32) -> String {
    match mvccpb::event::EventType::try_from(kind) {
        Ok(kind) => kind.as_str_name().to_owned(),
        Err(_) => kind.to_string(),
    }
}

/// Writes to stdout in one piece and flushes it.
///
/// # Errors
/// A closed pipe is a silent end with code 141, what a shell reports for the signal; any other failure of the write
/// is told.
pub fn write_stdout(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Err(Failure::silent(141)),
        Err(e) => Err(Failure::error(format!("write /dev/stdout: {e}"))),
    }
}

/// Writes lines to stdout outside any format, as [`write_stdout`].
///
/// # Errors
/// As [`write_stdout`].
pub fn say(line: impl std::fmt::Display) -> Result<(), Failure> {
    write_stdout(format!("{line}\n").as_bytes())
}
