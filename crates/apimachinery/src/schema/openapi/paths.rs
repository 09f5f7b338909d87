//! `paths`: the operations of a group version's resources, with what clients look for in them.

use serde_json::{Map, Value, json};

use super::{Resource, Subresource, group_version_path};
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

const LIST_PARAMETERS: [(&str, &str); 11] = [
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("shardSelector", "string"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];
const WRITE_PARAMETERS: [(&str, &str); 3] =
    [("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
const DELETE_PARAMETERS: [(&str, &str); 5] = [
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("ignoreStoreReadErrorWithClusterBreakingPotential", "boolean"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
];

/// What the operations of one resource or subresource share.
struct Scope<'a> {
    gvk: GroupVersionKind,
    tag: String,
    /// `AppsV1`.
    group_version: String,
    namespaced: bool,
    /// `DeploymentScale`: the end of operation ids.
    subject: String,
    verbs: &'a [&'a str],
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
        let scope = Scope {
            gvk: GroupVersionKind::new(group, version, resource.kind),
            tag: format!("{}_{version}", group_word(group).to_lowercase()),
            group_version: format!("{}{}", group_word(group), capitalize(version)),
            namespaced: resource.namespaced,
            subject: resource.kind.to_owned(),
            verbs: resource.verbs,
        };
        let place = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("{base}{place}/{}", resource.plural);
        add(&mut paths, collection.clone(), scope.collection());
        if resource.namespaced {
            add(&mut paths, format!("{base}/{}", resource.plural), scope.all_namespaces());
        }
        let object = format!("{collection}/{{name}}");
        add(&mut paths, object.clone(), scope.object());
        for sub in resource.subresources {
            add(&mut paths, format!("{object}/{}", sub.name), scope.subresource(sub));
        }
    }
    paths
}

/// `Core`, `Apps`, `RbacAuthorization`.
fn group_word(group: &str) -> String {
    if group.is_empty() {
        return "Core".to_owned();
    }
    group.strip_suffix(".k8s.io").unwrap_or(group).split('.').map(capitalize).collect()
}

fn capitalize(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

fn parameters(list: &[(&str, &str)]) -> Vec<Value> {
    list.iter()
        .map(|(name, ty)| json!({"name": name, "in": "query", "schema": {"type": ty, "uniqueItems": true}}))
        .collect()
}

fn content(definition: &str, types: &[&str]) -> Value {
    let schema = json!({"schema": {"$ref": format!("#/components/schemas/{definition}")}});
    Value::Object(types.iter().map(|ty| ((*ty).to_owned(), schema.clone())).collect())
}

fn answers(definition: &str, codes: &[&str]) -> Value {
    let types = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
    let mut responses: Map<String, Value> = codes
        .iter()
        .map(|code| {
            let description = match *code {
                "201" => "Created",
                "202" => "Accepted",
                _ => "OK",
            };
            ((*code).to_owned(), json!({"description": description, "content": content(definition, &types)}))
        })
        .collect();
    responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
    Value::Object(responses)
}

impl Scope<'_> {
    fn has(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }

    /// The definition of the objects; kinds without a schema, such as streams, have none.
    fn definition(&self) -> &'static str {
        for_kind(&self.gvk).map_or(STATUS, |s| s.name)
    }

    fn list_definition(&self) -> &'static str {
        let list = GroupVersionKind { kind: format!("{}List", self.gvk.kind), ..self.gvk.clone() };
        for_kind(&list).map_or(STATUS, |s| s.name)
    }

    /// An operation; `verb` begins its id: `read`, `replace` and so on.
    fn operation(&self, verb: &str, action: &str, query: Vec<Value>, responses: Value) -> Value {
        let place = if self.namespaced { "Namespaced" } else { "" };
        let id = format!("{verb}{}{place}{}", self.group_version, self.subject);
        let mut body = json!({
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

    fn path_parameters(&self, object: bool) -> Value {
        let mut names = Vec::new();
        if object {
            names.push("name");
        }
        if self.namespaced {
            names.push("namespace");
        }
        let mut list: Vec<Value> = names
            .into_iter()
            .map(|name| {
                json!({"name": name, "in": "path", "required": true,
                       "schema": {"type": "string", "uniqueItems": true}})
            })
            .collect();
        list.extend(parameters(&[("pretty", "string")]));
        Value::Array(list)
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
            let mut query = parameters(&LIST_PARAMETERS);
            query.retain(|p| !matches!(p["name"].as_str(), Some("watch" | "allowWatchBookmarks")));
            query.extend(parameters(&DELETE_PARAMETERS));
            let mut operation =
                self.operation("delete", "deletecollection", query, answers(STATUS, &["200"]));
            let place = if self.namespaced { "Namespaced" } else { "" };
            let id = format!("delete{}Collection{place}{}", self.group_version, self.subject);
            operation["operationId"] = json!(id);
            operation["requestBody"] = json!({ "content": content(DELETE_OPTIONS, &["*/*"]) });
            item.insert("delete".to_owned(), operation);
        }
        item.insert("parameters".to_owned(), self.path_parameters(false));
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
        item.insert("parameters".to_owned(), Value::Array(parameters(&[("pretty", "string")])));
        item
    }

    fn list(&self, verb: &str) -> Value {
        self.operation(verb, "list", parameters(&LIST_PARAMETERS), answers(self.list_definition(), &["200"]))
    }

    fn create(&self) -> Value {
        let responses = answers(self.definition(), &["200", "201", "202"]);
        let mut operation = self.operation("create", "post", parameters(&WRITE_PARAMETERS), responses);
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
            let mut operation = self.operation("replace", "put", parameters(&WRITE_PARAMETERS), responses);
            operation["requestBody"] = json!({"required": true, "content": content(definition, &["*/*"])});
            item.insert("put".to_owned(), operation);
        }
        if self.has("patch") {
            let mut query = parameters(&WRITE_PARAMETERS);
            query.extend(parameters(&[("force", "boolean")]));
            let responses = answers(definition, &["200", "201"]);
            let mut operation = self.operation("patch", "patch", query, responses);
            operation["requestBody"] = json!({"required": true, "content": content(PATCH, &PATCH_TYPES)});
            item.insert("patch".to_owned(), operation);
        }
        if self.has("delete") {
            let responses = answers(STATUS, &["200", "202"]);
            let mut operation = self.operation("delete", "delete", parameters(&DELETE_PARAMETERS), responses);
            operation["requestBody"] = json!({ "content": content(DELETE_OPTIONS, &["*/*"]) });
            item.insert("delete".to_owned(), operation);
        }
        item.insert("parameters".to_owned(), self.path_parameters(true));
        item
    }

    fn subresource(&self, sub: &Subresource<'_>) -> Map<String, Value> {
        let (group, version, kind) = sub.kind;
        let scope = Scope {
            gvk: GroupVersionKind::new(group, version, kind),
            tag: self.tag.clone(),
            group_version: self.group_version.clone(),
            namespaced: self.namespaced,
            subject: format!("{}{}", self.subject, capitalize(sub.name)),
            verbs: sub.verbs,
        };
        let mut item = scope.object();
        if scope.has("create") {
            item.insert("post".to_owned(), scope.create());
        }
        item
    }
}
