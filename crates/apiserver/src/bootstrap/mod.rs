//! The objects that every cluster starts with: namespaces, roles, priority classes, the `kubernetes` Service.

pub mod endpoints;
mod extension_authentication;
mod fairness;
mod kubernetes_service;
mod legacy_tokens;
mod roles;

use std::collections::BTreeSet;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use crate::aggregator;
use crate::cluster_ips;
use crate::state::State;
use knarr_registry::own::{AT_ONCE, ensure};
use knarr_wire::request::Request;

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Creates the missing objects.
pub async fn run(server: &State) -> Result<(), StatusError> {
    let request = Request::own();
    let namespaces =
        NAMESPACES.map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    ensure_all(server, &request, "", "namespaces", namespaces.to_vec()).await?;
    let done = |steps: &[&'static str]| server.health.steps.finish(steps);
    done(&["start-system-namespaces-controller"]);
    let classes = [
        ("system-cluster-critical", 2_000_000_000, "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."),
        ("system-node-critical", 2_000_001_000, "Used for system critical pods that must not be moved from their current node."),
    ]
    .map(|(name, value, description)| {
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "description": description})
    });
    ensure_all(server, &request, "scheduling.k8s.io", "priorityclasses", classes.to_vec()).await?;
    done(&["scheduling/bootstrap-system-priority-classes"]);
    let table = server.registry.table.snapshot();
    let group_versions =
        table.iter().map(|s| (s.resource.types.group.to_owned(), s.resource.types.version.to_owned()));
    let api_services = aggregator::register(group_versions);
    ensure_all(server, &request, "apiregistration.k8s.io", "apiservices", api_services).await?;
    done(&["apiservice-registration-controller", "apiservice-status-local-available-controller"]);
    roles::reconcile(server, &request).await?;
    done(&["rbac/bootstrap-roles"]);
    fairness::reconcile(server, &request).await?;
    done(&["priority-and-fairness-config-producer"]);
    extension_authentication::reconcile(server, &request).await?;
    done(&["start-cluster-authentication-info-controller"]);
    cluster_ips::ensure_default(&server.registry).await?;
    done(&["start-kubernetes-service-cidr-controller"]);
    legacy_tokens::reconcile(server, &request).await?;
    done(&["start-legacy-token-tracking-controller"]);
    kubernetes_service::reconcile(server, &request).await
}

/// Adds this server to the endpoints of the `kubernetes` Service.
pub async fn join(server: &State) -> Result<Option<endpoints::MasterLease>, StatusError> {
    if server.config.shared_store {
        let mut own = endpoints::MasterLease::new(server);
        own.reconcile(server).await?;
        return Ok(Some(own));
    }
    let own = BTreeSet::from([server.config.advertise.ip()]);
    kubernetes_service::set_endpoints(server, &Request::own(), &own).await?;
    Ok(None)
}

/// Creates those of the objects that do not exist.
async fn ensure_all(
    server: &State,
    request: &Request,
    group: &str,
    plural: &str,
    objects: Vec<Value>,
) -> Result<(), StatusError> {
    let Some(served) = server.registry.table.v1(group, plural) else { return Ok(()) };
    stream::iter(objects)
        .map(|object| ensure(&server.registry, request, &served, object))
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await
}
