//! Lists the certificates of a data folder: authorities, what they signed, and what kubeconfigs hold.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use knarr_client::kubeconfig::Access;
use rustls::pki_types::CertificateDer;

use super::facts::{self, Facts};
use super::issued;
use crate::layout::Layout;

/// Folders of `pki/` with certificates in them, in the order of the table.
const FOLDERS: [&str; 4] = ["", "front-proxy", "kubelet-serving", issued::FOLDER];
const KUBECONFIG: &str = "kubeconfig";
/// The largest certificate or kubeconfig file that is read.
const MAX_FILE: u64 = 1 << 20;
/// The most files of one folder that are read.
const MAX_FILES: usize = 10_000;

/// Where a certificate is from, and so what renews it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Issued by the server or agent itself, which renews all but its authorities.
    Own,
    /// Issued by `knarr kubeconfig`, for another user.
    Issued,
    /// Given by a flag.
    External,
}

/// One certificate of a data folder.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Path below `pki/` without its extension, such as `front-proxy/ca`, or the file name of a kubeconfig.
    /// Further certificates of a bundle have a number: `ca#2`.
    pub name: String,
    pub file: PathBuf,
    /// The contents, or why they cannot be read.
    pub facts: Result<Facts, String>,
    /// The name of the authority in this folder that signed it, or the issuer's common name.
    pub authority: String,
    pub origin: Origin,
    der: Vec<u8>,
}

impl Entry {
    pub fn new(name: String, file: PathBuf, facts: Result<Facts, String>, der: Vec<u8>) -> Self {
        let authority = facts.as_ref().map_or_else(|_| String::new(), |facts| facts.issuer.clone());
        Self { name, file, facts, authority, origin: Origin::Own, der }
    }

    /// Returns whether both are the same certificate.
    pub fn is_same(&self, other: &Self) -> bool {
        self.der == other.der
    }

    pub fn is_authority(&self) -> bool {
        self.facts.as_ref().is_ok_and(|facts| facts.uses.contains(&"authority"))
    }

    pub fn is_kubeconfig(&self) -> bool {
        self.file.extension().is_some_and(|e| e == KUBECONFIG)
    }

    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.facts.as_ref().is_ok_and(|facts| facts.expires <= now)
    }

    /// Returns the whole days until it expires, negative afterwards.
    pub fn days_left(&self, now: Timestamp) -> Option<i64> {
        let facts = self.facts.as_ref().ok()?;
        Some((facts.expires.as_second() - now.as_second()).div_euclid(86_400))
    }
}

/// Reads a server's or agent's data folder: authorities first, then by name. A file that cannot be read
/// becomes an entry.
///
/// # Errors
///
/// If the folder is missing or cannot be read.
pub fn read(layout: &Layout) -> Result<Vec<Entry>> {
    let pki = layout.pki();
    if !pki.try_exists().with_context(|| format!("cannot read {}", pki.display()))? {
        bail!(
            "{} holds no certificates: start `knarr server` first, or name the data folder of a server or agent \
             with --data-dir",
            layout.root().display()
        );
    }
    let mut entries = Vec::new();
    for folder in FOLDERS {
        for file in files(&pki.join(folder), "crt")? {
            let stem = file.file_stem().unwrap_or_default();
            let name = Path::new(folder).join(stem).to_string_lossy().into_owned();
            let origin = if folder == issued::FOLDER { Origin::Issued } else { Origin::Own };
            entries.extend(of_pem(&name, &file, origin, certificates(&file)));
        }
    }
    for file in files(layout.root(), KUBECONFIG)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let origin = if file == layout.admin_kubeconfig() { Origin::Own } else { Origin::Issued };
        match in_kubeconfig(&file) {
            Ok(None) => {}
            Ok(Some(pem)) => entries.extend(of_pem(&name, &file, origin, facts::chain(&pem))),
            Err(error) => entries.extend(of_pem(&name, &file, origin, Err(error))),
        }
    }
    name_authorities(&mut entries);
    entries.sort_by_key(|entry| !entry.is_authority());
    Ok(entries)
}

/// Reads the certificates in files that flags name; their names are the paths.
pub fn external(files: &[PathBuf]) -> Vec<Entry> {
    let of = |file: &PathBuf| of_pem(&file.to_string_lossy(), file, Origin::External, certificates(file));
    files.iter().flat_map(of).collect()
}

/// Returns the files of a folder with this extension, by name; none if the folder is missing.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let cannot = || format!("cannot read {}", folder.display());
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(cannot)?,
    };
    let mut found = Vec::new();
    for entry in entries.take(MAX_FILES) {
        let path = entry.with_context(cannot)?.path();
        if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn content(file: &Path) -> Result<Vec<u8>> {
    if fs::metadata(file)?.len() > MAX_FILE {
        bail!("larger than {MAX_FILE} bytes");
    }
    Ok(fs::read(file)?)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    facts::chain(&content(file)?)
}

/// Reads the client certificate of a kubeconfig; `None` if it holds another credential.
fn in_kubeconfig(file: &Path) -> Result<Option<Vec<u8>>> {
    content(file)?;
    Ok(Access::load(file)?.client_certificate)
}

/// Builds the entries of a PEM text: each authority of a bundle has an entry; of a chain only the first
/// certificate has.
fn of_pem(
    name: &str,
    file: &Path,
    origin: Origin,
    chain: Result<Vec<CertificateDer<'static>>>,
) -> Vec<Entry> {
    let entry = |name: String, der: Vec<u8>, facts: Result<Facts>| {
        let facts = facts.map_err(|error| format!("{error:#}"));
        Entry { origin: origin.clone(), ..Entry::new(name, file.to_owned(), facts, der) }
    };
    let chain = match chain {
        Ok(chain) => chain,
        Err(error) => return vec![entry(name.to_owned(), Vec::new(), Err(error))],
    };
    let mut entries = Vec::new();
    for (at, der) in chain.iter().enumerate() {
        let facts = Facts::of(der);
        let is_authority = facts.as_ref().is_ok_and(|f| f.uses.contains(&"authority"));
        if at > 0 && !(is_authority && entries.iter().all(Entry::is_authority)) {
            break;
        }
        let name = if at == 0 { name.to_owned() } else { format!("{name}#{}", at + 1) };
        entries.push(entry(name, der.to_vec(), facts));
    }
    entries
}

fn name_authorities(entries: &mut [Entry]) {
    let authorities: Vec<(String, Vec<u8>)> =
        entries.iter().filter(|e| e.is_authority()).map(|e| (e.name.clone(), e.der.clone())).collect();
    for entry in entries.iter_mut().filter(|e| e.facts.is_ok()) {
        let signer = authorities.iter().find(|(_, der)| facts::is_signed_by(&entry.der, der));
        if let Some((name, _)) = signer {
            entry.authority.clone_from(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubeconfig;
    use crate::pki::{Pki, Subject};

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("knarr-inventory-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_servers_folder() {
        let folder = Folder::new("server");
        let layout = Layout::create(&folder.0).unwrap();
        let pki = Pki::open(layout.pki()).unwrap();
        let serving = Subject {
            common_name: "system:node:n1",
            organizations: &["system:nodes"],
            names: &[],
            addresses: &[],
            server: true,
            client: false,
        };
        pki.kubelet_serving().unwrap().credentials("kubelet", &serving).unwrap();
        kubeconfig::write_admin(&layout, &pki, "https://127.0.0.1:6443").unwrap();
        fs::write(layout.pki().join("apiserver.crt"), "damaged").unwrap();
        let entries = read(&layout).unwrap();
        let shown: Vec<(&str, &str, bool)> =
            entries.iter().map(|e| (e.name.as_str(), e.authority.as_str(), e.facts.is_ok())).collect();
        assert_eq!(
            shown,
            [
                ("ca", "ca", true),
                ("kubelet-serving/ca", "kubelet-serving/ca", true),
                ("admin", "ca", true),
                ("apiserver", "", false),
                ("kubelet-serving/kubelet", "kubelet-serving/ca", true),
                ("admin.kubeconfig", "ca", true),
            ]
        );
        let kubelet = entries.iter().find(|e| e.name == "kubelet-serving/kubelet").unwrap();
        let facts = kubelet.facts.clone().unwrap();
        assert_eq!((facts.subject.as_str(), facts.uses), ("system:node:n1", vec!["server"]));
        assert_eq!(facts.groups, ["system:nodes"]);
        let now = Timestamp::now();
        assert_eq!(kubelet.days_left(now), Some(364));
        assert!(!kubelet.has_expired(now) && kubelet.has_expired(facts.expires));
        assert_eq!(kubelet.days_left(facts.expires + std::time::Duration::from_secs(1)), Some(-1));
    }

    #[test]
    fn bundles_are_an_entry_for_each_authority_and_chains_one() {
        let folder = Folder::new("bundle");
        let layout = Layout::create(&folder.0).unwrap();
        let pki = Pki::open(layout.pki()).unwrap();
        let other = Pki::open(folder.0.join("other")).unwrap();
        let subject = Subject {
            common_name: "jane",
            organizations: &[],
            names: &[],
            addresses: &[],
            server: false,
            client: true,
        };
        let leaf = other.sign(&subject).unwrap();
        fs::write(layout.pki().join("ca.crt"), format!("{}{}", pki.ca_pem(), other.ca_pem())).unwrap();
        fs::write(layout.pki().join("jane.crt"), format!("{}{}", leaf.certificate, pki.ca_pem())).unwrap();
        let entries = read(&layout).unwrap();
        let shown: Vec<(&str, &str)> =
            entries.iter().map(|e| (e.name.as_str(), e.authority.as_str())).collect();
        assert_eq!(shown, [("ca", "ca"), ("ca#2", "ca#2"), ("jane", "ca#2")]);
    }

    #[test]
    fn a_folder_without_certificates_is_an_error() {
        let folder = Folder::new("empty");
        let error = read(&Layout::create(&folder.0).unwrap()).unwrap_err().to_string();
        assert!(error.contains("holds no certificates: start `knarr server` first"), "{error}");
    }
}
