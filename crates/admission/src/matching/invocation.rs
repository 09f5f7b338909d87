//! The form of a request that a webhook or policy gets.

use knarr_apimachinery::gvk::GroupVersionKind;

use crate::Attributes;

/// The request in the form that a webhook receives: for this resource, of this kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    pub kind: GroupVersionKind,
    pub group: String,
    pub version: String,
    pub plural: String,
}

impl Invocation {
    /// Returns the form of the request itself.
    pub fn own(attributes: &Attributes<'_>) -> Self {
        let resource = attributes.resource;
        Self {
            kind: attributes.kind(),
            group: resource.group.into(),
            version: resource.version.into(),
            plural: resource.plural.into(),
        }
    }
}
