//! The identity of an object, as a reference or the API server states it.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;

pub type Uid = Arc<str>;

/// The finalizer of an object that waits until its dependents are gone.
pub const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object whose dependents are to be orphaned.
pub const ORPHAN: &str = "orphan";

/// All that identifies an object. Ordered by kind first, so that possible identities of an owner are tried kind by
/// kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    pub kind: Arc<str>,
    pub api_version: Arc<str>,
    /// Empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Uid,
}

impl Identity {
    /// Returns the identity of the owner that an object in `namespace` refers to.
    pub fn of_owner(reference: &Reference, namespace: &Arc<str>) -> Self {
        Self {
            kind: Arc::clone(&reference.kind),
            api_version: Arc::clone(&reference.api_version),
            namespace: Arc::clone(namespace),
            name: Arc::clone(&reference.name),
            uid: Arc::clone(&reference.uid),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, api_version, namespace, name, uid } = self;
        write!(f, "[{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}]")
    }
}

/// One owner reference of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    pub api_version: Arc<str>,
    pub kind: Arc<str>,
    pub name: Arc<str>,
    pub uid: Uid,
    pub controller: bool,
    /// Whether the reference blocks the owner's foreground deletion.
    pub blocks: bool,
}

impl Reference {
    /// Returns whether the reference names this object, its namespace aside.
    pub fn names(&self, identity: &Identity) -> bool {
        self.uid == identity.uid
            && self.name == identity.name
            && self.kind == identity.kind
            && self.api_version == identity.api_version
    }
}

/// The part of an object's metadata that garbage collection depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meta {
    pub uid: String,
    pub resource_version: String,
    pub being_deleted: bool,
    pub finalizers: Vec<String>,
    pub owners: Vec<Reference>,
}

impl Meta {
    /// Parses an object's JSON.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        let raw = serde_json::from_slice::<RawObject>(json)?.metadata;
        let owners = raw.owner_references.unwrap_or_default().into_iter().map(|r| Reference {
            api_version: r.api_version.into(),
            kind: r.kind.into(),
            name: r.name.into(),
            uid: r.uid.into(),
            controller: r.controller == Some(true),
            blocks: r.block_owner_deletion == Some(true),
        });
        Ok(Self {
            uid: raw.uid.unwrap_or_default(),
            resource_version: raw.resource_version.unwrap_or_default(),
            being_deleted: raw.deletion_timestamp.is_some(),
            finalizers: raw.finalizers.unwrap_or_default(),
            owners: owners.collect(),
        })
    }

    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|f| f == finalizer)
    }

    /// Returns whether the object is in foreground deletion.
    pub fn deletes_dependents(&self) -> bool {
        self.being_deleted && self.has_finalizer(FOREGROUND)
    }

    /// Returns whether the object is being deleted and its dependents are to be orphaned.
    pub fn orphans_dependents(&self) -> bool {
        self.being_deleted && self.has_finalizer(ORPHAN)
    }
}

#[derive(Deserialize)]
struct RawObject {
    metadata: RawMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMeta {
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<serde::de::IgnoredAny>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<RawReference>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct RawReference {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
    controller: Option<bool>,
    block_owner_deletion: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_read_from_json() {
        let json = br#"{"kind":"Pod","metadata":{"name":"p","uid":"u","resourceVersion":"7","finalizers":["orphan"],
            "deletionTimestamp":"2026-01-01T00:00:00Z","ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet",
            "name":"r","uid":"o","controller":true,"blockOwnerDeletion":true}]},"spec":{"metadata":{"uid":"x"}}}"#;
        let meta = Meta::parse(json).unwrap();
        assert_eq!((meta.uid.as_str(), meta.resource_version.as_str()), ("u", "7"));
        assert!(meta.orphans_dependents() && !meta.deletes_dependents());
        assert!(meta.owners[0].blocks && meta.owners[0].controller);
        let identity = Identity::of_owner(&meta.owners[0], &"ns".into());
        assert!(meta.owners[0].names(&identity));
        assert_eq!(identity.to_string(), "[apps/v1/ReplicaSet, namespace: ns, name: r, uid: o]");
        assert!(
            !Meta::parse(br#"{"metadata":{"deletionTimestamp":null,"finalizers":null}}"#)
                .unwrap()
                .being_deleted
        );
        assert!(Meta::parse(b"{}").is_err());
    }
}
