//! The spec of a claim: in a claim, or in the template of a pod or StatefulSet.

use k8s_openapi::api::core::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::quantity::Quantity;

use crate::core::access_modes::validate_access_modes;
use crate::defaults::{Fields, unset};
use crate::validate;

/// Sets the defaults of a claim's spec.
pub fn default_spec(spec: &mut Fields) {
    unset(spec, "volumeMode", "Filesystem");
}

/// Validates a claim's spec.
pub fn validate_claim_spec(errors: &mut ErrorList, path: &Path, spec: &api::PersistentVolumeClaimSpec) {
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    if modes.is_empty() {
        let why = "at least 1 access mode is required";
        errors.push(Error::required(&path.child("accessModes"), why));
    }
    validate::label_selector(errors, &path.child("selector"), spec.selector.as_ref());
    validate_access_modes(errors, &path.child("accessModes"), modes);
    let at = path.child("resources").key("storage");
    let requests = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    match requests.and_then(|r| r.get("storage")).map(Quantity::try_from) {
        None => errors.push(Error::required(&at, "")),
        Some(Ok(size)) if size.signum() <= 0 => {
            errors.push(Error::invalid(&at, size.to_string(), "must be greater than zero"));
        }
        Some(_) => {}
    }
    let class_name = |errors: &mut ErrorList, field: &str, class: Option<&str>| {
        if let Some(class) = class.filter(|c| !c.is_empty()) {
            validate::dns_subdomain(errors, &path.child(field), class);
        }
    };
    class_name(errors, "storageClassName", spec.storage_class_name.as_deref());
    if let Some(mode) = &spec.volume_mode {
        validate::supported_value(errors, &path.child("volumeMode"), mode, &["Block", "Filesystem"]);
    }
    data_sources(errors, path, spec);
    class_name(errors, "volumeAttributesClassName", spec.volume_attributes_class_name.as_deref());
}

/// Validates the sources that a new volume is filled from: both fields must agree.
fn data_sources(errors: &mut ErrorList, path: &Path, spec: &api::PersistentVolumeClaimSpec) {
    let reference = |errors: &mut ErrorList, path: &Path, name: &str, kind: &str, group: Option<&str>| {
        validate::required(errors, &path.child("name"), name);
        validate::required(errors, &path.child("kind"), kind);
        let group = group.unwrap_or("");
        if group.is_empty() && kind != "PersistentVolumeClaim" {
            let problem = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.push(Error::invalid(path, kind, problem));
        }
        if !group.is_empty() {
            validate::dns_subdomain(errors, &path.child("apiGroup"), group);
        }
    };
    if let Some(s) = &spec.data_source {
        reference(errors, &path.child("dataSource"), &s.name, &s.kind, s.api_group.as_deref());
    }
    let Some(r) = &spec.data_source_ref else { return };
    let at = path.child("dataSourceRef");
    reference(errors, &at, &r.name, &r.kind, r.api_group.as_deref());
    let namespace = r.namespace.as_deref().unwrap_or("");
    if !namespace.is_empty() {
        validate::dns_label(errors, &at.child("namespace"), namespace);
    }
    let Some(s) = &spec.data_source else { return };
    let problem = if !namespace.is_empty() {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if (&s.name, &s.kind, &s.api_group) != (&r.name, &r.kind, &r.api_group) {
        "must match dataSourceRef"
    } else {
        return;
    };
    // Upstream shows a path in place of the value.
    errors.push(validate::invalid_text(path, "{}", problem));
}
