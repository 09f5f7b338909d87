//! Operations that upgrade a connection: exec, attach and portforward of pods, and the proxies.
//!
//! Source: upstream's published `api/openapi-spec`, where each method has an operation with the action `connect`, no
//! body, and a string as its answer.

use serde_json::{Map, Value, json};

use super::{Scope, parameters};

/// The API verbs, and the HTTP methods that operation ids contain.
const METHODS: [(&str, &str); 7] = [
    ("delete", "delete"),
    ("get", "get"),
    ("get", "head"),
    ("get", "options"),
    ("patch", "patch"),
    ("create", "post"),
    ("update", "put"),
];

/// Returns the paths below an object, with their operations.
pub fn items(scope: &Scope<'_>, path: &str, name: &str, parent: &str) -> Vec<(String, Map<String, Value>)> {
    let mut items = vec![(path.to_owned(), item(scope, name, parent, false))];
    if name == "proxy" {
        items.push((format!("{path}/{{path}}"), item(scope, name, parent, true)));
    }
    items
}

fn item(scope: &Scope<'_>, name: &str, parent: &str, with_path: bool) -> Map<String, Value> {
    let mut item = Map::new();
    for (verb, method) in METHODS {
        // Only GET and POST open streams.
        let proxied = name == "proxy" || !matches!(method, "head" | "options");
        if scope.has(verb) && proxied {
            item.insert(method.to_owned(), operation(scope, method, name, parent, with_path));
        }
    }
    let mut all = scope.object_parameters();
    if with_path {
        all.push(parameters::in_path("path", "path below the object"));
    }
    let own = parameters::of_connection(&scope.gvk.kind).unwrap_or_default();
    all.extend(parameters::query(own));
    item.insert("parameters".to_owned(), all.into());
    item
}

fn operation(scope: &Scope<'_>, method: &str, name: &str, parent: &str, with_path: bool) -> Value {
    let responses = json!({
        "200": {"description": "OK", "content": {"*/*": {"schema": {"type": "string"}}}},
        "401": {"description": "Unauthorized"},
    });
    let mut operation = scope.operation("connect", "connect", Vec::new(), responses);
    let place = if scope.namespaced { "Namespaced" } else { "" };
    let end = if with_path { "WithPath" } else { "" };
    let method_word = super::capitalize(method);
    operation["operationId"] =
        format!("connect{}{method_word}{place}{}{end}", scope.group_version, scope.subject).into();
    operation["description"] =
        format!("connect {} requests to {name} of {parent}", method.to_uppercase()).into();
    operation
}
