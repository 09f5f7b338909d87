//! Attach-detach controller: creates and deletes VolumeAttachments so that CSI volumes are attached to the nodes of
//! the pods that use them, and publishes in each node's status what is attached.
//!
//! Each node is one key. The order of steps protects data. A kubelet mounts only volumes that its node's status lists
//! both as in use and as attached. To detach, the controller first removes the volume from `volumesAttached`, and
//! deletes the attachment only if the answer to that write does not list the volume as in use.

mod decide;
mod desired;
mod memory;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{
    CSIDriver, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta};
use knarr_api::kind::Kind;
use knarr_client::client::Patch;
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Informer, Result};
use serde_json::json;

use crate::context::{Context, Descriptor};
use crate::metrics::{self, Metric};
use crate::support::written::CATCH_UP;
use decide::{Detach, is_attached, multi_attach_text, volumes_attached};
use desired::{Sources, Wanted, claim_name, of_node};
use memory::Memory;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolume-attach-detach-controller",
    run: |cx| Box::pin(async move { run(cx).await }),
};

const FAILED: &str = "FailedAttachVolume";
const SUCCEEDED: &str = "SuccessfulAttachVolume";
/// How long an external attacher may take before an event reports a timeout.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(120);
/// The index of pods by the claims they use, `namespace/name`.
const BY_CLAIM: &str = "attachDetachClaim";
const BY_NODE: &str = "attachDetachNode";
const BY_VOLUME: &str = "attachDetachVolume";

struct Controller {
    cx: Arc<Context>,
    queue: Arc<WorkQueue<String>>,
    pods: Informer<Pod>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    drivers: Informer<CSIDriver>,
    nodes: Informer<Node>,
    attachments: Informer<VolumeAttachment>,
    memory: Memory,
}

impl Sources for Controller {
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.claims.lister().get(namespace, name)
    }

    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.lister().get("", name)
    }

    fn driver(&self, name: &str) -> Option<Arc<CSIDriver>> {
        self.drivers.lister().get("", name)
    }
}

async fn run(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let controller = Arc::new(Controller {
        pods: cx.informers.informer(),
        claims: cx.informers.informer(),
        volumes: cx.informers.informer(),
        drivers: cx.informers.informer(),
        nodes: cx.informers.informer(),
        attachments: cx.informers.informer(),
        memory: Memory::default(),
        queue: Arc::clone(&queue),
        cx: Arc::clone(&cx),
    });
    controller.listen();
    if !(controller.pods.wait_synced().await
        && controller.claims.wait_synced().await
        && controller.volumes.wait_synced().await
        && controller.drivers.wait_synced().await
        && controller.nodes.wait_synced().await
        && controller.attachments.wait_synced().await)
    {
        return;
    }
    let reconcile = move |node: String| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&node).await }
    };
    // There is one worker: a volume must not be attached to two nodes at the same time.
    queue.run(DESCRIPTOR.name, 1, cx.stop.clone(), reconcile).await;
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

/// Returns the claims of a pod that is bound to a node.
fn claims_of(pod: &Pod) -> Vec<String> {
    if node_of(pod).is_none() {
        return Vec::new();
    }
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let names = volumes.filter_map(|volume| claim_name(pod, volume));
    names.map(|name| format!("{}/{name}", pod.namespace())).collect()
}

fn volume_of(attachment: &VolumeAttachment) -> Option<&str> {
    attachment.spec.source.persistent_volume_name.as_deref()
}

impl Controller {
    fn listen(self: &Arc<Self>) {
        self.pods.add_index(BY_CLAIM, claims_of);
        self.pods.add_index(BY_NODE, |pod| match claims_of(pod).is_empty() {
            true => Vec::new(),
            false => node_of(pod).into_iter().map(str::to_owned).collect(),
        });
        self.attachments.add_index(BY_NODE, |a| vec![a.spec.node_name.clone()]);
        self.attachments.add_index(BY_VOLUME, |a| volume_of(a).into_iter().map(str::to_owned).collect());
        let queue = Arc::clone(&self.queue);
        self.pods.add_handler(move |event| {
            if let Some(node) = node_of(event.object()).filter(|_| !claims_of(event.object()).is_empty()) {
                queue.add(node.to_owned());
            }
        });
        let queue = Arc::clone(&self.queue);
        self.nodes.add_handler(move |event| queue.add(event.object().name().to_owned()));
        let controller = Arc::clone(self);
        self.claims.add_handler(move |event| controller.add_users(&event.object().key().to_string()));
        let controller = Arc::clone(self);
        self.volumes.add_handler(move |event| controller.add_nodes_wanting(event.object()));
        let controller = Arc::clone(self);
        self.drivers.add_handler(move |_| {
            let nodes = controller.nodes.lister().list();
            nodes.iter().for_each(|node| controller.queue.add(node.name().to_owned()));
        });
        let controller = Arc::clone(self);
        self.attachments.add_handler(move |event| {
            let attachment = event.object();
            controller.queue.add(attachment.spec.node_name.clone());
            controller.memory.take_waiting().into_iter().for_each(|node| controller.queue.add(node));
            if matches!(event, Event::Deleted(_)) {
                controller.memory.forget(attachment.name());
                let volume = volume_of(attachment).and_then(|name| controller.volume(name));
                volume.iter().for_each(|volume| controller.add_nodes_wanting(volume));
            }
        });
    }

    /// Queues the nodes of the pods that use a claim.
    fn add_users(&self, claim: &str) {
        let users = self.pods.lister().by_index(BY_CLAIM, claim);
        users.iter().filter_map(|pod| node_of(pod)).for_each(|node| self.queue.add(node.to_owned()));
    }

    fn add_nodes_wanting(&self, volume: &PersistentVolume) {
        if let Some(claim) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) {
            let part = |part: &Option<String>| part.clone().unwrap_or_default();
            self.add_users(&format!("{}/{}", part(&claim.namespace), part(&claim.name)));
        }
    }

    fn wanted(&self, node: &Node) -> BTreeMap<String, Wanted> {
        of_node(node, &self.pods.lister().by_index(BY_NODE, node.name()), self)
    }

    async fn reconcile(&self, name: &str) -> Result<()> {
        // The informer must have seen the last write, or a volume could be attached to two nodes.
        let is_behind = || self.attachments.observed_version() < self.memory.last_write();
        if is_behind() {
            self.memory.wait(name);
            // The event may have arrived between the check and the wait, and then nothing requeues the node.
            if is_behind() {
                self.queue.add_after(name.to_owned(), CATCH_UP);
                return Ok(());
            }
        }
        let node = self.nodes.lister().get("", name);
        let wanted = node.as_ref().map(|node| self.wanted(node)).unwrap_or_default();
        let attachments: Vec<Arc<VolumeAttachment>> = self.attachments.lister().by_index(BY_NODE, name);
        let attachments: Vec<_> = attachments.into_iter().filter(|a| is_ours(a)).collect();
        let leaving = self.leaving(node.as_deref(), name, &attachments, &wanted);
        match node {
            Some(node) => {
                let node = if leaving.is_empty() { node } else { Arc::new(self.live(name).await?) };
                let names: Vec<String> = leaving.iter().map(|(name, _)| name.clone()).collect();
                let node = self.publish_attached(node, &attachments, &wanted, &names).await?;
                self.detach(Some(&node), name, &leaving).await?;
            }
            None => self.detach(None, name, &leaving).await?,
        }
        for (id, wanted) in &wanted {
            match attachments.iter().find(|a| a.name() == id) {
                Some(attachment) => self.follow(attachment, wanted, name),
                None => self.attach(id, wanted, name).await?,
            }
        }
        Ok(())
    }

    async fn live(&self, name: &str) -> Result<Node> {
        self.cx.client.get("", name).await
    }

    /// Returns the attachments to delete, and whether by force.
    fn leaving(
        &self,
        node: Option<&Node>,
        node_name: &str,
        attachments: &[Arc<VolumeAttachment>],
        wanted: &BTreeMap<String, Wanted>,
    ) -> Vec<(String, bool)> {
        let now = self.cx.clock.monotonic();
        let by_force = !self.cx.settings().never_force_detach;
        let mut leaving = Vec::new();
        for attachment in attachments.iter().filter(|a| a.metadata.deletion_timestamp.is_none()) {
            let name = attachment.name();
            if wanted.contains_key(name) {
                self.memory.wanted(name);
                continue;
            }
            match decide::detach(node, name, self.memory.unwanted_for(name, now), by_force) {
                Detach::Now { forced } => leaving.push((name.to_owned(), forced)),
                Detach::Wait { again_in } => {
                    if let Some(time) = again_in {
                        self.queue.add_after(node_name.to_owned(), time);
                    }
                }
            }
        }
        leaving
    }

    /// Updates `volumesAttached` in the node's status; returns the node after the write.
    async fn publish_attached(
        &self,
        node: Arc<Node>,
        attachments: &[Arc<VolumeAttachment>],
        wanted: &BTreeMap<String, Wanted>,
        leaving: &[String],
    ) -> Result<Arc<Node>> {
        let names = volumes_attached(&node, attachments, wanted, leaving);
        let listed = node.status.as_ref().and_then(|s| s.volumes_attached.as_ref()).into_iter().flatten();
        let listed: BTreeSet<&str> = listed.map(|v| v.name.as_str()).collect();
        if listed.iter().copied().eq(names.iter().map(String::as_str)) {
            return Ok(node);
        }
        let new: Vec<&String> = names.iter().filter(|name| !listed.contains(name.as_str())).collect();
        let list: Vec<_> = names.iter().map(|name| json!({"name": name, "devicePath": ""})).collect();
        let patch = Patch::Merge(json!({"status": {"volumesAttached": list}}));
        let updated: Node = self.cx.client.patch("", node.name(), Some("status"), &patch).await?;
        for wanted in wanted.values().filter(|w| new.contains(&&w.unique_name())) {
            let text = format!("AttachVolume.Attach succeeded for volume {:?} ", wanted.volume.name());
            self.emit_to_pods(wanted, EventType::Normal, SUCCEEDED, &text);
        }
        Ok(Arc::new(updated))
    }

    /// Deletes attachments, unless the node has started to use them since.
    async fn detach(&self, node: Option<&Node>, node_name: &str, leaving: &[(String, bool)]) -> Result<()> {
        for (attachment, forced) in leaving {
            let in_use = node.and_then(|n| n.status.as_ref()?.volumes_in_use.as_ref()).into_iter().flatten();
            if !forced && in_use.into_iter().any(|v| names::means(v, attachment, node_name)) {
                self.queue.add_rate_limited(node_name.to_owned());
                continue;
            }
            tracing::info!(attachment, node = node_name, forced, "detaching a volume that no pod wants");
            if *forced {
                let reason =
                    if node.is_some_and(decide::is_out_of_service) { "out-of-service" } else { "timeout" };
                metrics::add(Metric::ForcedDetaches, &[reason], 1.0);
            }
            let options = DeleteOptions::default();
            match self.cx.client.delete::<VolumeAttachment>("", attachment, &options).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    async fn attach(&self, id: &str, wanted: &Wanted, node: &str) -> Result<()> {
        let volume = wanted.volume.name();
        let mut elsewhere = self.attachments.lister().by_index(BY_VOLUME, volume);
        elsewhere.retain(|attachment| attachment.spec.node_name != node);
        if !wanted.is_shareable() && !elsewhere.is_empty() {
            self.warn_of_multi_attach(id, wanted, &elsewhere);
            return Ok(());
        }
        let attachment = VolumeAttachment {
            metadata: ObjectMeta { name: Some(id.to_owned()), ..ObjectMeta::default() },
            spec: VolumeAttachmentSpec {
                attacher: wanted.driver.clone(),
                node_name: node.to_owned(),
                source: VolumeAttachmentSource {
                    persistent_volume_name: Some(volume.to_owned()),
                    ..VolumeAttachmentSource::default()
                },
            },
            status: None,
        };
        match self.cx.client.create(&attachment).await {
            Ok(created) => self.memory.wrote(created.metadata.resource_version.as_deref()),
            Err(error) if error.is_already_exists() => {}
            Err(error) => {
                let text = format!(
                    "AttachVolume.Attach failed for volume {volume:?} : kubernetes.io/csi: attacher.Attach failed: {error}"
                );
                self.emit_to_pods(wanted, EventType::Warning, FAILED, &text);
                return Err(error);
            }
        }
        self.queue.add_after(node.to_owned(), ATTACH_TIMEOUT);
        Ok(())
    }

    /// Emits events about an attachment that fails or times out.
    fn follow(&self, attachment: &VolumeAttachment, wanted: &Wanted, node: &str) {
        if is_attached(attachment) || attachment.metadata.deletion_timestamp.is_some() {
            return;
        }
        let (name, now) = (attachment.name(), self.cx.clock.monotonic());
        let error = attachment.status.as_ref().and_then(|s| s.attach_error.as_ref());
        let why = match error {
            Some(error) => {
                let seen = format!("{:?} {:?}", error.time, error.message);
                let text = error.message.clone().unwrap_or_default();
                self.memory.is_news(name, &seen).then_some(text)
            }
            None if self.memory.pending_for(name, now) >= ATTACH_TIMEOUT => {
                self.memory.wait_anew(name, now);
                self.queue.add_after(node.to_owned(), ATTACH_TIMEOUT);
                let (driver, handle) = (&wanted.driver, &wanted.handle);
                Some(format!(
                    "timed out waiting for external-attacher of {driver} CSI driver to attach volume {handle}"
                ))
            }
            None => {
                self.queue.add_after(node.to_owned(), ATTACH_TIMEOUT);
                None
            }
        };
        if let Some(why) = why {
            let volume = wanted.volume.name();
            let text = format!("AttachVolume.Attach failed for volume {volume:?} : {why}");
            self.emit_to_pods(wanted, EventType::Warning, FAILED, &text);
        }
    }

    /// Emits one Multi-Attach warning per pod while the volume is attached to other nodes.
    fn warn_of_multi_attach(&self, id: &str, wanted: &Wanted, others: &[Arc<VolumeAttachment>]) {
        let claim = wanted.volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
        let part = |part: Option<&String>| part.cloned().unwrap_or_default();
        let key = claim.map(|c| format!("{}/{}", part(c.namespace.as_ref()), part(c.name.as_ref())));
        let users = self.pods.lister().by_index(BY_CLAIM, &key.unwrap_or_default());
        let has_it = |node: &str| others.iter().any(|attachment| attachment.spec.node_name == node);
        let holds = |pod: &Arc<Pod>| node_of(pod).is_some_and(has_it) && desired::may_use_volumes(pod);
        let elsewhere: Vec<Arc<Pod>> = users.into_iter().filter(holds).collect();
        for pod in &wanted.pods {
            let text = multi_attach_text(wanted.volume.name(), pod, &elsewhere);
            if self.memory.is_news(&format!("{id} {}", pod.uid()), "multi-attach") {
                self.cx.recorder.event(&**pod, EventType::Warning, FAILED, text);
            }
        }
    }

    fn emit_to_pods(&self, wanted: &Wanted, type_: EventType, reason: &str, text: &str) {
        for pod in &wanted.pods {
            self.cx.recorder.event(&**pod, type_, reason, text);
        }
    }
}

/// Returns whether this controller made the attachment: others have names of another form.
fn is_ours(attachment: &VolumeAttachment) -> bool {
    attachment.name().len() == 68 && attachment.name().starts_with("csi-")
}

#[cfg(test)]
mod tests;
