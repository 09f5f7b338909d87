//! Typed informers: the store and the changes of a reflector, decoded as one Kubernetes type.

use std::collections::BTreeMap;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use knarr_api::kind::{Kind, ObjectKey, ResourceType};
use knarr_api::object::Object;
use knarr_apimachinery::selector::Selector;
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::reflector::{Change, Reflector};
use crate::store::ObjectStore;
use crate::supervisor::Supervisor;
use crate::transport::ListOptions;

/// A change of a typed collection.
#[derive(Debug, Clone)]
pub enum Event<K> {
    Added(Arc<K>),
    Updated { old: Arc<K>, new: Arc<K> },
    Deleted(Arc<K>),
}

impl<K> Event<K> {
    /// The newest state that the event contains.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Added(o) | Self::Deleted(o) => o,
            Self::Updated { new, .. } => new,
        }
    }
}

/// The supervisor's name for all informers of a component, since there are many.
const TASK: &str = "informers";

type Reflectors = BTreeMap<(ResourceType, String), Arc<Reflector>>;

/// All informers of one component. Each collection is watched once, however many parts use it.
pub struct Informers {
    client: Client,
    /// Cancelled when the watches must end.
    stop: CancellationToken,
    /// Cancelled when handlers added through this value must no longer be called.
    until: CancellationToken,
    reflectors: Arc<Mutex<Reflectors>>,
}

impl Informers {
    /// Creates the informers. Watches end when `stop` is cancelled. They are tasks of the client's supervisor, named
    /// `informers`.
    pub fn new(client: Client, stop: CancellationToken) -> Self {
        let until = stop.clone();
        Self { client, stop, until, reflectors: Arc::default() }
    }

    /// Returns the same informers for a part of the component that ends or restarts before the others. Handlers added
    /// through the result are not called after `until`.
    pub fn until(&self, until: CancellationToken) -> Self {
        Self {
            client: self.client.clone(),
            stop: self.stop.clone(),
            until,
            reflectors: Arc::clone(&self.reflectors),
        }
    }

    /// Returns the informer of all objects of a type, and starts it.
    pub fn informer<K: Kind>(&self) -> Informer<K> {
        self.selected(ListOptions::default())
    }

    /// Returns the informer of the objects that match the selectors in `selection`.
    pub fn selected<K: Kind>(&self, selection: ListOptions) -> Informer<K> {
        let reflector = self.untyped(K::RESOURCE, selection);
        Informer { reflector, until: self.until.clone(), kind: PhantomData }
    }

    /// Returns the reflector of any resource, typed or not.
    pub fn untyped(&self, resource: ResourceType, selection: ListOptions) -> Arc<Reflector> {
        let key = (resource, selection.query(false));
        let mut reflectors = self.reflectors.lock().unwrap_or_else(PoisonError::into_inner);
        let reflector = reflectors.entry(key).or_insert_with(|| {
            let transport = Arc::clone(self.client.transport());
            let clock = Arc::clone(self.client.clock());
            let reflector = Arc::new(Reflector::new(resource, selection, transport, clock));
            let (running, stop) = (Running(Arc::clone(&reflector)), self.stop.clone());
            let watching = self.client.supervisor().run(TASK, stop, {
                let reflector = Arc::clone(&reflector);
                move |stop| {
                    let reflector = Arc::clone(&reflector);
                    async move { reflector.run(stop).await }
                }
            });
            tokio::spawn(async move {
                let _running = running;
                watching.await;
            });
            reflector
        });
        Arc::clone(reflector)
    }

    /// Returns an unshared reflector of any resource, for resources that are added and removed at run time. The caller
    /// must [run](Reflector::run) it, and may run it again after each end: it then continues from its last state.
    pub fn own(&self, resource: ResourceType) -> Arc<Reflector> {
        let (transport, clock) = (Arc::clone(self.client.transport()), Arc::clone(self.client.clock()));
        Arc::new(Reflector::new(resource, ListOptions::default(), transport, clock))
    }

    /// Waits until every informer requested so far has its first list. Returns false if the informers end before.
    #[must_use = "without the first lists the stores are empty"]
    pub async fn wait_synced(&self) -> bool {
        let reflectors: Vec<_> = {
            let map = self.reflectors.lock().unwrap_or_else(PoisonError::into_inner);
            map.values().cloned().collect()
        };
        let all = async {
            for reflector in reflectors {
                if !reflector.wait_synced().await {
                    return false;
                }
            }
            true
        };
        synced_until(&self.until, all).await
    }

    /// The client that the informers use.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The supervisor of the watches, for other tasks that belong to them.
    pub fn supervisor(&self) -> &Supervisor {
        self.client.supervisor()
    }
}

/// Ends the reflector when its task ends. Handlers may hold the informers that hold them, a cycle that this breaks.
struct Running(Arc<Reflector>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A typed view of a reflector. Cheap to clone.
pub struct Informer<K> {
    reflector: Arc<Reflector>,
    until: CancellationToken,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self { reflector: Arc::clone(&self.reflector), until: self.until.clone(), kind: PhantomData }
    }
}

impl<K: Kind> Informer<K> {
    /// Returns a lister of the informer's store.
    pub fn lister(&self) -> Lister<K> {
        Lister { store: Arc::clone(self.reflector.store()), kind: PhantomData }
    }

    /// Calls `handler` for every known object now, and for each change. It must be fast: it should only queue a key.
    pub fn add_handler(&self, handler: impl Fn(&Event<K>) + Send + Sync + 'static) {
        let handler = move |change: &Change| {
            if let Some(event) = typed_event::<K>(change) {
                handler(&event);
            }
        };
        self.reflector.add_handler(&self.until, Arc::new(handler));
    }

    /// Adds an index over the typed view; see [`Lister::by_index`].
    pub fn add_index(
        &self,
        name: &'static str,
        values_of: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
    ) {
        let values_of = move |o: &Object| view::<K>(o).map(|k| values_of(&k)).unwrap_or_default();
        self.reflector.store().add_index(name, Arc::new(values_of));
    }

    /// Returns whether the first list is complete.
    pub fn has_synced(&self) -> bool {
        self.reflector.has_synced()
    }

    /// The resourceVersion up to which the lister has seen all changes.
    pub fn observed_version(&self) -> u64 {
        self.reflector.observed_version()
    }

    /// Waits for the first list. Returns false if the informer ends before: then the caller must stop.
    #[must_use = "without the first list the store is empty"]
    pub async fn wait_synced(&self) -> bool {
        synced_until(&self.until, self.reflector.wait_synced()).await
    }
}

/// Waits for `synced`. A caller that must stop gets false even if the list is complete.
async fn synced_until(until: &CancellationToken, synced: impl Future<Output = bool>) -> bool {
    tokio::select! {
        biased;
        () = until.cancelled() => false,
        synced = synced => synced,
    }
}

fn typed_event<K: Kind>(change: &Change) -> Option<Event<K>> {
    Some(match change {
        Change::Added(o) => Event::Added(view(o)?),
        Change::Updated { old, new } => match (view(old), view(new)?) {
            (Some(old), new) => Event::Updated { old, new },
            (None, new) => Event::Added(new),
        },
        Change::Deleted(o) => Event::Deleted(view(o)?),
    })
}

/// Decodes an object. One that does not decode is logged and left out.
fn view<K: Kind>(object: &Object) -> Option<Arc<K>> {
    object
        .typed::<K>()
        .inspect_err(|error| {
            tracing::error!(kind = K::RESOURCE.kind, object = %object.key(), error = %error.source, "cannot decode");
        })
        .ok()
}

/// Reads from the local copy. It may lag behind the API server, but never goes back.
pub struct Lister<K> {
    store: Arc<ObjectStore>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Lister<K> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), kind: PhantomData }
    }
}

impl<K: Kind> Lister<K> {
    /// Returns an object; `namespace` is empty for cluster-scoped types.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.get_key(&ObjectKey::new(namespace, name))
    }

    /// Returns an object by its key.
    pub fn get_key(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.store.get(key).and_then(|o| view(&o))
    }

    /// Returns all objects in key order.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.store.list(None).iter().filter_map(|o| view(o)).collect()
    }

    /// Returns all objects of a namespace in key order.
    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.store.list(Some(namespace)).iter().filter_map(|o| view(o)).collect()
    }

    /// Returns the objects of a namespace that match the selector. Labels are read without decoding.
    pub fn select(&self, namespace: &str, selector: &Selector) -> Vec<Arc<K>> {
        let objects = self.store.list(Some(namespace));
        let chosen = objects.iter().filter(|o| selector.matches_with(|key| o.header().label(key)));
        chosen.filter_map(|o| view(o)).collect()
    }

    /// Returns the objects in an index with this value; see [`Informer::add_index`].
    pub fn by_index(&self, index: &str, value: &str) -> Vec<Arc<K>> {
        self.store.by_index(index, value).iter().filter_map(|o| view(o)).collect()
    }

    /// The number of objects, including those that do not decode.
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Returns whether the store is empty.
    pub fn is_empty(&self) -> bool {
        self.store.is_empty()
    }
}
