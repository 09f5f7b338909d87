//! The cluster's certificates: its own CA and what it signs. Files are created once and renewed when due.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use knarr_apimachinery::clock::Clock;
use knarr_client::clock::SystemClock;
use nix::fcntl::Flock;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose};

pub use crate::certificate::Subject;
use crate::certificate::{self, Authority, Pair, Validity};
pub use crate::private_files::{lock, lock_soon, lock_to_read, read, wait_for_lock, write_private};
use crate::signer::{CertificateKeys, SigningKey, TokenKey};

/// The common names of the authorities.
const CLUSTER: &str = "kubernetes";
const FRONT_PROXY: &str = "kubernetes-front-proxy";
const KUBELET_SERVING: &str = "kubernetes-kubelet-serving";
/// The file that holds the identity of a cluster whose authorities have been rotated.
const IDENTITY: &str = "identity";
const CA_YEARS: i64 = 10;
const LEAF_DAYS: i64 = 365;
/// A certificate that is valid for fewer days is renewed: at a start, and once a day while the server runs.
const RENEW_DAYS: i64 = 30;

/// The folder `pki/` of a server's data folder.
pub struct Pki {
    folder: PathBuf,
    ca_key: KeyPair,
    ca_pem: String,
    clock: Arc<dyn Clock>,
}

/// A certificate chain and its key, both PEM.
#[derive(Clone)]
pub struct Credentials {
    pub certificate: String,
    pub key: String,
}

impl Pki {
    /// Opens the folder; creates the CA on first use.
    pub fn open(folder: PathBuf) -> Result<Self> {
        Self::open_at(folder, Arc::new(SystemClock))
    }

    /// Opens the folder like `open`, with the clock that certificates are issued and checked by.
    pub fn open_at(folder: PathBuf, clock: Arc<dyn Clock>) -> Result<Self> {
        Self::open_as(folder, CLUSTER, clock)
    }

    /// Opens the folder like `open`; a new CA gets this common name.
    fn open_as(folder: PathBuf, name: &str, clock: Arc<dyn Clock>) -> Result<Self> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .with_context(|| in_folder(&folder))?;
        let (cert_path, key_path) = (folder.join("ca.crt"), folder.join("ca.key"));
        if !cert_path.exists() {
            // An existing key was kept on purpose, or a start was killed at this point: it is not replaced.
            let key = if key_path.exists() {
                KeyPair::from_pem(&read(&key_path)?).with_context(|| unreadable(&key_path))?
            } else {
                let key = KeyPair::generate()?;
                write_private(&key_path, key.serialize_pem().as_bytes())?;
                key
            };
            let cert = ca_params(name)?.self_signed(&key)?;
            write_private(&cert_path, cert.pem().as_bytes())?;
        }
        let ca_pem = read(&cert_path)?;
        let ca_key = KeyPair::from_pem(&read(&key_path)?).with_context(|| unreadable(&key_path))?;
        certificate::check_pair(&ca_pem, &ca_key).with_context(|| unreadable(&cert_path))?;
        Ok(Self { folder, ca_key, ca_pem, clock })
    }

    /// Returns the authority of front proxies, which assert the identity of users; it signs nothing else.
    pub fn front_proxy(&self) -> Result<Self> {
        Self::open_as(self.folder.join("front-proxy"), FRONT_PROXY, Arc::clone(&self.clock))
    }

    /// Returns the authority of kubelets' serving certificates. Only API servers trust it, so that no node
    /// can pose as the API server, whatever certificate it obtains.
    pub fn kubelet_serving(&self) -> Result<Self> {
        let folder = self.folder.join("kubelet-serving");
        Self::open_as(folder, KUBELET_SERVING, Arc::clone(&self.clock))
    }

    /// Returns the authorities that API servers verify kubelets against: that of serving certificates and the
    /// cluster's own, which signed for kubelets in former versions and still does in nodes' kubeconfigs.
    pub fn kubelet_trust(&self) -> Result<String> {
        Ok(format!("{}\n{}", self.kubelet_serving()?.ca_pem.trim(), self.ca_pem))
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Returns the credentials `NAME.crt` and `NAME.key`. They are kept while they match the subject and do
    /// not expire soon, and otherwise issued again.
    pub fn credentials(&self, name: &str, subject: &Subject) -> Result<Credentials> {
        let (cert_path, key_path) = self.files(name);
        if cert_path.exists() && key_path.exists() {
            let kept = Credentials { certificate: read(&cert_path)?, key: read(&key_path)? };
            let good = still_good(&kept.certificate, subject, self.clock.now()) && is_pair(&kept);
            // Credentials of another authority are replaced, even if that authority is still trusted.
            if good && certificate::is_signed_by(&kept.certificate, &self.ca_pem) {
                return Ok(kept);
            }
        }
        let made = self.sign(subject)?;
        write_private(&key_path, made.key.as_bytes())?;
        write_private(&cert_path, made.certificate.as_bytes())?;
        Ok(made)
    }

    /// Replaces the credentials of this name by new ones with the same subject and alternative names.
    pub fn renew(&self, name: &str) -> Result<Credentials> {
        let (cert_path, key_path) = self.files(name);
        let holder = certificate::Holder::of(&read(&cert_path)?)
            .with_context(|| format!("{} cannot be read", cert_path.display()))?;
        let organizations: Vec<&str> = holder.organizations.iter().map(String::as_str).collect();
        let made = self.sign(&Subject {
            common_name: &holder.common_name,
            organizations: &organizations,
            names: &holder.names,
            addresses: &holder.addresses,
            server: holder.server,
            client: holder.client,
        })?;
        write_private(&key_path, made.key.as_bytes())?;
        write_private(&cert_path, made.certificate.as_bytes())?;
        Ok(made)
    }

    /// Reads the same folder again.
    pub fn another(&self) -> Result<Self> {
        Self::open_at(self.folder.clone(), Arc::clone(&self.clock))
    }

    /// Locks the folder, see [`lock`].
    pub fn lock(&self) -> Result<Flock<fs::File>> {
        lock(&self.folder)
    }

    /// Creates the other authorities and the token key if they are missing.
    pub fn authorities(&self) -> Result<()> {
        self.front_proxy()?;
        self.kubelet_serving()?;
        self.service_account_key().map(|_| ())
    }

    /// Creates an authority to replace one of those that `knarr certificates` names; it is not stored yet.
    /// The time in its common name distinguishes it from the others.
    pub fn new_authority(&self, name: &str) -> Result<Pair> {
        let base = match name {
            "front-proxy/ca" => FRONT_PROXY,
            "kubelet-serving/ca" => KUBELET_SERVING,
            _ => CLUSTER,
        };
        let key = KeyPair::generate()?;
        let name = format!("{base}@{}", self.clock.now().as_second());
        let certificates = ca_params(&name)?.self_signed(&key)?.pem();
        Ok(Pair { certificates, key: key.serialize_pem() })
    }

    /// Returns the paths of the certificate and the key of this name.
    pub fn files(&self, name: &str) -> (PathBuf, PathBuf) {
        (self.folder.join(format!("{name}.crt")), self.folder.join(format!("{name}.key")))
    }

    /// Signs new credentials that are not stored in the folder.
    pub fn sign(&self, subject: &Subject) -> Result<Credentials> {
        let key = KeyPair::generate()?;
        let lifetime = Duration::from_secs(LEAF_DAYS.unsigned_abs() * 86_400);
        let validity = Validity { from: self.clock.now(), lifetime };
        let certificate = certificate::for_key(&self.authority(), &key, subject, validity)?;
        Ok(Credentials { certificate, key: key.serialize_pem() })
    }

    fn authority(&self) -> Authority<'_> {
        Authority { certificate_pem: &self.ca_pem, key: &self.ca_key }
    }

    /// Returns what identifies the cluster to its servers: a digest of its first authority and token key.
    pub fn identity(&self) -> Result<String> {
        match kept_identity(&self.folder)? {
            Some(kept) => Ok(kept),
            None => Ok(digest_of(&self.ca_pem, &self.service_account_key()?)),
        }
    }

    /// Stores the identity, so that it outlasts rotations of the authorities.
    pub fn keep_identity(&self) -> Result<()> {
        write_private(&self.folder.join(IDENTITY), self.identity()?.as_bytes())
    }

    /// Returns the key that signs service account tokens (P-256, PKCS#8 PEM), created on first use.
    pub fn service_account_key(&self) -> Result<String> {
        let path = self.folder.join("sa.key");
        if !path.exists() {
            write_private(&path, KeyPair::generate()?.serialize_pem().as_bytes())?;
        }
        read(&path)
    }
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Pki {
    /// Returns the keys that sign certificate requests, those of the cluster's authorities.
    pub fn certificate_signer(&self) -> Result<CertificateKeys> {
        let of = |folder: &Path| SigningKey::open(&folder.join("ca.crt"), &folder.join("ca.key"));
        let kubelet_serving = of(&self.kubelet_serving()?.folder)?;
        Ok(CertificateKeys { clients: of(&self.folder)?, kubelet_serving: Some(kubelet_serving) })
    }

    /// Returns the key that signs service account tokens.
    pub fn token_signer(&self) -> Result<TokenKey> {
        TokenKey::new(&self.service_account_key()?)
    }
}

/// Returns [`Pki::identity`] of a folder without changing it; fails if a file is missing.
pub fn identity_in(folder: &Path) -> Result<String> {
    match kept_identity(folder)? {
        Some(kept) => Ok(kept),
        None => Ok(digest_of(&read(&folder.join("ca.crt"))?, &read(&folder.join("sa.key"))?)),
    }
}

/// Reads the identity of a cluster whose authorities have been rotated.
fn kept_identity(folder: &Path) -> Result<Option<String>> {
    let kept = folder.join(IDENTITY);
    if !kept.exists() {
        return Ok(None);
    }
    Ok(Some(read(&kept)?.trim().to_owned()))
}

fn digest_of(ca_pem: &str, token_key: &str) -> String {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    context.update(ca_pem.trim().as_bytes());
    context.update(token_key.trim().as_bytes());
    context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn ca_params(common_name: &str) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid_for(&mut params, CA_YEARS * 365);
    Ok(params)
}

/// Sets a validity that begins an hour ago, so that machines with a slow clock accept it.
fn valid_for(params: &mut CertificateParams, days: i64) {
    let now = std::time::SystemTime::now();
    params.not_before = (now - std::time::Duration::from_secs(3600)).into();
    params.not_after = (now + std::time::Duration::from_secs(days.unsigned_abs() * 86_400)).into();
}

fn still_good(pem: &str, subject: &Subject, now: Timestamp) -> bool {
    let Ok(holder) = certificate::Holder::of(pem) else { return false };
    let left = holder.not_after.as_second() - now.as_second();
    let (names, addresses) = certificate::alternative_names(subject.names, subject.addresses);
    left >= RENEW_DAYS * 86_400
        // The API server identifies a kubelet by its common name.
        && subject.common_name == holder.common_name
        && names.iter().all(|name| holder.names.contains(name))
        && addresses.iter().all(|address| holder.addresses.contains(address))
}

/// Returns whether certificate and key belong together: they are written one after the other.
fn is_pair(credentials: &Credentials) -> bool {
    let key = KeyPair::from_pem(&credentials.key);
    key.is_ok_and(|key| certificate::check_pair(&credentials.certificate, &key).is_ok())
}

fn in_folder(folder: &Path) -> String {
    format!("cannot create the folder {}", folder.display())
}

fn unreadable(path: &Path) -> String {
    format!(
        "{} is damaged; start the server if a rotation of authorities was interrupted, or restore it from a backup",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_authority_without_its_certificate_keeps_its_key() {
        let folder = std::env::temp_dir().join(format!("knarr-pki-key-{}", std::process::id()));
        let first = Pki::open(folder.clone()).unwrap();
        let key = fs::read(folder.join("ca.key")).unwrap();
        assert!(identity_in(&folder).is_err(), "there is no token key yet, and none is made");
        assert_eq!(first.identity().unwrap(), identity_in(&folder).unwrap());
        fs::remove_file(folder.join("ca.crt")).unwrap();
        assert!(identity_in(&folder).is_err());
        Pki::open(folder.clone()).unwrap();
        assert_eq!(fs::read(folder.join("ca.key")).unwrap(), key);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn private_files_are_written_where_something_changes() {
        let path = std::env::temp_dir().join(format!("knarr-private-{}.crt", std::process::id()));
        let _ = fs::remove_file(&path);
        // Another process is about to write the key.
        let others = path.with_extension("key.new");
        let theirs = path.with_extension("new");
        for file in [&others, &theirs] {
            fs::write(file, "theirs").unwrap();
        }
        let written = |content: &str| {
            write_private(&path, content.as_bytes()).unwrap();
            let is = fs::metadata(&path).unwrap();
            assert_eq!((is.mode() & 0o7777, fs::read_to_string(&path).unwrap().as_str()), (0o600, content));
            (is.ino(), is.mtime_nsec())
        };
        let first = written("a");
        assert_eq!(written("a"), first, "nothing is written");
        assert_ne!(written("b"), first);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        written("b");
        fs::remove_file(&path).unwrap();
        for file in [&others, &theirs] {
            assert_eq!(fs::read_to_string(file).unwrap(), "theirs");
            fs::remove_file(file).unwrap();
        }
    }
}
