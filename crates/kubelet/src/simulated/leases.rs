//! The heartbeats of all simulated nodes: each renews its lease every ten seconds, spread evenly over that time.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use knarr_client::{Client, Result};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::CONCURRENCY;

const NAMESPACE: &str = "kube-node-lease";
const PERIOD: Duration = Duration::from_secs(10);
const DURATION_SECONDS: i32 = 40;
/// Renewals are sent in this many portions per period.
const PORTIONS: usize = 100;

pub async fn run(client: Client, names: Arc<Vec<String>>, stop: CancellationToken) {
    let slots = Arc::new(Semaphore::new(CONCURRENCY));
    let pause = PERIOD / PORTIONS as u32;
    loop {
        for portion in 0..PORTIONS {
            for name in names.iter().skip(portion).step_by(PORTIONS) {
                let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
                let (client, name) = (client.clone(), name.clone());
                tokio::spawn(async move {
                    if let Err(error) = renew(&client, &name).await {
                        tracing::debug!(node = name, %error, "lease not renewed");
                    }
                    drop(slot);
                });
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = client.clock().sleep(pause) => {}
            }
        }
    }
}

/// Writes the lease without reading it first: nobody else does.
async fn renew(client: &Client, name: &str) -> Result<()> {
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(name.to_owned()),
            lease_duration_seconds: Some(DURATION_SECONDS),
            renew_time: Some(MicroTime(client.clock().now())),
            ..LeaseSpec::default()
        }),
    };
    match client.update(&lease).await {
        Err(e) if e.is_not_found() => client.create(&lease).await.map(|_| ()),
        other => other.map(|_| ()),
    }
}
