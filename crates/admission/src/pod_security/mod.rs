//! PodSecurity: restricts the privileges of pods according to their namespace's labels.
//!
//! Source: `k8s.io/pod-security-admission`.

mod baseline;
mod evaluate;
mod policy;
mod restricted;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use knarr_api::object::Object;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::{Attributes, Operation, Plugin, lookup};
use crate::Context;
use crate::config::Exemptions;
use evaluate::{Pod, details, evaluate, reasons};
use knarr_wire::metrics::Metric;
use policy::of_labels;
pub use policy::{Level, LevelVersion, Policy, Version};

pub struct PodSecurity;

const NAMESPACES: (&str, &str, &str) = ("", "v1", "namespaces");
const ANNOTATION: &str = "pod-security.kubernetes.io/";
/// The maximum number of existing pods that are checked when a namespace's labels change.
const MAX_PODS: usize = 3000;
/// Subresources that do not change a pod's spec.
const IGNORED: [&str; 8] = ["attach", "binding", "eviction", "exec", "log", "portforward", "proxy", "status"];

#[async_trait]
impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        let types = attributes.resource;
        match (types.group, types.plural) {
            ("", "namespaces") => namespace(attributes, context),
            ("", "pods") => pod(attributes, context).await,
            _ if template(types.group, types.plural).is_some() => workload(attributes, context).await,
            _ => Ok(()),
        }
    }
}

/// Returns the path of the pod template in workloads of this resource.
fn template(group: &str, plural: &str) -> Option<&'static str> {
    match (group, plural) {
        ("", "podtemplates") => Some("/template"),
        ("", "replicationcontrollers")
        | ("apps", "daemonsets" | "deployments" | "replicasets" | "statefulsets")
        | ("batch", "jobs") => Some("/spec/template"),
        ("batch", "cronjobs") => Some("/spec/jobTemplate/spec/template"),
        _ => None,
    }
}

fn label<'v>(namespace: &'v Value, key: &str) -> Option<&'v str> {
    namespace["metadata"]["labels"][key].as_str()
}

fn exemptions<'a>(context: &Context<'a>) -> &'a Exemptions {
    &context.settings.pod_security_exemptions
}

fn namespace(attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
    if !attributes.subresource.is_empty() {
        return Ok(());
    }
    let name = attributes.own_name();
    let (new, errors) =
        of_labels(|key| label(&attributes.object, key), context.settings.pod_security_defaults);
    let invalid = || Err(StatusError::invalid("", "Namespace", name, &errors));
    let exempt = exemptions(context).namespaces.iter().any(|n| n == name);
    let Some(before) = attributes.old else {
        if !errors.is_empty() {
            return invalid();
        }
        if exempt {
            warn_exempt(attributes, name, &new);
        }
        return Ok(());
    };
    let (old, old_errors) = of_labels(|key| label(before, key), context.settings.pod_security_defaults);
    if !errors.is_empty() && errors.to_string() != old_errors.to_string() {
        return invalid();
    }
    let (now, then) = (new.enforce, old.enforce);
    let relaxed = now.version == then.version && now.level <= then.level;
    if now == then || now.level == Level::Privileged || relaxed {
        return Ok(());
    }
    if exempt {
        warn_exempt(attributes, name, &new);
        return Ok(());
    }
    let pods = match context.registry.table.find("", "v1", "pods") {
        Some(served) => served.cache()?.list(Some(name)),
        None => Vec::new(),
    };
    existing_pods(&pods, name, now, exemptions(context)).into_iter().for_each(|w| attributes.warn(w));
    Ok(())
}

/// Warns that labels on an exempt namespace have no effect.
fn warn_exempt(attributes: &Attributes<'_>, name: &str, policy: &Policy) {
    let modes = [("enforce", policy.enforce), ("audit", policy.audit), ("warn", policy.warn)];
    let has_label = |mode: &str| {
        let keys = [format!("{ANNOTATION}{mode}"), format!("{ANNOTATION}{mode}-version")];
        keys.iter().any(|key| label(&attributes.object, key).is_some())
    };
    let set = modes.iter().filter(|(mode, l)| l.level != Level::Privileged && has_label(mode));
    let set: Vec<String> = set.map(|(mode, level)| format!("{mode}={level}")).collect();
    if !set.is_empty() {
        attributes.warn(format!(
            "namespace {name:?} is exempt from Pod Security, and the policy ({}) will be ignored",
            set.join(", ")
        ));
    }
}

/// Returns the warnings for existing pods that violate the new policy.
fn existing_pods(
    pods: &[Arc<Object>],
    namespace: &str,
    level: LevelVersion,
    exemptions: &Exemptions,
) -> Vec<String> {
    let mut controllers = BTreeSet::new();
    let (mut first, mut rest) = (Vec::new(), Vec::new());
    for object in pods {
        let Ok(pod) = serde_json::from_slice::<Value>(&object.json()) else { continue };
        if is_exempt_class(&pod["spec"], exemptions) {
            continue;
        }
        // One pod of each controller is checked first: the others are most likely the same.
        let owners = pod["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let controller = owners.into_iter().find(|o| o["controller"] == true).map(|o| o["uid"].to_string());
        match controller {
            Some(uid) if !controllers.insert(uid.clone()) => rest.push(pod),
            _ => first.push(pod),
        }
    }
    let all: Vec<Value> = first.into_iter().chain(rest).collect();
    let checked = all.len().min(MAX_PODS);
    let mut found: BTreeMap<String, (String, usize)> = BTreeMap::new();
    for pod in &all[..checked] {
        let findings = evaluate(level, Pod { metadata: &pod["metadata"], spec: &pod["spec"] });
        if findings.is_empty() {
            continue;
        }
        let name = pod["metadata"]["name"].as_str().unwrap_or("").to_owned();
        let (least, count) = found.entry(reasons(&findings)).or_insert_with(|| (name.clone(), 0));
        *count += 1;
        if name < *least {
            *least = name;
        }
    }
    let mut warnings = Vec::new();
    if checked < all.len() {
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {checked} of {} existing pods",
            all.len()
        ));
    }
    if !found.is_empty() {
        warnings.push(format!(
            "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{level}\""
        ));
    }
    let mut lines: Vec<String> = found
        .into_iter()
        .map(|(reasons, (name, count))| match count {
            1 => format!("{name}: {reasons}"),
            2 => format!("{name} (and 1 other pod): {reasons}"),
            _ => format!("{name} (and {} other pods): {reasons}", count - 1),
        })
        .collect();
    lines.sort();
    warnings.extend(lines);
    warnings
}

fn is_exempt_class(spec: &Value, exemptions: &Exemptions) -> bool {
    spec["runtimeClassName"].as_str().is_some_and(|c| exemptions.runtime_classes.iter().any(|e| e == c))
}

/// Returns whether the user or namespace is exempt, and annotates the audit event.
fn is_exempt(attributes: &Attributes<'_>, context: &Context<'_>) -> bool {
    let exemptions = exemptions(context);
    let by = if exemptions.namespaces.iter().any(|n| n == attributes.namespace) {
        "namespace"
    } else if exemptions.usernames.contains(&attributes.user.name) {
        "user"
    } else {
        return false;
    };
    attributes.annotate(format!("{ANNOTATION}exempt"), by);
    count_exemption(attributes, context);
    true
}

/// Returns the operation, resource and subresource as metrics labels.
fn request_labels<'a>(attributes: &'a Attributes<'_>) -> [&'a str; 3] {
    let operation = match attributes.operation {
        Operation::Create => "create",
        Operation::Update => "update",
        _ => "other",
    };
    let types = attributes.resource;
    let resource = if (types.group, types.plural) == ("", "pods") { "pod" } else { "controller" };
    [operation, resource, attributes.subresource]
}

fn count_exemption(attributes: &Attributes<'_>, context: &Context<'_>) {
    context.registry.metrics.increment(Metric::PodSecurityExemptions, &request_labels(attributes));
}

fn count_evaluation(
    attributes: &Attributes<'_>,
    context: &Context<'_>,
    decision: &str,
    mode: &str,
    policy: LevelVersion,
) {
    let [operation, resource, subresource] = request_labels(attributes);
    let version = policy.evaluated_version();
    context.registry.metrics.increment(
        Metric::PodSecurityEvaluations,
        &[decision, mode, policy.level.as_str(), &version, operation, resource, subresource],
    );
}

async fn pod(attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
    if IGNORED.contains(&attributes.subresource) || is_exempt(attributes, context) {
        return Ok(());
    }
    let namespace = attributes.namespace;
    let Ok(Some(found)) = lookup::find(context, NAMESPACES, "", namespace).await else {
        return Err(StatusError::internal(format!("failed to lookup namespace {namespace:?}")));
    };
    let (policy, errors) = of_labels(|key| found.header().label(key), context.settings.pod_security_defaults);
    if errors.is_empty() && policy.is_privileged() {
        attributes.annotate(format!("{ANNOTATION}enforce-policy"), policy.enforce.to_string());
        count_evaluation(attributes, context, "allow", "enforce", policy.enforce);
        return Ok(());
    }
    if attributes.old.is_some_and(|old| !is_significant(&attributes.object, old)) {
        return Ok(());
    }
    if !errors.is_empty() {
        attributes.annotate(format!("{ANNOTATION}error"), format!("Failed to parse policy: {errors}"));
    }
    let pod = Pod { metadata: &attributes.object["metadata"], spec: &attributes.object["spec"] };
    judge(attributes, context, &policy, pod, true)
}

/// Returns whether an update changes fields that the checks use: images, and the set of containers.
fn is_significant(new: &Value, old: &Value) -> bool {
    let list = |pod: &Value, name: &str| pod["spec"][name].as_array().cloned().unwrap_or_default();
    let changed = ["containers", "initContainers"].iter().any(|name| {
        let (new, old) = (list(new, name), list(old, name));
        new.len() != old.len() || new.iter().zip(&old).any(|(n, o)| n["image"] != o["image"])
    });
    let before = list(old, "ephemeralContainers");
    let added = list(new, "ephemeralContainers")
        .iter()
        .any(|n| before.iter().find(|o| o["name"] == n["name"]).is_none_or(|o| o["image"] != n["image"]));
    changed || added
}

async fn workload(attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
    if !attributes.subresource.is_empty() || is_exempt(attributes, context) {
        return Ok(());
    }
    let Ok(Some(found)) = lookup::find(context, NAMESPACES, "", attributes.namespace).await else {
        let why = format!("failed to lookup namespace {:?}", attributes.namespace);
        attributes.annotate(format!("{ANNOTATION}error"), why);
        return Ok(());
    };
    let (policy, errors) = of_labels(|key| found.header().label(key), context.settings.pod_security_defaults);
    if errors.is_empty() && policy.warn.level == Level::Privileged && policy.audit.level == Level::Privileged
    {
        return Ok(());
    }
    let types = attributes.resource;
    let place = template(types.group, types.plural).unwrap_or("/spec/template");
    let Some(template) = attributes.object.pointer(place).filter(|t| t.is_object()) else { return Ok(()) };
    judge(
        attributes,
        context,
        &policy,
        Pod { metadata: &template["metadata"], spec: &template["spec"] },
        false,
    )
}

/// Enforces the policy, adds audit annotations, and warns.
fn judge(
    attributes: &Attributes<'_>,
    context: &Context<'_>,
    policy: &Policy,
    pod: Pod<'_>,
    enforce: bool,
) -> Result<(), StatusError> {
    if is_exempt_class(pod.spec, exemptions(context)) {
        attributes.annotate(format!("{ANNOTATION}exempt"), "runtimeClass");
        count_exemption(attributes, context);
        return Ok(());
    }
    let against = |level: LevelVersion| {
        let findings = evaluate(level, pod);
        (!findings.is_empty()).then(|| format!("violate PodSecurity \"{level}\": {}", details(&findings)))
    };
    let refused = if enforce {
        attributes.annotate(format!("{ANNOTATION}enforce-policy"), policy.enforce.to_string());
        let refused = against(policy.enforce).map(|why| why.replacen("violate", "violates", 1));
        let decision = if refused.is_some() { "deny" } else { "allow" };
        count_evaluation(attributes, context, decision, "enforce", policy.enforce);
        refused
    } else {
        None
    };
    if let Some(why) = against(policy.audit) {
        attributes.annotate(format!("{ANNOTATION}audit-violations"), format!("would {why}"));
        count_evaluation(attributes, context, "deny", "audit", policy.audit);
    }
    if let Some(why) = refused {
        return Err(attributes.forbidden(&why));
    }
    if let Some(why) = against(policy.warn) {
        attributes.warn(format!("would {why}"));
        count_evaluation(attributes, context, "deny", "warn", policy.warn);
    }
    Ok(())
}
