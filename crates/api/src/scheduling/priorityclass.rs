//! PriorityClass: a name for a pod priority.

use k8s_openapi::api::scheduling::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use crate::defaults::unset;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    short_names: &["pc"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::PriorityClass::RESOURCE, "PriorityClassList", "priorityclass", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Value", "integer", "The priority value of the class."),
    Column::new(
        "Global-Default",
        "boolean",
        "Whether this is the default for pods without a priority class.",
    ),
    AGE,
    Column::wide("PreemptionPolicy", "string", "The policy for preempting pods with lower priority."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::PriorityClass>().unwrap_or_default();
    vec![
        Value::from(object.name()),
        table::count(o.value),
        Value::from(o.global_default.unwrap_or(false)),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
        Value::from(o.preemption_policy.as_deref().unwrap_or("")),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        unset(prepare::object(object), "preemptionPolicy", "PreemptLowerPriority");
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::set_generation(object, 1);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::PriorityClass>().map(|o| validate_class(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (new.typed::<api::PriorityClass>(), old.typed::<api::PriorityClass>())
        else {
            return ErrorList::new();
        };
        let mut errors = ErrorList::new();
        if new.value != old.value {
            errors.push(Error::forbidden(&Path::new("value"), "may not be changed in an update."));
        }
        let path = Path::new("preemptionPolicy");
        validate::immutable(&mut errors, &path, &new.preemption_policy, &old.preemption_policy);
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

/// The highest priority that users may define.
pub const HIGHEST_USER_PRIORITY: i32 = 1_000_000_000;
/// The built-in classes and their values.
pub const SYSTEM_CLASSES: &[(&str, i32)] =
    &[("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

fn validate_class(class: &api::PriorityClass) -> ErrorList {
    let mut errors = ErrorList::new();
    let name = class.metadata.name.as_deref().unwrap_or("");
    let value = class.value.unwrap_or(0);
    if name.starts_with("system-") {
        let problem = match SYSTEM_CLASSES.iter().find(|(known, _)| *known == name) {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, own)) if *own != value => Some(format!("value of {name} PriorityClass must be {own}")),
            Some(_) if class.global_default == Some(true) => {
                Some(format!("globalDefault of {name} PriorityClass must be false"))
            }
            Some(_) => None,
        };
        if let Some(problem) = problem {
            let why = format!(
                "priority class names with 'system-' prefix are reserved for system use only. error: {problem}"
            );
            errors.push(Error::forbidden(&Path::new("metadata").child("name"), why));
        }
    } else if value > HIGHEST_USER_PRIORITY {
        let why = format!("maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}");
        errors.push(Error::forbidden(&Path::new("value"), why));
    }
    if let Some(policy) = &class.preemption_policy {
        let policies = ["PreemptLowerPriority", "Never"];
        validate::one_of(&mut errors, &Path::new("preemptionPolicy"), policy, &policies);
    }
    errors
}
