//! Subresources that show the whole object and write a part of it: status, finalize, ephemeralcontainers, resize.

use knarr_apimachinery::status::StatusError;

use crate::http::output::Answer;
use crate::registry::dispatch::object_answer;
use crate::registry::options::{Version, WriteParams};
use crate::registry::served::Served;
use crate::registry::{Request, list, patch, update};
use crate::server::Inner;

pub async fn answer(
    server: &Inner,
    request: &Request,
    served: &Served,
    _name: &str,
) -> Result<Answer, StatusError> {
    let info = &request.info;
    let namespace = if served.resource.types.namespaced { info.namespace.as_str() } else { "" };
    let object = match info.verb.as_str() {
        "get" => list::get(server, served, namespace, &info.name, Version::Unset).await?,
        "patch" => {
            let params = WriteParams::parse(request, "PatchOptions")?;
            patch::patch(server, request, served, &params).await?.0
        }
        _ => {
            let params = WriteParams::parse(request, "UpdateOptions")?;
            update::update(server, request, served, &params).await?.0
        }
    };
    Ok(object_answer(200, served, object))
}
