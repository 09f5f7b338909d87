//! The endpoints of the `kubernetes` Service: the addresses of all live API servers. Each server keeps a lease for
//! its own.
//!
//! Source: upstream's lease endpoint reconciler (`pkg/controlplane/reconcilers/lease.go`).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use knarr_apimachinery::status::StatusError;
use knarr_storage::{Error, LeaseId, Precondition, RangeRequest};
use tokio::sync::Mutex;

use super::kubernetes_service;
use crate::state::State;
use knarr_registry::storage_limits::MASTER_LEASES;
use knarr_registry::store_errors::status_of;
use knarr_wire::request::Request;

const TTL: Duration = Duration::from_secs(15);
const EVERY: Duration = Duration::from_secs(10);

/// This server's lease.
pub struct MasterLease {
    ip: IpAddr,
    lease: Option<LeaseId>,
}

impl MasterLease {
    pub fn new(server: &State) -> Self {
        Self { ip: server.config.advertise.ip(), lease: None }
    }

    fn key(&self) -> Bytes {
        Bytes::from(format!("{MASTER_LEASES}{}", self.ip))
    }

    /// Renews the lease.
    async fn renew(&mut self, server: &State) -> Result<(), Error> {
        if let Some(lease) = self.lease {
            match server.registry.store.keep_alive_lease(lease).await {
                Err(Error::LeaseNotFound(_)) => {}
                other => return other.map(|_| ()),
            }
        }
        let lease = server.registry.store.grant_lease(TTL.as_secs()).await?;
        let value = Bytes::from(server.config.advertise.to_string());
        server.registry.store.put(self.key(), value, Precondition::Any, Some(lease)).await?;
        self.lease = Some(lease);
        Ok(())
    }

    /// Renews the lease, and reconciles the Service's endpoints with all leases.
    pub async fn reconcile(&mut self, server: &State) -> Result<(), StatusError> {
        self.renew(server).await.map_err(|e| status_of(&e))?;
        let all = servers(server).await.map_err(|e| status_of(&e))?;
        kubernetes_service::set_endpoints(server, &Request::own(), &all).await
    }

    /// Removes the lease and the endpoint, so that clients no longer connect to this server.
    async fn leave(&mut self, server: &State) -> Result<(), StatusError> {
        if let Some(lease) = self.lease.take() {
            server.registry.store.revoke_lease(lease).await.map_err(|e| status_of(&e))?;
        }
        let all = servers(server).await.map_err(|e| status_of(&e))?;
        kubernetes_service::set_endpoints(server, &Request::own(), &all).await
    }
}

/// Returns the addresses of the servers with a live lease.
async fn servers(server: &State) -> Result<BTreeSet<IpAddr>, Error> {
    let leases = server.registry.store.range(RangeRequest::prefix(MASTER_LEASES).without_count()).await?;
    let address = |key: &[u8]| std::str::from_utf8(&key[MASTER_LEASES.len()..]).ok()?.parse().ok();
    Ok(leases.kvs.iter().filter_map(|kv| address(&kv.key)).collect())
}

/// Returns a supervised task that reconciles until the server stops, then removes the server's address.
pub fn keep(server: &Arc<State>, own: MasterLease) -> BoxFuture<'static, ()> {
    let (shared, own) = (Arc::clone(server), Arc::new(Mutex::new(own)));
    server.health.supervisor.run("apiserver-endpoints", server.stop.clone(), move |_| {
        let (server, own) = (Arc::clone(&shared), Arc::clone(&own));
        async move { run(&server, &mut *own.lock().await).await }
    })
}

async fn run(server: &State, own: &mut MasterLease) {
    loop {
        tokio::select! {
            () = server.stop.cancelled() => break,
            () = server.clock.sleep(EVERY) => {}
        }
        if let Err(error) = own.reconcile(server).await {
            tracing::warn!(%error, "cannot reconcile the endpoints of the kubernetes Service");
        }
    }
    if let Err(error) = own.leave(server).await {
        tracing::warn!(%error, "cannot leave the endpoints of the kubernetes Service");
    }
}
