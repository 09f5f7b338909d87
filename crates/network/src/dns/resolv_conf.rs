//! The machine's resolvers, from its resolv.conf.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::SystemTime;

use tokio::time::{Duration, Instant};

/// The same limit as the C library's: later lines are ignored.
const MOST_NAMESERVERS: usize = 3;
const PORT: u16 = 53;
/// How long a reading is used before the file's time is checked again.
const FRESH: Duration = Duration::from_secs(5);

/// Returns the addresses of `nameserver` lines, except those in `own`: forwarding to oneself would never end.
pub fn parse_nameservers(text: &str, own: &[IpAddr]) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some("nameserver")).then(|| words.next()).flatten()
        })
        // An address with a zone (`fe80::1%eth0`) does not parse as a plain address and is skipped.
        .filter_map(|address| address.parse().ok())
        .filter(|address| !own.contains(address))
        .take(MOST_NAMESERVERS)
        .map(|address| SocketAddr::new(address, PORT))
        .collect()
}

/// A resolv.conf that is read again when it changes, for example on a machine that moves between networks.
pub struct ResolvConf {
    path: PathBuf,
    own: Vec<IpAddr>,
    checked: Option<Instant>,
    modified: Option<SystemTime>,
    nameservers: Vec<SocketAddr>,
}

impl ResolvConf {
    pub fn new(path: PathBuf, own: Vec<IpAddr>) -> Self {
        Self { path, own, checked: None, modified: None, nameservers: Vec::new() }
    }

    /// Returns the addresses of the resolvers; reads the file again if it has changed.
    pub fn nameservers(&mut self) -> Vec<SocketAddr> {
        let now = Instant::now();
        if self.checked.is_none_or(|checked| now.duration_since(checked) >= FRESH) {
            self.checked = Some(now);
            let modified = std::fs::metadata(&self.path).and_then(|m| m.modified()).ok();
            if modified != self.modified || modified.is_none() {
                self.modified = modified;
                let text = std::fs::read_to_string(&self.path).unwrap_or_default();
                self.nameservers = parse_nameservers(&text, &self.own);
            }
        }
        self.nameservers.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nameserver_lines_count() {
        let own = ["10.43.0.10".parse().unwrap()];
        let shown = |text: &str| -> Vec<String> {
            parse_nameservers(text, &own).iter().map(ToString::to_string).collect()
        };
        for (text, expected) in [
            ("", &[][..]),
            ("search a b\nnameserver 8.8.8.8\n", &["8.8.8.8:53"]),
            ("nameserver 10.43.0.10\nnameserver\t127.0.0.53 # stub\n", &["127.0.0.53:53"]),
            ("#nameserver 1.1.1.1\nnameserver fd00::1\nnameserver x", &["[fd00::1]:53"]),
            (
                "nameserver 1.1.1.1\nnameserver 1.1.1.2\nnameserver 1.1.1.3\nnameserver 1.1.1.4",
                &["1.1.1.1:53", "1.1.1.2:53", "1.1.1.3:53"],
            ),
        ] {
            assert_eq!(shown(text), expected, "{text:?}");
        }
    }
}
