//! `/statusz` and `/flagz`: what this server is and how it was started, for people who look for a fault.

use std::fmt::Write;

use http::header::ACCEPT;
use knarr_apimachinery::status::StatusError;
use serde_json::json;

use crate::http::output::Answer;
use crate::registry::Request;
use crate::server::Inner;

const COMPONENT: &str = "kube-apiserver";

fn header(page: &str) -> String {
    format!(
        "\n{COMPONENT} {page}\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n"
    )
}

/// What the pages are written as.
const MEDIA_TYPES: [&str; 3] = ["application/json", "application/yaml", "text/plain"];

/// Whether the client asks for an object of this kind instead of text.
fn wants(request: &Request, kind: &str) -> Result<bool, StatusError> {
    let accept = request.headers.get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("");
    let structured = |media: &str, clause: &str| {
        let asked = clause.contains(&format!("as={kind}"));
        asked && matches!(media, "*/*" | "application/*" | "application/json" | "application/yaml")
    };
    for clause in accept.split(',').map(str::trim) {
        match clause.split(';').next().unwrap_or("") {
            media if structured(media, clause) => return Ok(true),
            "" | "*/*" | "text/*" | "text/plain" => return Ok(false),
            _ => {}
        }
    }
    Err(StatusError::not_acceptable(&MEDIA_TYPES))
}

pub fn statusz(server: &Inner, request: &Request, paths: &[String]) -> Result<Answer, StatusError> {
    let up = server.clock.monotonic().saturating_sub(server.started.1).as_secs();
    let started = server.started.0;
    let version = server.config.version.git_version.trim_start_matches('v');
    let version = version.split('+').next().unwrap_or("");
    if wants(request, "Statusz")? {
        let value = json!({
            "kind": "Statusz", "apiVersion": "config.k8s.io/v1beta1", "metadata": {"name": COMPONENT},
            "startTime": started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), "uptimeSeconds": up,
            "goVersion": "none", "binaryVersion": version, "paths": paths,
        });
        return Ok(Answer::Value { code: 200, value });
    }
    let mut text = header("statusz");
    let uptime = format!("{} hr {:02} min {:02} sec", up / 3600, up / 60 % 60, up % 60);
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "\nStarted: {}\nUp: {uptime}\nGo version: none\nBinary version: {version}\n\nPaths: {}\n",
        started.strftime("%a %b %e %H:%M:%S UTC %Y"),
        paths.join(" ")
    );
    Ok(Answer::text(200, text))
}

pub fn flagz(server: &Inner, request: &Request) -> Result<Answer, StatusError> {
    let mut flags = server.config.flags.clone();
    flags.sort();
    if wants(request, "Flagz")? {
        let all: serde_json::Map<String, serde_json::Value> =
            flags.into_iter().map(|(name, value)| (name, value.into())).collect();
        let value = json!({
            "kind": "Flagz", "apiVersion": "config.k8s.io/v1beta1", "metadata": {"name": COMPONENT}, "flags": all,
        });
        return Ok(Answer::Value { code: 200, value });
    }
    let mut text = header("flagz");
    for (name, value) in flags {
        let _ = writeln!(text, "{name}={value}");
    }
    Ok(Answer::text(200, text))
}
