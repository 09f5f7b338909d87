//! Validation of the rules of a role.

use k8s_openapi::api::rbac::v1::PolicyRule;
use knarr_apimachinery::field::{Error, ErrorList, Path};

/// Validates all rules of a role; namespaced roles cannot have non-resource URLs.
pub fn validate_rules(rules: &[PolicyRule], namespaced: bool) -> ErrorList {
    let mut errors = ErrorList::new();
    for (i, rule) in rules.iter().enumerate() {
        validate_rule(&mut errors, &Path::new("rules").index(i), rule, namespaced);
    }
    errors
}

fn validate_rule(errors: &mut ErrorList, path: &Path, rule: &PolicyRule, namespaced: bool) {
    let listed = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|l| !l.is_empty());
    if rule.verbs.is_empty() {
        errors.push(Error::required(&path.child("verbs"), ""));
    }
    let urls = rule.non_resource_urls.clone().unwrap_or_default();
    if !urls.is_empty() {
        let path = path.child("nonResourceURLs");
        if namespaced {
            let problem = "namespaced rules cannot apply to non-resource URLs";
            errors.push(Error::invalid(&path, urls.clone(), problem));
        }
        if listed(&rule.api_groups) || listed(&rule.resources) || listed(&rule.resource_names) {
            let problem = "rules cannot apply to both regular resources and non-resource URLs";
            errors.push(Error::invalid(&path, urls, problem));
        }
        return;
    }
    if !listed(&rule.api_groups) {
        let why = "resource rules must supply at least one api group";
        errors.push(Error::required(&path.child("apiGroups"), why));
    }
    if !listed(&rule.resources) {
        let why = "resource rules must supply at least one resource";
        errors.push(Error::required(&path.child("resources"), why));
    }
}
