//! RuntimeClass: a container runtime configuration, its overhead, and the nodes that support it.

use std::collections::BTreeSet;

use k8s_openapi::api::node::v1 as api;
use knarr_apimachinery::field::{ErrorList, Path};
use serde_json::Value;

use crate::core::pod::validation as pod;
use crate::core::pod::warnings::old_node_label;
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
    ..Resource::stored(api::RuntimeClass::RESOURCE, "RuntimeClassList", "runtimeclass", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Handler", "string", "The handler name in the container runtime's configuration."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::RuntimeClass>().unwrap_or_default();
    vec![
        Value::from(object.name()),
        Value::from(o.handler.as_str()),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::RuntimeClass>().map(|class| validate_class(&class)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let mut errors = self.validate(new);
        if let (Ok(new), Ok(old)) = (new.typed::<api::RuntimeClass>(), old.typed::<api::RuntimeClass>())
            && new.handler != old.handler
        {
            errors.push(validate::changed(&Path::new("handler")));
        }
        errors
    }

    fn warnings(&self, new: &Object, _: Option<&Object>) -> Vec<String> {
        let Ok(class) = new.typed::<api::RuntimeClass>() else { return Vec::new() };
        let selector = class.scheduling.clone().and_then(|s| s.node_selector).unwrap_or_default();
        let messages = selector.keys().filter_map(|key| old_node_label(key));
        messages.map(|message| format!("scheduling.nodeSelector: {message}")).collect()
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn validate_class(class: &api::RuntimeClass) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("handler");
    if validate::required(&mut errors, &path, &class.handler) {
        validate::dns_label(&mut errors, &path, &class.handler);
    }
    if let Some(fixed) = class.overhead.as_ref().and_then(|o| o.pod_fixed.as_ref()) {
        pod::limits_alone(&mut errors, &Path::new("overhead"), fixed);
    }
    let Some(scheduling) = &class.scheduling else { return errors };
    let path = Path::new("scheduling");
    validate::labels(&mut errors, &path.child("nodeSelector"), scheduling.node_selector.as_ref());
    let path = path.child("tolerations");
    let tolerations = scheduling.tolerations.as_deref().unwrap_or_default();
    pod::tolerations(&mut errors, &path, tolerations);
    let mut seen = BTreeSet::new();
    for (i, toleration) in tolerations.iter().enumerate() {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let fields = [&toleration.key, &toleration.operator, &toleration.value, &toleration.effect];
        let [key, operator, value, effect] = fields.map(text);
        // The message shows upstream's internal Go type.
        let shown = format!(
            r#"{{"Key":{},"Operator":{},"Value":{},"Effect":{},"TolerationSeconds":{}}}"#,
            Value::from(key.as_str()),
            Value::from(operator.as_str()),
            Value::from(value.as_str()),
            Value::from(effect.as_str()),
            validate::shown(&toleration.toleration_seconds)
        );
        if !seen.insert([key, operator, value, effect]) {
            errors.push(validate::duplicate_text(&path.index(i), &shown));
        }
    }
    errors
}
