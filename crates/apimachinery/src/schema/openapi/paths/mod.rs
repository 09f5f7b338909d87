//! `paths`: the operations of a group version's resources, with the extensions that clients read.

mod connect;
mod parameters;
mod watches;

use serde_json::{Map, Value, json};

use super::resource::{Resource, Subresource, group_version_path};
use crate::gvk::GroupVersionKind;
use crate::schema::for_kind;

const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";

const PATCH_TYPES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// What the operations of one resource or subresource have in common.
struct Scope<'a> {
    gvk: GroupVersionKind,
    tag: String,
    /// `AppsV1`.
    group_version: String,
    namespaced: bool,
    /// The last part of operation ids: `DeploymentScale`.
    subject: String,
    verbs: &'a [&'a str],
}

impl<'a> Scope<'a> {
    fn of(group: &str, version: &str, resource: &Resource<'a>) -> Self {
        let words = group_version_words(group, version);
        Self {
            gvk: GroupVersionKind::new(group, version, resource.kind),
            tag: words.tag,
            group_version: words.id,
            namespaced: resource.namespaced,
            subject: resource.kind.to_owned(),
            verbs: resource.verbs,
        }
    }
}

pub fn paths(group: &str, version: &str, resources: &[Resource<'_>]) -> Map<String, Value> {
    let base = format!("/{}", group_version_path(group, version));
    let mut paths = Map::new();
    let add = |paths: &mut Map<String, Value>, path: String, item: Map<String, Value>| {
        if item.keys().any(|k| k != "parameters") {
            paths.insert(path, Value::Object(item));
        }
    };
    for resource in resources {
        let scope = Scope::of(group, version, resource);
        let place = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("{base}{place}/{}", resource.plural);
        add(&mut paths, collection.clone(), scope.collection());
        if resource.namespaced {
            add(&mut paths, format!("{base}/{}", resource.plural), scope.all_namespaces());
        }
        let object = format!("{collection}/{{name}}");
        add(&mut paths, object.clone(), scope.object());
        for sub in resource.subresources {
            for (path, item) in scope.subresource(sub, &format!("{object}/{}", sub.name)) {
                add(&mut paths, path, item);
            }
        }
    }
    paths
}

/// Returns whether a subresource upgrades the connection: its kind is never a body.
pub fn is_connection(sub: &Subresource<'_>) -> bool {
    parameters::of_connection(sub.kind.2).is_some()
}

/// Returns the paths below `/watch/` of these resources.
pub fn watches(group: &str, version: &str, resources: &[Resource<'_>]) -> Map<String, Value> {
    let base = format!("/{}", group_version_path(group, version));
    let items = |resource: &Resource<'_>| {
        watches::items(&Scope::of(group, version, resource), &base, resource.plural)
    };
    resources.iter().flat_map(items).map(|(path, item)| (path, Value::Object(item))).collect()
}

/// The names of a group version in operation ids and tags.
pub struct Words {
    /// In operation ids: `FlowcontrolApiserverV1`.
    pub id: String,
    /// In tags: `flowcontrolApiserver_v1`.
    pub tag: String,
}

pub fn group_version_words(group: &str, version: &str) -> Words {
    let word = group_word(group);
    Words { id: format!("{word}{}", capitalize(version)), tag: format!("{}_{version}", lower_first(&word)) }
}

/// Returns the name of a group in operation ids: `Core`, `Apps`, `RbacAuthorization`.
pub fn group_word(group: &str) -> String {
    if group.is_empty() {
        return "Core".to_owned();
    }
    group.strip_suffix(".k8s.io").unwrap_or(group).split('.').map(capitalize).collect()
}

/// Lowers the first letter, as tags have it: `flowcontrolApiserver`.
pub fn lower_first(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

fn capitalize(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

fn article(kind: &str) -> &'static str {
    if kind.starts_with(['A', 'E', 'I', 'O', 'U']) { "an" } else { "a" }
}

fn content(definition: &str, types: &[&str]) -> Value {
    let schema = json!({"schema": {"$ref": format!("#/components/schemas/{definition}")}});
    Value::Object(types.iter().map(|ty| ((*ty).to_owned(), schema.clone())).collect())
}

const OBJECTS: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const STREAMS: [&str; 2] =
    ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];

/// Returns the responses of an operation that may be a watch.
fn answers_or_watch(definition: &str) -> Value {
    let types: Vec<&str> = OBJECTS.into_iter().chain(STREAMS).collect();
    let mut responses = answers(definition, &["200"]);
    responses["200"]["content"] = content(definition, &types);
    responses
}

fn answers_watch() -> Value {
    answers_or_watch("io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent")
}

fn answers(definition: &str, codes: &[&str]) -> Value {
    let mut responses: Map<String, Value> = codes
        .iter()
        .map(|code| {
            let description = match *code {
                "201" => "Created",
                "202" => "Accepted",
                _ => "OK",
            };
            (
                (*code).to_owned(),
                json!({"description": description, "content": content(definition, &OBJECTS)}),
            )
        })
        .collect();
    responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
    Value::Object(responses)
}

impl Scope<'_> {
    fn has(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }

    /// Returns the definition name of the objects; that of `Status` for kinds without a schema, such as streams.
    fn definition(&self) -> &'static str {
        for_kind(&self.gvk).map_or(STATUS, |s| s.name)
    }

    fn list_definition(&self) -> &'static str {
        let list = GroupVersionKind { kind: format!("{}List", self.gvk.kind), ..self.gvk.clone() };
        for_kind(&list).map_or(STATUS, |s| s.name)
    }

    /// Returns an operation; its id begins with `verb`: `read`, `replace` and so on.
    fn operation(&self, verb: &str, action: &str, query: Vec<Value>, responses: Value) -> Value {
        let place = if self.namespaced { "Namespaced" } else { "" };
        let id = format!("{verb}{}{place}{}", self.group_version, self.subject);
        let kind = &self.gvk.kind;
        let mut body = json!({
            "description": match action {
                "list" => format!("list or watch objects of kind {kind}"),
                "post" => format!("create {} {kind}", article(kind)),
                "put" => format!("replace the specified {kind}"),
                "patch" => format!("partially update the specified {kind}"),
                "delete" => format!("delete {} {kind}", article(kind)),
                "deletecollection" => format!("delete collection of {kind}"),
                _ => format!("read the specified {kind}"),
            },
            "operationId": id,
            "tags": [self.tag],
            "responses": responses,
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind":
                {"group": self.gvk.group, "version": self.gvk.version, "kind": self.gvk.kind},
        });
        if !query.is_empty() {
            body["parameters"] = Value::Array(query);
        }
        body
    }

    /// Returns the path parameters that identify an object.
    fn object_parameters(&self) -> Vec<Value> {
        let name = parameters::in_path("name", &format!("name of the {}", self.gvk.kind));
        std::iter::once(name).chain(self.place_parameters()).collect()
    }

    /// Returns the path parameters that identify a collection.
    fn place_parameters(&self) -> Vec<Value> {
        let namespace = || parameters::in_path("namespace", "namespace of the objects");
        self.namespaced.then(namespace).into_iter().collect()
    }

    fn with_pretty(mut in_path: Vec<Value>) -> Value {
        in_path.extend(parameters::query([&parameters::PRETTY]));
        Value::Array(in_path)
    }

    fn collection(&self) -> Map<String, Value> {
        let mut item = Map::new();
        if self.has("list") {
            item.insert("get".to_owned(), self.list("list"));
        }
        if self.has("create") {
            item.insert("post".to_owned(), self.create());
        }
        if self.has("deletecollection") {
            let mut query = parameters::query(parameters::LIST);
            query.retain(|p| !matches!(p["name"].as_str(), Some("watch" | "allowWatchBookmarks")));
            query.extend(parameters::query(parameters::DELETE));
            let mut operation =
                self.operation("delete", "deletecollection", query, answers(STATUS, &["200"]));
            let place = if self.namespaced { "Namespaced" } else { "" };
            let id = format!("delete{}Collection{place}{}", self.group_version, self.subject);
            operation["operationId"] = json!(id);
            operation["requestBody"] = json!({ "content": content(DELETE_OPTIONS, &["*/*"]) });
            item.insert("delete".to_owned(), operation);
        }
        item.insert("parameters".to_owned(), Self::with_pretty(self.place_parameters()));
        item
    }

    fn all_namespaces(&self) -> Map<String, Value> {
        let mut item = Map::new();
        if self.has("list") {
            let mut operation = self.list("list");
            operation["operationId"] =
                json!(format!("list{}{}ForAllNamespaces", self.group_version, self.subject));
            item.insert("get".to_owned(), operation);
        }
        item.insert("parameters".to_owned(), Self::with_pretty(Vec::new()));
        item
    }

    fn list(&self, verb: &str) -> Value {
        self.operation(
            verb,
            "list",
            parameters::query(parameters::LIST),
            answers_or_watch(self.list_definition()),
        )
    }

    fn create(&self) -> Value {
        let responses = answers(self.definition(), &["200", "201", "202"]);
        let mut operation = self.operation("create", "post", parameters::query(parameters::WRITE), responses);
        operation["requestBody"] = json!({"required": true, "content": content(self.definition(), &["*/*"])});
        operation
    }

    fn object(&self) -> Map<String, Value> {
        let mut item = Map::new();
        let definition = self.definition();
        if self.has("get") {
            let operation = self.operation("read", "get", Vec::new(), answers(definition, &["200"]));
            item.insert("get".to_owned(), operation);
        }
        if self.has("update") {
            let responses = answers(definition, &["200", "201"]);
            let mut operation =
                self.operation("replace", "put", parameters::query(parameters::WRITE), responses);
            operation["requestBody"] = json!({"required": true, "content": content(definition, &["*/*"])});
            item.insert("put".to_owned(), operation);
        }
        if self.has("patch") {
            let mut query = parameters::query(parameters::WRITE);
            query.extend(parameters::query([&parameters::FORCE]));
            let responses = answers(definition, &["200", "201"]);
            let mut operation = self.operation("patch", "patch", query, responses);
            operation["requestBody"] = json!({"required": true, "content": content(PATCH, &PATCH_TYPES)});
            item.insert("patch".to_owned(), operation);
        }
        if self.has("delete") {
            let responses = answers(STATUS, &["200", "202"]);
            let mut operation =
                self.operation("delete", "delete", parameters::query(parameters::DELETE), responses);
            operation["requestBody"] = json!({ "content": content(DELETE_OPTIONS, &["*/*"]) });
            item.insert("delete".to_owned(), operation);
        }
        item.insert("parameters".to_owned(), Self::with_pretty(self.object_parameters()));
        item
    }

    /// Returns the paths of a subresource.
    fn subresource(&self, sub: &Subresource<'_>, path: &str) -> Vec<(String, Map<String, Value>)> {
        let (group, version, kind) = sub.kind;
        let scope = Scope {
            gvk: GroupVersionKind::new(group, version, kind),
            tag: self.tag.clone(),
            group_version: self.group_version.clone(),
            namespaced: self.namespaced,
            subject: format!("{}{}", self.subject, capitalize(sub.name)),
            verbs: sub.verbs,
        };
        if is_connection(sub) {
            return connect::items(&scope, path, sub.name, &self.gvk.kind);
        }
        let mut item = scope.object();
        if scope.has("create") {
            let mut operation = scope.create();
            operation["description"] = format!("create {} of a {}", sub.name, self.gvk.kind).into();
            item.insert("post".to_owned(), operation);
        }
        for (method, words) in [("get", "read"), ("put", "replace"), ("patch", "partially update")] {
            if let Some(operation) = item.get_mut(method) {
                operation["description"] =
                    format!("{words} {} of the specified {}", sub.name, self.gvk.kind).into();
            }
        }
        if (self.gvk.kind.as_str(), sub.name) == ("Pod", "log") {
            scope.log(&mut item);
        }
        vec![(path.to_owned(), item)]
    }

    /// Adds the answer of a log, which is text.
    fn log(&self, item: &mut Map<String, Value>) {
        let Some(operation) = item.get_mut("get") else { return };
        let text = json!({"schema": {"type": "string"}});
        let types = ["text/plain"].into_iter().chain(OBJECTS);
        let content: Map<String, Value> = types.map(|ty| (ty.to_owned(), text.clone())).collect();
        operation["responses"]["200"]["content"] = content.into();
        let mut all = self.object_parameters();
        all.extend(parameters::query(parameters::LOG.iter().chain([&parameters::PRETTY])));
        item.insert("parameters".to_owned(), all.into());
    }
}
