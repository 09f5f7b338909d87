//! The built-in provisioner `rancher.io/local-path`: a directory on a node for each claim, deleted with its volume.

mod plan;

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::client::Patch;
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Informer, Result};
use serde_json::{Value, json};

use crate::context::{Context, Descriptor};
use crate::persistent_volumes::class_of;
use plan::{FINALIZER, Reclaim, SELECTED_NODE, Wish};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "local-path-provisioner", run: |cx| Box::pin(async move { run(cx).await }) };

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Claim(ObjectKey),
    Volume(String),
}

struct Controller {
    cx: Arc<Context>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    nodes: Informer<Node>,
}

async fn run(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let controller = Controller {
        claims: cx.informers.informer(),
        volumes: cx.informers.informer(),
        classes: cx.informers.informer(),
        nodes: cx.informers.informer(),
        cx: Arc::clone(&cx),
    };
    let on_claim = Arc::clone(&queue);
    controller.claims.add_handler(move |event| {
        if !matches!(event, Event::Deleted(_)) {
            on_claim.add(Key::Claim(event.object().key()));
        }
    });
    let on_volume = Arc::clone(&queue);
    controller.volumes.add_handler(move |event| {
        if plan::is_ours(event.object()) && !matches!(event, Event::Deleted(_)) {
            on_volume.add(Key::Volume(event.object().name().to_owned()));
        }
    });
    let (on_class, all) = (Arc::clone(&queue), controller.claims.lister());
    controller.classes.add_handler(move |event| {
        let class = event.object().name();
        let of_class = |c: &&Arc<PersistentVolumeClaim>| class_of(c) == class;
        all.list().iter().filter(of_class).for_each(|c| on_class.add(Key::Claim(c.key())));
    });
    if !(controller.claims.wait_synced().await
        && controller.volumes.wait_synced().await
        && controller.classes.wait_synced().await
        && controller.nodes.wait_synced().await)
    {
        return;
    }
    let (controller, stop) = (Arc::new(controller), cx.stop.clone());
    let reconcile = move |key: Key| {
        let controller = Arc::clone(&controller);
        async move {
            match key {
                Key::Claim(key) => controller.claim(&key).await,
                Key::Volume(name) => controller.volume(&name).await,
            }
        }
    };
    queue.run(DESCRIPTOR.name, 4, stop, reconcile).await;
}

impl Controller {
    async fn claim(&self, key: &ObjectKey) -> Result<()> {
        let Some(claim) = self.claims.lister().get_key(key) else { return Ok(()) };
        let class = self.classes.lister().get("", class_of(&claim));
        let exists = |name: &str| self.volumes.lister().get("", name).is_some();
        match plan::wish(&claim, class.as_deref(), &self.nodes.lister().list(), exists) {
            Wish::Nothing => Ok(()),
            Wish::Refuse(why) => {
                self.failed(&claim, class.as_deref(), &why);
                Ok(())
            }
            Wish::OtherNode => {
                let patch = json!({"metadata": {"annotations": {SELECTED_NODE: null}}});
                let (namespace, name) = (claim.namespace(), claim.name());
                self.cx
                    .client
                    .patch::<PersistentVolumeClaim>(namespace, name, None, &Patch::Merge(patch))
                    .await
                    .map(drop)
            }
            Wish::Provision { node, class } => self.provision(&claim, &node, &class).await,
        }
    }

    fn failed(&self, claim: &PersistentVolumeClaim, class: Option<&StorageClass>, why: &str) {
        let class = class.map_or("", |c| c.name());
        let text = format!("failed to provision volume with StorageClass {class:?}: {why}");
        self.cx.recorder.event(claim, EventType::Warning, "ProvisioningFailed", text);
    }

    async fn provision(
        &self,
        claim: &PersistentVolumeClaim,
        node: &Node,
        class: &StorageClass,
    ) -> Result<()> {
        let (namespace, name) = (claim.namespace(), claim.name());
        let text = format!("External provisioner is provisioning volume for claim \"{namespace}/{name}\"");
        self.cx.recorder.event(claim, EventType::Normal, "Provisioning", text);
        let folder = plan::folder(claim);
        let path = match self.ask(Method::POST, node.name(), &folder).await {
            Ok(path) => path,
            Err(error) => {
                self.failed(claim, Some(class), &error.to_string());
                return Err(error);
            }
        };
        let volume = plan::volume(claim, class, node, &path);
        match self.cx.client.create(&volume).await {
            Err(error) if !error.is_already_exists() => {
                self.failed(claim, Some(class), &error.to_string());
                Err(error)
            }
            _ => {
                let text = format!("Successfully provisioned volume {}", volume.name());
                self.cx.recorder.event(claim, EventType::Normal, "ProvisioningSucceeded", text);
                Ok(())
            }
        }
    }

    /// Asks the node's kubelet to create or delete a directory; returns its path.
    async fn ask(&self, method: Method, node: &str, folder: &str) -> Result<String> {
        let path = format!("{}/proxy/volumes/local-path/{folder}", Node::RESOURCE.path(None, Some(node)));
        let answer = self.cx.client.call(method, path, None, Bytes::new()).await?;
        let value: Value = serde_json::from_slice(&answer)
            .map_err(|e| knarr_client::Error::Protocol(format!("the kubelet's answer: {e}")))?;
        Ok(value["path"].as_str().unwrap_or("").to_owned())
    }

    async fn volume(&self, name: &str) -> Result<()> {
        let Some(volume) = self.volumes.lister().get("", name) else { return Ok(()) };
        let Reclaim::Remove { node, folder } = plan::reclaim(&volume) else { return Ok(()) };
        // If the node no longer exists, its directories are gone with it.
        if self.nodes.lister().get("", &node).is_some()
            && let Err(error) = self.ask(Method::DELETE, &node, &folder).await
        {
            self.cx.recorder.event(&*volume, EventType::Warning, "VolumeFailedDelete", error.to_string());
            return Err(error);
        }
        self.forget(&volume).await
    }

    /// Deletes the object and then removes this controller's finalizer; if it is interrupted between, it is repeated.
    async fn forget(&self, volume: &PersistentVolume) -> Result<()> {
        let gone = |result: Result<()>| match result {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        };
        if volume.metadata.deletion_timestamp.is_none() {
            let options = DeleteOptions::default();
            gone(self.cx.client.delete::<PersistentVolume>("", volume.name(), &options).await)?;
        }
        if !volume.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER) {
            return Ok(());
        }
        let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}});
        let patch = Patch::Strategic(patch);
        gone(self.cx.client.patch::<PersistentVolume>("", volume.name(), None, &patch).await.map(drop))
    }
}
