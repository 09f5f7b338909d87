//! The field-schema table: names, types, merge rules, defaults and protobuf numbers of the API types' fields.
//!
//! One generated table drives field validation, pruning, strategic merge, server-side apply, OpenAPI and protobuf.
//! `generated.rs` contains facts only; `cargo xtask codegen` writes it from the published Kubernetes modules.

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

/// Returns the schema of a top-level kind.
pub fn for_kind(gvk: &GroupVersionKind) -> Option<&'static Struct> {
    let found = generated::KINDS.binary_search_by(|k| {
        (k.group, k.version, k.kind).cmp(&(gvk.group.as_str(), gvk.version.as_str(), gvk.kind.as_str()))
    });
    match found {
        Ok(i) => Some(generated::KINDS[i].schema),
        // Every group version has these two kinds, with the same shape.
        Err(_) if matches!(gvk.kind.as_str(), "DeleteOptions" | "WatchEvent") => {
            for_definition(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{}", gvk.kind))
        }
        // Tables and metadata have the same shape in both versions; some objects of discovery have no version.
        Err(_) if (gvk.group.as_str(), gvk.version.as_str()) == ("meta.k8s.io", "v1beta1") => {
            for_kind(&GroupVersionKind::new("meta.k8s.io", "v1", &gvk.kind))
        }
        Err(_) if gvk.version.is_empty() && gvk.kind.starts_with("API") => {
            for_kind(&GroupVersionKind::new("", "v1", &gvk.kind))
        }
        // Clients before 1.22 use it for evictions.
        Err(_) if *gvk == GroupVersionKind::new("policy", "v1beta1", "Eviction") => {
            for_kind(&GroupVersionKind::new("policy", "v1", "Eviction"))
        }
        Err(_) => None,
    }
}

/// Returns the schema with this OpenAPI definition name.
pub fn for_definition(name: &str) -> Option<&'static Struct> {
    let all = generated::STRUCTS;
    all.binary_search_by(|s| s.name.cmp(name)).ok().map(|i| all[i])
}

/// Returns every kind, sorted by group, version and kind.
pub fn kinds() -> &'static [Kind] {
    generated::KINDS
}

/// Returns every struct, sorted by definition name.
pub fn structs() -> &'static [&'static Struct] {
    generated::STRUCTS
}

#[cfg(test)]
mod tests;
