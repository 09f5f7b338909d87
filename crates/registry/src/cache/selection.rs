//! The part of a collection that a list or watch selects.

use knarr_api::object::Object;
use knarr_api::resource_ref::ResourceRef;
use knarr_apimachinery::selector::{FieldSelector, Selector};

/// The fields by whose value watches are indexed: every kubelet, or every client that waits for one object, selects
/// by them.
const INDEXED: [&str; 2] = ["metadata.name", "spec.nodeName"];

/// A label selector and a field selector, for objects in their stored form.
#[derive(Clone)]
pub struct Selection {
    /// The resource in its stored form; it defines the values of absent fields.
    pub resource: ResourceRef,
    pub labels: Selector,
    pub fields: FieldSelector,
}

impl Selection {
    pub fn everything(resource: ResourceRef) -> Self {
        Self { resource, labels: Selector::everything(), fields: FieldSelector::everything() }
    }

    pub fn matches(&self, object: &Object) -> bool {
        let header = object.header();
        self.labels.matches_with(|key| header.label(key))
            && self.fields.matches(|path| Some(self.resource.field(header, path)))
    }

    /// Returns the field and its required value, if watches are indexed by that field.
    pub fn indexed_field(&self) -> Option<(&'static str, &str)> {
        let known = INDEXED.iter().filter(|p| **p == "metadata.name" || self.resource.selectable.contains(p));
        known.into_iter().find_map(|path| Some((*path, self.fields.requires_exact(path)?)))
    }
}
