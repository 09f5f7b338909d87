//! PodDisruptionBudget: how many pods of a set may be away at once.

use k8s_openapi::api::policy::v1 as api;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::prepare;
use crate::resource::{self, Resource};
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    short_names: &["pdb"],
    subresources: &[resource::STATUS],
    ..Resource::stored(
        api::PodDisruptionBudget::RESOURCE,
        "PodDisruptionBudgetList",
        "poddisruptionbudget",
        &Rules,
    )
};

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_generation(new, old, subresource);
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
