//! Kinds that extend admission: webhook configurations, and policies with their bindings.

mod client_config;
pub mod expressions;
mod matching;
pub mod mutatingadmissionpolicy;
pub mod mutatingadmissionpolicybinding;
pub mod mutatingwebhookconfiguration;
mod policies;
mod rules;
pub mod type_checking;
pub mod validatingadmissionpolicy;
pub mod validatingadmissionpolicybinding;
pub mod validatingwebhookconfiguration;
mod webhooks;

use knarr_apimachinery::field::{Error, ErrorList, Path};

/// The suffix of names that are reserved for configuration from files.
const STATIC_SUFFIX: &str = ".static.k8s.io";

fn static_problem() -> String {
    format!(
        "names ending with \"{STATIC_SUFFIX}\" are reserved for static manifest-based configurations and cannot be managed via the API"
    )
}

/// Refuses new objects with a reserved name.
fn not_static(errors: &mut ErrorList, name: &str) {
    if name.ends_with(STATIC_SUFFIX) {
        errors.push(Error::invalid(&Path::new("metadata").child("name"), name, static_problem()));
    }
}

/// Warns about updates of older objects with a reserved name.
fn static_warnings(name: &str) -> Vec<String> {
    match name.ends_with(STATIC_SUFFIX) {
        true => vec![format!("metadata.name: {}", static_problem())],
        false => Vec::new(),
    }
}
