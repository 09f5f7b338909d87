//! Policy rules: what a rule allows, and whether one set of rules covers another.

use k8s_openapi::api::rbac::v1::PolicyRule;

use super::Attributes;

/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

fn list(values: &Option<Vec<String>>) -> &[String] {
    values.as_deref().unwrap_or_default()
}

fn has(values: &[String], wanted: &str) -> bool {
    values.iter().any(|v| v == "*" || v == wanted)
}

/// Returns whether the rule allows the request.
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
        // A resource that exists for authorization only, such as an audience, may itself contain slashes.
        return rule == resource;
    }
    // The resource may contain slashes here, too.
    let of = |resource: &str| rule.strip_prefix(resource).and_then(|rest| rest.strip_prefix('/'));
    [of(resource), of("*")].contains(&Some(subresource))
}

/// Returns the rules of `wanted` that `held` does not cover, each reduced to one verb, group, resource and name. The
/// iterator is lazy, because there may be very many: see [`comparable`].
pub fn uncovered<'r>(
    held: &'r [PolicyRule],
    wanted: &'r [PolicyRule],
) -> impl Iterator<Item = PolicyRule> + 'r {
    wanted.iter().flat_map(breakdown).filter(|w| !held.iter().any(|h| covers(h, w)))
}

/// The maximum number of rules, with one verb, group, resource and name each, that are compared.
pub const MOST_RULES: u64 = 100_000;
/// The maximum number of string comparisons of one check, some tenths of a second.
const MOST_COMPARISONS: u64 = 100_000_000;

/// Returns the wanted rules that no held rule covers as a whole; `None` if comparing them with `held` one by one
/// would exceed the limits.
pub fn comparable<'r>(
    held: &[PolicyRule],
    wanted: &'r [PolicyRule],
) -> Option<impl Iterator<Item = &'r PolicyRule> + use<'r>> {
    let held_words: u64 = held.iter().map(words).sum();
    let wanted_words: u64 = wanted.iter().map(words).sum();
    if held_words.saturating_mul(wanted_words) > MOST_COMPARISONS {
        return None;
    }
    let left: Vec<&PolicyRule> = wanted.iter().filter(|w| !held.iter().any(|h| covers_whole(h, w))).collect();
    let rules = left.iter().fold(0_u64, |sum, rule| sum.saturating_add(breadth(rule)));
    let fits = rules <= MOST_RULES && rules.saturating_mul(held_words) <= MOST_COMPARISONS;
    fits.then(|| left.into_iter())
}

fn lists(rule: &PolicyRule) -> [&[String]; 5] {
    let PolicyRule { verbs, api_groups, resources, resource_names, non_resource_urls } = rule;
    [verbs, list(api_groups), list(resources), list(resource_names), list(non_resource_urls)]
}

fn words(rule: &PolicyRule) -> u64 {
    lists(rule).iter().map(|list| list.len() as u64).sum()
}

/// Returns the number of rules into which [`uncovered`] splits this one.
fn breadth(rule: &PolicyRule) -> u64 {
    let [verbs, groups, resources, names, urls] = lists(rule).map(|list| list.len() as u64);
    let named = groups.saturating_mul(resources).saturating_mul(names.max(1));
    verbs.saturating_mul(named.saturating_add(urls))
}

/// Returns whether one held rule covers a wanted rule as a whole. Coverage of subresources by `*/part` is left to
/// [`covers`].
fn covers_whole(held: &PolicyRule, wanted: &PolicyRule) -> bool {
    let all = |h: &[String], w: &[String]| has(h, "*") || w.iter().all(|w| h.contains(w));
    let [verbs, groups, resources, names, urls] = lists(held);
    let [w_verbs, w_groups, w_resources, w_names, w_urls] = lists(wanted);
    let named = names.is_empty() || !w_names.is_empty() && w_names.iter().all(|w| names.contains(w));
    let of_resources =
        w_resources.is_empty() || all(groups, w_groups) && all(resources, w_resources) && named;
    all(verbs, w_verbs) && of_resources && all(urls, w_urls)
}

fn breakdown(rule: &PolicyRule) -> impl Iterator<Item = PolicyRule> + '_ {
    let one = |v: &String| Some(vec![v.clone()]);
    rule.verbs.iter().flat_map(move |verb| {
        let of_verb = move || PolicyRule { verbs: vec![verb.clone()], ..PolicyRule::default() };
        let resources = list(&rule.api_groups).iter().flat_map(move |group| {
            list(&rule.resources).iter().flat_map(move |resource| {
                let of_resource = move |names: Option<Vec<String>>| PolicyRule {
                    api_groups: one(group),
                    resources: one(resource),
                    resource_names: names,
                    ..of_verb()
                };
                let names = list(&rule.resource_names);
                let all = names.is_empty().then(|| of_resource(None));
                all.into_iter().chain(names.iter().map(move |name| of_resource(one(name))))
            })
        });
        let urls = list(&rule.non_resource_urls).iter();
        resources.chain(urls.map(move |url| PolicyRule { non_resource_urls: one(url), ..of_verb() }))
    })
}

/// Returns whether a rule covers `wanted`, which has at most one value in each field.
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

/// Merges rules of one verb each that differ only in their verbs.
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

/// Formats a rule as upstream does: `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`.
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
        let uncovered = |wanted: PolicyRule| uncovered(&held, &[wanted]).collect::<Vec<_>>();
        assert!(uncovered(rule(&["get"], &[""], &["pods"], &["x"])).is_empty());
        assert!(uncovered(rule(&["delete"], &["apps"], &["deployments"], &[])).is_empty());
        let missing = uncovered(rule(&["get", "delete"], &[""], &["pods"], &[]));
        assert_eq!(missing.len(), 1);
        assert_eq!(describe(&missing[0]), "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}");
    }

    #[test]
    fn whole_rules_are_covered_or_cut() {
        let url = |urls: &[&str]| PolicyRule {
            verbs: vec!["get".into()],
            non_resource_urls: Some(urls.iter().map(|u| (*u).to_owned()).collect()),
            ..PolicyRule::default()
        };
        let held = [rule(&["get", "list"], &[""], &["pods"], &[]), rule(&["*"], &["apps"], &["*"], &["a"])];
        for (wanted, covered) in [
            (rule(&["list", "get"], &[""], &["pods"], &[]), true),
            (rule(&["list", "get"], &[""], &["pods"], &["x"]), true),
            (rule(&["get"], &["", "apps"], &["pods"], &[]), false),
            (rule(&["get"], &["apps"], &["x", "y"], &["a"]), true),
            (rule(&["get"], &["apps"], &["x", "y"], &["a", "b"]), false),
            (rule(&["get"], &["apps"], &["x", "y"], &[]), false),
            (url(&["/x"]), false),
        ] {
            assert_eq!(held.iter().any(|h| covers_whole(h, &wanted)), covered, "{wanted:?}");
            assert_eq!(uncovered(&held, std::slice::from_ref(&wanted)).count() == 0, covered, "{wanted:?}");
            let left = comparable(&held, std::slice::from_ref(&wanted)).unwrap().count();
            assert_eq!(left, usize::from(!covered));
        }
        assert!(!covers_whole(&held[0], &url(&["/x"])));
        assert!(covers_whole(&url(&["/x", "/y"]), &url(&["/y"])));
    }

    #[test]
    fn the_number_of_rules_that_are_compared_has_a_limit() {
        let words = |n: usize| (0..n).map(|i| format!("w{i}")).collect::<Vec<_>>();
        let cube = |n: usize| PolicyRule {
            verbs: words(n),
            api_groups: Some(words(n)),
            resources: Some(words(n)),
            resource_names: Some(words(n)),
            non_resource_urls: None,
        };
        let everything = [rule(&["*"], &["*"], &["*"], &[])];
        assert_eq!((breadth(&cube(17)), breadth(&cube(18))), (83_521, 104_976));
        for (held, wanted, fits) in [
            (&[][..], vec![cube(17)], true),
            (&[], vec![cube(18)], false),
            (&[], vec![cube(17), cube(17)], false),
            (&[], vec![cube(400)], false),
            // A user with all permissions may also grant this.
            (&everything, vec![cube(400)], true),
        ] {
            assert_eq!(comparable(held, &wanted).is_some(), fits);
        }
        let mut long = cube(1);
        long.resource_names = Some(words(20_000));
        assert!(comparable(&[long.clone()], &[long]).is_none());
        // The iterator is lazy.
        assert_eq!(uncovered(&[], &[cube(400)]).take(3).count(), 3);
    }

    #[test]
    fn verbs_of_one_thing_are_told_together() {
        let rules = ["get", "list"].map(|v| rule(&[v], &[""], &["secrets"], &[]));
        let other = rule(&["get"], &[""], &["secrets"], &["a"]);
        let merged = compacted([rules.to_vec(), vec![other]].concat());
        let merged: Vec<String> = merged.iter().map(describe).collect();
        let want = [
            r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list"]}"#,
            r#"{APIGroups:[""], Resources:["secrets"], ResourceNames:["a"], Verbs:["get"]}"#,
        ];
        assert_eq!(merged, want);
    }
}
