//! Custom resources: CustomResourceDefinitions are watched, checked, served, and cleaned up after deletion.
//!
//! [`start`] serves the established definitions before the server answers requests; [`run`] follows the definitions
//! from then on.

mod cleanup;

mod serving;
mod status;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use knarr_api::apiextensions::definition::{CLEANUP_FINALIZER, Definition};
use knarr_api::object::Object;
use knarr_apimachinery::status::StatusError;
use knarr_client::Supervisor;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::Registry;
use crate::cache::{Cache, Kind, Selection, WatchFrom, Watcher};
use crate::metadata::rfc3339;
use crate::served::Served;
use crate::update::modify_raw;

use serving::Serving;

const GROUP: &str = "apiextensions.k8s.io";
const CLEANUP: &str = "custom-resource-cleanup";
const RETRY: std::time::Duration = std::time::Duration::from_secs(1);

/// The custom resources that are served or cleaned up.
pub struct CustomResources {
    registry: Arc<Registry>,
    supervisor: Supervisor,
    serving: Serving,
    /// The definitions whose instances are being deleted.
    cleaning: Mutex<BTreeSet<String>>,
}

impl CustomResources {
    pub fn new(registry: Arc<Registry>, supervisor: Supervisor) -> Self {
        Self { registry, supervisor, serving: Serving::default(), cleaning: Mutex::default() }
    }

    fn begin_cleaning(&self, name: &str) -> bool {
        self.cleaning.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned())
    }

    fn end_cleaning(&self, name: &str) {
        self.cleaning.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

fn definitions(resources: &CustomResources) -> Option<Arc<Served>> {
    resources.registry.table.find(GROUP, "v1", "customresourcedefinitions")
}

/// Serves the definitions that are already established.
pub async fn start(resources: &Arc<CustomResources>) {
    let Some(served) = definitions(resources) else { return };
    let Ok(cache) = served.cache() else { return };
    for object in cache.list(None) {
        settle(resources, &served, cache, object.name()).await;
    }
}

/// Follows the definitions until `stop`. The cleanup of a definition is a task of its own, which continues without
/// this one.
pub async fn run(resources: Arc<CustomResources>, stop: CancellationToken) {
    let Some(served) = definitions(&resources) else { return stop.cancelled().await };
    let Ok(cache) = served.cache().cloned() else { return stop.cancelled().await };
    loop {
        let everything = Selection::everything(served.resource.clone());
        // A watch from the current state cannot be too old.
        let Ok(mut watcher) = cache.watch(None, everything, WatchFrom::State) else { return };
        // While no watch was running, before a failure or while the cache was reloaded, definitions were deleted
        // without an event.
        for name in resources.serving.names().iter().filter(|name| cache.get(name).is_none()) {
            settle(&resources, &served, &cache, name).await;
        }
        if follow(&resources, &served, &cache, &mut watcher).await {
            return;
        }
    }
}

/// Reconciles each changed definition. Returns true if the server stops, false if the watch ended.
async fn follow(
    resources: &Arc<CustomResources>,
    served: &Served,
    cache: &Cache,
    watcher: &mut Watcher,
) -> bool {
    loop {
        let change = tokio::select! {
            () = resources.registry.stop.cancelled() => return true,
            change = watcher.next() => change,
        };
        let Some(change) = change else { return resources.registry.stop.is_cancelled() };
        let (object, deleted) = (change.object, change.kind == Kind::Deleted);
        settle(resources, served, cache, object.name()).await;
        if deleted {
            // The deletion released its names; other definitions of the group may have waited for them.
            for other in same_group(cache, object.name()) {
                settle(resources, served, cache, &other).await;
            }
        }
    }
}

fn same_group(cache: &Cache, name: &str) -> Vec<String> {
    let group = name.split_once('.').map_or("", |(_, group)| group);
    let of_group = |o: &Arc<Object>| o.name().split_once('.').is_some_and(|(_, g)| g == group);
    cache.list(None).iter().filter(|o| of_group(o)).map(|o| o.name().to_owned()).collect()
}

/// Reconciles the served resources and the definition's status with the definition; retries a few times.
async fn settle(resources: &Arc<CustomResources>, served: &Served, cache: &Cache, name: &str) {
    let mut tries = 0;
    while let Err(error) = try_settle(resources, served, cache, name).await {
        if error.is_not_found() {
            return;
        }
        tries += 1;
        tracing::warn!(%name, %error, "cannot reconcile a CustomResourceDefinition");
        if tries == 5 {
            return;
        }
        tokio::select! {
            () = resources.registry.stop.cancelled() => return,
            () = resources.registry.clock.sleep(RETRY) => {}
        }
    }
}

async fn try_settle(
    resources: &Arc<CustomResources>,
    served: &Served,
    cache: &Cache,
    name: &str,
) -> Result<(), StatusError> {
    let Some(object) = cache.get(name) else {
        resources.serving.end(&resources.registry, name);
        return Ok(());
    };
    let value: Value = serde_json::from_slice(&object.json()).map_err(StatusError::internal)?;
    let others: Vec<Value> = same_group(cache, name)
        .iter()
        .filter(|other| *other != name)
        .filter_map(|other| serde_json::from_slice(&cache.get(other)?.json()).ok())
        .collect();
    let now = rfc3339(resources.registry.clock.now());
    let mut wanted = value.clone();
    status::names(&mut wanted, &others, &now);
    status::policies(&mut wanted, &now);
    let definition = Definition::parse(&wanted);
    if status::may_be_served(&definition) {
        resources.serving.begin(&resources.registry, &wanted, &definition).await?;
        status::establish(&mut wanted, &now);
    }
    if wanted != value {
        write_status(resources, served, name, &wanted).await?;
    }
    if definition.deleting
        && definition.finalizers.iter().any(|f| f == CLEANUP_FINALIZER)
        && resources.begin_cleaning(name)
    {
        let (shared, name) = (Arc::clone(resources), name.to_owned());
        tokio::spawn(resources.supervisor.run_until_done(
            CLEANUP,
            resources.registry.stop.clone(),
            move |_| cleanup::run(Arc::clone(&shared), name.clone()),
        ));
    }
    Ok(())
}

/// Writes the conditions and accepted names of `wanted`, keeping all other changes.
async fn write_status(
    resources: &CustomResources,
    served: &Served,
    name: &str,
    wanted: &Value,
) -> Result<(), StatusError> {
    let change = |mut new: Value| {
        status::copy(wanted, &mut new);
        Ok(new)
    };
    modify_raw(&resources.registry, served, "", name, false, &change).await.map(|_| ())
}
