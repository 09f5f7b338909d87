//! Namespace: deletes the content of a namespace that is being deleted, then removes its finalizer.

mod conditions;
mod content;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use knarr_api::kind::Kind;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Error, Event, Lister, Result};

use crate::context::{Context, Descriptor};
use conditions::Findings;

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "namespace-controller", run: |cx| Box::pin(async move { run(cx).await }) };

/// The finalizer in `spec.finalizers` that belongs to this controller.
const FINALIZER: &str = "kubernetes";
/// The minimum time between a namespace's deletion and its removal: a write that was admitted just before must be
/// found.
const SETTLE: Duration = Duration::from_secs(2);
/// The longest wait between two passes.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

struct Controller {
    cx: Arc<Context>,
    namespaces: Lister<Namespace>,
    queue: Arc<WorkQueue<String>>,
}

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<String>> = WorkQueue::new(Arc::clone(&cx.clock));
    let (namespaces, pods) = (cx.informers.informer::<Namespace>(), cx.informers.informer::<Pod>());
    let on_namespace = Arc::clone(&queue);
    namespaces.add_handler(move |event| {
        let started = match event {
            // The controller's own writes of conditions need no further pass.
            Event::Updated { old, new } => !is_terminating(old) && is_terminating(new),
            Event::Added(namespace) => is_terminating(namespace),
            Event::Deleted(_) => false,
        };
        if started {
            on_namespace.add(event.object().name().to_owned());
        }
    });
    let (on_pod, known, left) = (Arc::clone(&queue), namespaces.lister(), pods.lister());
    pods.add_handler(move |event| {
        let namespace = event.object().namespace();
        if matches!(event, Event::Deleted(_))
            && known.get("", namespace).is_some_and(|n| is_terminating(&n))
            && left.list_namespace(namespace).is_empty()
        {
            on_pod.add(namespace.to_owned());
        }
    });
    if !namespaces.wait_synced().await {
        return;
    }
    let (stop, workers) = (cx.stop.clone(), cx.workers());
    let controller = Arc::new(Controller { cx, namespaces: namespaces.lister(), queue: Arc::clone(&queue) });
    let reconcile = move |name: String| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&name).await }
    };
    queue.run(DESCRIPTOR.name, workers, stop, reconcile).await;
}

fn is_terminating(namespace: &Namespace) -> bool {
    namespace.metadata.deletion_timestamp.is_some()
}

/// Returns how much longer the namespace must be kept after its deletion.
fn unsettled(namespace: &Namespace, now: Timestamp) -> Duration {
    let deleted = namespace.metadata.deletion_timestamp.as_ref().map_or(now, |t| t.0);
    let since = now.duration_since(deleted).try_into().unwrap_or(Duration::ZERO);
    SETTLE.saturating_sub(since)
}

/// What to do after a pass.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    LetGo,
    /// Reconcile again after this time, or when the content changes.
    Wait(Duration),
    /// A failure with this error: retry with a growing delay.
    Retry(String),
}

fn next(findings: &Findings, estimate: Duration, unsettled: Duration) -> Next {
    let mut failures = findings.errors.clone();
    failures.extend(findings.discovery_failure.clone());
    failures.extend(findings.malformed_group_version.clone());
    if !failures.is_empty() {
        return Next::Retry(failures.join(", "));
    }
    if !findings.remaining.is_empty() || !estimate.is_zero() {
        return Next::Wait((estimate / 2 + Duration::from_secs(1)).min(LONGEST_WAIT));
    }
    if !unsettled.is_zero() {
        return Next::Wait(unsettled);
    }
    Next::LetGo
}

impl Controller {
    async fn reconcile(&self, name: &str) -> Result<()> {
        if self.namespaces.get("", name).is_none() {
            return Ok(());
        }
        match self.empty(name).await {
            // The namespace is gone already.
            Err(e) if e.is_not_found() => Ok(()),
            // Other clients write the namespace too: retry with its newest state.
            Err(e) if e.is_conflict() => {
                self.queue.add(name.to_owned());
                Ok(())
            }
            other => self.look_again_soon(name, other),
        }
    }

    /// Replaces a long back-off by a shorter wait, so that a transient failure does not delay the namespace.
    fn look_again_soon(&self, name: &str, result: Result<()>) -> Result<()> {
        if result.is_err() {
            self.queue.add_after(name.to_owned(), LONGEST_WAIT);
        }
        result
    }

    async fn empty(&self, name: &str) -> Result<()> {
        let mut namespace = self.cx.client.get::<Namespace>("", name).await?;
        if !is_terminating(&namespace) {
            return Ok(());
        }
        let phase = namespace.status.as_ref().and_then(|s| s.phase.as_deref());
        if phase != Some("Terminating") {
            namespace.status.get_or_insert_default().phase = Some("Terminating".to_owned());
            namespace = self.cx.client.update_status(&namespace).await?;
        }
        if namespace.spec.as_ref().and_then(|s| s.finalizers.as_ref()).is_none_or(Vec::is_empty) {
            return Ok(());
        }
        let unsettled = unsettled(&namespace, self.cx.clock.now());
        let (findings, estimate) =
            content::delete_all(&self.cx.client, &namespace, self.cx.clock.now()).await;
        let next = next(&findings, estimate, unsettled);
        if findings.write(namespace.status.get_or_insert_default(), self.cx.clock.now()) {
            namespace = self.cx.client.update_status(&namespace).await?;
        }
        match next {
            Next::Retry(why) => Err(Error::Protocol(why)),
            Next::Wait(delay) => {
                self.queue.add_after(name.to_owned(), delay);
                Ok(())
            }
            Next::LetGo => self.remove_finalizer(namespace).await,
        }
    }

    async fn remove_finalizer(&self, mut namespace: Namespace) -> Result<()> {
        if let Some(finalizers) = namespace.spec.get_or_insert_default().finalizers.as_mut() {
            finalizers.retain(|f| f != FINALIZER);
        }
        let path = format!("{}/finalize", Namespace::RESOURCE.path(None, Some(namespace.name())));
        let body = namespace.encode();
        self.cx.client.call(http::Method::PUT, path, Some("application/json"), body.into()).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
