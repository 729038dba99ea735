//! A whole member on a simulated disk, asked over real sockets.

#![allow(clippy::disallowed_methods, reason = "a test has the real clock and real files")]

mod client;
mod member;

mod abuse;
mod http;
mod kv;
mod sockets;
mod streams;
mod users;
