//! The number of requests to the kubelet's server: `kubelet_http_requests_total`, with upstream's labels.

use http::Method;
use knarr_apimachinery::metric_families;
use knarr_apimachinery::metrics::{Kind, Registry};

metric_families! {
    Requests, Kind::Counter, "kubelet_http_requests_total", ["method", "path", "server_type", "long_running"],
        "[ALPHA] Requests received by the kubelet's server.";
}

/// The first segments of the paths that are served; all others are counted as one.
const ROOTS: [&str; 14] = [
    "attach",
    "configz",
    "containerLogs",
    "exec",
    "flagz",
    "healthz",
    "logs",
    "metrics",
    "pods",
    "portForward",
    "runningpods",
    "stats",
    "statusz",
    "volumes",
];
const METRICS: [&str; 4] = ["metrics", "metrics/cadvisor", "metrics/probes", "metrics/resource"];

pub struct RequestCounts(Registry);

impl Default for RequestCounts {
    fn default() -> Self {
        Self(Registry::new(FAMILIES))
    }
}

/// Returns `exec` for `/exec/ns/pod/c`, and `metrics/cadvisor` for that path; empty for unknown paths.
fn root(path: &str) -> &'static str {
    let path = path.trim_matches('/');
    if let Some(known) = METRICS.iter().find(|known| **known == path) {
        return known;
    }
    let first = path.split('/').next().unwrap_or("");
    ROOTS.iter().find(|known| **known == first && first != "metrics").copied().unwrap_or("")
}

impl RequestCounts {
    pub fn count(&self, method: &Method, path: &str) {
        let root = root(path);
        let long = if matches!(root, "exec" | "attach" | "portForward") { "true" } else { "false" };
        let method = match *method {
            Method::GET | Method::HEAD | Method::POST | Method::PUT | Method::PATCH | Method::DELETE => {
                method.as_str()
            }
            _ => "other",
        };
        self.0.add(Metric::Requests as usize, &[method, root, "readwrite", long], 1.0);
    }

    pub fn render(&self) -> String {
        self.0.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_counted_by_their_beginning() {
        for (path, expected) in [
            ("/exec/ns/pod/c", "exec"),
            ("/metrics", "metrics"),
            ("/metrics/cadvisor", "metrics/cadvisor"),
            ("/metrics/made-up", ""),
            ("/stats/summary", "stats"),
            ("/logs/", "logs"),
            ("/anything", ""),
            ("", ""),
        ] {
            assert_eq!(root(path), expected, "{path}");
        }
        let counts = RequestCounts::default();
        counts.count(&Method::GET, "/exec/ns/pod/c");
        counts.count(&Method::from_bytes(b"STRANGE").unwrap(), "/x");
        let text = counts.render();
        let line = |method, path, long| {
            format!(
                "kubelet_http_requests_total{{method=\"{method}\",path=\"{path}\",server_type=\"readwrite\",long_running=\"{long}\"}} 1"
            )
        };
        assert!(text.contains(&line("GET", "exec", "true")), "{text}");
        assert!(text.contains(&line("other", "", "false")), "{text}");
    }
}
