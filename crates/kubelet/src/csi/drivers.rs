//! The CSI drivers that are registered on this node: their names, sockets and versions.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use knarr_apimachinery::clock::Clock;
use tokio::sync::broadcast;

use super::client::DriverClient;

/// The number of registrations that a slow listener may lag behind.
const CHANGES: usize = 256;

/// A version of CSI, such as `1.0.0`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(Vec<u64>);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&parts.join("."))
    }
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim().strip_prefix('v').unwrap_or(text.trim());
        let numbers: Vec<u64> = text.split('.').map_while(|part| part.parse().ok()).take(4).collect();
        (numbers.len() >= 2).then_some(Self(numbers))
    }

    fn major(&self) -> u64 {
        self.0.first().copied().unwrap_or(0)
    }
}

/// Returns the highest version that both sides support, which must be 1.x.
pub fn highest_supported(versions: &[String]) -> Result<Version, String> {
    if versions.is_empty() {
        return Err("empty array for supported versions".to_owned());
    }
    let parsed = versions.iter().filter_map(|v| Version::parse(v)).filter(|v| v.major() <= 1);
    match parsed.max() {
        None => Err(format!(
            "could not find a highest supported version from versions ([{}]) reported: <nil>",
            versions.join(" ")
        )),
        Some(version) if version.major() != 1 => {
            Err(format!("highest supported version reported is {version}, must be v1.x"))
        }
        Some(version) => Ok(version),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
/// A registered driver.
pub struct Driver {
    pub endpoint: PathBuf,
    pub version: Version,
}

/// All registered drivers by name.
pub struct Drivers {
    clock: Arc<dyn Clock>,
    known: Mutex<BTreeMap<String, Driver>>,
    registered: broadcast::Sender<String>,
}

impl Drivers {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let (registered, _) = broadcast::channel(CHANGES);
        Self { clock, known: Mutex::default(), registered }
    }

    /// Subscribes to the names of drivers that become usable.
    pub fn registrations(&self) -> broadcast::Receiver<String> {
        self.registered.subscribe()
    }

    pub fn get(&self, name: &str) -> Option<Driver> {
        self.lock().get(name).cloned()
    }

    pub fn set(&self, name: &str, driver: Driver) {
        self.lock().insert(name.to_owned(), driver);
    }

    pub fn remove(&self, name: &str) {
        self.lock().remove(name);
    }

    /// Notifies listeners that the driver is usable.
    pub fn announce(&self, name: &str) {
        // Sending fails if there is no listener, which is fine.
        let _ = self.registered.send(name.to_owned());
    }

    /// Returns a client of the driver; the error has upstream's text.
    pub fn client(&self, name: &str) -> Result<DriverClient, String> {
        if name.is_empty() {
            return Err("driver name is empty".to_owned());
        }
        let driver = self.get(name);
        let driver = driver
            .ok_or_else(|| format!("driver name {name} not found in the list of registered CSI drivers"))?;
        Ok(DriverClient::new(driver.endpoint, Arc::clone(&self.clock)))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Driver>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_1_x_is_chosen() {
        let table: [(&[&str], Result<&str, &str>); 5] = [
            (&["1.0.0"], Ok("1.0.0")),
            (&["0.3", "1.2.0", "1.10.0", "2.0.0", "nonsense"], Ok("1.10.0")),
            (&["v1.0.0-rc1"], Ok("1.0")),
            (&["0.3.0"], Err("highest supported version reported is 0.3.0, must be v1.x")),
            (&[], Err("empty array for supported versions")),
        ];
        for (versions, want) in table {
            let versions: Vec<String> = versions.iter().map(|v| (*v).to_owned()).collect();
            let got = highest_supported(&versions).map(|v| v.to_string());
            assert_eq!(got.as_deref().map_err(String::as_str), want, "{versions:?}");
        }
        assert!(highest_supported(&["2.0".to_owned()]).is_err());
    }
}
