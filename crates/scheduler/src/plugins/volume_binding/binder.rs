//! What a pod's claims need on a node: bound volumes, volumes to bind, volumes to provision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};
use knarr_api::kind::Kind;

use super::assumed::Assumed;
use super::matching::{can_provision, enough, find_volume};
use crate::framework::{Catalog, Status};
use crate::plugins::claims::{
    Claimed, claimed, class_of, class_of_volume, is_fully_bound, no_claim, reaches, requested, selected_node,
    volume_name, waits_for_pod,
};

const BIND_CONFLICT: &str = "node(s) didn't find available persistent volumes to bind";
const NODE_CONFLICT: &str = "node(s) didn't match PersistentVolume's node affinity";
const NOT_ENOUGH_SPACE: &str = "node(s) did not have enough free storage";
const VOLUME_GONE: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

/// Claims and volumes: the informers' state, overlaid with assumed objects.
pub struct Binder {
    pub catalog: Arc<Catalog>,
    pub claims: Assumed<PersistentVolumeClaim>,
    pub volumes: Assumed<PersistentVolume>,
}

/// A pod's claims, sorted by what must still be done for them.
#[derive(Debug, Clone, Default)]
pub struct PodClaims {
    /// The volumes of the bound claims; `None` for a deleted volume.
    pub bound: Vec<Option<Arc<PersistentVolume>>>,
    /// The claims that wait for the pod's node.
    pub delayed: Vec<Arc<PersistentVolumeClaim>>,
    /// Whether a claim is unbound although it does not wait for the pod.
    pub immediate: bool,
    /// Volumes by the storage class of the delayed claims.
    volumes: BTreeMap<String, Vec<Arc<PersistentVolume>>>,
}

/// What must be done before the pod can be bound to a node.
#[derive(Debug, Clone, Default)]
pub struct PodVolumes {
    pub bindings: Vec<(Arc<PersistentVolume>, Arc<PersistentVolumeClaim>)>,
    /// Claims to provision, each with the storage capacity that is used, if the driver publishes it.
    pub provisions: Vec<(Arc<PersistentVolumeClaim>, Option<Arc<CSIStorageCapacity>>)>,
}

/// The results for a node; each can exclude it.
struct Verdicts {
    bound: bool,
    bindable: bool,
    space: bool,
    exist: bool,
}

impl Binder {
    pub fn new(catalog: &Arc<Catalog>) -> Self {
        Self { catalog: Arc::clone(catalog), claims: Assumed::default(), volumes: Assumed::default() }
    }

    /// Returns a claim, in its assumed state if there is one.
    pub fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.catalog.get(namespace, name).map(|claim| self.claims.over(claim))
    }

    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.catalog.get("", name).map(|volume| self.volumes.over(volume))
    }

    /// Checks whether the pod's claims allow it to be scheduled; `None` when it has no claims.
    pub fn check_claims(&self, pod: &Pod) -> Option<Result<(), String>> {
        let mut any = false;
        for wanted in claimed(pod) {
            any = true;
            if let Err(why) = self.check_claim(pod, &wanted) {
                return Some(Err(why));
            }
        }
        any.then_some(Ok(()))
    }

    fn check_claim(&self, pod: &Pod, wanted: &Claimed) -> Result<(), String> {
        let name = &wanted.name;
        let Some(claim) = self.catalog.get::<PersistentVolumeClaim>(pod.namespace(), name) else {
            return Err(if wanted.ephemeral {
                format!(
                    "waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}"
                )
            } else {
                no_claim(name)
            });
        };
        if claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost") {
            let volume = volume_name(&claim).unwrap_or_default();
            return Err(format!(
                "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
            ));
        }
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
        }
        wanted.foreign(pod, &claim).map_or(Ok(()), Err)
    }

    /// Sorts the pod's claims by what must still be done for them.
    pub fn pod_claims(&self, pod: &Pod) -> Result<PodClaims, String> {
        let mut sorted = PodClaims::default();
        for wanted in claimed(pod) {
            let Some(claim) = self.claim(pod.namespace(), &wanted.name) else {
                let key = format!("{}/{}", pod.namespace(), wanted.name);
                return Err(format!("error getting PVC {key:?}: {}", no_claim(&wanted.name)));
            };
            if let Some(why) = wanted.foreign(pod, &claim) {
                return Err(why);
            }
            if is_fully_bound(&claim) {
                sorted.bound.push(volume_name(&claim).and_then(|name| self.volume(name)));
            } else if waits_for_pod(&self.catalog, &claim)? && volume_name(&claim).is_none() {
                sorted.delayed.push(claim);
            } else {
                sorted.immediate = true;
            }
        }
        for claim in &sorted.delayed {
            sorted.volumes.entry(class_of(claim).to_owned()).or_default();
        }
        if !sorted.volumes.is_empty() {
            for volume in self.catalog.list::<PersistentVolume>(None) {
                if let Some(of_class) = sorted.volumes.get_mut(class_of_volume(&volume)) {
                    of_class.push(self.volumes.over(volume));
                }
            }
        }
        Ok(sorted)
    }

    /// Returns what the claims need on this node. The status says why they do not fit.
    pub fn find(&self, claims: &PodClaims, node: &Node) -> Result<PodVolumes, Status> {
        let mut verdicts = Verdicts { bound: true, bindable: true, space: true, exist: true };
        for volume in &claims.bound {
            match volume {
                None => verdicts.exist = false,
                Some(volume) => verdicts.bound = reaches(volume, node),
            }
            if !verdicts.bound || !verdicts.exist {
                break;
            }
        }
        let volumes = self.find_delayed(claims, node, &mut verdicts).map_err(Status::error)?;
        verdicts.status().map_or(Ok(volumes), Err)
    }

    fn find_delayed(
        &self,
        claims: &PodClaims,
        node: &Node,
        verdicts: &mut Verdicts,
    ) -> Result<PodVolumes, String> {
        let mut found = PodVolumes::default();
        let (mut to_provision, mut to_bind) = (Vec::new(), Vec::new());
        for claim in &claims.delayed {
            match selected_node(claim) {
                Some(selected) if selected != node.name() => {
                    verdicts.bindable = false;
                    return Ok(found);
                }
                Some(_) => to_provision.push(Arc::clone(claim)),
                None => to_bind.push(Arc::clone(claim)),
            }
        }
        // The smallest claim first, so that it does not take a large volume that only a later claim needs.
        to_bind.sort_by_key(|claim| requested(claim).map_or(0, |q| q.nanos()));
        let mut taken = BTreeSet::new();
        for claim in to_bind {
            let of_class = claims.volumes.get(class_of(&claim)).map_or(&[][..], Vec::as_slice);
            match find_volume(&claim, of_class, node, &taken)? {
                Some(volume) => {
                    taken.insert(volume.name().to_owned());
                    found.bindings.push((volume, claim));
                }
                None => to_provision.push(claim),
            }
        }
        for claim in to_provision {
            let Some(capacity) = self.provision(&claim, node, verdicts)? else { return Ok(found) };
            found.provisions.push((claim, capacity));
        }
        Ok(found)
    }

    /// Checks whether a volume can be provisioned. Returns the storage capacity that is used, if the driver publishes
    /// it; `None` if it cannot be provisioned.
    fn provision(
        &self,
        claim: &PersistentVolumeClaim,
        node: &Node,
        verdicts: &mut Verdicts,
    ) -> Result<Option<Option<Arc<CSIStorageCapacity>>>, String> {
        let name = class_of(claim);
        if name.is_empty() {
            return Err(format!("no class for claim \"{}/{}\"", claim.namespace(), claim.name()));
        }
        let Some(class) = self.catalog.get::<StorageClass>("", name) else {
            return Err(format!("failed to find storage class {name:?}"));
        };
        if !can_provision(&class, node) {
            verdicts.bindable = false;
            return Ok(None);
        }
        let Some(size) = requested(claim) else { return Ok(Some(None)) };
        let driver = self.catalog.get::<CSIDriver>("", &class.provisioner);
        if driver.is_none_or(|d| d.spec.storage_capacity != Some(true)) {
            return Ok(Some(None));
        }
        let capacities = self.catalog.list::<CSIStorageCapacity>(None);
        match enough(&capacities, name, &size, node) {
            Some(capacity) => Ok(Some(Some(Arc::clone(capacity)))),
            None => {
                verdicts.space = false;
                Ok(None)
            }
        }
    }
}

impl Verdicts {
    fn status(&self) -> Option<Status> {
        let all = [
            (self.bound, NODE_CONFLICT),
            (self.bindable, BIND_CONFLICT),
            (self.space, NOT_ENOUGH_SPACE),
            (self.exist, VOLUME_GONE),
        ];
        let against = all.into_iter().filter(|(good, _)| !good).map(|(_, reason)| reason);
        against.fold(None, |status, reason| match status {
            None => Some(Status::unresolvable(reason)),
            Some(mut status) => {
                status.reasons.push(reason.into());
                Some(status)
            }
        })
    }
}
