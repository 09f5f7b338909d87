//! Ownership: which controller manages an object, and which objects a controller may adopt or must release.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::kind::Kind;
use knarr_client::{Client, Error, Result};

/// Returns the owner reference of the managing controller, if there is one.
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|o| o.controller == Some(true))
}

/// Returns a reference that makes `owner` the managing controller and blocks its foreground deletion.
pub fn controller_reference<K: Kind>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::RESOURCE.api_version(),
        kind: K::RESOURCE.kind.to_owned(),
        name: owner.name().to_owned(),
        uid: owner.uid().to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// What to do with an object that a controller's selector may match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The owner controls the object already.
    Keep,
    /// The object has no controller and the selector matches: set the owner reference.
    Adopt,
    /// The owner controls the object, but the selector no longer matches: remove the owner reference.
    Release,
    Ignore,
}

/// Decides about one object. A controller that is being deleted adopts and releases nothing.
pub fn claim<K: Kind>(owner: &K, object: &ObjectMeta, matches: bool) -> Claim {
    let owner_deleting = owner.meta().deletion_timestamp.is_some();
    match controller_of(object) {
        Some(reference) if reference.uid != owner.uid() => Claim::Ignore,
        Some(_) if matches => Claim::Keep,
        Some(_) if owner_deleting || object.deletion_timestamp.is_some() => Claim::Ignore,
        Some(_) => Claim::Release,
        None if !matches || owner_deleting || object.deletion_timestamp.is_some() => Claim::Ignore,
        None => Claim::Adopt,
    }
}

/// Fails unless the owner still exists and is not being deleted, by a read past the informer. Otherwise it could
/// adopt what another owner is releasing, and the garbage collector would delete what it creates.
pub async fn still_owns<K: Kind>(client: &Client, owner: &K) -> Result<()> {
    let live = client.get::<K>(owner.namespace(), owner.name()).await?;
    if live.uid() != owner.uid() {
        return Err(Error::Protocol(format!("{} was replaced by another object of its name", owner.key())));
    }
    match live.meta().deletion_timestamp {
        Some(_) => Err(Error::Protocol(format!("{} is being deleted", owner.key()))),
        None => Ok(()),
    }
}

/// Returns the patch that makes `owner` the managing controller of the object with this uid.
pub fn adopt_patch<K: Kind>(owner: &K, uid: &str) -> serde_json::Value {
    serde_json::json!({"metadata": {"ownerReferences": [controller_reference(owner)], "uid": uid}})
}

/// Returns the patch that removes the owner with uid `owner` from the object with uid `uid`.
pub fn release_patch(owner: &str, uid: &str) -> serde_json::Value {
    serde_json::json!({"metadata": {"ownerReferences": [{"$patch": "delete", "uid": owner}], "uid": uid}})
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    #[test]
    fn claims() {
        let owner = |uid: &str, deleting: bool| {
            let mut rs = ReplicaSet::default();
            rs.metadata.uid = Some(uid.into());
            rs.metadata.deletion_timestamp = deleting.then_some(Time(jiff::Timestamp::UNIX_EPOCH));
            rs
        };
        let owned_by = |uid: Option<&str>| ObjectMeta {
            owner_references: uid.map(|uid| vec![controller_reference(&owner(uid, false))]),
            ..ObjectMeta::default()
        };
        // managing controller, whether the selector matches, whether the owner is being deleted
        let table = [
            (None, true, false, Claim::Adopt),
            (None, false, false, Claim::Ignore),
            (None, true, true, Claim::Ignore),
            (Some("me"), true, false, Claim::Keep),
            (Some("me"), false, false, Claim::Release),
            (Some("me"), false, true, Claim::Ignore),
            (Some("other"), true, false, Claim::Ignore),
        ];
        for (by, matches, deleting, expected) in table {
            assert_eq!(
                claim(&owner("me", deleting), &owned_by(by), matches),
                expected,
                "{by:?} {matches} {deleting}"
            );
        }
    }
}
