//! `/flagz` and `/statusz`: a component's flags and its state, for troubleshooting.
//!
//! Source: KEP-4828, KEP-4827, and `k8s.io/apiserver/pkg/server`, flagz and statusz.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, USER_AGENT, WARNING};
use http::{HeaderMap, Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::accept::clauses;
use crate::clock::Clock;
use crate::status::{InOrder, Result, StatusError};

const GROUP: &str = "config.k8s.io";
/// The versions of the objects; answers with the first have a deprecation warning.
const VERSIONS: [&str; 2] = ["v1alpha1", "v1beta1"];
const DEPRECATED: &str = VERSIONS[0];
/// The media types of the pages.
const MEDIA_TYPES: [&str; 3] = ["application/json", "application/yaml", "text/plain"];
/// The first segments of paths that do not help troubleshooting, or are this page's own.
const NOT_LISTED: [&str; 6] = [".well-known", "api", "apis", "openapi", "openid", "statusz"];

/// The form of the page that a client requests.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    pub headers: &'a HeaderMap,
    pub query: &'a str,
}

/// A component and its state.
pub struct Component {
    name: &'static str,
    version: String,
    flags: BTreeMap<String, String>,
    clock: Arc<dyn Clock>,
    started: (Timestamp, Duration),
}

/// One of the pages.
struct Page<T> {
    name: &'static str,
    kind: &'static str,
    /// The object's fields besides its type and name.
    fields: Value,
    /// The text after the heading.
    text: T,
}

/// The form of the object that a client gets instead of text.
#[derive(Debug, PartialEq, Eq)]
struct Structured {
    media: &'static str,
    version: &'static str,
    pretty: bool,
}

impl Component {
    /// Creates a component that starts now. `git_version` is like `v1.37.0+build`; no value of `flags` may be secret.
    pub fn new(
        name: &'static str,
        git_version: &str,
        flags: impl IntoIterator<Item = (String, String)>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let started = (clock.now(), clock.monotonic());
        let version = git_version.trim_start_matches('v').split('+').next().unwrap_or("").to_owned();
        Self { name, version, flags: flags.into_iter().collect(), clock, started }
    }

    /// Answers `/flagz`: the flags of the component.
    pub fn flagz(&self, asked: Asked<'_>) -> Response<String> {
        let text = || {
            self.flags.iter().fold(String::new(), |mut text, (name, value)| {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{name}={value}");
                text
            })
        };
        self.answer(asked, Page { name: "flagz", kind: "Flagz", fields: json!({"flags": self.flags}), text })
    }

    /// Answers `/statusz`: the state of the component; `paths` are the paths that it serves.
    pub fn statusz<'a>(
        &self,
        asked: Asked<'_>,
        paths: impl IntoIterator<Item = &'a str>,
    ) -> Response<String> {
        let up = self.clock.monotonic().saturating_sub(self.started.1).as_secs();
        let (started, version, paths) = (self.started.0, self.version.as_str(), aggregated(paths));
        let emulated = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
        let fields = json!({
            "startTime": started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), "uptimeSeconds": up,
            "goVersion": "none", "binaryVersion": version, "emulationVersion": emulated, "paths": paths,
        });
        let text = || {
            format!(
                "\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: none\nBinary version: {version}\n\
                 Emulation version: {emulated}\nPaths: {}\n",
                started.strftime("%a %b %e %H:%M:%S UTC %Y"),
                up / 3600,
                up / 60 % 60,
                up % 60,
                paths.join(" ")
            )
        };
        self.answer(asked, Page { name: "statusz", kind: "Statusz", fields, text })
    }

    fn answer<T: FnOnce() -> String>(&self, asked: Asked<'_>, page: Page<T>) -> Response<String> {
        match asked.negotiate(page.kind) {
            Ok(None) => response("text/plain; charset=utf-8", self.text(page)),
            Ok(Some(form)) => self.object(page, &form).unwrap_or_else(|error| refusal(&error)),
            Err(error) => refusal(&error),
        }
    }

    fn text<T: FnOnce() -> String>(&self, page: Page<T>) -> String {
        format!(
            "\n{} {}\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
             guarantees and is for debugging purposes only.\n{}",
            self.name,
            page.name,
            (page.text)()
        )
    }

    fn object<T>(&self, page: Page<T>, form: &Structured) -> Result<Response<String>> {
        let Page { name, kind, fields, .. } = page;
        let Structured { media, version, pretty } = form;
        let mut object = json!({
            "kind": kind, "apiVersion": format!("{GROUP}/{version}"), "metadata": {"name": self.name},
        });
        if let (Value::Object(object), Value::Object(fields)) = (&mut object, fields) {
            object.extend(fields);
        }
        let body = match (*media, pretty) {
            ("application/yaml", _) => serde_saphyr::to_string(&object).map_err(StatusError::internal)?,
            (_, true) => format!("{object:#}\n"),
            (_, false) => format!("{object}\n"),
        };
        let mut response = response(&format!("{media};g={GROUP};v={version};as={kind}"), body);
        if *version == DEPRECATED {
            let warning = format!(
                "299 - \"This version of the {name} endpoint is deprecated. Please use a newer version.\""
            );
            let warning = HeaderValue::try_from(warning).map_err(StatusError::internal)?;
            response.headers_mut().insert(WARNING, warning);
        }
        Ok(response)
    }
}

impl Asked<'_> {
    /// Returns the form of the first clause that is supported; `None` means text.
    fn negotiate(&self, kind: &str) -> Result<Option<Structured>> {
        let accept = self.header(ACCEPT);
        if accept.trim().is_empty() {
            return Ok(None);
        }
        for clause in clauses(accept) {
            if ["stream", "sv"].iter().any(|name| !clause.parameter(name).is_empty()) {
                continue;
            }
            let [wanted, group, version] = ["as", "g", "v"].map(|name| clause.parameter(name));
            let is_text = [wanted, group, version] == [""; 3];
            let known = VERSIONS.into_iter().find(|v| (wanted, group, version) == (kind, GROUP, v));
            let pretty = self.wants_pretty() || clause.parameter("pretty") == "1";
            for media in MEDIA_TYPES.into_iter().filter(|media| is_covered(media, clause.media)) {
                match (media, known) {
                    ("text/plain", _) if is_text => return Ok(None),
                    ("text/plain", _) | (_, None) => {}
                    (_, Some(version)) => return Ok(Some(Structured { media, version, pretty })),
                }
            }
        }
        Err(StatusError::not_acceptable(&MEDIA_TYPES))
    }

    /// Returns whether JSON is indented: on request, or because the client is an interactive tool.
    fn wants_pretty(&self) -> bool {
        let mut pairs = self.query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        match pairs.find(|(name, value)| *name == "pretty" && !value.is_empty()) {
            Some((_, value)) => matches!(value, "1" | "t" | "T" | "true" | "True" | "TRUE"),
            None => {
                ["curl", "Wget", "Mozilla/5.0"].iter().any(|tool| self.header(USER_AGENT).starts_with(tool))
            }
        }
    }

    fn header(&self, name: http::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }
}

/// Returns whether a media range includes a media type: `text/plain`, `text/*` and `*/*` include `text/plain`.
fn is_covered(media: &str, range: &str) -> bool {
    let family = range.strip_suffix('*').filter(|family| family.ends_with('/'));
    range == media || range == "*/*" || family.is_some_and(|family| media.starts_with(family))
}

fn response(content_type: &str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    if let Ok(value) = HeaderValue::try_from(content_type) {
        response.headers_mut().insert(CONTENT_TYPE, value);
    }
    response
}

fn refusal(error: &StatusError) -> Response<String> {
    let text = serde_json::to_string_pretty(&InOrder::status(&error.to_value())).unwrap_or_default();
    let mut response = response("application/json", text + "\n");
    *response.status_mut() = StatusCode::from_u16(error.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

/// Returns the first segments of the paths, sorted and without duplicates.
fn aggregated<'a>(paths: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let first = |path: &'a str| path.split('/').nth(1).filter(|part| !part.is_empty());
    let parts: BTreeSet<&str> = paths.into_iter().filter_map(first).collect();
    parts.into_iter().filter(|part| !NOT_LISTED.contains(part)).map(|part| format!("/{part}")).collect()
}

#[cfg(test)]
mod tests;
