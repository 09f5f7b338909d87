//! The ConfigMaps and Secrets that pods of this node refer to: each has its own watch, as long as a pod needs it.
//!
//! A node may read only the objects that its pods name, which the node authorizer enforces. So there is no
//! informer of all objects, but one watch per object, with a count of the pods that use it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::api::node::v1::RuntimeClass;
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::reflector::{self, Change, Reflector};
use knarr_client::{Client, ListOptions, Supervisor};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::references::{self, Reference};

/// How long a read waits for the first list of a new watch before it reads from the API server directly.
const SYNC_WAIT: Duration = Duration::from_secs(1);
/// The number of notifications that a slow listener may lag behind.
const CHANGES: usize = 1024;

/// Errors with the texts of upstream's kubelet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    #[error("{kind} {name:?} not found")]
    NotFound { kind: &'static str, name: String },
    #[error("{0}")]
    Api(String),
}

impl SourceError {
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}

type Id = (String, Reference);

struct Watched {
    reflector: Arc<Reflector>,
    stop: CancellationToken,
    users: BTreeSet<String>,
    /// Whether the API server has confirmed that the object is missing; from then on the watch's cache is trusted.
    missing: Arc<AtomicBool>,
}

#[derive(Default)]
struct Inner {
    pods: BTreeMap<String, BTreeSet<Id>>,
    watched: BTreeMap<Id, Watched>,
}

/// Reads ConfigMaps and Secrets for pods of this node.
pub struct ObjectSource {
    client: Client,
    supervisor: Supervisor,
    stop: CancellationToken,
    inner: Mutex<Inner>,
    changes: broadcast::Sender<String>,
}

impl ObjectSource {
    /// Creates a source without watches; its watches end when `stop` is cancelled.
    pub fn new(client: Client, supervisor: Supervisor, stop: CancellationToken) -> Arc<Self> {
        let (changes, _) = broadcast::channel(CHANGES);
        Arc::new(Self { client, supervisor, stop, inner: Mutex::default(), changes })
    }

    /// Subscribes to the uids of pods of which an object was added, changed or deleted. A listener that lags
    /// behind must refresh all pods.
    pub fn changes(&self) -> broadcast::Receiver<String> {
        self.changes.subscribe()
    }

    /// Watches the objects that the pod refers to. To be called again for newer versions of the pod.
    pub fn register(self: &Arc<Self>, pod: &Pod) {
        let namespace = pod.namespace();
        let wanted: BTreeSet<Id> =
            references::of_pod(pod).into_iter().map(|r| (namespace.to_owned(), r)).collect();
        let mut inner = self.lock();
        let known = inner.pods.get(pod.uid()).cloned().unwrap_or_default();
        if known == wanted {
            return;
        }
        for id in wanted.difference(&known) {
            let watched = inner.watched.entry(id.clone()).or_insert_with(|| self.watch(id));
            watched.users.insert(pod.uid().to_owned());
        }
        for id in known.difference(&wanted) {
            inner.release(id, pod.uid());
        }
        inner.pods.insert(pod.uid().to_owned(), wanted);
    }

    /// Ends the watches that only this pod needed.
    pub fn unregister(&self, pod_uid: &str) {
        let mut inner = self.lock();
        for id in inner.pods.remove(pod_uid).unwrap_or_default() {
            inner.release(&id, pod_uid);
        }
    }

    /// The number of watched objects.
    pub fn watched(&self) -> usize {
        self.lock().watched.len()
    }

    /// Returns a ConfigMap, from the watch's cache if it has synced.
    pub async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, SourceError> {
        self.read(namespace, Reference::ConfigMap(name.to_owned())).await
    }

    /// Returns a Secret, from the watch's cache if it has synced.
    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, SourceError> {
        self.read(namespace, Reference::Secret(name.to_owned())).await
    }

    /// Returns the handler of a RuntimeClass, which selects one of the runtime's configurations. The error has
    /// upstream's text.
    pub async fn runtime_handler(&self, class: &str) -> Result<String, String> {
        match self.client.get::<RuntimeClass>("", class).await {
            Ok(class) => Ok(class.handler),
            Err(error) if error.is_not_found() => Err(error.to_string()),
            Err(error) => Err(format!("failed to lookup RuntimeClass {class}: {error}")),
        }
    }

    async fn read<K: Kind>(&self, namespace: &str, reference: Reference) -> Result<Arc<K>, SourceError> {
        let (kind, name) = match &reference {
            Reference::ConfigMap(name) => ("configmap", name.clone()),
            Reference::Secret(name) => ("secret", name.clone()),
        };
        let id = (namespace.to_owned(), reference);
        let watched =
            self.lock().watched.get(&id).map(|w| (Arc::clone(&w.reflector), Arc::clone(&w.missing)));
        let mut missing = None;
        if let Some((reflector, known_missing)) = watched {
            let synced = tokio::select! {
                synced = reflector.wait_synced() => synced,
                () = self.client.clock().sleep(SYNC_WAIT) => false,
            };
            if let Some(object) = reflector.store().get(&ObjectKey::new(namespace, &name)) {
                return object.typed::<K>().map_err(|e| SourceError::Api(e.to_string()));
            }
            if synced && known_missing.load(Ordering::Acquire) {
                return Err(SourceError::NotFound { kind, name });
            }
            missing = Some(known_missing);
        }
        match self.client.get::<K>(namespace, &name).await {
            Ok(object) => Ok(Arc::new(object)),
            Err(error) if error.is_not_found() => {
                if let Some(flag) = missing {
                    flag.store(true, Ordering::Release);
                }
                Err(SourceError::NotFound { kind, name })
            }
            Err(error) => Err(SourceError::Api(error.to_string())),
        }
    }

    fn watch(self: &Arc<Self>, id: &Id) -> Watched {
        let (namespace, reference) = id;
        let (resource, name) = match reference {
            Reference::ConfigMap(name) => (ConfigMap::RESOURCE, name),
            Reference::Secret(name) => (Secret::RESOURCE, name),
        };
        let selection =
            ListOptions { field_selector: Some(format!("metadata.name={name}")), ..ListOptions::default() };
        let transport = Arc::clone(self.client.transport());
        let clock = Arc::clone(self.client.clock());
        let reflector =
            Arc::new(Reflector::new(resource, selection, transport, clock).in_namespace(namespace));
        let (source, id) = (Arc::downgrade(self), id.clone());
        let handler = move |_: &Change| {
            if let Some(source) = source.upgrade() {
                source.changed(&id);
            }
        };
        let stop = self.stop.child_token();
        reflector.add_handler(&stop, Arc::new(handler));
        reflector::spawn(&reflector, &self.supervisor, "volume-objects", stop.clone());
        Watched { reflector, stop, users: BTreeSet::new(), missing: Arc::default() }
    }

    fn changed(&self, id: &Id) {
        let inner = self.lock();
        inner.watched.get(id).into_iter().flat_map(|w| &w.users).for_each(|uid| self.notify(uid));
    }

    /// The supervisor under which all watches for volumes run.
    pub(super) fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// Notifies listeners that content of the pod's volumes has changed.
    pub(super) fn notify(&self, pod_uid: &str) {
        // Sending fails if there is no listener, which is fine.
        let _ = self.changes.send(pod_uid.to_owned());
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn release(&mut self, id: &Id, pod_uid: &str) {
        if let Some(watched) = self.watched.get_mut(id) {
            watched.users.remove(pod_uid);
            if watched.users.is_empty() {
                watched.stop.cancel();
                self.watched.remove(id);
            }
        }
    }
}
