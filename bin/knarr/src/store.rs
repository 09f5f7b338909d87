//! Where the cluster's state is kept: in the data folder, or in an etcd cluster that several servers share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;
use knarr_apiserver::storage_options;
use knarr_storage::{Embedded, Error, Etcd, EtcdOptions, EtcdTls, Options, Precondition, Store};

use crate::layout::Layout;
use crate::pki::Pki;

/// Says whose cluster the store holds.
const IDENTITY: &[u8] = b"/cluster/identity";
/// How long a start waits for etcd, as kube-apiserver's does: it may have no leader, or start beside this server.
const ETCD_WAIT: Duration = Duration::from_secs(60);
const ETCD_RETRY: Duration = Duration::from_millis(500);

#[derive(Args)]
pub struct StoreArgs {
    /// Keep the cluster's state in etcd (v3.4 or later) instead of the data folder; several servers may share it
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    etcd_servers: Vec<String>,
    /// What all keys in etcd begin with
    #[arg(long, value_name = "PREFIX", default_value = "/knarr")]
    etcd_prefix: String,
    /// The authorities that sign etcd's certificates [default: those of the system]
    #[arg(long, value_name = "FILE")]
    etcd_cafile: Option<PathBuf>,
    /// The client certificate shown to etcd
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    etcd_certfile: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// What the cluster's state may take in the data folder; creations and updates that grow are refused beyond it. 0:
    /// 2 GiB, negative: no quota
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 0,
        allow_negative_numbers = true,
        conflicts_with = "etcd_servers"
    )]
    quota_backend_bytes: i64,
    /// What the objects of one namespace may take of it, those of the system excepted. 0: an eighth of the quota,
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
    /// Whether other servers may use the same store.
    pub fn shared(&self) -> bool {
        !self.etcd_servers.is_empty()
    }

    /// Opens the store, and makes sure that it holds this server's own cluster.
    pub async fn open(&self, layout: &Layout, pki: &Pki) -> Result<Arc<dyn Store>> {
        if !self.shared() {
            let options = storage_options(self.quota_backend_bytes, self.namespace_storage_limit_bytes);
            return Ok(embedded(layout, options).await?);
        }
        let store = Arc::new(Etcd::new(self.options()?)?);
        claim(&*store, pki, &layout.pki()).await?;
        Ok(store)
    }

    /// Files with certificates that somebody else renews.
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
            prefix: self.etcd_prefix.trim_end_matches('/').to_owned(),
            tls: EtcdTls { ca_pem, client_pem },
            ..EtcdOptions::new(self.etcd_servers.clone())
        })
    }
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

/// The first server of a cluster leaves a mark; one with other keys would sign what the others refuse.
async fn claim(store: &dyn Store, pki: &Pki, folder: &Path) -> Result<()> {
    let ours = Bytes::from(pki.identity()?);
    let put = || store.put(Bytes::from_static(IDENTITY), ours.clone(), Precondition::NotExists, None);
    match until_reached(put).await {
        Ok(_) => Ok(()),
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

/// Tries again for [`ETCD_WAIT`] while etcd cannot be reached or has an error of its own.
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
