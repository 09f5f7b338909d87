//! The rules of a FlowSchema: which requests it matches.

use k8s_openapi::api::flowcontrol::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;

use super::subjects;
use crate::validate;

const VERBS: [&str; 9] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

pub fn validate(errors: &mut ErrorList, path: &Path, rules: &api::PolicyRulesWithSubjects) {
    if rules.subjects.is_empty() {
        let problem = "subjects must contain at least one value";
        errors.push(Error::required(&path.child("subjects"), problem));
    }
    for (i, subject) in rules.subjects.iter().enumerate() {
        subjects::validate(errors, &path.child("subjects").index(i), subject);
    }
    let of_resources = rules.resource_rules.as_deref().unwrap_or_default();
    let of_paths = rules.non_resource_rules.as_deref().unwrap_or_default();
    if of_resources.is_empty() && of_paths.is_empty() {
        let problem = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.push(Error::required(path, problem));
    }
    for (i, rule) in of_resources.iter().enumerate() {
        of_resource(errors, &path.child("resourceRules").index(i), rule);
    }
    for (i, rule) in of_paths.iter().enumerate() {
        let path = path.child("nonResourceRules").index(i);
        verbs(errors, &path.child("verbs"), &rule.verbs);
        urls(errors, &path.child("nonResourceURLs"), &rule.non_resource_urls);
    }
}

fn has_wildcard(list: &[String]) -> bool {
    list.iter().any(|s| s == "*")
}

/// Requires that `*` is the only entry; returns whether the list has it.
fn wildcard(errors: &mut ErrorList, path: &Path, list: &[String], what: &str) -> bool {
    let there = has_wildcard(list);
    if there && list.len() > 1 {
        let problem = format!("if '*' is present, must not specify other {what}");
        errors.push(Error::invalid(path, validate::shown(&list), problem));
    }
    there
}

fn verbs(errors: &mut ErrorList, path: &Path, verbs: &[String]) {
    if verbs.is_empty() {
        errors.push(Error::required(path, "verbs must contain at least one value"));
    } else if !wildcard(errors, path, verbs, "verbs") && !verbs.iter().all(|v| VERBS.contains(&v.as_str())) {
        errors.push(validate::not_supported(path, validate::shown(&verbs), &VERBS));
    }
}

fn of_resource(errors: &mut ErrorList, path: &Path, rule: &api::ResourcePolicyRule) {
    verbs(errors, &path.child("verbs"), &rule.verbs);
    let mut listed = |field: &str, list: &[String], missing: &str, what: &str| {
        let path = path.child(field);
        if list.is_empty() {
            errors.push(Error::required(&path, format!("resource rules must supply at least one {missing}")));
        } else {
            wildcard(errors, &path, list, what);
        }
    };
    listed("apiGroups", &rule.api_groups, "api group", "api groups");
    listed("resources", &rule.resources, "resource", "resources");
    let (path, namespaces) = (path.child("namespaces"), rule.namespaces.as_deref().unwrap_or_default());
    if namespaces.is_empty() && !rule.cluster_scope.unwrap_or(false) {
        let problem = "resource rules that are not cluster scoped must supply at least one namespace";
        errors.push(Error::required(&path, problem));
    } else if !wildcard(errors, &path, namespaces, "namespaces") {
        for (i, namespace) in namespaces.iter().enumerate() {
            let problems = names::dns1123_label(namespace).into_iter();
            let problems = problems
                .map(|p| format!("each member of this list must be '*' or a DNS-1123 label; {p}"))
                .collect();
            validate::problems(errors, &path.index(i), namespace, problems);
        }
    }
}

fn urls(errors: &mut ErrorList, path: &Path, urls: &[String]) {
    if urls.is_empty() {
        errors.push(Error::required(path, "nonResourceURLs must contain at least one value"));
    } else if !wildcard(errors, path, urls, "non-resource URLs") {
        for (i, url) in urls.iter().enumerate() {
            if let Some(problem) = url_problem(url) {
                errors.push(Error::invalid(&path.index(i), url.as_str(), problem));
            }
        }
    }
}

fn url_problem(url: &str) -> Option<&'static str> {
    let stars = url.matches('*').count();
    match url {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !url.starts_with('/') => Some("must start with slash"),
        _ if url.contains(' ') => Some("must not contain white-space"),
        _ if url.contains("//") => Some("must not contain double slash"),
        _ if stars > 1 || (stars == 1 && !url.ends_with("/*")) => {
            Some("wildcard can only do suffix matching")
        }
        _ => None,
    }
}
