//! Deployment: rolls out revisions as replica sets.

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

pub const RESOURCE: Resource = Resource {
    short_names: &["deploy"],
    categories: &["all"],
    subresources: &[resource::SCALE, resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::Deployment::RESOURCE, "DeploymentList", "deployment", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Ready", "string", "The number of ready pods out of the desired number."),
    Column::new("Up-to-date", "string", "The number of pods with the updated template."),
    Column::new("Available", "string", "The number of available pods."),
    AGE,
    Column::wide("Containers", "string", "The names of the containers in the template."),
    Column::wide("Images", "string", "The images of the containers in the template."),
    Column::wide("Selector", "string", "The label selector for the pods."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::Deployment>().unwrap_or_default();
    let spec = Some(&o.spec);
    let status = o.status.clone().unwrap_or_default();
    let template = spec.and_then(|s| s.template.spec.as_ref());
    let [names, images] = table::containers(template.map_or(&[], |s| &s.containers));
    let selector = match Selector::from_label_selector(spec.map(|s| &s.selector)) {
        Ok(selector) => selector.to_string(),
        Err(_) => "<invalid>".to_owned(),
    };
    let (ready, wanted) = (status.ready_replicas.unwrap_or(0), spec.and_then(|s| s.replicas).unwrap_or(0));
    vec![
        Value::from(object.name()),
        Value::from(format!("{ready}/{wanted}")),
        table::count(status.updated_replicas),
        table::count(status.available_replicas),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
        names,
        images,
        Value::from(selector),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        default_template(object);
        let spec = child(prepare::object(object), "spec");
        unset(spec, "replicas", 1);
        unset(spec, "revisionHistoryLimit", 10);
        unset(spec, "progressDeadlineSeconds", 600);
        let strategy = child(spec, "strategy");
        blank(strategy, "type", "RollingUpdate");
        if text(strategy, "type") == "RollingUpdate" {
            let rolling = child(strategy, "rollingUpdate");
            unset(rolling, "maxUnavailable", "25%");
            unset(rolling, "maxSurge", "25%");
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
        if subresource == Some("status") {
            prepare::keep_metadata(new, old, "labels");
            prepare::keep_metadata(new, old, "generation");
        } else {
            // Annotations count, too: the controller copies them to the replica sets.
            prepare::bump_generation(new, old, &["/spec", "/metadata/annotations"]);
        }
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::Deployment>().map(|o| validate_spec(object, &o)).unwrap_or_default()
    }

    fn validate_update(&self, object: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (object.typed::<api::Deployment>(), old.typed::<api::Deployment>()) else {
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
        let Ok(deployment) = new.typed::<api::Deployment>() else { return Vec::new() };
        validation::warnings(new, old, Some(&deployment.spec.template), true)
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn validate_spec(object: &Object, deployment: &api::Deployment) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = &deployment.spec;
    let path = Path::new("spec");
    let nonnegative = |errors: &mut ErrorList, field: &str, n: Option<i32>| {
        validate::nonnegative(errors, &path.child(field), i64::from(n.unwrap_or(0)));
    };
    nonnegative(&mut errors, "replicas", spec.replicas);
    validation::selector(&mut errors, object, &spec.selector, "deployment");
    let bad = "invalid label selector";
    validation::template(&mut errors, object, &spec.selector, &spec.template, "ReplicaSet", bad);
    validate_strategy(&mut errors, &path.child("strategy"), spec.strategy.as_ref());
    nonnegative(&mut errors, "minReadySeconds", spec.min_ready_seconds);
    nonnegative(&mut errors, "revisionHistoryLimit", spec.revision_history_limit);
    nonnegative(&mut errors, "progressDeadlineSeconds", spec.progress_deadline_seconds);
    if let Some(deadline) = spec.progress_deadline_seconds
        && deadline <= spec.min_ready_seconds.unwrap_or(0)
    {
        let path = path.child("progressDeadlineSeconds");
        errors.push(Error::invalid(&path, deadline, "must be greater than minReadySeconds"));
    }
    errors
}

fn validate_strategy(errors: &mut ErrorList, path: &Path, strategy: Option<&api::DeploymentStrategy>) {
    let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
    let at = path.child("rollingUpdate");
    match strategy.and_then(|s| s.type_.as_deref()).unwrap_or("") {
        "Recreate" if rolling.is_some() => {
            let why = "may not be specified when strategy `type` is 'Recreate'";
            errors.push(Error::forbidden(&at, why));
        }
        "Recreate" => {}
        "RollingUpdate" => {
            let Some(rolling) = rolling else {
                let why = "this should be defaulted and never be nil";
                errors.push(Error::required(&at, why));
                return;
            };
            let zero = IntOrString::Int(0);
            let unavailable = rolling.max_unavailable.as_ref().unwrap_or(&zero);
            let surge = rolling.max_surge.as_ref().unwrap_or(&zero);
            validate::int_or_percent(errors, &at.child("maxUnavailable"), unavailable);
            validate::int_or_percent(errors, &at.child("maxSurge"), surge);
            if validate::amount(unavailable) == 0 && validate::amount(surge) == 0 {
                let problem = "may not be 0 when `maxSurge` is 0";
                let shown = validate::shown(unavailable);
                errors.push(Error::invalid(&at.child("maxUnavailable"), shown, problem));
            }
            validate::at_most_100_percent(errors, &at.child("maxUnavailable"), unavailable);
        }
        other => {
            // The message shows upstream's internal Go type.
            let rolling = rolling.map_or("null".to_owned(), |r| {
                let (unavailable, surge) =
                    (validate::shown(&r.max_unavailable), validate::shown(&r.max_surge));
                format!(r#"{{"MaxUnavailable":{unavailable},"MaxSurge":{surge}}}"#)
            });
            let text = format!(r#"{{"Type":{},"RollingUpdate":{rolling}}}"#, Value::from(other));
            errors.push(validate::not_supported_text(path, &text, &["Recreate", "RollingUpdate"]));
        }
    }
}

fn validate_status(new: &api::Deployment, old: &api::Deployment) -> ErrorList {
    let mut errors = ErrorList::new();
    let status = new.status.clone().unwrap_or_default();
    let replicas = status.replicas.unwrap_or(0);
    let all = [
        ("replicas", status.replicas),
        ("unavailableReplicas", status.unavailable_replicas),
        ("terminatingReplicas", status.terminating_replicas),
    ];
    let parts = [
        ("updatedReplicas", status.updated_replicas),
        ("readyReplicas", status.ready_replicas),
        ("availableReplicas", status.available_replicas),
    ];
    validation::counts(&mut errors, replicas, &all, &parts);
    validation::available(&mut errors, status.available_replicas, status.ready_replicas);
    let before = old.status.as_ref().and_then(|s| s.collision_count);
    validation::collisions(&mut errors, status.collision_count, before);
    errors
}
