//! The field-schema table: what the API types' fields are called, how they are typed, merged, defaulted and numbered.
//!
//! One generated table drives field validation, pruning, strategic merge, server-side apply, OpenAPI and protobuf.
//! `generated.rs` holds facts only, written by `cargo xtask codegen` from the published Kubernetes modules.

mod build;
#[rustfmt::skip]
mod generated;
pub mod openapi;
mod plan;
pub mod protobuf;
mod types;
pub mod validate;

use crate::gvk::GroupVersionKind;

use types::go_element;
pub use types::{Field, Kind, List, ListKind, Map, Struct, Type};

/// The schema of a top-level kind.
pub fn for_kind(gvk: &GroupVersionKind) -> Option<&'static Struct> {
    let found = generated::KINDS.binary_search_by(|k| {
        (k.group, k.version, k.kind).cmp(&(gvk.group.as_str(), gvk.version.as_str(), gvk.kind.as_str()))
    });
    match found {
        Ok(i) => Some(generated::KINDS[i].schema),
        // Every group version has these two, of one shape.
        Err(_) if matches!(gvk.kind.as_str(), "DeleteOptions" | "WatchEvent") => {
            for_definition(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{}", gvk.kind))
        }
        // Tables and metadata have one shape in both versions; some of discovery's objects say no version.
        Err(_) if (gvk.group.as_str(), gvk.version.as_str()) == ("meta.k8s.io", "v1beta1") => {
            for_kind(&GroupVersionKind::new("meta.k8s.io", "v1", &gvk.kind))
        }
        Err(_) if gvk.version.is_empty() && gvk.kind.starts_with("API") => {
            for_kind(&GroupVersionKind::new("", "v1", &gvk.kind))
        }
        // Clients before 1.22 evict with it.
        Err(_) if *gvk == GroupVersionKind::new("policy", "v1beta1", "Eviction") => {
            for_kind(&GroupVersionKind::new("policy", "v1", "Eviction"))
        }
        Err(_) => None,
    }
}

/// The schema with this OpenAPI definition name.
pub fn for_definition(name: &str) -> Option<&'static Struct> {
    let all = generated::STRUCTS;
    all.binary_search_by(|s| s.name.cmp(name)).ok().map(|i| all[i])
}

/// Every kind, sorted by group, version and kind.
pub fn kinds() -> &'static [Kind] {
    generated::KINDS
}

/// Every struct, sorted by definition name.
pub fn structs() -> &'static [&'static Struct] {
    generated::STRUCTS
}

#[cfg(test)]
mod tests;
