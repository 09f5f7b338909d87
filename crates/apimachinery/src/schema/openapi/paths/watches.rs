//! The paths below `/watch/`, which are deprecated in favour of the query parameter `watch`.

use serde_json::{Map, Value};

use super::{Scope, answers_watch, parameters};

/// Returns the watch paths of a resource, from the base path of its group version and its plural.
pub fn items(scope: &Scope<'_>, base: &str, plural: &str) -> Vec<(String, Map<String, Value>)> {
    if !scope.has("watch") {
        return Vec::new();
    }
    let mut items = Vec::new();
    let place = if scope.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("{base}/watch{place}/{plural}");
    if scope.namespaced {
        let id = format!("watch{}{}ListForAllNamespaces", scope.group_version, scope.subject);
        items.push((format!("{base}/watch/{plural}"), item(scope, "watchlist", id, Vec::new())));
    }
    let word = if scope.namespaced { "Namespaced" } else { "" };
    let id = format!("watch{}{word}{}", scope.group_version, scope.subject);
    items.push((collection.clone(), item(scope, "watchlist", format!("{id}List"), scope.place_parameters())));
    if scope.has("get") {
        items.push((format!("{collection}/{{name}}"), item(scope, "watch", id, scope.object_parameters())));
    }
    items
}

fn item(scope: &Scope<'_>, action: &str, id: String, in_path: Vec<Value>) -> Map<String, Value> {
    let mut operation = scope.operation("watch", action, Vec::new(), answers_watch());
    operation["operationId"] = id.into();
    let what = if action == "watch" { "an object" } else { "the objects" };
    operation["description"] = format!(
        "watch changes to {what} of kind {}; deprecated: list with the parameter watch instead",
        scope.gvk.kind
    )
    .into();
    let mut all = in_path;
    all.extend(parameters::query(parameters::LIST.iter().chain([&parameters::PRETTY])));
    Map::from_iter([("get".to_owned(), operation), ("parameters".to_owned(), all.into())])
}
