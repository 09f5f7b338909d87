//! Driver parameters, which the API server does not interpret.

use k8s_openapi::api::resource::v1 as api;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use super::identifiers;

pub const PARAMETERS_MAX_BYTES: usize = 10 * 1024;

pub fn validate(errors: &mut ErrorList, path: &Path, opaque: Option<&api::OpaqueDeviceConfiguration>) {
    let path = path.child("opaque");
    let Some(opaque) = opaque else {
        errors.push(Error::required(&path, ""));
        return;
    };
    identifiers::driver_of_any_case(errors, &path.child("driver"), &opaque.driver);
    parameters(errors, &path.child("parameters"), &opaque.parameters);
}

/// Requires a JSON object of limited length.
pub fn parameters(errors: &mut ErrorList, path: &Path, parameters: &RawExtension) {
    match &parameters.0 {
        Value::Null => errors.push(Error::required(path, "")),
        value if value.to_string().len() > PARAMETERS_MAX_BYTES => {
            errors.push(Error::too_long(path, PARAMETERS_MAX_BYTES));
        }
        Value::Object(_) => {}
        _ => errors.push(Error::invalid(path, "<value omitted>", "must be a valid JSON object")),
    }
}
