//! NodeVolumeLimits: limits the volumes of a CSI driver on a node to the number in its CSINode, and excludes nodes
//! without a driver that must be installed.

mod in_tree;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment};
use knarr_api::kind::Kind;

use self::in_tree::{Attached, Provisioner, of_persistent_volume, of_volume, provisioner};
use super::claims::{Claimed, claims, class_of, no_claim, volume_name, volumes};
use crate::framework::points::NodeView;
use crate::framework::{
    Action, Catalog, Changed, ClusterEvent, Descriptor, Filter, Footprint, NodeFilter, Parts, Plugin,
    PodInfo, PreFilter, Resource, Scope, Shape, Status,
};
use crate::snapshot::Snapshot;

pub const NAME: &str = "NodeVolumeLimits";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    args: None,
    build: |build| {
        build.catalog.watch::<PersistentVolumeClaim>();
        build.catalog.watch::<PersistentVolume>();
        build.catalog.watch::<StorageClass>();
        build.catalog.watch::<CSINode>();
        build.catalog.watch::<CSIDriver>();
        build.catalog.watch::<VolumeAttachment>();
        let plugin = Arc::new(NodeVolumeLimits {
            books: Books {
                catalog: Arc::clone(build.catalog),
                attached: Arc::default(),
                drivers: Arc::default(),
            },
        });
        Ok(Parts { filter: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

const TOO_MANY: &str = "node(s) exceed max volume count";

struct NodeVolumeLimits {
    books: Books,
}

/// For each node: the attacher and the volume of each attachment.
type Attachments = HashMap<String, Vec<(String, String)>>;

/// For each node with a CSINode: its drivers with their maximum number of volumes.
type Drivers = HashMap<String, Vec<(String, Option<i64>)>>;

/// A value derived from all objects of a kind, with the version of the objects it was made from.
type Made<T> = Arc<Mutex<(u64, Arc<T>)>>;

/// The objects that determine the disk of a claim.
#[derive(Clone)]
struct Books {
    catalog: Arc<Catalog>,
    attached: Made<Attachments>,
    drivers: Made<Drivers>,
}

/// Returns the cached value if it is of this version; otherwise computes it.
fn made<T>(known: &Made<T>, version: u64, make: impl FnOnce() -> T) -> Arc<T> {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    // Version 0 means no changes were counted; there may still be objects, from a catalog without informers.
    if known.0 != version || version == 0 {
        *known = (version, Arc::new(make()));
    }
    Arc::clone(&known.1)
}

#[derive(Clone)]
struct Limits {
    books: Books,
    /// The pod's disks, including in-tree ones that count only on nodes with their CSI driver.
    wanted: BTreeSet<Attached>,
    wanted_with_csi: BTreeSet<Attached>,
    /// Drivers of these disks that a node must have.
    needed: BTreeSet<String>,
    attached: Arc<Attachments>,
    drivers: Arc<Drivers>,
}

impl Books {
    /// Returns the disk that a claim is bound to or will get; `csi` says whether in-tree disks count on the node.
    fn disk(&self, claim: &PersistentVolumeClaim, csi: bool) -> Option<Attached> {
        let volume = volume_name(claim).and_then(|name| self.catalog.get::<PersistentVolume>("", name));
        let Some(volume) = volume else { return self.disk_to_be(claim, csi) };
        match volume.spec.as_ref().and_then(|s| s.csi.as_ref()) {
            Some(source) => Some(Attached::new(&source.driver, &source.volume_handle)),
            None => of_persistent_volume(&volume).filter(|_| csi),
        }
        .filter(|disk| !disk.driver.is_empty() && !disk.handle.is_empty())
    }

    fn disk_to_be(&self, claim: &PersistentVolumeClaim, csi: bool) -> Option<Attached> {
        let class = self.catalog.get::<StorageClass>("", Some(class_of(claim)).filter(|c| !c.is_empty())?)?;
        let (namespace, name) = (
            claim.metadata.namespace.as_deref().unwrap_or_default(),
            claim.metadata.name.as_deref().unwrap_or_default(),
        );
        // A handle that no real volume can have.
        let handle = format!("\0{namespace}/{name}");
        match provisioner(&class.provisioner) {
            Provisioner::Driver(driver) => csi.then(|| Attached::new(driver, handle)),
            Provisioner::Uncounted => None,
            Provisioner::Other => Some(Attached::new(&class.provisioner, handle)),
        }
    }

    /// The disks of the waiting pod.
    fn disks_of_pod(&self, pod: &Pod, csi: bool) -> Result<BTreeSet<Attached>, Status> {
        let mut disks = BTreeSet::new();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        for volume in volumes(pod) {
            let Some(wanted) = Claimed::of(pod, volume) else {
                disks.extend(of_volume(volume).filter(|_| csi));
                continue;
            };
            if wanted.name.is_empty() {
                return Err(Status::error("PersistentVolumeClaim had no name"));
            }
            let Some(claim) = self.catalog.get::<PersistentVolumeClaim>(namespace, &wanted.name) else {
                let why = no_claim(&wanted.name);
                return Err(Status::unresolvable(format!(
                    "looking up PVC {namespace}/{}: {why}",
                    wanted.name
                )));
            };
            if let Some(why) = wanted.foreign(pod, &claim) {
                return Err(Status::error(why));
            }
            disks.extend(self.disk(&claim, csi));
        }
        Ok(disks)
    }

    /// The disks of a placed pod; deleted claims do not count.
    fn disks_of_placed<'a>(
        &'a self,
        footprint: &'a Footprint,
        csi: bool,
    ) -> impl Iterator<Item = Attached> + 'a {
        let claims = footprint.claims.iter().filter_map(move |name| {
            let claim = self.catalog.get::<PersistentVolumeClaim>(&footprint.namespace, name)?;
            self.disk(&claim, csi)
        });
        claims.chain(footprint.disks.iter().filter(move |_| csi).filter_map(of_volume))
    }

    /// The attachments of all nodes.
    fn attachments(&self) -> Arc<Attachments> {
        made(&self.attached, self.catalog.version::<VolumeAttachment>(), || {
            let mut by_node = Attachments::new();
            for attachment in self.catalog.list::<VolumeAttachment>(None) {
                let spec = &attachment.spec;
                let volume = spec.source.persistent_volume_name.clone().filter(|_| !spec.attacher.is_empty());
                let Some(volume) = volume else { continue };
                by_node.entry(spec.node_name.clone()).or_default().push((spec.attacher.clone(), volume));
            }
            by_node
        })
    }

    /// The drivers of all nodes.
    fn drivers(&self) -> Arc<Drivers> {
        made(&self.drivers, self.catalog.version::<CSINode>(), || {
            let nodes = self.catalog.list::<CSINode>(None);
            nodes.into_iter().map(|node| (node.name().to_owned(), drivers(&node))).collect()
        })
    }

    fn attached<'a>(&'a self, here: &'a [(String, String)]) -> impl Iterator<Item = Attached> + 'a {
        here.iter().filter_map(|(attacher, volume)| {
            let volume = self.catalog.get::<PersistentVolume>("", volume)?;
            let csi = volume.spec.as_ref()?.csi.as_ref()?;
            Some(Attached::new(attacher, &csi.volume_handle))
        })
    }

    /// Returns whether pods must not be placed on nodes without this driver.
    fn is_needed(&self, driver: &str) -> bool {
        let known = self.catalog.get::<CSIDriver>("", driver);
        known.is_some_and(|d| d.spec.prevent_pod_scheduling_if_missing == Some(true))
    }
}

/// The drivers of a node with their limits.
fn drivers(node: &CSINode) -> Vec<(String, Option<i64>)> {
    let drivers = node.spec.drivers.iter();
    drivers.map(|d| (d.name.clone(), d.allocatable.as_ref().and_then(|a| a.count).map(i64::from))).collect()
}

fn count(disks: &BTreeSet<Attached>, driver: &str) -> i64 {
    disks.iter().filter(|disk| disk.driver == driver).count() as i64
}

impl NodeFilter for Limits {
    fn check(&self, node: &NodeView) -> Status {
        let csi = self.drivers.get(node.row.name());
        let wanted = if csi.is_some() { &self.wanted_with_csi } else { &self.wanted };
        let drivers = csi.map_or(&[][..], Vec::as_slice);
        for disk in wanted.iter().filter(|disk| self.needed.contains(&disk.driver)) {
            if drivers.iter().all(|(name, _)| *name != disk.driver) {
                let driver = &disk.driver;
                return Status::unschedulable(format!("{driver} CSI driver is not installed on the node"));
            }
        }
        let attached = self.attached.get(node.row.name()).map_or(&[][..], Vec::as_slice);
        let pods = || node.row.pods.iter().map(|pod| &pod.footprint);
        // If the limit holds even when disks are counted twice, no claim needs to be read.
        let used = pods().map(|f| f.claims.len() + f.disks.len()).sum::<usize>() + attached.len();
        let over = |wanted: &BTreeSet<Attached>, used: &dyn Fn(&str) -> i64| {
            drivers.iter().any(|(driver, limit)| {
                let new = count(wanted, driver);
                new > 0 && limit.is_some_and(|limit| used(driver) + new > limit)
            })
        };
        if !over(wanted, &|_| used as i64) {
            return Status::SUCCESS;
        }
        let mut there: BTreeSet<Attached> =
            pods().flat_map(|footprint| self.books.disks_of_placed(footprint, csi.is_some())).collect();
        let new: BTreeSet<Attached> = wanted.difference(&there).cloned().collect();
        there.extend(self.books.attached(attached));
        if over(&new, &|driver| count(&there, driver)) {
            Status::unschedulable(TOO_MANY)
        } else {
            Status::SUCCESS
        }
    }

    fn boxed(&self) -> Box<dyn NodeFilter> {
        Box::new(self.clone())
    }
}

impl Filter for NodeVolumeLimits {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn version(&self, _: &Snapshot, shape: &Shape) -> u64 {
        if volumes(&shape.pod).is_empty() {
            return 0;
        }
        let catalog = &self.books.catalog;
        catalog.version::<PersistentVolumeClaim>()
            + catalog.version::<PersistentVolume>()
            + catalog.version::<StorageClass>()
            + catalog.version::<CSINode>()
            + catalog.version::<CSIDriver>()
            + catalog.version::<VolumeAttachment>()
    }

    fn pre_filter(&self, _: &Snapshot, shape: &Shape) -> PreFilter {
        let pod = &shape.pod;
        if !volumes(pod).iter().any(|v| Claimed::of(pod, v).is_some() || of_volume(v).is_some()) {
            return PreFilter::Skip;
        }
        let both = (self.books.disks_of_pod(pod, false), self.books.disks_of_pod(pod, true));
        match both {
            (Ok(wanted), Ok(wanted_with_csi)) => {
                let drivers = wanted.iter().chain(&wanted_with_csi).map(|disk| disk.driver.clone());
                let needed = drivers.filter(|driver| self.books.is_needed(driver)).collect();
                let (attached, drivers) = (self.books.attachments(), self.books.drivers());
                let books = self.books.clone();
                PreFilter::check(Limits { books, wanted, wanted_with_csi, needed, attached, drivers })
            }
            (Err(status), _) | (_, Err(status)) => PreFilter::Reject(status),
        }
    }
}

impl Plugin for NodeVolumeLimits {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const {
            &[
                ClusterEvent::new(Resource::CsiNode, Action::ADD.or(Action::UPDATE)),
                ClusterEvent::new(Resource::AssignedPod, Action::DELETE),
                ClusterEvent::new(Resource::PersistentVolumeClaim, Action::ADD),
                ClusterEvent::new(Resource::VolumeAttachment, Action::DELETE),
            ]
        }
    }

    fn hint(&self, pod: &PodInfo, happened: ClusterEvent, change: &Changed) -> bool {
        match happened.resource {
            Resource::CsiNode => limit_grew(change),
            Resource::AssignedPod => change.old::<Pod>().is_none_or(|gone| {
                volumes(gone).iter().any(|v| Claimed::of(gone, v).is_some() || of_volume(v).is_some())
            }),
            Resource::PersistentVolumeClaim => {
                change.new::<PersistentVolumeClaim>().is_none_or(|claim| claims(pod, claim))
            }
            Resource::VolumeAttachment => change.old::<VolumeAttachment>().is_none_or(|gone| {
                let of_driver = |disk: Attached| disk.driver == gone.spec.attacher;
                volumes(pod.pod())
                    .iter()
                    .any(|v| v.persistent_volume_claim.is_some() || of_volume(v).is_some_and(of_driver))
            }),
            _ => true,
        }
    }
}

fn limit_grew(change: &Changed) -> bool {
    let (Some(old), Some(new)) = (change.old::<CSINode>(), change.new::<CSINode>()) else { return true };
    let before: BTreeMap<String, Option<i64>> = drivers(old).into_iter().collect();
    let grew = |(driver, limit): (String, Option<i64>)| {
        limit.is_some_and(|limit| limit > before.get(&driver).copied().flatten().unwrap_or(0))
    };
    drivers(new).into_iter().any(grew)
}
