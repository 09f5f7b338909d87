//! A kubeconfig that is read again when it, or a file that it names, changes, because certificates and tokens
//! expire.
//!
//! Source: client-go reads the files of client certificates (`k8s.io/client-go/transport/cert_rotation.go`)
//! and of tokens again. Knarr also reads the kubeconfig itself again, with the certificates that are embedded
//! in it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use knarr_apimachinery::clock::Clock;
use knarr_client::Client;
use knarr_client::kubeconfig::Access;
use knarr_client::rotating::Rotating;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio_util::sync::CancellationToken;

use crate::certificates::folder_watch::{self, FolderWatch};

/// How often the files are read even without a change notification, which network file systems for instance
/// do not send. Source: `CertCallbackRefreshDuration` of client-go.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The transports to the API server that a kubeconfig configures.
#[derive(Clone)]
pub struct FollowedKubeconfig {
    path: PathBuf,
    /// The access as it was at the start.
    access: Access,
    own: Arc<Rotating>,
    anonymous: Arc<Rotating>,
}

impl FollowedKubeconfig {
    /// Builds the transports; `access` is what was read from the file at `path`.
    pub fn new(path: &Path, access: Access) -> Result<Self> {
        let own = Rotating::new(&access).context("cannot use the kubeconfig")?;
        let anonymous = Rotating::new(&access.anonymous()).context("cannot use the kubeconfig")?;
        Ok(Self { path: path.to_owned(), access, own, anonymous })
    }

    pub fn open(path: &Path) -> Result<Self> {
        let access = Access::load(path).with_context(|| format!("cannot use {}", path.display()))?;
        Self::new(path, access)
    }

    /// Returns a client with the kubeconfig's identity.
    pub fn client(&self, clock: &Arc<dyn Clock>, manager: &str) -> Client {
        Client::new(Arc::clone(&self.own) as _, Arc::clone(clock), manager)
    }

    /// Returns a transport to the same server for clients that bring their own identity.
    pub fn without_identity(&self) -> Arc<Rotating> {
        Arc::clone(&self.anonymous)
    }

    /// Applies changes of the files until `stop`.
    pub async fn follow(self, clock: Arc<dyn Clock>, stop: CancellationToken) {
        let mut used = self.access.clone();
        loop {
            // The changed kubeconfig may name other files. Reading may block, on a network file system for instance.
            let path = self.path.clone();
            let read = tokio::task::spawn_blocking(move || {
                let watch = FolderWatch::new(&folders(&path));
                (watch, Access::load(&path))
            });
            let read = tokio::select! {
                () = stop.cancelled() => return,
                read = read => read,
            };
            let Ok((watch, now)) = read else { return };
            let watch = watch.inspect_err(|error| tracing::warn!("{error:#}")).ok();
            if let Err(error) = now.map_err(Into::into).and_then(|now| self.take(now, &mut used)) {
                let file = self.path.display();
                tracing::warn!("{file} has changed, and is not used: {error:#}");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep(LONGEST_WAIT) => {}
                () = folder_watch::changed(watch.as_ref(), &clock) => {}
            }
        }
    }

    /// Uses this access from now on if it is one of the same cluster.
    fn take(&self, now: Access, used: &mut Access) -> Result<()> {
        if now == *used {
            return Ok(());
        }
        if let Some(why) = objection(&now, used) {
            bail!("{why}");
        }
        self.own.exchange(&now)?;
        self.anonymous.exchange(&now.anonymous())?;
        tracing::info!(kubeconfig = %self.path.display(), "the kubeconfig has changed, new connections use it");
        *used = now;
        Ok(())
    }
}

/// Returns why a changed access is not used without a restart: it may be of another cluster, for which nothing that
/// this process has cached holds, or of no user.
fn objection(now: &Access, used: &Access) -> Option<String> {
    if now.server != used.server {
        return Some(format!(
            "it names the server {} in place of {}: that takes a restart",
            now.server, used.server
        ));
    }
    let has_identity = |access: &Access| access.client_certificate.is_some() || access.token.is_some();
    if has_identity(used) && !has_identity(now) {
        return Some("its user has neither a certificate nor a token any more".to_owned());
    }
    let authorities = |access: &Access| -> Option<BTreeSet<Vec<u8>>> {
        let pem = access.certificate_authority.as_deref()?;
        Some(CertificateDer::pem_slice_iter(pem).flatten().map(|der| der.to_vec()).collect())
    };
    let (before, after) = (authorities(used)?, authorities(now)?);
    before
        .is_disjoint(&after)
        .then(|| "it has none of the certificate authorities of before: that takes a restart".to_owned())
}

/// Returns the folders of the kubeconfig and of the files that it names.
fn folders(path: &Path) -> Vec<PathBuf> {
    let named = Access::files(path).unwrap_or_default();
    let folder = |file: &Path| match file.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let own = path.to_owned();
    let folders: BTreeSet<PathBuf> = named.iter().chain([&own]).map(|file| folder(file)).collect();
    folders.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Mutex;

    use knarr_client::clock::SystemClock;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::server::WebPkiClientVerifier;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::certificate::Holder;
    use crate::pki::{Credentials, Pki, Subject};

    fn sign(pki: &Pki, name: &str) -> Credentials {
        let subject = Subject {
            common_name: name,
            organizations: &[],
            names: &[],
            addresses: &["127.0.0.1".parse().unwrap()],
            server: true,
            client: true,
        };
        pki.sign(&subject).unwrap()
    }

    /// Starts a server that records the certificates that clients show. It completes the handshake and closes
    /// the connection.
    async fn server(pki: &Pki) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(pki.ca_pem().as_bytes()).unwrap()).unwrap();
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let own = sign(pki, "server");
        let chain = vec![CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap()];
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.build().unwrap())
            .with_single_cert(chain, PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap())
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let shown = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(tcp).await else { continue };
                let leaf = stream.get_ref().1.peer_certificates().unwrap()[0].clone();
                let pem = crate::certificate::pem(&leaf);
                shown.lock().unwrap().push(Holder::of(&pem).unwrap().common_name);
            }
        });
        (address, seen)
    }

    #[test]
    fn another_cluster_or_no_user_is_not_taken() {
        let folder = std::env::temp_dir().join(format!("knarr-followed-objection-{}", std::process::id()));
        let pem = |name: &str| Pki::open(folder.join(name)).unwrap().ca_pem().to_owned();
        let (one, other) = (pem("one"), pem("other"));
        let access = |authority: &str, token: Option<&str>| Access {
            server: "https://h".to_owned(),
            certificate_authority: Some(authority.as_bytes().to_vec()),
            token: token.map(str::to_owned),
            ..Access::default()
        };
        let used = access(&one, Some("t"));
        let why = |now: &Access| objection(now, &used).unwrap_or_default();
        assert_eq!(why(&access(&one, Some("new"))), "");
        assert_eq!(why(&access(&format!("{other}{one}"), Some("t"))), "");
        assert_eq!(why(&access(&one, None)), "its user has neither a certificate nor a token any more");
        let others = "it has none of the certificate authorities of before: that takes a restart";
        assert_eq!(why(&access(&other, Some("t"))), others);
        let moved = Access { server: "https://x".to_owned(), ..used.clone() };
        assert!(why(&moved).starts_with("it names the server https://x in place of https://h"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn new_certificates_are_used_without_a_restart() {
        let folder = std::env::temp_dir().join(format!("knarr-followed-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let pki = Pki::open(folder.join("pki")).unwrap();
        let (address, seen) = server(&pki).await;
        let keys = folder.join("keys");
        std::fs::create_dir_all(&keys).unwrap();
        let put = |file: PathBuf, text: &str| {
            // Renaming replaces the file atomically, as administrators should do.
            std::fs::write(folder.join("new"), text).unwrap();
            std::fs::rename(folder.join("new"), file).unwrap();
        };
        let put_pair = |name: &str| {
            let pair = sign(&pki, name);
            put(keys.join("c.crt"), &pair.certificate);
            put(keys.join("c.key"), &pair.key);
        };
        put_pair("first");
        put(keys.join("ca.crt"), pki.ca_pem());
        let path = folder.join("kubeconfig");
        let by_files = |server: &str| {
            format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
                 contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
                 clusters: [{{name: c, cluster: {{server: '{server}', certificate-authority: keys/ca.crt}}}}]\n\
                 users: [{{name: u, user: {{client-certificate: keys/c.crt, client-key: keys/c.key}}}}]\n"
            )
        };
        let url = format!("https://{address}");
        put(path.clone(), &by_files(&url));

        let followed = FollowedKubeconfig::open(&path).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let client = followed.client(&clock, "test");
        let stop = CancellationToken::new();
        let following = tokio::spawn(followed.clone().follow(clock, stop.clone()));
        let comes_as = async |name: &str| {
            for _ in 0..600 {
                client.get_as("/version".to_owned(), "application/json").await.unwrap_err();
                if seen.lock().unwrap().last().is_some_and(|last| last == name) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            panic!("no client came as {name}: {:?}", seen.lock().unwrap().last());
        };
        comes_as("first").await;
        // The kubeconfig names files in another folder.
        put_pair("second");
        comes_as("second").await;
        // A certificate without its key is not used, and neither is a kubeconfig of another server.
        put(keys.join("c.crt"), &sign(&pki, "half").certificate);
        put(path.clone(), &by_files("https://127.0.0.1:1"));
        tokio::time::sleep(Duration::from_millis(2500)).await;
        comes_as("second").await;
        // The kubeconfig itself holds certificate and key.
        let third = sign(&pki, "third");
        let access = Access {
            server: url,
            certificate_authority: Some(pki.ca_pem().as_bytes().to_vec()),
            client_certificate: Some(third.certificate.into_bytes()),
            client_key: Some(third.key.into_bytes()),
            ..Access::default()
        };
        put(path.clone(), &access.to_yaml("c", "u").unwrap());
        comes_as("third").await;
        assert!(!seen.lock().unwrap().iter().any(|name| name == "half"));
        stop.cancel();
        following.await.unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
