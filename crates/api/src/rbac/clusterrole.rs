//! ClusterRole: permissions in the whole cluster.

use k8s_openapi::api::rbac::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};

use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::rbac::rules::validate_rules;
use crate::resource::Resource;
use crate::strategy::Strategy;
use crate::validate;

pub const RESOURCE: Resource =
    Resource { ..Resource::stored(api::ClusterRole::RESOURCE, "ClusterRoleList", "clusterrole", &Rules) };

struct Rules;

impl Strategy for Rules {
    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::ClusterRole>().map(|o| validate_role(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, _: &Object, _: Option<&str>) -> ErrorList {
        self.validate(new)
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::path_segment(name, prefix)
    }
}

fn validate_role(role: &api::ClusterRole) -> ErrorList {
    let mut errors = validate_rules(role.rules.as_deref().unwrap_or_default(), false);
    if let Some(aggregation) = &role.aggregation_rule {
        let path = Path::new("aggregationRule").child("clusterRoleSelectors");
        let selectors = aggregation.cluster_role_selectors.as_deref().unwrap_or_default();
        if selectors.is_empty() {
            let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
            errors.push(Error::required(&path, why));
        }
        for (i, selector) in selectors.iter().enumerate() {
            validate::label_selector(&mut errors, &path.index(i), Some(selector));
        }
    }
    errors
}
