//! The metrics of requests: the labels of a request, and what is recorded at its start and end.

use std::time::Duration;

use super::{Metric, Metrics};
use crate::query::Query;
use crate::request_info::RequestInfo;

/// The valid values of `fieldValidation`.
const VALIDATIONS: [&str; 4] = ["", "Ignore", "Warn", "Strict"];
const COMPONENT: &str = "apiserver";

/// The metrics labels of one request.
pub struct Observed {
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    dry_run: &'static str,
    field_validation: &'static str,
}

impl Observed {
    /// Creates the labels. `known` is whether the resource is served: unknown resources would create an unbounded
    /// number of series.
    pub fn new(info: &RequestInfo, query: &Query, known: bool) -> Self {
        let connect =
            matches!(info.subresource.as_str(), "exec" | "attach" | "portforward" | "proxy" | "log");
        let verb = if info.is_resource && connect {
            "CONNECT".to_owned()
        } else {
            match info.verb.as_str() {
                "create" => "POST".to_owned(),
                "update" => "PUT".to_owned(),
                verb @ ("get" | "list" | "watch" | "patch" | "delete" | "deletecollection" | "post"
                | "put" | "head" | "options") => verb.to_ascii_uppercase(),
                _ => "other".to_owned(),
            }
        };
        let scope = if !info.is_resource {
            ""
        } else if !info.name.is_empty() && info.verb != "list" || info.verb == "create" {
            "resource"
        } else if info.namespace.is_empty() {
            "cluster"
        } else {
            "namespace"
        };
        let text = |value: &str| if known { value.to_owned() } else { String::new() };
        Self {
            verb,
            group: text(&info.group),
            version: text(&info.version),
            resource: text(&info.resource),
            // A non-resource path is recorded as the subresource, if it is a well-known one.
            subresource: if info.is_resource { text(&info.subresource) } else { well_known(&info.path) },
            scope,
            dry_run: if query.get("dryRun").is_some() { "All" } else { "" },
            field_validation: match query.get("fieldValidation") {
                None => "",
                Some(text) => VALIDATIONS.into_iter().find(|known| *known == text).unwrap_or("invalid"),
            },
        }
    }

    fn long(&self) -> [&str; 7] {
        [COMPONENT, &self.group, &self.resource, self.scope, &self.subresource, &self.verb, &self.version]
    }
}

fn well_known(path: &str) -> String {
    const PATHS: [&str; 10] = [
        "/api",
        "/apis",
        "/healthz",
        "/livez",
        "/readyz",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/version",
        "/openid/v1/jwks",
    ];
    if PATHS.contains(&path) { path.to_owned() } else { String::new() }
}

impl Metrics {
    /// Records an answered request; `queued` is the part of its time that it waited in a queue.
    pub fn observe(
        &self,
        request: &Observed,
        code: u16,
        took: Duration,
        queued: Duration,
        bytes: Option<usize>,
    ) {
        let code = code.to_string();
        let Observed { verb, group, version, resource, subresource, scope, dry_run, field_validation } =
            request;
        self.increment(
            Metric::RequestTotal,
            &[&code, COMPONENT, dry_run, group, resource, scope, subresource, verb, version],
        );
        if verb == "WATCH" || verb == "CONNECT" {
            return;
        }
        let seconds = took.as_secs_f64();
        self.record(
            Metric::RequestDuration,
            &[COMPONENT, dry_run, group, resource, scope, subresource, verb, version],
            seconds,
        );
        if matches!(verb.as_str(), "POST" | "PUT" | "PATCH") {
            self.record(Metric::FieldValidation, &[field_validation], seconds);
        }
        self.record(Metric::RequestSliDuration, &request.long(), took.saturating_sub(queued).as_secs_f64());
        if let Some(bytes) = bytes.filter(|_| verb == "GET" || verb == "LIST") {
            self.record(Metric::ResponseSizes, &request.long(), bytes as f64);
        }
    }

    pub fn long_running(&self, request: &Observed, change: f64) {
        self.add(Metric::LongRunning, &request.long(), change);
    }

    /// Records that the server ended the request to protect itself.
    pub fn terminated(&self, request: &Observed, code: u16) {
        let [component, group, resource, scope, subresource, verb, version] = request.long();
        let code = code.to_string();
        self.increment(
            Metric::Terminations,
            &[&code, component, group, resource, scope, subresource, verb, version],
        );
    }

    pub fn aborted(&self, request: &Observed) {
        let [_, group, resource, scope, subresource, verb, version] = request.long();
        self.increment(Metric::Aborts, &[group, resource, scope, subresource, verb, version]);
    }
}
