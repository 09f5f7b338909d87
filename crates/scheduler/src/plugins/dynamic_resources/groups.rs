//! Pod groups with claims: deallocates the claims of the waiting pods of an unschedulable group.

use k8s_openapi::api::core::v1::Node;

use super::DynamicResources;
use crate::framework::{GroupAttempt, GroupRoom, GroupTrial, PodGroupPostFilter, Status};

impl PodGroupPostFilter for DynamicResources {
    fn pod_group_post_filter(
        &self,
        attempt: &GroupAttempt,
        trial: &mut dyn GroupTrial,
    ) -> Result<GroupRoom, Status> {
        let cluster = trial.cluster();
        let with_claims = |p: &&std::sync::Arc<crate::framework::PodInfo>| {
            p.spec().is_some_and(|s| s.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()))
        };
        let mut nodes: Vec<&Node> = Vec::new();
        for pod in attempt.pods.iter().filter(with_claims) {
            if nodes.is_empty() {
                nodes = cluster.live().iter().map(|at| &*cluster.row(at).node).collect();
            }
            self.give_back(pod, &nodes);
        }
        Err(Status::unschedulable("deallocation and deletion of ResourceClaims completed"))
    }
}
