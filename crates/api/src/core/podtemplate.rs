//! PodTemplate: a stored pod template.

use k8s_openapi::api::core::v1 as api;
use knarr_apimachinery::field::{ErrorList, Path};
use serde_json::Value;

use crate::core::pod::default_pod_spec;
use crate::defaults::child;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, NAME};

pub const RESOURCE: Resource = Resource {
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::PodTemplate::RESOURCE, "PodTemplateList", "podtemplate", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Containers", "string", "The names of the containers in the template."),
    Column::new("Images", "string", "The images of the containers in the template."),
    Column::new("Pod Labels", "string", "The labels of the template."),
];

fn cells(object: &Object, _: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::PodTemplate>().unwrap_or_default();
    let template = o.template.as_ref();
    let spec = template.and_then(|t| t.spec.as_ref());
    let [names, images] = table::containers(spec.map_or(&[], |s| &s.containers));
    let labels = template.and_then(|t| t.metadata.as_ref()).and_then(|m| m.labels.as_ref());
    vec![Value::from(object.name()), names, images, Value::from(table::labels(labels))]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let template = child(prepare::object(object), "template");
        default_pod_spec(child(template, "spec"));
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::set_generation(object, 1);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, _: Option<&str>) {
        prepare::bump_generation(new, old, &["/template"]);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::PodTemplate>().map(|o| validate_template(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, _: &Object, _: Option<&str>) -> ErrorList {
        self.validate(new)
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        let Ok(template) = new.typed::<api::PodTemplate>() else { return Vec::new() };
        let generation = template.metadata.generation;
        let before = old.and_then(|o| o.typed::<api::PodTemplate>().ok());
        if before.is_some_and(|b| b.metadata.generation == generation) {
            return Vec::new();
        }
        let template = template.template.clone().unwrap_or_default();
        crate::core::pod::template_warnings(&Path::new("template"), &template)
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn validate_template(o: &api::PodTemplate) -> ErrorList {
    let mut errors = ErrorList::new();
    let template = o.template.clone().unwrap_or_default();
    crate::core::pod::validation::template(&mut errors, &Path::new("template"), &template);
    errors
}
