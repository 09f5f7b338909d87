//! The objects besides nodes and pods that plugins read: claims, volumes, classes, services, budgets.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::{Client, Informers, Lister};
use tokio::sync::watch;

type Held = BTreeMap<ObjectKey, Arc<dyn Any + Send + Sync>>;

/// Typed reads of objects, from informers or from objects added with [`Catalog::put`].
#[derive(Default)]
pub struct Catalog {
    informers: Option<Arc<Informers>>,
    /// Listers by type, so that a read costs no more than reading the store.
    listers: RwLock<HashMap<TypeId, Box<dyn Any + Send + Sync>>>,
    held: Mutex<HashMap<TypeId, Held>>,
    versions: Mutex<HashMap<TypeId, Arc<AtomicU64>>>,
    changes: watch::Sender<()>,
    shared: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl Catalog {
    /// Returns a catalog that reads from informers. Each kind is watched from its first [`Catalog::watch`] on.
    pub fn of_informers(informers: Arc<Informers>) -> Self {
        Self { informers: Some(informers), ..Self::default() }
    }

    /// Starts watching a kind. Plugins call it when they are built, so that the first list is complete before any pod
    /// is scheduled.
    pub fn watch<K: Kind>(&self) {
        let Some(informers) = &self.informers else { return };
        let version = {
            let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
            if versions.contains_key(&TypeId::of::<K>()) {
                return;
            }
            Arc::clone(versions.entry(TypeId::of::<K>()).or_default())
        };
        let changes = self.changes.clone();
        informers.informer::<K>().add_handler(move |_| {
            version.fetch_add(1, Ordering::Relaxed);
            changes.send_replace(());
        });
    }

    /// The client for plugin writes other than PreBind and Bind; `None` where nothing may be written.
    pub fn client(&self) -> Option<&Client> {
        self.informers.as_ref().map(|informers| informers.client())
    }

    /// Returns the state of type `T` that plugins and the scheduler share, one value for each type.
    pub fn shared<T: Any + Send + Sync + Default>(&self) -> Arc<T> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let one = shared.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
        Arc::clone(one).downcast().unwrap_or_default()
    }

    /// Sets the shared value of this type. Must be called before the plugins are built.
    pub fn share<T: Any + Send + Sync>(&self, one: Arc<T>) {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).insert(TypeId::of::<T>(), one);
    }

    /// Returns a receiver that is notified of every change of an object of a watched kind.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Notifies the receivers of [`Catalog::changes`] of a change outside of the watched kinds.
    pub fn announce(&self) {
        self.changes.send_replace(());
    }

    /// A number that increases whenever an object of the kind changes.
    pub fn version<K: Kind>(&self) -> u64 {
        let versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        versions.get(&TypeId::of::<K>()).map_or(0, |v| v.load(Ordering::Relaxed))
    }

    /// Returns the kind's lister; `None` where there are no informers.
    fn lister<K: Kind>(&self) -> Option<Lister<K>> {
        let informers = self.informers.as_ref()?;
        let known = self.listers.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(lister) = known.get(&TypeId::of::<K>()).and_then(|l| l.downcast_ref::<Lister<K>>()) {
            return Some(lister.clone());
        }
        drop(known);
        let lister = informers.informer::<K>().lister();
        let mut known = self.listers.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(TypeId::of::<K>(), Box::new(lister.clone()));
        Some(lister)
    }

    /// Returns an object; `namespace` is empty for cluster-scoped kinds.
    pub fn get<K: Kind>(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        if let Some(lister) = self.lister::<K>() {
            return lister.get(namespace, name);
        }
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.get(&TypeId::of::<K>())?.get(&ObjectKey::new(namespace, name)).cloned()?.downcast().ok()
    }

    /// Returns all objects of the kind in key order, limited to `namespace` if it is given.
    pub fn list<K: Kind>(&self, namespace: Option<&str>) -> Vec<Arc<K>> {
        if let Some(lister) = self.lister::<K>() {
            return namespace.map_or_else(|| lister.list(), |ns| lister.list_namespace(ns));
        }
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let all = held.get(&TypeId::of::<K>()).into_iter().flat_map(BTreeMap::values).cloned();
        let typed = all.filter_map(|o| o.downcast::<K>().ok());
        typed.filter(|o| namespace.is_none_or(|ns| o.namespace() == ns)).collect()
    }

    /// Adds an object. Has an effect only where there are no informers.
    pub fn put<K: Kind>(&self, object: K) {
        let key = ObjectKey::new(object.namespace(), object.name());
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.entry(TypeId::of::<K>()).or_default().insert(key, Arc::new(object));
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        versions.entry(TypeId::of::<K>()).or_default().fetch_add(1, Ordering::Relaxed);
        self.changes.send_replace(());
    }
}
