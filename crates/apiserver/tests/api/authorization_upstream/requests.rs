//! The requests: every resource with every verb, the existing objects, and paths in unusual forms.
//!
//! No request changes anything: those that would are dry runs, most of them with an undecodable body.

use std::collections::BTreeSet;

use knarr_api::resource::Resource;

use super::world;

/// One request as it is sent, without the user.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    pub method: &'static str,
    pub target: String,
    pub headers: Vec<(&'static str, &'static str)>,
    /// The body; `None` for an undecodable one.
    pub body: Option<String>,
}

pub const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

impl Question {
    pub fn new(method: &'static str, target: &str) -> Self {
        let mut target = target.to_owned();
        let mut parameter = |text: &str| {
            target.push(if target.contains('?') { '&' } else { '?' });
            target.push_str(text);
        };
        match method {
            "POST" | "PUT" | "PATCH" | "DELETE" => parameter("dryRun=All"),
            _ => parameter("resourceVersion=0&timeoutSeconds=1"),
        }
        Self { method, target, headers: Vec::new(), body: None }
    }

    fn with(mut self, headers: &[(&'static str, &'static str)]) -> Self {
        self.headers.extend(headers);
        self
    }

    /// Returns the bytes for this server, with the user's headers.
    pub fn bytes(&self, token: Option<&str>, headers: &[(&str, &str)]) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\nHost: 127.0.0.1\r\n", self.method, self.target);
        let mut line = |name: &str, value: &str| text.push_str(&format!("{name}: {value}\r\n"));
        if let Some(token) = token {
            line("Authorization", &format!("Bearer {token}"));
        }
        for (name, value) in headers.iter().chain(&self.headers) {
            line(name, value);
        }
        // No format of a body begins like this.
        let unreadable = if matches!(self.method, "POST" | "PUT" | "PATCH") { "<" } else { "" };
        let body = self.body.as_deref().unwrap_or(unreadable);
        match self.method {
            "PATCH" => line("Content-Type", "application/merge-patch+json"),
            _ if !body.is_empty() => line("Content-Type", "application/json"),
            _ => {}
        }
        line("Content-Length", &body.len().to_string());
        text.push_str("\r\n");
        text.push_str(body);
        text.into_bytes()
    }
}

/// Returns all requests, each once; the seed selects those of [`super::forms::random`].
pub fn all(seed: u64) -> Vec<Question> {
    let mut all = BTreeSet::new();
    for resource in knarr_api::resources::all() {
        all.extend(of_resource(resource));
    }
    for group in ["nobodys.example.com", "apps"] {
        for version in ["v1", "v9"] {
            all.extend(collection_and_object(
                &format!("/apis/{group}/{version}/namespaces/alpha/things"),
                "x",
            ));
        }
    }
    for group in ["example.com", "remote.example.com"] {
        all.extend(collection_and_object(&format!("/apis/{group}/v1/namespaces/alpha/widgets"), "two"));
        all.extend(
            METHODS
                .map(|m| Question::new(m, &format!("/apis/{group}/v1/namespaces/alpha/widgets/one/scale"))),
        );
    }
    all.extend(of_objects());
    all.extend(streams());
    all.extend(selections());
    all.extend(super::forms::listed());
    all.extend(super::forms::random(seed));
    all.extend(super::bodies::all());
    all.into_iter().collect()
}

fn collection_and_object(collection: &str, name: &str) -> Vec<Question> {
    let object = format!("{collection}/{name}");
    let mut all: Vec<Question> = METHODS.iter().map(|m| Question::new(m, collection)).collect();
    all.push(Question::new("GET", &format!("{collection}?watch=true")));
    all.extend(METHODS.iter().map(|m| Question::new(m, &object)));
    all
}

/// Returns all requests for a resource and its subresources, and for subresources that it does not have.
fn of_resource(resource: &Resource) -> Vec<Question> {
    let types = &resource.types;
    let collection = types.path(Some("alpha"), None);
    let mut all = collection_and_object(&collection, "nothing");
    if types.namespaced {
        let everywhere = types.path(None, None);
        all.extend(["GET", "POST", "DELETE"].map(|m| Question::new(m, &everywhere)));
        all.push(Question::new("GET", &format!("{everywhere}?watch=1")));
    } else {
        let below = format!("{}/namespaces/alpha/{}/nothing", prefix(&collection), types.plural);
        all.extend(["GET", "DELETE"].map(|m| Question::new(m, &below)));
    }
    let object = types.path(Some("alpha"), Some("nothing"));
    let parts = resource.subresources.iter().map(|part| part.name).chain(["status", "scale", "nonsense"]);
    for part in parts.collect::<BTreeSet<_>>() {
        let uri = format!("{object}/{part}");
        all.extend(["GET", "POST", "PUT", "PATCH", "DELETE"].map(|m| Question::new(m, &uri)));
    }
    all
}

/// Returns the prefix `/apis/GROUP/VERSION` of a path.
fn prefix(path: &str) -> String {
    let parts = if path.starts_with("/apis/") { 4 } else { 3 };
    path.split('/').take(parts).collect::<Vec<_>>().join("/")
}

fn of_objects() -> Vec<Question> {
    let mut all = Vec::new();
    for object in world::objects() {
        let (collection, name) = object.rsplit_once('/').unwrap();
        all.extend(["GET", "PUT", "PATCH", "DELETE"].map(|m| Question::new(m, &object)));
        all.push(Question::new("GET", &format!("{collection}?fieldSelector=metadata.name%3D{name}")));
        all.push(Question::new("GET", &format!("{collection}?watch=1&fieldSelector=metadata.name%3D{name}")));
        all.push(Question::new("DELETE", &format!("{collection}?fieldSelector=metadata.name%3D{name}")));
        all.push(Question::new(
            "GET",
            &format!("{}/watch{}", prefix(&object), &object[prefix(&object).len()..]),
        ));
        all.extend(["GET", "PATCH"].map(|m| Question::new(m, &format!("{object}/status"))));
        if !object.contains("/namespaces/") {
            let prefix = prefix(&object);
            let below = format!("{prefix}/namespaces/alpha{}", &object[prefix.len()..]);
            all.extend(["GET", "PATCH", "DELETE"].map(|m| Question::new(m, &below)));
        }
    }
    for account in ["runner", "other", "unused", "default"] {
        let token = format!("/api/v1/namespaces/alpha/serviceaccounts/{account}/token");
        all.extend(["GET", "POST"].map(|m| Question::new(m, &token)));
    }
    all
}

/// Requests that switch to another protocol, or are forwarded to a kubelet or a backend.
fn streams() -> Vec<Question> {
    const SOCKET: &[(&str, &str)] = &[
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Protocol", "v5.channel.k8s.io"),
    ];
    const SPDY: &[(&str, &str)] = &[
        ("Connection", "Upgrade"),
        ("Upgrade", "SPDY/3.1"),
        ("X-Stream-Protocol-Version", "v4.channel.k8s.io"),
    ];
    const OTHERS: &[&[(&str, &str)]] = &[
        &[("Connection", "keep-alive, Upgrade"), ("Upgrade", "WebSocket")],
        &[("Upgrade", "websocket")],
        &[("Connection", "Upgrade")],
        &[("Connection", "Upgrade"), ("Upgrade", "h2c, websocket")],
    ];
    let mut all = Vec::new();
    for pod in ["p1", "p2", "waiting", "nothing"] {
        let pod = format!("/api/v1/namespaces/alpha/pods/{pod}");
        for part in
            ["exec?command=a&stdout=1", "attach?stdout=1", "portforward?ports=80", "log", "log?follow=true"]
        {
            let uri = format!("{pod}/{part}");
            all.extend(METHODS.map(|m| Question::new(m, &uri)));
            for headers in [SOCKET, SPDY].iter().chain(OTHERS) {
                all.push(Question::new("GET", &uri).with(headers));
                all.push(Question::new("POST", &uri).with(headers));
            }
        }
        for part in ["binding", "eviction", "ephemeralcontainers", "resize", "proxy", "proxy/", "proxy/a/b"] {
            all.extend(METHODS.map(|m| Question::new(m, &format!("{pod}/{part}"))));
        }
    }
    let backends = [
        "namespaces/alpha/services/web",
        "namespaces/alpha/services/https:web:80",
        "namespaces/alpha/services/nothing",
        "namespaces/alpha/pods/p1:80",
        "namespaces/alpha/pods/http:p1:80",
        "nodes/n1",
        "nodes/https:n1:10250",
        "nodes/n2:1",
        "nodes/nothing",
    ];
    for backend in backends {
        for tail in ["proxy", "proxy/", "proxy/metrics", "proxy/a%2fb", "proxy/../status", "proxy/exec/a/b/c"]
        {
            let uri = format!("/api/v1/{backend}/{tail}");
            all.extend(METHODS.map(|m| Question::new(m, &uri)));
            all.push(Question::new("GET", &uri).with(SOCKET));
        }
    }
    all
}

/// Lists and watches with selectors and Accept headers.
fn selections() -> Vec<Question> {
    const FIELDS: &[&str] = &[
        "metadata.name%3Dmounted",
        "metadata.name%3D%3Dmounted",
        "metadata.name%3Dp1",
        "metadata.name!%3Dp1",
        "metadata.name%3Dp1,metadata.namespace%3Dalpha",
        "metadata.name%3D",
        "metadata.name%3Da/b",
        "metadata.name%3D..",
        "metadata.name%3Dp1%5C,x",
        "metadata.name",
        "metadata.name%3Dp1&fieldSelector=metadata.name%3Dmounted",
        "&fieldSelector=metadata.name%3Dmounted",
        "spec.nodeName%3Dn1",
        "spec.nodeName%3D%3Dn1",
        "spec.nodeName%3Dn2",
        "spec.nodeName!%3Dn2",
        "spec.nodeName%3D",
        "spec.nodeName%3Dn1,status.phase%3DRunning",
        "spec.nodeName%3Dn1,spec.nodeName%3Dn2",
        "spec.nodeName%3Dn1,metadata.name%3Dp2",
        "spec.nodeName%3Dn1,metadata.name%3Dp1",
        "spec.nodename%3Dn1",
        "nonsense",
        "%",
        "%zz&fieldSelector=metadata.name%3Dmounted",
        "metadata.name%3Dmounted;x",
        "a%3Db%3Dc",
        "metadata.name%3Dmounted&limit=nonsense",
        "metadata.name%3Dmounted&limit=",
        "metadata.name%3Dmounted&timeoutSeconds=nonsense",
        "metadata.name%3Dmounted&labelSelector=nonsense+in",
        "metadata.name%3Dmounted&resourceVersion=nonsense",
        "metadata.name%3Dmounted&sendInitialEvents=true",
    ];
    const LABELS: &[&str] =
        &["app%3Dp1", "app+in+(a,b)", "!app", "nonsense+in", "metadata.name%3Dmounted", "%3D"];
    const FORMS: &[(&str, &str)] = &[
        ("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"),
        ("Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"),
        ("Accept", "application/vnd.kubernetes.protobuf"),
        ("Accept", "application/vnd.kubernetes.protobuf;stream=watch"),
        ("Accept", "text/html"),
        ("Accept", "nonsense"),
    ];
    let collections = [
        "/api/v1/pods",
        "/api/v1/namespaces/alpha/pods",
        "/api/v1/namespaces/beta/pods",
        "/api/v1/namespaces/alpha/secrets",
        "/api/v1/secrets",
        "/api/v1/watch/namespaces/alpha/secrets",
        "/api/v1/watch/pods",
        "/api/v1/nodes",
        "/apis/resource.k8s.io/v1/resourceslices",
        "/apis/certificates.k8s.io/v1/podcertificaterequests",
    ];
    let mut all = Vec::new();
    for collection in collections {
        for selector in FIELDS {
            let uri = format!("{collection}?fieldSelector={selector}");
            all.extend(["GET", "DELETE"].map(|m| Question::new(m, &uri)));
            all.push(Question::new("GET", &format!("{uri}&watch=true")));
        }
        for selector in LABELS {
            all.push(Question::new("GET", &format!("{collection}?labelSelector={selector}")));
        }
        for form in FORMS {
            all.push(Question::new("GET", collection).with(&[*form]));
            all.push(Question::new("GET", &format!("{collection}?watch=1")).with(&[*form]));
        }
    }
    all
}
