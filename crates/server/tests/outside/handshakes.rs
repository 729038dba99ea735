//! Connections that are rejected before they say anything: operators look for them in the log.

use std::io::Write;
use std::net::TcpStream;
use std::time::Instant;

use crate::server::{PATIENCE, Server};

#[test]
fn rejected_handshakes_are_logged_with_etcds_message_and_fields() {
    let mut server = Server::start();
    for (port, message) in [
        (server.client[1], "rejected connection on client endpoint"),
        (server.peer[1], "rejected connection on peer endpoint"),
    ] {
        let mut stream = TcpStream::connect(port.address).expect("it listens");
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").expect("it reads");
        let from = format!("\"remote-addr\":\"{}\"", stream.local_addr().expect("connected"));
        let begin = Instant::now();
        let line = loop {
            let log = server.log();
            if let Some(line) = log.lines().find(|line| line.contains(message)) {
                break line.to_owned();
            }
            assert!(begin.elapsed() < PATIENCE, "nothing about it: {log}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        assert!(line.contains("\"level\":\"warn\"") && line.contains(&from), "{line}");
        assert!(line.contains("\"error\":\"tls: first record does not look like a TLS handshake\""), "{line}");
        assert!(line.contains("\"server-name\":\"\""), "{line}");
    }
    server.is_well();
}
