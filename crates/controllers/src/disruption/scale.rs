//! How many pods a pod's controller wants: from the informers, or from the controller's scale subresource.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use knarr_api::kind::Kind;
use knarr_client::{Client, Error, Lister, Result};
use serde_json::Value;

use crate::support::discovery::Discovery;
use crate::support::owners::controller_of;

pub struct Scales {
    pub client: Client,
    pub replica_sets: Lister<ReplicaSet>,
    pub deployments: Lister<Deployment>,
    pub stateful_sets: Lister<StatefulSet>,
    pub replication_controllers: Lister<ReplicationController>,
}

impl Scales {
    /// Returns the scales of these pods' controllers, by the uids of the pods' direct controllers. Pods without a
    /// controller do not count; a controller that cannot be scaled is an error.
    pub async fn of(&self, pods: &[Arc<Pod>]) -> Result<HashMap<String, i32>> {
        let (mut scales, mut shared) = (HashMap::new(), HashMap::<String, String>::new());
        for pod in pods {
            let Some(owner) = controller_of(&pod.metadata) else { continue };
            if scales.contains_key(&owner.uid) {
                continue;
            }
            let Some((uid, count)) = self.wanted(pod.namespace(), owner).await? else {
                let text = format!("found no controllers for pod {:?}", pod.name());
                return Err(Error::Protocol(text));
            };
            // Two ReplicaSets of one Deployment share one scale, which is counted with the first.
            let first = shared.entry(uid).or_insert_with(|| owner.uid.clone());
            let count = if *first == owner.uid { count } else { 0 };
            scales.insert(owner.uid.clone(), count);
        }
        Ok(scales)
    }

    /// Returns the uid of the controller that determines the scale, and the number it wants.
    async fn wanted(&self, namespace: &str, owner: &OwnerReference) -> Result<Option<(String, i32)>> {
        let same = |uid: &str| uid == owner.uid;
        let known = match (owner.api_version.as_str(), owner.kind.as_str()) {
            ("apps/v1", "ReplicaSet") => {
                self.replica_sets.get(namespace, &owner.name).filter(|s| same(s.uid())).map(|set| {
                    let deployment = controller_of(&set.metadata)
                        .and_then(|o| self.deployments.get(namespace, &o.name).filter(|d| d.uid() == o.uid));
                    match deployment {
                        Some(d) => (d.uid().to_owned(), d.spec.replicas.unwrap_or(1)),
                        None => (owner.uid.clone(), set.spec.replicas.unwrap_or(1)),
                    }
                })
            }
            ("apps/v1", "StatefulSet") => {
                let set = self.stateful_sets.get(namespace, &owner.name).filter(|s| same(s.uid()));
                set.map(|s| (owner.uid.clone(), s.spec.replicas.unwrap_or(1)))
            }
            ("v1", "ReplicationController") => {
                let found =
                    self.replication_controllers.get(namespace, &owner.name).filter(|c| same(c.uid()));
                found.map(|c| (owner.uid.clone(), c.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)))
            }
            _ => self.subresource(namespace, owner).await?.map(|count| (owner.uid.clone(), count)),
        };
        Ok(known)
    }

    async fn subresource(&self, namespace: &str, owner: &OwnerReference) -> Result<Option<i32>> {
        let discovery = Discovery::fetch(&self.client).await?;
        let Some(resource) = discovery.find(&owner.api_version, &owner.kind) else { return Ok(None) };
        let path = format!("{}/scale", resource.path(Some(namespace), Some(&owner.name)));
        let body = match self.client.call(Method::GET, path, None, Bytes::new()).await {
            Err(e) if e.is_not_found() => return Ok(None),
            other => other?,
        };
        let scale: Value =
            serde_json::from_slice(&body).map_err(|e| Error::Protocol(format!("invalid Scale: {e}")))?;
        let same = scale["metadata"]["uid"].as_str() == Some(&owner.uid);
        // Zero is omitted in JSON.
        let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
        Ok(i32::try_from(replicas).ok().filter(|_| same))
    }
}
