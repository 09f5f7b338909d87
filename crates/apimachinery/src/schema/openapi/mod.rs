//! OpenAPI documents made from the schema table: v3, one per group version, and their index; v2 made from these.

mod general;
pub mod gnostic;
mod paths;
mod schemas;
pub mod v2;

use serde_json::{Map, Value, json};

pub use general::documents as general_documents;

use super::for_kind;
use crate::gvk::{GroupVersionKind, api_version};

/// A served resource, as much of it as the paths show.
#[derive(Debug, Clone, Copy)]
pub struct Resource<'a> {
    pub plural: &'a str,
    pub kind: &'a str,
    pub namespaced: bool,
    /// As discovery names them: `get`, `list`, `create`, `update`, `patch`, `delete`, `deletecollection`, `watch`.
    pub verbs: &'a [&'a str],
    pub subresources: &'a [Subresource<'a>],
}

/// A subresource of a [`Resource`].
#[derive(Debug, Clone, Copy)]
pub struct Subresource<'a> {
    pub name: &'a str,
    /// Group, version and kind of its bodies.
    pub kind: (&'a str, &'a str, &'a str),
    pub verbs: &'a [&'a str],
}

/// The descriptions of a definition: an OpenAPI or JSON schema with `description`, and `properties` that have
/// one. Everything else in it is ignored.
pub type Describe<'a> = &'a dyn Fn(&str) -> Option<Value>;

/// `api/v1`, `apis/apps/v1`: the path of a group version, as the index names it.
pub fn group_version_path(group: &str, version: &str) -> String {
    let prefix = if group.is_empty() { "api" } else { "apis" };
    format!("{prefix}/{}", api_version(group, version))
}

/// The document that `/openapi/v3/{group_version_path}` serves of built-in resources: that of [`document`], with the
/// path that lists the resources and the paths of watches, which upstream's documents of custom resources leave out.
pub fn built_in_document(
    group: &str,
    version: &str,
    resources: &[Resource<'_>],
    describe: Describe<'_>,
) -> Value {
    let mut document = document(group, version, resources, describe);
    if let Some(all) = document["paths"].as_object_mut() {
        let list = format!("/{}/", group_version_path(group, version));
        all.insert(list, general::resources(group, version).into());
        all.extend(paths::watches(group, version, resources));
    }
    document
}

/// The document of a group version with the paths of its resources.
pub fn document(group: &str, version: &str, resources: &[Resource<'_>], describe: Describe<'_>) -> Value {
    let mut roots = vec![
        GroupVersionKind::new("", "v1", "APIResourceList"),
        GroupVersionKind::new("", "v1", "Status"),
        GroupVersionKind::new("", "v1", "DeleteOptions"),
        GroupVersionKind::new("", "v1", "WatchEvent"),
    ];
    for resource in resources {
        roots.push(GroupVersionKind::new(group, version, resource.kind));
        roots.push(GroupVersionKind::new(group, version, &format!("{}List", resource.kind)));
        for sub in resource.subresources.iter().filter(|sub| !paths::is_connection(sub)) {
            let (group, version, kind) = sub.kind;
            roots.push(GroupVersionKind::new(group, version, kind));
        }
    }
    let roots: Vec<_> = roots.iter().filter_map(for_kind).collect();
    with(paths::paths(group, version, resources), schemas::schemas(&roots, describe))
}

/// A document with these paths and schemas.
fn with(paths: Map<String, Value>, schemas: Map<String, Value>) -> Value {
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "1.37"},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"BearerToken": {
                "description": "Bearer Token authentication",
                "in": "header", "name": "authorization", "type": "apiKey",
            }},
        },
    })
}

/// The schemas of these definitions and of all they reach, by name.
pub fn definitions(names: &[&str], describe: Describe<'_>) -> Map<String, Value> {
    let roots: Vec<_> = names.iter().filter_map(|name| super::for_definition(name)).collect();
    schemas::schemas(&roots, describe)
}

/// The index at `/openapi/v3`, from the path of each document ([`group_version_path`]) and its [`hash`].
pub fn index<'a>(documents: impl IntoIterator<Item = (&'a str, &'a str)>) -> Value {
    let paths: Map<String, Value> = documents
        .into_iter()
        .map(|(path, hash)| {
            let url = format!("/openapi/v3/{path}?hash={hash}");
            (path.to_owned(), json!({"serverRelativeURL": url}))
        })
        .collect();
    json!({ "paths": paths })
}

/// A name for the content of a document, so that clients may keep it for ever: 128-bit FNV-1a in hexadecimal.
pub fn hash(document: &[u8]) -> String {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = document.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME));
    format!("{hash:032X}")
}

#[cfg(test)]
mod tests;
