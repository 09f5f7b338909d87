//! Typed informers: a reflector's store and changes, seen as one Kubernetes type.

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

/// One change of a typed collection.
#[derive(Debug, Clone)]
pub enum Event<K> {
    Added(Arc<K>),
    Updated { old: Arc<K>, new: Arc<K> },
    Deleted(Arc<K>),
}

impl<K> Event<K> {
    /// The newest state that the event shows.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Added(o) | Self::Deleted(o) => o,
            Self::Updated { new, .. } => new,
        }
    }
}

/// Under which all of a component's informers are supervised: there are many.
const TASK: &str = "informers";

type Reflectors = BTreeMap<(ResourceType, String), Arc<Reflector>>;

/// All informers of one component: each collection is watched once, whoever asks for it.
pub struct Informers {
    client: Client,
    /// Until when watches go on.
    stop: CancellationToken,
    /// Until when handlers are called that are added here.
    until: CancellationToken,
    reflectors: Arc<Mutex<Reflectors>>,
}

impl Informers {
    /// Watches end when `stop` is cancelled. They are among the tasks of the client's supervisor, as `informers`.
    pub fn new(client: Client, stop: CancellationToken) -> Self {
        let until = stop.clone();
        Self { client, stop, until, reflectors: Arc::default() }
    }

    /// The same informers for a part of the component that ends, or is restarted, before the others: what it adds as
    /// handlers is called no more after `until`.
    pub fn until(&self, until: CancellationToken) -> Self {
        Self {
            client: self.client.clone(),
            stop: self.stop.clone(),
            until,
            reflectors: Arc::clone(&self.reflectors),
        }
    }

    /// The informer of all objects of a type; it starts at once.
    pub fn informer<K: Kind>(&self) -> Informer<K> {
        self.selected(ListOptions::default())
    }

    /// The informer of the objects that the selectors in `selection` choose.
    pub fn selected<K: Kind>(&self, selection: ListOptions) -> Informer<K> {
        let reflector = self.untyped(K::RESOURCE, selection);
        Informer { reflector, until: self.until.clone(), kind: PhantomData }
    }

    /// The reflector of any resource, typed or not.
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

    /// A reflector of any resource that nobody shares and that ends when its holder says so: for resources that come
    /// and go. It has to be [run](Reflector::run), again after each end; then it goes on from what it knows.
    pub fn own(&self, resource: ResourceType) -> Arc<Reflector> {
        let (transport, clock) = (Arc::clone(self.client.transport()), Arc::clone(self.client.clock()));
        Arc::new(Reflector::new(resource, ListOptions::default(), transport, clock))
    }

    /// Waits until every informer asked for so far has its first list. False if that is not to be waited for any more.
    #[must_use = "without the first lists nothing is known"]
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

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Under which the watches run; for what else belongs to them.
    pub fn supervisor(&self) -> &Supervisor {
        self.client.supervisor()
    }
}

/// A reflector as long as it runs. Handlers may hold the informers that hold it: they end with it, however that is.
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
    pub fn lister(&self) -> Lister<K> {
        Lister { store: Arc::clone(self.reflector.store()), kind: PhantomData }
    }

    /// Calls `handler` for everything known now and for each change. It must be quick: put a key on a queue.
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

    pub fn has_synced(&self) -> bool {
        self.reflector.has_synced()
    }

    /// The resourceVersion up to which the lister knows everything.
    pub fn observed_version(&self) -> u64 {
        self.reflector.observed_version()
    }

    /// Waits for the first list. False if that is not to be waited for any more: whoever asks is to stop.
    #[must_use = "without the first list nothing is known"]
    pub async fn wait_synced(&self) -> bool {
        synced_until(&self.until, self.reflector.wait_synced()).await
    }
}

/// Who is to stop does not begin with its work, even if it could.
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

/// The typed view; an object that does not decode is reported and left out.
fn view<K: Kind>(object: &Object) -> Option<Arc<K>> {
    object
        .typed::<K>()
        .inspect_err(|error| {
            tracing::error!(kind = K::RESOURCE.kind, object = %object.key(), error = %error.source, "cannot decode");
        })
        .ok()
}

/// Reads of the local copy. It may lag behind the API server, and never goes back.
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
    /// `namespace` is empty for cluster-scoped types.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.get_key(&ObjectKey::new(namespace, name))
    }

    pub fn get_key(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.store.get(key).and_then(|o| view(&o))
    }

    /// Everything, in key order.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.store.list(None).iter().filter_map(|o| view(o)).collect()
    }

    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.store.list(Some(namespace)).iter().filter_map(|o| view(o)).collect()
    }

    /// The objects of one namespace that the selector chooses; labels are read without decoding.
    pub fn select(&self, namespace: &str, selector: &Selector) -> Vec<Arc<K>> {
        let objects = self.store.list(Some(namespace));
        let chosen = objects.iter().filter(|o| selector.matches_with(|key| o.header().label(key)));
        chosen.filter_map(|o| view(o)).collect()
    }

    pub fn by_index(&self, index: &str, value: &str) -> Vec<Arc<K>> {
        self.store.by_index(index, value).iter().filter_map(|o| view(o)).collect()
    }

    pub fn len(&self) -> usize {
        self.store.len()
    }

    pub fn is_empty(&self) -> bool {
        self.store.is_empty()
    }
}
