//! The objects of the cluster that plugins look up besides nodes and pods: claims, volumes, classes, services, budgets.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::{Client, Informers, Lister};
use tokio::sync::watch;

type Held = BTreeMap<ObjectKey, Arc<dyn Any + Send + Sync>>;

/// Typed reads, from informers or from what was put in.
#[derive(Default)]
pub struct Catalog {
    informers: Option<Arc<Informers>>,
    /// By type, so that a read is a read of the store and nothing else.
    listers: RwLock<HashMap<TypeId, Box<dyn Any + Send + Sync>>>,
    held: Mutex<HashMap<TypeId, Held>>,
    versions: Mutex<HashMap<TypeId, Arc<AtomicU64>>>,
    changes: watch::Sender<()>,
    shared: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl Catalog {
    /// Reads what the informers show; each kind is watched from the first [`Catalog::watch`] on.
    pub fn of_informers(informers: Arc<Informers>) -> Self {
        Self { informers: Some(informers), ..Self::default() }
    }

    /// Starts watching a kind. To be called when a plugin is made, so that the first list is there before any pod.
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

    /// For what plugins write besides preparing a binding; `None` where nothing is to be written.
    pub fn client(&self) -> Option<&Client> {
        self.informers.as_ref().map(|informers| informers.client())
    }

    /// What plugins and the scheduler share besides objects: one of each type.
    pub fn shared<T: Any + Send + Sync + Default>(&self) -> Arc<T> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let one = shared.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
        Arc::clone(one).downcast().unwrap_or_default()
    }

    /// Has plugins share this one. To be called before they are made.
    pub fn share<T: Any + Send + Sync>(&self, one: Arc<T>) {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).insert(TypeId::of::<T>(), one);
    }

    /// Marks every change of an object of a watched kind, for whoever waits for one.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Wakes those who wait for a change: something else they look at is different.
    pub fn announce(&self) {
        self.changes.send_replace(());
    }

    /// A number that goes up whenever an object of the kind changes.
    pub fn version<K: Kind>(&self) -> u64 {
        let versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        versions.get(&TypeId::of::<K>()).map_or(0, |v| v.load(Ordering::Relaxed))
    }

    /// `None` where there are no informers.
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

    /// `namespace` is empty for cluster-scoped kinds.
    pub fn get<K: Kind>(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        if let Some(lister) = self.lister::<K>() {
            return lister.get(namespace, name);
        }
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.get(&TypeId::of::<K>())?.get(&ObjectKey::new(namespace, name)).cloned()?.downcast().ok()
    }

    /// All objects of the kind, in key order; of one namespace where one is given.
    pub fn list<K: Kind>(&self, namespace: Option<&str>) -> Vec<Arc<K>> {
        if let Some(lister) = self.lister::<K>() {
            return namespace.map_or_else(|| lister.list(), |ns| lister.list_namespace(ns));
        }
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let all = held.get(&TypeId::of::<K>()).into_iter().flat_map(BTreeMap::values).cloned();
        let typed = all.filter_map(|o| o.downcast::<K>().ok());
        typed.filter(|o| namespace.is_none_or(|ns| o.namespace() == ns)).collect()
    }

    /// Puts an object in; only where there are no informers.
    pub fn put<K: Kind>(&self, object: K) {
        let key = ObjectKey::new(object.namespace(), object.name());
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.entry(TypeId::of::<K>()).or_default().insert(key, Arc::new(object));
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        versions.entry(TypeId::of::<K>()).or_default().fetch_add(1, Ordering::Relaxed);
        self.changes.send_replace(());
    }
}
