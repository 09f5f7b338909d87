//! PersistentVolume binder: binds claims and volumes to each other, and releases volumes whose claims are gone.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use knarr_api::kind::{Kind, ObjectKey};
use knarr_api::storage::storageclass::DEFAULT_CLASSES;
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Informer, Result};

use super::matching::{class_of, free, has_class, mismatch, refers, reserved};
use super::migration::{driver_of, is_of_kubernetes};
use super::protection::claims_of;
use super::recycler::{Recycling, volume_of};
use crate::context::{Context, Descriptor};
use crate::metrics::{self, Metric};
use crate::support::pod_state;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolume-binder-controller",
    run: |cx| Box::pin(async move { run(cx).await }),
};

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(super) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const OLD_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// The index of volumes by `namespace/name` of the claims in their claimRefs.
const BY_CLAIM: &str = "persistentVolumeBinderClaim";
/// The index of unscheduled pods by the claims that they use.
const WAITING_BY_CLAIM: &str = "persistentVolumeBinderWaiting";

pub(super) struct Controller {
    pub(super) cx: Arc<Context>,
    pub(super) claims: Informer<PersistentVolumeClaim>,
    pub(super) volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    pub(super) pods: Informer<Pod>,
    pub(super) claim_queue: Arc<WorkQueue<ObjectKey>>,
    pub(super) volume_queue: Arc<WorkQueue<ObjectKey>>,
    pub(super) recycling: Recycling,
}

/// Returns the claims of a pod that is not bound to a node yet.
fn waiting_for(pod: &Pod) -> Vec<String> {
    let has_node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).is_some_and(|n| !n.is_empty());
    if has_node || pod_state::has_ended(pod) { Vec::new() } else { claims_of(pod) }
}

async fn run(cx: Arc<Context>) {
    let claim_queue = WorkQueue::new(Arc::clone(&cx.clock));
    let volume_queue = WorkQueue::new(Arc::clone(&cx.clock));
    let claims = cx.informers.informer::<PersistentVolumeClaim>();
    let volumes = cx.informers.informer::<PersistentVolume>();
    let classes = cx.informers.informer::<StorageClass>();
    let pods = cx.informers.informer::<Pod>();
    pods.add_index(WAITING_BY_CLAIM, waiting_for);
    volumes.add_index(BY_CLAIM, |volume| {
        let claim = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        claim.map(|c| format!("{}/{}", part(&c.namespace), part(&c.name))).into_iter().collect()
    });
    let (on_claim, of_claim, all) = (Arc::clone(&claim_queue), Arc::clone(&volume_queue), volumes.lister());
    claims.add_handler(move |event| {
        let claim = event.object();
        on_claim.add(claim.key());
        all.by_index(BY_CLAIM, &claim.key().to_string()).iter().for_each(|v| of_claim.add(v.key()));
        if let Some(volume) = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()) {
            of_claim.add(ObjectKey::new("", volume));
        }
    });
    let (on_volume, waiting, all) = (Arc::clone(&volume_queue), Arc::clone(&claim_queue), claims.lister());
    volumes.add_handler(move |event| {
        let volume = event.object();
        on_volume.add(volume.key());
        match volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) {
            Some(claim) => waiting.add(ObjectKey::new(
                claim.namespace.as_deref().unwrap_or(""),
                claim.name.as_deref().unwrap_or(""),
            )),
            None => all.list().iter().filter(|c| !is_bound(c)).for_each(|c| waiting.add(c.key())),
        }
    });
    let (on_class, all) = (Arc::clone(&claim_queue), claims.lister());
    classes.add_handler(move |event| {
        let class = event.object().name();
        all.list()
            .iter()
            .filter(|c| !is_bound(c) && (class_of(c) == class || !has_class(c)))
            .for_each(|c| on_class.add(c.key()));
    });
    let (on_pod, all) = (Arc::clone(&claim_queue), claims.lister());
    let (recycled, used) = (Arc::clone(&volume_queue), volumes.lister());
    pods.add_handler(move |event| {
        let pod = event.object();
        volume_of(pod).into_iter().for_each(|volume| recycled.add(ObjectKey::new("", volume)));
        if matches!(event, Event::Deleted(_)) || pod_state::has_ended(pod) {
            for claim in claims_of(pod) {
                used.by_index(BY_CLAIM, &claim).iter().for_each(|volume| recycled.add(volume.key()));
            }
        }
        if !matches!(event, Event::Added(_)) {
            return;
        }
        for claim in waiting_for(event.object()) {
            let key = claim.split_once('/').map(|(namespace, name)| ObjectKey::new(namespace, name));
            let waits = |key: &ObjectKey| all.get_key(key).is_some_and(|claim| !is_bound(&claim));
            key.into_iter().filter(waits).for_each(|key| on_pod.add(key));
        }
    });
    if !(claims.wait_synced().await
        && volumes.wait_synced().await
        && classes.wait_synced().await
        && pods.wait_synced().await)
    {
        return;
    }
    let stop = cx.stop.clone();
    let controller = Arc::new(Controller {
        cx,
        claims,
        volumes,
        classes,
        pods,
        claim_queue: Arc::clone(&claim_queue),
        volume_queue: Arc::clone(&volume_queue),
        recycling: Recycling::default(),
    });
    let for_volumes = Arc::clone(&controller);
    // There is one worker for each kind: two claims must not choose the same volume.
    tokio::join!(
        claim_queue.run("persistentvolume-binder-claims", 1, stop.clone(), move |key| {
            let controller = Arc::clone(&controller);
            async move { controller.sync_claim(&key).await }
        }),
        volume_queue.run("persistentvolume-binder-volumes", 1, stop, move |key| {
            let controller = Arc::clone(&for_volumes);
            async move { controller.sync_volume(&key).await }
        }),
    );
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(BIND_COMPLETED))
}

impl Controller {
    async fn sync_claim(&self, key: &ObjectKey) -> Result<()> {
        let Some(claim) = self.claims.lister().get_key(key) else { return Ok(()) };
        let named = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|n| !n.is_empty());
        match (is_bound(&claim), named) {
            (true, named) => self.check_bound(&claim, named).await,
            (false, Some(name)) => self.bind_named(&claim, name).await,
            (false, None) => self.bind_any(&claim).await,
        }
    }

    fn emit(&self, claim: &PersistentVolumeClaim, type_: EventType, reason: &str, text: impl Into<String>) {
        self.cx.recorder.event(claim, type_, reason, text);
    }

    /// Checks a bound claim. A claim that has lost its volume stays lost.
    async fn check_bound(&self, claim: &PersistentVolumeClaim, named: Option<&str>) -> Result<()> {
        let Some(name) = named else {
            let text = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
            return self.lose(claim, "ClaimLost", text).await;
        };
        let Some(volume) = self.volume(name).await? else {
            let text = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
            return self.lose(claim, "ClaimLost", text).await;
        };
        match volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) {
            Some(reference) if !refers(reference, claim) => {
                let text = "Two claims are bound to the same volume, this one is bound incorrectly";
                self.lose(claim, "ClaimMisbound", text).await
            }
            _ => self.bind(claim, &volume).await,
        }
    }

    async fn lose(&self, claim: &PersistentVolumeClaim, reason: &str, text: &str) -> Result<()> {
        let lost = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost");
        if !lost {
            self.emit(claim, EventType::Warning, reason, text);
        }
        self.set_claim_phase(claim, "Lost", None).await
    }

    /// Returns the volume, reading it from the API server if the informer does not show it: a lagging watch must not
    /// make a claim lost.
    async fn volume(&self, name: &str) -> Result<Option<Arc<PersistentVolume>>> {
        if let Some(volume) = self.volumes.lister().get("", name) {
            return Ok(Some(volume));
        }
        match self.cx.client.get::<PersistentVolume>("", name).await {
            Ok(volume) => Ok(Some(Arc::new(volume))),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn bind_named(&self, claim: &PersistentVolumeClaim, name: &str) -> Result<()> {
        let Some(volume) = self.volume(name).await? else {
            return self.set_claim_phase(claim, "Pending", None).await;
        };
        match volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) {
            Some(reference) if !refers(reference, claim) => {
                let text = format!("volume {name:?} already bound to a different claim.");
                self.emit(claim, EventType::Warning, "FailedBinding", text);
                self.set_claim_phase(claim, "Pending", None).await
            }
            // A volume that is reserved for the claim is bound without further checks.
            Some(_) => self.bind(claim, &volume).await,
            None => {
                if let Some(why) = mismatch(&volume, claim) {
                    let text = format!("Cannot bind to requested volume {name:?}: {why}");
                    self.emit(claim, EventType::Warning, "VolumeMismatch", text);
                    return self.set_claim_phase(claim, "Pending", None).await;
                }
                self.bind(claim, &volume).await
            }
        }
    }

    async fn bind_any(&self, claim: &PersistentVolumeClaim) -> Result<()> {
        let class = self.classes.lister().get("", class_of(claim));
        let late =
            class.as_ref().and_then(|c| c.volume_binding_mode.as_deref()) == Some("WaitForFirstConsumer");
        let volumes = self.volumes.lister().list();
        // With late binding the scheduler chooses node and volume, and reserves the volume for the claim.
        let found = reserved(claim, &volumes).or_else(|| (!late).then(|| free(claim, &volumes)).flatten());
        if let Some(volume) = found {
            return self.bind(claim, &volume).await;
        }
        if !has_class(claim)
            && let Some(class) = self.default_class()
        {
            return self.take_class(claim, class.name()).await;
        }
        let annotations = claim.metadata.annotations.as_ref();
        let has_node = annotations.is_some_and(|a| a.contains_key(SELECTED_NODE));
        if late && !has_node {
            let (reason, text) = self.waits_for(claim);
            self.emit(claim, EventType::Normal, reason, text);
            return self.set_claim_phase(claim, "Pending", None).await;
        }
        match class {
            Some(class) => self.provision(claim, &class.provisioner).await?,
            None if class_of(claim).is_empty() => {
                let text = "no persistent volumes available for this claim and no storage class is set";
                self.emit(claim, EventType::Normal, "FailedBinding", text);
            }
            None => {
                let text = format!("storageclass.storage.k8s.io {:?} not found", class_of(claim));
                self.emit(claim, EventType::Warning, "ProvisioningFailed", text);
            }
        }
        let live = self.claims.lister().get_key(&claim.key());
        self.set_claim_phase(live.as_deref().unwrap_or(claim), "Pending", None).await
    }

    /// Returns the newest of the classes marked as default; among equally old ones the first by name.
    fn default_class(&self) -> Option<Arc<StorageClass>> {
        let marked = |class: &Arc<StorageClass>| {
            let annotations = class.metadata.annotations.as_ref();
            let says = |key: &&str| annotations.and_then(|a| a.get(*key)).is_some_and(|v| v == "true");
            DEFAULT_CLASSES.iter().any(says)
        };
        let made = |class: &StorageClass| class.metadata.creation_timestamp.as_ref().map(|t| t.0);
        let all = self.classes.lister().list().into_iter().filter(marked);
        all.max_by(|a, b| made(a).cmp(&made(b)).then_with(|| b.name().cmp(a.name())))
    }

    /// Sets the default class on a claim without a class, created when there was no default class.
    async fn take_class(&self, claim: &PersistentVolumeClaim, class: &str) -> Result<()> {
        let mut next = claim.clone();
        next.spec.get_or_insert_default().storage_class_name = Some(class.to_owned());
        let written = self.cx.client.update(&next).await;
        let counted =
            if written.is_ok() { Metric::RetroactiveClasses } else { Metric::RetroactiveClassErrors };
        metrics::add(counted, &[], 1.0);
        written.map(drop)
    }

    /// Returns reason and message of the event for a claim that waits for the scheduler.
    fn waits_for(&self, claim: &PersistentVolumeClaim) -> (&'static str, String) {
        let pods = self.pods.lister().by_index(WAITING_BY_CLAIM, &claim.key().to_string());
        let mut names: Vec<&str> = pods.iter().map(|pod| pod.name()).collect();
        names.sort_unstable();
        let text = match &names[..] {
            [] => {
                let text = "waiting for first consumer to be created before binding";
                return ("WaitForFirstConsumer", text.to_owned());
            }
            [one] => format!("waiting for pod {one} to be scheduled"),
            many => format!("waiting for pods {} to be scheduled", many.join(",")),
        };
        ("WaitForPodScheduled", text)
    }

    /// Requests a volume from the class's provisioner, if there can be one.
    async fn provision(&self, claim: &PersistentVolumeClaim, provisioner: &str) -> Result<()> {
        let who = driver_of(provisioner).unwrap_or(provisioner);
        if !is_of_kubernetes(who) {
            return self.ask(claim, who).await;
        }
        let text = match who {
            "kubernetes.io/host-path" => {
                format!("Failed to create provisioner: provisioning in volume plugin {who:?} is disabled")
            }
            _ => format!("no volume plugin matched name: {who}"),
        };
        self.emit(claim, EventType::Warning, "ProvisioningFailed", text);
        Ok(())
    }

    /// Sets the annotation by which the external provisioner creates a volume, and emits an event.
    async fn ask(&self, claim: &PersistentVolumeClaim, who: &str) -> Result<()> {
        let text = format!(
            "Waiting for a volume to be created either by the external provisioner '{who}' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
        );
        self.emit(claim, EventType::Normal, "ExternalProvisioning", text);
        let asked = |key: &str| {
            claim.metadata.annotations.as_ref().and_then(|a| a.get(key)).is_some_and(|v| v == who)
        };
        if asked(PROVISIONER) && asked(OLD_PROVISIONER) {
            return Ok(());
        }
        let mut next = claim.clone();
        let annotations = next.metadata.annotations.get_or_insert_default();
        annotations.insert(PROVISIONER.to_owned(), who.to_owned());
        annotations.insert(OLD_PROVISIONER.to_owned(), who.to_owned());
        self.cx.client.update(&next).await.map(drop)
    }

    /// Makes four writes, each of which may be repeated: the volume, its phase, the claim, its phase.
    async fn bind(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<()> {
        let mut next = volume.clone();
        let spec = next.spec.get_or_insert_default();
        let known = spec.claim_ref.as_ref();
        if known.and_then(|r| r.uid.as_deref()) != Some(claim.uid()) {
            if known.is_none() {
                let annotations = next.metadata.annotations.get_or_insert_default();
                annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
            }
            spec.claim_ref = Some(reference(claim));
            next = self.cx.client.update(&next).await?;
        }
        self.set_volume_phase(&next, "Bound").await?;
        let mut bound = claim.clone();
        let spec = bound.spec.get_or_insert_default();
        let annotations = bound.metadata.annotations.get_or_insert_default();
        let mut changed = annotations.insert(BIND_COMPLETED.to_owned(), "yes".to_owned()).is_none();
        if spec.volume_name.as_deref() != Some(volume.name()) {
            spec.volume_name = Some(volume.name().to_owned());
            annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
            changed = true;
        }
        if changed {
            bound = self.cx.client.update(&bound).await?;
        }
        self.set_claim_phase(&bound, "Bound", Some(&next)).await
    }

    async fn set_claim_phase(
        &self,
        claim: &PersistentVolumeClaim,
        phase: &str,
        volume: Option<&PersistentVolume>,
    ) -> Result<()> {
        let mut status = claim.status.clone().unwrap_or_default();
        status.phase = Some(phase.to_owned());
        match volume.and_then(|v| v.spec.as_ref()) {
            Some(spec) => {
                status.access_modes = spec.access_modes.clone();
                if phase == "Bound" && claim.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Bound")
                {
                    status.current_volume_attributes_class_name = spec.volume_attributes_class_name.clone();
                }
                // A later resize is recorded by the component that performs it.
                if status.capacity.is_none() {
                    status.capacity = spec.capacity.clone();
                }
            }
            None => {
                (status.access_modes, status.capacity) = (None, None);
                status.current_volume_attributes_class_name = None;
            }
        }
        if claim.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let next = PersistentVolumeClaim { status: Some(status), ..claim.clone() };
        match self.cx.client.update_status(&next).await {
            Err(e) if e.is_conflict() => {
                self.claim_queue.add_rate_limited(claim.key());
                Ok(())
            }
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }
}

fn reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: claim.metadata.namespace.clone(),
        name: claim.metadata.name.clone(),
        uid: claim.metadata.uid.clone(),
        resource_version: claim.metadata.resource_version.clone(),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::volumes::phase;
    use super::*;
    use crate::testing::World;
    use k8s_openapi::api::core::v1::Event as ApiEvent;
    use knarr_api::kind::ResourceType;
    use serde_json::{Value, json};

    const KINDS: &[ResourceType] = &[
        PersistentVolume::RESOURCE,
        PersistentVolumeClaim::RESOURCE,
        StorageClass::RESOURCE,
        Pod::RESOURCE,
        ApiEvent::RESOURCE,
    ];

    fn volume(name: &str, size: &str) -> PersistentVolume {
        serde_json::from_value(json!({"metadata": {"name": name},
            "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"]}}))
        .unwrap()
    }

    fn claim(name: &str, extra: Value) -> PersistentVolumeClaim {
        let mut spec =
            json!({"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"]});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec})).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn claims_and_volumes_find_each_other_and_part() {
        let world = World::new(KINDS);
        let client = world.api.client();
        world.start(&DESCRIPTOR);
        client.create(&claim("a", json!({}))).await.unwrap();
        client.create(&claim("late", json!({"storageClassName": "late"}))).await.unwrap();
        let class: StorageClass = serde_json::from_value(json!({"metadata": {"name": "late"},
            "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"}))
        .unwrap();
        client.create(&class).await.unwrap();
        world.pass(2.0).await;
        let claim_phase = async |name: &str| {
            client.get::<PersistentVolumeClaim>("ns", name).await.unwrap().status.unwrap().phase.unwrap()
        };
        assert_eq!(claim_phase("a").await, "Pending");
        let events = world.events();
        assert!(events.iter().any(|e| e.starts_with("late WaitForFirstConsumer waiting for first consumer")));
        client.create(&volume("v1", "5Gi")).await.unwrap();
        world.pass(2.0).await;
        assert_eq!(claim_phase("a").await, "Bound");
        let bound: PersistentVolumeClaim = client.get("ns", "a").await.unwrap();
        assert_eq!(bound.spec.unwrap().volume_name.as_deref(), Some("v1"));
        assert_eq!(bound.status.unwrap().capacity.unwrap()["storage"].0, "5Gi");
        let v1 = async || client.get::<PersistentVolume>("", "v1").await.unwrap();
        assert_eq!(phase(&v1().await), "Bound");
        world.api.remove::<PersistentVolumeClaim>("ns", "a");
        world.pass(2.0).await;
        assert_eq!(phase(&v1().await), "Released");
        client.create(&claim("named", json!({"volumeName": "v1"}))).await.unwrap();
        world.pass(2.0).await;
        assert_eq!(claim_phase("named").await, "Pending", "the volume belongs to another claim");
        world.api.remove::<PersistentVolume>("", "v1");
        client.create(&volume("v1", "5Gi")).await.unwrap();
        world.pass(2.0).await;
        assert_eq!(claim_phase("named").await, "Bound");
        world.api.remove::<PersistentVolume>("", "v1");
        client
            .patch::<PersistentVolumeClaim>(
                "ns",
                "named",
                None,
                &knarr_client::Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}})),
            )
            .await
            .unwrap();
        world.pass(2.0).await;
        assert_eq!(claim_phase("named").await, "Lost");
    }

    async fn world_of(objects: &[Value]) -> World {
        let world = World::new(KINDS);
        let client = world.api.client();
        for object in objects {
            let object = object.clone();
            match object["kind"].as_str().unwrap() {
                "StorageClass" => drop(
                    client.create(&serde_json::from_value::<StorageClass>(object).unwrap()).await.unwrap(),
                ),
                "Pod" => drop(client.create(&serde_json::from_value::<Pod>(object).unwrap()).await.unwrap()),
                _ => drop(
                    client
                        .create(&serde_json::from_value::<PersistentVolume>(object).unwrap())
                        .await
                        .unwrap(),
                ),
            }
        }
        world.start(&DESCRIPTOR);
        world.pass(1.0).await;
        world
    }

    async fn state(world: &World, name: &str) -> (String, String) {
        let claim: PersistentVolumeClaim = world.api.client().get("ns", name).await.unwrap();
        let spec = claim.spec.unwrap();
        (claim.status.unwrap().phase.unwrap(), spec.volume_name.unwrap_or_default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_kept_for_a_claim_is_taken_whatever_its_class() {
        let mut kept = serde_json::to_value(volume("kept", "5Gi")).unwrap();
        kept["kind"] = json!("PersistentVolume");
        kept["spec"]["claimRef"] = json!({"namespace": "ns", "name": "c"});
        let world = world_of(&[kept]).await;
        let client = world.api.client();
        client.create(&claim("c", json!({"storageClassName": "standard"}))).await.unwrap();
        world.pass(2.0).await;
        assert_eq!(state(&world, "c").await, ("Bound".into(), "kept".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_class_leaves_the_choice_to_the_scheduler() {
        let mut near = serde_json::to_value(volume("near", "5Gi")).unwrap();
        near["kind"] = json!("PersistentVolume");
        near["spec"]["storageClassName"] = json!("late");
        let class = json!({"kind": "StorageClass", "metadata": {"name": "late"}, "provisioner": "example.com/p",
            "volumeBindingMode": "WaitForFirstConsumer"});
        let pod = json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": [],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}});
        let world = world_of(&[near, class, pod]).await;
        let client = world.api.client();
        let mut wanted = claim("c", json!({"storageClassName": "late"}));
        client.create(&wanted).await.unwrap();
        world.pass(2.0).await;
        assert!(
            world.events().contains(&"c WaitForPodScheduled waiting for pod p to be scheduled".to_owned())
        );
        wanted = client.get("ns", "c").await.unwrap();
        let annotations = wanted.metadata.annotations.get_or_insert_default();
        annotations.insert(SELECTED_NODE.to_owned(), "far".to_owned());
        client.update(&wanted).await.unwrap();
        world.pass(2.0).await;
        assert_eq!(
            state(&world, "c").await,
            ("Pending".into(), String::new()),
            "the volume may be on another node"
        );
        let asked: PersistentVolumeClaim = client.get("ns", "c").await.unwrap();
        assert_eq!(asked.metadata.annotations.unwrap()[PROVISIONER], "example.com/p");
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_takes_a_default_class_that_comes_later() {
        let world = world_of(&[]).await;
        let client = world.api.client();
        client.create(&claim("c", json!({}))).await.unwrap();
        client.create(&claim("none", json!({"storageClassName": ""}))).await.unwrap();
        world.pass(2.0).await;
        let class: StorageClass = serde_json::from_value(json!({"metadata": {"name": "standard",
            "annotations": {DEFAULT_CLASSES[0]: "true"}}, "provisioner": "kubernetes.io/gce-pd"}))
        .unwrap();
        client.create(&class).await.unwrap();
        world.pass(2.0).await;
        let claim: PersistentVolumeClaim = client.get("ns", "c").await.unwrap();
        assert_eq!(claim.spec.unwrap().storage_class_name.as_deref(), Some("standard"));
        assert_eq!(claim.metadata.annotations.unwrap()[PROVISIONER], "pd.csi.storage.gke.io");
        let none: PersistentVolumeClaim = client.get("ns", "none").await.unwrap();
        assert_eq!(none.spec.unwrap().storage_class_name.as_deref(), Some(""));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_volume_of_a_claim_is_released() {
        let world = world_of(&[]).await;
        let client = world.api.client();
        client.create(&volume("first", "1Gi")).await.unwrap();
        let made = client.create(&claim("c", json!({}))).await.unwrap();
        world.pass(2.0).await;
        let second = |name: &str, annotation: &str| {
            let mut second = volume(name, "1Gi");
            second.metadata.annotations = Some([(annotation.to_owned(), "x".to_owned())].into());
            let spec = second.spec.get_or_insert_default();
            spec.claim_ref = Some(reference(&made));
            spec.persistent_volume_reclaim_policy = Some("Delete".to_owned());
            second
        };
        client.create(&second("ours", BOUND_BY_CONTROLLER)).await.unwrap();
        client.create(&second("made", super::super::volumes::PROVISIONED_BY)).await.unwrap();
        client.create(&second("kept", "example.com/other")).await.unwrap();
        world.pass(2.0).await;
        let now = async |name: &str| {
            let volume: PersistentVolume = client.get("", name).await.unwrap();
            let uid = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()).map(|r| r.uid.is_some());
            (phase(&volume).to_owned(), uid)
        };
        assert_eq!(now("first").await, ("Bound".to_owned(), Some(true)));
        assert_eq!(now("ours").await, ("Available".to_owned(), None));
        assert_eq!(now("made").await, ("Released".to_owned(), Some(true)));
        assert_eq!(now("kept").await, ("Available".to_owned(), Some(false)), "still reserved for the claim");
    }
}
