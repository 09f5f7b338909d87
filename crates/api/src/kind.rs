//! The trait of typed API objects: the names of their resource, decoding, encoding, metadata.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_apimachinery::gvk::{GroupResource, GroupVersionKind, api_version};

/// Names of one served resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceType {
    /// Empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub namespaced: bool,
}

impl ResourceType {
    /// Returns `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        api_version(self.group, self.version)
    }

    /// Returns the form that error messages use: `pods`, `deployments.apps`.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.group, self.plural)
    }

    pub fn gvk(&self) -> GroupVersionKind {
        GroupVersionKind::new(self.group, self.version, self.kind)
    }

    /// Returns the URL path of the collection or of one object: `/apis/apps/v1/namespaces/ns/deployments/name`.
    pub fn path(&self, namespace: Option<&str>, name: Option<&str>) -> String {
        let mut path = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if let (true, Some(ns)) = (self.namespaced, namespace.filter(|ns| !ns.is_empty())) {
            path.push_str("/namespaces/");
            path.push_str(ns);
        }
        path.push('/');
        path.push_str(self.plural);
        if let Some(name) = name {
            path.push('/');
            path.push_str(name);
        }
        path
    }
}

/// The bytes are not JSON, or the JSON does not fit the type.
#[derive(Debug, thiserror::Error)]
#[error("cannot decode {kind}")]
pub struct DecodeError {
    pub kind: &'static str,
    #[source]
    pub source: serde_json::Error,
}

/// A top-level API type. Implemented in [`crate::codec`], one line per kind.
pub trait Kind: Clone + Default + Debug + PartialEq + Send + Sync + 'static {
    const RESOURCE: ResourceType;

    /// Decodes JSON.
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError>;

    /// Encodes the object as JSON, with `apiVersion` and `kind`.
    fn encode(&self) -> Vec<u8>;

    fn meta(&self) -> &ObjectMeta;

    fn meta_mut(&mut self) -> &mut ObjectMeta;

    /// Returns `metadata.name`, or the empty string.
    fn name(&self) -> &str {
        self.meta().name.as_deref().unwrap_or("")
    }

    /// Returns `metadata.namespace`, or the empty string.
    fn namespace(&self) -> &str {
        self.meta().namespace.as_deref().unwrap_or("")
    }

    /// Returns `metadata.uid`, or the empty string.
    fn uid(&self) -> &str {
        self.meta().uid.as_deref().unwrap_or("")
    }

    /// Returns the key: `namespace/name`, or the bare name of a cluster-scoped object.
    fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace(), self.name())
    }
}

/// Namespace and name; the namespace is empty for cluster-scoped objects.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    pub namespace: Box<str>,
    pub name: Box<str>,
}

impl ObjectKey {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}
