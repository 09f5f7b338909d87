//! A candidate in a coordinated election: it publishes a LeaseCandidate, and answers when the API server pings it.
//!
//! Source: the behaviour of `k8s.io/client-go/tools/leaderelection/leasecandidate.go`.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1beta1::{LeaseCandidate, LeaseCandidateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use knarr_api::coordination::leasecandidate::OLDEST_EMULATION_VERSION;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::error::Result;
use crate::informer::Informers;
use crate::transport::ListOptions;

/// How often a candidate renews its LeaseCandidate without being pinged.
const EVERY: Duration = Duration::from_secs(300);
const RETRY: Duration = Duration::from_secs(2);

/// A candidate for a lease.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub namespace: String,
    /// The candidate's identity, which the lease will name if it is elected.
    pub identity: String,
    pub lease: String,
    /// The version of the process, for example `1.37.0`; also used as its emulated version.
    pub version: String,
}

impl Candidate {
    /// Is a candidate until `stop` is cancelled.
    pub async fn run(self, client: Client, stop: CancellationToken) {
        let informers = Informers::new(client.clone(), stop.clone());
        let selection = ListOptions {
            field_selector: Some(format!("metadata.name={}", self.identity)),
            ..ListOptions::default()
        };
        let known = informers.selected::<LeaseCandidate>(selection);
        let asked = Arc::new(Notify::new());
        let wake = Arc::clone(&asked);
        known.add_handler(move |event| {
            let spec = &event.object().spec;
            let renewed = spec.renew_time.as_ref().map(|t| t.0);
            if spec.ping_time.as_ref().is_some_and(|asked| renewed.is_none_or(|at| at < asked.0)) {
                wake.notify_one();
            }
        });
        if !known.wait_synced().await {
            return;
        }
        loop {
            let wait = match self.show(&client).await {
                Ok(()) => EVERY,
                Err(error) => {
                    tracing::debug!(%error, lease = self.lease, "failed to write the lease candidate");
                    RETRY
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = asked.notified() => {}
                () = client.clock().sleep(wait) => {}
            }
        }
    }

    async fn show(&self, client: &Client) -> Result<()> {
        let now = Some(MicroTime(client.clock().now()));
        match client.get::<LeaseCandidate>(&self.namespace, &self.identity).await {
            Ok(mut known) => {
                known.spec.renew_time = now;
                client.update(&known).await.map(drop)
            }
            Err(e) if e.is_not_found() => {
                let metadata = ObjectMeta {
                    name: Some(self.identity.clone()),
                    namespace: Some(self.namespace.clone()),
                    ..ObjectMeta::default()
                };
                let spec = LeaseCandidateSpec {
                    lease_name: self.lease.clone(),
                    binary_version: self.version.clone(),
                    emulation_version: Some(self.version.clone()),
                    strategy: OLDEST_EMULATION_VERSION.to_owned(),
                    renew_time: now,
                    ping_time: None,
                };
                client.create(&LeaseCandidate { metadata, spec }).await.map(drop)
            }
            Err(e) => Err(e),
        }
    }
}
