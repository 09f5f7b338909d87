//! The local copy of an informer: shared objects by key, with indexes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use knarr_api::kind::ObjectKey;
use knarr_api::object::Object;

/// Returns the values under which an object is indexed.
pub type IndexFn = Arc<dyn Fn(&Object) -> Vec<String> + Send + Sync>;

#[derive(Default)]
struct Inner {
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    indexes: HashMap<&'static str, Index>,
}

struct Index {
    values_of: IndexFn,
    /// The objects themselves. Looking each one up by key would cost more than everything else.
    objects: HashMap<String, BTreeMap<ObjectKey, Arc<Object>>>,
}

impl Index {
    fn add(&mut self, object: &Arc<Object>) {
        for value in (self.values_of)(object) {
            self.objects.entry(value).or_default().insert(object.key(), Arc::clone(object));
        }
    }

    fn remove(&mut self, object: &Object) {
        let key = object.key();
        for value in (self.values_of)(object) {
            if let Some(objects) = self.objects.get_mut(&value) {
                objects.remove(&key);
                if objects.is_empty() {
                    self.objects.remove(&value);
                }
            }
        }
    }
}

/// Objects by key. Reads see a consistent state; the reflector is the only writer.
#[derive(Default)]
pub struct ObjectStore {
    inner: RwLock<Inner>,
}

impl ObjectStore {
    /// Returns an object by its key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.read(|inner| inner.objects.get(key).cloned())
    }

    /// All objects, or those of one namespace, in key order.
    pub fn list(&self, namespace: Option<&str>) -> Vec<Arc<Object>> {
        self.read(|inner| match namespace {
            None => inner.objects.values().cloned().collect(),
            Some(ns) => inner
                .objects
                .range(ObjectKey::new(ns, "")..)
                .take_while(|(k, _)| &*k.namespace == ns)
                .map(|(_, o)| Arc::clone(o))
                .collect(),
        })
    }

    /// The objects in the index `name` with this value, in key order.
    pub fn by_index(&self, name: &str, value: &str) -> Vec<Arc<Object>> {
        self.read(|inner| {
            let objects = inner.indexes.get(name).and_then(|i| i.objects.get(value));
            objects.into_iter().flat_map(BTreeMap::values).cloned().collect()
        })
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.read(|inner| inner.objects.len())
    }

    /// Returns whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an index, including the objects that exist already. A second index with the same name is ignored.
    pub fn add_index(&self, name: &'static str, values_of: IndexFn) {
        self.write(|inner| {
            if inner.indexes.contains_key(name) {
                return;
            }
            let mut index = Index { values_of, objects: HashMap::new() };
            inner.objects.values().for_each(|o| index.add(o));
            inner.indexes.insert(name, index);
        });
    }

    /// Stores an object and returns the one it replaces.
    pub(crate) fn put(&self, object: Arc<Object>) -> Option<Arc<Object>> {
        self.write(|inner| {
            let old = inner.objects.insert(object.key(), Arc::clone(&object));
            for index in inner.indexes.values_mut() {
                if let Some(old) = &old {
                    index.remove(old);
                }
                index.add(&object);
            }
            old
        })
    }

    pub(crate) fn remove(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.write(|inner| {
            let old = inner.objects.remove(key)?;
            inner.indexes.values_mut().for_each(|i| i.remove(&old));
            Some(old)
        })
    }

    fn read<R>(&self, f: impl FnOnce(&Inner) -> R) -> R {
        f(&self.inner.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> R {
        f(&mut self.inner.write().unwrap_or_else(PoisonError::into_inner))
    }
}
