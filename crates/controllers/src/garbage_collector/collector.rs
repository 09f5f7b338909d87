//! The workers, which verify what the graph suspects with the API server, and act on it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::ObjectReference;
use knarr_client::events::EventType;
use knarr_client::reflector::Change;
use knarr_client::work_queue::WorkQueue;
use tokio::sync::Notify;

use super::absent::AbsentOwners;
use super::api::{Error, Remote, Result, resource_of};
use super::decide::{Owner, Verdict, decide};
use super::graph::{Effects, Graph, View};
use super::identity::{FOREGROUND, Identity, Meta, ORPHAN, Reference, Uid};
use crate::context::Context;
use crate::support::discovery::Discovery;

/// How many patches of dependents run concurrently.
const BATCH: usize = 16;

/// The work items of the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Work {
    /// Delete the object if none of its owners exists.
    Delete(Uid),
    /// Remove the references of the object's dependents to it, then its orphan finalizer.
    Orphan(Uid),
}

/// The names of a monitored resource in the identities of its objects.
#[derive(Debug, Clone)]
pub struct Names {
    pub api_version: Arc<str>,
    pub kind: Arc<str>,
}

/// The graph with the queue of objects to check.
pub struct Collector {
    cx: Arc<Context>,
    pub queue: Arc<WorkQueue<Work>>,
    graph: Mutex<Graph>,
    absent: Mutex<AbsentOwners>,
    discovery: Mutex<Arc<Discovery>>,
    /// Requests a new discovery.
    pub refresh: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Collector {
    pub fn new(cx: Arc<Context>) -> Self {
        Self {
            queue: WorkQueue::new(Arc::clone(&cx.clock)),
            cx,
            graph: Mutex::default(),
            absent: Mutex::default(),
            discovery: Mutex::default(),
            refresh: Notify::new(),
        }
    }

    pub fn discovery(&self) -> Arc<Discovery> {
        Arc::clone(&lock(&self.discovery))
    }

    pub fn set_discovery(&self, found: Arc<Discovery>) {
        *lock(&self.discovery) = found;
    }

    /// Applies one change of a monitored resource's object to the graph.
    pub fn observe(&self, names: &Names, change: &Change) {
        let (Change::Added(object) | Change::Updated { new: object, .. } | Change::Deleted(object)) = change;
        let identity = Identity {
            kind: Arc::clone(&names.kind),
            api_version: Arc::clone(&names.api_version),
            namespace: object.namespace().into(),
            name: object.name().into(),
            uid: object.uid().into(),
        };
        let effects = if matches!(change, Change::Deleted(_)) {
            lock(&self.graph).remove(&identity)
        } else {
            match Meta::parse(&object.json()) {
                Ok(meta) => lock(&self.graph).upsert(&identity, &meta),
                Err(error) => {
                    tracing::error!(object = %identity, %error, "the metadata of an object could not be read");
                    return;
                }
            }
        };
        self.apply(effects);
    }

    fn apply(&self, effects: Effects) {
        let mut absent = lock(&self.absent);
        effects.absent.into_iter().for_each(|owner| absent.add(owner));
        drop(absent);
        effects.delete.into_iter().for_each(|uid| self.queue.add(Work::Delete(uid)));
        effects.delete_later.into_iter().for_each(|uid| self.queue.add_rate_limited(Work::Delete(uid)));
        effects.orphan.into_iter().for_each(|uid| self.queue.add(Work::Orphan(uid)));
        for (object, owner) in effects.invalid {
            let text = format!("ownerRef {owner} does not exist in namespace {:?}", &*object.namespace);
            let about = ObjectReference {
                api_version: Some(object.api_version.to_string()),
                kind: Some(object.kind.to_string()),
                name: Some(object.name.to_string()),
                namespace: Some(object.namespace.to_string()).filter(|n| !n.is_empty()),
                uid: Some(object.uid.to_string()),
                ..ObjectReference::default()
            };
            self.cx.recorder.event_about(about, EventType::Warning, "OwnerRefInvalidNamespace", text);
        }
    }

    /// Handles one work item; an error requeues it.
    pub async fn work(&self, work: Work) -> Result<()> {
        let result = match work {
            Work::Delete(uid) => self.attempt_to_delete(&uid).await,
            Work::Orphan(uid) => self.attempt_to_orphan(&uid).await,
        };
        match result {
            Err(Error::NamespacedOwner) => Ok(()),
            Err(error @ Error::UnknownKind { .. }) => {
                self.refresh.notify_one();
                Err(error)
            }
            other => other,
        }
    }

    async fn attempt_to_delete(&self, uid: &Uid) -> Result<()> {
        let Some(item) = lock(&self.graph).view(uid) else { return Ok(()) };
        if item.being_deleted && !item.deletes_dependents {
            return Ok(());
        }
        let discovery = self.discovery();
        let remote = Remote::new(&self.cx.client, &discovery, &item.identity)?;
        let Some(live) = remote.get().await? else {
            self.not_found(&item.identity);
            return Ok(());
        };
        if item.deletes_dependents {
            self.wait_for_dependents(&item, &remote).await?;
        } else if self.collect(&item, &live, &remote).await? {
            self.not_found(&item.identity);
            return Ok(());
        }
        // A virtual node is retried until an informer has shown the object, or it is found absent.
        if item.observed { Ok(()) } else { Err(Error::Unobserved(item.identity)) }
    }

    fn not_found(&self, identity: &Identity) {
        let effects = lock(&self.graph).not_found(identity);
        self.apply(effects);
    }

    /// Releases an object in foreground deletion once no dependent blocks it.
    async fn wait_for_dependents(&self, item: &View, remote: &Remote<'_>) -> Result<()> {
        if item.blocking.is_empty() {
            return remote.remove_finalizer(FOREGROUND).await;
        }
        for (uid, waits) in &item.blocking {
            if !waits {
                self.queue.add(Work::Delete(uid.clone()));
            }
        }
        Ok(())
    }

    /// Deletes the object if its owners are gone. Returns whether it was gone already.
    async fn collect(&self, item: &View, live: &Meta, remote: &Remote<'_>) -> Result<bool> {
        let mut owners = Vec::with_capacity(live.owners.len());
        for reference in &live.owners {
            owners.push(self.owner(reference, &item.identity).await?);
        }
        let result = match decide(live, &owners, item.standing) {
            Verdict::Keep => Ok(()),
            Verdict::Unreference(uids) => remote.unreference(&uids).await,
            Verdict::DeleteInForeground { unblock } => {
                if unblock {
                    remote.unblock(&live.owners).await?;
                }
                // The resourceVersion of `live` is outdated after unblocking; `delete` then compares the owners.
                remote.delete(&unblocked(live, unblock), "Foreground").await
            }
            Verdict::Delete(policy) => remote.delete(live, policy).await,
        };
        match result {
            Err(e) if e.is_not_found() => Ok(true),
            other => other.map(|()| false),
        }
    }

    /// Determines the state of an owner of the object.
    async fn owner(&self, reference: &Reference, item: &Identity) -> Result<Owner> {
        let mut owner = Identity::of_owner(reference, &item.namespace);
        let cluster_scoped = Identity { namespace: "".into(), ..owner.clone() };
        {
            let absent = lock(&self.absent);
            if absent.contains(&owner) || absent.contains(&cluster_scoped) {
                return Ok(Owner::Dangling);
            }
        }
        let discovery = self.discovery();
        if !resource_of(&discovery, &owner.api_version, &owner.kind)?.namespaced {
            owner = cluster_scoped;
        }
        match Remote::new(&self.cx.client, &discovery, &owner)?.get().await? {
            Some(meta) if meta.deletes_dependents() => Ok(Owner::Waiting),
            Some(_) => Ok(Owner::Solid),
            None => {
                lock(&self.absent).add(owner);
                Ok(Owner::Dangling)
            }
        }
    }

    async fn attempt_to_orphan(&self, uid: &Uid) -> Result<()> {
        let (view, dependents) = {
            let graph = lock(&self.graph);
            (graph.view(uid), graph.dependents(uid))
        };
        let Some(owner) = view else { return Ok(()) };
        let discovery = self.discovery();
        let mut outcome = Ok(());
        for batch in dependents.chunks(BATCH) {
            let all = batch.iter().map(|dependent| async {
                Remote::new(&self.cx.client, &discovery, dependent)?.unreference(&[uid]).await
            });
            for result in futures_util::future::join_all(all).await {
                if result.as_ref().is_err_and(|e| !e.is_not_found()) {
                    outcome = result;
                }
            }
        }
        outcome?;
        Remote::new(&self.cx.client, &discovery, &owner.identity)?.remove_finalizer(ORPHAN).await
    }
}

/// Returns the metadata after `blockOwnerDeletion` was cleared in its owner references.
fn unblocked(meta: &Meta, done: bool) -> Meta {
    let mut meta = meta.clone();
    meta.owners.iter_mut().filter(|_| done).for_each(|o| o.blocks = false);
    meta
}
