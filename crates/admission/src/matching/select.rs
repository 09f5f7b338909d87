//! Whether a request matches rules and selectors.

use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::selector::Selector;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::invocation::Invocation;
use super::rule::Rule;
use super::versions;
use crate::{Attributes, Context, Operation, lookup};

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
