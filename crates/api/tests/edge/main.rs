//! A whole member on a simulated disk, asked over real sockets.

mod client;
mod member;

mod abuse;
mod http;
mod kv;
mod sockets;
mod streams;
