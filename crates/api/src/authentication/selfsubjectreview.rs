//! SelfSubjectReview: who am I?

use k8s_openapi::api::authentication::v1 as api;

use crate::kind::Kind;
use crate::naming;
use crate::resource::{self, Resource};
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    verbs: resource::CREATE_ONLY,
    ..Resource::stored(api::SelfSubjectReview::RESOURCE, "", "selfsubjectreview", &Rules)
};

struct Rules;

impl Strategy for Rules {
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::path_segment(name, prefix)
    }
}
