//! Job: pods that run until enough of them have succeeded.

use k8s_openapi::api::batch::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use knarr_apimachinery::selector::Selector;
use serde_json::{Value, json};

use super::{status, validation};
use crate::core::pod::{default_template, template_warnings};
use crate::defaults::{Fields, blank, child, existing, items, text, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    categories: &["all"],
    subresources: &[resource::STATUS],
    selectable: &["status.successful"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::Job::RESOURCE, "JobList", "job", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Status", "string", "The status of the Job."),
    Column::new("Completions", "string", "The number of succeeded pods out of the desired completions."),
    Column::new("Duration", "string", "The time since the start of the Job, until its completion."),
    AGE,
    Column::wide("Containers", "string", "The names of the containers in the template."),
    Column::wide("Images", "string", "The images of the containers in the template."),
    Column::wide("Selector", "string", "The label selector for the pods."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::Job>().unwrap_or_default();
    let (spec, status) = (o.spec.clone().unwrap_or_default(), o.status.clone().unwrap_or_default());
    let succeeded = status.succeeded.unwrap_or(0);
    let completions = match (spec.completions, spec.parallelism.unwrap_or(0)) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallelism @ 2..) => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    };
    let ended = status.completion_time.as_ref().map_or(cx.now, |t| t.0);
    let duration = status.start_time.as_ref().map_or(String::new(), |t| table::since(Some(t.0), ended));
    let pod = spec.template.spec.clone().unwrap_or_default();
    let [names, images] = table::containers(&pod.containers);
    vec![
        Value::from(object.name()),
        Value::from(status_word(&o, &status)),
        Value::from(completions),
        Value::from(duration),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
        names,
        images,
        Value::from(table::selector(spec.selector.as_ref())),
    ]
}

fn status_word(job: &api::Job, status: &api::JobStatus) -> &'static str {
    let has =
        |type_: &str| status.conditions.iter().flatten().any(|c| c.type_ == type_ && c.status == "True");
    match () {
        () if has("Complete") => "Complete",
        () if has("Failed") => "Failed",
        () if job.metadata.deletion_timestamp.is_some() => "Terminating",
        () if has("Suspended") => "Suspended",
        () if has("FailureTarget") => "FailureTarget",
        () if has("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

/// Labels that a Job sets on its pods: its uid and its name, each under two keys.
pub const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];
pub const NAME_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        child(child(prepare::object(object), "spec"), "template");
        default_template(object);
        default_spec(child(prepare::object(object), "spec"));
        labels_of_template(object);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
        prepare::drop_in(object, &["spec", "scheduling"]);
        if object.pointer("/spec/manualSelector") != Some(&Value::Bool(true)) {
            generate_selector(object);
        }
        labels_of_template(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        if subresource.is_none() && old.pointer("/spec/scheduling").is_none() {
            prepare::drop_in(new, &["spec", "scheduling"]);
        }
        prepare::update_with_generation(new, old, subresource);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::Job>().map(|o| validate_new(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (new.typed::<api::Job>(), old.typed::<api::Job>()) else {
            return ErrorList::new();
        };
        match subresource {
            Some("status") => status::update(&new, &old),
            _ => validate_changed(&new, &old),
        }
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        let Ok(job) = new.typed::<api::Job>() else { return Vec::new() };
        let before = old.and_then(|o| o.typed::<api::Job>().ok());
        let mut warnings = Vec::new();
        match &before {
            None => warnings.extend(name_warning(new.name())),
            Some(before) if before.metadata.generation == job.metadata.generation => return warnings,
            Some(_) => {}
        }
        if let Some(spec) = &job.spec {
            warnings.extend(spec_warnings(&Path::new("spec"), spec));
        }
        warnings
    }

    fn deletion_warning(&self) -> Option<&'static str> {
        Some(
            "child pods are preserved by default when jobs are deleted; \
             set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
        )
    }

    fn orphans_by_default(&self) -> bool {
        true
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn default_spec(spec: &mut Fields) {
    let is_unset = |spec: &Fields, field: &str| spec.get(field).is_none_or(Value::is_null);
    if is_unset(spec, "completions") && is_unset(spec, "parallelism") {
        unset(spec, "completions", 1);
    }
    unset(spec, "parallelism", 1);
    let per_index = !is_unset(spec, "backoffLimitPerIndex");
    unset(spec, "backoffLimit", if per_index { i32::MAX } else { 6 });
    unset(spec, "completionMode", validation::NON_INDEXED);
    unset(spec, "suspend", false);
    let failures = !is_unset(spec, "podFailurePolicy");
    unset(spec, "podReplacementPolicy", if failures { "Failed" } else { "TerminatingOrFailed" });
    unset(spec, "manualSelector", false);
    default_patterns(spec);
}

/// Sets the default status `True` of pod condition patterns.
pub fn default_patterns(spec: &mut Fields) {
    let Some(policy) = existing(spec, "podFailurePolicy") else { return };
    for rule in items(policy, "rules") {
        for pattern in items(rule, "onPodConditions") {
            blank(pattern, "status", "True");
        }
    }
}

/// Copies the labels of the template to a Job that has none.
fn labels_of_template(object: &mut Value) {
    let labels = object.pointer("/spec/template/metadata/labels").filter(|l| l.is_object()).cloned();
    let metadata = prepare::metadata(object);
    let none = metadata.get("labels").and_then(Value::as_object).is_none_or(|l| l.is_empty());
    if let Some(labels) = labels.filter(|_| none) {
        metadata.insert("labels".to_owned(), labels);
    }
}

/// Sets the labels of the pods, and a selector by the Job's unique uid if the Job has none.
fn generate_selector(object: &mut Value) {
    let metadata = prepare::metadata(object);
    let (name, uid) = (json!(text(metadata, "name")), json!(text(metadata, "uid")));
    let spec = child(prepare::object(object), "spec");
    let labels = child(child(child(spec, "template"), "metadata"), "labels");
    for (keys, value) in [(NAME_LABELS, &name), (UID_LABELS, &uid)] {
        for key in keys {
            unset(labels, key, value.clone());
        }
    }
    let selected = child(child(spec, "selector"), "matchLabels");
    unset(selected, UID_LABELS[1], uid);
}

/// Returns a warning for a name that is not suitable for pod names.
pub fn name_warning(name: &str) -> Option<String> {
    let problems = names::dns1123_label(name);
    (!problems.is_empty()).then(|| {
        format!(
            "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; \
             a DNS label is recommended: [{}]",
            problems.join(" ")
        )
    })
}

pub fn spec_warnings(path: &Path, spec: &api::JobSpec) -> Vec<String> {
    let mut warnings = Vec::new();
    let (completions, parallelism) = (spec.completions.unwrap_or(0), spec.parallelism.unwrap_or(0));
    if validation::is_indexed(spec) && completions > 100_000 && parallelism > 10_000 {
        warnings.push(format!(
            "{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, \
             Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
        ));
    }
    warnings.extend(template_warnings(&path.child("template"), &spec.template));
    warnings
}

fn validate_new(job: &api::Job) -> ErrorList {
    let mut errors = ErrorList::new();
    generated_selector(&mut errors, job);
    validate_spec(&mut errors, job);
    name_fits(&mut errors, job);
    errors
}

fn validate_spec(errors: &mut ErrorList, job: &api::Job) {
    let spec = job.spec.clone().unwrap_or_default();
    let path = Path::new("spec");
    validation::spec(errors, &path, &spec);
    match &spec.selector {
        None => errors.push(Error::required(&path.child("selector"), "")),
        Some(_) => validate::label_selector(errors, &path.child("selector"), spec.selector.as_ref()),
    }
    if let Ok(selector) = Selector::from_label_selector(spec.selector.as_ref()) {
        let labels = spec.template.metadata.as_ref().and_then(|m| m.labels.as_ref());
        let path = path.child("template").child("metadata").child("labels");
        validate::template_is_selected(errors, &path, &selector, labels);
    }
}

/// Requires the generated labels and selector, unless the selector is manual.
fn generated_selector(errors: &mut ErrorList, job: &api::Job) {
    let spec = job.spec.clone().unwrap_or_default();
    let Some(selector) = spec.selector.as_ref().filter(|_| spec.manual_selector != Some(true)) else {
        return;
    };
    let (uid, name) = (job.uid(), job.name());
    if uid.is_empty() {
        errors.push(Error::required(&Path::new("metadata").child("uid"), ""));
    }
    let labels = spec.template.metadata.as_ref().and_then(|m| m.labels.clone()).unwrap_or_default();
    let expected =
        [(UID_LABELS[0], uid), (NAME_LABELS[0], name), (UID_LABELS[1], uid), (NAME_LABELS[1], name)];
    let path = Path::new("spec").child("template").child("metadata").child("labels");
    for (key, value) in expected {
        let why = format!("must be '{value}'");
        match labels.get(key) {
            None => errors.push(Error::required(&path.key(key), why)),
            Some(actual) if actual != value => {
                errors.push(Error::invalid(&path.key(key), validate::shown(&labels), why));
            }
            Some(_) => {}
        }
    }
    let expected = expected.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    if Selector::from_label_selector(Some(selector)).is_ok_and(|s| !s.matches_optional(Some(&expected))) {
        let text = validate::selector_text(selector);
        let path = Path::new("spec").child("selector");
        errors.push(validate::invalid_text(&path, &text, "`selector` not auto-generated"));
    }
}

/// Requires that the name of an indexed Job with its largest index is a valid host name.
fn name_fits(errors: &mut ErrorList, job: &api::Job) {
    let Some(spec) = job.spec.as_ref().filter(|s| validation::is_indexed(s)) else { return };
    let Some(last) = spec.completions.filter(|c| *c > 0).map(|c| c - 1) else { return };
    let longest = format!("{}-{last}", job.name());
    if !names::dns1123_label(&longest).is_empty() {
        let problem = format!("will not able to create pod with invalid DNS label: {longest}");
        errors.push(Error::invalid(&Path::new("metadata").child("name"), job.name(), problem));
    }
}

fn validate_changed(job: &api::Job, before: &api::Job) -> ErrorList {
    let mut errors = ErrorList::new();
    validate_spec(&mut errors, job);
    let (spec, old) = (job.spec.clone().unwrap_or_default(), before.spec.clone().unwrap_or_default());
    let path = Path::new("spec");
    completions_stay(&mut errors, &path.child("completions"), &spec, &old);
    if spec.selector != old.selector {
        let text = spec.selector.as_ref().map_or("null".to_owned(), validate::selector_text);
        errors.push(validate::invalid_text(&path.child("selector"), &text, validate::IMMUTABLE));
    }
    template_stays(&mut errors, &path, &spec, &old, before);
    let at = |field| path.child(field);
    validate::immutable(&mut errors, &at("completionMode"), &spec.completion_mode, &old.completion_mode);
    validate::immutable(
        &mut errors,
        &at("podFailurePolicy"),
        &spec.pod_failure_policy,
        &old.pod_failure_policy,
    );
    validate::immutable(
        &mut errors,
        &at("backoffLimitPerIndex"),
        &spec.backoff_limit_per_index,
        &old.backoff_limit_per_index,
    );
    validate::immutable(&mut errors, &at("managedBy"), &spec.managed_by, &old.managed_by);
    validate::immutable(&mut errors, &at("successPolicy"), &spec.success_policy, &old.success_policy);
    name_fits(&mut errors, job);
    errors
}

/// Requires that completions do not change; an indexed Job may change them together with parallelism.
fn completions_stay(errors: &mut ErrorList, path: &Path, new: &api::JobSpec, old: &api::JobSpec) {
    if !validation::is_indexed(new) {
        validate::immutable(errors, path, &new.completions, &old.completions);
    } else if let Some(completions) = new.completions
        && new.completions != old.completions
        && new.completions != new.parallelism
    {
        let problem = "can only be modified in tandem with spec.parallelism";
        errors.push(Error::invalid(path, completions, problem));
    }
}

/// Requires that the template of a Job does not change. While the Job is suspended, scheduling directives and
/// resources may change.
fn template_stays(
    errors: &mut ErrorList,
    path: &Path,
    new: &api::JobSpec,
    old: &api::JobSpec,
    before: &api::Job,
) {
    let (template, mut expected) = (new.template.clone(), old.template.clone());
    let status = before.status.clone().unwrap_or_default();
    let suspended = old.suspend == Some(true);
    let is_suspended =
        status.conditions.iter().flatten().any(|c| c.type_ == "Suspended" && c.status == "True");
    let idle = (status.start_time.is_none() || is_suspended) && status.active.unwrap_or(0) == 0;
    let path = path.child("template");
    if !(suspended && idle) {
        if template != expected {
            errors.push(Error::invalid(&path, validate::shown(&template), validate::IMMUTABLE));
        }
        return;
    }
    // The template's labels and annotations may change, too; therefore only the specs are compared.
    let (Some(pod), Some(allowed)) = (&template.spec, &mut expected.spec) else { return };
    let affinity = pod.affinity.as_ref().and_then(|a| a.node_affinity.clone());
    if pod.affinity.is_some() || allowed.affinity.is_some() {
        let mut rest = allowed.affinity.clone().unwrap_or_default();
        rest.node_affinity = affinity;
        let nothing = rest == Default::default() && pod.affinity.is_none();
        allowed.affinity = (!nothing).then_some(rest);
    }
    allowed.node_selector.clone_from(&pod.node_selector);
    allowed.tolerations.clone_from(&pod.tolerations);
    allowed.scheduling_gates.clone_from(&pod.scheduling_gates);
    let own = allowed.containers.iter_mut().chain(allowed.init_containers.iter_mut().flatten());
    let wanted = pod.containers.iter().chain(pod.init_containers.iter().flatten());
    for (own, wanted) in own.zip(wanted).filter(|(own, wanted)| own.name == wanted.name) {
        own.resources.clone_from(&wanted.resources);
    }
    if pod != allowed {
        errors.push(Error::invalid(&path.child("spec"), validate::shown(pod), validate::IMMUTABLE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn job(spec: Value) -> Value {
        let mut job = json!({"apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "j", "namespace": "n", "uid": "u"},
            "spec": {"template": {"spec": {"restartPolicy": "Never",
                "containers": [{"name": "c", "image": "i"}]}}}});
        for (field, value) in spec.as_object().unwrap() {
            job["spec"][field] = value.clone();
        }
        Rules.default(&mut job);
        job
    }

    fn held(value: &Value) -> Object {
        Object::new(Bytes::from(value.to_string()), &[]).unwrap()
    }

    #[test]
    fn a_new_job_selects_its_own_pods() {
        let mut new = job(json!({}));
        Rules.prepare_for_create(&mut new);
        assert_eq!(Rules.validate(&held(&new)), ErrorList::new());
        let labels = json!({"controller-uid": "u", "batch.kubernetes.io/controller-uid": "u",
            "job-name": "j", "batch.kubernetes.io/job-name": "j"});
        assert_eq!(new["spec"]["template"]["metadata"]["labels"], labels);
        assert_eq!(new["metadata"]["labels"], labels);
        let selector = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}});
        assert_eq!(new["spec"]["selector"], selector);
        for (field, value) in [
            ("completions", json!(1)),
            ("parallelism", json!(1)),
            ("backoffLimit", json!(6)),
            ("completionMode", json!("NonIndexed")),
            ("suspend", json!(false)),
            ("podReplacementPolicy", json!("TerminatingOrFailed")),
        ] {
            assert_eq!(new["spec"][field], value, "{field}");
        }
    }

    #[test]
    fn templates_change_only_while_suspended() {
        let mut old = job(json!({"suspend": true}));
        Rules.prepare_for_create(&mut old);
        let errors = |old: &Value, change: fn(&mut Value)| {
            let mut new = old.clone();
            change(&mut new);
            Rules.validate_update(&held(&new), &held(old), None).to_string()
        };
        let selects: fn(&mut Value) = |j| j["spec"]["template"]["spec"]["nodeSelector"] = json!({"a": "b"});
        let resources: fn(&mut Value) = |j| {
            j["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
        };
        let image: fn(&mut Value) =
            |j| j["spec"]["template"]["spec"]["containers"][0]["image"] = json!("other");
        assert_eq!(errors(&old, selects), "[]");
        assert_eq!(errors(&old, resources), "[]");
        assert!(errors(&old, image).starts_with("spec.template.spec: Invalid value"));
        old["spec"]["suspend"] = json!(false);
        assert!(errors(&old, selects).starts_with("spec.template: Invalid value"));
        let completions: fn(&mut Value) = |j| j["spec"]["completions"] = json!(3);
        assert_eq!(errors(&old, completions), "spec.completions: Invalid value: 3: field is immutable");
    }
}
