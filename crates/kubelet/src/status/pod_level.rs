//! The pod-level resources in the status: the allocated ones, and those of the pod's cgroup.
//!
//! Source: `convertToAPIPodLevelResourcesStatus` of `k8s.io/kubernetes/pkg/kubelet/kubelet_pods.go`, KEP-5419.

use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceRequirements};

use super::Input;
use crate::pod;
use crate::resources::{Amounts, amounts, is_limited, pod_limits, pod_requests, quantities};

/// Sets `allocatedResources` and `resources` of a status whose phase is set.
pub(super) fn fill(status: &mut PodStatus, input: &Input<'_>) {
    let given = pod_requests(input.pod);
    status.allocated_resources = (!given.is_empty()).then(|| quantities(&given));
    let runs = |status: &PodStatus| status.phase.as_deref() == Some("Running");
    let resizes = input.resize.iter().any(|c| c.type_ == "PodResizeInProgress");
    let before = input.old.resources.as_ref().filter(|_| runs(input.old) && runs(status) && resizes);
    status.resources = Some(match before {
        // Until a resize has been actuated, the pod keeps its earlier resources.
        Some(before) => before.clone(),
        None if runs(status) => of_cgroup(input.pod, &given),
        None => requirements(&given, &pod_limits(input.pod)),
    });
}

/// Returns the resources in the cgroup of a pod with these allocated requests, and the other ones of its pod-level
/// spec.
fn of_cgroup(pod: &Pod, given: &Amounts) -> ResourceRequirements {
    let own = pod::spec(pod).resources.clone().unwrap_or_default();
    let (mut requests, mut limits) = (amounts(own.requests.as_ref()), amounts(own.limits.as_ref()));
    let sum = pod_limits(pod);
    for name in ["cpu", "memory"] {
        if let Some(amount) = given.get(name) {
            requests.insert(name.to_owned(), *amount);
        }
        if let Some(amount) = sum.get(name).filter(|_| is_limited(pod, name)) {
            limits.insert(name.to_owned(), *amount);
        }
    }
    requirements(&requests, &limits)
}

fn requirements(requests: &Amounts, limits: &Amounts) -> ResourceRequirements {
    let list = |amounts: &Amounts| (!amounts.is_empty()).then(|| quantities(amounts));
    ResourceRequirements { claims: None, limits: list(limits), requests: list(requests) }
}
