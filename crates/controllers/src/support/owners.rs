//! Ownership: who controls an object, and what a controller may adopt or has to release.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::kind::Kind;
use knarr_client::{Client, Error, Result};

/// The owner that manages the object, if there is one.
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|o| o.controller == Some(true))
}

/// A reference that makes `owner` the managing owner and holds back its foreground deletion.
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

/// What to do about an object that a controller's selector may cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It is ours already.
    Keep,
    /// Nobody's, and the selector matches: set the owner reference.
    Adopt,
    /// Ours, but the selector no longer matches: drop the owner reference.
    Release,
    Ignore,
}

/// Decides on one object. A controller that is being deleted adopts and releases nothing.
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

/// Fails unless the owner, which the informer may show as it was, still exists and stays: what it would adopt somebody
/// else may be letting go, and what it would create the garbage collector would delete.
pub async fn still_owns<K: Kind>(client: &Client, owner: &K) -> Result<()> {
    let live = client.get::<K>(owner.namespace(), owner.name()).await?;
    if live.uid() != owner.uid() {
        return Err(Error::Protocol(format!("{} is another one now", owner.key())));
    }
    match live.meta().deletion_timestamp {
        Some(_) => Err(Error::Protocol(format!("{} is being deleted", owner.key()))),
        None => Ok(()),
    }
}

/// The patch that makes `owner` the managing owner of the object with this uid.
pub fn adopt_patch<K: Kind>(owner: &K, uid: &str) -> serde_json::Value {
    serde_json::json!({"metadata": {"ownerReferences": [controller_reference(owner)], "uid": uid}})
}

/// The patch that takes the owner with uid `owner` off the object with uid `uid`.
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
        // who manages it, does the selector match, is the owner being deleted
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
