//! The steps of the server's start, under the names of kube-apiserver's post-start hooks: `/livez` and `/readyz` show
//! which of them are not done yet.
//!
//! Source: the hooks of kube-apiserver 1.37 (`AddPostStartHook` in `k8s.io/apiserver`, `k8s.io/apiextensions-apiserver`,
//! `k8s.io/kube-aggregator` and `k8s.io/kubernetes/pkg/controlplane`). A hook upstream starts a controller, mostly; here
//! it is done once the same work is:
//!
//! | hook | done once |
//! | --- | --- |
//! | `generic-apiserver-start-informers`, `start-kube-aggregator-informers`, `start-apiextensions-informers`, `storage-object-count-tracker-hook` | the watch cache, which all of these read, is loaded; it counts its objects itself |
//! | `storage-readiness`, `crd-informer-synced` | the watch cache has all that the start has written |
//! | `start-apiserver-admission-initializer` | the admission plugins are made |
//! | `priority-and-fairness-config-consumer`, `-filter` | the queues follow the configuration, and the task that divides seats is there; `max-in-flight-filter` stands for both where fairness is off |
//! | `priority-and-fairness-config-producer`, `rbac/bootstrap-roles`, `scheduling/…`, `start-system-namespaces-controller`, `start-cluster-authentication-info-controller`, `start-legacy-token-tracking-controller`, `start-kubernetes-service-cidr-controller` | the objects are written |
//! | `bootstrap-controller` | the `kubernetes` Service has this server among its endpoints |
//! | `start-service-ip-repair-controllers` | all Services and addresses are known, and each waits to be looked at |
//! | `start-apiextensions-controllers` | all definitions that were there are settled |
//! | `apiservice-registration-controller`, `apiservice-status-local-available-controller` | the APIServices of built-in groups are written, and routed by the watch cache |
//! | `kube-apiserver-autoregistration` | those of custom resources are in line with their definitions |
//! | `apiservice-status-remote-available-controller` | all APIServices and what is behind them are known |
//! | `apiservice-discovery-controller`, `apiservice-openapi-controller`, `-openapiv3-` | each server behind an APIService was asked for its documents once, whether it answered or not |
//! | `aggregator-reload-proxy-client-cert`, `start-encryption-provider-config-automatic-reload` | the files are read; they are looked at again whenever they are used |
//! | `start-kube-apiserver-identity-lease-controller`, `-garbage-collector`, `start-kube-apiserver-coordinated-leader-election-controller`, `built-in-resources-storage-version-updater` | the process that the server is part of has done so: see [`crate::ApiServer::step`] |
//!
//! Left out are the hooks of peers that proxy to each other (`peer-endpoint-reconciler-controller`,
//! `mixed-version-proxy-handler`, `local-discovery-cache-sync`, `peer-discovery-workers`): the feature is not there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::Config;

/// All names, in the order in which they are shown.
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

/// Not a hook, and yet shown among them: all APIServices of built-in groups have been available.
pub const AUTOREGISTER: &str = "autoregister-completion";

/// Steps that the process around the server does, if it does.
pub const IDENTITY_LEASE: &str = "start-kube-apiserver-identity-lease-controller";
pub const IDENTITY_LEASE_CLEANUP: &str = "start-kube-apiserver-identity-lease-garbage-collector";
pub const LEADER_ELECTION: &str = "start-kube-apiserver-coordinated-leader-election-controller";
pub const STORAGE_VERSIONS: &str = "built-in-resources-storage-version-updater";

/// The steps that belong to a server, and which of them are done.
pub struct Steps {
    done: Mutex<BTreeMap<&'static str, bool>>,
}

/// One step that somebody else does. Clones are the same step.
#[derive(Clone)]
pub struct Step {
    steps: Arc<Steps>,
    name: &'static str,
}

impl Step {
    /// It is done.
    pub fn finish(&self) {
        self.steps.finish(&[self.name]);
    }
}

/// Whether a server with this configuration takes the step by itself.
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

    /// Waits for a further step from now on.
    pub fn expect(self: &Arc<Self>, name: &'static str) -> Step {
        self.lock().entry(name).or_insert(false);
        Step { steps: Arc::clone(self), name }
    }

    /// Those of the steps that belong to the server are done.
    pub fn finish(&self, names: &[&'static str]) {
        let mut done = self.lock();
        for name in names {
            if let Some(done) = done.get_mut(name) {
                *done = true;
            }
        }
    }

    /// The steps, and whether each is done.
    pub fn all(&self) -> Vec<(&'static str, bool)> {
        let done = self.lock();
        NAMES.iter().filter_map(|name| Some((*name, *done.get(name)?))).collect()
    }
}
