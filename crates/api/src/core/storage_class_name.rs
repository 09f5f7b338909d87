//! The storage class of claims and volumes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The annotation for the class, from before there was a field.
pub const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// Returns the storage class; the annotation takes precedence over the field.
pub(crate) fn class<'a>(metadata: &'a ObjectMeta, field: Option<&'a str>) -> &'a str {
    let annotation = metadata.annotations.as_ref().and_then(|a| a.get(CLASS_ANNOTATION));
    annotation.map(String::as_str).or(field).unwrap_or("")
}
