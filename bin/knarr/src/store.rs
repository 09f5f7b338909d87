//! The store of the cluster's state: in the data folder, or in an etcd cluster that several servers share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;
use knarr_apiserver::storage_options;
use knarr_storage::{
    Compare, Embedded, Error, Etcd, EtcdOptions, EtcdTls, Op, Options, Precondition, Shifted, Store,
};

use crate::certificates::authorities::standing::{Standing, Verdict};
use crate::layout::Layout;
use crate::pki::Pki;

/// The key that identifies the cluster whose state the store holds.
pub const IDENTITY: &[u8] = b"/cluster/identity";
/// The key for the state of rotations of the cluster's authorities; missing before the first rotation.
const AUTHORITIES: &[u8] = b"/cluster/authorities";
/// A key that exists while a backup is being restored.
pub const RESTORING: &[u8] = b"/cluster/restoring";
/// The offset that is added to etcd's revisions, as a decimal number: etcd may be younger than the cluster
/// that was restored into it.
pub const OFFSET: &[u8] = b"/cluster/revision-offset";
/// How long a start waits for etcd, as kube-apiserver's does: etcd may have no leader, or start at the same
/// time.
const ETCD_WAIT: Duration = Duration::from_secs(60);
const ETCD_RETRY: Duration = Duration::from_millis(500);
/// How often a server that starts beside others tries to write its own state of rotations.
const ATTEMPTS: usize = 10;

/// The etcd cluster and how to connect to it.
#[derive(Args)]
pub struct EtcdArgs {
    /// Keep the cluster's state in etcd (v3.4 or later) instead of the data folder; several servers may share
    /// it
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    etcd_servers: Vec<String>,
    /// Prefix of all keys in etcd
    #[arg(long, value_name = "PREFIX", default_value = "/knarr")]
    etcd_prefix: String,
    /// Authorities that sign etcd's certificates [default: those of the system]
    #[arg(long, value_name = "FILE")]
    etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    etcd_certfile: Option<PathBuf>,
    /// Key of the client certificate for etcd
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
}

#[derive(Args)]
pub struct StoreArgs {
    #[command(flatten)]
    etcd: EtcdArgs,
    /// Maximum size in bytes of the cluster's state in the data folder; above it, creations and updates that
    /// grow are refused. 0: 2 GiB, negative: no quota
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 0,
        allow_negative_numbers = true,
        conflicts_with = "etcd_servers"
    )]
    quota_backend_bytes: i64,
    /// Maximum size in bytes of the objects of one namespace, except the system's. 0: an eighth of the quota,
    /// negative: no limit
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 0,
        allow_negative_numbers = true,
        conflicts_with = "etcd_servers"
    )]
    namespace_storage_limit_bytes: i64,
}

impl StoreArgs {
    /// Returns whether other servers may use the same store.
    pub fn shared(&self) -> bool {
        self.etcd.shared()
    }

    /// Returns the certificate files that an external process renews.
    pub fn certificate_files(&self) -> Vec<PathBuf> {
        self.etcd.certificate_files()
    }

    /// Opens the store and verifies that it holds this server's own cluster.
    pub async fn open(&self, layout: &Layout, pki: &Pki) -> Result<Arc<dyn Store>> {
        if !self.shared() {
            let options = storage_options(self.quota_backend_bytes, self.namespace_storage_limit_bytes);
            return Ok(embedded(layout, options).await?);
        }
        for url in self.etcd.etcd_servers.iter().filter(|url| is_readable_on_the_way(url)) {
            tracing::warn!(
                "--etcd-servers: {url} is not encrypted: anyone on the network path can read all Secrets"
            );
        }
        let store = self.etcd.connect_plain()?;
        claim(&*store, pki, &layout.pki()).await?;
        keep_in_step(&*store, pki, self.etcd.prefix()).await?;
        // The offset is read last: a restore writes it, and only the checks above show that none is running.
        self.etcd.shifted(store).await
    }
}

impl EtcdArgs {
    /// Returns the defaults, as if no flag were given.
    #[cfg(test)]
    pub fn none() -> Self {
        let etcd_prefix = "/knarr".to_owned();
        Self {
            etcd_servers: Vec::new(),
            etcd_prefix,
            etcd_cafile: None,
            etcd_certfile: None,
            etcd_keyfile: None,
        }
    }

    /// Returns whether the state is in etcd.
    pub fn shared(&self) -> bool {
        !self.etcd_servers.is_empty()
    }

    /// Wraps the store so that its revisions are those of the cluster that it holds.
    async fn shifted(&self, store: Arc<dyn Store>) -> Result<Arc<dyn Store>> {
        let offset = until_reached(|| store.get(OFFSET)).await.context("cannot use etcd")?;
        Ok(Shifted::wrap(store, self.offset(offset.as_ref().map(|kv| &kv.value[..]))?))
    }

    /// Parses the value of [`OFFSET`], which is added to etcd's revisions.
    pub fn offset(&self, value: Option<&[u8]>) -> Result<u64> {
        let Some(value) = value else { return Ok(0) };
        let by = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        let key = String::from_utf8_lossy(OFFSET);
        by.with_context(|| format!("the value of {}{key} in etcd is no number", self.etcd_prefix))
    }

    /// Connects to etcd; the store has etcd's own revisions.
    pub fn connect_plain(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Etcd::new(self.options()?)?))
    }

    /// Returns the prefix of all keys.
    pub fn prefix(&self) -> &str {
        self.etcd_prefix.trim_end_matches('/')
    }

    /// Returns the certificate files that an external process renews.
    pub fn certificate_files(&self) -> Vec<PathBuf> {
        [&self.etcd_cafile, &self.etcd_certfile].into_iter().flatten().cloned().collect()
    }

    fn options(&self) -> Result<EtcdOptions> {
        if !self.etcd_prefix.starts_with('/') || self.etcd_prefix.len() < 2 {
            bail!("--etcd-prefix: {} does not begin with / or names nothing", self.etcd_prefix);
        }
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
        };
        let client_pem = match (&self.etcd_certfile, &self.etcd_keyfile) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => None,
        };
        let ca_pem = self.etcd_cafile.as_ref().map(read).transpose()?;
        Ok(EtcdOptions {
            prefix: self.prefix().to_owned(),
            tls: EtcdTls { ca_pem, client_pem },
            ..EtcdOptions::new(self.etcd_servers.clone())
        })
    }
}

/// Returns whether requests to this URL leave the machine without TLS.
fn is_readable_on_the_way(url: &str) -> bool {
    let Some(authority) = url.strip_prefix("http://") else { return false };
    let authority = authority.split('/').next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => authority.split(':').next(),
    };
    let host = host.unwrap_or_default();
    host != "localhost" && !host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

async fn embedded(layout: &Layout, options: Options) -> Result<Arc<Embedded>> {
    let folder = layout.store();
    let store = tokio::task::spawn_blocking(move || Embedded::open(&folder, options))
        .await?
        .map_err(|error| match error {
            knarr_storage::OpenError::Locked(path) => anyhow::anyhow!(
                "{} is in use: another server runs on this data folder; stop it, or choose another with --data-dir",
                path.display()
            ),
            other => anyhow::Error::new(other),
        })?;
    Ok(Arc::new(store))
}

/// Claims the store for this cluster: the first server writes the cluster's identity. A server with other
/// keys is refused, because it would sign what the others reject.
async fn claim(store: &dyn Store, pki: &Pki, folder: &Path) -> Result<()> {
    let ours = Bytes::from(pki.identity()?);
    let absent = |key| Compare { key: Bytes::from_static(key), condition: Precondition::NotExists };
    let mark = Op::Put { key: Bytes::from_static(IDENTITY), value: ours.clone(), lease: None };
    match until_reached(|| store.txn(vec![absent(RESTORING), absent(IDENTITY)], vec![mark.clone()])).await {
        Ok(_) => Ok(()),
        Err(Error::Conflict(conflict)) if &conflict.key[..] == RESTORING => bail!(
            "a backup is being restored into this etcd, or was not restored whole: wait for it, or delete all keys \
             below --etcd-prefix and restore it again"
        ),
        Err(Error::Conflict(conflict)) if conflict.current.as_ref().is_some_and(|kv| kv.value == ours) => {
            Ok(())
        }
        Err(Error::Conflict(_)) => bail!(
            "this etcd holds a cluster with other keys: copy ca.crt, ca.key and sa.key from the folder pki of one of \
             its servers into {} and start again, or choose another --etcd-prefix",
            folder.display()
        ),
        Err(error) => Err(error).context("cannot use etcd"),
    }
}

/// Refuses a server whose authorities the other servers replaced while it was down. A server that is further
/// in a rotation writes its own state.
pub async fn keep_in_step(store: &dyn Store, pki: &Pki, prefix: &str) -> Result<()> {
    let ours = Standing::of(pki)?;
    let key = || Bytes::from_static(AUTHORITIES);
    let in_etcd = format!("{prefix}{}", String::from_utf8_lossy(AUTHORITIES));
    for _ in 0..ATTEMPTS {
        let held = until_reached(|| store.get(AUTHORITIES)).await.context("cannot use etcd")?;
        let known = held.as_ref().map(|kv| serde_json::from_slice(&kv.value)).transpose();
        let known: Option<Standing> = known.with_context(|| format!("the value of {in_etcd} is damaged"))?;
        match ours.among(known.as_ref()) {
            Verdict::Joins => return Ok(()),
            Verdict::Leads => {}
            Verdict::Misfit(names) => bail!(
                "this server does not have the authorities of its cluster, which were replaced while it was away ({}): \
                 copy ca.crt, ca.key, sa.*, identity, rotation, rotation.last, front-proxy/ca.* and kubelet-serving/ca.* from the \
                 folder pki of a server that runs into {}, remove the folder rotation there if the other has none, and \
                 start again. Only if all servers go back to what this one has: delete {in_etcd} in etcd",
                names.join(", "),
                pki.folder().display()
            ),
        }
        let condition = held.map_or(Precondition::NotExists, |kv| Precondition::ModRevision(kv.mod_revision));
        let value = Bytes::from(serde_json::to_vec(&ours)?);
        match until_reached(|| store.put(key(), value.clone(), condition, None)).await {
            Ok(_) => return Ok(()),
            // Another server that starts has written the key, or this one has and did not get the answer.
            Err(Error::Conflict(_)) => {}
            Err(error) => return Err(error).context("cannot use etcd"),
        }
    }
    bail!("{in_etcd} is written again and again: start one server after the other")
}

/// Retries for [`ETCD_WAIT`] while etcd cannot be reached or returns an internal error.
async fn until_reached<T, F>(mut attempt: impl FnMut() -> F) -> knarr_storage::Result<T>
where
    F: Future<Output = knarr_storage::Result<T>>,
{
    let deadline = tokio::time::Instant::now() + ETCD_WAIT;
    let mut logged = false;
    loop {
        match attempt().await {
            Err(error @ (Error::Backend(_) | Error::Timeout)) if tokio::time::Instant::now() < deadline => {
                if !logged {
                    tracing::warn!("waiting for etcd, for up to {ETCD_WAIT:?}: {error}");
                }
                logged = true;
                tokio::time::sleep(ETCD_RETRY).await;
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn plain_http_is_for_this_machine() {
        for (url, readable) in [
            ("http://127.0.0.1:2379", false),
            ("http://localhost:2379", false),
            ("http://[::1]:2379", false),
            ("https://10.0.0.5:2379", false),
            ("http://10.0.0.5:2379", true),
            ("http://[fd00::5]:2379/", true),
            ("http://etcd.example", true),
        ] {
            assert_eq!(is_readable_on_the_way(url), readable, "{url}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_waits_for_etcd_and_for_nothing_else() {
        let calls = Cell::new(0);
        let after = |failures: u32, error: fn() -> Error| {
            calls.set(0);
            let calls = &calls;
            until_reached(move || {
                calls.set(calls.get() + 1);
                let failed = calls.get() <= failures;
                async move { if failed { Err(error()) } else { Ok(()) } }
            })
        };
        let no_leader = || Error::Backend("etcdserver: no leader".into());
        assert!(after(9, no_leader).await.is_ok());
        assert_eq!(calls.get(), 10);
        assert!(matches!(after(u32::MAX, no_leader).await, Err(Error::Backend(_))));
        assert!((100..=130).contains(&calls.get()), "{}", calls.get());
        assert!(matches!(after(9, || Error::Closed).await, Err(Error::Closed)));
        assert_eq!(calls.get(), 1);
    }
}
