//! ClusterTrustBundle: certificate authorities that can be projected into pods.

use k8s_openapi::api::certificates::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use super::trust::trust_anchors;
use super::validation::signer_name;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    selectable: &["spec.signerName"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::ClusterTrustBundle::RESOURCE,
        "ClusterTrustBundleList",
        "clustertrustbundle",
        &Rules,
    )
};

const COLUMNS: &[Column] =
    &[NAME, Column::new("SignerName", "string", "The signer associated with the trust bundle.")];

fn cells(object: &Object, _: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::ClusterTrustBundle>().unwrap_or_default();
    let signer = o.spec.signer_name.as_deref().unwrap_or("");
    vec![Value::from(object.name()), table::or_none(signer)]
}

struct Rules;

impl Strategy for Rules {
    fn validate(&self, object: &Object) -> ErrorList {
        let Ok(o) = object.typed::<api::ClusterTrustBundle>() else { return ErrorList::new() };
        let mut errors = validate_own(&o);
        trust_anchors(&mut errors, &Path::new("spec").child("trustBundle"), &o.spec.trust_bundle);
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let kind = (new.typed::<api::ClusterTrustBundle>(), old.typed::<api::ClusterTrustBundle>());
        let (Ok(new), Ok(old)) = kind else { return ErrorList::new() };
        let mut errors = validate_own(&new);
        let (path, new, old) = (Path::new("spec"), &new.spec, &old.spec);
        if new.trust_bundle != old.trust_bundle {
            trust_anchors(&mut errors, &path.child("trustBundle"), &new.trust_bundle);
        }
        validate::immutable(&mut errors, &path.child("signerName"), &new.signer_name, &old.signer_name);
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::path_segment(name, prefix)
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }
}

/// Validates a bundle; its name begins with the signer's name, with colons for slashes.
fn validate_own(bundle: &api::ClusterTrustBundle) -> ErrorList {
    let mut errors = ErrorList::new();
    let signer = bundle.spec.signer_name.as_deref().unwrap_or("");
    let name = bundle.metadata.name.as_deref().unwrap_or("");
    let (path, prefix) = (Path::new("metadata").child("name"), format!("{}:", signer.replace('/', ":")));
    if signer.is_empty() {
        if name.contains(':') {
            let problem = "ClusterTrustBundle without signer name must not have \":\" in its name";
            errors.push(Error::invalid(&path, name, problem));
        }
    } else {
        match name.strip_prefix(&prefix) {
            None => {
                let shown = Value::from(prefix);
                let problem = format!(
                    "ClusterTrustBundle for signerName {signer} must be named with prefix {}",
                    shown.as_str().unwrap_or("")
                );
                errors.push(Error::invalid(&path, name, problem));
            }
            Some(rest) => validate::problems(&mut errors, &path, name, naming::subdomain(rest, false)),
        }
        signer_name(&mut errors, &Path::new("spec").child("signerName"), signer);
    }
    errors
}
