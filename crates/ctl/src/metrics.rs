//! One number out of a member's Prometheus metrics.

use std::time::Duration;

use dolmen_cli::golang;
use dolmen_client::Tls;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::connect::Secure;

/// Metrics are a few hundred kilobytes; whatever sends more is no member.
const MAX_BYTES: u64 = 64 << 20;
/// How long the whole answer may take.
const LIMIT: Duration = Duration::from_secs(30);

/// The value of metric `name` at `endpoint` (`host:port`, with or without a scheme).
///
/// # Errors
/// The line that etcdctl prints about it.
pub async fn read(endpoint: &str, secure: &Secure, name: &str) -> Result<f64, String> {
    let text = match endpoint.strip_prefix("https://") {
        Some(host) => {
            let tls = identity(secure)?;
            let fetched = async {
                let stream = tls.connect(host).await.map_err(std::io::Error::other)?;
                fetch(stream, host).await
            };
            within_limit(fetched).await.map_err(|why| format!("fetch error: Get \"https://{host}/metrics\": {why}"))?
        }
        None => {
            let host = endpoint.strip_prefix("http://").unwrap_or(endpoint);
            let fetched = async {
                let stream = TcpStream::connect(host).await?;
                fetch(stream, host).await
            };
            within_limit(fetched).await.map_err(|why| format!("fetch error: Get \"http://{host}/metrics\": {why}"))?
        }
    };
    find(&text, name)
}

/// A certificate of our own is a must, as in etcdctl.
fn identity(secure: &Secure) -> Result<Tls, String> {
    let failed = |why: String| format!("client certificate error: {why}");
    if secure.cert.is_empty() || secure.key.is_empty() {
        return Err(failed("open : no such file or directory".to_owned()));
    }
    secure.tls().map_err(|e| failed(e.text().unwrap_or_default().to_owned())).map(Option::unwrap_or_default)
}

async fn within_limit(work: impl Future<Output = std::io::Result<String>>) -> Result<String, String> {
    match tokio::time::timeout(LIMIT, work).await {
        Ok(done) => done.map_err(|e| e.to_string()),
        Err(_) => Err("context deadline exceeded".to_owned()),
    }
}

/// Asks in HTTP/1.0, which leaves the answer in one piece, ended by the end of the connection.
async fn fetch(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, host: &str) -> std::io::Result<String> {
    stream.write_all(format!("GET /metrics HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_BYTES).read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    Ok(answer.split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.to_owned()))
}

/// The first line that begins with `name`; what follows it is the value.
fn find(text: &str, name: &str) -> Result<f64, String> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default();
    if value.is_empty() {
        return Err(format!("could not find: {name}"));
    }
    golang::parse_float(value).map_err(|why| format!("parse error: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_among_metrics() {
        let text = "# HELP process_resident_memory_bytes x\nother 1\nprocess_resident_memory_bytes 6.1e+07\n";
        assert_eq!(find(text, "process_resident_memory_bytes"), Ok(6.1e7));
        assert_eq!(find(text, "absent"), Err("could not find: absent".to_owned()));
        assert_eq!(
            find("x y\n", "x"),
            Err("parse error: strconv.ParseFloat: parsing \"y\": invalid syntax".to_owned())
        );
    }
}
