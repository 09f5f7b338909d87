//! StatefulSet: pods with stable names and volumes.

use k8s_openapi::api::apps::v1 as api;
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, PodTemplateSpec, Volume};
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use crate::apps::validation;
use crate::core::claim_spec;
use crate::core::pod::default_template;
use crate::core::pod::warnings::claim_spec;
use crate::defaults::{blank, child, existing, items, text, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    short_names: &["sts"],
    categories: &["all"],
    subresources: &[resource::SCALE, resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::StatefulSet::RESOURCE, "StatefulSetList", "statefulset", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Ready", "string", "The number of ready pods out of the desired number."),
    AGE,
    Column::wide("Containers", "string", "The names of the containers in the template."),
    Column::wide("Images", "string", "The images of the containers in the template."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::StatefulSet>().unwrap_or_default();
    let spec = Some(&o.spec);
    let ready = o.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0);
    let wanted = spec.and_then(|s| s.replicas).unwrap_or(0);
    let template = spec.and_then(|s| s.template.spec.as_ref());
    let [names, images] = table::containers(template.map_or(&[], |s| &s.containers));
    let age = table::age(o.metadata.creation_timestamp.as_ref(), cx);
    vec![Value::from(object.name()), Value::from(format!("{ready}/{wanted}")), age, names, images]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        default_template(object);
        let spec = child(prepare::object(object), "spec");
        blank(spec, "podManagementPolicy", "OrderedReady");
        let strategy = child(spec, "updateStrategy");
        if text(strategy, "type").is_empty() {
            strategy.insert("type".to_owned(), Value::from("RollingUpdate"));
            child(strategy, "rollingUpdate");
        }
        if text(strategy, "type") == "RollingUpdate"
            && let Some(rolling) = existing(strategy, "rollingUpdate")
        {
            unset(rolling, "partition", 0);
            unset(rolling, "maxUnavailable", 1);
        }
        let retention = child(spec, "persistentVolumeClaimRetentionPolicy");
        blank(retention, "whenDeleted", "Retain");
        blank(retention, "whenScaled", "Retain");
        unset(spec, "replicas", 1);
        unset(spec, "revisionHistoryLimit", 10);
        for claim in items(spec, "volumeClaimTemplates") {
            claim.insert("apiVersion".to_owned(), Value::from("v1"));
            claim.insert("kind".to_owned(), Value::from("PersistentVolumeClaim"));
            blank(child(claim, "status"), "phase", "Pending");
            claim_spec::default_spec(child(claim, "spec"));
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_generation(new, old, subresource);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::StatefulSet>().map(|o| validate_spec(object, &o, true)).unwrap_or_default()
    }

    fn validate_update(&self, object: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (object.typed::<api::StatefulSet>(), old.typed::<api::StatefulSet>()) else {
            return ErrorList::new();
        };
        if subresource == Some("status") {
            return validate_status(&new, &old);
        }
        let mut errors = validate_spec(object, &new, false);
        let path = Path::new("spec");
        let (spec, before) = (&new.spec, &old.spec);
        validation::selector_stays(&mut errors, object, &spec.selector, &before.selector);
        let claims = path.child("volumeClaimTemplates");
        validate::immutable(
            &mut errors,
            &claims,
            &spec.volume_claim_templates,
            &before.volume_claim_templates,
        );
        validate::immutable(
            &mut errors,
            &path.child("serviceName"),
            &spec.service_name,
            &before.service_name,
        );
        let policy = path.child("podManagementPolicy");
        validate::immutable(&mut errors, &policy, &spec.pod_management_policy, &before.pod_management_policy);
        errors
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        let Ok(set) = new.typed::<api::StatefulSet>() else { return Vec::new() };
        let mut warnings = validation::warnings(new, old, Some(&set.spec.template), false);
        for (i, claim) in set.spec.volume_claim_templates.iter().flatten().enumerate() {
            let path = Path::new("spec").child("volumeClaimTemplates").index(i);
            // Upstream's path is longer in an update.
            let path = if old.is_some() { path.child("Spec") } else { path };
            warnings.extend(claim_spec(&path, &claim.spec.clone().unwrap_or_default()));
        }
        if set.spec.revision_history_limit.is_some_and(|limit| limit < 0) {
            warnings.push(
                "spec.revisionHistoryLimit: a negative value retains all historical revisions; \
                 a value >= 0 is recommended"
                    .to_owned(),
            );
        }
        warnings
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::label(name, prefix)
    }
}

fn validate_spec(object: &Object, set: &api::StatefulSet, created: bool) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = &set.spec;
    let path = Path::new("spec");
    let at = path.child("podManagementPolicy");
    match spec.pod_management_policy.as_deref().unwrap_or("") {
        "" => errors.push(Error::required(&at, "")),
        "OrderedReady" | "Parallel" => {}
        other => errors.push(Error::invalid(&at, other, "must be 'OrderedReady' or 'Parallel'")),
    }
    validate_strategy(&mut errors, &path.child("updateStrategy"), spec.update_strategy.as_ref());
    if let Some(retention) = &spec.persistent_volume_claim_retention_policy {
        let path = path.child("persistentVolumeClaimRetentionPolicy");
        for (field, policy) in
            [("whenDeleted", &retention.when_deleted), ("whenScaled", &retention.when_scaled)]
        {
            let policy = policy.as_deref().unwrap_or("");
            validate::supported_value(&mut errors, &path.child(field), policy, &["Retain", "Delete"]);
        }
    }
    for (i, claim) in spec.volume_claim_templates.iter().flatten().enumerate().filter(|_| created) {
        let path = path.child("volumeClaimTemplates").index(i).child("spec");
        let claim = claim.spec.clone().unwrap_or_default();
        claim_spec::validate_claim_spec(&mut errors, &path, &claim);
    }
    let start = spec.ordinals.as_ref().and_then(|o| o.start);
    for (field, n) in
        [("replicas", spec.replicas), ("minReadySeconds", spec.min_ready_seconds), ("ordinals.start", start)]
    {
        validate::nonnegative(&mut errors, &path.child(field), i64::from(n.unwrap_or(0)));
    }
    // An update cannot change the service name or the claims, so that only creation validates them.
    if let Some(name) = spec.service_name.as_deref().filter(|n| created && !n.is_empty()) {
        validate::dns_label(&mut errors, &path.child("serviceName"), name);
    }
    validation::selector(&mut errors, object, &spec.selector, "statefulset");
    let template = with_claim_volumes(spec);
    validation::template(&mut errors, object, &spec.selector, &template, "StatefulSet", "");
    errors
}

/// Returns the template as its pods will be: each claim template adds a volume; hostname and subdomain are
/// replaced.
fn with_claim_volumes(spec: &api::StatefulSetSpec) -> PodTemplateSpec {
    let mut template = spec.template.clone();
    let Some(pod) = &mut template.spec else { return template };
    (pod.hostname, pod.subdomain) = (None, None);
    let mut names: Vec<String> = Vec::new();
    for claim in spec.volume_claim_templates.iter().flatten() {
        let name = claim.metadata.name.clone().unwrap_or_default();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if !names.is_empty() {
        let own = pod.volumes.take().unwrap_or_default();
        let mut volumes: Vec<Volume> = names.iter().map(|name| claim_volume(name)).collect();
        volumes.extend(own.into_iter().filter(|v| !names.contains(&v.name)));
        pod.volumes = Some(volumes);
    }
    template
}

fn claim_volume(name: &str) -> Volume {
    let source = PersistentVolumeClaimVolumeSource { claim_name: name.to_owned(), read_only: None };
    Volume { name: name.to_owned(), persistent_volume_claim: Some(source), ..Volume::default() }
}

fn validate_strategy(errors: &mut ErrorList, path: &Path, strategy: Option<&api::StatefulSetUpdateStrategy>) {
    let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
    let at = path.child("rollingUpdate");
    match strategy.and_then(|s| s.type_.as_deref()).unwrap_or("") {
        "" => errors.push(Error::required(path, "")),
        "OnDelete" => {
            if let Some(rolling) = rolling {
                let problem = "only allowed for updateStrategy 'RollingUpdate'";
                let (partition, bound) =
                    (rolling.partition.unwrap_or(0), validate::shown(&rolling.max_unavailable));
                let text = format!(r#"{{"Partition":{partition},"MaxUnavailable":{bound}}}"#);
                errors.push(validate::invalid_text(&at, &text, problem));
            }
        }
        "RollingUpdate" => {
            let Some(rolling) = rolling else { return };
            let partition = i64::from(rolling.partition.unwrap_or(0));
            validate::nonnegative(errors, &at.child("partition"), partition);
            if let Some(bound) = &rolling.max_unavailable {
                let at = at.child("maxUnavailable");
                validate::int_or_percent(errors, &at, bound);
                if validate::amount(bound) == 0 {
                    errors.push(Error::invalid(&at, validate::shown(bound), "cannot be 0"));
                }
                validate::at_most_100_percent(errors, &at, bound);
            }
        }
        _ => {
            let shown = strategy.map_or(Value::Null, validate::shown);
            errors.push(Error::invalid(path, shown, "must be 'RollingUpdate' or 'OnDelete'"));
        }
    }
}

fn validate_status(new: &api::StatefulSet, old: &api::StatefulSet) -> ErrorList {
    let mut errors = ErrorList::new();
    let status = new.status.clone().unwrap_or_default();
    let parts = [
        ("readyReplicas", status.ready_replicas),
        ("currentReplicas", status.current_replicas),
        ("updatedReplicas", status.updated_replicas),
        ("availableReplicas", status.available_replicas),
    ];
    validation::counts(&mut errors, status.replicas, &[("replicas", Some(status.replicas))], &parts);
    validation::available(&mut errors, status.available_replicas, status.ready_replicas);
    let before = old.status.as_ref().and_then(|s| s.collision_count);
    validation::collisions(&mut errors, status.collision_count, before);
    errors
}
