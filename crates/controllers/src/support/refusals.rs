//! Refusals by the API server that controllers do not treat as failures.

/// Returns whether a create was refused because its namespace is being deleted; the object would be deleted with it.
pub fn namespace_is_terminating(error: &knarr_client::Error) -> bool {
    let causes = error.status().and_then(|s| s.0.details.as_ref()?.causes.as_ref());
    causes.into_iter().flatten().any(|c| c.reason.as_deref() == Some("NamespaceTerminating"))
}
