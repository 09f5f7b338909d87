//! The routes of the server.

/// A pod, or one of its containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub namespace: String,
    pub pod: String,
    pub uid: Option<String>,
    /// Empty if the pod as a whole is meant.
    pub container: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// The path after `/healthz`.
    Healthz(String),
    Pods,
    RunningPods,
    Configz,
    Flagz,
    Statusz,
    StatsSummary,
    Metrics,
    ResourceMetrics,
    CadvisorMetrics,
    ProbeMetrics,
    ContainerLogs(Target),
    Exec(Target),
    Attach(Target),
    PortForward(Target),
    /// The folder of a provisioned volume.
    LocalPath(String),
    /// A file or folder of the node's logs; `None` without the slash after `/logs`.
    SystemLogs(Option<String>),
}

/// Returns the route of a decoded path; `None` if the path is not served.
pub fn route(path: &str) -> Option<Route> {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let container = |namespace: &str, pod: &str, uid: Option<&str>, container: &str| Target {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        uid: uid.map(str::to_owned),
        container: container.to_owned(),
    };
    Some(match parts.as_slice() {
        ["healthz", rest @ ..] => Route::Healthz(rest.join("/")),
        ["pods"] | ["pods", ""] => Route::Pods,
        ["runningpods"] | ["runningpods", ""] => Route::RunningPods,
        ["configz"] => Route::Configz,
        ["flagz"] => Route::Flagz,
        ["statusz"] => Route::Statusz,
        ["stats", "summary"] => Route::StatsSummary,
        ["metrics"] => Route::Metrics,
        ["metrics", "resource"] => Route::ResourceMetrics,
        ["metrics", "cadvisor"] => Route::CadvisorMetrics,
        ["metrics", "probes"] => Route::ProbeMetrics,
        ["containerLogs", ns, pod, name] => Route::ContainerLogs(container(ns, pod, None, name)),
        ["exec", ns, pod, name] => Route::Exec(container(ns, pod, None, name)),
        ["exec", ns, pod, uid, name] => Route::Exec(container(ns, pod, Some(uid), name)),
        ["attach", ns, pod, name] => Route::Attach(container(ns, pod, None, name)),
        ["attach", ns, pod, uid, name] => Route::Attach(container(ns, pod, Some(uid), name)),
        ["portForward", ns, pod] => Route::PortForward(container(ns, pod, None, "")),
        ["portForward", ns, pod, uid] => Route::PortForward(container(ns, pod, Some(uid), "")),
        ["logs"] => Route::SystemLogs(None),
        ["logs", rest @ ..] => Route::SystemLogs(Some(rest.join("/"))),
        ["volumes", "local-path", name] => Route::LocalPath((*name).to_owned()),
        _ => return None,
    })
}

/// Returns the subresources of `nodes` of which any one allows the request for this decoded path, the most
/// specific one first.
pub fn subresources(path: &str) -> &'static [&'static str] {
    let below =
        |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    match path {
        _ if below("/pods") || below("/runningpods") => &["pods", "proxy"],
        _ if below("/healthz") => &["healthz", "proxy"],
        _ if below("/configz") => &["configz", "proxy"],
        _ if below("/flagz") => &["configz"],
        _ if below("/statusz") => &["statusz"],
        _ if below("/stats") => &["stats"],
        _ if below("/metrics") => &["metrics"],
        _ if below("/logs") => &["log"],
        _ if below("/volumes/local-path") => &["local-path", "proxy"],
        _ => &["proxy"],
    }
}

/// Returns the API verb of an HTTP method.
pub fn verb(method: &http::Method) -> &'static str {
    match *method {
        http::Method::POST => "create",
        http::Method::GET | http::Method::HEAD => "get",
        http::Method::PUT => "update",
        http::Method::PATCH => "patch",
        http::Method::DELETE => "delete",
        _ => "",
    }
}

/// Decodes the percent encoding of a request's path, so that the same path is authorized and routed. `None` if it
/// is not UTF-8.
pub fn decoded(path: &str) -> Option<String> {
    percent_decoded(path, false)
}

fn percent_decoded(text: &str, plus_is_blank: bool) -> Option<String> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = bytes.get(i + 1..i + 3).filter(|_| bytes[i] == b'%');
        let value =
            hex.and_then(|h| std::str::from_utf8(h).ok()).and_then(|h| u8::from_str_radix(h, 16).ok());
        match value {
            Some(byte) => {
                out.push(byte);
                i += 2;
            }
            None if plus_is_blank && bytes[i] == b'+' => out.push(b' '),
            None => out.push(bytes[i]),
        }
        i += 1;
    }
    String::from_utf8(out).ok()
}

/// Returns the parameters of a query, in order.
pub fn query(text: &str) -> Vec<(String, String)> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let decoded = pairs.filter_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((percent_decoded(name, true)?, percent_decoded(value, true)?))
    });
    decoded.collect()
}

/// Returns whether a parameter is set to a true value.
pub fn flag(query: &[(String, String)], name: &str) -> bool {
    query
        .iter()
        .any(|(n, value)| n == name && matches!(value.as_str(), "1" | "true" | "True" | "TRUE" | "t" | "T"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let target = |uid: Option<&str>, container: &str| Target {
            namespace: "ns".into(),
            pod: "p".into(),
            uid: uid.map(str::to_owned),
            container: container.into(),
        };
        let table = [
            ("/healthz", Some(Route::Healthz(String::new()))),
            ("/healthz/", Some(Route::Healthz(String::new()))),
            ("/healthz/syncloop", Some(Route::Healthz("syncloop".into()))),
            ("/flagz", Some(Route::Flagz)),
            ("/flagz/", None),
            ("/statusz", Some(Route::Statusz)),
            ("/stats/summary", Some(Route::StatsSummary)),
            ("/metrics/resource", Some(Route::ResourceMetrics)),
            ("/logs", Some(Route::SystemLogs(None))),
            ("/logs/", Some(Route::SystemLogs(Some(String::new())))),
            ("/logs/pods/a.log", Some(Route::SystemLogs(Some("pods/a.log".into())))),
            ("/containerLogs/ns/p/c", Some(Route::ContainerLogs(target(None, "c")))),
            ("/exec/ns/p/c", Some(Route::Exec(target(None, "c")))),
            ("/exec/ns/p/u%2Fc", Some(Route::Exec(target(Some("u"), "c")))),
            ("/stats%2Fsummary", Some(Route::StatsSummary)),
            ("/exec/ns/p/u/c%2Fd", None),
            ("/portForward/ns/p", Some(Route::PortForward(target(None, "")))),
            ("/volumes/local-path/pvc-1", Some(Route::LocalPath("pvc-1".into()))),
            ("/exec/ns/p", None),
            ("/", None),
            ("/run/ns/p/c", None),
            ("/%ff", None),
        ];
        for (path, want) in table {
            assert_eq!(decoded(path).and_then(|path| route(&path)), want, "{path}");
        }
    }

    #[test]
    fn what_allows_a_request() {
        let table = [
            ("/pods", &["pods", "proxy"][..]),
            ("/podsx", &["proxy"]),
            ("/flagz", &["configz"]),
            ("/statusz", &["statusz"]),
            ("/metrics/resource", &["metrics"]),
            ("/exec/a/b/c", &["proxy"]),
            ("/containerLogs/a/b/c", &["proxy"]),
            ("/volumes/local-path/pvc-1", &["local-path", "proxy"]),
            ("/volumes/other", &["proxy"]),
        ];
        for (path, want) in table {
            assert_eq!(subresources(path), want, "{path}");
        }
    }

    #[test]
    fn queries() {
        let q = query("command=sh&command=-c&command=echo+%22a%26b%22&tty=1&input=false&x");
        let commands: Vec<&str> = q.iter().filter(|(n, _)| n == "command").map(|(_, v)| v.as_str()).collect();
        assert_eq!(commands, ["sh", "-c", "echo \"a&b\""]);
        assert!(flag(&q, "tty") && !flag(&q, "input") && !flag(&q, "x"));
    }
}
