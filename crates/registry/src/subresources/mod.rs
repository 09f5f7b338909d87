//! Subresources that are parts of stored objects, or that write to them.

pub mod binding;
pub mod component_status;
pub mod eviction;
pub mod part;
pub mod scale;
mod scale_managers;

use knarr_apimachinery::gvk::GroupVersionKind;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::options::{FieldValidation, WriteParams};
use knarr_wire::input;
use knarr_wire::request::Request;

/// Decodes the body as this kind.
pub fn body_of(
    request: &Request,
    group: &str,
    version: &str,
    kind: &str,
    params: &WriteParams,
) -> Result<Value, StatusError> {
    let strict = params.field_validation == FieldValidation::Strict;
    let expected = GroupVersionKind::new(group, version, kind);
    let decoded = input::decode(&request.headers, &request.body, &expected, strict)?;
    if params.field_validation == FieldValidation::Warn {
        decoded.strict_errors.iter().for_each(|e| request.warn(e.clone()));
    }
    Ok(decoded.value)
}
