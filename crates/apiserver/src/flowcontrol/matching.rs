//! Matches requests with flow schemas.

use k8s_openapi::api::flowcontrol::v1::{
    FlowSchemaSpec, NonResourcePolicyRule, PolicyRulesWithSubjects, ResourcePolicyRule, Subject,
};

use knarr_auth::authn::UserInfo;
use knarr_wire::request_info::RequestInfo;

pub fn matches(spec: &FlowSchemaSpec, user: &UserInfo, info: &RequestInfo) -> bool {
    spec.rules.iter().flatten().any(|rule| rule_matches(rule, user, info))
}

fn rule_matches(rule: &PolicyRulesWithSubjects, user: &UserInfo, info: &RequestInfo) -> bool {
    if !rule.subjects.iter().any(|s| subject_matches(s, user)) {
        return false;
    }
    if info.is_resource {
        rule.resource_rules.iter().flatten().any(|r| resource_matches(r, info))
    } else {
        rule.non_resource_rules.iter().flatten().any(|r| path_matches(r, info))
    }
}

fn subject_matches(subject: &Subject, user: &UserInfo) -> bool {
    match subject.kind.as_str() {
        "User" => subject.user.as_ref().is_some_and(|u| u.name == "*" || u.name == user.name),
        "Group" => subject.group.as_ref().is_some_and(|g| g.name == "*" || user.in_group(&g.name)),
        "ServiceAccount" => subject.service_account.as_ref().is_some_and(|wanted| {
            let account = user.name.strip_prefix("system:serviceaccount:").and_then(|n| n.split_once(':'));
            account.is_some_and(|(namespace, name)| {
                namespace == wanted.namespace && (wanted.name == "*" || name == wanted.name)
            })
        }),
        _ => false,
    }
}

/// Returns whether the list has the value. The wildcard `all` counts only if it is the only entry.
fn has(list: &[String], value: &str, all: &str) -> bool {
    matches!(list, [one] if one == all) || list.iter().any(|v| v == value)
}

fn resource_matches(rule: &ResourcePolicyRule, info: &RequestInfo) -> bool {
    let resource = if info.subresource.is_empty() {
        info.resource.clone()
    } else {
        format!("{}/{}", info.resource, info.subresource)
    };
    if !has(&rule.verbs, &info.verb, "*")
        || !has(&rule.resources, &resource, "*")
        || !has(&rule.api_groups, &info.group, "*")
    {
        return false;
    }
    if info.namespace.is_empty() {
        return rule.cluster_scope.unwrap_or(false);
    }
    has(rule.namespaces.as_deref().unwrap_or_default(), &info.namespace, "*")
}

fn path_matches(rule: &NonResourcePolicyRule, info: &RequestInfo) -> bool {
    has(&rule.verbs, &info.verb, "*")
        && rule.non_resource_urls.iter().any(|url| {
            if url == "*" || *url == info.path {
                return true;
            }
            let prefix = url.strip_suffix('*').unwrap_or(url);
            let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
            info.path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flowcontrol::defaults;
    use http::Method;
    use knarr_wire::query::Query;

    fn schema_of(user: &UserInfo, method: Method, uri: &str) -> String {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let info = RequestInfo::parse(&method, path, &Query::parse(query));
        let mut schemas: Vec<_> = defaults::schemas()
            .into_iter()
            .map(|v| {
                let spec: FlowSchemaSpec = serde_json::from_value(v["spec"].clone()).unwrap();
                (spec.matching_precedence.unwrap(), v["metadata"]["name"].as_str().unwrap().to_owned(), spec)
            })
            .collect();
        schemas.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        schemas.into_iter().find(|(_, _, spec)| matches(spec, user, &info)).unwrap().1
    }

    #[test]
    fn requests_find_the_default_schemas() {
        let node = UserInfo::new("system:node:n", &["system:nodes"]);
        let account = |ns: &str| {
            let name = format!("system:serviceaccount:{ns}:x");
            UserInfo::new(&name, &["system:serviceaccounts", &format!("system:serviceaccounts:{ns}")])
        };
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
        for (user, method, uri, schema) in [
            (UserInfo::new("admin", &["system:masters"]), Method::GET, "/api/v1/pods", "exempt"),
            (UserInfo::anonymous(), Method::GET, "/livez", "probes"),
            (UserInfo::anonymous(), Method::GET, "/readyz/etcd", "probes"),
            (UserInfo::anonymous(), Method::GET, "/version", "global-default"),
            (node.clone(), Method::PUT, leases, "system-node-high"),
            (node.clone(), Method::PATCH, "/api/v1/nodes/n/status", "system-node-high"),
            (node, Method::GET, "/api/v1/pods", "system-nodes"),
            (account("kube-system"), Method::GET, leases, "system-leader-election"),
            (account("kube-system"), Method::GET, "/api/v1/pods", "kube-system-service-accounts"),
            (account("default"), Method::GET, "/api/v1/pods", "service-accounts"),
            (UserInfo::new("system:kube-scheduler", &[]), Method::GET, "/api/v1/pods", "kube-scheduler"),
            (UserInfo::new("ann", &[]), Method::GET, "/api/v1/pods", "global-default"),
        ] {
            assert_eq!(schema_of(&user, method, uri), schema, "{uri} by {}", user.name);
        }
    }
}
