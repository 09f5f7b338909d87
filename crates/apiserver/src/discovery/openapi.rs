//! OpenAPI v3: one document per group version, created on first use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use http::header::{CACHE_CONTROL, HeaderValue};
use knarr_api::custom::CustomResource;
use knarr_apimachinery::schema::openapi::{self, Resource, Subresource, group_version_path};
use serde_json::Value;

use super::{Document, custom_openapi};
use knarr_registry::table::Table;
use knarr_wire::output::Answer;
use knarr_wire::request::Request;

type ByPath = BTreeMap<String, Arc<Document>>;

/// A document with the custom resources from which it was created.
type Made = (Vec<Arc<CustomResource>>, Arc<Document>);

/// The documents by path, such as `apis/apps/v1`.
#[derive(Default)]
pub struct Documents {
    built_in: OnceLock<ByPath>,
    /// The descriptions of built-in types, for the documents of custom resources.
    descriptions: OnceLock<BTreeMap<String, Value>>,
    /// The documents of custom resources.
    custom: Mutex<BTreeMap<String, Made>>,
}

impl Documents {
    pub fn all(&self, table: &Table) -> ByPath {
        let mut all = self.built_in.get_or_init(|| build(table)).clone();
        all.extend(self.customs(table));
        all
    }

    /// Returns the documents of custom resources; creates those again whose resources have changed.
    fn customs(&self, table: &Table) -> ByPath {
        let mut groups: BTreeMap<(&str, &str), Vec<Arc<CustomResource>>> = BTreeMap::new();
        for custom in table.iter().filter_map(|s| s.resource.custom()) {
            let types = custom.resource.types;
            groups.entry((types.group, types.version)).or_default().push(Arc::clone(custom));
        }
        let mut made = self.custom.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = BTreeMap::new();
        for ((group, version), customs) in groups {
            let path = group_version_path(group, version);
            let same = |before: &[Arc<CustomResource>]| {
                before.len() == customs.len() && before.iter().zip(&customs).all(|(a, b)| Arc::ptr_eq(a, b))
            };
            let document = match made.remove(&path) {
                Some((before, document)) if same(&before) => document,
                _ => {
                    let refs: Vec<&CustomResource> = customs.iter().map(|c| &**c).collect();
                    let describe = |name: &str| self.descriptions().get(name).cloned();
                    Arc::new(Document::new(&custom_openapi::document(group, version, &refs, &describe)))
                }
            };
            kept.insert(path, (customs, document));
        }
        *made = kept;
        made.iter().map(|(path, (_, document))| (path.clone(), Arc::clone(document))).collect()
    }

    fn descriptions(&self) -> &BTreeMap<String, Value> {
        self.descriptions.get_or_init(|| {
            let mut all = knarr_api::descriptions::definitions();
            all.retain(|name, _| custom_openapi::mentions(name));
            all
        })
    }

    /// Returns the document of `/openapi/v3`.
    pub fn index(&self, table: &Table) -> Value {
        let all = self.all(table);
        openapi::index(all.iter().map(|(path, d)| (path.as_str(), d.etag.trim_matches('"'))))
    }
}

fn build(table: &Table) -> ByPath {
    let mut documents = BTreeMap::new();
    let descriptions = knarr_api::descriptions::definitions();
    let built_in = |group: &str, version: &str| {
        let mut all = table.iter().map(|s| &s.resource).filter(|r| r.custom().is_none());
        all.any(|r| r.types.group == group && r.types.version == version)
    };
    for (group, versions) in super::legacy::group_versions(table) {
        for version in versions.into_iter().filter(|v| built_in(group, v)) {
            let document = Document::new(&document_of(table, group, version, &descriptions));
            documents.insert(group_version_path(group, version), Arc::new(document));
        }
    }
    let own = table.iter().map(|s| &s.resource).filter(|r| r.custom().is_none()).map(|r| r.types.group);
    let groups: Vec<&str> = own.collect::<BTreeSet<_>>().into_iter().collect();
    for (path, document) in openapi::general_documents(&groups, &|name| descriptions.get(name).cloned()) {
        documents.insert(path, Arc::new(Document::new(&document)));
    }
    documents
}

fn document_of(table: &Table, group: &str, version: &str, descriptions: &BTreeMap<String, Value>) -> Value {
    let served: Vec<_> = table
        .iter()
        .map(|s| &s.resource)
        .filter(|r| r.custom().is_none() && r.types.group == group && r.types.version == version)
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
    openapi::built_in_document(group, version, &resources, &|name| descriptions.get(name).cloned())
}

/// Answers a document such as `/openapi/v3/apis/apps/v1`.
pub fn document(documents: &Documents, table: &Table, request: &Request, path: &str) -> Answer {
    let all = documents.all(table);
    let Some(document) = all.get(path) else {
        return Answer::text(404, "404 page not found\n");
    };
    let mut response = document.answer(request, "application/json");
    // A document that is requested by its hash never changes.
    if request.query.get("hash").is_some_and(|h| h == document.etag.trim_matches('"')) {
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    }
    Answer::Raw(response)
}
