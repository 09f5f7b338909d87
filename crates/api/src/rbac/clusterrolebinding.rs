//! ClusterRoleBinding: who has a role in the cluster.

use k8s_openapi::api::rbac::v1 as api;

use crate::kind::Kind;
use crate::naming;
use crate::resource::Resource;
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    ..Resource::stored(
        api::ClusterRoleBinding::RESOURCE,
        "ClusterRoleBindingList",
        "clusterrolebinding",
        &Rules,
    )
};

struct Rules;

impl Strategy for Rules {
    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::path_segment(name, prefix)
    }
}
