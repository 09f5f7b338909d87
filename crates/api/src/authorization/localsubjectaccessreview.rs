//! LocalSubjectAccessReview: may a user do this in this namespace?

use k8s_openapi::api::authorization::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};

use crate::authorization::attributes::{validate_question, validate_subject};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::{self, Resource};
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    verbs: resource::CREATE_ONLY,
    ..Resource::stored(api::LocalSubjectAccessReview::RESOURCE, "", "localsubjectaccessreview", &Rules)
};

struct Rules;

impl Strategy for Rules {
    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::LocalSubjectAccessReview>().map(|o| validate_review(&o)).unwrap_or_default()
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::path_segment(name, prefix)
    }
}

fn validate_review(review: &api::LocalSubjectAccessReview) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = &review.spec;
    let about_path = spec.non_resource_attributes.as_ref();
    validate_question(&mut errors, spec.resource_attributes.is_some(), about_path);
    validate_subject(&mut errors, spec.user.as_deref(), spec.groups.as_ref());
    let path = Path::new("spec.resourceAttributes.namespace");
    let namespace = review.metadata.namespace.as_deref().unwrap_or("");
    if let Some(resource) = &spec.resource_attributes {
        let asked = resource.namespace.as_deref().unwrap_or("");
        if asked != namespace {
            errors.push(Error::invalid(&path, asked, "must match metadata.namespace"));
        }
    }
    if let Some(path) = &spec.non_resource_attributes {
        let shown = crate::validate::shown(path);
        let problem = "disallowed on this kind of request";
        errors.push(Error::invalid(&Path::new("spec.nonResourceAttributes"), shown, problem));
    }
    errors
}
