//! Where claims and volumes name their storage class.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Where the class of claims and volumes stood before it had a field.
pub const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// The storage class; the old annotation goes before the field.
pub(crate) fn class<'a>(metadata: &'a ObjectMeta, field: Option<&'a str>) -> &'a str {
    let annotation = metadata.annotations.as_ref().and_then(|a| a.get(CLASS_ANNOTATION));
    annotation.map(String::as_str).or(field).unwrap_or("")
}
