//! Targets that send requests to an API server over a memory store: paths, queries, continue tokens, bodies
//! in every format.

use std::net::SocketAddr;
use std::str::from_utf8;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request};
use knarr_apiserver::{ApiServer, Config, UserInfo};
use knarr_client::Transport;
use knarr_client::clock::SystemClock;
use knarr_storage::{Embedded, Options, Store};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::Target;

/// The server for all requests of a target, and its runtime.
pub struct Server {
    runtime: Runtime,
    user: Arc<dyn Transport>,
}

impl Server {
    /// Starts a server. Panics if none starts: a target without a server would find nothing, and pass.
    pub fn start() -> Self {
        let started = || -> Result<Self, Box<dyn std::error::Error>> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let user = runtime.block_on(async {
                let store: Arc<dyn Store> = Arc::new(Embedded::memory(Options::default()));
                let mut config =
                    Config::new(store, Arc::new(SystemClock), knarr_api::resources::all().to_vec());
                // Endpoints may not have loopback addresses; this one is for documentation, and nothing is
                // sent there.
                config.advertise = SocketAddr::from(([192, 0, 2, 1], 6443));
                let server = ApiServer::new(config).await?;
                Ok::<_, Box<dyn std::error::Error>>(
                    server.transport(UserInfo::new("fuzz", &["system:masters"])),
                )
            })?;
            Ok(Self { runtime, user })
        };
        started().unwrap_or_else(|error| panic!("no API server to send requests to: {error:?}"))
    }

    pub fn send(&self, method: Method, uri: &str, content_type: &str, body: &[u8]) {
        let request = Request::builder().method(method).uri(uri).header("content-type", content_type);
        let Ok(request) = request.body(Bytes::copy_from_slice(body)) else { return };
        self.runtime.block_on(async {
            let done = self.user.send(request).await;
            if let Err(knarr_client::Error::Status(status)) = done {
                // At the start alone: further on, messages quote the request.
                assert!(!status.message().starts_with(PANICKED), "{}", status.message());
            }
        });
    }
}

fn target(name: &'static str, corpus: &[&str], run: impl Fn(&Server, &[u8]) + 'static) -> Target {
    // The first input starts the server, so that listing the targets starts none.
    let server = std::cell::OnceCell::new();
    Target {
        name,
        corpus: corpus.iter().map(|t| t.as_bytes().to_vec()).collect(),
        run: Box::new(move |input| {
            run(server.get_or_init(Server::start), input);
        }),
    }
}

/// The Status of a request whose handler panicked.
const PANICKED: &str = "This request caused apiserver to panic";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Sends the input as a query, without the characters that no URI may contain.
fn query(server: &Server, input: &[u8]) {
    let Ok(text) = from_utf8(input) else { return };
    let clean: String = text.chars().filter(|c| c.is_ascii_graphic() && *c != '#').collect();
    // A watch would run without end.
    if clean.to_ascii_lowercase().contains("watch") {
        return;
    }
    server.send(Method::GET, &format!("{MAPS}?{clean}"), "", b"");
    server.send(Method::DELETE, &format!("{MAPS}/x?{clean}"), "", b"");
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}).to_string();
    server.send(Method::PUT, &format!("{MAPS}/x?{clean}"), "application/json", body.as_bytes());
}

fn path(server: &Server, input: &[u8]) {
    let Ok(text) = from_utf8(input) else { return };
    let clean: String = text.chars().filter(|c| c.is_ascii_graphic() && !matches!(c, '#' | '?')).collect();
    if !clean.contains("watch") {
        server.send(Method::GET, &format!("/{clean}"), "", b"");
    }
}

/// Sends the input as the body of creations and patches, of several resources.
fn body(server: &Server, input: &[u8]) {
    for kind in ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"] {
        for resource in ["pods", "services", "configmaps", "resourcequotas"] {
            let uri = format!("/api/v1/namespaces/default/{resource}?dryRun=All");
            server.send(Method::POST, &uri, kind, input);
        }
        server.send(Method::POST, "/apis/apps/v1/namespaces/default/deployments?dryRun=All", kind, input);
        server.send(Method::DELETE, &format!("{MAPS}/x"), kind, input);
    }
    for kind in ["json-patch+json", "merge-patch+json", "strategic-merge-patch+json", "apply-patch+yaml"] {
        let uri = "/api/v1/namespaces/kube-system?dryRun=All&fieldManager=f&force=true";
        let uri = if kind == "apply-patch+yaml" { uri } else { uri.trim_end_matches("&force=true") };
        server.send(Method::PATCH, uri, &format!("application/{kind}"), input);
    }
}

pub fn all() -> Vec<Target> {
    vec![
        target(
            "query",
            &[
                "limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhXHUwMDAwIn0&labelSelector=a%3Db",
                "fieldSelector=metadata.name%3Dx&resourceVersion=1&resourceVersionMatch=Exact&timeoutSeconds=1",
                "dryRun=All&fieldManager=m&fieldValidation=Strict&propagationPolicy=Foreground&gracePeriodSeconds=-1",
                "orphanDependents=true&pretty=true&includeObject=Metadata&sendInitialEvents=true",
            ],
            query,
        ),
        target(
            "path",
            &[
                "api/v1/namespaces/default/pods/p/log",
                "apis/apps/v1/deployments",
                "openapi/v3/apis/apps/v1",
                "api/v1/namespaces/a%2Fb/services/http:s:80/proxy/x/../y",
                ".well-known/openid-configuration",
            ],
            path,
        ),
        target(
            "body",
            &[
                r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#,
                r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},"spec":{"ports":[{"port":80}],"type":"NodePort"}}"#,
                r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"generateName":"d-"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}"#,
                r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"kube-system","labels":{"a":"b"}}}"#,
                r#"[{"op":"replace","path":"/metadata/labels","value":{"a":"b"}}]"#,
                r#"{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"x"},"propagationPolicy":"Orphan"}"#,
                "apiVersion: v1\nkind: ConfigMap\nmetadata: &m\n  name: x\ndata:\n  a: |\n    b\n",
            ],
            body,
        ),
    ]
}
