//! What every cluster starts with: namespaces, roles, priority classes, the `kubernetes` Service.

pub mod endpoints;
mod extension_authentication;
mod fairness;
mod kubernetes_service;
mod legacy_tokens;
mod roles;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use http::{HeaderMap, Method};
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use crate::aggregator;
use crate::authn::{MASTERS, UserInfo};
use crate::cluster_ips;
use crate::http::query::Query;
use crate::http::request_info::RequestInfo;
use crate::registry::options::{FieldValidation, WriteParams};
use crate::registry::served::Served;
use crate::registry::{Request, RequestParts, create, metadata, store};
use crate::server::Inner;

/// Writes at a time: they share the store's fsyncs.
const AT_ONCE: usize = 32;
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Brings what is missing into being.
pub async fn run(server: &Inner) -> Result<(), StatusError> {
    let request = own_request();
    let namespaces =
        NAMESPACES.map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    ensure_all(server, &request, "", "namespaces", namespaces.to_vec()).await?;
    let done = |steps: &[&'static str]| server.steps.finish(steps);
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
    let table = server.table.snapshot();
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
    cluster_ips::ensure_default(server).await?;
    done(&["start-kubernetes-service-cidr-controller"]);
    legacy_tokens::reconcile(server, &request).await?;
    done(&["start-legacy-token-tracking-controller"]);
    kubernetes_service::reconcile(server, &request).await
}

/// Puts this server among those that the `kubernetes` Service stands for.
pub async fn join(server: &Inner) -> Result<Option<endpoints::MasterLease>, StatusError> {
    if server.config.shared_store {
        let mut own = endpoints::MasterLease::new(server);
        own.reconcile(server).await?;
        return Ok(Some(own));
    }
    let own = BTreeSet::from([server.config.advertise.ip()]);
    kubernetes_service::set_endpoints(server, &own_request(), &own).await?;
    Ok(None)
}

/// A request of the server to itself.
pub fn own_request() -> Request {
    Request::new(RequestParts {
        info: RequestInfo::default(),
        query: Query::default(),
        raw_path: String::new(),
        raw_query: None,
        peer: None,
        method: Method::POST,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        user: UserInfo::new("system:apiserver", &[MASTERS]),
        warnings: Mutex::default(),
        upgrade: Mutex::default(),
    })
}

pub fn params() -> WriteParams {
    WriteParams {
        dry_run: false,
        field_manager: "kube-apiserver".into(),
        field_validation: FieldValidation::Ignore,
        force: None,
        applied: false,
    }
}

fn served(server: &Inner, group: &str, plural: &str) -> Option<Arc<Served>> {
    server.table.find(group, "v1", plural)
}

/// Creates those of the objects that are not there.
async fn ensure_all(
    server: &Inner,
    request: &Request,
    group: &str,
    plural: &str,
    objects: Vec<Value>,
) -> Result<(), StatusError> {
    let Some(served) = served(server, group, plural) else { return Ok(()) };
    stream::iter(objects)
        .map(|object| ensure(server, request, &served, object))
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await
}

/// Creates a namespace if it is not there.
pub async fn ensure_namespace(server: &Inner, name: &str) -> Result<(), StatusError> {
    let Some(served) = served(server, "", "namespaces") else { return Ok(()) };
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    ensure(server, &own_request(), &served, namespace).await
}

/// Creates the object if it is not there.
pub async fn ensure(
    server: &Inner,
    request: &Request,
    served: &Served,
    object: Value,
) -> Result<(), StatusError> {
    let (namespace, name) = (metadata::text(&object, "namespace"), metadata::text(&object, "name"));
    if store::read(server, served, namespace, name).await?.is_some() {
        return Ok(());
    }
    match create::create_value(server, request, served, &params(), object).await {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}
