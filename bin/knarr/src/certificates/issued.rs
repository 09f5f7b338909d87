//! Records of the client certificates that `knarr kubeconfig` has issued: without their keys, until some time
//! after they expire.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use knarr_apimachinery::clock::Clock;
use knarr_client::clock::SystemClock;

use super::facts::{self, Facts};
use crate::pki::write_private;

pub const FOLDER: &str = "issued";
/// How long records are kept after the expiry, so that it is shown to administrators.
const KEPT: Duration = Duration::from_secs(30 * 86_400);
/// The longest part of the user's name in a file name.
const LONGEST_NAME: usize = 100;

/// Stores a record of a certificate (PEM) in the folder `pki`.
pub fn record(pki: &Path, certificate: &str) -> Result<()> {
    let folder = pki.join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let chain = facts::chain(certificate.as_bytes())?;
    let leaf = chain.first().context("no certificate")?;
    write_private(&folder.join(file_name(leaf)?), certificate.as_bytes())?;
    prune(pki, SystemClock.now())
}

/// Returns the file name: the characters of the user's name that are safe, and a part of the digest that
/// makes it unique.
fn file_name(der: &[u8]) -> Result<String> {
    let subject = Facts::of(der)?.subject;
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' };
    let name: String = subject.chars().take(LONGEST_NAME).map(safe).collect();
    let digest = ring::digest::digest(&ring::digest::SHA256, der);
    let digest: String = digest.as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{name}-{digest}.crt"))
}

/// Removes records of certificates that expired some time ago.
pub fn prune(pki: &Path, now: Timestamp) -> Result<()> {
    let Ok(entries) = fs::read_dir(pki.join(FOLDER)) else { return Ok(()) };
    for path in entries.flatten().map(|entry| entry.path()) {
        if has_ended(&path).is_some_and(|end| end.checked_add(KEPT).is_ok_and(|then| then < now)) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// Returns when the certificate of a record expires; `None` if it cannot be read.
fn has_ended(path: &PathBuf) -> Option<Timestamp> {
    let chain = facts::chain(&fs::read(path).ok()?).ok()?;
    Some(Facts::of(chain.first()?).ok()?.expires)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::{Pki, Subject};

    #[test]
    fn records_are_kept_until_after_the_end() {
        let folder = std::env::temp_dir().join(format!("knarr-issued-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let pki = Pki::open(folder.clone()).unwrap();
        let subject = Subject {
            common_name: "oidc:../jane",
            organizations: &[],
            names: &[],
            addresses: &[],
            server: false,
            client: true,
        };
        let made = pki.sign(&subject).unwrap();
        record(&folder, &made.certificate).unwrap();
        record(&folder, &pki.sign(&subject).unwrap().certificate).unwrap();
        let names = || -> Vec<String> {
            let entries = fs::read_dir(folder.join(FOLDER)).unwrap();
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
        };
        assert_eq!(names().len(), 2);
        assert!(names().iter().all(|n| n.starts_with("oidc____jane-")), "{:?}", names());
        let day = Duration::from_secs(86_400);
        prune(&folder, Timestamp::now() + 394 * day).unwrap();
        assert_eq!(names().len(), 2);
        prune(&folder, Timestamp::now() + 396 * day).unwrap();
        assert!(names().is_empty());
        fs::remove_dir_all(&folder).unwrap();
    }
}
