//! The input of a document: the resources of a group version and the descriptions of their schemas.

use serde_json::Value;

use crate::gvk::api_version;

/// A served resource, with what its paths need.
#[derive(Debug, Clone, Copy)]
pub struct Resource<'a> {
    pub plural: &'a str,
    pub kind: &'a str,
    pub namespaced: bool,
    /// The verbs as discovery lists them: `get`, `list`, `create`, `update`, `patch`, `delete`, `deletecollection`,
    /// `watch`.
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

/// Returns the descriptions of a definition: an OpenAPI or JSON schema with `description`, and `properties` that have
/// one. Everything else in it is ignored.
pub type Describe<'a> = &'a dyn Fn(&str) -> Option<Value>;

/// Returns the path of a group version as the index lists it: `api/v1`, `apis/apps/v1`.
pub fn group_version_path(group: &str, version: &str) -> String {
    let prefix = if group.is_empty() { "api" } else { "apis" };
    format!("{prefix}/{}", api_version(group, version))
}
