//! OpenAPI documents from the schema table: v3 documents per group version, their index, and v2 made from these.

mod document;
mod envelope;
mod general;
pub mod gnostic;
mod index;
mod paths;
mod resource;
mod schemas;
pub mod v2;

pub use document::{built_in_document, definitions, document};
pub use general::documents as general_documents;
pub use index::{hash, index};
pub use resource::{Describe, Resource, Subresource, group_version_path};

#[cfg(test)]
mod tests;
