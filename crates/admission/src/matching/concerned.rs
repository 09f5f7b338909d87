//! Which requests webhooks and policies may see at all.

use crate::Attributes;

/// The API group of webhook configurations and policies.
pub const GROUP: &str = "admissionregistration.k8s.io";

/// Which webhooks and policies apply to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concerned {
    All,
    /// Only those from files: for the resources that configure webhooks and policies, so that a faulty one can always
    /// be repaired.
    Manifests,
    /// None: for reviews that authentication and authorization need.
    None,
}

/// Returns which policies apply; these may also check webhook configurations. Source: upstream's
/// `admissionResources`.
pub fn concerned_policies(attributes: &Attributes<'_>) -> Concerned {
    match (attributes.resource.group, attributes.resource.plural) {
        (
            GROUP,
            "mutatingadmissionpolicies"
            | "mutatingadmissionpolicybindings"
            | "validatingadmissionpolicies"
            | "validatingadmissionpolicybindings",
        ) => Concerned::Manifests,
        ("authentication.k8s.io", "selfsubjectreviews" | "tokenreviews") => Concerned::None,
        ("authorization.k8s.io", plural) if plural.ends_with("reviews") => Concerned::None,
        _ => Concerned::All,
    }
}
