//! Deletion of a CustomResourceDefinition: its instances are deleted first, then the definition is removed.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use knarr_api::apiextensions::definition::{
    CLEANUP_FINALIZER, Condition, Definition, ESTABLISHED, TERMINATING,
};
use knarr_api::prepare;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::{CustomResources, RETRY, definitions};
use crate::cache::{Cache, Selection, WatchFrom};
use crate::delete::{How, delete};
use crate::metadata::rfc3339;
use crate::served::Served;
use crate::update::modify_raw;
use knarr_wire::request::Request;

/// Deletes the instances of a definition, waits until they are removed, then removes the definition's finalizer.
pub async fn run(resources: Arc<CustomResources>, name: String) {
    while let Err(error) = clean(&resources, &name).await {
        if error.is_not_found() {
            break;
        }
        let why = format!("could not issue all deletes: {error}");
        let condition = Condition::new(TERMINATING, "True", "InstanceDeletionFailed", why);
        let _ = finish(&resources, &name, &condition, false).await;
        tokio::select! {
            () = resources.registry.stop.cancelled() => break,
            () = resources.registry.clock.sleep(RETRY) => {}
        }
    }
    resources.end_cleaning(&name);
}

async fn clean(resources: &Arc<CustomResources>, name: &str) -> Result<(), StatusError> {
    let why = "CustomResource deletion is in progress";
    let condition = Condition::new(TERMINATING, "True", "InstanceDeletionInProgress", why);
    let object = finish(resources, name, &condition, false).await?;
    let definition = Definition::parse(&object);
    let condition = if !definition.is_true(ESTABLISHED) {
        Condition::new(TERMINATING, "False", "NeverEstablished", "resource was never established")
    } else if let Some(served) = instances(resources, &definition) {
        empty(resources, &served).await?;
        Condition::new(TERMINATING, "False", "InstanceDeletionCompleted", "removed all instances")
    } else {
        let why = "instances overlap with built-in resources in storage";
        Condition::new(TERMINATING, "False", "OverlappingBuiltInResource", why)
    };
    finish(resources, name, &condition, true).await.map(|_| ())
}

/// Returns a served version of the resource that the definition describes.
fn instances(resources: &CustomResources, definition: &Definition) -> Option<Arc<Served>> {
    let table = resources.registry.table.snapshot();
    let own = |s: &&Arc<Served>| {
        let types = &s.resource.types;
        s.resource.custom().is_some()
            && (types.group, types.plural) == (&*definition.group, &*definition.accepted_names.plural)
    };
    table.iter().find(own).cloned()
}

/// Deletes all instances and waits until the last one is removed.
async fn empty(resources: &Arc<CustomResources>, served: &Arc<Served>) -> Result<(), StatusError> {
    let cache: &Cache = served.cache()?;
    let everything = Selection::everything(served.stored.clone());
    let watch = cache.watch(None, everything, WatchFrom::Now);
    let mut watcher = watch.map_err(|_| StatusError::internal("the watch cache was filled anew"))?;
    let mut requested = BTreeSet::new();
    loop {
        let left = cache.list(None);
        if left.is_empty() {
            return Ok(());
        }
        for object in left {
            if !requested.insert(object.uid().to_owned()) {
                continue;
            }
            let how = How { options: DeleteOptions::default(), dry_run: false, admitted: true };
            let done =
                delete(&resources.registry, &Request::own(), served, object.namespace(), object.name(), &how)
                    .await;
            match done {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        tokio::select! {
            () = resources.registry.stop.cancelled() => return Err(StatusError::unavailable("the server is shutting down")),
            change = watcher.next() => {
                if change.is_none() {
                    return Err(StatusError::internal("the watch cache was filled anew"));
                }
            }
        }
    }
}

/// Writes the condition, and removes the finalizer once the definition may be removed.
async fn finish(
    resources: &CustomResources,
    name: &str,
    condition: &Condition,
    release: bool,
) -> Result<Value, StatusError> {
    let served = definitions(resources).ok_or_else(StatusError::path_not_found)?;
    let now = rfc3339(resources.registry.clock.now());
    let change = |mut new: Value| {
        condition.set(&mut new, &now);
        if release {
            let list = Definition::parse(&new).finalizers;
            let left: Vec<String> = list.into_iter().filter(|f| f != CLEANUP_FINALIZER).collect();
            if left.is_empty() {
                prepare::metadata(&mut new).remove("finalizers");
            } else {
                prepare::metadata(&mut new).insert("finalizers".into(), json!(left));
            }
        }
        Ok(new)
    };
    let object = modify_raw(&resources.registry, &served, "", name, false, &change).await?;
    serde_json::from_slice(&object.json()).map_err(StatusError::internal)
}
