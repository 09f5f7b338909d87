//! TLS of a component's port: its certificate, and the authority of its clients as the cluster publishes it.

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use knarr_api::kind::Kind;
use knarr_api::object::Object;
use knarr_client::{Client, ListOptions, WatchEvent};
use knarr_tls::Roots;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;

use crate::private_files::read;

/// The ConfigMap in which the API server publishes the authorities of the client certificates that it
/// accepts.
const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
const KEY: &str = "client-ca-file";
/// The pause between two attempts to read it.
const RETRY: Duration = Duration::from_secs(10);

pub struct Tls {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// The client that reads the authority of clients; `None` if a file sets it.
    lookup: Option<Client>,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Uses the certificate and key of two files, or new ones; and the clients' authority of a file, or as
    /// `lookup` reads it.
    pub fn open(
        pair: Option<(&Path, &Path)>,
        client_ca: Option<&Path>,
        lookup: Option<Client>,
        address: IpAddr,
    ) -> Result<Self> {
        let (certificate, key) = match pair {
            Some((certificate, key)) => (read(certificate)?, read(key)?),
            None => new_pair(address)?,
        };
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate.as_bytes())
            .collect::<Result<_, _>>()
            .context("the serving certificate is not PEM")?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).context("the serving key is not PEM")?;
        let authority = client_ca.map(read).transpose()?;
        let config = configuration(&chain, &key, authority.as_deref())?;
        // An authority that was set by a file is not replaced.
        let lookup = lookup.filter(|_| authority.is_none());
        Ok(Self { chain, key, lookup, config: RwLock::new(config) })
    }

    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Follows the clients' authority that the cluster publishes, until `stop`.
    pub async fn follow(&self, stop: CancellationToken) {
        let Some(client) = &self.lookup else { return };
        loop {
            let followed = tokio::select! {
                () = stop.cancelled() => return,
                followed = self.hear(client) => followed,
            };
            if let Err(error) = followed {
                tracing::warn!(error = format!("{error:#}"), "the clients' authority is not known");
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = client.clock().sleep(RETRY) => {}
                }
            }
        }
    }

    /// Lists once and then watches, as long as the watch lasts.
    async fn hear(&self, client: &Client) -> Result<()> {
        let resource = ConfigMap::RESOURCE;
        let mut options =
            ListOptions { field_selector: Some(format!("metadata.name={NAME}")), ..ListOptions::default() };
        let list = client.transport().list(&resource, Some(NAMESPACE), &options).await?;
        list.items.iter().for_each(|map| self.take(map));
        options.resource_version = Some(list.resource_version);
        let mut events = client.transport().watch(&resource, Some(NAMESPACE), &options).await?;
        while let Some(event) = events.next().await {
            if let WatchEvent::Added(map) | WatchEvent::Modified(map) = event? {
                self.take(&map);
            }
        }
        Ok(())
    }

    fn take(&self, map: &Object) {
        let Ok(map) = map.typed::<ConfigMap>() else { return };
        let authority = map.data.as_ref().and_then(|data| data.get(KEY)).map(String::as_str);
        match configuration(&self.chain, &self.key, authority) {
            Ok(config) => *self.config.write().unwrap_or_else(PoisonError::into_inner) = config,
            Err(error) => tracing::warn!(error = format!("{error:#}"), "the clients' authority is unusable"),
        }
    }
}

/// Creates a self-signed certificate; operators who want clients to verify the server set one.
fn new_pair(address: IpAddr) -> Result<(String, String)> {
    let names = vec!["localhost".to_owned(), address.to_string()];
    let made = rcgen::generate_simple_self_signed(names).context("cannot make a serving certificate")?;
    Ok((made.cert.pem(), made.signing_key.serialize_pem()))
}

fn configuration(
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
    authority: Option<&str>,
) -> Result<Arc<ServerConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("no TLS")?;
    let builder = match authority {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let mut roots = Roots::empty();
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                roots.add(certificate.context("the clients' authority is not PEM")?)?;
            }
            if roots.is_empty() {
                bail!("the clients' authority has no certificate");
            }
            // Other clients authenticate with a token, or are anonymous.
            builder.with_client_cert_verifier(knarr_tls::client_verifier(roots)?)
        }
    };
    let mut config = builder.with_single_cert(chain.to_vec(), key.clone_key())?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
