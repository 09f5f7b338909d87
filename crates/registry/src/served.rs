//! A served resource together with its schema, cache, storage keys and conversion.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use knarr_api::object::Object;
use knarr_api::resource::Resource;
use knarr_api::resource_ref::ResourceRef;
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::schema::{self, Struct};
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use crate::cache::{Cache, Caches, damaged};
use crate::conversion::Conversion;
use knarr_wire::output::Answer;

/// Upstream's error for an object that cannot be decoded.
pub const CORRUPT: &str = "StorageError: corrupt object, Code: 7";

/// One version of a resource, as it is served.
pub struct Served {
    pub resource: ResourceRef,
    /// The resource whose form is stored: itself, or the one it shares storage with.
    pub stored: ResourceRef,
    /// The schema of a built-in resource; `None` for custom resources.
    pub schema: Option<&'static Struct>,
    storage: Option<Storage>,
    /// Converts objects of a custom resource between this version and the stored one.
    conversion: Option<Conversion>,
    /// Set while the definition of a custom resource is being deleted.
    terminating: Arc<AtomicBool>,
}

/// An object about to be written: its stored bytes, and the decoded object for the cache.
#[derive(Clone)]
pub struct Prepared {
    pub stored: Bytes,
    pub held: Arc<Object>,
}

struct Storage {
    cache: Arc<Cache>,
    prefix: String,
}

/// Returns the name of a resource in storage keys, such as `core/pods`.
pub fn storage_name(resource: &Resource) -> String {
    let group = if resource.types.group.is_empty() { "core" } else { resource.types.group };
    format!("{group}/{}", resource.types.plural)
}

impl Served {
    /// Creates the entry of a built-in resource.
    pub fn built_in(resource: &'static Resource, all: &[&'static Resource], caches: &Caches) -> Self {
        let stored = stored_form(resource, all);
        let storage = resource.is_stored().then(|| storage_name(stored)).and_then(|name| {
            let cache = caches.get(&name)?;
            Some(Storage { cache, prefix: format!("/registry/{name}/") })
        });
        let schema = schema::for_kind(&resource.types.gvk());
        Self {
            resource: resource.into(),
            stored: stored.into(),
            schema,
            storage,
            conversion: None,
            terminating: Arc::default(),
        }
    }

    /// Creates the entry of one version of a custom resource. `stored` is the stored version; all versions share
    /// `terminating`.
    pub fn custom(
        resource: ResourceRef,
        stored: ResourceRef,
        cache: Arc<Cache>,
        conversion: Conversion,
        terminating: Arc<AtomicBool>,
    ) -> Self {
        let prefix = format!("/registry/{}/", storage_name(&stored));
        let storage = Some(Storage { cache, prefix });
        let conversion = Some(conversion);
        Self { resource, stored, schema: None, storage, conversion, terminating }
    }

    /// Returns whether creates are refused because the definition is being deleted.
    pub fn is_terminating(&self) -> bool {
        self.terminating.load(Ordering::Acquire)
    }

    /// Returns the group and resource that errors such as 404 and 409 name.
    pub fn group_resource(&self) -> GroupResource {
        self.resource.types.group_resource()
    }

    pub fn answer(&self, code: u16, object: Arc<Object>) -> Answer {
        Answer::Object { code, resource: self.resource.clone(), object }
    }

    pub fn not_found(&self, name: &str) -> StatusError {
        StatusError::not_found(&self.group_resource(), name)
    }

    /// Returns the cache. Fails if the resource is not stored.
    pub fn cache(&self) -> Result<&Arc<Cache>, StatusError> {
        self.storage.as_ref().map(|s| &s.cache).ok_or_else(StatusError::path_not_found)
    }

    /// Returns `namespace/name`, or the name alone for a cluster-scoped object.
    pub fn cache_key(&self, namespace: &str, name: &str) -> String {
        if self.resource.types.namespaced { format!("{namespace}/{name}") } else { name.to_owned() }
    }

    /// Returns the storage key of one object.
    pub fn key(&self, namespace: &str, name: &str) -> Bytes {
        let prefix = self.storage.as_ref().map_or("", |s| s.prefix.as_str());
        Bytes::from(format!("{prefix}{}", self.cache_key(namespace, name)))
    }

    /// Returns the storage prefix of a namespace's objects, or of all objects.
    pub fn prefix(&self, namespace: Option<&str>) -> String {
        let prefix = self.storage.as_ref().map_or("", |s| s.prefix.as_str());
        match namespace.filter(|ns| self.resource.types.namespaced && !ns.is_empty()) {
            Some(namespace) => format!("{prefix}{namespace}/"),
            None => prefix.to_owned(),
        }
    }

    /// Decodes stored JSON into the stored form, as the cache holds it.
    pub fn held(&self, stored: &Bytes, revision: u64) -> Result<Arc<Object>, StatusError> {
        let object = self.cache()?.decode(stored, revision);
        object.map(Arc::new).map_err(|error| {
            let why = damaged::reason(stored, &error);
            StatusError::internal(format!(
                "{CORRUPT}, AdditionalErrorMsg: object not decodable revision={revision}: {why}"
            ))
        })
    }

    /// Decodes stored JSON and converts it to this version.
    pub async fn object(&self, stored: &Bytes, revision: u64) -> Result<Arc<Object>, StatusError> {
        self.show(&self.held(stored, revision)?).await
    }

    /// Converts a held object to this version.
    pub async fn show(&self, held: &Arc<Object>) -> Result<Arc<Object>, StatusError> {
        if let Some(conversion) = &self.conversion {
            return conversion.show(self, held).await;
        }
        let Some(as_) = self.resource.stored_as else { return Ok(Arc::clone(held)) };
        let value: Value = serde_json::from_slice(&held.json()).map_err(StatusError::internal)?;
        let shown = serde_json::to_vec(&(as_.from_stored)(&value)).map_err(StatusError::internal)?;
        Object::new(shown.into(), self.resource.selectable).map(Arc::new).map_err(StatusError::internal)
    }

    /// Returns whether held objects can be answered without conversion.
    pub fn shows_as_held(&self) -> bool {
        self.resource.stored_as.is_none() && self.conversion.as_ref().is_none_or(Conversion::is_trivial)
    }

    /// Converts held objects to this version.
    pub async fn show_all(&self, held: Vec<Arc<Object>>) -> Result<Vec<Arc<Object>>, StatusError> {
        if self.shows_as_held() {
            return Ok(held);
        }
        if let Some(conversion) = &self.conversion {
            return conversion.show_all(self, held).await;
        }
        let mut shown = Vec::with_capacity(held.len());
        for object in &held {
            shown.push(self.show(object).await?);
        }
        Ok(shown)
    }

    /// Returns whether the stored, the held and the served form of objects are the same.
    pub fn is_plain(&self) -> bool {
        self.resource.stored_as.is_none() && self.conversion.is_none() && self.storage.is_some()
    }

    /// Serializes and decodes a value of this version for a write.
    pub async fn prepare(&self, value: &Value) -> Result<Prepared, StatusError> {
        let stored = self.to_stored(value).await?;
        let held = self.held(&stored, 0)?;
        Ok(Prepared { stored, held })
    }

    /// Serializes a value of this version in its stored form.
    pub async fn to_stored(&self, value: &Value) -> Result<Bytes, StatusError> {
        if let Some(conversion) = &self.conversion {
            return conversion.to_stored(self, value).await;
        }
        let bytes = match self.resource.stored_as {
            Some(as_) => serde_json::to_vec(&(as_.to_stored)(value)),
            None => serde_json::to_vec(value),
        };
        // The cache keeps these bytes, so the buffer's spare capacity is released.
        bytes.map(|bytes| Bytes::from(bytes.into_boxed_slice())).map_err(StatusError::internal)
    }
}

/// Returns the resource in whose form objects of `resource` are stored.
pub fn stored_form(resource: &'static Resource, all: &[&'static Resource]) -> &'static Resource {
    let Some(as_) = resource.stored_as else { return resource };
    let (group, version, plural) = as_.resource;
    let same = |r: &&&'static Resource| {
        r.types.group == group && r.types.version == version && r.types.plural == plural
    };
    all.iter().find(same).copied().unwrap_or(resource)
}
