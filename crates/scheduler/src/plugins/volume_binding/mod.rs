//! VolumeBinding: a node must be able to use the volumes of the pod's claims, or have volumes to bind or to provision.
//! Claims that wait for their first pod are bound, or passed to their provisioner, when the node is chosen.
//!
//! Source: `k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding`, KEP-490, KEP-1472, KEP-4049.

mod assumed;
mod bind;
mod binder;
mod matching;
#[cfg(test)]
mod tests;

use super::scoring_strategy::shape_problems;
use crate::framework::plugin_args::{PluginArgs, judge};
use knarr_apimachinery::field::{Error, ErrorList, Path};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use knarr_api::kind::Kind;
use knarr_apimachinery::quantity::Quantity;
use knarr_client::Client;
use serde::Deserialize;

use self::bind::Decided;
use self::binder::{Binder, PodClaims, PodVolumes};
use self::matching::volume_limit;
use super::claims::{capacity, claims, class_of, class_of_volume, requested, volumes};
use super::scoring_strategy::{ShapePoint, broken_line};
use crate::framework::points::NodeView;
use crate::framework::{
    Action, Changed, ClusterEvent, CycleState, Descriptor, Filter, NodeFilter, NodeScore, Parts, Plugin,
    PodInfo, PreBind, PreFilter, Reserve, Resource, Scope, Score, Shape, Status,
};
use crate::snapshot::Snapshot;

pub const NAME: &str = "VolumeBinding";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 1,
    args: Some(judge::<Args>),
    build: |build| {
        let args: Args = build.args()?;
        build.catalog.watch::<PersistentVolumeClaim>();
        build.catalog.watch::<PersistentVolume>();
        build.catalog.watch::<StorageClass>();
        build.catalog.watch::<CSIDriver>();
        build.catalog.watch::<CSIStorageCapacity>();
        let plugin = Arc::new(VolumeBinding { args, binder: Arc::new(Binder::new(build.catalog)) });
        Ok(Parts {
            filter: Some(plugin.clone()),
            score: Some(plugin.clone()),
            reserve: Some(plugin.clone()),
            pre_bind: Some(plugin.clone()),
            ..Parts::of(plugin)
        })
    },
};

const MIGRATED_PLUGINS: &str = "storage.alpha.kubernetes.io/migrated-plugins";
const IMMEDIATE: &str = "pod has unbound immediate PersistentVolumeClaims";

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Args {
    bind_timeout_seconds: i64,
    /// The points that map the utilization of a node's storage to its score.
    shape: Vec<ShapePoint>,
}

impl Default for Args {
    fn default() -> Self {
        let point = |utilization, score| ShapePoint { utilization, score };
        Self { bind_timeout_seconds: 600, shape: vec![point(0, 10), point(100, 0)] }
    }
}

impl PluginArgs for Args {
    fn validate(&self, path: &Path) -> ErrorList {
        let (seconds, mut errors) = (self.bind_timeout_seconds, ErrorList::new());
        if seconds < 0 {
            let why = "invalid BindTimeoutSeconds, should not be a negative value";
            errors.push(Error::invalid(&path.child("bindTimeoutSeconds"), seconds, why));
        }
        errors.extend(shape_problems(&self.shape, &path.child("shape")));
        errors
    }
}

struct VolumeBinding {
    args: Args,
    binder: Arc<Binder>,
}

#[derive(Clone)]
struct Reachable {
    binder: Arc<Binder>,
    claims: PodClaims,
}

struct FreeStorage {
    on: Reachable,
    shape: Vec<ShapePoint>,
}

/// The result depends on the node's labels and name only.
impl NodeFilter for Reachable {
    fn check(&self, node: &NodeView) -> Status {
        self.binder.find(&self.claims, &node.row.node).err().unwrap_or(Status::SUCCESS)
    }

    fn boxed(&self) -> Box<dyn NodeFilter> {
        Box::new(self.clone())
    }
}

impl NodeScore for FreeStorage {
    fn score(&self, node: &NodeView) -> i64 {
        let found = self.on.binder.find(&self.on.claims, &node.row.node);
        found.map_or(0, |volumes| storage_score(&volumes, &self.shape))
    }
}

/// The mean over the storage classes of the utilization that the pod would cause. If volumes are bound, only these
/// count.
fn storage_score(volumes: &PodVolumes, shape: &[ShapePoint]) -> i64 {
    let value = |q: Option<Quantity>| q.map_or(0, |q| q.value());
    let mut classes: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    for (volume, claim) in &volumes.bindings {
        let (wanted, offered) = classes.entry(class_of_volume(volume)).or_default();
        *wanted = wanted.saturating_add(value(requested(claim)));
        *offered = offered.saturating_add(value(capacity(volume)));
    }
    if volumes.bindings.is_empty() {
        for (claim, capacity) in &volumes.provisions {
            let Some(capacity) = capacity else { continue };
            let free = capacity.capacity.as_ref().and_then(|q| Quantity::parse(&q.0).ok());
            let (wanted, offered) = classes.entry(class_of(claim)).or_default();
            *wanted = wanted.saturating_add(value(requested(claim)));
            *offered = value(free);
        }
    }
    if classes.is_empty() {
        return 0;
    }
    let percent = |wanted: i64, offered: i64| match offered {
        0 => 100,
        _ if wanted > offered => 100,
        _ => i64::try_from(i128::from(wanted) * 100 / i128::from(offered)).unwrap_or(100),
    };
    let sum: i64 =
        classes.values().map(|(wanted, offered)| broken_line(shape, percent(*wanted, *offered))).sum();
    (sum as f64 / classes.len() as f64).round() as i64
}

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const {
            const NEW_OR_CHANGED: Action = Action::ADD.or(Action::UPDATE);
            &[
                ClusterEvent::new(Resource::StorageClass, NEW_OR_CHANGED),
                ClusterEvent::new(Resource::PersistentVolumeClaim, NEW_OR_CHANGED),
                ClusterEvent::new(Resource::PersistentVolume, NEW_OR_CHANGED),
                ClusterEvent::new(Resource::Node, Action::ADD.or(Action::NODE_LABEL)),
                ClusterEvent::new(Resource::CsiNode, NEW_OR_CHANGED),
                ClusterEvent::new(Resource::CsiDriver, Action::UPDATE),
                ClusterEvent::new(Resource::CsiStorageCapacity, NEW_OR_CHANGED),
            ]
        }
    }

    fn hint(&self, pod: &PodInfo, happened: ClusterEvent, change: &Changed) -> bool {
        match happened.resource {
            Resource::PersistentVolumeClaim => {
                change.new::<PersistentVolumeClaim>().is_none_or(|claim| claims(pod, claim))
            }
            Resource::StorageClass => topologies_changed(change),
            Resource::CsiNode => migration_changed(change),
            Resource::CsiDriver => capacity_is_no_matter_any_more(pod, change),
            Resource::CsiStorageCapacity => capacity_grew(change),
            _ => true,
        }
    }
}

fn topologies_changed(change: &Changed) -> bool {
    match (change.old::<StorageClass>(), change.new::<StorageClass>()) {
        (Some(old), Some(new)) => old.allowed_topologies != new.allowed_topologies,
        _ => true,
    }
}

fn migration_changed(change: &Changed) -> bool {
    let migrated =
        |n: &CSINode| n.metadata.annotations.as_ref().and_then(|a| a.get(MIGRATED_PLUGINS).cloned());
    match (change.old::<CSINode>(), change.new::<CSINode>()) {
        (Some(old), Some(new)) => migrated(old) != migrated(new),
        _ => true,
    }
}

fn capacity_is_no_matter_any_more(pod: &PodInfo, change: &Changed) -> bool {
    let (Some(old), Some(new)) = (change.old::<CSIDriver>(), change.new::<CSIDriver>()) else { return true };
    let counts = |d: &CSIDriver| d.spec.storage_capacity == Some(true);
    let uses = volumes(pod.pod()).iter().any(|v| v.csi.as_ref().is_some_and(|c| c.driver == new.name()));
    uses && counts(old) && !counts(new)
}

fn capacity_grew(change: &Changed) -> bool {
    match (change.old::<CSIStorageCapacity>(), change.new::<CSIStorageCapacity>()) {
        (Some(old), Some(new)) => match (volume_limit(old), volume_limit(new)) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(old), Some(new)) => new.value() > old.value(),
        },
        _ => true,
    }
}

impl VolumeBinding {
    /// The version for [`Filter::version`]. Constant for pods without claims, so
    /// that their cached work stays valid.
    fn seen(&self, shape: &Shape) -> u64 {
        if shape.footprint.claims.is_empty() {
            return 0;
        }
        let catalog = &self.binder.catalog;
        catalog.version::<PersistentVolumeClaim>()
            + catalog.version::<PersistentVolume>()
            + catalog.version::<StorageClass>()
            + catalog.version::<CSIDriver>()
            + catalog.version::<CSIStorageCapacity>()
            + self.binder.claims.version()
            + self.binder.volumes.version()
    }
}

impl Filter for VolumeBinding {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn version(&self, _: &Snapshot, shape: &Shape) -> u64 {
        self.seen(shape)
    }

    fn pre_filter(&self, _: &Snapshot, shape: &Shape) -> PreFilter {
        match self.binder.check_claims(&shape.pod) {
            None => return PreFilter::Skip,
            Some(Err(why)) => return PreFilter::Reject(Status::unresolvable(why)),
            Some(Ok(())) => {}
        }
        match self.binder.pod_claims(&shape.pod) {
            Err(why) => PreFilter::Reject(Status::error(why)),
            Ok(claims) if claims.immediate => PreFilter::Reject(Status::unresolvable(IMMEDIATE)),
            Ok(claims) => PreFilter::check(Reachable { binder: Arc::clone(&self.binder), claims }),
        }
    }
}

impl Score for VolumeBinding {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn version(&self, _: &Snapshot, shape: &Shape) -> u64 {
        self.seen(shape)
    }

    fn pre_score(&self, _: &Snapshot, shape: &Shape) -> Option<Box<dyn NodeScore>> {
        let claims = self.binder.pod_claims(&shape.pod).ok().filter(|c| !c.delayed.is_empty())?;
        let on = Reachable { binder: Arc::clone(&self.binder), claims };
        Some(Box::new(FreeStorage { on, shape: self.args.shape.clone() }))
    }
}

impl Reserve for VolumeBinding {
    fn reserve(&self, state: &mut CycleState, cluster: &Snapshot, pod: &PodInfo, node: &str) -> Status {
        if pod.footprint().claims.is_empty() {
            return Status::SUCCESS;
        }
        let Some(row) = cluster.named(node) else { return Status::error(format!("node {node:?} not found")) };
        let claims = match self.binder.pod_claims(pod.pod()) {
            Ok(claims) => claims,
            Err(why) => return Status::error(why),
        };
        let volumes = match self.binder.find(&claims, &row.node) {
            Ok(volumes) => volumes,
            Err(status) => return status,
        };
        let decided = Decided::of(&volumes, node);
        if !decided.is_nothing() {
            decided.assume(&self.binder);
            state.write(decided);
        }
        Status::SUCCESS
    }

    fn unreserve(&self, state: &mut CycleState, _: &PodInfo, _: &str) {
        if let Some(decided) = state.read::<Decided>() {
            decided.restore(&self.binder);
        }
    }
}

#[async_trait]
impl PreBind for VolumeBinding {
    fn pre_flight(&self, state: &CycleState, _: &PodInfo, _: &str) -> Status {
        if state.read::<Decided>().is_some() { Status::SUCCESS } else { Status::SKIP }
    }

    async fn pre_bind(&self, client: &Client, state: &CycleState, pod: &PodInfo, node: &str) -> Status {
        let Some(decided) = state.read::<Decided>() else { return Status::SUCCESS };
        let mut written = decided.clone();
        if let Err(error) = written.write(client).await {
            return Status::error(error.to_string());
        }
        let patience = Duration::from_secs(self.args.bind_timeout_seconds.unsigned_abs());
        match written.wait(client, &self.binder, pod, node, patience).await {
            Ok(()) => {
                decided.restore(&self.binder);
                Status::SUCCESS
            }
            Err(error) => Status::error(error.to_string()),
        }
    }
}
