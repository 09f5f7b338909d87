//! Derives the attributes of a request from its method and path: verb, group, version, resource, namespace, name,
//! subresource.

use http::Method;
use knarr_apimachinery::names;
use knarr_apimachinery::selector::{FieldSelector, Selector};

use super::query::{Query, decode};

/// Source: `k8s.io/apiserver/pkg/endpoints/request.RequestInfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestInfo {
    pub is_resource: bool,
    /// The decoded path.
    pub path: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for non-resource paths, the
    /// lower-case method.
    pub verb: String,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    /// Empty for cluster scope and for all namespaces.
    pub namespace: String,
    /// The name of the object. Handlers act on no other object, because authorization checks this name.
    pub name: String,
    /// Whether the name comes from the field selector, not from the path.
    pub selected_name: bool,
    /// Whether the path contains a namespace. Namespaced resources require it, others forbid it.
    pub in_namespace: bool,
    /// Whether the path has an empty segment, so that it is invalid.
    pub malformed: bool,
    /// Whether the path ends after `watch` or `proxy`, so that its resource is unknown.
    pub undetermined: bool,
    /// Whether the path is a deprecated one that begins with `watch`.
    pub watch_path: bool,
    /// The path after the subresource, with a leading slash: the path of a proxy request.
    pub rest: String,
}

impl RequestInfo {
    /// Parses the original `path`. Escapes are decoded before it is split, so an escaped slash separates segments
    /// like any other.
    pub fn parse(method: &Method, path: &str, query: &Query) -> Self {
        let path = decode(path, false);
        let mut parts: Vec<String> = path.trim_matches('/').split('/').map(str::to_owned).collect();
        let mut info = Self { path, verb: method.as_str().to_ascii_lowercase(), ..Self::default() };
        let prefix = match parts.first().map(String::as_str) {
            Some("api") => 2,
            Some("apis") => 3,
            _ => return info,
        };
        if parts.len() <= prefix {
            return info;
        }
        info.malformed = info.path.starts_with("//") || parts.iter().take(prefix).any(String::is_empty);
        if prefix == 3 {
            info.group = std::mem::take(&mut parts[1]);
        }
        info.version = std::mem::take(&mut parts[prefix - 1]);
        info.is_resource = true;
        parts.drain(..prefix);
        info.verb = match *method {
            Method::POST => "create",
            Method::GET | Method::HEAD => "get",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "",
        }
        .to_owned();
        // The deprecated paths name their verb, whatever the method; those of `proxy` are not served any more.
        if matches!(parts[0].as_str(), "watch" | "proxy") {
            if parts.len() < 2 {
                info.undetermined = true;
                return info;
            }
            info.verb = parts.remove(0);
            info.watch_path = info.verb == "watch";
        }
        info.take_parts(parts);
        info.refine_verb(query);
        info
    }

    fn take_parts(&mut self, mut parts: Vec<String>) {
        if parts[0] == "namespaces"
            && let Some(namespace) = parts.get(1)
        {
            self.malformed |= namespace.is_empty();
            self.namespace.clone_from(namespace);
            // Except for a namespace's own subresources, the rest is a resource in the namespace.
            if parts.len() > 2 && !matches!(parts[2].as_str(), "status" | "finalize") {
                parts.drain(..2);
                self.in_namespace = true;
            }
        }
        self.malformed |= parts.iter().take(3).any(String::is_empty);
        let mut parts = parts.into_iter();
        self.resource = parts.next().unwrap_or_default();
        self.name = parts.next().unwrap_or_default();
        // After the name follows the backend's path, not a subresource.
        if self.verb != "proxy" {
            self.subresource = parts.next().unwrap_or_default();
        }
        let rest: Vec<String> = parts.filter(|p| !p.is_empty()).collect();
        if !rest.is_empty() {
            self.rest = format!("/{}", rest.join("/"));
        }
    }

    fn refine_verb(&mut self, query: &Query) {
        if self.name.is_empty() && self.verb == "get" {
            self.verb = if query.flag("watch") { "watch" } else { "list" }.into();
            // A list that selects one name is authorized as a request for that name.
            if let Some(name) = name_of_list(query) {
                self.name = name;
                self.selected_name = true;
            }
        } else if self.name.is_empty() && self.verb == "delete" {
            self.verb = "deletecollection".into();
        }
    }

    /// Returns whether the request is exempt from the request timeout.
    pub fn is_long_running(&self) -> bool {
        self.is_resource
            && (matches!(self.verb.as_str(), "watch" | "proxy")
                || matches!(self.subresource.as_str(), "exec" | "attach" | "portforward" | "proxy" | "log"))
    }
}

/// Returns the one name that a list selects. The parameters are parsed as the handlers do; if one of them is invalid,
/// no name is selected.
fn name_of_list(query: &Query) -> Option<String> {
    let selector = FieldSelector::parse(query.get("fieldSelector")?).ok()?;
    Selector::parse(query.get("labelSelector").unwrap_or("")).ok()?;
    for number in ["limit", "timeoutSeconds"] {
        query.number(number).ok()?;
    }
    let name = selector.requires_exact("metadata.name")?;
    (!name.is_empty() && names::path_segment_name(name).is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(method: Method, uri: &str) -> String {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let i = RequestInfo::parse(&method, path, &Query::parse(query));
        if !i.is_resource {
            return format!("{} {}", i.verb, i.path);
        }
        format!(
            "{} {}/{} {} ns={} name={} sub={} rest={}",
            i.verb, i.group, i.version, i.resource, i.namespace, i.name, i.subresource, i.rest
        )
    }

    #[test]
    fn reads_paths() {
        for (method, uri, expected) in [
            (Method::GET, "/healthz", "get /healthz"),
            (Method::GET, "/api", "get /api"),
            (Method::GET, "/api/v1", "get /api/v1"),
            (Method::GET, "/apis/apps/v1", "get /apis/apps/v1"),
            (Method::GET, "/api/v1/pods", "list /v1 pods ns= name= sub= rest="),
            (Method::GET, "/api/v1/pods?watch=true", "watch /v1 pods ns= name= sub= rest="),
            (
                Method::GET,
                "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx",
                "list /v1 pods ns=a name=x sub= rest=",
            ),
            (Method::GET, "/api/v1/namespaces", "list /v1 namespaces ns= name= sub= rest="),
            (Method::GET, "/api/v1/namespaces/a", "get /v1 namespaces ns=a name=a sub= rest="),
            (
                Method::PUT,
                "/api/v1/namespaces/a/finalize",
                "update /v1 namespaces ns=a name=a sub=finalize rest=",
            ),
            (
                Method::POST,
                "/apis/apps/v1/namespaces/a/deployments",
                "create apps/v1 deployments ns=a name= sub= rest=",
            ),
            (
                Method::PATCH,
                "/apis/apps/v1/namespaces/a/deployments/d/scale",
                "patch apps/v1 deployments ns=a name=d sub=scale rest=",
            ),
            (Method::DELETE, "/api/v1/namespaces/a/pods", "deletecollection /v1 pods ns=a name= sub= rest="),
            (
                Method::GET,
                "/api/v1/namespaces/a/secrets?fieldSelector=type%21%3Dx%5C%2Cmetadata.name%5C%3Dy",
                "list /v1 secrets ns=a name= sub= rest=",
            ),
            (
                Method::GET,
                "/api/v1/secrets?fieldSelector=metadata.name%3Dx%5C%2Cy",
                "list /v1 secrets ns= name=x,y sub= rest=",
            ),
            (
                Method::GET,
                "/api/v1/pods?fieldSelector=metadata.name%3D..",
                "list /v1 pods ns= name= sub= rest=",
            ),
            (
                Method::GET,
                "/api/v1/pods?fieldSelector=metadata.name%3Dx%2Cy",
                "list /v1 pods ns= name= sub= rest=",
            ),
            (Method::DELETE, "/api/v1/watch/nodes/n", "watch /v1 nodes ns= name=n sub= rest="),
            (
                Method::GET,
                "/api/v1/watch/nodes?fieldSelector=metadata.name%3Dx",
                "watch /v1 nodes ns= name= sub= rest=",
            ),
            (Method::GET, "/api/v1/proxy/nodes/n", "proxy /v1 nodes ns= name=n sub= rest="),
            (Method::GET, "/api/v1/proxy/nodes/n/status", "proxy /v1 nodes ns= name=n sub= rest=/status"),
            (Method::GET, "/api/v1/watch/namespaces/a/pods/p", "watch /v1 pods ns=a name=p sub= rest="),
            (
                Method::GET,
                "/api/v1/namespaces/a/services/s:80/proxy/x/y",
                "get /v1 services ns=a name=s:80 sub=proxy rest=/x/y",
            ),
            // Escapes are decoded first, empty segments are kept.
            (Method::GET, "/healthz%2Fping", "get /healthz/ping"),
            (
                Method::GET,
                "/api%2Fv1/namespaces%2Fa/pods%2Fp%2fexec",
                "get /v1 pods ns=a name=p sub=exec rest=",
            ),
            (
                Method::GET,
                "/api/v1/nodes/n/proxy/stats%2Fsummary",
                "get /v1 nodes ns= name=n sub=proxy rest=/stats/summary",
            ),
            (Method::GET, "//api/v1/pods//", "list /v1 pods ns= name= sub= rest="),
            (Method::GET, "/api//v1/pods", "get / v1 ns= name=pods sub= rest="),
            (Method::GET, "/api/v1/namespaces//pods", "list /v1 pods ns= name= sub= rest="),
            (Method::GET, "/api/v1/namespaces/a/pods//log", "list /v1 pods ns=a name= sub=log rest="),
        ] {
            assert_eq!(show(method, uri), expected, "{uri}");
        }
    }

    #[test]
    fn a_list_with_a_parameter_that_is_refused_names_nothing() {
        let selector = "fieldSelector=metadata.name%3Dx";
        for (query, name) in [
            ("limit=1&timeoutSeconds=1&labelSelector=a", "x"),
            ("limit=many", ""),
            ("limit=", ""),
            ("timeoutSeconds=soon", ""),
            ("labelSelector=a+in", ""),
            ("fieldSelector=%5C", ""),
            ("fieldSelector=%", "x"),
        ] {
            let query = Query::parse(&format!("{query}&{selector}&watch=1"));
            let info = RequestInfo::parse(&Method::GET, "/api/v1/pods", &query);
            assert_eq!((info.verb.as_str(), info.name.as_str()), ("watch", name), "{query:?}");
        }
    }

    #[test]
    fn what_a_path_is_about_can_be_told_or_not() {
        for (path, undetermined) in [
            ("/api/v1/watch", true),
            ("/api/v1/watch/", true),
            ("/apis/apps/v1/proxy", true),
            ("/api/v1/watch/pods", false),
            ("/api/v1/watch//pods", false),
            ("/api/watch", false),
        ] {
            let info = RequestInfo::parse(&Method::GET, path, &Query::default());
            assert_eq!(info.undetermined, undetermined, "{path}");
        }
    }

    #[test]
    fn segments_that_name_nothing_are_noticed() {
        for (path, malformed) in [
            ("/api/v1/namespaces/a/pods/", false),
            ("/api/v1/namespaces/a/services/s/proxy//x%2Fy/", false),
            ("/api/v1/nodes/n/proxy/", false),
            ("//api/v1/pods", true),
            ("/api//v1/pods", true),
            ("/apis//v1/pods", true),
            ("/api/v1//pods", true),
            ("/api/v1/namespaces//pods", true),
            ("/api/v1/namespaces/a//pods", true),
            ("/api/v1/namespaces/a/pods//log", true),
            ("/api/v1/namespaces/a/pods/p%2Flog", false),
            ("/api/v1/namespaces/%2fpods", true),
        ] {
            let info = RequestInfo::parse(&Method::GET, path, &Query::default());
            assert_eq!(info.malformed, malformed, "{path}");
        }
    }

    #[test]
    fn scope_is_the_paths() {
        for (path, in_namespace) in [
            ("/api/v1/pods", false),
            ("/api/v1/namespaces/a", false),
            ("/api/v1/namespaces/a/status", false),
            ("/api/v1/namespaces/a/pods", true),
            ("/api/v1/namespaces/a/namespaces/b", true),
            ("/api/v1/watch/namespaces/a/nodes/n", true),
        ] {
            let info = RequestInfo::parse(&Method::GET, path, &Query::default());
            assert_eq!(info.in_namespace, in_namespace, "{path}");
        }
    }
}
