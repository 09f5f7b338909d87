//! Writes that the server itself makes.

use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::options::{FieldValidation, WriteParams};
use super::served::Served;
use super::{Registry, create, metadata, store};
use knarr_wire::request::Request;

/// How many writes run concurrently at the start: they share the store's fsyncs.
pub const AT_ONCE: usize = 32;

impl WriteParams {
    /// Returns the parameters for a write by the server itself.
    pub fn own() -> Self {
        Self {
            dry_run: false,
            field_manager: "kube-apiserver".into(),
            field_validation: FieldValidation::Ignore,
            force: None,
            applied: false,
        }
    }
}

/// Creates a namespace unless it exists.
pub async fn ensure_namespace(registry: &Registry, name: &str) -> Result<(), StatusError> {
    let Some(served) = registry.table.find("", "v1", "namespaces") else { return Ok(()) };
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    ensure(registry, &Request::own(), &served, namespace).await
}

/// Creates the object unless it exists.
pub async fn ensure(
    registry: &Registry,
    request: &Request,
    served: &Served,
    object: Value,
) -> Result<(), StatusError> {
    let (namespace, name) = (metadata::text(&object, "namespace"), metadata::text(&object, "name"));
    if store::read(registry, served, namespace, name).await?.is_some() {
        return Ok(());
    }
    match create::create_value(registry, request, served, &WriteParams::own(), object).await {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}
