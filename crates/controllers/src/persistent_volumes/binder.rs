//! PersistentVolume binder: brings claims and volumes together, and lets volumes go when their claims have gone.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeStatus,
};
use k8s_openapi::api::storage::v1::StorageClass;
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Informer, Result};

use super::matching::{class_of, find, mismatch, refers};
use crate::manager::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolume-binder-controller",
    run: |cx| Box::pin(async move { run(cx).await }),
};

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const OLD_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

struct Controller {
    cx: Arc<Context>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    claim_queue: Arc<WorkQueue<ObjectKey>>,
}

async fn run(cx: Arc<Context>) {
    let claim_queue = WorkQueue::new(Arc::clone(&cx.clock));
    let volume_queue = WorkQueue::new(Arc::clone(&cx.clock));
    let claims = cx.informers.informer::<PersistentVolumeClaim>();
    let volumes = cx.informers.informer::<PersistentVolume>();
    let classes = cx.informers.informer::<StorageClass>();
    let (on_claim, of_claim) = (Arc::clone(&claim_queue), Arc::clone(&volume_queue));
    claims.add_handler(move |event| {
        let claim = event.object();
        on_claim.add(claim.key());
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
            .filter(|c| !is_bound(c) && class_of(c) == class)
            .for_each(|c| on_class.add(c.key()));
    });
    claims.wait_synced().await;
    volumes.wait_synced().await;
    classes.wait_synced().await;
    let stop = cx.stop.clone();
    let controller =
        Arc::new(Controller { cx, claims, volumes, classes, claim_queue: Arc::clone(&claim_queue) });
    let for_volumes = Arc::clone(&controller);
    // One worker each: two claims must not choose the same volume.
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

fn phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
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

    fn tell(&self, claim: &PersistentVolumeClaim, type_: EventType, reason: &str, text: impl Into<String>) {
        self.cx.recorder.event(claim, type_, reason, text);
    }

    /// A claim that was bound and has lost its volume stays lost.
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
            self.tell(claim, EventType::Warning, reason, text);
        }
        self.set_claim_phase(claim, "Lost", None).await
    }

    /// The volume, asked for where the informer does not know it: a claim is not lost because of a late watch.
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
                self.tell(claim, EventType::Warning, "FailedBinding", text);
                self.set_claim_phase(claim, "Pending", None).await
            }
            _ => {
                if let Some(why) = mismatch(&volume, claim) {
                    let text = format!("Cannot bind to requested volume {name:?}: {why}");
                    self.tell(claim, EventType::Warning, "VolumeMismatch", text);
                    return self.set_claim_phase(claim, "Pending", None).await;
                }
                self.bind(claim, &volume).await
            }
        }
    }

    async fn bind_any(&self, claim: &PersistentVolumeClaim) -> Result<()> {
        let class = self.classes.lister().get("", class_of(claim));
        let found = find(claim, &self.volumes.lister().list());
        let late =
            class.as_ref().and_then(|c| c.volume_binding_mode.as_deref()) == Some("WaitForFirstConsumer");
        let annotations = claim.metadata.annotations.as_ref();
        let has_node = annotations.is_some_and(|a| a.contains_key(SELECTED_NODE));
        let reserved = found.as_ref().is_some_and(|v| v.spec.as_ref().is_some_and(|s| s.claim_ref.is_some()));
        if late && !has_node && !reserved {
            let text = "waiting for first consumer to be created before binding";
            self.tell(claim, EventType::Normal, "WaitForFirstConsumer", text);
            return self.set_claim_phase(claim, "Pending", None).await;
        }
        if let Some(volume) = found {
            return self.bind(claim, &volume).await;
        }
        match class {
            Some(class) if class.provisioner != "kubernetes.io/no-provisioner" => {
                self.ask(claim, &class).await?
            }
            Some(_) => {
                let text = "no volume plugin matched name: kubernetes.io/no-provisioner";
                self.tell(claim, EventType::Normal, "FailedBinding", text);
            }
            None if class_of(claim).is_empty() => {
                let text = "no persistent volumes available for this claim and no storage class is set";
                self.tell(claim, EventType::Normal, "FailedBinding", text);
            }
            None => {
                let text = format!("storageclass.storage.k8s.io {:?} not found", class_of(claim));
                self.tell(claim, EventType::Warning, "ProvisioningFailed", text);
            }
        }
        let live = self.claims.lister().get_key(&claim.key());
        self.set_claim_phase(live.as_deref().unwrap_or(claim), "Pending", None).await
    }

    /// Asks whoever serves the class's provisioner for a volume.
    async fn ask(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<()> {
        let who = &class.provisioner;
        let text = format!(
            "Waiting for a volume to be created either by the external provisioner '{who}' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
        );
        self.tell(claim, EventType::Normal, "ExternalProvisioning", text);
        let asked = |key: &str| claim.metadata.annotations.as_ref().and_then(|a| a.get(key)) == Some(who);
        if asked(PROVISIONER) && asked(OLD_PROVISIONER) {
            return Ok(());
        }
        let mut next = claim.clone();
        let annotations = next.metadata.annotations.get_or_insert_default();
        annotations.insert(PROVISIONER.to_owned(), who.clone());
        annotations.insert(OLD_PROVISIONER.to_owned(), who.clone());
        self.cx.client.update(&next).await.map(drop)
    }

    /// Four writes, each of which may be repeated: volume, its phase, claim, its phase.
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
                // A later resize is told by whoever did it.
                if status.capacity.is_none() {
                    status.capacity = spec.capacity.clone();
                }
            }
            None => (status.access_modes, status.capacity) = (None, None),
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

    async fn set_volume_phase(&self, volume: &PersistentVolume, to: &str) -> Result<()> {
        if phase(volume) == to {
            return Ok(());
        }
        let status = PersistentVolumeStatus {
            phase: Some(to.to_owned()),
            message: None,
            reason: None,
            ..volume.status.clone().unwrap_or_default()
        };
        let next = PersistentVolume { status: Some(status), ..volume.clone() };
        match self.cx.client.update_status(&next).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }

    /// A volume without a claim is available, one whose claim has gone is released.
    async fn sync_volume(&self, key: &ObjectKey) -> Result<()> {
        let Some(volume) = self.volumes.lister().get_key(key) else { return Ok(()) };
        let Some(reference) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else {
            return self.set_volume_phase(&volume, "Available").await;
        };
        let Some(uid) = reference.uid.as_deref().filter(|uid| !uid.is_empty()) else {
            return self.set_volume_phase(&volume, "Available").await;
        };
        let (namespace, name) =
            (reference.namespace.as_deref().unwrap_or(""), reference.name.as_deref().unwrap_or(""));
        let mut claim = self.claims.lister().get(namespace, name);
        if claim.as_ref().is_none_or(|c| c.uid() != uid) {
            claim = match self.cx.client.get::<PersistentVolumeClaim>(namespace, name).await {
                Ok(live) => Some(Arc::new(live)),
                Err(e) if e.is_not_found() => None,
                Err(e) => return Err(e),
            };
        }
        if claim.is_some_and(|c| c.uid() == uid) {
            return Ok(());
        }
        // What went wrong stays to be seen.
        if phase(&volume) == "Failed" {
            return Ok(());
        }
        if phase(&volume) != "Released" {
            return self.set_volume_phase(&volume, "Released").await;
        }
        match undeletable(&volume) {
            Some(why) => self.fail_volume(&volume, why).await,
            None => Ok(()),
        }
    }

    /// Nobody will delete the volume, although it is to be deleted.
    async fn fail_volume(&self, volume: &PersistentVolume, why: String) -> Result<()> {
        let mut next = volume.clone();
        let status = next.status.get_or_insert_default();
        status.phase = Some("Failed".to_owned());
        status.message = Some(why.clone());
        match self.cx.client.update_status(&next).await {
            Err(e) if e.is_not_found() => Ok(()),
            Err(e) => Err(e),
            Ok(_) => {
                self.cx.recorder.event(volume, EventType::Warning, "VolumeFailedDelete", why);
                Ok(())
            }
        }
    }
}

/// Why nobody deletes the released volume; `None` if somebody does, or nobody has to.
fn undeletable(volume: &PersistentVolume) -> Option<String> {
    let spec = volume.spec.as_ref()?;
    let annotation = |name: &str| {
        let all = volume.metadata.annotations.as_ref()?;
        all.get(name).map(String::as_str).filter(|value| !value.is_empty())
    };
    let provisioner = annotation(PROVISIONED_BY);
    let external = provisioner.is_some_and(|name| !name.starts_with("kubernetes.io/"))
        || annotation(MIGRATED_TO).is_some()
        || spec.csi.is_some();
    if spec.persistent_volume_reclaim_policy.as_deref() != Some("Delete") || external {
        return None;
    }
    if let Some(name) = provisioner {
        return Some(format!("no volume plugin matched name: {name}"));
    }
    if let Some(folder) = &spec.host_path {
        let path = &folder.path;
        // A test's folder is left to whoever made it.
        let of_test = path.find("/tmp/").is_some_and(|at| path.len() > at + "/tmp/".len());
        return (!of_test)
            .then(|| format!("host_path deleter only supports /tmp/.+ but received provided {path}"));
    }
    let known = spec.nfs.is_some();
    let why = if known { "no deletable volume plugin matched" } else { "no volume plugin matched" };
    Some(format!("error getting deleter volume plugin for volume {:?}: {why}", volume.name()))
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
    use super::*;
    use crate::testing::World;
    use k8s_openapi::api::core::v1::Event as ApiEvent;
    use serde_json::{Value, json};

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
        let kinds = [
            PersistentVolume::RESOURCE,
            PersistentVolumeClaim::RESOURCE,
            StorageClass::RESOURCE,
            ApiEvent::RESOURCE,
        ];
        let world = World::new(&kinds);
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
        assert_eq!(claim_phase("named").await, "Pending", "the volume is another claim's");
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

    #[test]
    fn volumes_that_nobody_deletes() {
        let volume = |annotations: serde_json::Value, source: serde_json::Value| -> PersistentVolume {
            let mut spec = source;
            spec["persistentVolumeReclaimPolicy"] = json!("Delete");
            serde_json::from_value(
                json!({"metadata": {"name": "v", "annotations": annotations}, "spec": spec}),
            )
            .unwrap()
        };
        let none = || json!({});
        for (annotations, source, expected) in [
            (none(), json!({"csi": {"driver": "d", "volumeHandle": "h"}}), None),
            (json!({PROVISIONED_BY: "example.com/p"}), json!({"hostPath": {"path": "/data"}}), None),
            (json!({MIGRATED_TO: "example.com/p"}), json!({"nfs": {"server": "s", "path": "/"}}), None),
            (
                json!({PROVISIONED_BY: "kubernetes.io/x"}),
                json!({"hostPath": {"path": "/data"}}),
                Some("no volume plugin matched name: kubernetes.io/x"),
            ),
            (none(), json!({"hostPath": {"path": "/tmp/a"}}), None),
            (
                none(),
                json!({"hostPath": {"path": "/data"}}),
                Some("host_path deleter only supports /tmp/.+ but received provided /data"),
            ),
            (
                none(),
                json!({"nfs": {"server": "s", "path": "/"}}),
                Some(
                    "error getting deleter volume plugin for volume \"v\": no deletable volume plugin matched",
                ),
            ),
            (
                none(),
                json!({"local": {"path": "/mnt"}}),
                Some("error getting deleter volume plugin for volume \"v\": no volume plugin matched"),
            ),
        ] {
            assert_eq!(undeletable(&volume(annotations, source.clone())).as_deref(), expected, "{source}");
        }
        let mut kept = volume(none(), json!({"local": {"path": "/mnt"}}));
        kept.spec.as_mut().unwrap().persistent_volume_reclaim_policy = Some("Retain".to_owned());
        assert_eq!(undeletable(&kept), None);
    }
}
