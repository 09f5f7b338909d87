//! A served resource with what stands behind it: schema, cache, storage keys.

use std::sync::Arc;

use bytes::Bytes;
use knarr_api::object::Object;
use knarr_api::resource::Resource;
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::schema::{self, Struct};
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use crate::cache::{Cache, Caches};

/// One line of the table of resources, at work.
pub struct Served {
    pub resource: &'static Resource,
    /// The resource whose form is stored: itself, or the one it shares storage with.
    pub stored: &'static Resource,
    pub schema: Option<&'static Struct>,
    storage: Option<Storage>,
}

struct Storage {
    cache: Arc<Cache>,
    prefix: String,
}

/// `core/pods`: the name of a resource in storage keys.
pub fn storage_name(resource: &Resource) -> String {
    let group = if resource.types.group.is_empty() { "core" } else { resource.types.group };
    format!("{group}/{}", resource.types.plural)
}

impl Served {
    /// What a 404, 409 … calls it.
    pub fn group_resource(&self) -> GroupResource {
        self.resource.types.group_resource()
    }

    pub fn not_found(&self, name: &str) -> StatusError {
        StatusError::not_found(&self.group_resource(), name)
    }

    /// The cache, unless the resource is not stored.
    pub fn cache(&self) -> Result<&Arc<Cache>, StatusError> {
        self.storage.as_ref().map(|s| &s.cache).ok_or_else(StatusError::path_not_found)
    }

    /// `namespace/name`, or the name of a cluster-scoped object.
    pub fn cache_key(&self, namespace: &str, name: &str) -> String {
        if self.resource.types.namespaced { format!("{namespace}/{name}") } else { name.to_owned() }
    }

    /// The storage key of one object.
    pub fn key(&self, namespace: &str, name: &str) -> Bytes {
        let prefix = self.storage.as_ref().map_or("", |s| s.prefix.as_str());
        Bytes::from(format!("{prefix}{}", self.cache_key(namespace, name)))
    }

    /// The storage prefix of a namespace's objects, or of all.
    pub fn prefix(&self, namespace: Option<&str>) -> String {
        let prefix = self.storage.as_ref().map_or("", |s| s.prefix.as_str());
        match namespace.filter(|ns| self.resource.types.namespaced && !ns.is_empty()) {
            Some(namespace) => format!("{prefix}{namespace}/"),
            None => prefix.to_owned(),
        }
    }

    /// From stored JSON, in the form of this resource.
    pub fn object(&self, stored: &[u8], revision: u64) -> Result<Arc<Object>, StatusError> {
        let object = Object::from_stored(stored, revision, self.stored.selectable)
            .map_err(|e| StatusError::internal(format!("damaged object in storage: {e}")))?;
        self.show(&Arc::new(object))
    }

    /// A stored object in the form of this resource.
    pub fn show(&self, stored: &Arc<Object>) -> Result<Arc<Object>, StatusError> {
        let Some(as_) = self.resource.stored_as else { return Ok(Arc::clone(stored)) };
        let value: Value = serde_json::from_slice(stored.json()).map_err(StatusError::internal)?;
        let shown = serde_json::to_vec(&(as_.from_stored)(&value)).map_err(StatusError::internal)?;
        Object::new(shown.into(), self.resource.selectable).map(Arc::new).map_err(StatusError::internal)
    }

    /// A value of this resource in its stored form.
    pub fn to_stored(&self, value: &Value) -> Vec<u8> {
        let bytes = match self.resource.stored_as {
            Some(as_) => serde_json::to_vec(&(as_.to_stored)(value)),
            None => serde_json::to_vec(value),
        };
        // Writing a `Value` to memory has no way to fail.
        bytes.unwrap_or_default()
    }
}

/// All served resources, in the order of the table of resources.
pub struct Table {
    list: Vec<Arc<Served>>,
}

impl Table {
    pub fn new(resources: &[&'static Resource], caches: &Caches) -> Self {
        let mut table = Self { list: Vec::new() };
        for resource in resources {
            let stored = stored_form(resource, resources);
            let storage = resource.is_stored().then(|| storage_name(stored)).and_then(|name| {
                let cache = Arc::clone(caches.get(&name)?);
                Some(Storage { cache, prefix: format!("/registry/{name}/") })
            });
            let schema = schema::for_kind(&resource.types.gvk());
            let served = Arc::new(Served { resource, stored, schema, storage });
            table.list.push(served);
        }
        table
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Served>> {
        self.list.iter().find(|s| {
            let types = &s.resource.types;
            types.plural == plural && types.group == group && types.version == version
        })
    }

    /// In the order of the table of resources.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Served>> {
        self.list.iter()
    }

    pub fn has_group_version(&self, group: &str, version: &str) -> bool {
        self.list.iter().any(|s| s.resource.types.group == group && s.resource.types.version == version)
    }

    pub fn has_group(&self, group: &str) -> bool {
        self.list.iter().any(|s| s.resource.types.group == group)
    }
}

/// The resource in whose form objects of `resource` are stored.
pub fn stored_form(resource: &'static Resource, all: &[&'static Resource]) -> &'static Resource {
    let Some(as_) = resource.stored_as else { return resource };
    let (group, version, plural) = as_.resource;
    let same = |r: &&&'static Resource| {
        r.types.group == group && r.types.version == version && r.types.plural == plural
    };
    all.iter().find(same).copied().unwrap_or(resource)
}
