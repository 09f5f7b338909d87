//! The objects that clients write: their paths and bodies, and the contents of answers.

use serde_json::{Value, json};

use super::history::{Answer, Key, Request, Revision, State};
use crate::http;

/// A resource that clients write.
pub struct Resource {
    pub plural: &'static str,
    kind: &'static str,
    group_version: &'static str,
    prefix: &'static str,
}

pub const RESOURCES: &[Resource] = &[
    Resource { plural: "configmaps", kind: "ConfigMap", group_version: "v1", prefix: "/api/v1" },
    Resource { plural: "secrets", kind: "Secret", group_version: "v1", prefix: "/api/v1" },
    Resource {
        plural: "knots",
        kind: "Knot",
        group_version: "soak.knarr.io/v1",
        prefix: "/apis/soak.knarr.io/v1",
    },
];

/// The annotation with the value of an object. Other objects in the namespace have none.
const VALUE: &str = "soak.knarr.io/value";

impl Resource {
    /// Returns the path of the collection, in one namespace or in all.
    pub fn path(&self, namespace: Option<&str>) -> String {
        match namespace {
            Some(namespace) => format!("{}/namespaces/{namespace}/{}", self.prefix, self.plural),
            None => format!("{}/{}", self.prefix, self.plural),
        }
    }

    pub fn key(&self, name: &str) -> Key {
        format!("{}/{name}", self.plural)
    }

    /// Returns method, path, content type and body of a request for one object.
    pub fn request(&self, namespace: &str, name: &str, request: &Request, padding: usize) -> Sent {
        let collection = self.path(Some(namespace));
        let object = format!("{collection}/{name}");
        let metadata = |value: u64| {
            let padding = "x".repeat(padding);
            json!({"name": name, "annotations": {VALUE: value.to_string(), "soak.knarr.io/padding": padding}})
        };
        let whole = |metadata: Value| json!({"apiVersion": self.group_version, "kind": self.kind, "metadata": metadata});
        match *request {
            Request::Create { value } => Sent::new("POST", collection, Some(whole(metadata(value)))),
            Request::Update { value, at } => {
                let mut metadata = metadata(value);
                metadata["resourceVersion"] = json!(at.to_string());
                Sent::new("PUT", object, Some(whole(metadata)))
            }
            Request::Patch { value } => Sent {
                content_type: http::MERGE_PATCH,
                ..Sent::new("PATCH", object, Some(json!({"metadata": metadata(value)})))
            },
            Request::Delete { at } => {
                let options = at.map(|at| json!({"preconditions": {"resourceVersion": at.to_string()}}));
                Sent::new("DELETE", object, options)
            }
            Request::Get => Sent::new("GET", object, None),
        }
    }
}

/// A request as it is sent to the server.
pub struct Sent {
    pub method: &'static str,
    pub path: String,
    pub content_type: &'static str,
    pub body: Option<String>,
}

impl Sent {
    fn new(method: &'static str, path: String, body: Option<Value>) -> Self {
        Self { method, path, content_type: http::JSON, body: body.map(|b| b.to_string()) }
    }
}

/// Parses an answer about the object `name`.
pub fn answer(request: &Request, name: &str, answer: &http::Answer) -> Answer {
    let Ok(body) = serde_json::from_slice::<Value>(&answer.body) else {
        return if answer.code < 500 && answer.code >= 400 { Answer::Refused } else { Answer::Unknown };
    };
    match (answer.code, request) {
        (200..=299, Request::Delete { .. }) => Answer::Deleted,
        (200..=299, Request::Get) => state(&body).map_or(Answer::Unknown, Answer::Saw),
        (200..=299, _) => revision(&body).map_or(Answer::Unknown, Answer::Wrote),
        (404, _) if body["details"]["name"] == name => Answer::Absent,
        (409, _) if body["reason"] == "AlreadyExists" => Answer::Exists,
        (409, _) => Answer::Conflict,
        (400..=499, _) => Answer::Refused,
        _ if body["message"].as_str().is_some_and(|m| m.contains("database space exceeded")) => {
            Answer::Refused
        }
        _ => Answer::Unknown,
    }
}

/// Returns the name of an object.
pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Returns an object's namespace.
pub fn namespace(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

/// Returns the resourceVersion of an object, a list or a bookmark.
pub fn revision(object: &Value) -> Option<Revision> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

/// Returns an object's state; `None` if the soak did not write it.
pub fn state(object: &Value) -> Option<State> {
    let value = object["metadata"]["annotations"][VALUE].as_str()?.parse().ok()?;
    Some(State { value, revision: revision(object)? })
}

/// Returns the CustomResourceDefinition of the resource `knots`.
pub fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "knots.soak.knarr.io"},
        "spec": {
            "group": "soak.knarr.io", "scope": "Namespaced",
            "names": {"plural": "knots", "singular": "knot", "kind": "Knot", "listKind": "KnotList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    })
}
