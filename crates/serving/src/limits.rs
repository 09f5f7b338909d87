//! The limits of a server, with upstream's values where upstream has one.

use std::time::Duration;

/// What a server's peers may use.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Concurrent connections. The last tenth is reserved for this machine's own addresses.
    pub connections: usize,
    /// Concurrent connections from one address, and from the unknown peers of one IPv6 /64; this machine's own
    /// addresses have no such limit.
    pub per_address: usize,
    pub handshake: Duration,
    /// The time from the handshake to the end of the first request's headers. Source: apiserver's
    /// `ReadHeaderTimeout`.
    pub headers: Duration,
    /// Connections without a request are closed after this time. Source: apiserver's `IdleTimeout`.
    pub idle: Duration,
    /// An HTTP/2 peer that has sent nothing for this long is pinged.
    pub ping_interval: Duration,
    /// How long the peer may take to answer the ping.
    pub ping_timeout: Duration,
    /// Bytes of one request's headers over HTTP/2. Source: Go's `DefaultMaxHeaderBytes`.
    pub header_bytes: u32,
    /// Concurrent requests over one HTTP/2 connection. Source: apiserver's default of `MaxConcurrentStreams`.
    pub streams: u32,
    /// How long running requests may continue when the server stops; zero ends them at once.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            per_address: 1_000,
            handshake: Duration::from_secs(10),
            headers: Duration::from_secs(32),
            idle: Duration::from_secs(90),
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(15),
            header_bytes: 1 << 20,
            streams: 100,
            drain: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// Limits the connections to one in `share` of the files that the process may open: the store, the node and
    /// other servers of the same process need descriptors as well.
    pub fn within_open_files(mut self, open_files: u64, share: u64) -> Self {
        let most = usize::try_from(open_files / share.max(1)).unwrap_or(usize::MAX).max(1);
        self.connections = self.connections.min(most);
        self.per_address = self.per_address.min(self.connections.div_ceil(2));
        self
    }

    /// Returns how many connections other machines' addresses may have together.
    pub(crate) fn for_others(&self) -> usize {
        self.connections - self.connections / 10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_fit_into_the_open_files() {
        let limits = |files| Limits::default().within_open_files(files, 2);
        for (files, connections, per_address) in
            [(1024, 512, 256), (20_000, 10_000, 1_000), (1 << 30, 10_000, 1_000), (0, 1, 1)]
        {
            let found = limits(files);
            assert_eq!((found.connections, found.per_address), (connections, per_address), "{files}");
        }
    }
}
