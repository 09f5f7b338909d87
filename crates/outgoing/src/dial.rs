//! Outgoing TCP connections, with the error texts of Go's dialer.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpStream, lookup_host};

/// Connects to the first of the name's addresses that answers. The error is that of the first address.
pub async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let found = lookup_host((host, port)).await.map_err(|e| format!("dial tcp: lookup {host}: {e}"))?;
    let mut addresses: Vec<SocketAddr> = found.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    let mut failure = None;
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                failure.get_or_insert_with(|| format!("dial tcp {address}: {}", io_words(&error)));
            }
        }
    }
    Err(failure.unwrap_or_else(|| format!("dial tcp: lookup {host}: no such host")))
}

/// Formats an error as Go does.
pub fn io_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".into(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".into(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".into(),
        io::ErrorKind::TimedOut => "connect: connection timed out".into(),
        _ => error.to_string(),
    }
}
