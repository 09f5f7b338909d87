//! Aggregation: API groups of other API servers. An APIService with a Service routes requests to them.

mod availability;
mod documents;
mod priorities;
mod registration;
mod remote;
mod resolve;
mod route;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use serde_json::Value;

use crate::config::Config;
use crate::local_api::{self, LocalApi};
use crate::proxy::Proxy;
use crate::resource_metrics;
use crate::steps::Steps;
use knarr_registry::Registry;
use knarr_wire::keypair::ConfigError;

pub use availability::run;
pub use documents::{merge_discovery, merge_group, merge_groups, merge_openapi_index, merge_openapi_v2};
pub use registration::{follow_custom, register, unregistered};
pub use remote::Identity;
pub use route::{answer, answer_document, service_of};

/// The aggregated servers and their documents.
pub struct Aggregator {
    registry: Arc<Registry>,
    proxy: Arc<Proxy>,
    steps: Arc<Steps>,
    /// The identity of this server in calls of the other servers.
    identity: Identity,
    /// The aggregated group versions, by the name of the APIService.
    remotes: Mutex<BTreeMap<String, Arc<Remote>>>,
    /// The group versions that this server answers itself unless an aggregated server does, by the name of the
    /// APIService.
    local: BTreeMap<String, Arc<Remote>>,
    /// Increases whenever a document of an aggregated server changes.
    generation: AtomicU64,
}

/// The result of a server's last successful check.
#[derive(Default, PartialEq)]
pub struct Remote {
    pub group: String,
    pub version: String,
    /// The resources in the form of aggregated discovery.
    resources: Vec<Value>,
    /// The path of its OpenAPI v3 document, including the hash.
    openapi_v3: Option<String>,
    openapi_v2: Option<Value>,
    /// Whether the server has failed to answer since.
    stale: bool,
}

impl Remote {
    fn unseen(group: &str, version: &str) -> Self {
        Self { group: group.to_owned(), version: version.to_owned(), ..Self::default() }
    }

    /// Creates the entry of a group version that this server answers itself, from its legacy discovery document.
    fn local(group: &str, version: &str, list: &Value) -> Self {
        let list = list.to_string();
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            resources: documents::resources(group, version, list.as_bytes()),
            ..Self::default()
        }
    }
}

impl Aggregator {
    pub fn new(
        config: &Config,
        registry: Arc<Registry>,
        proxy: Arc<Proxy>,
        steps: Arc<Steps>,
    ) -> Result<Self, ConfigError> {
        let metrics = (resource_metrics::GROUP, resource_metrics::VERSION, resource_metrics::resources());
        let of = |api: &Arc<dyn LocalApi>| (api.group(), api.version(), local_api::resources(&**api));
        let local: BTreeMap<_, _> = std::iter::once(metrics)
            .chain(config.local_apis.iter().map(of))
            .map(|(group, version, list)| {
                (format!("{version}.{group}"), Arc::new(Remote::local(group, version, &list)))
            })
            .collect();
        Ok(Self {
            registry,
            proxy,
            steps,
            identity: Identity::new(config)?,
            remotes: Mutex::new(local.clone()),
            local,
            generation: AtomicU64::new(0),
        })
    }

    /// Returns a number that changes whenever the output of [`merge_discovery`] and the other merge functions does.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the groups and versions that this server answers itself unless an aggregated server does.
    fn local(&self) -> impl Iterator<Item = (&str, &str)> {
        self.local.values().map(|own| (own.group.as_str(), own.version.as_str()))
    }

    fn remotes(&self) -> Vec<Arc<Remote>> {
        self.remotes.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn set(&self, name: &str, remote: Option<Remote>) {
        let mut remotes = self.remotes.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = match remote {
            None => match self.local.get(name) {
                Some(own) => remotes.insert(name.to_owned(), Arc::clone(own)).is_none_or(|old| old != *own),
                None => remotes.remove(name).is_some(),
            },
            Some(remote) if remotes.get(name).is_some_and(|old| **old == remote) => false,
            Some(remote) => {
                remotes.insert(name.to_owned(), Arc::new(remote));
                true
            }
        };
        if changed {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Marks the server's last documents as stale, if it has any, because it no longer answers.
    fn set_stale(&self, name: &str, group: Option<&str>, version: Option<&str>) {
        let (group, version) = (group.unwrap_or_default(), version.unwrap_or_default());
        let old = self.remotes.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        let old = old.filter(|o| o.group == group && o.version == version);
        let old = old.unwrap_or_else(|| Arc::new(Remote::unseen(group, version)));
        let stale = Remote {
            group: group.to_owned(),
            version: version.to_owned(),
            resources: old.resources.clone(),
            openapi_v3: old.openapi_v3.clone(),
            openapi_v2: old.openapi_v2.clone(),
            stale: true,
        };
        self.set(name, Some(stale));
    }
}

/// Returns all APIServices from the watch cache.
fn api_services(aggregator: &Aggregator) -> Vec<Arc<APIService>> {
    let Some(cache) = aggregator.registry.caches.get("apiregistration.k8s.io/apiservices") else {
        return Vec::new();
    };
    cache.list(None).iter().filter_map(|o| o.typed::<APIService>().ok()).collect()
}
