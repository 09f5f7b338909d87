//! SubjectAccessReview: may a user do this?

use k8s_openapi::api::authorization::v1 as api;
use knarr_apimachinery::field::ErrorList;

use crate::authorization::attributes::{validate_question, validate_subject};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::{self, Resource};
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    verbs: resource::CREATE_ONLY,
    ..Resource::stored(api::SubjectAccessReview::RESOURCE, "", "subjectaccessreview", &Rules)
};

struct Rules;

impl Strategy for Rules {
    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::SubjectAccessReview>().map(|o| validate_review(&o)).unwrap_or_default()
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::path_segment(name, prefix)
    }
}

fn validate_review(review: &api::SubjectAccessReview) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = &review.spec;
    let about_path = spec.non_resource_attributes.as_ref();
    validate_question(&mut errors, spec.resource_attributes.is_some(), about_path);
    validate_subject(&mut errors, spec.user.as_deref(), spec.groups.as_ref());
    errors
}
