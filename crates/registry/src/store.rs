//! Reads and writes of single objects in the store, and how store errors are answered to clients.

use std::sync::Arc;

use bytes::Bytes;
use knarr_api::object::Object;
use knarr_apimachinery::status::StatusError;
use knarr_storage::{Compare, Conflict, Error, LeaseId, Op, OpResult, Precondition};
use serde_json::Value;

use super::served::{Prepared, Served};
use crate::Registry;
use crate::storage_limits::exceeded;
use crate::store_errors::status_of;

/// An object as it is in the store now.
pub struct Current {
    pub revision: u64,
    /// The stored bytes, in the stored form, without a resourceVersion.
    pub stored: Bytes,
    pub object: Arc<Object>,
    pub lease: Option<LeaseId>,
}

impl Current {
    /// Returns the whole object, with its resourceVersion.
    pub fn value(&self) -> Result<Value, StatusError> {
        serde_json::from_slice(&self.object.json()).map_err(StatusError::internal)
    }
}

/// Conditions and operations that are written in the same transaction as an object.
#[derive(Debug, Default)]
pub struct Extra {
    pub compares: Vec<Compare>,
    pub ops: Vec<Op>,
}

/// Why a write did not happen.
pub enum WriteError {
    /// A condition of the transaction no longer holds.
    Conflict(Box<Conflict>),
    Status(StatusError),
}

impl From<StatusError> for WriteError {
    fn from(error: StatusError) -> Self {
        Self::Status(error)
    }
}

impl From<Error> for WriteError {
    fn from(error: Error) -> Self {
        match error {
            Error::Conflict(conflict) => Self::Conflict(conflict),
            other => Self::Status(status_of(&other)),
        }
    }
}

/// Reads the current object of this name.
pub async fn read(
    registry: &Registry,
    served: &Served,
    namespace: &str,
    name: &str,
) -> Result<Option<Current>, StatusError> {
    let key = served.key(namespace, name);
    let found = registry.store.get(&key).await.map_err(|e| status_of(&e))?;
    let Some(kv) = found else { return Ok(None) };
    // The cache's object is used if it has the same revision: it is already decoded, and shared.
    let held = served.cache()?.get(&served.cache_key(namespace, name));
    let object = match held.filter(|o| o.resource_version() == kv.mod_revision) {
        Some(held) => served.show(&held).await?,
        None => served.object(&kv.value, kv.mod_revision).await?,
    };
    Ok(Some(Current { revision: kv.mod_revision, stored: kv.value, object, lease: kv.lease }))
}

/// Returns the revision of a stored object that cannot be decoded; `Some(None)` if it decodes, `None` if it does not
/// exist.
pub async fn unreadable(
    registry: &Registry,
    served: &Served,
    namespace: &str,
    name: &str,
) -> Result<Option<Option<u64>>, StatusError> {
    let found = registry.store.get(&served.key(namespace, name)).await.map_err(|e| status_of(&e))?;
    let Some(kv) = found else { return Ok(None) };
    let readable = served.cache()?.decode(&kv.value, kv.mod_revision).is_ok();
    Ok(Some((!readable).then_some(kv.mod_revision)))
}

/// Writes an object and `extra` in one transaction, if all conditions hold. Returns the object in the form of
/// `served`.
pub async fn put(
    registry: &Registry,
    served: &Served,
    key: Bytes,
    new: Prepared,
    condition: Precondition,
    lease: Option<LeaseId>,
    extra: Extra,
) -> Result<Arc<Object>, WriteError> {
    let cache = served.cache()?;
    let Prepared { stored, held } = new;
    cache.expect(&held);
    let mut compares = vec![Compare { key: key.clone(), condition }];
    compares.extend(extra.compares);
    let mut ops = vec![Op::Put { key, value: stored.clone(), lease }];
    ops.extend(extra.ops);
    let response = match registry.store.txn(compares, ops).await {
        Ok(response) => response,
        Err(error) => {
            cache.give_up(&stored);
            return Err(match error {
                Error::ShareExceeded { share, used, requested, limit } => {
                    let numbers = (requested, used, limit);
                    exceeded(&served.group_resource(), held.name(), &share, numbers).into()
                }
                error => error.into(),
            });
        }
    };
    let Some(OpResult::Put { kv, .. }) = response.results.first() else {
        return Err(StatusError::internal("the store answered a put with something else").into());
    };
    Ok(match held.at_version(kv.mod_revision) {
        Some(object) => served.show(&Arc::new(object)).await?,
        None => served.object(&stored, kv.mod_revision).await?,
    })
}

/// Deletes an object and writes `extra` in one transaction, if the object is still at this revision. Returns the
/// revision of the deletion.
pub async fn remove(registry: &Registry, key: Bytes, revision: u64, extra: Extra) -> Result<u64, WriteError> {
    let mut compares = vec![Compare { key: key.clone(), condition: Precondition::ModRevision(revision) }];
    compares.extend(extra.compares);
    let mut ops = vec![Op::Delete { key }];
    ops.extend(extra.ops);
    Ok(registry.store.txn(compares, ops).await?.revision)
}
