//! Policy rules: what one covers, and whether one set of rules covers another.

use k8s_openapi::api::rbac::v1::PolicyRule;

use super::Attributes;

fn list(values: &Option<Vec<String>>) -> &[String] {
    values.as_deref().unwrap_or_default()
}

fn has(values: &[String], wanted: &str) -> bool {
    values.iter().any(|v| v == "*" || v == wanted)
}

/// Whether the rule allows what is wanted.
pub fn allows(rule: &PolicyRule, wanted: &Attributes) -> bool {
    if !has(&rule.verbs, &wanted.verb) {
        return false;
    }
    if !wanted.is_resource() {
        return list(&rule.non_resource_urls).iter().any(|url| url_matches(url, &wanted.path));
    }
    has(list(&rule.api_groups), &wanted.group)
        && list(&rule.resources).iter().any(|r| resource_matches(r, &wanted.resource, &wanted.subresource))
        && (list(&rule.resource_names).is_empty() || list(&rule.resource_names).contains(&wanted.name))
}

fn url_matches(rule: &str, path: &str) -> bool {
    rule == path || rule.ends_with('*') && path.starts_with(rule.trim_end_matches('*'))
}

fn resource_matches(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == "*" {
        return true;
    }
    if subresource.is_empty() {
        // A resource that exists for authorization only may hold slashes of its own, as an audience does.
        return rule == resource;
    }
    // The resource may hold slashes of its own here, too.
    let of = |resource: &str| rule.strip_prefix(resource).and_then(|rest| rest.strip_prefix('/'));
    [of(resource), of("*")].contains(&Some(subresource))
}

/// The rules of `wanted`, each cut to one verb, one group, one resource, one name, that `held` does not cover.
pub fn uncovered(held: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    wanted.iter().flat_map(breakdown).filter(|w| !held.iter().any(|h| covers(h, w))).collect()
}

fn breakdown(rule: &PolicyRule) -> Vec<PolicyRule> {
    let mut out = Vec::new();
    let one = |v: &String| Some(vec![v.clone()]);
    for verb in &rule.verbs {
        for group in list(&rule.api_groups) {
            for resource in list(&rule.resources) {
                let base = PolicyRule {
                    verbs: vec![verb.clone()],
                    api_groups: one(group),
                    resources: one(resource),
                    ..PolicyRule::default()
                };
                if list(&rule.resource_names).is_empty() {
                    out.push(base);
                    continue;
                }
                for name in list(&rule.resource_names) {
                    out.push(PolicyRule { resource_names: one(name), ..base.clone() });
                }
            }
        }
        for url in list(&rule.non_resource_urls) {
            out.push(PolicyRule {
                verbs: vec![verb.clone()],
                non_resource_urls: one(url),
                ..PolicyRule::default()
            });
        }
    }
    out
}

/// `wanted` has at most one of each.
fn covers(held: &PolicyRule, wanted: &PolicyRule) -> bool {
    let all = |h: &[String], w: &[String]| has(h, "*") || w.iter().all(|w| h.contains(w));
    if !all(&held.verbs, &wanted.verbs) {
        return false;
    }
    if let Some(url) = list(&wanted.non_resource_urls).first() {
        return list(&held.non_resource_urls)
            .iter()
            .any(|h| h == url || h.strip_suffix('*').is_some_and(|prefix| url.starts_with(prefix)));
    }
    let resource = list(&wanted.resources).first().map_or("", String::as_str);
    let subresource = resource.split_once('/').map(|(_, sub)| format!("*/{sub}"));
    let resources = list(&held.resources);
    let names = list(&held.resource_names);
    all(list(&held.api_groups), list(&wanted.api_groups))
        && (has(resources, resource) || subresource.is_some_and(|s| resources.contains(&s)))
        && (names.is_empty()
            || (!list(&wanted.resource_names).is_empty()
                && list(&wanted.resource_names).iter().all(|n| names.contains(n))))
}

/// Rules of one verb each put together where they differ by their verbs alone.
pub fn compacted(rules: Vec<PolicyRule>) -> Vec<PolicyRule> {
    let mut out: Vec<PolicyRule> = Vec::new();
    for rule in rules {
        let same = |o: &&mut PolicyRule| {
            rule.resources.is_some()
                && (&o.api_groups, &o.resources, &o.resource_names)
                    == (&rule.api_groups, &rule.resources, &rule.resource_names)
        };
        match out.iter_mut().find(same) {
            Some(before) => before.verbs.extend(rule.verbs),
            None => out.push(rule),
        }
    }
    out
}

/// As upstream shows a rule: `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`.
pub fn describe(rule: &PolicyRule) -> String {
    let mut parts = Vec::new();
    let mut add = |name: &str, values: &[String]| {
        if !values.is_empty() {
            let quoted: Vec<String> = values.iter().map(|v| format!("\"{v}\"")).collect();
            parts.push(format!("{name}:[{}]", quoted.join(" ")));
        }
    };
    add("APIGroups", list(&rule.api_groups));
    add("Resources", list(&rule.resources));
    add("ResourceNames", list(&rule.resource_names));
    add("NonResourceURLs", list(&rule.non_resource_urls));
    add("Verbs", &rule.verbs);
    format!("{{{}}}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> PolicyRule {
        let own = |v: &[&str]| v.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        PolicyRule {
            verbs: own(verbs),
            api_groups: Some(own(groups)),
            resources: Some(own(resources)),
            resource_names: (!names.is_empty()).then(|| own(names)),
            non_resource_urls: None,
        }
    }

    fn wanted(verb: &str, group: &str, resource: &str, sub: &str, name: &str) -> Attributes {
        Attributes {
            verb: verb.into(),
            group: group.into(),
            resource: resource.into(),
            subresource: sub.into(),
            name: name.into(),
            ..Attributes::default()
        }
    }

    #[test]
    fn rules_allow() {
        let r = rule(&["get"], &[""], &["pods", "pods/log", "*/scale"], &[]);
        for (w, allowed) in [
            (wanted("get", "", "pods", "", ""), true),
            (wanted("get", "", "pods", "log", "x"), true),
            (wanted("get", "", "pods", "exec", "x"), false),
            (wanted("get", "", "anything", "scale", "x"), true),
            (wanted("list", "", "pods", "", ""), false),
            (wanted("get", "apps", "pods", "", ""), false),
        ] {
            assert_eq!(allows(&r, &w), allowed, "{w:?}");
        }
        let audience = rule(&["use"], &[""], &["https://example.com/a"], &[]);
        assert!(allows(&audience, &wanted("use", "", "https://example.com/a", "", "x")));
        assert!(!allows(&audience, &wanted("use", "", "https:", "", "x")));
        let deep = rule(&["use"], &[""], &["https://example.com/a/sub"], &[]);
        assert!(allows(&deep, &wanted("use", "", "https://example.com/a", "sub", "")));
        assert!(!allows(&deep, &wanted("use", "", "https://example.com/a", "other", "")));
        let named = rule(&["*"], &["*"], &["*"], &["a"]);
        assert!(allows(&named, &wanted("get", "x", "y", "z", "a")));
        assert!(!allows(&named, &wanted("get", "x", "y", "z", "b")));
        let url = PolicyRule {
            verbs: vec!["get".into()],
            non_resource_urls: Some(vec!["/healthz".into(), "/api/*".into()]),
            ..PolicyRule::default()
        };
        let path = |p: &str| Attributes { verb: "get".into(), path: p.into(), ..Attributes::default() };
        assert!(allows(&url, &path("/healthz")) && allows(&url, &path("/api/v1")));
        assert!(!allows(&url, &path("/healthz/x")));
    }

    #[test]
    fn rules_cover() {
        let held = [rule(&["get", "list"], &[""], &["pods"], &[]), rule(&["*"], &["apps"], &["*"], &[])];
        assert!(uncovered(&held, &[rule(&["get"], &[""], &["pods"], &["x"])]).is_empty());
        assert!(uncovered(&held, &[rule(&["delete"], &["apps"], &["deployments"], &[])]).is_empty());
        let missing = uncovered(&held, &[rule(&["get", "delete"], &[""], &["pods"], &[])]);
        assert_eq!(missing.len(), 1);
        assert_eq!(describe(&missing[0]), "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}");
    }

    #[test]
    fn verbs_of_one_thing_are_told_together() {
        let rules = ["get", "list"].map(|v| rule(&[v], &[""], &["secrets"], &[]));
        let other = rule(&["get"], &[""], &["secrets"], &["a"]);
        let told = compacted([rules.to_vec(), vec![other]].concat());
        let told: Vec<String> = told.iter().map(describe).collect();
        let want = [
            r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list"]}"#,
            r#"{APIGroups:[""], Resources:["secrets"], ResourceNames:["a"], Verbs:["get"]}"#,
        ];
        assert_eq!(told, want);
    }
}
