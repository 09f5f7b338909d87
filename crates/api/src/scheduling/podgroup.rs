//! PodGroup: pods that are scheduled together.

use k8s_openapi::api::scheduling::v1beta1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::{Value, json};

use super::groups::{Group, validate_group};
use crate::conditions;
use crate::defaults;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::PodGroup::RESOURCE, "PodGroupList", "podgroup", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Policy", "string", "The scheduling policy of the pod group."),
    Column::new("Workload", "string", "The workload that the pod group belongs to."),
    Column::new("Status", "string", "The scheduling status of the pod group."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::PodGroup>().unwrap_or_default();
    let conditions: Vec<_> = o.status.iter().flat_map(|s| s.conditions.iter().flatten()).collect();
    let last = |type_: &str| conditions.iter().rfind(|c| c.type_ == type_);
    let status = match (last("DisruptionTarget"), last("PodGroupInitiallyScheduled")) {
        (Some(condition), _) => condition.reason.as_str(),
        (None, Some(condition)) if condition.status == "True" => "Scheduled",
        (None, Some(_)) => "Unschedulable",
        (None, None) => "Pending",
    };
    let policy = if o.spec.scheduling_policy.gang.is_some() { "Gang" } else { "Basic" };
    vec![
        Value::from(object.name()),
        Value::from(policy),
        Value::from(o.spec.workload_ref.as_ref().map_or("<none>", |r| r.workload_name.as_str())),
        Value::from(status),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let spec = defaults::child(prepare::object(object), "spec");
        defaults::unset(spec, "disruptionMode", json!({"single": {}}));
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::clear(object, "status");
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
        if subresource == Some("status") {
            prepare::keep_metadata_for_status(new, old);
        }
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::PodGroup>().map(|o| validate_spec(&o.spec)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (new.typed::<api::PodGroup>(), old.typed::<api::PodGroup>()) else {
            return ErrorList::new();
        };
        match subresource {
            Some("status") => validate_status(&new),
            _ => validate_change(&new.spec, &old.spec),
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }
}

fn validate_spec(spec: &api::PodGroupSpec) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("spec");
    if spec.disruption_mode.is_none() {
        errors.push(Error::required(&path.child("disruptionMode"), ""));
    }
    validate_group(&mut errors, &path, &Group::from(spec));
    errors
}

/// Validates an update: only the number of pods that a gang needs may change.
fn validate_change(new: &api::PodGroupSpec, old: &api::PodGroupSpec) -> ErrorList {
    let mut errors = validate_spec(new);
    let path = Path::new("spec");
    validate::immutable(&mut errors, &path.child("workloadRef"), &new.workload_ref, &old.workload_ref);
    let at = path.child("disruptionMode");
    validate::immutable(&mut errors, &at, &new.disruption_mode, &old.disruption_mode);
    let at = path.child("priorityClassName");
    validate::immutable(&mut errors, &at, &new.priority_class_name, &old.priority_class_name);
    validate::immutable(&mut errors, &path.child("priority"), &new.priority, &old.priority);
    let at = path.child("schedulingPolicy");
    let (now, before) = (&new.scheduling_policy, &old.scheduling_policy);
    validate::immutable(&mut errors, &at.child("basic"), &now.basic, &before.basic);
    match (&now.gang, &before.gang) {
        (Some(_), None) => {
            errors.push(Error::invalid(
                &at.child("gang"),
                validate::shown(&now.gang),
                "field cannot be set once created",
            ));
        }
        (None, Some(_)) => {
            errors.push(Error::invalid(&at.child("gang"), Value::Null, "field cannot be cleared once set"));
        }
        _ => {}
    }
    errors
}

fn validate_status(group: &api::PodGroup) -> ErrorList {
    let mut errors = ErrorList::new();
    let listed = group.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    conditions::validate(&mut errors, &Path::new("status").child("conditions"), listed);
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_leave_one_by_one_unless_the_group_says_otherwise() {
        for (given, expected) in [
            (json!({}), json!({"single": {}})),
            (json!({"disruptionMode": null}), json!({"single": {}})),
            (json!({"disruptionMode": {"all": {}}}), json!({"all": {}})),
        ] {
            let mut object = json!({"metadata": {"name": "g"}, "spec": given});
            Rules.default(&mut object);
            assert_eq!(object["spec"]["disruptionMode"], expected);
        }
    }
}
