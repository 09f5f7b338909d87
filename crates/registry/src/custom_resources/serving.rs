//! The custom resources in the table, each with its cache, and when an entry must be replaced.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use knarr_api::apiextensions::definition::{Definition, compare_versions};
use knarr_api::custom::CustomResource;
use knarr_api::intern;
use knarr_api::resource_ref::ResourceRef;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::Registry;
use crate::conversion::{Conversion, Converter, normalize};
use crate::served::{Served, storage_name};

/// The served resources, by the name of the definition.
#[derive(Default)]
pub struct Serving(Mutex<BTreeMap<String, Entry>>);

struct Entry {
    /// A hash of everything that determines how the resource is served.
    fingerprint: [u8; 32],
    group: &'static str,
    plural: &'static str,
    storage: String,
    terminating: Arc<AtomicBool>,
}

fn fingerprint(object: &Value) -> [u8; 32] {
    let mut hash = Sha256::new();
    for pointer in ["/metadata/uid", "/spec", "/status/acceptedNames", "/status/storedVersions"] {
        hash.update(object.pointer(pointer).cloned().unwrap_or_default().to_string());
        hash.update([0]);
    }
    hash.finalize().into()
}

impl Serving {
    fn entries(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the names of the definitions whose resources are served.
    pub fn names(&self) -> Vec<String> {
        self.entries().keys().cloned().collect()
    }

    /// Serves the resources of a definition as it is now. Only one task at a time may call this.
    pub async fn begin(
        &self,
        registry: &Arc<Registry>,
        object: &Value,
        definition: &Definition,
    ) -> Result<(), StatusError> {
        let fingerprint = fingerprint(object);
        if let Some(entry) = self.entries().get(&definition.name)
            && entry.fingerprint == fingerprint
        {
            entry.terminating.store(definition.deleting, Ordering::Release);
            return Ok(());
        }
        let terminating = Arc::new(AtomicBool::new(definition.deleting));
        let (served, storage) = made(registry, definition, &terminating).await?;
        let Some(first) = served.first() else {
            self.end(registry, &definition.name);
            return Ok(());
        };
        let types = first.resource.types;
        let cache = Arc::clone(first.cache()?);
        registry.table.replace(types.group, types.plural, served);
        registry.caches.retire(&storage, &cache);
        let entry = Entry { fingerprint, group: types.group, plural: types.plural, storage, terminating };
        self.entries().insert(definition.name.clone(), entry);
        Ok(())
    }

    /// Stops serving the resources of a definition.
    pub fn end(&self, registry: &Registry, name: &str) {
        let Some(entry) = self.entries().remove(name) else { return };
        registry.table.replace(entry.group, entry.plural, Vec::new());
        registry.caches.remove(&entry.storage);
    }
}

/// Creates an entry for every served version, the newest first, over one cache.
async fn made(
    registry: &Arc<Registry>,
    definition: &Definition,
    terminating: &Arc<AtomicBool>,
) -> Result<(Vec<Arc<Served>>, String), StatusError> {
    let definition = Arc::new(definition.clone());
    let storage_version =
        definition.storage_version().ok_or_else(|| StatusError::internal("no storage version"))?;
    let custom = |version| {
        let custom = CustomResource::new(&definition, version).map_err(StatusError::internal)?;
        Ok::<_, StatusError>(ResourceRef::Custom(Arc::new(custom)))
    };
    let stored = custom(storage_version)?;
    let mut versions: Vec<_> = definition.versions.iter().filter(|v| v.served).collect();
    versions.sort_by(|a, b| compare_versions(&a.name, &b.name));
    if versions.is_empty() {
        return Ok((Vec::new(), String::new()));
    }
    let mut paths: Vec<&str> = definition
        .versions
        .iter()
        .flat_map(|v| &v.selectable_fields)
        .map(|path| path.trim_start_matches('.'))
        .collect();
    paths.sort_unstable();
    paths.dedup();
    let selectable =
        intern::names(paths).ok_or_else(|| StatusError::internal("too many names of fields are in use"))?;
    let storage = storage_name(&stored);
    let cache = registry
        .caches
        .add(&*registry.store, &storage, selectable, Some(normalize(&definition)))
        .await
        .map_err(StatusError::internal)?;
    let mut all = Vec::new();
    for version in versions {
        let resource = if version.storage { stored.clone() } else { custom(version)? };
        let converter = Arc::downgrade(registry) as Weak<dyn Converter>;
        let conversion = Conversion::new(converter, &definition, &version.name);
        let (cache, terminating) = (Arc::clone(&cache), Arc::clone(terminating));
        all.push(Arc::new(Served::custom(resource, stored.clone(), cache, conversion, terminating)));
    }
    Ok((all, storage))
}
