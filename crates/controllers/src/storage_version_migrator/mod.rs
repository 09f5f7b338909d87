//! Storage version migrator: rewrites all objects of a resource so that all are stored in the current version, one
//! migration per resource at a time; then removes old stored versions from the definitions of custom resources.
//!
//! Source: `k8s.io/kubernetes/pkg/controller/storageversionmigrator`, KEP-4192.

mod definition;
mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use jiff::SignedDuration;
use k8s_openapi::api::storagemigration::v1::StorageVersionMigration;
use knarr_api::kind::{Kind, ResourceType};
use knarr_apimachinery::status::StatusError;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Client, Error, Lister, Patch, Result};
use serde::Deserialize;
use serde_json::json;

use self::status::{FAILED, RUNNING, SUCCEEDED, is, is_over, progress, resource, set, turns};
use crate::context::{Context, Descriptor};
use crate::support::discovery::{Discovery, Served};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "storage-version-migrator-controller",
    run: |cx| Box::pin(async move { run(cx).await }),
};

const WORKERS: usize = 5;
/// How many objects are listed per request.
const PAGE: usize = 500;
/// How long the migrator waits for a resource that is not served yet, and how often it checks.
const COMING_FOR: SignedDuration = SignedDuration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_secs(10);
const VERBS: [&str; 3] = ["update", "patch", "list"];
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const FAILURE: &str = "StorageVersionMigrationFailed";

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// A resource, by group and plural, whose migrations take turns.
    Resource(String, String),
    Migration(String),
}

struct Controller {
    cx: Arc<Context>,
    /// Rewrites objects under the controller's name.
    writer: Client,
    migrations: Lister<StorageVersionMigration>,
    queue: Arc<WorkQueue<Key>>,
}

#[derive(Deserialize)]
struct Page {
    metadata: PageMeta,
    items: Option<Vec<Item>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    next: String,
}

#[derive(Deserialize)]
struct Item {
    metadata: ItemMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ItemMeta {
    name: String,
    #[serde(default)]
    namespace: String,
    resource_version: String,
}

/// The result of rewriting the objects of a resource.
enum Outcome {
    Done {
        all: usize,
    },
    /// A transient error: `left` of `all` objects are still to be rewritten.
    Later {
        left: usize,
        all: usize,
        error: Error,
    },
    Failed {
        left: usize,
        all: usize,
        error: Error,
    },
}

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new(Arc::clone(&cx.clock));
    let migrations = cx.informers.informer::<StorageVersionMigration>();
    let on_migration = Arc::clone(&queue);
    migrations.add_handler(move |event| {
        let (group, plural) = resource(event.object());
        on_migration.add(Key::Resource(group, plural));
        on_migration.add(Key::Migration(event.object().name().to_owned()));
    });
    if !migrations.wait_synced().await {
        return;
    }
    let (stop, clock) = (cx.stop.clone(), Arc::clone(&cx.clock));
    let controller = Arc::new(Controller {
        writer: Client::new(Arc::clone(cx.client.transport()), clock, DESCRIPTOR.name),
        migrations: migrations.lister(),
        queue: Arc::clone(&queue),
        cx,
    });
    let reconcile = move |key: Key| {
        let controller = Arc::clone(&controller);
        async move {
            match key {
                Key::Resource(group, plural) => controller.take_turns(&group, &plural).await,
                Key::Migration(name) => controller.migrate(&name).await,
            }
        }
    };
    queue.run(DESCRIPTOR.name, WORKERS, stop, reconcile).await;
}

/// Returns whether a retry may succeed.
fn is_transient(error: &Error) -> bool {
    error.status().is_none_or(|status| matches!(status.code(), 429 | 500 | 503 | 504))
}

fn number(version: &str) -> Option<u64> {
    version.parse().ok()
}

impl Controller {
    async fn take_turns(&self, group: &str, plural: &str) -> Result<()> {
        let of_resource = |m: &Arc<StorageVersionMigration>| {
            let of = resource(m);
            of.0 == group && of.1 == plural
        };
        let all: Vec<_> = self.migrations.list().into_iter().filter(of_resource).collect();
        let now = self.cx.clock.now();
        let (over, next) = turns(&all);
        for ended in over {
            definition::finish(&self.cx, group, plural, is(ended, SUCCEEDED)).await?;
            let mut ended = ended.clone();
            set(&mut ended, RUNNING, false, "MigrationCompleted", "Migration completed".to_owned(), now);
            self.write(&ended).await?;
        }
        let Some(next) = next else { return Ok(()) };
        definition::begin(&self.cx, group, plural, next.name()).await?;
        let mut next = next.clone();
        set(&mut next, RUNNING, true, "MigrationRunning", progress(0, 0, None), now);
        self.write(&next).await
    }

    async fn write(&self, migration: &StorageVersionMigration) -> Result<()> {
        match self.cx.client.update_status(migration).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    async fn fail(&self, migration: &StorageVersionMigration, message: String) -> Result<()> {
        let mut failed = migration.clone();
        set(&mut failed, FAILED, true, FAILURE, message, self.cx.clock.now());
        self.write(&failed).await
    }

    async fn migrate(&self, name: &str) -> Result<()> {
        let Some(migration) = self.migrations.get("", name) else { return Ok(()) };
        if !is(&migration, RUNNING) || is_over(&migration) {
            return Ok(());
        }
        let (group, plural) = resource(&migration);
        let discovery = Discovery::fetch(&self.cx.client).await?;
        let served = discovery.preferred().find(|s| s.resource.group == group && s.resource.plural == plural);
        let Some(served) = served else {
            let made = migration.metadata.creation_timestamp.as_ref().map(|t| t.0);
            if made.is_some_and(|made| self.cx.clock.now().duration_since(made) < COMING_FOR) {
                self.queue.add_after(Key::Migration(name.to_owned()), LOOK_AGAIN);
                return Ok(());
            }
            return self.fail(&migration, "resource does not exist in discovery".to_owned()).await;
        };
        let checkpoint =
            migration.status.as_ref().and_then(|s| s.resource_version.clone()).unwrap_or_default();
        if checkpoint.is_empty() {
            return self.note_checkpoint(&migration, served).await;
        }
        let Some(checkpoint) = number(&checkpoint) else {
            let why = format!(
                "migration encountered unhandled error: resource version is not well formed: {checkpoint}"
            );
            return self.fail(&migration, why).await;
        };
        let outcome = self.rewrite(&served.resource, checkpoint).await?;
        self.conclude(&migration, outcome).await
    }

    /// Records the resourceVersion up to which objects must be rewritten.
    async fn note_checkpoint(&self, migration: &StorageVersionMigration, served: &Served) -> Result<()> {
        let resource = &served.resource;
        if !VERBS.iter().all(|verb| served.supports(verb)) {
            let gvr = format!("{}, Resource={}", resource.api_version(), resource.plural);
            let verbs = VERBS.join(" ");
            let why = format!("resource {gvr:?} does not support discovery operations: [{verbs}]");
            return self.fail(migration, why).await;
        }
        let page = self.page(format!("{}?limit=1", resource.path(None, None))).await?;
        let mut next = migration.clone();
        next.status.get_or_insert_default().resource_version = Some(page.metadata.resource_version);
        self.write(&next).await
    }

    async fn page(&self, uri: String) -> Result<Page> {
        let body = self.cx.client.get_as(uri, METADATA).await?;
        serde_json::from_slice(&body).map_err(|e| Error::Protocol(e.to_string()))
    }

    /// Returns the objects that existed at the checkpoint, and the number of all objects now.
    async fn candidates(&self, resource: &ResourceType, checkpoint: u64) -> Result<(Vec<ItemMeta>, usize)> {
        let (mut old, mut all, mut next) = (Vec::new(), 0, String::new());
        loop {
            let mut uri = format!("{}?limit={PAGE}", resource.path(None, None));
            if !next.is_empty() {
                uri.push_str(&format!("&continue={next}"));
            }
            let page = self.page(uri).await?;
            let items = page.items.unwrap_or_default();
            all += items.len();
            let items = items.into_iter().map(|item| item.metadata);
            old.extend(items.filter(|m| number(&m.resource_version).is_some_and(|v| v <= checkpoint)));
            if page.metadata.next.is_empty() {
                return Ok((old, all));
            }
            next = page.metadata.next;
        }
    }

    /// Sends an empty patch for each object. It rewrites an object that is stored in an old version and does not
    /// change others.
    async fn rewrite(&self, resource: &ResourceType, checkpoint: u64) -> Result<Outcome> {
        let (old, all) = self.candidates(resource, checkpoint).await?;
        let mut left = old.len();
        for meta in old {
            let patch = Patch::Merge(json!({"apiVersion": resource.api_version(), "kind": resource.kind,
                "metadata": {"resourceVersion": meta.resource_version}}));
            let path = resource.path(Some(&meta.namespace), Some(&meta.name));
            match self.writer.patch_path(path, &patch).await {
                // The object was deleted, or another client changed and thereby rewrote it.
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                Err(error) if is_transient(&error) => return Ok(Outcome::Later { left, all, error }),
                Err(error) => return Ok(Outcome::Failed { left, all, error }),
                Ok(_) => {}
            }
            left -= 1;
        }
        Ok(Outcome::Done { all })
    }

    async fn conclude(&self, migration: &StorageVersionMigration, outcome: Outcome) -> Result<()> {
        let (mut next, now) = (migration.clone(), self.cx.clock.now());
        let running = "MigrationRunning";
        match outcome {
            Outcome::Done { all } => {
                set(&mut next, RUNNING, true, running, progress(0, all, None), now);
                let done = "Migration completed".to_owned();
                set(&mut next, SUCCEEDED, true, "StorageVersionMigrationSucceeded", done, now);
                self.write(&next).await
            }
            Outcome::Later { left, all, error } => {
                set(&mut next, RUNNING, true, running, progress(left, all, Some(&error.to_string())), now);
                self.write(&next).await?;
                Err(error)
            }
            Outcome::Failed { left, all, error } => {
                set(&mut next, RUNNING, true, running, progress(left, all, None), now);
                let why =
                    format!("{left}/{all} not yet migrated. migration encountered unhandled error: {error}");
                set(&mut next, FAILED, true, FAILURE, why, now);
                self.write(&next).await
            }
        }
    }
}

/// Makes the error for an answer of unexpected form.
fn unexpected(why: impl ToString) -> Error {
    Error::Status(StatusError::new(500, "", why.to_string()))
}

/// Reads an object as JSON; `None` if it does not exist.
async fn get(client: &Client, path: String) -> Result<Option<serde_json::Value>> {
    match client.call(Method::GET, path, None, Bytes::new()).await {
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
        Ok(body) => serde_json::from_slice(&body).map(Some).map_err(unexpected),
    }
}
