//! IngressClass: which controller implements an Ingress.

use k8s_openapi::api::networking::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use crate::defaults::{child, existing, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::IngressClass::RESOURCE, "IngressClassList", "ingressclass", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Controller", "string", "The controller that serves this class."),
    Column::new("Parameters", "string", "The resource with parameters for the controller."),
    AGE,
];

/// The annotation of the class for Ingresses that name none.
pub const DEFAULT_CLASS: &str = "ingressclass.kubernetes.io/is-default-class";

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::IngressClass>().unwrap_or_default();
    let default = o.metadata.annotations.as_ref().and_then(|a| a.get(DEFAULT_CLASS));
    let default = if default.is_some_and(|v| v == "true") { " (default)" } else { "" };
    let spec = o.spec.clone().unwrap_or_default();
    let parameters = spec.parameters.map_or("<none>".to_owned(), |p| {
        let group = p.api_group.map_or(String::new(), |group| format!(".{group}"));
        format!("{}{group}/{}", p.kind, p.name)
    });
    vec![
        Value::from(format!("{}{default}", object.name())),
        Value::from(spec.controller.unwrap_or_default()),
        Value::from(parameters),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let spec = child(prepare::object(object), "spec");
        if let Some(parameters) = existing(spec, "parameters") {
            unset(parameters, "scope", "Cluster");
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::set_generation(object, 1);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, _: Option<&str>) {
        prepare::bump_generation(new, old, &["/spec"]);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        let mut errors = ErrorList::new();
        if let Ok(class) = object.typed::<api::IngressClass>() {
            validate_spec(&mut errors, &class);
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (new.typed::<api::IngressClass>(), old.typed::<api::IngressClass>()) else {
            return ErrorList::new();
        };
        let controller =
            |class: &api::IngressClass| class.spec.clone().and_then(|s| s.controller).unwrap_or_default();
        let mut errors = ErrorList::new();
        let path = Path::new("spec").child("controller");
        validate::immutable(&mut errors, &path, &controller(&new), &controller(&old));
        validate_spec(&mut errors, &new);
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

const CONTROLLER_MAX: usize = 250;

fn validate_spec(errors: &mut ErrorList, class: &api::IngressClass) {
    let spec = class.spec.clone().unwrap_or_default();
    let path = Path::new("spec").child("controller");
    let controller = spec.controller.unwrap_or_default();
    if controller.len() > CONTROLLER_MAX {
        errors.push(Error::too_long(&path, CONTROLLER_MAX));
    }
    validate::domain_prefixed_path(errors, &path, &controller);
    let Some(parameters) = &spec.parameters else { return };
    let path = Path::new("spec").child("parameters");
    if let Some(group) = parameters.api_group.as_deref() {
        validate::dns_subdomain(errors, &path.child("apiGroup"), group);
    }
    for (field, value) in [("kind", &parameters.kind), ("name", &parameters.name)] {
        validate::path_segment(errors, &path.child(field), value);
    }
    let at = path.child("namespace");
    match (parameters.scope.as_deref(), parameters.namespace.as_deref()) {
        (None, _) => errors.push(Error::required(&path.child("scope"), "")),
        (Some("Namespace"), None) => {
            errors.push(Error::required(&at, "`parameters.scope` is set to 'Namespace'"));
        }
        (Some("Namespace"), Some(namespace)) => validate::dns_label(errors, &at, namespace),
        (Some("Cluster"), Some(_)) => {
            errors.push(Error::forbidden(&at, "`parameters.scope` is set to 'Cluster'"));
        }
        (Some("Cluster"), None) => {}
        (Some(other), _) => {
            let scopes = ["Cluster", "Namespace"];
            errors.push(validate::not_supported(&path.child("scope"), other, &scopes));
        }
    }
}
