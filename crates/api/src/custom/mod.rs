//! Custom resources: what a CustomResourceDefinition makes of one of its versions.

mod columns;

use crate::naming;
use crate::resource::Resource;
use crate::strategy::Strategy;

pub use columns::Columns;

/// One served version of a custom resource.
pub struct CustomResource {
    /// Names, verbs and subresources, with interned strings. Its strategy and columns are placeholders.
    pub resource: Resource,
    pub columns: Columns,
}

impl Strategy for CustomResource {
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
