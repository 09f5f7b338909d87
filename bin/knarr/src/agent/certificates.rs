//! The node's certificates: from the kubeconfig, stored in the data folder, or requested from the cluster.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use knarr_api::certificates::signers::{KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING, NODE_USER_PREFIX};
use knarr_apimachinery::clock::Clock;
use knarr_client::Client;
use knarr_client::kubeconfig::Access;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::extensions::GeneralName;

pub use super::names::{CLIENT, SERVING};
use super::request::{Approval, Obtained, Request};
use super::{trust, with_credentials};
use crate::access;
use crate::certificate::alternative_names;
use crate::pki::{Credentials, write_private};

/// A certificate that expires sooner than this is renewed.
pub const RENEW_BEFORE: Duration = Duration::from_secs(30 * 86_400);
/// The file beside the serving certificate with the digest of the cluster's authority at the time of issue.
const CLUSTER: &str = "kubelet.cluster";
/// The file with the digest of a kubeconfig on its first line, followed by the authorities that replaced
/// those in it.
const TRUSTED: &str = "cluster-ca.pem";

/// The agent's certificate files in the data folder, readable by root alone.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    pub fn create(folder: PathBuf) -> Result<Self> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.with_context(|| format!("cannot create the folder {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// Returns the store of a folder that may not exist.
    pub fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the file of [`Store::trust`].
    pub fn trust_file(&self) -> PathBuf {
        self.folder.join(TRUSTED)
    }

    /// Returns the given access with the stored client certificate of an earlier start.
    pub fn identity(&self, given: &Access) -> Option<Access> {
        self.read(CLIENT).map(|kept| with_credentials(given, &kept))
    }

    /// Reads the stored credentials of this name; `None` unless both certificate and key can be read.
    fn read(&self, name: &str) -> Option<Credentials> {
        let part = |extension: &str| fs::read_to_string(self.folder.join(format!("{name}.{extension}"))).ok();
        Some(Credentials { certificate: part("crt")?, key: part("key")? })
    }

    /// Reads the digest that was stored with the serving certificate.
    fn cluster(&self) -> Option<String> {
        fs::read_to_string(self.folder.join(CLUSTER)).ok()
    }

    fn write_cluster(&self, digest: &str) -> Result<()> {
        write_private(&self.folder.join(CLUSTER), digest.as_bytes())
    }

    /// Returns the authorities that the cluster published to the agent with the kubeconfig of this digest.
    pub fn trusted(&self, kubeconfig: &str) -> Option<String> {
        let kept = fs::read_to_string(self.trust_file()).ok()?;
        let (of, bundle) = kept.split_once('\n')?;
        (of == kubeconfig).then(|| bundle.to_owned())
    }

    /// Stores the published authorities.
    pub fn trust(&self, kubeconfig: &str, bundle: &str) -> Result<()> {
        write_private(&self.trust_file(), format!("{kubeconfig}\n{bundle}").as_bytes())
    }

    /// Returns whether no serving certificate is stored, so that the kubeconfig's certificate serves too.
    pub fn has_no_serving(&self) -> bool {
        self.read(SERVING).is_none()
    }

    /// Returns whether the serving certificate was issued while the cluster had these authorities.
    pub fn serving_is_of(&self, authorities: &[u8]) -> bool {
        self.cluster().is_none_or(|cluster| cluster == trust::digest(authorities))
    }

    fn write(&self, name: &str, credentials: &Credentials) -> Result<()> {
        write_private(&self.folder.join(format!("{name}.key")), credentials.key.as_bytes())?;
        write_private(&self.folder.join(format!("{name}.crt")), credentials.certificate.as_bytes())
    }
}

/// The contents of a certificate that matter here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Facts {
    common_name: String,
    names: Vec<String>,
    addresses: Vec<IpAddr>,
    server: bool,
    not_after: Timestamp,
}

impl Facts {
    fn of(pem: &[u8]) -> Option<Self> {
        let der = CertificateDer::from_pem_slice(pem).ok()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(&der).ok()?;
        let mut facts = Self {
            common_name: certificate.subject().iter_common_name().next()?.as_str().ok()?.to_owned(),
            server: certificate.extended_key_usage().ok().flatten().is_some_and(|u| u.value.server_auth),
            not_after: Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()?,
            ..Self::default()
        };
        let names = certificate.subject_alternative_name().ok().flatten();
        for name in names.iter().flat_map(|n| &n.value.general_names) {
            match name {
                GeneralName::DNSName(name) => facts.names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => {
                    let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
                    facts.addresses.extend(v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)));
                }
                _ => {}
            }
        }
        Some(facts)
    }

    fn is_fresh(&self, now: Timestamp) -> bool {
        now.checked_add(RENEW_BEFORE).is_ok_and(|then| then < self.not_after)
    }

    fn serves(&self, names: &Names) -> bool {
        self.server
            && names.names.iter().all(|n| self.names.contains(n))
            && names.addresses.iter().all(|a| self.addresses.contains(a))
    }
}

/// Returns when a certificate is due for renewal.
pub fn renew_at(pem: &[u8]) -> Option<Timestamp> {
    Facts::of(pem)?.not_after.checked_sub(RENEW_BEFORE).ok()
}

/// The alternative names of a serving certificate.
#[derive(Clone)]
struct Names {
    names: Vec<String>,
    addresses: Vec<IpAddr>,
}

impl Names {
    /// Returns the names of a node with these addresses. The node's name may itself be an address.
    fn of(node: &str, addresses: &[IpAddr]) -> Self {
        let (names, addresses) = alternative_names(&[node.to_owned()], addresses);
        Self { names, addresses }
    }
}

/// Obtains the certificates of one node.
pub struct Applicant<'a> {
    pub node: &'a str,
    /// The access of the kubeconfig.
    pub given: &'a Access,
    /// The user that the kubeconfig authenticates as.
    pub user: &'a access::User,
    pub clock: &'a Arc<dyn Clock>,
    pub store: &'a Store,
}

impl Applicant<'_> {
    /// Returns the node's own access to the API server, and a description of its source for the terminal.
    pub async fn client_identity(&self) -> Result<(Access, String)> {
        if self.is_node() && self.is_fresh(self.given) && !trust::is_superseded(self.given) {
            return Ok((self.given.clone(), format!("{}{}", NODE_USER_PREFIX, self.node)));
        }
        if let Some(kept) = self.kept_identity().await {
            return Ok((kept, "kept from an earlier start".to_owned()));
        }
        let credentials = self.request_identity(self.given).await?;
        Ok((with_credentials(self.given, &credentials), "issued by the cluster".to_owned()))
    }

    /// Requests a client certificate through the given access, which is the node's own or an administrator's.
    pub async fn request_identity(&self, with: &Access) -> Result<Credentials> {
        let request =
            Request { node: self.node, signer: KUBE_APISERVER_CLIENT_KUBELET, names: &[], addresses: &[] };
        let client = access::client(with, self.clock, "knarr-agent")?;
        let approval = if self.is_node() { Approval::ByOthers } else { Approval::With(&client) };
        let Obtained::Issued(credentials) = request.obtain(&client, approval).await? else {
            bail!("the node's certificate was left to a person");
        };
        self.store.write(CLIENT, &credentials)?;
        Ok(credentials)
    }

    /// Returns the kubelet's serving certificate and a description of its source for the terminal. The
    /// certificate is for the node's name and address, or for the name alone while no approver vouches for
    /// the address.
    pub async fn serving_certificate(&self, identity: &Access, ip: IpAddr) -> Result<(Credentials, String)> {
        let (own_name, wanted) = (Names::of(self.node, &[]), Names::of(self.node, &[ip]));
        if let Some(credentials) = self.of_access(identity, &own_name) {
            return Ok((credentials, "the node's own".to_owned()));
        }
        let kept = self.store.read(SERVING).filter(|kept| self.is_of_cluster(kept));
        let kept = |names: &Names| kept.clone().filter(|k| self.fits(k.certificate.as_bytes(), names));
        if let Some(kept) = kept(&wanted) {
            return Ok((kept, "kept from an earlier start".to_owned()));
        }
        let client = access::client(identity, self.clock, "knarr-agent")?;
        let why = match self.request_serving(&client, &wanted, Approval::ByController).await? {
            Obtained::Issued(credentials) => return Ok((credentials, "issued by the cluster".to_owned())),
            Obtained::Referred(why) => why,
        };
        tracing::warn!("the kubelet's certificate is for the node's name alone: {why}");
        if let Some(kept) = kept(&own_name) {
            return Ok((kept, "kept from an earlier start, without the address".to_owned()));
        }
        match self.request_serving(&client, &own_name, Approval::ByOthers).await? {
            Obtained::Issued(made) => Ok((made, "issued by the cluster, without the address".to_owned())),
            Obtained::Referred(why) => bail!("no serving certificate: {why}"),
        }
    }

    /// Requests a serving certificate; it is approved with an administrator's access if the kubeconfig has
    /// that.
    async fn request_serving(
        &self,
        client: &Client,
        wanted: &Names,
        approval: Approval<'_>,
    ) -> Result<Obtained> {
        let request = Request {
            node: self.node,
            signer: KUBELET_SERVING,
            names: &wanted.names,
            addresses: &wanted.addresses,
        };
        let admin = access::client(self.given, self.clock, "knarr-agent")?;
        let approval = if self.is_node() { approval } else { Approval::With(&admin) };
        let obtained = request.obtain(client, approval).await?;
        if let Obtained::Issued(credentials) = &obtained {
            self.store.write(SERVING, credentials)?;
            self.store.write_cluster(&self.cluster())?;
        }
        Ok(obtained)
    }

    /// Requests a new serving certificate if the stored one expires soon. With `now`, requests it at once,
    /// for `ip` if none is stored.
    pub async fn renew_serving(
        &self,
        identity: &Access,
        ip: IpAddr,
        now: bool,
    ) -> Result<Option<Credentials>> {
        let kept = self.store.read(SERVING).and_then(|kept| Facts::of(kept.certificate.as_bytes()));
        let names = match kept {
            Some(facts) if now || !facts.is_fresh(self.clock.now()) => {
                Names { names: facts.names, addresses: facts.addresses }
            }
            None if now => Names::of(self.node, &[ip]),
            _ => return Ok(None),
        };
        let client = access::client(identity, self.clock, "knarr-agent")?;
        let why = match self.request_serving(&client, &names, Approval::ByController).await? {
            Obtained::Issued(made) => return Ok(Some(made)),
            Obtained::Referred(why) => why,
        };
        tracing::warn!("the kubelet's certificate is renewed for the node's name alone: {why}");
        let own_name = Names::of(self.node, &[]);
        match self.request_serving(&client, &own_name, Approval::ByController).await? {
            Obtained::Issued(made) => Ok(Some(made)),
            Obtained::Referred(why) => bail!("the serving certificate was left to a person: {why}"),
        }
    }

    fn is_node(&self) -> bool {
        self.user.node() == Some(self.node)
    }

    fn is_fresh(&self, access: &Access) -> bool {
        let facts = access.client_certificate.as_deref().and_then(Facts::of);
        // Tokens are renewed by whatever issues them, not here.
        facts.is_none_or(|f| f.is_fresh(self.clock.now()))
    }

    /// Returns the stored identity, unless the server does not accept it, which means that it is another
    /// server now.
    async fn kept_identity(&self) -> Option<Access> {
        let kept = self.store.read(CLIENT)?;
        let facts = Facts::of(kept.certificate.as_bytes())?;
        if facts.common_name != format!("{NODE_USER_PREFIX}{}", self.node)
            || !facts.is_fresh(self.clock.now())
        {
            return None;
        }
        let access = with_credentials(self.given, &kept);
        if trust::is_superseded(&access) {
            return None;
        }
        let client = access::client(&access, self.clock, "knarr-agent").ok()?;
        let user = access::who_am_i(&client).await.ok()?;
        (user.node() == Some(self.node)).then_some(access)
    }

    fn fits(&self, pem: &[u8], wanted: &Names) -> bool {
        Facts::of(pem).is_some_and(|f| f.serves(wanted) && f.is_fresh(self.clock.now()))
    }

    /// Returns the certificate of the access if it is a serving certificate too.
    fn of_access(&self, access: &Access, wanted: &Names) -> Option<Credentials> {
        let (certificate, key) = (access.client_certificate.as_deref()?, access.client_key.as_deref()?);
        self.fits(certificate, wanted).then(|| Credentials {
            certificate: String::from_utf8_lossy(certificate).into_owned(),
            key: String::from_utf8_lossy(key).into_owned(),
        })
    }

    /// Returns whether the stored certificate was issued by this cluster; a recreated cluster would not trust
    /// it. The authority that signs for kubelets is not in the kubeconfig, so the kubeconfig's authority is
    /// compared with the one at the time of issue.
    fn is_of_cluster(&self, kept: &Credentials) -> bool {
        match self.store.cluster() {
            Some(cluster) => cluster == self.cluster(),
            // Stored by an earlier version, which had one authority for everything.
            None => self.is_signed_by_cluster(kept),
        }
    }

    /// Returns a digest of the kubeconfig's authority.
    fn cluster(&self) -> String {
        let authorities = self.given.certificate_authority.as_deref().unwrap_or_default();
        trust::digest(authorities)
    }

    fn is_signed_by_cluster(&self, kept: &Credentials) -> bool {
        let authorities = self.given.certificate_authority.as_deref().unwrap_or_default();
        let Ok(leaf) = CertificateDer::from_pem_slice(kept.certificate.as_bytes()) else { return false };
        let Ok((_, leaf)) = x509_parser::parse_x509_certificate(&leaf) else { return false };
        CertificateDer::pem_slice_iter(authorities).flatten().any(|root| {
            let root = x509_parser::parse_x509_certificate(&root);
            root.is_ok_and(|(_, root)| leaf.verify_signature(Some(root.public_key())).is_ok())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::{Pki, Subject};

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("knarr-agent-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn sign(pki: &Pki, server: bool) -> Credentials {
        let subject = Subject {
            common_name: "system:node:n1",
            organizations: &["system:nodes"],
            names: &["n1".to_owned()],
            addresses: &["10.0.0.1".parse().unwrap()],
            server,
            client: true,
        };
        pki.sign(&subject).unwrap()
    }

    #[test]
    fn certificates_are_judged_by_names_purpose_and_age() {
        let folder = Folder::new("facts");
        let pki = Pki::open(folder.0.join("pki")).unwrap();
        let facts = Facts::of(sign(&pki, true).certificate.as_bytes()).unwrap();
        assert_eq!(facts.common_name, "system:node:n1");
        let names =
            |name: &str, ip: &str| Names { names: vec![name.into()], addresses: vec![ip.parse().unwrap()] };
        assert!(facts.serves(&names("n1", "10.0.0.1")));
        assert!(!facts.serves(&names("n1", "10.0.0.2")));
        assert!(!facts.serves(&names("n2", "10.0.0.1")));
        assert!(
            !Facts::of(sign(&pki, false).certificate.as_bytes()).unwrap().serves(&names("n1", "10.0.0.1"))
        );
        let now = Timestamp::now();
        assert!(facts.is_fresh(now));
        assert!(!facts.is_fresh(now + Duration::from_secs(336 * 86_400)));
        assert_eq!(Facts::of(b"nonsense"), None);
    }

    /// The names that are requested, signed and later checked are the same, even if the node's name is an
    /// address.
    #[test]
    fn certificates_fit_what_was_asked_for() {
        let folder = Folder::new("asked");
        let pki = Pki::open(folder.0.join("pki")).unwrap();
        let ip: IpAddr = "10.0.0.7".parse().unwrap();
        let keys = pki.certificate_signer().unwrap();
        for (node, names, addresses) in [("n1", 1, 1), ("10.0.0.7", 0, 1), ("10.0.0.8", 0, 2)] {
            let wanted = Names::of(node, &[ip]);
            assert_eq!((wanted.names.len(), wanted.addresses.len()), (names, addresses), "{node}");
            let request =
                Request { node, signer: KUBELET_SERVING, names: &wanted.names, addresses: &wanted.addresses };
            let csr = request.object(&rcgen::KeyPair::generate().unwrap()).unwrap();
            let der = rustls::pki_types::CertificateSigningRequestDer::from_pem_slice(&csr.spec.request.0);
            let usages = csr.spec.usages.unwrap();
            let day = Duration::from_secs(86_400);
            let signed = knarr_controllers::CertificateSigner::sign(
                &keys,
                KUBELET_SERVING,
                &der.unwrap(),
                &usages,
                60 * day,
                Timestamp::now(),
            );
            let facts = Facts::of(signed.unwrap().as_bytes()).unwrap();
            assert!(facts.serves(&wanted), "{node}: {facts:?}");
            assert!(facts.serves(&Names::of(node, &[])), "{node}: {facts:?}");
            assert_eq!((facts.names.len(), facts.addresses.len()), (names, addresses), "{node}");
            // The subject of a server's own node, and of `knarr kubeconfig --node`.
            let subject = Subject {
                common_name: &format!("system:node:{node}"),
                organizations: &["system:nodes"],
                names: &[node.to_owned()],
                addresses: &[ip],
                server: true,
                client: true,
            };
            let facts = Facts::of(pki.sign(&subject).unwrap().certificate.as_bytes()).unwrap();
            assert!(facts.serves(&wanted), "{node}: {facts:?}");
            let first = pki.credentials("kubelet", &subject).unwrap();
            assert_eq!(
                pki.credentials("kubelet", &subject).unwrap().certificate,
                first.certificate,
                "{node}"
            );
        }
    }

    #[test]
    fn kept_certificates_have_to_be_of_this_cluster() {
        let folder = Folder::new("kept");
        let (pki, other) = (Pki::open(folder.0.join("a")).unwrap(), Pki::open(folder.0.join("b")).unwrap());
        let store = Store::create(folder.0.join("kept")).unwrap();
        let given =
            Access { certificate_authority: Some(pki.ca_pem().as_bytes().to_vec()), ..Access::default() };
        let clock: Arc<dyn Clock> = Arc::new(knarr_client::clock::SystemClock);
        let user = access::User::default();
        let applicant = Applicant { node: "n1", given: &given, user: &user, clock: &clock, store: &store };
        assert!(applicant.is_of_cluster(&sign(&pki, true)));
        assert!(!applicant.is_of_cluster(&sign(&other, true)));
        // Kubelets' certificates may have another authority than the one in the kubeconfig.
        store.write_cluster(&applicant.cluster()).unwrap();
        let issued = sign(&pki.kubelet_serving().unwrap(), true);
        assert!(applicant.is_of_cluster(&issued));
        let given =
            Access { certificate_authority: Some(other.ca_pem().as_bytes().to_vec()), ..Access::default() };
        assert!(!Applicant { given: &given, ..applicant }.is_of_cluster(&issued));
        assert!(store.read(SERVING).is_none());
        store.write(SERVING, &sign(&pki, true)).unwrap();
        assert!(store.read(SERVING).is_some());
        let mode = fs::metadata(folder.0.join("kept/kubelet.key")).unwrap();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o600);
    }
}
