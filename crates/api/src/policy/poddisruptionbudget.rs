//! PodDisruptionBudget: limits how many pods of a set may be disrupted at once.

use k8s_openapi::api::policy::v1 as api;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_apimachinery::field::{ErrorList, Path};
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    short_names: &["pdb"],
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::PodDisruptionBudget::RESOURCE,
        "PodDisruptionBudgetList",
        "poddisruptionbudget",
        &Rules,
    )
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Min Available", "string", "The minimum number of available pods."),
    Column::new("Max Unavailable", "string", "The maximum number of unavailable pods."),
    Column::new(
        "Allowed Disruptions",
        "integer",
        "The number of pod disruptions that are currently allowed.",
    ),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::PodDisruptionBudget>().unwrap_or_default();
    let shown = |bound: Option<&IntOrString>| match bound {
        None => Value::from("N/A"),
        Some(IntOrString::Int(n)) => Value::from(n.to_string()),
        Some(IntOrString::String(s)) => Value::from(s.as_str()),
    };
    let spec = o.spec.as_ref();
    vec![
        Value::from(object.name()),
        shown(spec.and_then(|s| s.min_available.as_ref())),
        shown(spec.and_then(|s| s.max_unavailable.as_ref())),
        table::count(o.status.as_ref().and_then(|s| s.disruptions_allowed)),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_generation(new, old, subresource);
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::PodDisruptionBudget>().map(|o| validate_budget(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, _: &Object, subresource: Option<&str>) -> ErrorList {
        let Ok(budget) = new.typed::<api::PodDisruptionBudget>() else { return ErrorList::new() };
        match subresource {
            Some("status") => validate_status(&budget),
            _ => validate_budget(&budget),
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        // No other names are derived from it, so that any path segment will do.
        naming::path_segment(name, prefix)
    }
}

fn validate_budget(budget: &api::PodDisruptionBudget) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = budget.spec.clone().unwrap_or_default();
    let path = Path::new("spec");
    if spec.min_available.is_some() && spec.max_unavailable.is_some() {
        // The message shows upstream's internal Go type.
        let selector = spec.selector.as_ref().map_or("null".to_owned(), validate::selector_text);
        let text = format!(
            r#"{{"MinAvailable":{},"Selector":{selector},"MaxUnavailable":{},"UnhealthyPodEvictionPolicy":{}}}"#,
            validate::shown(&spec.min_available),
            validate::shown(&spec.max_unavailable),
            validate::shown(&spec.unhealthy_pod_eviction_policy)
        );
        let problem = "minAvailable and maxUnavailable cannot be both set";
        errors.push(validate::invalid_text(&path, &text, problem));
    }
    for (field, bound) in [("minAvailable", &spec.min_available), ("maxUnavailable", &spec.max_unavailable)] {
        if let Some(bound) = bound {
            validate::int_or_percent(&mut errors, &path.child(field), bound);
            validate::at_most_100_percent(&mut errors, &path.child(field), bound);
        }
    }
    validate::label_selector(&mut errors, &path.child("selector"), spec.selector.as_ref());
    if let Some(policy) = &spec.unhealthy_pod_eviction_policy {
        let policies = ["AlwaysAllow", "IfHealthyBudget"];
        let path = path.child("unhealthyPodEvictionPolicy");
        validate::supported_value(&mut errors, &path, policy, &policies);
    }
    errors
}

fn validate_status(budget: &api::PodDisruptionBudget) -> ErrorList {
    let mut errors = ErrorList::new();
    let status = budget.status.clone().unwrap_or_default();
    for (field, n) in [
        ("disruptionsAllowed", status.disruptions_allowed),
        ("currentHealthy", status.current_healthy),
        ("desiredHealthy", status.desired_healthy),
        ("expectedPods", status.expected_pods),
    ] {
        let n = i64::from(n.unwrap_or(0));
        validate::nonnegative(&mut errors, &Path::new("status").child(field), n);
    }
    errors
}
