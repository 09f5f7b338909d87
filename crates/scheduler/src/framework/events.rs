//! Cluster events: changes that may make an unschedulable pod schedulable, and the interest of plugins in them.

use std::any::Any;
use std::borrow::Cow;
use std::ops::BitOr;
use std::sync::Arc;

/// The kind of object that changed. There are three for pods: assigned, waiting, and the unschedulable pod itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    AssignedPod,
    UnscheduledPod,
    TargetPod,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    CsiNode,
    CsiDriver,
    VolumeAttachment,
    CsiStorageCapacity,
    StorageClass,
    ResourceClaim,
    ResourceSlice,
    DeviceClass,
    PodGroup,
    /// Any resource: retries by time and on request.
    Any,
}

/// A set of kinds of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Action(u32);

impl Action {
    pub const ADD: Self = Self(1);
    pub const DELETE: Self = Self(1 << 1);
    pub const NODE_ALLOCATABLE: Self = Self(1 << 2);
    pub const NODE_LABEL: Self = Self(1 << 3);
    /// Taints changed, or spec.unschedulable became false.
    pub const NODE_TAINT: Self = Self(1 << 4);
    pub const NODE_CONDITION: Self = Self(1 << 5);
    pub const NODE_ANNOTATION: Self = Self(1 << 6);
    pub const NODE_DECLARED_FEATURE: Self = Self(1 << 7);
    pub const POD_LABEL: Self = Self(1 << 8);
    pub const POD_SCALE_DOWN: Self = Self(1 << 9);
    pub const POD_SCALE_UP: Self = Self(1 << 10);
    pub const POD_TOLERATION: Self = Self(1 << 11);
    pub const POD_GATES_ELIMINATED: Self = Self(1 << 12);
    pub const POD_GENERATED_CLAIM: Self = Self(1 << 13);
    /// Every kind of update, of any resource.
    pub const UPDATE: Self = Self((1 << 14) - 4);
    pub const ALL: Self = Self((1 << 14) - 1);

    /// The union of both sets, for use in constants.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn label(self) -> &'static str {
        const NAMES: [(Action, &str); 16] = [
            (Action::ADD, "Add"),
            (Action::DELETE, "Delete"),
            (Action::NODE_ALLOCATABLE, "UpdateNodeAllocatable"),
            (Action::NODE_LABEL, "UpdateNodeLabel"),
            (Action::NODE_TAINT, "UpdateNodeTaint"),
            (Action::NODE_CONDITION, "UpdateNodeCondition"),
            (Action::NODE_ANNOTATION, "UpdateNodeAnnotation"),
            (Action::NODE_DECLARED_FEATURE, "UpdateNodeDeclaredFeature"),
            (Action::POD_LABEL, "UpdatePodLabel"),
            (Action::POD_SCALE_DOWN, "UpdatePodScaleDown"),
            (Action::POD_SCALE_UP, "UpdatePodScaleUp"),
            (Action::POD_TOLERATION, "UpdatePodToleration"),
            (Action::POD_GATES_ELIMINATED, "UpdatePodSchedulingGatesEliminated"),
            (Action::POD_GENERATED_CLAIM, "UpdatePodGeneratedResourceClaim"),
            (Action::UPDATE, "Update"),
            (Action::ALL, "All"),
        ];
        NAMES.iter().find(|(action, _)| *action == self).map_or("", |(_, name)| name)
    }

    /// Returns whether the sets have a kind of change in common.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Action {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A change, or the changes that a plugin is interested in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterEvent {
    pub resource: Resource,
    pub actions: Action,
}

impl ClusterEvent {
    /// Returns the event of these kinds of change to this resource.
    pub const fn new(resource: Resource, actions: Action) -> Self {
        Self { resource, actions }
    }

    /// Upstream's name of the event.
    pub fn label(self) -> Cow<'static, str> {
        let resource = match self.resource {
            Resource::CsiNode => "storage.k8s.io/CSINode".to_owned(),
            Resource::CsiDriver => "storage.k8s.io/CSIDriver".to_owned(),
            Resource::CsiStorageCapacity => "storage.k8s.io/CSIStorageCapacity".to_owned(),
            Resource::VolumeAttachment | Resource::StorageClass => {
                format!("storage.k8s.io/{:?}", self.resource)
            }
            Resource::ResourceClaim | Resource::ResourceSlice | Resource::DeviceClass => {
                format!("resource.k8s.io/{:?}", self.resource)
            }
            Resource::PodGroup => "scheduling.k8s.io/PodGroup".to_owned(),
            Resource::Any => "*".to_owned(),
            other => format!("{other:?}"),
        };
        format!("{resource}{}", self.actions.label()).into()
    }

    /// Returns whether this interest includes the event `happened`.
    pub fn covers(self, happened: Self) -> bool {
        self.resource == happened.resource && self.actions.intersects(happened.actions)
    }
}

/// An object before and after a change. A new object has no state before, a deleted one none after.
#[derive(Clone, Default)]
pub struct Changed {
    old: Option<Arc<dyn Any + Send + Sync>>,
    new: Option<Arc<dyn Any + Send + Sync>>,
}

impl Changed {
    /// Returns the change of an object from `old` to `new`.
    pub fn of<K: Any + Send + Sync>(old: Option<Arc<K>>, new: Option<Arc<K>>) -> Self {
        Self { old: old.map(|o| o as _), new: new.map(|n| n as _) }
    }

    /// The state before the change, if it is a `K`.
    pub fn old<K: Any>(&self) -> Option<&K> {
        self.old.as_deref().and_then(|o| (o as &dyn Any).downcast_ref())
    }

    /// The state after the change, if it is a `K`.
    #[expect(clippy::new_ret_no_self, reason = "returns the new state, counterpart of `old`")]
    pub fn new<K: Any>(&self) -> Option<&K> {
        self.new.as_deref().and_then(|n| (n as &dyn Any).downcast_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interests_cover_the_actions_they_name() {
        let interest = ClusterEvent::new(Resource::Node, Action::ADD | Action::NODE_LABEL);
        let happened = |resource, actions| interest.covers(ClusterEvent::new(resource, actions));
        assert!(happened(Resource::Node, Action::NODE_LABEL));
        assert!(!happened(Resource::Node, Action::NODE_TAINT));
        assert!(!happened(Resource::AssignedPod, Action::ADD));
        let label = |resource, actions| ClusterEvent::new(resource, actions).label();
        assert_eq!(label(Resource::Node, Action::NODE_LABEL), "NodeUpdateNodeLabel");
        assert_eq!(label(Resource::CsiNode, Action::ADD), "storage.k8s.io/CSINodeAdd");
        assert!(
            Action::UPDATE.intersects(Action::POD_GENERATED_CLAIM)
                && !Action::UPDATE.intersects(Action::DELETE)
        );
    }
}
