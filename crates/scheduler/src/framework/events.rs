//! Changes in the cluster that may let a turned-down pod fit, and who wants to hear of which.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};

/// What happened. Plugins name those that can undo a rejection of theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClusterEvent {
    NodeAdd,
    NodeDelete,
    NodeAllocatableUpdate,
    NodeLabelUpdate,
    NodeTaintUpdate,
    NodeConditionUpdate,
    NodeAnnotationUpdate,
    AssignedPodAdd,
    AssignedPodUpdate,
    AssignedPodDelete,
    /// The waiting pod itself changed.
    UnscheduledPodUpdate,
    /// Enough time has passed to try again whatever happened.
    Timeout,
    /// The scheduler asks for a retry itself, after a failed binding.
    ForceActivate,
}

/// The object that changed; `old` is missing for what is new, `new` for what is gone.
#[derive(Debug, Clone)]
pub enum EventObject {
    Node { old: Option<Arc<Node>>, new: Option<Arc<Node>> },
    Pod { old: Option<Arc<Pod>>, new: Option<Arc<Pod>> },
    Nothing,
}

/// Whether this change can let the pod fit, as far as one plugin can tell. Cheap, and rather yes than no.
pub type Hint = fn(pod: &Pod, change: &EventObject) -> bool;

/// A plugin's interest in one event.
#[derive(Debug, Clone, Copy)]
pub struct Interest {
    pub event: ClusterEvent,
    pub hint: Hint,
}

impl Interest {
    /// Every such event may help.
    pub const fn always(event: ClusterEvent) -> Self {
        Self { event, hint: |_, _| true }
    }

    pub const fn when(event: ClusterEvent, hint: Hint) -> Self {
        Self { event, hint }
    }
}
