//! CSI volumes: persistent ones behind claims, and inline ones.
//!
//! The state is read back from disk (`record`): a volume is published below its pod's folder. Before that it is
//! staged in a folder of its own, which is removed when the last pod that uses the volume has ended.

mod attached;
mod expand;
mod identity;
mod in_use;
mod inline;
mod measure;
mod persistent;
mod publish;
mod record;
mod request;
mod take_down;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSIDriver;
use knarr_client::{Client, Event, Informer, Informers, ListOptions};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::error::{Error, Result};
use super::object_source::ObjectSource;
use super::operations::{Operation, Operations, csi_plugin};
use crate::config::PodDirs;
use crate::csi::Drivers;
use identity::{VolumeId, csi_dir};
use in_use::InUse;
use request::Policy;

pub use inline::InlinePlugin;
pub use measure::Measured;
pub(super) use persistent::{Claimed, set_up as set_up_claimed};

/// How long to wait for the first list of CSIDrivers.
const SYNC_WAIT: Duration = Duration::from_secs(10);
/// How often a published volume is processed again, if its driver requires republishing or can expand it.
const RENEW: Duration = Duration::from_secs(60);

/// The shared state of all CSI volumes of this node.
pub struct Csi {
    drivers: Arc<Drivers>,
    client: Client,
    node_name: String,
    dirs: PodDirs,
    objects: Arc<ObjectSource>,
    csi_drivers: Informer<CSIDriver>,
    node: Informer<Node>,
    in_use: InUse,
    /// The volumes that this run has staged.
    devices: Mutex<BTreeSet<VolumeId>>,
    /// One lock per volume: only one operation on a volume runs at a time.
    busy: Mutex<BTreeMap<VolumeId, Arc<tokio::sync::Mutex<()>>>>,
    /// The durations of volume operations, of all plugins.
    operations: Arc<Operations>,
    /// Pods that wait for a driver or an attachment.
    waiting: Mutex<BTreeSet<String>>,
}

impl Csi {
    /// Loads the state that an earlier run has left below `dirs`, and runs until `stop` is cancelled.
    pub fn new(
        informers: &Informers,
        node_name: &str,
        drivers: Arc<Drivers>,
        dirs: PodDirs,
        objects: Arc<ObjectSource>,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let own = ListOptions {
            field_selector: Some(format!("metadata.name={node_name}")),
            ..ListOptions::default()
        };
        let csi = Arc::new(Self {
            client: informers.client().clone(),
            node_name: node_name.to_owned(),
            objects,
            csi_drivers: informers.informer(),
            node: informers.selected(own),
            in_use: InUse::new(published(&dirs), staged(&dirs)),
            devices: Mutex::default(),
            operations: Arc::new(Operations::new(Arc::clone(informers.client().clock()))),
            busy: Mutex::default(),
            waiting: Mutex::default(),
            drivers,
            dirs,
        });
        let weak = Arc::downgrade(&csi);
        csi.node.add_handler(move |event| {
            if let Some(csi) = weak.upgrade().filter(|_| volumes_changed(event)) {
                csi.wake();
            }
        });
        let weak = Arc::downgrade(&csi);
        csi.csi_drivers.add_handler(move |_| {
            if let Some(csi) = weak.upgrade().filter(|csi| csi.csi_drivers.has_synced()) {
                csi.publish_in_use();
                csi.wake();
            }
        });
        let follower = Arc::clone(&csi);
        csi.objects
            .supervisor()
            .spawn("csi-drivers", stop, move |stop| Arc::clone(&follower).follow_drivers(stop));
        csi
    }

    /// The names for `volumesInUse` of the node's status; `None` until they are known.
    pub fn in_use(&self) -> watch::Receiver<Option<BTreeSet<String>>> {
        self.in_use.names()
    }

    pub(super) fn operations(&self) -> &Arc<Operations> {
        &self.operations
    }

    pub(crate) fn drivers(&self) -> &Drivers {
        &self.drivers
    }

    async fn follow_drivers(self: Arc<Self>, stop: CancellationToken) {
        let mut registered = self.drivers.registrations();
        tokio::select! {
            () = stop.cancelled() => return,
            synced = self.csi_drivers.wait_synced() => if !synced { return },
        }
        self.publish_in_use();
        // Pods that began to wait earlier were not notified.
        self.wake();
        loop {
            let driver = tokio::select! {
                () = stop.cancelled() => return,
                driver = registered.recv() => driver,
            };
            match driver {
                Ok(driver) => {
                    self.wake();
                    self.unstage_unused(&driver).await;
                }
                Err(RecvError::Lagged(_)) => self.wake(),
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Records that the pod waits for a driver or an attachment.
    fn wait(&self, pod_uid: &str) {
        lock(&self.waiting).insert(pod_uid.to_owned());
    }

    /// Records that the pod does not wait any more.
    pub(super) fn ready(&self, pod_uid: &str) {
        lock(&self.waiting).remove(pod_uid);
    }

    /// Notifies the pods that wait.
    fn wake(&self) {
        for uid in std::mem::take(&mut *lock(&self.waiting)) {
            self.objects.notify(&uid);
        }
    }

    /// Publishes the volumes in use for the node's status.
    fn publish_in_use(&self) {
        if self.csi_drivers.has_synced() {
            let drivers = self.csi_drivers.lister();
            let attachable = |v: &VolumeId| {
                drivers.get("", &v.driver).is_none_or(|driver| driver.spec.attach_required != Some(false))
            };
            self.in_use.publish(attachable);
        }
    }

    /// Returns the policy in the driver's CSIDriver object.
    async fn policy(&self, driver: &str) -> Result<Policy> {
        let synced = tokio::select! {
            synced = self.csi_drivers.wait_synced() => synced,
            () = self.client.clock().sleep(SYNC_WAIT) => false,
        };
        if !synced {
            return Err(Error::failed("failed to wait for cache sync for CSIDriver"));
        }
        Ok(Policy::of(self.csi_drivers.lister().get("", driver).as_deref()))
    }

    /// Locks the volume as long as the returned guard is held.
    async fn alone_with(&self, volume: &VolumeId) -> tokio::sync::OwnedMutexGuard<()> {
        let mutex = {
            let mut busy = lock(&self.busy);
            busy.retain(|_, mutex| Arc::strong_count(mutex) > 1);
            Arc::clone(busy.entry(volume.clone()).or_default())
        };
        mutex.lock_owned().await
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn volumes_changed(event: &Event<Node>) -> bool {
    let volumes = |node: &Node| {
        node.status
            .as_ref()
            .map(|s| (s.volumes_attached.clone(), s.volumes_in_use.clone()))
            .unwrap_or_default()
    };
    match event {
        Event::Updated { old, new } => volumes(old) != volumes(new),
        _ => true,
    }
}

/// Reads the persistent volumes of pods from disk, by the pods' uids.
fn published(dirs: &PodDirs) -> BTreeMap<String, BTreeSet<VolumeId>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dirs.pods()).into_iter().flatten().flatten() {
        let Ok(uid) = entry.file_name().into_string() else { continue };
        let records = record::below(&dirs.volumes_dir(&uid).join("kubernetes.io~csi"));
        let volumes: BTreeSet<VolumeId> =
            records.into_iter().filter(|(_, r)| !r.ephemeral).map(|(_, r)| r.volume).collect();
        if !volumes.is_empty() {
            found.insert(uid, volumes);
        }
    }
    found
}

/// Reads the staged volumes from disk.
fn staged(dirs: &PodDirs) -> BTreeSet<VolumeId> {
    let drivers = std::fs::read_dir(csi_dir(dirs)).into_iter().flatten().flatten();
    drivers.flat_map(|driver| record::below(&driver.path())).map(|(_, record)| record.volume).collect()
}
