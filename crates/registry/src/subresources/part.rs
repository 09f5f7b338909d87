//! Subresources that return the whole object and write a part of it: status, finalize, ephemeralcontainers, resize.

use knarr_apimachinery::status::StatusError;

use crate::Registry;
use crate::options::{Version, WriteParams};
use crate::served::Served;
use crate::{list, patch, update};
use knarr_wire::output::Answer;
use knarr_wire::request::Request;

pub async fn answer(
    registry: &Registry,
    request: &Request,
    served: &Served,
    _name: &str,
) -> Result<Answer, StatusError> {
    let info = &request.info;
    let namespace = if served.resource.types.namespaced { info.namespace.as_str() } else { "" };
    let object = match info.verb.as_str() {
        "get" => list::get(registry, served, namespace, &info.name, Version::Unset).await?,
        "patch" => {
            let params = WriteParams::parse(request, "PatchOptions")?;
            patch::patch(registry, request, served, &params).await?.0
        }
        _ => {
            let params = WriteParams::parse(request, "UpdateOptions")?;
            update::update(registry, request, served, &params).await?.0
        }
    };
    Ok(served.answer(200, object))
}
