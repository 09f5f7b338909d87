//! The name rules that resources choose from. Each checks a name or, with `prefix`, a generateName.

use knarr_apimachinery::names;

fn masked(name: &str, prefix: bool) -> String {
    if prefix { names::mask_trailing_dash(name) } else { name.to_owned() }
}

/// Requires a DNS-1123 subdomain: most resources.
pub fn subdomain(name: &str, prefix: bool) -> Vec<String> {
    names::dns1123_subdomain(&masked(name, prefix))
}

/// Requires a DNS-1123 label: namespaces and services.
pub fn label(name: &str, prefix: bool) -> Vec<String> {
    names::dns1123_label(&masked(name, prefix))
}

/// Requires a segment of a URL path: RBAC, events.
pub fn path_segment(name: &str, prefix: bool) -> Vec<String> {
    if prefix { names::path_segment_prefix(name) } else { names::path_segment_name(name) }
}
