//! Patch: JSON patch, merge patch, strategic merge patch and server-side apply.

use std::sync::Arc;

use knarr_api::object::Object;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::patch::{json_patch, merge_patch, strategic};
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::managed::{self, Change};
use super::options::{FieldValidation, WriteParams};
use super::served::Served;
use super::target::Target;
use super::update::{self, modify};
use super::{Request, create, metadata};
use crate::Registry;
use knarr_wire::input;

/// The patch formats, by media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Json,
    Merge,
    Strategic,
    Apply,
}

const MEDIA_TYPES: [&str; 5] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
    "application/apply-patch+cbor",
];

pub fn format(request: &Request, served: &Served) -> Result<Format, StatusError> {
    let custom = served.resource.custom().is_some();
    match input::content_type(&request.headers) {
        "application/json-patch+json" => Ok(Format::Json),
        "application/merge-patch+json" => Ok(Format::Merge),
        "application/strategic-merge-patch+json" if !custom => Ok(Format::Strategic),
        "application/apply-patch+yaml" => Ok(Format::Apply),
        _ if custom => {
            Err(StatusError::unsupported_media_type(&[MEDIA_TYPES[0], MEDIA_TYPES[1], MEDIA_TYPES[3]]))
        }
        _ => Err(unsupported()),
    }
}

/// Returns the answer of upstream's router to a patch of an unknown media type.
fn unsupported() -> StatusError {
    let mut error = StatusError::new(415, "UnsupportedMediaType", "415: Unsupported Media Type");
    error.0.details = Some(Default::default());
    error
}

/// Handles PATCH of an object or one of its subresources. The flag is true if an apply created the object.
pub async fn patch(
    registry: &Registry,
    request: &Request,
    served: &Served,
    params: &WriteParams,
) -> Result<(Arc<Object>, bool), StatusError> {
    let format = format(request, served)?;
    let info = &request.info;
    check_options(params, format)?;
    let subresource = (!info.subresource.is_empty()).then_some(info.subresource.as_str());
    let namespace = if served.resource.types.namespaced { info.namespace.as_str() } else { "" };
    let target = Target { namespace, name: &info.name, subresource };
    if format == Format::Apply {
        return apply(registry, request, served, params, target).await;
    }
    let mut body: Value = serde_json::from_slice(&request.body).map_err(|e| undecodable(format, &e))?;
    if format == Format::Strategic && body.is_null() {
        // A strategic merge patch of `null` changes nothing.
        body = Value::Object(serde_json::Map::new());
    }
    let change = |old: &Value| patched(request, served, params, format, &body, old);
    let object = modify(registry, request, served, params, target, Change::Update, &change).await?;
    Ok((object, false))
}

/// Returns the error for a patch that is not JSON, with the message of upstream's decoder for this format.
fn undecodable(format: Format, error: &serde_json::Error) -> StatusError {
    match format {
        Format::Merge | Format::Strategic => StatusError::bad_request("invalid JSON patch"),
        _ => StatusError::bad_request(format!("error decoding patch: {error}")),
    }
}

/// Refuses options that this patch format does not have.
pub fn check_options(params: &WriteParams, format: Format) -> Result<(), StatusError> {
    let mut errors = ErrorList::new();
    if format != Format::Apply && params.force.is_some() {
        let why = "may not be specified for non-apply patch";
        errors.push(Error::forbidden(&Path::new("force"), why));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(StatusError::invalid("meta.k8s.io", "PatchOptions", "", &errors))
}

/// Returns the object with the patch applied. The result is decoded again like a body.
pub fn patched(
    request: &Request,
    served: &Served,
    params: &WriteParams,
    format: Format,
    body: &Value,
    old: &Value,
) -> Result<Value, StatusError> {
    let mut new = match format {
        Format::Json => json_patch::apply(old, body)?,
        Format::Merge => {
            let mut new = old.clone();
            merge_patch::apply(&mut new, body.clone())?;
            new
        }
        Format::Strategic | Format::Apply => {
            let Some(schema) = served.schema else {
                return Err(StatusError::unsupported_media_type(&MEDIA_TYPES[..2]));
            };
            let mut new = old.clone();
            strategic::apply(&mut new, body.clone(), schema)?;
            new
        }
    };
    let text = serde_json::to_vec(&new).map_err(StatusError::internal)?;
    let disowned =
        new.pointer("/metadata/managedFields").and_then(Value::as_array).is_some_and(Vec::is_empty);
    let strict = params.field_validation == FieldValidation::Strict;
    let decoded = super::codec::decode_json(served, &text, strict)
        .map_err(|e| undecodable_result(format, body, &text, &e))?;
    if params.field_validation == FieldValidation::Warn {
        decoded.strict_errors.iter().for_each(|e| request.warn(e.clone()));
    }
    new = decoded.value;
    if disowned {
        // Decoding drops an empty list, but an empty managedFields has a meaning: it resets the field managers.
        knarr_api::prepare::metadata(&mut new).insert("managedFields".into(), Value::Array(Vec::new()));
    }
    let name = metadata::text(old, "name");
    update::match_name(&mut new, name)?;
    metadata::match_namespace(served, &mut new, metadata::text(old, "namespace"))?;
    Ok(new)
}

/// Returns 422 for a patch whose result does not decode into the object's type, as upstream does. The message names
/// the cause but not the object.
pub fn undecodable_result(format: Format, body: &Value, text: &[u8], error: &StatusError) -> StatusError {
    let shown = match format {
        Format::Strategic => go_text(body),
        _ => String::from_utf8_lossy(text).into_owned(),
    };
    let message = error.message();
    let why = message.split_once(": ").map_or(message, |(_, rest)| rest);
    let mut errors = ErrorList::new();
    errors.push(Error::invalid(&Path::new("patch"), shown.as_str(), why));
    StatusError::invalid("", "", "", &errors)
}

/// Formats a value as Go prints it: `map[a:1 b:[x y]]`.
fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(list) => format!("[{}]", list.iter().map(go_text).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let members: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", go_text(v))).collect();
            format!("map[{}]", members.join(" "))
        }
        other => other.to_string(),
    }
}

async fn apply(
    registry: &Registry,
    request: &Request,
    served: &Served,
    params: &WriteParams,
    target: Target<'_>,
) -> Result<(Arc<Object>, bool), StatusError> {
    let yaml = managed::decode_applied(request)?;
    let applied = &yaml.value;
    if params.field_validation == FieldValidation::Warn {
        yaml.repeated.iter().for_each(|r| request.warn(r.clone()));
    }
    {
        let mut named = applied.clone();
        if metadata::text(&named, "name").is_empty() {
            knarr_api::prepare::metadata(&mut named).insert("name".into(), target.name.into());
        }
        update::match_name(&mut named, target.name)?;
        metadata::match_namespace(served, &mut named, target.namespace)?;
    }
    let now = registry.clock.now();
    let params = &WriteParams { applied: true, ..params.clone() };
    let change = |old: &Value| {
        let new = managed::apply(served, Some(old), applied, target, params, now)?;
        managed::check_repeated(&yaml, params)?;
        Ok(new)
    };
    match modify(registry, request, served, params, target, Change::Apply, &change).await {
        Err(error) if error.is_not_found() && target.subresource.is_none() => {
            update::may_create(registry, request).await?;
            let uid = metadata::text(applied, "uid");
            if !uid.is_empty() {
                let why = format!(
                    "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                );
                return Err(StatusError::conflict(&served.group_resource(), target.name, &why));
            }
            let mut new = managed::apply(served, None, applied, target, params, now)?;
            managed::check_repeated(&yaml, params)?;
            update::match_name(&mut new, target.name)?;
            metadata::match_namespace(served, &mut new, target.namespace)?;
            Ok((create::create_value(registry, request, served, params, new).await?, true))
        }
        other => Ok((other?, false)),
    }
}
