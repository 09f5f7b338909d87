//! The collector's requests to the API server, for objects of any kind by their identity.

use bytes::Bytes;
use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use knarr_api::kind::ResourceType;
use knarr_client::{Client, Patch};
use serde_json::{Value, json};

use super::identity::{Identity, Meta, Reference};
use crate::support::discovery::Discovery;

/// How often a write that conflicts with other writers is attempted.
const ATTEMPTS: u32 = 5;

/// Why an object could not be collected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Client(#[from] knarr_client::Error),
    /// The kind may be served later.
    #[error("no resource is known for {kind} of {api_version}")]
    UnknownKind { api_version: String, kind: String },
    /// No retry can succeed.
    #[error("cluster-scoped objects cannot refer to namespaced owners")]
    NamespacedOwner,
    #[error("{0} has not been seen by an informer yet")]
    Unobserved(Identity),
}

impl Error {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Client(e) if e.is_conflict())
    }

    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Client(e) if e.is_not_found())
    }

    fn is_unsupported_media_type(&self) -> bool {
        matches!(self, Self::Client(e) if e.status().is_some_and(|s| s.code() == 415))
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns the resource that serves a kind.
pub fn resource_of(discovery: &Discovery, api_version: &str, kind: &str) -> Result<ResourceType> {
    let found = discovery.find(api_version, kind).copied();
    found.ok_or_else(|| Error::UnknownKind { api_version: api_version.to_owned(), kind: kind.to_owned() })
}

/// Access to one object.
pub struct Remote<'a> {
    client: &'a Client,
    path: String,
    uid: &'a str,
}

impl<'a> Remote<'a> {
    pub fn new(client: &'a Client, discovery: &Discovery, identity: &'a Identity) -> Result<Self> {
        let resource = resource_of(discovery, &identity.api_version, &identity.kind)?;
        if resource.namespaced && identity.namespace.is_empty() {
            return Err(Error::NamespacedOwner);
        }
        let path = resource.path(Some(&identity.namespace), Some(&identity.name));
        Ok(Self { client, path, uid: &identity.uid })
    }

    async fn get_json(&self) -> Result<Bytes> {
        Ok(self.client.call(Method::GET, self.path.clone(), None, Bytes::new()).await?)
    }

    /// Returns the object's metadata; `None` if it does not exist or another object has its name.
    pub async fn get(&self) -> Result<Option<Meta>> {
        let json = match self.get_json().await {
            Err(e) if e.is_not_found() => return Ok(None),
            other => other?,
        };
        let meta = Meta::parse(&json).map_err(|e| knarr_client::Error::Protocol(e.to_string()))?;
        Ok((meta.uid == self.uid).then_some(meta))
    }

    /// Deletes the object in the observed state. Concurrent changes that leave its owner references alone do not
    /// prevent that.
    pub async fn delete(&self, seen: &Meta, policy: &str) -> Result<()> {
        let conflict = match self.delete_at(Some(&seen.resource_version), policy).await {
            Err(e) if e.is_conflict() => e,
            other => return other,
        };
        match self.get().await? {
            Some(live) if live.owners == seen.owners => self.delete_at(None, policy).await,
            Some(_) => Err(conflict),
            None => Ok(()),
        }
    }

    async fn delete_at(&self, version: Option<&str>, policy: &str) -> Result<()> {
        let preconditions =
            Preconditions { uid: Some(self.uid.to_owned()), resource_version: version.map(str::to_owned) };
        let options = DeleteOptions {
            preconditions: Some(preconditions),
            propagation_policy: Some(policy.to_owned()),
            ..DeleteOptions::default()
        };
        Ok(self.client.delete_path(self.path.clone(), &options).await?)
    }

    /// Removes the references to these owners from the object.
    pub async fn unreference(&self, owners: &[impl AsRef<str>]) -> Result<()> {
        let gone = owners.iter().map(|uid| json!({"$patch": "delete", "uid": uid.as_ref()}));
        self.patch_owners(gone.collect(), |reference| {
            let uid = reference["uid"].as_str().unwrap_or("");
            (!owners.iter().any(|o| o.as_ref() == uid)).then_some(reference)
        })
        .await
    }

    /// Clears `blockOwnerDeletion` in these references, so that the owners can be deleted before the object.
    pub async fn unblock(&self, references: &[Reference]) -> Result<()> {
        let blocking = references.iter().filter(|r| r.blocks);
        let free = blocking.map(|r| {
            json!({"apiVersion": &*r.api_version, "kind": &*r.kind, "name": &*r.name, "uid": &*r.uid,
                "controller": r.controller, "blockOwnerDeletion": false})
        });
        self.patch_owners(free.collect(), |mut reference| {
            reference["blockOwnerDeletion"] = json!(false);
            Some(reference)
        })
        .await
    }

    /// Patches the owner references strategically; for kinds without strategic patches, `edit` makes the same change
    /// for a merge patch.
    async fn patch_owners(&self, changes: Vec<Value>, edit: impl Fn(Value) -> Option<Value>) -> Result<()> {
        let patch = Patch::Strategic(json!({"metadata": {"ownerReferences": changes, "uid": self.uid}}));
        match self.patch(&patch).await {
            Err(e) if e.is_unsupported_media_type() => {}
            other => return other,
        }
        let json = self.get_json().await?;
        let live: Value =
            serde_json::from_slice(&json).map_err(|e| knarr_client::Error::Protocol(e.to_string()))?;
        let references = live["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        let next: Vec<Value> = references.into_iter().filter_map(edit).collect();
        let metadata = json!({"ownerReferences": next, "uid": self.uid,
            "resourceVersion": live["metadata"]["resourceVersion"]});
        self.patch(&Patch::Merge(json!({"metadata": metadata}))).await
    }

    async fn patch(&self, patch: &Patch) -> Result<()> {
        self.client.patch_path(self.path.clone(), patch).await?;
        Ok(())
    }

    /// Removes a finalizer from the object, if it has it.
    pub async fn remove_finalizer(&self, finalizer: &str) -> Result<()> {
        let mut attempt = 1;
        loop {
            let Some(meta) = self.get().await?.filter(|m| m.has_finalizer(finalizer)) else { return Ok(()) };
            let others: Vec<&String> = meta.finalizers.iter().filter(|f| *f != finalizer).collect();
            let metadata = json!({"resourceVersion": meta.resource_version, "finalizers": others});
            match self.patch(&Patch::Merge(json!({"metadata": metadata}))).await {
                Err(e) if e.is_not_found() => return Ok(()),
                Err(e) if e.is_conflict() && attempt < ATTEMPTS => attempt += 1,
                other => return other,
            }
        }
    }
}
