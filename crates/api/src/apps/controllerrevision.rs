//! ControllerRevision: a recorded revision of a DaemonSet or StatefulSet.

use k8s_openapi::api::apps::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::ControllerRevision::RESOURCE,
        "ControllerRevisionList",
        "controllerrevision",
        &Rules,
    )
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Controller", "string", "The controller that owns the revision."),
    Column::new("Revision", "string", "The revision number."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::ControllerRevision>().unwrap_or_default();
    let owners = o.metadata.owner_references.as_deref().unwrap_or_default();
    let controller = owners.iter().find(|r| r.controller == Some(true));
    let controller = controller.map_or("<none>".to_owned(), |r| {
        let group = r.api_version.split_once('/').map_or(String::new(), |(group, _)| format!(".{group}"));
        format!("{}{group}/{}", r.kind.to_lowercase(), r.name)
    });
    vec![
        Value::from(object.name()),
        Value::from(controller),
        Value::from(o.revision.unwrap_or(0)),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::ControllerRevision>().map(|o| validate_revision(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) =
            (new.typed::<api::ControllerRevision>(), old.typed::<api::ControllerRevision>())
        else {
            return ErrorList::new();
        };
        let mut errors = ErrorList::new();
        validate::nonnegative(&mut errors, &Path::new("revision"), new.revision.unwrap_or(0));
        validate::immutable(&mut errors, &Path::new("data"), &new.data, &old.data);
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn validate_revision(revision: &api::ControllerRevision) -> ErrorList {
    let mut errors = ErrorList::new();
    validate::nonnegative(&mut errors, &Path::new("revision"), revision.revision.unwrap_or(0));
    let why = match &revision.data.0 {
        Value::Null => "data is mandatory",
        Value::Object(_) => return errors,
        _ => "data must be a valid JSON object",
    };
    errors.push(Error::required(&Path::new("data"), why));
    errors
}
