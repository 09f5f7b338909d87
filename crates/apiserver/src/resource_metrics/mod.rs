//! metrics.k8s.io: the resource usage of nodes and pods, requested from the kubelets on demand.
//!
//! An APIService of this name with a Service, such as metrics-server's, replaces this API.
//! Source: the API and the responses of `sigs.k8s.io/metrics-server`.

mod rows;
mod samples;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::kind::Kind;
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::selector::{FieldSelector, Selector};
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use crate::proxy::Proxy;
use knarr_registry::Registry;
use knarr_wire::negotiate::{self, Form};
use knarr_wire::output::Answer;
use knarr_wire::request::Request;
use samples::{Pair, Snapshot};

pub const GROUP: &str = "metrics.k8s.io";
pub const VERSION: &str = "v1beta1";
const GROUP_VERSION: &str = "metrics.k8s.io/v1beta1";
/// How many kubelets are asked concurrently, and the timeout of each.
const AT_ONCE: usize = 32;
const PATIENCE: Duration = Duration::from_secs(5);
/// The maximum size of a kubelet's summary, in bytes.
const MAX_SUMMARY: usize = 16 << 20;
/// How long a measurement is reused; one older than `STALE` is no baseline for the current usage.
const FRESH: Duration = Duration::from_secs(10);
const STALE: Duration = Duration::from_secs(60);
/// The shortest interval over which CPU usage is reported.
const SHORTEST: Duration = Duration::from_secs(1);

/// Asks kubelets, and keeps the last two measurements of each node.
pub struct ResourceMetrics {
    registry: Arc<Registry>,
    proxy: Arc<Proxy>,
    measured: Mutex<BTreeMap<String, Pair>>,
}

/// Returns the resources as legacy discovery lists them.
pub fn resources() -> Value {
    let resource = |name: &str, kind: &str, namespaced: bool| json!({"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"]});
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP_VERSION,
        "resources": [resource("nodes", "NodeMetrics", false), resource("pods", "PodMetrics", true)],
    })
}

/// Answers an authorized request about the group.
pub async fn answer(metrics: &ResourceMetrics, request: &Request) -> Result<Answer, StatusError> {
    let info = &request.info;
    if info.version != VERSION || !info.subresource.is_empty() {
        return Err(StatusError::path_not_found());
    }
    if !matches!(info.verb.as_str(), "get" | "list") {
        return Err(StatusError::no_such_method());
    }
    let (kind, items) = match info.resource.as_str() {
        "nodes" if info.namespace.is_empty() => ("NodeMetrics", nodes(metrics, request).await?),
        "pods" if info.name.is_empty() || !info.namespace.is_empty() => {
            ("PodMetrics", pods(metrics, request).await?)
        }
        _ => return Err(StatusError::path_not_found()),
    };
    let name = info.name.as_str();
    let wanted = negotiate::negotiate(&request.headers, &request.query, true)?;
    if wanted.form == Form::Table && (name.is_empty() || !items.is_empty()) {
        return Ok(Answer::Value { code: 200, value: rows::table(&items) });
    }
    if name.is_empty() {
        let value = json!({"kind": format!("{kind}List"), "apiVersion": GROUP_VERSION, "metadata": {}, "items": items});
        return Ok(Answer::Value { code: 200, value });
    }
    let Some(mut value) = items.into_iter().next() else {
        let shown =
            if info.namespace.is_empty() { name.to_owned() } else { format!("{}/{name}", info.namespace) };
        return Err(StatusError::not_found(&GroupResource::new(GROUP, &info.resource), &shown));
    };
    value["kind"] = kind.into();
    value["apiVersion"] = GROUP_VERSION.into();
    Ok(Answer::Value { code: 200, value })
}

/// The selected objects.
struct Wanted {
    labels: Selector,
    fields: FieldSelector,
    name: Option<String>,
}

impl Wanted {
    fn parse(request: &Request) -> Result<Self, StatusError> {
        let text = |name| request.query.get(name).unwrap_or("");
        Ok(Self {
            labels: Selector::parse(text("labelSelector"))
                .map_err(|e| StatusError::bad_request(e.to_string()))?,
            fields: FieldSelector::parse(text("fieldSelector"))
                .map_err(|e| StatusError::bad_request(e.to_string()))?,
            name: (!request.info.name.is_empty()).then(|| request.info.name.clone()),
        })
    }

    fn has<K: Kind>(&self, object: &K) -> bool {
        let field = |path: &str| match path {
            "metadata.name" => Some(object.name()),
            "metadata.namespace" => Some(object.namespace()),
            _ => None,
        };
        self.name.as_deref().is_none_or(|n| n == object.name())
            && self.labels.matches_optional(object.meta().labels.as_ref())
            && self.fields.matches(field)
    }
}

fn cached<K: Kind>(registry: &Registry, name: &'static str, namespace: Option<&str>) -> Vec<Arc<K>> {
    let all = registry.caches.get(name).map(|c| c.list(namespace)).unwrap_or_default();
    all.iter().filter_map(|o| o.typed::<K>().ok()).collect()
}

async fn nodes(metrics: &ResourceMetrics, request: &Request) -> Result<Vec<Value>, StatusError> {
    let wanted = Wanted::parse(request)?;
    let nodes: Vec<Arc<Node>> = cached(&metrics.registry, "core/nodes", None);
    let nodes: Vec<_> = nodes.into_iter().filter(|n| wanted.has(&**n)).collect();
    let measured = measure(metrics, nodes.iter().map(|n| n.name().to_owned()).collect()).await;
    let usage = |n: &Arc<Node>| measured.get(n.name())?.node(n);
    Ok(nodes.iter().filter_map(usage).collect())
}

async fn pods(metrics: &ResourceMetrics, request: &Request) -> Result<Vec<Value>, StatusError> {
    let wanted = Wanted::parse(request)?;
    let namespace = Some(request.info.namespace.as_str()).filter(|n| !n.is_empty());
    let pods: Vec<Arc<Pod>> = cached(&metrics.registry, "core/pods", namespace);
    let node = |p: &Arc<Pod>| p.spec.as_ref().and_then(|s| s.node_name.clone()).filter(|n| !n.is_empty());
    let pods: Vec<_> =
        pods.into_iter().filter(|p| wanted.has(&**p)).filter_map(|p| Some((node(&p)?, p))).collect();
    let measured = measure(metrics, pods.iter().map(|(node, _)| node.clone()).collect()).await;
    let usage = |(node, p): &(String, Arc<Pod>)| measured.get(node)?.pod(p);
    Ok(pods.iter().filter_map(usage).collect())
}

/// Returns the measurements of these nodes; nodes whose kubelet does not answer are left out.
async fn measure(metrics: &ResourceMetrics, nodes: BTreeSet<String>) -> BTreeMap<String, Pair> {
    let measured = stream::iter(nodes)
        .map(|node| async move {
            let pair = metrics.measure_node(&node).await;
            pair.inspect_err(|error| tracing::debug!(node, error, "a kubelet reports no usage"))
                .ok()
                .map(|pair| (node, pair))
        })
        .buffer_unordered(AT_ONCE)
        .filter_map(|found| async { found });
    measured.collect().await
}

impl ResourceMetrics {
    pub fn new(registry: Arc<Registry>, proxy: Arc<Proxy>) -> Self {
        Self { registry, proxy, measured: Mutex::default() }
    }

    async fn measure_node(&self, node: &str) -> Result<Pair, String> {
        let clock = &self.registry.clock;
        let known = self.get(node);
        let age =
            |s: &Snapshot| Duration::try_from(clock.now().duration_since(s.at)).unwrap_or(Duration::MAX);
        if let Some(known) = known.as_ref().filter(|k| age(&k.new) < FRESH) {
            return Ok(known.clone());
        }
        let mut new = Arc::new(self.ask(node).await?);
        let old = match known {
            Some(known) if (SHORTEST..STALE).contains(&age(&known.new)) => known.new,
            // No recent measurement exists as a baseline: a second one is taken to compute a rate.
            _ => {
                let first = new;
                clock.sleep(SHORTEST).await;
                new = Arc::new(self.ask(node).await?);
                first
            }
        };
        let pair = Pair { old, new };
        self.put(node, pair.clone(), |name| {
            self.registry.caches.get("core/nodes").is_some_and(|c| c.get(name).is_some())
        });
        Ok(pair)
    }

    async fn ask(&self, node: &str) -> Result<Snapshot, String> {
        let clock = &self.registry.clock;
        let body = tokio::select! {
            body = self.proxy.get_from_kubelet(node, "/stats/summary", MAX_SUMMARY) => body?,
            () = clock.sleep(PATIENCE) => return Err("the kubelet does not answer".into()),
        };
        let summary: Value =
            serde_json::from_slice(&body).map_err(|e| format!("the kubelet's summary: {e}"))?;
        Ok(Snapshot::parse(&summary, clock.now()))
    }

    fn get(&self, node: &str) -> Option<Pair> {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner).get(node).cloned()
    }

    /// Keeps the measurement, and forgets nodes that do not exist any more.
    fn put(&self, node: &str, pair: Pair, exists: impl Fn(&str) -> bool) {
        let mut held = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        held.insert(node.to_owned(), pair);
        held.retain(|name, _| name == node || exists(name));
    }
}
