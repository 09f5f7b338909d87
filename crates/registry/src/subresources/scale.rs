//! `scale`: the replicas of a workload as an autoscaling/v1 Scale.

use knarr_api::scale;
use knarr_apimachinery::gvk::GroupVersionKind;
use knarr_apimachinery::patch::apply::{self as ssa, Manager};
use knarr_apimachinery::patch::{json_patch, merge_patch, strategic};
use knarr_apimachinery::schema::{self, validate};
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::{body_of, scale_managers};
use crate::Registry;
use crate::managed::{self, Change};
use crate::options::{Version, WriteParams};
use crate::patch::Format;
use crate::served::Served;
use crate::target::Target;
use crate::update::{self, modify};
use crate::{list, metadata, patch};
use knarr_wire::output::Answer;
use knarr_wire::request::Request;

pub async fn answer(registry: &Registry, request: &Request, served: &Served) -> Result<Answer, StatusError> {
    let info = &request.info;
    if info.verb == "get" {
        let object = list::get(registry, served, &info.namespace, &info.name, Version::Unset).await?;
        return shown(served, &object.json());
    }
    let target = Target { namespace: &info.namespace, name: &info.name, subresource: Some("scale") };
    let object = if info.verb == "patch" {
        let params = WriteParams::parse(request, "PatchOptions")?;
        let format = patch::format(request, served)?;
        patch::check_options(&params, format)?;
        if format == Format::Apply {
            return applied(registry, request, served, &params, target).await;
        }
        let body: Value = serde_json::from_slice(&request.body)
            .map_err(|e| StatusError::bad_request(format!("error decoding patch: {e}")))?;
        let change = |workload: &Value| {
            let wanted = patched(&scale_of(served, workload)?, &body, format)?;
            scaled(served, workload, &wanted)
        };
        modify(registry, request, served, &params, target, Change::Update, &change).await?
    } else {
        let params = WriteParams::parse(request, "UpdateOptions")?;
        let mut wanted = body_of(request, "autoscaling", "v1", "Scale", &params)?;
        update::match_name(&mut wanted, &info.name)?;
        metadata::match_namespace(served, &mut wanted, &info.namespace)?;
        let change = |workload: &Value| scaled(served, workload, &wanted);
        modify(registry, request, served, &params, target, Change::Update, &change).await?
    };
    shown(served, &object.json())
}

/// Returns the object as a Scale. For a custom resource, the definition has the path of its replicas.
fn scale_of(served: &Served, object: &Value) -> Result<Value, StatusError> {
    match served.resource.custom() {
        Some(custom) => custom.scale_of(object).map_err(StatusError::internal),
        None => Ok(scale::of(object)),
    }
}

/// Handles an apply to the Scale. The owners of its one field are recorded on the workload, too.
async fn applied(
    registry: &Registry,
    request: &Request,
    served: &Served,
    params: &WriteParams,
    target: Target<'_>,
) -> Result<Answer, StatusError> {
    let kind = GroupVersionKind::new("autoscaling", "v1", "Scale");
    let schema = schema::for_kind(&kind).ok_or_else(|| StatusError::internal("Scale has no schema"))?;
    let yaml = managed::decode_applied(request)?;
    managed::check_repeated(&yaml, params)?;
    let mut body = yaml.value;
    if metadata::text(&body, "name").is_empty() {
        knarr_api::prepare::metadata(&mut body).insert("name".into(), target.name.into());
    }
    update::match_name(&mut body, target.name)?;
    metadata::match_namespace(served, &mut body, target.namespace)?;
    let now = registry.clock.now();
    let change = |workload: &Value| {
        let mut live = scale_of(served, workload)?;
        live["metadata"]["managedFields"] = scale_managers::of_scale(workload).into();
        let manager = Manager {
            name: &params.field_manager,
            subresource: "scale",
            kind: &kind,
            schema: Some(schema),
            custom: None,
            reset: None,
            now,
        };
        let wanted = ssa::apply(Some(&live), &body, &manager, params.force.unwrap_or(false))?;
        let owners = wanted["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        let managed = scale_managers::of_workload(workload, &owners);
        let mut new = scaled(served, workload, &wanted)?;
        knarr_api::prepare::metadata(&mut new).insert("managedFields".into(), managed.into());
        Ok(new)
    };
    let params = &WriteParams { applied: true, ..params.clone() };
    let object = modify(registry, request, served, params, target, Change::Apply, &change).await?;
    shown(served, &object.json())
}

fn shown(served: &Served, json: &[u8]) -> Result<Answer, StatusError> {
    let workload: Value = serde_json::from_slice(json).map_err(StatusError::internal)?;
    Ok(Answer::Value { code: 200, value: scale_of(served, &workload)? })
}

fn patched(current: &Value, body: &Value, format: Format) -> Result<Value, StatusError> {
    let gvk = GroupVersionKind::new("autoscaling", "v1", "Scale");
    let mut new = current.clone();
    match format {
        Format::Json => new = json_patch::apply(current, body)?,
        Format::Merge => merge_patch::apply(&mut new, body.clone())?,
        Format::Strategic => {
            let schema =
                schema::for_kind(&gvk).ok_or_else(|| StatusError::internal("Scale has no schema"))?;
            strategic::apply(&mut new, body.clone(), schema)?;
        }
        Format::Apply => {
            return Err(StatusError::unsupported_media_type(&[
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/strategic-merge-patch+json",
            ]));
        }
    }
    let text = knarr_wire::output::to_json(&new);
    match validate::decode_request(&text, &gvk, false) {
        Ok(decoded) => Ok(decoded.value),
        Err(error) => Err(patch::undecodable_result(format, body, &text, &error)),
    }
}

fn scaled(served: &Served, workload: &Value, wanted: &Value) -> Result<Value, StatusError> {
    let errors = scale::validate(wanted);
    if !errors.is_empty() {
        return Err(StatusError::invalid("autoscaling", "Scale", metadata::text(wanted, "name"), &errors));
    }
    let uid = metadata::text(wanted, "uid");
    if !uid.is_empty() && uid != metadata::text(workload, "uid") {
        let existing = metadata::text(workload, "uid");
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {existing}");
        return Err(StatusError::conflict(&served.group_resource(), metadata::text(workload, "name"), &why));
    }
    let mut new = workload.clone();
    match served.resource.custom() {
        Some(custom) => custom.apply_scale(&mut new, wanted),
        None => scale::apply(&mut new, wanted),
    }
    Ok(new)
}
