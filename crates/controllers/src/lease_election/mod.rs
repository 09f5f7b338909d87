//! Coordinated leader election: elects among the candidates of each lease, on behalf of the API server.
//!
//! It is not a controller of the controller manager, because the controller manager is a candidate itself.

mod decide;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::coordination::v1beta1::LeaseCandidate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, MicroTime, ObjectMeta, Preconditions};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Client, Informers, Lister, Result};
use tokio_util::sync::CancellationToken;

use decide::{ELECTION, Elected, Step, changed, first, is_expired, owes_answer, step};

/// How often expired candidates are deleted.
const CLEAN_EVERY: Duration = Duration::from_secs(30 * 60);
/// The delay after any number of failures: without an election there may be no leader.
const LOOK_AGAIN: Duration = ELECTION.unsigned_abs();

struct Elections {
    client: Client,
    leases: Lister<Lease>,
    candidates: Lister<LeaseCandidate>,
    queue: Arc<WorkQueue<ObjectKey>>,
}

/// Elects until `stop`. In a cluster only one process at a time runs this.
pub async fn run(client: Client, stop: CancellationToken) {
    let informers = Informers::new(client.clone(), stop.clone());
    let queue: Arc<WorkQueue<ObjectKey>> = WorkQueue::new(Arc::clone(client.clock()));
    let (leases, candidates) = (informers.informer::<Lease>(), informers.informer::<LeaseCandidate>());
    let on_lease = Arc::clone(&queue);
    leases.add_handler(move |event| on_lease.add(event.object().key()));
    let on_candidate = Arc::clone(&queue);
    candidates.add_handler(move |event| {
        let candidate = event.object();
        // A candidate that was pinged and has not answered causes no step.
        if !owes_answer(candidate) {
            on_candidate.add(ObjectKey::new(candidate.namespace(), &candidate.spec.lease_name));
        }
    });
    if !(leases.wait_synced().await && candidates.wait_synced().await) {
        return;
    }
    let elections = Arc::new(Elections {
        client,
        leases: leases.lister(),
        candidates: candidates.lister(),
        queue: Arc::clone(&queue),
    });
    let cleaning = Arc::clone(&elections);
    let (cleaned_until, working_until) = (stop.clone(), stop);
    let reconcile = move |key: ObjectKey| {
        let elections = Arc::clone(&elections);
        async move {
            let looked = elections.look(&key).await;
            if looked.is_err() {
                elections.queue.add_after(key, LOOK_AGAIN);
            }
            looked
        }
    };
    tokio::join!(
        queue.run("leader-election-controller", 1, working_until, reconcile),
        cleaning.clean(cleaned_until),
    );
}

impl Elections {
    async fn look(&self, key: &ObjectKey) -> Result<()> {
        let lease = self.leases.get_key(key);
        let mut candidates = self.candidates.list_namespace(&key.namespace);
        candidates.retain(|c| *c.spec.lease_name == *key.name);
        let now = self.client.clock().now();
        match step(lease.as_ref().and_then(|l| l.spec.as_ref()), &candidates, now) {
            Step::Nothing => return Ok(()),
            Step::Again => {}
            Step::Ask(all) => {
                for candidate in all {
                    let mut next = LeaseCandidate::clone(&candidate);
                    next.spec.ping_time = Some(MicroTime(now));
                    self.client.update(&next).await?;
                }
            }
            Step::Elect(elected) => self.write(key, &elected).await?,
        }
        self.queue.add_after(key.clone(), LOOK_AGAIN);
        Ok(())
    }

    async fn write(&self, key: &ObjectKey, elected: &Elected) -> Result<()> {
        let now = self.client.clock().now();
        let metadata = ObjectMeta {
            name: Some(key.name.to_string()),
            namespace: Some(key.namespace.to_string()),
            ..ObjectMeta::default()
        };
        let new = Lease { metadata, spec: Some(first(elected, now)) };
        match self.client.create(&new).await {
            Err(e) if e.is_already_exists() => {}
            other => return other.map(drop),
        }
        let live: Lease = self.client.get(&key.namespace, &key.name).await?;
        match changed(&live.spec.clone().unwrap_or_default(), elected, now) {
            Some(spec) => self.client.update(&Lease { spec: Some(spec), ..live }).await.map(drop),
            None => Ok(()),
        }
    }

    /// Deletes candidates that have expired.
    async fn clean(&self, stop: CancellationToken) {
        loop {
            let now = self.client.clock().now();
            for candidate in self.candidates.list().iter().filter(|c| is_expired(c, now)) {
                let preconditions = Preconditions {
                    uid: candidate.metadata.uid.clone(),
                    resource_version: candidate.metadata.resource_version.clone(),
                };
                let options =
                    DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
                let (namespace, name) = (candidate.namespace(), candidate.name());
                if let Err(error) = self.client.delete::<LeaseCandidate>(namespace, name, &options).await {
                    tracing::debug!(%error, name, "an expired candidate could not be deleted");
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.client.clock().sleep(CLEAN_EVERY) => {}
            }
        }
    }
}
