//! The steps of the server's start, named after kube-apiserver's post-start hooks. `/livez` and `/readyz` list the
//! steps that are not finished.
//!
//! Source: the hooks of kube-apiserver 1.37 (`AddPostStartHook` in `k8s.io/apiserver`,
//! `k8s.io/apiextensions-apiserver`, `k8s.io/kube-aggregator` and `k8s.io/kubernetes/pkg/controlplane`). Upstream,
//! most hooks start a controller; here a step is finished once the same work is done:
//!
//! | hook | finished once |
//! | --- | --- |
//! | `generic-apiserver-start-informers`, `start-kube-aggregator-informers`, `start-apiextensions-informers`, `storage-object-count-tracker-hook` | the watch cache, which all of these read, is loaded; it counts its objects itself |
//! | `storage-readiness`, `crd-informer-synced` | the watch cache contains all objects that the start has written |
//! | `start-apiserver-admission-initializer` | the admission plugins are created |
//! | `priority-and-fairness-config-consumer`, `-filter` | the queues follow the configuration, and the task that divides seats runs; `max-in-flight-filter` replaces both if fairness is off |
//! | `priority-and-fairness-config-producer`, `rbac/bootstrap-roles`, `scheduling/…`, `start-system-namespaces-controller`, `start-cluster-authentication-info-controller`, `start-legacy-token-tracking-controller`, `start-kubernetes-service-cidr-controller` | the objects are written |
//! | `bootstrap-controller` | the `kubernetes` Service has this server among its endpoints |
//! | `start-service-ip-repair-controllers` | all Services and addresses are known, and each is queued for its first check |
//! | `start-apiextensions-controllers` | all existing definitions are reconciled |
//! | `apiservice-registration-controller`, `apiservice-status-local-available-controller` | the APIServices of built-in groups are written, and routed by the watch cache |
//! | `kube-apiserver-autoregistration` | the APIServices of custom resources are reconciled with their definitions |
//! | `apiservice-status-remote-available-controller` | all APIServices, their Services and EndpointSlices are known |
//! | `apiservice-discovery-controller`, `apiservice-openapi-controller`, `-openapiv3-` | each server behind an APIService was asked for its documents once, whether it answered or not |
//! | `aggregator-reload-proxy-client-cert`, `start-encryption-provider-config-automatic-reload` | the files are read; later changes are detected whenever they are used |
//! | `start-kube-apiserver-identity-lease-controller`, `-garbage-collector`, `start-kube-apiserver-coordinated-leader-election-controller`, `built-in-resources-storage-version-updater` | the surrounding process has done the work: see [`crate::ApiServer::step`] |
//!
//! The hooks of peer proxying (`peer-endpoint-reconciler-controller`, `mixed-version-proxy-handler`,
//! `local-discovery-cache-sync`, `peer-discovery-workers`) are left out, because the feature is not implemented.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::Config;

/// All names, in the order of the output.
const NAMES: [&str; 34] = [
    "start-apiserver-admission-initializer",
    "generic-apiserver-start-informers",
    "start-encryption-provider-config-automatic-reload",
    "priority-and-fairness-config-consumer",
    "priority-and-fairness-filter",
    "max-in-flight-filter",
    "storage-object-count-tracker-hook",
    "start-apiextensions-informers",
    "start-apiextensions-controllers",
    "crd-informer-synced",
    "start-system-namespaces-controller",
    "start-kube-apiserver-coordinated-leader-election-controller",
    "start-cluster-authentication-info-controller",
    "start-kube-apiserver-identity-lease-controller",
    "start-kube-apiserver-identity-lease-garbage-collector",
    "storage-readiness",
    "start-legacy-token-tracking-controller",
    "start-service-ip-repair-controllers",
    "rbac/bootstrap-roles",
    "scheduling/bootstrap-system-priority-classes",
    "priority-and-fairness-config-producer",
    "bootstrap-controller",
    "start-kubernetes-service-cidr-controller",
    "aggregator-reload-proxy-client-cert",
    "start-kube-aggregator-informers",
    "apiservice-status-local-available-controller",
    "apiservice-status-remote-available-controller",
    "apiservice-registration-controller",
    "apiservice-discovery-controller",
    "built-in-resources-storage-version-updater",
    "kube-apiserver-autoregistration",
    AUTOREGISTER,
    "apiservice-openapi-controller",
    "apiservice-openapiv3-controller",
];

/// Listed with the hooks but not one of them: finished once all APIServices of built-in groups have been available.
pub const AUTOREGISTER: &str = "autoregister-completion";

/// Steps that the surrounding process finishes, if it performs them.
pub const IDENTITY_LEASE: &str = "start-kube-apiserver-identity-lease-controller";
pub const IDENTITY_LEASE_CLEANUP: &str = "start-kube-apiserver-identity-lease-garbage-collector";
pub const LEADER_ELECTION: &str = "start-kube-apiserver-coordinated-leader-election-controller";
pub const STORAGE_VERSIONS: &str = "built-in-resources-storage-version-updater";

/// The steps of a server, and which of them are finished.
pub struct Steps {
    done: Mutex<BTreeMap<&'static str, bool>>,
}

/// One step that another component finishes. Clones stand for the same step.
#[derive(Clone)]
pub struct Step {
    steps: Arc<Steps>,
    name: &'static str,
}

impl Step {
    /// Marks the step as finished.
    pub fn finish(&self) {
        self.steps.finish(&[self.name]);
    }
}

/// Returns whether a server with this configuration performs the step itself.
fn belongs(name: &str, config: &Config) -> bool {
    match name {
        IDENTITY_LEASE | IDENTITY_LEASE_CLEANUP | LEADER_ELECTION | STORAGE_VERSIONS => false,
        "start-encryption-provider-config-automatic-reload" => {
            config.encryption.config_file.is_some() && config.encryption.reload
        }
        "priority-and-fairness-config-consumer" | "priority-and-fairness-filter" => {
            config.priority_and_fairness
        }
        "max-in-flight-filter" => !config.priority_and_fairness,
        "aggregator-reload-proxy-client-cert" => config.proxy_client_files.is_some(),
        "start-service-ip-repair-controllers" => serves(config, "networking.k8s.io", "ipaddresses"),
        "start-apiextensions-informers" | "start-apiextensions-controllers" | "crd-informer-synced" => {
            serves(config, "apiextensions.k8s.io", "customresourcedefinitions")
        }
        _ => true,
    }
}

fn serves(config: &Config, group: &str, plural: &str) -> bool {
    config.resources.iter().any(|r| r.types.group == group && r.types.plural == plural)
}

impl Steps {
    pub fn of(config: &Config) -> Arc<Self> {
        let own = NAMES.iter().filter(|name| belongs(name, config)).map(|name| (*name, false));
        Arc::new(Self { done: Mutex::new(own.collect()) })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, bool>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a step that is not finished yet.
    pub fn expect(self: &Arc<Self>, name: &'static str) -> Step {
        self.lock().entry(name).or_insert(false);
        Step { steps: Arc::clone(self), name }
    }

    /// Marks these steps as finished; ignores those that the server does not have.
    pub fn finish(&self, names: &[&'static str]) {
        let mut done = self.lock();
        for name in names {
            if let Some(done) = done.get_mut(name) {
                *done = true;
            }
        }
    }

    /// Returns the steps, and whether each is finished.
    pub fn all(&self) -> Vec<(&'static str, bool)> {
        let done = self.lock();
        NAMES.iter().filter_map(|name| Some((*name, *done.get(name)?))).collect()
    }
}
