//! Decides whether a webhook applies to a request, and in which version it receives the request.

use knarr_apimachinery::gvk::{GroupResource, GroupVersionKind};
use knarr_apimachinery::selector::Selector;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::configurations::{Hook, Rule};
use super::mutating::presented;
use super::versions;
use crate::Context;
use crate::{Attributes, Operation, lookup};

/// The request in the form that a webhook receives: for this resource, of this kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    pub kind: GroupVersionKind,
    pub group: String,
    pub version: String,
    pub plural: String,
}

impl Invocation {
    /// Returns the form of the request itself.
    pub fn own(attributes: &Attributes<'_>) -> Self {
        let resource = attributes.resource;
        Self {
            kind: attributes.kind(),
            group: resource.group.into(),
            version: resource.version.into(),
            plural: resource.plural.into(),
        }
    }
}

/// The attributes of a request that rules match.
struct Subject<'a> {
    operation: &'a str,
    group: &'a str,
    version: &'a str,
    plural: &'a str,
    subresource: &'a str,
    namespace: &'a str,
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

fn rule_matches(rule: &Rule, subject: &Subject<'_>) -> bool {
    let is_namespace = (subject.group, subject.version, subject.plural) == ("", "v1", "namespaces");
    let in_cluster = is_namespace || subject.namespace.is_empty();
    let scope = match rule.scope.as_str() {
        "" | "*" => true,
        "Namespaced" => !in_cluster,
        "Cluster" => in_cluster,
        _ => false,
    };
    let resource = |pattern: &String| {
        let (resource, part) = pattern.split_once('/').unwrap_or((pattern, ""));
        (resource == "*" || resource == subject.plural) && (part == "*" || part == subject.subresource)
    };
    scope
        && has(&rule.operations, subject.operation)
        && has(&rule.groups, subject.group)
        && has(&rule.versions, subject.version)
        && rule.resources.iter().any(resource)
}

/// Returns the form in which the request matches the rules; `None` if no rule matches.
pub fn by_rules(
    rules: &[&Rule],
    exact: bool,
    attributes: &Attributes<'_>,
    context: &Context<'_>,
) -> Option<Invocation> {
    let resource = attributes.resource;
    let subject = Subject {
        operation: attributes.operation.as_str(),
        group: resource.group,
        version: resource.version,
        plural: resource.plural,
        subresource: attributes.subresource,
        namespace: attributes.in_namespace(),
    };
    let invocation = |kind, group: &str, version: &str, plural: &str| {
        Some(Invocation { kind, group: group.into(), version: version.into(), plural: plural.into() })
    };
    if rules.iter().any(|r| rule_matches(r, &subject)) {
        return Some(Invocation::own(attributes));
    }
    if exact {
        return None;
    }
    versions::equivalents(attributes, context).into_iter().find_map(|other| {
        let types = other.resource.types;
        let subject = Subject { group: types.group, version: types.version, plural: types.plural, ..subject };
        rules.iter().any(|r| rule_matches(r, &subject)).then_some(())?;
        let kind = versions::kind_of(&other, attributes.subresource);
        invocation(kind, types.group, types.version, types.plural)
    })
}

fn labels_match(selector: &Selector, object: &Value) -> bool {
    let labels = object.pointer("/metadata/labels");
    object.is_object() && selector.matches_with(|key| labels?.get(key)?.as_str())
}

/// Returns whether the namespace of the request is selected; cluster-scoped requests always are.
pub async fn in_selected_namespace(
    selector: &Result<Selector, String>,
    attributes: &Attributes<'_>,
    context: &Context<'_>,
) -> Result<bool, StatusError> {
    let namespace = attributes.in_namespace();
    let is_namespace = attributes.resource.plural == "namespaces";
    if namespace.is_empty() && !is_namespace {
        return Ok(true);
    }
    let selector = selector.as_ref().map_err(StatusError::internal)?;
    if selector.is_everything() {
        return Ok(true);
    }
    let written = matches!(attributes.operation, Operation::Create | Operation::Update);
    if is_namespace && attributes.subresource.is_empty() && written {
        return Ok(labels_match(selector, &attributes.object));
    }
    let found = lookup::find(context, ("", "v1", "namespaces"), "", namespace).await?;
    let found =
        found.ok_or_else(|| StatusError::not_found(&GroupResource::new("", "namespaces"), namespace))?;
    Ok(selector.matches_with(|key| found.header().label(key)))
}

/// Returns whether the object or the old object is selected; `Err` if the selector is invalid.
pub fn object_selected<'s>(
    selector: &'s Result<Selector, String>,
    attributes: &Attributes<'_>,
    object: &Value,
) -> Result<bool, &'s String> {
    selector.as_ref().map(|selector| {
        selector.is_everything()
            || labels_match(selector, object)
            || attributes.old.is_some_and(|old| labels_match(selector, old))
    })
}

/// Returns how the webhook is to be called; `None` if it does not apply. `object` is what it would receive, before
/// any conversion.
pub async fn invocation(
    hook: &Hook,
    attributes: &Attributes<'_>,
    object: &Value,
    context: &Context<'_>,
) -> Result<Option<Invocation>, StatusError> {
    let namespace = in_selected_namespace(&hook.namespaces, attributes, context).await;
    if matches!(namespace, Ok(false)) {
        return Ok(None);
    }
    let selected = object_selected(&hook.objects, attributes, object);
    if matches!(selected, Ok(false)) {
        return Ok(None);
    }
    let rules: Vec<&Rule> = hook.rules.iter().collect();
    let Some(invocation) = by_rules(&rules, hook.exact, attributes, context) else { return Ok(None) };
    // These errors are checked last, so that a request to which the webhook does not apply cannot fail because of it.
    namespace?;
    selected.map_err(StatusError::internal)?;
    let wanted = conditions_hold(hook, &invocation, attributes, object, context).await?;
    Ok(wanted.then_some(invocation))
}

/// Returns whether the webhook's `matchConditions` hold. If they cannot be evaluated, its failure policy decides: the
/// webhook is skipped, or the request refused.
async fn conditions_hold(
    hook: &Hook,
    invocation: &Invocation,
    attributes: &Attributes<'_>,
    object: &Value,
    context: &Context<'_>,
) -> Result<bool, StatusError> {
    if hook.conditions.is_empty() {
        return Ok(true);
    }
    let old = presented(attributes, attributes.old.unwrap_or(&Value::Null));
    let object = versions::shown(object, invocation, attributes, context).await?;
    let old = versions::shown(&old, invocation, attributes, context).await?;
    match hook.conditions.hold_for(attributes, invocation, (&object, &old), context).await {
        Ok(true) => Ok(true),
        Ok(false) => {
            let metrics = &context.metrics;
            metrics.match_condition_exclusion(&hook.name, "webhook", hook.sort, attributes.operation);
            Ok(false)
        }
        Err(_) if hook.ignores_failures => Ok(false),
        Err(why) => Err(attributes.forbidden(&why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(
        operations: &[&str],
        groups: &[&str],
        versions: &[&str],
        resources: &[&str],
        scope: &str,
    ) -> Rule {
        let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        Rule {
            operations: owned(operations),
            groups: owned(groups),
            versions: owned(versions),
            resources: owned(resources),
            scope: scope.into(),
        }
    }

    #[test]
    fn rules() {
        let subject = |plural, subresource, namespace| Subject {
            operation: "CREATE",
            group: "",
            version: "v1",
            plural,
            subresource,
            namespace,
        };
        let all: &[&str] = &["*"];
        for (rule, subject, expected) in [
            (rule(all, all, all, all, "*"), subject("pods", "", "a"), true),
            (rule(all, all, all, all, "*"), subject("pods", "exec", "a"), false),
            (rule(all, all, all, &["*/*"], "*"), subject("pods", "exec", "a"), true),
            (rule(all, all, all, &["pods/*"], "*"), subject("pods", "", "a"), true),
            (rule(all, all, all, &["*/exec"], "*"), subject("pods", "exec", "a"), true),
            (rule(all, all, all, &["pods"], "*"), subject("pods", "exec", "a"), false),
            (rule(&["UPDATE"], all, all, all, "*"), subject("pods", "", "a"), false),
            (rule(all, &["apps"], all, all, "*"), subject("pods", "", "a"), false),
            (rule(all, all, &["v2"], all, "*"), subject("pods", "", "a"), false),
            (rule(all, all, all, all, "Namespaced"), subject("pods", "", "a"), true),
            (rule(all, all, all, all, "Cluster"), subject("pods", "", "a"), false),
            (rule(all, all, all, all, "Cluster"), subject("nodes", "", ""), true),
            (rule(all, all, all, all, "Cluster"), subject("namespaces", "", "a"), true),
            (rule(all, all, all, all, "Namespaced"), subject("namespaces", "", "a"), false),
        ] {
            assert_eq!(rule_matches(&rule, &subject), expected, "{rule:?}");
        }
    }
}
