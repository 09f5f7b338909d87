//! The audit policy: which requests are recorded, at which level and stages.

use serde::Deserialize;

use knarr_auth::authn::UserInfo;
use knarr_wire::request_info::RequestInfo;

/// The audit levels, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
pub enum Level {
    #[default]
    None,
    Metadata,
    Request,
    RequestResponse,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }
}

/// A stage of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Stage {
    RequestReceived,
    /// The headers of a long-running response have been sent.
    ResponseStarted,
    ResponseComplete,
    Panic,
}

impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    #[allow(dead_code, reason = "accepted in the file, but without effect")]
    metadata: serde_json::Value,
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    level: Level,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<Resources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Resources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

/// The result of the policy for one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    pub level: Level,
    pub omit_stages: Vec<Stage>,
    pub omit_managed_fields: bool,
}

impl Policy {
    /// Parses a policy from YAML or JSON.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let policy: Self = serde_saphyr::from_str(knarr_reload::text(bytes)?)
            .map_err(|e| format!("failed decoding audit policy: {e}"))?;
        if policy.kind != "Policy" || policy.api_version != "audit.k8s.io/v1" {
            return Err(format!(
                "no kind \"{}\" is registered for version \"{}\" in scheme: audit policies are of audit.k8s.io/v1",
                policy.kind, policy.api_version
            ));
        }
        if policy.rules.is_empty() {
            return Err("loaded illegal policy with 0 rules".into());
        }
        for (at, rule) in policy.rules.iter().enumerate() {
            let resources = !rule.resources.is_empty() || !rule.namespaces.is_empty();
            if resources && !rule.non_resource_urls.is_empty() {
                return Err(format!(
                    "rules[{at}].nonResourceURLs: Invalid value: rules cannot apply to both regular resources and non-resource URLs"
                ));
            }
            for url in &rule.non_resource_urls {
                let star = url.find('*');
                if url != "*" && (!url.starts_with('/') || star.is_some_and(|s| s + 1 != url.len())) {
                    return Err(format!(
                        "rules[{at}].nonResourceURLs: Invalid value: {url:?}: non-resource URL rules must begin with a '/' character and non-resource URL wildcards '*' must be the final character of the rule"
                    ));
                }
            }
            for resources in &rule.resources {
                if !resources.resource_names.is_empty() && resources.resources.is_empty() {
                    return Err(format!(
                        "rules[{at}].resources.resourceNames: Invalid value: using resourceNames requires at least one resource"
                    ));
                }
            }
        }
        Ok(policy)
    }

    /// Returns the level and stages of the first rule that matches.
    pub fn evaluate(&self, user: &UserInfo, info: &RequestInfo) -> Wanted {
        let rule = self.rules.iter().find(|r| r.matches(user, info));
        let Some(rule) = rule else {
            return Wanted {
                level: Level::None,
                omit_stages: self.omit_stages.clone(),
                omit_managed_fields: self.omit_managed_fields,
            };
        };
        let mut omit_stages = self.omit_stages.clone();
        omit_stages.extend(&rule.omit_stages);
        Wanted {
            level: rule.level,
            omit_stages,
            omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
        }
    }
}

impl Rule {
    fn matches(&self, user: &UserInfo, info: &RequestInfo) -> bool {
        let any = |list: &[String], value: &str| list.is_empty() || list.iter().any(|v| v == value);
        if !any(&self.users, &user.name)
            || !self.user_groups.is_empty() && !self.user_groups.iter().any(|g| user.in_group(g))
            || !any(&self.verbs, &info.verb)
        {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return info.is_resource && self.matches_resource(info);
        }
        if !self.non_resource_urls.is_empty() {
            return !info.is_resource
                && self.non_resource_urls.iter().any(|url| url_matches(url, &info.path));
        }
        true
    }

    fn matches_resource(&self, info: &RequestInfo) -> bool {
        if !self.namespaces.is_empty() && !self.namespaces.contains(&info.namespace) {
            return false;
        }
        self.resources.is_empty() || self.resources.iter().any(|r| r.matches(info))
    }
}

impl Resources {
    fn matches(&self, info: &RequestInfo) -> bool {
        if self.group != info.group {
            return false;
        }
        let full = if info.subresource.is_empty() {
            info.resource.clone()
        } else {
            format!("{}/{}", info.resource, info.subresource)
        };
        let named = self.resource_names.is_empty() || self.resource_names.contains(&info.name);
        self.resources.is_empty()
            || named
                && self.resources.iter().any(|wanted| {
                    *wanted == full
                        || wanted == "*"
                        || wanted.strip_prefix("*/").is_some_and(|sub| sub == info.subresource)
                        || wanted.strip_suffix("/*").is_some_and(|resource| resource == info.resource)
                })
    }
}

fn url_matches(wanted: &str, path: &str) -> bool {
    wanted == "*" || wanted == path || wanted.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;
    use knarr_wire::query::Query;

    const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: ["system:kube-proxy"]
  verbs: ["watch"]
  resources: [{group: "", resources: ["endpoints", "services"]}]
- level: None
  nonResourceURLs: ["/healthz*", "/version"]
- level: Metadata
  resources: [{group: "", resources: ["secrets", "*/status"]}]
- level: Request
  resources: [{group: "", resources: ["configmaps"], resourceNames: ["controller-leader"]}]
  namespaces: ["kube-system"]
  omitStages: [ResponseStarted]
  omitManagedFields: true
- level: RequestResponse
  userGroups: ["auditors"]
- level: Metadata
  resources: [{group: "apps", resources: ["deployments/*"]}]
"#;

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy = Policy::parse(POLICY.as_bytes()).unwrap();
        let level = |user: &UserInfo, method: Method, uri: &str| {
            let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
            policy.evaluate(user, &RequestInfo::parse(&method, path, &Query::parse(query)))
        };
        let (proxy, ann) = (UserInfo::new("system:kube-proxy", &[]), UserInfo::new("ann", &["auditors"]));
        for (user, uri, expected) in [
            (&proxy, "/api/v1/services?watch=1", Level::None),
            (&proxy, "/api/v1/pods?watch=1", Level::None),
            (&ann, "/healthz/ping", Level::None),
            (&ann, "/api/v1/namespaces/a/secrets/s", Level::Metadata),
            (&ann, "/api/v1/namespaces/a/pods/p/status", Level::Metadata),
            (&proxy, "/api/v1/namespaces/kube-system/configmaps/controller-leader", Level::Request),
            (&proxy, "/api/v1/namespaces/default/configmaps/controller-leader", Level::None),
            (&ann, "/api/v1/pods", Level::RequestResponse),
            (&proxy, "/apis/apps/v1/namespaces/a/deployments/d/scale", Level::Metadata),
        ] {
            assert_eq!(level(user, Method::GET, uri).level, expected, "{uri}");
        }
        let found = level(&proxy, Method::GET, "/api/v1/namespaces/kube-system/configmaps/controller-leader");
        assert_eq!(found.omit_stages, [Stage::RequestReceived, Stage::ResponseStarted]);
        assert!(found.omit_managed_fields);
    }

    #[test]
    fn wrong_policies_are_refused() {
        for (text, why) in [
            ("kind: Policy\napiVersion: audit.k8s.io/v1\nrules: []", "0 rules"),
            ("kind: Policy\napiVersion: audit.k8s.io/v1\nrules: [{level: Loud}]", "failed decoding"),
            ("kind: Other\napiVersion: audit.k8s.io/v1\nrules: [{level: None}]", "no kind \"Other\""),
            (
                "kind: Policy\napiVersion: audit.k8s.io/v1\nrules: [{level: None, namespaces: [a], nonResourceURLs: [/x]}]",
                "both regular resources",
            ),
            (
                "kind: Policy\napiVersion: audit.k8s.io/v1\nrules: [{level: None, nonResourceURLs: ['/x*/y']}]",
                "final character",
            ),
        ] {
            let error = Policy::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
