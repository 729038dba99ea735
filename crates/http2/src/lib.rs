//! The server's side of one HTTP/2 connection: bytes and answers in, requests and bytes out, no I/O.
//!
//! The protocol is nghttp2's: frames, header compression, flow control, the states of streams, the checks of RFC 9113. This
//! crate is the border to it, and the only place that says `unsafe` for it: a C session, a dozen callbacks, and the memory
//! that they share.
//!
//! ```text
//! receive(bytes) ──> events: Request, Data, Room, Closed, Pong
//! answer, respond, push, finish, consume, ping, shut_down ──> send(&mut out)
//! ```
//!
//! # Bounds
//!
//! * Fields of a request: [`Limits::header_bytes`]; a little more is answered with 431, far more ends the connection.
//! * Body bytes held here: what the peer may send ahead ([`Limits::stream_window`], [`Limits::connection_window`]) until
//!   [`Session::take_body`] and [`Session::consume`]. They take the memory of what has come, not of what was announced.
//! * Bytes made by one [`Session::send`]: [`SEND_AT_ONCE`], and a frame.
//! * Answers to pings and settings: those of one [`Session::receive`], as long as the caller takes in nothing while it has
//!   something that it could not write.
//! * Frames that cost their sender nothing (resets, data without data): [`NUISANCES`].
//! * Continuations of a header block: [`CONTINUATIONS`].
//!
//! Beyond the last three the connection ends with `ENHANCE_YOUR_CALM`.

#![allow(unsafe_code)]
// Patience has a clock of its own.
#![allow(clippy::disallowed_methods)]

mod head;
mod memory;
mod nuisance;
mod session;
mod streams;

pub use head::Head;
pub use nuisance::NUISANCES;
pub use session::{CONTINUATIONS, Error, Event, Limits, SEND_AT_ONCE, Session, Status};
pub use streams::{Field, StreamId, Trailers};

/// The first bytes of every connection of a client.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
