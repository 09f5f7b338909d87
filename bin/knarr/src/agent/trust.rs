//! The authorities by which an agent verifies its cluster: those of the kubeconfig, until the cluster
//! publishes others.
//!
//! The cluster publishes its authorities as the ClusterTrustBundle of `kubernetes.io/kube-apiserver-serving`,
//! with the one that signs first. Authorities that were read over a trusted connection are stored as long as
//! the kubeconfig stays the same. A new kubeconfig replaces them, even if its authorities are the original
//! ones, as after the restore of a backup.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use knarr_client::Client;
use knarr_client::kubeconfig::Access;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::certificates::Store;
use crate::certificates::{facts, published};

/// Returns the given access with the authorities that the cluster has published since.
pub fn kept(store: &Store, given: Access) -> Access {
    match store.trusted(&kubeconfig(&given)) {
        Some(bundle) if roots(&bundle).is_ok() => {
            Access { certificate_authority: Some(bundle.into_bytes()), ..given }
        }
        _ => given,
    }
}

/// Returns the authorities that the cluster publishes now, if they differ from those of `access`.
pub async fn news(client: &Client, access: &Access) -> Result<Option<String>> {
    let bundles = published::bundles(client).await.context("cannot read the cluster's authorities")?;
    let bundles: Vec<&str> = bundles.iter().map(String::as_str).collect();
    changed(&bundles, access.certificate_authority.as_deref().unwrap_or_default())
}

/// Returns the authorities to trust from now on, if they have changed. With two bundles, the publisher is
/// about to remove one of them, so nothing changes yet.
fn changed(bundles: &[&str], known: &[u8]) -> Result<Option<String>> {
    let [bundle] = bundles else { return Ok(None) };
    if bundle.trim().as_bytes() == known.trim_ascii() {
        return Ok(None);
    }
    let before = facts::chain(known)?;
    let now = facts::chain(bundle.as_bytes()).context("the cluster's authorities cannot be read")?;
    // Successive phases of a rotation share an authority.
    if !now.iter().any(|authority| before.contains(authority)) {
        bail!(
            "the cluster publishes authorities of which none is known: a kubeconfig of this cluster is needed"
        );
    }
    roots(bundle)?;
    Ok(Some((*bundle).to_owned()))
}

fn roots(pem: &str) -> Result<()> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(authority.context("not PEM")?)?;
    }
    if roots.is_empty() {
        bail!("no authority in it");
    }
    Ok(())
}

/// How long after a renewal the next one is requested while the authorities are the same; it doubles each
/// time.
const FIRST_WAIT: Duration = Duration::from_secs(600);
const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

/// Decides when a superseded certificate is renewed. In another kind of cluster, the signer may not be the
/// first of its authorities, so that a new certificate is superseded too; with several servers, one of them
/// may be a phase behind.
#[derive(Debug, Default)]
pub struct Superseded {
    last: Option<Renewed>,
}

#[derive(Debug)]
struct Renewed {
    /// The digest of the authorities.
    bundle: String,
    at: Timestamp,
    wait: Duration,
}

impl Superseded {
    /// Returns whether a new certificate is due because of the authorities.
    pub fn is_due(&self, access: &Access, now: Timestamp) -> bool {
        let waits = |last: &Renewed| {
            last.bundle == bundle(access) && now.duration_since(last.at).unsigned_abs() < last.wait
        };
        is_superseded(access) && !self.last.as_ref().is_some_and(waits)
    }

    /// Records a renewal.
    pub fn renewed(&mut self, access: &Access, now: Timestamp) {
        let bundle = bundle(access);
        let before = self.last.as_ref().filter(|last| last.bundle == bundle);
        let wait = before.map_or(FIRST_WAIT, |last| last.wait.saturating_mul(2).min(LONGEST_WAIT));
        self.last = Some(Renewed { bundle, at: now, wait });
    }
}

fn bundle(access: &Access) -> String {
    digest(access.certificate_authority.as_deref().unwrap_or_default())
}

/// Returns whether a certificate is signed by an authority that is still trusted but no longer the one that
/// signs.
pub fn is_superseded(access: &Access) -> bool {
    let (Some(certificate), Some(authorities)) = (&access.client_certificate, &access.certificate_authority)
    else {
        return false;
    };
    let (Ok(chain), Ok(authorities)) = (facts::chain(certificate), facts::chain(authorities)) else {
        return false;
    };
    let Some((leaf, (first, others))) = chain.first().zip(authorities.split_first()) else { return false };
    !facts::is_signed_by(leaf, first) && others.iter().any(|other| facts::is_signed_by(leaf, other))
}

/// Returns a digest that identifies a kubeconfig: of its authorities and its certificate. Tokens may be
/// renewed in place.
pub fn kubeconfig(given: &Access) -> String {
    let parts = [&given.certificate_authority, &given.client_certificate];
    digest(parts.map(|part| digest(part.as_deref().unwrap_or_default())).concat().as_bytes())
}

/// Returns a digest that identifies the authorities of a kubeconfig.
pub fn digest(authorities: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, authorities.trim_ascii());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::pki::{Pki, Subject};

    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn folder(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("knarr-trust-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }

    fn access(authorities: &str, certificate: &str) -> Access {
        Access {
            certificate_authority: Some(authorities.as_bytes().to_vec()),
            client_certificate: Some(certificate.as_bytes().to_vec()),
            ..Access::default()
        }
    }

    #[test]
    fn authorities_are_followed_from_one_to_the_next() {
        let folder = folder("follow");
        let pki = |name: &str| Pki::open(folder.0.join(name)).unwrap();
        let (old, new, foreign) = (pki("old"), pki("new"), pki("foreign"));
        let (old, new, foreign) = (old.ca_pem(), new.ca_pem(), foreign.ca_pem());
        let (first, second) = (format!("{old}{new}"), format!("{new}{old}"));
        for (bundles, known, expected) in [
            (vec![old], old, None),
            (vec![], old, None),
            (vec![first.as_str()], old, Some(&first)),
            (vec![first.as_str(), old], old, None),
            (vec![second.as_str()], first.as_str(), Some(&second)),
            (vec![new], second.as_str(), Some(&new.to_owned())),
        ] {
            assert_eq!(changed(&bundles, known.as_bytes()).unwrap().as_ref(), expected);
        }
        for (bundle, known) in [(foreign, old), (new, old), ("nonsense", old)] {
            assert!(changed(&[bundle], known.as_bytes()).is_err());
        }
    }

    #[test]
    fn certificates_of_an_authority_that_goes_are_superseded() {
        let folder = folder("superseded");
        let (old, new) = (Pki::open(folder.0.join("old")).unwrap(), Pki::open(folder.0.join("new")).unwrap());
        let subject = Subject {
            common_name: "system:node:n",
            organizations: &[],
            names: &[],
            addresses: &[],
            server: false,
            client: true,
        };
        let leaf = old.sign(&subject).unwrap().certificate;
        let later = new.sign(&subject).unwrap().certificate;
        let (old, new) = (old.ca_pem(), new.ca_pem());
        for (authorities, expected) in [
            (old.to_owned(), false),
            (format!("{old}{new}"), false),
            (format!("{new}{old}"), true),
            // Clusters with separate authorities for servers and clients.
            (new.to_owned(), false),
        ] {
            assert_eq!(is_superseded(&access(&authorities, &leaf)), expected);
        }
        assert!(!is_superseded(&Access::default()));

        // A cluster that signs with the second of its authorities supersedes each certificate at once.
        let mut superseded = Superseded::default();
        let known = access(&format!("{new}{old}"), &leaf);
        let mut asked = Vec::new();
        for minute in 0..10_000 {
            let now = Timestamp::from_second(60 * minute).unwrap();
            if superseded.is_due(&known, now) {
                asked.push(minute);
                superseded.renewed(&known, now);
            }
        }
        assert_eq!(asked[..4], [0, 10, 30, 70], "no request after the other");
        assert_eq!(asked.windows(2).map(|two| two[1] - two[0]).max(), Some(24 * 60));
        let changed = access(&format!("{old}{new}"), &later);
        assert!(superseded.is_due(&changed, Timestamp::from_second(600_000).unwrap()));
    }

    #[test]
    fn what_is_kept_belongs_to_a_kubeconfig() {
        let folder = folder("kept");
        let store = Store::create(folder.0.join("pki")).unwrap();
        let (old, new) = (Pki::open(folder.0.join("a")).unwrap(), Pki::open(folder.0.join("b")).unwrap());
        let given = || access(old.ca_pem(), "x");
        let authorities = |access: Access| String::from_utf8(access.certificate_authority.unwrap()).unwrap();
        assert_eq!(authorities(kept(&store, given())), old.ca_pem());
        store.trust(&kubeconfig(&given()), new.ca_pem()).unwrap();
        assert_eq!(authorities(kept(&store, given())), new.ca_pem());
        // An older backup was restored, and has written another kubeconfig for the same node.
        assert_eq!(authorities(kept(&store, access(old.ca_pem(), "y"))), old.ca_pem());
        let other = access(new.ca_pem(), "x");
        store.trust("another kubeconfig", old.ca_pem()).unwrap();
        assert_eq!(authorities(kept(&store, other)), new.ca_pem());
        store.trust(&kubeconfig(&given()), "damaged").unwrap();
        assert_eq!(authorities(kept(&store, given())), old.ca_pem());
    }
}
