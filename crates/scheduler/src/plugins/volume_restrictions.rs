//! VolumeRestrictions: disks that only one pod of a node may write to, and claims that only one pod in the cluster may
//! use.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Volume};

use super::claims::{named, no_claim, volumes};
use crate::framework::points::NodeView;
use crate::framework::{
    Action, Catalog, Changed, ClusterEvent, Descriptor, Filter, Footprint, NodeFilter, Parts, Plugin,
    PodInfo, PreFilter, Resource, Scope, Shape, Status,
};
use crate::snapshot::{NodeIdx, Snapshot};

pub const NAME: &str = "VolumeRestrictions";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    args: None,
    build: |build| {
        build.catalog.watch::<PersistentVolumeClaim>();
        let plugin = Arc::new(VolumeRestrictions { catalog: Arc::clone(build.catalog) });
        Ok(Parts { filter: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

const DISK_CONFLICT: &str = "node(s) had no available disk";
const IN_USE: &str = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";

struct VolumeRestrictions {
    catalog: Arc<Catalog>,
}

#[derive(Clone)]
struct Restricted {
    namespace: Arc<str>,
    /// The pod's disks that cannot be shared freely within a node.
    disks: Vec<Volume>,
    /// The pod's claims with access mode ReadWriteOncePod.
    exclusive: Vec<String>,
    /// The number of uses of these claims by placed pods.
    uses: i64,
}

/// Returns whether two volumes are the same disk, unless both are read-only and the disk type allows that.
fn conflicts(one: &Volume, other: &Volume) -> bool {
    let writes = |one: Option<bool>, other: Option<bool>| !(one.unwrap_or(false) && other.unwrap_or(false));
    if let (Some(a), Some(b)) = (&one.gce_persistent_disk, &other.gce_persistent_disk)
        && a.pd_name == b.pd_name
        && writes(a.read_only, b.read_only)
    {
        return true;
    }
    if let (Some(a), Some(b)) = (&one.aws_elastic_block_store, &other.aws_elastic_block_store)
        && a.volume_id == b.volume_id
    {
        return true;
    }
    if let (Some(a), Some(b)) = (&one.iscsi, &other.iscsi)
        && a.iqn == b.iqn
        && writes(a.read_only, b.read_only)
    {
        return true;
    }
    if let (Some(a), Some(b)) = (&one.rbd, &other.rbd) {
        let pool = |pool: &Option<String>| pool.clone().unwrap_or_else(|| "rbd".to_owned());
        return a.monitors.iter().any(|m| b.monitors.contains(m))
            && pool(&a.pool) == pool(&b.pool)
            && a.image == b.image
            && writes(a.read_only, b.read_only);
    }
    false
}

fn is_restricted(volume: &Volume) -> bool {
    volume.gce_persistent_disk.is_some()
        || volume.aws_elastic_block_store.is_some()
        || volume.iscsi.is_some()
        || volume.rbd.is_some()
}

impl Restricted {
    fn uses_of(&self, footprint: &Footprint) -> i64 {
        if self.exclusive.is_empty() || footprint.namespace != self.namespace {
            return 0;
        }
        footprint.claims.iter().filter(|c| self.exclusive.iter().any(|own| **own == ***c)).count() as i64
    }
}

impl Plugin for VolumeRestrictions {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const {
            &[
                ClusterEvent::new(Resource::AssignedPod, Action::DELETE),
                ClusterEvent::new(Resource::Node, Action::ADD),
                ClusterEvent::new(Resource::PersistentVolumeClaim, Action::ADD),
            ]
        }
    }

    fn hint(&self, pod: &PodInfo, happened: ClusterEvent, change: &Changed) -> bool {
        match happened.resource {
            Resource::PersistentVolumeClaim => {
                change.new::<PersistentVolumeClaim>().is_none_or(|claim| super::claims::claims(pod, claim))
            }
            Resource::AssignedPod => change.old::<Pod>().is_none_or(|gone| frees(pod, gone)),
            _ => true,
        }
    }
}

/// Returns whether the deleted pod used a disk or claim that the waiting pod needs.
fn frees(pod: &PodInfo, gone: &Pod) -> bool {
    let same_namespace = gone.metadata.namespace.as_deref().unwrap_or_default() == pod.namespace();
    let disk = || volumes(pod.pod()).iter().any(|v| volumes(gone).iter().any(|other| conflicts(v, other)));
    let claim = || named(gone).any(|claim| pod.footprint().claims.iter().any(|own| **own == *claim));
    same_namespace && (disk() || claim())
}

impl Filter for VolumeRestrictions {
    fn scope(&self) -> Scope {
        Scope::Cluster
    }

    fn version(&self, _: &Snapshot, shape: &Shape) -> u64 {
        if shape.footprint.claims.is_empty() { 0 } else { self.catalog.version::<PersistentVolumeClaim>() }
    }

    fn pre_filter(&self, cluster: &Snapshot, shape: &Shape) -> PreFilter {
        let disks: Vec<Volume> = volumes(&shape.pod).iter().filter(|v| is_restricted(v)).cloned().collect();
        let mut exclusive = Vec::new();
        for name in named(&shape.pod) {
            let Some(claim) = self.catalog.get::<PersistentVolumeClaim>(shape.namespace(), name) else {
                return PreFilter::Reject(Status::unresolvable(no_claim(name)));
            };
            let modes = claim.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default();
            if modes.iter().any(|m| m == "ReadWriteOncePod") {
                exclusive.push(name.to_owned());
            }
        }
        if disks.is_empty() && exclusive.is_empty() {
            return PreFilter::Skip;
        }
        let namespace = Arc::clone(&shape.footprint.namespace);
        let mut restricted = Restricted { namespace, disks, exclusive, uses: 0 };
        let uses = cluster.counted().map(|counted| {
            let pods: u32 = counted.by_node.values().sum();
            restricted.uses_of(&counted.footprint) * i64::from(pods)
        });
        restricted.uses = uses.sum();
        PreFilter::check(restricted)
    }
}

impl NodeFilter for Restricted {
    fn check(&self, node: &NodeView) -> Status {
        let mut there = node.row.pods.iter().flat_map(|pod| &pod.footprint.disks);
        if !self.disks.is_empty() && there.any(|disk| self.disks.iter().any(|own| conflicts(own, disk))) {
            return Status::unschedulable(DISK_CONFLICT);
        }
        if self.uses > 0 {
            return Status::unschedulable(IN_USE);
        }
        Status::SUCCESS
    }

    fn pod_changed(&mut self, _: &Snapshot, _: NodeIdx, footprint: &Footprint, delta: i32) {
        self.uses += self.uses_of(footprint) * i64::from(delta);
    }

    fn boxed(&self) -> Box<dyn NodeFilter> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{PodBuilder, node, object, pod, verdict, verdicts_of};
    use serde_json::{Value, json};

    #[test]
    fn disks_are_shared_as_far_as_their_kind_allows() {
        let with = |name: &str, volume: Value| pod(name).volume(volume);
        let gce = |read_only: bool| json!({"gcePersistentDisk": {"pdName": "d", "readOnly": read_only}});
        let rbd = |monitor: &str, read_only: bool| json!({"rbd": {"monitors": [monitor, "m"], "pool": "p", "image": "i", "readOnly": read_only}});
        let iscsi =
            |iqn: &str| json!({"iscsi": {"iqn": iqn, "lun": 0, "targetPortal": "t", "readOnly": false}});
        let aws = |id: &str| json!({"awsElasticBlockStore": {"volumeID": id, "readOnly": true}});
        let other_rbd = json!({"rbd": {"monitors": ["z"], "pool": "p", "image": "i"}});
        let table = [
            (gce(false), gce(true), false),
            (gce(true), gce(true), true),
            (aws("a"), aws("a"), false),
            (aws("a"), aws("b"), true),
            (iscsi("q"), iscsi("q"), false),
            (iscsi("q"), iscsi("r"), true),
            (rbd("x", false), rbd("y", true), false),
            (rbd("x", true), rbd("y", true), true),
            (rbd("x", false), other_rbd, true),
            (gce(false), aws("d"), true),
        ];
        for (wanted, there, fits) in table {
            let status =
                verdict(DESCRIPTOR, with("p", wanted.clone()), node("n"), vec![with("q", there.clone())]);
            assert_eq!(status.is_success(), fits, "{wanted} beside {there}: {status:?}");
        }
    }

    fn claim(name: &str, mode: &str) -> PersistentVolumeClaim {
        object(json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"accessModes": [mode]}}))
    }

    #[test]
    fn a_claim_for_one_pod_is_used_by_one_pod() {
        let catalog = || {
            let catalog = Catalog::default();
            catalog.put(claim("own", "ReadWriteOncePod"));
            catalog.put(claim("shared", "ReadWriteOnce"));
            Arc::new(catalog)
        };
        let say = |pod: PodBuilder, there: Vec<(usize, PodBuilder)>| {
            let nodes = vec![node("a"), node("b")];
            verdicts_of(DESCRIPTOR, &catalog(), pod, nodes, there).remove(1).message()
        };
        assert_eq!(say(pod("p").claim("own"), vec![]), "");
        assert_eq!(say(pod("p").claim("own"), vec![(0, pod("q").claim("own"))]), IN_USE);
        assert_eq!(say(pod("p").claim("own"), vec![(0, pod("q").claim("own").namespace("other"))]), "");
        assert_eq!(say(pod("p").claim("shared"), vec![(0, pod("q").claim("shared"))]), "");
        assert_eq!(say(pod("p").claim("gone"), vec![]), "persistentvolumeclaim \"gone\" not found");
    }

    #[test]
    fn only_what_was_in_the_way_is_news() {
        let waits = PodInfo::new(&pod("p").claim("own").build());
        let hint = |gone: PodBuilder| {
            let plugin = VolumeRestrictions { catalog: Arc::default() };
            let happened = ClusterEvent::new(Resource::AssignedPod, Action::DELETE);
            plugin.hint(&waits, happened, &Changed::of::<Pod>(Some(Arc::new(gone.build())), None))
        };
        assert!(hint(pod("q").claim("own")));
        assert!(!hint(pod("q").claim("other")));
        assert!(!hint(pod("q").claim("own").namespace("elsewhere")));
    }
}
