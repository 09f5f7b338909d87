//! DaemonSet: one pod on every matching node.

use k8s_openapi::api::apps::v1 as api;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::selector::Selector;
use serde_json::Value;

use crate::apps::validation;
use crate::core::pod::default_template;
use crate::defaults::{blank, child, text, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

/// The annotation that counts changes of the template, for the controller.
pub const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn template_generation(set: &Value) -> i64 {
    let annotations = set.pointer("/metadata/annotations");
    let text = annotations.and_then(|a| a.get(TEMPLATE_GENERATION)).and_then(Value::as_str);
    text.and_then(|t| t.parse().ok()).unwrap_or(0)
}

fn set_template_generation(set: &mut Value, generation: i64) {
    let annotations = prepare::metadata(set).entry("annotations").or_insert(Value::Null);
    let text = Value::from(generation.to_string());
    prepare::object(annotations).insert(TEMPLATE_GENERATION.to_owned(), text);
}

pub const RESOURCE: Resource = Resource {
    short_names: &["ds"],
    categories: &["all"],
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::DaemonSet::RESOURCE, "DaemonSetList", "daemonset", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Desired", "integer", "The number of nodes that should run the daemon pod."),
    Column::new("Current", "integer", "The number of nodes that run the daemon pod."),
    Column::new("Ready", "integer", "The number of nodes on which the daemon pod is ready."),
    Column::new("Up-to-date", "integer", "The number of nodes that run the updated daemon pod."),
    Column::new("Available", "integer", "The number of nodes on which the daemon pod is available."),
    Column::new("Node Selector", "string", "The node labels that the daemon pod requires."),
    AGE,
    Column::wide("Containers", "string", "The names of the containers in the template."),
    Column::wide("Images", "string", "The images of the containers in the template."),
    Column::wide("Selector", "string", "The label selector for the pods."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::DaemonSet>().unwrap_or_default();
    let spec = Some(&o.spec);
    let status = o.status.clone().unwrap_or_default();
    let template = spec.and_then(|s| s.template.spec.as_ref());
    let [names, images] = table::containers(template.map_or(&[], |s| &s.containers));
    vec![
        Value::from(object.name()),
        Value::from(status.desired_number_scheduled),
        Value::from(status.current_number_scheduled),
        Value::from(status.number_ready),
        table::count(status.updated_number_scheduled),
        table::count(status.number_available),
        Value::from(table::labels(template.and_then(|s| s.node_selector.as_ref()))),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
        names,
        images,
        Value::from(table::selector(spec.map(|s| &s.selector))),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        default_template(object);
        let spec = child(prepare::object(object), "spec");
        let strategy = child(spec, "updateStrategy");
        blank(strategy, "type", "RollingUpdate");
        if text(strategy, "type") == "RollingUpdate" {
            let rolling = child(strategy, "rollingUpdate");
            unset(rolling, "maxUnavailable", 1);
            unset(rolling, "maxSurge", 0);
        }
        unset(spec, "revisionHistoryLimit", 10);
        // Set before field ownership is calculated, so that no manager appears to add it.
        if object.pointer("/metadata/annotations").and_then(|a| a.get(TEMPLATE_GENERATION)).is_none() {
            set_template_generation(object, 0);
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
        let generation = template_generation(object).max(1);
        set_template_generation(object, generation);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        if subresource == Some("status") {
            set_template_generation(new, template_generation(old));
        } else {
            let before = template_generation(old);
            let pointer = "/spec/template";
            let changed = !prepare::same(new.pointer(pointer), old.pointer(pointer));
            set_template_generation(new, if changed { before + 1 } else { before });
        }
        prepare::update_with_generation(new, old, subresource);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::DaemonSet>().map(|o| validate_spec(object, &o)).unwrap_or_default()
    }

    fn validate_update(&self, object: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (object.typed::<api::DaemonSet>(), old.typed::<api::DaemonSet>()) else {
            return ErrorList::new();
        };
        match subresource {
            Some("status") => validate_status(&new, &old),
            _ => {
                let mut errors = validate_spec(object, &new);
                validation::selector_stays(&mut errors, object, &new.spec.selector, &old.spec.selector);
                errors
            }
        }
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        let Ok(set) = new.typed::<api::DaemonSet>() else { return Vec::new() };
        let template = |s: &api::DaemonSet| s.spec.template.clone();
        let same = old
            .and_then(|o| o.typed::<api::DaemonSet>().ok())
            .is_some_and(|o| template(&o) == template(&set));
        if same { Vec::new() } else { validation::template_warnings(&set.spec.template) }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn validate_spec(object: &Object, set: &api::DaemonSet) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = &set.spec;
    let path = Path::new("spec");
    // A missing selector selects nothing.
    let selector = Some(&spec.selector).filter(|_| validation::has_selector(object));
    validate::label_selector(&mut errors, &path.child("selector"), selector);
    if let Ok(selector) = Selector::from_label_selector(selector) {
        let labels = spec.template.metadata.as_ref().and_then(|m| m.labels.as_ref());
        let path = path.child("template").child("metadata").child("labels");
        validate::template_is_selected(&mut errors, &path, &selector, labels);
    }
    if selector.is_some_and(validate::is_empty_selector) {
        let problem = "empty selector is invalid for daemonset";
        errors.push(validate::invalid_text(
            &path.child("selector"),
            &validate::selector_text(&spec.selector),
            problem,
        ));
    }
    crate::core::pod::validation::template(&mut errors, &path.child("template"), &spec.template);
    validation::runs_for_ever(&mut errors, &spec.template, "DaemonSet");
    let seconds = i64::from(spec.min_ready_seconds.unwrap_or(0));
    validate::nonnegative(&mut errors, &path.child("minReadySeconds"), seconds);
    validate_strategy(&mut errors, &path.child("updateStrategy"), spec.update_strategy.as_ref());
    let limit = i64::from(spec.revision_history_limit.unwrap_or(0));
    validate::nonnegative(&mut errors, &path.child("revisionHistoryLimit"), limit);
    errors
}

fn validate_strategy(errors: &mut ErrorList, path: &Path, strategy: Option<&api::DaemonSetUpdateStrategy>) {
    let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
    match strategy.and_then(|s| s.type_.as_deref()).unwrap_or("") {
        "OnDelete" => {}
        "RollingUpdate" => {
            let path = path.child("rollingUpdate");
            let Some(rolling) = rolling else {
                errors.push(Error::required(&path, ""));
                return;
            };
            let zero = IntOrString::Int(0);
            let unavailable = rolling.max_unavailable.as_ref().unwrap_or(&zero);
            let surge = rolling.max_surge.as_ref().unwrap_or(&zero);
            for (field, bound) in [("maxUnavailable", unavailable), ("maxSurge", surge)] {
                validate::int_or_percent(errors, &path.child(field), bound);
            }
            for (field, bound) in [("maxUnavailable", unavailable), ("maxSurge", surge)] {
                validate::at_most_100_percent(errors, &path.child(field), bound);
            }
            match (validate::amount(unavailable) != 0, validate::amount(surge) != 0) {
                (true, true) => {
                    let problem = "may not be set when maxUnavailable is non-zero";
                    let shown = validate::shown(surge);
                    errors.push(Error::invalid(&path.child("maxSurge"), shown, problem));
                }
                (false, false) => {
                    let why = "cannot be 0 when maxSurge is 0";
                    errors.push(Error::required(&path.child("maxUnavailable"), why));
                }
                _ => {}
            }
        }
        other => {
            // The message shows upstream's internal Go type.
            let rolling = rolling.map_or("null".to_owned(), |r| {
                let (unavailable, surge) =
                    (validate::shown(&r.max_unavailable), validate::shown(&r.max_surge));
                format!(r#"{{"MaxUnavailable":{unavailable},"MaxSurge":{surge}}}"#)
            });
            let text = format!(r#"{{"Type":{},"RollingUpdate":{rolling}}}"#, Value::from(other));
            errors.push(validate::not_supported_text(path, &text, &["RollingUpdate", "OnDelete"]));
        }
    }
}

fn validate_status(new: &api::DaemonSet, old: &api::DaemonSet) -> ErrorList {
    let mut errors = ErrorList::new();
    let status = new.status.clone().unwrap_or_default();
    let counts = [
        ("currentNumberScheduled", Some(status.current_number_scheduled)),
        ("numberMisscheduled", Some(status.number_misscheduled)),
        ("desiredNumberScheduled", Some(status.desired_number_scheduled)),
        ("numberReady", Some(status.number_ready)),
        ("updatedNumberScheduled", status.updated_number_scheduled),
        ("numberAvailable", status.number_available),
        ("numberUnavailable", status.number_unavailable),
    ];
    validation::counts(&mut errors, i32::MAX, &counts, &[]);
    let before = old.status.as_ref().and_then(|s| s.collision_count);
    validation::collisions(&mut errors, status.collision_count, before);
    errors
}
