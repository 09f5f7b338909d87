//! Authorization checks and their decisions.

use std::fmt;
use std::sync::Arc;

/// Decides authorization checks.
pub trait Authorizer: Send + Sync {
    /// Decides for the user of the request, or for the service account of the check.
    fn authorize(&self, check: &Check) -> Decision;
}

/// An authorization check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Check {
    /// Namespace and name of the service account to check instead of the user of the request.
    pub service_account: Option<(String, String)>,
    pub verb: String,
    /// The URL path of a non-resource check.
    pub path: String,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub field_selector: String,
    pub label_selector: String,
}

/// The decision of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
    pub error: Option<String>,
}

/// A check under construction, or its decision.
#[derive(Clone)]
pub enum Authz {
    Authorizer { authorizer: Arc<dyn Authorizer>, check: Check },
    Path { authorizer: Arc<dyn Authorizer>, check: Check },
    Group { authorizer: Arc<dyn Authorizer>, check: Check },
    Resource { authorizer: Arc<dyn Authorizer>, check: Check },
    Decision(Decision),
}

impl Authz {
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Authorizer { .. } => "kubernetes.authorization.Authorizer",
            Self::Path { .. } => "kubernetes.authorization.PathCheck",
            Self::Group { .. } => "kubernetes.authorization.GroupCheck",
            Self::Resource { .. } => "kubernetes.authorization.ResourceCheck",
            Self::Decision(_) => "kubernetes.authorization.Decision",
        }
    }
}

impl fmt::Debug for Authz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name())
    }
}
