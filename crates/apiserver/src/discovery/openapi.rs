//! OpenAPI v3: one document per group version, made when first asked for.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, HeaderValue};
use knarr_apimachinery::schema::openapi::{self, Resource, Subresource, group_version_path, hash};
use serde_json::Value;

use super::Document;
use crate::http::output::{Answer, to_json};
use crate::registry::Request;
use crate::registry::table::Table;
use crate::server::Inner;

/// The documents by path, `apis/apps/v1`.
#[derive(Default)]
pub struct Documents(OnceLock<BTreeMap<String, Arc<Document>>>);

impl Documents {
    pub fn all(&self, table: &Table) -> &BTreeMap<String, Arc<Document>> {
        self.0.get_or_init(|| build(table))
    }

    /// `/openapi/v3`.
    pub fn index(&self, table: &Table) -> Value {
        let all = self.all(table);
        openapi::index(all.iter().map(|(path, d)| (path.as_str(), d.etag.trim_matches('"'))))
    }
}

fn build(table: &Table) -> BTreeMap<String, Arc<Document>> {
    let mut documents = BTreeMap::new();
    let descriptions = knarr_api::descriptions::definitions();
    for (group, versions) in super::legacy::group_versions(table) {
        for version in versions {
            let body: Bytes = to_json(&document_of(table, group, version, &descriptions));
            let etag = format!("\"{}\"", hash(&body));
            documents.insert(group_version_path(group, version), Arc::new(Document { body, etag }));
        }
    }
    documents
}

fn document_of(table: &Table, group: &str, version: &str, descriptions: &BTreeMap<String, Value>) -> Value {
    let served: Vec<_> = table
        .iter()
        .map(|s| &s.resource)
        .filter(|r| r.types.group == group && r.types.version == version)
        .collect();
    let subresources: Vec<Vec<Subresource<'_>>> = served
        .iter()
        .map(|r| {
            let own = (r.types.group, r.types.version, r.types.kind);
            let sub = |s: &'static knarr_api::resource::Subresource| Subresource {
                name: s.name,
                kind: s.body.unwrap_or(own),
                verbs: s.verbs,
            };
            r.subresources.iter().map(sub).collect()
        })
        .collect();
    let resources: Vec<Resource<'_>> = served
        .iter()
        .zip(&subresources)
        .map(|(r, subresources)| Resource {
            plural: r.types.plural,
            kind: r.types.kind,
            namespaced: r.types.namespaced,
            verbs: r.verbs,
            subresources,
        })
        .collect();
    openapi::document(group, version, &resources, &|name| descriptions.get(name).cloned())
}

/// `/openapi/v3/apis/apps/v1`.
pub fn document(server: &Inner, table: &Table, request: &Request, path: &str) -> Answer {
    let Some(document) = server.discovery.openapi.all(table).get(path) else {
        return Answer::text(404, "404 page not found\n");
    };
    let mut response = document.answer(request, "application/json");
    // A document asked for by its hash never changes.
    if request.query.get("hash").is_some_and(|h| h == document.etag.trim_matches('"')) {
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    }
    Answer::Raw(response)
}
