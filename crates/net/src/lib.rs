//! The ports of a server: what clients, members and scrapers come in through.
//!
//! ```text
//! bind ─> Bound ─> Listener ─> Accepted, Seat ─> ServerTls::accept ─> the port's protocol
//! ```
//!
//! * `socket`: TCP or Unix, bound, accepted, in use. `0.0.0.0` is both families, as Go has it.
//! * `room`: how many connections a port holds. One that is full asks those to leave that have been idle for longest, and
//!   refuses new ones when none is.
//! * `tls`: a port's flags and what they make; certificates and keys are read again when their files change.
//! * `handshake`: a handshake with an end, and the log line of one that failed.
//!
//! What is spoken on a port belongs to `api` and `transport`.

#![forbid(unsafe_code)]
// At the edge the clock and the file system are real.
#![allow(clippy::disallowed_methods)]

mod handshake;
mod room;
mod san;
mod self_cert;
mod socket;
mod tls;

pub use dolmen_tls::NOT_TLS;
pub use handshake::{HANDSHAKE_TIMEOUT, ServerTls};
pub use room::{Held, OpenStream, Room, Seat, Shares, raise_descriptors};
pub use san::check_client_address;
pub use socket::{Accepted, Bound, Listener, Stream, bind_tcp, bind_unix};
pub use tls::{ClientTls, Port, TlsError, TlsInfo, TlsVersion};
