//! The pages of a component: health, metrics, configuration.

use std::borrow::Cow;
use std::fmt::Write;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use knarr_apimachinery::metrics::{Family, Kind, Registry};
use knarr_apimachinery::status::InOrder;
use knarr_apimachinery::zpages::{Asked, Component};
use serde_json::{Value, json};

use super::auth::Refused;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// One health check of the component; `Err` has the reason of a failure.
pub struct Check {
    pub name: Cow<'static, str>,
    /// The endpoints in which it takes part: `healthz`, `livez`, `readyz`.
    pub endpoints: &'static [&'static str],
    pub result: Result<(), String>,
}

const HEALTH: &[Family] = &[
    Family {
        name: "kubernetes_healthcheck",
        help: "Whether a health check passed when it was last asked.",
        kind: Kind::Gauge,
        labels: &["name", "type"],
    },
    Family {
        name: "kubernetes_healthchecks_total",
        help: "Health checks by their outcome.",
        kind: Kind::Counter,
        labels: &["name", "status", "type"],
    },
];

type Show<T> = Box<dyn Fn() -> T + Send + Sync>;

pub struct Pages {
    component: Component,
    checks: Show<Vec<Check>>,
    metrics: Show<String>,
    /// The configuration, under upstream's name for it.
    config: Value,
    asked: Registry,
}

type Answer = Response<Full<Bytes>>;

impl Pages {
    pub fn new(
        component: Component,
        checks: impl Fn() -> Vec<Check> + Send + Sync + 'static,
        metrics: impl Fn() -> String + Send + Sync + 'static,
        config: Value,
    ) -> Self {
        let (checks, metrics) = (Box::new(checks), Box::new(metrics));
        Self { component, checks, metrics, config, asked: Registry::new(HEALTH) }
    }

    pub fn answer(&self, path: &str, query: &str, headers: &HeaderMap) -> Answer {
        let mut parts = path.trim_start_matches('/').splitn(2, '/');
        let (first, rest) = (parts.next().unwrap_or(""), parts.next());
        match (first, rest) {
            ("healthz" | "livez" | "readyz", one) => self.health(first, one, query),
            ("metrics", None) => page(200, METRICS, (self.metrics)()),
            ("metrics", Some("slis")) => page(200, METRICS, self.asked.render()),
            ("configz", None) => page(200, JSON, self.config.to_string()),
            ("flagz", None) => self.component.flagz(Asked { headers, query }).map(Full::from),
            ("statusz", None) => {
                let checks = (self.checks)();
                let health = checks.iter().flat_map(|check| check.endpoints.iter().copied());
                let paths: Vec<String> =
                    health.chain(["configz", "flagz", "metrics"]).map(|end| format!("/{end}")).collect();
                let paths = paths.iter().map(String::as_str);
                self.component.statusz(Asked { headers, query }, paths).map(Full::from)
            }
            _ => nothing_here(),
        }
    }

    fn health(&self, endpoint: &str, one: Option<&str>, query: &str) -> Answer {
        let mut checks = (self.checks)();
        checks.retain(|check| check.endpoints.contains(&endpoint));
        if checks.is_empty() {
            return nothing_here();
        }
        for Check { name, result, .. } in &checks {
            let (fine, word) = if result.is_ok() { (1.0, "success") } else { (0.0, "error") };
            self.asked.set(0, &[name, endpoint], fine);
            self.asked.add(1, &[name, word, endpoint], 1.0);
        }
        match one {
            None => whole(endpoint, &checks, query),
            Some(one) => match checks.iter().find(|check| check.name == one).map(|check| &check.result) {
                None => nothing_here(),
                Some(Ok(())) => page(200, TEXT, "ok".to_owned()),
                Some(Err(why)) => page(500, TEXT, format!("internal server error: {why}\n")),
            },
        }
    }
}

/// Answers for all checks together: `ok`, or a line for each check if one fails or `verbose` is requested.
fn whole(endpoint: &str, checks: &[Check], query: &str) -> Answer {
    let mut pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let verbose = pairs.clone().any(|(name, _)| name == "verbose");
    let excluded: Vec<&str> = pairs.by_ref().filter(|(name, _)| *name == "exclude").map(|(_, n)| n).collect();
    let (mut lines, mut failed) = (String::new(), false);
    for Check { name, result, .. } in checks {
        // Writing to a String cannot fail.
        let _ = if excluded.contains(&&**name) {
            writeln!(lines, "[+]{name} excluded: ok")
        } else if result.is_ok() {
            writeln!(lines, "[+]{name} ok")
        } else {
            failed = true;
            writeln!(lines, "[-]{name} failed: reason withheld")
        };
    }
    match (failed, verbose) {
        (true, _) => page(500, TEXT, format!("{lines}{endpoint} check failed\n")),
        (false, true) => page(200, TEXT, format!("{lines}{endpoint} check passed\n")),
        (false, false) => page(200, TEXT, "ok".to_owned()),
    }
}

fn nothing_here() -> Answer {
    page(404, TEXT, "404 page not found\n".to_owned())
}

fn page(code: u16, content_type: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    answer.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    answer
}

/// Returns the answer to a refused request, in the form that Kubernetes uses.
pub fn refusal(refused: &Refused) -> Answer {
    let status = |code: u16, reason: &str| {
        let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": refused.to_string(), "reason": reason, "code": code});
        if code == 403 {
            status["details"] = json!({});
        }
        page(code, JSON, serde_json::to_string_pretty(&InOrder::status(&status)).unwrap_or_default())
    };
    match refused {
        Refused::Unauthorized => status(401, "Unauthorized"),
        Refused::Forbidden { .. } => status(403, "Forbidden"),
        Refused::Unknown { .. } => page(500, TEXT, format!("{refused}\n")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt;
    use knarr_client::clock::SystemClock;

    use super::*;

    fn pages(lease: Result<(), String>) -> Pages {
        let checks = move || {
            vec![
                Check {
                    name: "leaderElection".into(),
                    endpoints: &["healthz", "readyz"],
                    result: lease.clone(),
                },
                Check { name: "ping".into(), endpoints: &["livez"], result: Ok(()) },
            ]
        };
        let metrics = || "up 1\n".to_owned();
        let flags = [("leader-elect".to_owned(), "true".to_owned())];
        let component = Component::new("kube-scheduler", "v1.37.0", flags, Arc::new(SystemClock));
        Pages::new(component, checks, metrics, json!({"componentconfig": {}}))
    }

    async fn get(pages: &Pages, path: &str, query: &str) -> (u16, String) {
        let answer = pages.answer(path, query, &HeaderMap::new());
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn pages_are_upstreams() {
        let well = pages(Ok(()));
        let ill = pages(Err("lease lost".into()));
        let table = [
            (&well, "/healthz", "", 200, "ok"),
            (&well, "/healthz", "verbose", 200, "[+]leaderElection ok\nhealthz check passed\n"),
            (&well, "/healthz/leaderElection", "", 200, "ok"),
            (&well, "/healthz/ping", "", 404, "404 page not found\n"),
            (&well, "/livez", "verbose", 200, "[+]ping ok\nlivez check passed\n"),
            (&well, "/metrics", "", 200, "up 1\n"),
            (&well, "/configz", "", 200, "{\"componentconfig\":{}}"),
            (&well, "/", "", 404, "404 page not found\n"),
            (&ill, "/healthz", "", 500, "[-]leaderElection failed: reason withheld\nhealthz check failed\n"),
            (&ill, "/readyz", "exclude=leaderElection", 200, "ok"),
            (&ill, "/readyz/leaderElection", "", 500, "internal server error: lease lost\n"),
        ];
        for (pages, path, query, code, body) in table {
            assert_eq!(get(pages, path, query).await, (code, body.to_owned()), "{path}?{query}");
        }
        let (_, slis) = get(&well, "/metrics/slis", "").await;
        assert!(
            slis.contains("kubernetes_healthcheck{name=\"leaderElection\",type=\"healthz\"} 1"),
            "{slis}"
        );
        let (_, status) = get(&well, "/statusz", "").await;
        assert!(status.contains("Paths: /configz /flagz /healthz /livez /metrics /readyz\n"), "{status}");
        let (_, flags) = get(&well, "/flagz", "").await;
        assert!(flags.starts_with("\nkube-scheduler flagz\n") && flags.ends_with("\nleader-elect=true\n"));
        let mut headers = HeaderMap::new();
        headers.insert("accept", "application/json;as=Flagz;v=v1beta1;g=config.k8s.io".parse().unwrap());
        let answer = well.answer("/flagz", "", &headers);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let flags: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(flags["flags"], json!({"leader-elect": "true"}));
    }
}
