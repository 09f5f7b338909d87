//! NodeVolumeLimits: a node takes no more volumes of a CSI driver than its CSINode says, and none of a driver that it
//! has to have and does not.

mod in_tree;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment};

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
            books: Books { catalog: Arc::clone(build.catalog), attached: Arc::default() },
        });
        Ok(Parts { filter: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

const TOO_MANY: &str = "node(s) exceed max volume count";

struct NodeVolumeLimits {
    books: Books,
}

/// By node, the attacher and the volume of each attachment.
type Attachments = HashMap<String, Vec<(String, String)>>;

/// What tells which disk a claim stands for.
#[derive(Clone)]
struct Books {
    catalog: Arc<Catalog>,
    /// Of one version of the cluster's attachments.
    attached: Arc<Mutex<(u64, Arc<Attachments>)>>,
}

#[derive(Clone)]
struct Limits {
    books: Books,
    /// With those disks that are counted only where the node is known to have a CSI driver.
    wanted: BTreeSet<Attached>,
    wanted_with_csi: BTreeSet<Attached>,
    /// Drivers of theirs without which a node is no place for the pod.
    needed: BTreeSet<String>,
    attached: Arc<Attachments>,
}

impl Books {
    /// The disk that a claim is, or will be; `csi` says whether disks of old are counted on the node.
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
        // No volume's handle looks like this.
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

    /// The disks of a pod on a node; claims that are gone count for nothing.
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
        let version = self.catalog.version::<VolumeAttachment>();
        let mut known = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != version || version == 0 {
            let mut by_node = Attachments::new();
            for attachment in self.catalog.list::<VolumeAttachment>(None) {
                let spec = &attachment.spec;
                let volume = spec.source.persistent_volume_name.clone().filter(|_| !spec.attacher.is_empty());
                let Some(volume) = volume else { continue };
                by_node.entry(spec.node_name.clone()).or_default().push((spec.attacher.clone(), volume));
            }
            *known = (version, Arc::new(by_node));
        }
        Arc::clone(&known.1)
    }

    fn attached<'a>(&'a self, here: &'a [(String, String)]) -> impl Iterator<Item = Attached> + 'a {
        here.iter().filter_map(|(attacher, volume)| {
            let volume = self.catalog.get::<PersistentVolume>("", volume)?;
            let csi = volume.spec.as_ref()?.csi.as_ref()?;
            Some(Attached::new(attacher, &csi.volume_handle))
        })
    }

    /// Whether pods must stay away from nodes without this driver.
    fn is_needed(&self, driver: &str) -> bool {
        let known = self.catalog.get::<CSIDriver>("", driver);
        known.is_some_and(|d| d.spec.prevent_pod_scheduling_if_missing == Some(true))
    }
}

/// The limits by driver.
fn limits(node: Option<&CSINode>) -> BTreeMap<&str, i64> {
    let drivers = node.map(|n| n.spec.drivers.as_slice()).unwrap_or_default();
    let limit =
        |d: &k8s_openapi::api::storage::v1::CSINodeDriver| d.allocatable.as_ref()?.count.map(i64::from);
    drivers.iter().filter_map(|d| Some((d.name.as_str(), limit(d)?))).collect()
}

fn count(disks: &BTreeSet<Attached>, driver: &str) -> i64 {
    disks.iter().filter(|disk| disk.driver == driver).count() as i64
}

impl NodeFilter for Limits {
    fn check(&self, node: &NodeView) -> Status {
        let csi = self.books.catalog.get::<CSINode>("", node.row.name());
        let wanted = if csi.is_some() { &self.wanted_with_csi } else { &self.wanted };
        let drivers = csi.as_ref().map(|n| n.spec.drivers.as_slice()).unwrap_or_default();
        for disk in wanted.iter().filter(|disk| self.needed.contains(&disk.driver)) {
            if drivers.iter().all(|d| d.name != disk.driver) {
                let driver = &disk.driver;
                return Status::unschedulable(format!("{driver} CSI driver is not installed on the node"));
            }
        }
        let limits = limits(csi.as_deref());
        let attached = self.attached.get(node.row.name()).map_or(&[][..], Vec::as_slice);
        let pods = || node.row.pods.iter().map(|pod| &pod.footprint);
        // Where there would be room if nothing was counted twice, nothing has to be looked up.
        let used = pods().map(|f| f.claims.len() + f.disks.len()).sum::<usize>() + attached.len();
        let over = |wanted: &BTreeSet<Attached>, used: &dyn Fn(&str) -> i64| {
            limits.iter().any(|(driver, limit)| {
                let new = count(wanted, driver);
                new > 0 && used(driver) + new > *limit
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
                let (books, attached) = (self.books.clone(), self.books.attachments());
                PreFilter::check(Limits { books, wanted, wanted_with_csi, needed, attached })
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
    let before = limits(Some(old));
    limits(Some(new)).into_iter().any(|(driver, limit)| limit > before.get(driver).copied().unwrap_or(0))
}
