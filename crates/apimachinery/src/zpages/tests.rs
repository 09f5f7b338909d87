//! Tests of the pages as text and as objects, and of content negotiation.

use super::*;
use crate::clock::Sleep;

/// A clock that stands still.
struct Stopped(Timestamp, Duration);

impl Clock for Stopped {
    fn now(&self) -> Timestamp {
        self.0
    }

    fn monotonic(&self) -> Duration {
        self.1
    }

    fn sleep(&self, _: Duration) -> Sleep {
        Box::pin(std::future::pending())
    }
}

const WARNS: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
                     guarantees and is for debugging purposes only.\n";

/// Returns a component that has run for an hour.
fn component() -> Component {
    let clock = Stopped("2026-01-02T03:04:05Z".parse().unwrap(), Duration::from_secs(3_723));
    let flags = [("port", "6443"), ("bind-address", "::")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    let mut component = Component::new("kubelet", "v1.37.0+knarr", flags, Arc::new(clock));
    component.started.1 = Duration::ZERO;
    component
}

fn headers(accept: &str, agent: &'static str) -> HeaderMap {
    let accept = (ACCEPT, HeaderValue::try_from(accept).unwrap());
    HeaderMap::from_iter([accept, (USER_AGENT, HeaderValue::from_static(agent))])
}

fn flagz(accept: &str) -> Response<String> {
    component().flagz(Asked { headers: &headers(accept, ""), query: "" })
}

fn statusz(accept: &str, paths: &[&str]) -> Response<String> {
    component().statusz(Asked { headers: &headers(accept, ""), query: "" }, paths.iter().copied())
}

fn content_type(response: &Response<String>) -> &str {
    response.headers()[CONTENT_TYPE].to_str().unwrap()
}

#[test]
fn text_is_for_people() {
    let page = flagz("");
    assert_eq!(page.body(), &format!("\nkubelet flagz\n{WARNS}bind-address=::\nport=6443\n"));
    assert_eq!(content_type(&page), "text/plain; charset=utf-8");
    let paths = ["/metrics/slis", "/", "/metrics", "/configz", "/apis/apps", "/api", "/statusz"];
    let expected = "\nStarted: Fri Jan  2 03:04:05 UTC 2026\nUp: 1 hr 02 min 03 sec\nGo version: none\n\
        Binary version: 1.37.0\nEmulation version: 1.37\nPaths: /configz /metrics\n";
    assert_eq!(statusz("text/plain", &paths).body(), &format!("\nkubelet statusz\n{WARNS}{expected}"));
}

#[test]
fn objects_are_for_programs() {
    let page = flagz("application/json;as=Flagz;v=v1beta1;g=config.k8s.io");
    let flags = json!({"bind-address": "::", "port": "6443"});
    let object = json!({
        "kind": "Flagz", "apiVersion": "config.k8s.io/v1beta1", "metadata": {"name": "kubelet"}, "flags": flags,
    });
    assert_eq!(serde_json::from_str::<Value>(page.body()).unwrap(), object);
    assert_eq!(content_type(&page), "application/json;g=config.k8s.io;v=v1beta1;as=Flagz");
    assert_eq!(page.headers().get(WARNING), None);
    let page = statusz("application/yaml;as=Statusz;v=v1alpha1;g=config.k8s.io", &["/livez/ping"]);
    let object = json!({
        "kind": "Statusz", "apiVersion": "config.k8s.io/v1alpha1", "metadata": {"name": "kubelet"},
        "startTime": "2026-01-02T03:04:05Z", "uptimeSeconds": 3723, "goVersion": "none",
        "binaryVersion": "1.37.0", "emulationVersion": "1.37", "paths": ["/livez"],
    });
    assert_eq!(serde_saphyr::from_str::<Value>(page.body()).unwrap(), object);
    assert_eq!(content_type(&page), "application/yaml;g=config.k8s.io;v=v1alpha1;as=Statusz");
    let warning = "299 - \"This version of the statusz endpoint is deprecated. Please use a newer version.\"";
    assert_eq!(page.headers()[WARNING], warning);
}

#[test]
fn what_cannot_be_had_is_not_acceptable() {
    let page = flagz("application/json");
    assert_eq!((page.status().as_u16(), content_type(&page)), (406, "application/json"));
    let message =
        "only the following media types are accepted: application/json, application/yaml, text/plain";
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": "NotAcceptable", "code": 406,
    });
    assert_eq!(serde_json::from_str::<Value>(page.body()).unwrap(), status);
}

#[test]
fn clients_get_what_they_can_read() {
    let form = |accept: &str| match (Asked { headers: &headers(accept, ""), query: "" }).negotiate("Flagz") {
        Ok(None) => "text".to_owned(),
        Ok(Some(Structured { media, version, pretty })) => {
            format!("{media} {version}{}", if pretty { " pretty" } else { "" })
        }
        Err(error) => error.code().to_string(),
    };
    let flagz = "as=Flagz;v=v1beta1;g=config.k8s.io";
    // The results of upstream's handler for these headers.
    for (accept, expected) in [
        (String::new(), "text"),
        ("*/*".into(), "text"),
        ("text/*".into(), "text"),
        ("text/html,*/*;q=0.8".into(), "text"),
        (format!("application/json;{flagz}"), "application/json v1beta1"),
        (format!("application/json;pretty=1;{flagz}"), "application/json v1beta1 pretty"),
        (format!("application/yaml;{flagz}"), "application/yaml v1beta1"),
        (format!("application/*;{flagz}"), "application/json v1beta1"),
        (format!("*/*;{flagz}"), "application/json v1beta1"),
        (format!("text/plain,application/json;{flagz}"), "text"),
        (format!("text/plain;q=0.1,application/json;{flagz}"), "application/json v1beta1"),
        ("application/json;as=Flagz;v=v2;g=config.k8s.io,*/*".into(), "text"),
        ("application/json;as=Statusz;v=v1beta1;g=config.k8s.io".into(), "406"),
        ("application/json;v=v1beta1;g=config.k8s.io".into(), "406"),
        (format!("application/json;stream=watch;{flagz}"), "406"),
        (format!("text/plain;{flagz}"), "406"),
        ("application/json".into(), "406"),
        ("application/vnd.kubernetes.protobuf".into(), "406"),
        ("application/xml".into(), "406"),
    ] {
        assert_eq!(form(&accept), expected, "{accept}");
    }
}

#[test]
fn people_get_line_breaks() {
    for (query, agent, expected) in [
        ("", "curl/8.5", true),
        ("", "kubectl/v1.37.0", false),
        ("a=b&pretty=true", "kubectl/v1.37.0", true),
        ("pretty=0", "curl/8.5", false),
        ("pretty=", "curl/8.5", true),
    ] {
        let headers = headers("", agent);
        assert_eq!(Asked { headers: &headers, query }.wants_pretty(), expected, "{query} {agent}");
    }
}
