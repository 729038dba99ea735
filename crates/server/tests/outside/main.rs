//! The binary from outside, by those who mean it harm: bytes that are no protocol, messages that are none, connections that
//! do nothing, floods, and data directories that are not what they should be.
//!
//! Every port is tried plain and over TLS. What has to hold each time: etcd's code where it has one, otherwise a clear end;
//! no panic, no more memory than what is said in the test, and the next client is served as if nothing had been.

#![allow(clippy::disallowed_methods, reason = "a test has the real clock and real files")]

mod floods;
mod folders;
mod handshakes;
mod idle;
mod junk;
mod messages;
mod server;
mod wire;
