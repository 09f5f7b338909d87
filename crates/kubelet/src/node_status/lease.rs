//! The node's heartbeat: a Lease in the namespace kube-node-lease, renewed every ten seconds.
//!
//! Source: `k8s.io/component-helpers/apimachinery/lease`.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use knarr_client::Client;
use tokio_util::sync::CancellationToken;

pub const NAMESPACE: &str = "kube-node-lease";
pub const DURATION_SECONDS: i32 = 40;
pub const RENEW_INTERVAL: Duration = Duration::from_secs(10);
const JITTER: f64 = 0.04;
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
const LONGEST_BACKOFF: Duration = Duration::from_secs(7);

/// Returns the lease to write next, from the last written one. `node_uid` is the owner's uid, once it is known.
pub fn next(base: Option<&Lease>, node: &str, node_uid: Option<&str>, now: Timestamp) -> Lease {
    let mut lease = base.cloned().unwrap_or_else(|| Lease {
        metadata: ObjectMeta {
            name: Some(node.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        spec: None,
    });
    let owner = node_uid.filter(|uid| !uid.is_empty()).map(|uid| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    });
    if let Some(owner) = owner {
        lease.metadata.owner_references = Some(vec![owner]);
    }
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(node.to_owned());
    spec.lease_duration_seconds = Some(DURATION_SECONDS);
    spec.renew_time = Some(MicroTime(now));
    lease
}

/// Writes the lease once: over the last known one, or over the one that is read from the API.
pub async fn renew(
    client: &Client,
    known: Option<&Lease>,
    node: &str,
    node_uid: Option<&str>,
) -> knarr_client::Result<Lease> {
    let now = || client.clock().now();
    if let Some(base) = known {
        match client.update(&next(Some(base), node, node_uid, now())).await {
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            result => return result,
        }
    }
    match client.get::<Lease>(NAMESPACE, node).await {
        Ok(base) => client.update(&next(Some(&base), node, node_uid, now())).await,
        Err(error) if error.is_not_found() => client.create(&next(None, node, node_uid, now())).await,
        Err(error) => Err(error),
    }
}

/// Renews the lease until `stop` is cancelled, also through outages of the API server.
pub async fn run(
    client: Client,
    node: String,
    node_uid: impl Fn() -> Option<String> + Send,
    stop: CancellationToken,
) {
    let mut known: Option<Lease> = None;
    let mut backoff = FIRST_BACKOFF;
    loop {
        let uid = node_uid();
        let result = tokio::select! {
            () = stop.cancelled() => return,
            result = renew(&client, known.as_ref(), &node, uid.as_deref()) => result,
        };
        let wait = match result {
            Ok(lease) => {
                known = Some(lease);
                backoff = FIRST_BACKOFF;
                RENEW_INTERVAL.mul_f64(1.0 + JITTER * fastrand::f64())
            }
            Err(error) => {
                tracing::debug!(%error, "lease not renewed");
                let wait = backoff;
                backoff = (backoff * 2).min(LONGEST_BACKOFF);
                wait
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = client.clock().sleep(wait) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_comes_when_it_is_known() {
        let now = Timestamp::from_second(7).unwrap();
        let first = next(None, "n1", None, now);
        assert_eq!(first.metadata.owner_references, None);
        let spec = first.spec.as_ref().unwrap();
        assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some("n1"), Some(40)));
        let later = Timestamp::from_second(17).unwrap();
        let second = next(Some(&first), "n1", Some("uid"), later);
        assert_eq!(second.metadata.owner_references.unwrap()[0].uid, "uid");
        assert_eq!(second.spec.unwrap().renew_time, Some(MicroTime(later)));
    }
}
