//! Pod addresses of one node: a round-robin allocator, and a folder that makes its leases persistent.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::cidr::Ipv4Cidr;

/// The file with the address that was allocated last.
const LAST_FILE: &str = "last";

/// Why an address could not be allocated or released.
#[derive(Debug, Error)]
pub enum IpamError {
    #[error("no free address in {cidr}")]
    Exhausted { cidr: Ipv4Cidr },
    #[error("{cidr} is too small for pods")]
    TooSmall { cidr: Ipv4Cidr },
    #[error("storing leases in {}", path.display())]
    State { path: PathBuf, source: io::Error },
}

/// Picks addresses from a prefix; never the network address, the gateway (`.1`) and the last address.
#[derive(Clone, Copy, Debug)]
pub struct Allocator {
    cidr: Ipv4Cidr,
}

impl Allocator {
    pub fn new(cidr: Ipv4Cidr) -> Result<Self, IpamError> {
        if cidr.prefix_len() > 30 {
            return Err(IpamError::TooSmall { cidr });
        }
        Ok(Self { cidr })
    }

    /// Returns the address of the bridge, the pods' default gateway.
    pub fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.cidr.network()) + 1)
    }

    /// Returns the first free address after `last`, wrapping around at the end of the prefix. A freed address
    /// is reused only after all others, so that clients of its former owner do not reach another pod.
    pub fn next(&self, last: Option<Ipv4Addr>, taken: impl Fn(Ipv4Addr) -> bool) -> Option<Ipv4Addr> {
        let first = u32::from(self.cidr.network()) + 2;
        let end = u32::from(self.cidr.broadcast());
        let start = last.map(u32::from).filter(|l| (first..end).contains(l)).map_or(first, |l| l + 1);
        (start..end).chain(first..start).map(Ipv4Addr::from).find(|ip| !taken(*ip))
    }
}

/// A lease of an address to its owner, in the form in which it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease<T> {
    pub address: Ipv4Addr,
    pub sandbox_id: String,
    #[serde(flatten)]
    pub owner: T,
}

/// The leases of a node, one file each, named by address. Only one process may have a folder open.
pub struct Ipam<T> {
    allocator: Allocator,
    folder: PathBuf,
    leases: BTreeMap<Ipv4Addr, Lease<T>>,
    last: Option<Ipv4Addr>,
}

impl<T: Clone + Serialize + for<'de> Deserialize<'de>> Ipam<T> {
    /// Loads the leases that an earlier run left. Files that are not complete leases (after an interrupted
    /// write) are removed; leases outside of `cidr` are kept until they are released.
    pub fn open(cidr: Ipv4Cidr, folder: PathBuf) -> Result<Self, IpamError> {
        let allocator = Allocator::new(cidr)?;
        let state = |source| IpamError::State { path: folder.clone(), source };
        std::fs::create_dir_all(&folder).map_err(state)?;
        let mut leases = BTreeMap::new();
        for entry in std::fs::read_dir(&folder).map_err(state)? {
            let path = entry.map_err(state)?.path();
            let Some(name) = path.file_name().and_then(|n| n.to_str()) else { continue };
            let lease: Option<Lease<T>> =
                std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
            match (name.parse::<Ipv4Addr>(), lease) {
                (Ok(address), Some(lease)) if lease.address == address => {
                    leases.insert(address, lease);
                }
                (Ok(_), _) => remove(&path)?,
                (Err(_), _) if name.ends_with(".new") => remove(&path)?,
                (Err(_), _) => {}
            }
        }
        let last =
            std::fs::read_to_string(folder.join(LAST_FILE)).ok().and_then(|text| text.trim().parse().ok());
        Ok(Self { allocator, folder, leases, last })
    }

    pub fn gateway(&self) -> Ipv4Addr {
        self.allocator.gateway()
    }

    /// Returns the lease of a sandbox.
    pub fn get(&self, sandbox_id: &str) -> Option<&Lease<T>> {
        self.leases.values().find(|lease| lease.sandbox_id == sandbox_id)
    }

    pub fn leases(&self) -> impl Iterator<Item = &Lease<T>> {
        self.leases.values()
    }

    /// Allocates an address for the sandbox and stores it before returning; returns an existing lease
    /// unchanged.
    pub fn allocate(&mut self, sandbox_id: &str, owner: T) -> Result<Lease<T>, IpamError> {
        if let Some(lease) = self.get(sandbox_id) {
            return Ok(lease.clone());
        }
        let address = self
            .allocator
            .next(self.last, |ip| self.leases.contains_key(&ip))
            .ok_or(IpamError::Exhausted { cidr: self.allocator.cidr })?;
        let lease = Lease { address, sandbox_id: sandbox_id.to_owned(), owner };
        let bytes = serde_json::to_vec(&lease).map_err(|e| self.state(e.into()))?;
        self.write(&address.to_string(), &bytes)?;
        self.write(LAST_FILE, address.to_string().as_bytes())?;
        self.leases.insert(address, lease.clone());
        self.last = Some(address);
        Ok(lease)
    }

    /// Releases the sandbox's address; returns the lease that it had.
    pub fn release(&mut self, sandbox_id: &str) -> Result<Option<Lease<T>>, IpamError> {
        let Some(address) = self.get(sandbox_id).map(|lease| lease.address) else { return Ok(None) };
        remove(&self.folder.join(address.to_string()))?;
        Ok(self.leases.remove(&address))
    }

    /// Writes a file atomically: a kill between two writes leaves at most a `.new` file.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), IpamError> {
        let temporary = self.folder.join(format!("{name}.new"));
        std::fs::write(&temporary, bytes).map_err(|e| self.state(e))?;
        std::fs::rename(&temporary, self.folder.join(name)).map_err(|e| self.state(e))
    }

    fn state(&self, source: io::Error) -> IpamError {
        IpamError::State { path: self.folder.clone(), source }
    }
}

fn remove(path: &Path) -> Result<(), IpamError> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(IpamError::State { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Owner {
        pod: String,
    }

    fn owner(pod: &str) -> Owner {
        Owner { pod: pod.to_owned() }
    }

    /// A folder below the system's temporary folder that is removed with the value.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("knarr-ipam-{}-{name}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn cidr() -> Ipv4Cidr {
        "10.9.0.0/29".parse().unwrap()
    }

    #[test]
    fn next_goes_round() {
        let allocator = Allocator::new(cidr()).unwrap();
        let ip = |n| Ipv4Addr::new(10, 9, 0, n);
        for (last, taken, expected) in [
            (None, vec![], Some(2)),
            (Some(2), vec![2], Some(3)),
            (Some(6), vec![6], Some(2)),
            (Some(6), vec![2, 3, 6], Some(4)),
            (Some(3), vec![2, 3, 4, 5, 6], None),
            (Some(99), vec![], Some(2)),
        ] {
            let got = allocator.next(last.map(ip), |a| taken.iter().any(|t| ip(*t) == a));
            assert_eq!(got, expected.map(ip), "{last:?} {taken:?}");
        }
        assert!(Allocator::new("10.0.0.0/31".parse().unwrap()).is_err());
    }

    #[test]
    fn leases_outlive_the_process() {
        let folder = Folder::new("outlive");
        let mut ipam = Ipam::open(cidr(), folder.0.clone()).unwrap();
        let a = ipam.allocate("a", owner("x")).unwrap();
        let b = ipam.allocate("b", owner("y")).unwrap();
        assert_eq!(ipam.allocate("a", owner("x")).unwrap(), a);
        ipam.release("b").unwrap();
        drop(ipam);
        std::fs::write(folder.0.join("10.9.0.5"), b"{\"addr").unwrap();
        let mut ipam: Ipam<Owner> = Ipam::open(cidr(), folder.0.clone()).unwrap();
        assert_eq!(ipam.get("a"), Some(&a));
        assert_eq!(ipam.get("b"), None);
        let c = ipam.allocate("c", owner("z")).unwrap();
        assert_ne!(c.address, b.address, "a freed address is not given again right away");
        assert!(ipam.release("nobody").unwrap().is_none());
    }

    #[test]
    fn exhaustion_is_an_error() {
        let folder = Folder::new("full");
        let mut ipam = Ipam::open(cidr(), folder.0.clone()).unwrap();
        for n in 0..5 {
            ipam.allocate(&format!("s{n}"), owner("p")).unwrap();
        }
        assert!(matches!(ipam.allocate("one-more", owner("p")), Err(IpamError::Exhausted { .. })));
        ipam.release("s3").unwrap();
        assert_eq!(ipam.allocate("one-more", owner("p")).unwrap().address, Ipv4Addr::new(10, 9, 0, 5));
    }
}
